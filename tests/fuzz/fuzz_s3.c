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
    REQUIRE(path[0] == '/' && strlen(path) < XML_PATH_MAX);
    REQUIRE(strlen(text) <= XML_TEXT_MAX && utf8_valid(text));
    return 0;
}

/* Read quickly and read by the library. */
static void same(const struct s3_tree *t, const struct s3_tree *other)
{
    REQUIRE(t->n == other->n && t->pending.n == other->pending.n);
    for (size_t i = 0; i < t->n; i++) {
        const struct s3_entry *a = &t->v[i], *b = &other->v[i];
        REQUIRE(strcmp(a->path, b->path) == 0 && a->kind == b->kind && a->mode == b->mode &&
                a->size == b->size && a->mtime_ns == b->mtime_ns && a->ino == b->ino &&
                a->ctime_ns == b->ctime_ns && a->guessed == b->guessed);
        REQUIRE(strcmp(a->sha, b->sha) == 0 && strcmp(a->etag, b->etag) == 0 &&
                strcmp(a->later, b->later) == 0 && !a->staged == !b->staged &&
                (!a->staged || strcmp(a->staged, b->staged) == 0));
    }
    for (size_t i = 0; i < t->pending.n; i++)
        REQUIRE(strcmp(t->pending.v[i], other->pending.v[i]) == 0);
    REQUIRE(strcmp(t->lineage, other->lineage) == 0);
    REQUIRE(strcmp(t->push, other->push) == 0);
}

static void fuzz_manifest(const char *text, size_t n)
{
    AUTO_S3_TREE struct s3_tree t = {0}, again = {0}, other = {0};
    int r = s3_tree_parse(text, n, &t);
    REQUIRE(s3_tree_parse_any(text, n, &other) == r);
    if (r < 0)
        return;
    same(&t, &other);
    for (size_t i = 0; i < t.n; i++) {
        const struct s3_entry *a = &t.v[i];
        REQUIRE(s3_path_ok(a->path) && a->mode <= 0777);
        REQUIRE(!strpbrk(a->etag, "\r\n\"") && (!a->staged || !strpbrk(a->staged, "/.")));
        REQUIRE(i == 0 || strcmp(t.v[i - 1].path, a->path) < 0);
    }
    char *dump = s3_tree_dump(&t, true);
    REQUIRE(dump && s3_tree_parse_own(dump, strlen(dump), &again) == 0 && again.n == t.n);
    s3_tree_free(&other);
    REQUIRE(s3_tree_parse_any(dump, strlen(dump), &other) == 0);
    same(&again, &other);
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
