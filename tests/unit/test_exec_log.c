/* The log writer: every byte comes back, every line is valid JSON, failures affect nothing else. */
#include "log_dir.h"
#include "logs/line.h"
#include "monitor/exec_log.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char *read_file(const char *name, size_t *n)
{
    AUTO_CLOSE int fd = openat(logs_fd, name, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return NULL;
    assert_int_equal(fstat(fd, &st), 0);
    char *text = malloc((size_t)st.st_size + 1);
    assert_non_null(text);
    *n = (size_t)st.st_size;
    for (size_t at = 0; at < *n;) {
        ssize_t r = read(fd, text + at, *n - at);
        assert_true(r > 0);
        at += (size_t)r;
    }
    text[*n] = '\0';
    return text;
}

/* All bytes of (s, id) in the file; every line must parse, and be strict JSON. */
static size_t collect(const char *name, enum log_source s, uint32_t id, struct buf *to)
{
    size_t n, lines = 0;
    AUTO_FREE char *text = read_file(name, &n);
    assert_non_null(text);
    for (char *p = text, *nl; p < text + n; p = nl + 1, lines++) {
        struct log_entry e;
        json_error_t why;
        nl = memchr(p, '\n', (size_t)(text + n - p));
        assert_non_null(nl);
        json_t *strict = json_loadb(p, (size_t)(nl - p), JSON_REJECT_DUPLICATES, &why);
        assert_non_null(strict);
        json_decref(strict);
        assert_int_equal(log_line_parse(p, (size_t)(nl - p), &e), 0);
        if (e.s == s && e.id == id)
            assert_int_equal(buf_append(to, e.data, e.len), 0);
        log_entry_free(&e);
    }
    return lines;
}

static void check_round_trip(const void *data, size_t n, size_t step)
{
    struct exec_log l;
    struct buf got;
    (void)unlinkat(logs_fd, "exec.log", 0);
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    for (size_t at = 0; at < n; at += step)
        exec_log_write(&l, LOG_STDOUT, 7, (const uint8_t *)data + at, MIN(step, n - at));
    exec_log_close(&l);
    assert_int_equal(l.w.broken, 0);
    buf_init(&got, n + 1);
    (void)collect("exec.log", LOG_STDOUT, 7, &got);
    assert_int_equal(buf_len(&got), n);
    if (n)
        assert_memory_equal(buf_head(&got), data, n);
    buf_free(&got);
}

static void test_format(void **state)
{
    struct exec_log l;
    size_t n;
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    exec_log_write(&l, LOG_STDERR, 7, "a\"\\\n\t\x1b é", 9);
    exec_log_write(&l, LOG_OUTPUT, 0, "\xff\xfe", 2);
    exec_log_printf(&l, "stopped: %s\n", "idle");
    exec_log_close(&l);
    AUTO_FREE char *text = read_file("exec.log", &n);
    assert_non_null(text);
    /* {"t":"2026-01-02T03:04:05.678901234Z", is 38 bytes */
    const char *want[] = {
        ",\"s\":\"stderr\",\"d\":\"a\\\"\\\\\\n\\t\\u001b é\",\"id\":7}\n",
        ",\"s\":\"output\",\"d\":\"//4=\",\"e\":\"b64\"}\n",
        ",\"s\":\"system\",\"d\":\"stopped: idle\"}\n",
    };
    char *p = text;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        assert_memory_equal(p, "{\"t\":\"2", 7);
        assert_memory_equal(p + 35, "Z\"", 2);
        assert_memory_equal(p + 37, want[i], strlen(want[i]));
        p += 37 + strlen(want[i]);
    }
    assert_ptr_equal(p, text + n);
}

static void test_every_byte(void **state)
{
    uint8_t all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof(all); i++)
        check_round_trip(all + i, 1, 1);
    check_round_trip(all, 128, 128);
    check_round_trip(all, 256, 256);
    check_round_trip(all, 256, 3);
}

