#include "s3/call.h"

#include "image/oci/digest.h"
#include "registry/http.h"
#include "s3/sigv4.h"
#include "s3/xml.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/progress.h"
#include "util/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    TRIES = 6,
    PAUSE_MS = 200, /* before the second; doubles */
    PAUSE_MAX_MS = 20000,
    URL_MAX = 16 << 10,
    CHUNK = 128 << 10,
    SKEW_MAX = 400 * 86400, /* the largest difference of clocks that is believed */
};

struct s3_client {
    const struct s3_config *config;
    const struct s3_credentials *keys;
    struct http *http;
    char *base;        /* scheme and host */
    char *host;        /* as in the Host header */
    char *root;        /* "/" or "/BUCKET/" */
    atomic_llong skew; /* seconds by which the server is ahead */
    pthread_mutex_t pace_lock;
    uint64_t pace_ns; /* when the next byte is due, if there is a limit */
};

/* --- the client ------------------------------------------------------------------------------ */

static bool virtual_host(const struct s3_config *c)
{
    if (c->addressing != S3_AUTO)
        return c->addressing == S3_VIRTUAL;
    return !c->endpoint && !strpbrk(c->bucket, "._"); /* a certificate covers one label */
}

/* Host headers omit the default port. */
static void drop_usual_port(char *host, bool secure)
{
    char *colon = strrchr(host, ':');
    if (colon && strcmp(colon, secure ? ":443" : ":80") == 0)
        *colon = '\0';
}

static int name_server(struct s3_client *c)
{
    char aws[300];
    bool v = virtual_host(c->config);
    (void)snprintf(aws, sizeof(aws), "https://s3.%s.amazonaws.com", c->config->region);
    const char *endpoint = c->config->endpoint ? c->config->endpoint : aws;
    const char *at = strstr(endpoint, "://") + 3;
    if (asprintf(&c->host, "%s%s%s", v ? c->config->bucket : "", v ? "." : "", at) < 0 ||
        asprintf(&c->root, "/%s%s", v ? "" : c->config->bucket, v ? "" : "/") < 0)
        return -ENOMEM;
    drop_usual_port(c->host, strncmp(endpoint, "https", 5) == 0);
    return asprintf(&c->base, "%.*s%s", (int)(at - endpoint), endpoint, c->host) < 0 ? -ENOMEM : 0;
}

