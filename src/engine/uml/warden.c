#include "engine/uml/warden.h"

#include "jail/seccomp.h"
#include "util/cleanup.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS _IOW('!', 4, uint64_t)
#endif

/* #syscalls:reaper wait4 pause prlimit64 exit_group exit rt_sigreturn restart_syscall
 * sched_setaffinity */
/* #syscalls:reaper_reduced waitid kill */

enum {
    /* How often a traced kernel forks at its start, to test how it can trace. */
    FORKS_MAX = 4,
    /* The kernel's one mapping that is anonymous and shared: a stub's data, for a test. */
    SHARED_MAX = 12288,
    /* A future kernel may report more about a call. */
    MESSAGE_MAX = 512,
    WARDEN_PID = 1, /* of the tree's namespace */
};

static struct warden {
    pid_t kernel;
    int listener;
    bool started;            /* the kernel was executed */
    unsigned threads, forks; /* it may make */
    unsigned maps;           /* ... of memory that no limit counts */
    uint64_t heap;
    struct desk *desk; /* NULL: the tree has its own namespaces */
    int cpu[UML_CPUS_MAX];
    size_t n_cpus;
} warden;

/* A stub has the pages of its program that it writes to, and the stack on which it starts: four
 * pages that it skips, what the host puts there, and up to two by which a host that insists on
 * randomization moves it. Everything else is guest memory. */
static const struct {
    int what; /* RLIMIT_* */
    rlim_t most;
} stub_limits[] = {
    {RLIMIT_DATA, 4096},
    {RLIMIT_STACK, 28672},
    {RLIMIT_NOFILE, 64},
};

static int make_stub(pid_t pid)
{
    for (size_t i = 0; i < ARRAY_LEN(stub_limits); i++) {
        const struct rlimit rl = {stub_limits[i].most, stub_limits[i].most};
        if (prlimit(pid, (__rlimit_resource_t)stub_limits[i].what, &rl, NULL) < 0)
            return errno;
    }
    return 0;
}

static int judge_exec(struct warden *w, pid_t pid)
{
    /* Or one of the kernel's threads, which thereby turns the kernel into a stub, harming only
     * itself. */
    if (pid != w->kernel) {
        int code = make_stub(pid);
        return code == 0 && w->desk ? desk_note_stub(w->desk, pid) : code;
    }
    if (w->started)
        return EPERM;
    w->started = true;
    return 0;
}

/* Moves a process in the tree (0: the caller) to the host CPU that belongs to one of the kernel's.
 * Without a PID namespace, the kernel could name any process of the host. */
static struct answer place(const struct warden *w, const struct seccomp_notif *q)
{
    pid_t pid = (pid_t)q->data.args[0];
    uint64_t cpu = q->data.args[1];
    cpu_set_t set;
    if (w->desk || cpu >= w->n_cpus || pid < 0 || pid == WARDEN_PID)
        return (struct answer){.code = EINVAL};
    CPU_ZERO(&set);
    CPU_SET((size_t)w->cpu[cpu], &set);
    int r = sched_setaffinity(pid ? pid : (pid_t)q->pid, sizeof(set), &set);
    return (struct answer){.code = r < 0 ? errno : 0, .instead = true};
}

static struct answer judge(struct warden *w, const struct seccomp_notif *q)
{
    const struct seccomp_data *call = &q->data;
    pid_t pid = (pid_t)q->pid;
    bool kernel = pid == w->kernel, yes;
    switch (call->nr) {
    case __NR_execveat:
        return (struct answer){.code = judge_exec(w, pid)};
    case __NR_clone:
        if (call->args[0] & CLONE_THREAD)
            yes = kernel && w->threads && w->threads--;
        else
            yes = kernel && w->forks && w->forks--;
        return (struct answer){.code = yes ? 0 : EAGAIN};
    case __NR_mmap:
        yes = kernel && call->args[1] <= SHARED_MAX && w->maps && w->maps--;
        return (struct answer){.code = yes ? 0 : ENOMEM};
    case __NR_sched_setaffinity:
        return place(w, q);
    case __NR_brk:
        return (struct answer){.instead = true, .result = w->heap};
    default:
        if (w->desk)
            return desk_answer(w->desk, w->listener, q->id, call);
        return (struct answer){.code = EPERM};
    }
}

/* Waits for a question and answers it; false once no process is left to ask one. */
static bool answer(struct warden *w)
{
    union {
        struct seccomp_notif msg;
        char room[MESSAGE_MAX];
    } req;
    union {
        struct seccomp_notif_resp msg;
        char room[MESSAGE_MAX];
    } resp;
    memset(&req, 0, sizeof(req)); /* the host insists */
    memset(&resp, 0, sizeof(resp));
    if (ioctl(w->listener, SECCOMP_IOCTL_NOTIF_RECV, &req) < 0)
        return errno == EINTR || errno == ENOENT; /* we or the caller were interrupted */
    struct answer a = judge(w, &req.msg);
    resp.msg.id = req.msg.id;
    resp.msg.error = -a.code;
    resp.msg.val = (int64_t)a.result;
    resp.msg.flags = a.code || a.instead ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    while (ioctl(w->listener, SECCOMP_IOCTL_NOTIF_SEND, &resp) < 0 && errno == EINTR)
        ; /* any other error: the caller has died */
    return true;
}

static void __attribute__((noreturn)) end_as(int st)
{
    _exit(WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st));
}

/* Nothing in the tree can leave its process group, and orphans become ours. The group is killed
 * while the kernel, though dead, is still its leader, so that its number cannot have been
 * reused. */
static void on_child_reduced(int sig)
{
    int st, saved = errno, end = 0;
    siginfo_t info = {0};
    pid_t pid;
    if (waitid(P_PID, (id_t)warden.kernel, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == warden.kernel) {
        (void)kill(-warden.kernel, SIGKILL);
        while ((pid = waitpid(-1, &st, 0)) > 0 || errno == EINTR)
            if (pid == warden.kernel)
                end = st;
        end_as(end);
    }
    errno = saved;
}

static void on_term(int sig)
{
    (void)kill(-warden.kernel, SIGKILL);
}

/* Runs on every death in the tree, whatever the warden is waiting for. The kernel reaps its stubs
 * itself; a compromised one may leave that to us. */
static void on_child(int sig)
{
    int st, saved = errno;
    pid_t pid;
    while ((pid = waitpid(-1, &st, WNOHANG)) > 0)
        if (pid == warden.kernel)
            end_as(st);
    errno = saved;
}

void warden_main(const struct warden_params *p)
{
    warden = (struct warden){.kernel = p->kernel,
                             .listener = p->listener,
                             .maps = 1,
                             .forks = p->traced ? FORKS_MAX : 0,
                             .heap = p->heap,
                             .desk = p->desk,
                             .threads = p->threads,
                             .n_cpus = p->n_cpus};
    memcpy(warden.cpu, p->cpu, sizeof(p->cpu));
    struct sigaction act = {.sa_handler = p->desk ? on_child_reduced : on_child};
    (void)sigaction(SIGCHLD, &act, NULL);
    if (p->desk)
        (void)signal(SIGTERM, on_term);
    /* The kernel waits on the same CPU: hand the CPU over at once, where the host supports it
     * (Linux 6.6). */
    (void)ioctl(p->listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
    if (seccomp_enter(p->desk ? SECCOMP_REAPER_REDUCED : SECCOMP_REAPER) < 0)
        _exit(126);
    act.sa_handler(SIGCHLD); /* it may be too late for a signal */
    while (warden.listener >= 0 && answer(&warden))
        ;
    for (;;)
        (void)pause();
}
