/* Address classes, the grammar of rules, and decisions. */
#include <errno.h>
#include <stdlib.h>

#include "net/explain.h"
#include "net/packet.h"
#include "net/policy.h"
#include "unit.h"
#include "util/cleanup.h"

static struct net_addr addr(const char *s)
{
    struct net_addr a;
    assert_int_equal(addr_parse(s, &a), 0);
    return a;
}

static void test_classes(void **state)
{
    static const struct {
        const char *addr;
        enum addr_class class;
    } cases[] = {
        {"8.8.8.8", CLASS_PUBLIC},
        {"2606:4700::1", CLASS_PUBLIC},
        {"10.1.2.3", CLASS_PRIVATE},
        {"172.16.0.1", CLASS_PRIVATE},
        {"172.31.255.255", CLASS_PRIVATE},
        {"172.32.0.1", CLASS_PUBLIC},
        {"192.168.1.1", CLASS_PRIVATE},
        {"100.64.0.1", CLASS_PRIVATE},
        {"fd00::1", CLASS_PRIVATE},
        {"fec0::1", CLASS_PRIVATE},
        {"127.0.0.1", CLASS_LOOPBACK},
        {"127.255.255.254", CLASS_LOOPBACK},
        {"0.0.0.0", CLASS_LOOPBACK},
        {"0.1.2.3", CLASS_LOOPBACK},
        {"::1", CLASS_LOOPBACK},
        {"::", CLASS_LOOPBACK},
        {"::5", CLASS_LOOPBACK},
        {"169.254.1.1", CLASS_LINK_LOCAL},
        {"fe80::1", CLASS_LINK_LOCAL},
        {"169.254.169.254", CLASS_META},
        {"fd00:ec2::254", CLASS_META},
        {"100.100.100.200", CLASS_META},
        {"168.63.129.16", CLASS_META},
        {"fd20:ce::254", CLASS_META},
        {"224.0.0.1", CLASS_MULTICAST},
        {"255.255.255.255", CLASS_MULTICAST},
        {"ff02::1", CLASS_MULTICAST},
        {"240.0.0.1", CLASS_RESERVED},
        {"203.0.113.1", CLASS_RESERVED},
        {"2001:db8::1", CLASS_RESERVED},
        {"2001::1", CLASS_RESERVED},
        {"4000::1", CLASS_RESERVED},
        {"::ffff:127.0.0.1", CLASS_LOOPBACK},
        {"::ffff:8.8.8.8", CLASS_PUBLIC},
        {"::127.0.0.1", CLASS_LOOPBACK},
        {"::10.0.0.1", CLASS_PRIVATE},
        {"64:ff9b::10.0.0.1", CLASS_PRIVATE},
        {"64:ff9b::169.254.169.254", CLASS_META},
        {"64:ff9b::8.8.8.8", CLASS_PUBLIC},
        {"64:ff9b:1::1", CLASS_PRIVATE},
        {"2002:7f00:1::", CLASS_LOOPBACK},
        {"2002:a9fe:a9fe::1", CLASS_META},
        {"2002:808:808::1", CLASS_PUBLIC},
        {"64:ff9b:1::10.0.0.1", CLASS_PRIVATE},
        {"64:ff9b:1::8.8.8.8", CLASS_PRIVATE}, /* of a private network's translator */
        {"64:ff9b:1::169.254.169.254", CLASS_META},
        {"64:ff9b:1:abcd::127.0.0.1", CLASS_LOOPBACK},
        {"64:ff9b:1:a9fe:a9:fe00::", CLASS_META},        /* /48 */
        {"64:ff9b:1:a9:fe:a9fe::", CLASS_META},          /* /56 */
        {"64:ff9b:1:0:a9:fea9:fe00::", CLASS_META},      /* /64 */
        {"2001:0:808:808:0:0:f5ff:fffe", CLASS_PRIVATE}, /* Teredo: 10.0.0.1, inverted */
        {"2001:0:808:808:0:0:5601:5601", CLASS_META},
        {"2001:0:808:808:0:0:f7f7:f7f7", CLASS_RESERVED},
        {"2001:0:7f00:1:0:0:f7f7:f7f7", CLASS_LOOPBACK}, /* its server */
        {"2606:4700::5efe:10.0.0.1", CLASS_PRIVATE},     /* ISATAP */
        {"2606:4700::200:5efe:169.254.169.254", CLASS_META},
        {"2606:4700::5efe:8.8.8.8", CLASS_PUBLIC},
        {"fe80::5efe:8.8.8.8", CLASS_LINK_LOCAL},
        {"fd00::5efe:127.0.0.1", CLASS_LOOPBACK},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct net_addr a = addr(cases[i].addr);
        if (addr_classify(&a) != cases[i].class)
            fail_msg("%s is %d, not %d", cases[i].addr, addr_classify(&a), cases[i].class);
    }
    struct net_addr a;
    static const char *const not_addresses[] = {"127.1",  "0177.0.0.1", "2130706433",
                                                "0x7f.1", "1.2.3.4.5",  "fe80::1%1",
                                                "",       "1.2.3.4 ",   "127.0.0.01"};
    for (size_t i = 0; i < ARRAY_LEN(not_addresses); i++)
        if (addr_parse(not_addresses[i], &a) == 0)
            fail_msg("'%s' was taken for an address", not_addresses[i]);
}

