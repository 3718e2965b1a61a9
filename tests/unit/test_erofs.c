#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "erofs_reader.h"
#include "image/erofs/erofs.h"
#include "image_fixture.h"
#include "unit.h"

static struct tree_attr attr(uint16_t mode)
{
    return (struct tree_attr){.mode = mode, .mtime = 1000};
}

static struct tree_inode *add(struct tree *t, const char *path, struct tree_attr a)
{
    struct err e = {0};
    struct tree_inode *ino = NULL;
    if (tree_add(t, path, &a, &ino, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
    return ino;
}

static void write_bytes(struct erofs_writer *w, struct tree_inode *ino, uint32_t seed)
{
    uint8_t *p = malloc(ino->size + 1);
    assert_non_null(p);
    fill_bytes(p, ino->size, seed);
    assert_int_equal(erofs_file_begin(w, ino, NULL), 0);
    size_t half = ino->size / 3; /* in two writes, not on a block boundary */
    assert_int_equal(erofs_file_write(w, 0, p, half, NULL), 0);
    assert_int_equal(erofs_file_write(w, half, p + half, ino->size - half, NULL), 0);
    assert_int_equal(erofs_file_end(w, NULL), 0);
    free(p);
}

static struct tree_inode *add_file(struct tree *t, struct erofs_writer *w, const char *path,
                                   uint64_t size, uint32_t seed)
{
    struct tree_attr a = attr(S_IFREG | 0644);
    a.size = size;
    struct tree_inode *ino = add(t, path, a);
    write_bytes(w, ino, seed);
    return ino;
}

static void expect_bytes(const struct er *r, const char *path, uint64_t size, uint32_t seed)
{
    struct er_inode ino;
    assert_true(er_lookup(r, path, &ino));
    assert_true(S_ISREG(ino.mode));
    assert_int_equal(ino.size, size);
    uint8_t *want = malloc(size + 1), *got = malloc(size + 1);
    assert_true(want && got);
    fill_bytes(want, size, seed);
    assert_int_equal(er_read(r, &ino, 0, got, size + 1), size);
    assert_memory_equal(want, got, size);
    free(want);
    free(got);
}

static void begin(struct tree *t, struct erofs_writer *w, int fd)
{
    assert_int_equal(tree_init(t, 0, 0), 0);
    erofs_begin(w, fd, -1);
    (void)add(t, "/", attr(S_IFDIR | 0755));
}

static void finish(struct tree *t, struct erofs_writer *w)
{
    struct err e = {0};
    if (erofs_finish(w, t, &e) < 0)
        fail_msg("%s", e.msg);
}

static void test_empty(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 0);
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static const uint64_t sizes[] = {0,     1,     31,    32,      100,     4000,    4031,   4032, 4033,
                                 4063,  4064,  4065,  4095,    4096,    4097,    8191,   8192, 8193,
                                 12288, 65536, 65537, 1048575, 1048576, 1048577, 3000001};

static void test_sizes(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    int fd = mk_memfile();
    char path[64];
    begin(&t, &w, fd);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        (void)snprintf(path, sizeof(path), "dir/f%llu", (unsigned long long)sizes[i]);
        (void)add_file(&t, &w, path, sizes[i], (uint32_t)i);
    }
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 1 + sizeof(sizes) / sizeof(sizes[0]));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        (void)snprintf(path, sizeof(path), "dir/f%llu", (unsigned long long)sizes[i]);
        expect_bytes(&r, path, sizes[i], (uint32_t)i);
    }
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void test_attributes(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode i;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    (void)add(&t, "suid", (struct tree_attr){.mode = S_IFREG | 06755, .mtime = 1000});
    (void)add(&t, "owned",
              (struct tree_attr){
                  .mode = S_IFREG | 0600, .uid = 4294967294U, .gid = 70000, .mtime = 1000});
    (void)add(
        &t, "small",
        (struct tree_attr){.mode = S_IFREG | 0600, .uid = 65535, .gid = 65535, .mtime = 1000});
    (void)add(&t, "when",
              (struct tree_attr){.mode = S_IFREG | 0600, .mtime = -77, .mtime_nsec = 999999999});
    (void)add(&t, "later", (struct tree_attr){.mode = S_IFREG | 0600, .mtime = 5000000000LL});
    (void)add(&t, "chr",
              (struct tree_attr){.mode = S_IFCHR | 0620, .major = 5, .minor = 1, .mtime = 1000});
    (void)add(&t, "blk",
              (struct tree_attr){
                  .mode = S_IFBLK | 0660, .major = 0xfff, .minor = 0xfffff, .mtime = 1000});
    (void)add(&t, "fifo", attr(S_IFIFO | 0644));
    (void)add(&t, "sock", attr(S_IFSOCK | 0755));
    (void)add(&t, "sticky", attr(S_IFDIR | 01777));
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 10);
    assert_true(er_lookup(&r, "suid", &i));
    assert_int_equal(i.mode, S_IFREG | 06755);
    assert_false(i.extended); /* most have this time: no need to spell it out */
    assert_int_equal(i.mtime, 1000);
    assert_true(er_lookup(&r, "owned", &i));
    assert_true(i.uid == 4294967294U && i.gid == 70000 && i.extended);
    assert_true(er_lookup(&r, "small", &i));
    assert_true(i.uid == 65535 && i.gid == 65535 && !i.extended);
    assert_true(er_lookup(&r, "when", &i));
    assert_true(i.mtime == -77 && i.mtime_nsec == 999999999);
    assert_true(er_lookup(&r, "later", &i));
    assert_true(i.mtime == 5000000000LL && i.mtime_nsec == 0);
    assert_true(er_lookup(&r, "chr", &i));
    assert_true(S_ISCHR(i.mode) && i.u == (5 << 8 | 1));
    assert_true(er_lookup(&r, "blk", &i));
    assert_true(S_ISBLK(i.mode) && i.u == 0xffffffffU);
    assert_true(er_lookup(&r, "fifo", &i) && S_ISFIFO(i.mode));
    assert_true(er_lookup(&r, "sock", &i) && S_ISSOCK(i.mode));
    assert_true(er_lookup(&r, "sticky", &i) && i.mode == (S_IFDIR | 01777));
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

