#include "image/erofs/out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "util/cleanup.h"
#include "util/fs.h"

enum {
    OUT_BUF = 256 << 10,
    OUT_DIRECT = 64 << 10, /* copying that much costs more than a system call */
    OUT_UNIT = 4096,       /* zeros are searched for in units of this size */
    OUT_HOLE = 16 * 4096,  /* shorter runs are not worth an extent */
    OUT_CHECK = 32 << 20,  /* free space is checked this often */
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

static int write_run(struct erofs_out *o, const uint8_t *p, size_t n, uint64_t at)
{
    o->unchecked += n;
    if (o->unchecked >= OUT_CHECK) {
        struct statvfs v;
        o->unchecked = 0;
        if (fstatvfs(o->fd, &v) == 0 && v.f_blocks &&
            (uint64_t)v.f_bavail * v.f_frsize < OUT_RESERVE)
            return -ENOSPC;
    }
    return pwrite_all(o->fd, p, n, at);
}

/* Writes everything except long runs of zeros. */
static int write_data(struct erofs_out *o, const uint8_t *p, size_t len, uint64_t at)
{
    size_t start = 0; /* of what has not been written yet */
    size_t zeros = 0; /* start of the run of zeros that ends at i */
    for (size_t i = 0; i < len; i += OUT_UNIT) {
        size_t n = MIN((size_t)OUT_UNIT, len - i);
        if (all_zero(p + i, n))
            continue;
        if (i - zeros >= OUT_HOLE) {
            int r = write_run(o, p + start, zeros - start, at + start);
            if (r < 0)
                return r;
            start = i;
        }
        zeros = i + n;
    }
    size_t end = len - zeros >= OUT_HOLE ? zeros : len;
    return write_run(o, p + start, end - start, at + start);
}

int erofs_out_flush(struct erofs_out *o)
{
    int r = o->len ? write_data(o, o->buf, o->len, o->pos) : 0;
    o->pos += o->len;
    o->len = 0;
    return r;
}

/* Large data is written without copying it to the buffer. */
static int write_directly(struct erofs_out *o, const uint8_t *p, size_t n)
{
    int r = erofs_out_flush(o);
    if (r == 0)
        r = write_data(o, p, n, o->pos);
    o->pos += n;
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
    if (n >= OUT_DIRECT)
        return write_directly(o, p, n);
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
