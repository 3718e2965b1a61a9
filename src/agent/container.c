#include "agent/container.h"

#include "agent/files.h"
#include "agent/layer.h"
#include "agent/mounts.h"
#include "agent/restrict.h"
#include "agent/session.h"
#include "agent/vsock.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAFE (MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define GROUPS "/sys/fs/cgroup"
#define GROUP "container-"
#define GROUPS_DEEP "32" /* depth of groups that a container can make in its own */

enum { PORTS_TRIED = 256, KEPT_FROM = 512, MOUNTS_MAX = 64 };
enum { END_WAIT_MS = 10, GROUPS_AT_ONCE = 256, PORTS_KEPT = 64 };

/* From <linux/mount.h>, which musl does not include. */
enum { TREE_CLONE = 1, TREE_CLOEXEC = O_CLOEXEC, TREE_RECURSIVE = 0x8000, MOVE_FROM_FD = 4 };
enum { ATTR_RDONLY = 1, ATTR_NOSUID = 2, ATTR_NODEV = 4, ATTR_NOEXEC = 8 };

static const struct config *pod;
static uint32_t last_number;

/* The new process's report, sent once. */
struct report {
    int code; /* 0: all is well */
    char text[ERR_MSG_MAX];
};

/* --- mounts ---------------------------------------------------------------------------------- */

static int copy_tree(const char *path)
{
    int fd =
        (int)syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_CLOEXEC | TREE_RECURSIVE);
    return fd < 0 ? -errno : fd;
}

static int attach(int tree, uint32_t options, const char *path)
{
    struct {
        uint64_t set, clear, propagation, userns;
    } a = {.set = (options & PROTO_MOUNT_RO ? ATTR_RDONLY : 0) |
                  (options & PROTO_MOUNT_NOEXEC ? ATTR_NOEXEC : 0) |
                  (options & PROTO_MOUNT_NOSUID ? ATTR_NOSUID : 0) |
                  (options & PROTO_MOUNT_NODEV ? ATTR_NODEV : 0)};
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &a, sizeof(a)) < 0 ||
        syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_FROM_FD) < 0)
        return -errno;
    return 0;
}

/* Links in the tree stay inside it: it is the root by now. */
static int enter_tree(const char *name, struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "/mnt/pod/%s", name) >= (int)sizeof(path) || strchr(name, '/'))
        return err_set(e, EINVAL, "the tree does not belong to this pod");
    if (mount(path, "/newroot", NULL, MS_BIND, NULL) < 0)
        return err_sys(e, errno, "cannot mount the container's root");
    if (chdir("/newroot") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
        umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_sys(e, errno, "cannot change to the container's root");
    return 0;
}

static int make_devices(struct err *e)
{
    static const struct {
        const char *path;
        unsigned major, minor;
    } nodes[] = {{"/dev/null", 1, 3},    {"/dev/zero", 1, 5},      {"/dev/full", 1, 7},
                 {"/dev/random", 1, 8},  {"/dev/urandom", 1, 9},   {"/dev/tty", 5, 0},
                 {"/dev/fuse", 10, 229}, {"/dev/net/tun", 10, 200}};
    static const struct {
        const char *path, *to;
    } links[] = {{"/dev/fd", "/proc/self/fd"},
                 {"/dev/stdin", "/proc/self/fd/0"},
                 {"/dev/stdout", "/proc/self/fd/1"},
                 {"/dev/stderr", "/proc/self/fd/2"},
                 {"/dev/ptmx", "pts/ptmx"}};
    int r = mounts_kernel_fs("tmpfs", "/dev", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k", e);
    if (r == 0)
        (void)mkdir("/dev/net", 0755);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(nodes); i++)
        if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
            chmod(nodes[i].path, 0666) < 0)
            r = err_sys(e, errno, "cannot make %s", nodes[i].path);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(links); i++)
        (void)!symlink(links[i].to, links[i].path);
    if (r == 0)
        r = mounts_kernel_fs("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC,
                             "newinstance,gid=5,mode=620,ptmxmode=666", e);
    if (r == 0)
        (void)mounts_kernel_fs("mqueue", "/dev/mqueue", SAFE, NULL, NULL);
    return r;
}

/* Takes what is at those places in the tree, before anything is mounted above it. */
static int take_places(const struct config *cfg, int *trees, struct err *e)
{
    for (size_t i = 0; i < cfg->nmounts; i++) {
        const struct req_mount *m = &cfg->mounts[i];
        trees[i] = -1;
        if (!(m->options & PROTO_MOUNT_POD) || strcmp(m->path, "/dev/shm") == 0)
            continue;
        if ((trees[i] = copy_tree(m->path)) < 0)
            return err_sys(e, -trees[i], "cannot find what is mounted on %s", m->path);
    }
    return 0;
}

