/* The uml engine: a user-mode Linux kernel as a jailed child, its devices behind vhost-user. */
#include "engine/engine.h"
#include "engine/uml/tree.h"
#include "engine/uml/warden.h"

#include "util/cleanup.h"
#include "util/kernel.h"
#include "util/sock.h"
#include "virtio/vhost_user.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* #syscalls:monitor read close wait4 pidfd_send_signal epoll_ctl */

enum { CONSOLE_CHUNK = 4096 };

struct engine {
    struct loop *loop;
    const struct engine_events *ev;
    void *ctx;
    struct uml_tree tree;
    struct loop_src exit_src;
    struct loop_src console_src;
    struct vhost_user *back_end[ENGINE_DEVICES_MAX];
    size_t n;
    bool reduced;
    struct rusage used; /* by the whole tree, once it has ended */
};

/* --- the kernel's command line -------------------------------------------------------------- */

struct cmdline {
    char *arg[UML_CMDLINE_MAX + 1];
    size_t n;
    bool failed;
};

static void __attribute__((format(printf, 2, 3))) add_arg(struct cmdline *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    if (c->n == UML_CMDLINE_MAX || vasprintf(&s, fmt, ap) < 0)
        c->failed = true;
    else
        c->arg[c->n++] = s;
    va_end(ap);
}

static void free_args(struct cmdline *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->arg[i]);
}

static void build_cmdline(struct cmdline *c, const struct engine_params *p, bool use_seccomp)
{
    add_arg(c, "linux");
    add_arg(c, "mem=%" PRIu64 "K", p->memory_bytes / 1024);
    /* "auto" would silently fall back to ptrace. */
    add_arg(c, "seccomp=%s", use_seccomp ? "on" : "off");
    if (p->n_cpus > 1) {
        add_arg(c, "ncpus=%u", p->n_cpus);
        if (p->cpu >= 0)
            add_arg(c, "place_cpus");
    } else if (use_seccomp && p->cpu >= 0 && p->spread && !p->reduced) {
        add_arg(c, "spread");
    }
    if (use_seccomp && kernel_yields_fairly()) /* kernel/patches/uml/35-um-yield.patch */
        add_arg(c, "yield");
    add_arg(c, "uml_dir=/tmp");
    if (p->reduced) /* there is no directory in which to look for a free name */
        add_arg(c, "umid=guest");
    else
        add_arg(c, "mem_fd=%d", UML_MEMORY_FD);
    add_arg(c, p->verbose ? "loglevel=7" : "quiet");
    /* Any plausible value: calibrating the delay loop would take 40 ms. */
    add_arg(c, "lpj=10000000");
    /* A reboot ends the guest, as a panic does: there is nothing to re-execute in here. */
    add_arg(c, "noreboot");
    add_arg(c, "panic=-1");
    add_arg(c, ENGINE_LEAN);
    if (p->memory_bytes > ENGINE_TABLES_MEMORY)
        add_arg(c, ENGINE_TABLES);
    for (size_t i = 0; i < p->n_devices; i++) {
        char path[16];
        uml_device_path(i, path);
        const struct engine_device *d = &p->devices[i];
        add_arg(c, "virtio_uml.device=%s:%u", path, (unsigned)(d->dev ? d->dev->ops : d->kind)->id);
    }
    add_arg(c, "root=/dev/vda");
    add_arg(c, "rootfstype=erofs");
    add_arg(c, "ro");
    add_arg(c, "init=%s", p->init);
}

/* --- events --------------------------------------------------------------------------------- */

/* Reads one chunk; false when there is no more, now or ever. */
static bool drain_console(struct engine *en)
{
    char chunk[CONSOLE_CHUNK];
    ssize_t k = read(en->console_src.fd, chunk, sizeof(chunk));
    if (k > 0) {
        en->ev->console(en->ctx, chunk, (size_t)k);
    } else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
        loop_close(en->loop, &en->console_src);
    }
    return k > 0;
}

static void on_console(struct loop_src *src, uint32_t events)
{
    (void)drain_console(CONTAINER_OF(src, struct engine, console_src));
}

static void on_exit_event(struct loop_src *src, uint32_t events)
{
    struct engine *en = CONTAINER_OF(src, struct engine, exit_src);
    int st = 0;
    if (wait4(en->tree.reaper, &st, WNOHANG, &en->used) != en->tree.reaper)
        return;
    loop_del(en->loop, src);
    close_fd(&en->tree.pidfd);
    while (en->console_src.fd >= 0 && drain_console(en))
        ; /* its last output matters most */
    char how[96];
    bool clean = WIFEXITED(st) && WEXITSTATUS(st) == 0;
    if (clean)
        (void)snprintf(how, sizeof(how), "powered off");
    else if (WIFSIGNALED(st))
        (void)snprintf(how, sizeof(how), "the guest was killed (signal %d)", WTERMSIG(st));
    else if (WEXITSTATUS(st) > 128)
        (void)snprintf(how, sizeof(how), "the guest kernel was killed by signal %d",
                       WEXITSTATUS(st) - 128);
    else
        (void)snprintf(how, sizeof(how), "the guest kernel ended with status %d", WEXITSTATUS(st));
    en->ev->ended(en->ctx, clean, how);
}

