#include "util/iov.h"

#include <stdint.h>
#include <string.h>

#include "util/cleanup.h"

void guest_copy(void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    __asm__ volatile("" ::: "memory");
}

/* A place in a list of buffers. */
struct cursor {
    const struct iovec *iov;
    unsigned left; /* entries, the current one included */
    size_t off;    /* in the current one */
};

static struct cursor cursor_at(const struct iovec *iov, unsigned n, size_t off)
{
    while (n > 0 && off >= iov->iov_len) {
        off -= iov->iov_len;
        iov++;
        n--;
    }
    return (struct cursor){.iov = iov, .left = n, .off = off};
}

/* The next contiguous run, at most max bytes; 0 at the end. */
static size_t cursor_run(struct cursor *c, size_t max, uint8_t **ret)
{
    while (c->left > 0 && c->off == c->iov->iov_len) {
        c->iov++;
        c->left--;
        c->off = 0;
    }
    if (c->left == 0)
        return 0;
    *ret = (uint8_t *)c->iov->iov_base + c->off;
    return MIN(max, c->iov->iov_len - c->off);
}

size_t iov_total(const struct iovec *iov, unsigned n)
{
    size_t sum = 0;
    for (unsigned i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

size_t iov_move(const struct iovec *dst, unsigned nd, size_t doff, const struct iovec *src,
                unsigned ns, size_t soff, size_t len)
{
    struct cursor d = cursor_at(dst, nd, doff), s = cursor_at(src, ns, soff);
    size_t done = 0;
    while (done < len) {
        uint8_t *to, *from;
        size_t k = cursor_run(&d, len - done, &to);
        k = k == 0 ? 0 : cursor_run(&s, k, &from);
        if (k == 0)
            break;
        guest_copy(to, from, k);
        d.off += k;
        s.off += k;
        done += k;
    }
    return done;
}

size_t iov_read(const struct iovec *iov, unsigned n, size_t off, void *dst, size_t len)
{
    return iov_move(&(struct iovec){.iov_base = dst, .iov_len = len}, 1, 0, iov, n, off, len);
}

size_t iov_write(const struct iovec *iov, unsigned n, size_t off, const void *src, size_t len)
{
    struct iovec flat = {.iov_base = (void *)src, .iov_len = len};
    return iov_move(iov, n, off, &flat, 1, 0, len);
}

size_t iov_zero(const struct iovec *iov, unsigned n, size_t off, size_t len)
{
    struct cursor c = cursor_at(iov, n, off);
    size_t done = 0;
    while (done < len) {
        uint8_t *p;
        size_t k = cursor_run(&c, len - done, &p);
        if (k == 0)
            break;
        memset(p, 0, k);
        c.off += k;
        done += k;
    }
    return done;
}

unsigned iov_slice(struct iovec *dst, unsigned max, const struct iovec *src, unsigned n, size_t off,
                   size_t len)
{
    struct cursor c = cursor_at(src, n, off);
    unsigned used = 0;
    while (len > 0 && used < max) {
        uint8_t *p;
        size_t k = cursor_run(&c, len, &p);
        if (k == 0)
            break;
        dst[used++] = (struct iovec){.iov_base = p, .iov_len = k};
        c.off += k;
        len -= k;
    }
    return used;
}
