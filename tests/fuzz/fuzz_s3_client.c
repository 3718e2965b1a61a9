/* What a server answers to the client of s3/client.h: statuses, headers, listings, uploads, content
 * that breaks off; and the records of uploads (s3/resume.c). HTTP is ours.
 *
 * The first byte picks the request. Then, for 'r', a record, which ends with \x1e. Then answers,
 * which end with \x1e: a status, "Name: value" lines, an empty line, the body. "break: 1" is a
 * connection that is lost at the end.
 */
#include "fuzz_require.h"
#include "registry/http.h"
#include "s3/work.h"
#include "util/fs.h"
#include "util/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SPLIT = 0x1e, ANSWERS_MAX = 64, GET_MAX = 1 << 16 };

/* --- HTTP ------------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock; /* listings are read by several threads */
    const char *at, *end;
    unsigned n;
} wire = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct answer {
    struct http_response resp; /* first */
    const char *at, *end;
    bool breaks;
};

static const char *take(const char **end)
{
    (void)pthread_mutex_lock(&wire.lock);
    const char *at = wire.at;
    bool more = at < wire.end && wire.n++ < ANSWERS_MAX;
    if (more) {
        const char *stop = memchr(at, SPLIT, (size_t)(wire.end - at));
        *end = stop ? stop : wire.end;
        wire.at = stop ? stop + 1 : wire.end;
    }
    (void)pthread_mutex_unlock(&wire.lock);
    return more ? at : NULL;
}

/* A copy, without the CR. The empty line, or the end: NULL. */
static char *take_line(struct answer *a)
{
    const char *stop = memchr(a->at, '\n', (size_t)(a->end - a->at));
    size_t n = (size_t)((stop ? stop : a->end) - a->at);
    char *line = n ? strndup(a->at, n) : NULL;
    a->at = stop ? stop + 1 : a->end;
    return line;
}

static void read_header(struct answer *a, const struct http_request *q, const char *line)
{
    const char *v;
    unsigned long long from, all;
    uint64_t n;
    if ((v = http_header_value(line, "content-length")) && parse_u64(v, &n) == 0)
        a->resp.length = (int64_t)(n & INT64_MAX);
    else if ((v = http_header_value(line, "content-range")) &&
             sscanf(v, "bytes %llu-%*u/%llu", &from, &all) == 2) {
        a->resp.range_from = from;
        a->resp.range_size = all;
    } else if ((v = http_header_value(line, "retry-after")))
        (void)snprintf(a->resp.retry_after, sizeof(a->resp.retry_after), "%s", v);
    a->breaks |= http_header_value(line, "break") != NULL;
    if (q->on_header)
        q->on_header(q->header_ctx, line);
}

int http_new(struct http **ret, const struct http_options *opt, struct err *e)
{
    *ret = NULL;
    return 0;
}

void http_free(struct http *h)
{
}

int http_open(struct http *h, const struct http_request *q, struct http_response **ret,
              struct err *e)
{
    const char *end = NULL, *at = take(&end);
    if (!at)
        return err_set(e, ECONNREFUSED, "there are no more answers");
    struct answer *a = calloc(1, sizeof(*a));
    REQUIRE(a);
    a->at = at;
    a->end = end;
    a->resp.length = -1;
    char *line = take_line(a);
    a->resp.status = line ? (long)(strtoul(line, NULL, 10) % 600) : 200;
    free(line);
    for (; (line = take_line(a)); free(line))
        read_header(a, q, line);
    *ret = &a->resp;
    return 0;
}

ssize_t http_read(struct http_response *r, void *p, size_t n, struct err *e)
{
    struct answer *a = (struct answer *)r;
    size_t k = MIN(n, (size_t)(a->end - a->at));
    if (k == 0)
        return a->breaks ? err_set(e, ECONNRESET, "lost") : 0;
    memcpy(p, a->at, k);
    a->at += k;
    return (ssize_t)k;
}

void http_close(struct http_response *r)
{
    free(r);
}

int http_body(struct http_response *r, struct buf *b, struct err *e)
{
    struct answer *a = (struct answer *)r;
    if (a->at < a->end && buf_append(b, a->at, (size_t)(a->end - a->at)) < 0)
        return -EFBIG;
    return a->breaks ? err_set(e, ECONNRESET, "lost") : 0;
}

const char *http_header_value(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    return line + n + 1 + strspn(line + n + 1, " ");
}

int http_pause(const struct http *h, uint64_t ms, struct err *e)
{
    return 0;
}

/* --- requests -------------------------------------------------------------------------------- */

static bool is_etag(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s > '~' || *s == '"')
            return false;
    return true;
}

