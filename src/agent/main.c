/* The guest's PID 1: set the guest up, then serve commands until told to stop. */
#include "agent/cas.h"
#include "agent/container.h"
#include "agent/control.h"
#include "agent/files.h"
#include "agent/hosts.h"
#include "agent/init.h"
#include "agent/layer.h"
#include "agent/mounts.h"
#include "agent/netif.h"
#include "agent/power.h"
#include "agent/restrict.h"
#include "agent/server.h"
#include "agent/vsock.h"
#include "util/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Commands get the soft limit, too: it is enough for the agent's own 512 sessions, and small enough
 * for programs that close every possible descriptor. */
enum { NOFILE_SOFT = 4096, NOFILE_HARD = 1024 * 1024 };

static struct control control;
static struct server server;
static struct power power;
static struct config config;

static void on_shutdown(struct control *c, uint64_t grace_ms)
{
    power_stop(&power, grace_ms);
}

/* Without a monitor, there are no more clients. */
static void on_lost(struct control *c)
{
    loop_del(c->loop, &c->src);
    power_stop(&power, 0);
}

static void on_saved(void)
{
    control_down(&control);
}

static void die(const struct err *e);

/* The sandbox ends with its init. */
static void on_init_end(struct server *srv, int status)
{
    char line[96];
    (void)snprintf(line, sizeof(line), "the init ended (%s %d)",
                   WIFSIGNALED(status) ? "signal" : "exit code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    control_log(&control, line);
    if (!srv->stopping)
        power_stop(&power, 0);
}

/* The host has finished writing into the sandbox. */
static void on_seal(struct control *c)
{
    struct err e = {0};
    if (config_is_restricted(&config) && restrict_guest(&config, &e) < 0)
        die(&e);
    if (config.init) {
        server.on_init_end = on_init_end;
        server.init = init_start(&config, &e);
        if (server.init < 0)
            die(&e);
    }
    control_sealed(c);
}

/* Changes the variables of later commands. */
static void on_env(struct control *c, const struct proto_frame *f)
{
    if (config_change_env(&config, f) < 0)
        control_log(c, "the change of the sandbox's variables is malformed, or too large");
}

/* spawn.c relies on 0, 1 and 2 being taken. */
static void ensure_stdio(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd < 3)
        ;
    close_fd(&fd);
}

static void raise_limits(void)
{
    struct rlimit files = {.rlim_cur = NOFILE_SOFT, .rlim_max = NOFILE_HARD};
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static void die(const struct err *e)
{
    dprintf(2, "msb agent: %s\n", e->msg);
    control_fail(&control, e);
    power_off(-1);
}

/* Everything that needs no configuration is done while waiting for it. */
static int prepare(struct err *e)
{
    ensure_stdio();
    raise_limits();
    if (control_open(&control, e) < 0)
        return -e->code;
    int r = server_init(&server, &config);
    int listener = vsock_listen(PROTO_PORT_SESSION);
    if (r == 0 && listener >= 0)
        r = server_listen(&server, listener);
    if (r < 0 || listener < 0)
        return err_sys(e, r < 0 ? -r : -listener, "cannot listen for commands");
    loopback_up();
    return control_configure(&control, &config, e);
}

static void on_kill(struct oom *o)
{
    control_oom(&control, o->kills);
}

static int watch(struct err *e)
{
    oom_watch(&server.oom, &server.loop, on_kill);
    control.on_shutdown = on_shutdown;
    control.on_lost = on_lost;
    control.on_seal = on_seal;
    control.on_env = on_env;
    int r = control_watch(&control, &server.loop);
    return r < 0 ? err_sys(e, -r, "cannot watch the control stream") : 0;
}

/* A guest also works without its network: a failure is logged. */
static void set_network_up(void)
{
    char line[96];
    if (!config.net.name)
        return;
    int r = netif_setup(&config.net);
    if (r < 0) {
        (void)snprintf(line, sizeof(line), "cannot set up the network: %s", strerror(-r));
        control_log(&control, line);
    }
    r = config_shares_root(&config) ? 0 : resolv_write(&config);
    if (r < 0) {
        (void)snprintf(line, sizeof(line), "cannot write /etc/resolv.conf: %s", strerror(-r));
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
    (void)snprintf(line, sizeof(line), "cannot install all of the host's certificates: %s",
                   strerror(-r));
    if (r < 0)
        control_log(&control, line);
}

/* Twice a second, the kernel checks whether memory should be compacted in advance. Nothing depends
 * on that, and an idle sandbox should cost its host nothing. */
static void be_quiet(void)
{
    (void)file_write("/proc/sys/vm/compaction_proactiveness", "0", 1, 0);
}

/* If the kernel has them; the host knows whether it does. */
static void set_huge_pages(void)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    if (config.thp)
        (void)file_write(path, config.thp, strlen(config.thp), 0);
}

static void complete(void)
{
    mounts_complete(&config);
    be_quiet();
    set_huge_pages();
    hosts_setup(&config);
    set_network_up();
    install_cas();
}

int main(void)
{
    struct err e = {0};
    uint64_t start = now_ns();
    int upper_fd = -1;
    if (prepare(&e) < 0 || mounts_build(&config, &upper_fd, &e) < 0)
        die(&e);
    layer_init(upper_fd);
    bool restricted = config_is_restricted(&config) || config.nsysctls;
    if (restricted) { /* a path may be on the last mount, and creating it may fail */
        complete();
        if (restrict_prepare(&config, &e) < 0)
            die(&e);
        mounts_cover(&config);
    }
    control_ready(&control);
    uint64_t ready = now_ns();
    /* The first command may arrive meanwhile; it waits in the listener's queue. */
    if (!restricted) {
        complete();
        mounts_cover(&config);
    }
    containers_init(&server, &config);
    power_init(&power, &server, upper_fd);
    power.saved = on_saved;
    if (watch(&e) < 0)
        die(&e);
    log_times(start, ready);
    for (;;) {
        (void)server_turn(&server, -1);
        power_check(&power);
    }
}
