#include "engine/uml/desk.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* #syscalls:reaper_reduced close poll pidfd_open pidfd_send_signal */

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum {
    STUB_PROGRAM_MAX = 64 * 1024,
    FILES_SPARE = 64, /* descriptors besides those for stubs */
};

struct stub {
    pid_t pid;
    int fd; /* a pidfd: it stays this process, even if the number is reused */
};

struct desk {
    pid_t kernel;
    int kernel_fd; /* a pidfd */
    int memory_fd, cpuinfo_fd, program_fd, null_fd;
    int device_fd[ENGINE_DEVICES_MAX];
    size_t n_devices, next_device;
    struct stub *stub;
    size_t n_stubs, stubs_max;
};

/* --- before the kernel starts ---------------------------------------------------------------- */

/* A file in memory, of fixed size. */
static int sealed_file(const char *name, uint64_t size, int seals)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    AUTO_CLOSE int fd = memfd_create(name, flags | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3, all were executable */
        fd = memfd_create(name, flags);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)
        return -errno;
    return steal_fd(&fd);
}

static int open_files(struct desk *d, const struct engine_params *p, struct err *e)
{
    int seals = F_SEAL_GROW | F_SEAL_SHRINK;
    /* The kernel ensures the size by writing a byte past the end of its memory. */
    d->memory_fd = sealed_file("guest-memory", p->memory_bytes + 1, seals);
    d->program_fd = sealed_file("stub", STUB_PROGRAM_MAX, seals);
    d->cpuinfo_fd = sealed_file("cpuinfo", strlen(p->cpuinfo), seals);
    d->null_fd = fcntl(p->null_fd, F_DUPFD_CLOEXEC, 4); /* lower descriptors get replaced */
    int worst = MIN(MIN(d->memory_fd, d->program_fd), MIN(d->cpuinfo_fd, d->null_fd));
    if (worst == -EACCES) {
        err_set(e, EACCES, "this host does not let programs run from memory");
        err_hint(e, "as root: sysctl vm.memfd_noexec=0");
        return -EACCES;
    }
    int r = worst < 0 ? worst : pwrite_all(d->cpuinfo_fd, p->cpuinfo, strlen(p->cpuinfo), 0);
    return r < 0 ? err_sys(e, -r, "cannot create guest memory") : 0;
}

/* Makes a listening socket, for the device, and a connection to it, for the kernel. */
static int open_device(struct desk *d, size_t i, int *listen_fd)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "dev%zu", i);
    (void)unlink(path); /* left by a killed start */
    AUTO_CLOSE int listening = listen_at(path, 1);
    if (listening < 0)
        return listening;
    AUTO_CLOSE int fd = connect_at(path);
    (void)unlink(path);
    if (fd < 0)
        return fd;
    *listen_fd = steal_fd(&listening);
    d->device_fd[d->n_devices++] = steal_fd(&fd);
    return 0;
}

int desk_open(struct desk **ret, const struct engine_params *p, size_t stubs, int *listen_fd,
              struct err *e)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur < 2UL * FILES_SPARE)
        return err_set(e, EMFILE, "the limit on open files (ulimit -Hn) is too low");
    struct desk *d = calloc(1, sizeof(*d)); /* lives as long as the process */
    if (!d)
        return err_oom(e);
    d->stubs_max = MIN(stubs, files.rlim_cur - FILES_SPARE);
    d->stub = calloc(d->stubs_max, sizeof(*d->stub));
    if (!d->stub)
        return err_oom(e);
    int r = open_files(d, p, e);
    for (size_t i = 0; r == 0 && i < p->n_devices; i++)
        if ((r = open_device(d, i, &listen_fd[i])) < 0)
            err_sys(e, -r, "cannot create the sockets of the kernel's devices");
    if (r == 0)
        *ret = d;
    return r;
}

size_t desk_fds(const struct desk *d, int fds[DESK_FDS_MAX])
{
    size_t n = 0;
    fds[n++] = d->memory_fd;
    fds[n++] = d->cpuinfo_fd;
    fds[n++] = d->program_fd;
    fds[n++] = d->null_fd;
    for (size_t i = 0; i < d->n_devices; i++)
        fds[n++] = d->device_fd[i];
    return n;
}

int desk_watch(struct desk *d, pid_t kernel)
{
    d->kernel = kernel;
    d->kernel_fd = (int)syscall(SYS_pidfd_open, kernel, 0);
    return d->kernel_fd < 0 ? -errno : 0;
}

