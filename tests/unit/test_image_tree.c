#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/erofs/tree.h"
#include "unit.h"

static int add(struct tree *t, const char *path, uint16_t mode)
{
    return tree_add(t, path, &(struct tree_attr){.mode = mode, .target = "nowhere"}, NULL, NULL);
}

static int add_symlink(struct tree *t, const char *path, const char *target)
{
    return tree_add(t, path, &(struct tree_attr){.mode = S_IFLNK | 0777, .target = target}, NULL,
                    NULL);
}

static uint16_t mode_of(struct tree *t, const char *path)
{
    const struct tree_inode *ino = tree_lookup(t, path);
    return ino ? ino->mode : 0;
}

static void expect_error(struct tree *t, const char *path, int code, const char *word)
{
    struct err e = {0};
    int r = tree_add(t, path, &(struct tree_attr){.mode = S_IFREG | 0644}, NULL, &e);
    assert_int_equal(r, -code);
    if (!strstr(e.msg, word))
        fail_msg("'%s' does not say '%s'", e.msg, word);
}

static void test_paths(void **state)
{
    struct tree t;
    assert_int_equal(tree_init(&t, 0, 0), 0);
    assert_int_equal(add(&t, "/abs/file", S_IFREG | 0600), 0);
    assert_int_equal(add(&t, "./rel//file/", S_IFDIR | 0700), 0);
    assert_int_equal(add(&t, "a/./b", S_IFREG | 0600), 0);
    assert_int_equal(mode_of(&t, "abs/file"), S_IFREG | 0600);
    assert_int_equal(mode_of(&t, "/rel/file"), S_IFDIR | 0700);
    assert_int_equal(mode_of(&t, "abs"), S_IFDIR | 0755);
    assert_true(tree_lookup(&t, "abs")->flags & TREE_IMPLICIT);
    assert_int_equal(add(&t, "abs/", S_IFDIR | 0711), 0);
    assert_int_equal(mode_of(&t, "abs"), S_IFDIR | 0711);
    assert_false(tree_lookup(&t, "abs")->flags & TREE_IMPLICIT);
    assert_int_equal(mode_of(&t, "abs/file"), S_IFREG | 0600);
    expect_error(&t, "../x", EINVAL, "'..'");
    expect_error(&t, "a/../../x", EINVAL, "'..'");
    expect_error(&t, "a/..", EINVAL, "'..'");
    expect_error(&t, ".", EINVAL, "root");
    expect_error(&t, "/", EINVAL, "root");
    expect_error(&t, "abs/file/below", ENOTDIR, "not a directory");
    assert_int_equal(add(&t, "./", S_IFDIR | 0511), 0);
    assert_int_equal(t.root->mode, S_IFDIR | 0511);
    assert_int_equal(add_symlink(&t, ".", "/etc"), -EINVAL);
    tree_free(&t);
}

static void test_limits(void **state)
{
    struct tree t;
    char path[5000];
    assert_int_equal(tree_init(&t, 5, 1000), 0);
    memset(path, 'x', 256);
    path[256] = '\0';
    expect_error(&t, path, ENAMETOOLONG, "255");
    for (size_t i = 0; i < 4500; i++)
        path[i] = i % 100 == 99 ? '/' : 'y';
    path[4500] = '\0';
    expect_error(&t, path, ENAMETOOLONG, "4095");
    struct tree_attr a = {.mode = S_IFREG, .size = 600};
    assert_int_equal(tree_add(&t, "a", &a, NULL, NULL), 0);
    assert_int_equal(tree_add(&t, "a", &a, NULL, NULL), -EFBIG); /* the first one counts too */
    a.size = UINT64_MAX;
    assert_int_equal(tree_add(&t, "a", &a, NULL, NULL), -EFBIG);
    assert_int_equal(add(&t, "b", S_IFIFO), 0);
    assert_int_equal(add(&t, "b", S_IFIFO), 0);
    assert_int_equal(add(&t, "c", S_IFIFO), 0);
    assert_int_equal(add(&t, "d", S_IFIFO), 0);
    expect_error(&t, "e", E2BIG, "entries");
    tree_free(&t);

    assert_int_equal(tree_init(&t, 0, 0), 0);
    size_t n = 0;
    for (int i = 0; i < 1100; i++)
        n += (size_t)snprintf(path + n, sizeof(path) - n, "d/");
    expect_error(&t, path, ELOOP, "nested");
    a = (struct tree_attr){.mode = S_IFBLK, .major = 4096};
    assert_int_equal(tree_add(&t, "dev", &a, NULL, NULL), -EINVAL);
    a = (struct tree_attr){.mode = 0170000};
    assert_int_equal(tree_add(&t, "odd", &a, NULL, NULL), -EINVAL);
    a = (struct tree_attr){.mode = S_IFLNK};
    assert_int_equal(tree_add(&t, "link", &a, NULL, NULL), -EINVAL);
    a.target = "";
    assert_int_equal(tree_add(&t, "link", &a, NULL, NULL), -EINVAL);
    tree_free(&t);
}

