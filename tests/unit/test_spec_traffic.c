/* Rate limits, proxies and host sockets in a spec: parsing, refusals, and the way through JSON and
 * back. */
#include "spec/spec.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- limits ---------------------------------------------------------------------------------- */

static void rate_is(const char *text, bool bytes, uint64_t amount, uint64_t ms, const char *shown)
{
    struct rate_limit l = {.burst = 7};
    char out[SPEC_RATE_TEXT_MAX];
    assert_int_equal(spec_rate_parse(text, bytes, &l), 0);
    assert_int_equal(l.amount, amount);
    assert_int_equal(l.period_ms, ms);
    assert_int_equal(l.burst, 7);
    l.burst = 0;
    spec_rate_format(&l, bytes, out);
    assert_string_equal(out, shown);
}

static void rates(void **state)
{
    static const char *const bad[] = {"",
                                      "/",
                                      "10M/",
                                      "/s",
                                      "0",
                                      "0/s",
                                      "-1",
                                      "1/9ms",
                                      "1/2d",
                                      "10M/0",
                                      "10M/s/s",
                                      "10 M",
                                      "M",
                                      "1/x",
                                      "1e3",
                                      "x",
                                      "99999999999999999999",
                                      "2000000000000000"};
    struct rate_limit l = {0};
    rate_is("10M", true, 10 << 20, 1000, "10 MiB/s");
    rate_is("10M/s", true, 10 << 20, 1000, "10 MiB/s");
    rate_is("512K/100ms", true, 512 << 10, 100, "512 KiB/100ms");
    rate_is("1000/1m", true, 1000, 60000, "1000 B/1m");
    rate_is("1000/m", true, 1000, 60000, "1000 B/1m");
    rate_is("1000", false, 1000, 1000, "1000 packets/s");
    rate_is("5/10ms", false, 5, 10, "5 packets/10ms");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_true(spec_rate_parse(bad[i], true, &l) < 0);
        assert_true(spec_rate_parse(bad[i], false, &l) < 0);
    }
    assert_int_equal(l.amount, 0); /* nothing has changed */
    assert_true(spec_rate_parse("1.5K", false, &l) < 0);
    assert_int_equal(spec_rate_parse_burst("2M", true, &l), 0);
    assert_int_equal(l.burst, 2 << 20);
    assert_true(spec_rate_parse_burst("2M", false, &l) < 0);
}

/* --- proxies --------------------------------------------------------------------------------- */

static void proxies(void **state)
{
    static const char *const bad[] = {
        "",
        "socks5",
        "socks5://",
        "socks5://1.2.3.4",
        "socks5://1.2.3.4:",
        "socks5://1.2.3.4:0",
        "socks5://1.2.3.4:65536",
        "socks5://1.2.3.4:1/",
        "socks5://::1:1080",
        "socks5://[::1]",
        "socks5://[1.2.3.4]:1",
        "socks5h://1.2.3.4:1",
        "socks6://1.2.3.4:1",
        "http://1.2.3.4:1",
        "socks5://name:1080",
        "SOCKS5://1.2.3.4:1",
    };
    struct spec_proxy p = {0};
    struct socks_config c;
    struct err e = {0};
    char url[SPEC_PROXY_URL_MAX];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_proxy_set(&p, bad[i], &e), -EINVAL);
    assert_int_equal(p.version, 0);
    assert_int_equal(spec_proxy_set(&p, "socks5://[2001:db8::1]:1080", &e), 0);
    spec_proxy_url(&p, url);
    assert_string_equal(url, "socks5://[2001:db8::1]:1080");
    assert_int_equal(spec_proxy_set(&p, "socks4://1.2.3.4:9", &e), 0);
    spec_proxy_url(&p, url);
    assert_string_equal(url, "socks4://1.2.3.4:9");
    p.user = strdup("me");
    assert_int_equal(spec_proxy_validate(&p, &e), 0);
    p.password_env = strdup("MSB_TEST_PASSWORD");
    assert_int_equal(spec_proxy_validate(&p, &e), -EINVAL); /* version 4 has none */
    p.version = 5;
    assert_int_equal(spec_proxy_validate(&p, &e), 0);

    assert_int_equal(unsetenv("MSB_TEST_PASSWORD"), 0);
    assert_int_equal(spec_proxy_resolve(&p, &c, &e), -ENOENT);
    assert_int_equal(setenv("MSB_TEST_PASSWORD", "geheim", 1), 0);
    assert_int_equal(spec_proxy_resolve(&p, &c, &e), 0);
    assert_string_equal(c.user, "me");
    assert_string_equal(c.password, "geheim");
    char longer[SOCKS_TEXT_MAX + 2];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(setenv("MSB_TEST_PASSWORD", longer, 1), 0);
    assert_int_equal(spec_proxy_resolve(&p, &c, &e), -EINVAL);
    longer[sizeof(longer) - 2] = '\0';
    assert_int_equal(setenv("MSB_TEST_PASSWORD", longer, 1), 0);
    assert_int_equal(spec_proxy_resolve(&p, &c, &e), 0);
    assert_string_equal(c.password, longer);
    spec_proxy_free(&p);
}

/* --- host sockets ---------------------------------------------------------------------------- */

