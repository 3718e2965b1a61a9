#include "s3/resign.h"

#include "image/oci/digest.h"
#include "s3/credentials.h"
#include "s3/sigv4.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#define SCHEME "AWS4-HMAC-SHA256"

enum { TEXT_MAX = 256 << 10, SCOPE_MAX = 64 };

/* The contents of the guest's own signature. */
struct claim {
    char date[SCOPE_MAX], region[SCOPE_MAX], service[SCOPE_MAX];
    struct http_text names; /* of signed headers: a;b;c */
};

static int fail(const char **why, const char *what)
{
    *why = what;
    return -EINVAL;
}

/* The first field with that name; NULL: none. */
static const struct http_field *field(const struct http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (http_text_is_nocase(h->field[i].name, name))
            return &h->field[i];
    return NULL;
}

/* --- the claim ------------------------------------------------------------------------------- */

/* Splits off what comes before `sep`; false: it does not fit. */
static bool take(struct http_text *t, char sep, struct http_text *ret)
{
    const char *end = memchr(t->p, sep, t->n);
    *ret = (struct http_text){t->p, end ? (size_t)(end - t->p) : t->n};
    size_t skip = end ? ret->n + 1 : ret->n;
    t->p += skip;
    t->n -= skip;
    return ret->n > 0;
}

static bool take_word(struct http_text *t, char sep, char out[SCOPE_MAX])
{
    struct http_text word;
    if (!take(t, sep, &word) || word.n >= SCOPE_MAX || !http_token(word.p, word.n))
        return false;
    memcpy(out, word.p, word.n);
    out[word.n] = '\0';
    return true;
}

/* ID/20260102/us-east-1/s3/aws4_request */
static bool read_scope(struct http_text t, struct claim *c)
{
    struct http_text id;
    return take(&t, '/', &id) && take_word(&t, '/', c->date) && take_word(&t, '/', c->region) &&
           take_word(&t, '/', c->service) && http_text_is(t, "aws4_request");
}

static int read_claim(const struct http_head *h, struct claim *c, const char **why)
{
    const struct http_field *f = field(h, "authorization");
    size_t scheme = strlen(SCHEME);
    bool scope = false;
    *c = (struct claim){0};
    if (!f || f->value.n <= scheme || memcmp(f->value.p, SCHEME " ", scheme + 1) != 0)
        return fail(why, "is not signed by " SCHEME);
    struct http_text rest = {f->value.p + scheme + 1, f->value.n - scheme - 1}, part, name;
    while (take(&rest, ',', &part)) {
        while (part.n > 0 && *part.p == ' ') {
            part.p++;
            part.n--;
        }
        if (!take(&part, '=', &name))
            break;
        if (http_text_is(name, "Credential"))
            scope = read_scope(part, c);
        else if (http_text_is(name, "SignedHeaders"))
            c->names = part;
    }
    return scope && c->names.n > 0 ? 0 : fail(why, "has a malformed signature");
}

/* --- what is signed -------------------------------------------------------------------------- */

/* Adds all fields with that name as one "name:value". */
static int add_header(const struct http_head *h, struct http_text name, struct strlist *to,
                      const char **why)
{
    AUTO_BUF struct buf line = {.limit = TEXT_MAX};
    bool any = false;
    int r = buf_append(&line, name.p, name.n);
    for (size_t i = 0; r == 0 && i < h->n; i++) {
        const struct http_field *f = &h->field[i];
        if (f->name.n != name.n || strncasecmp(f->name.p, name.p, name.n) != 0)
            continue;
        r = buf_append(&line, any ? "," : ":", 1);
        if (r == 0)
            r = buf_append(&line, f->value.p, f->value.n);
        any = true;
    }
    if (r < 0 || !buf_text(&line))
        return -ENOMEM;
    return any ? strlist_add(to, buf_text(&line)) : fail(why, "lacks a header that it has signed");
}

static int add_token(const char *token, struct strlist *to)
{
    AUTO_BUF struct buf line = {.limit = TEXT_MAX};
    int r = token ? buf_printf(&line, "x-amz-security-token:%s", token) : 0;
    if (r == 0 && token)
        r = strlist_add(to, (const char *)buf_head(&line));
    if (line.data)
        explicit_bzero(line.data, line.cap);
    return r;
}

/* The headers that the guest has signed, and our own token. */
static int signed_headers(const struct http_head *h, struct http_text names, const char *token,
                          struct strlist *to, const char **why)
{
    struct http_text name;
    bool host = false;
    int r = 0;
    while (r == 0 && take(&names, ';', &name)) {
        if (!http_token(name.p, name.n))
            return fail(why, "has a malformed signature");
        host |= http_text_is(name, "host");
        if (!http_text_is(name, "x-amz-security-token"))
            r = add_header(h, name, to, why);
    }
    if (r == 0 && !host)
        return fail(why, "has not signed its Host");
    return r < 0 ? r : add_token(token, to);
}

