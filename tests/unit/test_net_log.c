/* net.log: records are read back as they were written, equal denials are counted, floods are
 * bounded, and everything in the file is safe to print. */
#include "logs/net_record.h"
#include "logs/records.h"
#include "monitor/net_log.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static char dir[64];
static int logs_fd;
static struct loop loop;
static uint64_t clock_ns;

static uint64_t fake_now(void)
{
    return clock_ns;
}

static int setup(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/msb-test-XXXXXX");
    if (!mkdtemp(dir) || loop_init(&loop) < 0)
        return -1;
    logs_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return logs_fd < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"net.log", "net.log.1", "net.log.2"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)unlinkat(logs_fd, names[i], 0);
    (void)close(logs_fd);
    loop_fini(&loop);
    return rmdir(dir);
}

static void open_log(struct net_log *l)
{
    assert_int_equal(net_log_open(l, &loop, logs_fd), 0);
    l->now = fake_now;
    clock_ns = 1000000000000ULL;
    l->allow.filled_ns = l->deny.filled_ns = clock_ns;
}

static struct net_note flow(bool allow, const char *addr, uint16_t port, const char *name)
{
    struct net_note n = {.at_ns = 1767323045678901234ULL,
                         .what = GATE_FLOW,
                         .allow = allow,
                         .has_id = true,
                         .id = {.proto = PROTO_TCP, .peer = {.port = port}}};
    assert_int_equal(addr_parse(addr, &n.id.peer.addr), 0);
    (void)snprintf(n.name, sizeof(n.name), "%s", name);
    (void)snprintf(n.why, sizeof(n.why), "%s", allow ? "allowed by rule 1: allow@x" : "denied");
    return n;
}

/* The records of the file, up to max; how many there are. */
static size_t read_back(struct net_record *to, size_t max)
{
    struct log_stream s;
    size_t n = 0;
    assert_int_equal(log_stream_open(&s, logs_fd, LOG_NET_NAME, 0), 0);
    s.parse = log_record_parse;
    while (log_stream_next(&s) == 1) {
        struct net_record r;
        assert_int_equal(net_record_read(&s.entry, &r), 0);
        if (n < max)
            to[n] = r;
        n++;
    }
    log_stream_close(&s);
    return n;
}

static void test_round_trip(void **state)
{
    struct net_log l;
    struct net_record r[4];
    open_log(&l);
    struct net_note n = flow(true, "203.0.113.7", 443, "example.com");
    net_log_note(&l, &n);
    n.what = GATE_ENDED;
    n.to_host = 5;
    n.to_guest = 1ULL << 40;
    n.ns = 2500000000ULL;
    (void)snprintf(n.why, sizeof(n.why), "closed");
    net_log_note(&l, &n);
    n = flow(false, "2001:db8::1", 80, "");
    n.id.inbound = true;
    n.id.guest.port = 8080;
    net_log_note(&l, &n);
    n = (struct net_note){.at_ns = 1, .what = GATE_QUESTION, .name = "a.b", .why = "denied"};
    net_log_note(&l, &n);
    net_log_close(&l);
    assert_int_equal(read_back(r, 4), 4);
    assert_int_equal(r[0].kind, NET_RECORD_FLOW);
    assert_int_equal(r[0].verdict, NET_RECORD_ALLOW);
    assert_int_equal(r[0].t_ns, 1767323045678901234ULL);
    assert_string_equal(r[0].address, "203.0.113.7");
    assert_string_equal(r[0].name, "example.com");
    assert_string_equal(r[0].proto, "tcp");
    assert_string_equal(r[0].why, "allowed by rule 1: allow@x");
    assert_int_equal(r[0].port, 443);
    assert_false(r[0].ingress);
    assert_int_equal(r[1].kind, NET_RECORD_ENDED);
    assert_int_equal(r[1].verdict, NET_RECORD_NONE);
    assert_int_equal(r[1].to_host, 5);
    assert_true(r[1].to_guest == 1ULL << 40);
    assert_int_equal(r[1].ms, 2500);
    assert_true(r[2].ingress);
    assert_int_equal(r[2].port, 8080);
    assert_int_equal(r[2].verdict, NET_RECORD_DENY);
    assert_false(r[3].has_flow);
    assert_string_equal(r[3].name, "a.b");
    char text[512];
    net_record_peer(&r[0], text, sizeof(text));
    assert_string_equal(text, "-> example.com 203.0.113.7:443");
    net_record_peer(&r[2], text, sizeof(text));
    assert_string_equal(text, "<- 2001:db8::1 to port 8080");
    net_record_peer(&r[3], text, sizeof(text));
    assert_string_equal(text, "? a.b");
    net_record_story(&r[1], text, sizeof(text));
    assert_string_equal(text, "closed: 5 B out, 1.0 TiB in, 2.5s");
}

