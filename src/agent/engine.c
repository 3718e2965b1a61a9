#include "agent/engine.h"

#include "agent/session.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Untouched pages of it cost nothing. */
static _Alignas(8) uint8_t scratch[ENGINE_SCRATCH];

/* --- children --- */

void engine_reap(struct engine *e)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (struct session *s = e->sessions; s; s = s->next)
            if (s->pid == pid) {
                session_child_exited(s, status);
                break;
            }
    /* Orphans become children of PID 1, so no child means no process at all. */
    if (pid < 0 && errno == ECHILD && e->on_childless)
        e->on_childless(e);
}

static void on_sigchld(struct loop_src *src, uint32_t events)
{
    struct engine *e = CONTAINER_OF(src, struct engine, sigchld);
    struct signalfd_siginfo si;
    (void)events;
    if (read(src->fd, &si, sizeof(si)) > 0)
        engine_reap(e);
}

/* --- streams --- */

static void refuse(int fd)
{
    struct buf b;
    buf_init(&b, 512);
    session_put_fail(&b, PROTO_FAIL_LIMIT, EAGAIN, "too many commands are running already");
    (void)send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL | MSG_DONTWAIT);
    buf_free(&b);
    close(fd);
}

static void on_accept(struct loop_src *src, uint32_t events)
{
    struct engine *e = CONTAINER_OF(src, struct engine, listener);
    (void)events;
    int fd = accept4(src->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (e->nsessions >= ENGINE_SESSIONS_MAX || session_new(e, fd) < 0)
        refuse(fd);
}

int engine_listen(struct engine *e, int fd)
{
    e->listener = (struct loop_src){.fd = fd, .fn = on_accept};
    return loop_add(&e->loop, &e->listener, EPOLLIN);
}

void engine_stop(struct engine *e)
{
    int fd = e->listener.fd;
    e->stopping = true;
    loop_del(&e->loop, &e->listener);
    if (fd >= 0)
        close(fd);
}

/* --- background writers --- */

struct drain {
    struct engine *e;
    struct loop_src src;
};

static void on_drain(struct loop_src *src, uint32_t events)
{
    struct drain *d = CONTAINER_OF(src, struct drain, src);
    (void)events;
    ssize_t n = read(src->fd, d->e->scratch, ENGINE_SCRATCH);
    if (n > 0 || (n < 0 && errno == EAGAIN))
        return;
    int fd = src->fd;
    loop_del(&d->e->loop, src);
    close(fd);
    d->e->ndrains--;
    free(d);
}

void engine_drain(struct engine *e, int fd)
{
    struct drain *d = e->ndrains < ENGINE_DRAINS_MAX ? malloc(sizeof(*d)) : NULL;
    if (d) {
        *d = (struct drain){.e = e, .src = {.fd = fd, .fn = on_drain}};
        if (loop_add(&e->loop, &d->src, EPOLLIN) == 0) {
            e->ndrains++;
            return;
        }
    }
    free(d);
    close(fd);
}

/* --- the loop --- */

void engine_wake(struct engine *e, struct session *s)
{
    if (s->queued)
        return;
    s->queued = true;
    s->ready_next = NULL;
    *e->ready_tail = s;
    e->ready_tail = &s->ready_next;
}

int engine_turn(struct engine *e, int timeout_ms)
{
    int r = loop_turn(&e->loop, e->ready ? 0 : timeout_ms);
    e->yielded = false;
    /* A session that queues itself again waits for the next turn. */
    struct session *s = e->ready;
    e->ready = NULL;
    e->ready_tail = &e->ready;
    while (s) {
        struct session *next = s->ready_next;
        s->queued = false;
        session_run(s);
        s = next;
    }
    return r;
}

int engine_init(struct engine *e, const struct config *cfg)
{
    sigset_t all, chld;
    *e = (struct engine){.cfg = cfg, .scratch = scratch, .listener.fd = -1};
    e->ready_tail = &e->ready;
    user_cache_init(&e->users, "/etc/passwd", "/etc/group");
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    e->dev_null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int err = loop_init(&e->loop);
    if (err < 0)
        return err;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    e->sigchld =
        (struct loop_src){.fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK), .fn = on_sigchld};
    if (e->sigchld.fd < 0)
        return -errno;
    return loop_add(&e->loop, &e->sigchld, EPOLLIN);
}