static int mount_place(const struct req_mount *m, int tree, struct err *e)
{
    struct stat st;
    if (m->tag || m->device)
        return err_set(e, EPROTO, "a container cannot have its own device");
    if (!(m->options & PROTO_MOUNT_POD))
        return mounts_tmpfs(m, e);
    int r = fstat(tree, &st) < 0  ? -errno
            : S_ISDIR(st.st_mode) ? mkdir_parents(m->path, 0755)
                                  : mounts_make_file(m->path);
    if (r == 0)
        r = attach(tree, m->options, m->path);
    return r < 0 ? err_sys(e, -r, "cannot mount %s", m->path) : 0;
}

static int build(const struct config *cfg, int shm, struct err *e)
{
    static int trees[MOUNTS_MAX];
    if (cfg->nmounts > MOUNTS_MAX)
        return err_set(e, E2BIG, "a container has at most %d mounts", MOUNTS_MAX);
    int r = enter_tree(cfg->tree, e);
    if (r == 0)
        r = take_places(cfg, trees, e);
    if (r == 0)
        r = mounts_kernel_fs("proc", "/proc", SAFE, NULL, e);
    if (r == 0)
        r = make_devices(e);
    if (r == 0)
        r = mounts_kernel_fs("sysfs", "/sys", SAFE, NULL, e);
    if (r == 0)
        (void)mount("cgroup2", GROUPS, "cgroup2", SAFE, NULL);
    for (size_t i = 0; r == 0 && i < cfg->nmounts; i++) {
        const struct req_mount *m = &cfg->mounts[i];
        bool shared = m->options & PROTO_MOUNT_POD && strcmp(m->path, "/dev/shm") == 0;
        r = mount_place(m, shared ? shm : trees[i], e);
        close_fd(&trees[i]);
    }
    return r;
}

static int restrict_all(const struct config *cfg, struct err *e)
{
    int r = restrict_prepare(cfg, e);
    mounts_cover(cfg);
    if (r == 0 && cfg->options & PROTO_MOUNT_RO &&
        mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NODEV | MS_RDONLY, NULL) < 0)
        r = err_sys(e, errno, "cannot make the root read-only");
    return r < 0 ? r : restrict_guest(cfg, e);
}

/* --- the container's own process ------------------------------------------------------------- */

/* The descriptors that the new process gets from PID 1, whose sessions and pipes it must not
 * have. */
enum { FD_REPORT, FD_GROUP, FD_LISTENER, FDS };

static void keep_only(int *fds)
{
    int from = 3;
    for (int i = 0; i < FDS; i++)
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, i ? fds[i - 1] + 1 : KEPT_FROM);
    for (int i = 0; i < FDS; from = fds[i++] + 1)
        if (fds[i] > from)
            (void)syscall(SYS_close_range, from, fds[i] - 1, 0);
    (void)syscall(SYS_close_range, from, ~0U, 0);
}

