#include "intercept/subst.h"

#include "intercept/swap.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Where every secret may be. */
static const char *const usual[] = {"authorization", "x-api-key", "api-key", "private-token"};

enum { BASIC_MAX = 16 * 1024 }; /* of decoded credentials */

/* --- hosts ----------------------------------------------------------------------------------- */

bool subst_host_matches(const struct subst_host *h, const char *name)
{
    size_t n = strlen(name), m = strlen(h->name);
    if (strcmp(name, h->name) == 0)
        return true;
    return h->suffix && n > m + 1 && name[n - m - 1] == '.' && strcmp(name + n - m, h->name) == 0;
}

bool subst_concerns(const struct subst *s, const char *host)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->secret[i].n_hosts; k++)
            if (subst_host_matches(&s->secret[i].host[k], host))
                return true;
    return false;
}

/* Whether a server could take the path for another one, so that it proves nothing. */
static bool ambiguous_path(struct http_text path)
{
    static const char *const odd[] = {"/./", "/../", "//", "\\", "%2e", "%2f", "%5c", "%00", ";"};
    char text[4096];
    if (path.n >= sizeof(text))
        return true;
    memcpy(text, path.p, path.n);
    text[path.n] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(odd); i++)
        if (strcasestr(text, odd[i]))
            return true;
    return (path.n >= 2 && strcmp(text + path.n - 2, "/.") == 0) ||
           (path.n >= 3 && strcmp(text + path.n - 3, "/..") == 0);
}

static bool host_takes(const struct subst_host *b, const char *host, const struct http_head *h)
{
    const char *question = memchr(h->target.p, '?', h->target.n);
    struct http_text path = {h->target.p,
                             question ? (size_t)(question - h->target.p) : h->target.n};
    size_t n = strlen(b->path);
    if (!subst_host_matches(b, host) || (b->method[0] && !http_text_is(h->method, b->method)))
        return false;
    return n == 0 || (path.n >= n && memcmp(path.p, b->path, n) == 0 && !ambiguous_path(path));
}

static bool has_kind(const struct subst_secret *x, enum subst_where where)
{
    for (size_t i = 0; i < x->n_places; i++)
        if (x->place[i].where == where)
            return true;
    return false;
}

static bool bound(const struct subst_secret *x, const char *host, const struct http_head *h)
{
    if (h->plain && !has_kind(x, SUBST_PLAINTEXT))
        return false;
    for (size_t i = 0; i < x->n_hosts; i++)
        if (host_takes(&x->host[i], host, h))
            return true;
    return false;
}

static bool concerned(const struct subst_secret *x, const char *host)
{
    bool any = false;
    for (size_t i = 0; i < x->n_hosts; i++)
        any |= subst_host_matches(&x->host[i], host);
    return any;
}

bool subst_in_body(const struct subst_secret *x, const char *host, const struct http_head *h)
{
    return has_kind(x, SUBST_BODY) && !has_kind(x, SUBST_SIGN) && bound(x, host, h);
}

bool subst_scrubs(const struct subst_secret *x, const char *host)
{
    return has_kind(x, SUBST_RESPONSE) && concerned(x, host);
}

bool subst_signs(const struct subst *s, const char *host)
{
    bool any = false;
    for (size_t i = 0; i < s->n; i++)
        any |= has_kind(&s->secret[i], SUBST_SIGN) && concerned(&s->secret[i], host);
    return any;
}

const struct subst_secret *subst_signer(const struct subst *s, const char *host,
                                        const struct http_head *h)
{
    static const char before[] = "Credential=";
    size_t n = sizeof(before) - 1;
    for (size_t i = 0; i < h->n; i++) {
        struct http_text v = h->field[i].value;
        const char *p = http_text_is_nocase(h->field[i].name, "authorization")
                            ? memmem(v.p, v.n, before, n)
                            : NULL;
        size_t left = p ? v.n - (size_t)(p - v.p) - n : 0;
        for (size_t k = 0; p && k < s->n; k++) {
            const struct subst_secret *x = &s->secret[k];
            if (has_kind(x, SUBST_SIGN) && left > x->holder_len &&
                memcmp(p + n, x->holder, x->holder_len) == 0 && p[n + x->holder_len] == '/' &&
                bound(x, host, h))
                return x;
        }
    }
    return NULL;
}

