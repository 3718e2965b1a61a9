#include "workspace/ignore.h"

#include "util/fs.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX (2ULL * 1000 * 1000 * 1000)

/* --- one pattern ----------------------------------------------------------------------------- */

static bool in_named_class(const char *name, size_t n, unsigned char c, bool *known)
{
    static const struct {
        const char *name;
        int (*is)(int c);
    } classes[] = {{"alnum", isalnum}, {"alpha", isalpha}, {"blank", isblank},
                   {"cntrl", iscntrl}, {"digit", isdigit}, {"graph", isgraph},
                   {"lower", islower}, {"print", isprint}, {"punct", ispunct},
                   {"space", isspace}, {"upper", isupper}, {"xdigit", isxdigit}};
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (strlen(classes[i].name) == n && memcmp(classes[i].name, name, n) == 0)
            return classes[i].is(c);
    *known = false;
    return false;
}

/* One element of "[...]" at *p: a character, a range or a named class. NULL: it has no end. */
static const char *class_element(const char *p, unsigned char c, bool *matched)
{
    if (p[0] == '[' && p[1] == ':') {
        const char *end = strchr(p + 2, ']');
        bool known = true;
        if (!end)
            return NULL;
        if (end > p + 2 && end[-1] == ':') {
            *matched |= in_named_class(p + 2, (size_t)(end - p) - 3, c, &known);
            return known ? end + 1 : NULL;
        }
    }
    p += *p == '\\';
    if (!*p)
        return NULL;
    unsigned char low = (unsigned char)*p++, high = low;
    if (p[0] == '-' && p[1] && p[1] != ']') {
        p++;
        p += *p == '\\';
        if (!*p)
            return NULL;
        high = (unsigned char)*p++;
    }
    *matched |= c >= low && c <= high;
    return p;
}

/* What follows "[...]" if c is in it; NULL. */
static const char *match_class(const char *p, unsigned char c)
{
    bool negated = *p == '!' || *p == '^', matched = false;
    p += negated;
    do {
        p = class_element(p, c, &matched);
        if (!p || !*p)
            return NULL;
    } while (*p != ']');
    return matched != negated && c != '/' ? p + 1 : NULL;
}

/* What follows the element at p if it matches c, which is not the end; NULL. */
static const char *match_one(const char *p, unsigned char c)
{
    switch (*p) {
    case '?':
        return c != '/' ? p + 1 : NULL;
    case '[':
        return match_class(p + 1, c);
    case '\\':
        return p[1] && (unsigned char)p[1] == c ? p + 2 : NULL;
    default:
        return (unsigned char)*p == c ? p + 1 : NULL;
    }
}

/* Where to continue after a mismatch: one more character for the last "*", or one more directory
 * for the last "**". Earlier ones need not be retried: the last ones can match whatever they would
 * leave. */
struct retry {
    const char *star, *star_at; /* what follows it in the pattern; where it ends in the text */
    const char *deep, *deep_at;
};

static bool try_again(struct retry *r, const char **p, const char **t)
{
    if (r->star && *r->star_at && *r->star_at != '/') {
        *t = ++r->star_at;
        *p = r->star;
        return true;
    }
    const char *slash = r->deep ? strchr(r->deep_at, '/') : NULL;
    if (!slash)
        return false;
    *t = r->deep_at = slash + 1;
    *p = r->deep;
    r->star = NULL;
    return true;
}

static bool match(const char *pattern, const char *text, uint64_t *steps)
{
    struct retry r = {0};
    const char *p = pattern, *t = text;
    for (;;) {
        ++*steps;
        if (*p == '*') {
            const char *run = p;
            p += strspn(p, "*");
            bool whole = p - run > 1 && (run == pattern || run[-1] == '/');
            if (whole && !*p)
                return true;
            if (whole && *p == '/') {
                r = (struct retry){.deep = ++p, .deep_at = t};
                continue;
            }
            r.star = p;
            r.star_at = t;
            continue;
        }
        if (!*p && !*t)
            return true;
        const char *next = *p && *t ? match_one(p, (unsigned char)*t) : NULL;
        if (next) {
            p = next;
            t++;
        } else if (!try_again(&r, &p, &t)) {
            return false;
        }
    }
}

