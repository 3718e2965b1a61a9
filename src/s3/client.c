#include "s3/client.h"

#include "s3/call.h"
#include "s3/xml.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { UPLOAD_ID_MAX = 1024, PLACES_MAX = 3 * S3_KEY_MAX + 64 };

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
    /* The connection broke after the last byte of this version. */
    bool at_end = q->status == 416 && q->from && q->object.etag[0];
    if (q->status >= 300 && !at_end)
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

int s3_get_range(struct s3_client *c, const char *key, const char *etag, uint64_t from, uint64_t n,
                 s3_data_fn fn, void *ctx, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "GET", key);
    q.fn = fn;
    q.ctx = ctx;
    q.from = from;
    q.to = q.max = from + n;
    q.object.size = -1;
    int r = get(c, &q, etag, &(struct s3_object){0}, e);
    return r < 0 || q.from == q.to ? r : err_set(e, EPROTO, "'%s' is shorter than announced", key);
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

struct one {
    const char *key;
    char etag[S3_ETAG_SIZE];
};

/* Of all keys with this prefix, the key itself comes first. */
static int on_one(void *ctx, const char *key, uint64_t size, const char *etag, struct err *e)
{
    struct one *o = ctx;
    if (strcmp(key, o->key) == 0)
        (void)snprintf(o->etag, sizeof(o->etag), "%s", etag);
    return 1;
}

/* HEAD comes first, so that a change in between is noticed. */
int s3_head_listed(struct s3_client *c, const char *key, const char *listed, struct s3_object *ret,
                   struct err *e)
{
    struct one o = {.key = key};
    int r = s3_head(c, key, ret, e);
    if (r < 0 || strcmp(ret->etag, listed) == 0)
        return r;
    if (!*listed)
        return -ESTALE;
    r = s3_list(c, key, on_one, NULL, &o, e);
    return r < 0 ? r : strcmp(o.etag, listed) == 0 ? 0 : -ESTALE;
}

/* --- writing --------------------------------------------------------------------------------- */

static int add_meta(struct s3_call *q, const struct strlist *meta)
{
    return meta ? strlist_copy(&q->header, meta) : 0;
}

static int add_condition(struct s3_call *q, const struct s3_put *how)
{
    q->match = how->when == S3_IF_MATCH ? how->match : NULL;
    return how->when == S3_IF_ABSENT ? s3_call_header(q, "if-none-match", "*") : 0;
}

/* Runs a write; *etag: from the response's header, if there is one. */
static int run_write(struct s3_client *c, struct s3_call *q, const char *verb, char *etag,
                     struct err *e)
{
    char what[PLACES_MAX];
    (void)snprintf(what, sizeof(what), "%s '%s'", verb, q->key);
    int r = s3_call_run(c, q, what, e);
    if (r != 0)
        return r;
    bool gone = q->match && *q->match && q->status == 404 && strcmp(q->code, "NoSuchKey") == 0;
    if (q->status == 412 || q->status == 409 || gone)
        return err_set(e, EEXIST, "'%s' was changed by another client", q->key);
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
    q.body_sha = how->sha;
    int r = add_meta(&q, how->meta);
    if (r == 0)
        r = add_condition(&q, how);
    return r < 0 ? err_oom(e) : run_write(c, &q, "write", etag, e);
}

struct result {
    const char *path;
    char *text;
};

static int on_result_xml(void *ctx, const char *path, const char *text)
{
    struct result *w = ctx;
    return strcmp(path, w->path) == 0 ? s3_call_text(&w->text, text) : 0;
}

/* One text from the response; malloc'd, NULL if there is none. */
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
    s3_call_etag(etag, text ? text : "");
    return etag[0] ? 0 : err_set(e, EPROTO, "the server's answer about '%s' is malformed", q->key);
}

/* For a multipart upload, the ETag with which the object is listed counts, if it is still ours. */
static int learn_listed(struct s3_client *c, const char *key, char etag[S3_ETAG_SIZE])
{
    struct one o = {.key = key};
    struct s3_object now;
    if (s3_list(c, key, on_one, NULL, &o, NULL) >= 0 && o.etag[0] &&
        s3_head(c, key, &now, NULL) == 0 && strcmp(now.etag, etag) == 0)
        memcpy(etag, o.etag, sizeof(o.etag));
    return 0;
}

int s3_copy(struct s3_client *c, const char *from, const char *to, const struct s3_check *check,
            char etag[S3_ETAG_SIZE], struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    AUTO_FREE char *source = s3_copy_source(c, from);
    s3_call_init(&q, "PUT", to);
    q.check = check;
    if (!source || s3_call_header(&q, "x-amz-copy-source", source) < 0)
        return err_oom(e);
    int r = run_write(c, &q, "write", NULL, e);
    if (r == 0)
        r = etag_of(&q, "/CopyObjectResult/ETag", etag, e);
    return r != 0 || !strchr(etag, '-') ? r : learn_listed(c, to, etag);
}

