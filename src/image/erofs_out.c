#include "image/erofs_out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "image/io.h"
#include "util/cleanup.h"

enum {
    OUT_BUF = 1 << 20,
    OUT_UNIT = 4096,       /* zeros are looked for in units of this */
    OUT_HOLE = 16 * 4096,  /* shorter runs are not worth an extent */
    OUT_CHECK = 32 << 20,  /* free space is looked at this often */
    OUT_RESERVE = 64 << 20 /* and this much of it is left */
};

void erofs_out_init(struct erofs_out *o, int fd)
{
    *o = (struct erofs_out){.fd = fd};
}

void erofs_out_free(struct erofs_out *o)
{
    free(o->buf);
    *o = (struct erofs_out){.fd = -1};
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static int write_run(struct erofs_out *o, size_t from, size_t to)
{
    o->unchecked += to - from;
    if (o->unchecked >= OUT_CHECK) {
        struct statvfs v;
        o->unchecked = 0;
        if (fstatvfs(o->fd, &v) == 0 && v.f_blocks &&
            (uint64_t)v.f_bavail * v.f_frsize < OUT_RESERVE)
            return -ENOSPC;
    }
    return pwrite_all(o->fd, o->buf + from, to - from, o->pos + from);
}

int erofs_out_flush(struct erofs_out *o)
{
    if (o->len == 0)
        return 0;
    size_t start = 0; /* of what is not written yet */
    size_t zeros = 0; /* start of the run of zeros that ends at i */
    int r = 0;
    for (size_t i = 0; r == 0 && i < o->len; i += OUT_UNIT) {
        size_t n = MIN((size_t)OUT_UNIT, o->len - i);
        if (all_zero(o->buf + i, n))
            continue;
        if (i - zeros >= OUT_HOLE) {
            r = write_run(o, start, zeros);
            start = i;
        }
        zeros = i + n;
    }
    if (r == 0 && o->len - zeros >= OUT_HOLE)
        r = write_run(o, start, zeros);
    else if (r == 0)
        r = write_run(o, start, o->len);
    o->pos += o->len;
    o->len = 0;
    return r;
}

int erofs_out_write(struct erofs_out *o, uint64_t offset, const void *p, size_t n)
{
    if (offset != o->pos + o->len) {
        int r = erofs_out_flush(o);
        if (r < 0)
            return r;
        o->pos = offset;
    }
    if (!o->buf && !(o->buf = malloc(OUT_BUF)))
        return -ENOMEM;
    for (const uint8_t *b = p; n;) {
        size_t k = MIN(n, OUT_BUF - o->len);
        memcpy(o->buf + o->len, b, k);
        o->len += k;
        b += k;
        n -= k;
        if (o->len == OUT_BUF) {
            int r = erofs_out_flush(o);
            if (r < 0)
                return r;
        }
    }
    return 0;
}
