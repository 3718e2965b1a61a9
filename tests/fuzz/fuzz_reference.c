/* Image references: what is accepted keeps its meaning in both of its spellings, and has nothing
 * in it that could leave the place in a URL or a message where it is put. */
#include "fuzz_require.h"
#include "image/oci/reference.h"

#include <string.h>

static void same(const char *a, const char *b)
{
    REQUIRE(!a == !b);
    REQUIRE(!a || strcmp(a, b) == 0);
}

static void reads_back(const struct reference *r, char *spelling)
{
    struct reference again;
    REQUIRE(spelling && reference_parse(spelling, &again, NULL) == 0);
    same(r->registry, again.registry);
    same(r->repository, again.repository);
    same(r->tag, again.tag);
    same(r->digest, again.digest);
    reference_free(&again);
    free(spelling);
}

static void only(const char *s, const char *extra)
{
    for (; s && *s; s++)
        REQUIRE((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
                strchr(extra, *s));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[REFERENCE_MAX + 8];
    size_t n = size < sizeof(text) ? size : sizeof(text) - 1;
    if (n)
        memcpy(text, data, n);
    text[n] = '\0';
    struct reference r;
    struct err e = {0};
    if (reference_parse(text, &r, &e) < 0) {
        REQUIRE(e.code != 0 && e.msg[0]);
        return 0;
    }
    REQUIRE(r.registry && r.repository && (r.tag || r.digest));
    only(r.registry, ".-:[]");
    only(r.repository, "._-/");
    REQUIRE(!strstr(r.repository, "..") && !strstr(r.repository, "//"));
    only(r.tag, "._-");
    only(r.digest, ":");
    reads_back(&r, reference_full(&r));
    reads_back(&r, reference_familiar(&r));
    reference_free(&r);
    return 0;
}