/* --- stubs ----------------------------------------------------------------------------------- */

static void forget(struct desk *d, size_t i)
{
    close_fd(&d->stub[i].fd);
    d->stub[i] = d->stub[--d->n_stubs];
}

static void forget_the_dead(struct desk *d)
{
    for (size_t i = d->n_stubs; i-- > 0;) {
        struct pollfd p = {.fd = d->stub[i].fd, .events = POLLIN};
        if (poll(&p, 1, 0) > 0)
            forget(d, i);
    }
}

static struct stub *find(struct desk *d, pid_t pid)
{
    for (size_t i = d->n_stubs; i-- > 0;) /* the newest is wanted most often */
        if (d->stub[i].pid == pid)
            return &d->stub[i];
    return NULL;
}

/* It is waiting for our answer, so this number is still its own. */
int desk_note_stub(struct desk *d, pid_t pid)
{
    struct stub *old = find(d, pid);
    if (old)
        forget(d, (size_t)(old - d->stub));
    if (d->n_stubs == d->stubs_max)
        forget_the_dead(d);
    if (d->n_stubs == d->stubs_max)
        return EAGAIN;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return errno;
    d->stub[d->n_stubs++] = (struct stub){.pid = pid, .fd = fd};
    return 0;
}

static struct answer do_kill(struct desk *d, pid_t pid, int sig)
{
    struct stub *s = pid == d->kernel ? NULL : find(d, pid);
    if (pid != d->kernel && !s)
        return (struct answer){.code = ESRCH};
    long r = syscall(SYS_pidfd_send_signal, s ? s->fd : d->kernel_fd, sig, NULL, 0);
    int code = r < 0 ? errno : 0;
    if (s && (code == ESRCH || (code == 0 && sig == SIGKILL)))
        forget(d, (size_t)(s - d->stub));
    return (struct answer){.code = code, .instead = true};
}

/* --- files ----------------------------------------------------------------------------------- */

/* Puts a copy of fd into the asking process, at a free number or at the given one. */
static int hand_over(int listener, uint64_t id, int fd, int at)
{
    struct seccomp_notif_addfd a = {.id = id,
                                    .srcfd = (uint32_t)fd,
                                    .newfd_flags = O_CLOEXEC,
                                    .newfd = at < 0 ? 0 : (uint32_t)at,
                                    .flags = at < 0 ? 0 : SECCOMP_ADDFD_FLAG_SETFD};
    int r = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &a);
    return r < 0 ? -errno : r;
}

static struct answer give(int listener, uint64_t id, int fd)
{
    int r = fd < 0 ? -ENOENT : hand_over(listener, id, fd, -1);
    if (r < 0)
        return (struct answer){.code = -r};
    return (struct answer){.instead = true, .result = (uint64_t)r};
}

static struct answer do_open(struct desk *d, int listener, uint64_t id, int flags)
{
    if ((flags & O_TMPFILE) == O_TMPFILE)
        return give(listener, id, d->memory_fd);
    if (flags & O_CREAT)
        return give(listener, id, d->null_fd);
    if (flags & (O_ACCMODE | O_DIRECTORY))
        return (struct answer){.code = ENOENT};
    struct answer a = give(listener, id, d->cpuinfo_fd);
    close_fd(&d->cpuinfo_fd);
    return a;
}

static struct answer do_connect(struct desk *d, int listener, uint64_t id, int at)
{
    if (d->next_device == d->n_devices || at < 0)
        return (struct answer){.code = ECONNREFUSED};
    int *fd = &d->device_fd[d->next_device++];
    int r = hand_over(listener, id, *fd, at);
    close_fd(fd);
    return (struct answer){.code = r < 0 ? -r : 0, .instead = true};
}

struct answer desk_answer(struct desk *d, int listener, uint64_t id,
                          const struct seccomp_data *call)
{
    switch (call->nr) {
    case __NR_openat:
        return do_open(d, listener, id, (int)call->args[2]);
    case __NR_mkdir:
        return (struct answer){.instead = true};
    case __NR_memfd_create:
        return give(listener, id, d->program_fd);
    case __NR_connect:
        return do_connect(d, listener, id, (int)call->args[0]);
    case __NR_kill:
        return do_kill(d, (pid_t)call->args[0], (int)call->args[1]);
    case __NR_fcntl: /* the filter asks about one command only */
        return (struct answer){.code = (pid_t)call->args[2] == d->kernel ? 0 : EPERM};
    default:
        return (struct answer){.code = EPERM};
    }
}
