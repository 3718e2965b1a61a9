/* The network part of a spec: what options mean, what is refused and with which words, and that
 * JSON brings back the same policy. And the host's resolvers. */
#include "cli/core/args.h"
#include "cli/core/verbs.h"
#include "cli/options/net.h"
#include "launch/net_host.h"
#include "launch/publish.h"
#include "net/packet.h"
#include "spec/spec.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 32 };

/* Parses a line of options of `create`. */
static int options(const char *line, struct spec_net *n, struct err *e)
{
    char text[512], *rest = text, *word, *argv[WORDS_MAX + 1] = {NULL};
    int argc = 0;
    struct args a;
    (void)snprintf(text, sizeof(text), "%s", line);
    while ((word = strsep(&rest, " ")) && argc < WORDS_MAX)
        if (*word)
            argv[argc++] = word;
    *e = (struct err){0};
    spec_net_init(n);
    int r = args_parse(&cmd_create, 0, argc, argv, &a, e);
    if (r == 0)
        r = net_options(&a, n, e);
    if (r == 0)
        r = spec_net_validate(n, e);
    args_free(&a);
    return r;
}

static bool allows(const struct spec_net *n, const char *address, uint8_t proto, uint16_t port,
                   bool host)
{
    struct policy p;
    struct policy_flow f = {.dir = POLICY_EGRESS, .proto = proto, .port = port, .host = host};
    assert_int_equal(addr_parse(address, &f.peer), 0);
    assert_int_equal(spec_net_policy(n, &p, NULL), 0);
    bool yes = policy_decide(&p, &f).allow;
    policy_free(&p);
    return yes;
}

static bool lets_in(const struct spec_net *n, const char *address, uint16_t port)
{
    struct policy p;
    struct policy_flow f = {.dir = POLICY_INGRESS, .proto = PROTO_TCP, .port = port};
    assert_int_equal(addr_parse(address, &f.peer), 0);
    assert_int_equal(spec_net_policy(n, &p, NULL), 0);
    bool yes = policy_decide(&p, &f).allow;
    policy_free(&p);
    return yes;
}

/* public, private, the host, ingress: '+' or '-' for each. */
static void means(const char *line, const char *want, bool off, bool allowlist)
{
    struct spec_net n;
    struct err e;
    if (options(line, &n, &e) < 0)
        fail_msg("'%s': %s", line, e.msg);
    /* What is read back must mean the same. */
    for (int full = 0; full < 2; full++) {
        char got[5] = "";
        got[0] = allows(&n, "8.8.8.8", PROTO_TCP, 443, false) ? '+' : '-';
        got[1] = allows(&n, "10.1.2.3", PROTO_TCP, 443, false) ? '+' : '-';
        got[2] = allows(&n, "172.27.255.253", PROTO_TCP, 443, true) ? '+' : '-';
        got[3] = lets_in(&n, "203.0.113.9", 80) ? '+' : '-';
        if (strcmp(got, want) != 0 || n.off != off)
            fail_msg("'%s' (%d): got %s, off %d", line, full, got, n.off);
        if (full == 0)
            assert_int_equal(spec_net_is_allowlist(&n), allowlist);
        struct spec_net back;
        json_t *j = json_pack("{s:o}", "network", spec_net_to_json(&n, full));
        spec_net_init(&back);
        if (spec_net_from_json(&back, j, &e) < 0)
            fail_msg("'%s': %s", line, e.msg);
        json_decref(j);
        spec_net_free(&n);
        n = back;
    }
    spec_net_free(&n);
}

