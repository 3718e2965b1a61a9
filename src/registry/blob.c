/* A blob as a stream that survives broken connections. */
#include "registry/registry_impl.h"
#include "util/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

enum { SKIP_STEP = 32 << 10 };

struct blob {
    struct stream base;
    struct registry *r;
    char path[DIGEST_TEXT_SIZE + 16];
    char name[32]; /* "blob sha256:0123456789ab" */
    size_t ep;
    struct http_response *resp;
    uint64_t pos, size;
    uint64_t skip; /* bytes that we already have, which the server resends */
    unsigned tries;
    bool failed;
};

static struct endpoint *endpoint_of(const struct blob *b)
{
    return b->r->ep[b->ep];
}

static int wrong_size(const struct blob *b, uint64_t has, struct err *e)
{
    return err_set(e, EBADMSG, "%s: %s has %" PRIu64 " bytes, the manifest says %" PRIu64, b->name,
                   endpoint_of(b)->host, has, b->size);
}

static int check_answer(struct blob *b, struct err *e)
{
    const struct http_response *resp = b->resp;
    b->skip = 0;
    if (resp->status == 200) {
        b->skip = b->pos;
        if (resp->length >= 0 && (uint64_t)resp->length != b->size)
            return wrong_size(b, (uint64_t)resp->length, e);
        return 0;
    }
    if (resp->status != 206)
        return registry_explain(b->r, endpoint_of(b), b->resp, b->name, e);
    if (b->pos == 0 || resp->range_from != b->pos || resp->range_size == 0)
        return err_set(e, EPROTO, "%s: %s sent a different range than it was asked for", b->name,
                       endpoint_of(b)->host);
    return resp->range_size == b->size ? 0 : wrong_size(b, resp->range_size, e);
}

static void disconnect(struct blob *b)
{
    http_close(b->resp);
    b->resp = NULL;
}

/* Moves on from a mirror that cannot serve it. */
static bool next_endpoint(struct blob *b, int code, struct err *e)
{
    if (code == -EINTR || b->ep + 1 >= b->r->n)
        return false;
    registry_mirror_failed(b->r, endpoint_of(b), code != -ENOENT, e); /* it may have others */
    b->ep = registry_first(b->r, b->ep + 1);
    b->tries = 0;
    return true;
}

static int connect_blob(struct blob *b, struct err *e)
{
    for (;;) {
        int r = registry_get(b->r, endpoint_of(b), b->path, NULL, b->pos, &b->tries, &b->resp, e);
        if (r == 0)
            r = check_answer(b, e);
        if (r == 0)
            return 0;
        disconnect(b);
        if (!next_endpoint(b, r, e))
            return r;
    }
}

/* One read from the connection; 0: try again. */
static ssize_t read_some(struct blob *b, void *p, size_t n, struct err *e)
{
    char waste[SKIP_STEP];
    bool skipping = b->skip > 0;
    size_t want = skipping ? MIN(b->skip, sizeof(waste)) : MIN(n, b->size - b->pos);
    ssize_t got = http_read(b->resp, skipping ? waste : p, want, e);
    if (got > 0 && skipping) {
        b->skip -= (uint64_t)got;
        return 0;
    }
    if (got > 0) {
        b->pos += (uint64_t)got;
        b->tries = 0;
        return got;
    }
    if (got == 0)
        got = err_set(e, ECONNRESET, "%s closed the connection before %s was complete",
                      endpoint_of(b)->host, b->name);
    disconnect(b);
    int r = registry_again(b->r, endpoint_of(b), (int)got, &b->tries, 0, e);
    return r < 0 && next_endpoint(b, r, e) ? 0 : r;
}

/* All of it is here: nothing may follow. */
static int check_end(struct blob *b, struct err *e)
{
    char more;
    bool longer = b->resp && http_read(b->resp, &more, 1, NULL) > 0;
    disconnect(b);
    if (!longer)
        return 0;
    return err_set(e, EBADMSG, "%s: %s sent more than the %" PRIu64 " bytes that the manifest says",
                   b->name, endpoint_of(b)->host, b->size);
}

static ssize_t blob_read(struct stream *s, void *p, size_t n, struct err *e)
{
    struct blob *b = (struct blob *)s;
    struct err own = {0};
    e = e ? e : &own;
    if (n == 0)
        return 0;
    if (b->failed)
        return err_set(e, EIO, "%s: the download has already failed", b->name);
    ssize_t got = 0;
    while (got == 0) {
        if (b->pos == b->size) {
            got = check_end(b, e);
            break;
        }
        if (!b->resp)
            got = connect_blob(b, e);
        if (got == 0)
            got = read_some(b, p, n, e);
    }
    b->failed = got < 0;
    return got;
}

static void blob_close(struct stream *s)
{
    struct blob *b = (struct blob *)s;
    disconnect(b);
    free(b);
}

static const struct stream_ops blob_ops = {.read = blob_read, .close = blob_close};

int registry_blob(struct registry *r, const struct digest *blob, uint64_t size, uint64_t offset,
                  struct stream **ret, struct err *e)
{
    struct blob *b = calloc(1, sizeof(*b));
    if (!b)
        return err_oom(e);
    char text[DIGEST_TEXT_SIZE];
    digest_text(blob, text);
    b->base.ops = &blob_ops;
    b->r = r;
    b->ep = registry_first(r, 0);
    b->size = size;
    b->pos = MIN(offset, size);
    (void)snprintf(b->path, sizeof(b->path), "blobs/%s", text);
    (void)snprintf(b->name, sizeof(b->name), "blob %.19s", text);
    *ret = &b->base;
    return 0;
}
