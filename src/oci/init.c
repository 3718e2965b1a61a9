#include "oci/init.h"

#include "client/request.h"
#include "jail/jail.h"
#include "oci/console.h"
#include "oci/forward.h"
#include "oci/group.h"
#include "oci/netns.h"
#include "oci/pod.h"
#include "oci/view.h"
#include "sandbox/lifecycle.h"
#include "sandbox/monitor.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/process.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    START_BACKLOG = 4,
    EXIT_KILLED = 137, /* as if by SIGKILL, which is how a dying guest ends its commands */
    END_WAIT_MS = 10000,
};

#define START_SOCK "start.sock"

/* --- reports --------------------------------------------------------------------------------- */

void report_send(int sock, pid_t pid, const struct err *e)
{
    struct oci_report rep = {.code = e ? e->code : 0, .pid = pid};
    if (e) {
        (void)snprintf(rep.text, sizeof(rep.text), "%s", e->msg);
        (void)snprintf(rep.hint, sizeof(rep.hint), "%s", e->hints ? e->hint[0] : "");
    }
    (void)send(sock, &rep, sizeof(rep), MSG_NOSIGNAL);
}

int report_receive(int sock, pid_t *pid, struct err *e)
{
    struct oci_report rep;
    if (packet_receive(sock, &rep, sizeof(rep)) != (ssize_t)sizeof(rep))
        return err_set(e, ECHILD, "the container's process ended unexpectedly");
    if (pid)
        *pid = rep.pid;
    if (rep.code == 0)
        return 0;
    rep.text[sizeof(rep.text) - 1] = rep.hint[sizeof(rep.hint) - 1] = '\0';
    (void)err_set(e, rep.code, "%s", rep.text);
    if (rep.hint[0])
        err_hint(e, "%s", rep.hint);
    return -rep.code;
}

/* --- set-up ---------------------------------------------------------------------------------- */

static int enter_namespaces(struct oci_namespaces *ns, struct err *e)
{
    static const int flag[OCI_NS_MAX] = {CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS};
    for (int i = 0; i < OCI_NS_MAX; i++) {
        if (!ns->wanted[i])
            continue;
        if (!ns->path[i]) {
            /* It only has to exist, for others to join. */
            ns->entered[i] = unshare(flag[i]) == 0;
            if (!ns->entered[i] && errno != EPERM)
                return err_sys(e, errno, "cannot create the container's namespaces");
            continue;
        }
        AUTO_CLOSE int fd = open(ns->path[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, flag[i]) < 0)
            return err_sys(e, errno, "cannot join the namespace %s", ns->path[i]);
        ns->entered[i] = true;
    }
    return 0;
}

static int find_command(void *ctx, int sock, struct err *e)
{
    const struct oci_init *in = ctx;
    return process_find_command(&in->config->process, sock, in->container->id, e);
}

static int open_sandbox(const struct oci_init *in)
{
    return dir_open_at(in->rt->store.sandboxes_fd, in->pod ? in->pod : in->container->id);
}

/* What init keeps for its lifetime. */
struct life {
    const struct oci_init *in;
    bool own_mounts;
    int root;                   /* the container's, as seen on the host, */
    int trees[SPEC_MOUNTS_MAX]; /* ... and what is still to be mounted there */
    int monitor;                /* pidfd */
    int leash, listener;
    int agent;       /* agent.sock, O_PATH */
    int fds;         /* /proc/self/fd, by which it can be connected to */
    int signals;     /* signalfd: requests to end */
    int starter;     /* the `start` that waits for a reply */
    uint32_t number; /* in a pod's guest; 0: it has its own guest, or none yet */
};

static int connect_agent(const struct life *l)
{
    char path[16];
    (void)snprintf(path, sizeof(path), "%d", l->agent);
    AUTO_CLOSE int fd = fchdir(l->fds) < 0 ? -errno : connect_at(path);
    (void)!chdir("/");
    int r = fd < 0 ? fd : pod_address(fd, l->number);
    return r < 0 ? r : steal_fd(&fd);
}

