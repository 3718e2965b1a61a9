#include "s3/client.h"

#include "s3/call.h"
#include "s3/xml.h"
#include "util/parse.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { PARTS_MAX = 10000, UPLOAD_ID_MAX = 1024, PLACES_MAX = 3 * S3_KEY_MAX + 64 };

/* --- listing --------------------------------------------------------------------------------- */

struct listed {
    char *key;
    uint64_t size;
    char etag[S3_ETAG_SIZE];
};

/* Objects are kept until the end of their page: only there some servers say how keys are
 * written. */
struct page {
    struct listed *v, next;
    size_t n, cap;
    char *token;
    bool more, encoded;
};

static void page_clear(struct page *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->v[i].key);
    free(p->next.key);
    p->next = (struct listed){0};
    p->n = 0;
    p->more = p->encoded = false;
}

/* %XX and +, in place. -EBADMSG: malformed, or a NUL. */
static int unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s == '+' ? ' ' : *s;
            continue;
        }
        char hex[3] = {s[1], s[1] ? s[2] : '\0', '\0'};
        if (strspn(hex, "0123456789abcdefABCDEF") != 2 || strcmp(hex, "00") == 0)
            return -EBADMSG;
        *to++ = (char)strtol(hex, NULL, 16);
        s += 2;
    }
    *to = '\0';
    return 0;
}

static int set_text(char **field, const char *text)
{
    free(*field);
    *field = strdup(text);
    return *field ? 0 : -ENOMEM;
}

static int on_object(struct page *p)
{
    if (!p->next.key || p->n >= S3_LIST_MAX)
        return -EBADMSG;
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 1000;
        struct listed *more = reallocarray(p->v, cap, sizeof(*more));
        if (!more)
            return -ENOMEM;
        p->v = more;
        p->cap = cap;
    }
    p->v[p->n++] = p->next;
    p->next = (struct listed){0};
    return 0;
}

static int on_list_xml(void *ctx, const char *path, const char *text)
{
    static const char root[] = "/ListBucketResult/";
    struct page *p = ctx;
    if (strncmp(path, root, sizeof(root) - 1) != 0)
        return 0;
    path += sizeof(root) - 1;
    if (strcmp(path, "Contents/Key") == 0)
        return set_text(&p->next.key, text);
    if (strcmp(path, "Contents/Size") == 0)
        return parse_u64(text, &p->next.size) < 0 || p->next.size > INT64_MAX ? -EBADMSG : 0;
    if (strcmp(path, "Contents/ETag") == 0)
        (void)snprintf(p->next.etag, sizeof(p->next.etag), "%.*s",
                       (int)strcspn(text + (*text == '"'), "\""), text + (*text == '"'));
    else if (strcmp(path, "Contents") == 0)
        return on_object(p);
    else if (strcmp(path, "IsTruncated") == 0)
        p->more = strcmp(text, "true") == 0;
    else if (strcmp(path, "EncodingType") == 0)
        p->encoded = strcmp(text, "url") == 0;
    else if (strcmp(path, "NextContinuationToken") == 0)
        return set_text(&p->token, text);
    return 0;
}

static int list_page(struct s3_client *c, const char *prefix, struct page *p, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "GET", NULL);
    int r = s3_call_query(&q, "list-type", "2");
    if (r == 0)
        r = s3_call_query(&q, "encoding-type", "url");
    if (r == 0)
        r = s3_call_query(&q, "prefix", prefix);
    if (r == 0 && p->token)
        r = s3_call_query(&q, "continuation-token", p->token);
    if (r < 0)
        return err_oom(e);
    AUTO_FREE char *before = steal_ptr(&p->token);
    page_clear(p);
    r = s3_call_run(c, &q, "list the bucket", e);
    if (r == 0 && q.status != 200)
        r = s3_call_explain(c, &q, "list the bucket", e);
    if (r < 0)
        return r;
    r = xml_parse((const char *)buf_head(&q.reply), buf_len(&q.reply), on_list_xml, p);
    for (size_t i = 0; r == 0 && p->encoded && i < p->n; i++)
        r = unescape(p->v[i].key);
    if (r == -ENOMEM)
        return err_oom(e);
    if (r < 0 || (p->more && !p->token))
        return err_set(e, EPROTO, "the server's listing is malformed");
    if (p->more && before && strcmp(before, p->token) == 0)
        return err_set(e, E2BIG, "the server's listing does not end");
    return 0;
}

