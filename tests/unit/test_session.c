/* session_run against an agent that behaves, or is slow. Hostile ones: test_session_hostile.c */
#include "session_peer.h"

#include "client/session_io.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* --- the request --- */

static void test_exec_fields(void **state)
{
    struct session_request req;
    struct peer p;
    struct proto_frame exec;
    request_init(&req, "sh");
    assert_int_equal(strlist_add(&req.argv, "-c"), 0);
    assert_int_equal(strlist_add(&req.env, "A=b"), 0);
    req.cwd = "/tmp";
    req.user = "nobody";
    req.rlimits[0] = (struct spec_rlimit){.resource = 7, .soft = 10, .hard = 20};
    req.n_rlimits = 1;
    req.timeout_ms = 30000;
    peer_start(&p, &req, &quiet);
    request_free(&req);
    peer_expect_exec(&p, &exec);

    struct proto_reader r;
    struct proto_field f;
    char seen[256] = "";
    proto_reader_init(&r, exec.data, exec.len);
    while (proto_next(&r, &f) == 1) {
        size_t n = strlen(seen);
        (void)snprintf(seen + n, sizeof(seen) - n, "%d:%.*s ", f.tag,
                       f.tag < F_RLIMIT ? (int)f.len : 0, (const char *)f.data);
    }
    assert_string_equal(seen, "32:sh 32:-c 33:A=b 34:/tmp 35:nobody 36: 41: 42: ");
    assert_int_equal(proto_find_num(&exec, F_TIMEOUT_MS, 0), 30000);
    assert_int_equal(proto_find_num(&exec, F_NO_STDIN, 0), 1); /* /dev/null stays /dev/null */
    free((void *)exec.data);

    peer_send_num(&p, PROTO_STARTED, F_PID, 1);
    peer_exit(&p, 42);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 42);
    assert_int_equal(p.o->e.code, 0);
}

static void test_too_long(void **state)
{
    struct session_request req;
    struct peer p;
    char *big = malloc(PROTO_MSG_MAX + 1);
    assert_non_null(big);
    memset(big, 'x', PROTO_MSG_MAX);
    big[PROTO_MSG_MAX] = '\0';
    request_init(&req, big);
    peer_start(&p, &req, &quiet);
    peer_end(&p);
    assert_int_equal(p.o->ret, -E2BIG);
    request_free(&req);
    free(big);
}

/* --- how it ends --- */

static void test_exit_by_signal(void **state)
{
    struct peer p;
    peer_run(&p, &quiet, 0);
    peer_begin(&p);
    peer_send_num(&p, PROTO_EXIT, F_SIGNAL, 9);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 137);
}

static void test_timed_out(void **state)
{
    struct peer p;
    peer_run(&p, &quiet, 1500);
    peer_begin(&p);
    peer_send_num(&p, PROTO_EXIT, F_TIMED_OUT, 1);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 124);
    assert_true(p.o->res.timed_out);
    assert_string_equal(p.o->e.msg, "exec timed out after 1.5s");
}

/* 124 is read as a time-out by clients: the guest cannot make one up. */
static void test_timed_out_unasked(void **state)
{
    struct peer p;
    peer_run(&p, &quiet, 0);
    peer_begin(&p);
    peer_send_num(&p, PROTO_EXIT, F_TIMED_OUT, 1);
    peer_end(&p);
    assert_int_equal(p.o->ret, -EPROTO);
}

static void test_backstop(void **state)
{
    struct peer p;
    uint64_t t = now_ns();
    peer_run(&p, &quiet, 100);
    peer_begin(&p);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 124);
    assert_string_equal(p.o->e.msg, "exec timed out after 100ms");
    assert_in_range(now_ns() - t, 5000000000ULL, 9000000000ULL);
}

static void check_fail(uint32_t kind, int code)
{
    struct peer p;
    peer_run(&p, &quiet, 0);
    peer_expect_exec(&p, NULL);
    peer_fail(&p, kind, "not\x1b]0;x\x07 found: \xc2\x9b \xff no");
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, code);
    assert_true(p.o->res.failed_to_start);
    assert_string_equal(p.o->e.msg, "failed to exec \"true\"");
    assert_int_equal(p.o->e.hints, 1);
    assert_string_equal(p.o->e.hint[0], "not?]0;x? found: ? ? no");
}

