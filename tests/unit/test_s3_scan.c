/* What a sync finds in the workspace, and how it replaces it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "image/oci/digest.h"
#include "s3/plan.h"
#include "s3/work.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

static void ignore_warning(void *ctx, const char *text)
{
}

static void put_thing(int dir, const char *name, bool link, const char *what)
{
    if (link)
        assert_int_equal(symlinkat(what, dir, name), 0);
    else
        assert_int_equal(file_replace_at(dir, name, what, strlen(what), 0600, false), 0);
}

/* What is replaced was so young when it was looked at that its inode says nothing: its content does. */
static void test_young_things(void **state)
{
    char root[] = "/tmp/msb-s3-XXXXXX";
    assert_non_null(mkdtemp(root));
    AUTO_CLOSE int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 8; i++) {
        bool was_link = i & 1, is_link = i & 2, changed = i & 4;
        assert_true(mkdirat(at, "data", 0700) == 0 && mkdirat(at, "tmp", 0700) == 0);
        AUTO_CLOSE int data = dir_open_at(at, "data");
        AUTO_CLOSE int tmp = dir_open_at(at, "tmp");
        struct s3_work w = {.data = data,
                            .tmp = tmp,
                            .rival = "",
                            .stamp = "now",
                            .warn = ignore_warning,
                            .lock = PTHREAD_MUTEX_INITIALIZER};
        struct s3_entry old = {.kind = was_link ? S3_KIND_LINK : S3_KIND_FILE};
        struct digest d = digest_of("old", 3);
        struct err e = {0};
        digest_hex(&d, old.sha);
        put_thing(data, "f", is_link, changed ? "new" : "old");
        put_thing(tmp, "g1", false, "theirs");
        assert_int_equal(s3_place(&w, "f", "g1", &old, false, &e), 0);
        bool kept = changed || was_link != is_link;
        assert_int_equal(w.counts.conflicts, kept);
        struct stat st;
        assert_int_equal(fstatat(data, "f.conflict-now", &st, AT_SYMLINK_NOFOLLOW), kept ? 0 : -1);
        assert_true(remove_tree_at(at, "data") == 0 && remove_tree_at(at, "tmp") == 0);
    }
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

static struct s3_entry *add_file(struct s3_tree *t, const char *path, uint64_t size)
{
    struct s3_entry *a = s3_tree_add(t, path, &(struct s3_entry){.size = size, .mode = 0600});
    memset(a->sha, 'b', 64);
    s3_tree_sort(t);
    return s3_tree_find(t, path);
}

static void expect_entry(const struct s3_tree *t, const char *path, bool unread,
                         const char *content)
{
    const struct s3_entry *a = s3_tree_find(t, path);
    char sha[DIGEST_HEX_SIZE] = "";
    struct digest d = digest_of(content, strlen(content));
    if (*content)
        digest_hex(&d, sha);
    assert_non_null(a);
    if (a->unread != unread || strcmp(a->sha, sha) != 0)
        fail_msg("%s: %d %s", path, a->unread, a->sha);
}

