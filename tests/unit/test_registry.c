/* What registries and Docker's files say: challenges, configurations, settings, addresses. */
#include "registry/address.h"
#include "registry/auth_store.h"
#include "registry/challenge.h"
#include "registry/credentials.h"
#include "registry/http.h"
#include "registry/settings.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --- challenges ----------------------------------------------------------------------------- */

static void same(const char *got, const char *want)
{
    assert_int_equal(!got, !want);
    if (want)
        assert_string_equal(got, want);
}

static void challenges(void **state)
{
    static const struct {
        const char *header;
        enum challenge_scheme scheme;
        const char *realm, *service, *scope;
    } cases[] = {
        {"", CHALLENGE_NONE, NULL, NULL, NULL},
        {"Basic", CHALLENGE_BASIC, NULL, NULL, NULL},
        {"basic realm=\"x\"", CHALLENGE_BASIC, "x", NULL, NULL},
        {"Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\","
         "scope=\"repository:library/alpine:pull\"",
         CHALLENGE_BEARER, "https://auth.docker.io/token", "registry.docker.io",
         "repository:library/alpine:pull"},
        {"BEARER REALM = \"a\" , Service=b", CHALLENGE_BEARER, "a", "b", NULL},
        {"Bearer realm=https://x/token,service=y", CHALLENGE_BEARER, "https://x/token", "y", NULL},
        {"Basic realm=\"b\", Bearer realm=\"t\"", CHALLENGE_BEARER, "t", NULL, NULL},
        {"Bearer realm=\"t\", Basic realm=\"b\"", CHALLENGE_BEARER, "t", NULL, NULL},
        {"Negotiate, Basic realm=\"b\"", CHALLENGE_BASIC, "b", NULL, NULL},
        {"Negotiate YII==, Basic realm=\"b\"", CHALLENGE_BASIC, "b", NULL, NULL},
        {"Digest nonce=\"a,b=\\\"c\", Basic realm=\"b\"", CHALLENGE_BASIC, "b", NULL, NULL},
        {"Bearer realm=\"a \\\"quoted\\\" one\"", CHALLENGE_BEARER, "a \"quoted\" one", NULL, NULL},
        {"Bearer realm=\"a\",realm=\"b\"", CHALLENGE_BEARER, "a", NULL, NULL},
        {"Bearer scope=\"a,b\",realm=\"r\"", CHALLENGE_BEARER, "r", NULL, "a,b"},
        {"Bearer realm=\"\"", CHALLENGE_BEARER, "", NULL, NULL},
        {",,, ,Basic", CHALLENGE_BASIC, NULL, NULL, NULL},
        {"Bearerrealm=\"a\"", CHALLENGE_NONE, NULL, NULL, NULL},
        {"\"junk\", Basic", CHALLENGE_BASIC, NULL, NULL, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct challenge c;
        print_message("%s\n", cases[i].header);
        assert_int_equal(challenge_parse(cases[i].header, &c), 0);
        assert_int_equal(c.scheme, cases[i].scheme);
        same(c.realm, cases[i].realm);
        same(c.service, cases[i].service);
        same(c.scope, cases[i].scope);
        challenge_free(&c);
    }
    static const char *const bad[] = {"Bearer realm=\"", "Bearer realm=\"a\nb\"",
                                      "Bearer realm=\"a\x7f\""};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct challenge c;
        assert_int_equal(challenge_parse(bad[i], &c), -EINVAL);
        assert_null(c.realm);
    }
}

/* --- Docker's config.json ------------------------------------------------------------------- */

static int look_up(const char *text, const char *registry, struct docker_auth *a)
{
    struct err e = {0};
    return docker_config_lookup(text, strlen(text), registry, a, &e);
}