/* --- the list -------------------------------------------------------------------------------- */

void ignore_free(struct ignore *g)
{
    free(g->text);
    free(g->v);
    *g = (struct ignore){0};
}

/* Spaces at the end count only after a backslash. */
static void trim(char *line)
{
    char *spaces = NULL;
    for (char *p = line; *p; p++) {
        if (*p == ' ') {
            spaces = spaces ? spaces : p;
            continue;
        }
        spaces = NULL;
        if (*p == '\\' && !*++p)
            return;
    }
    if (spaces)
        *spaces = '\0';
}

static struct ignore_rule rule_of(char *line)
{
    struct ignore_rule r = {.keep = *line == '!'};
    line += r.keep;
    size_t n = strlen(line);
    r.dir_only = n && line[n - 1] == '/';
    if (r.dir_only)
        line[n - 1] = '\0';
    r.base = !strchr(line, '/');
    r.pattern = line + (*line == '/');
    return r;
}

int ignore_parse(const char *text, size_t n, struct ignore *ret)
{
    AUTO_IGNORE struct ignore g = {.text = malloc(n + 1),
                                   .v = calloc(IGNORE_RULES_MAX, sizeof(*g.v))};
    if (!g.text || !g.v)
        return -ENOMEM;
    memcpy(g.text, text, n);
    g.text[n] = '\0';
    char *next = g.text + (strncmp(g.text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
    for (char *line; (line = strsep(&next, "\n"));) {
        size_t len = strlen(line);
        if (next && len && line[len - 1] == '\r')
            line[len - 1] = '\0';
        trim(line);
        if (!*line || *line == '#')
            continue;
        if (g.n == IGNORE_RULES_MAX || strlen(line) > IGNORE_RULE_MAX)
            return -E2BIG;
        g.v[g.n++] = rule_of(line);
    }
    *ret = g;
    g = (struct ignore){0};
    return 0;
}

int ignore_load(int dirfd, struct ignore *ret, struct err *e)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    int r = file_read_at(dirfd, IGNORE_FILE, IGNORE_SIZE_MAX, &text, &n);
    if (r == -ENOENT || r == -ELOOP || r == -EINVAL) /* a link or a directory is not a list */
        return 0;
    if (r == 0)
        r = ignore_parse(text, n, ret);
    if (r == -EFBIG || r == -E2BIG)
        return err_set(e, E2BIG,
                       IGNORE_FILE " is too long: at most %d rules of %d bytes, 64 KiB in all",
                       IGNORE_RULES_MAX, IGNORE_RULE_MAX);
    return r < 0 ? err_sys(e, -r, "cannot read " IGNORE_FILE) : 0;
}

/* The last rule that matches decides. */
static bool is_ignored(struct ignore *g, const char *path, bool is_dir)
{
    const char *slash = strrchr(path, '/');
    for (size_t i = g->n; i-- > 0;) {
        const struct ignore_rule *r = &g->v[i];
        if ((!r->dir_only || is_dir) &&
            match(r->pattern, r->base && slash ? slash + 1 : path, &g->steps))
            return !r->keep;
    }
    return false;
}

static bool is_spent(const struct ignore *g)
{
    return g->steps > STEPS_MAX;
}

int ignore_check(const struct ignore *g, struct err *e)
{
    return is_spent(g) ? err_set(e, E2BIG, "matching the rules in " IGNORE_FILE " takes too long")
                       : 0;
}

bool ignore_covers(struct ignore *g, const char *path, bool is_dir)
{
    char above[PATH_MAX];
    if (!g->n || is_spent(g))
        return false;
    for (const char *p = strchr(path, '/'); p; p = strchr(p + 1, '/')) {
        size_t n = (size_t)(p - path);
        if (n >= sizeof(above))
            return false;
        memcpy(above, path, n);
        above[n] = '\0';
        if (is_ignored(g, above, true))
            return true;
    }
    return is_ignored(g, path, is_dir);
}
