/* .msbignore, and the paths that it is asked about: what is before the first NUL, and what follows. */
#include "fuzz_require.h"
#include "workspace/ignore.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_IGNORE struct ignore g = {0};
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size;
    char path[300] = "a/b", below[320];
    if (ignore_parse((const char *)data, n, &g) < 0)
        return 0;
    if (nul)
        (void)snprintf(path, sizeof(path), "%.*s", (int)(size - n - 1), (const char *)nul + 1);
    bool as_dir = ignore_covers(&g, path, true), as_file = ignore_covers(&g, path, false);
    (void)as_file;
    /* What is in an ignored directory is ignored, whatever the rules say about it. */
    (void)snprintf(below, sizeof(below), "%s/below", path);
    if (as_dir && ignore_check(&g, NULL) == 0 && path[0] != '\0')
        REQUIRE(ignore_covers(&g, below, false));
    for (size_t i = 0; i < g.n; i++)
        REQUIRE(strlen(g.v[i].pattern) <= IGNORE_RULE_MAX);
    return 0;
}
