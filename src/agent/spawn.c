#include "agent/spawn.h"

#include "agent/env.h"
#include "agent/pids.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_STACK = 32 * 1024, SNIFF = 128 };

enum step { STEP_NONE, STEP_TTY, STEP_RLIMIT, STEP_FILTER, STEP_USER, STEP_CWD, STEP_EXEC };

/* What the child reports to the parent. The parent sleeps until the child has executed or exited,
 * so plain memory is enough. */
struct report {
    const struct spawn_req *q;
    enum step step; /* the step that failed; NONE = running */
    int error;
    uint32_t resource;
    bool outside; /* it starts outside the process limit's group, and has to join it */
};

/* One child at a time exists between clone and execve, so one stack is enough. */
static _Alignas(16) char child_stack[CHILD_STACK];
static char candidate[PATH_MAX];

static int set_limits(struct report *r)
{
    for (size_t k = 0; k < ARRAY_LEN(r->q->limits); k++) {
        const struct req_common *c = r->q->limits[k];
        for (size_t i = 0; c && i < c->nrlimits; i++) {
            const struct req_rlimit *l = &c->rlimits[i];
            uint64_t lim[2] = {l->soft, l->hard}; /* struct rlimit64 */
            r->resource = l->resource;
            if (syscall(SYS_prlimit64, 0, l->resource, lim, NULL) < 0)
                return -1;
        }
    }
    return 0;
}

/* The raw system calls: the C library's versions synchronize threads that do not exist here. The
 * agent runs as root without supplementary groups, so root's usual identity needs no call. */
int spawn_identity(const struct identity *id)
{
    bool root = geteuid() == 0;
    if (root && id->ngroups && syscall(SYS_setgroups, id->ngroups, id->groups) < 0)
        return -1;
    if ((id->gid || !root) && syscall(SYS_setresgid, id->gid, id->gid, id->gid) < 0)
        return -1;
    if ((id->uid || !root) && syscall(SYS_setresuid, id->uid, id->uid, id->uid) < 0)
        return -1;
    return 0;
}

/* <linux/capability.h> is not among musl's headers. */
struct cap_header {
    uint32_t version;
    int pid;
};
struct cap_data {
    uint32_t effective, permitted, inheritable;
};
enum { CAP_VERSION_3 = 0x20080522 };

int spawn_limit_caps(void)
{
    struct cap_header h = {.version = CAP_VERSION_3};
    struct cap_data d[2] = {0};
    if (geteuid() != 0) /* changing the user has dropped them */
        return 0;
    for (unsigned i = 0; i < 64 && prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++)
        if (prctl(PR_CAPBSET_READ, i, 0, 0, 0) == 1)
            d[i / 32].permitted |= 1U << (i % 32);
    for (int i = 0; i < 2; i++)
        d[i].effective = d[i].permitted;
    return syscall(SYS_capset, &h, d) < 0 ? -1 : 0;
}

/* While it is root: drops what no program in the command may get, by whatever means. */
static int drop_caps(const struct spawn_req *q)
{
    for (unsigned i = 0; q->drop >> i && i < 63; i++)
        if (q->drop >> i & 1 && prctl(PR_CAPBSET_READ, i, 0, 0, 0) == 1 &&
            prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0)
            return -1;
    return q->ambient && q->id->uid ? prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) : 0;
}

/* linux/filter.h and linux/seccomp.h, which this C library does not include. */
enum { SECCOMP_MODE_FILTER = 2, FILTER_ENTRY = 8 };

static int set_filter(const struct spawn_req *q)
{
    const struct {
        unsigned short entries;
        const void *filter;
    } program = {(unsigned short)(q->filter_size / FILTER_ENTRY), q->filter};
    return q->filter ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) : 0;
}

/* As the user, who keeps them when executing a program. */
static int keep_ambient(const struct spawn_req *q)
{
    struct cap_header h = {.version = CAP_VERSION_3};
    struct cap_data d[2];
    if (!q->ambient || !q->id->uid)
        return 0;
    for (int i = 0; i < 2; i++) {
        uint32_t bits = (uint32_t)(q->ambient >> 32 * i);
        d[i] = (struct cap_data){.effective = bits, .permitted = bits, .inheritable = bits};
    }
    if (syscall(SYS_capset, &h, d) < 0)
        return -1;
    for (unsigned i = 0; i < 64; i++)
        if (q->ambient >> i & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0) < 0)
            return -1;
    return 0;
}

/* A file that the kernel has no loader for is a script if it is text. */
static bool is_text(const char *path)
{
    char head[SNIFF];
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head));
    return n >= 0 && !memchr(head, 0, (size_t)n);
}

static void exec_script(const struct spawn_req *q)
{
    char **argv = q->argv - 1;
    char *arg0 = q->argv[0];
    argv[0] = (char *)(uintptr_t) "/bin/sh";
    q->argv[0] = candidate;
    execve(argv[0], argv, q->envp);
    q->argv[0] = arg0;
    errno = ENOEXEC;
}

/* Like execvp: tries the next directory if the file is missing or may not be run. */
static int exec_on_path(const struct spawn_req *q)
{
    struct path_walk w;
    int error = ENOENT;
    path_walk_init(&w, q->path, q->argv[0]);
    while (path_walk_next(&w, candidate, sizeof(candidate))) {
        execve(candidate, q->argv, q->envp);
        if (errno == ENOEXEC && is_text(candidate))
            exec_script(q);
        if (errno == EACCES)
            error = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG)
            return errno;
    }
    return error;
}

static int fail_step(struct report *r, enum step step, int error)
{
    r->error = error;
    r->step = step;
    _exit(127);
}