/* --- violations ------------------------------------------------------------------------------ */

static int refuse(const struct subst_secret *x, const char *host, const struct http_head *h,
                  const char *place, char why[SUBST_TEXT_MAX])
{
    if (!concerned(x, host))
        (void)snprintf(why, SUBST_TEXT_MAX, "secret %s is not bound to %s", x->name, host);
    else if (h->plain && !has_kind(x, SUBST_PLAINTEXT))
        (void)snprintf(why, SUBST_TEXT_MAX, "secret %s may not go over http:// (allow-plaintext)",
                       x->name);
    else if (!bound(x, host, h))
        (void)snprintf(why, SUBST_TEXT_MAX, "secret %s is not bound to this method and path of %s",
                       x->name, host);
    else
        (void)snprintf(why, SUBST_TEXT_MAX, "secret %s may not be in %s", x->name, place);
    return -EPERM;
}

/* The secret whose placeholder begins at p. */
static const struct subst_secret *holder_at(const struct subst *s, const char *p, size_t n)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct subst_secret *x = &s->secret[i];
        if (x->holder[0] == *p && x->holder_len <= n && memcmp(p, x->holder, x->holder_len) == 0)
            return x;
    }
    return NULL;
}

/* What `allowed` (NULL: nothing) replaces was decided when a body began: since then, the secrets may
 * have changed, and so may their order. */
static const struct subst_secret *find_any(const struct subst *s, const struct swap *allowed,
                                           const char *p, size_t n)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct subst_secret *x = &s->secret[i];
        if (memmem(p, n, x->holder, x->holder_len) &&
            !(allowed && swap_replaces(allowed, x->holder, x->holder_len)))
            return x;
    }
    return NULL;
}

/* --- substitution ---------------------------------------------------------------------------- */

struct job {
    const struct subst *s;
    const char *host;
    const struct http_head *h;
    struct buf *out;
    char *why;
};

static int put(struct buf *out, const void *p, size_t n)
{
    int r = buf_append(out, p, n);
    return r == -ENOSPC ? -E2BIG : r;
}

int subst_put_encoded(struct buf *out, const char *p, size_t n)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        char c = p[i], x[4];
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
            (c && strchr("-._~", c))) {
            r = put(out, &c, 1);
        } else {
            (void)snprintf(x, sizeof(x), "%%%02X", (unsigned char)c);
            r = put(out, x, 3);
        }
    }
    return r;
}

static bool has_place(const struct subst_secret *x, enum subst_where where, struct http_text name)
{
    for (size_t i = 0; where == SUBST_HEADER && i < ARRAY_LEN(usual); i++)
        if (http_text_is_nocase(name, usual[i]))
            return true;
    for (size_t i = 0; i < x->n_places; i++)
        if (x->place[i].where == where &&
            (where == SUBST_HEADER ? http_text_is_nocase(name, x->place[i].name)
                                   : http_text_is(name, x->place[i].name)))
            return true;
    return false;
}

