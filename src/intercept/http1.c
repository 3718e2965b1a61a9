#include "intercept/http1.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { SIZE_DIGITS_MAX = 8, LENGTH_DIGITS_MAX = 18, METHOD_MAX = 32 };

/* --- texts ----------------------------------------------------------------------------------- */

static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_token(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_token_char(p[i]))
            return false;
    return n > 0;
}

bool http_text_is(struct http_text t, const char *want)
{
    return t.n == strlen(want) && memcmp(t.p, want, t.n) == 0;
}

bool http_text_is_nocase(struct http_text t, const char *want)
{
    return t.n == strlen(want) && strncasecmp(t.p, want, t.n) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static struct http_text trimmed(struct http_text t)
{
    while (t.n > 0 && is_blank(t.p[0])) {
        t.p++;
        t.n--;
    }
    while (t.n > 0 && is_blank(t.p[t.n - 1]))
        t.n--;
    return t;
}

/* Splits off the next member of a comma-separated list; false: there is none. */
static bool next_member(struct http_text *list, struct http_text *ret)
{
    if (list->n == 0)
        return false;
    const char *comma = memchr(list->p, ',', list->n);
    size_t n = comma ? (size_t)(comma - list->p) : list->n;
    *ret = trimmed((struct http_text){list->p, n});
    size_t skip = comma ? n + 1 : n;
    list->p += skip;
    list->n -= skip;
    return true;
}

static bool digits(struct http_text t, size_t most, uint64_t *ret)
{
    uint64_t v = 0;
    if (t.n == 0 || t.n > most)
        return false;
    for (size_t i = 0; i < t.n; i++) {
        if (t.p[i] < '0' || t.p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(t.p[i] - '0');
    }
    *ret = v;
    return true;
}

/* --- heads ----------------------------------------------------------------------------------- */

ssize_t http_head_end(const char *p, size_t n, size_t *seen)
{
    size_t at = *seen;
    size_t most = MIN(n, (size_t)HTTP_HEAD_MAX);
    while (at < most) {
        const char *lf = memchr(p + at, '\n', most - at);
        if (!lf)
            break;
        at = (size_t)(lf - p);
        if (at == 0 || p[at - 1] != '\r')
            return -EBADMSG;
        at++;
        if (at == 2 || (at >= 4 && p[at - 3] == '\n'))
            return (ssize_t)at;
    }
    *seen = most;
    return n >= HTTP_HEAD_MAX ? -E2BIG : 0;
}

static int fail(const char **why, const char *what)
{
    *why = what;
    return -EBADMSG;
}

/* The next line, without its CR LF; the head is known to end with an empty one. */
static struct http_text take_line(const char **p, const char *end)
{
    const char *lf = memchr(*p, '\n', (size_t)(end - *p));
    struct http_text line = {*p, lf ? (size_t)(lf - *p) : 0};
    *p = lf ? lf + 1 : end;
    if (line.n > 0)
        line.n--; /* the CR */
    return line;
}

static bool plain_value(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.p[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static int read_field(struct http_text line, struct http_field *f, const char **why)
{
    const char *colon = memchr(line.p, ':', line.n);
    if (is_blank(line.p[0]))
        return fail(why, "has a folded header line");
    if (!colon || !http_token(line.p, (size_t)(colon - line.p)))
        return fail(why, "has a header line without a proper name");
    f->name = (struct http_text){line.p, (size_t)(colon - line.p)};
    f->value = trimmed((struct http_text){colon + 1, line.n - f->name.n - 1});
    return plain_value(f->value) ? 0 : fail(why, "has control characters in a header");
}

static int read_fields(const char *p, const char *end, struct http_head *h, const char **why)
{
    for (;;) {
        struct http_text line = take_line(&p, end);
        if (line.n == 0)
            return p == end ? 0 : fail(why, "has an empty line in its head");
        if (h->n == HTTP_FIELDS_MAX)
            return fail(why, "has too many header lines");
        int r = read_field(line, &h->field[h->n], why);
        if (r < 0)
            return r;
        h->n++;
    }
}

/* What the fields say about the message's framing. */
struct hints {
    unsigned lengths, codings, hosts, upgrades;
    bool upgrade, websocket, keep;
};

static int note_connection(struct http_text list, struct http_head *h, struct hints *x)
{
    struct http_text one;
    while (next_member(&list, &one)) {
        h->close |= http_text_is_nocase(one, "close");
        x->keep |= http_text_is_nocase(one, "keep-alive");
        x->upgrade |= http_text_is_nocase(one, "upgrade");
    }
    return 0;
}

static int note_field(const struct http_field *f, struct http_head *h, struct hints *x,
                      const char **why)
{
    if (http_text_is_nocase(f->name, "content-length")) {
        x->lengths++;
        if (!digits(f->value, LENGTH_DIGITS_MAX, &h->length))
            return fail(why, "has a Content-Length that is not a number");
    } else if (http_text_is_nocase(f->name, "transfer-encoding")) {
        x->codings++;
        if (!http_text_is_nocase(f->value, "chunked"))
            return fail(why, "has a Transfer-Encoding other than chunked");
    } else if (http_text_is_nocase(f->name, "host")) {
        x->hosts++;
        h->host = f->value;
    } else if (http_text_is_nocase(f->name, "connection")) {
        return note_connection(f->value, h, x);
    } else if (http_text_is_nocase(f->name, "upgrade")) {
        x->upgrades++;
        x->websocket = http_text_is_nocase(f->value, "websocket");
    } else if (http_text_is_nocase(f->name, "expect")) {
        h->expects = http_text_is_nocase(f->value, "100-continue");
        if (!h->expects)
            return fail(why, "has an Expect other than 100-continue");
    }
    return 0;
}

static int note_fields(struct http_head *h, struct hints *x, const char **why)
{
    for (size_t i = 0; i < h->n; i++) {
        int r = note_field(&h->field[i], h, x, why);
        if (r < 0)
            return r;
    }
    if (x->lengths > 1)
        return fail(why, "has two lengths");
    if (x->codings > 1 || (x->codings && (x->lengths || h->minor == 0)))
        return fail(why, "has two kinds of length");
    h->websocket = x->upgrade && x->websocket && x->upgrades == 1;
    h->close |= h->minor == 0 && !x->keep;
    h->framing = x->codings ? HTTP_CHUNKED : x->lengths ? HTTP_LENGTH : HTTP_EMPTY;
    return 0;
}

/* "HTTP/1.0" or "HTTP/1.1" */
static bool read_version(struct http_text t, unsigned *minor)
{
    if (t.n != 8 || memcmp(t.p, "HTTP/1.", 7) != 0 || (t.p[7] != '0' && t.p[7] != '1'))
        return false;
    *minor = (unsigned)(t.p[7] - '0');
    return true;
}

static bool plain_target(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] <= ' ' || t.p[i] >= 0x7f || t.p[i] == '#')
            return false;
    return t.n > 0;
}

static int check_request(const struct http_head *h, const char **why)
{
    if (http_text_is(h->method, "CONNECT"))
        return fail(why, "is a CONNECT, which is not passed on");
    if (!plain_target(h->target) || (h->target.p[0] != '/' && !http_text_is(h->target, "*")))
        return fail(why, "has a target that is not a path");
    return 0;
}

static int read_request_line(struct http_text line, struct http_head *h, const char **why)
{
    const char *a = memchr(line.p, ' ', line.n);
    const char *b = a ? memchr(a + 1, ' ', line.n - (size_t)(a + 1 - line.p)) : NULL;
    if (!b)
        return fail(why, "does not begin with METHOD PATH HTTP/1.1");
    h->method = (struct http_text){line.p, (size_t)(a - line.p)};
    h->target = (struct http_text){a + 1, (size_t)(b - a - 1)};
    struct http_text version = {b + 1, line.n - (size_t)(b + 1 - line.p)};
    if (!http_token(h->method.p, h->method.n) || h->method.n > METHOD_MAX ||
        !read_version(version, &h->minor))
        return fail(why, "does not begin with METHOD PATH HTTP/1.1");
    return check_request(h, why);
}

static int read_status_line(struct http_text line, struct http_head *h, const char **why)
{
    uint64_t status = 0;
    bool ok = line.n >= 12 && read_version((struct http_text){line.p, 8}, &h->minor) &&
              line.p[8] == ' ' && digits((struct http_text){line.p + 9, 3}, 3, &status) &&
              (line.n == 12 || line.p[12] == ' ') && status >= 100 && status < 600 &&
              plain_value(line);
    h->status = (unsigned)status;
    return ok ? 0 : fail(why, "does not begin with HTTP/1.1 and a status");
}

/* What requests and responses have in common. */
static int read_head(const char *p, size_t n, struct http_head *h, struct hints *x,
                     int (*first)(struct http_text line, struct http_head *h, const char **why),
                     const char **why)
{
    const char *end = p + n;
    h->n = 0;
    h->length = 0;
    h->status = 0;
    h->close = h->expects = h->plain = false;
    h->method = h->target = h->host = (struct http_text){p, 0};
    int r = first(take_line(&p, end), h, why);
    if (r == 0)
        r = read_fields(p, end, h, why);
    return r < 0 ? r : note_fields(h, x, why);
}

int http_request(const char *p, size_t n, struct http_head *h, const char **why)
{
    struct hints x = {0};
    int r = read_head(p, n, h, &x, read_request_line, why);
    if (r < 0)
        return r;
    if (x.hosts != 1)
        return fail(why, x.hosts ? "has two Hosts" : "has no Host");
    return 0;
}

int http_request_fields(struct http_head *h, const char **why)
{
    struct hints x = {0};
    struct http_text authority = h->host;
    h->length = h->status = 0;
    h->close = h->expects = h->plain = false;
    h->minor = 1;
    if (!http_token(h->method.p, h->method.n) || h->method.n > METHOD_MAX)
        return fail(why, "has a malformed method");
    int r = check_request(h, why);
    for (size_t i = 0; r == 0 && i < h->n; i++)
        if (!http_token(h->field[i].name.p, h->field[i].name.n) || !plain_value(h->field[i].value))
            r = fail(why, "has a malformed header");
    if (r == 0)
        r = note_fields(h, &x, why);
    if (r < 0)
        return r;
    if (x.codings || x.upgrades)
        return fail(why, "has a header that HTTP/2 does not allow");
    if (x.hosts > 1 || x.hosts + (authority.n > 0) == 0)
        return fail(why, x.hosts ? "has two Hosts" : "has no Host");
    if (authority.n > 0 && x.hosts > 0 &&
        !(h->host.n == authority.n && strncasecmp(h->host.p, authority.p, authority.n) == 0))
        return fail(why, "has a Host other than its authority");
    return 0;
}

bool http_host_is(struct http_text t, const char *host, unsigned port)
{
    char with_port[300];
    if (http_text_is_nocase(t, host))
        return true;
    (void)snprintf(with_port, sizeof(with_port), "%s:%u", host, port);
    return http_text_is_nocase(t, with_port);
}

int http_response(const char *p, size_t n, bool bodiless, struct http_head *h, const char **why)
{
    struct hints x = {0};
    int r = read_head(p, n, h, &x, read_status_line, why);
    if (r < 0)
        return r;
    bool none = h->status < 200 || h->status == 204;
    if (none && x.codings)
        return fail(why, "has a body where none is allowed");
    if (none || h->status == 304 || bodiless)
        h->framing = HTTP_EMPTY;
    else if (h->framing == HTTP_EMPTY)
        h->framing = HTTP_UNTIL_END;
    h->close |= h->framing == HTTP_UNTIL_END;
    return 0;
}

void http_head_drop(struct http_head *h, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n; i++)
        if (!http_text_is_nocase(h->field[i].name, name))
            h->field[n++] = h->field[i];
    h->n = n;
}

bool http_head_add(struct http_head *h, const char *name, const char *value)
{
    if (h->n == HTTP_FIELDS_MAX)
        return false;
    h->field[h->n++] = (struct http_field){{name, strlen(name)}, {value, strlen(value)}};
    return true;
}

/* --- bodies ---------------------------------------------------------------------------------- */

void http_body_begin(struct http_body *b, const struct http_head *h)
{
    *b = (struct http_body){.framing = h->framing, .left = h->length};
    b->at = h->framing == HTTP_CHUNKED ? HTTP_SIZE : HTTP_BYTES;
    if (h->framing == HTTP_EMPTY || (h->framing == HTTP_LENGTH && h->length == 0))
        b->at = HTTP_DONE;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "1a2b" CR LF */
static ssize_t step_size(struct http_body *b, const char *p, size_t n)
{
    uint64_t size = 0;
    size_t i = 0;
    for (; i < n && i <= SIZE_DIGITS_MAX && hex(p[i]) >= 0; i++)
        size = size * 16 + (uint64_t)hex(p[i]);
    if (i > SIZE_DIGITS_MAX || (i < n && (i == 0 || p[i] != '\r')) ||
        (i + 1 < n && p[i + 1] != '\n'))
        return -EBADMSG;
    if (i + 1 >= n)
        return 0;
    b->left = size;
    b->at = size ? HTTP_BYTES : HTTP_TRAILER;
    return (ssize_t)i + 2;
}

static ssize_t step_bytes(struct http_body *b, size_t n)
{
    if (b->framing == HTTP_UNTIL_END)
        return (ssize_t)n;
    size_t k = b->left < n ? (size_t)b->left : n;
    b->left -= k;
    if (b->left == 0)
        b->at = b->framing == HTTP_CHUNKED ? HTTP_BYTES_END : HTTP_DONE;
    return (ssize_t)k;
}

static ssize_t step_bytes_end(struct http_body *b, const char *p, size_t n)
{
    if (p[0] != '\r' || (n > 1 && p[1] != '\n'))
        return -EBADMSG;
    if (n < 2)
        return 0;
    b->at = HTTP_SIZE;
    return 2;
}

/* All of them at once, with the empty line at the end. */
static ssize_t step_trailers(struct http_body *b, const char *p, size_t n)
{
    size_t seen = 0;
    const char *why;
    ssize_t k = http_head_end(p, MIN(n, (size_t)HTTP_TRAILERS_MAX), &seen);
    if (k == 0 && n >= HTTP_TRAILERS_MAX)
        return -EBADMSG;
    if (k <= 0)
        return k;
    const char *at = p, *end = p + k;
    for (;;) {
        struct http_text line = take_line(&at, end);
        struct http_field f;
        if (line.n == 0)
            break;
        if (read_field(line, &f, &why) < 0)
            return -EBADMSG;
    }
    if (at != end)
        return -EBADMSG;
    b->at = HTTP_DONE;
    return k;
}

ssize_t http_body_step(struct http_body *b, const char *p, size_t n, enum http_piece *what)
{
    *what = HTTP_PIECE_FRAME;
    if (n == 0)
        return 0;
    switch (b->at) {
    case HTTP_SIZE:
        return step_size(b, p, n);
    case HTTP_BYTES:
        *what = HTTP_PIECE_DATA;
        return step_bytes(b, n);
    case HTTP_BYTES_END:
        return step_bytes_end(b, p, n);
    case HTTP_TRAILER:
        *what = HTTP_PIECE_TRAILER;
        return step_trailers(b, p, n);
    default:
        return 0;
    }
}