static void policies(void **state)
{
    means("", "+--+", false, false);
    means("--net public", "+--+", false, false);
    means("--net public,private", "++-+", false, false);
    means("--net all", "++++", false, false);
    means("--net none", "---+", false, false);
    means("--net host", "--++", false, false);
    means("--net-rule allow@example.com", "---+", false, true);
    means("--net-rule allow@8.8.8.8", "+--+", false, true);
    means("--net-rule deny@8.8.8.8 --net public", "---+", false, false);
    means("--net-rule allow@10.0.0.0/8,deny@any --net-rule allow@8.8.8.8", "-+-+", false, true);
    means("--net-default deny", "----", false, false);
    means("--net-default allow", "++++", false, false);
    means("--net-default-egress deny", "---+", false, false);
    means("--net-default-egress allow --net-rule deny@private", "+-++", false, false);
    means("--net-default-ingress deny", "+---", false, false);
    means("--net-default deny --net-default-ingress allow", "---+", false, false);
    means("--no-net", "----", true, false);
    means("--no-network", "----", true, false);
    /* As scripts for other tools have it: nothing, but these. */
    means("--no-net --net-rule allow@8.8.8.8", "+---", false, false);
}

static void refused(const char *line, const char *msg)
{
    struct spec_net n;
    struct err e;
    if (options(line, &n, &e) == 0 || strncmp(e.msg, msg, strlen(msg)) != 0 ||
        strchr(e.msg, '\n') != NULL)
        fail_msg("'%s': got '%s'", line, e.msg);
    spec_net_free(&n);
}

static void refusals(void **state)
{
    refused("--net publik", "unknown network profile 'publik'");
    refused("--net all,host", "network profile 'all,host': 'all' and 'none' cannot be combined");
    refused("--no-net --net public",
            "the argument '--net <PROFILE>' cannot be used with '--no-net'");
    refused("--no-net --net-default allow", "--no-net cannot be used with --net-default allow");
    refused("--net-rule allow@*.com", "network rule 'allow@*.com': '*.com' is too wide");
    refused("--net-rule permit@x.org", "network rule 'permit@x.org': unknown action 'permit'");
    refused("--net-default maybe", "invalid value 'maybe' for '--net-default");
    refused("--max-connections 0", "invalid value '0' for '--max-connections <N>'");
    refused("--max-connections 70000", "invalid value '70000' for '--max-connections <N>'");
    refused("--dns-query-timeout-ms x", "invalid value 'x' for '--dns-query-timeout-ms <MS>'");
    refused("--dns-nameserver dns.example", "invalid name server 'dns.example'");
    refused("--dns-nameserver 1.1.1.1:0", "invalid name server '1.1.1.1:0'");
    refused("--dns-nameserver [1.1.1.1]:53", "invalid name server '[1.1.1.1]:53'");
    refused("--no-net -p 8080:80", "invalid config: a sandbox without a network cannot publish");
    refused("-p 80", "invalid port '80': expected HOST:GUEST");
    refused("-p 8080:0", "invalid port '8080:0'");
    refused("-p 8080:80/sctp", "invalid port '8080:80/sctp': the protocol must be tcp or udp");
    refused("-p 8000-8002:9000-9001", "invalid port '8000-8002:9000-9001': both ranges");
    refused("-p 8002-8000:80-82", "invalid port '8002-8000:80-82'");
    refused("-p 70000:80", "invalid port '70000:80'");
    refused("-p ::1:8080:80", "invalid port '::1:8080:80': an IPv6 address is written");
    refused("-p [::1]8080:80", "invalid port '[::1]8080:80': an IPv6 address is written");
    refused("-p web:8080:80", "invalid port 'web:8080:80': expected an IP address");
    refused("-p 8080:80 -p 8080:81", "port 8080 is already published as 127.0.0.1:8080->80/tcp");
    refused("-p 0.0.0.0:8080:80 -p 8080:81", "port 8080 is already published as");
    refused("-p 0:1-300", "at most 256 published ports");
}

static void ports_are(const char *line, size_t n_want, const char *first, const char *last)
{
    struct spec_net n;
    struct err e;
    char text[SPEC_PORT_TEXT_MAX];
    if (options(line, &n, &e) < 0)
        fail_msg("'%s': %s", line, e.msg);
    assert_int_equal(n.n_ports, n_want);
    spec_port_format(&n.ports[0], text);
    assert_string_equal(text, first);
    spec_port_format(&n.ports[n.n_ports - 1], text);
    assert_string_equal(text, last);
    for (size_t i = 0; i < n.n_ports; i++) {
        struct spec_port back = {0};
        json_t *j = spec_port_to_json(&n.ports[i]);
        assert_int_equal(spec_port_from_json(j, &back), 0);
        assert_true(addr_equal(&back.bind, &n.ports[i].bind) && back.host == n.ports[i].host &&
                    back.guest == n.ports[i].guest && back.proto == n.ports[i].proto);
        json_decref(j);
    }
    spec_net_free(&n);
}