/* Symlinks around the sizes at which they no longer fit behind their inode. */
static void test_symlinks(void **state)
{
    static const size_t lens[] = {1, 60, 4000, 4031, 4032, 4033, 4063, 4064, 4065, 4094, 4095};
    struct tree t;
    struct erofs_writer w;
    struct er r;
    char target[4097], path[64], got[5000];
    int fd = mk_memfile();
    begin(&t, &w, fd);
    for (int other = 0; other < 2; other++)
        for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
            struct tree_attr a = attr(S_IFLNK | 0777);
            a.mtime += other; /* the second one needs the larger inode */
            memset(target, 'a' + (int)i, lens[i]);
            target[lens[i]] = '\0';
            a.target = target;
            (void)snprintf(path, sizeof(path), "l%zu.%d", lens[i], other);
            (void)add(&t, path, a);
        }
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    (void)er_check(&r);
    for (int other = 0; other < 2; other++)
        for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
            struct er_inode ino;
            (void)snprintf(path, sizeof(path), "l%zu.%d", lens[i], other);
            assert_true(er_lookup(&r, path, &ino));
            assert_true(S_ISLNK(ino.mode));
            assert_int_equal(er_read(&r, &ino, 0, got, sizeof(got)), lens[i]);
            assert_int_equal(got[0], 'a' + (int)i);
            assert_int_equal(got[lens[i] - 1], 'a' + (int)i);
        }
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void test_big_directory(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode ino;
    char path[600];
    int fd = mk_memfile();
    begin(&t, &w, fd);
    for (int i = 0; i < 10000; i++) {
        (void)snprintf(path, sizeof(path), "many/%d.%.*s", i * 7919 % 10000, i % 40,
                       "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        (void)add_file(&t, &w, path, (uint64_t)(i % 300), (uint32_t)i);
    }
    for (int i = 0; i < 300; i++) { /* names of 255 bytes: 15 to a block */
        memset(path, 'n', 260);
        (void)snprintf(path, sizeof(path), "long/%03d", i);
        memset(path + 8, 'n', 252);
        path[5 + 255] = '\0';
        (void)add(&t, path, attr(S_IFIFO | 0600));
    }
    for (int i = 0; i < 70000; i++) { /* more links than 16 bits count */
        (void)snprintf(path, sizeof(path), "dirs/%d", i);
        (void)add(&t, path, attr(S_IFDIR | 0755));
    }
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 3 + 10000 + 300 + 70000);
    assert_true(er_lookup(&r, "dirs", &ino) && ino.nlink == 70002);
    for (int i = 0; i < 10000; i += 997) {
        (void)snprintf(path, sizeof(path), "many/%d.%.*s", i * 7919 % 10000, i % 40,
                       "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        expect_bytes(&r, path, (uint64_t)(i % 300), (uint32_t)i);
    }
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

/* Names that sort around "." and "..", and bytes that are no text. */
static void test_names(void **state)
{
    static const char *const names[] = {"!",       "-",    "...",  "..a",  ".-",
                                        ".hidden", "/x/y", "\x01", "\xff", "\xc3\x28",
                                        "caf\xe9", "a b",  "a\nb", "~"};
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode ino;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)add_file(&t, &w, names[i], i, (uint32_t)i);
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    (void)er_check(&r);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        expect_bytes(&r, names[i], i, (uint32_t)i);
    assert_false(er_lookup(&r, "missing", &ino));
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void test_deep(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    char path[4096];
    size_t n = 0;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    while (n + 4 < sizeof(path) && n / 4 < 1000)
        n += (size_t)snprintf(path + n, sizeof(path) - n, "d%02zu/", n / 4 % 100);
    (void)snprintf(path + n, sizeof(path) - n, "x");
    (void)add_file(&t, &w, path, 5, 1);
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 1001);
    expect_bytes(&r, path, 5, 1);
    er_close(&r);
    close(fd);
}

static void test_hard_links(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode a, b, c;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    (void)add_file(&t, &w, "one/a", 5000, 1);
    assert_int_equal(tree_link(&t, "two/b", "one/a", NULL), 0);
    assert_int_equal(tree_link(&t, "/c", "./two/b", NULL), 0);
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    assert_int_equal(er_check(&r), 5);
    assert_true(er_lookup(&r, "one/a", &a) && er_lookup(&r, "two/b", &b) && er_lookup(&r, "c", &c));
    assert_true(a.nid == b.nid && b.nid == c.nid && a.nlink == 3);
    expect_bytes(&r, "c", 5000, 1);
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void test_xattrs(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode i;
    size_t len;
    static uint8_t big[60000];
    static const uint8_t cap[20] = {1, 0, 0, 2, 0, 4};
    int fd = mk_memfile();
    begin(&t, &w, fd);
    fill_bytes(big, sizeof(big), 9);
    struct tree_attr a = attr(S_IFREG | 0755);
    a.size = 4090; /* with these attributes the tail cannot be inline */
    struct tree_inode *f = add(&t, "file", a), *d = add(&t, "dir", attr(S_IFDIR | 0755));
    assert_int_equal(tree_set_xattr(&t, f, "security.capability", cap, sizeof(cap), NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "user.a", "old", 3, NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "user.a", "newer", 5, NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "user.empty", "", 0, NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "trusted.x", "t", 1, NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "system.posix_acl_access", "acl", 3, NULL), 0);
    assert_int_equal(tree_set_xattr(&t, f, "system.unknown", "?", 1, NULL), 0);
    write_bytes(&w, f, 3);
    assert_int_equal(tree_set_xattr(&t, d, "user.big", big, sizeof(big), NULL), 0);
    assert_int_equal(tree_set_xattr(&t, d, "user.big2", big, sizeof(big), NULL), 0);
    assert_int_equal(tree_set_xattr(&t, d, "user.big3", big, sizeof(big), NULL), -E2BIG);
    assert_int_equal(tree_set_xattr(&t, d, "user.huge", big, 65536, NULL), -E2BIG);
    assert_int_equal(tree_set_xattr(&t, t.root, "user.root", "r", 1, NULL), 0);
    (void)add_file(&t, &w, "dir/after", 700, 4);
    finish(&t, &w);
    tree_free(&t);
    er_open(&r, fd);
    (void)er_check(&r);
    assert_true(er_lookup(&r, "file", &i));
    assert_memory_equal(er_xattr(&r, &i, "security.capability", &len), cap, sizeof(cap));
    assert_int_equal(len, sizeof(cap));
    assert_memory_equal(er_xattr(&r, &i, "user.a", &len), "newer", 5);
    assert_int_equal(len, 5);
    assert_non_null(er_xattr(&r, &i, "user.empty", &len));
    assert_int_equal(len, 0);
    assert_memory_equal(er_xattr(&r, &i, "trusted.x", &len), "t", 1);
    assert_memory_equal(er_xattr(&r, &i, "system.posix_acl_access", &len), "acl", 3);
    assert_null(er_xattr(&r, &i, "user.none", &len));
    expect_bytes(&r, "file", 4090, 3);
    assert_true(er_lookup(&r, "dir", &i));
    assert_memory_equal(er_xattr(&r, &i, "user.big2", &len), big, sizeof(big));
    assert_int_equal(len, sizeof(big));
    expect_bytes(&r, "dir/after", 700, 4);
    assert_true(er_lookup(&r, "/", &i));
    assert_memory_equal(er_xattr(&r, &i, "user.root", &len), "r", 1);
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void test_sparse(void **state)
{
    struct tree t;
    struct erofs_writer w;
    struct er r;
    struct er_inode ino;
    struct stat st;
    char got[4];
    const uint64_t size = (5ULL << 30) + 3;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    struct tree_attr a = attr(S_IFREG | 0644);
    a.size = size;
    struct tree_inode *f = add(&t, "sparse", a);
    assert_int_equal(erofs_file_begin(&w, f, NULL), 0);
    assert_int_equal(erofs_file_write(&w, 0, "HEAD", 4, NULL), 0);
    assert_int_equal(erofs_file_write(&w, 3ULL << 30, "MIDD", 4, NULL), 0);
    assert_int_equal(erofs_file_write(&w, size - 2, "ND", 2, NULL), 0);
    assert_int_equal(erofs_file_end(&w, NULL), 0);
    static const uint8_t zeros[1 << 20];
    a.size = 256 << 20;
    f = add(&t, "zeros", a); /* written, but still left out of the file */
    assert_int_equal(erofs_file_begin(&w, f, NULL), 0);
    for (uint64_t at = 0; at < a.size; at += sizeof(zeros))
        assert_int_equal(erofs_file_write(&w, at, zeros, sizeof(zeros), NULL), 0);
    assert_int_equal(erofs_file_end(&w, NULL), 0);
    finish(&t, &w);
    tree_free(&t);
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_blocks < 2048);
    er_open(&r, fd);
    (void)er_check(&r);
    assert_true(er_lookup(&r, "sparse", &ino));
    assert_true(ino.size == size && ino.extended);
    assert_int_equal(er_read(&r, &ino, 0, got, 4), 4);
    assert_memory_equal(got, "HEAD", 4);
    assert_int_equal(er_read(&r, &ino, 3ULL << 30, got, 4), 4);
    assert_memory_equal(got, "MIDD", 4);
    assert_int_equal(er_read(&r, &ino, 1ULL << 30, got, 4), 4);
    assert_memory_equal(got, "\0\0\0\0", 4);
    assert_int_equal(er_read(&r, &ino, size - 3, got, 4), 3);
    assert_memory_equal(got, "\0ND", 3);
    er_close(&r);
    close(fd);
}

static void test_bad_writes(void **state)
{
    struct tree t;
    struct erofs_writer w;
    int fd = mk_memfile();
    begin(&t, &w, fd);
    struct tree_attr a = attr(S_IFREG | 0644);
    a.size = 5000;
    assert_int_equal(erofs_file_begin(&w, add(&t, "f", a), NULL), 0);
    assert_int_equal(erofs_file_write(&w, 4999, "ab", 2, NULL), -EINVAL);
    assert_int_equal(erofs_file_write(&w, UINT64_MAX, "ab", 2, NULL), -EINVAL);
    assert_int_equal(erofs_file_write(&w, 10, "ab", 2, NULL), 0);
    assert_int_equal(erofs_file_write(&w, 11, "ab", 2, NULL), -EINVAL);
    assert_int_equal(erofs_file_end(&w, NULL), 0);
    a.size = 1ULL << 45; /* more blocks than addresses */
    assert_int_equal(erofs_file_begin(&w, add(&t, "g", a), NULL), -EFBIG);
    erofs_abort(&w);
    erofs_abort(&w);
    tree_free(&t);
    close(fd);
}

static void some_tree(struct tree *t, struct erofs_writer *w)
{
    char path[64];
    for (int i = 0; i < 500; i++) {
        (void)snprintf(path, sizeof(path), "d%d/f%d", i % 7, i);
        (void)add_file(t, w, path, (uint64_t)(i * 37 % 9000), (uint32_t)i);
    }
}

static void test_same_bytes(void **state)
{
    struct tree t;
    struct erofs_writer w;
    int fd[2];
    uint8_t a[4096], b[4096];
    struct stat st;
    for (int i = 0; i < 2; i++) {
        fd[i] = mk_memfile();
        begin(&t, &w, fd[i]);
        some_tree(&t, &w);
        finish(&t, &w);
        tree_free(&t);
    }
    assert_int_equal(fstat(fd[0], &st), 0);
    for (off_t at = 0; at < st.st_size; at += (off_t)sizeof(a)) {
        assert_int_equal(pread(fd[0], a, sizeof(a), at), sizeof(a));
        assert_int_equal(pread(fd[1], b, sizeof(b), at), sizeof(b));
        assert_memory_equal(a, b, sizeof(a));
    }
    assert_int_equal(pread(fd[1], b, 1, st.st_size), 0);
    close(fd[0]);
    close(fd[1]);
}

static uint32_t append(int to, int from)
{
    struct stat st;
    char buf[65536];
    ssize_t n;
    assert_int_equal(fstat(from, &st), 0);
    assert_true(lseek(to, 0, SEEK_END) >= 0);
    for (off_t at = 0; (n = pread(from, buf, sizeof(buf), at)) > 0; at += n)
        assert_int_equal(write(to, buf, (size_t)n), n);
    return (uint32_t)(st.st_size / 4096);
}

static void set_blob(struct tree *t, struct tree_inode *dir, uint32_t blob)
{
    struct tree_iter it;
    tree_iter_init(&it, dir);
    for (struct tree_dirent *d; (d = tree_iter_next(&it));) {
        if (S_ISDIR(d->inode->mode))
            set_blob(t, d->inode, blob);
        else if (S_ISREG(d->inode->mode))
            d->inode->data.blob = blob;
    }
}

/* Two layers, each a separate image, and merged metadata in front that uses the data of both. */
static void test_stitched_layers(void **state)
{
    struct tree t[2];
    struct erofs_writer w;
    struct er r;
    struct er_inode ino;
    int fd[2];
    for (int i = 0; i < 2; i++) {
        fd[i] = mk_memfile();
        begin(&t[i], &w, fd[i]);
        (void)add_file(&t[i], &w, i ? "etc/upper" : "etc/lower", 8192, (uint32_t)(10 + i));
        (void)add_file(&t[i], &w, "etc/both", 4096 * 3, (uint32_t)(20 + i));
        if (i == 0)
            (void)add_file(&t[i], &w, "etc/gone", 4096, 30);
        else
            assert_int_equal(tree_whiteout(&t[i], "etc/gone", NULL), 0);
        finish(&t[i], &w);
        set_blob(&t[i], t[i].root, (uint32_t)i);
    }
    er_open(&r, fd[1]); /* a layer shows its whiteouts as overlayfs does */
    assert_true(er_lookup(&r, "etc/gone", &ino) && S_ISCHR(ino.mode) && ino.u == 0);
    er_close(&r);

    assert_int_equal(tree_merge(&t[0], &t[1], NULL), 0);
    int disk = mk_memfile();
    struct stat st[2];
    assert_int_equal(fstat(fd[0], &st[0]) | fstat(fd[1], &st[1]), 0);
    struct erofs_blob blobs[2] = {{fd[0], (uint32_t)(st[0].st_size / 4096)},
                                  {fd[1], (uint32_t)(st[1].st_size / 4096)}};
    erofs_begin(&w, disk, -1);
    erofs_set_blobs(&w, blobs, 2);
    finish(&t[0], &w);
    (void)append(disk, fd[0]);
    (void)append(disk, fd[1]);
    er_open(&r, disk);
    assert_int_equal(er_check(&r), 4);
    expect_bytes(&r, "etc/lower", 8192, 10);
    expect_bytes(&r, "etc/upper", 8192, 11);
    expect_bytes(&r, "etc/both", 4096 * 3, 21);
    assert_false(er_lookup(&r, "etc/gone", &ino));
    er_close(&r);
    fsck_erofs(disk);
    tree_free(&t[0]);
    tree_free(&t[1]);
    close(fd[0]);
    close(fd[1]);
    close(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_symlinks),
        cmocka_unit_test(test_big_directory),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_deep),
        cmocka_unit_test(test_hard_links),
        cmocka_unit_test(test_xattrs),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_bad_writes),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_stitched_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
