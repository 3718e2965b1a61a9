#include "image/tar/write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/buf.h"
#include "util/fs.h"

enum {
    BLOCK = TAR_BLOCK,
    OUT_BUF = 256 << 10,
    /* A path, a link, and all attributes of an inode. */
    RECORDS_MAX = 2 * (256 << 10) + 2 * TREE_XATTRS_MAX + 4 * BLOCK,
};

/* ---- output ---- */

int tar_out_init(struct tar_out *o, int fd, struct hasher *hash)
{
    *o = (struct tar_out){.fd = fd, .hash = hash, .buf = malloc(OUT_BUF)};
    return o->buf ? 0 : -ENOMEM;
}

void tar_out_free(struct tar_out *o)
{
    free(o->buf);
    *o = (struct tar_out){.fd = -1};
}

static int put(struct tar_out *o, const void *p, size_t n)
{
    if (o->hash && n)
        hasher_update(o->hash, p, n);
    if (o->sink)
        return o->sink(o->sink_ctx, p, n);
    return o->fd >= 0 ? write_all(o->fd, p, n) : 0;
}

int tar_out_flush(struct tar_out *o)
{
    int r = put(o, o->buf, o->len);
    o->len = 0;
    return r;
}

int tar_out_write(struct tar_out *o, const void *p, size_t n)
{
    o->bytes += n;
    int r = n > OUT_BUF - o->len ? tar_out_flush(o) : 0;
    if (r < 0)
        return r;
    if (n >= OUT_BUF)
        return put(o, p, n);
    memcpy(o->buf + o->len, p, n);
    o->len += n;
    return 0;
}

int tar_put_padding(struct tar_out *o, uint64_t size)
{
    static const uint8_t zeros[BLOCK];
    return tar_out_write(o, zeros, (size_t)((BLOCK - size % BLOCK) % BLOCK));
}

int tar_put_end(struct tar_out *o)
{
    static const uint8_t zeros[2 * BLOCK];
    return tar_out_write(o, zeros, sizeof(zeros));
}

/* ---- entries ---- */

static int add_xattrs(struct buf *b, const struct tree_xattr *x)
{
    int r = 0;
    for (; r == 0 && x; x = x->next)
        r = tar_add_xattr(b, x->bytes, x->bytes + x->name_len + 1, x->value_len);
    return r;
}

int tar_put_header(struct tar_out *o, const struct tar_entry *t)
{
    AUTO_BUF struct buf b = {.limit = RECORDS_MAX};
    int r = tar_format(&b, t);
    return r < 0 ? r : tar_out_write(o, buf_head(&b), buf_len(&b));
}

int tar_put_header_xattrs(struct tar_out *o, const struct tar_entry *t, const struct tree_xattr *x)
{
    AUTO_BUF struct buf records = {.limit = RECORDS_MAX};
    struct tar_entry with = *t;
    int r = add_xattrs(&records, x);
    with.xattrs = &records;
    return r < 0 ? r : tar_put_header(o, &with);
}

int tar_put_file(struct tar_out *o, const char *path, const void *p, size_t n)
{
    const struct tar_entry t = {.path = path, .type = '0', .mode = 0644, .size = n};
    int r = tar_put_header(o, &t);
    if (r == 0)
        r = tar_out_write(o, p, n);
    return r < 0 ? r : tar_put_padding(o, n);
}
