/* Contents for sandboxes that run, as their share servers ask for them (util/later.h). */
#include "s3/work.h"
#include "util/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/xattr.h>

enum { THREADS = 8 };

struct fetching {
    struct s3_work *w;
    int sock;
    int idle_ms;
};

/* A sync may have added files since the record was read. -ENXIO: one has replaced this file. */
static int known(void *ctx, const char *id, struct s3_entry *ret)
{
    struct fetching *f = ctx;
    (void)pthread_rwlock_rdlock(&f->w->base_lock);
    int r = s3_known_in_base(f->w, id, ret);
    (void)pthread_rwlock_unlock(&f->w->base_lock);
    if (r != -ESTALE)
        return r;
    (void)pthread_rwlock_wrlock(&f->w->base_lock);
    r = s3_known_in_base(f->w, id, ret); /* another thread may have read it meanwhile */
    if (r == -ESTALE && s3_base_load(f->w, NULL) == 0 && s3_index_base(f->w) == 0)
        r = s3_known_in_base(f->w, id, ret);
    (void)pthread_rwlock_unlock(&f->w->base_lock);
    return r == -ESTALE ? -ENXIO : r;
}

/* Nobody wants its content: it is as if it had been written over. */
static int empty(int fd)
{
    char id[LATER_SIZE];
    int r = s3_file_lock(fd, NULL);
    if (r == 0 && later_get(fd, id)) {
        (void)fremovexattr(fd, LATER_PARTS_XATTR);
        r = ftruncate(fd, 0) < 0 || fremovexattr(fd, LATER_XATTR) < 0 ? -errno : 0;
    }
    (void)flock(fd, LOCK_UN);
    return r;
}

static void answer(struct fetching *f, const struct later_request *q, int fd)
{
    struct err e = {0};
    struct later_answer a = {.number = q->number};
    int r = fd < 0     ? -EBADF
            : q->empty ? empty(fd)
            : q->part  ? s3_part_fill(f->w, fd, q->part, known, f, &e)
                       : s3_later_fill(f->w, fd, known, f, NULL, &e);
    if (r < 0 && e.msg[0])
        s3_work_warn(f->w, "%s", e.msg);
    a.error = r == -ENXIO ? -ESTALE : r == -ENOSPC || r == -EDQUOT ? r : r < 0 ? -EIO : 0;
    (void)send(f->sock, &a, sizeof(a), MSG_NOSIGNAL);
    if (r == 0 && q->part)
        s3_part_go_on(f->w, fd, q->part, known, f);
}

static void *serve(void *ctx)
{
    struct fetching *f = ctx;
    for (;;) {
        struct pollfd p = {.fd = f->sock, .events = POLLIN};
        struct later_request q;
        int n = poll(&p, 1, f->idle_ms), fd = -1;
        if (n == 0)
            return NULL;
        ssize_t got = n < 0 ? -errno : sock_recv_with_fd(f->sock, &q, sizeof(q), &fd);
        AUTO_CLOSE int file = fd;
        if (got == -EAGAIN || got == -EINTR) /* another thread was faster */
            continue;
        if (got != (ssize_t)sizeof(q))
            return NULL;
        answer(f, &q, file);
    }
}

int s3_fetch_serve(struct s3_work *w, int sock, int idle_ms, struct err *e)
{
    struct fetching f = {.w = w, .sock = sock, .idle_ms = idle_ms};
    pthread_t thread[THREADS];
    size_t n = 0;
    int r = s3_base_load(w, e);
    if (r == 0 && s3_index_base(w) < 0)
        r = err_oom(e);
    while (r == 0 && n < THREADS && pthread_create(&thread[n], NULL, serve, &f) == 0)
        n++;
    if (r == 0 && n == 0)
        (void)serve(&f);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
    return r;
}
