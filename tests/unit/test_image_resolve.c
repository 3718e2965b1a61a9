#include <stdint.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "erofs_reader.h"
#include "image/image.h"
#include "image/store/store.h"
#include "image_fixture.h"
#include "tar_builder.h"
#include "unit.h"
#include "util/cleanup.h"

static struct image_ctx ctx;
static char cache_dir[512], assets_dir[512];

static int setup(void **state)
{
    (void)mk_tmpdir();
    (void)snprintf(cache_dir, sizeof(cache_dir), "%s", tmp_path("home/cache"));
    (void)snprintf(assets_dir, sizeof(assets_dir), "%s", tmp_path("assets"));
    ctx = (struct image_ctx){.cache_dir = cache_dir, .assets_dir = assets_dir};
    assert_int_equal(mkdir(assets_dir, 0700), 0);
    return 0;
}

static int teardown(void **state)
{
    rm_tmpdir();
    return 0;
}

/* Where the one file of a local image is. */
static const char *file_of(const struct image *img)
{
    char name[256];
    (void)snprintf(name, sizeof(name), "home/cache/images/%s.%d.erofs", img->digest + 7,
                   CACHE_VERSION);
    return tmp_path(name);
}

/* The same file, as a sandbox gets it. The last few stay open for the tests to read. */
static int disk_of(const struct image *img)
{
    static int open_fds[4] = {-1, -1, -1, -1};
    static size_t next;
    struct image_disk d;
    struct err e = {0};
    if (image_disk_open(cache_dir, img->digest, &d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.length[0], img->size);
    assert_int_equal(fcntl(d.fd[0], F_GETFL) & O_ACCMODE, O_RDONLY);
    int *slot = &open_fds[next++ % ARRAY_LEN(open_fds)];
    close_fd(slot);
    *slot = d.fd[0];
    return *slot;
}

static void resolve(const char *arg, struct image *img)
{
    struct err e = {0};
    *img = IMAGE_INIT;
    if (image_resolve(arg, &ctx, img, &e) < 0)
        fail_msg("%s: %s", arg, e.msg);
    assert_true(img->lock_fd >= 0);
    assert_int_equal(access(file_of(img), R_OK), 0);
    assert_int_equal(strlen(img->digest), 7 + 64);
    assert_true(img->config.env && !img->config.env[0]);
    assert_true(img->config.entrypoint && !img->config.entrypoint[0]);
    assert_true(img->config.cmd && !img->config.cmd[0]);
    assert_true(img->config.labels && !img->config.labels[0]);
}

static void refused(const char *arg, int code, const char *word)
{
    struct err e = {0};
    struct image img = IMAGE_INIT;
    int r = image_resolve(arg, &ctx, &img, &e);
    if (r != -code || !strstr(e.msg, word))
        fail_msg("%s: got %d '%s', wanted %d '%s'", arg, r, e.msg, -code, word);
    assert_int_equal(img.lock_fd, -1);
    assert_null(img.digest);
}

static size_t count_files(const char *dir)
{
    char path[600];
    size_t n = 0;
    (void)snprintf(path, sizeof(path), "%s/%s", cache_dir, dir);
    DIR *d = opendir(path);
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static ino_t inode_of(const struct image *img)
{
    struct stat st;
    assert_int_equal(fstat(disk_of(img), &st), 0);
    return st.st_ino;
}

static void expect_text(const struct image *img, const char *path, const char *want)
{
    struct er r;
    struct er_inode i;
    char got[256] = {0};
    er_open(&r, disk_of(img));
    (void)er_check(&r);
    assert_true(er_lookup(&r, path, &i));
    assert_int_equal(er_read(&r, &i, 0, got, sizeof(got)), strlen(want));
    assert_string_equal(got, want);
    er_close(&r);
}

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

static void test_directory(void **state)
{
    struct image a, b;
    struct er r;
    struct er_inode i = {0}, j = {0};
    const char *dir = strdup(tmp_path("rootfs"));
    char path[600];
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_int_equal(mkdir(tmp_path("rootfs/etc"), 0750), 0);
    put_text(tmp_path("rootfs/etc/hello"), "hello");
    assert_int_equal(chmod(tmp_path("rootfs/etc/hello"), 04711), 0);
    assert_int_equal(link(tmp_path("rootfs/etc/hello"), tmp_path("rootfs/again")), 0);
    assert_int_equal(symlink("/etc/passwd", tmp_path("rootfs/link")), 0);
    assert_int_equal(mkfifo(tmp_path("rootfs/fifo"), 0600), 0);
    assert_int_equal(mkdir(tmp_path("rootfs/empty"), 0700), 0);
    bool attrs = setxattr(tmp_path("rootfs/etc/hello"), "user.note", "n", 1, 0) == 0;
    struct timespec when[2] = {{.tv_sec = 5}, {.tv_sec = 1234567, .tv_nsec = 89}};
    assert_int_equal(utimensat(AT_FDCWD, tmp_path("rootfs/etc/hello"), when, 0), 0);
    int fd = open(tmp_path("rootfs/sparse"), O_WRONLY | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 64 << 20), 0);
    assert_int_equal(pwrite(fd, "X", 1, 32 << 20), 1);
    close(fd);

    resolve(dir, &a);
    expect_text(&a, "etc/hello", "hello");
    er_open(&r, disk_of(&a));
    assert_true(er_lookup(&r, "etc/hello", &i) && er_lookup(&r, "again", &j));
    assert_true(i.nid == j.nid && i.nlink == 2 && i.mode == (S_IFREG | 04711));
    assert_true(i.mtime == 1234567 && i.mtime_nsec == 89);
    assert_true(i.uid == (geteuid() ? 0 : geteuid()));
    size_t len;
    assert_true(!attrs || er_xattr(&r, &i, "user.note", &len));
    assert_true(er_lookup(&r, "link", &i) && S_ISLNK(i.mode));
    assert_true(er_lookup(&r, "fifo", &i) && S_ISFIFO(i.mode));
    assert_true(er_lookup(&r, "empty", &i) && i.mode == (S_IFDIR | 0700));
    assert_true(er_lookup(&r, "sparse", &i) && i.size == 64 << 20);
    char x;
    assert_true(er_read(&r, &i, 32 << 20, &x, 1) == 1 && x == 'X');
    er_close(&r);
    struct stat st;
    assert_int_equal(fstat(disk_of(&a), &st), 0);
    assert_true(st.st_blocks < 2048);

    resolve(dir, &b); /* nothing changed: the same file */
    assert_int_equal(inode_of(&a), inode_of(&b));
    assert_string_equal(a.digest, b.digest);
    image_free(&b);
    put_text(tmp_path("rootfs/etc/hello"), "HELLO"); /* same size */
    resolve(dir, &b);
    assert_string_not_equal(a.digest, b.digest);
    expect_text(&b, "etc/hello", "HELLO");
    image_free(&a);
    image_free(&b);
    assert_int_equal(count_files("images"), 2);
    assert_int_equal(count_files("tmp"), 0);

    if (geteuid() != 0) {
        (void)snprintf(path, sizeof(path), "%s", tmp_path("rootfs/secret"));
        put_text(path, "x");
        assert_int_equal(chmod(path, 0), 0);
        refused(dir, EACCES, "rootfs/secret");
    }
    free((void *)(uintptr_t)dir);
}

/* The cache inside the directory neither ends up in the image nor makes it look changed. */
static void test_cache_inside(void **state)
{
    struct image a, b;
    struct er r;
    struct er_inode i;
    put_text(tmp_path("file"), "x");
    resolve(tmp_path(""), &a);
    er_open(&r, disk_of(&a));
    assert_true(er_lookup(&r, "file", &i));
    assert_true(er_lookup(&r, "home/cache", &i) && S_ISDIR(i.mode));
    assert_false(er_lookup(&r, "home/cache/images", &i));
    er_close(&r);
    resolve(tmp_path(""), &b);
    assert_int_equal(inode_of(&a), inode_of(&b));
    image_free(&a);
    image_free(&b);
}

static void make_tar(const char *path, const char *text)
{
    struct tb b = {0};
    tb_add(&b, (struct tb_entry){.name = "file", .type = '0', .size = strlen(text), .data = text});
    tb_end(&b);
    put_file(path, b.p, b.len);
    tb_free(&b);
}

static void test_tar(void **state)
{
    struct image a, b;
    make_tar(tmp_path("root.tar"), "one");
    resolve(tmp_path("root.tar"), &a);
    expect_text(&a, "file", "one");
    resolve(tmp_path("root.tar"), &b);
    assert_int_equal(inode_of(&a), inode_of(&b));
    image_free(&b);
    /* The same bytes elsewhere are the same image. */
    make_tar(tmp_path("copy.tar"), "one");
    resolve(tmp_path("copy.tar"), &b);
    assert_string_equal(a.digest, b.digest);
    image_free(&b);
    assert_int_equal(count_files("images"), 1);
    make_tar(tmp_path("root.tar"), "two"); /* same name, size and perhaps second */
    resolve(tmp_path("root.tar"), &b);
    expect_text(&b, "file", "two");
    image_free(&b);
    image_free(&a);
    assert_int_equal(count_files("images"), 2);
    assert_int_equal(count_files("tmp"), 0);
}

static void test_damaged_cache(void **state)
{
    struct image a, b;
    make_tar(tmp_path("d.tar"), "data");
    resolve(tmp_path("d.tar"), &a);
    assert_int_equal(chmod(file_of(&a), 0600), 0);
    assert_int_equal(truncate(file_of(&a), 4096), 0); /* by something that is not us */
    resolve(tmp_path("d.tar"), &b);
    expect_text(&b, "file", "data");
    image_free(&b);
    assert_int_equal(chmod(file_of(&a), 0600), 0);
    assert_int_equal(truncate(file_of(&a), 0), 0);
    resolve(tmp_path("d.tar"), &b);
    expect_text(&b, "file", "data");
    image_free(&b);
    assert_int_equal(unlink(file_of(&a)), 0);
    resolve(tmp_path("d.tar"), &b);
    expect_text(&b, "file", "data");
    image_free(&b);
    image_free(&a);
}

/* What a builder leaves behind when it is killed goes away; what a living one holds stays. */
static void test_stale_files(void **state)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    static const char ones[] = "1111111111111111111111111111111111111111111111111111111111111111";
    struct image a;
    char dead[700], dead_lock[700], live[700], live_lock[700];
    make_tar(tmp_path("s1.tar"), "1");
    make_tar(tmp_path("s2.tar"), "2");
    resolve(tmp_path("s1.tar"), &a); /* makes the directories */
    image_free(&a);
    (void)snprintf(dead, sizeof(dead), "%s/tmp/%s.img", cache_dir, zeros);
    (void)snprintf(dead_lock, sizeof(dead_lock), "%s/tmp/%s.lock", cache_dir, zeros);
    (void)snprintf(live, sizeof(live), "%s/tmp/%s.img", cache_dir, ones);
    (void)snprintf(live_lock, sizeof(live_lock), "%s/tmp/%s.lock", cache_dir, ones);
    put_text(dead, "half");
    put_text(dead_lock, "");
    put_text(live, "half");
    put_text(live_lock, "");
    int fd = open(live_lock, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    resolve(tmp_path("s2.tar"), &a);
    image_free(&a);
    assert_int_not_equal(access(dead, F_OK), 0);
    assert_int_not_equal(access(dead_lock, F_OK), 0);
    assert_int_equal(access(live, F_OK), 0);
    close(fd);
    (void)unlink(live);
    (void)unlink(live_lock);
}

static void test_concurrent(void **state)
{
    enum { PROCS = 8 };
    pid_t pids[PROCS];
    make_tar(tmp_path("c.tar"), "shared");
    size_t before = count_files("images");
    for (int i = 0; i < PROCS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct image img = IMAGE_INIT;
            int r = image_resolve(tmp_path("c.tar"), &ctx, &img, NULL);
            image_free(&img);
            _exit(r < 0 ? 1 : 0);
        }
    }
    for (int i = 0; i < PROCS; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_files("images"), before + 1);
    assert_int_equal(count_files("tmp"), 0);
}