/* --- the grammar ----------------------------------------------------------------------------- */

static void test_good_rules(void **state)
{
    static const struct {
        const char *text;
        enum target_kind kind;
        bool allow;
        uint8_t dir, proto;
        uint16_t lo, hi;
    } cases[] = {
        {"allow@public", TARGET_GROUP, true, POLICY_EGRESS, 0, 0, 65535},
        {"deny:any@meta", TARGET_GROUP, false, POLICY_BOTH, 0, 0, 65535},
        {"allow@example.com", TARGET_DOMAIN, true, POLICY_EGRESS, 0, 0, 65535},
        {"allow@example.com:tcp:443", TARGET_DOMAIN, true, POLICY_EGRESS, PROTO_TCP, 443, 443},
        {"allow@*.example.com:any:80-443", TARGET_SUFFIX, true, POLICY_EGRESS, 0, 80, 443},
        {"allow@suffix=example.com", TARGET_SUFFIX, true, POLICY_EGRESS, 0, 0, 65535},
        {"allow@domain=db", TARGET_DOMAIN, true, POLICY_EGRESS, 0, 0, 65535},
        {"deny@10.0.0.0/8:udp", TARGET_CIDR, false, POLICY_EGRESS, PROTO_UDP, 0, 65535},
        {"allow@[2001:db8::]/32:tcp:1-2", TARGET_CIDR, true, POLICY_EGRESS, PROTO_TCP, 1, 2},
        {"allow@[2001:db8::1]", TARGET_CIDR, true, POLICY_EGRESS, 0, 0, 65535},
        {"allow@[2001:db8::1]:udp:53", TARGET_CIDR, true, POLICY_EGRESS, PROTO_UDP, 53, 53},
        {"allow:ingress@1.2.3.4:tcp:any", TARGET_CIDR, true, POLICY_INGRESS, PROTO_TCP, 0, 65535},
        {"allow@host:tcp:5432", TARGET_HOST, true, POLICY_EGRESS, PROTO_TCP, 5432, 5432},
        {"deny@dns", TARGET_DNS, false, POLICY_EGRESS, 0, 0, 65535},
        {"allow@any:icmpv4", TARGET_ANY, true, POLICY_EGRESS, PROTO_ICMP, 0, 65535},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct policy p;
        struct err e = {0};
        policy_init(&p);
        if (policy_add_rules(&p, cases[i].text, &e) < 0)
            fail_msg("%s: %s", cases[i].text, e.msg);
        assert_int_equal(p.n, 1);
        assert_int_equal(p.rule[0].kind, cases[i].kind);
        assert_int_equal(p.rule[0].allow, cases[i].allow);
        assert_int_equal(p.rule[0].dir, cases[i].dir);
        assert_int_equal(p.rule[0].proto, cases[i].proto);
        assert_int_equal(p.rule[0].lo, cases[i].lo);
        assert_int_equal(p.rule[0].hi, cases[i].hi);
        assert_string_equal(p.rule[0].text, cases[i].text);
        policy_free(&p);
    }
}

