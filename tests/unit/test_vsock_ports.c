/* Host sockets over vsock: a fake driver plays the guest, the test plays the connector and the
 * host's servers. */
#include "fake_vsock.h"
#include "monitor/connector_link.h"
#include "monitor/vsock_ports.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <sys/socket.h>
#include <unistd.h>

enum { HOST_PORT = 5555, GUEST = 7000 };

struct ports_fix {
    struct fix *x;
    struct loop loop;
    struct spec_vsock list[2];
    struct vsock_ports *ports;
    int connector; /* the test's end */
    int host;      /* the host's server's end of the last connection */
    unsigned lost;
    size_t got; /* bytes that the guest has received */
};

static void on_lost(void *ctx)
{
    ((struct ports_fix *)ctx)->lost++;
}

static int ports_setup(void **state)
{
    struct ports_fix *t = calloc(1, sizeof(*t));
    void *x;
    int pair[2];
    (void)setup(&x);
    t->x = x;
    t->host = -1;
    t->ports = calloc(1, sizeof(*t->ports));
    assert_int_equal(loop_init(&t->loop), 0);
    t->list[0] = (struct spec_vsock){.port = HOST_PORT - 1};
    t->list[1] = (struct spec_vsock){.port = HOST_PORT};
    struct spec_vsocks list = {.v = t->list, .n = 2};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    t->connector = pair[1];
    assert_int_equal(vsock_ports_init(t->ports, &t->loop, t->x->dev, &list, pair[0], on_lost, t),
                     0);
    give_rx(t->x, QSIZE / 2);
    *state = t;
    return 0;
}

static int ports_teardown(void **state)
{
    struct ports_fix *t = *state;
    void *x = t->x;
    int fd = t->ports->connector.fd;
    vsock_ports_end(t->ports);
    assert_int_equal(t->ports->n_conns, 0);
    (void)teardown(&x);
    loop_fini(&t->loop);
    close_fd(&fd);
    close_fd(&t->connector);
    close_fd(&t->host);
    free(t->ports);
    free(t);
    return 0;
}

static void turn(struct ports_fix *t)
{
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(loop_turn(&t->loop, 0), 0);
        (void)fake_run(&t->x->f, 100);
    }
}

/* The connector answers the next request: with a connection, or an error. */
static void answer(struct ports_fix *t, int error)
{
    struct connector_request q;
    int pair[2] = {-1, -1};
    assert_int_equal(recv(t->connector, &q, sizeof(q), 0), sizeof(q));
    assert_int_equal(q.index, 1);
    struct connector_reply a = {.cookie = q.cookie, .code = -error};
    if (error == 0) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                         0);
        close_fd(&t->host);
        t->host = pair[1];
    }
    assert_int_equal(sock_send_with_fd(t->connector, &a, sizeof(a), pair[0]), sizeof(a));
    close_fd(&pair[0]);
    turn(t);
}

static void open_conn(struct ports_fix *t, uint32_t guest_port)
{
    send_op(t->x, OP_REQUEST, guest_port, HOST_PORT);
    expect_none(t->x); /* not before the host has answered */
    answer(t, 0);
    assert_int_equal(expect(t->x, OP_RESPONSE).dst_port, guest_port);
}

/* Takes everything that is sent to the guest; returns the last op other than data. */
static unsigned guest_takes(struct ports_fix *t)
{
    struct virtio_vsock_hdr h;
    unsigned op = 0;
    while (take(t->x, &h, NULL)) {
        if (h.op == OP_RW) {
            t->got += h.len;
            t->x->fwd += h.len;
        } else if (h.op != OP_CREDIT_UPDATE) {
            op = h.op;
        }
        give_rx(t->x, 1);
    }
    return op;
}

static void test_talk(void **state)
{
    struct ports_fix *t = *state;
    char buf[16];
    open_conn(t, GUEST);
    send_data(t->x, GUEST, HOST_PORT, "hello", 5);
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 5);
    assert_memory_equal(buf, "hello", 5);
    assert_int_equal(send(t->host, "answer", 6, 0), 6);
    turn(t);
    struct virtio_vsock_hdr h = {0};
    const uint8_t *p = NULL;
    assert_true(take(t->x, &h, &p));
    assert_int_equal(h.op, OP_RW);
    assert_int_equal(h.len, 6);
    assert_memory_equal(p, "answer", 6);

    send_shutdown(t->x, GUEST, HOST_PORT, VSOCK_SHUT_SEND); /* half a close, each way */
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 0);
    assert_int_equal(send(t->host, "more", 4, 0), 4);
    turn(t);
    assert_int_equal(expect(t->x, OP_RW).len, 4);
    close_fd(&t->host);
    turn(t);
    (void)expect(t->x, OP_SHUTDOWN);
    assert_int_equal(t->ports->n_conns, 0);
}

static void test_host_ends_first(void **state)
{
    struct ports_fix *t = *state;
    open_conn(t, GUEST);
    assert_int_equal(send(t->host, "bye", 3, 0), 3);
    assert_int_equal(shutdown(t->host, SHUT_WR), 0);
    turn(t);
    assert_int_equal(expect(t->x, OP_RW).len, 3);
    assert_int_equal(expect(t->x, OP_SHUTDOWN).flags, VSOCK_SHUT_SEND);
    send_data(t->x, GUEST, HOST_PORT, "late", 4);
    char buf[16];
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 4);
    send_shutdown(t->x, GUEST, HOST_PORT, VSOCK_SHUT_SEND);
    assert_int_equal(t->ports->n_conns, 0);
}