/* Something to escape at each position of the eight bytes that are processed together. */
static void test_escape_positions(void **state)
{
    static const char *const specials[] = {"\"", "\\", "\n", "\x01", "\x1f", "\x7f",
                                           "é",  "€",  "𝄞",  " ",    "!",    "\xff"};
    char text[64];
    for (size_t s = 0; s < ARRAY_LEN(specials); s++)
        for (size_t at = 0; at < 24; at++)
            for (size_t len = at; len < 27; len++) {
                memset(text, 'x', sizeof(text));
                memcpy(text + at, specials[s], strlen(specials[s]));
                check_round_trip(text, MAX(len, at + strlen(specials[s])), 64);
            }
}

static void test_random(void **state)
{
    static uint8_t d[3 * LOG_CHUNK_MAX];
    unsigned seed = 7;
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < sizeof(d); i++) {
            seed = seed * 1103515245 + 12345;
            uint8_t r = (uint8_t)(seed >> 16);
            d[i] = kind == 0   ? r
                   : kind == 1 ? (uint8_t)(r % 128)
                   : kind == 2 ? (uint8_t)("é\n\"a"[r % 5])
                               : (uint8_t)('a' + r % 26);
        }
        check_round_trip(d, sizeof(d), sizeof(d));
        check_round_trip(d, sizeof(d) / 3, 977);
    }
}

static int count_b64(void)
{
    size_t n;
    int count = 0;
    AUTO_FREE char *text = read_file("exec.log", &n);
    assert_non_null(text);
    for (char *p = text; (p = strstr(p, "\"e\":\"b64\"")); p++)
        count++;
    return count;
}

/* Text stays text however it is split: between writes, and at the end of a chunk. */
static void test_split_characters(void **state)
{
    static char d[2 * LOG_CHUNK_MAX + 5];
    const char *text = "äöü €uro 𝄞 日本語";
    for (size_t step = 1; step < 8; step++) {
        check_round_trip(text, strlen(text), step);
        assert_int_equal(count_b64(), 0);
    }
    for (size_t i = 0; i + 3 <= sizeof(d); i += 3)
        memcpy(d + i, "€", 3);
    check_round_trip(d, sizeof(d) / 3 * 3, sizeof(d));
    assert_int_equal(count_b64(), 0);
}