static void docker_config(void **state)
{
    struct docker_auth a;
    /* me:pass:word */
    static const char auths[] =
        "{\"auths\": {\"https://index.docker.io/v1/\": {\"auth\": \"bWU6cGFzczp3b3Jk\"},"
        " \"GHCR.io\": {\"identitytoken\": \"refresh\", \"auth\": \"bWU6cGFzczp3b3Jk\"},"
        " \"https://quay.io\": {\"username\": \"u\", \"password\": \"p\"},"
        " \"bad.example\": {\"auth\": \"!!!!\"}, \"half.example\": {\"username\": \"u\"},"
        " \"no-colon.example\": {\"auth\": \"bWU=\"}, \"empty.example\": {}}}";
    assert_int_equal(look_up(auths, "docker.io", &a), 0);
    assert_string_equal(a.found.username, "me");
    assert_string_equal(a.found.password, "pass:word");
    docker_auth_free(&a);
    assert_int_equal(look_up(auths, "ghcr.io", &a), 0);
    assert_string_equal(a.found.identity_token, "refresh");
    assert_null(a.found.username);
    docker_auth_free(&a);
    assert_int_equal(look_up(auths, "quay.io", &a), 0);
    assert_string_equal(a.found.password, "p");
    docker_auth_free(&a);
    assert_int_equal(look_up(auths, "bad.example", &a), -EINVAL);
    assert_int_equal(look_up(auths, "no-colon.example", &a), -EINVAL);
    assert_int_equal(look_up(auths, "half.example", &a), -ENOENT);
    assert_int_equal(look_up(auths, "empty.example", &a), -ENOENT);
    assert_int_equal(look_up(auths, "other.example", &a), -ENOENT);
    assert_int_equal(look_up("{}", "docker.io", &a), -ENOENT);
    assert_int_equal(look_up("[]", "docker.io", &a), -EINVAL);
    assert_int_equal(look_up("", "docker.io", &a), -EINVAL);
    assert_int_equal(look_up("{\"auths\": 5, \"credHelpers\": []}", "docker.io", &a), -ENOENT);
}

static void docker_helpers(void **state)
{
    struct docker_auth a;
    static const char text[] =
        "{\"auths\": {\"a.example\": {}, \"b.example\": {\"auth\": \"bWU6cGFzczp3b3Jk\"}},"
        " \"credsStore\": \"pass\", \"credHelpers\": {\"c.example\": \"gcloud\","
        " \"d.example\": \"../../bin/sh\", \"e.example\": \"\"}}";
    assert_int_equal(look_up(text, "a.example", &a), 0);
    assert_string_equal(a.helper, "pass");
    docker_auth_free(&a);
    assert_int_equal(look_up(text, "b.example", &a), 0);
    assert_null(a.helper);
    assert_string_equal(a.found.username, "me");
    docker_auth_free(&a);
    assert_int_equal(look_up(text, "c.example", &a), 0);
    assert_string_equal(a.helper, "gcloud");
    docker_auth_free(&a);
    assert_int_equal(look_up(text, "d.example", &a), -EINVAL);
    assert_int_equal(look_up(text, "e.example", &a), -EINVAL);
    assert_int_equal(look_up(text, "z.example", &a), 0);
    assert_string_equal(a.helper, "pass");
    docker_auth_free(&a);
}