static void test_fail(void **state)
{
    check_fail(PROTO_FAIL_NOT_FOUND, 127);
    check_fail(PROTO_FAIL_NOT_EXECUTABLE, 126);
    check_fail(PROTO_FAIL_CWD, 1);
    check_fail(12345, 1);
}

static void test_connection_lost(void **state)
{
    struct peer p;
    peer_run(&p, &quiet, 0);
    peer_begin(&p);
    close_fd(&p.sock);
    peer_end(&p);
    assert_int_equal(p.o->ret, -ECONNRESET);
    assert_string_equal(p.o->e.msg, "sandbox ended while the command ran");
}

/* --- output --- */

static uint32_t seed = 1;
static uint32_t rnd(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed >> 8;
}

/* Sends n bytes on `type` in frames of all sizes, empty ones among them. */
static void send_pieces(struct peer *p, uint16_t type, const uint8_t *d, size_t n)
{
    while (n) {
        size_t limit = rnd() % 4 == 0 ? PROTO_DATA_MAX : 300;
        size_t take = rnd() % (limit + 1); /* not inside MIN, which evaluates twice */
        take = MIN(take, n);
        peer_send(p, type, d, take);
        d += take;
        n -= take;
    }
}

static pid_t fork_sender(struct peer *p, const uint8_t *d, size_t n)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        send_pieces(p, PROTO_STDOUT, d, n);
        peer_exit(p, 3);
        _exit(0);
    }
    return pid;
}

static void check_output_to_pipe(size_t size)
{
    struct peer p;
    int out[2];
    uint8_t *d = malloc(size);
    struct buf got;
    assert_non_null(d);
    for (size_t i = 0; i < size; i++)
        d[i] = (uint8_t)rnd();
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, out[1], NO_FD}}, 0);
    peer_begin(&p);
    pid_t sender = fork_sender(&p, d, size);
    buf_init(&got, 2 * size + 65536);
    read_all(out[0], &got);
    peer_end(&p);
    (void)waitpid(sender, NULL, 0);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 3);
    assert_int_equal(buf_len(&got), size);
    assert_memory_equal(buf_head(&got), d, size);
    buf_free(&got);
    free(d);
    (void)close(out[0]);
}

static void test_output_faithful(void **state)
{
    check_output_to_pipe(1);
    check_output_to_pipe(5 * 1024 * 1024);
}

static void test_output_to_file(void **state)
{
    struct peer p;
    AUTO_CLOSE int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    assert_true(file >= 0);
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, dup(file), dup(file)}}, 0);
    peer_begin(&p);
    peer_send(&p, PROTO_STDOUT, "one ", 4);
    peer_send(&p, PROTO_STDERR, "two ", 4);
    peer_send(&p, PROTO_STDOUT, "three", 5);
    peer_exit(&p, 0);
    peer_end(&p);
    char got[32] = "";
    assert_int_equal(pread(file, got, sizeof(got), 0), 13);
    assert_string_equal(got, "one two three"); /* the shared offset was kept */
}

static void test_same_pipe_keeps_order(void **state)
{
    struct peer p;
    int out[2];
    struct buf got = {.limit = 1 << 20};
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, out[1], out[1]}}, 0);
    peer_begin(&p);
    for (int i = 0; i < 500; i++) {
        char line[16];
        int n = snprintf(line, sizeof(line), "%d\n", i);
        peer_send(&p, i % 3 ? PROTO_STDOUT : PROTO_STDERR, line, (size_t)n);
    }
    peer_exit(&p, 0);
    read_all(out[0], &got);
    peer_end(&p);
    assert_int_equal(buf_append(&got, "", 1), 0);
    const char *at = (const char *)buf_head(&got);
    for (int i = 0; i < 500; i++) {
        char line[16];
        int n = snprintf(line, sizeof(line), "%d\n", i);
        assert_memory_equal(at, line, n);
        at += n;
    }
    assert_int_equal(*at, 0);
    buf_free(&got);
    (void)close(out[0]);
}