/* The sandbox ends when this is closed. */
static int take_leash(const struct life *l, struct err *e)
{
    AUTO_CLOSE int sock = connect_agent(l);
    AUTO_BUF struct buf out;
    struct proto_writer w;
    buf_init(&out, 256);
    if (sock < 0)
        return err_sys(e, -sock, "cannot connect to the new sandbox");
    int r = proto_put_hello(&out);
    proto_begin(&w, &out, PROTO_WAIT);
    proto_u32(&w, F_LEASH, 1);
    if (r == 0)
        r = proto_end(&w);
    if (r < 0 || send(sock, buf_head(&out), buf_len(&out), MSG_NOSIGNAL) != (ssize_t)buf_len(&out))
        return err_sys(e, ECONNRESET, "cannot attach to the new sandbox");
    return steal_fd(&sock);
}

/* A socket address has room for 107 bytes: by descriptor. */
static int listen_in(int dirfd, struct err *e)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/" START_SOCK, dirfd);
    int fd = listen_at(path, START_BACKLOG);
    return fd < 0 ? err_sys(e, -fd, "cannot create " START_SOCK) : fd;
}

static int boot_guest(const struct oci_init *in, struct err *e)
{
    CLEANUP(netns_free) struct netns net = {.tap.fd = -1};
    int r = in->config->ns.entered[OCI_NS_NET] ? netns_connect(&net, e) : 0;
    bool here = process_is_here(&in->config->process, &in->config->spec);
    const struct create_options opt = {.in_group = true,
                                       .transient = true,
                                       .said = in->config->said,
                                       .tap = net.tap.fd < 0 ? NULL : &net.tap,
                                       .prepare = here ? NULL : find_command,
                                       .prepare_ctx = (void *)(uintptr_t)in};
    return r < 0 ? r : sandbox_create(&in->rt->store, &in->config->spec, &opt, NULL, e);
}

/* The monitor's PID is meaningless in the container's pid namespace; a descriptor is not. */
static int boot(const struct oci_init *in, int init, struct err *e)
{
    int r = in->pod ? 0 : boot_guest(in, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = open_sandbox(in);
    AUTO_CLOSE int monitor = dir < 0 ? dir : monitor_pidfd(dir);
    if (monitor < 0)
        return err_sys(e, -monitor, "the %s has ended already", in->pod ? "pod" : "new sandbox");
    if (in->config->sandbox && in->config->ns.entered[OCI_NS_NET])
        forward_start(dir, monitor);
    if (sock_send_fd(init, monitor) == 0)
        return 0;
    struct err ignored = {0};
    if (!in->pod) /* nobody else may be left to end it */
        (void)sandbox_remove(&in->rt->store, in->container->id, true, NULL, &ignored);
    return err_set(e, ECHILD, "the container's process has ended");
}

/* The container's files are what this process sees. */
static int enter_pod(struct life *l, int dir, struct err *e)
{
    const struct container_config *c = l->in->config;
    AUTO_CLOSE int tree = l->root < 0 ? -1 : view_copy(&c->spec, l->root, e);
    if (l->root < 0)
        return err_set(e, EPERM, "creating containers of a pod requires the right to mount");
    l->leash = tree < 0 ? tree : pod_join(dir, c, tree, &l->number, e);
    if (l->leash < 0)
        return l->leash;
    int sock = connect_agent(l);
    return sock < 0 ? err_sys(e, -sock, "cannot reach the pod's guest")
                    : process_find_command(&c->process, sock, l->in->container->id, e);
}

/* While the guest boots: opens what is needed from the host and leaves the host's files behind; in
 * a pod, they are still needed. */
static int prepare_life(struct life *l, struct err *e)
{
    const struct oci_init *in = l->in;
    if ((l->listener = listen_in(in->container->dirfd, e)) < 0)
        return l->listener;
    l->fds = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->fds < 0)
        return err_sys(e, errno, "cannot open /proc/self/fd");
    if (!l->own_mounts)
        return 0;
    l->root = view_build(&in->config->spec, in->pod, l->trees, e);
    return l->root < 0 ? l->root : in->pod ? 0 : view_enter(l->root, e);
}

