/* The guest's PID 1: set the guest up, then serve commands until told to stop. */
#include "agent/cas.h"
#include "agent/control.h"
#include "agent/engine.h"
#include "agent/hosts.h"
#include "agent/mounts.h"
#include "agent/netif.h"
#include "agent/power.h"
#include "agent/restrict.h"
#include "agent/vsock.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The soft limit is what commands get too: enough for the agent's own 512 sessions, and small
 * enough for programs that close every possible descriptor. */
enum { NOFILE_SOFT = 4096, NOFILE_HARD = 1024 * 1024 };

static struct control control;
static struct engine engine;
static struct power power;
static struct config config;

static void on_shutdown(struct control *c, uint64_t grace_ms)
{
    (void)c;
    power_stop(&power, grace_ms);
}

/* Without a monitor there is no one to serve and no one to ask. */
static void on_lost(struct control *c)
{
    loop_del(c->loop, &c->src);
    power_stop(&power, 0);
}

static void on_saved(void)
{
    control_down(&control);
}

static void die(const struct err *err);

/* Whoever made the sandbox has written what it had to write. */
static void on_seal(struct control *c)
{
    struct err err = {0};
    if (config.nwritable && restrict_writes(&config, &err) < 0)
        die(&err);
    control_sealed(c);
}

/* spawn.c relies on 0, 1 and 2 being taken. */
static void ensure_stdio(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd < 3)
        ;
    if (fd >= 3)
        close(fd);
}

static void raise_limits(void)
{
    struct rlimit files = {.rlim_cur = NOFILE_SOFT, .rlim_max = NOFILE_HARD};
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static void die(const struct err *err)
{
    dprintf(2, "msb agent: %s\n", err->msg);
    control_fail(&control, err);
    power_off(-1);
}

/* What needs no configuration is done while that is on its way. */
static int prepare(struct err *err)
{
    ensure_stdio();
    raise_limits();
    if (control_open(&control, err) < 0)
        return -err->code;
    int r = engine_init(&engine, &config);
    int listener = vsock_listen(PROTO_PORT_SESSION);
    if (r == 0 && listener >= 0)
        r = engine_listen(&engine, listener);
    if (r < 0 || listener < 0)
        return err_sys(err, r < 0 ? -r : -listener, "listening for commands failed");
    loopback_up();
    return control_configure(&control, &config, err);
}

static int watch(struct err *err)
{
    control.on_shutdown = on_shutdown;
    control.on_lost = on_lost;
    control.on_seal = on_seal;
    int r = control_watch(&control, &engine.loop);
    return r < 0 ? err_sys(err, -r, "watching the control stream failed") : 0;
}

/* A guest without its network is still a guest: the log says what failed. */
static void set_network_up(void)
{
    char line[96];
    if (!config.net.name)
        return;
    int r = netif_setup(&config.net);
    if (r < 0) {
        (void)snprintf(line, sizeof(line), "setting up the network failed: %s", strerror(-r));
        control_log(&control, line);
    }
    r = resolv_write(&config);
    if (r < 0) {
        (void)snprintf(line, sizeof(line), "writing /etc/resolv.conf failed: %s", strerror(-r));
        control_log(&control, line);
    }
}

static void log_times(uint64_t start, uint64_t ready)
{
    char line[128];
    (void)snprintf(line, sizeof(line),
                   "agent started %llu us after the kernel, ready in %llu us, "
                   "complete in %llu us",
                   (unsigned long long)start / 1000, (unsigned long long)(ready - start) / 1000,
                   (unsigned long long)(now_ns() - start) / 1000);
    control_log(&control, line);
}

static void install_cas(void)
{
    char line[128];
    int r = config.host_cas ? cas_install("", config.host_cas) : 0;
    (void)snprintf(line, sizeof(line), "the host's certificates were not all installed: %s",
                   strerror(-r));
    if (r < 0)
        control_log(&control, line);
}

static void complete(void)
{
    mounts_complete(&config);
    hosts_setup(&config);
    set_network_up();
    install_cas();
}

int main(void)
{
    struct err err = {0};
    uint64_t start = now_ns();
    int upper_fd = -1;
    if (prepare(&err) < 0 || mounts_build(&config, &upper_fd, &err) < 0)
        die(&err);
    bool restricted = config.nwritable > 0;
    if (restricted) { /* a path may be in what is mounted last, and making it may fail */
        complete();
        if (restrict_prepare(&config, &err) < 0)
            die(&err);
    }
    control_ready(&control);
    uint64_t ready = now_ns();
    /* The host is on its way with the first command; it waits in the listener's queue. */
    if (!restricted)
        complete();
    power_init(&power, &engine, upper_fd);
    power.saved = on_saved;
    if (watch(&err) < 0)
        die(&err);
    log_times(start, ready);
    for (;;) {
        (void)engine_turn(&engine, -1);
        power_check(&power);
    }
}
