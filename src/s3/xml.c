#include "s3/xml.h"

#include "util/cleanup.h"
#include "util/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct xml {
    const char *p, *end;
    xml_fn fn;
    void *ctx;
    char path[XML_PATH_MAX];
    size_t cut[XML_DEPTH_MAX]; /* the path's length before each open element */
    unsigned depth;
    bool root_seen;
    char text[XML_TEXT_MAX + 1];
    size_t text_len;
};

static bool skip(struct xml *x, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(x->end - x->p) < n || memcmp(x->p, word, n) != 0)
        return false;
    x->p += n;
    return true;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool skip_space(struct xml *x)
{
    const char *from = x->p;
    while (x->p < x->end && is_space(*x->p))
        x->p++;
    return x->p > from;
}

static int skip_past(struct xml *x, const char *word)
{
    while (x->p < x->end)
        if (skip(x, word))
            return 0;
        else
            x->p++;
    return -EBADMSG;
}

/* The local part of a name. */
static int read_name(struct xml *x, const char **ret, size_t *len)
{
    const char *from = x->p;
    while (x->p < x->end && (ascii_alnum(*x->p) || strchr("_-.:", *x->p)) && *x->p)
        x->p++;
    const char *colon = memchr(from, ':', (size_t)(x->p - from));
    if (colon)
        from = colon + 1;
    *ret = from;
    *len = (size_t)(x->p - from);
    bool bad = *len == 0 || memchr(from, ':', *len) || !(ascii_alnum(*from) || *from == '_');
    return bad ? -EBADMSG : 0;
}

static int add_text(struct xml *x, const char *p, size_t n)
{
    if (n > XML_TEXT_MAX - x->text_len)
        return -EBADMSG;
    memcpy(x->text + x->text_len, p, n);
    x->text_len += n;
    return 0;
}

static int add_char(struct xml *x, uint32_t c)
{
    char u[4];
    size_t n = 0;
    bool bad = (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c > 0x10ffff ||
               (c >= 0xd800 && c < 0xe000);
    if (bad)
        return -EBADMSG;
    if (c < 0x80) {
        u[n++] = (char)c;
    } else if (c < 0x800) {
        u[n++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        u[n++] = (char)(0xe0 | c >> 12);
        u[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    } else {
        u[n++] = (char)(0xf0 | c >> 18);
        u[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        u[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    }
    if (c >= 0x80)
        u[n++] = (char)(0x80 | (c & 0x3f));
    return add_text(x, u, n);
}

static int numbered_char(struct xml *x, unsigned base)
{
    uint32_t c = 0;
    const char *from = x->p;
    for (; x->p < x->end && *x->p != ';'; x->p++) {
        static const char digits[] = "0123456789abcdef";
        char low = *x->p >= 'A' && *x->p <= 'F' ? (char)(*x->p + 32) : *x->p;
        const char *d = low ? strchr(digits, low) : NULL;
        if (!d || (unsigned)(d - digits) >= base || c > 0x10ffff)
            return -EBADMSG;
        c = c * base + (unsigned)(d - digits);
    }
    if (x->p == from || !skip(x, ";"))
        return -EBADMSG;
    return add_char(x, c);
}

static int entity(struct xml *x)
{
    static const struct {
        const char *name, *is;
    } known[] = {{"amp;", "&"}, {"lt;", "<"}, {"gt;", ">"}, {"quot;", "\""}, {"apos;", "'"}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (skip(x, known[i].name))
            return add_text(x, known[i].is, 1);
    if (skip(x, "#x"))
        return numbered_char(x, 16);
    return skip(x, "#") ? numbered_char(x, 10) : -EBADMSG;
}

/* name="value", checked and dropped. */
static int attribute(struct xml *x)
{
    const char *name;
    size_t n;
    int r = read_name(x, &name, &n);
    (void)skip_space(x);
    if (r < 0 || !skip(x, "="))
        return -EBADMSG;
    (void)skip_space(x);
    if (x->p == x->end || (*x->p != '"' && *x->p != '\''))
        return -EBADMSG;
    char quote = *x->p++;
    for (; x->p < x->end && *x->p != quote; x->p++)
        if (*x->p == '<')
            return -EBADMSG;
    return skip(x, (char[]){quote, '\0'}) ? 0 : -EBADMSG;
}

static int close_element(struct xml *x)
{
    x->text[x->text_len] = '\0';
    if (memchr(x->text, '\0', x->text_len) || !utf8_valid(x->text))
        return -EBADMSG;
    int r = x->fn(x->ctx, x->path, x->text);
    x->path[x->cut[--x->depth]] = '\0';
    x->text_len = 0; /* what came before an element in its parent is white space */
    return r;
}

static int open_element(struct xml *x)
{
    const char *name;
    size_t n, at = strlen(x->path);
    int r = read_name(x, &name, &n);
    if (r < 0 || x->depth == XML_DEPTH_MAX || at + n + 2 > sizeof(x->path))
        return -EBADMSG;
    if (x->depth == 0 && x->root_seen)
        return -EBADMSG;
    x->root_seen = true;
    x->cut[x->depth++] = at;
    x->path[at] = '/';
    memcpy(x->path + at + 1, name, n);
    x->path[at + 1 + n] = '\0';
    x->text_len = 0;
    while (r == 0) {
        bool gap = skip_space(x);
        if (skip(x, "/>"))
            return close_element(x);
        if (skip(x, ">"))
            return 0;
        r = gap ? attribute(x) : -EBADMSG;
    }
    return r;
}

static int end_element(struct xml *x)
{
    const char *name;
    size_t n;
    int r = read_name(x, &name, &n);
    (void)skip_space(x);
    if (r < 0 || x->depth == 0 || !skip(x, ">"))
        return -EBADMSG;
    const char *open = x->path + x->cut[x->depth - 1] + 1;
    return strlen(open) == n && memcmp(open, name, n) == 0 ? close_element(x) : -EBADMSG;
}

static int markup(struct xml *x)
{
    if (skip(x, "!--"))
        return skip_past(x, "-->");
    return skip(x, "/") ? end_element(x) : open_element(x);
}

int xml_parse(const char *p, size_t n, xml_fn fn, void *ctx)
{
    if (n == 0) /* then p may be NULL */
        return -EBADMSG;
    struct xml x = {.p = p, .end = p + n, .fn = fn, .ctx = ctx};
    (void)skip(&x, "\xef\xbb\xbf");
    int r = skip(&x, "<?xml") ? skip_past(&x, "?>") : 0;
    while (r == 0 && x.p < x.end) {
        if (skip(&x, "<")) {
            r = markup(&x);
        } else if (x.depth == 0) {
            r = skip_space(&x) ? 0 : -EBADMSG;
        } else if (skip(&x, "&")) {
            r = entity(&x);
        } else {
            const char *from = x.p;
            while (x.p < x.end && *x.p != '<' && *x.p != '&')
                x.p++;
            r = add_text(&x, from, (size_t)(x.p - from));
        }
    }
    return r ? r : x.root_seen && x.depth == 0 ? 0 : -EBADMSG;
}