static bool next_of_type(struct peer *p, uint16_t type, struct proto_frame *f)
{
    while (peer_next(p, f))
        if (f->type == type)
            return true;
    return false;
}

/* CPU time of a process, in clock ticks. */
static unsigned long ticks(pid_t pid)
{
    char path[64];
    unsigned long user = 0, system = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(
        fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
        2);
    return user + system;
}

/* Our stdout is not read: the connection fills up, but signals and stdin still pass. */
static void test_slow_reader(void **state)
{
    struct peer p;
    struct proto_frame f;
    int out[2], in[2];
    static uint8_t piece[PROTO_DATA_MAX];
    size_t sent = 0, let_out = 0;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {in[0], out[1], NO_FD}}, 0);
    peer_begin(&p);
    assert_int_equal(fcntl(p.sock, F_SETFL, O_NONBLOCK), 0);
    for (int idle = 0; idle < 20;) { /* until the client has stopped reading */
        struct proto_hdr h = {.len = sizeof(piece), .type = PROTO_STDOUT};
        uint8_t whole[sizeof(h) + sizeof(piece)];
        memcpy(whole, &h, sizeof(h));
        memset(whole + sizeof(h), (int)(sent / sizeof(piece)), sizeof(piece));
        size_t at = 0;
        while (at < sizeof(whole)) {
            ssize_t n = send(p.sock, whole + at, sizeof(whole) - at, MSG_NOSIGNAL);
            if (n > 0) {
                at += (size_t)n;
                idle = 0;
            } else if (++idle >= 20 && at == 0) {
                break;
            } else if (idle >= 40) { /* in the middle of a frame: let some out */
                uint8_t some[4096];
                ssize_t k = read(out[0], some, sizeof(some));
                assert_true(k > 0);
                for (ssize_t i = 0; i < k; i++)
                    assert_int_equal(some[i], (uint8_t)(let_out++ / sizeof(piece)));
            } else {
                pause_ms(5);
            }
        }
        if (at)
            sent += sizeof(piece);
    }
    assert_in_range(sent, 1, 4 << 20);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    assert_true(next_of_type(&p, PROTO_SIGNAL, &f));
    assert_int_equal(proto_find_num(&f, F_SIGNAL, 0), SIGTERM);
    assert_int_equal(write(in[1], "hello", 5), 5);
    assert_true(next_of_type(&p, PROTO_STDIN, &f));
    assert_int_equal(f.len, 5);
    assert_false(p.o->returned);
    unsigned long used = ticks(p.pid);
    pause_ms(300);
    assert_in_range(ticks(p.pid) - used, 0, 5); /* it waits, it does not spin */

    assert_int_equal(fcntl(p.sock, F_SETFL, 0), 0);
    pid_t sender = fork();
    if (sender == 0) {
        peer_exit(&p, 143);
        _exit(0);
    }
    struct buf got = {.limit = 16 << 20};
    read_all(out[0], &got);
    peer_end(&p);
    (void)waitpid(sender, NULL, 0);
    assert_int_equal(p.o->res.exit_code, 143);
    assert_true(buf_len(&got) <= sent);
    for (size_t i = 1; i < buf_len(&got); i++) {
        uint8_t before = buf_head(&got)[i - 1], now = buf_head(&got)[i];
        assert_true(now == before || now == (uint8_t)(before + 1));
    }
    assert_int_equal(buf_head(&got)[buf_len(&got) - 1], (uint8_t)(sent / sizeof(piece) - 1));
    buf_free(&got);
    (void)close(out[0]);
    (void)close(in[1]);
}

static void check_reader_gone(int which)
{
    struct peer p;
    struct proto_frame f;
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    struct client_setup setup = {.fd = {NO_FD, NO_FD, NO_FD}, .linger_ms = 500};
    setup.fd[which] = out[1];
    peer_run(&p, &setup, 0);
    (void)close(out[0]);
    peer_begin(&p);
    peer_send(&p, which == 1 ? PROTO_STDOUT : PROTO_STDERR, "x", 1);
    assert_false(peer_next(&p, &f)); /* it hangs up, so that the command is killed, */
    assert_false(p.o->gone);         /* and that at once */
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 141);
    assert_int_equal(p.o->e.code, 0);
}

