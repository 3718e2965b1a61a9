/* The log reader: order, tail, filters, follow, hostile content. */
#include "log_dir.h"
#include "logs/files.h"
#include "logs/line.h"
#include "logs/logs.h"
#include "monitor/exec_log.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

static void append_bytes(const char *name, const char *text, size_t n)
{
    AUTO_CLOSE int fd = openat(logs_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
}

static void append(const char *name, const char *text)
{
    append_bytes(name, text, strlen(text));
}

/* An entry written in second `sec` of a certain minute; d is JSON. */
static void put(const char *name, int sec, const char *s, const char *d, int id)
{
    char line[1024], idtext[32] = "";
    if (id)
        (void)snprintf(idtext, sizeof(idtext), ",\"id\":%d", id);
    int n = snprintf(line, sizeof(line),
                     "{\"t\":\"2026-01-02T03:04:%02d.000000000Z\",\"s\":\"%s\",\"d\":\"%s\"%s}\n",
                     sec, s, d, idtext);
    append_bytes(name, line, (size_t)n);
}

struct shown {
    struct buf out, err;
    int ret;
    uint64_t bytes_read;
};

static struct {
    int ret;
    uint64_t bytes_read;
    volatile bool alive;
} * shared;

static uint64_t read_so_far(void)
{
    char text[64] = "";
    unsigned long long n = 0;
    AUTO_FCLOSE FILE *f = fopen("/proc/self/io", "re");
    if (f && fgets(text, sizeof(text), f))
        (void)sscanf(text, "rchar: %llu", &n);
    return n;
}

static pid_t start(const struct logs_options *o, int out, int err)
{
    if (!shared) {
        shared =
            mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(shared, MAP_FAILED);
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err e = {0};
        (void)dup2(out, 1);
        (void)dup2(err, 2);
        uint64_t before = read_so_far();
        shared->ret = logs_show(logs_fd, o, &e);
        shared->bytes_read = read_so_far() - before;
        _exit(0);
    }
    return pid;
}

static void drain(int fd, struct buf *to)
{
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    for (;;) {
        uint8_t *at = buf_reserve(to, 65536);
        assert_non_null(at);
        ssize_t n = read(fd, at, 65535);
        if (n <= 0)
            break;
        buf_commit(to, (size_t)n);
    }
    *buf_reserve(to, 1) = '\0';
}

static void finish(pid_t pid, int out, int err, struct shown *s)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    buf_init(&s->out, 64 << 20);
    buf_init(&s->err, 64 << 20);
    drain(out, &s->out);
    drain(err, &s->err);
    if (status)
        fail_msg("status %#x: %s", (unsigned)status, (char *)buf_head(&s->err));
    s->ret = shared->ret;
    s->bytes_read = shared->bytes_read;
}

static void show(const struct logs_options *o, struct shown *s)
{
    AUTO_CLOSE int out = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    AUTO_CLOSE int err = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(out >= 0 && err >= 0);
    finish(start(o, out, err), out, err, s);
}

static void shown_free(struct shown *s)
{
    buf_free(&s->out);
    buf_free(&s->err);
}

static void expect(const struct logs_options *o, const char *out, const char *err)
{
    struct shown s;
    show(o, &s);
    assert_int_equal(s.ret, 0);
    assert_string_equal((char *)buf_head(&s.out), out);
    assert_string_equal((char *)buf_head(&s.err), err);
    shown_free(&s);
}

static const struct logs_options defaults = {.sources = LOGS_DEFAULT_SOURCES};
static const struct logs_options all = {.sources = LOGS_ALL_SOURCES};

/* --- */

static void test_merge_and_split(void **state)
{
    put("exec.log.2", 1, "stdout", "a\\n", 1);
    put("exec.log.1", 3, "stdout", "c\\n", 1);
    put("exec.log", 4, "stderr", "d\\n", 1);
    put("exec.log", 6, "output", "f\\r\\n", 2);
    put("system.log.1", 2, "system", "B", 0);
    put("system.log", 5, "system", "E", 0);
    expect(&all, "a\nB\nc\nE\nf\r\n", "d\n");
    expect(&defaults, "a\nc\nf\r\n", "d\n");
    expect(&(struct logs_options){.sources = 1U << LOG_SYSTEM}, "B\nE\n", "");
    expect(&(struct logs_options){.sources = 1U << LOG_STDERR}, "", "d\n");
}

/* As a rotation between two opens would show it. */
static void test_file_seen_twice(void **state)
{
    put("exec.log.1", 1, "stdout", "a\\n", 1);
    put("exec.log", 2, "stdout", "b\\n", 1);
    assert_int_equal(linkat(logs_fd, "exec.log.1", logs_fd, "exec.log.2", 0), 0);
    expect(&all, "a\nb\n", "");
}