/* Copies a text from such a place; placeholders in it become values. */
static int replace(const struct job *j, struct http_text t, enum subst_where where,
                   struct http_text name, struct buf *out)
{
    char place[SUBST_NAME_MAX + 32];
    size_t from = 0;
    (void)snprintf(place, sizeof(place), "%s %.*s",
                   where == SUBST_HEADER ? "header" : "query parameter",
                   (int)MIN(name.n, (size_t)SUBST_NAME_MAX), name.p);
    for (size_t i = 0; i < t.n;) {
        const struct subst_secret *x = holder_at(j->s, t.p + i, t.n - i);
        if (!x) {
            i++;
            continue;
        }
        if (!bound(x, j->host, j->h) || !has_place(x, where, name) || has_kind(x, SUBST_SIGN))
            return refuse(x, j->host, j->h, place, j->why);
        if (!x->value) {
            (void)snprintf(j->why, SUBST_TEXT_MAX, "%s", x->name);
            return -EAGAIN;
        }
        int r = put(out, t.p + from, i - from);
        if (r == 0)
            r = where == SUBST_QUERY ? subst_put_encoded(out, x->value, x->value_len)
                                     : put(out, x->value, x->value_len);
        if (r < 0)
            return r;
        i += x->holder_len;
        from = i;
    }
    return put(out, t.p + from, t.n - from);
}

static int digit64(char c)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(alphabet, c) : NULL;
    return at ? (int)(at - alphabet) : -1;
}

/* How many bytes, or -1: it is not base64. */
static ssize_t decode64(struct http_text t, char *out, size_t size)
{
    size_t n = 0;
    uint32_t bits = 0;
    unsigned have = 0;
    while (t.n > 0 && t.p[t.n - 1] == '=')
        t.n--;
    for (size_t i = 0; i < t.n; i++) {
        int d = digit64(t.p[i]);
        if (d < 0 || n == size)
            return -1;
        bits = (bits << 6 | (uint32_t)d) & 0xffffff;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (char)(bits >> have);
        }
    }
    return (ssize_t)n;
}

static int put64(struct buf *out, const uint8_t *p, size_t n)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        char x[4] = {alphabet[v >> 18], alphabet[v >> 12 & 63],
                     i + 1 < n ? alphabet[v >> 6 & 63] : '=', i + 2 < n ? alphabet[v & 63] : '='};
        r = put(out, x, sizeof(x));
    }
    return r;
}

/* Basic credentials: the placeholder is inside their base64. -ENOENT: there is none. */
static int replace_basic(const struct job *j, const struct http_field *f)
{
    AUTO_WIPE struct buf plain = {.limit = SUBST_HEAD_MAX};
    char text[BASIC_MAX];
    if (f->value.n < 6 || strncasecmp(f->value.p, "basic ", 6) != 0)
        return -ENOENT;
    struct http_text code = {f->value.p + 6, f->value.n - 6};
    while (code.n > 0 && *code.p == ' ') {
        code.p++;
        code.n--;
    }
    ssize_t n = decode64(code, text, sizeof(text));
    if (n <= 0 || !find_any(j->s, NULL, text, (size_t)n))
        return -ENOENT;
    int r = replace(j, (struct http_text){text, (size_t)n}, SUBST_HEADER, f->name, &plain);
    if (r == 0)
        r = put(j->out, "Basic ", 6);
    return r < 0 ? r : put64(j->out, buf_head(&plain), buf_len(&plain));
}

static int put_value(const struct job *j, const struct http_field *f)
{
    const struct subst_secret *x = find_any(j->s, NULL, f->name.p, f->name.n);
    if (x)
        return refuse(x, j->host, j->h, "the name of a header", j->why);
    int r = http_text_is_nocase(f->name, "authorization") ? replace_basic(j, f) : -ENOENT;
    return r == -ENOENT ? replace(j, f->value, SUBST_HEADER, f->name, j->out) : r;
}

