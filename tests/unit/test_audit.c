/* The audit log: records of many writers stay whole across rotations; what a sandbox leaves is
 * copied, bounded and checked; nothing that fails here fails what was done. */
#include "audit_dir.h"

#include "logs/files.h"
#include "logs/net_record.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Calls fn for each record in all files; how many there are. Every line must parse. */
static size_t each(void (*fn)(const json_t *j, void *arg), void *arg)
{
    AUTO_CLOSE int dir = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct log_stream s;
    size_t n = 0;
    assert_int_equal(log_stream_open(&s, dir, AUDIT_NAME, 0), 0);
    s.parse = log_record_parse;
    while (log_stream_next(&s) == 1) {
        if (fn)
            fn(s.entry.json, arg);
        n++;
    }
    log_stream_close(&s);
    return n;
}

static const char *text(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

struct found {
    char last[8192];
    unsigned seen[64];
    size_t n;
};

static void keep_last(const json_t *j, void *arg)
{
    struct found *f = arg;
    AUTO_FREE char *t = json_dumps(j, JSON_COMPACT);
    (void)snprintf(f->last, sizeof(f->last), "%s", t);
    f->n++;
}

static void test_records(void **state)
{
    struct found f = {0};
    struct err e = {0};
    struct stat st;
    char path[128], id[AUDIT_ID_MAX];
    audit(&store, "start", "web", json_pack("{s:s, s:s}", "image", "x", "t", "forged"));
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, "\"event\":\"start\",\"sandbox\":\"web\""));
    assert_null(strstr(f.last, "forged")); /* the frame is ours */
    err_set(&e, EIO, "it broke");
    audit_done(&store, "stop", "web", NULL, 0, -EIO, &e);
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, "\"error\":\"it broke\""));
    struct strlist argv = {0};
    assert_int_equal(strlist_add(&argv, "sh"), 0);
    assert_int_equal(strlist_add(&argv, "\xff\x01"), 0);
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv, .user = "nobody"}, id);
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, "\"argv\":[\"sh\",\"\\\\xff\\\\x01\"],\"user\":\"nobody\""));
    assert_null(strstr(f.last, "cut"));
    char *large = calloc(1, 100000);
    assert_non_null(large);
    memset(large, 'x', 99999);
    assert_int_equal(strlist_take(&argv, large), 0);
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv}, id);
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, "\"cut\":true"));
    assert_true(strlen(f.last) < AUDIT_ARGV_MAX + 300);
    strlist_free(&argv);
    audit_exit(&store, "web", id, 7);
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, id));
    (void)snprintf(path, sizeof(path), "%s/" AUDIT_NAME, home);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(complaints, 0);
}

/* Whatever a command is called with, it is in the log. */
static void test_commands_of_any_bytes(void **state)
{
    struct found f = {0};
    struct strlist argv = {0};
    char id[AUDIT_ID_MAX];
    assert_int_equal(strlist_add(&argv, "sh"), 0);
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv, .user = "a\xff", .cwd = "/\xc3"},
               id);
    (void)each(keep_last, &f);
    assert_non_null(strstr(f.last, "\"argv\":[\"sh\"],\"user\":\"a\\\\xff\""));
    assert_non_null(strstr(f.last, "\"workdir\":\"/\\\\xc3\""));
    for (int i = 0; i < 5000; i++)
        assert_int_equal(strlist_add(&argv, ""), 0);
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv}, id);
    assert_int_equal(each(keep_last, &f), 2);
    assert_non_null(strstr(f.last, "\"cut\":true"));
    assert_int_equal(complaints, 0);
    strlist_free(&argv);
}

/* All ways to the host are named. */
static void test_what_it_is_made_of(void **state)
{
    char sock[] = "/run/x.sock", from[] = "/h", to[] = "/g", made[] = "/m",
         work[] = "/home/me/work";
    struct spec_vsock vsock = {.path = sock, .port = 7000};
    struct spec_patch patches[] = {{.kind = PATCH_MKDIR, .path = made},
                                   {.kind = PATCH_COPY_FILE, .source = from, .path = to}};
    struct sandbox_spec spec = {.vsocks = {.v = &vsock, .n = 1},
                                .patches = {.v = patches, .n = 2},
                                .workspace = {.path = work}};
    json_t *j = audit_spec(&spec);
    AUTO_FREE char *t = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    assert_non_null(t);
    assert_non_null(strstr(t, "\"vsocks\":[{\"source\":\"/run/x.sock\",\"port\":7000}]"));
    assert_non_null(strstr(t, "\"copied\":[{\"source\":\"/h\",\"guest\":\"/g\"}]"));
    assert_non_null(strstr(t, "\"workspace\":\"/home/me/work\""));
}

static void test_off(void **state)
{
    char id[AUDIT_ID_MAX];
    struct strlist argv = {0};
    (void)setenv("MSB_AUDIT", "off", 1);
    audit(&store, "start", "web", json_object());
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv}, id);
    audit_exit(&store, "web", id, 0);
    assert_int_equal(each(NULL, NULL), 0);
    (void)setenv("MSB_AUDIT", "of", 1); /* what is not understood switches nothing off */
    audit(&store, "start", "web", NULL);
    assert_int_equal(each(NULL, NULL), 1);
    assert_int_equal(complaints, 1);
    assert_non_null(strstr(complaint, "audit log"));
}