static int set_up(const struct config *cfg, int group, struct err *e)
{
    int shm = copy_tree("/dev/shm"); /* the pod's */
    if (write(group, "0", 1) != 1 || unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(e, errno, "cannot enter the container's cgroup");
    if (chroot(".") < 0) /* its parent went there before: now it is in our namespace */
        return err_sys(e, errno, "cannot find the first root");
    if (cfg->hostname && sethostname(cfg->hostname, strlen(cfg->hostname)) < 0)
        return err_sys(e, errno, "cannot set the host name");
    int r = build(cfg, shm, e);
    close_fd(&shm);
    return r < 0 ? r : restrict_all(cfg, e);
}

static void __attribute__((noreturn)) container_main(const struct config *cfg, int *fds)
{
    static struct server server;
    struct report rep = {0};
    struct err e = {0};
    (void)setsid();
    keep_only(fds);
    layer_init(-1);
    int r = set_up(cfg, fds[FD_GROUP], &e);
    close_fd(&fds[FD_GROUP]);
    if (r == 0 &&
        ((r = server_init(&server, cfg)) < 0 || (r = server_listen(&server, fds[FD_LISTENER])) < 0))
        r = err_sys(&e, -r, "cannot listen for commands");
    if (r < 0) {
        rep.code = e.code;
        (void)snprintf(rep.text, sizeof(rep.text), "%s", e.msg);
    }
    (void)!write(fds[FD_REPORT], &rep, sizeof(rep));
    if (r < 0)
        _exit(1);
    close_fd(&fds[FD_REPORT]);
    for (;;)
        (void)server_turn(&server, -1);
}

/* --- PID 1 ----------------------------------------------------------------------------------- */

static void group_path(uint32_t number, const char *file, char *to, size_t size)
{
    (void)snprintf(to, size, GROUPS "/" GROUP "%u%s%s", number, *file ? "/" : "", file);
}

/* cgroup.procs of a new group with the container's limits. */
static int make_group(const struct config *cfg, uint32_t number, struct err *e)
{
    static const char *const kinds[] = {"+pids", "+memory", "+cpu"};
    char path[PATH_MAX];
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        (void)file_write(GROUPS "/cgroup.subtree_control", kinds[i], strlen(kinds[i]), 0);
    group_path(number, "", path, sizeof(path));
    if (mkdir(path, 0755) < 0)
        return err_sys(e, errno, "cannot make the container's cgroup");
    group_path(number, "cgroup.max.depth", path, sizeof(path));
    (void)file_write(path, GROUPS_DEEP, strlen(GROUPS_DEEP), 0);
    for (size_t i = 0; i < cfg->nlimits; i++) {
        char name[64];
        const char *value = strchr(cfg->limits[i], '=');
        int n = value ? (int)(value - cfg->limits[i]) : 0;
        if (n == 0 || n >= (int)sizeof(name) || memchr(cfg->limits[i], '/', (size_t)n))
            return err_set(e, EPROTO, "malformed limit");
        (void)snprintf(name, sizeof(name), "%.*s", n, cfg->limits[i]);
        group_path(number, name, path, sizeof(path));
        int r = file_write(path, value + 1, strlen(value + 1), 0);
        if (r < 0)
            return err_sys(e, -r, "cannot set the container's %s to %s", name, value + 1);
    }
    group_path(number, "cgroup.procs", path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? err_sys(e, errno, "cannot open the container's cgroup") : fd;
}

static bool is_populated(const char *group)
{
    char path[PATH_MAX], text[64] = "";
    (void)snprintf(path, sizeof(path), GROUPS "/%s/cgroup.events", group);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && strstr(text, "populated 1");
}

/* Removes a group without processes, including groups inside it: at most `left` groups. */
static void remove_group(int above, const char *name, int *left)
{
    if (unlinkat(above, name, AT_REMOVEDIR) == 0 || errno != EBUSY || --*left < 0)
        return;
    AUTO_CLOSEDIR DIR *d = dir_read_at(above, name);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (entry->d_type == DT_DIR && strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0)
            remove_group(dirfd(d), entry->d_name, left);
    (void)unlinkat(above, name, AT_REMOVEDIR);
}

/* The process of a container; 0 if it has ended, -1 if there is none. Of container 0: ours. */
static pid_t find_process(const struct server *srv, uint32_t number)
{
    for (const struct session *s = srv->sessions; number && s; s = s->next)
        if (s->container == number)
            return s->pid;
    return number ? -1 : getpid();
}

/* Removes the groups of all ended containers: processes in earlier ones may have taken longer to
 * end. That of one that begins may not have a process yet. */
static void remove_groups(const struct server *srv)
{
    int left = GROUPS_AT_ONCE;
    AUTO_CLOSEDIR DIR *d = dir_read_at(AT_FDCWD, GROUPS);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (strncmp(entry->d_name, GROUP, strlen(GROUP)) == 0 && !is_populated(entry->d_name) &&
            find_process(srv, (uint32_t)strtoul(entry->d_name + strlen(GROUP), NULL, 10)) <= 0)
            remove_group(dirfd(d), entry->d_name, &left);
}

static void on_late(struct loop_src *src, uint32_t events)
{
    int fd = vsock_accept(src->fd);
    close_fd(&fd);
}

/* The host may still have commands for a container that has ended: no other container may get them. So
 * the ports of the last ones stay ours, and connections to them are closed. */
static void keep_port(struct server *srv, int listener)
{
    static struct loop_src kept[PORTS_KEPT];
    static size_t next;
    struct loop_src *l = &kept[next++ % PORTS_KEPT];
    if (l->fn)
        loop_close(&srv->loop, l);
    *l = (struct loop_src){.fd = listener, .fn = on_late};
    (void)loop_add(&srv->loop, l, EPOLLIN); /* else they wait in vain */
}

/* If it was in another container's pid namespace, its remaining processes are ended here: the other
 * containers' commands wait meanwhile, so they get only a moment. */
static void end_group(const struct server *srv, uint32_t number)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    char name[32], path[PATH_MAX];
    (void)snprintf(name, sizeof(name), GROUP "%u", number);
    group_path(number, "cgroup.kill", path, sizeof(path));
    (void)file_write(path, "1", 1, 0);
    for (int i = 0; is_populated(name) && i < END_WAIT_MS; i++)
        (void)nanosleep(&pause, NULL);
    remove_groups(srv);
    (void)syncfs(pod->pod_fd); /* what it wrote through mappings */
}

/* Its process has reported, or has ended. False: it has failed. */
static bool take_report(struct session *s)
{
    struct report rep = {0};
    ssize_t k = read(s->report.fd, &rep, sizeof(rep));
    loop_close(&s->srv->loop, &s->report);
    server_wake(s->srv, s);
    if (s->state != SESS_RUNNING) /* nobody wants to know any more */
        return true;
    if (k == (ssize_t)sizeof(rep) && !rep.code) {
        session_put_started(s);
        return true;
    }
    rep.text[sizeof(rep.text) - 1] = '\0';
    session_fail(s, PROTO_FAIL_OTHER, rep.code ? rep.code : ECHILD,
                 rep.code ? rep.text : "the container's process ended unexpectedly");
    return false;
}

static void on_report(struct loop_src *src, uint32_t events)
{
    struct session *s = CONTAINER_OF(src, struct session, report);
    int status = 0;
    if (take_report(s))
        return;
    (void)kill(s->pid, SIGKILL);
    (void)waitpid(s->pid, &status, 0); /* it is ending anyway */
    session_child_exited(s, status);
}

static void on_gone(struct session *s)
{
    if (s->report.fd >= 0)
        (void)take_report(s);
    keep_port(s->srv, steal_fd(&s->listener));
    end_group(s->srv, s->container);
}

/* Puts our next children into the pid namespace of that process. */
static int enter_pids(pid_t of)
{
    AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, of, 0);
    return fd < 0 ? -1 : setns(fd, CLONE_NEWPID);
}