int s3_list(struct s3_client *c, const char *prefix, s3_list_fn fn, void *ctx, struct err *e)
{
    struct page p = {.more = true};
    size_t seen = 0;
    int r = 0;
    for (int i = 0; r == 0 && p.more; i++) {
        r = i < S3_PAGES_MAX ? list_page(c, prefix, &p, e)
                             : err_set(e, E2BIG, "the server's listing does not end");
        seen += r == 0 ? p.n : 0;
        if (r == 0 && seen > S3_LIST_MAX)
            r = err_set(e, E2BIG, "there are more than %d objects", S3_LIST_MAX);
        for (size_t k = 0; r == 0 && k < p.n; k++)
            r = fn(ctx, p.v[k].key, p.v[k].size, p.v[k].etag, e);
    }
    page_clear(&p);
    free(p.v);
    free(p.token);
    return r;
}

/* --- reading --------------------------------------------------------------------------------- */

static int get(struct s3_client *c, struct s3_call *q, const char *etag, struct s3_object *ret,
               struct err *e)
{
    char what[PLACES_MAX];
    (void)snprintf(what, sizeof(what), "read '%s'", q->key);
    q->match = etag;
    int r = s3_call_run(c, q, what, e);
    if (r < 0)
        return r;
    if (q->status == 404)
        return -ENOENT;
    if (q->status == 412)
        return -ESTALE;
    if (q->status >= 300)
        return s3_call_explain(c, q, what, e);
    *ret = q->object;
    return 0;
}

int s3_get(struct s3_client *c, const char *key, const char *etag, uint64_t max, s3_data_fn fn,
           void *ctx, struct s3_object *ret, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "GET", key);
    q.fn = fn;
    q.ctx = ctx;
    q.max = max;
    return get(c, &q, etag, ret, e);
}

struct piece {
    uint8_t *p;
    size_t n, used;
};

static int to_piece(void *ctx, const void *p, size_t n, struct err *e)
{
    struct piece *at = ctx;
    if (n > at->n - at->used)
        return err_set(e, EFBIG, "the server sends more than was asked for");
    memcpy(at->p + at->used, p, n);
    at->used += n;
    return 0;
}

int s3_get_part(struct s3_client *c, const char *key, const char *etag, uint64_t from, size_t n,
                void *to, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    struct piece at = {.p = to, .n = n};
    s3_call_init(&q, "GET", key);
    q.fn = to_piece;
    q.ctx = &at;
    q.from = from;
    q.to = q.max = from + n;
    q.object.size = -1;
    int r = get(c, &q, etag, &(struct s3_object){0}, e);
    return r < 0 || at.used == n ? r
                                 : err_set(e, EPROTO, "'%s' is shorter than the server said", key);
}

static int to_buffer(void *ctx, const void *p, size_t n, struct err *e)
{
    return buf_append(ctx, p, n) < 0 ? err_oom(e) : 0;
}

int s3_get_all(struct s3_client *c, const char *key, struct buf *b, struct s3_object *ret,
               struct err *e)
{
    return s3_get(c, key, "", b->limit, to_buffer, b, ret, e);
}

int s3_head(struct s3_client *c, const char *key, struct s3_object *ret, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "HEAD", key);
    return get(c, &q, "", ret, e);
}

/* --- writing --------------------------------------------------------------------------------- */

static int add_meta(struct s3_call *q, const struct strlist *meta)
{
    return meta ? strlist_copy(&q->header, meta) : 0;
}

/* Runs a write; *etag from the answer's header, if there is one. */
static int run_write(struct s3_client *c, struct s3_call *q, const char *verb, char *etag,
                     struct err *e)
{
    char what[PLACES_MAX];
    (void)snprintf(what, sizeof(what), "%s '%s'", verb, q->key);
    int r = s3_call_run(c, q, what, e);
    if (r < 0)
        return r;
    if (q->status == 412 || q->status == 409)
        return err_set(e, EEXIST, "'%s' was changed by somebody else", q->key);
    if (q->status >= 300)
        return s3_call_explain(c, q, what, e);
    if (etag)
        (void)snprintf(etag, S3_ETAG_SIZE, "%s", q->object.etag);
    return 0;
}

int s3_put(struct s3_client *c, const char *key, const void *p, size_t n, const struct s3_put *how,
           char etag[S3_ETAG_SIZE], struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "PUT", key);
    q.body = p;
    q.body_len = n;
    int r = add_meta(&q, how->meta);
    if (r == 0 && how->when == S3_IF_ABSENT)
        r = s3_call_header(&q, "if-none-match", "*");
    q.match = how->when == S3_IF_MATCH ? how->match : NULL;
    return r < 0 ? err_oom(e) : run_write(c, &q, "write", etag, e);
}

struct result {
    const char *path;
    char *text;
};

static int on_result_xml(void *ctx, const char *path, const char *text)
{
    struct result *w = ctx;
    return strcmp(path, w->path) == 0 ? set_text(&w->text, text) : 0;
}