static void test_guest_bytes_are_escaped(void **state)
{
    struct net_log l;
    struct net_record r;
    open_log(&l);
    struct net_note n = flow(false, "203.0.113.7", 443, "a\x1b[31m\"\\\xff\n");
    net_log_note(&l, &n);
    memset(n.name, 0xfe, sizeof(n.name) - 1); /* the longest, each byte as four */
    n.name[sizeof(n.name) - 1] = '\0';
    net_log_note(&l, &n);
    net_log_close(&l);
    assert_int_equal(read_back(&r, 1), 2);
    assert_string_equal(r.name, "a\\x1b[31m\"\\x5c\\xff\\x0a");
}

static void test_equal_denials_are_counted(void **state)
{
    struct net_log l;
    struct net_record r[8];
    open_log(&l);
    for (int i = 0; i < 1000; i++) {
        struct net_note n = flow(false, "203.0.113.7", 443, "");
        n.id.guest.port = (uint16_t)(40000 + i); /* differs with each attempt */
        net_log_note(&l, &n);
    }
    struct net_note other = flow(false, "203.0.113.7", 444, "");
    net_log_note(&l, &other);
    l.count_timer.fn(&l.count_timer); /* a second later */
    struct net_note again = flow(false, "203.0.113.7", 443, "");
    net_log_note(&l, &again);
    clock_ns += NET_LOG_FORGET_MS * 1000000ULL;
    net_log_note(&l, &again);
    net_log_close(&l);
    assert_int_equal(read_back(r, 8), 5);
    assert_int_equal(r[0].count, 1);
    assert_int_equal(r[1].port, 444);
    assert_int_equal(r[2].count, 999);
    assert_int_equal(r[2].port, 443);
    assert_int_equal(r[3].count + r[4].count, 2); /* the one that was counted, and the new one */
}

static void test_floods_are_bounded(void **state)
{
    struct net_log l;
    static struct net_record r[8192];
    enum { FLOOD = 65535 };
    open_log(&l);
    for (int i = 1; i <= FLOOD; i++) {
        struct net_note n = flow(false, "203.0.113.7", (uint16_t)i, "");
        net_log_note(&l, &n);
    }
    /* Denials do not crowd allowed flows out of the log. */
    struct net_note ok = flow(true, "203.0.113.8", 443, "");
    net_log_note(&l, &ok);
    net_log_missed(&l, 7);
    net_log_close(&l);
    size_t n = read_back(r, ARRAY_LEN(r));
    assert_int_equal(n, NET_LOG_DENY_BURST + 2);
    assert_int_equal(r[n - 2].verdict, NET_RECORD_ALLOW);
    assert_int_equal(r[n - 1].kind, NET_RECORD_MISSED);
    assert_int_equal(r[n - 1].count, FLOOD - NET_LOG_DENY_BURST + 7);
    open_log(&l);
    for (int i = 0; i < 2 * NET_LOG_ALLOW_BURST; i++)
        net_log_note(&l, &ok);
    net_log_close(&l);
    n = read_back(r, ARRAY_LEN(r)) - n;
    assert_int_equal(n, NET_LOG_ALLOW_BURST + 1);
}

static void test_full_log_is_silent(void **state)
{
    struct net_log l;
    open_log(&l);
    l.w.broken = -ENOSPC;
    struct net_note n = flow(false, "203.0.113.7", 1, "");
    net_log_note(&l, &n);
    net_log_note(&l, &n);
    net_log_flush(&l);
    assert_int_equal(buf_len(&l.w.pending), 0);
    net_log_close(&l);
}

static int read_line(const char *line, struct net_record *r)
{
    struct log_entry e = {0};
    int k = log_record_parse(line, strlen(line), &e);
    if (k < 0)
        return k;
    k = net_record_read(&e, r);
    log_entry_free(&e);
    return k;
}

static void test_hostile_lines(void **state)
{
    struct net_record r;
#define T "{\"t\":\"2026-01-02T03:04:05Z\","
    assert_int_equal(read_line("{\"kind\":\"flow\"}", &r), -EINVAL);
    assert_int_equal(read_line(T "\"kind\":\"nap\"}", &r), -EINVAL);
    assert_int_equal(read_line(T "\"kind\":7}", &r), -EINVAL);
    assert_int_equal(read_line("[1]", &r), -EINVAL);
    assert_int_equal(
        read_line(T "\"kind\":\"flow\",\"verdict\":[],\"direction\":\"up\",\"port\":70000,"
                    "\"count\":-4,\"name\":\"x\\u001b]0;y\\u0007\\u202e\",\"address\":{},"
                    "\"proto\":\"a very long protocol\"}",
                  &r),
        0);
    assert_int_equal(r.verdict, NET_RECORD_NONE);
    assert_int_equal(r.port, 0);
    assert_int_equal(r.count, 1);
    assert_string_equal(r.name, "x?]0;y??");
    assert_string_equal(r.address, "");
    assert_string_equal(r.proto, "a very ");
    struct buf out = {.limit = 4096};
    assert_int_equal(net_record_text(&r, &out), 0);
    assert_non_null(memchr(buf_head(&out), '\n', buf_len(&out)));
    buf_free(&out);
    json_t *j = net_record_json(&r);
    assert_non_null(j);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_guest_bytes_are_escaped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_equal_denials_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_floods_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_log_is_silent, setup, teardown),
        cmocka_unit_test(test_hostile_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
