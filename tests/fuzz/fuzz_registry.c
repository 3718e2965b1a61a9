/* Texts that registries, helper programs and configuration files hold: nothing in them may crash
 * the parsers or come out as something a header, a URL or a program's name must not contain. The
 * first byte picks the parser. */
#include "fuzz_require.h"
#include "registry/challenge.h"
#include "registry/credentials.h"
#include "registry/settings.h"

#include <stdint.h>
#include <string.h>

static void fuzz_challenge(const char *text)
{
    struct challenge c;
    int r = challenge_parse(text, &c);
    REQUIRE(r == 0 || (!c.realm && !c.service && !c.scope));
    if (c.scheme == CHALLENGE_NONE)
        REQUIRE(!c.realm && !c.service && !c.scope);
    challenge_free(&c);
}

static void fuzz_docker(const char *text, size_t n)
{
    struct docker_auth a;
    struct err e = {0};
    if (docker_config_lookup(text, n, "docker.io", &a, &e) == 0) {
        REQUIRE(a.helper || a.found.identity_token || (a.found.username && a.found.password));
        REQUIRE(!a.helper || (!strchr(a.helper, '/') && *a.helper));
        REQUIRE(!a.found.username || !strchr(a.found.username, ':') || !a.found.password ||
                *a.found.username);
        if (a.found.username && a.found.password) {
            char *basic = credentials_basic(&a.found);
            REQUIRE(basic && !strpbrk(basic, "\r\n"));
            free(basic);
        }
        docker_auth_free(&a);
    }
}

static void fuzz_helper(const char *text, size_t n)
{
    struct credentials c;
    if (credential_helper_parse(text, n, &c, NULL) == 0) {
        REQUIRE(c.identity_token || (c.username && c.password));
        credentials_free(&c);
    }
}

static void fuzz_settings(const char *text, size_t n)
{
    struct registry_settings s;
    struct err e = {0};
    if (settings_parse(text, n, "docker.io", &s, &e) == 0) {
        REQUIRE(s.mirrors.n <= SETTINGS_MIRRORS_MAX);
        REQUIRE(!s.ca_certs || s.ca_certs[0] == '/');
        for (size_t i = 0; i < s.mirrors.n; i++)
            REQUIRE(!strpbrk(s.mirrors.v[i], "@?# \r\n"));
        settings_free(&s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    char *text = malloc(size);
    REQUIRE(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] & 3) {
    case 0:
        fuzz_challenge(text);
        break;
    case 1:
        fuzz_docker(text, size - 1);
        break;
    case 2:
        fuzz_helper(text, size - 1);
        break;
    default:
        fuzz_settings(text, size - 1);
        break;
    }
    free(text);
    return 0;
}