static int split_query(struct http_text q, struct strlist *to)
{
    struct http_text one;
    int r = 0;
    while (r == 0 && q.n > 0) {
        if (!take(&q, '&', &one))
            continue; /* two in a row */
        const char *eq = memchr(one.p, '=', one.n) ? "" : "=";
        r = strlist_printf(to, "%.*s%s", (int)one.n, one.p, eq);
    }
    return r;
}

/* As the service interprets it: S3 uses the path as sent, all others encode it once more. */
static int add_path(struct buf *out, struct http_text path, bool as_it_is, const char **why)
{
    AUTO_BUF struct buf text = {.limit = TEXT_MAX};
    int r = buf_append(&text, path.p, path.n);
    const char *p = r == 0 ? buf_text(&text) : NULL;
    if (!p)
        return -ENOMEM;
    if (!as_it_is && (strstr(p, "//") || strstr(p, "/./") || strstr(p, "/../")))
        return fail(why, "has a path that services read differently");
    r = as_it_is ? buf_append(out, p, path.n) : sigv4_escape(out, p, true);
    return r < 0 ? r : buf_append(out, "", 1);
}

/* The payload hash that represents the body. */
static int payload(const struct http_head *h, const void *body, size_t n, char out[80],
                   const char **why)
{
    const struct http_field *f = field(h, "x-amz-content-sha256");
    if (!f) {
        if (!body && h->framing != HTTP_EMPTY)
            return -ENODATA;
        digest_hex_of(body ? body : "", body ? n : 0, out);
        return 0;
    }
    if (f->value.n >= 80 || !http_token(f->value.p, f->value.n))
        return fail(why, "has a malformed X-Amz-Content-Sha256");
    if (strncmp(f->value.p, "STREAMING-AWS4-", 15) == 0)
        return fail(why, "signs each chunk of its body, which cannot be signed again; use "
                         "UNSIGNED-PAYLOAD, or the hash of the whole");
    memcpy(out, f->value.p, f->value.n);
    out[f->value.n] = '\0';
    return 0;
}

/* --- signing --------------------------------------------------------------------------------- */

static int sign(const struct http_head *h, const struct claim *c, const struct s3_credentials *k,
                const struct sigv4_request *given, struct buf *out, const char **why)
{
    struct sigv4_request q = *given;
    AUTO_STRLIST struct strlist query = {0}, header = {0};
    AUTO_BUF struct buf path = {.limit = TEXT_MAX};
    const struct sigv4_key key = {k->id, k->secret, c->region, c->service};
    struct http_text rest = h->target, first;
    (void)take(&rest, '?', &first);
    int r = add_path(&path, first, strncmp(c->service, "s3", 2) == 0, why);
    if (r == 0)
        r = split_query(rest, &query);
    if (r == 0)
        r = signed_headers(h, c->names, k->token, &header, why);
    if (r < 0)
        return r;
    q.path = (const char *)buf_head(&path);
    q.query = &query;
    q.header = &header;
    r = sigv4_sign(out, &key, &q);
    for (size_t i = 0; i < header.n; i++)
        explicit_bzero(header.v[i], strlen(header.v[i]));
    if (r == -EINVAL)
        return fail(why, "has too much to sign");
    if (r == 0)
        r = buf_append(out, "", 1);
    return r < 0 ? r
                 : buf_append(out, k->token ? k->token : "", k->token ? strlen(k->token) + 1 : 1);
}

int resign(const struct http_head *h, const char *value, const void *body, size_t n,
           struct buf *out, const char **why)
{
    AUTO_S3_CREDENTIALS struct s3_credentials k = {0};
    struct sigv4_request q = {0};
    struct claim c;
    char method[64], sum[80];
    const struct http_field *date = field(h, "x-amz-date");
    int r = read_claim(h, &c, why);
    if (r == 0)
        r = payload(h, body, n, sum, why);
    if (r < 0)
        return r;
    if (!date || date->value.n != SIGV4_TIME_SIZE - 1 || strncmp(date->value.p, c.date, 8) != 0 ||
        strlen(c.date) != 8)
        return fail(why, "has no X-Amz-Date, or one that is not that of its signature");
    if (h->method.n >= sizeof(method))
        return fail(why, "has a malformed method");
    memcpy(q.time, date->value.p, date->value.n);
    memcpy(method, h->method.p, h->method.n);
    method[h->method.n] = '\0';
    q.method = method;
    q.payload_sha256 = sum;
    r = s3_secret_parse(value, &k);
    if (r == -EINVAL)
        return fail(why,
                    "needs a key of the form ID:SECRET or ID:SECRET:TOKEN as the secret's value");
    return r < 0 ? r : sign(h, &c, &k, &q, out, why);
}