/* NAME=VALUE&... */
static int put_query(const struct job *j, struct http_text q)
{
    int r = 0;
    while (r == 0 && q.n > 0) {
        const char *amp = memchr(q.p, '&', q.n);
        struct http_text one = {q.p, amp ? (size_t)(amp - q.p) : q.n};
        const char *eq = memchr(one.p, '=', one.n);
        size_t name = eq ? (size_t)(eq - one.p) : one.n;
        const struct subst_secret *x = find_any(j->s, NULL, one.p, name);
        if (x)
            return refuse(x, j->host, j->h, "the name of a query parameter", j->why);
        r = put(j->out, one.p, eq ? name + 1 : name);
        if (r == 0 && eq)
            r = replace(j, (struct http_text){eq + 1, one.n - name - 1}, SUBST_QUERY,
                        (struct http_text){one.p, name}, j->out);
        if (r == 0 && amp)
            r = put(j->out, "&", 1);
        size_t skip = amp ? one.n + 1 : one.n;
        q.p += skip;
        q.n -= skip;
    }
    return r;
}

static int put_target(const struct job *j)
{
    const struct http_head *h = j->h;
    const char *mark = memchr(h->target.p, '?', h->target.n);
    size_t path = mark ? (size_t)(mark - h->target.p) + 1 : h->target.n;
    const struct subst_secret *x = find_any(j->s, NULL, h->target.p, path);
    if (!x)
        x = find_any(j->s, NULL, h->method.p, h->method.n);
    if (x)
        return refuse(x, j->host, h, "the path", j->why);
    int r = put(j->out, h->target.p, path);
    return r == 0 && mark ? put_query(j, (struct http_text){mark + 1, h->target.n - path}) : r;
}

int subst_target(const struct subst *s, const char *host, const struct http_head *h,
                 struct buf *out, char why[SUBST_TEXT_MAX])
{
    return put_target(&(struct job){.s = s, .host = host, .h = h, .out = out, .why = why});
}

int subst_value(const struct subst *s, const char *host, const struct http_head *h, size_t i,
                struct buf *out, char why[SUBST_TEXT_MAX])
{
    return put_value(&(struct job){.s = s, .host = host, .h = h, .out = out, .why = why},
                     &h->field[i]);
}

static int put_field(const struct job *j, const struct http_field *f)
{
    int r = put(j->out, f->name.p, f->name.n);
    if (r == 0)
        r = put(j->out, ": ", 2);
    if (r == 0)
        r = put_value(j, f);
    return r < 0 ? r : put(j->out, "\r\n", 2);
}

int subst_head(const struct subst *s, const char *host, const struct http_head *h, struct buf *out,
               char why[SUBST_TEXT_MAX])
{
    const struct job j = {.s = s, .host = host, .h = h, .out = out, .why = why};
    int r = put(out, h->method.p, h->method.n);
    if (r == 0)
        r = put(out, " ", 1);
    if (r == 0)
        r = put_target(&j);
    if (r == 0)
        r = put(out, h->minor ? " HTTP/1.1\r\n" : " HTTP/1.0\r\n", 11);
    for (size_t i = 0; r == 0 && i < h->n; i++)
        r = put_field(&j, &h->field[i]);
    return r < 0 ? r : put(out, "\r\n", 2);
}

/* --- bodies ---------------------------------------------------------------------------------- */

const struct subst_secret *subst_find(const struct subst *s, const struct swap *allowed,
                                      struct subst_search *x, const char *p, size_t n)
{
    char seam[2 * SUBST_HOLDER_MAX];
    size_t head = MIN(n, (size_t)SUBST_HOLDER_MAX - 1);
    if (s->n == 0 || n == 0)
        return NULL;
    memcpy(seam, x->tail, x->n);
    memcpy(seam + x->n, p, head);
    const struct subst_secret *found = x->n > 0 ? find_any(s, allowed, seam, x->n + head) : NULL;
    if (!found)
        found = find_any(s, allowed, p, n);
    /* What a placeholder could begin with: the end of the earlier bytes, and of these. */
    const char *from = n >= SUBST_HOLDER_MAX - 1 ? p : seam;
    size_t all = n >= SUBST_HOLDER_MAX - 1 ? n : x->n + n;
    size_t keep = MIN(all, (size_t)SUBST_HOLDER_MAX - 1);
    memmove(x->tail, from + all - keep, keep);
    x->n = keep;
    return found;
}
