/* session_run against an agent that lies. */
#include "session_peer.h"

#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static void check_hostile(bool started, void (*act)(struct peer *p), int ret)
{
    struct peer p;
    struct proto_frame f;
    peer_run(&p, &quiet, 0);
    peer_expect_exec(&p, NULL);
    if (started)
        peer_send_num(&p, PROTO_STARTED, F_PID, 1);
    act(&p);
    while (peer_next(&p, &f))
        ;
    peer_end(&p);
    assert_int_equal(p.o->ret, ret);
    assert_int_equal(p.o->e.code, -ret);
}

static void send_oversize(struct peer *p)
{
    struct proto_hdr h = {.len = PROTO_DATA_MAX + 1, .type = PROTO_STDOUT};
    peer_send_raw(p, &h, sizeof(h));
}

static void send_oversize_exec(struct peer *p) /* a type that may be long, the other way */
{
    struct proto_hdr h = {.len = PROTO_MSG_MAX, .type = PROTO_EXEC};
    peer_send_raw(p, &h, sizeof(h));
}

static void send_oversize_behind_data(struct peer *p)
{
    struct proto_hdr h = {.len = 0xffffffff, .type = PROTO_STDOUT};
    peer_send(p, PROTO_STDOUT, "x", 1);
    peer_send_raw(p, &h, sizeof(h));
}

static void send_output(struct peer *p)
{
    peer_send(p, PROTO_STDOUT, "x", 1);
}

static void send_exit_code_256(struct peer *p)
{
    peer_exit(p, 256);
}

static void send_exit_0(struct peer *p)
{
    peer_exit(p, 0);
}

static void send_exit_signal_65(struct peer *p)
{
    peer_send_num(p, PROTO_EXIT, F_SIGNAL, 65);
}

static void send_exit_empty(struct peer *p)
{
    peer_send(p, PROTO_EXIT, NULL, 0);
}

static void send_exit_garbage(struct peer *p)
{
    peer_send(p, PROTO_EXIT, "\x0a\x00\xff\xff\xff\xff\x00", 7);
}

static void send_ack(struct peer *p)
{
    peer_ack(p, UINT64_MAX);
}

static void send_started(struct peer *p)
{
    peer_send_num(p, PROTO_STARTED, F_PID, 1);
}

static void test_hostile(void **state)
{
    check_hostile(true, send_oversize, -EPROTO);
    check_hostile(true, send_oversize_exec, -EPROTO);
    check_hostile(true, send_oversize_behind_data, -EPROTO);
    check_hostile(false, send_output, -EPROTO);
    check_hostile(false, send_exit_0, -EPROTO);
    check_hostile(true, send_exit_code_256, -EPROTO);
    check_hostile(true, send_exit_signal_65, -EPROTO);
    check_hostile(true, send_exit_empty, -EPROTO);
    check_hostile(true, send_exit_garbage, -EPROTO);
    check_hostile(true, send_ack, -EPROTO);
    check_hostile(true, send_started, -EPROTO);
}

static void test_unknown_frames_ignored(void **state)
{
    struct peer p;
    static uint8_t big[PROTO_DATA_MAX];
    int out[2];
    char got[8];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, out[1], NO_FD}}, 0);
    peer_begin(&p);
    for (uint16_t type = 100; type < 120; type++)
        peer_send(&p, type, big, sizeof(big));
    peer_send(&p, PROTO_STDOUT, "ok", 2);
    peer_send(&p, PROTO_STDIN, "not yours", 9);
    peer_exit(&p, 0);
    peer_exit(&p, 1); /* too late */
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 0);
    assert_int_equal(read(out[0], got, sizeof(got)), 2);
    (void)close(out[0]);
}

/* Output without end does not keep the user from ending it. */
static void test_endless_output(void **state)
{
    struct peer p;
    struct proto_frame f;
    static uint8_t d[PROTO_DATA_MAX];
    peer_run(&p, &quiet, 0);
    peer_begin(&p);
    pid_t flood = fork();
    if (flood == 0)
        for (;;)
            peer_send(&p, PROTO_STDOUT, d, sizeof(d));
    pause_ms(50);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_true(peer_next(&p, &f));
    assert_int_equal(f.type, PROTO_SIGNAL);
    (void)kill(flood, SIGKILL);
    (void)waitpid(flood, NULL, 0);
    close_fd(&p.sock);
    peer_end(&p);
    assert_int_equal(p.o->ret, -ECONNRESET);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_unknown_frames_ignored),
        cmocka_unit_test(test_endless_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
