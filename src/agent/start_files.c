/* A FILES frame becomes a child that serves the stream (fileop.h). */
#include "agent/session.h"

#include "agent/fileop.h"
#include "agent/layer.h"
#include "agent/pids.h"
#include "agent/request.h"
#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHILD_SOCK = 3, CHILD_LAYER = 4, CHILD_FREE = 5, SPARE_FD = 64 };

/* Closes what the child inherited: the pipes of commands, other streams, and the writable layer,
 * unless it is for that. */
static void keep_only(int sock, bool for_layer)
{
    int layer = for_layer && layer_fd() >= 0 ? fcntl(layer_fd(), F_DUPFD, SPARE_FD) : -1;
    if (sock != CHILD_SOCK)
        (void)dup2(sock, CHILD_SOCK);
    layer = layer >= 0 ? dup2(layer, CHILD_LAYER) : -1;
    layer_moved(layer);
    (void)syscall(SYS_close_range, layer >= 0 ? CHILD_FREE : CHILD_LAYER, ~0U, 0);
    (void)fcntl(CHILD_SOCK, F_SETFL, 0); /* the agent no longer reads or writes it */
}

static void refuse_files(enum proto_fail kind, int code, const char *what)
{
    struct err e = {0};
    struct buf out = {.limit = 4096};
    err_sys(&e, code, "%s", what);
    (void)proto_put_fail(&out, kind, code, e.msg);
    (void)!write(CHILD_SOCK, buf_head(&out), buf_len(&out));
}

static void serve(int sock, const struct identity *id, bool limited, const char *cwd,
                  const struct exec_req *q, const uint8_t *in, size_t n)
{
    sigset_t none;
    bool layer = q->only == FILE_OP_LAYER;
    (void)setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    keep_only(sock, layer);
    umask(0);
    bool there = chdir(cwd) == 0;
    if (layer) /* as the agent, whose capabilities reading the layer requires */
        fileop_serve(CHILD_SOCK, q->only, in, n);
    else if (spawn_identity(id) < 0 || (limited && spawn_limit_caps() < 0))
        refuse_files(PROTO_FAIL_USER, errno, "cannot change the user");
    else if (!there && chdir(cwd) < 0)
        refuse_files(PROTO_FAIL_CWD, errno, cwd);
    else
        fileop_serve(CHILD_SOCK, 0, in, n);
}

static void start_service(struct session *s, struct exec_req *q, const uint8_t *in, size_t n)
{
    const struct identity *id = session_identity(s, q);
    if (!id)
        return;
    const char *cwd = session_working_dir(s->srv->cfg, q);
    pid_t pid = fork();
    if (pid < 0 && errno == EAGAIN && pids_leave()) {
        pid = fork();
        pids_join();
    }
    if (pid == 0) {
        serve(s->sock.fd, id, config_is_restricted(s->srv->cfg), cwd, q, in, n);
        _exit(0);
    }
    if (pid < 0) {
        session_fail(s, PROTO_FAIL_OTHER, errno, "cannot start a process");
        return;
    }
    s->state = SESS_FILES;
    s->pid = pid;
    s->readable = false;
    (void)loop_mod(&s->srv->loop, &s->sock, EPOLLRDHUP | EPOLLET);
}

void session_start_files(struct session *s, const struct proto_frame *f, const uint8_t *in,
                         size_t n)
{
    struct exec_req q;
    if (session_parse(s, f, &q)) {
        start_service(s, &q, in, n);
        exec_req_free(&q);
    }
}
