/* An EXEC frame becomes a process.
 *
 * Everything the command needs (user, environment, pipes or a terminal) is prepared here, in the
 * order in which a failure has the least to undo; spawn.c then only starts it.
 */
#include "agent/session.h"

#include "agent/env.h"
#include "agent/procs.h"
#include "agent/proxy.h"
#include "agent/spawn.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define TIMEOUT_MS_MAX (1ULL << 40) /* 34 years, and the product fits */

/* Both ends of the command's standard streams. */
struct stdio {
    int child[3]; /* the command's */
    int ours[3];  /* -1 where there is none */
};

static void stdio_init(struct stdio *io)
{
    for (int i = 0; i < 3; i++)
        io->child[i] = io->ours[i] = -1;
}

static void close_child_ends(struct stdio *io, int dev_null)
{
    for (int i = 0; i < 3; i++) {
        bool shared = io->child[i] == dev_null || (i > 0 && io->child[i] == io->child[0]);
        int fd = shared ? -1 : io->child[i]; /* child[0] is still compared with */
        close_fd(&fd);
    }
}

static void close_our_ends(struct stdio *io)
{
    for (int i = 0; i < 3; i++)
        close_fd(&io->ours[i]);
}

/* Our ends do not block. The command's do, as programs expect. */
static int make_pipe(int *ours, int *theirs, bool we_write)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    *ours = p[we_write];
    *theirs = p[!we_write];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int open_pipes(struct stdio *io, const struct exec_req *q, int dev_null)
{
    int r = 0;
    if (q->no_stdin)
        io->child[0] = dev_null;
    else
        r = make_pipe(&io->ours[0], &io->child[0], true);
    if (r == 0)
        r = make_pipe(&io->ours[1], &io->child[1], false);
    if (r == 0)
        r = make_pipe(&io->ours[2], &io->child[2], false);
    return r;
}

static int open_terminal(struct stdio *io, const struct exec_req *q)
{
    struct winsize ws = {.ws_row = (unsigned short)(q->rows ? q->rows : 24),
                         .ws_col = (unsigned short)(q->cols ? q->cols : 80)};
    int zero = 0, n = 0;
    char name[32];
    io->ours[1] = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (io->ours[1] < 0)
        return -errno;
    if (ioctl(io->ours[1], TIOCSPTLCK, &zero) < 0 || ioctl(io->ours[1], TIOCGPTN, &n) < 0 ||
        ioctl(io->ours[1], TIOCSWINSZ, &ws) < 0)
        return -errno;
    (void)snprintf(name, sizeof(name), "/dev/pts/%d", n);
    int fd = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    io->child[0] = io->child[1] = io->child[2] = fd;
    /* Input and output are watched separately, and a descriptor can only be watched once. */
    io->ours[0] = fcntl(io->ours[1], F_DUPFD_CLOEXEC, 3);
    return io->ours[0] < 0 ? -errno : 0;
}

/* Programs open /dev/stdout or /dev/tty by name, so the streams must belong to the user. */
static void give_away(const struct stdio *io, const struct identity *id, int dev_null)
{
    for (int i = 0; id->uid && i < 3; i++)
        if (io->child[i] != dev_null)
            (void)!fchown(io->child[i], id->uid, (gid_t)-1);
}

static const char *make_missing(const char *dir)
{
    struct stat st;
    if (stat(dir, &st) < 0 && errno == ENOENT)
        (void)mkdir_parents(dir, 0755);
    return dir;
}

/* The image's working directory need not exist, nor a container's; a directory that a command asks
 * for must. */
const char *session_working_dir(const struct config *cfg, const struct exec_req *q)
{
    if (q->c.cwd && *q->c.cwd)
        return config_shares_root(cfg) ? make_missing(q->c.cwd) : q->c.cwd;
    if (!cfg->c.cwd || cfg->c.cwd[0] != '/')
        return "/";
    return make_missing(cfg->c.cwd);
}

void session_put_started(struct session *s)
{
    struct proto_writer w;
    proto_begin(&w, &s->tx, PROTO_STARTED);
    proto_u32(&w, F_PID, (uint32_t)procs_inner(s->pid));
    if (s->container)
        proto_u32(&w, F_CONTAINER, s->container);
    (void)proto_end(&w);
}

static void running(struct session *s, const struct exec_req *q, pid_t pid, struct stdio *io)
{
    s->state = SESS_RUNNING;
    s->pid = pid;
    s->tty = q->tty;
    session_inlet_init(s, steal_fd(&io->ours[0]));
    session_outlet_init(s, 0, steal_fd(&io->ours[1]), PROTO_STDOUT);
    if (!q->tty)
        session_outlet_init(s, 1, steal_fd(&io->ours[2]), PROTO_STDERR);
    if (q->timeout_ms)
        loop_timer_set(&s->srv->loop, &s->timer, MIN(q->timeout_ms, TIMEOUT_MS_MAX) * 1000000);
    session_put_started(s);
}

