/* What session_run tells a command later: signals, and that no client waits for it (run -d). */
#include "session_peer.h"

#include "unit.h"
#include "util/cleanup.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* --- signals --- */

/* Signals the client, which passes each on; alone: to the command and none of its children. */
static void expect_forwarded(struct peer *p, const int *sigs, size_t n, bool alone)
{
    struct proto_frame f;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(kill(p->pid, sigs[i]), 0);
        assert_true(peer_next(p, &f));
        assert_int_equal(f.type, PROTO_SIGNAL);
        assert_int_equal(proto_find_num(&f, F_SIGNAL, 0), sigs[i]);
        assert_int_equal(proto_find_num(&f, F_ALONE, 0), alone);
    }
}

static void test_signals_forwarded(void **state)
{
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    struct peer p;
    peer_run(&p, &quiet, 0);
    peer_begin(&p);
    expect_forwarded(&p, sigs, ARRAY_LEN(sigs), false);
    peer_exit(&p, 130);
    peer_end(&p);
    assert_int_equal(p.o->res.exit_code, 130);
}

static void note_start(void *ctx)
{
    *(volatile int *)ctx += 1;
}

/* For a container: all signals, only to its command; and its start is waited for. */
static void test_all_signals(void **state)
{
    static const int sigs[] = {SIGALRM, SIGWINCH, SIGTSTP, SIGCONT, 34, 64};
    struct session_request req;
    struct peer p;
    int *starts =
        mmap(NULL, sizeof(*starts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(starts, MAP_FAILED);
    request_init(&req, "true");
    req.all_signals = true;
    req.on_started = note_start;
    req.started_ctx = starts;
    peer_start(&p, &req, &quiet);
    assert_int_equal(*starts, 0);
    peer_begin(&p);
    expect_forwarded(&p, sigs, ARRAY_LEN(sigs), true);
    peer_exit(&p, 0);
    peer_end(&p);
    assert_int_equal(*starts, 1);
    request_free(&req);
    (void)munmap(starts, sizeof(*starts));
}

static void ignore_hup(struct outcome *o)
{
    sigset_t all;
    (void)signal(SIGHUP, SIG_IGN);
    (void)sigfillset(&all); /* some start us with everything blocked */
    (void)sigprocmask(SIG_BLOCK, &all, NULL);
}

static void test_ignored_signals_stay_ignored(void **state)
{
    struct peer p;
    struct proto_frame f;
    peer_run(&p, &(struct client_setup){.fd = {NO_FD, NO_FD, NO_FD}, .before = ignore_hup}, 0);
    peer_begin(&p);
    assert_int_equal(kill(p.pid, SIGHUP), 0);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    assert_true(peer_next(&p, &f));
    assert_int_equal(proto_find_num(&f, F_SIGNAL, 0), SIGTERM);
    peer_exit(&p, 0);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
}

/* --- run -d --- */

static void test_detached_start(void **state)
{
    struct session_request req;
    struct peer p;
    struct proto_frame f;
    request_init(&req, "server");
    req.detach = true;
    peer_start(&p, &req, &quiet);
    request_free(&req);
    peer_begin(&p);
    for (int i = 0; i < 10; i++) /* output that is not waited for must not get in the way */
        peer_send(&p, PROTO_STDOUT, "x", 1);
    assert_true(peer_next(&p, &f));
    assert_int_equal(f.type, PROTO_DETACH);
    assert_false(peer_next(&p, &f));
    close_fd(&p.sock);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 0);
    assert_true(p.o->res.detached);
}

/* It was started, which is all that was asked for; its sandbox no longer takes our DETACH. */
static void test_detached_command_that_has_ended(void **state)
{
    struct session_request req;
    struct peer p;
    request_init(&req, "true");
    req.detach = true;
    peer_start(&p, &req, &quiet);
    request_free(&req);
    peer_expect_exec(&p, NULL);
    assert_int_equal(shutdown(p.sock, SHUT_RD), 0);
    peer_send(&p, PROTO_STARTED, NULL, 0);
    peer_exit(&p, 0);
    close_fd(&p.sock);
    peer_end(&p);
    assert_int_equal(p.o->ret, 0);
    assert_int_equal(p.o->res.exit_code, 0);
    assert_true(p.o->res.detached);
}

static void test_detached_start_fails(void **state)
{
    struct session_request req;
    struct peer p;
    request_init(&req, "server");
    req.detach = true;
    peer_start(&p, &req, &quiet);
    request_free(&req);
    peer_expect_exec(&p, NULL);
    peer_fail(&p, PROTO_FAIL_NOT_FOUND, "no");
    peer_end(&p);
    assert_int_equal(p.o->res.exit_code, 127);
    assert_false(p.o->res.detached);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_forwarded),
        cmocka_unit_test(test_all_signals),
        cmocka_unit_test(test_ignored_signals_stay_ignored),
        cmocka_unit_test(test_detached_start),
        cmocka_unit_test(test_detached_command_that_has_ended),
        cmocka_unit_test(test_detached_start_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
