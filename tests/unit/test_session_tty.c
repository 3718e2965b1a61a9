/* session_run on a terminal: raw mode and its undoing, window size, detach keys, job control.
 *
 * The client runs below a minimal shell that owns the terminal's session, gives it the
 * foreground and takes that back when it stops, as a real shell does. The test holds the
 * terminal's other end.
 */
#include "session_peer.h"

#include "client/terminal.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>

struct tty_test {
    struct peer p;
    int master;
};

static void shell(struct outcome *o, pid_t client, const struct termios *sane)
{
    int status;
    while (waitpid(client, &status, WUNTRACED) == client) {
        if (!WIFSTOPPED(status)) {
            o->client_status = status;
            _exit(0);
        }
        (void)tcsetpgrp(0, getpid());
        o->stopped = true;
        while (!o->resume)
            pause_ms(1);
        (void)tcsetattr(0, TCSANOW, sane);
        (void)tcsetpgrp(0, client);
        (void)kill(-client, SIGCONT);
    }
    _exit(98);
}

static void become_job(struct outcome *o)
{
    sigset_t ttou;
    struct termios sane;
    (void)signal(SIGABRT, SIG_DFL); /* cmocka catches them */
    (void)signal(SIGBUS, SIG_DFL);
    (void)sigemptyset(&ttou);
    (void)sigaddset(&ttou, SIGTTOU);
    (void)sigprocmask(SIG_BLOCK, &ttou, NULL);
    (void)setsid();
    if (ioctl(0, TIOCSCTTY, 0) < 0)
        _exit(97);
    (void)tcgetattr(0, &sane); /* before the client can change it */
    pid_t pid = fork();
    if (pid > 0) {
        /* The connection is the client's alone: it ends when that does. */
        (void)close_range(3, ~0U, 0);
        shell(o, pid, &sane);
    }
    (void)setpgid(0, 0);
    (void)tcsetpgrp(0, getpid());
    (void)sigprocmask(SIG_UNBLOCK, &ttou, NULL);
    o->client = getpid();
}

static void start_with(struct tty_test *t, struct session_request *req)
{
    int slave;
    struct winsize ws = {.ws_row = 40, .ws_col = 100};
    assert_int_equal(openpty(&t->master, &slave, NULL, NULL, &ws), 0);
    (void)fcntl(t->master, F_SETFD, FD_CLOEXEC);
    req->tty = req->interactive = true;
    peer_start(&t->p, req,
               &(struct client_setup){.fd = {slave, slave, slave}, .before = become_job});
    request_free(req);
}

static void start(struct tty_test *t)
{
    struct session_request req;
    request_init(&req, "sh");
    start_with(t, &req);
}

static bool is_raw(const struct tty_test *t)
{
    struct termios now;
    assert_int_equal(tcgetattr(t->master, &now), 0);
    return !(now.c_lflag & (ICANON | ECHO | ISIG)) && !(now.c_oflag & OPOST);
}

static void await(const volatile bool *flag)
{
    uint64_t until = now_ns() + 10000000000ULL;
    while (!*flag && now_ns() < until)
        pause_ms(1);
    assert_true(*flag);
}

static void await_raw(const struct tty_test *t, bool raw)
{
    uint64_t until = now_ns() + 10000000000ULL;
    while (is_raw(t) != raw && now_ns() < until)
        pause_ms(1);
    assert_int_equal(is_raw(t), raw);
}

static void end(struct tty_test *t)
{
    peer_end(&t->p);
    assert_false(is_raw(t));
    (void)close(t->master);
}

static void expect_stdin(struct tty_test *t, const char *bytes)
{
    struct proto_frame f;
    size_t got = 0, want = strlen(bytes);
    while (got < want) {
        assert_true(peer_next(&t->p, &f));
        assert_int_equal(f.type, PROTO_STDIN);
        assert_true(f.len <= want - got);
        assert_memory_equal(f.data, bytes + got, f.len);
        got += f.len;
    }
}

