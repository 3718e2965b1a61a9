#include "launch/share.h"

#include "fuse/fuse.h"
#include "jail/jail.h"
#include "launch/helper.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/later.h"
#include "util/loop.h"
#include "util/sock.h"
#include "virtio/fs.h"
#include "virtio/vhost_user.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* #syscalls:fs exit_group getsockopt */
/* #syscalls:fs_later recvfrom */

enum {
    SHARE_LATER = 'f',
    SHARE_GATE = 'g',
    SHARE_CHANGES = 'c',
    SHARE_DURABLE = 'd'
}; /* of a received socket; others have 0 */

enum {
    TREE_MESSAGE_MAX = 1 + NAME_MAX + 1,
    DATA_MAX = 512 * 1024 * 1024,
    FILES_LIMIT = 32768, /* descriptors, where the caller's limit allows */
    TURN_NS = 100000,    /* the shortest that the scheduler accepts */
    FILES_SPARE = 64,    /* sockets, eventfds, and what an operation opens temporarily */
};

struct share {
    const struct spec_mount *m;
    size_t index;
    struct share_place place;
    int sock;
    struct stat st; /* of the source */
    char name[NAME_MAX + 1];
    struct loop loop;
    struct loop_src sock_src;
    struct virtio_dev *dev;
    struct fuse_server *server; /* the device's */
    struct vhost_user *back_end;
    struct loop_src later_src, gate_src, synced_src;
};

/* --- serving --------------------------------------------------------------------------------- */

/* Adds or removes a pod's tree (share_tree()). False: there is no more to read. */
static bool take_tree(struct share *sh)
{
    char text[TREE_MESSAGE_MAX + 1] = "";
    int fd = -1;
    ssize_t n = sock_recv_with_fd(sh->sock, text, TREE_MESSAGE_MAX, &fd);
    if (n == -EAGAIN)
        return false;
    if (n <= 0)
        _exit(0);
    text[n] = '\0';
    (void)fuse_tree_remove(sh->server, text); /* the process that added it last may have died */
    if (fd >= 0) /* beyond the limit, it is not found, and its container does not start */
        (void)fuse_tree_add(sh->server, text, fd);
    return true;
}

static void take_trees(void *ctx)
{
    struct share *sh = ctx;
    while (sh->back_end && take_tree(sh))
        ;
}

static void on_later(struct loop_src *src, uint32_t events)
{
    struct share *sh = CONTAINER_OF(src, struct share, later_src);
    if (!fuse_later_event(sh->server)) /* closed: epoll has forgotten it */
        src->fd = -1;
    virtio_fs_resume(sh->dev);
}

static void take_later(struct share *sh, int fd)
{
    fuse_later_set(sh->server, fd);
    sh->later_src = (struct loop_src){.fd = fd, .fn = on_later};
    if (loop_add(&sh->loop, &sh->later_src, EPOLLIN) < 0)
        _exit(1);
}

static void on_gate(struct loop_src *src, uint32_t events)
{
    struct share *sh = CONTAINER_OF(src, struct share, gate_src);
    struct later_answer a = {.error = -EIO};
    ssize_t n = recv(src->fd, &a, sizeof(a), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    loop_close(&sh->loop, src); /* the launcher may still have it, so epoll would not forget it */
    fuse_gate_open(sh->server, n != (ssize_t)sizeof(a) || a.error);
    virtio_fs_resume(sh->dev);
}

static void take_gate(struct share *sh, int fd)
{
    fuse_gate_shut(sh->server);
    sh->gate_src = (struct loop_src){.fd = fd, .fn = on_gate};
    if (loop_add(&sh->loop, &sh->gate_src, EPOLLIN) < 0)
        _exit(1);
}

static void on_synced(struct loop_src *src, uint32_t events)
{
    struct share *sh = CONTAINER_OF(src, struct share, synced_src);
    if (!fuse_durable_event(sh->server))
        src->fd = -1;
    virtio_fs_resume(sh->dev);
}

static void take_changes(struct share *sh, int fd, bool durable)
{
    fuse_tell_changes(sh->server, fd, durable);
    sh->synced_src = (struct loop_src){.fd = fd, .fn = on_synced};
    if (durable && loop_add(&sh->loop, &sh->synced_src, EPOLLIN) < 0)
        _exit(1);
}

/* Receives the socket to serve, possibly after one to fetch contents from; when it is closed, we
 * end. */
static void on_socket(struct loop_src *src, uint32_t events)
{
    struct share *sh = CONTAINER_OF(src, struct share, sock_src);
    int listening = 0, fd = -1;
    char what;
    if (sh->back_end && sh->m->pod) {
        take_trees(sh);
        return;
    }
    ssize_t n = sock_recv_with_fd(src->fd, &what, 1, &fd);
    if (n == -EAGAIN)
        return;
    if (n == 1 && fd >= 0 && what == SHARE_LATER && !sh->back_end) {
        take_later(sh, fd);
        return;
    }
    if (n == 1 && fd >= 0 && what == SHARE_GATE && !sh->back_end) {
        take_gate(sh, fd);
        return;
    }
    if (n == 1 && fd >= 0 && (what == SHARE_CHANGES || what == SHARE_DURABLE) && !sh->back_end) {
        take_changes(sh, fd, what == SHARE_DURABLE);
        return;
    }
    if (n != 1 || fd < 0 || sh->back_end)
        _exit(0);
    /* A user-mode kernel connects to a listening socket; the monitor has the other end of a
     * connected one. */
    socklen_t len = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0)
        _exit(1);
    int r = listening ? vhost_user_new(&sh->back_end, &sh->loop, sh->dev, fd, NULL, NULL)
                      : vhost_user_new_connected(&sh->back_end, &sh->loop, sh->dev, fd, NULL, NULL);
    if (r < 0)
        _exit(1);
    if (!listening)
        vhost_user_take_eventfds(sh->back_end);
}

