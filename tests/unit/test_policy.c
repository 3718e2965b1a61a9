/* Policy files: what is refused and with which words; which sandboxes they allow; and that a second
 * file never allows what the first refuses. */
#include "net/policy.h"
#include "policy/rulebook.h"
#include "policy/strict_yaml.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rulebook *book(const char *text)
{
    struct rulebook *b = NULL;
    struct err e = {0};
    if (rulebook_load_text("p.yaml", text, strlen(text), &b, &e) < 0)
        fail_msg("%s: %.300s", e.msg, text);
    return b;
}

/* --- files ------------------------------------------------------------------------------------ */

static void test_mistakes(void **state)
{
    static const struct {
        const char *text, *error, *hint;
    } all[] = {
        {"caps: {memroy: 1G}", "p.yaml:1:16: unknown key 'memroy'", "did you mean 'memory'?"},
        {"cap: {memory: 1G}", "p.yaml:1:6: unknown key 'cap'", "did you mean 'caps'?"},
        {"caps:\n  cpus: 1\n  cpus: 2\n", "p.yaml:3:3: 'cpus' is given twice: first in line 2",
         NULL},
        {"caps: [1]", "p.yaml:1:7: caps must be a map of keys", NULL},
        {"caps: {memory: lots}", "p.yaml:1:16: memory 'lots': expected a size", NULL},
        {"caps: {memory: -1}", "memory '-1': expected a size", NULL},
        {"caps: {cpus: 0}", "cpus must be more than 0", NULL},
        {"caps: {memory: }", "memory has no value", NULL},
        {"caps: {memory: [1G]}", "memory must be a single value", NULL},
        {"images: {digest: yes}", "p.yaml:1:18: digest must be true or false", NULL},
        {"images: {digest: \"true\"}", "digest must be true or false", NULL},
        {"images: {allow: python}", "allow must be a list", NULL},
        {"images: {allow: [[a]]}", "an entry must be a single value", NULL},
        {"images: {allow: [\"\"]}", "allow: an entry is empty", NULL},
        {"engines: [qemu]", "engines: 'qemu' is not one of kvm, uml, uml-ptrace", NULL},
        {"forbid: [vsok]", "forbid: 'vsok' is not one of volume", "did you mean 'vsock'?"},
        {"egress: {allow: [a b]}", "p.yaml:1:18: allow: ", NULL},
        {"egress: {allow: [deny@x]}", "'deny@x' is not a target", NULL},
        {"paths: {volumes: [data]}", "'data' is not an absolute path", NULL},
        {"paths: {volumes: [/a/../b]}", "is not an absolute path", NULL},
        {"write_paths: [/a/]", "is not an absolute path without a '/'", NULL},
        {"labels: {required: [=x]}", "expected KEY or KEY=VALUE", NULL},
        {"match: {users: [a]}", "unknown key 'match'", NULL},
        {"rules: [{rules: []}]", "unknown key 'rules'", NULL},
        {"rules: {a: b}", "rules must be a list", NULL},
        {"- a", "a policy must be a map of keys", NULL},
        {"a: &x 1", "anchors and aliases are not allowed here", NULL},
        {"a: *x", "anchors and aliases are not allowed here", NULL},
        {"a: !!str 1", "tags (!) are not allowed here", NULL},
        {"%TAG ! tag:x,1:\n---\na: 1", "directives (%) are not allowed here", NULL},
        {"a: 1\n---\nb: 1", "a second document", NULL},
        {"[a]: 1", "a key must be a word", NULL},
        {"a: \"\\0\"", "a NUL character", NULL},
        {"caps: {", "p.yaml:", NULL},
        {"a: \xff", "not text in UTF-8", NULL},
        {"[[[[[[[[[[[[[[[[[[[[", "too deeply nested", NULL},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct rulebook *b = NULL;
        struct err e = {0};
        int r = rulebook_load_text("p.yaml", all[i].text, strlen(all[i].text), &b, &e);
        if (r == 0 || !strstr(e.msg, all[i].error) || strncmp(e.msg, "p.yaml:", 7) != 0)
            fail_msg("%s: %d %s", all[i].text, r, e.msg);
        if (all[i].hint && (e.hints == 0 || strcmp(e.hint[0], all[i].hint) != 0))
            fail_msg("%s: %s", all[i].text, e.hints ? e.hint[0] : "no hint");
        assert_null(b);
    }
}

