#include "image/erofs_out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"

enum {
    OUT_BUF = 1 << 20,
    OUT_UNIT = 4096,     /* zeros are looked for in units of this */
    OUT_HOLE = 16 * 4096 /* shorter runs are not worth an extent */
};

int erofs_out_init(struct erofs_out *o, int fd)
{
    *o = (struct erofs_out){.fd = fd, .buf = malloc(OUT_BUF)};
    return o->buf ? 0 : -ENOMEM;
}

void erofs_out_free(struct erofs_out *o)
{
    free(o->buf);
    *o = (struct erofs_out){.fd = -1};
}

static int pwrite_all(int fd, const uint8_t *p, size_t n, uint64_t offset)
{
    while (n) {
        ssize_t w = pwrite(fd, p, n, (off_t)offset);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -errno;
        p += w;
        n -= (size_t)w;
        offset += (uint64_t)w;
    }
    return 0;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

int erofs_out_flush(struct erofs_out *o)
{
    size_t start = 0; /* of what is not written yet */
    size_t zeros = 0; /* start of the run of zeros that ends at i */
    int r = 0;
    for (size_t i = 0; r == 0 && i < o->len; i += OUT_UNIT) {
        size_t n = MIN((size_t)OUT_UNIT, o->len - i);
        if (all_zero(o->buf + i, n))
            continue;
        if (i - zeros >= OUT_HOLE) {
            r = pwrite_all(o->fd, o->buf + start, zeros - start, o->pos + start);
            start = i;
        }
        zeros = i + n;
    }
    if (r == 0 && o->len - zeros >= OUT_HOLE)
        r = pwrite_all(o->fd, o->buf + start, zeros - start, o->pos + start);
    else if (r == 0)
        r = pwrite_all(o->fd, o->buf + start, o->len - start, o->pos + start);
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