static void test_symlinked_parents(void **state)
{
    struct tree t;
    assert_int_equal(tree_init(&t, 0, 0), 0);
    assert_int_equal(add(&t, "usr/lib/", S_IFDIR | 0755), 0);
    assert_int_equal(add_symlink(&t, "lib", "usr/lib"), 0);
    assert_int_equal(add(&t, "lib/libc.so", S_IFREG | 0644), 0);
    assert_int_equal(mode_of(&t, "usr/lib/libc.so"), S_IFREG | 0644);
    assert_true(S_ISLNK(mode_of(&t, "lib")));
    /* Out of the tree leads nowhere: the root is its own parent. */
    assert_int_equal(add_symlink(&t, "evil", "../../../../outside"), 0);
    assert_int_equal(add(&t, "evil/passwd", S_IFREG | 0666), 0);
    assert_int_equal(mode_of(&t, "outside/passwd"), S_IFREG | 0666);
    assert_int_equal(add_symlink(&t, "abs", "/etc"), 0);
    assert_int_equal(add(&t, "abs/shadow", S_IFREG | 0600), 0);
    assert_int_equal(mode_of(&t, "etc/shadow"), S_IFREG | 0600);
    assert_int_equal(add_symlink(&t, "loop", "loop"), 0);
    expect_error(&t, "loop/x", ELOOP, "symbolic links");
    assert_int_equal(add_symlink(&t, "l1", "l2/a"), 0);
    assert_int_equal(add_symlink(&t, "l2", "l1/b"), 0);
    expect_error(&t, "l1/x", ELOOP, "symbolic links");
    assert_int_equal(add_symlink(&t, "tofile", "lib/libc.so"), 0);
    expect_error(&t, "tofile/x", ENOTDIR, "not a directory");
    /* The last component is replaced, not followed. */
    assert_int_equal(add(&t, "lib", S_IFDIR | 0700), 0);
    assert_int_equal(mode_of(&t, "lib"), S_IFDIR | 0700);
    assert_int_equal(mode_of(&t, "lib/libc.so"), 0);
    /* Targets that grow with each step must not overrun anything. */
    char longish[4096];
    memset(longish, 'z', sizeof(longish));
    for (size_t i = 100; i < 4000; i += 100)
        longish[i] = '/';
    (void)snprintf(longish, 10, "grow/");
    longish[5] = 'z';
    longish[4095] = '\0';
    assert_int_equal(add_symlink(&t, "grow", longish), 0);
    expect_error(&t, "grow/x", ENAMETOOLONG, "symbolic");
    memset(longish, 'q', 300);
    longish[300] = '\0';
    assert_int_equal(add_symlink(&t, "wide", longish), 0);
    expect_error(&t, "wide/x", ENAMETOOLONG, "symbolic");
    tree_free(&t);
}

