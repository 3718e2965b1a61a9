/* A user-mode kernel with one virtio-fs device and no sandbox around: what serves the device can be
 * our own server or another, QEMU's virtiofsd for one, under the same guest.
 *
 *     uml_fs KERNEL ROOT.erofs DIR own SHARE CACHE     CACHE: auto, none or always
 *     uml_fs KERNEL ROOT.erofs DIR vhost SOCKET        a vhost-user server listens there
 *
 * runs /init of ROOT, which finds the device under the tag "share", until the guest ends. Its
 * console is standard output; sockets and the guest's memory are in DIR.
 *
 * A user-mode kernel asks for the device's configuration, which virtiofsd leaves to QEMU. So
 * another server is reached through a relay that answers that question and passes on everything
 * else; queues, memory and eventfds go with the messages, and requests go past it.
 */
#include <fcntl.h>
#include <linux/virtio_fs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuse/fuse.h"
#include "util/cleanup.h"
#include "util/sock.h"
#include "virtio/blk.h"
#include "virtio/fs.h"
#include "virtio/vhost_msg.h"
#include "virtio/vhost_user.h"

#define TAG "share"
#define PROTOCOL_F_REPLY_ACK (1ULL << 3)

static void __attribute__((noreturn)) die(const char *what)
{
    perror(what);
    exit(99);
}

static void on_gone(void *ctx, const char *reason)
{
    (void)reason;
    loop_stop(ctx);
}

static const struct vhost_user_events events = {.gone = on_gone};

/* --- our own server ------------------------------------------------------------------------- */

static void serve_own(int listen_fd, const char *share, const char *cache)
{
    static struct loop loop;
    struct fuse_options o = {.cache = strcmp(cache, "none") == 0     ? FUSE_CACHE_NONE
                                      : strcmp(cache, "always") == 0 ? FUSE_CACHE_ALWAYS
                                                                     : FUSE_CACHE_AUTO};
    struct fuse_server *server;
    struct virtio_dev *dev;
    struct vhost_user *v = NULL;
    o.root_fd = open(share, O_PATH | O_DIRECTORY | O_CLOEXEC);
    o.privileged = geteuid() == 0;
    (void)umask(0);
    if (o.root_fd < 0 || chdir("/proc/self/fd") < 0)
        die(share);
    if (loop_init(&loop) < 0 || fuse_new(&server, &o) < 0 || virtio_fs_new(&dev, server, TAG) < 0 ||
        vhost_user_new(&v, &loop, dev, listen_fd, &events, &loop) < 0)
        die("server");
    (void)loop_run(&loop);
}

/* --- the relay ------------------------------------------------------------------------------ */

struct piece {
    struct header h;
    union {
        uint8_t bytes[4096];
        uint64_t u64;
        struct config_msg config;
    } p;
    int fds[FDS_MAX];
    size_t n_fds;
};

