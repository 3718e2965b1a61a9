#include "engine/uml/warden.h"

#include "jail/seccomp.h"
#include "util/cleanup.h"

#include <errno.h>
#include <linux/seccomp.h>
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

/* #syscalls:reaper wait4 pause prlimit64 exit_group exit rt_sigreturn restart_syscall */

enum {
    /* What a traced kernel forks at its start, to test how it can trace. */
    FORKS_MAX = 4,
    /* The kernel's one mapping that is anonymous and shared: a stub's data, for a test. */
    SHARED_MAX = 8192,
    /* A future kernel may have more to say about a call. */
    MESSAGE_MAX = 512,
};

static struct warden {
    pid_t kernel;
    int listener;
    bool started;   /* the kernel was executed */
    unsigned forks; /* it may make */
    unsigned maps;  /* ... of memory that no limit counts */
    uint64_t heap;
} warden;

/* To a question: an error, or a result in the place of the call, or that the call may be made. */
struct answer {
    int code;
    bool instead;
    uint64_t result;
};

/* A stub has the pages of its program that it writes to, and a stack on which it starts; all else is
 * guest memory. */
static const struct {
    int what; /* RLIMIT_* */
    rlim_t most;
} stub_limits[] = {
    {RLIMIT_DATA, 4096},
    {RLIMIT_STACK, 24576},
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
    if (pid != w->kernel)
        return make_stub(pid);
    if (w->started)
        return EPERM;
    w->started = true;
    return 0;
}

static struct answer judge(struct warden *w, pid_t pid, const struct seccomp_data *call)
{
    bool kernel = pid == w->kernel, yes;
    switch (call->nr) {
    case __NR_execveat:
        return (struct answer){.code = judge_exec(w, pid)};
    case __NR_clone:
        yes = kernel && w->forks && w->forks--;
        return (struct answer){.code = yes ? 0 : EAGAIN};
    case __NR_mmap:
        yes = kernel && call->args[1] <= SHARED_MAX && w->maps && w->maps--;
        return (struct answer){.code = yes ? 0 : ENOMEM};
    case __NR_brk:
        return (struct answer){.instead = true, .result = w->heap};
    default:
        return (struct answer){.code = EPERM};
    }
}

/* Waits for a question and answers it; false when nobody is left who could ask. */
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
        return errno == EINTR || errno == ENOENT; /* we were interrupted, or who asked was */
    struct answer a = judge(w, (pid_t)req.msg.pid, &req.msg.data);
    resp.msg.id = req.msg.id;
    resp.msg.error = -a.code;
    resp.msg.val = (int64_t)a.result;
    resp.msg.flags = a.code || a.instead ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    (void)ioctl(w->listener, SECCOMP_IOCTL_NOTIF_SEND, &resp); /* it may have died meanwhile */
    return true;
}

/* On every death in the tree, whatever the warden waits for. The kernel reaps its stubs itself; one
 * that was taken over may leave that to us. */
static void on_child(int sig)
{
    int st, saved = errno;
    pid_t pid;
    while ((pid = waitpid(-1, &st, WNOHANG)) > 0)
        if (pid == warden.kernel)
            _exit(WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st));
    errno = saved;
}

void warden_main(const struct warden_params *p)
{
    warden = (struct warden){.kernel = p->kernel,
                             .listener = p->listener,
                             .maps = 1,
                             .forks = p->traced ? FORKS_MAX : 0,
                             .heap = p->heap};
    struct sigaction act = {.sa_handler = on_child};
    (void)sigaction(SIGCHLD, &act, NULL);
    /* The kernel waits on the same CPU: hand it over at once, where the host can (Linux 6.6). */
    (void)ioctl(p->listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
    if (seccomp_enter(SECCOMP_REAPER) < 0)
        _exit(126);
    on_child(SIGCHLD); /* it may be too late for a signal */
    while (warden.listener >= 0 && answer(&warden))
        ;
    for (;;)
        (void)pause();
}