static int on_object(void *ctx, const char *key, uint64_t size, const char *etag, struct err *e)
{
    size_t *n = ctx;
    REQUIRE(key && size <= INT64_MAX && is_etag(etag) && strlen(etag) < S3_ETAG_SIZE);
    return ++*n < S3_LIST_MAX ? 0 : 1;
}

static int on_data(void *ctx, const void *p, size_t n, struct err *e)
{
    size_t *all = ctx;
    *all += n;
    REQUIRE(n > 0 && *all <= GET_MAX);
    return 0;
}

static void check_object(const struct s3_object *o)
{
    REQUIRE(is_etag(o->etag) && o->mode >= -1 && o->mode <= 0777 && o->mtime_ns >= -1);
    REQUIRE(strlen(o->id) < sizeof(o->id));
}

static void fuzz_reads(struct s3_client *c, char what)
{
    struct s3_object o = {.mtime_ns = -1, .mode = -1};
    size_t n = 0;
    int r = 0;
    if (what == 'l')
        r = s3_list(c, "pre/", on_object, NULL, &n, NULL);
    else if (what == 'g')
        r = s3_get(c, "pre/f", "", GET_MAX, on_data, &n, &o, NULL);
    else if (what == 'p')
        r = s3_get_range(c, "pre/f", "etag", 100, 1000, on_data, &n, NULL);
    else
        r = s3_head_listed(c, "pre/f", "etag", &o, NULL);
    REQUIRE(what != 'p' || r < 0 || n == 1000);
    if (r == 0)
        check_object(&o);
}

static void fuzz_writes(struct s3_client *c)
{
    char etag[S3_ETAG_SIZE] = "";
    struct s3_upload up = {0};
    (void)s3_put(c, "pre/f", "x", 1, &(struct s3_put){.when = S3_IF_ABSENT}, etag, NULL);
    REQUIRE(is_etag(etag));
    if (s3_copy(c, "pre/f", "pre/g", NULL, etag, NULL) == 0)
        REQUIRE(etag[0] && is_etag(etag));
    (void)s3_delete(c, "pre/f", NULL, NULL);
    if (s3_upload_begin(c, "pre/f", NULL, &up, NULL) == 0) {
        REQUIRE(up.id[0]);
        if (s3_upload_part(c, &up, 1, "x", 1, NULL, NULL) == 0)
            REQUIRE(up.etag[0][0] && !strpbrk(up.etag[0], "<>&"));
        if (s3_upload_end(c, &up, 1, &(struct s3_put){0}, etag, NULL) == 0)
            REQUIRE(etag[0] && is_etag(etag));
    }
    s3_upload_free(&up);
}

/* As another sync would find it: damaged in any way. */
static void fuzz_record(struct s3_client *c, const struct s3_config *config)
{
    char place[] = "/tmp/msb-fuzz-XXXXXX", name[DIGEST_HEX_SIZE];
    const char *end = NULL, *text = take(&end);
    REQUIRE(mkdtemp(place));
    AUTO_CLOSE int dir = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    (void)mkdirat(dir, "s3-uploads", 0700);
    digest_hex_of("f", 1, name);
    name[32] = '\0';
    AUTO_CLOSE int records = dir_open_at(dir, "s3-uploads");
    size_t n = text ? (size_t)(end - text) : 0;
    REQUIRE(file_replace_at(records, name, text ? text : "", n, 0600, false) == 0);
    struct s3_work w = {.config = config, .client = c, .dir = dir};
    struct strlist meta = {0};
    struct s3_upload up = {0};
    struct s3_resume had = {.fd = -1};
    int r = s3_resume_begin(&w, "f", "pre/f", &meta, &up, &had, NULL);
    for (unsigned i = 1; r == 0 && i <= 4; i++) {
        if (s3_resume_has(&had, i, had.part[i - 1].sha, &up))
            REQUIRE(is_etag(up.etag[i - 1]) && up.etag[i - 1][0]);
        else
            s3_resume_note(&had, i, "sha", &up);
    }
    s3_resume_end(&w, "f", &up, &had, r);
    s3_upload_free(&up);
    s3_resume_give_up(&w);
    REQUIRE(rmdir(place) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char bucket[] = "bucket", prefix[] = "pre/", endpoint[] = "http://server",
                region[] = "r";
    const struct s3_config config = {
        .bucket = bucket, .prefix = prefix, .endpoint = endpoint, .region = region};
    const struct s3_credentials keys = {0};
    struct s3_client *c = NULL;
    if (size == 0)
        return 0;
    wire.at = (const char *)data + 1;
    wire.end = (const char *)data + size;
    wire.n = 0;
    REQUIRE(s3_client_new(&c, &config, &keys, NULL, NULL) == 0);
    if (data[0] == 'r')
        fuzz_record(c, &config);
    else if (data[0] == 'w')
        fuzz_writes(c);
    else
        fuzz_reads(c, (char)data[0]);
    s3_client_free(c);
    return 0;
}
