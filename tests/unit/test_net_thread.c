/* The network's thread: calls run there and their callers wait, decisions come back in order, a
 * flood of them is cut and counted, and its filter allows sockets only. */
#include "monitor/net_setup.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct fix {
    struct loop loop;
    struct net_thread *t;
    unsigned decided;
    uint64_t missed;
    char last[POLICY_NAME_MAX];
    bool in_order;
};

static void on_decided(void *ctx, const struct net_note *n)
{
    struct fix *f = ctx;
    char want[32];
    (void)snprintf(want, sizeof(want), "n%u.example.com", f->decided++);
    f->in_order = f->in_order && strcmp(n->name, want) == 0 && n->what == GATE_SHOWN && n->has_id &&
                  n->id.peer.port == 443 && n->at_ns > 0;
    (void)snprintf(f->last, sizeof(f->last), "%s", n->name);
}

static void on_missed(void *ctx, uint64_t n)
{
    ((struct fix *)ctx)->missed += n;
}

static const struct net_thread_events events = {.decided = on_decided, .missed = on_missed};

/* A sanitizer's run-time library makes calls that no filter lists. */
static void need_filters(void)
{
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
}

static int setup(void **state)
{
    static const struct net_host host = {.ipv6 = true};
    static const struct net_ports none;
    struct fix *f = calloc(1, sizeof(*f));
    struct spec_net n;
    spec_net_init(&n);
    f->in_order = true;
    assert_int_equal(loop_init(&f->loop), 0);
    assert_int_equal(net_setup(&f->t, &n, &host, &none, 16, &f->loop, &events, f, NULL), 0);
#ifndef __SANITIZE_ADDRESS__
    assert_int_equal(net_thread_start(f->t, NULL), 0);
#endif
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fix *f = *state;
    net_thread_free(f->t);
    loop_fini(&f->loop);
    free(f);
    return 0;
}

static int which_thread(struct gate *g, void *arg)
{
    assert_non_null(gate_net(g));
    *(pthread_t *)arg = pthread_self();
    return -42;
}

static void calls(void **state)
{
    need_filters();
    struct fix *f = *state;
    pthread_t where = pthread_self(), again = pthread_self();
    assert_int_equal(net_thread_call(f->t, which_thread, &where), -42);
    assert_int_equal(net_thread_call(f->t, which_thread, &again), -42);
    assert_false(pthread_equal(where, pthread_self()));
    assert_true(pthread_equal(where, again));
    /* This thread has no filter yet: it can do what that one cannot. */
    AUTO_CLOSE int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
}

/* How many names the gate is shown, and the number of the first. */
struct many {
    unsigned from, n;
};

static int decide(struct gate *g, void *arg)
{
    const struct many *m = arg;
    struct net_flow_id id = {.proto = PROTO_TCP, .peer.port = 443};
    for (unsigned i = 0; i < m->n; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "n%u.example.com", m->from + i);
        (void)gate_shown(g, &id, GATE_BY_NAME, SNIFF_TLS, name);
    }
    return 0;
}

static void drain(struct fix *f)
{
    while (loop_turn(&f->loop, 0) == 0 && f->loop.nbatch > 0)
        ;
    (void)loop_turn(&f->loop, 0);
}

static void decisions(void **state)
{
    struct fix *f = *state;
    assert_int_equal(net_thread_call(f->t, decide, &(struct many){0, 3}), 0);
    drain(f);
    assert_int_equal(f->decided, 3);
    assert_int_equal(net_thread_call(f->t, decide, &(struct many){3, NET_NOTES_MAX}), 0);
    drain(f);
    assert_int_equal(f->decided, 3 + NET_NOTES_MAX);
    assert_int_equal(f->missed, 0);
    assert_true(f->in_order);
}

static void a_flood_is_cut(void **state)
{
    struct fix *f = *state;
    assert_int_equal(net_thread_call(f->t, decide, &(struct many){0, 10 * NET_NOTES_MAX}), 0);
    drain(f);
    assert_int_equal(f->decided, NET_NOTES_MAX);
    assert_int_equal(f->missed, 9 * NET_NOTES_MAX);
    /* And then it goes on. */
    assert_int_equal(net_thread_call(f->t, decide, &(struct many){NET_NOTES_MAX, 2}), 0);
    drain(f);
    assert_int_equal(f->decided, NET_NOTES_MAX + 2);
    assert_int_equal(f->missed, 9 * NET_NOTES_MAX);
    assert_true(f->in_order);
}

static int internet_socket(struct gate *g, void *arg)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 ? 0 : -errno;
}

static int open_file(struct gate *g, void *arg)
{
    return open(arg, O_RDONLY | O_CLOEXEC);
}

static int unix_socket(struct gate *g, void *arg)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* The wait status of a process that calls fn on the thread. */
static int end_of(net_thread_fn fn, void *arg)
{
    pid_t pid = fork();
    int status = -1;
    assert_true(pid >= 0);
    if (pid == 0) {
        void *state;
        (void)setup(&state);
        int r = net_thread_call(((struct fix *)state)->t, fn, arg);
        _exit(r == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void its_filter(void **state)
{
    need_filters();
    assert_int_equal(end_of(internet_socket, NULL), 0);
    int status = end_of(open_file, (void *)"/dev/null");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    status = end_of(unix_socket, NULL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static void files(void **state)
{
    struct spec_net n;
    spec_net_init(&n);
    unsigned usual = net_thread_files(&n);
    assert_true(usual > n.max_connections + NET_UDP_DEFAULT);
    n.max_connections += 1000;
    assert_int_equal(net_thread_files(&n), usual + 1000);
    n.off = true;
    assert_int_equal(net_thread_files(&n), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls, setup, teardown),
        cmocka_unit_test_setup_teardown(decisions, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flood_is_cut, setup, teardown),
        cmocka_unit_test(its_filter),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
