#include "agent/power.h"

#include "agent/init.h"
#include "agent/procs.h"
#include "agent/session.h"
#include "util/cleanup.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    KILL_WAIT_MS = 1000,  /* for processes stuck in the kernel */
    DISK_WAIT_MS = 500,   /* for reads under way */
    CLIENT_WAIT_MS = 100, /* for clients that do not take their last output */
    OWN_GRACE_MS = 10000, /* when the guest itself asked */
    GRACE_MAX_MS = 3600 * 1000,
};

/* FIFREEZE; its header clashes with musl's. */
#define FS_FREEZE _IOWR('X', 119, int)

static struct power *the_power; /* for the callback below, which has no context */

/* Requests in progress on all disks together: the twelfth field of each line. */
static unsigned long disk_requests(void)
{
    char text[4096];
    unsigned long sum = 0;
    int field = 1;
    AUTO_CLOSE int fd = open("/proc/diskstats", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    text[len > 0 ? len : 0] = '\0';
    for (const char *p = text; *p; field++) {
        p += strspn(p, " ");
        if (field == 12)
            sum += strtoul(p, NULL, 10);
        p += strcspn(p, " \n");
        if (*p == '\n') {
            field = 0;
            p++;
        }
    }
    return sum;
}

/* A read that a killed process was waiting for may still be in progress, and a kernel that shuts
 * down its disks meanwhile could wait for it forever. */
static void let_disks_settle(void)
{
    for (int i = 0; i < DISK_WAIT_MS && disk_requests(); i++)
        (void)usleep(1000);
}

/* Freezing writes everything out and leaves the journal empty, as unmounting would, but works while
 * files are open. */
static void save(int upper_fd, const struct config *cfg)
{
    sync(); /* includes host directories, which are not frozen */
    for (size_t i = 0; cfg && i < cfg->nmounts; i++)
        if (cfg->mounts[i].fd > 0)
            (void)ioctl(cfg->mounts[i].fd, FS_FREEZE, 0);
    if (upper_fd >= 0)
        (void)ioctl(upper_fd, FS_FREEZE, 0);
}

static void __attribute__((noreturn)) switch_off(void)
{
    let_disks_settle();
    for (;;) {
        (void)reboot(RB_POWER_OFF);
        (void)reboot(RB_AUTOBOOT); /* for a machine that cannot power off */
        pause();
    }
}

void power_off(int upper_fd)
{
    save(upper_fd, NULL);
    switch_off();
}

static void __attribute__((noreturn)) save_and_switch_off(const struct power *p)
{
    save(p->upper_fd, p->server->cfg);
    if (p->saved)
        p->saved();
    switch_off();
}

static void kill_everyone(struct power *p)
{
    p->killing = true;
    (void)kill(-1, SIGKILL);
    loop_timer_set(&p->server->loop, &p->timer, (uint64_t)KILL_WAIT_MS * 1000000);
}

static void on_power_timer(struct loop_timer *t)
{
    struct power *p = CONTAINER_OF(t, struct power, timer);
    if (p->killing || p->childless)
        save_and_switch_off(p);
    kill_everyone(p);
}

/* The last process is gone; its exit code may not have reached the client yet. */
static void on_childless(struct server *srv)
{
    struct power *p = the_power;
    if (p->childless)
        return;
    p->childless = true;
    loop_timer_set(&srv->loop, &p->timer, (uint64_t)CLIENT_WAIT_MS * 1000000);
}

void power_check(const struct power *p)
{
    if (p->childless && p->server->nsessions == 0)
        save_and_switch_off(p);
}

static void on_signal(struct loop_src *src, uint32_t events)
{
    struct signalfd_siginfo si;
    if (read(src->fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
        power_stop(CONTAINER_OF(src, struct power, signals), OWN_GRACE_MS);
}

void power_init(struct power *p, struct server *srv, int upper_fd)
{
    *p = (struct power){.server = srv, .upper_fd = upper_fd, .timer.fn = on_power_timer};
    the_power = p;
    /* halt, poweroff, reboot (as busybox has them): there is nothing to reboot into, so all mean
     * the same. They are blocked, so without the descriptor they would merely be lost. A pod's
     * containers may be in this pid namespace: to them, PID 1 is `pause`, which ends on SIGTERM. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    if (srv->cfg->pod_fd <= 0) {
        sigaddset(&set, SIGUSR1);
        sigaddset(&set, SIGUSR2);
    }
    p->signals =
        (struct loop_src){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .fn = on_signal};
    if (p->signals.fd >= 0)
        (void)loop_add(&srv->loop, &p->signals, EPOLLIN);
}

static bool is_command(const struct server *srv, pid_t sid)
{
    for (const struct session *s = srv->sessions; s; s = s->next)
        if (s->pid == sid)
            return true;
    return false;
}

static bool is_no_command(void *ctx, pid_t sid)
{
    return !is_command(ctx, sid);
}

/* An image with its own stop signal has a main process that handles it and tells its children: they
 * get no signal from us. A server that finishes its work on SIGQUIT would drop it if its workers
 * got SIGTERM. Processes outside of every command's session are signaled directly. */
static void ask_commands(struct power *p, int sig)
{
    for (struct session *s = p->server->sessions; s; s = s->next)
        if (s->pid > 0)
            (void)kill(s->pid, sig);
    procs_signal(SIGTERM, is_no_command, p->server);
}

/* Everything besides commands is up to the image's init. */
static void ask_init(struct server *srv)
{
    for (struct session *s = srv->sessions; s; s = s->next)
        if (s->pid > 0)
            (void)kill(s->pid, SIGTERM);
    (void)kill(srv->init, init_stop_signal(srv->cfg, srv->init));
}

/* All processes get SIGTERM, and SIGCONT so that stopped ones see it. Interactive shells ignore
 * SIGTERM: commands on a terminal also get SIGHUP. Others do not, since a program that ends cleanly
 * on SIGTERM may have no handler for SIGHUP. */
static void ask_everyone(struct power *p)
{
    uint32_t sig = p->server->cfg->stop_signal;
    if (p->server->init > 0)
        ask_init(p->server);
    else if (sig && sig != SIGTERM)
        ask_commands(p, (int)sig);
    else
        (void)kill(-1, SIGTERM);
    (void)kill(-1, SIGCONT);
    for (struct session *s = p->server->sessions; s; s = s->next)
        if (s->tty && s->pid > 0)
            (void)kill(s->pid, SIGHUP);
}

void power_stop(struct power *p, uint64_t grace_ms)
{
    struct server *srv = p->server;
    if (p->killing || p->childless)
        return;
    if (!srv->stopping) {
        server_stop(srv);
        srv->on_childless = on_childless;
        if (grace_ms)
            ask_everyone(p);
    }
    if (grace_ms == 0) {
        kill_everyone(p);
    } else {
        if (grace_ms > GRACE_MAX_MS)
            grace_ms = GRACE_MAX_MS;
        if (!p->timer.at_ns || p->timer.at_ns > now_ns() + grace_ms * 1000000)
            loop_timer_set(&srv->loop, &p->timer, grace_ms * 1000000);
    }
    server_reap(srv); /* an idle guest has no child to wait for */
}
