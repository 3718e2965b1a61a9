#include "launch/helper.h"

#include "jail/jail.h"
#include "jail/landlock.h"
#include "util/cleanup.h"
#include "util/process.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The one message from a helper to the launcher. */
struct report {
    int code;
    bool refused; /* namespaces */
    char text[512];
};

enum { SOCK = 3 };    /* the descriptor number of the helper's end */
enum { REFUSED = 2 }; /* exit code of a helper that got no namespaces */

void helper_report(int sock, const struct err *e)
{
    struct report rep = {.code = e->code};
    (void)snprintf(rep.text, sizeof(rep.text), "%.511s", e->msg);
    (void)send(sock, &rep, sizeof(rep), MSG_NOSIGNAL);
}

static void __attribute__((noreturn)) refuse(int sock, const struct err *e)
{
    struct report rep = {.code = e->code, .refused = true};
    (void)snprintf(rep.text, sizeof(rep.text), "%.511s", e->msg);
    (void)send(sock, &rep, sizeof(rep), MSG_NOSIGNAL);
    _exit(REFUSED);
}

void helper_fail(int sock, const struct err *e)
{
    helper_report(sock, e);
    _exit(1);
}

int helper_enter_nowhere(struct err *e)
{
    AUTO_CLOSE int fds =
        (int)syscall(SYS_open_tree, AT_FDCWD, "/proc/self/fd", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fds < 0)
        return err_sys(e, errno, "cannot open /proc/self/fd");
    /* /proc is an existing directory that is no longer needed. */
    int r = jail_mount_tmpfs("/proc", "size=4k,nr_inodes=2,mode=0555", e);
    if (r == 0)
        r = jail_pivot(e);
    if (r < 0)
        return r;
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) <
            0 ||
        fchdir(fds) < 0)
        return err_sys(e, errno, "cannot close a helper's root");
    return 0;
}

int helper_enter_reduced(int fd, bool write, struct err *e)
{
    const struct landlock_grant share = {.fd = fd, .write = write};
    if (chdir("/proc/self/fd") < 0)
        return err_sys(e, errno, "cannot open /proc/self/fd");
    int r = landlock_enter(&share, 1);
    return r < 0 && r != -EOPNOTSUPP ? err_sys(e, -r, "cannot restrict a helper's files") : 0;
}

int helper_seal(enum seccomp_profile profile, struct err *e)
{
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    int r = seccomp_enter(profile);
    return r < 0 ? err_sys(e, -r, "cannot install the system call filter") : 0;
}

