/* The chain of the audit log: what was done to it is found, and said with its place; what a killed
 * writer leaves is repaired and is no fault. */
#include "logs/format.h"
#include "store/audit_chain.h"
#include "store/audit_verify.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { RECORDS = 6 };

static char home[64];
static int home_fd;

static int setup(void **state)
{
    (void)snprintf(home, sizeof(home), "/tmp/msb-test-XXXXXX");
    if (!mkdtemp(home))
        return -1;
    home_fd = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return home_fd < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    close_fd(&home_fd);
    return remove_tree_at(AT_FDCWD, home);
}

static void add(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char body[64];
        int k = snprintf(body, sizeof(body), "{\"t\":\"x\",\"event\":\"test\",\"i\":%u}", i);
        assert_int_equal(audit_chain_append(home_fd, body, (size_t)k, NULL), 0);
    }
}

/* --- verifying --- */

struct found {
    struct audit_check check;
    struct audit_problem first;
    unsigned n;
};

static void on_problem(void *ctx, const struct audit_problem *p)
{
    struct found *f = ctx;
    if (f->n++ == 0)
        f->first = *p;
}

static void verify_with(struct found *f, const struct audit_mark *expect)
{
    struct err e = {0};
    *f = (struct found){.check = {.expect = expect, .problem = on_problem}};
    f->check.ctx = f;
    assert_int_equal(audit_verify(home_fd, &f->check, &e), 0);
}

static void assert_whole(uint64_t last)
{
    struct found f;
    verify_with(&f, NULL);
    if (f.check.problems)
        print_error("%s:%" PRIu64 ": %s\n", f.first.file, f.first.line, f.first.what);
    assert_int_equal(f.check.problems, 0);
    assert_int_equal(f.check.last.seq, last);
}

static void assert_found(const char *file, uint64_t line, uint64_t seq, const char *what)
{
    struct found f;
    verify_with(&f, NULL);
    assert_true(f.check.problems > 0);
    if (!strstr(f.first.what, what))
        print_error("expected '%s': %s\n", what, f.first.what);
    assert_non_null(strstr(f.first.what, what));
    assert_string_equal(f.first.file, file);
    assert_int_equal(f.first.line, line);
    assert_int_equal(f.first.seq, seq);
}

/* --- changing --- */

struct lines {
    char *text, *v[64];
    size_t n;
};

static void load(struct lines *l, const char *name)
{
    *l = (struct lines){0};
    assert_int_equal(file_read_at(home_fd, name, 1 << 20, &l->text, NULL), 0);
    for (char *p = strtok(l->text, "\n"); p; p = strtok(NULL, "\n"))
        l->v[l->n++] = p;
}

/* In place: the inode stays. */
static void store(struct lines *l, const char *name, const char *end)
{
    AUTO_CLOSE int fd = openat(home_fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i])
            assert_true(dprintf(fd, "%s%s", l->v[i], i + 1 < l->n ? "\n" : end) > 0);
    free(l->text);
}

static void append_raw(const char *name, const char *text)
{
    AUTO_CLOSE int fd = openat(home_fd, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write_all(fd, text, strlen(text)), 0);
}

static void test_links(void **state)
{
    struct lines l;
    struct audit_mark m;
    struct stat st;
    assert_whole(0);
    add(RECORDS);
    assert_whole(RECORDS);
    load(&l, AUDIT_NAME);
    assert_int_equal(l.n, RECORDS);
    assert_true(audit_link_parse(l.v[0], strlen(l.v[0]), &m));
    assert_int_equal(m.seq, 1);
    assert_int_equal(strspn(m.hash, "0"), 64);
    for (size_t i = 1; i < l.n; i++) {
        struct digest d = digest_of(l.v[i - 1], strlen(l.v[i - 1]));
        char hex[DIGEST_HEX_SIZE];
        digest_hex(&d, hex);
        assert_true(audit_link_parse(l.v[i], strlen(l.v[i]), &m));
        assert_int_equal(m.seq, i + 1);
        assert_string_equal(m.hash, hex);
    }
    free(l.text);
    assert_int_equal(fstatat(home_fd, AUDIT_HEAD_NAME, &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 128);
    assert_int_equal(audit_chain_append(home_fd, "{}", 2, NULL), -EINVAL);
}

static void test_edited(void **state)
{
    for (size_t i = 0; i < RECORDS; i++) {
        struct lines l;
        (void)unlinkat(home_fd, AUDIT_NAME, 0);
        (void)unlinkat(home_fd, AUDIT_HEAD_NAME, 0);
        add(RECORDS);
        load(&l, AUDIT_NAME);
        strstr(l.v[i], "test")[0] = 'T';
        store(&l, AUDIT_NAME, "\n");
        assert_found(AUDIT_NAME, i + 1, i + 1, "was changed");
        add(1); /* does not heal it */
        assert_found(AUDIT_NAME, i + 1, i + 1, "was changed");
    }
}

static void test_removed(void **state)
{
    struct lines l;
    add(RECORDS);
    load(&l, AUDIT_NAME);
    l.v[2] = NULL;
    store(&l, AUDIT_NAME, "\n");
    assert_found(AUDIT_NAME, 3, 3, "record 3 is missing before this one");
    add(1);
    assert_found(AUDIT_NAME, 3, 3, "record 3 is missing before this one");
}

static void test_removed_at_the_start(void **state)
{
    struct lines l;
    add(RECORDS);
    load(&l, AUDIT_NAME);
    l.v[0] = l.v[1] = NULL;
    store(&l, AUDIT_NAME, "\n");
    assert_found(AUDIT_NAME, 1, 1, "records 1 to 2 are missing");
}

static void test_reordered(void **state)
{
    struct lines l;
    add(RECORDS);
    load(&l, AUDIT_NAME);
    char *third = l.v[2];
    l.v[2] = l.v[3];
    l.v[3] = third;
    store(&l, AUDIT_NAME, "\n");
    struct found f;
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 2);
    assert_found(AUDIT_NAME, 3, 3, "record 3 is missing");
}