/* A tree is walked once; what is to be read is read later, when much may have happened. */
static void test_two_looks(void **state)
{
    static const char *const names[] = {"changed", "gone", "kept", "linked", "new", "there"};
    char root[] = "/tmp/msb-s3-XXXXXX";
    struct err e = {0};
    struct ignore rules = {0};
    struct stat st;
    AUTO_S3_TREE struct s3_tree base = {0}, remote = {0}, t = {0};
    assert_non_null(mkdtemp(root));
    AUTO_CLOSE int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(mkdirat(at, "d", 0700) == 0 && mkdirat(at, "secret", 0700) == 0);
    AUTO_CLOSE int dir = dir_open_at(at, "d");
    AUTO_CLOSE int secret = dir_open_at(at, "secret");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        put_thing(at, names[i], false, names[i]);
    put_thing(dir, "below", false, "mine");
    put_thing(secret, "below", false, "not");
    (void)add_file(&base, "changed", 7);
    struct s3_entry *kept = add_file(&base, "kept", 4);
    assert_int_equal(fstatat(at, "kept", &st, 0), 0);
    s3_entry_stat(kept, &st);
    kept->ino = st.st_ino; /* however young */
    (void)add_file(&remote, "there", 5);
    bool lost = false;
    const struct s3_scan how = {
        .base = &base, .remote = &remote, .ignore = &rules, .warn = ignore_warning, .lost = &lost};
    assert_int_equal(s3_tree_walk(at, &how, &t, &e), 0);
    assert_false(lost);
    assert_int_equal(t.n, ARRAY_LEN(names) + 4);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_true(s3_tree_find(&t, names[i])->unread == (strcmp(names[i], "kept") != 0));
    put_thing(at, "changed", false, "CHANGED");
    put_thing(at, "there", false, "THERE");
    assert_int_equal(unlinkat(at, "gone", 0), 0);
    assert_int_equal(unlinkat(at, "linked", 0), 0);
    put_thing(at, "linked", true, "secret/below");
    assert_true(remove_tree_at(at, "d") == 0 && symlinkat("secret", at, "d") == 0);
    assert_int_equal(s3_tree_read(at, &how, &t, &e), 0);
    expect_entry(&t, "changed", false, "CHANGED");
    expect_entry(&t, "there", false, "THERE");
    expect_entry(&t, "new", false, ""); /* no hash is known that it could have */
    expect_entry(&t, "secret/below", false, "");
    assert_string_equal(s3_tree_find(&t, "kept")->sha, kept->sha);
    assert_null(s3_tree_find(&t, "gone"));
    assert_null(s3_tree_find(&t, "linked"));
    assert_null(s3_tree_find(&t, "d/below"));
    assert_true(lost);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

/* However long the walks before it took. */
static void test_each_walk_has_its_time(void **state)
{
    char root[] = "/tmp/msb-s3-XXXXXX";
    struct err e = {0};
    AUTO_IGNORE struct ignore rules = {0};
    AUTO_S3_TREE struct s3_tree t = {0};
    const struct s3_scan how = {.ignore = &rules, .warn = ignore_warning};
    assert_non_null(mkdtemp(root));
    AUTO_CLOSE int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put_thing(at, "a.o", false, "");
    put_thing(at, "a.c", false, "");
    assert_int_equal(ignore_parse("*.o\n", 4, &rules), 0);
    rules.steps = UINT64_MAX / 2;
    assert_int_equal(s3_plan_make(&t, &t, &t, &rules, &(struct s3_plan){0}, &e), -E2BIG);
    assert_int_equal(s3_tree_walk(at, &how, &t, &e), 0);
    assert_int_equal(t.n, 1);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

static void make_large(int dir, const char *name)
{
    AUTO_CLOSE int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)S3_FILE_MAX + 1), 0);
}

static void count_warning(void *ctx, const char *text)
{
    ++*(unsigned *)ctx;
}

static int leave_out(void *ctx, int fd, const char *path, struct err *e)
{
    return 1;
}

/* What is left out is not gone, and what the bucket has of a file that is too large by now stays there. */
static void test_what_is_left_out(void **state)
{
    static const char *const names[] = {"grown", "grows", "new"};
    char root[] = "/tmp/msb-s3-XXXXXX";
    struct err e = {0};
    struct ignore rules = {0};
    unsigned warnings = 0;
    bool lost = false;
    AUTO_S3_TREE struct s3_tree base = {0}, remote = {0}, t = {0}, now = {0};
    assert_non_null(mkdtemp(root));
    AUTO_CLOSE int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < 2; i++) {
        (void)add_file(&base, names[i], 5);
        (void)add_file(&remote, names[i], 5);
        put_thing(at, names[i], false, "small");
    }
    make_large(at, "grown");
    make_large(at, "new");
    put_thing(at, "strange", false, "");
    AUTO_CLOSE int fd = openat(at, "strange", O_RDWR | O_CLOEXEC);
    const bool marks = later_mark(fd, LATER_XATTR, "0123456789abcdef", LATER_SIZE - 1) == 0;
    struct s3_scan how = {.base = &base,
                          .remote = &remote,
                          .ignore = &rules,
                          .warn = count_warning,
                          .warn_ctx = &warnings,
                          .fill = leave_out,
                          .lost = &lost};
    assert_int_equal(s3_tree_walk(at, &how, &t, &e), 0);
    make_large(at, "grows");
    assert_int_equal(s3_tree_read(at, &how, &t, &e), 0);
    assert_int_equal(warnings, 3);
    assert_false(lost);
    assert_int_equal(t.n, marks ? 2 : 3);
    for (size_t i = 0; i < 2; i++)
        assert_true(s3_entry_same(s3_tree_find(&t, names[i]), s3_tree_find(&base, names[i])));
    /* For a version, it is not there. */
    how.remote = NULL;
    assert_int_equal(s3_tree_scan(at, &how, &now, &e), 0);
    assert_int_equal(warnings, 6);
    assert_int_equal(now.n, marks ? 0 : 1);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