static void type(struct tty_test *t, const char *bytes)
{
    assert_int_equal(write(t->master, bytes, strlen(bytes)), strlen(bytes));
}

/* --- */

static void test_raw_and_back(void **state)
{
    struct tty_test t;
    struct proto_frame exec;
    start(&t);
    peer_expect_exec(&t.p, &exec);
    assert_int_equal(proto_find_num(&exec, F_TTY, 0), 1);
    assert_int_equal(proto_find_num(&exec, F_ROWS, 0), 40);
    assert_int_equal(proto_find_num(&exec, F_COLS, 0), 100);
    assert_int_equal(proto_find_num(&exec, F_NO_STDIN, 0), 0);
    free((void *)exec.data);
    peer_send_num(&t.p, PROTO_STARTED, F_PID, 1);
    await_raw(&t, true);
    type(&t, "\x03\x1a\r"); /* the guest's to interpret */
    expect_stdin(&t, "\x03\x1a\r");
    peer_send(&t.p, PROTO_STDOUT, "a\r\nb", 4);
    char got[8];
    assert_int_equal(read(t.master, got, sizeof(got)), 4);
    assert_memory_equal(got, "a\r\nb", 4);
    peer_exit(&t.p, 7);
    end(&t);
    assert_int_equal(t.p.o->res.exit_code, 7);
}

static void test_restored_after_violation(void **state)
{
    struct tty_test t;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    peer_exit(&t.p, 1000);
    end(&t);
    assert_int_equal(t.p.o->ret, -EPROTO);
}

static void test_restored_after_lost_connection(void **state)
{
    struct tty_test t;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    close_fd(&t.p.sock);
    end(&t);
    assert_int_equal(t.p.o->ret, -ECONNRESET);
}

static void check_restored_after_crash(int sig)
{
    struct tty_test t;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    assert_int_equal(kill(t.p.o->client, sig), 0);
    end(&t);
    assert_false(t.p.o->returned);
    assert_true(WIFSIGNALED(t.p.o->client_status) || WEXITSTATUS(t.p.o->client_status) != 0);
}

static void test_restored_after_crash(void **state)
{
    check_restored_after_crash(SIGABRT);
    check_restored_after_crash(SIGBUS);
}

static void exit_while_raw(struct outcome *o)
{
    become_job(o);
    if (terminal_raw(0) == 0)
        o->res.exit_code = 55;
    exit(0);
}

static void test_restored_by_exit(void **state)
{
    struct tty_test t;
    struct session_request req;
    int slave;
    request_init(&req, "sh");
    assert_int_equal(openpty(&t.master, &slave, NULL, NULL, NULL), 0);
    assert_false(is_raw(&t));
    peer_start(&t.p, &req,
               &(struct client_setup){.fd = {slave, slave, slave}, .before = exit_while_raw});
    request_free(&req);
    end(&t);
    assert_int_equal(t.p.o->res.exit_code, 55);
}

static void test_resize(void **state)
{
    struct tty_test t;
    struct proto_frame f;
    struct winsize ws = {.ws_row = 50, .ws_col = 132};
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    assert_int_equal(ioctl(t.master, TIOCSWINSZ, &ws), 0);
    assert_true(peer_next(&t.p, &f));
    assert_int_equal(f.type, PROTO_RESIZE);
    assert_int_equal(proto_find_num(&f, F_ROWS, 0), 50);
    assert_int_equal(proto_find_num(&f, F_COLS, 0), 132);
    peer_exit(&t.p, 0);
    end(&t);
}

static void expect_detach(struct tty_test *t)
{
    struct proto_frame f;
    assert_true(peer_next(&t->p, &f));
    assert_int_equal(f.type, PROTO_DETACH);
    assert_false(peer_next(&t->p, &f));
    close_fd(&t->p.sock);
    end(t);
    assert_int_equal(t->p.o->ret, 0);
    assert_true(t->p.o->res.detached);
}

