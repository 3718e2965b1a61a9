#include "launch/connector.h"

#include "jail/jail.h"
#include "launch/helper.h"
#include "monitor/connector_link.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* #syscalls:connector recvfrom sendto socket connect close exit_group */

enum { FILES_MAX = SPEC_VSOCK_MAX + 16 };

struct connector {
    const struct spec_vsock *list;
    size_t n;
    struct sockaddr_un addr[SPEC_VSOCK_MAX];
};

/* --- the process ----------------------------------------------------------------------------- */

/* A socket's directory, as a separate mount: the socket itself may come and go. */
static int open_directory(const struct spec_vsock *v, struct err *e)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC |
                                          MOUNT_ATTR_NOSYMFOLLOW,
                              .propagation = MS_PRIVATE};
    char dir[SPEC_VSOCK_PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%.*s", (int)MAX(strrchr(v->path, '/') - v->path, 1L),
                   v->path);
    AUTO_CLOSE int at = (int)syscall(SYS_openat2, AT_FDCWD, dir, &how, sizeof(how));
    if (at < 0)
        return err_sys(e, errno, "cannot open the directory of %s", v->path);
    AUTO_CLOSE int fd =
        (int)syscall(SYS_open_tree, at, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (fd < 0 || syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return err_sys(e, errno, "cannot confine access to %s", v->path);
    return steal_fd(&fd);
}

static int open_all(struct connector *c, struct err *e)
{
    for (size_t i = 0; i < c->n; i++) {
        struct sockaddr_un *a = &c->addr[i];
        int fd = open_directory(&c->list[i], e);
        if (fd < 0)
            return fd;
        a->sun_family = AF_UNIX;
        int n = snprintf(a->sun_path, sizeof(a->sun_path), "%d/%s", fd,
                         strrchr(c->list[i].path, '/') + 1);
        if ((size_t)n >= sizeof(a->sun_path))
            return err_set(e, ENAMETOOLONG, "the socket name in %s is too long", c->list[i].path);
    }
    return 0;
}

static int confine(struct connector *c, struct err *e)
{
    static const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0}, {RLIMIT_MEMLOCK, 0}, {RLIMIT_NOFILE, FILES_MAX}};
    int r = open_all(c, e);
    if (r == 0)
        r = helper_enter_nowhere(e);
    if (r == 0)
        r = jail_set_limits(limits, ARRAY_LEN(limits), e);
    /* Root may connect to sockets that it could open elsewhere; this gives others nothing. */
    if (r == 0)
        r = jail_keep_caps(1ULL << CAP_DAC_OVERRIDE, e);
    return r < 0 ? r : helper_seal(SECCOMP_CONNECTOR, e);
}

static int connector_connect(const struct connector *c, uint32_t index)
{
    if (index >= c->n)
        return -EINVAL;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&c->addr[index], sizeof(c->addr[index])) < 0)
        return -errno;
    return steal_fd(&fd);
}

/* False: the monitor is gone. */
static bool connector_send(int sock, uint32_t cookie, int fd)
{
    struct connector_reply a = {.cookie = cookie, .code = MIN(fd, 0)};
    ssize_t k;
    do
        k = sock_send_with_fd(sock, &a, sizeof(a), fd);
    while (k == -EINTR);
    return k == (ssize_t)sizeof(a);
}

static void __attribute__((noreturn)) connector_main(int sock, void *arg)
{
    struct connector *c = arg;
    struct err e = {0};
    if (confine(c, &e) < 0)
        helper_fail(sock, &e);
    helper_report(sock, &e);
    for (;;) {
        struct connector_request q;
        ssize_t k = recv(sock, &q, sizeof(q), 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k != (ssize_t)sizeof(q))
            _exit(0);
        AUTO_CLOSE int fd = connector_connect(c, q.index);
        if (!connector_send(sock, q.cookie, fd))
            _exit(0);
    }
}

/* --- in the launcher ------------------------------------------------------------------------- */

int connector_start(const struct spec_vsock *list, size_t n, int *ret_fd, pid_t *ret_stage,
                    struct err *e)
{
    struct connector c = {.list = list, .n = n};
    const struct helper_place place = {.dir_fd = -1};
    return helper_start(connector_main, &c, &place, ret_fd, ret_stage, e);
}

int connector_wait(int fd, pid_t stage, bool *refused, struct err *e)
{
    return helper_wait(fd, stage, "connects to host sockets", refused, e);
}