static void test_empty(void **state)
{
    static const char *const all[] = {"", "---\n", "# nothing\n", "{}", "rules: []"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        rulebook_free(book(all[i]));
}

static void test_template(void **state)
{
    AUTO_BUF struct buf out, bare;
    buf_init(&out, 1 << 16);
    buf_init(&bare, 1 << 16);
    rulebook_template(&out);
    assert_int_equal(buf_append(&out, "", 1), 0);
    rulebook_free(book((const char *)buf_head(&out)));
    /* With every line uncommented, it is a policy, too. */
    char *line, *rest = (char *)buf_head(&out);
    while ((line = strsep(&rest, "\n")))
        if (strncmp(line, "# ", 2) == 0)
            assert_int_equal(buf_printf(&bare, "%s\n", line + 2), 0);
    assert_int_equal(buf_append(&bare, "", 1), 0);
    assert_non_null(strstr((const char *)buf_head(&bare), "everybody else"));
    rulebook_free(book((const char *)buf_head(&bare)));
}

/* --- judging ---------------------------------------------------------------------------------- */

static void make_spec(struct sandbox_spec *s)
{
    spec_init(s);
    s->name = strdup("x");
    s->image = strdup("msb/base");
    assert_true(s->name && s->image);
}

static bool judges(const struct rulebook *b, enum hold why, unsigned said, struct sandbox_spec *s)
{
    AUTO_VERDICT struct verdict v = {0};
    struct store none = STORE_NONE;
    struct err e = {0};
    none.home = (char *)"/";
    assert_int_equal(rulebook_judge(b, &none, why, said, s, &v, &e), 0);
    return v.refused;
}

static bool refuses(const struct rulebook *b, unsigned said, struct sandbox_spec *s)
{
    return judges(b, HOLD_START, said, s);
}

static void set_text(char **to, const char *text)
{
    free(*to);
    *to = strdup(text);
    assert_non_null(*to);
}

static void test_images(void **state)
{
    static const struct {
        const char *policy, *image;
        bool ok;
    } all[] = {
        {"images: {allow: [msb/base]}", "msb/base", true},
        {"images: {allow: [msb/base]}", "docker.io/msb/base", false},
        {"images: {allow: [\"python:3.*\"]}", "python:3.12", true},
        {"images: {allow: [\"python:3.*\"]}", "docker.io/library/python:3.12", true},
        {"images: {allow: [\"python:3.*\"]}", "python", false},
        {"images: {allow: [python]}", "python:3", true},
        {"images: {allow: [python]}", "evil/python:3", false},
        {"images: {allow: [python]}", "ghcr.io/library/python:3", false},
        {"images: {allow: [\"ghcr.io/acme/*\"]}", "ghcr.io/acme/a/b:1", true},
        {"images: {allow: [\"ghcr.io/acme/*\"]}", "ghcr.io/acme-evil/a:1", false},
        {"images: {allow: [python]}", "./python", false},
        {"images: {allow: [\"*\"]}", "/etc", true},
        {"images: {allow: [/et*]}", "/etc", true},
        {"images: {allow: [/usr/*]}", "/usr/../etc", false},
        {"images: {allow: []}", "msb/base", false},
        {"images: {registries: [docker.io]}", "python:3", true},
        {"images: {registries: [ghcr.io]}", "python:3", false},
        {"images: {registries: [ghcr.io]}", "msb/base", true},
        {"images: {digest: true}", "python:3", false},
        {"images: {digest: true}", "/etc", false},
        {"images: {digest: true}", "msb/base", true},
        {"images: {digest: false}", "python:3", true},
        {"images: {digest: true}",
         "python@sha256:"
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
         true},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        AUTO_RULEBOOK struct rulebook *b = book(all[i].policy);
        AUTO_SPEC struct sandbox_spec s;
        make_spec(&s);
        set_text(&s.image, all[i].image);
        if (refuses(b, 0, &s) == all[i].ok)
            fail_msg("%s, %s", all[i].policy, all[i].image);
    }
}

static void test_paths(void **state)
{
    static const struct {
        const char *policy, *path;
        bool ro, ok;
    } all[] = {
        {"paths: {volumes: [/srv/data]}", "/srv/data", false, true},
        {"paths: {volumes: [/srv/data]}", "/srv/data/a/b", false, true},
        {"paths: {volumes: [/srv/data]}", "/srv/database", false, false},
        {"paths: {volumes: [/srv/data]}", "/srv", false, false},
        {"paths: {volumes: [/srv/data:ro]}", "/srv/data/a", false, false},
        {"paths: {volumes: [/srv/data:ro]}", "/srv/data/a", true, true},
        {"paths: {volumes: [/srv:ro, /srv/data:rw]}", "/srv/data/a", false, true},
        {"paths: {volumes: [/home/*/work]}", "/home/ann/work/x", false, true},
        {"paths: {volumes: [/home/*/work]}", "/home/ann/private/work", false, false},
        {"paths: {volumes: [/]}", "/etc", false, true},
        {"paths: {volumes: []}", "/srv", true, false},
        {"paths: {workspaces: []}", "/srv", true, true},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        AUTO_RULEBOOK struct rulebook *b = book(all[i].policy);
        AUTO_SPEC struct sandbox_spec s;
        make_spec(&s);
        assert_int_equal(spec_add_mount(&s,
                                        &(struct spec_mount){.kind = MOUNT_BIND,
                                                             .guest = (char *)"/m",
                                                             .source = (char *)all[i].path,
                                                             .options = all[i].ro ? 1 : 0},
                                        NULL),
                         0);
        if (refuses(b, 0, &s) == all[i].ok)
            fail_msg("%s, %s", all[i].policy, all[i].path);
        /* A root disk is written to. */
        AUTO_SPEC struct sandbox_spec rooted;
        make_spec(&rooted);
        rooted.root_disk = ROOT_DISK_FILE;
        rooted.root_disk_file = strdup(all[i].path);
        if (!all[i].ro && refuses(b, 0, &rooted) == all[i].ok)
            fail_msg("%s, root disk %s", all[i].policy, all[i].path);
    }
}

static void test_labels(void **state)
{
    AUTO_RULEBOOK struct rulebook *b =
        book("labels: {required: [team], allowed: [\"team=*\", env=dev]}");
    AUTO_SPEC struct sandbox_spec s;
    make_spec(&s);
    assert_true(refuses(b, 0, &s));
    assert_int_equal(spec_add_label(&s, "team=a", NULL), 0);
    assert_false(refuses(b, 0, &s));
    assert_int_equal(spec_add_label(&s, "env=prod", NULL), 0);
    assert_true(refuses(b, 0, &s));
    assert_int_equal(strlist_add(&s.image_labels, "env"), 0); /* the image's own */
    assert_false(refuses(b, 0, &s));
    assert_int_equal(strlist_add(&s.image_labels, "team"), 0); /* does not count either way */
    assert_true(refuses(b, 0, &s));
    assert_int_equal(spec_add_label(&s, "team=b", NULL), 0); /* the user's from now on */
    assert_false(refuses(b, 0, &s));
    assert_int_equal(s.image_labels.n, 1);
}

static void test_rule_sets(void **state)
{
    char me[256];
    (void)snprintf(me, sizeof(me),
                   "rules:\n"
                   "- {name: ml, match: {labels: [team=ml], users: [\"%u\"]}, caps: {memory: 2G}}\n"
                   "- {name: py, match: {images: [python]}, caps: {memory: 1G}}\n"
                   "- {name: no, match: {users: [\"4294967294\"]}, caps: {memory: 9G}}\n",
                   getuid());
    AUTO_RULEBOOK struct rulebook *b = book(me);
    AUTO_SPEC struct sandbox_spec s;
    make_spec(&s);
    assert_true(refuses(b, 0, &s)); /* none matches */
    s.memory_mib = 2048;
    assert_int_equal(spec_add_label(&s, "team=ml", NULL), 0);
    assert_false(refuses(b, SAID_ALL, &s));
    assert_int_equal(strlist_add(&s.image_labels, "team"), 0); /* an image chooses no set */
    assert_true(refuses(b, SAID_ALL, &s));
    strlist_free(&s.image_labels);
    set_text(&s.image, "python:3"); /* the first match counts */
    assert_false(refuses(b, SAID_ALL, &s));
    assert_int_equal(spec_add_label(&s, "team=web", NULL), 0);
    assert_true(refuses(b, SAID_ALL, &s));
}

static void test_defaults(void **state)
{
    AUTO_RULEBOOK struct rulebook *b =
        book("caps: {memory: 1G, lifetime: 1h}\ndefaults: {memory: 2G, cpus: 0.5}");
    AUTO_SPEC struct sandbox_spec s;
    AUTO_VERDICT struct verdict v = {0};
    struct store none = STORE_NONE;
    struct err e = {0};
    make_spec(&s);
    assert_int_equal(rulebook_judge(b, &none, HOLD_CREATE, 0, &s, &v, &e), 0);
    assert_false(v.refused);
    assert_int_equal(s.memory_mib, 1024); /* a default is narrowed like any other */
    assert_true(s.cpus == 0.5);
    assert_int_equal(s.max_duration_ms, 3600000);
    s.memory_mib = 1025;
    s.cpus = 4;
    assert_int_equal(rulebook_judge(b, &none, HOLD_CREATE, SAID_MEMORY | SAID_CPUS, &s, &v, &e), 0);
    assert_true(v.refused && s.cpus == 4);
}

/* --- egress ----------------------------------------------------------------------------------- */

static void test_within(void **state)
{
    static const struct {
        const char *ceiling, *rules;
        bool within;
    } all[] = {
        {"allow@any", "allow@any", true},
        {"allow@public", "allow@any", false},
        {"allow@public", "allow@pypi.org", true},
        {"allow@public", "allow@10.0.0.1", false},
        {"allow@public", "allow@93.184.216.34", false}, /* may be the host's own */
        {"allow@private", "allow@pypi.org", false},
        {"allow@pypi.org", "allow@pypi.org", true},
        {"allow@pypi.org", "allow@www.pypi.org", false},
        {"allow@*.pypi.org", "allow@www.pypi.org", true},
        {"allow@*.pypi.org", "allow@*.www.pypi.org", true},
        {"allow@www.pypi.org", "allow@*.pypi.org", false},
        {"allow@*.pypi.org", "allow@evilpypi.org", false},
        {"allow@pypi.org:tcp:443", "allow@pypi.org", false},
        {"allow@pypi.org:tcp:443", "allow@pypi.org:tcp:443", true},
        {"allow@pypi.org:tcp:400-500", "allow@pypi.org:tcp:443", true},
        {"allow@pypi.org:tcp", "allow@pypi.org:udp:443", false},
        {"allow@10.0.0.0/8", "allow@10.1.0.0/16", true},
        {"allow@10.1.0.0/16", "allow@10.0.0.0/8", false},
        {"allow@10.0.0.0/8", "allow@[::]/0", false},
        {"allow@[::]/0", "allow@10.0.0.1", false},
        {"allow@[::]/0", "allow@0.0.0.0/0", false},
        {"allow@[::]/0", "allow@[2001:db8::]/32", true},
        {"allow@0.0.0.0/0", "allow@10.0.0.1", true},
        {"allow@host", "allow@host", true},
        {"allow@public", "allow@host", false},
        {"allow@pypi.org", "deny@any,allow@pypi.org", true},
        {"allow@pypi.org", "allow@pypi.org,allow@example.com", false},
        {"allow@pypi.org", "allow:ingress@any", true},
        {"allow@pypi.org", "allow:any@any", false},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct policy c, p;
        AUTO_STRLIST struct strlist rules = {0};
        int rule;
        policy_init(&c);
        policy_init(&p);
        assert_int_equal(policy_add_rules(&c, all[i].ceiling, NULL), 0);
        assert_int_equal(policy_add_rules(&p, all[i].rules, NULL), 0);
        if (policy_within(&p, &c, &rule) != all[i].within)
            fail_msg("%s within %s", all[i].rules, all[i].ceiling);
        p.default_egress = true; /* what is left of it is within */
        assert_int_equal(policy_narrow(&p, &c, &rules), 0);
        policy_free(&p);
        for (size_t k = 0; k < rules.n; k++)
            assert_int_equal(policy_add_rules(&p, rules.v[k], NULL), 0);
        assert_true(policy_within(&p, &c, &rule));
        policy_free(&p);
        policy_free(&c);
    }
}

/* --- what a monitor is told ------------------------------------------------------------------- */

static void test_limits(void **state)
{
    AUTO_SPEC struct sandbox_spec s;
    AUTO_JSON json_t *limits = NULL;
    AUTO_RULEBOOK struct rulebook *b = book("caps: {lifetime: 1h, output: 1M}\n"
                                            "forbid: [vsock, port,\n  secret]\n");
    struct err e = {0};
    make_spec(&s);
    assert_int_equal(policy_limits(b, &s, &limits, &e), 0);
    AUTO_FREE char *text = json_dumps(limits, JSON_COMPACT | JSON_SORT_KEYS);
    assert_non_null(text);
    assert_string_equal(
        text,
        "[{\"allowed\":\"1h\",\"field\":\"caps.lifetime\",\"kind\":\"lifetime\",\"most\":3600000,"
        "\"origin\":\"p.yaml:1\"},"
        "{\"allowed\":\"nothing of the kind\",\"asked\":\"--port\",\"field\":\"forbid\",\"kind\":"
        "\"ports\",\"most\":0,\"origin\":\"p.yaml:2\"},"
        "{\"allowed\":\"nothing of the kind\",\"asked\":\"--secret\",\"field\":\"forbid\",\"kind\":"
        "\"secrets\",\"origin\":\"p.yaml:3\",\"rules\":[]}]");
}

/* --- two files -------------------------------------------------------------------------------- */

static uint64_t rng = 88172645463325252ULL;

static unsigned pick(unsigned n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (unsigned)(rng >> 33) % n;
}

static const char *one(const char *const *of)
{
    unsigned n = 0;
    while (of[n])
        n++;
    return of[pick(n)];
}

#define WORDS(...) one((const char *const[]){__VA_ARGS__, NULL})

/* Some of the settings, at random. */
static void put_settings(struct buf *b, const char *indent)
{
    (void)buf_printf(
        b, "%scaps: {%s%s%s%s}\n", indent, WORDS("", "cpus: 1, ", "cpus: 0.5, ", "cpus: 2, "),
        WORDS("", "memory: 256M, ", "memory: 1G, "), WORDS("", "lifetime: 1h, ", "lifetime: 2h, "),
        WORDS("", "disk: 1G", "disk: 8G", "ports: 0", "ports: 1", "output: 1M", "output: 8M"));
    (void)buf_printf(b, "%sdefaults: {%s%s}\n", indent, WORDS("", "memory: 4G, ", "memory: 128M, "),
                     WORDS("", "cpus: 9", "lifetime: 9h", "output: 4M"));
    (void)buf_printf(b, "%segress: {%s}\n", indent,
                     WORDS("", "allow: []", "allow: [public]", "allow: [pypi.org, \"*.a.org\"]",
                           "allow: [\"pypi.org:tcp:443\", x.a.org]", "allow: [any]"));
    (void)buf_printf(b, "%simages: {%s}\n", indent,
                     WORDS("", "allow: [msb/base]", "allow: [\"python:*\"]", "digest: true",
                           "registries: [ghcr.io]"));
    (void)buf_printf(b, "%swrite_paths: %s\n", indent,
                     WORDS("[/tmp]", "[/tmp, /work]", "[/tmp/a, /work]", "[/work/b]"));
    (void)buf_printf(b, "%slabels: {%s}\n", indent,
                     WORDS("", "required: [team]", "allowed: [team=a]", "allowed: [\"team=*\"]"));
    (void)buf_printf(b, "%sengines: %s\n", indent,
                     WORDS("[kvm, uml]", "[uml]", "[kvm]", "[kvm, uml, uml-ptrace]"));
    (void)buf_printf(b, "%ssecurity: %s\n", indent, WORDS("default", "restricted", "docker"));
}

static struct rulebook *random_book(void)
{
    AUTO_BUF struct buf b = {.limit = 1 << 16};
    if (pick(2))
        put_settings(&b, "");
    if (pick(3) == 0) {
        (void)buf_printf(&b, "rules:\n- name: a\n  match: {labels: [team=a]}\n");
        put_settings(&b, "  ");
        (void)buf_printf(&b, "- name: rest\n");
        if (pick(2))
            put_settings(&b, "  ");
    }
    (void)buf_append(&b, "", 1);
    return book((const char *)buf_head(&b));
}

static unsigned random_spec(struct sandbox_spec *s, uint64_t seed)
{
    uint64_t kept = rng;
    rng = seed;
    make_spec(s);
    set_text(&s->image, WORDS("msb/base", "python:3", "ghcr.io/a/b:1"));
    s->cpus = 0.25 * (1 + pick(12));
    s->memory_mib = 128 << pick(5);
    s->root_disk_bytes = 1ULL << (29 + pick(5));
    s->max_duration_ms = pick(4) * 1800000ULL;
    s->output_max = (uint64_t)pick(3) * (3 << 20);
    s->engine = (enum engine_kind)pick(4);
    if (pick(2))
        assert_int_equal(spec_add_label(s, WORDS("team=a", "team=b", "other=1"), NULL), 0);
    if (pick(2))
        assert_int_equal(spec_net_add_rules(&s->net,
                                            WORDS("allow@pypi.org", "allow@any", "allow@x.a.org",
                                                  "allow@pypi.org:tcp:443", "deny@any"),
                                            NULL),
                         0);
    (void)spec_security_set_profile(&s->security, WORDS("default", "restricted", "docker"));
    s->security.pids = pick(3) * 200;
    if (pick(2))
        assert_int_equal(spec_net_add_ports(&s->net, "0:80", NULL), 0);
    if (pick(2))
        assert_int_equal(spec_add_write_path(s, WORDS("/tmp", "/work/b", "/tmp/a/c"), NULL), 0);
    unsigned said = pick(SAID_ALL + 1);
    rng = kept;
    return said;
}

/* What the operator's file alone refuses stays refused with a second one; and what both let
 * through, filled in and narrowed, the operator's file would let through as it is. */
static void test_never_wider(void **state)
{
    unsigned passed = 0, stopped = 0;
    for (unsigned i = 0; i < 1500; i++) {
        AUTO_SPEC struct sandbox_spec alone, both;
        AUTO_VERDICT struct verdict v = {0};
        struct store none = STORE_NONE;
        struct err e = {0};
        uint64_t seeds[2] = {rng, 0};
        AUTO_RULEBOOK struct rulebook *operators = random_book();
        rng = seeds[0];
        AUTO_RULEBOOK struct rulebook *joined = random_book();
        assert_int_equal(rulebook_join(joined, random_book(), &e), 0);
        seeds[1] = rng | 1;
        unsigned said = random_spec(&alone, seeds[1]);
        (void)random_spec(&both, seeds[1]);
        bool no = judges(operators, HOLD_CREATE, said, &alone);
        assert_int_equal(rulebook_judge(joined, &none, HOLD_CREATE, said, &both, &v, &e), 0);
        if (no && !v.refused)
            fail_msg("round %u: wider", i);
        if (!v.refused && refuses(operators, SAID_ALL, &both))
            fail_msg("round %u: what was let through is refused", i);
        v.refused ? stopped++ : passed++;
    }
    assert_true(passed > 100 && stopped > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),    cmocka_unit_test(test_empty),
        cmocka_unit_test(test_template),    cmocka_unit_test(test_images),
        cmocka_unit_test(test_paths),       cmocka_unit_test(test_labels),
        cmocka_unit_test(test_rule_sets),   cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_within),      cmocka_unit_test(test_limits),
        cmocka_unit_test(test_never_wider),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
