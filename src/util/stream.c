#include "util/stream.h"

#include <errno.h>
#include <unistd.h>

static ssize_t fd_read(struct stream *s, void *p, size_t n, struct err *e)
{
    struct fd_stream *f = (struct fd_stream *)s;
    ssize_t k;
    do {
        k = read(f->fd, p, n);
    } while (k < 0 && errno == EINTR);
    return k < 0 ? err_sys(e, errno, "cannot read '%s'", f->name) : k;
}

static void fd_close(struct stream *s)
{
}

void fd_stream_init(struct fd_stream *f, int fd, const char *name)
{
    static const struct stream_ops ops = {.read = fd_read, .close = fd_close};
    *f = (struct fd_stream){.s = {&ops}, .fd = fd, .name = name};
}