/* --- the jail -------------------------------------------------------------------------------- */

/* The current directory, which this process entered before its namespaces were made, is the share
 * or holds the one file. */
static int clone_mount(const struct share *sh, struct err *e)
{
    unsigned how = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW;
    bool dir = S_ISDIR(sh->st.st_mode);
    struct stat st;
    AUTO_CLOSE int fd =
        (int)syscall(SYS_open_tree, AT_FDCWD, dir ? "." : sh->name, dir ? how | AT_RECURSIVE : how);
    if (fd < 0)
        return err_sys(e, errno, "cannot share %s", sh->m->source);
    if (fstat(fd, &st) < 0 || st.st_dev != sh->st.st_dev || st.st_ino != sh->st.st_ino)
        return err_set(e, ESTALE, "cannot share %s: it was replaced in the meantime",
                       sh->m->source);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
                              .propagation = MS_PRIVATE};
    if (sh->m->options & PROTO_MOUNT_RO)
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    if (syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        return err_sys(e, errno, "cannot confine the share %s", sh->m->source);
    return steal_fd(&fd);
}

/* Where mounts cannot be made. The server itself never follows links or goes up. */
static int open_plain(const struct share *sh, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int fd =
        open(S_ISDIR(sh->st.st_mode) ? "." : sh->name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, errno, "cannot share %s", sh->m->source);
    if (fstat(fd, &st) < 0 || st.st_dev != sh->st.st_dev || st.st_ino != sh->st.st_ino)
        return err_set(e, ESTALE, "cannot share %s: it was replaced in the meantime",
                       sh->m->source);
    return steal_fd(&fd);
}

static int share_set_limits(unsigned *ret_files, struct err *e)
{
    static const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},
        {RLIMIT_DATA, DATA_MAX},
        {RLIMIT_NOFILE, FILES_LIMIT},
    };
    struct rlimit files;
    int r = jail_set_limits(limits, ARRAY_LEN(limits), e);
    if (r < 0)
        return r;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur < 4UL * FILES_SPARE)
        return err_set(e, EMFILE, "the limit on open files (ulimit -Hn) is too low for a share");
    *ret_files = (unsigned)files.rlim_cur - FILES_SPARE;
    return 0;
}

/* Short time slices: the scheduler then lets us run as soon as the guest has a request, so the
 * guest finds its answer when its kick returns. Since Linux 6.12; without it, only speed is
 * lost. */
static void ask_for_turns(void)
{
    struct sched_attr {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof(a)};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) < 0 || a.policy != SCHED_OTHER)
        return;
    a.size = sizeof(a);
    a.runtime = TURN_NS;
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}

static void pin_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0)
        return;
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set); /* if it went offline, only speed is lost */
    ask_for_turns();
}

/* --- the processes --------------------------------------------------------------------------- */

static int make_server(struct share *sh, struct err *e)
{
    unsigned files = 0;
    char tag[VIRTIO_FS_TAG_TEXT];
    bool reduced = sh->place.reduced;
    bool pod = sh->m->pod;
    AUTO_CLOSE int root = pod ? -1 : reduced ? open_plain(sh, e) : clone_mount(sh, e);
    if (root < 0 && !pod)
        return root;
    if (pod && reduced)
        return err_set(e, ENOTSUP, "a pod's containers cannot be served from a reduced jail");
    int r = reduced ? helper_enter_reduced(root, !(sh->m->options & PROTO_MOUNT_RO), e)
                    : helper_enter_nowhere(e);
    if (r == 0)
        r = share_set_limits(&files, e);
    uint64_t caps = 1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_FOWNER;
    if (sh->m->real_owners)
        caps |= 1ULL << CAP_CHOWN | 1ULL << CAP_FSETID;
    if (r == 0)
        r = jail_keep_caps(caps, e);
    if (r < 0)
        return r;
    struct fuse_options o = {
        .root_fd = root,
        .file = S_ISDIR(sh->st.st_mode) ? NULL : sh->name,
        .many = pod,
        .more = take_trees,
        .ctx = sh,
        .read_only = sh->m->options & PROTO_MOUNT_RO,
        .cache = (enum fuse_cache)sh->m->cache,
        .uid = sh->m->uid,
        .gid = sh->m->gid,
        .quota = sh->m->quota,
        .later = sh->place.later,
        .privileged = jail_has_cap(CAP_DAC_OVERRIDE),
        .real_owners = sh->m->real_owners && jail_has_cap(CAP_CHOWN),
        .files_max = files / 3,
        .fds_max = files - files / 3,
    };
    virtio_fs_tag(sh->index, tag);
    r = fuse_new(&sh->server, &o);
    if (r < 0)
        return err_sys(e, -r, "cannot serve %s", sh->m->source);
    (void)steal_fd(&root);
    r = virtio_fs_new(&sh->dev, sh->server, tag);
    if (r == 0)
        r = loop_init(&sh->loop);
    sh->sock_src = (struct loop_src){.fd = sh->sock, .fn = on_socket};
    if (r == 0)
        r = loop_add(&sh->loop, &sh->sock_src, EPOLLIN);
    return r < 0 ? err_sys(e, -r, "cannot serve %s", sh->m->source) : 0;
}