static void test_reader_gone(void **state)
{
    check_reader_gone(1);
    check_reader_gone(2);
}

static void test_disk_full(void **state)
{
    struct peer p;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0);
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, full, NO_FD}}, 0);
    peer_begin(&p);
    peer_send(&p, PROTO_STDOUT, "x", 1);
    peer_end(&p);
    assert_int_equal(p.o->ret, -ENOSPC);
    assert_string_equal(p.o->e.msg, "cannot write to stdout: No space left on device");
}

static void test_all_closed(void **state)
{
    struct peer p;
    struct proto_frame exec;
    peer_run(&p, &(struct client_setup){.fd = {CLOSED_FD, CLOSED_FD, CLOSED_FD}}, 0);
    peer_expect_exec(&p, &exec);
    assert_int_equal(proto_find_num(&exec, F_NO_STDIN, 0), 1);
    free((void *)exec.data);
    peer_send_num(&p, PROTO_STARTED, F_PID, 1);
    peer_send(&p, PROTO_STDOUT, "x", 1);
    peer_send(&p, PROTO_STDERR, "y", 1);
    peer_exit(&p, 5);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 5);
}

static void test_sockets_as_stdio(void **state)
{
    struct peer p;
    struct proto_frame f;
    int sv[2];
    char got[8];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    peer_run(&p, &(struct client_setup){.fd = {sv[1], sv[1], sv[1]}}, 0);
    peer_begin(&p);
    assert_int_equal(write(sv[0], "in", 2), 2);
    assert_true(next_of_type(&p, PROTO_STDIN, &f));
    peer_send(&p, PROTO_STDOUT, "out", 3);
    peer_exit(&p, 0);
    peer_end(&p);
    assert_int_equal(read(sv[0], got, sizeof(got)), 3);
    (void)close(sv[0]);
}

/* The descriptions are shared with the parent process: their flags must not change. */
static void test_flags_untouched(void **state)
{
    struct peer p;
    int out[2], in[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    AUTO_CLOSE int out_too = dup(out[1]);
    AUTO_CLOSE int in_too = dup(in[0]);
    peer_run(&p, &(struct client_setup){.fd = {in[0], out[1], NO_FD}}, 0);
    peer_begin(&p);
    peer_send(&p, PROTO_STDOUT, "x", 1);
    char c;
    assert_int_equal(read(out[0], &c, 1), 1);
    assert_false(fcntl(out_too, F_GETFL) & O_NONBLOCK);
    assert_false(fcntl(in_too, F_GETFL) & O_NONBLOCK);
    peer_exit(&p, 0);
    peer_end(&p);
    (void)close(out[0]);
    (void)close(in[1]);
}

/* Where the descriptor cannot be reopened, a full pipe still does not make us wait. */
static void test_polled_pipe(void **state)
{
    int out[2];
    static uint8_t d[PROTO_DATA_MAX];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    struct stdio s = {.fd = out[1], .kind = STDIO_POLLED};
    struct iovec iov = {.iov_base = d, .iov_len = sizeof(d)};
    size_t sum = 0;
    ssize_t n;
    while ((n = stdio_writev(&s, &iov, 1)) > 0)
        sum += (size_t)n;
    assert_int_equal(n, -EAGAIN);
    assert_int_equal(sum, 65536);
    struct stdio r = {.fd = out[0], .kind = STDIO_POLLED};
    while (sum) {
        n = stdio_read(&r, d, sizeof(d));
        assert_true(n > 0);
        sum -= (size_t)n;
    }
    assert_int_equal(stdio_read(&r, d, sizeof(d)), -EAGAIN);
    (void)close(out[1]);
    assert_int_equal(stdio_read(&r, d, sizeof(d)), 0);
    (void)close(out[0]);
}

/* --- stdin --- */

static pid_t fork_writer(int fd, const uint8_t *d, size_t n)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)signal(SIGPIPE, SIG_IGN);
        while (n) {
            ssize_t w = write(fd, d, n);
            if (w <= 0)
                break;
            d += w;
            n -= (size_t)w;
        }
        _exit(0);
    }
    (void)close(fd);
    return pid;
}

