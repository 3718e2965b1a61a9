#include "registry/partial.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

struct partial {
    struct stream base;
    struct stream *net; /* NULL until the file has been read */
    struct registry *r;
    struct digest blob;
    uint64_t size;
    uint64_t pos;  /* bytes returned so far */
    uint64_t have; /* bytes in the file at the beginning */
    int fd;        /* locked; -1: nothing is recorded */
    struct partial_fate *fate;
};

/* A file that another process is writing is left alone: this download is then not recorded. */
static int open_file(int dirfd, const struct digest *blob, uint64_t size, uint64_t *have)
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(blob, hex);
    AUTO_CLOSE int fd =
        openat(dirfd, hex, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat st;
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -1;
    if ((uint64_t)st.st_size > size && ftruncate(fd, 0) < 0)
        return -1;
    *have = (uint64_t)st.st_size > size ? 0 : (uint64_t)st.st_size;
    return steal_fd(&fd);
}

/* Recording is optional: if it fails (a full disk), the download continues. */
static void record(struct partial *s, const void *p, size_t n)
{
    if (s->fd < 0)
        return;
    if (write_all(s->fd, p, n) == 0)
        return;
    if (ftruncate(s->fd, 0) < 0) /* releases the space, if that works */
        errno = 0;
    close_fd(&s->fd);
}

static ssize_t read_file(struct partial *s, void *p, size_t n)
{
    ssize_t got = pread(s->fd, p, MIN(n, s->have - s->pos), (off_t)s->pos);
    if (got > 0) {
        s->pos += (uint64_t)got;
        s->fate->replayed = s->pos;
        return got;
    }
    s->have = s->pos; /* shorter than it was, or unreadable: the rest comes from the network */
    return 0;
}

static int connect_net(struct partial *s, struct err *e)
{
    if (s->fd >= 0 && (ftruncate(s->fd, (off_t)s->pos) < 0 || lseek(s->fd, 0, SEEK_END) < 0))
        close_fd(&s->fd);
    return registry_blob(s->r, &s->blob, s->size, s->pos, &s->net, e);
}

static ssize_t partial_read(struct stream *base, void *p, size_t n, struct err *e)
{
    struct partial *s = (struct partial *)base;
    if (n > 0 && s->fd >= 0 && s->pos < s->have) {
        ssize_t got = read_file(s, p, n);
        if (got > 0)
            return got;
    }
    int r = s->net ? 0 : connect_net(s, e);
    assert(r < 0 || s->net);
    ssize_t got = r < 0 ? r : stream_read(s->net, p, n, e);
    if (got > 0) {
        record(s, p, (size_t)got);
        s->pos += (uint64_t)got;
    }
    if (got < 0)
        s->fate->broken = got != -EBADMSG;
    return got;
}

static void partial_close(struct stream *base)
{
    struct partial *s = (struct partial *)base;
    stream_close(s->net);
    close_fd(&s->fd);
    free(s);
}

static const struct stream_ops partial_ops = {.read = partial_read, .close = partial_close};

int partial_open(int dirfd, struct registry *r, const struct digest *blob, uint64_t size,
                 struct partial_fate *fate, struct stream **ret, struct err *e)
{
    struct partial *s = calloc(1, sizeof(*s));
    if (!s)
        return err_oom(e);
    *fate = (struct partial_fate){0};
    s->base.ops = &partial_ops;
    s->r = r;
    s->blob = *blob;
    s->size = size;
    s->fate = fate;
    s->fd = size >= PARTIAL_MIN ? open_file(dirfd, blob, size, &s->have) : -1;
    fate->had = s->have;
    *ret = &s->base;
    return 0;
}

void partial_drop(int dirfd, const struct digest *blob)
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(blob, hex);
    (void)unlinkat(dirfd, hex, 0);
}