/* The guest is up: opens what will be needed from it, and leaves everything else behind. */
static int settle(struct life *l, struct err *e)
{
    const struct oci_init *in = l->in;
    AUTO_CLOSE int dir = open_sandbox(in);
    if (dir < 0)
        return err_sys(e, -dir, "cannot open the sandbox");
    l->agent = openat(dir, "run/agent.sock", O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (l->agent < 0)
        return err_sys(e, errno, "cannot open agent.sock");
    int r = in->pod ? enter_pod(l, dir, e) : (l->leash = take_leash(l, e));
    if (r >= 0 && l->root >= 0 && in->pod)
        r = view_enter(l->root, e);
    if (r >= 0 && l->root >= 0)
        view_complete(&in->config->spec, l->root, l->trees);
    close_fd(&l->root);
    return r < 0 ? r : jail_keep_caps(0, e);
}

/* --- running --------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) end_with(const struct life *l, int code)
{
    /* By then, what it wrote is on the host. */
    if (l->number) {
        pod_leave(l->leash);
        _exit(code);
    }
    (void)close(l->leash);
    (void)monitor_wait(l->monitor, END_WAIT_MS);
    _exit(code);
}

/* The first process of a namespace ignores signals that it has no handler for. */
static int watch_ends(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    for (const int *s = (const int[]){SIGTERM, SIGINT, SIGHUP, SIGQUIT, 0}; *s; s++)
        (void)sigaddset(&set, *s);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Waits until `start` connects, or the guest ends. */
static void await_start(struct life *l)
{
    struct signalfd_siginfo si;
    struct pollfd p[] = {{.fd = l->listener, .events = POLLIN},
                         {.fd = l->leash, .events = POLLIN},
                         {.fd = l->signals, .events = POLLIN}};
    while (l->starter < 0) {
        if (poll(p, ARRAY_LEN(p), -1) < 0)
            continue;
        if (p[1].revents)
            end_with(l, EXIT_KILLED);
        if (p[2].revents && read(l->signals, &si, sizeof(si)) == (ssize_t)sizeof(si))
            end_with(l, 128 + (int)si.ssi_signo);
        if (p[0].revents)
            l->starter = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
    }
    (void)unlinkat(l->in->container->dirfd, START_SOCK, 0);
    close_fd(&l->listener);
    close_fd(&l->signals);
}

static void on_started(void *ctx)
{
    struct life *l = ctx;
    int fd = openat(l->in->container->dirfd, "started", O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                    0600);
    close_fd(&fd);
    report_send(l->starter, 0, NULL);
    close_fd(&l->starter);
}

static void fail_start(struct life *l, const struct err *e, int code)
{
    if (l->starter >= 0)
        report_send(l->starter, 0, e);
    end_with(l, code);
}

static void __attribute__((noreturn)) run_command(struct life *l)
{
    struct oci_process *p = &l->in->config->process;
    struct session_result res;
    struct err e = {0};
    p->req.on_started = on_started;
    p->req.started_ctx = l;
    int sock = connect_agent(l);
    if (sock < 0) {
        (void)err_sys(&e, -sock, "the guest does not answer");
        fail_start(l, &e, EXIT_KILLED);
    }
    int r = session_run(sock, &p->req, &res, &e);
    if (r == 0 && res.failed_to_start)
        process_explain(p, res.exit_code, &e);
    if (r < 0 || e.code)
        oci_log_error(l->in->rt->g, &e);
    if (l->starter >= 0)
        fail_start(l, &e, r < 0 ? EXIT_KILLED : res.exit_code);
    end_with(l, r < 0 ? EXIT_KILLED : res.exit_code);
}

static void keep_only(const struct oci_init *in, int sock, int other)
{
    const struct store *s = &in->rt->store;
    const int keep[] = {sock,
                        other,
                        s->home_fd,
                        s->sandboxes_fd,
                        s->locks_fd,
                        in->rt->containers_fd,
                        in->container->dirfd};
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
}

/* The container's process; `booter` is the one that boots its guest. */
static void __attribute__((noreturn))
init_main(const struct oci_init *in, bool own_mounts, int sock, int booter)
{
    struct life l = {.in = in,
                     .own_mounts = own_mounts,
                     .root = -1,
                     .monitor = -1,
                     .leash = -1,
                     .listener = -1,
                     .agent = -1,
                     .signals = -1,
                     .starter = -1};
    const struct oci_process *p = &in->config->process;
    struct oci_globals globals = *in->rt->g;
    struct err e = {0};
    char go;
    (void)setsid();
    keep_only(in, sock, booter);
    process_forget_caller("container", in->container->id);
    int r = in->console_socket ? console_take(in->console_socket, p->rows, p->cols, &e) : 0;
    report_send(booter, 0, r < 0 ? &e : NULL);
    if (r < 0 || packet_receive(booter, &go, 1) != 1)
        _exit(1);
    oci_hold_log(&globals);
    in->rt->g = &globals;
    r = prepare_life(&l, &e);
    struct pollfd up = {.fd = booter, .events = POLLIN};
    while (r == 0 && poll(&up, 1, -1) < 0)
        ;
    l.monitor = r < 0 ? r : sock_recv_fd(booter);
    if (r == 0 && l.monitor < 0) /* the booter has reported why */
        _exit(1);
    (void)close(booter);
    if (r == 0)
        r = settle(&l, &e);
    l.signals = watch_ends(); /* once `create` has ended, none may be lost */
    report_send(sock, (pid_t)l.number, r < 0 ? &e : NULL);
    if (r < 0)
        _exit(1);
    (void)close(sock);
    await_start(&l);
    run_command(&l);
}

/* Without the right to create namespaces, it is a process like any other. */
static pid_t clone_init(const struct oci_init *in, int sock, int here, int there)
{
    bool own_mounts = true;
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) {
        own_mounts = false;
        pid = fork();
    }
    if (pid == 0) {
        (void)close(here);
        init_main(in, own_mounts, sock, there);
    }
    return pid;
}

