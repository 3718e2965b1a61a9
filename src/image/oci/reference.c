#include "image/oci/reference.h"

#include "util/cleanup.h"
#include "util/parse.h"
#include "util/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define HUB_OFFICIAL "library/"
/* An old name of Docker Hub. */
#define HUB_OLD "index." REFERENCE_HUB

#define IMAGE_EXAMPLES \
    "an image is named like alpine:3, user/app or registry.example.com/team/app:1.0"

static bool is_lower_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static int __attribute__((format(printf, 3, 4)))
refuse(struct err *e, const char *text, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(e, EINVAL, "invalid image reference '%.*s': %s", 300, text, why);
}

/* --- registry ------------------------------------------------------------------------------- */

/* Labels of letters, digits and inner hyphens, separated by dots. */
static bool host_valid(const char *s, size_t n)
{
    bool inside = false; /* inside a label that is not empty */
    for (size_t i = 0; i < n; i++) {
        if (ascii_alnum(s[i]))
            inside = true;
        else if (s[i] == '-' && inside && i + 1 < n && s[i + 1] != '.')
            continue;
        else if (s[i] == '.' && inside)
            inside = false;
        else
            return false;
    }
    return inside;
}

/* The end of "[...]", or NULL. Its content is checked when connecting. */
static const char *ipv6_end(const char *s, const char *end)
{
    const char *p = s + 1;
    while (p < end && (isxdigit((unsigned char)*p) || *p == ':' || *p == '.'))
        p++;
    return p < end && *p == ']' && p > s + 2 ? p + 1 : NULL;
}

static int parse_registry(const char *text, const char *s, size_t n, char **ret, struct err *e)
{
    const char *end = s + n;
    const char *colon = NULL;
    if (*s == '[') {
        colon = ipv6_end(s, end);
        if (!colon || (colon < end && *colon != ':'))
            return refuse(e, text, "'%.*s' is not an address in brackets", (int)n, s);
    } else {
        colon = memchr(s, ':', n);
        colon = colon ? colon : end;
        if (!host_valid(s, (size_t)(colon - s)))
            return refuse(e, text, "'%.*s' is not a valid host name", (int)(colon - s), s);
    }
    if (colon < end) {
        char port[8];
        uint64_t value;
        size_t len = (size_t)(end - colon - 1);
        (void)snprintf(port, sizeof(port), "%.*s", (int)MIN(len, sizeof(port)), colon + 1);
        if (len >= sizeof(port) || parse_u64(port, &value) < 0 || value < 1 || value > 65535)
            return refuse(e, text, "'%.*s' is not a valid port (1 to 65535)", (int)len, colon + 1);
    }
    char *registry = strndup(s, n);
    if (!registry)
        return err_oom(e);
    for (char *p = registry; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    if (strcmp(registry, HUB_OLD) == 0)
        memmove(registry, registry + strlen("index."), strlen(REFERENCE_HUB) + 1);
    *ret = registry;
    return 0;
}

/* --- repository ----------------------------------------------------------------------------- */

/* Characters between runs of letters and digits: one dot, one or two underscores, or hyphens. */
static size_t separator(const char *s, size_t n)
{
    size_t len = 0;
    while (len < n && s[len] == s[0])
        len++;
    switch (s[0]) {
    case '.':
        return len == 1 ? 1 : 0;
    case '_':
        return len <= 2 ? len : 0;
    case '-':
        return len;
    default:
        return 0;
    }
}

static bool component_valid(const char *s, size_t n)
{
    bool need = true; /* a letter or digit must come next */
    for (size_t i = 0; i < n;) {
        if (is_lower_alnum(s[i])) {
            need = false;
            i++;
            continue;
        }
        size_t len = need ? 0 : separator(s + i, n - i);
        if (len == 0)
            return false;
        need = true;
        i += len;
    }
    return !need;
}

static bool has_upper(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] >= 'A' && s[i] <= 'Z')
            return true;
    return false;
}

static int too_long(const char *text, struct err *e)
{
    return refuse(e, text, "the repository has more than %d characters", REFERENCE_REPOSITORY_MAX);
}

static int check_repository(const char *text, const char *s, size_t n, struct err *e)
{
    if (n == 0)
        return refuse(e, text, "it has no repository");
    if (n > REFERENCE_REPOSITORY_MAX)
        return too_long(text, e);
    for (const char *p = s, *end = s + n;;) {
        const char *slash = memchr(p, '/', (size_t)(end - p));
        size_t len = (size_t)((slash ? slash : end) - p);
        if (has_upper(p, len))
            return refuse(e, text, "repository names are lower-case: '%.*s'", (int)len, p);
        if (len == 0)
            return refuse(e, text, "a part between slashes is empty");
        if (!component_valid(p, len))
            return refuse(
                e, text,
                "'%.*s' is not valid in a repository name (letters and digits, with single "
                "'.', '_' or '-' between them)",
                (int)len, p);
        if (!slash)
            return 0;
        p = slash + 1;
    }
}

/* Whether the first component of a name is a registry rather than a user of Docker Hub. */
static bool is_registry(const char *s, size_t n)
{
    return memchr(s, '.', n) || memchr(s, ':', n) || *s == '[' ||
           (n == 9 && strncasecmp(s, "localhost", 9) == 0);
}

