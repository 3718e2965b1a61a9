/* What a tree looked like: every change shows, and what cannot be copied is refused. */
#include <stdint.h>

#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "workspace/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[] = "/tmp/msb-test-workspace-XXXXXX";
static int top;

static int setup(void **state)
{
    (void)strcpy(dir + sizeof(dir) - 7, "XXXXXX");
    assert_non_null(mkdtemp(dir));
    top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(top >= 0);
    assert_int_equal(mkdirat(top, "t", 0755), 0);
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(remove_tree_at(top, "t"), 0);
    (void)close(top);
    return rmdir(dir);
}

static void put(const char *name, const char *text)
{
    int fd = openat(top, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
}

static struct manifest look(void)
{
    struct manifest m = {0};
    struct err e = {0};
    if (manifest_of(top, "t", "it", &m, &e) < 0)
        fail_msg("%s", e.msg);
    return m;
}

static void changed(struct manifest *m)
{
    struct manifest now = look();
    assert_false(digest_equal(&m->digest, &now.digest));
    *m = now;
}

static void every_change_shows(void **state)
{
    struct manifest m = look(), again;
    assert_int_equal(m.entries, 0);
    put("t/a", "1");
    changed(&m);
    assert_int_equal(m.entries, 1);
    assert_int_equal(m.bytes, 1);
    again = look();
    assert_true(digest_equal(&m.digest, &again.digest));
    assert_int_equal(mkdirat(top, "t/d", 0755), 0);
    changed(&m);
    put("t/d/b", "22");
    changed(&m);
    assert_int_equal(fchmodat(top, "t/d/b", 0600, 0), 0);
    changed(&m);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = 1}};
    assert_int_equal(utimensat(top, "t/d/b", times, 0), 0);
    changed(&m);
    times[1].tv_nsec = 2; /* the same size, and a nanosecond later */
    assert_int_equal(utimensat(top, "t/d/b", times, 0), 0);
    changed(&m);
    assert_int_equal(symlinkat("x", top, "t/l"), 0);
    changed(&m);
    assert_int_equal(unlinkat(top, "t/l", 0), 0);
    assert_int_equal(symlinkat("y", top, "t/l"), 0);
    changed(&m);
    assert_int_equal(renameat(top, "t/d/b", top, "t/b"), 0);
    changed(&m);
    put("copy", "1"); /* the same content, name and times, and another file */
    struct stat st;
    assert_int_equal(fstatat(top, "t/a", &st, 0), 0);
    times[1] = st.st_mtim;
    assert_int_equal(utimensat(top, "copy", times, 0), 0);
    assert_int_equal(renameat(top, "copy", top, "t/a"), 0);
    changed(&m);
    /* Where the tree itself is does not matter. */
    assert_int_equal(renameat(top, "t", top, "u"), 0);
    struct err e = {0};
    assert_int_equal(manifest_of(top, "u", "it", &again, &e), 0);
    assert_true(digest_equal(&m.digest, &again.digest));
    assert_int_equal(renameat(top, "u", top, "t"), 0);
}

static void names_do_not_run_together(void **state)
{
    struct manifest a, b;
    assert_int_equal(mkdirat(top, "t/d", 0755), 0);
    put("t/d/x", "");
    a = look();
    assert_int_equal(renameat(top, "t/d/x", top, "t/x"), 0);
    b = look();
    assert_false(digest_equal(&a.digest, &b.digest));
}

static void refused(int code)
{
    struct manifest m;
    struct err e = {0};
    assert_int_equal(manifest_of(top, "t", "it", &m, &e), -code);
}

static void what_cannot_be_copied(void **state)
{
    assert_int_equal(mkfifoat(top, "t/p", 0600), 0);
    refused(EINVAL);
    assert_int_equal(unlinkat(top, "t/p", 0), 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/t/s", dir);
    AUTO_CLOSE int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
    refused(EINVAL);
    assert_int_equal(unlinkat(top, "t/s", 0), 0);
    AUTO_CLOSE int fd = openat(top, "t", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i <= MANIFEST_DEPTH_MAX + 1; i++) {
        assert_int_equal(mkdirat(fd, "d", 0755), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(fd);
        fd = next;
    }
    refused(ELOOP);
    struct manifest m;
    struct err e = {0};
    assert_int_equal(manifest_of(top, "none", "it", &m, &e), -ENOENT);
    assert_int_equal(symlinkat("t", top, "link"), 0);
    err_clear(&e);
    assert_true(manifest_of(top, "link", "it", &m, &e) < 0);
    assert_int_equal(unlinkat(top, "link", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_change_shows, setup, teardown),
        cmocka_unit_test_setup_teardown(names_do_not_run_together, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_copied, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