static void test_refused(void **state)
{
    struct ports_fix *t = *state;
    send_op(t->x, OP_REQUEST, GUEST, HOST_PORT);
    answer(t, ECONNREFUSED);
    (void)expect(t->x, OP_RST);
    assert_int_equal(t->ports->n_conns, 0);
    send_op(t->x, OP_REQUEST, GUEST, HOST_PORT + 1); /* a port that is not in the list */
    (void)expect(t->x, OP_RST);
}

/* A guest that does not wait for the answer, and one that leaves before it. */
static void test_impatience(void **state)
{
    struct ports_fix *t = *state;
    char buf[16];
    send_op(t->x, OP_REQUEST, GUEST, HOST_PORT);
    send_data(t->x, GUEST, HOST_PORT, "early", 5);
    send_shutdown(t->x, GUEST, HOST_PORT, VSOCK_SHUT_SEND);
    answer(t, 0);
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 5);
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 0);
    (void)guest_takes(t);

    send_op(t->x, OP_REQUEST, GUEST + 1, HOST_PORT);
    send_op(t->x, OP_RST, GUEST + 1, HOST_PORT);
    assert_int_equal(t->ports->n_conns, 2); /* its slot waits for the answer */
    answer(t, 0);                           /* which ends the first one, too */
    assert_int_equal(t->ports->n_conns, 0);
    assert_int_equal(recv(t->host, buf, sizeof(buf), 0), 0);
}

static void test_limit(void **state)
{
    struct ports_fix *t = *state;
    struct vsock_conn *some = calloc(1, 1);
    open_conn(t, GUEST);
    for (unsigned i = 1; i < VSOCK_PORTS_CONNS_MAX; i++)
        t->ports->conn[i] = some; /* pretend */
    send_op(t->x, OP_REQUEST, GUEST + 1, HOST_PORT);
    (void)expect(t->x, OP_RST);
    for (unsigned i = 1; i < VSOCK_PORTS_CONNS_MAX; i++)
        t->ports->conn[i] = NULL;
    free(some);
    assert_int_equal(t->ports->refused, 1);
    open_conn(t, GUEST + 2);
}

/* A server that reads nothing: the guest's credit is used up, other connections go on. */
static void test_host_does_not_read(void **state)
{
    struct ports_fix *t = *state;
    static uint8_t data[4096];
    open_conn(t, GUEST);
    int slow = t->host;
    t->host = -1;
    size_t sent = 0;
    while (sent < VSOCK_CREDIT + (64U << 10)) {
        uint64_t bad = n_violations(t->x);
        send_data(t->x, GUEST, HOST_PORT, data, sizeof(data));
        (void)guest_takes(t);
        assert_int_equal(n_violations(t->x), bad);
        sent += sizeof(data);
    }
    open_conn(t, GUEST + 1);
    send_data(t->x, GUEST + 1, HOST_PORT, "hello", 5);
    assert_int_equal(recv(t->host, data, sizeof(data), 0), 5);
    size_t got = 0;
    for (ssize_t k; got < sent; got += (size_t)k) {
        k = recv(slow, data, sizeof(data), 0);
        if (k < 0) {
            turn(t);
            k = 0;
        }
    }
    assert_int_equal(got, sent);
    close_fd(&slow);
}

/* A guest that gives no credit: the host's bytes stay where they are, and nothing spins. */
static void test_guest_does_not_read(void **state)
{
    struct ports_fix *t = *state;
    static uint8_t data[100000];
    t->x->alloc = 1000;
    open_conn(t, GUEST);
    assert_int_equal(send(t->host, data, sizeof(data), 0), sizeof(data));
    close_fd(&t->host);
    turn(t);
    (void)guest_takes(t);
    assert_int_equal(t->got, 1000);
    assert_int_equal(t->ports->work.at_ns, 0);
    assert_int_equal(t->ports->n_conns, 1);
    unsigned op = 0;
    for (unsigned i = 0; i < 200 && op != OP_SHUTDOWN; i++) {
        send_op(t->x, OP_CREDIT_UPDATE, GUEST, HOST_PORT);
        turn(t);
        op = guest_takes(t);
    }
    assert_int_equal(op, OP_SHUTDOWN);
    assert_int_equal(t->got, sizeof(data));
}

/* A server that hangs up while the guest still sends: what the server sent arrives. */
static void test_host_hangs_up(void **state)
{
    struct ports_fix *t = *state;
    open_conn(t, GUEST);
    assert_int_equal(send(t->host, "go away", 7, 0), 7);
    close_fd(&t->host);
    send_data(t->x, GUEST, HOST_PORT, "hello", 5);
    turn(t);
    assert_int_equal(expect(t->x, OP_RW).len, 7);
    (void)expect(t->x, OP_SHUTDOWN);
    assert_int_equal(t->ports->n_conns, 0);
}

static void test_connector_dies(void **state)
{
    struct ports_fix *t = *state;
    int fd = t->ports->connector.fd;
    close_fd(&t->connector);
    turn(t);
    assert_int_equal(t->lost, 1);
    send_op(t->x, OP_REQUEST, GUEST, HOST_PORT);
    (void)expect(t->x, OP_RST);
    close_fd(&fd);
}

int main(void)
{
#define PORTS_TEST(name) cmocka_unit_test_setup_teardown(name, ports_setup, ports_teardown)
    const struct CMUnitTest tests[] = {
        PORTS_TEST(test_talk),
        PORTS_TEST(test_host_ends_first),
        PORTS_TEST(test_refused),
        PORTS_TEST(test_impatience),
        PORTS_TEST(test_limit),
        PORTS_TEST(test_host_does_not_read),
        PORTS_TEST(test_guest_does_not_read),
        PORTS_TEST(test_host_hangs_up),
        PORTS_TEST(test_connector_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