static void test_nothing_there(void **state)
{
    expect(&all, "", "");
    expect(&(struct logs_options){.sources = LOGS_ALL_SOURCES, .has_tail = true, .tail = 3}, "",
           "");
}

static void expect_tail(uint64_t tail, const char *out, const char *err)
{
    struct logs_options o = all;
    o.has_tail = true;
    o.tail = tail;
    expect(&o, out, err);
}

static void test_tail(void **state)
{
    put("exec.log.1", 1, "stdout", "a\\nb\\n", 1);
    put("exec.log.1", 2, "stdout", "c\\nd", 1);
    put("exec.log", 3, "stdout", "d\\n", 1);
    put("system.log", 4, "system", "S", 0);
    put("exec.log", 5, "stderr", "e\\n", 1);
    put("exec.log", 6, "stdout", "f", 1);
    expect_tail(0, "", "");
    expect_tail(1, "f", "");
    expect_tail(2, "f", "e\n");
    expect_tail(3, "S\nf", "e\n");
    expect_tail(4, "dd\nS\nf", "e\n");
    expect_tail(5, "c\ndd\nS\nf", "e\n");
    expect_tail(6, "b\nc\ndd\nS\nf", "e\n");
    expect_tail(7, "a\nb\nc\ndd\nS\nf", "e\n");
    expect_tail(1000000, "a\nb\nc\ndd\nS\nf", "e\n");
}

static void test_tail_reads_little(void **state)
{
    static char chunk[LOG_CHUNK_MAX];
    struct exec_log l;
    struct shown s;
    for (size_t i = 0; i < sizeof(chunk); i++)
        chunk[i] = i % 64 == 63 ? '\n' : 'x';
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    for (size_t n = 0; n < 40u << 20; n += sizeof(chunk))
        exec_log_write(&l, LOG_STDOUT, 1, chunk, sizeof(chunk));
    exec_log_write(&l, LOG_STDOUT, 1, "last\n", 5);
    exec_log_close(&l);
    show(&(struct logs_options){.sources = LOGS_ALL_SOURCES, .has_tail = true, .tail = 3}, &s);
    assert_int_equal(s.ret, 0);
    assert_int_equal(buf_len(&s.out), 64 + 64 + 5);
    assert_in_range(s.bytes_read, 0, 1 << 20);
    shown_free(&s);
    show(&all, &s);
    assert_in_range(buf_len(&s.out), 19 << 20, 31 << 20);
    shown_free(&s);
}

static uint64_t at(const char *text)
{
    uint64_t ns;
    assert_int_equal(time_parse_rfc3339(text, strlen(text), &ns), 0);
    return ns;
}

static void test_since_until(void **state)
{
    for (int i = 1; i <= 5; i++) {
        char d[8];
        (void)snprintf(d, sizeof(d), "%d\\n", i);
        put("exec.log", i, "stdout", d, 1);
    }
    struct logs_options o = all;
    o.since_ns = at("2026-01-02T03:04:02Z");
    o.until_ns = at("2026-01-02T03:04:04Z");
    expect(&o, "2\n3\n4\n", "");
    o.has_tail = true;
    o.tail = 2;
    expect(&o, "3\n4\n", "");
    o.tail = 100;
    expect(&o, "2\n3\n4\n", "");
}

/* A file's time is that of the kernel's last tick: it may be older than what was written last. */
static void test_since_the_last_entry(void **state)
{
    put("exec.log", 3, "stdout", "last\\n", 1);
    struct logs_options o = all;
    o.since_ns = at("2026-01-02T03:04:03Z");
    uint64_t tick = o.since_ns - 10000000;
    const struct timespec t = {.tv_sec = (time_t)(tick / 1000000000),
                               .tv_nsec = (long)(tick % 1000000000)};
    assert_int_equal(utimensat(logs_fd, "exec.log", (struct timespec[]){t, t}, 0), 0);
    expect(&o, "last\n", "");
}