/* The built-in image is copied into the cache: a newer msb must not change the disk of a sandbox
 * that exists. */
static void test_base(void **state)
{
    struct image a, b, c;
    refused("msb/base", ENOENT, "built-in");
    put_text(tmp_path("assets/base.erofs"), "nothing like an image");
    refused("msb/base", EBADMSG, "base.erofs");
    make_tar(tmp_path("b.tar"), "base");
    resolve(tmp_path("b.tar"), &a);
    assert_int_equal(unlink(tmp_path("assets/base.erofs")), 0);
    assert_int_equal(link(file_of(&a), tmp_path("assets/base.erofs")), 0);
    resolve("msb/base", &b);
    assert_int_not_equal(inode_of(&a), inode_of(&b));
    assert_int_equal(a.size, b.size);
    resolve("msb/base", &c);
    assert_int_equal(inode_of(&b), inode_of(&c));
    assert_string_equal(file_of(&b), file_of(&c));
    assert_int_equal(unlink(tmp_path("assets/base.erofs")), 0);
    assert_int_equal(access(file_of(&b), R_OK), 0);
    image_free(&c);
    image_free(&b);
    image_free(&a);
    ctx.assets_dir = NULL;
    refused("msb/base", ENOENT, "image not found: msb/base");
    ctx.assets_dir = assets_dir;
}

