/* Fetches contents for running sandboxes, as their share servers ask for them (util/later.h). */
#include "s3/work.h"
#include "util/sock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

struct fetching {
    struct s3_work *w;
    int sock;
    int idle_ms;
};

/* One request. */
struct asked {
    struct fetching *f;
    uint32_t number;
    bool answered;
};

/* A sync may have added files since the record was read. -ENXIO: one has replaced this file. */
static int known(void *ctx, const char *id, struct s3_entry *ret)
{
    struct fetching *f = ((struct asked *)ctx)->f;
    (void)pthread_rwlock_rdlock(&f->w->base_lock);
    int r = s3_known_in_base(f->w, id, ret);
    (void)pthread_rwlock_unlock(&f->w->base_lock);
    if (r != -ESTALE)
        return r;
    (void)pthread_rwlock_wrlock(&f->w->base_lock);
    r = s3_known_in_base(f->w, id, ret); /* another thread may have reloaded it meanwhile */
    if (r == -ESTALE && s3_base_load(f->w, NULL) == 0 && s3_index_base(f->w) == 0)
        r = s3_known_in_base(f->w, id, ret);
    (void)pthread_rwlock_unlock(&f->w->base_lock);
    return r == -ESTALE ? -ENXIO : r;
}

/* Its content is not wanted: treats it as overwritten. */
static int empty(int fd)
{
    char id[LATER_SIZE];
    int r = s3_file_lock(fd, NULL);
    if (r == 0 && later_get(fd, id)) {
        (void)later_mark(fd, LATER_PARTS_XATTR, NULL, 0);
        r = ftruncate(fd, 0) < 0 ? -errno : later_mark(fd, LATER_XATTR, NULL, 0);
    }
    (void)flock(fd, LOCK_UN);
    return r;
}

static void say(struct asked *a, int error)
{
    struct later_answer answer = {.number = a->number, .error = error};
    if (!a->answered)
        (void)send(a->f->sock, &answer, sizeof(answer), MSG_NOSIGNAL);
    a->answered = true;
}

/* The first part is the requested one. */
static void on_part(void *ctx)
{
    say(ctx, 0);
}

static void answer(struct fetching *f, const struct later_request *q, int fd)
{
    struct err e = {0};
    struct asked a = {.f = f, .number = q->number};
    int r = fd < 0     ? -EBADF
            : q->empty ? empty(fd)
            : q->part  ? s3_part_fill(f->w, fd, q, known, on_part, &a, &e)
                       : s3_later_fill(f->w, fd, known, &a, NULL, &e);
    if (r < 0 && e.msg[0])
        s3_work_warn(f->w, "%s", e.msg);
    say(&a, r == -ENXIO ? -ESTALE : r == -ENOSPC || r == -EDQUOT ? r : r < 0 ? -EIO : 0);
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
    pthread_t thread[S3_THREADS];
    size_t n = 0;
    int r = s3_base_load(w, e);
    if (r == 0 && s3_index_base(w) < 0)
        r = err_oom(e);
    while (r == 0 && n < S3_THREADS && pthread_create(&thread[n], NULL, serve, &f) == 0)
        n++;
    if (r == 0 && n == 0)
        (void)serve(&f);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
    return r;
}