bool session_parse(struct session *s, const struct proto_frame *f, struct exec_req *q)
{
    bool exec = f->type == PROTO_EXEC;
    if (s->srv->stopping) {
        session_fail(s, PROTO_FAIL_STATE, ESHUTDOWN, "the sandbox is shutting down");
        return false;
    }
    int r = exec ? exec_req_parse(q, f) : files_req_parse(q, f);
    if (r < 0)
        session_fail(s, PROTO_FAIL_OTHER, -r,
                     r == -ENOMEM ? "out of memory"
                     : exec       ? "malformed EXEC"
                                  : "malformed FILES");
    return r == 0;
}

const struct identity *session_identity(struct session *s, const struct exec_req *q)
{
    struct err e = {0};
    const char *user = q->c.user ? q->c.user : s->srv->cfg->c.user;
    struct user_cache *users = &s->srv->users;
    bool own = q->ngroups > 0;
    users->more = own ? q->groups : s->srv->cfg->groups;
    users->n_more = own ? q->ngroups : s->srv->cfg->ngroups;
    users->valid &= !own;
    const struct identity *id = user_lookup(users, user && *user ? user : "0", &e);
    users->valid &= !own; /* these groups are only for this request */
    if (!id)
        session_fail(s, PROTO_FAIL_USER, e.code, e.msg);
    return id;
}

static int make_env(const struct session *s, const struct exec_req *q, const struct identity *id,
                    struct env *ret)
{
    const struct config *cfg = s->srv->cfg;
    bool plain = config_shares_root(cfg);
    const struct env_in in = {.home = id->home,
                              .hostname = plain ? NULL : cfg->hostname,
                              .plain = plain,
                              .tty = q->tty,
                              .term = q->term,
                              .scripts = cfg->nscripts > 0,
                              .base = &cfg->c,
                              .extra = &q->c};
    return env_build(ret, &in);
}

/* Starts the program, or what connects its port. Returns its PID. */
static pid_t begin(const struct session *s, const struct exec_req *q, const struct identity *id,
                   const struct env *env, struct stdio *io, enum proto_fail *kind, struct err *e)
{
    const struct config *cfg = s->srv->cfg;
    if (q->port) {
        pid_t pid = proxy_start(q->port, io->child);
        return pid < 0 ? err_sys(e, -pid, "cannot connect to port %u", q->port) : pid;
    }
    give_away(io, id, s->srv->dev_null);
    struct spawn_req sp = {.argv = q->argv,
                           .envp = env->vars,
                           .path = env->path,
                           .cwd = session_working_dir(cfg, q),
                           .id = id,
                           .limits = {&cfg->c, &q->c},
                           .fd = {io->child[0], io->child[1], io->child[2]},
                           .umask = q->umask,
                           .drop = cfg->caps & ~q->caps,
                           .ambient = cfg->caps & q->caps & q->ambient,
                           .no_new_privs = q->no_new_privs,
                           .filter = q->filter,
                           .filter_size = q->filter_size,
                           .tty = q->tty};
    return spawn(&sp, kind, e);
}

static void start_command(struct session *s, struct exec_req *q)
{
    struct err e = {0};
    enum proto_fail kind = PROTO_FAIL_OTHER;
    const struct identity *id = session_identity(s, q);
    if (!id)
        return;
    struct env env;
    if (make_env(s, q, id, &env) < 0) {
        session_fail(s, PROTO_FAIL_OTHER, ENOMEM, "out of memory");
        return;
    }
    struct stdio io;
    stdio_init(&io);
    oom_look(&s->srv->oom); /* earlier kills are not this command's */
    s->kills = s->srv->oom.kills;
    pid_t pid = q->tty ? open_terminal(&io, q) : open_pipes(&io, q, s->srv->dev_null);
    if (pid < 0)
        (void)err_sys(&e, -pid, q->tty ? "cannot open a terminal" : "cannot open a pipe");
    else
        pid = begin(s, q, id, &env, &io, &kind, &e);
    close_child_ends(&io, s->srv->dev_null);
    env_free(&env);
    if (pid > 0)
        running(s, q, pid, &io);
    else
        session_fail(s, kind, e.code, e.msg);
    close_our_ends(&io);
}

void session_start(struct session *s, const struct proto_frame *f)
{
    struct exec_req q;
    if (session_parse(s, f, &q)) {
        start_command(s, &q);
        exec_req_free(&q);
    }
}