/* Entries that are still to be made count like others. */
static void test_too_many_entries(void **state)
{
    char root[] = "/tmp/msb-s3-XXXXXX", path[16];
    struct err e = {0};
    struct ignore rules = {0};
    AUTO_S3_TREE struct s3_tree base = {0}, t = {0}, more = {0};
    const struct s3_scan how = {
        .base = &base, .ignore = &rules, .warn = ignore_warning, .fill = leave_out};
    assert_non_null(mkdtemp(root));
    AUTO_CLOSE int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(mkdirat(at, "d", 0700) == 0 && mkdirat(at, "d/e", 0700) == 0);
    AUTO_CLOSE int dir = dir_open_at(at, "d/e");
    if (later_mark(dir, LATER_XATTR, "0123456789abcdef", LATER_SIZE - 1) < 0) {
        assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
        skip();
    }
    struct s3_entry *d = s3_tree_add(&base, "d/e", &(struct s3_entry){.kind = S3_KIND_DIR});
    assert_non_null(d);
    memcpy(d->later, "0123456789abcdef", LATER_SIZE);
    for (unsigned i = 2; i < S3_ENTRIES_MAX; i++) {
        (void)snprintf(path, sizeof(path), "d/e/%06u", i);
        assert_non_null(s3_tree_add(&base, path, &(struct s3_entry){.mode = 0600}));
    }
    assert_int_equal(s3_tree_walk(at, &how, &t, &e), 0);
    assert_int_equal(t.n, S3_ENTRIES_MAX);
    assert_non_null(s3_tree_add(&base, "d/e/new", &(struct s3_entry){.mode = 0600}));
    assert_int_equal(s3_tree_walk(at, &how, &more, &e), -E2BIG);
    assert_non_null(strstr(e.msg, "200000 files"));
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

/* In a child with its own mount namespace: a mount below data/ hides what is known to be there, and
 * is not part of a workspace. */
static void expect_mount_refused(const char *from, const char *to)
{
    char root[] = "/tmp/msb-s3-XXXXXX";
    struct err e = {0};
    struct ignore rules = {0};
    AUTO_S3_TREE struct s3_tree base = {0}, t = {0};
    const struct s3_scan how = {.base = &base, .ignore = &rules, .warn = ignore_warning};
    assert_non_null(mkdtemp(root));
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(77);
        int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (mkdirat(at, "data", 0700) < 0 || mkdirat(at, "data/dir", 0700) < 0 ||
            mkdirat(at, "empty", 0700) < 0)
            _exit(1);
        put_thing(at, "other", false, "other");
        int data = dir_open_at(at, "data");
        put_thing(data, "file", false, "file");
        if (chdir(root) < 0 ||
            mount(from, to, "tmpfs", strcmp(from, "none") ? MS_BIND : 0, NULL) < 0)
            _exit(77);
        int r = s3_tree_scan(data, &how, &t, &e);
        bool named = strstr(e.msg, strrchr(to, '/') + 1) && strstr(e.hint[0], IGNORE_FILE);
        _exit(r == -EXDEV && named ? 0 : 1);
    }
    int status = process_wait(pid);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

static void test_mounts(void **state)
{
    expect_mount_refused("none", "data/dir");
    expect_mount_refused("empty", "data/dir"); /* of the same file system */
    expect_mount_refused("other", "data/file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_young_things),           cmocka_unit_test(test_two_looks),
        cmocka_unit_test(test_each_walk_has_its_time), cmocka_unit_test(test_what_is_left_out),
        cmocka_unit_test(test_too_many_entries),       cmocka_unit_test(test_mounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
