#include "image/archive/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "image/archive/spool.h"
#include "util/cleanup.h"
#include "util/fs.h"

/* ---- opening ---- */

static bool is_compressed(int fd)
{
    uint8_t p[4];
    if (pread_all(fd, p, sizeof(p), 0) < 0)
        return false;
    return (p[0] == 0x1f && p[1] == 0x8b) || memcmp(p, "\x28\xb5\x2f\xfd", 4) == 0 ||
           (memcmp(p + 1, "\x2a\x4d\x18", 3) == 0 && p[0] >> 4 == 5); /* a skippable zstd frame */
}

static int open_tar(struct bundle *b, int fd, const struct stat *st, int tmp_fd, uint64_t max,
                    struct err *e)
{
    /* A file is read from its beginning, whatever else its descriptor was used for. */
    if (S_ISREG(st->st_mode) && !is_compressed(fd)) {
        b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (b->fd < 0)
            return err_sys(e, errno, "cannot read the archive");
    } else {
        if (S_ISREG(st->st_mode) && lseek(fd, 0, SEEK_SET) < 0)
            return err_sys(e, errno, "cannot read the archive");
        b->fd = spool_archive(fd, tmp_fd, max, e);
        if (b->fd < 0)
            return b->fd;
    }
    return tar_scan(b->fd, &b->members, e);
}

int bundle_open(struct bundle *b, int fd, int tmp_fd, uint64_t max, struct err *e)
{
    struct stat st;
    *b = (struct bundle){.fd = -1};
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read the archive");
    if (S_ISDIR(st.st_mode)) {
        b->directory = true;
        b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return b->fd < 0 ? err_sys(e, errno, "cannot read the directory") : 0;
    }
    int r = open_tar(b, fd, &st, tmp_fd, max, e);
    if (r < 0)
        bundle_close(b);
    return r;
}

void bundle_close(struct bundle *b)
{
    close_fd(&b->fd);
    tar_members_free(&b->members);
}

/* ---- parts ---- */

struct part {
    int fd;
    bool owned;
    uint64_t offset, size;
};

/* A regular file below the directory; links that lead elsewhere are not followed. */
static int open_file(int dirfd, const char *name, struct part *ret)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    struct stat st;
    AUTO_CLOSE int fd = (int)syscall(SYS_openat2, dirfd, name, &how, sizeof(how));
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    *ret = (struct part){.fd = steal_fd(&fd), .owned = true, .size = (uint64_t)st.st_size};
    return 0;
}

static int find_part(const struct bundle *b, const char *name, struct part *ret, struct err *e)
{
    if (b->directory) {
        int r = open_file(b->fd, name, ret);
        if (r == -ENOENT)
            return err_set(e, ENOENT, "the directory has no '%.256s'", name);
        return r < 0 ? err_sys(e, -r, "cannot open '%.256s' in the directory", name) : 0;
    }
    const struct tar_member *m = tar_find(&b->members, name);
    if (!m)
        return err_set(e, ENOENT, "the archive has no '%.256s'", name);
    *ret = (struct part){.fd = b->fd, .offset = m->offset, .size = m->size};
    return 0;
}

static void drop_part(struct part *p)
{
    if (p->owned)
        close_fd(&p->fd);
}

bool bundle_has(const struct bundle *b, const char *name, uint64_t *ret_size)
{
    struct part p = {.fd = -1};
    if (find_part(b, name, &p, NULL) < 0)
        return false;
    if (ret_size)
        *ret_size = p.size;
    drop_part(&p);
    return true;
}

int bundle_read(const struct bundle *b, const char *name, size_t max, char **ret, size_t *ret_len,
                struct err *e)
{
    struct part p = {.fd = -1};
    int r = find_part(b, name, &p, e);
    if (r < 0)
        return r;
    if (p.size > max) {
        drop_part(&p);
        return err_set(e, EFBIG, "'%.256s' is larger than %zu MiB", name, max >> 20);
    }
    AUTO_FREE char *doc = malloc(p.size + 1);
    r = doc ? pread_all(p.fd, doc, p.size, p.offset) : -ENOMEM;
    drop_part(&p);
    if (!doc || r < 0)
        return err_sys(e, -r, "cannot read '%.256s'", name);
    doc[p.size] = '\0';
    *ret = steal_ptr(&doc);
    *ret_len = p.size;
    return 0;
}

/* ---- streams ---- */

struct part_stream {
    struct stream s;
    struct part p; /* what is left */
};

static ssize_t part_read(struct stream *s, void *buf, size_t n, struct err *e)
{
    struct part_stream *ps = (struct part_stream *)s;
    n = MIN((uint64_t)n, ps->p.size);
    ssize_t k;
    do {
        k = n ? pread(ps->p.fd, buf, n, (off_t)ps->p.offset) : 0;
    } while (k < 0 && errno == EINTR);
    if (k < 0)
        return err_sys(e, errno, "cannot read the archive");
    if (k == 0 && n)
        return err_set(e, EIO, "the archive shrank while it was being read");
    ps->p.offset += (uint64_t)k;
    ps->p.size -= (uint64_t)k;
    return k;
}

static void part_close(struct stream *s)
{
    struct part_stream *ps = (struct part_stream *)s;
    drop_part(&ps->p);
    free(ps);
}

int bundle_stream(const struct bundle *b, const char *name, struct stream **ret, struct err *e)
{
    static const struct stream_ops ops = {part_read, part_close};
    struct part p = {.fd = -1};
    int r = find_part(b, name, &p, e);
    if (r < 0)
        return r;
    struct part_stream *ps = malloc(sizeof(*ps));
    if (!ps) {
        drop_part(&p);
        return err_oom(e);
    }
    *ps = (struct part_stream){.s = {&ops}, .p = p};
    *ret = &ps->s;
    return 0;
}