static void __attribute__((noreturn)) server_main(int sock, void *arg)
{
    struct share *sh = arg;
    struct err e = {0};
    enum seccomp_profile calls = sh->m->real_owners ? SECCOMP_FS_OWNERS
                                 : sh->place.later  ? SECCOMP_FS_LATER
                                                    : SECCOMP_FS;
    sh->sock = sock;
    pin_to(sh->place.cpu);
    (void)umask(0);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)mallopt(M_ARENA_MAX, 1);
    if (make_server(sh, &e) < 0 || helper_seal(calls, &e) < 0)
        helper_fail(sock, &e);
    helper_report(sock, &e);
    (void)loop_run(&sh->loop);
    _exit(1);
}

/* --- in the launcher ------------------------------------------------------------------------- */

/* The path was canonical when the sandbox was created: any link in it was added since. */
static int open_source(const struct spec_mount *m, struct err *e)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, m->source, &how, sizeof(how));
    if (fd >= 0)
        return fd;
    int code = errno;
    err_sys(e, code, "cannot mount %s on %s", m->source, m->guest);
    if (code == ELOOP)
        err_hint(e, "a part of that path has become a symbolic link since the sandbox was created");
    return -code;
}

static int describe(struct share *sh, int fd, int *ret_dir, struct err *e)
{
    char path[PATH_MAX];
    if (fstat(fd, &sh->st) < 0)
        return err_sys(e, errno, "cannot stat %s", sh->m->source);
    if (S_ISDIR(sh->st.st_mode)) {
        if (faccessat(fd, ".", X_OK, AT_EACCESS) < 0)
            return err_sys(e, errno, "cannot mount %s", sh->m->source);
        *ret_dir = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        return *ret_dir < 0 ? err_sys(e, errno, "cannot open %s", sh->m->source) : 0;
    }
    if (!S_ISREG(sh->st.st_mode))
        return err_set(e, EINVAL, "cannot mount %s: it is neither a directory nor a regular file",
                       sh->m->source);
    (void)snprintf(path, sizeof(path), "%s", sh->m->source);
    (void)snprintf(sh->name, sizeof(sh->name), "%s", basename(path));
    (void)snprintf(path, sizeof(path), "%s", sh->m->source);
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS};
    *ret_dir = (int)syscall(SYS_openat2, AT_FDCWD, dirname(path), &how, sizeof(how));
    return *ret_dir < 0 ? err_sys(e, errno, "cannot open the directory of %s", sh->m->source) : 0;
}

int share_start(const struct spec_mount *m, size_t index, const struct share_place *place,
                int *ret_fd, pid_t *ret_stage, struct err *e)
{
    struct share sh = {.m = m, .index = index, .place = *place, .sock = -1};
    AUTO_CLOSE int fd = open_source(m, e);
    if (fd < 0)
        return fd;
    AUTO_CLOSE int dir = -1;
    int r = describe(&sh, fd, &dir, e);
    if (r < 0)
        return r;
    const struct helper_place where = {.dir_fd = dir, .reduced = place->reduced};
    return helper_start(server_main, &sh, &where, ret_fd, ret_stage, e);
}

static int hand_over(int fd, char what, int sock)
{
    ssize_t n = sock_send_with_fd(fd, &what, 1, sock);
    return n == 1 ? 0 : n < 0 ? (int)n : -EIO;
}

int share_fetch_from(int fd, int sock, int changes, bool durable)
{
    int r = hand_over(fd, SHARE_LATER, sock);
    return r == 0 && changes >= 0 ? hand_over(fd, durable ? SHARE_DURABLE : SHARE_CHANGES, changes)
                                  : r;
}

int share_gate(int fd, int sock)
{
    return hand_over(fd, SHARE_GATE, sock);
}

static const char does[] = "serves a mount";

int share_placed(int fd, pid_t stage, bool *refused, struct err *e)
{
    return helper_placed(fd, stage, does, refused, e);
}

int share_ready(int fd, bool *refused, struct err *e)
{
    return helper_ready(fd, does, refused, e);
}