/* False: the other end is gone. */
static bool take(int sock, struct piece *m)
{
    union {
        struct cmsghdr align;
        uint8_t space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &m->h, .iov_len = sizeof(m->h)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    m->n_fds = 0;
    if (recvmsg(sock, &msg, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(m->h) ||
        m->h.size > sizeof(m->p))
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_type == SCM_RIGHTS) {
        m->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(m->fds, CMSG_DATA(c), m->n_fds * sizeof(int));
    }
    return m->h.size == 0 || recv(sock, m->p.bytes, m->h.size, MSG_WAITALL) == (ssize_t)m->h.size;
}

static void pass(int sock, struct piece *m)
{
    union {
        struct cmsghdr align;
        uint8_t space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec iov[2] = {{.iov_base = &m->h, .iov_len = sizeof(m->h)},
                           {.iov_base = m->p.bytes, .iov_len = m->h.size}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    if (m->n_fds > 0) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(m->n_fds * sizeof(int));
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(m->n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.align), m->fds, m->n_fds * sizeof(int));
    }
    if (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
        die("relay");
    for (size_t i = 0; i < m->n_fds; i++)
        (void)close(m->fds[i]);
}

static void answer_config(int guest, struct piece *m)
{
    struct virtio_fs_config c = {.tag = TAG, .num_request_queues = 1};
    uint32_t off = m->p.config.offset, n = m->p.config.size;
    memset(m->p.config.data, 0, MIN(n, (uint32_t)CONFIG_MAX));
    if (off < sizeof(c))
        memcpy(m->p.config.data, (uint8_t *)&c + off, MIN(n, (uint32_t)sizeof(c) - off));
    m->h.flags = F_VERSION | F_REPLY;
    pass(guest, m);
}

static void relay(int listen_fd, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct piece m;
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    (void)fcntl(listen_fd, F_SETFL, 0);
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&a, sizeof(a)) < 0)
        die(path);
    int guest = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    struct pollfd p[2] = {{.fd = guest, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    while (poll(p, 2, -1) > 0) {
        if (p[1].revents) {
            if (!take(server, &m))
                return;
            if (m.h.request == GET_PROTOCOL_FEATURES)
                m.p.u64 = (m.p.u64 & PROTOCOL_F_REPLY_ACK) | PROTOCOL_F_CONFIG;
            pass(guest, &m);
        } else if (p[0].revents) {
            if (!take(guest, &m))
                return;
            if (m.h.request == SET_PROTOCOL_FEATURES)
                m.p.u64 &= ~PROTOCOL_F_CONFIG;
            if (m.h.request == GET_CONFIG)
                answer_config(guest, &m);
            else
                pass(server, &m);
        }
    }
}

/* --- the guest ------------------------------------------------------------------------------ */

static void run_kernel(const char *kernel, const char *dir)
{
    char uml_dir[256], disk[256], share[256], tmp[256];
    (void)snprintf(tmp, sizeof(tmp), "TMPDIR=%s", dir);
    (void)snprintf(uml_dir, sizeof(uml_dir), "uml_dir=%s", dir);
    (void)snprintf(disk, sizeof(disk), "virtio_uml.device=%s/0:2", dir);
    (void)snprintf(share, sizeof(share), "virtio_uml.device=%s/1:26", dir);
    const char *args[] = {"linux",
                          "mem=1G",
                          "seccomp=on",
                          "quiet",
                          "lpj=10000000",
                          "noreboot",
                          "panic=-1",
                          uml_dir,
                          disk,
                          share,
                          "init=/init",
                          "root=/dev/vda",
                          "rootfstype=erofs",
                          "ro",
                          NULL};
    char *env[] = {tmp, NULL};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)execve(kernel, (char *const *)(uintptr_t)args, env);
    die(kernel);
}

static int listen_in(const char *dir, unsigned i)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%u", dir, i);
    (void)unlink(path);
    int fd = listen_at(path, 1);
    if (fd < 0)
        die(path);
    return fd;
}

int main(int argc, char **argv)
{
    static struct loop loop;
    struct virtio_dev *disk = NULL;
    struct vhost_user *v = NULL;
    struct stat st;
    bool own = argc == 7 && strcmp(argv[4], "own") == 0;
    if (!own && !(argc == 6 && strcmp(argv[4], "vhost") == 0))
        return 2;
    int fd = open(argv[2], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        die(argv[2]);
    struct blk_segment seg = {.fd = fd, .length = (uint64_t)st.st_size};
    int share_fd = listen_in(argv[3], 1);
    pid_t server = fork();
    if (server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (own)
            serve_own(share_fd, argv[5], argv[6]);
        else
            relay(share_fd, argv[5]);
        _exit(0);
    }
    if (loop_init(&loop) < 0 || virtio_blk_new(&disk, &seg, 1, true, "root") < 0 ||
        vhost_user_new(&v, &loop, disk, listen_in(argv[3], 0), &events, &loop) < 0)
        die("disk");
    pid_t kernel = fork();
    if (kernel == 0)
        run_kernel(argv[1], argv[3]);
    (void)loop_run(&loop);
    int status = 0;
    (void)waitpid(kernel, &status, 0);
    vhost_user_free(v);
    virtio_dev_free(disk);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
