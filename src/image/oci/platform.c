/* Platforms: what an image was built for, and whether that runs here. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/oci/oci.h"
#include "util/cleanup.h"
#include "util/words.h"

enum { PART_MAX = 32 };

/* Other spellings, as uname, dpkg and Windows have them. */
static const struct {
    const char *spelling, *architecture, *variant;
} spellings[] = {
    {"x86_64", "amd64", NULL}, {"x86-64", "amd64", NULL}, {"aarch64", "arm64", NULL},
    {"i386", "386", NULL},     {"i686", "386", NULL},     {"armhf", "arm", "v7"},
    {"armel", "arm", "v6"},
};

#define SYSTEMS \
    "linux|windows|darwin|freebsd|netbsd|openbsd|solaris|illumos|android|aix|plan9|wasip1"

static const char *host_architecture(void)
{
#if defined(__x86_64__)
    return "amd64";
#elif defined(__aarch64__)
    return "arm64";
#else
#error "no name for this architecture"
#endif
}

void oci_platform_free(struct oci_platform *p)
{
    free(p->os);
    free(p->architecture);
    free(p->variant);
    *p = (struct oci_platform){0};
}

void oci_platform_host(struct oci_platform *ret)
{
    *ret =
        (struct oci_platform){.os = strdup("linux"), .architecture = strdup(host_architecture())};
}

static const char *part_text(const char *s)
{
    return s && *s ? s : "unknown";
}

void oci_platform_text(const struct oci_platform *p, char text[OCI_PLATFORM_TEXT])
{
    bool variant = p->variant && *p->variant;
    (void)snprintf(text, OCI_PLATFORM_TEXT, "%.32s/%.32s%s%.32s", part_text(p->os),
                   part_text(p->architecture), variant ? "/" : "", variant ? p->variant : "");
}

/* Splits at '/', lower-cases, checks. Returns the number of parts, or 0. */
static size_t split(const char *text, char part[3][PART_MAX + 1])
{
    size_t n = 0, k = 0;
    memset(part, 0, 3 * (size_t)(PART_MAX + 1));
    for (const char *p = text;; p++) {
        if (*p == '/' || !*p) {
            if (!k)
                return 0;
            n++;
            k = 0;
            if (!*p)
                return n;
            if (n == 3)
                return 0;
            continue;
        }
        if (k == PART_MAX || (!isalnum((unsigned char)*p) && !strchr("._-", *p)))
            return 0;
        part[n][k++] = (char)tolower((unsigned char)*p);
    }
}

int oci_platform_parse(const char *text, struct oci_platform *ret, struct err *e)
{
    char part[3][PART_MAX + 1];
    size_t n = split(text, part);
    const char *os = part[0], *arch = part[1], *variant = n == 3 ? part[2] : NULL;
    if (n == 1 && word_among(SYSTEMS, part[0])) {
        arch = host_architecture();
    } else if (n == 1) {
        os = "linux";
        arch = part[0];
    } else if (n == 0) {
        return err_hinted(e, err_set(e, EINVAL, "invalid platform '%.64s'", text),
                          "write OS/ARCHITECTURE[/VARIANT], such as linux/amd64 or linux/arm64/v8");
    }
    for (size_t i = 0; i < ARRAY_LEN(spellings); i++)
        if (strcmp(arch, spellings[i].spelling) == 0) {
            arch = spellings[i].architecture;
            variant = variant ? variant : spellings[i].variant;
            break;
        }
    struct oci_platform p = {.os = strdup(os), .architecture = strdup(arch)};
    if (variant)
        p.variant = strdup(variant);
    if (!p.os || !p.architecture || (variant && !p.variant)) {
        oci_platform_free(&p);
        return err_oom(e);
    }
    *ret = p;
    return 0;
}

/* "v8" is 800, "v8.2" 802, none is the architecture's first. 0: not a number. */
static unsigned variant_rank(const char *architecture, const char *v)
{
    if (!v || !*v) {
        if (strcmp(architecture, "arm64") == 0)
            return 800;
        return strcmp(architecture, "arm") == 0 ? 700 : 100;
    }
    unsigned major = 0, minor = 0;
    const char *p = v + (*v == 'v');
    for (; isdigit((unsigned char)*p) && major < 100; p++)
        major = major * 10 + (unsigned)(*p - '0');
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p) && minor < 10; p++)
            minor = minor * 10 + (unsigned)(*p - '0');
    return *p || !major ? 0 : major * 100 + minor;
}

static bool same_text(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

unsigned oci_platform_match(const struct oci_platform *have, const struct oci_platform *want)
{
    if (!same_text(have->os, want->os) || !same_text(have->architecture, want->architecture))
        return 0;
    if (same_text(have->variant, want->variant))
        return 1000000;
    unsigned h = variant_rank(have->architecture, have->variant);
    unsigned w = variant_rank(want->architecture, want->variant);
    return h && w && h <= w ? h : 0;
}
