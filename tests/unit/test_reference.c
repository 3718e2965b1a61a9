/* Image references: Docker's grammar, and what is said of those outside it. */
#include "image/oci/reference.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DIGEST "sha256:" D64

static void good(void **state)
{
    static const struct {
        const char *text, *registry, *repository, *tag, *digest, *full, *familiar;
    } cases[] = {
        {"alpine", "docker.io", "library/alpine", "latest", NULL, "docker.io/library/alpine:latest",
         "alpine:latest"},
        {"alpine:3", "docker.io", "library/alpine", "3", NULL, "docker.io/library/alpine:3",
         "alpine:3"},
        {"user/app", "docker.io", "user/app", "latest", NULL, "docker.io/user/app:latest",
         "user/app:latest"},
        {"library/alpine", "docker.io", "library/alpine", "latest", NULL,
         "docker.io/library/alpine:latest", "alpine:latest"},
        {"docker.io/alpine", "docker.io", "library/alpine", "latest", NULL,
         "docker.io/library/alpine:latest", "alpine:latest"},
        {"index.docker.io/a/b:1", "docker.io", "a/b", "1", NULL, "docker.io/a/b:1", "a/b:1"},
        {"docker.io/library/a/b", "docker.io", "library/a/b", "latest", NULL,
         "docker.io/library/a/b:latest", "library/a/b:latest"},
        {"ghcr.io/a/b/c:v1.0-rc_2", "ghcr.io", "a/b/c", "v1.0-rc_2", NULL,
         "ghcr.io/a/b/c:v1.0-rc_2", "ghcr.io/a/b/c:v1.0-rc_2"},
        {"localhost/app", "localhost", "app", "latest", NULL, "localhost/app:latest",
         "localhost/app:latest"},
        {"localhost:5000/app", "localhost:5000", "app", "latest", NULL, "localhost:5000/app:latest",
         "localhost:5000/app:latest"},
        /* Without a slash there is no registry, whatever it looks like. */
        {"localhost:5000", "docker.io", "library/localhost", "5000", NULL,
         "docker.io/library/localhost:5000", "localhost:5000"},
        {"host:80/app:1", "host:80", "app", "1", NULL, "host:80/app:1", "host:80/app:1"},
        {"127.0.0.1:5000/a/b", "127.0.0.1:5000", "a/b", "latest", NULL, "127.0.0.1:5000/a/b:latest",
         "127.0.0.1:5000/a/b:latest"},
        {"[::1]:5000/a:2", "[::1]:5000", "a", "2", NULL, "[::1]:5000/a:2", "[::1]:5000/a:2"},
        {"[fd00::1]/a", "[fd00::1]", "a", "latest", NULL, "[fd00::1]/a:latest",
         "[fd00::1]/a:latest"},
        {"Registry.EXAMPLE.com/a", "registry.example.com", "a", "latest", NULL,
         "registry.example.com/a:latest", "registry.example.com/a:latest"},
        {"alpine@" DIGEST, "docker.io", "library/alpine", NULL, DIGEST,
         "docker.io/library/alpine@" DIGEST, "alpine@" DIGEST},
        {"alpine:3@" DIGEST, "docker.io", "library/alpine", "3", DIGEST,
         "docker.io/library/alpine:3@" DIGEST, "alpine:3@" DIGEST},
        {"localhost:5000/a@" DIGEST, "localhost:5000", "a", NULL, DIGEST,
         "localhost:5000/a@" DIGEST, "localhost:5000/a@" DIGEST},
        {"a.b/c-d__e.f---g", "a.b", "c-d__e.f---g", "latest", NULL, "a.b/c-d__e.f---g:latest",
         "a.b/c-d__e.f---g:latest"},
        {"docker.io/a.b/c", "docker.io", "a.b/c", "latest", NULL, "docker.io/a.b/c:latest",
         "docker.io/a.b/c:latest"},
        {"sha256:1", "docker.io", "library/sha256", "1", NULL, "docker.io/library/sha256:1",
         "library/sha256:1"},
        {"x:_Tag", "docker.io", "library/x", "_Tag", NULL, "docker.io/library/x:_Tag", "x:_Tag"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct reference r;
        struct err e = {0};
        if (reference_parse(cases[i].text, &r, &e) < 0)
            fail_msg("'%s': %s", cases[i].text, e.msg);
        assert_string_equal(r.registry, cases[i].registry);
        assert_string_equal(r.repository, cases[i].repository);
        assert_int_equal(!r.tag, !cases[i].tag);
        assert_int_equal(!r.digest, !cases[i].digest);
        if (r.tag)
            assert_string_equal(r.tag, cases[i].tag);
        if (r.digest)
            assert_string_equal(r.digest, cases[i].digest);
        AUTO_FREE char *full = reference_full(&r);
        AUTO_FREE char *familiar = reference_familiar(&r);
        assert_string_equal(full, cases[i].full);
        assert_string_equal(familiar, cases[i].familiar);
        reference_free(&r);
    }
}

static void bad(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "empty"},
        {"Alpine", "lower-case"},
        {"User/app", "lower-case"},
        {"ghcr.io/User/app", "lower-case"},
        {"https://ghcr.io/a/b", "leave out 'https://'"},
        {"docker://alpine", "leave out 'docker://'"},
        {"alpine:", "tag after ':' is empty"},
        {"alpine:3:4", "'3:4' is not a valid tag"},
        {"alpine:.3", "not a valid tag"},
        {"alpine:-3", "not a valid tag"},
        {"alpine 3", "space"},
        {"alpine\n", "space"},
        {"alp\xc3\xa9", "not ASCII"},
        {DIGEST, "does not name an image"},
        {D64, "an id"},
        {"alpine@", "invalid digest"},
        {"alpine@sha256:123", "invalid digest"},
        {"alpine@sha512:" D64 D64, "other than sha256"},
        {"alpine@" DIGEST "@" DIGEST, "invalid digest"},
        {"@" DIGEST, "no repository"},
        {":3", "no repository"},
        {"ghcr.io/", "no repository"},
        {"/a", "between slashes"},
        {"a//b", "between slashes"},
        {"a/b/", "between slashes"},
        {"a___b", "not valid in a repository name"},
        {"a..b", "not valid in a repository name"},
        {"-a", "not valid in a repository name"},
        {"a-", "not valid in a repository name"},
        {"a._b", "not valid in a repository name"},
        {"../a", "not a valid host name"},
        {"./a", "not a valid host name"},
        {"a..b/c", "not a valid host name"},
        {"-a.b/c", "not a valid host name"},
        {"a-.b/c", "not a valid host name"},
        {"a_b.c/d", "not a valid host name"},
        {"host:0/a", "not a valid port"},
        {"host:65536/a", "not a valid port"},
        {"host:99999999/a", "not a valid port"},
        {"host:/a", "not a valid port"},
        {"host:5x/a", "not a valid port"},
        {"[::1/a", "brackets"},
        {"[]/a", "brackets"},
        {"[::1]x/a", "brackets"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct reference r = {.tag = (char *)1};
        struct err e = {0};
        if (reference_parse(cases[i].text, &r, &e) == 0)
            fail_msg("'%s' is accepted", cases[i].text);
        if (!strstr(e.msg, cases[i].says))
            fail_msg("'%s': no '%s' in: %s", cases[i].text, cases[i].says, e.msg);
        assert_ptr_equal(r.tag, (char *)1); /* untouched */
        assert_int_equal(e.hints, 1);
    }
}

static void limits(void **state)
{
    char text[REFERENCE_MAX + 2];
    struct reference r;
    struct err e = {0};
    memset(text, 'a', sizeof(text));
    text[REFERENCE_MAX + 1] = '\0';
    assert_int_equal(reference_parse(text, &r, &e), -EINVAL);
    text[REFERENCE_REPOSITORY_MAX + 1] = '\0';
    assert_int_equal(reference_parse(text, &r, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "more than 255"));
    text[REFERENCE_REPOSITORY_MAX] = '\0'; /* "library/" comes before it */
    assert_int_equal(reference_parse(text, &r, &e), -EINVAL);
    text[REFERENCE_REPOSITORY_MAX - strlen("library/")] = '\0';
    assert_int_equal(reference_parse(text, &r, &e), 0);
    reference_free(&r);
    text[1] = ':';
    text[2 + REFERENCE_TAG_MAX] = '\0';
    assert_int_equal(reference_parse(text, &r, &e), 0);
    reference_free(&r);
    text[2 + REFERENCE_TAG_MAX] = 'a';
    text[3 + REFERENCE_TAG_MAX] = '\0';
    assert_int_equal(reference_parse(text, &r, &e), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),
        cmocka_unit_test(bad),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
