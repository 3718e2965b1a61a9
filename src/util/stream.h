/* A source of bytes, read from front to end: a file, a pipe, a download.
 *
 * The reader pulls; a stream with no data yet blocks. Implementations embed `struct stream` first
 * in their own struct.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "util/err.h"

struct stream;

struct stream_ops {
    /* 1..n bytes, 0 at the end (and from then on), or -errno with e set. */
    ssize_t (*read)(struct stream *s, void *p, size_t n, struct err *e);
    void (*close)(struct stream *s);
};

struct stream {
    const struct stream_ops *ops;
};

static inline ssize_t stream_read(struct stream *s, void *p, size_t n, struct err *e)
{
    return s->ops->read(s, p, n, e);
}

/* s may be NULL. */
static inline void stream_close(struct stream *s)
{
    if (s)
        s->ops->close(s);
}

/* A stream over a descriptor, from its current offset. Closing the stream does nothing. */
struct fd_stream {
    struct stream s;
    int fd;           /* not owned */
    const char *name; /* for messages; not owned */
};
void fd_stream_init(struct fd_stream *f, int fd, const char *name);