#define NO_HASH "0000000000000000000000000000000000000000000000000000000000000000"

static void test_inserted(void **state)
{
    static const char *const made_up[] = {"{\"t\":\"x\",\"event\":\"test\"}", "noise", "",
                                          "{\"seq\":3,\"prev\":\"" NO_HASH "\",\"event\":\"x\"}"};
    for (size_t i = 0; i < ARRAY_LEN(made_up); i++) {
        struct lines l;
        char both[1024];
        (void)unlinkat(home_fd, AUDIT_NAME, 0);
        (void)unlinkat(home_fd, AUDIT_HEAD_NAME, 0);
        add(RECORDS);
        load(&l, AUDIT_NAME);
        (void)snprintf(both, sizeof(both), "%s\n%s", l.v[2], made_up[i]);
        l.v[2] = both;
        store(&l, AUDIT_NAME, "\n");
        assert_found(AUDIT_NAME, 4, i == 3 ? 3 : 0, i == 3 ? "moved or inserted" : "inserted");
    }
}

/* At the end, by whole records and in the middle of one; the next writer does not hide it. */
static void test_truncated(void **state)
{
    for (int part = 0; part < 2; part++) {
        struct lines l;
        (void)unlinkat(home_fd, AUDIT_NAME, 0);
        (void)unlinkat(home_fd, AUDIT_HEAD_NAME, 0);
        add(RECORDS);
        load(&l, AUDIT_NAME);
        l.n -= 2;
        if (part)
            l.v[l.n - 1][100] = '\0';
        store(&l, AUDIT_NAME, part ? "" : "\n");
        assert_found("", 0, part ? 4 : 5,
                     part ? "records 4 to 6 are missing at the end"
                          : "records 5 to 6 are missing at the end");
        add(1);
        struct found f;
        verify_with(&f, NULL);
        assert_true(f.check.problems > 0);
        assert_int_equal(f.check.last.seq, part ? RECORDS + 2 : RECORDS + 1);
    }
}

static void test_gone(void **state)
{
    add(RECORDS);
    assert_int_equal(unlinkat(home_fd, AUDIT_NAME, 0), 0);
    assert_found("", 0, 1, "records 1 to 6 are missing at the end");
    add(1);
    assert_found(AUDIT_NAME, 1, 1, "records 1 to 6 are missing before this one");
}

static void test_head(void **state)
{
    add(RECORDS);
    append_raw(AUDIT_HEAD_NAME, "x");
    assert_found("", 0, 0, "audit.head is damaged");
    assert_int_equal(unlinkat(home_fd, AUDIT_HEAD_NAME, 0), 0);
    assert_found("", 0, 0, "audit.head is missing");
    add(1); /* from what the file says */
    assert_whole(RECORDS + 1);
}

