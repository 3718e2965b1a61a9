#include "launch/stage.h"

#include "jail/reduced.h"
#include "monitor/monitor.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"
#include "util/sock.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- in the new processes ------------------------------------------------------------------- */

/* Descriptors to keep. */
struct fd_list {
    int fd[16 + (OCI_LAYERS_MAX + 1) + 2 * SPEC_SHARES_MAX + SPEC_PUBLISH_MAX];
    size_t n;
};

static void fd_keep(int *fd, void *arg)
{
    struct fd_list *l = arg;
    assert(l->n < ARRAY_LEN(l->fd));
    l->fd[l->n++] = *fd;
}

/* Closes every descriptor that is not listed; stdio becomes /dev/null. */
static void keep_only(const int *keep, size_t n, int null_fd)
{
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(null_fd, fd);
    (void)process_close_others(3, keep, n);
}

static void __attribute__((noreturn)) stage_fail(const struct cargo *c, const struct err *e)
{
    struct monitor_report rep = {.code = e->code};
    (void)snprintf(rep.text, sizeof(rep.text), "%.511s", e->msg);
    (void)snprintf(rep.hint, sizeof(rep.hint), "%.511s", e->hints ? e->hint[0] : "");
    (void)send(c->p.report_fd, &rep, sizeof(rep), MSG_NOSIGNAL);
    _exit(1);
}

static void __attribute__((noreturn)) stage_main(struct cargo *c)
{
    struct err e = {0};
    struct fd_list keep = {0};
    pid_t pid = getpid();
    char go;
    (void)setsid();
    process_default_signals();
    process_forget_caller("monitor", c->p.spec->name);
    jail_yield_memory();
    (void)umask(0077);
    fd_keep(&c->p.device_fd, &keep); /* the engine's */
    cargo_each_fd(c, fd_keep, &keep);
    keep_only(keep.fd, keep.n, c->p.null_fd);
    if (fchdir(c->run_fd) < 0) {
        err_sys(&e, errno, "cannot enter the sandbox's directory");
        stage_fail(c, &e);
    }
    int r = c->p.reduced ? 0 : jail_unshare(&e);
    if (r < 0) {
        (void)send(c->sync_fd, &r, sizeof(r), MSG_NOSIGNAL);
        stage_fail(c, &e);
    }
    if (send(c->sync_fd, &pid, sizeof(pid), MSG_NOSIGNAL) != (ssize_t)sizeof(pid) ||
        packet_receive(c->sync_fd, &go, 1) != 1)
        _exit(1); /* the launcher is gone, or reports an error of its own */
    r = c->p.reduced ? reduced_become(&c->id, &e) : jail_become(&c->id, &e);
    /* The monitor's memory is a copy of the caller's, and a hostile guest process with the same
     * user could trace it. Not earlier, since only the owner of /proc/PID may write its id maps. */
    if (r == 0 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        r = err_sys(&e, errno, "cannot hide the monitor's memory");
    (void)close(c->sync_fd);
    (void)close(c->run_fd);
    pid_t monitor = r == 0 ? fork() : 1;
    if (monitor == 0)
        monitor_main(&c->p);
    if (monitor < 0)
        r = err_sys(&e, errno, "cannot start the monitor");
    if (r < 0)
        stage_fail(c, &e);
    _exit(0);
}

/* Waits for all descendants of the stage, then removes the ephemeral sandbox, unless another
 * process has done so. */
static void __attribute__((noreturn)) janitor_main(struct cargo *c)
{
    (void)setsid();
    process_default_signals();
    process_forget_caller("janitor", c->p.spec->name);
    (void)signal(SIGHUP, SIG_IGN);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t stage = cgroup_fork(&c->group);
    if (stage == 0)
        stage_main(c);
    const int keep[] = {c->store->home_fd, c->store->sandboxes_fd, c->store->locks_fd};
    keep_only(keep, ARRAY_LEN(keep), c->p.null_fd);
    (void)!chdir("/"); /* do not keep the caller's directory busy */
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    sandbox_sweep(c->store, c->p.spec->name);
    _exit(0);
}

/* --- in the launcher ------------------------------------------------------------------------ */

static void make_group(struct cargo *c)
{
    const struct sandbox_spec *s = c->p.spec;
    /* Also if nothing is to be limited yet: the limit can be lowered while the guest runs. */
    struct cgroup_limits l = {.cpus = s->cpus < c->p.n_cpus || s->max_cpus > 0 ? s->cpus : 0};
    cgroup_limits_for(&l, s->memory_mib << 20);
    cgroup_forget(c->dirfd); /* of an earlier run */
    c->group = (struct cgroups){.fd = -1};
    if (!c->in_group)
        cgroup_make(&c->group, c->dirfd, s->name, &l);
}

/* Tells a user at a terminal, once per home and boot: memory and processes are also limited by
 * other means, and `msb doctor` always tells. */
static void warn_of_no_group(const struct cargo *c, int error)
{
    static const char mark[] = ".no-cgroup";
    AUTO_FREE char *boot = NULL, *last = NULL;
    char text[256];
    size_t n;
    if (!c->warn || !isatty(STDERR_FILENO) ||
        file_read_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &boot, &n) < 0)
        return;
    if (file_read_at(c->store->locks_fd, mark, 64, &last, NULL) == 0 && strcmp(last, boot) == 0)
        return;
    (void)snprintf(text, sizeof(text),
                   "msb cannot make a cgroup for memory and processes here (%s): memory that this "
                   "host's kernel uses for a sandbox is not limited; see 'msb doctor'",
                   strerror(-error));
    c->warn(text);
    (void)file_replace_at(c->store->locks_fd, mark, boot, n, 0600, false);
}

void stage_limit(struct cargo *c, pid_t stage)
{
    const struct sandbox_spec *s = c->p.spec;
    struct cgroups *g = &c->group;
    cgroup_put(g, stage);
    if (g->error[CGROUP_CPU] < 0 && c->warn) {
        char text[160];
        (void)snprintf(text, sizeof(text),
                       "--cpus %g: cannot limit CPU time on this host (%s); the sandbox may use %s",
                       s->cpus, strerror(-g->error[CGROUP_CPU]),
                       c->p.n_cpus > 1 ? "all its CPUs" : "a whole CPU");
        c->warn(text);
    }
    int error = g->error[CGROUP_MEMORY] < 0 ? g->error[CGROUP_MEMORY] : g->error[CGROUP_PIDS];
    if (error < 0)
        warn_of_no_group(c, error);
}

pid_t stage_fork(struct cargo *c)
{
    make_group(c);
    pid_t child = c->p.spec->ephemeral ? fork() : cgroup_fork(&c->group);
    if (child < 0)
        return -errno;
    if (child == 0) {
        if (c->p.spec->ephemeral)
            janitor_main(c);
        stage_main(c);
    }
    return child;
}