static void ports(void **state)
{
    ports_are("-p 8080:80", 1, "127.0.0.1:8080->80/tcp", "127.0.0.1:8080->80/tcp");
    ports_are("--port 8080:80/tcp --publish 0:53/udp", 2, "127.0.0.1:8080->80/tcp",
              "127.0.0.1:0->53/udp");
    ports_are("-p 0.0.0.0:8080:80 -p 8080:80/udp", 2, "0.0.0.0:8080->80/tcp",
              "127.0.0.1:8080->80/udp");
    ports_are("-p [::1]:8080:80", 1, "[::1]:8080->80/tcp", "[::1]:8080->80/tcp");
    ports_are("-p 8000-8010:9000-9010", 11, "127.0.0.1:8000->9000/tcp", "127.0.0.1:8010->9010/tcp");
    ports_are("-p 0:80-82", 3, "127.0.0.1:0->80/tcp", "127.0.0.1:0->82/tcp");
    ports_are("-p 1-256:1-256", 256, "127.0.0.1:1->1/tcp", "127.0.0.1:256->256/tcp");
}

static void other_settings(void **state)
{
    struct spec_net n, back;
    struct err e;
    char text[END_TEXT_MAX];
    assert_int_equal(options("--net-strict --max-connections 9 --dns-nameserver 9.9.9.9 "
                             "--dns-nameserver [2620:fe::fe]:5353 --dns-query-timeout-ms 100 "
                             "--no-dns-rebind-protection -p 1:2",
                             &n, &e),
                     0);
    spec_net_init(&back);
    json_t *j = json_pack("{s:o}", "network", spec_net_to_json(&n, false));
    assert_int_equal(spec_net_from_json(&back, j, &e), 0);
    json_decref(j);
    assert_true(back.strict && back.allow_rebind);
    assert_int_equal(back.max_connections, 9);
    assert_int_equal(back.dns_timeout_ms, 100);
    assert_int_equal(back.n_nameservers, 2);
    end_format(&back.nameserver[0], text);
    assert_string_equal(text, "9.9.9.9:53");
    end_format(&back.nameserver[1], text);
    assert_string_equal(text, "[2620:fe::fe]:5353");
    assert_int_equal(back.n_ports, 1);
    spec_net_free(&n);
    spec_net_free(&back);
    /* A spec says nothing where nothing was said: `ls` reads every one of them. */
    spec_net_init(&n);
    j = spec_net_to_json(&n, false);
    assert_true(json_is_object(j) && json_object_size(j) == 0);
    json_decref(j);
}

/* --- out of memory --------------------------------------------------------------------------- */

static unsigned allocations_left;

static void *scarce_malloc(size_t n)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left--;
    return malloc(n);
}

/* A form with something missing would be a sandbox with fewer rules, or without its proxy. */
static void out_of_memory_is_no_shorter_form(void **state)
{
    struct spec_net n;
    struct err e;
    assert_int_equal(options("--net-rule deny@8.8.8.8 --net public --net-strict -p 1:2 "
                             "--max-connections 9 --dns-nameserver 9.9.9.9 --trust-host-cas "
                             "--dns-query-timeout-ms 100 --no-dns-rebind-protection "
                             "--proxy socks5://127.0.0.1:1080 --net-egress-bandwidth 10M "
                             "--net-ingress-ops 500",
                             &n, &e),
                     0);
    for (int full = 0; full < 2; full++) {
        json_t *whole = spec_net_to_json(&n, full), *got = NULL;
        unsigned enough = 0;
        for (; !got; enough++) {
            allocations_left = enough;
            json_set_alloc_funcs(scarce_malloc, free);
            got = spec_net_to_json(&n, full);
            json_set_alloc_funcs(malloc, free);
        }
        assert_true(enough > 20 && json_equal(got, whole));
        json_decref(got);
        json_decref(whole);
    }
    spec_net_free(&n);
}