/* Its namespaces are copied from ours: the first root is reached as our working directory, since a
 * descriptor would lead to our own mounts. */
static pid_t clone_from_first_root(const struct server *srv, const struct config *cfg)
{
    bool own = cfg->pids_of == OWN_PIDS;
    unsigned long flags =
        CLONE_NEWNS | (own ? CLONE_NEWPID : 0) | (cfg->hostname ? CLONE_NEWUTS : 0) | SIGCHLD;
    if (fchdir(pod->tools_fd) < 0)
        return -1;
    pid_t pid = own || enter_pids(find_process(srv, cfg->pids_of)) == 0
                    ? (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0)
                    : -1;
    if (pid == 0)
        return 0;
    int code = errno;
    (void)enter_pids(getpid());
    (void)!chdir("/");
    errno = code;
    return pid;
}

/* Takes the next number, which is also its port. If another program already listens there, that
 * only costs the number. */
static int listen_somewhere(struct err *e)
{
    int fd = -EADDRINUSE;
    for (int i = 0; fd == -EADDRINUSE && i < PORTS_TRIED && last_number < PROTO_CONTAINER_MAX; i++)
        fd = vsock_listen(PROTO_PORT_SESSION + ++last_number);
    return fd < 0 ? err_sys(e, -fd, "cannot listen for commands") : fd;
}

/* The new process reports when it is ready, or has failed: until then the other commands of the pod go
 * on, whatever keeps it. */
static int start(struct session *s, const struct config *cfg, int listener, struct err *e)
{
    int pipe_fd[2];
    AUTO_CLOSE int group = make_group(cfg, last_number, e);
    if (group < 0)
        return group;
    if (pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(e, errno, "cannot open a pipe");
    s->report = (struct loop_src){.fd = pipe_fd[0], .fn = on_report};
    int r = loop_add(&s->srv->loop, &s->report, EPOLLIN);
    pid_t pid = r < 0 ? r : clone_from_first_root(s->srv, cfg);
    if (pid == 0)
        container_main(
            cfg,
            (int[FDS]){[FD_REPORT] = pipe_fd[1], [FD_GROUP] = group, [FD_LISTENER] = listener});
    int code = r < 0 ? -r : errno;
    close_fd(&pipe_fd[1]);
    if (pid < 0) {
        loop_close(&s->srv->loop, &s->report);
        return err_sys(e, code, "cannot start a container");
    }
    s->pid = pid;
    return 0;
}

static void on_container(struct session *s, const struct proto_frame *f)
{
    struct config cfg;
    struct err e = {0};
    int r = s->srv->stopping ? -ESHUTDOWN : config_parse(&cfg, f);
    if (r < 0) {
        session_fail(s, PROTO_FAIL_OTHER, -r, "malformed CONTAINER");
        return;
    }
    AUTO_CLOSE int listener =
        cfg.tree ? listen_somewhere(&e) : err_set(&e, EPROTO, "a container needs a tree");
    r = listener < 0 ? listener : start(s, &cfg, listener, &e);
    config_free(&cfg);
    if (r < 0) {
        if (listener >= 0)
            end_group(s->srv, last_number);
        session_fail(s, PROTO_FAIL_OTHER, e.code, e.msg);
        return;
    }
    s->state = SESS_RUNNING;
    s->container = last_number;
    s->listener = steal_fd(&listener);
}

void containers_init(struct server *srv, const struct config *cfg)
{
    if (cfg->pod_fd <= 0)
        return;
    pod = cfg;
    srv->containers = (struct server_containers){.start = on_container, .gone = on_gone};
}