static void test_detach_key(void **state)
{
    struct tty_test t;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    type(&t, "ls\x1dmore");
    expect_stdin(&t, "ls");
    expect_detach(&t);
}

static void test_detach_sequence(void **state)
{
    struct tty_test t;
    struct session_request req;
    static const uint8_t keys[] = {1, 1, 2}; /* overlaps itself */
    request_init(&req, "sh");
    memcpy(req.detach_keys, keys, sizeof(keys));
    req.n_detach_keys = sizeof(keys);
    start_with(&t, &req);
    peer_begin(&t.p);
    await_raw(&t, true);
    type(&t, "a\x01"); /* held back: it may be the beginning */
    expect_stdin(&t, "a");
    pause_ms(20);
    type(&t, "x"); /* it was not */
    expect_stdin(&t, "\x01x");
    type(&t, "\x1d\x01\x01\x01\x02"); /* the second ctrl-A begins it */
    expect_stdin(&t, "\x1d\x01");
    expect_detach(&t);
}

static void test_suspend(void **state)
{
    struct tty_test t;
    struct proto_frame f;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    assert_int_equal(kill(t.p.o->client, SIGTSTP), 0);
    await(&t.p.o->stopped);
    assert_false(is_raw(&t));
    t.p.o->resume = true;
    await_raw(&t, true);
    assert_true(peer_next(&t.p, &f));
    assert_int_equal(f.type, PROTO_RESIZE); /* the window may have changed meanwhile */
    peer_exit(&t.p, 0);
    end(&t);
    assert_int_equal(t.p.o->ret, 0);
}

/* Stopped the hard way: nothing can be restored then, but raw mode comes back. */
static void test_stopped_and_continued(void **state)
{
    struct tty_test t;
    start(&t);
    peer_begin(&t.p);
    await_raw(&t, true);
    assert_int_equal(kill(t.p.o->client, SIGSTOP), 0);
    await(&t.p.o->stopped);
    struct termios sane;
    assert_int_equal(tcgetattr(t.master, &sane), 0);
    sane.c_lflag |= ICANON | ECHO | ISIG;
    sane.c_oflag |= OPOST;
    assert_int_equal(tcsetattr(t.master, TCSANOW, &sane), 0);
    t.p.o->resume = true;
    await_raw(&t, true);
    peer_exit(&t.p, 0);
    peer_end(&t.p);
    (void)close(t.master);
    assert_int_equal(t.p.o->ret, 0);
}

/* tty without a local terminal: a pty in the guest, nothing else. */
static void test_tty_without_terminal(void **state)
{
    struct session_request req;
    struct peer p;
    struct proto_frame f, exec;
    int in[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    request_init(&req, "sh");
    req.tty = req.interactive = true;
    peer_start(&p, &req, &(struct client_setup){.fd = {in[0], NO_FD, NO_FD}});
    request_free(&req);
    peer_expect_exec(&p, &exec);
    assert_int_equal(proto_find_num(&exec, F_TTY, 0), 1);
    free((void *)exec.data);
    peer_send_num(&p, PROTO_STARTED, F_PID, 1);
    assert_int_equal(write(in[1], "\x1d", 1), 1); /* just a byte here */
    assert_true(peer_next(&p, &f));
    assert_int_equal(f.type, PROTO_STDIN);
    peer_exit(&p, 0);
    peer_end(&p);
    (void)close(in[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raw_and_back),
        cmocka_unit_test(test_restored_after_violation),
        cmocka_unit_test(test_restored_after_lost_connection),
        cmocka_unit_test(test_restored_after_crash),
        cmocka_unit_test(test_restored_by_exit),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_detach_key),
        cmocka_unit_test(test_detach_sequence),
        cmocka_unit_test(test_suspend),
        cmocka_unit_test(test_stopped_and_continued),
        cmocka_unit_test(test_tty_without_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