static void bad_json(void **state)
{
    static const char *const bad[] = {
        "{\"network\":1}",
        "{\"network\":{\"enabled\":1}}",
        "{\"network\":{\"max_connections\":4294967296}}",
        "{\"network\":{\"policy\":{\"rules\":[\"allow@\"]}}}",
        "{\"network\":{\"policy\":{\"rules\":[1]}}}",
        "{\"network\":{\"policy\":{\"profile\":\"x\"}}}",
        "{\"network\":{\"policy\":{\"default_egress\":\"x\"}}}",
        "{\"network\":{\"ports\":[{\"host_bind\":\"x\",\"host_port\":1,\"guest_port\":1}]}}",
        "{\"network\":{\"ports\":[{\"host_bind\":\"::\",\"host_port\":-1,\"guest_port\":1}]}}",
        "{\"network\":{\"ports\":[{\"host_bind\":\"1.1.1.1\",\"host_port\":1}]}}",
        "{\"network\":{\"dns\":{\"nameservers\":[\"x\"]}}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct spec_net n;
        struct err e = {0};
        json_t *j = json_loads(bad[i], 0, NULL);
        assert_non_null(j);
        spec_net_init(&n);
        if (spec_net_from_json(&n, j, &e) == 0)
            fail_msg("taken: %s", bad[i]);
        spec_net_free(&n);
        json_decref(j);
    }
}

static void resolvers_are(const char *text, unsigned n, const char *first)
{
    struct net_host h = {0};
    char got[END_TEXT_MAX];
    net_host_resolvers(&h, text);
    assert_int_equal(h.n_resolvers, n);
    end_format(&h.resolver[0], got);
    assert_string_equal(got, first);
}

static void resolvers(void **state)
{
    resolvers_are("", 1, "127.0.0.1:53");
    resolvers_are("# nameserver 1.1.1.1\nsearch lan\n", 1, "127.0.0.1:53");
    resolvers_are("nameserver 10.0.0.2\n", 1, "10.0.0.2:53");
    resolvers_are("nameserver\t10.0.0.2 # x\r\nnameserver 10.0.0.3", 2, "10.0.0.2:53");
    resolvers_are("nameserver fe80::1%eth0\nnameserver 2620:fe::fe\n", 1, "[2620:fe::fe]:53");
    resolvers_are("nameservers 1.1.1.1\nnameserver\nnameserver 1.2.3\nnameserver 9.9.9.9\n", 1,
                  "9.9.9.9:53");
    resolvers_are("nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\n"
                  "nameserver 1.1.1.4\n",
                  3, "1.1.1.1:53");
}

/* Binding: a number for 0, and what is in the way. */
static void binding(void **state)
{
    static const uint8_t protos[] = {PROTO_TCP, PROTO_UDP};
    for (size_t i = 0; i < ARRAY_LEN(protos); i++) {
        struct spec_port want = {.guest = 80, .proto = protos[i]}, got, again;
        struct err e = {0};
        int fd = -1, second = -1;
        assert_int_equal(addr_parse("127.0.0.1", &want.bind), 0);
        assert_int_equal(publish_bind(NULL, &want, &fd, &got, &e), 0);
        assert_true(fd >= 0 && got.host != 0 && got.guest == 80);
        assert_int_equal(publish_bind(NULL, &got, &second, &again, &e), -EADDRINUSE);
        assert_non_null(strstr(e.msg, "the port is in use"));
        assert_int_equal(addr_parse("198.51.100.1", &want.bind), 0);
        assert_int_equal(publish_bind(NULL, &want, &second, &again, &e), -EADDRNOTAVAIL);
        assert_non_null(strstr(e.msg, "this host has no address 198.51.100.1"));
        (void)close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies),       cmocka_unit_test(refusals),
        cmocka_unit_test(ports),          cmocka_unit_test(bad_json),
        cmocka_unit_test(other_settings), cmocka_unit_test(resolvers),
        cmocka_unit_test(binding),        cmocka_unit_test(out_of_memory_is_no_shorter_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
