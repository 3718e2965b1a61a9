/* Layers read back, merged, and written as one disk; and layer files that lie. */
#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "erofs_reader.h"
#include "image/erofs/disk.h"
#include "image/erofs/erofs.h"
#include "image/layer/layer.h"
#include "image_fixture.h"
#include "unit.h"
#include "util/cleanup.h"

/* ---- layers ---- */

static void add_file(struct tree *t, struct erofs_writer *w, const char *path, size_t size,
                     uint32_t seed)
{
    static uint8_t bytes[1 << 16];
    struct tree_inode *ino;
    const struct tree_attr a = {.mode = S_IFREG | 0644,
                                .uid = 100000,
                                .mtime = 1500000000 + seed,
                                .mtime_nsec = 123456789,
                                .size = size};
    fill_bytes(bytes, size, seed);
    assert_int_equal(tree_add(t, path, &a, &ino, NULL), 0);
    assert_int_equal(tree_set_xattr(t, ino, "user.seed", &seed, sizeof(seed), NULL), 0);
    assert_int_equal(erofs_file_begin(w, ino, NULL), 0);
    assert_int_equal(erofs_file_write(w, 0, bytes, size, NULL), 0);
    assert_int_equal(erofs_file_end(w, NULL), 0);
}

static void begin(struct tree *t, struct erofs_writer *w)
{
    assert_int_equal(tree_init(t, 0, 0), 0);
    erofs_begin(w, mk_memfile(), -1);
    erofs_set_layer(w, LAYER_INLINE_MAX);
}

static int finish(struct tree *t, struct erofs_writer *w)
{
    struct err e = {0};
    int fd = w->fd;
    if (erofs_finish(w, t, &e) < 0)
        fail_msg("%s", e.msg);
    tree_free(t);
    return fd;
}

static void expect_file(const struct er *r, const char *path, size_t size, uint32_t seed,
                        uint32_t nlink)
{
    static uint8_t want[1 << 16], got[1 << 16];
    struct er_inode i;
    size_t len;
    if (!er_lookup(r, path, &i))
        fail_msg("%s is missing", path);
    fill_bytes(want, size, seed);
    assert_int_equal(i.size, size);
    assert_int_equal(er_read(r, &i, 0, got, sizeof(got)), size);
    assert_memory_equal(got, want, size);
    assert_int_equal(i.nlink, nlink);
    assert_true(i.mtime == 1500000000 + seed && i.mtime_nsec == 123456789 && i.uid == 100000);
    assert_memory_equal(er_xattr(r, &i, "user.seed", &len), &seed, sizeof(seed));
}

static int make_disk(const int *layers, size_t n)
{
    static char buf[1 << 16];
    struct err e = {0};
    int out = mk_memfile();
    if (disk_write_metadata(layers, n, out, -1, 0, &e) < 0)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++) {
        off_t end = lseek(out, 0, SEEK_END);
        ssize_t k;
        for (off_t at = 0; (k = pread(layers[i], buf, sizeof(buf), at)) > 0; at += k)
            assert_int_equal(pwrite(out, buf, (size_t)k, end + at), k);
    }
    return out;
}

static void test_merge(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode i;
    int fd[3];
    begin(&t, &w);
    add_file(&t, &w, "d/inline", 100, 1);
    add_file(&t, &w, "d/padded", 5000, 2);
    add_file(&t, &w, "d/both", 4096 + 50, 3);
    add_file(&t, &w, "gone", 10, 4);
    add_file(&t, &w, "hidden/old", 10, 5);
    assert_int_equal(tree_link(&t, "other", "d/both", NULL), 0);
    assert_int_equal(tree_link(&t, "third", "d/both", NULL), 0);
    fd[0] = finish(&t, &w);
    begin(&t, &w);
    add_file(&t, &w, "d/new", 20, 6);
    add_file(&t, &w, "d/both", 4096UL * 3, 7); /* the other two names keep the old file */
    assert_int_equal(tree_whiteout(&t, "gone", NULL), 0);
    assert_int_equal(tree_opaque(&t, "hidden", NULL), 0);
    assert_int_equal(tree_link_below(&t, "again", "d/inline", NULL), 0);
    fd[1] = finish(&t, &w);
    begin(&t, &w); /* nothing at all */
    fd[2] = finish(&t, &w);
    int disk = make_disk(fd, 3);
    er_open(&r, disk);
    (void)er_check(&r);
    expect_file(&r, "d/inline", 100, 1, 2);
    expect_file(&r, "again", 100, 1, 2);
    expect_file(&r, "d/padded", 5000, 2, 1);
    expect_file(&r, "d/both", 4096UL * 3, 7, 1);
    expect_file(&r, "other", 4096 + 50, 3, 2);
    expect_file(&r, "third", 4096 + 50, 3, 2);
    expect_file(&r, "d/new", 20, 6, 1);
    assert_false(er_lookup(&r, "gone", &i) || er_lookup(&r, "hidden/old", &i));
    assert_true(er_lookup(&r, "hidden", &i) && i.xattr == 0); /* marks are gone */
    assert_true(er_lookup(&r, "d", &i) && i.xattr == 0);
    er_close(&r);
    fsck_erofs(disk);
    for (int k = 0; k < 3; k++)
        close(fd[k]);
    close(disk);
}