static void test_replacing(void **state)
{
    struct tree t;
    assert_int_equal(tree_init(&t, 0, 0), 0);
    assert_int_equal(add(&t, "d/sub/file", S_IFREG | 0644), 0);
    assert_int_equal(add(&t, "d", S_IFREG | 0600), 0);
    assert_int_equal(mode_of(&t, "d"), S_IFREG | 0600);
    assert_int_equal(mode_of(&t, "d/sub/file"), 0);
    assert_int_equal(add(&t, "d", S_IFDIR | 0755), 0);
    assert_int_equal(mode_of(&t, "d/sub"), 0);
    struct tree_inode *first, *second;
    struct tree_attr a = {.mode = S_IFREG, .size = 1};
    assert_int_equal(tree_add(&t, "x", &a, &first, NULL), 0);
    assert_int_equal(tree_link(&t, "y", "x", NULL), 0);
    assert_int_equal(tree_add(&t, "x", &a, &second, NULL), 0);
    assert_ptr_not_equal(first, second); /* y keeps the old file */
    assert_ptr_equal(tree_lookup(&t, "y"), first);
    tree_free(&t);
}

static void test_hard_links(void **state)
{
    struct tree t;
    struct err e = {0};
    assert_int_equal(tree_init(&t, 0, 0), 0);
    assert_int_equal(add(&t, "dir/file", S_IFREG | 0644), 0);
    assert_int_equal(tree_link(&t, "l", "missing", &e), -ENOENT);
    assert_non_null(strstr(e.msg, "missing"));
    assert_int_equal(tree_link(&t, "l", "../../etc/passwd", &e), -ENOENT);
    assert_int_equal(tree_link(&t, "l", "dir", &e), -EPERM);
    assert_int_equal(tree_link(&t, "l", "/", &e), -EPERM);
    assert_int_equal(tree_link(&t, ".", "dir/file", &e), -EINVAL);
    assert_int_equal(tree_link(&t, "l", "/dir/file", &e), 0);
    assert_int_equal(tree_link(&t, "l", "l", &e), 0);
    assert_int_equal(tree_link(&t, "l/x", "dir/file", &e), -ENOTDIR);
    assert_int_equal(add_symlink(&t, "s", "dir"), 0);
    assert_int_equal(tree_link(&t, "via", "s/file", &e), 0);
    assert_int_equal(tree_link(&t, "link-to-symlink", "s", &e), 0);
    assert_true(S_ISLNK(mode_of(&t, "link-to-symlink")));
    tree_free(&t);
}

/* Sorted, complete, and balanced enough for the iterator's stack, in the worst order. */
static void test_many_children(void **state)
{
    struct tree t;
    char name[32];
    for (int order = 0; order < 3; order++) {
        assert_int_equal(tree_init(&t, 0, 0), 0);
        const int n = 50000;
        for (int i = 0; i < n; i++) {
            int k = order == 0 ? i : order == 1 ? n - 1 - i : (int)((i * 48271LL) % n);
            (void)snprintf(name, sizeof(name), "%08d", k);
            assert_int_equal(add(&t, name, S_IFIFO), 0);
        }
        struct tree_iter it;
        tree_iter_init(&it, t.root);
        assert_true(it.depth <= 34);
        int count = 0;
        char last[32] = "";
        for (struct tree_dirent *d; (d = tree_iter_next(&it)); count++) {
            assert_true(strcmp(last, d->name) < 0);
            (void)snprintf(last, sizeof(last), "%s", d->name);
        }
        assert_true(order == 2 || count == n);
        tree_free(&t);
    }
}

