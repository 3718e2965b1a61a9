/* What an S3 server sends: XML documents, and the manifest. The first byte picks the parser. */
#include "fuzz_require.h"
#include "s3/tree.h"
#include "s3/xml.h"
#include "util/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int on_element(void *ctx, const char *path, const char *text)
{
    (void)ctx;
    REQUIRE(path[0] == '/' && strlen(path) < XML_PATH_MAX);
    REQUIRE(strlen(text) <= XML_TEXT_MAX && utf8_valid(text));
    return 0;
}

static void fuzz_manifest(const char *text, size_t n)
{
    AUTO_S3_TREE struct s3_tree t = {0}, again = {0};
    if (s3_tree_parse(text, n, &t) < 0)
        return;
    for (size_t i = 0; i < t.n; i++) {
        const struct s3_entry *a = &t.v[i];
        REQUIRE(s3_path_ok(a->path) && a->mode <= 0777);
        REQUIRE(!strpbrk(a->etag, "\r\n\"") && (!a->staged || !strpbrk(a->staged, "/.")));
        REQUIRE(i == 0 || strcmp(t.v[i - 1].path, a->path) < 0);
    }
    char *dump = s3_tree_dump(&t, false);
    REQUIRE(dump && s3_tree_parse(dump, strlen(dump), &again) == 0 && again.n == t.n);
    free(dump);
    REQUIRE(s3_tree_imply_dirs(&t) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        (void)xml_parse((const char *)data + 1, size - 1, on_element, NULL);
    else
        fuzz_manifest((const char *)data + 1, size - 1);
    return 0;
}
