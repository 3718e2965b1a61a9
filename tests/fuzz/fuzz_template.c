/* Templates of `docker --format`: whatever they say, rendering ends, within the limits of its output,
 * and says why it failed. */
#include "cli/core/template.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <string.h>

#include "fuzz_require.h"

enum { OUTPUT_LIMIT = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_JSON json_t *v =
        json_pack("{s:{s:s, s:i, s:b, s:n}, s:[s, s, i, {s:[]}], s:{s:[{s:s}]}, s:[]}", "A", "B",
                  "b", "N", 3, "T", 1, "Z", "L", "x", "", 7, "y", "M", "k 1", "P", "p", "E");
    AUTO_FREE char *text = strndup((const char *)data, size);
    AUTO_BUF struct buf b = {.limit = OUTPUT_LIMIT};
    struct err e = {0};
    REQUIRE(v && text);
    int r = template_render(text, v, &b, &e);
    REQUIRE(r == 0 || (r < 0 && e.msg[0] && e.code == -r));
    REQUIRE(buf_len(&b) <= OUTPUT_LIMIT);
    return 0;
}