static void test_malformed(void **state)
{
    static char huge[LOG_LINE_MAX * 2];
    memset(huge, 'x', sizeof(huge));
    huge[sizeof(huge) - 1] = '\n';
    static const char *const bad[] = {
        "\n",
        "{\n",
        "null\n",
        "[]\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\"}\n",
        "{\"t\":\"yesterday\",\"s\":\"stdout\",\"d\":\"no\"}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"nowhere\",\"d\":\"no\"}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"!!!!\",\"e\":\"b64\"}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"abc\",\"e\":\"b64\"}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"no\",\"e\":\"rot13\"}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"no\",\"id\":-1}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"no\"}{}\n",
        "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"\xff\"}\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        append("exec.log", bad[i]);
        if (i % 5 == 0)
            put("exec.log", (int)i, "stdout", "ok\\n", 1);
    }
    append_bytes("exec.log", huge, sizeof(huge));
    put("exec.log", 20, "stdout", "last\\n", 1);
    append("exec.log", "{\"t\":\"2026-01-02T03:");
    expect(&all, "ok\nok\nok\nlast\n", "");
    expect_tail(1, "last\n", "");
    expect_tail(2, "ok\nlast\n", "");
    expect_tail(9, "ok\nok\nok\nlast\n", "");
}

static void test_raw_bytes(void **state)
{
    append("exec.log",
           "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stdout\",\"d\":\"AP8b\",\"e\":\"b64\"}\n");
    struct shown s;
    show(&all, &s);
    assert_int_equal(buf_len(&s.out), 3);
    assert_memory_equal(buf_head(&s.out), "\0\xff\x1b", 3);
    shown_free(&s);
}

static void test_lines(void **state)
{
    put("exec.log", 1, "stdout", "one ", 1);
    put("exec.log", 2, "stdout", "other\\n", 2);
    put("exec.log", 3, "stdout", "line\\ntwo\\nthr", 1);
    put("exec.log", 4, "stderr", "oops\\n", 1);
    put("system.log", 5, "system", "started", 0);
    struct logs_options o = all;
    o.timestamps = true;
    expect(&o,
           "2026-01-02T03:04:02.000000000Z other\n"
           "2026-01-02T03:04:01.000000000Z one line\n"
           "2026-01-02T03:04:03.000000000Z two\n"
           "2026-01-02T03:04:05.000000000Z started\n"
           "2026-01-02T03:04:03.000000000Z thr\n",
           "2026-01-02T03:04:04.000000000Z oops\n");
    o = all;
    o.show_id = true;
    expect(&o, "[2] other\n[1] one line\n[1] two\n[-] started\n[1] thr\n", "[1] oops\n");
    o.color = COLOR_ALWAYS;
    o.sources = 1U << LOG_STDERR;
    expect(&o, "", "\x1b[36m[1]\x1b[0m oops\n");
}

static void test_grep(void **state)
{
    put("exec.log", 1, "stdout", "err", 1);
    put("exec.log", 2, "stdout", "or: x\\nfine\\nerror: y\\n", 1);
    put("exec.log", 3, "stderr", "an error\\r\\n", 1);
    put("exec.log", 4, "stdout", "error", 1);
    struct logs_options o = all;
    o.grep = "^err(or)?";
    expect(&o, "error: x\nerror: y\nerror\n", "");
    o.has_tail = true;
    o.tail = 2;
    expect(&o, "error: y\nerror\n", "");
    o.tail = 0;
    expect(&o, "", "");
    o.tail = 100;
    o.grep = "error$";
    expect(&o, "error\n", "an error\r\n");
    o.grep = "(";
    struct shown s;
    show(&o, &s);
    assert_int_equal(s.ret, -EINVAL);
    shown_free(&s);
}

static void test_json(void **state)
{
    put("exec.log", 1, "stdout", "a\\u001b\\n", 7);
    append("exec.log",
           "{\"t\":\"2026-01-02T03:04:05Z\",\"s\":\"stderr\",\"d\":\"/w==\",\"e\":\"b64\"}\n");
    struct logs_options o = all;
    o.json = true;
    static const char second[] = "{\"d\":\"/w==\",\"e\":\"b64\",\"id\":null,\"s\":\"stderr\","
                                 "\"t\":\"2026-01-02T03:04:05Z\"}\n";
    char both[512];
    (void)snprintf(both, sizeof(both),
                   "{\"d\":\"a\\u001B\\n\",\"e\":null,\"id\":7,\"s\":\"stdout\","
                   "\"t\":\"2026-01-02T03:04:01.000000000Z\"}\n%s",
                   second);
    expect(&o, both, "");
    o.has_tail = true;
    o.tail = 1;
    expect(&o, second, "");
    o.tail = 0;
    expect(&o, "", "");
    o.tail = 5;
    o.grep = "^a";
    both[strlen(both) - strlen(second)] = '\0';
    expect(&o, both, "");
}

/* --- terminals --- */

