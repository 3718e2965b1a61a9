#include "client/exec_frame.h"

#include "client/terminal.h"

#include <errno.h>
#include <stdlib.h>

static void put_rlimits(struct proto_writer *w, const struct session_request *req)
{
    for (size_t i = 0; i < req->n_rlimits; i++) {
        size_t mark = proto_nest(w, F_RLIMIT);
        proto_u32(w, F_RESOURCE, req->rlimits[i].resource);
        proto_u64(w, F_SOFT, req->rlimits[i].soft);
        proto_u64(w, F_HARD, req->rlimits[i].hard);
        proto_nest_end(w, mark);
    }
}

void exec_frame_size(struct proto_writer *w)
{
    uint32_t rows, cols;
    if (terminal_size(&rows, &cols)) { /* else the agent's default, or what it was before */
        proto_u32(w, F_ROWS, rows);
        proto_u32(w, F_COLS, cols);
    }
}

static void put_command(struct proto_writer *w, const struct session_request *req, bool stdin_open)
{
    for (size_t i = 0; i < req->argv.n; i++)
        proto_str(w, F_ARG, req->argv.v[i]);
    for (size_t i = 0; i < req->env.n; i++)
        proto_str(w, F_ENV, req->env.v[i]);
    if (req->cwd)
        proto_str(w, F_CWD, req->cwd);
    if (req->user)
        proto_str(w, F_USER, req->user);
    put_rlimits(w, req);
    if (req->tty) {
        const char *term = getenv("TERM");
        proto_u32(w, F_TTY, 1);
        exec_frame_size(w);
        if (term && *term)
            proto_str(w, F_TERM, term);
    }
    if (!stdin_open)
        proto_u32(w, F_NO_STDIN, 1);
    if (req->port)
        proto_u32(w, F_CTL_PORT, req->port);
    if (req->umask)
        proto_u32(w, F_UMASK, req->umask);
    if (req->caps_dropped)
        proto_u64(w, F_CAPABILITIES, ~req->caps_dropped);
    if (req->caps_ambient)
        proto_u64(w, F_AMBIENT, req->caps_ambient);
    if (req->no_new_privs)
        proto_u32(w, F_NO_NEW_PRIVS, 1);
    if (req->filter)
        proto_bytes(w, F_FILTER, req->filter, req->filter_size);
    for (size_t i = 0; i < req->groups.n; i++)
        proto_str(w, F_GROUP, req->groups.v[i]);
    if (req->timeout_ms)
        proto_u64(w, F_TIMEOUT_MS, req->timeout_ms);
    if (req->detach)
        proto_u32(w, F_BACKGROUND, 1);
}

int exec_frame_put(struct buf *tx, const struct session_request *req, bool stdin_open,
                   struct err *e)
{
    struct proto_writer w;
    int r = proto_put_hello(tx);
    if (r < 0)
        return err_sys(e, -r, "cannot start the session");
    proto_begin(&w, tx, req->attach ? PROTO_ATTACH : PROTO_EXEC);
    if (req->attach)
        proto_u32(&w, F_SESSION, req->attach);
    else
        put_command(&w, req, stdin_open);
    return proto_end(&w) < 0 ? err_set(e, E2BIG, "the command and its environment are too long")
                             : 0;
}