static void receive_stdin(struct peer *p, const uint8_t *d, size_t size)
{
    struct proto_frame f;
    size_t got = 0;
    while (peer_next(p, &f) && f.type == PROTO_STDIN) {
        assert_true(f.len <= size - got);
        assert_memory_equal(f.data, d + got, f.len);
        got += f.len;
        peer_ack(p, f.len);
    }
    assert_int_equal(f.type, PROTO_STDIN_EOF);
    assert_int_equal(got, size);
}

static void test_big_stdin(void **state)
{
    struct peer p;
    int in[2];
    size_t size = 100 * 1000 * 1000;
    uint8_t *d = malloc(size);
    assert_non_null(d);
    for (size_t i = 0; i < size; i++)
        d[i] = (uint8_t)(i * 31 + (i >> 12));
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {in[0], NO_FD, NO_FD}}, 0);
    peer_begin(&p);
    pid_t writer = fork_writer(in[1], d, size);
    receive_stdin(&p, d, size);
    peer_exit(&p, 0);
    peer_end(&p);
    (void)waitpid(writer, NULL, 0);
    assert_int_equal(p.o->res.exit_code, 0);
    free(d);
}

static void test_stdin_file(void **state)
{
    struct peer p;
    static uint8_t d[300000];
    int file = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    for (size_t i = 0; i < sizeof(d); i++)
        d[i] = (uint8_t)rnd();
    assert_int_equal(write(file, d, sizeof(d)), sizeof(d));
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    peer_run(&p, &(struct client_setup){.fd = {file, NO_FD, NO_FD}}, 0);
    peer_begin(&p);
    receive_stdin(&p, d, sizeof(d));
    peer_exit(&p, 0);
    peer_end(&p);
}

/* A command that never reads: no more than the window is sent, signals pass, EXIT ends it. */
static void test_stdin_window(void **state)
{
    struct peer p;
    struct proto_frame f;
    int in[2];
    static uint8_t d[2000000];
    size_t got = 0;
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {in[0], NO_FD, NO_FD}}, 0);
    peer_begin(&p);
    pid_t writer = fork_writer(in[1], d, sizeof(d));
    while (got < PROTO_STDIN_WINDOW) {
        assert_true(peer_next(&p, &f));
        assert_int_equal(f.type, PROTO_STDIN);
        got += f.len;
    }
    assert_int_equal(got, PROTO_STDIN_WINDOW);
    pause_ms(50);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_true(peer_next(&p, &f)); /* and not another STDIN */
    assert_int_equal(f.type, PROTO_SIGNAL);
    peer_ack(&p, 10);
    assert_true(peer_next(&p, &f));
    assert_int_equal(f.type, PROTO_STDIN);
    assert_int_equal(f.len, 10);
    peer_exit(&p, 130);
    peer_end(&p);
    assert_int_equal(p.o->res.exit_code, 130);
    (void)waitpid(writer, NULL, 0);
}

static void test_unread_stdin_does_not_hang(void **state)
{
    struct peer p;
    int in[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {in[0], NO_FD, NO_FD}}, 0);
    peer_begin(&p);
    peer_exit(&p, 0); /* in[1] stays open, nothing ever comes */
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    (void)close(in[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec_fields),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_exit_by_signal),
        cmocka_unit_test(test_timed_out),
        cmocka_unit_test(test_timed_out_unasked),
        cmocka_unit_test(test_backstop),
        cmocka_unit_test(test_fail),
        cmocka_unit_test(test_connection_lost),
        cmocka_unit_test(test_output_faithful),
        cmocka_unit_test(test_output_to_file),
        cmocka_unit_test(test_same_pipe_keeps_order),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_reader_gone),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_all_closed),
        cmocka_unit_test(test_sockets_as_stdio),
        cmocka_unit_test(test_flags_untouched),
        cmocka_unit_test(test_polled_pipe),
        cmocka_unit_test(test_big_stdin),
        cmocka_unit_test(test_stdin_file),
        cmocka_unit_test(test_stdin_window),
        cmocka_unit_test(test_unread_stdin_does_not_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