/* Truncating both is detected with a mark that was kept. */
static void test_anchor(void **state)
{
    struct found f;
    struct lines l;
    struct audit_mark kept, parsed;
    char text[AUDIT_MARK_TEXT_MAX];
    add(RECORDS);
    verify_with(&f, NULL);
    kept = f.check.last;
    audit_mark_text(&kept, text);
    assert_int_equal(audit_mark_parse(text, &parsed), 0);
    assert_int_equal(parsed.seq, kept.seq);
    assert_string_equal(parsed.hash, kept.hash);
    add(2);
    verify_with(&f, &kept);
    assert_int_equal(f.check.problems, 0);
    load(&l, AUDIT_NAME);
    l.n = 3;
    store(&l, AUDIT_NAME, "\n");
    assert_int_equal(unlinkat(home_fd, AUDIT_HEAD_NAME, 0), 0);
    add(1);
    assert_whole(4);
    verify_with(&f, &kept);
    assert_int_equal(f.check.problems, 1);
    assert_non_null(
        strstr(f.first.what, "records 5 to 6 are missing at the end: they are expected"));
    add(4); /* another one of that number */
    verify_with(&f, &kept);
    assert_int_equal(f.check.problems, 1);
    assert_non_null(strstr(f.first.what, "is not the one that is expected"));
    static const char *const bad[] = {"", "7", "7:", "0:", ":", "x:y", "-1:", "7:0123"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(audit_mark_parse(bad[i], &parsed), -EINVAL);
}

static void test_old_lines(void **state)
{
    append_raw(AUDIT_NAME, "{\"t\":\"x\",\"event\":\"old\"}\n{\"t\":\"x\",\"event\":\"old\"}\n");
    add(2);
    struct found f;
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 0);
    assert_int_equal(f.check.unchained, 2);
    append_raw(AUDIT_NAME, "{\"t\":\"x\",\"event\":\"old\"}\n"); /* by a program of before */
    add(1);
    assert_found(AUDIT_NAME, 5, 0, "not a record of the chain");
}

/* --- writers that are killed --- */

/* All places at which a record can be cut, the one before its newline included. */
static void test_cut_anywhere(void **state)
{
    add(2);
    AUTO_FREE char *log = NULL, *head = NULL, *next = NULL;
    size_t n, n_head, n_next;
    assert_int_equal(file_read_at(home_fd, AUDIT_NAME, 1 << 20, &log, &n), 0);
    assert_int_equal(file_read_at(home_fd, AUDIT_HEAD_NAME, 1 << 20, &head, &n_head), 0);
    add(1);
    assert_int_equal(file_read_at(home_fd, AUDIT_NAME, 1 << 20, &next, &n_next), 0);
    for (size_t cut = n; cut <= n_next; cut++) {
        AUTO_CLOSE int fd = openat(home_fd, AUDIT_NAME, O_WRONLY | O_TRUNC | O_CLOEXEC);
        AUTO_CLOSE int hd = openat(home_fd, AUDIT_HEAD_NAME, O_WRONLY | O_TRUNC | O_CLOEXEC);
        assert_int_equal(write_all(fd, next, cut), 0);
        assert_int_equal(write_all(hd, head, n_head), 0);
        struct found f;
        verify_with(&f, NULL);
        assert_int_equal(f.check.problems, 0);
        assert_int_equal(f.check.cut, cut != n && cut != n_next);
        add(1);
        bool repaired = cut != n && cut != n_next;
        assert_whole(repaired || cut == n_next ? 4 : 3);
        verify_with(&f, NULL);
        assert_int_equal(f.check.repaired, repaired);
    }
}

/* The first record of all, of which nothing but the newline is missing. */
static void test_first_record_without_its_end(void **state)
{
    AUTO_FREE char *log = NULL;
    size_t n;
    add(1);
    assert_int_equal(file_read_at(home_fd, AUDIT_NAME, 1 << 20, &log, &n), 0);
    AUTO_CLOSE int fd = openat(home_fd, AUDIT_NAME, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write_all(fd, log, n - 1), 0);
    assert_int_equal(unlinkat(home_fd, AUDIT_HEAD_NAME, 0), 0);
    add(1);
    assert_whole(2);
}

/* A line of any length is repaired in bounded memory. */
static void test_noise_at_the_end(void **state)
{
    AUTO_FREE char *noise = malloc(3 * LOG_LINE_MAX);
    assert_non_null(noise);
    memset(noise, 'n', 3 * LOG_LINE_MAX);
    noise[3 * LOG_LINE_MAX - 1] = '\0';
    add(2);
    append_raw(AUDIT_NAME, noise);
    add(1);
    assert_whole(4);
}

static void write_for_ever(void)
{
    static char body[60000];
    size_t n = (size_t)snprintf(body, sizeof(body), "{\"t\":\"x\",\"event\":\"test\",\"pad\":\"");
    memset(body + n, 'p', sizeof(body) - n - 3);
    (void)snprintf(body + sizeof(body) - 3, 3, "\"}");
    for (;;)
        if (audit_chain_append(home_fd, body, sizeof(body) - 1, NULL) < 0)
            _exit(1);
}