static void helper_answers(void **state)
{
    struct credentials c;
    static const char user[] = "{\"ServerURL\":\"x\",\"Username\":\"u\",\"Secret\":\"s\"}";
    static const char token[] = "{\"Username\":\"<token>\",\"Secret\":\"s\"}";
    assert_int_equal(credential_helper_parse(user, strlen(user), &c, NULL), 0);
    assert_string_equal(c.username, "u");
    assert_string_equal(c.password, "s");
    credentials_free(&c);
    assert_int_equal(credential_helper_parse(token, strlen(token), &c, NULL), 0);
    assert_null(c.username);
    assert_string_equal(c.identity_token, "s");
    credentials_free(&c);
    static const char *const bad[] = {"",
                                      "{}",
                                      "[]",
                                      "{\"Username\":\"u\"}",
                                      "{\"Username\":\"u\",\"Secret\":\"a\\u0000b\"}",
                                      "{\"Username\":5,\"Secret\":\"s\"}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(credential_helper_parse(bad[i], strlen(bad[i]), &c, NULL), -EINVAL);
}

/* --- our own store -------------------------------------------------------------------------- */

static void remember(void *ctx, const char *registry, const char *username)
{
    char *all = ctx;
    (void)strcat(all, registry);
    (void)strcat(all, "=");
    (void)strcat(all, username);
    (void)strcat(all, " ");
}

static void auth_store(void **state)
{
    char home[] = "/tmp/msb-test-auth-XXXXXX", all[256] = "";
    assert_non_null(mkdtemp(home));
    struct credentials c = {.username = strdup("u"), .password = strdup("p:q")}, got = {0};
    struct err e = {0};
    assert_int_equal(auth_store_get(home, "a.example", &got, &e), -ENOENT);
    assert_int_equal(auth_store_each(home, remember, all, &e), 0);
    assert_string_equal(all, "");
    assert_int_equal(auth_store_put(home, "b.example", &c, &e), 0);
    assert_int_equal(auth_store_put(home, "a.example:5000", &c, &e), 0);
    assert_int_equal(auth_store_put(home, "docker.io", &c, &e), 0);
    assert_int_equal(auth_store_get(home, "docker.io", &got, &e), 0);
    assert_string_equal(got.password, "p:q");
    credentials_free(&got);
    assert_int_equal(auth_store_get(home, "a.example", &got, &e), -ENOENT);
    assert_int_equal(auth_store_each(home, remember, all, &e), 0);
    assert_string_equal(all, "a.example:5000=u b.example=u docker.io=u ");
    assert_int_equal(auth_store_remove(home, "b.example", &e), 0);
    assert_int_equal(auth_store_remove(home, "b.example", &e), -ENOENT);
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/registry/auth.json", home);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* Damage is named, and not taken for an empty file that may be replaced. */
    assert_int_equal(truncate(path, 7), 0);
    assert_int_equal(auth_store_put(home, "c.example", &c, &e), -EINVAL);
    credentials_free(&c);
    assert_int_equal(remove_tree_at(AT_FDCWD, home), 0);
}

/* --- settings ------------------------------------------------------------------------------- */

static void settings(void **state)
{
    static const char text[] =
        "{\"registries\": {\"docker.io\": {\"mirrors\": [\"https://m.example/hub\", \"n:5000\"]},"
        " \"Lan:5000\": {\"insecure\": true}, \"corp\": {\"ca_certs\": \"/x.pem\"}}}";
    struct registry_settings s;
    struct err e = {0};
    assert_int_equal(settings_parse(text, strlen(text), "docker.io", &s, &e), 0);
    assert_int_equal(s.mirrors.n, 2);
    assert_string_equal(s.mirrors.v[1], "n:5000");
    assert_false(s.insecure);
    settings_free(&s);
    assert_int_equal(settings_parse(text, strlen(text), "lan:5000", &s, &e), 0);
    assert_true(s.insecure);
    settings_free(&s);
    assert_int_equal(settings_parse(text, strlen(text), "corp", &s, &e), 0);
    assert_string_equal(s.ca_certs, "/x.pem");
    settings_free(&s);
    assert_int_equal(settings_parse(text, strlen(text), "x", &s, &e), -ENOENT);
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"registries\": []}",
        "{\"registries\": {}, \"more\": 1}",
        "{\"registries\": {\"x\": 1}}",
        "{\"registries\": {\"x\": {\"insecur\": true}}}",
        "{\"registries\": {\"x\": {\"insecure\": \"yes\"}}}",
        "{\"registries\": {\"x\": {\"ca_certs\": \"relative.pem\"}}}",
        "{\"registries\": {\"x\": {\"mirrors\": \"m\"}}}",
        "{\"registries\": {\"x\": {\"mirrors\": [5]}}}",
        "{\"registries\": {\"x\": {\"mirrors\": [\"ftp://m\"]}}}",
        "{\"registries\": {\"x\": {\"mirrors\": [\"https://u:p@m\"]}}}",
        "{\"registries\": {\"x\": {\"mirrors\": [\"https://m?q\"]}}}",
        "{\"registries\": {\"x\": {\"mirrors\": [\"https://\"]}}}",
        ("{\"registries\": {\"x\": {\"mirrors\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\"]}}}")};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        print_message("%s\n", bad[i]);
        assert_int_equal(settings_parse(bad[i], strlen(bad[i]), "y", &s, &e), -EINVAL);
    }
}