static void test_no_layers(void **state)
{
    struct er r;
    int disk = make_disk(NULL, 0);
    er_open(&r, disk);
    assert_int_equal(er_check(&r), 0);
    er_close(&r);
    fsck_erofs(disk);
    close(disk);
}

static void test_limits(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct err e = {0};
    int fd[2];
    for (int i = 0; i < 2; i++) {
        begin(&t, &w);
        add_file(&t, &w, "f", 40000, 1);
        fd[i] = finish(&t, &w);
    }
    int out = mk_memfile();
    assert_int_equal(disk_write_metadata(fd, 2, out, -1, 60000, &e), -EFBIG);
    assert_non_null(strstr(e.msg, "layer 2"));
    close(out);
    /* A hard link to nothing. */
    begin(&t, &w);
    assert_int_equal(tree_link_below(&t, "x", "no/such", NULL), 0);
    int bad = finish(&t, &w);
    out = mk_memfile();
    assert_int_equal(disk_write_metadata(&bad, 1, out, -1, 0, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "'x' is a hard link to 'no/such', which is missing"));
    close(out);
    close(bad);
    close(fd[0]);
    close(fd[1]);
}

/* Marks leave nothing behind, but they count: many layers of them would fill memory. */
static void test_marks_count(void **state)
{
    struct tree base, layer;
    struct err e = {0};
    char name[16];
    assert_int_equal(tree_init(&base, 25, 0), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tree_init(&layer, 0, 0), 0);
        for (int k = 0; k < 10; k++) {
            (void)snprintf(name, sizeof(name), "f%d", k);
            assert_int_equal(tree_whiteout(&layer, name, NULL), 0);
        }
        assert_int_equal(tree_merge(&base, &layer, &e), i < 2 ? 0 : -E2BIG);
    }
    assert_non_null(strstr(e.msg, "the layers together have more than 25 entries"));
    tree_free(&base);
}

static void test_memory_is_bounded(void **state)
{
    static char value[65000];
    struct tree t;
    struct tree_inode *ino;
    struct err e = {0};
    char name[16];
    int r = 0, i = 0;
    assert_int_equal(tree_init(&t, 0, 0), 0);
    t.memory = TREE_MEMORY_MAX - (4 << 20); /* as if so much were in it */
    for (; r == 0 && i < 100; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        r = tree_add(&t, name, &(struct tree_attr){.mode = S_IFREG | 0644}, &ino, &e);
        if (r == 0)
            r = tree_set_xattr(&t, ino, "user.x", value, sizeof(value), &e);
    }
    assert_int_equal(r, -ENOMEM);
    assert_true(t.memory <= TREE_MEMORY_MAX && i > 10);
    tree_free(&t);
}

/* ---- lies ---- */

enum { DIRENT = 12 };

/* A small layer, and where things are in it. */
struct victim {
    int fd;
    struct er r;
    uint64_t dir, file, link, root; /* byte offsets of inodes */
    struct er_inode rootino, dirino;
};

static void open_victim(struct victim *v)
{
    struct tree t;
    struct erofs_writer w;
    struct er_inode i;
    begin(&t, &w);
    add_file(&t, &w, "dir/file", 5100, 1);
    assert_int_equal(
        tree_add(&t, "dir/sub", &(struct tree_attr){.mode = S_IFDIR | 0755}, NULL, NULL), 0);
    assert_int_equal(tree_add(&t, "link",
                              &(struct tree_attr){.mode = S_IFLNK | 0777, .target = "dir"}, NULL,
                              NULL),
                     0);
    v->fd = finish(&t, &w);
    er_open(&v->r, v->fd);
    v->root = v->r.meta + v->r.root * 32;
    assert_true(er_lookup(&v->r, "dir/file", &i));
    v->file = v->r.meta + i.nid * 32;
    assert_true(er_lookup(&v->r, "link", &i));
    v->link = v->r.meta + i.nid * 32;
    assert_true(er_lookup(&v->r, "dir", &v->dirino) && er_lookup(&v->r, "/", &v->rootino));
    v->dir = v->r.meta + v->dirino.nid * 32;
}

static void close_victim(struct victim *v)
{
    er_close(&v->r);
    close(v->fd);
}

static void poke(const struct victim *v, uint64_t at, uint64_t value, size_t n)
{
    assert_int_equal(pwrite(v->fd, &value, n, (off_t)at), n);
}

/* The file must be refused, by loader and disk alike. */
static void refused(struct victim *v, const char *text)
{
    struct tree t;
    struct err e = {0};
    assert_int_equal(tree_init(&t, 1000, 0), 0);
    int r = erofs_load_tree(v->fd, 0, &t, &e);
    if (r != -EBADMSG || !strstr(e.msg, text))
        fail_msg("got %d '%s', wanted '%s'", r, e.msg, text);
    tree_free(&t);
    int out = mk_memfile();
    assert_int_equal(disk_write_metadata(&v->fd, 1, out, -1, 0, &e), -EBADMSG);
    close(out);
    close_victim(v);
}