/* Through a rotation, usually. */
static void test_killed_writers(void **state)
{
    struct found f;
    struct stat st;
    for (int round = 0; round < 25; round++) {
        pid_t pid[3];
        for (size_t i = 0; i < ARRAY_LEN(pid); i++) {
            pid[i] = fork();
            assert_true(pid[i] >= 0);
            if (pid[i] == 0)
                write_for_ever();
        }
        (void)usleep((useconds_t)(1000 + round % 7 * 3000));
        for (size_t i = 0; i < ARRAY_LEN(pid); i++)
            (void)kill(pid[i], SIGKILL);
        for (size_t i = 0; i < ARRAY_LEN(pid); i++) {
            int status;
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
            assert_true(WIFSIGNALED(status));
        }
        if (fstatat(home_fd, AUDIT_NAME ".1", &st, 0) == 0 && round > 10)
            break;
    }
    verify_with(&f, NULL);
    if (f.check.problems)
        print_error("%s:%" PRIu64 ": %s\n", f.first.file, f.first.line, f.first.what);
    assert_int_equal(f.check.problems, 0);
    add(1);
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 0);
    assert_true(f.check.records > 20);
}

static off_t size_of(const char *name)
{
    struct stat st;
    assert_int_equal(fstatat(home_fd, name, &st, 0), 0);
    return st.st_size;
}

static void assert_complains(const char *what)
{
    struct found f;
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 1);
    if (!strstr(f.first.what, what))
        fail_msg("expected '%s': %s", what, f.first.what);
}

/* Without its first record, without any, and moved as if by a rotation that never was. */
static void check_oldest(void)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_int_equal(file_read_at(home_fd, AUDIT_NAME ".2", LOG_FILE_MAX, &text, &n), 0);
    char *rest = strchr(text, '\n') + 1;
    AUTO_CLOSE int fd = openat(home_fd, AUDIT_NAME ".2", O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0 && strncmp(rest, "{\"seq\":", 7) == 0);
    assert_int_equal(write_all(fd, rest, n - (size_t)(rest - text)), 0);
    assert_true(size_of(AUDIT_NAME ".2") + LOG_LINE_MAX >= LOG_FILE_MAX);
    assert_complains("is not where its file began: others were before it");
    assert_int_equal(ftruncate(fd, 0), 0);
    struct found f;
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 2);
    assert_non_null(strstr(f.first.what, "audit.log.2 was rotated before it was full"));
    static const char *const names[] = {AUDIT_NAME, AUDIT_NAME ".1", AUDIT_NAME ".2"};
    for (size_t i = ARRAY_LEN(names) - 1; i > 0; i--)
        assert_int_equal(renameat(home_fd, names[i - 1], home_fd, names[i]), 0);
    assert_complains("audit.log.1 was rotated before it was full");
    for (size_t i = 1; i < ARRAY_LEN(names); i++) /* back */
        assert_int_equal(renameat(home_fd, names[i], home_fd, names[i - 1]), 0);
    AUTO_CLOSE int again = openat(home_fd, AUDIT_NAME ".2", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write_all(again, text, n), 0);
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 0);
}

static void test_rotation(void **state)
{
    struct found f;
    struct stat st;
    static char body[100000];
    size_t n = (size_t)snprintf(body, sizeof(body), "{\"t\":\"x\",\"event\":\"test\",\"pad\":\"");
    memset(body + n, 'p', sizeof(body) - n - 3);
    (void)snprintf(body + sizeof(body) - 3, 3, "\"}");
    for (unsigned i = 0; i < 450; i++) /* a part of the last file */
        assert_int_equal(audit_chain_append(home_fd, body, sizeof(body) - 1, NULL), 0);
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 0);
    assert_int_equal(f.check.last.seq, 450);
    assert_true(f.check.first > 1);
    for (int i = 0; i < 4; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), i ? AUDIT_NAME ".%d" : AUDIT_NAME, i);
        assert_int_equal(fstatat(home_fd, name, &st, 0), i < LOG_FILES ? 0 : -1);
        if (i < LOG_FILES)
            assert_true(st.st_size <= LOG_FILE_MAX);
    }
    /* The anchor of a record that is gone. */
    struct audit_mark old = {.seq = 1};
    memset(old.hash, 'a', sizeof(old.hash) - 1);
    verify_with(&f, &old);
    assert_int_equal(f.check.problems, 1);
    assert_non_null(strstr(f.first.what, "record 1 is expected and not there: the oldest is"));
    check_oldest();
    /* A file that is gone in the middle. */
    assert_int_equal(unlinkat(home_fd, AUDIT_NAME ".1", 0), 0);
    verify_with(&f, NULL);
    assert_int_equal(f.check.problems, 1);
    assert_non_null(strstr(f.first.what, "are missing before this one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_edited, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed_at_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reordered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inserted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_head, setup, teardown),
        cmocka_unit_test_setup_teardown(test_anchor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_record_without_its_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_noise_at_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_writers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rotation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