static void host_sockets(void **state)
{
    static const char *const bad[] = {"",
                                      ":5000",
                                      "/tmp/x",
                                      "x:5000",
                                      "/tmp/x:",
                                      "/tmp/x:-1",
                                      "/tmp/x:1023",
                                      "/tmp/x:80",
                                      "/tmp/x:0",
                                      "/tmp/x:5000/",
                                      "/tmp/x:5000/x",
                                      "/tmp/:5000",
                                      "/:5000",
                                      "/tmp/..:5000",
                                      "/tmp/.:5000",
                                      "~/x:5000",
                                      "/tmp/x:1x",
                                      "/tmp/x:4294967295"};
    struct spec_vsocks l = {0};
    struct err e = {0};
    bool usage;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_true(spec_vsock_add(&l, bad[i], &usage, &e) < 0);
        assert_true(usage);
    }
    assert_int_equal(spec_vsock_add(&l, "/tmp/x:5000/dgram", &usage, &e), -EOPNOTSUPP);
    assert_int_equal(spec_vsock_add(&l, "/nowhere/at/all/x:5000", &usage, &e), -ENOENT);
    assert_false(usage); /* the host's fault */
    assert_int_equal(l.n, 0);
    assert_int_equal(spec_vsock_add(&l, "/x:5000", &usage, &e), 0);
    assert_string_equal(l.v[0].path, "/x");
    assert_int_equal(spec_vsock_add(&l, "/proc/../dev//shm/a:b:4294967294/stream", &usage, &e), 0);
    assert_string_equal(l.v[1].path, "/dev/shm/a:b");
    assert_int_equal(l.v[1].port, 4294967294U);
    assert_int_equal(spec_vsock_add(&l, "/y:5000", &usage, &e), -EINVAL); /* taken */
    for (unsigned i = 2; i < SPEC_VSOCK_MAX; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "/x:%u", 6000 + i);
        assert_int_equal(spec_vsock_add(&l, text, &usage, &e), 0);
    }
    assert_int_equal(spec_vsock_add(&l, "/x:7000", &usage, &e), -E2BIG);
    spec_vsock_free(&l);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void same(const struct sandbox_spec *a, json_t *j)
{
    struct sandbox_spec b;
    struct err e = {0};
    spec_init(&b);
    assert_int_equal(spec_from_json(&b, j, &e), 0);
    json_decref(j);
    assert_memory_equal(&a->net.egress_rate, &b.net.egress_rate, sizeof(a->net.egress_rate));
    assert_memory_equal(&a->net.ingress_rate, &b.net.ingress_rate, sizeof(a->net.ingress_rate));
    assert_int_equal(a->net.proxy.version, b.net.proxy.version);
    assert_true(end_equal(&a->net.proxy.at, &b.net.proxy.at));
    assert_string_equal(a->net.proxy.user, b.net.proxy.user);
    assert_string_equal(a->net.proxy.password_env, b.net.proxy.password_env);
    assert_true(b.net.trust_host_cas);
    assert_int_equal(b.vsocks.n, 1);
    assert_string_equal(b.vsocks.v[0].path, "/run/x");
    assert_int_equal(b.vsocks.v[0].port, 5000);
    spec_free(&b);
}

static void json_round_trip(void **state)
{
    struct sandbox_spec s;
    struct err e = {0};
    bool usage;
    spec_init(&s);
    s.name = strdup("web");
    s.image = strdup("msb/base");
    assert_int_equal(spec_rate_parse("1M/100ms", true, &s.net.egress_rate.bytes), 0);
    assert_int_equal(spec_rate_parse_burst("9M", true, &s.net.egress_rate.bytes), 0);
    assert_int_equal(spec_rate_parse("50", false, &s.net.ingress_rate.packets), 0);
    assert_int_equal(spec_proxy_set(&s.net.proxy, "socks5://1.2.3.4:1080", &e), 0);
    s.net.proxy.user = strdup("me");
    s.net.proxy.password_env = strdup("PW");
    s.net.trust_host_cas = true;
    assert_int_equal(spec_vsock_add(&s.vsocks, "/run/x:5000", &usage, &e), 0);
    assert_int_equal(spec_validate(&s, &e), 0);
    same(&s, spec_to_json(&s));
    same(&s, spec_to_config(&s));
    spec_free(&s);
}

static void bad_json(void **state)
{
    static const char *const bad[] = {
        "{\"network\": {\"rate_limits\": []}}",
        "{\"network\": {\"rate_limits\": {\"egress\": 5}}}",
        "{\"network\": {\"rate_limits\": {\"egress\": {\"bandwidth\": {}}}}}",
        "{\"network\": {\"rate_limits\": {\"egress\": {\"bandwidth\": {\"size\": 0}}}}}",
        "{\"network\": {\"rate_limits\": {\"egress\": {\"ops\": {\"refill_time_ms\": 0}}}}}",
        "{\"network\": {\"rate_limits\": {\"egress\": {\"ops\": {\"size\": -1}}}}}",
        "{\"network\": {\"proxy\": \"socks5://1.2.3.4:1\"}}",
        "{\"network\": {\"proxy\": {\"url\": \"http://x\"}}}",
        "{\"network\": {\"proxy\": {\"username\": \"x\"}}}",
        "{\"network\": {\"trust_host_cas\": 1}}",
        "{\"vsocks\": {}}",
        "{\"vsocks\": [5]}",
        "{\"vsocks\": [{\"path\": \"x\", \"port\": 5000}]}",
        "{\"vsocks\": [{\"path\": \"/x\", \"port\": 1}]}",
        "{\"vsocks\": [{\"path\": \"/x\", \"port\": -1}]}",
        "{\"vsocks\": [{\"path\": \"/x\", \"port\": 5000}, {\"path\": \"/x\", \"port\": 5000}]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct sandbox_spec s;
        struct err e = {0};
        json_t *j = json_loads(bad[i], 0, NULL);
        assert_non_null(j);
        spec_init(&s);
        if (spec_from_json(&s, j, &e) != -EINVAL)
            fail_msg("accepted: %s", bad[i]);
        spec_free(&s);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),        cmocka_unit_test(proxies),
        cmocka_unit_test(host_sockets), cmocka_unit_test(json_round_trip),
        cmocka_unit_test(bad_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