/* "alpine" is on Docker Hub; so is "user/app"; anything else begins with its registry. */
static int parse_name(const char *text, const char *s, size_t n, struct reference *r, struct err *e)
{
    const char *slash = memchr(s, '/', n);
    size_t first = slash ? (size_t)(slash - s) : 0;
    bool registry = slash && is_registry(s, first);
    const char *path = registry ? slash + 1 : s;
    size_t len = n - (size_t)(path - s);
    int ret = check_repository(text, path, len, e);
    if (ret == 0 && registry)
        ret = parse_registry(text, s, first, &r->registry, e);
    if (ret < 0)
        return ret;
    if (!registry)
        r->registry = strdup(REFERENCE_HUB);
    bool official =
        r->registry && strcmp(r->registry, REFERENCE_HUB) == 0 && !memchr(path, '/', len);
    if (!r->registry ||
        asprintf(&r->repository, "%s%.*s", official ? HUB_OFFICIAL : "", (int)len, path) < 0) {
        r->repository = NULL;
        return err_oom(e);
    }
    return strlen(r->repository) <= REFERENCE_REPOSITORY_MAX ? 0 : too_long(text, e);
}

/* --- tag and digest ------------------------------------------------------------------------- */

static int parse_tag(const char *text, const char *s, size_t n, char **ret, struct err *e)
{
    if (n == 0)
        return refuse(e, text, "the tag after ':' is empty");
    if (n > REFERENCE_TAG_MAX)
        return refuse(e, text, "the tag has more than %d characters", REFERENCE_TAG_MAX);
    for (size_t i = 0; i < n; i++)
        if (!ascii_alnum(s[i]) && s[i] != '_' && (i == 0 || (s[i] != '.' && s[i] != '-')))
            return refuse(e, text, "'%.*s' is not a valid tag (letters, digits, '_', '.' and '-')",
                          (int)n, s);
    *ret = strndup(s, n);
    return *ret ? 0 : err_oom(e);
}

static int parse_digest(const char *text, const char *s, char **ret, struct err *e)
{
    struct digest d;
    int r = digest_parse(s, &d, e);
    if (r < 0)
        return err_wrap(e, r, "invalid image reference '%.*s'", 300, text);
    *ret = strdup(s);
    return *ret ? 0 : err_oom(e);
}

/* --- the whole ------------------------------------------------------------------------------ */

/* Docker takes 64 hex digits as an image's id. */
static bool is_id(const char *s)
{
    return strlen(s) == DIGEST_HEX_SIZE - 1 && strspn(s, "0123456789abcdef") == strlen(s);
}

/* Mistakes that deserve a message of their own. */
static int check_text(const char *text, struct err *e)
{
    size_t n = strlen(text);
    if (n == 0)
        return err_set(e, EINVAL, "the image reference is empty");
    if (n > REFERENCE_MAX)
        return err_set(e, EINVAL, "the image reference has more than %d characters: '%.40s...'",
                       REFERENCE_MAX, text);
    const char *scheme = strstr(text, "://");
    if (scheme)
        return refuse(e, text, "leave out '%.*s'", (int)MIN(scheme + 3 - text, 40), text);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return refuse(e, text, "it has a space or a character that is not ASCII");
    struct digest d;
    if (digest_parse(text, &d, NULL) == 0)
        return refuse(e, text, "a digest alone does not name an image; write NAME@%.*s...", 19,
                      text);
    if (is_id(text))
        return refuse(e, text, "it is an id, not a name; by digest it is NAME@sha256:...");
    return 0;
}

static int parse_parts(const char *text, struct reference *r, struct err *e)
{
    int ret = check_text(text, e);
    if (ret < 0)
        return ret;
    const char *end = strchr(text, '@');
    if (end)
        ret = parse_digest(text, end + 1, &r->digest, e);
    else
        end = text + strlen(text);
    const char *last = memrchr(text, '/', (size_t)(end - text));
    last = last ? last + 1 : text;
    const char *colon = memchr(last, ':', (size_t)(end - last));
    const char *name_end = colon ? colon : end;
    if (ret == 0)
        ret = parse_name(text, text, (size_t)(name_end - text), r, e);
    if (ret == 0 && colon)
        ret = parse_tag(text, colon + 1, (size_t)(end - colon - 1), &r->tag, e);
    if (ret == 0 && !r->tag && !r->digest) {
        r->tag = strdup("latest");
        ret = r->tag ? 0 : err_oom(e);
    }
    return ret;
}

int reference_parse(const char *text, struct reference *ret, struct err *e)
{
    struct reference r = {0};
    int code = parse_parts(text, &r, e);
    if (code < 0) {
        reference_free(&r);
        err_hint(e, IMAGE_EXAMPLES);
        return code;
    }
    *ret = r;
    return 0;
}

void reference_free(struct reference *r)
{
    free(r->registry);
    free(r->repository);
    free(r->tag);
    free(r->digest);
    *r = (struct reference){0};
}

static char *spell(const struct reference *r, const char *registry, const char *repository)
{
    char *s;
    if (asprintf(&s, "%s%s%s%s%s%s%s", registry, *registry ? "/" : "", repository,
                 r->tag ? ":" : "", r->tag ? r->tag : "", r->digest ? "@" : "",
                 r->digest ? r->digest : "") < 0)
        return NULL;
    return s;
}

char *reference_full(const struct reference *r)
{
    return spell(r, r->registry, r->repository);
}

char *reference_familiar(const struct reference *r)
{
    if (strcmp(r->registry, REFERENCE_HUB) != 0)
        return reference_full(r);
    const char *slash = strchr(r->repository, '/');
    if (slash && is_registry(r->repository, (size_t)(slash - r->repository)))
        return reference_full(r); /* otherwise, it would be parsed differently */
    size_t official = strlen(HUB_OFFICIAL);
    bool short_name = strncmp(r->repository, HUB_OFFICIAL, official) == 0 &&
                      !strchr(r->repository + official, '/') &&
                      strcmp(r->repository + official, "sha256") != 0; /* looks like a digest */
    return spell(r, "", r->repository + (short_name ? official : 0));
}
