/* Without namespaces: the host's files, sockets and processes are all there, under their names. The
 * test has put some in reach, and looks at what became of them. */
#include "evil.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the test made, open to everybody: a file, a directory, and sockets that listen. */
#define PLACE "/tmp/msb-evil"

/* Whatever descriptor we get, it is not that file. */
static void try_open(long flags)
{
    static const char *const names[] = {PLACE "/file", "/proc/self/status", "/etc/passwd",
                                        "../../../../../../tmp/msb-evil/file"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char text[64] = "";
        long fd = call(SYS_openat, AT_FDCWD, (long)names[i], flags, 0600, 0, 0);
        if (fd < 0)
            continue;
        (void)CALL3(SYS_lseek, fd, 0, SEEK_SET);
        (void)CALL3(SYS_read, fd, text, sizeof(text) - 1);
        if (strstr(text, "secret") || strstr(text, "root:") || strstr(text, "Name:"))
            fail("%s was opened with flags %lx", names[i], flags);
        (void)CALL3(SYS_lseek, fd, 0, SEEK_SET);
        (void)CALL3(SYS_write, fd, "changed", 7);
        (void)CALL1(SYS_close, fd);
    }
}

static int execute(void *path)
{
    char *const argv[] = {"true", NULL};
    long r = call(SYS_execveat, AT_FDCWD, (long)path, (long)argv, 0, AT_EMPTY_PATH, 0);
    _exit(r == -EACCES ? 0 : 1);
}

/* Where the host has Landlock. */
void programs_outside(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    static char *const names[] = {PLACE "/program", "/bin/true", "/proc/1/exe"};
    for (size_t i = 0; i < COUNT(names); i++) {
        int st = 0;
        int pid = clone(execute, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, names[i]);
        if (pid < 0 || call(SYS_wait4, pid, (long)&st, 0, 0, 0, 0) != pid)
            fail("no process: %d", errno);
        if (!WIFEXITED(st) || WEXITSTATUS(st) != 0)
            fail("%s was executed: %x", names[i], st);
    }
}

void names_outside(void)
{
    struct stat st;
    char text[4096];
    for (long flags = 0; flags < 4; flags++) {
        static const int more[] = {0,      O_CREAT,     O_CREAT | O_EXCL, O_TRUNC,  O_APPEND,
                                   O_PATH, O_DIRECTORY, O_NONBLOCK,       O_TMPFILE};
        for (size_t i = 0; i < COUNT(more); i++)
            try_open(flags | more[i]);
    }
    if (call(SYS_newfstatat, AT_FDCWD, (long)PLACE, (long)&st, 0, 0, 0) != -ENOSYS ||
        CALL2(SYS_statfs, "/", text) != -ENOSYS)
        fail("names can be looked at");
    if (CALL1(SYS_unlink, PLACE "/file") != -ENOSYS || CALL1(SYS_rmdir, PLACE "/dir") != -ENOSYS)
        fail("names can be removed");
    (void)CALL2(SYS_mkdir, PLACE "/made", 0777);
}

static void try_connect(struct sockaddr_un *a, size_t n)
{
    /* The devices are ours; then there is nothing more. */
    for (int i = 0; i < 64; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd < 0)
            fail("no socket: %d", errno);
        long r = CALL3(SYS_connect, fd, a, n);
        if (i > 40 && r != -ECONNREFUSED)
            fail("a connection: %ld", r);
        (void)close(fd);
    }
}

void sockets_by_name(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = PLACE "/stream"};
    struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof(a)};
    struct iovec iov = {.iov_base = "evil", .iov_len = 4};
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    try_connect(&a, sizeof(a));
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%cmsg-evil", 0);
    try_connect(&a, sizeof(a.sun_family) + sizeof("msg-evil"));
    (void)snprintf(a.sun_path, sizeof(a.sun_path), PLACE "/datagram");
    for (int type = 0; type < 16; type++) {
        int pair[2];
        int fd = socket(AF_UNIX, type, 0);
        if (fd >= 0 && type != SOCK_STREAM)
            fail("a socket of type %d", type);
        if (fd >= 0 && CALL3(SYS_sendmsg, fd, &m, 0) >= 0)
            fail("a message was sent");
        if (socketpair(AF_UNIX, type, 0, pair) == 0 && type != SOCK_STREAM)
            fail("a pair of type %d", type);
    }
}

/* The test's process, our warden and our monitor have numbers near ours. */
void processes_outside(void)
{
    enum { NEAR = 3000 };
    int pair[2];
    int self = (int)CALL1(SYS_getpid, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        fail("no socket pair");
    (void)CALL3(SYS_fcntl, pair[0], F_SETSIG, SIGKILL);
    for (int pid = self > NEAR ? self - NEAR : 1; pid < self + NEAR; pid++) {
        if (pid == self)
            continue;
        long r = CALL2(SYS_kill, pid, SIGKILL);
        if (r != -ESRCH)
            fail("kill of %d: %ld", pid, r);
        if ((r = CALL3(SYS_fcntl, pair[0], F_SETOWN, pid)) != -EPERM ||
            (r = CALL3(SYS_fcntl, pair[0], F_SETOWN, -pid)) != -EPERM)
            fail("signals for %d: %ld", pid, r);
    }
    if (CALL2(SYS_kill, 1, SIGKILL) != -ESRCH || CALL2(SYS_kill, -1, SIGKILL) >= 0 ||
        CALL2(SYS_kill, -self, 0) >= 0)
        fail("groups can be killed");
    if (CALL2(SYS_prctl, PR_SET_PDEATHSIG, 0) != -ENOSYS)
        fail("it may outlive its warden");
}

/* All that it can get: guest memory does not grow, nor does the stubs' program. */
void files_that_grow(void)
{
    static char block[1 << 16];
    unsigned long written = 0;
    long fd[3] = {
        call(SYS_openat, AT_FDCWD, (long)"/tmp", O_TMPFILE | O_RDWR, 0600, 0, 0),
        call(SYS_memfd_create, (long)"x", 0, 0, 0, 0, 0),
        call(SYS_memfd_create, (long)"y", 0, 0, 0, 0, 0),
    };
    memset(block, 1, sizeof(block));
    for (size_t i = 0; i < COUNT(fd); i++) {
        if (fd[i] < 0)
            fail("no file: %ld", fd[i]);
        (void)CALL3(SYS_lseek, fd[i], 0, SEEK_SET);
        while (CALL3(SYS_write, fd[i], block, sizeof(block)) == sizeof(block))
            written += sizeof(block);
    }
    hold("%lu bytes", written);
}