static void on_broken(void *ctx, const char *reason)
{
    struct engine *en = ctx;
    en->ev->device_broken(en->ctx, reason);
}

static const struct vhost_user_events back_end_events = {.broken = on_broken};

/* --- ops ------------------------------------------------------------------------------------ */

static void uml_free(struct engine *en)
{
    if (!en)
        return;
    for (size_t i = 0; i < en->n; i++)
        vhost_user_free(en->back_end[i]);
    loop_del(en->loop, &en->exit_src);
    loop_close(en->loop, &en->console_src);
    close_fd(&en->tree.pidfd);
    free(en);
}

static void uml_kill(struct engine *en)
{
    /* The reaper is pid 1 of its namespace: the kernel and all stubs die with it. In a reduced
     * jail, it kills them itself. */
    if (en->tree.pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, en->tree.pidfd, en->reduced ? SIGTERM : SIGKILL, NULL,
                      0);
}

static int attach_devices(struct engine *en, const struct engine_params *p, struct err *e)
{
    for (size_t i = 0; i < p->n_devices; i++) {
        const struct engine_device *d = &p->devices[i];
        int r;
        if (d->dev) {
            r = vhost_user_new(&en->back_end[i], d->loop, d->dev, en->tree.listen_fd[i],
                               &back_end_events, en);
        } else {
            r = sock_send_fd(d->server_fd, en->tree.listen_fd[i]);
            close_fd(&en->tree.listen_fd[i]);
        }
        if (r < 0)
            return err_sys(e, -r, "cannot serve device %zu", i);
        en->n++;
    }
    return 0;
}

static int uml_start(struct engine **ret, const struct engine_params *p, struct loop *l,
                     const struct engine_events *ev, void *ctx, bool use_seccomp, struct err *e)
{
    struct cmdline c = {0};
    build_cmdline(&c, p, use_seccomp);
    struct engine *en = calloc(1, sizeof(*en));
    int r;
    if (!en || c.failed) {
        free(en);
        free_args(&c);
        return err_oom(e);
    }
    *en = (struct engine){.loop = l, .ev = ev, .ctx = ctx, .tree.pidfd = -1, .reduced = p->reduced};
    en->exit_src.fd = en->console_src.fd = -1;
    r = uml_tree_start(&en->tree, p, c.arg, !use_seccomp, e);
    free_args(&c);
    if (r == 0) {
        en->exit_src = (struct loop_src){.fd = en->tree.pidfd, .fn = on_exit_event};
        en->console_src = (struct loop_src){.fd = en->tree.console_fd, .fn = on_console};
        r = attach_devices(en, p, e);
    }
    if (r == 0 && ((r = loop_add(l, &en->exit_src, EPOLLIN)) < 0 ||
                   (r = loop_add(l, &en->console_src, EPOLLIN)) < 0))
        err_sys(e, -r, "cannot watch the kernel");
    if (r < 0) {
        uml_kill(en);
        uml_free(en);
        return r;
    }
    *ret = en;
    return 0;
}

static int start_seccomp(struct engine **ret, const struct engine_params *p, struct loop *l,
                         const struct engine_events *ev, void *ctx, struct err *e)
{
    return uml_start(ret, p, l, ev, ctx, true, e);
}

static int start_ptrace(struct engine **ret, const struct engine_params *p, struct loop *l,
                        const struct engine_events *ev, void *ctx, struct err *e)
{
    return uml_start(ret, p, l, ev, ctx, false, e);
}

static uint64_t uml_cpu_ns(const struct engine *en)
{
    const struct timeval *u = &en->used.ru_utime, *k = &en->used.ru_stime;
    return ((uint64_t)(u->tv_sec + k->tv_sec) * 1000000 + (uint64_t)(u->tv_usec + k->tv_usec)) *
           1000;
}

/* In a reduced jail, there is one CPU: with several, a kernel interrupts threads, and has processes
 * moved, by numbers that might belong to any of the caller's processes. */
#define UML_OPS(ops_name, ops_start)                                                        \
    .name = (ops_name), .kernel_file = "linux-uml", .max_cpus_reduced = 1, .one_cpu = true, \
    .start = (ops_start), .kill = uml_kill, .free = uml_free, .cpu_ns = uml_cpu_ns

const struct engine_ops engine_uml = {
    UML_OPS("uml", start_seccomp),
    .smp_file = "linux-uml-smp",
    .max_cpus = UML_CPUS_MAX,
};
const struct engine_ops engine_uml_ptrace = {
    UML_OPS("uml-ptrace", start_ptrace),
    .max_cpus = 1,
};
