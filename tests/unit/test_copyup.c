/* Copies for tmpcopyup, of a directory that another process changes at the same time. */
#include "agent/copyup.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum change { NOTHING, OTHER_FILE, FIFO };

static enum change next; /* to happen after the first look at "file", before it is opened */

/* The linker's names. */
int __real_openat64(int dirfd, const char *name, int flags, mode_t mode);
int __wrap_openat64(int dirfd, const char *name, int flags, mode_t mode);

int __wrap_openat64(int dirfd, const char *name, int flags, mode_t mode)
{
    if (strcmp(name, "file") == 0 && next != NOTHING) {
        assert_int_equal(unlinkat(dirfd, name, 0), 0);
        assert_int_equal(mknodat(dirfd, name, next == FIFO ? S_IFIFO | 0600 : S_IFREG | 0640, 0),
                         0);
        next = NOTHING;
    }
    return __real_openat64(dirfd, name, flags, mode);
}

static int copied(enum change change, struct stat *st)
{
    char from_path[] = "/tmp/msb-copyup-XXXXXX", to_path[] = "/tmp/msb-copyup-XXXXXX";
    assert_non_null(mkdtemp(from_path));
    assert_non_null(mkdtemp(to_path));
    AUTO_CLOSE int from = open(from_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int to = open(to_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mknodat(from, "file", S_IFREG | 0600, 0), 0);
    assert_int_equal(fchmodat(from, "file", 04755, 0), 0);
    next = change;
    int r = copyup(from, to);
    *st = (struct stat){0};
    (void)fstatat(to, "file", st, AT_SYMLINK_NOFOLLOW);
    (void)unlinkat(from, "file", 0);
    (void)unlinkat(to, "file", 0);
    assert_int_equal(rmdir(from_path), 0);
    assert_int_equal(rmdir(to_path), 0);
    return r;
}

static void test_replaced_by_another_file(void **state)
{
    struct stat st;
    assert_int_equal(copied(NOTHING, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 04755);
    assert_int_equal(copied(OTHER_FILE, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0640);
}

static void test_replaced_by_a_fifo(void **state)
{
    struct stat st;
    assert_int_equal(copied(FIFO, &st), -EBUSY);
    assert_int_equal(st.st_mode, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replaced_by_another_file),
                                       cmocka_unit_test(test_replaced_by_a_fifo)};
    (void)umask(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