static void check_defuse(const char *in, const char *want)
{
    for (size_t step = 1; step <= 16; step += 5) {
        struct defuser d = {.strip_colors = false};
        struct buf out = {.limit = 4096};
        for (size_t i = 0; i < strlen(in); i += step)
            assert_int_equal(defuse(&d, &out, (const uint8_t *)in + i, MIN(step, strlen(in) - i)),
                             0);
        assert_int_equal(defuse_end(&d, &out), 0);
        assert_int_equal(buf_append(&out, "", 1), 0);
        assert_string_equal((char *)buf_head(&out), want);
        buf_free(&out);
    }
}

static void test_defuse(void **state)
{
    check_defuse("plain\ttext\nédition €\n", "plain\ttext\nédition €\n");
    check_defuse("\x1b[1;31mred\x1b[m", "\x1b[1;31mred\x1b[m\x1b[0m");
    check_defuse("\x1b]52;c;aGk=\x07", "^[]52;c;aGk=^G");       /* clipboard */
    check_defuse("\x1b]0;title\x1b\\x", "^[]0;title^[\\x");     /* window title */
    check_defuse("\x1b[c\x1b[6n\x1b[2J", "^[[c^[[6n^[[2J");     /* queries, clear */
    check_defuse("\x1b[?1049h\x1b[>4;1m", "^[[?1049h^[[>4;1m"); /* modes; not a color */
    check_defuse("\x1b\x1b[31mx", "^[\x1b[31mx\x1b[0m");
    check_defuse("\xc2\x9b"
                 "31m\xc2\x85",
                 "<U+009B>31m<U+0085>"); /* CSI and NEL of eight bits */
    check_defuse("\x9b\xff\xe2\x82", "\\x9b\\xff\\xe2\\x82");
    check_defuse("\xe2\x82x\xc3\n", "\\xe2\\x82x\\xc3\n");
    check_defuse("evil\xe2\x80\xae"
                 "txt",
                 "evil<U+202E>txt");
    check_defuse("a\r\nb\r\r\nc\rd\r", "a\nb\nc^Md^M");
    check_defuse("\b\x7f\x01", "^H^?^A");
    check_defuse("\x1b[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15m",
                 "^[[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15m"); /* longer than any color */
}

static void test_terminal_is_safe(void **state)
{
    int master, slave;
    char got[256] = "";
    struct termios raw;
    assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
    assert_int_equal(tcgetattr(slave, &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(slave, TCSANOW, &raw), 0);
    put("exec.log", 1, "stdout", "\\u001b]52;c;", 1);
    put("exec.log", 2, "stdout", "x\\u0007 \\u001b[32mok\\n", 1);
    pid_t pid = start(&(struct logs_options){.sources = LOGS_ALL_SOURCES}, slave, slave);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(read(master, got, sizeof(got) - 1) > 0);
    assert_string_equal(got, "^[]52;c;x^G \x1b[32mok\n\x1b[0m");
    pid = start(&(struct logs_options){.sources = LOGS_ALL_SOURCES, .color = COLOR_NEVER}, slave,
                slave);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    memset(got, 0, sizeof(got));
    assert_true(read(master, got, sizeof(got) - 1) > 0);
    assert_string_equal(got, "^[]52;c;x^G ok\n");
    (void)close(master);
    (void)close(slave);
}

/* --- follow --- */

static bool is_alive(void *arg)
{
    return shared->alive;
}

static void pause_ms(unsigned ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&ts, NULL);
}

/* Numbered lines, enough for several rotations, while they are followed: each comes once. */
static void test_follow(void **state)
{
    AUTO_CLOSE int out = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    struct exec_log l;
    struct shown s;
    char line[1024];
    unsigned n = 0;
    struct logs_options o = all;
    o.follow = true;
    o.alive = is_alive;
    memset(line, '.', sizeof(line));
    assert_int_equal(exec_log_open(&l, logs_fd, "exec.log"), 0);
    expect(&o, "", ""); /* no sandbox is alive */
    shared->alive = true;
    pid_t pid = start(&o, out, out);
    for (int burst = 0; burst < 25; burst++) {
        for (int i = 0; i < 2000; i++) {
            int len = snprintf(line, sizeof(line), "%08u", n++);
            line[len] = ' ';
            line[sizeof(line) - 1] = '\n';
            exec_log_write(&l, LOG_STDOUT, 1, line, sizeof(line));
        }
        exec_log_flush(&l);
        /* A reader that is overtaken by two rotations would rightly miss something. */
        struct stat st = {0};
        while (fstat(out, &st) == 0 && (size_t)st.st_size + 4000 * sizeof(line) < n * sizeof(line))
            pause_ms(10);
    }
    exec_log_close(&l);
    shared->alive = false;
    finish(pid, out, out, &s);
    assert_int_equal(buf_len(&s.out), n * sizeof(line));
    for (unsigned i = 0; i < n; i++) {
        char want[16];
        (void)snprintf(want, sizeof(want), "%08u ", i);
        assert_memory_equal(buf_head(&s.out) + i * sizeof(line), want, 9);
    }
    shown_free(&s);
}