static int prepare(const struct oci_init *in, bool in_group, int sock, int *ret_init, struct err *e)
{
    AUTO_CLOSE int there = -1;
    char go;
    int r = in_group ? 0 : group_enter(in->groups, e);
    process_set_oom_score(&in->config->process);
    if (r == 0)
        r = enter_namespaces(&in->config->ns, e);
    if (r == 0)
        r = packet_pair(ret_init, &there, e);
    if (r < 0)
        return r;
    pid_t pid = clone_init(in, sock, *ret_init, there);
    close_fd(&there);
    r = pid < 0 ? err_sys(e, errno, "cannot start a process") : report_receive(*ret_init, NULL, e);
    if (r < 0)
        return r;
    report_send(sock, pid, NULL);
    return packet_receive(sock, &go, 1) == 1 && send(*ret_init, &go, 1, MSG_NOSIGNAL) == 1
               ? 0
               : err_set(e, ECANCELED, "its creator is gone");
}

void booter_main(const struct oci_init *in, bool in_group, int sock)
{
    struct err e = {0};
    int init = -1;
    process_default_signals();
    keep_only(in, sock, in->lock);
    int r = prepare(in, in_group, sock, &init, &e);
    if (r == 0)
        r = boot(in, init, &e);
    if (r < 0)
        report_send(sock, 0, &e); /* the other one ends when our end is closed */
    _exit(r < 0);
}

/* --- start ----------------------------------------------------------------------------------- */

int init_start_command(const struct oci_container *c, struct err *e)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/" START_SOCK, c->dirfd);
    AUTO_CLOSE int fd = connect_at(path);
    return fd < 0 ? err_sys(e, -fd, "cannot reach the process of container '%s'", c->id)
                  : report_receive(fd, NULL, e);
}