/* A full log of a size just below the limit. */
static void fill(const char *name)
{
    char path[128];
    static char line[1 << 16];
    (void)snprintf(path, sizeof(path), "%s/%s", home, name);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    memset(line, ' ', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (int i = 0; i < LOG_FILE_MAX / (1 << 16) - 1; i++)
        assert_int_equal(write_all(fd, line, sizeof(line)), 0);
}

enum { WRITERS = 8, RECORDS = 400 };

static void count_writer(const json_t *j, void *arg)
{
    struct found *f = arg;
    long w = strtol(text(j, "sandbox") + 1, NULL, 10);
    assert_true(w >= 0 && w < WRITERS);
    assert_int_equal(json_integer_value(json_object_get(j, "i")), f->seen[w]);
    f->seen[w]++;
}

/* Many writers at a moment when the file has to be rotated: each record is there, once, whole, and
 * those of one writer are in order. */
static void test_many_writers_and_rotation(void **state)
{
    struct found f = {0};
    struct stat st;
    char path[128];
    fill(AUDIT_NAME);
    for (int w = 0; w < WRITERS; w++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid)
            continue;
        char name[8];
        (void)snprintf(name, sizeof(name), "w%d", w);
        for (int i = 0; i < RECORDS; i++)
            audit(
                &store, "test", name,
                json_pack("{s:i, s:s}", "i", i, "pad", "0123456789012345678901234567890123456789"));
        _exit(complaints ? 1 : 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(each(count_writer, &f), WRITERS * RECORDS);
    for (int w = 0; w < WRITERS; w++)
        assert_int_equal(f.seen[w], RECORDS);
    (void)snprintf(path, sizeof(path), "%s/" AUDIT_NAME ".1", home);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= LOG_FILE_MAX + WRITERS * 512); /* one record each, at most */
    (void)snprintf(path, sizeof(path), "%s/" AUDIT_NAME ".2", home);
    assert_int_equal(stat(path, &st),
                     -1); /* rotated once, not by each process that found it full */
}

static void test_three_files_at_most(void **state)
{
    char path[128];
    struct stat st;
    for (int i = 0; i < 5; i++) {
        fill(AUDIT_NAME);
        for (int k = 0; k < 40; k++) { /* over the edge */
            static char pad[4000];
            memset(pad, 'p', sizeof(pad) - 1);
            audit(&store, "test", "w0", json_pack("{s:i, s:s}", "i", i, "pad", pad));
        }
    }
    for (int i = 1; i < 5; i++) {
        (void)snprintf(path, sizeof(path), "%s/" AUDIT_NAME ".%d", home, i);
        assert_int_equal(stat(path, &st), i < LOG_FILES ? 0 : -1);
    }
    assert_int_equal(complaints, 0);
}

static void test_no_place_to_write(void **state)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/" AUDIT_NAME, home);
    assert_int_equal(symlink("/dev/null", path), 0); /* never followed */
    audit(&store, "start", "web", NULL);
    assert_int_equal(complaints, 1);
    audit(&store, "stop", "web", NULL);
    assert_int_equal(complaints, 1);
    assert_non_null(strstr(complaint, "audit log"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    audit(&store, "start", "web", NULL);
}

/* --- what sandboxes leave --- */

/* log: the lines, but for the beginning of the first. */
static int make_sandbox(const char *name, const char *log, size_t repeat)
{
    struct err e = {0};
    int dirfd = -1;
    assert_int_equal(sandbox_dir_make(&store, name, &dirfd, &e), 0);
    AUTO_CLOSE int logs = sandbox_logs_open(dirfd);
    assert_true(logs >= 0);
    AUTO_CLOSE int fd = openat(logs, LOG_NET_NAME, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (size_t i = 0; i < repeat; i++) {
        char line[512];
        (void)snprintf(line, sizeof(line), "{\"t\":\"2026-01-02T03:04:05.%09dZ\",%s", (int)i, log);
        assert_int_equal(write_all(fd, line, strlen(line)), 0);
    }
    return dirfd;
}

static void test_collected(void **state)
{
    struct found f = {0};
    struct err e = {0};
    int dirfd = make_sandbox(
        "web",
        "\"kind\":\"flow\",\"verdict\":\"deny\","
        "\"direction\":\"egress\",\"proto\":\"tcp\",\"address\":\"203.0.113.7\",\"port\":443,"
        "\"why\":\"denied\",\"event\":\"remove\",\"uid\":\"0\",\"pid\":true,\"sandbox\":\"other\"}"
        "\n"
        "{\"t\":\"2026-01-02T03:04:05Z\",\"kind\":\"flow\",\"verdict\":\"allow\"}\n"
        "not json\n",
        (size_t)2 * AUDIT_COLLECT_MAX);
    assert_int_equal(sandbox_dir_remove(&store, "web", &e), 0);
    close_fd(&dirfd);
    assert_int_equal(each(keep_last, &f), AUDIT_COLLECT_MAX); /* the last ones, denials alone */
    assert_non_null(strstr(f.last, "\"t\":\"2026-01-02T03:04:05.000000999Z\""));
    assert_non_null(strstr(f.last, "\"event\":\"net\",\"sandbox\":\"web\""));
    assert_non_null(strstr(f.last, "\"from\":\"sandbox\""));
    assert_null(strstr(f.last, "other"));
    assert_null(strstr(f.last, "true"));
    /* With everything. */
    (void)setenv("MSB_AUDIT", "all", 1);
    dirfd = make_sandbox("all", "\"kind\":\"flow\",\"verdict\":\"allow\"}\n", 3);
    assert_int_equal(sandbox_dir_remove(&store, "all", &e), 0);
    close_fd(&dirfd);
    assert_int_equal(each(NULL, NULL), AUDIT_COLLECT_MAX + 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_records, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_commands_of_any_bytes, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_what_it_is_made_of, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_off, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_many_writers_and_rotation, audit_setup,
                                        audit_teardown),
        cmocka_unit_test_setup_teardown(test_three_files_at_most, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_no_place_to_write, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_collected, audit_setup, audit_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
