#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image/store/upper.h"
#include "image_fixture.h"
#include "no_tmpfile.h"
#include "unit.h"

static int cache = -1, dest = -1;

static int setup(void **state)
{
    (void)mk_tmpdir();
    assert_int_equal(mkdir(tmp_path("cache"), 0700) | mkdir(tmp_path("dest"), 0700), 0);
    cache = open(tmp_path("cache"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dest = open(tmp_path("dest"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(cache >= 0 && dest >= 0);
    return 0;
}

static int teardown(void **state)
{
    close(cache);
    close(dest);
    rm_tmpdir();
    return 0;
}

static int run(const char *prog, const char *arg1, const char *arg2)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        (void)dup2(null, 1);
        (void)dup2(null, 2);
        (void)execl(prog, prog, arg1, arg2, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void create(const char *name, uint64_t size)
{
    struct err e = {0};
    if (upper_create(cache, dest, name, size, true, &e) < 0)
        fail_msg("%s", e.msg);
}

static void check(const char *name, uint64_t size)
{
    char path[300];
    struct stat st;
    uint16_t magic = 0;
    (void)snprintf(path, sizeof(path), "dest/%s", name);
    assert_int_equal(stat(tmp_path(path), &st), 0);
    assert_int_equal(st.st_size, size);
    assert_int_equal(st.st_mode, S_IFREG | 0600);
    assert_true((uint64_t)st.st_blocks * 512 < (1 << 20));
    int fd = open(tmp_path(path), O_RDONLY);
    assert_int_equal(pread(fd, &magic, 2, 1024 + 56), 2);
    assert_int_equal(magic, 0xef53);
    close(fd);
    if (access("/sbin/e2fsck", X_OK) == 0)
        assert_int_equal(run("/sbin/e2fsck", "-fn", tmp_path(path)), 0);
}

static bool has_checksums(const char *name)
{
    uint32_t ro_compat = 0;
    int fd = openat(dest, name, O_RDONLY);
    assert_int_equal(pread(fd, &ro_compat, 4, 1024 + 100), 4);
    close(fd);
    return ro_compat & 0x400; /* metadata_csum */
}

static void test_sizes(void **state)
{
    static const uint64_t sizes[] = {UPPER_SIZE_MIN, 20 << 20,   100 << 20,
                                     1ULL << 30,     4ULL << 30, 64ULL << 30};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "disk%zu", i);
        create(name, sizes[i]);
        check(name, sizes[i]);
        (void)snprintf(name, sizeof(name), "again%zu", i);
        create(name, sizes[i]);
        check(name, sizes[i]);
        assert_true(has_checksums(name));
        (void)snprintf(name, sizeof(name), "once%zu", i);
        assert_int_equal(upper_create(cache, dest, name, sizes[i], false, NULL), 0);
        check(name, sizes[i]);
        assert_false(has_checksums(name));
    }
    create("odd", UPPER_SIZE_MIN + 1);
    check("odd", UPPER_SIZE_MIN + UPPER_SIZE_ALIGN);
}

static void test_errors(void **state)
{
    struct err e = {0};
    assert_int_equal(upper_create(cache, dest, "x", 0, true, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "too small"));
    assert_int_equal(upper_create(cache, dest, "x", UPPER_SIZE_MIN - 1, true, &e), -EINVAL);
    assert_int_equal(upper_create(cache, dest, "x", UPPER_SIZE_MAX + 1, true, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "too large"));
    assert_int_equal(upper_create(cache, dest, "x", UINT64_MAX, true, &e), -EINVAL);
    create("x", UPPER_SIZE_MIN);
    assert_int_equal(upper_create(cache, dest, "x", UPPER_SIZE_MIN, true, &e), -EEXIST);
    check("x", UPPER_SIZE_MIN);
}

/* A template that was cut or scribbled over is made again. */
static void test_damaged_template(void **state)
{
    char name[64];
    create("first", UPPER_SIZE_MIN); /* and its template */
    (void)snprintf(name, sizeof(name), "cache/upper/%llu.v2", UPPER_SIZE_MIN);
    assert_int_equal(truncate(tmp_path(name), 5000), 0);
    create("a", UPPER_SIZE_MIN);
    check("a", UPPER_SIZE_MIN);
    put_file(tmp_path(name), "nonsense that is long enough to be a header", 43);
    create("b", UPPER_SIZE_MIN);
    check("b", UPPER_SIZE_MIN);
}

static void test_concurrent(void **state)
{
    enum { PROCS = 8 };
    pid_t pids[PROCS];
    for (int i = 0; i < PROCS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            char name[16];
            (void)snprintf(name, sizeof(name), "p%d", i);
            _exit(upper_create(cache, dest, name, 32 << 20, true, NULL) < 0);
        }
    }
    for (int i = 0; i < PROCS; i++) {
        int status;
        char name[16];
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
        (void)snprintf(name, sizeof(name), "p%d", i);
        check(name, 32 << 20);
    }
}

static void test_grow(void **state)
{
    struct err e = {0};
    struct stat st;
    assert_int_equal(upper_create(cache, dest, "g", UPPER_SIZE_MIN, true, &e), 0);
    assert_int_equal(upper_grow(dest, "none", 64 << 20, &e), -ENOENT);
    err_clear(&e);
    assert_int_equal(upper_grow(dest, "g", UPPER_SIZE_MAX + 1, &e), -EINVAL);
    err_clear(&e);
    assert_int_equal(upper_grow(dest, "g", (64 << 20) - 5, &e), 0);
    assert_int_equal(fstatat(dest, "g", &st, 0), 0);
    assert_int_equal(st.st_size, 64 << 20);
    assert_int_equal(upper_grow(dest, "g", 32 << 20, &e), 0); /* it is that large */
    assert_int_equal(fstatat(dest, "g", &st, 0), 0);
    assert_int_equal(st.st_size, 64 << 20);
    /* One with sparse_super2, which a guest's kernel would refuse to grow. */
    int fd = openat(dest, "g", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x02", 1, 1024 + 0x5d), 1);
    (void)close(fd);
    assert_int_equal(upper_grow(dest, "g", 128 << 20, &e), -ENOTSUP);
    err_clear(&e);
    assert_int_equal(symlinkat("g", dest, "link"), 0);
    assert_int_equal(upper_grow(dest, "link", 128 << 20, &e), -ELOOP);
}

/* The last test: a name was left by a killed process that had our pid. */
static void test_names_left_without_o_tmpfile(void **state)
{
    char name[64];
    forget_tmpfile();
    (void)snprintf(name, sizeof(name), "dest/.x.%d", (int)getpid());
    put_file(tmp_path(name), "left", 4);
    create("x", UPPER_SIZE_MIN);
    check("x", UPPER_SIZE_MIN);
    assert_int_equal(access(tmp_path(name), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_template, setup, teardown),
        cmocka_unit_test_setup_teardown(test_concurrent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_grow, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_left_without_o_tmpfile, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
