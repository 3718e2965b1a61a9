/* How old a kernel is, by what its file says and by what kernel/build found. */
#include "cli/host/kernel_release.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dir {
    char path[64];
    int fd;
};

static int setup(void **state)
{
    struct dir *d = calloc(1, sizeof(*d));
    (void)snprintf(d->path, sizeof(d->path), "/tmp/release-XXXXXX");
    assert_non_null(mkdtemp(d->path));
    d->fd = dir_open_at(AT_FDCWD, d->path);
    assert_true(d->fd >= 0);
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    struct dir *d = *state;
    (void)close(d->fd);
    assert_int_equal(remove_tree_at(AT_FDCWD, d->path), 0);
    free(d);
    return 0;
}

static void test_banners(void **state)
{
    static const struct {
        const char *content;
        size_t n;
        const char *text; /* NULL: none */
    } cases[] = {
#define CASE(content, text) {content, sizeof(content) - 1, text}
        CASE("\177ELF\0Linux version 7.2.13 (msb@msb) (gcc) #1 @1793199715\n",
             "Linux 7.2.13 of 2026-10-28"),
        CASE("Linux version %s\0Linux version \0Linux version 7.2 (x) #1 SMP PREEMPT @0\n",
             "Linux 7.2.0"),
        CASE("Linux version 7.2.13-rc1 (msb@1) (gcc #9 @1) #1 SMP @1793199715 and more",
             "Linux 7.2.13"),
        CASE("Linux version 7.2.13 (msb@1) (gcc #9 @1) #1 SMP @1793199715",
             "Linux 7.2.13 of 2026-10-28"),
        CASE("Linux version 7.2.13 (msb@2000000000) #1 Mon Nov 2", "Linux 7.2.13"),
        CASE("Linux version 7.2.13\n@1793199715", "Linux 7.2.13"),
        CASE("Linux version 7.2.13 @999999999999999999999999", "Linux 7.2.13"),
        CASE("Linux version 7", NULL),
        CASE("Linux version +7.2", NULL),
        CASE("Linux versio", NULL),
        CASE("", NULL),
    };
    struct dir *d = *state;
    char path[80], text[64];
    (void)snprintf(path, sizeof(path), "%s/kernel", d->path);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kernel_release k;
        assert_int_equal(
            file_replace_at(d->fd, "kernel", cases[i].content, cases[i].n, 0600, false), 0);
        assert_int_equal(kernel_release_read(path, &k), cases[i].text ? 0 : -ENOENT);
        if (!cases[i].text)
            continue;
        kernel_release_text(&k, text, sizeof(text));
        assert_string_equal(text, cases[i].text);
    }
    assert_int_equal(kernel_release_read(d->path, &(struct kernel_release){0}), -ENOENT);
    assert_int_equal(kernel_release_read("/none", &(struct kernel_release){0}), -ENOENT);
}

static void expect_newest(struct dir *d, const char *found, const char *source, const char *expect)
{
    AUTO_CLOSE int fd = dir_open_at(d->fd, "kernel");
    struct kernel_release k;
    char text[64] = "none";
    if (found)
        assert_int_equal(file_replace_at(fd, "newest-version", found, strlen(found), 0600, false),
                         0);
    if (source)
        assert_int_equal(file_replace_at(fd, "source-version", source, strlen(source), 0600, false),
                         0);
    if (kernel_release_newest(&k))
        kernel_release_text(&k, text, sizeof(text));
    assert_string_equal(text, expect);
}

static void test_newest(void **state)
{
    struct dir *d = *state;
    assert_int_equal(setenv("MSB_CACHE_DIR", d->path, 1), 0);
    expect_newest(d, NULL, NULL, "none");
    assert_int_equal(mkdirat(d->fd, "kernel", 0700), 0);
    expect_newest(d, NULL, NULL, "none");
    expect_newest(d, NULL, "7.2.9-1\n", "Linux 7.2.9");
    expect_newest(d, "7.10.1-2\n", NULL, "Linux 7.10.1");
    expect_newest(d, "7.2.8-2\n", NULL, "Linux 7.2.9");
    expect_newest(d, "what\n", "", "none");
}

static void test_comparison(void **state)
{
    struct kernel_release a = {.number = {7, 2, 13}}, b = {.number = {7, 10, 0}}, c = a;
    c.when = 1;
    assert_true(kernel_release_compare(&a, &b) < 0);
    assert_true(kernel_release_compare(&b, &a) > 0);
    assert_int_equal(kernel_release_compare(&a, &c), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_banners, setup, teardown),
        cmocka_unit_test_setup_teardown(test_newest, setup, teardown),
        cmocka_unit_test(test_comparison),
    };
    return cmocka_run_group_tests_name("kernel-release", tests, NULL, NULL);
}