/* One text of the answer; malloc'd, NULL if it has none. */
static char *result_of(const struct s3_call *q, const char *path)
{
    struct result w = {.path = path};
    if (xml_parse((const char *)buf_head(&q->reply), buf_len(&q->reply), on_result_xml, &w) == 0)
        return w.text;
    free(w.text);
    return NULL;
}

static int etag_of(const struct s3_call *q, const char *path, char etag[S3_ETAG_SIZE],
                   struct err *e)
{
    AUTO_FREE char *text = result_of(q, path);
    const char *from = text ? text + (*text == '"') : "";
    (void)snprintf(etag, S3_ETAG_SIZE, "%.*s", (int)strcspn(from, "\""), from);
    return etag[0] ? 0 : err_set(e, EPROTO, "the server's answer about '%s' is malformed", q->key);
}

int s3_copy(struct s3_client *c, const char *from, const char *to, char etag[S3_ETAG_SIZE],
            struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    AUTO_FREE char *source = s3_copy_source(c, from);
    s3_call_init(&q, "PUT", to);
    if (!source || s3_call_header(&q, "x-amz-copy-source", source) < 0)
        return err_oom(e);
    int r = run_write(c, &q, "write", NULL, e);
    return r < 0 ? r : etag_of(&q, "/CopyObjectResult/ETag", etag, e);
}

int s3_delete(struct s3_client *c, const char *key, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "DELETE", key);
    int r = run_write(c, &q, "delete", NULL, e);
    return r < 0 && q.status == 404 ? 0 : r;
}

/* --- in parts -------------------------------------------------------------------------------- */

void s3_upload_free(struct s3_upload *u)
{
    free(u->key);
    free(u->id);
    strlist_free(&u->etags);
    *u = (struct s3_upload){0};
}

int s3_upload_begin(struct s3_client *c, const char *key, const struct strlist *meta,
                    struct s3_upload *ret, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "POST", key);
    if (s3_call_query(&q, "uploads", "") < 0 || add_meta(&q, meta) < 0)
        return err_oom(e);
    int r = run_write(c, &q, "write", NULL, e);
    if (r < 0)
        return r;
    struct s3_upload u = {.key = strdup(key),
                          .id = result_of(&q, "/InitiateMultipartUploadResult/UploadId")};
    if (!u.key || !u.id || !*u.id || strlen(u.id) > UPLOAD_ID_MAX) {
        s3_upload_free(&u);
        return err_set(e, EPROTO, "the server's answer about '%s' is malformed", key);
    }
    *ret = u;
    return 0;
}

int s3_upload_part(struct s3_client *c, struct s3_upload *u, const void *p, size_t n, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    char number[16], etag[S3_ETAG_SIZE] = "";
    s3_call_init(&q, "PUT", u->key);
    q.body = p;
    q.body_len = n;
    if (u->etags.n == PARTS_MAX)
        return err_set(e, EFBIG, "'%s' is too large", u->key);
    (void)snprintf(number, sizeof(number), "%zu", u->etags.n + 1);
    if (s3_call_query(&q, "partNumber", number) < 0 || s3_call_query(&q, "uploadId", u->id) < 0)
        return err_oom(e);
    int r = run_write(c, &q, "write", etag, e);
    if (r == 0 && (!etag[0] || strpbrk(etag, "<>&")))
        r = err_set(e, EPROTO, "the server's answer about '%s' is malformed", u->key);
    return r < 0 ? r : strlist_add(&u->etags, etag) < 0 ? err_oom(e) : 0;
}

int s3_upload_end(struct s3_client *c, struct s3_upload *u, char etag[S3_ETAG_SIZE], struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    AUTO_BUF struct buf b;
    buf_init(&b, 4 << 20);
    s3_call_init(&q, "POST", u->key);
    int r = buf_printf(&b, "<CompleteMultipartUpload>");
    for (size_t i = 0; r == 0 && i < u->etags.n; i++)
        r = buf_printf(&b, "<Part><PartNumber>%zu</PartNumber><ETag>\"%s\"</ETag></Part>", i + 1,
                       u->etags.v[i]);
    if (r == 0)
        r = buf_printf(&b, "</CompleteMultipartUpload>");
    if (r < 0 || s3_call_query(&q, "uploadId", u->id) < 0)
        return err_oom(e);
    q.body = buf_head(&b);
    q.body_len = buf_len(&b);
    r = run_write(c, &q, "write", NULL, e);
    return r < 0 ? r : etag_of(&q, "/CompleteMultipartUploadResult/ETag", etag, e);
}

void s3_upload_abort(struct s3_client *c, struct s3_upload *u)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "DELETE", u->key);
    if (u->id && s3_call_query(&q, "uploadId", u->id) == 0)
        (void)run_write(c, &q, "abort", NULL, NULL);
}
