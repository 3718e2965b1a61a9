/* Buffers with a limit, lists of strings, files in directories that others may write to, child
 * processes. */
#include "no_tmpfile.h"
#include "unit.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fs.h"
#include "util/output_file.h"
#include "util/process.h"
#include "util/sock.h"
#include "util/strlist.h"
#include "util/tree_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- buffers --------------------------------------------------------------------------------- */

static void test_buf_keeps_its_limit(void **state)
{
    struct buf b = {.limit = 10};
    assert_int_equal(buf_append(&b, "12345678", 8), 0);
    assert_int_equal(buf_append(&b, "abc", 3), -ENOSPC);
    assert_int_equal(buf_len(&b), 8);
    assert_memory_equal(buf_head(&b), "12345678", 8);
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_null(buf_reserve(&b, SIZE_MAX - 4)); /* would wrap with what is in it */
    buf_consume(&b, 3);
    assert_int_equal(buf_append(&b, "abc", 3), 0);
    assert_memory_equal(buf_head(&b), "45678abc", 8);
    buf_free(&b);
    assert_int_equal(buf_append(&b, "12345678901", 11), -ENOSPC);
    buf_free(&b);
}

/* Appends and consumes odd amounts, against a plain array. */
static void test_buf_is_a_queue(void **state)
{
    struct buf b = {.limit = 5000};
    uint8_t next_in = 0, next_out = 0;
    for (unsigned i = 0; i < 5000; i++) {
        uint8_t chunk[97];
        size_t n = (size_t)i * 31 % sizeof(chunk);
        for (size_t k = 0; k < n; k++)
            chunk[k] = (uint8_t)(next_in + k);
        if (buf_append(&b, chunk, n) == 0)
            next_in = (uint8_t)(next_in + n);
        size_t take = MIN(buf_len(&b), (size_t)(i * 17 % 90));
        for (size_t k = 0; k < take; k++)
            assert_int_equal(buf_head(&b)[k], (uint8_t)(next_out + k));
        next_out = (uint8_t)(next_out + take);
        buf_consume(&b, take);
    }
    assert_true(b.cap <= 8192);
    buf_consume(&b, buf_len(&b));
    buf_shrink(&b);
    assert_null(b.data);
}

static void test_buf_printf(void **state)
{
    struct buf b = {.limit = 16};
    assert_int_equal(buf_printf(&b, "%d-%s", 7, "x"), 0);
    assert_memory_equal(buf_head(&b), "7-x", 3);
    assert_int_equal(buf_printf(&b, "%s", "far too long for this one"), -ENOSPC);
    assert_int_equal(buf_len(&b), 3);
    buf_consume(&b, 1);
    assert_string_equal(buf_text(&b), "-x");
    assert_int_equal(buf_append(&b, "yyyyyyyyyyyyyy", 14), 0);
    assert_int_equal(buf_len(&b), 16);
    assert_null(buf_text(&b)); /* full */
    buf_reset(&b);
    assert_string_equal(buf_text(&b), "");
    buf_free(&b);
}

/* --- lists ----------------------------------------------------------------------------------- */

static void test_strlist_env(void **state)
{
    struct strlist l = {0}, copy = {0};
    assert_int_equal(strlist_set_env(&l, "A=1"), 0);
    assert_int_equal(strlist_set_env(&l, "AB=2"), 0);
    assert_int_equal(strlist_set_env(&l, "A=3"), 0);
    assert_int_equal(l.n, 2);
    assert_string_equal(strlist_get_env(&l, "A"), "3");
    assert_string_equal(strlist_get_env(&l, "AB"), "2");
    assert_null(strlist_get_env(&l, "B"));
    assert_int_equal(strlist_copy(&copy, &l), 0);
    assert_true(strlist_has(&copy, "AB=2"));
    assert_int_equal(strlist_printf(&copy, "%s=%d", "C", 7), 0);
    assert_string_equal(strlist_get_env(&copy, "C"), "7");
    assert_null(copy.v[copy.n]);
    strlist_free(&l);
    strlist_free(&copy);
}