/* --tail 0 -f, while `write` adds to the log. */
static void expect_follow(unsigned sources, void (*write)(void), const char *want)
{
    AUTO_CLOSE int out = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    struct shown s;
    struct logs_options o = {
        .sources = sources, .follow = true, .has_tail = true, .alive = is_alive};
    shared->alive = true;
    pid_t pid = start(&o, out, out);
    pause_ms(150);
    write();
    shared->alive = false;
    finish(pid, out, out, &s);
    assert_string_equal((char *)buf_head(&s.out), want);
    shown_free(&s);
}

static void write_a_line_and_halves(void)
{
    put("exec.log", 1, "stdout", "late\\n", 1);
    pause_ms(150);
    append("exec.log", "{\"t\":\"2026-01-02T03:04:05Z\","); /* half a line, then the rest */
    pause_ms(150);
    append("exec.log", "\"s\":\"stdout\",\"d\":\"later\\n\"}\n");
}

static void test_follow_starts_before_the_log(void **state)
{
    expect(&defaults, "", "");
    expect_follow(LOGS_ALL_SOURCES, write_a_line_and_halves, "late\nlater\n");
}

static void write_second_half(void)
{
    append("exec.log", "\"s\":\"stdout\",\"d\":\"new\\n\"}\n");
}

/* A line is being written: it is the first of those to come. */
static void test_follow_from_half_a_line(void **state)
{
    put("exec.log", 1, "stderr", "old\\n", 1);
    append("exec.log", "{\"t\":\"2026-01-02T03:04:05Z\",");
    expect_follow(1U << LOG_STDOUT, write_second_half, "new\n");
}

/* --- small parts --- */

static void test_sources(void **state)
{
    unsigned bits;
    assert_int_equal(logs_parse_sources("stdout,system", &bits), 0);
    assert_int_equal(bits, 1U << LOG_STDOUT | 1U << LOG_SYSTEM);
    assert_int_equal(logs_parse_sources("all", &bits), 0);
    assert_int_equal(bits, LOGS_ALL_SOURCES);
    assert_int_equal(logs_parse_sources("", &bits), -EINVAL);
    assert_int_equal(logs_parse_sources("stdout,", &bits), -EINVAL);
    assert_int_equal(logs_parse_sources(",stdout", &bits), -EINVAL);
    assert_int_equal(logs_parse_sources("std", &bits), -EINVAL);
    assert_int_equal(logs_parse_sources("stdoutx", &bits), -EINVAL);
}

static void check_when(const char *text, uint64_t want_sec)
{
    uint64_t ns = 0;
    assert_int_equal(time_parse_when(text, 1000000000000ULL, &ns), 0);
    assert_int_equal(ns / 1000000000ULL, want_sec);
}

static void test_when(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "2026-02-30",
        "2026-13-01",
        "2026-1-1",
        "2026-01-01T",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00+2",
        "2026-01-01T00:00:00Zx",
        "2026-01-01 00:00:00.",
        "1969-12-31",
        "-5m",
    };
    uint64_t ns;
    (void)setenv("TZ", "UTC-2", 1); /* two hours east */
    tzset();
    check_when("10m", 400);
    check_when("30", 970);
    check_when("1h", 0);
    check_when("1970-01-01T00:10:00Z", 600);
    check_when("1970-01-01T02:10:00.5+02:00", 600);
    check_when("1970-01-01 03:00:00", 3600);
    check_when("1970-01-01T03:00:00", 3600);
    check_when("1970-01-01 03:00", 3600);
    check_when("1970-01-02", 86400 - 7200);
    assert_int_equal(at("2026-01-02T03:04:05.678901234Z"), 1767323045678901234ULL);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_true(time_parse_when(bad[i], 1000000000000ULL, &ns) < 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, log_dir_setup, log_dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_merge_and_split),
        TEST(test_file_seen_twice),
        TEST(test_nothing_there),
        TEST(test_tail),
        TEST(test_tail_reads_little),
        TEST(test_since_until),
        TEST(test_since_the_last_entry),
        TEST(test_malformed),
        TEST(test_raw_bytes),
        TEST(test_lines),
        TEST(test_grep),
        TEST(test_json),
        TEST(test_defuse),
        TEST(test_terminal_is_safe),
        TEST(test_follow),
        TEST(test_follow_starts_before_the_log),
        TEST(test_follow_from_half_a_line),
        TEST(test_sources),
        TEST(test_when),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
