#include "agent/fileop.h"

#include "util/cleanup.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RX_CHUNK = 2 * (PROTO_HDR_LEN + PROTO_DATA_MAX),
    RX_LIMIT = 2 * RX_CHUNK,
    TX_SEND = 128 * 1024, /* gathered into one send */
    TX_LIMIT = 2 * TX_SEND + PROTO_HDR_LEN + PROTO_DATA_MAX,
};

/* --- the stream --- */

int fchan_flush(struct fchan *c)
{
    while (buf_len(&c->tx) && !c->lost) {
        ssize_t n = send(c->fd, buf_head(&c->tx), buf_len(&c->tx), MSG_NOSIGNAL);
        if (n >= 0)
            buf_consume(&c->tx, (size_t)n);
        else if (errno != EINTR)
            c->lost = true;
    }
    return c->lost ? -ECONNRESET : 0;
}

int fchan_relieve(struct fchan *c)
{
    return c->lost || buf_len(&c->tx) >= TX_SEND ? fchan_flush(c) : 0;
}

static int fchan_receive(struct fchan *c)
{
    if (fchan_flush(c) < 0)
        return -ECONNRESET;
    uint8_t *to = buf_reserve(&c->rx, RX_CHUNK);
    ssize_t n;
    do
        n = to ? recv(c->fd, to, RX_CHUNK, 0) : 0;
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        c->lost = true;
        return -ECONNRESET;
    }
    buf_commit(&c->rx, (size_t)n);
    return 0;
}

int fchan_next(struct fchan *c, struct proto_frame *f)
{
    int got;
    if (c->taken)
        proto_consume(&c->rx, &c->cur);
    c->taken = false;
    while ((got = proto_peek(&c->rx, &c->cur)) == 0)
        if (fchan_receive(c) < 0)
            return -ECONNRESET;
    if (got < 0) {
        c->lost = true;
        return -ECONNRESET;
    }
    c->taken = true;
    c->ended = c->ended || c->cur.type == PROTO_FILE_END;
    *f = c->cur;
    return 0;
}

int fchan_part(struct fchan *c, struct proto_frame *f)
{
    for (;;) {
        int r = fchan_next(c, f);
        if (r < 0 || (f->type >= PROTO_FILE_DATA && f->type <= PROTO_FILE_LEAVE))
            return r;
        if (f->type == PROTO_FILE_OP) { /* the previous request has no end: out of sync */
            c->lost = true;
            return -ECONNRESET;
        }
    }
}

void fchan_put_attr(struct fchan *c, uint16_t type, const struct file_attr *a)
{
    struct proto_writer w;
    proto_begin(&w, &c->tx, type);
    if (a)
        file_attr_put(&w, a);
    if (proto_end(&w) < 0)
        c->lost = true; /* out of memory: TX_LIMIT leaves room for any frame */
}

ssize_t fchan_send_from(struct fchan *c, int fd, uint64_t n)
{
    size_t most = (size_t)MIN(n, (uint64_t)PROTO_DATA_MAX);
    uint8_t *to = buf_reserve(&c->tx, PROTO_HDR_LEN + most);
    if (!to)
        return -ENOMEM;
    ssize_t k;
    do
        k = read(fd, to + PROTO_HDR_LEN, most);
    while (k < 0 && errno == EINTR);
    if (k <= 0)
        return k < 0 ? -errno : 0;
    proto_header_write(to, PROTO_FILE_DATA, (size_t)k);
    buf_commit(&c->tx, PROTO_HDR_LEN + (size_t)k);
    return fchan_relieve(c) < 0 ? -ECONNRESET : k;
}

/* --- requests --- */

static const fileop_fn ops[] = {
    [FILE_OP_STAT] = fileop_stat,       [FILE_OP_LIST] = fileop_list,
    [FILE_OP_READ] = fileop_read,       [FILE_OP_WRITE] = fileop_write,
    [FILE_OP_MKDIR] = fileop_mkdir,     [FILE_OP_REMOVE] = fileop_remove,
    [FILE_OP_RENAME] = fileop_rename,   [FILE_OP_SET] = fileop_set,
    [FILE_OP_SYMLINK] = fileop_symlink, [FILE_OP_WATCH] = fileop_watch,
    [FILE_OP_GET] = fileop_get,         [FILE_OP_PUT] = fileop_put,
    [FILE_OP_SYNC] = fileop_sync,       [FILE_OP_LAYER] = fileop_layer,
};

static void put_error(struct fchan *c, int code, const char *text)
{
    struct proto_writer w;
    proto_begin(&w, &c->tx, PROTO_FILE_ERR);
    proto_u32(&w, F_ERRNO, (uint32_t)code);
    proto_str(&w, F_TEXT, text);
    if (proto_end(&w) < 0)
        c->lost = true;
}

/* Discards the rest of a WRITE or PUT that has failed. */
static void skip_parts(struct fchan *c)
{
    struct proto_frame f;
    (void)fchan_flush(c); /* so that the client can stop sending */
    while (!c->ended && fchan_part(c, &f) == 0)
        ;
}

static int dispatch(struct fchan *c, const struct file_req *q, struct err *e)
{
    if (q->op >= ARRAY_LEN(ops) || !ops[q->op])
        return err_set(e, ENOSYS, "the sandbox's agent does not support file operation %u", q->op);
    bool allowed = c->only ? q->op == c->only || q->op == FILE_OP_STAT : q->op != FILE_OP_LAYER;
    if (!allowed)
        return err_set(e, EPERM, "this stream is for other operations");
    if (!q->path[0])
        return err_set(e, ENOENT, "empty path");
    return ops[q->op](c, q, e);
}

static void serve_one(struct fchan *c, const struct proto_frame *f)
{
    static struct file_req q;
    struct err e = {0};
    int r = file_req_parse(&q, f);
    c->ended = false;
    if (r < 0)
        r = err_set(&e, EPROTO, "malformed file operation");
    else
        r = dispatch(c, &q, &e);
    if (r < 0 && !c->lost) {
        put_error(c, e.code ? e.code : -r, e.msg);
        if (q.op == FILE_OP_WRITE || q.op == FILE_OP_PUT)
            skip_parts(c);
    }
}

void fileop_serve(int fd, uint32_t only, const uint8_t *in, size_t n)
{
    static struct fchan c;
    struct proto_frame f;
    c = (struct fchan){.fd = fd, .only = only};
    buf_init(&c.rx, RX_LIMIT + n);
    buf_init(&c.tx, TX_LIMIT);
    if (buf_append(&c.rx, in, n) < 0)
        return;
    while (fchan_next(&c, &f) == 0)
        if (f.type == PROTO_FILE_OP) /* others are from a later version, or in no request */
            serve_one(&c, &f);
    buf_free(&c.rx);
    buf_free(&c.tx);
}