/* --- errors ---------------------------------------------------------------------------------- */

static void test_errors_are_defused_and_cut(void **state)
{
    struct err e = {0};
    char big[ERR_MSG_MAX * 2];
    assert_int_equal(err_set(&e, EINVAL, "bad\x1b[31m\n\x7f"), -EINVAL);
    assert_string_equal(e.msg, "bad?[31m??");
    /* C1 controls, marks that reorder text, bytes that are no UTF-8; umlauts stay. */
    (void)err_set(&e, EINVAL, "%s",
                  "\xc2\x9b"
                  "2J \xe2\x80\xae"
                  "x \x9b \xc3\xa9");
    assert_string_equal(e.msg, "?2J ?x ? \xc3\xa9");
    err_hint(&e, "%s",
             "\xc2\x9b"
             "2J");
    assert_string_equal(e.hint[0], "?2J");
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    assert_int_equal(err_sys(&e, ENOENT, "%s", big), -ENOENT);
    assert_int_equal(strlen(e.msg), ERR_MSG_MAX - 1);
    assert_int_equal(err_wrap(&e, -ENOENT, "%s", big), -ENOENT);
    assert_int_equal(strlen(e.msg), ERR_MSG_MAX - 1);
    for (int i = 0; i < ERR_HINTS_MAX + 2; i++)
        err_hint(&e, "%s", big);
    assert_int_equal(e.hints, ERR_HINTS_MAX);
    assert_int_equal(err_set(NULL, EIO, "nobody listens"), -EIO);
    struct err copy = {0};
    err_copy(&copy, &e);
    assert_int_equal(copy.code, ENOENT);
    assert_string_equal(copy.msg, e.msg);
    assert_string_equal(copy.hint[ERR_HINTS_MAX - 1], e.hint[ERR_HINTS_MAX - 1]);
    err_copy(NULL, &e);
    err_clear(&e);
    assert_int_equal(e.code, 0);
}

/* --- files ----------------------------------------------------------------------------------- */

struct dir {
    char path[32];
    int fd;
};

static int dir_setup(void **state)
{
    struct dir *d = calloc(1, sizeof(*d));
    (void)snprintf(d->path, sizeof(d->path), "/tmp/fs-XXXXXX");
    assert_non_null(mkdtemp(d->path));
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = d;
    return 0;
}

static int dir_teardown(void **state)
{
    struct dir *d = *state;
    (void)close(d->fd);
    assert_int_equal(remove_tree_at(AT_FDCWD, d->path), 0);
    assert_int_equal(access(d->path, F_OK), -1);
    free(d);
    return 0;
}

static void expect_content(const struct dir *d, const char *name, const char *want)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    assert_int_equal(file_read_at(d->fd, name, 100, &text, &n), 0);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
}