static void test_merge(void **state)
{
    struct tree base, layer;
    assert_int_equal(tree_init(&base, 0, 0), 0);
    assert_int_equal(add(&base, "etc/", S_IFDIR | 0700), 0);
    assert_int_equal(add(&base, "etc/keep", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "etc/change", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "etc/drop", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "gone/a/b", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "hidden/old", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "again/old", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "file2dir", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "dir2file/x", S_IFREG | 0600), 0);
    assert_int_equal(add(&base, "usr/lib/", S_IFDIR | 0755), 0);
    assert_int_equal(add_symlink(&base, "lib", "usr/lib"), 0);
    assert_int_equal(add_symlink(&base, "bin", "usr/bin"), 0);

    assert_int_equal(tree_init(&layer, 0, 0), 0);
    assert_int_equal(add(&layer, "etc/change", S_IFREG | 0644), 0);
    assert_int_equal(add(&layer, "etc/new", S_IFREG | 0644), 0);
    assert_int_equal(tree_whiteout(&layer, "etc/drop", NULL), 0);
    assert_int_equal(tree_whiteout(&layer, "etc/never-was", NULL), 0);
    assert_int_equal(tree_whiteout(&layer, "gone", NULL), 0);
    assert_int_equal(add(&layer, "hidden/new", S_IFREG | 0644), 0);
    assert_int_equal(tree_opaque(&layer, "hidden", NULL), 0);
    assert_int_equal(tree_whiteout(&layer, "again", NULL), 0);
    assert_int_equal(add(&layer, "again/new", S_IFREG | 0644), 0);
    assert_int_equal(add(&layer, "file2dir/x", S_IFREG | 0644), 0);
    assert_int_equal(add(&layer, "dir2file", S_IFREG | 0644), 0);
    assert_int_equal(add(&layer, "lib/libx", S_IFREG | 0644), 0); /* lib was not listed */
    assert_int_equal(add(&layer, "bin/", S_IFDIR | 0755), 0);     /* bin was */
    assert_int_equal(add(&layer, "bin/sh", S_IFREG | 0755), 0);
    assert_int_equal(tree_merge(&base, &layer, NULL), 0);

    assert_int_equal(mode_of(&base, "etc"), S_IFDIR | 0700); /* implicit: no change */
    assert_int_equal(mode_of(&base, "etc/keep"), S_IFREG | 0600);
    assert_int_equal(mode_of(&base, "etc/change"), S_IFREG | 0644);
    assert_int_equal(mode_of(&base, "etc/new"), S_IFREG | 0644);
    assert_int_equal(mode_of(&base, "etc/drop"), 0);
    assert_int_equal(mode_of(&base, "gone"), 0);
    assert_int_equal(mode_of(&base, "hidden/old"), 0);
    assert_int_equal(mode_of(&base, "hidden/new"), S_IFREG | 0644);
    assert_int_equal(mode_of(&base, "again/old"), 0);
    assert_int_equal(mode_of(&base, "again/new"), S_IFREG | 0644);
    assert_int_equal(mode_of(&base, "file2dir/x"), S_IFREG | 0644);
    assert_int_equal(mode_of(&base, "dir2file"), S_IFREG | 0644);
    assert_true(S_ISLNK(mode_of(&base, "lib")));
    assert_int_equal(mode_of(&base, "usr/lib/libx"), S_IFREG | 0644);
    assert_true(S_ISDIR(mode_of(&base, "bin")));
    assert_int_equal(mode_of(&base, "bin/sh"), S_IFREG | 0755);
    assert_int_equal(mode_of(&base, "usr/bin/sh"), 0);
    tree_free(&layer);
    tree_free(&base);
}

/* An opaque root hides everything below it. */
static void test_merge_opaque_root(void **state)
{
    struct tree base, layer;
    assert_int_equal(tree_init(&base, 0, 0), 0);
    assert_int_equal(add(&base, "a/b", S_IFREG | 0600), 0);
    assert_int_equal(tree_init(&layer, 0, 0), 0);
    assert_int_equal(tree_opaque(&layer, "", NULL), 0);
    assert_int_equal(add(&layer, "c", S_IFREG | 0600), 0);
    assert_int_equal(tree_merge(&base, &layer, NULL), 0);
    assert_int_equal(mode_of(&base, "a"), 0);
    assert_int_equal(mode_of(&base, "c"), S_IFREG | 0600);
    tree_free(&layer);
    tree_free(&base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_symlinked_parents),
        cmocka_unit_test(test_replacing),
        cmocka_unit_test(test_hard_links),
        cmocka_unit_test(test_many_children),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_merge_opaque_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
