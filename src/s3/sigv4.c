#include "s3/sigv4.h"

#include "image/oci/digest.h"
#include "util/text.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { TEXT_MAX = 256 << 10, DATE_LEN = 8 };

enum { HMAC_BLOCK = 64 }; /* of SHA-256 */

/* Half of an HMAC (RFC 2104): the key with a pad, and then the bytes. */
static struct digest padded(const uint8_t key[HMAC_BLOCK], uint8_t pad, const void *p, size_t n)
{
    struct hasher h;
    uint8_t block[HMAC_BLOCK];
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = key[i] ^ pad;
    hasher_init(&h);
    hasher_update(&h, block, sizeof(block));
    hasher_update(&h, p, n);
    explicit_bzero(block, sizeof(block));
    return hasher_finish(&h);
}

/* Hand-written, since OpenSSL's brings in all of its algorithms, which would slow down every start
 * of msb. */
static struct digest hmac(const void *key, size_t key_len, const char *text, size_t n)
{
    uint8_t block[HMAC_BLOCK] = {0};
    if (key_len > sizeof(block)) {
        struct digest d = digest_of(key, key_len);
        memcpy(block, d.b, sizeof(d.b));
    } else {
        memcpy(block, key, key_len);
    }
    struct digest inner = padded(block, 0x36, text, n);
    struct digest outer = padded(block, 0x5c, inner.b, sizeof(inner.b));
    explicit_bzero(block, sizeof(block));
    return outer;
}

static struct digest chain(const struct digest *key, const char *text)
{
    return hmac(key->b, sizeof(key->b), text, strlen(text));
}

void sigv4_time(int64_t unix_seconds, char out[SIGV4_TIME_SIZE])
{
    struct tm tm = {0};
    time_t t = unix_seconds;
    (void)gmtime_r(&t, &tm);
    if (strftime(out, SIGV4_TIME_SIZE, "%Y%m%dT%H%M%SZ", &tm) == 0)
        memcpy(out, "19700101T000000Z", SIGV4_TIME_SIZE);
}

int sigv4_escape(struct buf *out, const char *text, bool keep_slashes)
{
    static const char hex[] = "0123456789ABCDEF";
    int r = 0;
    for (const char *p = text; r == 0 && *p; p++) {
        uint8_t c = (uint8_t)*p;
        char escaped[3] = {'%', hex[c >> 4], hex[c & 15]};
        bool plain = ascii_alnum(*p) || strchr("-._~", *p) || (keep_slashes && *p == '/');
        r = plain ? buf_append(out, p, 1) : buf_append(out, escaped, sizeof(escaped));
    }
    return r;
}

/* By name, then by value: '=' sorts after characters that names may have. */
static int by_name(const void *a, const void *b, char sep)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t nx = strcspn(x, (char[]){sep, '\0'}), ny = strcspn(y, (char[]){sep, '\0'});
    int r = memcmp(x, y, MIN(nx, ny));
    if (r == 0 && nx != ny)
        return nx < ny ? -1 : 1;
    return r ? r : strcmp(x + nx, y + ny);
}

static int by_query(const void *a, const void *b)
{
    return by_name(a, b, '=');
}

static int by_header(const void *a, const void *b)
{
    return by_name(a, b, ':');
}

static int sorted(const struct strlist *l, char *ret[SIGV4_SIGNED_MAX],
                  int (*compare)(const void *, const void *))
{
    if (l->n > SIGV4_SIGNED_MAX)
        return -EINVAL;
    if (l->n == 0)
        return 0;
    memcpy(ret, l->v, l->n * sizeof(*ret));
    qsort(ret, l->n, sizeof(*ret), compare);
    return 0;
}

int sigv4_query(struct buf *out, const struct strlist *query)
{
    char *v[SIGV4_SIGNED_MAX];
    int r = sorted(query, v, by_query);
    for (size_t i = 0; r == 0 && i < query->n; i++)
        r = buf_printf(out, "%s%s", i ? "&" : "", v[i]);
    return r;
}

/* Strips spaces around values, and collapses those inside to one. */
static int add_value(struct buf *out, const char *v)
{
    int r = 0;
    v += strspn(v, " ");
    while (r == 0 && *v) {
        size_t word = strcspn(v, " "), gap = strspn(v + word, " ");
        r = buf_append(out, v, word);
        v += word + gap;
        if (r == 0 && gap && *v)
            r = buf_append(out, " ", 1);
    }
    return r;
}

static int add_names(struct buf *out, char *const *v, size_t n)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = buf_printf(out, "%s%.*s", i ? ";" : "", (int)strcspn(v[i], ":"), v[i]);
    return r;
}

static int canonical(struct buf *out, const struct sigv4_request *q, char *const *header)
{
    int r = buf_printf(out, "%s\n%s\n", q->method, q->path);
    if (r == 0)
        r = sigv4_query(out, q->query);
    if (r == 0)
        r = buf_append(out, "\n", 1);
    for (size_t i = 0; r == 0 && i < q->header->n; i++) {
        size_t name = strcspn(header[i], ":");
        r = buf_append(out, header[i], name + 1);
        if (r == 0)
            r = add_value(out, header[i] + name + 1);
        if (r == 0)
            r = buf_append(out, "\n", 1);
    }
    if (r == 0)
        r = buf_append(out, "\n", 1);
    if (r == 0)
        r = add_names(out, header, q->header->n);
    return r < 0 ? r : buf_printf(out, "\n%s", q->payload_sha256);
}

static struct digest signing_key(const struct sigv4_key *key, const char *date)
{
    AUTO_BUF struct buf first = {.limit = TEXT_MAX};
    (void)buf_printf(&first, "AWS4%s", key->secret);
    struct digest m = hmac(buf_head(&first), buf_len(&first), date, strlen(date));
    if (first.data)
        explicit_bzero(first.data, first.cap);
    m = chain(&m, key->region);
    m = chain(&m, key->service);
    return chain(&m, "aws4_request");
}

int sigv4_sign(struct buf *out, const struct sigv4_key *key, const struct sigv4_request *q)
{
    AUTO_BUF struct buf text = {.limit = TEXT_MAX}, to_sign = {.limit = TEXT_MAX};
    char *header[SIGV4_SIGNED_MAX], hex[DIGEST_HEX_SIZE], date[DATE_LEN + 1] = "";
    memcpy(date, q->time, DATE_LEN);
    int r = sorted(q->header, header, by_header);
    if (r == 0)
        r = canonical(&text, q, header);
    if (r < 0)
        return r;
    digest_hex_of(buf_head(&text), buf_len(&text), hex);
    r = buf_printf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", q->time, date,
                   key->region, key->service, hex);
    if (r < 0)
        return r;
    struct digest k = signing_key(key, date);
    struct digest m = hmac(k.b, sizeof(k.b), (const char *)buf_head(&to_sign), buf_len(&to_sign));
    explicit_bzero(&k, sizeof(k));
    digest_hex(&m, hex);
    r = buf_printf(out,
                   "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=", key->id,
                   date, key->region, key->service);
    if (r == 0)
        r = add_names(out, header, q->header->n);
    return r < 0 ? r : buf_printf(out, ", Signature=%s", hex);
}