static void test_files_are_replaced_whole(void **state)
{
    struct dir *d = *state;
    struct stat st;
    assert_int_equal(file_replace_at(d->fd, "f", "one", 3, 0600, true), 0);
    expect_content(d, "f", "one");
    AUTO_CLOSE int old = openat(d->fd, "f", O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_replace_at(d->fd, "f", "two!", 4, 0640, false), 0);
    expect_content(d, "f", "two!");
    char was[4] = "";
    assert_int_equal(read(old, was, 3), 3);
    assert_string_equal(was, "one");
    assert_int_equal(fstatat(d->fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0640 & ~0022);
}

/* The directory's owner may have planted something in the place of the temporary file. */
static void test_replacing_does_not_follow(void **state)
{
    struct dir *d = *state;
    char tmp[64];
    (void)snprintf(tmp, sizeof(tmp), ".f.tmp-%d", (int)getpid());
    assert_int_equal(file_replace_at(d->fd, "victim", "safe", 4, 0600, false), 0);
    assert_int_equal(symlinkat("victim", d->fd, tmp), 0);
    assert_int_equal(symlinkat("victim", d->fd, "f"), 0);
    assert_int_equal(file_replace_at(d->fd, "f", "new", 3, 0600, false), 0);
    expect_content(d, "f", "new");
    expect_content(d, "victim", "safe");
}

static void test_reading_takes_regular_files_only(void **state)
{
    struct dir *d = *state;
    char *text = NULL;
    assert_int_equal(file_read_at(d->fd, "none", 100, &text, NULL), -ENOENT);
    assert_int_equal(symlinkat("/etc/passwd", d->fd, "link"), 0);
    assert_int_equal(file_read_at(d->fd, "link", 100000, &text, NULL), -ELOOP);
    assert_int_equal(mkfifoat(d->fd, "fifo", 0600), 0);
    assert_int_equal(file_read_at(d->fd, "fifo", 100, &text, NULL), -EINVAL);
    assert_int_equal(mkdirat(d->fd, "dir", 0700), 0);
    assert_int_equal(file_read_at(d->fd, "dir", 100, &text, NULL), -EINVAL);
    assert_int_equal(file_replace_at(d->fd, "big", "123456", 6, 0600, false), 0);
    assert_int_equal(file_read_at(d->fd, "big", 5, &text, NULL), -EFBIG);
    assert_null(text);
}

static void test_directories_are_not_opened_through_links(void **state)
{
    struct dir *d = *state;
    AUTO_CLOSE int self = dir_open_at(d->fd, ".");
    assert_true(self >= 0);
    assert_int_equal(fcntl(self, F_GETFD), FD_CLOEXEC);
    assert_int_equal(dir_open_at(d->fd, "none"), -ENOENT);
    assert_int_equal(symlinkat("/", d->fd, "link"), 0);
    assert_int_equal(dir_open_at(d->fd, "link"), -ENOTDIR);
    assert_int_equal(mkfifoat(d->fd, "fifo", 0600), 0);
    assert_int_equal(dir_open_at(d->fd, "fifo"), -ENOTDIR);
}

static void test_removal_stays_inside(void **state)
{
    struct dir *d = *state;
    assert_int_equal(mkdirat(d->fd, "keep", 0700), 0);
    assert_int_equal(mkdirat(d->fd, "go", 0700), 0);
    assert_int_equal(mkdirat(d->fd, "go/deep", 0700), 0);
    assert_int_equal(file_replace_at(d->fd, "keep-too", "x", 1, 0600, false), 0);
    assert_int_equal(symlinkat("../keep", d->fd, "go/link"), 0);
    assert_int_equal(symlinkat("../../keep-too", d->fd, "go/deep/link"), 0);
    assert_int_equal(mkfifoat(d->fd, "go/fifo", 0600), 0);
    assert_int_equal(remove_tree_at(d->fd, "go"), 0);
    assert_int_equal(faccessat(d->fd, "go", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    assert_int_equal(faccessat(d->fd, "keep", F_OK, 0), 0);
    expect_content(d, "keep-too", "x");
    assert_int_equal(symlinkat("keep", d->fd, "link"), 0);
    assert_int_equal(remove_tree_at(d->fd, "link"), 0); /* the link, not what it leads to */
    assert_int_equal(faccessat(d->fd, "keep", F_OK, 0), 0);
    assert_int_equal(remove_tree_at(d->fd, "missing"), 0);
}

/* Each directory in the one before, by descriptor: their paths get longer than any may be. */
static void make_deep(int at, const char *name, unsigned levels, mode_t mode)
{
    AUTO_CLOSE int fd = fcntl(at, F_DUPFD_CLOEXEC, 0);
    for (unsigned i = 0; i < levels; i++) {
        if (mkdirat(fd, name, 0700) < 0)
            fail_msg("level %u: %s", i, strerror(errno));
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        assert_int_equal(mkdirat(next, "beside", 0700), 0);
        assert_int_equal(symlinkat("..", next, "up"), 0);
        if (i)
            assert_int_equal(fchmod(fd, mode), 0);
        (void)close(fd);
        fd = next;
    }
}

static void count(void *ctx, const struct stat *st)
{
    unsigned *n = ctx;
    n[S_ISDIR(st->st_mode) ? 0 : 1]++;
}

/* Visits everything once, with two descriptors to spare. */
static void expect_walk(int at, const char *name, unsigned dirs, unsigned others)
{
    struct rlimit old, few;
    unsigned n[2] = {0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int fd = dir_open_at(at, name);
    assert_true(fd >= 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)fd + 3, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = tree_walk(fd, count, n);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(r, 0);
    assert_int_equal(n[0], dirs);
    assert_int_equal(n[1], others);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

/* A guest says how deep its directories are, and how many descriptors there are is ours to say. */
static void test_walk_and_removal_of_what_is_deep(void **state)
{
    enum { LEVELS = 3000 };
    struct dir *d = *state;
    struct rlimit old, few = {.rlim_cur = 128};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few.rlim_max = old.rlim_max;
    make_deep(d->fd, "deep", LEVELS, 0700);
    expect_walk(d->fd, "deep", 2 * LEVELS - 1, LEVELS);
    /* Names that it could know of. */
    assert_int_equal(mkdirat(d->fd, "deep/.deep-0", 0700), 0);
    assert_int_equal(mkdirat(d->fd, "deep/.deep-0/x", 0700), 0);
    assert_int_equal(symlinkat("../..", d->fd, "deep/.deep-1"), 0);
    assert_int_equal(file_replace_at(d->fd, "beside", "x", 1, 0600, false), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = remove_tree_at(d->fd, "deep");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(r, 0);
    assert_int_equal(faccessat(d->fd, "deep", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    expect_content(d, "beside", "x");
}

/* Modes do not prevent it, either: some programs leave directories without write permission. */
static void test_removal_of_what_is_write_protected(void **state)
{
    struct dir *d = *state;
    static const mode_t modes[] = {0, 0111, 0444, 0555};
    if (geteuid() == 0)
        assert_int_equal(fchown(d->fd, 65534, 65534), 0);
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        pid_t pid = fork();
        if (pid == 0) { /* root may do everything */
            if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
                _exit(2);
            make_deep(d->fd, "deep", 100, modes[i]);
            if (fchmodat(d->fd, "deep", modes[i], 0) < 0)
                _exit(3);
            _exit(remove_tree_at(d->fd, "deep") == 0 ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(faccessat(d->fd, "deep", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    }
}

/* A process that is about to end may add something meanwhile. */
static void test_removal_beside_who_still_writes(void **state)
{
    struct dir *d = *state;
    int sync[2];
    char byte;
    assert_int_equal(mkdirat(d->fd, "busy", 0700), 0);
    AUTO_CLOSE int busy = openat(d->fd, "busy", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(busy >= 0);
    assert_int_equal(pipe(sync), 0);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 20000; i++) { /* as long as there is something to add to */
            int fd = openat(busy, "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
            if (i == 100)
                (void)!write(sync[1], "", 1);
            if (fd < 0)
                break;
            (void)close(fd);
        }
        _exit(0);
    }
    assert_int_equal(read(sync[0], &byte, 1), 1);
    assert_int_equal(remove_tree_patiently(d->fd, "busy"), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(faccessat(d->fd, "busy", F_OK, AT_SYMLINK_NOFOLLOW), -1);
    (void)close(sync[0]);
    (void)close(sync[1]);
}

static void test_mkdir_parents(void **state)
{
    struct dir *d = *state;
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/a/b/c", d->path);
    assert_int_equal(mkdir_parents(path, 0700), 0);
    assert_int_equal(mkdir_parents(path, 0700), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(file_replace_at(d->fd, "file", "", 0, 0600, false), 0);
    (void)snprintf(path, sizeof(path), "%s/file/c", d->path);
    assert_true(mkdir_parents(path, 0700) < 0);
}

/* --- children, packets, descriptors ---------------------------------------------------------- */

static pid_t child(int here, int there, int code)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    (void)close(here);
    (void)!write(there, "one", 3);
    (void)!write(there, "another", 7);
    if (code < 0)
        (void)raise(SIGKILL);
    _exit(code);
}

static void test_packets_of_a_child_and_its_end(void **state)
{
    char text[8];
    const struct {
        int code, shown;
    } ends[] = {{0, 0}, {7, 7}, {-1, 128 + SIGKILL}};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        AUTO_CLOSE int here = -1, there = -1;
        assert_int_equal(packet_pair(&here, &there, NULL), 0);
        assert_true(fcntl(here, F_GETFD) & FD_CLOEXEC);
        pid_t pid = child(here, there, ends[i].code);
        close_fd(&there);
        assert_int_equal(packet_receive(here, text, sizeof(text)), 3); /* not both */
        assert_int_equal(packet_receive(here, text, sizeof(text)), 7);
        assert_int_equal(packet_receive(here, text, sizeof(text)), 0);
        assert_int_equal(process_exit_code(process_wait(pid)), ends[i].shown);
        assert_int_equal(process_wait(pid), -ECHILD);
    }
}

static void test_a_descriptor_is_taken_or_closed(void **state)
{
    AUTO_CLOSE int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int taken = dup(file);
    assert_null(dir_take(taken));
    assert_int_equal(errno, ENOTDIR);
    assert_int_equal(fcntl(taken, F_GETFD), -1);
    errno = EXDEV;
    assert_null(dir_take(-1));
    assert_int_equal(errno, EXDEV);
}

/* A killed process with our pid left its temporary name. */
static void test_saving_where_a_name_was_left(void **state)
{
    const struct dir *d = *state;
    char path[128], temp[64];
    (void)snprintf(path, sizeof(path), "%s/f", d->path);
    (void)snprintf(temp, sizeof(temp), ".msb-save.%d", (int)getpid());
    assert_int_equal(file_replace_at(d->fd, temp, "left", 4, 0600, false), 0);
    struct output_file f;
    struct err e = {0};
    assert_int_equal(output_file_open(&f, path, &e), 0);
    assert_int_equal(write(f.fd, "new", 3), 3);
    assert_int_equal(output_file_publish(&f, &e), 0);
    output_file_close(&f);
    expect_content(d, "f", "new");
    assert_int_equal(faccessat(d->fd, temp, F_OK, 0), -1);
}

/* The last test. */
static void test_saving_without_o_tmpfile(void **state)
{
    forget_tmpfile();
    test_saving_where_a_name_was_left(state);
}

int main(void)
{
#define WITH_DIR(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_keeps_its_limit),
        cmocka_unit_test(test_buf_is_a_queue),
        cmocka_unit_test(test_buf_printf),
        cmocka_unit_test(test_strlist_env),
        cmocka_unit_test(test_errors_are_defused_and_cut),
        cmocka_unit_test(test_packets_of_a_child_and_its_end),
        cmocka_unit_test(test_a_descriptor_is_taken_or_closed),
        WITH_DIR(test_files_are_replaced_whole),
        WITH_DIR(test_replacing_does_not_follow),
        WITH_DIR(test_reading_takes_regular_files_only),
        WITH_DIR(test_directories_are_not_opened_through_links),
        WITH_DIR(test_removal_stays_inside),
        WITH_DIR(test_walk_and_removal_of_what_is_deep),
        WITH_DIR(test_removal_of_what_is_write_protected),
        WITH_DIR(test_removal_beside_who_still_writes),
        WITH_DIR(test_mkdir_parents),
        WITH_DIR(test_saving_where_a_name_was_left),
        WITH_DIR(test_saving_without_o_tmpfile),
    };
    return cmocka_run_group_tests_name("buf_fs", tests, NULL, NULL);
}