/* The offset of the n-th entry of an inline directory. */
static uint64_t dirent_at(const struct er_inode *dir, int n)
{
    assert_true(dir->inl && dir->size < 4096);
    return dir->tail + (uint64_t)n * DIRENT;
}

static void test_lies_about_inodes(void **state)
{
    struct victim v;
    open_victim(&v);
    poke(&v, v.file, 0x0f, 2);
    refused(&v, "unknown layout");
    open_victim(&v);
    poke(&v, v.file + 8, 1ULL << 62, 8); /* size */
    refused(&v, "points past its end");
    open_victim(&v);
    poke(&v, v.file + 16, 0xfffffff0, 4); /* first block */
    refused(&v, "points past its end");
    open_victim(&v);
    poke(&v, v.file + 16, 0, 4);
    refused(&v, "points past its end");
    open_victim(&v);
    poke(&v, v.file + 2, 0xffff, 2); /* attributes */
    refused(&v, "");
    open_victim(&v);
    poke(&v, v.file + 2, 1, 2);
    refused(&v, "extended attributes are truncated");
    open_victim(&v);
    poke(&v, v.file + 64 + 4, 3, 1); /* shared ones */
    refused(&v, "shared extended attributes");
    open_victim(&v);
    poke(&v, v.file + 64 + 12 + 1, 99, 1); /* prefix */
    refused(&v, "bad name");
    open_victim(&v);
    poke(&v, v.file + 4, S_IFDIR | 0755, 2); /* type */
    refused(&v, "");
    open_victim(&v);
    poke(&v, v.root + 4, S_IFREG | 0644, 2);
    refused(&v, "its root is not a directory");
}

static void test_lies_about_names(void **state)
{
    struct victim v;
    open_victim(&v); /* root: ".", "..", "dir", "link" */
    poke(&v, dirent_at(&v.rootino, 0) + 8, 7, 2);
    refused(&v, "a directory block is invalid");
    open_victim(&v);
    poke(&v, dirent_at(&v.rootino, 1) + 8, 4000, 2);
    refused(&v, "a directory block is invalid");
    open_victim(&v);
    poke(&v, dirent_at(&v.rootino, 4) + 1 + 2, '/', 1); /* "dir" becomes "/ir" */
    struct tree t;
    struct err e = {0};
    assert_int_equal(tree_init(&t, 0, 0), 0);
    assert_int_equal(erofs_load_tree(v.fd, 0, &t, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "invalid file name"));
    tree_free(&t);
    close_victim(&v);
    open_victim(&v);
    poke(&v, dirent_at(&v.rootino, 4) + 1 + 2, 'z', 1); /* "zir" before "link" */
    refused(&v, "not sorted");
    open_victim(&v);
    poke(&v, dirent_at(&v.rootino, 4) + 1 + 2, '\0', 1);
    refused(&v, "name is invalid");
    open_victim(&v);
    poke(&v, v.link + 8, 4096, 4); /* a link of a length that cannot be */
    refused(&v, "");
}

static void test_lies_about_directories(void **state)
{
    struct victim v;
    open_victim(&v); /* dir: ".", "..", "file", "sub" */
    poke(&v, dirent_at(&v.dirino, 3), v.rootino.nid, 8);
    refused(&v, "in two places");
    open_victim(&v);
    poke(&v, dirent_at(&v.dirino, 3), v.dirino.nid, 8);
    refused(&v, "in two places");
    open_victim(&v);
    poke(&v, dirent_at(&v.dirino, 1), v.dirino.nid, 8); /* ".." */
    refused(&v, "misplaced");
    open_victim(&v);
    poke(&v, dirent_at(&v.dirino, 3), 1ULL << 60, 8);
    refused(&v, "points past its end");
    open_victim(&v);
    poke(&v, dirent_at(&v.dirino, 3) + 10, EROFS_FT_REG, 1);
    refused(&v, "wrong type");
}

static void test_lies_about_the_file(void **state)
{
    struct victim v;
    open_victim(&v);
    poke(&v, 1024, 0, 4);
    refused(&v, "superblock");
    open_victim(&v);
    poke(&v, 2000, 1, 1);
    refused(&v, "superblock"); /* its checksum */
    open_victim(&v);
    assert_int_equal(ftruncate(v.fd, (off_t)v.r.len - 1), 0);
    refused(&v, "length");
    open_victim(&v);
    assert_int_equal(ftruncate(v.fd, (off_t)v.r.len - 4096), 0);
    refused(&v, "superblock");
    open_victim(&v);
    assert_int_equal(ftruncate(v.fd, 0), 0);
    refused(&v, "points past its end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_no_layers),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_marks_count),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_lies_about_inodes),
        cmocka_unit_test(test_lies_about_names),
        cmocka_unit_test(test_lies_about_directories),
        cmocka_unit_test(test_lies_about_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