int s3_client_new(struct s3_client **ret, const struct s3_config *config,
                  const struct s3_credentials *keys, const atomic_bool *cancel, struct err *e)
{
    struct s3_client *c = calloc(1, sizeof(*c));
    if (!c)
        return err_oom(e);
    c->config = config;
    c->keys = keys;
    (void)pthread_mutex_init(&c->pace_lock, NULL);
    int r =
        http_new(&c->http,
                 &(struct http_options){.ca_certs = config->ca_certs, .cancel = {cancel, NULL}}, e);
    if (r == 0 && name_server(c) < 0)
        r = err_oom(e);
    if (r < 0) {
        s3_client_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void s3_client_free(struct s3_client *c)
{
    if (!c)
        return;
    http_free(c->http);
    free(c->base);
    free(c->host);
    free(c->root);
    free(c);
}

/* --- a request ------------------------------------------------------------------------------- */

void s3_call_init(struct s3_call *q, const char *method, const char *key)
{
    *q = (struct s3_call){.method = method, .key = key};
    buf_init(&q->reply, S3_XML_MAX);
}

void s3_call_free(struct s3_call *q)
{
    strlist_free(&q->query);
    strlist_free(&q->header);
    buf_free(&q->reply);
}

int s3_call_text(char **field, const char *text)
{
    free(*field);
    *field = strdup(text);
    return *field ? 0 : -ENOMEM;
}

void s3_call_etag(char out[S3_ETAG_SIZE], const char *v)
{
    size_t n = 0;
    if (strncmp(v, "W/", 2) == 0)
        v += 2;
    for (; *v && n < S3_ETAG_SIZE - 1; v++)
        if (*v > 0x20 && *v < 0x7f && *v != '"')
            out[n++] = *v;
    out[n] = '\0';
}

int s3_call_query(struct s3_call *q, const char *name, const char *value)
{
    AUTO_BUF struct buf b = {.limit = URL_MAX};
    if (buf_printf(&b, "%s=", name) < 0 || sigv4_escape(&b, value, false) < 0 || !buf_text(&b))
        return -ENOMEM;
    return strlist_add(&q->query, buf_text(&b));
}

int s3_call_header(struct s3_call *q, const char *name, const char *value)
{
    return strlist_printf(&q->header, "%s:%s", name, value);
}

char *s3_copy_source(const struct s3_client *c, const char *key)
{
    AUTO_BUF struct buf b = {.limit = URL_MAX};
    bool ok = buf_printf(&b, "/%s/", c->config->bucket) == 0 && sigv4_escape(&b, key, true) == 0 &&
              buf_text(&b);
    return ok ? strdup(buf_text(&b)) : NULL;
}

static void read_meta(struct s3_object *o, const char *line)
{
    const char *v;
    uint64_t number;
    if ((v = http_header_value(line, "x-amz-meta-msb-mode")) && strlen(v) <= 4 &&
        strspn(v, "01234567") == strlen(v))
        o->mode = (int)strtol(v, NULL, 8) & 0777;
    else if ((v = http_header_value(line, "x-amz-meta-msb-mtime")) && parse_u64(v, &number) == 0 &&
             number <= INT64_MAX)
        o->mtime_ns = (int64_t)number;
    else if ((v = http_header_value(line, "x-amz-meta-msb-type")))
        o->link = strcmp(v, "symlink") == 0;
    else if ((v = http_header_value(line, "x-amz-meta-msb-id")) && strlen(v) < sizeof(o->id))
        (void)snprintf(o->id, sizeof(o->id), "%s", v);
    else if ((v = http_header_value(line, "x-amz-meta-msb-sha256")) && strlen(v) < sizeof(o->sha))
        (void)snprintf(o->sha, sizeof(o->sha), "%s", v);
}

static void on_header(void *ctx, const char *line)
{
    struct s3_call *q = ctx;
    const char *v;
    if ((v = http_header_value(line, "etag")))
        s3_call_etag(q->object.etag, v);
    else if ((v = http_header_value(line, "date")))
        (void)snprintf(q->date, sizeof(q->date), "%s", v);
    else if ((v = http_header_value(line, "x-amz-bucket-region")))
        (void)snprintf(q->region, sizeof(q->region), "%s", v);
    else
        read_meta(&q->object, line);
}

int64_t s3_client_now(const struct s3_client *c)
{
    return (int64_t)(realtime_ns() / 1000000000) + atomic_load(&c->skew);
}

static int sign(struct s3_client *c, const struct s3_call *q, const char *path,
                struct strlist *headers)
{
    char hex[DIGEST_HEX_SIZE] = SIGV4_EMPTY_SHA256;
    AUTO_BUF struct buf value = {.limit = URL_MAX};
    struct sigv4_request s = {.method = q->method,
                              .path = path,
                              .query = &q->query,
                              .header = headers,
                              .payload_sha256 = q->body_sha ? q->body_sha : hex};
    struct sigv4_key key = {c->keys->id, c->keys->secret, c->config->region, "s3"};
    if (!c->keys->id)
        return 0;
    if (q->body_len && !q->body_sha)
        digest_hex_of(q->body, q->body_len, hex);
    sigv4_time(s3_client_now(c), s.time);
    int r = strlist_printf(headers, "x-amz-content-sha256:%s", s.payload_sha256);
    if (r == 0)
        r = strlist_printf(headers, "x-amz-date:%s", s.time);
    if (r == 0 && c->keys->token)
        r = strlist_printf(headers, "x-amz-security-token:%s", c->keys->token);
    if (r == 0)
        r = sigv4_sign(&value, &key, &s);
    return r < 0 || !buf_text(&value)
               ? -ENOMEM
               : strlist_printf(headers, "authorization:%s", buf_text(&value));
}

/* The URL, and the headers with the signature. */
static int compose(struct s3_client *c, const struct s3_call *q, struct buf *url,
                   struct strlist *headers)
{
    AUTO_BUF struct buf path = {.limit = URL_MAX};
    const char *version = q->match && q->match[0] ? q->match : q->from ? q->object.etag : "";
    if (sigv4_escape(&path, c->root, true) < 0 ||
        (q->key && sigv4_escape(&path, q->key, true) < 0) || !buf_text(&path))
        return -ENOMEM;
    int r = strlist_copy(headers, &q->header);
    if (r == 0)
        r = strlist_printf(headers, "host:%s", c->host);
    if (r == 0 && q->to)
        r = strlist_printf(headers, "range:bytes=%llu-%llu", (unsigned long long)q->from,
                           (unsigned long long)q->to - 1);
    else if (r == 0 && q->from)
        r = strlist_printf(headers, "range:bytes=%llu-", (unsigned long long)q->from);
    if (r == 0 && *version)
        r = strlist_printf(headers, "if-match:\"%s\"", version);
    if (r == 0)
        r = sign(c, q, buf_text(&path), headers);
    if (r == 0)
        r = buf_printf(url, "%s%s%s", c->base, buf_text(&path), q->query.n ? "?" : "");
    if (r == 0)
        r = sigv4_query(url, &q->query);
    return r < 0 || buf_text(url) ? r : -ENOMEM;
}

/* --- the answer ------------------------------------------------------------------------------ */

static int on_error_xml(void *ctx, const char *path, const char *text)
{
    struct s3_call *q = ctx;
    if (strcmp(path, "/Error/Code") == 0)
        (void)snprintf(q->code, sizeof(q->code), "%s", text);
    else if (strcmp(path, "/Error/Region") == 0)
        (void)snprintf(q->region, sizeof(q->region), "%s", text);
    else if (strcmp(path, "/Error/Message") == 0)
        (void)snprintf(q->message, sizeof(q->message), "%s", text);
    return 0;
}

/* Servers also send one of these with status 200 if a copy or an assembly fails in the middle. */
static void read_error(struct s3_call *q)
{
    q->code[0] = q->message[0] = '\0';
    if (buf_len(&q->reply) && q->reply.limit == S3_XML_MAX)
        (void)xml_parse((const char *)buf_head(&q->reply), buf_len(&q->reply), on_error_xml, q);
    utf8_defuse(q->code);
    utf8_defuse(q->message);
    utf8_defuse(q->region);
}

/* n bytes are about to be sent, or were received: waits for as long as they should take. All
 * threads share one limit, and unread responses hold back the server. */
static int pace(struct s3_client *c, size_t n, struct err *e)
{
    uint64_t rate = c->config->bandwidth, now = now_ns();
    if (!rate || !n)
        return 0;
    (void)pthread_mutex_lock(&c->pace_lock);
    c->pace_ns = MAX(c->pace_ns, now) + n * 1000000000ULL / rate;
    uint64_t wait = c->pace_ns - now;
    (void)pthread_mutex_unlock(&c->pace_lock);
    return http_pause(c->http, wait / 1000000, e);
}

static int stream(struct s3_client *c, struct s3_call *q, struct http_response *resp, struct err *e)
{
    AUTO_FREE char *chunk = malloc(CHUNK);
    if (!chunk)
        return err_oom(e);
    for (;;) {
        ssize_t n = http_read(resp, chunk, CHUNK, e);
        if (n <= 0)
            return (int)n;
        if ((uint64_t)n > q->max - q->from)
            return err_set(e, EFBIG, "the server sends more than it announced");
        int r = q->fn(q->ctx, chunk, (size_t)n, e);
        q->ours = r < 0;
        if (r < 0)
            return r;
        q->from += (uint64_t)n;
        progress_bytes((size_t)n);
        if ((r = pace(c, (size_t)n, e)) < 0)
            return r;
    }
}

/* A range that begins elsewhere, or an answer that ignores it, would corrupt the file. */
static int check_range(const struct s3_call *q, const struct http_response *resp, struct err *e)
{
    bool right = resp->status == 206 && resp->range_from == q->from;
    return right ? 0 : err_set(e, EPROTO, "the server ignores the requested range");
}

static int receive(struct s3_client *c, struct s3_call *q, struct http_response *resp,
                   struct err *e)
{
    uint64_t ms;
    q->status = resp->status;
    q->retry_after_ms = parse_duration_ms(resp->retry_after, &ms) == 0 ? ms : 0;
    bool good = resp->status >= 200 && resp->status < 300;
    if (q->object.size < 0)
        q->object.size = q->from ? (int64_t)resp->range_size : resp->length;
    if (good && q->fn) {
        int r = q->from || q->to ? check_range(q, resp, e) : 0;
        return r < 0 ? r : stream(c, q, resp, e);
    }
    int r = http_body(resp, &q->reply, e);
    return r == -EFBIG ? err_set(e, EFBIG, "the server's answer is too long") : r;
}

static int attempt(struct s3_client *c, struct s3_call *q, struct err *e)
{
    AUTO_BUF struct buf url = {.limit = URL_MAX};
    AUTO_STRLIST struct strlist headers = {0};
    struct http_response *resp = NULL;
    buf_reset(&q->reply);
    q->status = 0;
    if (q->from == 0)
        q->object = (struct s3_object){.size = -1, .mtime_ns = -1, .mode = -1};
    int r = pace(c, q->body_len, e); /* before it is signed, since signatures have a time */
    if (r == 0 && compose(c, q, &url, &headers) < 0)
        r = err_oom(e);
    if (r < 0)
        return r;
    r = http_open(c->http,
                  &(struct http_request){.url = buf_text(&url),
                                         .method = q->method,
                                         .headers = &headers,
                                         .body = q->body,
                                         .body_len = q->body_len,
                                         .on_header = on_header,
                                         .header_ctx = q},
                  &resp, e);
    if (r == 0)
        r = receive(c, q, resp, e);
    http_close(resp);
    if (r == 0) {
        progress_bytes(q->body_len);
        read_error(q);
    }
    return r;
}

/* --- again ----------------------------------------------------------------------------------- */

static bool busy(const struct s3_call *q)
{
    static const char *const codes[] = {"SlowDown", "InternalError", "RequestTimeout",
                                        "ServiceUnavailable", "OperationAborted"};
    if (q->status == 429 || (q->status >= 500 && q->status != 501))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (strcmp(q->code, codes[i]) == 0)
            return true;
    return false;
}

static bool broke(int r)
{
    return r == -ECONNRESET || r == -ETIMEDOUT || r == -EIO;
}

static int pause_for(struct s3_client *c, const struct s3_call *q, int nth, struct err *e)
{
    uint32_t random = 0;
    uint64_t ms = MIN((uint64_t)PAUSE_MS << nth, (uint64_t)PAUSE_MAX_MS);
    if (getrandom(&random, sizeof(random), 0) < 0)
        random = 0;
    ms = ms / 2 + random % (ms / 2 + 1);
    return http_pause(c->http, MIN(MAX(ms, q->retry_after_ms), (uint64_t)PAUSE_MAX_MS), e);
}

/* Adopts the server's clock. True: it was different, and the request may succeed now. */
static bool correct_clock(struct s3_client *c, const struct s3_call *q)
{
    struct tm tm = {0};
    if (strcmp(q->code, "RequestTimeTooSkewed") != 0 ||
        !strptime(q->date, "%a, %d %b %Y %H:%M:%S", &tm))
        return false;
    long long skew = (long long)timegm(&tm) - (long long)(realtime_ns() / 1000000000);
    if (skew > SKEW_MAX || skew < -SKEW_MAX)
        return false;
    atomic_store(&c->skew, skew);
    return true;
}

int s3_call_explain(const struct s3_client *c, const struct s3_call *q, const char *what,
                    struct err *e)
{
    static const struct {
        long status;
        int code;
        const char *hint;
    } known[] = {
        {401, EACCES, "check the credentials (--credentials), and that they may use the bucket"},
        {403, EACCES, "check the credentials (--credentials), and that they may use the bucket"},
        {404, ENOENT, "check the name of the bucket and the endpoint"},
        {412, EEXIST, NULL},
        {429, EAGAIN, "try again later"},
        {503, EAGAIN, "try again later"},
    };
    const char *hint = NULL;
    int code = EPROTO;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].status == q->status) {
            code = known[i].code;
            hint = known[i].hint;
        }
    (void)err_set(e, code, "cannot %s: %s answers with HTTP status %ld%s%s%s%s", what, c->host,
                  q->status, q->code[0] ? ", " : "", q->code, q->message[0] ? ": " : "",
                  q->message);
    bool elsewhere = q->region[0] && strcmp(q->region, c->config->region) != 0;
    if (elsewhere && (q->status == 301 || q->status == 307 || q->status == 400))
        err_hint(e, "the bucket is in another region: --region %.40s", q->region);
    else if (hint)
        err_hint(e, "%s", hint);
    return -code;
}

int s3_call_run(struct s3_client *c, struct s3_call *q, const char *what, struct err *e)
{
    for (int nth = 0;; nth++) {
        err_clear(e);
        int r = q->check ? q->check->fn(q->check->ctx, e) : 0;
        if (r != 0)
            return r;
        r = attempt(c, q, e);
        bool again = r < 0 ? broke(r) && !q->ours : busy(q) || (nth == 0 && correct_clock(c, q));
        if (again && nth + 1 < TRIES) {
            if ((r = pause_for(c, q, nth, e)) < 0)
                return r;
            continue;
        }
        if (r < 0)
            return err_wrap(e, r, "cannot %s", what);
        bool good = q->status >= 200 && q->status < 300 && !q->code[0];
        bool callers = q->status == 404 || q->status == 409 || q->status == 412 || q->status == 416;
        bool missing = callers && strcmp(q->code, "NoSuchBucket") != 0;
        return good || missing ? 0 : s3_call_explain(c, q, what, e);
    }
}