static void test_bad_rules(void **state)
{
    static const struct {
        const char *text, *says, *hint;
    } cases[] = {
        {"", "no '@'", NULL},
        {"allow", "no '@'", NULL},
        {"alow@public", "'alow'", "allow"},
        {"allow:egres@public", "egres", "egress"},
        {"allow@publc", "unknown target 'publc'", "public"},
        {"allow@loopbak", "loopbak", "loopback"},
        {"allow@", "unknown target", NULL},
        {"allow@*.com", "too wide", NULL},
        {"allow@suffix=com", "too wide", NULL},
        {"allow@1.2.3.4/33", "prefix length", NULL},
        {"allow@1.2.3.4/", "prefix length", NULL},
        {"allow@300.1.1.1", "invalid IP address", NULL},
        {"allow@1.2.3.4:tpc", "protocol 'tpc'", "tcp"},
        {"allow@1.2.3.4:tcp:0", "invalid port", NULL},
        {"allow@1.2.3.4:tcp:65536", "invalid port", NULL},
        {"allow@1.2.3.4:tcp:5-4", "invalid port", NULL},
        {"allow@1.2.3.4:tcp:", "invalid port", NULL},
        {"allow@1.2.3.4:icmpv4:5", "no ports", NULL},
        {"allow@1.2.3.4:icmpv6", "icmpv6", NULL},
        {"allow@[2001:db8::1", "bracket", NULL},
        {"allow@[2001:db8::1]x", "bracket", NULL},
        {"allow@[example.com]", "invalid IP address", NULL},
        {"allow@exa mple.com", "invalid host name", NULL},
        {"allow@-a.com", "invalid host name", NULL},
        {"allow@a..com", "invalid host name", NULL},
        {"allow:ingress@example.com", "egress only", NULL},
        {"allow@public,", "no '@'", NULL},
        {"allow@public,allow@publc", "publc", "public"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct policy p;
        struct err e = {0};
        policy_init(&p);
        if (policy_add_rules(&p, cases[i].text, &e) == 0)
            fail_msg("'%s' was accepted", cases[i].text);
        if (!strstr(e.msg, cases[i].says))
            fail_msg("'%s': %s", cases[i].text, e.msg);
        if (cases[i].hint && (e.hints == 0 || !strstr(e.hint[0], cases[i].hint)))
            fail_msg("'%s': no hint of %s", cases[i].text, cases[i].hint);
        assert_int_equal(p.n, 0); /* all or nothing */
        policy_free(&p);
    }
}

static void test_profiles(void **state)
{
    struct policy p;
    struct err e = {0};
    policy_init(&p);
    assert_int_equal(policy_add_profile(&p, "public,private,host", &e), 0);
    assert_int_equal(p.n, 3);
    assert_string_equal(p.rule[2].text, "allow@host");
    assert_int_equal(policy_add_profile(&p, "none", &e), 0);
    assert_int_equal(p.n, 3);
    assert_int_equal(policy_add_profile(&p, "public,all", &e), -EINVAL);
    assert_int_equal(policy_add_profile(&p, "pubic", &e), -EINVAL);
    assert_string_equal(e.hint[0], "did you mean 'public'?");
    assert_int_equal(p.n, 3);
    policy_free(&p);
}

static void test_limit(void **state)
{
    struct policy p;
    struct err e = {0};
    policy_init(&p);
    for (unsigned i = 0; i < POLICY_RULES_MAX; i++)
        assert_int_equal(policy_add_rules(&p, "allow@public", &e), 0);
    assert_int_equal(policy_add_rules(&p, "allow@public", &e), -E2BIG);
    policy_free(&p);
}

/* --- decisions ------------------------------------------------------------------------------- */

/* 93.184.216.34 is www.example.com, as far as this sandbox has resolved; 10.0.0.5 too. */
static bool named(void *ctx, const struct net_addr *peer, bool suffix, const char *name)
{
    struct net_addr a = addr("93.184.216.34"), b = addr("10.0.0.5");
    return (addr_equal(peer, &a) || addr_equal(peer, &b)) &&
           policy_name_matches("www.example.com", name, suffix);
}

static struct policy_answer ask(const char *rules, const char *peer, uint8_t proto, uint16_t port,
                                char why[POLICY_WHY_MAX])
{
    struct policy p;
    struct err e = {0};
    policy_init(&p);
    assert_int_equal(policy_add_rules(&p, rules, &e), 0);
    struct policy_flow f = {.dir = POLICY_EGRESS, .proto = proto, .port = port, .named = named};
    f.host = f.gateway = strcmp(peer, "gateway") == 0;
    f.dns = f.host && port == 53;
    f.peer = addr(f.host ? "172.16.0.1" : peer);
    struct policy_answer a = policy_decide(&p, &f);
    if (why)
        policy_explain(&p, &a, why);
    policy_free(&p);
    return a;
}

static void test_decisions(void **state)
{
    static const struct {
        const char *rules, *peer;
        uint8_t proto;
        uint16_t port;
        bool allow;
    } cases[] = {
        {"allow@public", "8.8.8.8", PROTO_TCP, 443, true},
        {"allow@public", "10.0.0.1", PROTO_TCP, 443, false},
        {"allow@public", "gateway", PROTO_TCP, 22, false},
        {"allow@private", "gateway", PROTO_TCP, 22, false}, /* the gateway is the host */
        {"allow@172.16.0.0/12,allow@172.16.0.1", "gateway", PROTO_TCP, 22, false},
        {"deny@172.16.0.0/12,allow@host", "gateway", PROTO_TCP, 22, false},
        {"allow@host", "gateway", PROTO_TCP, 22, true},
        {"allow@host", "gateway", PROTO_UDP, 53, false},
        {"allow@dns", "gateway", PROTO_UDP, 53, true},
        {"allow@any", "169.254.169.254", PROTO_TCP, 80, true},
        {"deny@meta,allow@any", "169.254.169.254", PROTO_TCP, 80, false},
        {"deny@meta,allow@any", "64:ff9b:1::169.254.169.254", PROTO_TCP, 80, false},
        {"deny@9.9.9.0/24,allow@public", "64:ff9b::9.9.9.9", PROTO_TCP, 80, false},
        {"deny@9.9.9.0/24,allow@public", "2002:909:909::1", PROTO_TCP, 80, false},
        {"deny@9.9.9.0/24,allow@public", "64:ff9b::9.9.8.9", PROTO_TCP, 80, true},
        {"allow@9.9.9.0/24", "64:ff9b::9.9.9.9", PROTO_TCP, 80, false}, /* not what was written */
        {"allow@public:tcp:443", "8.8.8.8", PROTO_TCP, 443, true},
        {"allow@public:tcp:443", "8.8.8.8", PROTO_TCP, 80, false},
        {"allow@public:tcp:443", "8.8.8.8", PROTO_UDP, 443, false},
        {"allow@public:any:443", "8.8.8.8", PROTO_ICMP, 0, false},
        {"allow@public:icmpv4", "8.8.8.8", PROTO_ICMP, 0, true},
        {"deny@8.8.0.0/16,allow@public", "8.8.8.8", PROTO_TCP, 1, false},
        {"allow@public,deny@8.8.0.0/16", "8.8.8.8", PROTO_TCP, 1, true}, /* the first wins */
        {"allow@www.example.com", "93.184.216.34", PROTO_TCP, 443, true},
        {"allow@*.example.com", "93.184.216.34", PROTO_TCP, 443, true},
        {"allow@example.com", "93.184.216.34", PROTO_TCP, 443, false},
        {"allow@www.example.com", "93.184.216.35", PROTO_TCP, 443, false}, /* never resolved */
        {"allow@www.example.com", "10.0.0.5", PROTO_TCP, 443, false},      /* whatever DNS says */
        {"deny@www.example.com,allow@any", "10.0.0.5", PROTO_TCP, 443, false},
        {"allow@10.0.0.0/8", "10.0.0.5", PROTO_TCP, 443, true},
        {"allow:ingress@public", "8.8.8.8", PROTO_TCP, 1, false},
        {"allow@[2606::]/16", "2606:4700::1", PROTO_TCP, 1, true},
        {"allow@0.0.0.0/0", "2606:4700::1", PROTO_TCP, 1, false},
        {"allow@0.0.0.0/0", "10.0.0.1", PROTO_TCP, 1, true},
        {"allow@[::]/0", "2606:4700::1", PROTO_TCP, 1, true},
        {"allow@[::]/0", "10.0.0.1", PROTO_TCP, 1, false}, /* however it is stored */
        {"allow@[::]/64", "10.0.0.1", PROTO_TCP, 1, false},
        {"allow@[::fffe:0:0]/95", "10.0.0.1", PROTO_TCP, 1, false},
        {"deny@[::]/0,allow@any", "10.0.0.1", PROTO_TCP, 1, true},
        {"deny@[::]/0,allow@any", "2002:909:909::1", PROTO_TCP, 1, false},
        {"allow@public", "::ffff:127.0.0.1", PROTO_TCP, 1, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char why[POLICY_WHY_MAX];
        struct policy_answer a =
            ask(cases[i].rules, cases[i].peer, cases[i].proto, cases[i].port, why);
        if (a.allow != cases[i].allow)
            fail_msg("%s to %s:%u: %s", cases[i].rules, cases[i].peer, cases[i].port, why);
    }
    char why[POLICY_WHY_MAX];
    struct policy_answer a =
        ask("deny@meta,allow@www.example.com:tcp", "93.184.216.34", PROTO_TCP, 1, why);
    assert_true(a.by_name);
    assert_string_equal(why, "allowed by rule 2: allow@www.example.com:tcp");
    (void)ask("allow@public", "10.0.0.1", PROTO_TCP, 1, why);
    assert_string_equal(why, "denied: no rule allows it");
}

static void test_names(void **state)
{
    static const struct {
        const char *rules, *name;
        bool allow;
    } cases[] = {
        {"allow@public", "anything.org", true},
        {"allow@any", "anything.org", true},
        {"allow@example.com", "example.com", true},
        {"allow@example.com", "evil.com", false},
        {"allow@example.com", "a.example.com", false},
        {"allow@*.example.com", "a.b.example.com", true},
        {"allow@*.example.com", "example.com", true},
        {"allow@*.example.com", "notexample.com", false},
        {"deny@evil.com,allow@public", "evil.com", false},
        {"deny@evil.com:tcp:25,allow@public", "evil.com", true},
        {"allow@10.0.0.0/8", "a.b", false}, /* a tunnel otherwise */
        {"allow@private", "a.b", false},
        {"deny@dns,allow@public", "a.b", false},
        {"deny@any,allow@public", "a.b", false},
        {"allow:ingress@any", "a.b", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct policy p;
        struct err e = {0};
        policy_init(&p);
        assert_int_equal(policy_add_rules(&p, cases[i].rules, &e), 0);
        if (policy_decide_name(&p, cases[i].name).allow != cases[i].allow)
            fail_msg("%s: %s", cases[i].rules, cases[i].name);
        policy_free(&p);
    }
}

static void test_addresses_that_rules_name(void **state)
{
    struct policy p;
    struct err e = {0};
    struct net_addr a = addr("10.0.0.5"), b = addr("10.1.0.5"), c = addr("127.0.0.1");
    policy_init(&p);
    assert_int_equal(policy_add_rules(&p, "deny@10.0.0.5,allow@10.0.0.0/8,allow@any", &e), 0);
    assert_false(policy_names_address(&p, &a));
    assert_true(policy_names_address(&p, &b));
    assert_false(policy_names_address(&p, &c)); /* "any" names nothing */
    policy_free(&p);
    assert_int_equal(policy_add_rules(&p, "allow@[::]/0", &e), 0);
    assert_false(policy_names_address(&p, &a));
    policy_free(&p);
}

static void test_targets(void **state)
{
    static const struct {
        const char *text, *name, *addr;
        uint16_t port;
    } good[] = {
        {"https://example.com/", "example.com", NULL, 443},
        {"HTTP://user:pw@Example.COM./x?y#z", "example.com", NULL, 80},
        {"http://example.com:8080/", "example.com", NULL, 8080},
        {"postgres://db.example.com:5432/x", "db.example.com", NULL, 5432},
        {"ssh://git@example.com", "example.com", NULL, 22},
        {"example.com", "example.com", NULL, 443},
        {"example.com:22", "example.com", NULL, 22},
        {"1.2.3.4", NULL, "1.2.3.4", 443},
        {"1.2.3.4:53", NULL, "1.2.3.4", 53},
        {"2001:db8::1", NULL, "2001:db8::1", 443},
        {"[2001:db8::1]:80", NULL, "2001:db8::1", 80},
        {"http://[2001:db8::1]/", NULL, "2001:db8::1", 80},
    };
    static const char *const bad[] = {"",          "https://",       "a b",       "example.com:0",
                                      "x.y:65536", "x.y:http",       "[1.2.3.4]", "[2001:db8::1",
                                      "1.2.3",     "1.2.3.4.5",      "foo://x.y", "[::1]x",
                                      "x..y",      "http://a/b@c:x", "::1::"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct explain_target t;
        struct err e = {0};
        if (explain_parse(good[i].text, false, &t, &e) < 0)
            fail_msg("%s: %s", good[i].text, e.msg);
        assert_string_equal(t.name, good[i].name ? good[i].name : "");
        assert_int_equal(t.port, good[i].port);
        assert_int_equal(t.proto, PROTO_TCP);
        if (good[i].addr) {
            struct net_addr want = addr(good[i].addr);
            assert_true(addr_equal(&want, &t.addr));
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct explain_target t;
        struct err e = {0};
        if (strcmp(bad[i], "http://a/b@c:x") == 0) /* what comes after the host does not count */
            assert_int_equal(explain_parse(bad[i], true, &t, &e), 0);
        else if (explain_parse(bad[i], true, &t, &e) != -EINVAL)
            fail_msg("'%s' passes", bad[i]);
    }
}

static void test_explained_by_policy(void **state)
{
    static const struct {
        const char *rules, *target;
        bool udp, may_ask, allow;
    } cases[] = {
        {"allow@public", "example.com", false, true, true},
        {"allow@example.com", "example.com", false, true, true},
        {"allow@example.com", "example.com", true, true, false}, /* QUIC */
        {"allow@example.com", "example.org", false, false, false},
        {"allow@*.example.com:tcp:80", "a.example.com", false, true, false},
        {"allow@*.example.com:tcp:80", "a.example.com:80", false, true, true},
        {"deny@example.com,allow@public", "example.com", false, false, false},
        {"deny@9.9.9.9,allow@public", "example.com", false, true, true},
        {"allow@host:tcp:8080", "host.microsandbox.internal:8080", false, true, true},
        {"allow@host:tcp:8080", "host.microsandbox.internal:8081", false, true, false},
        {"allow@public", "host.microsandbox.internal:8080", false, true, false},
        {"allow@10.0.0.0/8", "10.1.2.3", false, false, true},
        {"allow@example.com", "1.2.3.4", false, false, false}, /* never resolved */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct policy p;
        struct err e = {0};
        struct explain_target t;
        struct explain_answer a;
        policy_init(&p);
        assert_int_equal(policy_add_rules(&p, cases[i].rules, &e), 0);
        assert_int_equal(explain_parse(cases[i].target, cases[i].udp, &t, &e), 0);
        explain_by_policy(&p, &t, &a);
        if (a.allow != cases[i].allow || a.may_ask != cases[i].may_ask || a.why[0] == '\0')
            fail_msg("%s: %s: %d %d %s", cases[i].rules, cases[i].target, a.allow, a.may_ask,
                     a.why);
        policy_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),   cmocka_unit_test(test_good_rules),
        cmocka_unit_test(test_bad_rules), cmocka_unit_test(test_profiles),
        cmocka_unit_test(test_limit),     cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_addresses_that_rules_name),
        cmocka_unit_test(test_targets),   cmocka_unit_test(test_explained_by_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
