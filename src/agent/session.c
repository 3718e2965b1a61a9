#include "agent/session.h"

#include "agent/fileop.h"
#include "agent/procs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- frames of ours --- */

void session_put_fail(struct buf *out, uint32_t kind, int error, const char *text)
{
    struct proto_writer w;
    proto_begin(&w, out, PROTO_FAIL);
    proto_u32(&w, F_KIND, kind);
    proto_u32(&w, F_ERRNO, (uint32_t)error);
    proto_str(&w, F_TEXT, text);
    (void)proto_end(&w);
}

void session_fail(struct session *s, uint32_t kind, int error, const char *text)
{
    session_put_fail(&s->tx, kind, error, text);
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
    /* The limit may run out in the moment the command ends by itself: that is no time-out. */
    if (s->timed_out && WIFSIGNALED(s->status) && WTERMSIG(s->status) == SIGKILL)
        proto_u32(&w, F_TIMED_OUT, 1);
    (void)proto_end(&w);
}

/* --- events: note and queue --- */

static void on_sock(struct loop_src *src, uint32_t events)
{
    struct session *s = CONTAINER_OF(src, struct session, sock);
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        s->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        s->hup = true;
    engine_wake(s->e, s);
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
        engine_wake(s->e, s);
    }
}

void session_child_exited(struct session *s, int status)
{
    s->pid = 0;
    s->status = status;
    loop_timer_off(&s->e->loop, &s->timer);
    if (s->state == SESS_RUNNING) {
        s->state = SESS_EXITED;
        session_note_owed(s);
    } else if (s->state == SESS_FILES) {
        s->state = SESS_CLOSING;
    }
    engine_wake(s->e, s);
}

/* --- life --- */

int session_new(struct engine *e, int fd)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->e = e;
    s->sock = (struct loop_src){.fd = fd, .fn = on_sock};
    s->in.src.fd = s->out[0].src.fd = s->out[1].src.fd = -1;
    s->timer.fn = on_timer;
    buf_init(&s->rx, PROTO_HDR_LEN + PROTO_MSG_MAX);
    buf_init(&s->tx, TX_LIMIT);
    int r = loop_add(&e->loop, &s->sock, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (r < 0) {
        free(s);
        return r;
    }
    s->next = e->sessions;
    if (s->next)
        s->next->prev = s;
    e->sessions = s;
    e->nsessions++;
    s->readable = true; /* the first frames usually are there already */
    engine_wake(e, s);
    return 0;
}

static void close_stream(struct session *s)
{
    int fd = s->sock.fd;
    loop_del(&s->e->loop, &s->sock);
    if (fd >= 0)
        close(fd);
    buf_free(&s->rx);
    buf_free(&s->tx);
}

static void session_free(struct session *s)
{
    struct engine *e = s->e;
    close_stream(s);
    session_close_stdin(s);
    buf_free(&s->in.buf);
    session_close_output(s, true);
    loop_timer_off(&e->loop, &s->timer);
    if (s->prev)
        s->prev->next = s->next;
    else
        e->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    e->nsessions--;
    free(s);
}

/* The client is gone. The command dies with it unless it has ended; the session object stays until
 * the main process is reaped (invariant 1). */
static void lose(struct session *s)
{
    if (s->state != SESS_RUNNING) {
        s->state = SESS_CLOSING;
        buf_reset(&s->tx);
        return;
    }
    procs_kill_session(s->pid);
    s->state = SESS_DYING;
    loop_timer_off(&s->e->loop, &s->timer);
    close_stream(s);
    session_close_stdin(s);
    session_close_output(s, false);
}

static void finish(struct session *s)
{
    if (session_output_done(s)) {
        put_exit(s);
        s->state = SESS_CLOSING;
    } else if (!s->linger_over && !s->timer.at_ns) {
        loop_timer_set(&s->e->loop, &s->timer, (uint64_t)LINGER_MS * 1000000);
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
            loop_timer_set(&s->e->loop, &s->timer, (uint64_t)FILES_END_MS * 1000000);
        return;
    }
    session_push_stdin(s); /* makes room */
    session_receive(s);
    session_push_stdin(s); /* acknowledges */
    if (!s->lost)
        session_pull_output(s);
    if (s->state == SESS_EXITED && !s->lost)
        finish(s);
    if (!s->lost)
        session_flush(s);
    if (s->lost)
        lose(s);
    if (s->state == SESS_CLOSING && buf_len(&s->tx) == 0)
        session_free(s);
    else if (s->state != SESS_DYING && ((s->readable && !s->stalled) || session_output_waits(s)))
        engine_wake(s->e, s);
}
