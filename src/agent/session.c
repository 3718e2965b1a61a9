#include "agent/session.h"

#include "agent/fileop.h"
#include "agent/layer.h"
#include "agent/procs.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>

/* --- our frames --- */

void session_fail(struct session *s, enum proto_fail kind, int error, const char *text)
{
    (void)proto_put_fail(&s->tx, kind, error, text);
    s->state = SESS_CLOSING;
}

static void put_exit(struct session *s)
{
    struct proto_writer w;
    proto_begin(&w, &s->tx, PROTO_EXIT);
    if (WIFSIGNALED(s->status))
        proto_u32(&w, F_SIGNAL, (uint32_t)WTERMSIG(s->status));
    else
        proto_u32(&w, F_CODE, (uint32_t)WEXITSTATUS(s->status));
    /* A command that ends by itself just as the limit is reached has not timed out. */
    if (s->timed_out && WIFSIGNALED(s->status) && WTERMSIG(s->status) == SIGKILL)
        proto_u32(&w, F_TIMED_OUT, 1);
    if (s->oom)
        proto_u32(&w, F_OOM, s->oom);
    (void)proto_end(&w);
}

/* Whether lack of memory is why a command failed. One that succeeds did not need the killed
 * process. */
static enum proto_oom look_for_oom(struct session *s, pid_t pid)
{
    struct oom *o = &s->srv->oom;
    if (s->status == 0)
        return PROTO_OOM_NONE;
    oom_look(o);
    if (oom_was_killed(o, pid, s->kills))
        return PROTO_OOM_COMMAND;
    return o->kills > s->kills ? PROTO_OOM_OTHER : PROTO_OOM_NONE;
}

/* --- events: note and queue --- */

static void on_sock(struct loop_src *src, uint32_t events)
{
    struct session *s = CONTAINER_OF(src, struct session, sock);
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        s->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        s->hup = true;
    server_wake(s->srv, s);
}

static void on_timer(struct loop_timer *t)
{
    struct session *s = CONTAINER_OF(t, struct session, timer);
    if (s->state == SESS_RUNNING) {
        s->timed_out = true;
        procs_kill_session(s->pid);
    } else if (s->state == SESS_FILES) {
        (void)kill(s->pid, SIGKILL);
    } else if (s->state == SESS_EXITED) {
        s->linger_over = true;
        server_wake(s->srv, s);
    }
}

void session_child_exited(struct session *s, int status)
{
    pid_t pid = s->pid;
    s->pid = 0;
    s->status = status;
    layer_child_gone(pid);
    if (s->container)
        s->srv->containers.gone(s);
    s->oom = s->state == SESS_RUNNING ? look_for_oom(s, pid) : PROTO_OOM_NONE;
    loop_timer_off(&s->srv->loop, &s->timer);
    if (s->state == SESS_RUNNING) {
        s->state = SESS_EXITED;
        session_note_owed(s);
    } else if (s->state == SESS_FILES) {
        s->state = SESS_CLOSING;
    }
    server_wake(s->srv, s);
}

/* --- life --- */

int session_new(struct server *srv, int fd)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->srv = srv;
    s->sock = (struct loop_src){.fd = fd, .fn = on_sock};
    s->in.src.fd = s->out[0].src.fd = s->out[1].src.fd = -1;
    s->listener = s->report.fd = -1;
    s->timer.fn = on_timer;
    buf_init(&s->rx, PROTO_HDR_LEN + PROTO_MSG_MAX);
    buf_init(&s->tx, TX_LIMIT);
    int r = loop_add(&srv->loop, &s->sock, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (r < 0) {
        free(s);
        return r;
    }
    s->next = srv->sessions;
    if (s->next)
        s->next->prev = s;
    srv->sessions = s;
    srv->nsessions++;
    s->readable = true; /* the first frames have usually arrived */
    server_wake(srv, s);
    return 0;
}

static void close_stream(struct session *s)
{
    loop_close(&s->srv->loop, &s->sock);
    buf_free(&s->rx);
    buf_free(&s->tx);
}

static void session_free(struct session *s)
{
    assert(s->pid == 0); /* invariant 1 */
    struct server *srv = s->srv;
    close_stream(s);
    session_close_stdin(s);
    buf_free(&s->in.buf);
    session_close_output(s, true);
    loop_timer_off(&srv->loop, &s->timer);
    if (s->prev)
        s->prev->next = s->next;
    else
        srv->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    srv->nsessions--;
    free(s);
}

/* The client is gone. A command that is running is killed; the session stays until its main process
 * is reaped (invariant 1). */
static void lose_client(struct session *s)
{
    if (s->state != SESS_RUNNING) {
        s->state = SESS_CLOSING;
        buf_reset(&s->tx);
        return;
    }
    procs_kill_session(s->pid);
    (void)kill(s->pid, SIGKILL); /* a new container does not lead a session yet */
    s->state = SESS_DYING;
    loop_timer_off(&s->srv->loop, &s->timer);
    close_stream(s);
    session_close_stdin(s);
    session_close_output(s, false);
}

static void finish_exited(struct session *s)
{
    if (session_output_done(s)) {
        put_exit(s);
        s->state = SESS_CLOSING;
    } else if (!s->linger_over && !s->timer.at_ns) {
        loop_timer_set(&s->srv->loop, &s->timer, (uint64_t)LINGER_MS * 1000000);
    }
}

void session_run(struct session *s)
{
    if (s->state == SESS_DYING) {
        if (s->pid == 0)
            session_free(s);
        return;
    }
    if (s->state == SESS_FILES) {
        if (s->hup && !s->timer.at_ns)
            loop_timer_set(&s->srv->loop, &s->timer, (uint64_t)FILES_END_MS * 1000000);
        return;
    }
    session_push_stdin(s); /* makes room */
    session_receive(s);
    session_push_stdin(s); /* acknowledges */
    if (!s->lost)
        session_pull_output(s);
    if (s->state == SESS_EXITED && !s->lost)
        finish_exited(s);
    if (!s->lost)
        session_flush(s);
    if (s->lost)
        lose_client(s);
    if (s->state == SESS_CLOSING && buf_len(&s->tx) == 0)
        session_free(s);
    else if (s->state != SESS_DYING && ((s->readable && !s->stalled) || session_output_waits(s)))
        server_wake(s->srv, s);
}
