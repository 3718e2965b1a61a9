#include "agent/server.h"

#include "agent/session.h"
#include "agent/vsock.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pages that are never touched cost nothing. */
static _Alignas(8) uint8_t scratch[SERVER_SCRATCH];

/* --- children --- */

void server_reap(struct server *srv)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == srv->init) {
            srv->init = 0;
            srv->on_init_end(srv, status);
        }
        for (struct session *s = srv->sessions; s; s = s->next)
            if (s->pid == pid) {
                session_child_exited(s, status);
                break;
            }
    }
    /* Orphans become children of PID 1, or of the init, which is our child: once we have no
     * children, no process is left. */
    if (pid < 0 && errno == ECHILD && srv->on_childless)
        srv->on_childless(srv);
}

static void on_sigchld(struct loop_src *src, uint32_t events)
{
    struct server *srv = CONTAINER_OF(src, struct server, sigchld);
    struct signalfd_siginfo si;
    if (read(src->fd, &si, sizeof(si)) > 0)
        server_reap(srv);
}

/* --- streams --- */

static void refuse_stream(int fd)
{
    AUTO_BUF struct buf b = {.limit = 512};
    (void)proto_put_fail(&b, PROTO_FAIL_LIMIT, EAGAIN, "too many commands are running");
    (void)send(fd, buf_head(&b), buf_len(&b), MSG_NOSIGNAL | MSG_DONTWAIT);
    close_fd(&fd);
}

static void on_accept(struct loop_src *src, uint32_t events)
{
    struct server *srv = CONTAINER_OF(src, struct server, listener);
    int fd = vsock_accept(src->fd);
    if (fd < 0)
        return;
    if (srv->nsessions >= SERVER_SESSIONS_MAX || session_new(srv, fd) < 0)
        refuse_stream(fd);
}

int server_listen(struct server *srv, int fd)
{
    srv->listener = (struct loop_src){.fd = fd, .fn = on_accept};
    return loop_add(&srv->loop, &srv->listener, EPOLLIN);
}

void server_stop(struct server *srv)
{
    srv->stopping = true;
    loop_close(&srv->loop, &srv->listener);
}

/* --- background writers --- */

struct drain {
    struct server *srv;
    struct loop_src src;
};

static void on_drain(struct loop_src *src, uint32_t events)
{
    struct drain *d = CONTAINER_OF(src, struct drain, src);
    ssize_t n = read(src->fd, d->srv->scratch, SERVER_SCRATCH);
    if (n > 0 || (n < 0 && errno == EAGAIN))
        return;
    loop_close(&d->srv->loop, src);
    d->srv->ndrains--;
    free(d);
}

void server_drain(struct server *srv, int fd)
{
    struct drain *d = srv->ndrains < SERVER_DRAINS_MAX ? malloc(sizeof(*d)) : NULL;
    if (d) {
        *d = (struct drain){.srv = srv, .src = {.fd = fd, .fn = on_drain}};
        if (loop_add(&srv->loop, &d->src, EPOLLIN) == 0) {
            srv->ndrains++;
            return;
        }
    }
    free(d);
    close_fd(&fd);
}

/* --- the loop --- */

void server_wake(struct server *srv, struct session *s)
{
    if (s->queued)
        return;
    s->queued = true;
    s->ready_next = NULL;
    *srv->ready_tail = s;
    srv->ready_tail = &s->ready_next;
}

int server_turn(struct server *srv, int timeout_ms)
{
    int r = loop_turn(&srv->loop, srv->ready ? 0 : timeout_ms);
    srv->yielded = false;
    /* A session that queues itself again waits for the next turn. */
    struct session *s = srv->ready;
    srv->ready = NULL;
    srv->ready_tail = &srv->ready;
    while (s) {
        struct session *next = s->ready_next;
        s->queued = false;
        session_run(s);
        s = next;
    }
    return r;
}

int server_init(struct server *srv, const struct config *cfg)
{
    sigset_t all, chld;
    *srv = (struct server){.cfg = cfg, .scratch = scratch, .listener.fd = -1, .oom.src.fd = -1};
    srv->ready_tail = &srv->ready;
    struct sysinfo si;
    if (sysinfo(&si) == 0)
        srv->bulk_left = (size_t)si.totalram * si.mem_unit / SERVER_BULK_SHARE;
    user_cache_init(&srv->users, "/etc/passwd", "/etc/group");
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    srv->dev_null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int r = loop_init(&srv->loop);
    if (r < 0)
        return r;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    srv->sigchld =
        (struct loop_src){.fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK), .fn = on_sigchld};
    if (srv->sigchld.fd < 0)
        return -errno;
    return loop_add(&srv->loop, &srv->sigchld, EPOLLIN);
}