/* Enters a user namespace with all our ids, which a process outside has to map. */
static int unshare_all_ids(int flags, struct err *e)
{
    int go[2], status = 0;
    pid_t self = getpid();
    if (pipe2(go, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot create a pipe");
    pid_t outside = fork();
    if (outside == 0) {
        char c;
        (void)close(go[1]);
        _exit(read(go[0], &c, 1) == 1 ? -jail_map_all(self, NULL) : 0);
    }
    int r = outside < 0 || unshare(flags | CLONE_NEWUSER) < 0 ? -errno : 0;
    if (r == 0 && write(go[1], "", 1) != 1)
        r = -errno;
    (void)close(go[0]);
    (void)close(go[1]);
    if (outside > 0 && waitpid(outside, &status, 0) == outside && r == 0)
        r = WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
    return r < 0 ? err_sys(e, -r, "cannot create a helper's namespaces") : 0;
}

/* An ordinary user gets a user namespace; root stays root, with fewer rights. A container's root
 * has all users' files to serve, but may not create other namespaces unless it also creates a user
 * namespace; with few capabilities, it is an ordinary user to the host. */
static int helper_unshare(struct err *e)
{
    int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    struct jail_identity id = {.uid = geteuid(), .gid = getegid()};
    if (id.uid == 0 && unshare(flags) == 0)
        return 0;
    if (id.uid == 0 && jail_has_cap(CAP_SETUID) && jail_has_cap(CAP_SETGID))
        return unshare_all_ids(flags, e);
    if (unshare(flags | CLONE_NEWUSER) < 0)
        return err_sys(e, errno, "cannot create a helper's namespaces");
    return jail_map(getpid(), &id, e);
}

static int make_private(struct err *e)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(e, errno, "cannot make a helper's mounts private");
    return 0;
}

static void leave_network(struct err *e)
{
    if (unshare(CLONE_NEWNET) == 0)
        return;
    err_sys(e, errno, "cannot leave the network");
    refuse(SOCK, e);
}

static void __attribute__((noreturn))
helper_stage(helper_main run, void *arg, const struct helper_place *place, int sock)
{
    struct err e = {0};
    (void)setsid();
    process_default_signals();
    process_forget_caller("helper", NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)process_close_stdio();
    if (place->dir_fd >= 0 ? fchdir(place->dir_fd) < 0 : chdir("/") < 0) {
        err_sys(&e, errno, "cannot enter a directory");
        helper_fail(sock, &e);
    }
    if (dup3(sock, SOCK, O_CLOEXEC) < 0 && errno != EINVAL)
        _exit(1);
    (void)process_close_others(SOCK + 1, NULL, 0);
    jail_yield_memory(); /* while /proc can be reached: it works on behalf of a guest */
    if (!place->reduced && (helper_unshare(&e) < 0 || make_private(&e) < 0))
        refuse(SOCK, &e);
    if (!place->reduced && place->at_once)
        leave_network(&e);
    pid_t helper = fork();
    if (helper > 0)
        _exit(0);
    if (helper < 0) {
        err_sys(&e, errno, "cannot start a process");
        helper_fail(SOCK, &e);
    }
    /* A network namespace takes as long as all the others; by now, nothing waits for this
     * process. */
    if (!place->reduced && !place->at_once)
        leave_network(&e);
    run(SOCK, arg);
    _exit(1);
}

int helper_start(helper_main run, void *arg, const struct helper_place *place, int *ret_fd,
                 pid_t *ret_stage, struct err *e)
{
    AUTO_CLOSE int here = -1, there = -1;
    int r = packet_pair(&here, &there, e);
    if (r < 0)
        return r;
    pid_t stage = fork();
    if (stage < 0)
        return err_sys(e, errno, "cannot start a process");
    if (stage == 0)
        helper_stage(run, arg, place, there);
    *ret_stage = stage;
    *ret_fd = steal_fd(&here);
    return 0;
}

static int receive_report(int fd, const char *what, bool *refused, struct err *e)
{
    struct report rep;
    ssize_t k = packet_receive(fd, &rep, sizeof(rep));
    /* It ended before it read what to serve; that error comes first, then its report. */
    if (k < 0 && errno == ECONNRESET)
        k = packet_receive(fd, &rep, sizeof(rep));
    if (k != (ssize_t)sizeof(rep))
        return err_set(e, ECHILD, "the process that %s died during start-up", what);
    rep.text[sizeof(rep.text) - 1] = '\0';
    *refused |= rep.refused;
    return rep.code ? err_set(e, rep.code, "%s", rep.text) : 0;
}

int helper_placed(int fd, pid_t stage, const char *what, bool *refused, struct err *e)
{
    return process_wait(stage) == 0 ? 0 : receive_report(fd, what, refused, e);
}

int helper_ready(int fd, const char *what, bool *refused, struct err *e)
{
    return receive_report(fd, what, refused, e);
}

int helper_wait(int fd, pid_t stage, const char *what, bool *refused, struct err *e)
{
    int r = helper_placed(fd, stage, what, refused, e);
    return r < 0 ? r : helper_ready(fd, what, refused, e);
}

int helper_reap(pid_t stage, const char *what, bool *refused, struct err *e)
{
    int status = process_wait(stage);
    if (status == 0)
        return 0;
    if (status < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != REFUSED)
        return err_set(e, ECHILD, "the process that %s died during start-up", what);
    *refused = true;
    return err_set(e, EPERM, "this host refuses namespaces to the process that %s", what);
}