static void test_arguments(void **state)
{
    struct image a;
    struct err e = {0};
    char old[512];
    refused("", EINVAL, "no image");
    refused("alpine", ENOENT, "image not found: alpine");
    refused("ghcr.io/x/y:z", ENOENT, "image not found: ghcr.io/x/y:z");
    assert_int_equal(image_resolve("alpine", &ctx, &a, &e), -ENOENT);
    assert_int_equal(e.hints, 1);
    assert_non_null(strstr(e.hint[0], "msb pull alpine"));
    refused(tmp_path("missing"), ENOENT, "image not found");
    refused("/dev/null", EINVAL, "neither");
    put_text(tmp_path("empty.tar"), "");
    refused(tmp_path("empty.tar"), EINVAL, "is empty");
    put_text(tmp_path("text.tar"), "text");
    refused(tmp_path("text.tar"), EINVAL, "not a tar");
    if (geteuid() != 0) {
        assert_int_equal(chmod(tmp_path("text.tar"), 0), 0);
        refused(tmp_path("text.tar"), EACCES, "Permission denied");
    }
    make_tar(tmp_path("bare.tar"), "bare");
    assert_non_null(getcwd(old, sizeof(old)));
    assert_int_equal(chdir(tmp_path("")), 0);
    resolve("bare.tar", &a);
    image_free(&a);
    resolve("./bare.tar", &a);
    image_free(&a);
    refused("missing.tar", ENOENT, "image not found: missing.tar");
    assert_int_equal(image_resolve("assets", &ctx, &a, &e), -ENOENT);
    assert_non_null(strstr(e.hint[1], "./assets"));
    refused("Assets", EINVAL, "lower-case");
    assert_int_equal(setenv("HOME", tmp_path(""), 1), 0);
    resolve("~/bare.tar", &a);
    image_free(&a);
    assert_int_equal(unsetenv("HOME"), 0);
    refused("~/bare.tar", EINVAL, "HOME");
    assert_int_equal(chdir(old), 0);
}

static void test_limit(void **state)
{
    struct tb b = {0};
    tb_add(&b, (struct tb_entry){.name = "huge", .type = '0', .size = 1ULL << 37});
    tb_end(&b);
    put_file(tmp_path("huge.tar"), b.p, b.len);
    refused(tmp_path("huge.tar"), EFBIG, "limit of 65536 MiB");
    ctx.max_expanded = 1ULL << 38;
    refused(tmp_path("huge.tar"), EINVAL, "Truncated");
    ctx.max_expanded = 0;
    tb_free(&b);
    assert_int_equal(count_files("tmp"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_inside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tar, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_concurrent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_base, setup, teardown),
        cmocka_unit_test_setup_teardown(test_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