int s3_delete(struct s3_client *c, const char *key, const struct s3_check *check, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "DELETE", key);
    q.check = check;
    int r = run_write(c, &q, "delete", NULL, e);
    return r < 0 && q.status == 404 ? 0 : r;
}

/* --- in parts -------------------------------------------------------------------------------- */

void s3_upload_free(struct s3_upload *u)
{
    free(u->key);
    free(u->id);
    free(u->etag);
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
                          .id = result_of(&q, "/InitiateMultipartUploadResult/UploadId"),
                          .etag = calloc(S3_PARTS_MAX, sizeof(*u.etag))};
    if (!u.key || !u.etag || !u.id || !*u.id || strlen(u.id) > UPLOAD_ID_MAX) {
        s3_upload_free(&u);
        return err_set(e, EPROTO, "the server's answer about '%s' is malformed", key);
    }
    *ret = u;
    return 0;
}

int s3_upload_part(struct s3_client *c, struct s3_upload *u, unsigned number, const void *p,
                   size_t n, const char *sha, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    char text[16], *etag = NULL;
    s3_call_init(&q, "PUT", u->key);
    q.body = p;
    q.body_len = n;
    q.body_sha = sha;
    if (number > S3_PARTS_MAX)
        return err_set(e, EFBIG, "'%s' is too large", u->key);
    etag = u->etag[number - 1];
    (void)snprintf(text, sizeof(text), "%u", number);
    if (s3_call_query(&q, "partNumber", text) < 0 || s3_call_query(&q, "uploadId", u->id) < 0)
        return err_oom(e);
    int r = run_write(c, &q, "write", etag, e);
    if (r == 0 && (!etag[0] || strpbrk(etag, "<>&")))
        r = err_set(e, EPROTO, "the server's answer about '%s' is malformed", u->key);
    return r;
}

int s3_upload_adopt(const char *key, const char *id, struct s3_upload *ret)
{
    struct s3_upload u = {
        .key = strdup(key), .id = strdup(id), .etag = calloc(S3_PARTS_MAX, sizeof(*u.etag))};
    *ret = u;
    return u.key && u.id && u.etag ? 0 : -ENOMEM;
}

struct parts {
    char (*etag)[S3_ETAG_SIZE];
    char next[S3_ETAG_SIZE];
    uint64_t number;
};

static int on_parts_xml(void *ctx, const char *path, const char *text)
{
    static const char root[] = "/ListPartsResult/Part";
    struct parts *p = ctx;
    if (strncmp(path, root, sizeof(root) - 1) != 0)
        return 0;
    path += sizeof(root) - 1;
    if (strcmp(path, "/PartNumber") == 0)
        return parse_u64(text, &p->number);
    if (strcmp(path, "/ETag") == 0)
        s3_call_etag(p->next, text);
    if (*path)
        return 0;
    if (p->number >= 1 && p->number <= S3_PARTS_MAX)
        memcpy(p->etag[p->number - 1], p->next, S3_ETAG_SIZE);
    p->number = 0;
    p->next[0] = '\0';
    return 0;
}

int s3_upload_list(struct s3_client *c, const struct s3_upload *u, char (*etag)[S3_ETAG_SIZE],
                   struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    struct parts p = {.etag = etag};
    s3_call_init(&q, "GET", u->key);
    if (s3_call_query(&q, "uploadId", u->id) < 0)
        return err_oom(e);
    int r = get(c, &q, "", &(struct s3_object){0}, e);
    return r < 0 ? r /* one page has room for all */
                 : xml_parse((const char *)buf_head(&q.reply), buf_len(&q.reply), on_parts_xml, &p);
}

int s3_upload_end(struct s3_client *c, struct s3_upload *u, unsigned parts,
                  const struct s3_put *how, char etag[S3_ETAG_SIZE], struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    AUTO_BUF struct buf b;
    buf_init(&b, 4 << 20);
    s3_call_init(&q, "POST", u->key);
    int r = buf_printf(&b, "<CompleteMultipartUpload>");
    for (unsigned i = 0; r == 0 && i < parts; i++)
        r = buf_printf(&b, "<Part><PartNumber>%u</PartNumber><ETag>\"%s\"</ETag></Part>", i + 1,
                       u->etag[i]);
    if (r == 0)
        r = buf_printf(&b, "</CompleteMultipartUpload>");
    if (r < 0 || s3_call_query(&q, "uploadId", u->id) < 0 || add_condition(&q, how) < 0)
        return err_oom(e);
    q.body = buf_head(&b);
    q.body_len = buf_len(&b);
    r = run_write(c, &q, "write", NULL, e);
    if (r < 0)
        return q.status == 400 ? -ESTALE : r;
    return etag_of(&q, "/CompleteMultipartUploadResult/ETag", etag, e);
}

void s3_upload_abort(struct s3_client *c, struct s3_upload *u)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "DELETE", u->key);
    if (u->id && s3_call_query(&q, "uploadId", u->id) == 0)
        (void)run_write(c, &q, "abort", NULL, NULL);
}