/* --- addresses ------------------------------------------------------------------------------ */

static void addresses(void **state)
{
    static const struct {
        const char *host;
        unsigned kind;
    } cases[] = {
        {"127.0.0.1", ADDRESS_LOOPBACK},
        {"127.9.9.9", ADDRESS_LOOPBACK},
        {"0.0.0.0", ADDRESS_LOOPBACK},
        {"localhost", ADDRESS_LOOPBACK},
        {"LOCALHOST.", ADDRESS_LOOPBACK},
        {"a.localhost", ADDRESS_LOOPBACK},
        {"[::1]", ADDRESS_LOOPBACK},
        {"::1", ADDRESS_LOOPBACK},
        {"[::]", ADDRESS_LOOPBACK},
        {"[::5]", ADDRESS_LOOPBACK},
        {"[::ffff:127.0.0.1]", ADDRESS_LOOPBACK},
        {"[64:ff9b::7f00:1]", ADDRESS_LOOPBACK},
        {"[2002:7f00:1::]", ADDRESS_LOOPBACK},
        {"2130706433", ADDRESS_LOOPBACK},
        {"0x7f.1", ADDRESS_LOOPBACK},
        {"169.254.169.254", ADDRESS_META},
        {"2852039166", ADDRESS_META},
        {"0251.0376.0251.0376", ADDRESS_META},
        {"169.254.1.1", ADDRESS_LINK_LOCAL},
        {"[fe80::1%25eth0]", ADDRESS_LINK_LOCAL},
        {"[fd00:ec2::254]", ADDRESS_META},
        {"[::ffff:a9fe:a9fe]", ADDRESS_META},
        {"100.100.100.200", ADDRESS_META},
        {"192.0.0.192", ADDRESS_META},
        {"168.63.129.16", ADDRESS_META},
        {"2822734096", ADDRESS_META},
        {"[fd20:ce::254]", ADDRESS_META},
        {"[::ffff:168.63.129.16]", ADDRESS_META},
        {"[::168.63.129.16]", ADDRESS_META},
        {"[64:ff9b::a83f:8110]", ADDRESS_META},
        {"[2002:a83f:8110::1]", ADDRESS_META},
        {"10.0.0.1", 0},
        {"192.168.1.1", 0},
        {"8.8.8.8", 0},
        {"[2001:db8::1]", 0},
        {"example.com", 0},
        {"localhost.example.com", 0},
        {"notlocalhost", 0},
        {"", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (address_kind_text(cases[i].host) != cases[i].kind)
            fail_msg("%s: %u", cases[i].host, address_kind_text(cases[i].host));
}

static void origins(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"https://a/x", "https://a/y?z", true},  {"https://a/", "https://a:443/", true},
        {"http://a/", "http://A:80/", true},     {"https://a/", "http://a/", false},
        {"https://a/", "https://a:444/", false}, {"https://a/", "https://a.b/", false},
        {"https://a/", "https://a@b/", false},   {"https://a/", "https://b@a/", true},
        {"https://a/", "nonsense://", false},    {"https://a/", "", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (http_same_origin(cases[i].a, cases[i].b) != cases[i].same)
            fail_msg("%s %s", cases[i].a, cases[i].b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(challenges),     cmocka_unit_test(docker_config),
        cmocka_unit_test(docker_helpers), cmocka_unit_test(helper_answers),
        cmocka_unit_test(auth_store),     cmocka_unit_test(settings),
        cmocka_unit_test(addresses),      cmocka_unit_test(origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