__attribute__((no_sanitize("address", "undefined"))) static int run_child(void *arg)
{
    struct report *r = arg;
    const struct spawn_req *q = r->q;
    if (r->outside)
        pids_join();
    (void)setsid();
    for (int i = 0; i < 3; i++)
        if (dup2(q->fd[i], i) < 0)
            return fail_step(r, STEP_TTY, errno);
    if (q->tty && ioctl(0, TIOCSCTTY, 0) < 0)
        return fail_step(r, STEP_TTY, errno);
    if (set_limits(r) < 0)
        return fail_step(r, STEP_RLIMIT, errno);
    /* As in Docker, a directory that the user may not enter can be the working directory; one that
     * root may not enter (on a network file system) is retried as the user. */
    bool there = chdir(q->cwd) == 0;
    if (!there && errno != EACCES)
        return fail_step(r, STEP_CWD, errno);
    /* Without no_new_privs, only root may install a filter, so it is installed first and must allow
     * what follows. */
    if (!q->no_new_privs && set_filter(q) < 0)
        return fail_step(r, STEP_FILTER, errno);
    if (drop_caps(q) < 0 || spawn_identity(q->id) < 0 || keep_ambient(q) < 0)
        return fail_step(r, STEP_USER, errno);
    if (q->no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return fail_step(r, STEP_USER, errno);
    if (!there && chdir(q->cwd) < 0)
        return fail_step(r, STEP_CWD, errno);
    uint64_t none = 0;
    if (q->umask)
        (void)syscall(SYS_umask, q->umask - 1);
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
    if (q->no_new_privs && set_filter(q) < 0)
        return fail_step(r, STEP_FILTER, errno);
    return fail_step(r, STEP_EXEC, exec_on_path(q));
}

/* --- explaining a failure --- */

static bool find_existing(const struct spawn_req *q, char *to, size_t size, struct stat *st)
{
    struct path_walk w;
    char at[PATH_MAX];
    path_walk_init(&w, q->path, q->argv[0]);
    while (path_walk_next(&w, at, sizeof(at))) {
        const char *dir = at[0] == '/' ? "" : q->cwd;
        if (snprintf(to, size, "%s%s%s", dir, *dir ? "/" : "", at) < (int)size && stat(to, st) == 0)
            return true;
    }
    return false;
}

/* The file exists, and yet the kernel reported ENOENT: its interpreter is missing. */
static int explain_interpreter(const char *file, struct err *e)
{
    char head[SNIFF + 1] = "";
    AUTO_CLOSE int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, head, SNIFF);
    head[n > 0 ? n : 0] = '\0';
    if (strncmp(head, "#!", 2) != 0)
        return err_set(e, ENOENT, "%s: the program loader it needs is not in the image", file);
    char *interp = head + 2 + strspn(head + 2, " \t");
    interp[strcspn(interp, " \t\r\n")] = '\0';
    return err_set(e, ENOENT, "%s: its interpreter %s is not in the image", file, interp);
}

static int explain_exec(const struct spawn_req *q, int error, enum proto_fail *kind, struct err *e)
{
    char file[PATH_MAX];
    struct stat st;
    const char *name = q->argv[0];
    bool exists = find_existing(q, file, sizeof(file), &st);

    *kind = PROTO_FAIL_NOT_EXECUTABLE;
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        if (exists && S_ISREG(st.st_mode))
            return explain_interpreter(file, e);
        *kind = PROTO_FAIL_NOT_FOUND;
        if (strchr(name, '/'))
            return err_sys(e, error, "%s", name);
        return err_set(e, ENOENT, "%s: not found on PATH", *name ? name : "\"\"");
    case EACCES:
        if (exists && S_ISDIR(st.st_mode))
            return err_set(e, EACCES, "%s: is a directory", file);
        return err_sys(e, EACCES, "%s", exists ? file : name);
    case ENOEXEC:
        return err_set(e, ENOEXEC, "%s: not a program for this machine", exists ? file : name);
    case ENOMEM:
    case EAGAIN:
        *kind = PROTO_FAIL_OTHER;
        break;
    default:
        break;
    }
    return err_sys(e, error, "%s", exists ? file : name);
}

static int explain_failure(const struct report *r, enum proto_fail *kind, struct err *e)
{
    *kind = PROTO_FAIL_OTHER;
    switch (r->step) {
    case STEP_RLIMIT:
        *kind = PROTO_FAIL_RLIMIT;
        return err_sys(e, r->error, "cannot set resource limit %u", r->resource);
    case STEP_FILTER:
        return err_sys(e, r->error, "cannot filter the command's system calls");
    case STEP_USER:
        *kind = PROTO_FAIL_USER;
        return err_sys(e, r->error, "cannot change to uid %u, gid %u", r->q->id->uid,
                       r->q->id->gid);
    case STEP_CWD:
        *kind = PROTO_FAIL_CWD;
        return err_sys(e, r->error, "cannot change to directory %s", r->q->cwd);
    case STEP_EXEC:
        return explain_exec(r->q, r->error, kind, e);
    default:
        return err_sys(e, r->error, "cannot set up the command's terminal");
    }
}

static pid_t start_child(struct report *r)
{
    int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    return clone(run_child, child_stack + sizeof(child_stack), flags, r);
}

pid_t spawn(const struct spawn_req *q, enum proto_fail *kind, struct err *e)
{
    struct report r = {.q = q};
    pid_t pid = start_child(&r);
    if (pid < 0 && errno == EAGAIN && pids_leave()) {
        r.outside = true;
        pid = start_child(&r);
        pids_join();
    }
    if (pid < 0) {
        *kind = PROTO_FAIL_OTHER;
        return err_sys(e, errno, "cannot start a process");
    }
    if (r.step == STEP_NONE)
        return pid;
    (void)waitpid(pid, NULL, 0);
    return explain_failure(&r, kind, e);
}