static void test_split_per_stream(void **state)
{
    struct exec_log l;
    struct buf got;
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    exec_log_write(&l, LOG_STDOUT, 1, "\xe2\x82", 2);
    exec_log_write(&l, LOG_STDERR, 1, "\xc3", 1);
    exec_log_write(&l, LOG_STDOUT, 2, "\xf0\x9d\x84", 3);
    exec_log_write(&l, LOG_STDOUT, 1, "\xac", 1);
    exec_log_write(&l, LOG_STDOUT, 2, "\x9e!", 2);
    exec_log_write(&l, LOG_STDERR, 1, "x", 1);              /* not the rest of it */
    for (uint32_t id = 10; id < 10 + 2 * LOG_CARRIES; id++) /* more than can be held */
        exec_log_write(&l, LOG_STDOUT, id, "\xc3", 1);
    exec_log_close(&l);
    static const struct {
        enum log_source s;
        uint32_t id;
        const char *want;
    } cases[] = {{LOG_STDOUT, 1, "€"},
                 {LOG_STDOUT, 2, "𝄞!"},
                 {LOG_STDERR, 1, "\xc3x"},
                 {LOG_STDOUT, 10, "\xc3"},
                 {LOG_STDOUT, 10 + 2 * LOG_CARRIES - 1, "\xc3"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_init(&got, 64);
        (void)collect("exec.log", cases[i].s, cases[i].id, &got);
        assert_int_equal(buf_len(&got), strlen(cases[i].want));
        assert_memory_equal(buf_head(&got), cases[i].want, strlen(cases[i].want));
        buf_free(&got);
    }
    size_t n;
    AUTO_FREE char *text = read_file("exec.log", &n);
    assert_non_null(strstr(text, "\"d\":\"x\"")); /* text stays text next to binary data */
}

static void test_rotation(void **state)
{
    static uint8_t d[LOG_CHUNK_MAX];
    struct exec_log l;
    struct stat st[4];
    memset(d, 'r', sizeof(d));
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    for (size_t sum = 0; sum < 5 * (size_t)LOG_FILE_MAX; sum += sizeof(d))
        exec_log_write(&l, LOG_STDOUT, 1, d, sizeof(d));
    exec_log_close(&l);
    assert_int_equal(l.w.broken, 0);
    assert_int_equal(fstatat(logs_fd, "exec.log", &st[0], 0), 0);
    assert_int_equal(fstatat(logs_fd, "exec.log.1", &st[1], 0), 0);
    assert_int_equal(fstatat(logs_fd, "exec.log.2", &st[2], 0), 0);
    assert_int_equal(fstatat(logs_fd, "exec.log.3", &st[3], 0), -1);
    for (int i = 0; i < 3; i++) {
        assert_in_range(st[i].st_size, 1, LOG_FILE_MAX);
        assert_int_equal(st[i].st_mode & 0777, 0600);
    }
    assert_true(st[1].st_size > LOG_FILE_MAX / 10 * 9); /* rotated when full, not before */
    struct buf got = {.limit = LOG_FILE_MAX};
    (void)collect("exec.log.1", LOG_STDOUT, 1, &got);
    buf_free(&got);
}

static void test_continues_after_crash(void **state)
{
    struct exec_log l;
    size_t n;
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    exec_log_printf(&l, "one");
    exec_log_close(&l);
    AUTO_CLOSE int fd = openat(logs_fd, "exec.log", O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "{\"t\":\"20", 8), 8);
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    exec_log_printf(&l, "two");
    exec_log_close(&l);
    AUTO_FREE char *text = read_file("exec.log", &n);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"one\"}\n{\"t\":\"20\n{\"t\":\"2"));
    assert_non_null(strstr(text, "\"two\"}\n"));
}

static void test_flush(void **state)
{
    struct exec_log l;
    struct stat st;
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    exec_log_write(&l, LOG_STDOUT, 1, "x\xc3", 2);
    assert_int_equal(fstatat(logs_fd, "exec.log", &st, 0), 0);
    assert_int_equal(st.st_size, 0);
    exec_log_flush(&l); /* what is held back, too */
    struct buf got = {.limit = 64};
    assert_int_equal(collect("exec.log", LOG_STDOUT, 1, &got), 2);
    assert_int_equal(buf_len(&got), 2);
    buf_free(&got);
    exec_log_close(&l);
}

static void test_errors_are_kept_away(void **state)
{
    static uint8_t d[LOG_CHUNK_MAX];
    struct exec_log l;
    struct rlimit old, tight = {.rlim_cur = 100000};
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    memset(d, 'x', sizeof(d));
    for (int i = 0; i < 20; i++)
        exec_log_write(&l, LOG_STDOUT, 1, d, sizeof(d));
    exec_log_printf(&l, "still here");
    exec_log_close(&l);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(l.w.broken, -EFBIG);
}

static void test_open_refuses(void **state)
{
    struct exec_log l;
    assert_int_equal(symlinkat("/etc/passwd", logs_fd, "exec.log"), 0);
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), -ELOOP);
    exec_log_write(&l, LOG_STDOUT, 1, "x", 1); /* harmless */
    exec_log_printf(&l, "x");
    exec_log_close(&l);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, log_dir_setup, log_dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_format),
        TEST(test_every_byte),
        TEST(test_escape_positions),
        TEST(test_random),
        TEST(test_split_characters),
        TEST(test_split_per_stream),
        TEST(test_rotation),
        TEST(test_continues_after_crash),
        TEST(test_flush),
        TEST(test_errors_are_kept_away),
        TEST(test_open_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
