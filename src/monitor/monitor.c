#include "monitor/monitor.h"

#include "jail/jail.h"
#include "jail/seccomp.h"
#include "monitor/blk_devices.h"
#include "monitor/control.h"
#include "monitor/exec_log.h"
#include "monitor/net_control.h"
#include "monitor/relay.h"
#include "monitor/vsock_ports.h"
#include "store/ports.h"
#include "store/store.h"
#include "util/cleanup.h"
#include "virtio/balloon.h"
#include "virtio/fs.h"
#include "virtio/rng.h"
#include "virtio/vsock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* #syscalls:monitor read write close sendto recvfrom exit_group fsync openat */

#define MS(n) ((uint64_t)(n)*1000000ULL)

enum phase { BOOTING, RUNNING, DRAINING };

/* How the last words of the kernel are kept for an error message. */
enum { LAST_LINE_MAX = 256 };

/* Limits of the monitor itself: its heap, and its files beside clients' connections and the image's
 * layers. */
enum { DATA_MAX = 512 * 1024 * 1024, FILES_MAX = 128 };

enum { SYNC_DELAY_MS = 500 };

struct monitor {
    const struct monitor_params *p;
    const struct sandbox_spec *spec;
    enum phase phase;
    struct sandbox_state state;
    int run_fd, logs_fd;

    struct loop loop;    /* vsock, rng, clients, timers */
    struct loop io_loop; /* blk: its I/O may block */
    pthread_t io_thread;
    sem_t io_ready;      /* the I/O thread is behind its filter, or ... */
    int io_filter_error; /* ... -errno */
    struct virtio_dev *vsock;
    struct vsock_ports vsock_ports;
    struct net_control net;
    struct engine *engine;
    struct control control;
    struct relay relay;
    struct exec_log log, system_log;

    struct loop_src signals;
    struct loop_src share[SPEC_SHARES_MAX];
    struct loop_src report; /* until the launcher has acknowledged */
    bool acknowledged;
    struct loop_timer boot_timer, idle_timer, max_timer, kill_timer, flush_timer, sync_timer;
    bool had_session;

    char why[192]; /* why it is ending; the first reason stays */
    bool crashed;
    char last_line[LAST_LINE_MAX];
    size_t last_len;
    bool line_over;
    char panic[192]; /* what the kernel said, if it panicked */
    _Atomic(const char *) broken_device;
};

/* One monitor per process: signal handlers need to find it. */
static struct monitor mon;

static bool save_state(struct monitor *m, enum status st)
{
    m->state.status = st;
    m->state.updated_ns = realtime_ns();
    int r = state_save(m->run_fd, &m->state);
    if (r < 0)
        exec_log_printf(&m->system_log, "cannot save state: %s", strerror(-r));
    return r == 0;
}

/* --- ending --------------------------------------------------------------------------------- */

static void note_reason(struct monitor *m, bool crashed, const char *why)
{
    if (m->why[0])
        return;
    (void)snprintf(m->why, sizeof(m->why), "%s", why);
    m->crashed = crashed;
}

static void send_report(struct monitor *m, int code, const char *text, const char *hint)
{
    if (m->report.fd < 0)
        return;
    struct monitor_report rep = {.code = code};
    (void)snprintf(rep.text, sizeof(rep.text), "%s", text);
    (void)snprintf(rep.hint, sizeof(rep.hint), "%s", hint);
    (void)send(m->report.fd, &rep, sizeof(rep), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The end of the process. The state is on record before the lock goes with us. */
static void __attribute__((noreturn)) end(struct monitor *m)
{
    if (m->phase == BOOTING || m->control.sealing) {
        char hint[LAST_LINE_MAX + 32] = "";
        if (m->last_len)
            (void)snprintf(hint, sizeof(hint), "the kernel's last words: %s", m->last_line);
        send_report(m, ECHILD, m->why, hint);
    }
    exec_log_printf(&m->system_log, "%s: %s", m->crashed ? "crashed" : "stopped", m->why);
    (void)snprintf(m->state.reason, sizeof(m->state.reason), "%s", m->why);
    if (m->p->creating && !m->acknowledged)
        (void)save_state(m, STATUS_CREATING); /* nobody was told that it exists: it never did */
    else
        (void)save_state(m, m->crashed ? STATUS_CRASHED : STATUS_STOPPED);
    relay_end(&m->relay);
    exec_log_close(&m->log);
    exec_log_close(&m->system_log);
    net_control_close(&m->net);
    _exit(0);
}

static void kill_guest(struct monitor *m, bool crashed, const char *why)
{
    note_reason(m, crashed, why);
    if (m->engine)
        m->p->engine->kill(m->engine); /* on_engine_ended follows */
}

static void request_stop(struct monitor *m, uint64_t grace_ms, const char *why)
{
    if (m->phase == DRAINING) {
        if (grace_ms == 0)
            kill_guest(m, false, why);
        return;
    }
    note_reason(m, false, why);
    relay_refuse(&m->relay);
    if (m->phase == RUNNING)
        (void)save_state(m, STATUS_DRAINING);
    bool asked = grace_ms > 0 && m->phase == RUNNING && control_shutdown(&m->control, grace_ms);
    if (m->phase == RUNNING)
        m->phase = DRAINING;
    if (asked)
        loop_timer_set(&m->loop, &m->kill_timer, MS(grace_ms + POWEROFF_SLACK_MS));
    else
        kill_guest(m, false, why);
}

static void on_kill_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, kill_timer);
    exec_log_printf(&m->system_log, "the guest did not power off in time; killing it");
    kill_guest(m, false, "killed after the grace period");
}

/* --- engine events -------------------------------------------------------------------------- */

static bool verbose(const struct monitor *m)
{
    return m->spec->log_level &&
           (strcmp(m->spec->log_level, "debug") == 0 || strcmp(m->spec->log_level, "trace") == 0);
}

static void log_engine(struct monitor *m)
{
    char line[256];
    if (!m->p->engine->describe || !m->engine)
        return;
    m->p->engine->describe(m->engine, line, sizeof(line));
    exec_log_printf(&m->system_log, "%s", line);
}

static void on_engine_ended(void *ctx, bool clean, const char *how)
{
    struct monitor *m = ctx;
    if (verbose(m))
        log_engine(m);
    if (m->phase == RUNNING && clean)
        note_reason(m, false, "the guest powered itself off");
    else if (m->phase != DRAINING || !m->why[0])
        note_reason(m, true, m->panic[0] ? m->panic : how);
    end(m);
}

/* A panic's own words say more than the signal that the kernel ends with. */
static void note_panic(struct monitor *m)
{
    static const char mark[] = "Kernel panic - not syncing: ";
    const char *at = m->panic[0] ? NULL : strstr(m->last_line, mark);
    if (at)
        (void)snprintf(m->panic, sizeof(m->panic), "the guest kernel panicked: %s",
                       at + sizeof(mark) - 1);
}

/* Kernel messages go to the system log; their last line is kept for error messages. */
static void on_console(void *ctx, const char *p, size_t n)
{
    struct monitor *m = ctx;
    exec_log_write(&m->system_log, LOG_SYSTEM, 0, p, n);
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n' || p[i] == '\r') {
            note_panic(m);
            m->line_over = true;
            continue;
        }
        if (m->line_over)
            m->last_len = 0;
        m->line_over = false;
        if (m->last_len + 1 < LAST_LINE_MAX)
            m->last_line[m->last_len++] = p[i] >= 0x20 && p[i] < 0x7f ? p[i] : '?';
        m->last_line[m->last_len] = '\0';
    }
}

/* On any thread. The main loop sees it when it wakes up for the agent that no longer answers; a
 * broken vsock device is on that loop itself. */
static void on_device_broken(void *ctx, const char *what)
{
    struct monitor *m = ctx;
    atomic_store(&m->broken_device, what);
}

static const struct engine_events engine_events = {
    .ended = on_engine_ended,
    .console = on_console,
    .device_broken = on_device_broken,
};

/* --- agent events --------------------------------------------------------------------------- */

/* An ephemeral sandbox whose command never came has lost its client: it does not wait for ever. */
static void arm_idle(struct monitor *m)
{
    uint64_t limit_ms = m->spec->idle_timeout_ms;
    if (m->spec->ephemeral && !m->had_session)
        limit_ms = EPHEMERAL_WAIT_MS;
    if (limit_ms && m->phase == RUNNING && m->relay.n_sessions == 0)
        loop_timer_set(&m->loop, &m->idle_timer, MS(limit_ms));
    else
        loop_timer_off(&m->loop, &m->idle_timer);
}

static void on_agent_ready(void *ctx)
{
    struct monitor *m = ctx;
    if (m->why[0]) /* it is being killed */
        return;
    loop_timer_off(&m->loop, &m->boot_timer);
    m->phase = RUNNING;
    m->state.started_ns = realtime_ns();
    exec_log_printf(&m->system_log, "running (engine %s, %" PRIu64 " MiB)", m->p->engine->name,
                    m->spec->memory_mib);
    log_engine(m);
    relay_open(&m->relay);
    if (m->spec->max_duration_ms)
        loop_timer_set(&m->loop, &m->max_timer, MS(m->spec->max_duration_ms));
    arm_idle(m);
    send_report(m, 0, "", "");
}

static void on_agent_failed(void *ctx, const char *why)
{
    kill_guest(ctx, true, why);
}

static void on_agent_pong(void *ctx, uint64_t cookie)
{
    struct monitor *m = ctx;
    relay_pong(&m->relay, cookie);
}

/* A user-mode kernel takes up to 20 ms to switch itself off; it has nothing left to do in them. */
static void on_agent_down(void *ctx)
{
    kill_guest(ctx, false, "the guest powered itself off");
}

static void on_agent_log(void *ctx, const char *line)
{
    struct monitor *m = ctx;
    exec_log_printf(&m->system_log, "agent: %s", line);
}

/* A guest whose pid 1 is gone is about to panic or to power off: give it a moment to say how. */
static void on_agent_lost(void *ctx)
{
    struct monitor *m = ctx;
    if (m->phase == DRAINING)
        return;
    relay_refuse(&m->relay);
    loop_timer_set(&m->loop, &m->boot_timer, MS(POWEROFF_SLACK_MS));
}

/* The launcher wants it, and it is as it is to be. */
static void acknowledge(struct monitor *m)
{
    int fd = m->report.fd;
    bool recorded = m->phase != RUNNING || save_state(m, STATUS_RUNNING);
    m->acknowledged = recorded;
    m->report.fd = -1;
    if (recorded)
        (void)send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (recorded && m->p->creating)
        loop_timer_set(&m->loop, &m->sync_timer, MS(SYNC_DELAY_MS));
    close_fd(&fd);
    if (!recorded)
        kill_guest(m, true, "its state could not be saved");
}

static void on_agent_sealed(void *ctx)
{
    struct monitor *m = ctx;
    loop_timer_off(&m->loop, &m->boot_timer);
    if (!m->acknowledged && !m->why[0])
        acknowledge(m);
}

static const struct control_events control_events = {
    .ready = on_agent_ready,
    .failed = on_agent_failed,
    .pong = on_agent_pong,
    .sealed = on_agent_sealed,
    .down = on_agent_down,
    .log = on_agent_log,
    .lost = on_agent_lost,
};

static void on_boot_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, boot_timer);
    const char *broken = atomic_load(&m->broken_device);
    if (m->phase == RUNNING && m->p->engine->going_down && m->p->engine->going_down(m->engine)) {
        kill_guest(m, false, "the guest powered itself off"); /* all but the last step */
        return;
    }
    char why[160];
    (void)snprintf(why, sizeof(why), "%s%s%s",
                   m->phase == BOOTING ? "the guest did not come up in time" : "the agent died",
                   broken ? "; a device was broken by its driver: " : "", broken ? broken : "");
    kill_guest(m, true, why);
}

/* --- relay events --------------------------------------------------------------------------- */

static void on_touched(void *ctx)
{
    arm_idle(ctx);
}

static void on_sessions_changed(void *ctx, unsigned n)
{
    struct monitor *m = ctx;
    if (n && m->acknowledged) /* what its creator does before is not what it is for */
        m->had_session = true;
    arm_idle(m);
    if (n || !m->had_session || m->phase != RUNNING)
        return;
    if (m->spec->ephemeral) /* it is its command, and its disk goes too: no need for manners */
        request_stop(m, spec_last_writes_ms(m->spec), "its command ended");
    else if (m->p->stop_when_idle)
        request_stop(m, STOP_GRACE_MS, "started for one command, which ended");
}

static void on_stop_request(void *ctx, uint64_t grace_ms)
{
    request_stop(ctx, grace_ms, "stopped on request");
}

static bool on_ping_request(void *ctx, uint64_t cookie)
{
    struct monitor *m = ctx;
    return control_ping(&m->control, cookie);
}

static void on_info_request(void *ctx, char *json, size_t size)
{
    struct monitor *m = ctx;
    struct vsock_stats vs;
    vsock_stats(m->vsock, &vs);
    (void)snprintf(json, size,
                   "{\"sessions\":%u,\"clients\":%u,\"vsock\":{\"rx_bytes\":%" PRIu64
                   ",\"tx_bytes\":%" PRIu64 ",\"streams\":%u}}",
                   m->relay.n_sessions, m->relay.n_clients, vs.rx_bytes, vs.tx_bytes, vs.streams);
}

static bool on_other_request(void *ctx, const struct proto_frame *f, int *fd, struct buf *out)
{
    struct monitor *m = ctx;
    return net_control_request(&m->net, f, fd, out);
}

static const struct relay_events relay_events = {
    .touched = on_touched,
    .sessions_changed = on_sessions_changed,
    .stop = on_stop_request,
    .ping = on_ping_request,
    .info = on_info_request,
    .request = on_other_request,
};

/* --- timers, signals, launcher -------------------------------------------------------------- */

static void on_idle_timer(struct loop_timer *t)
{
    request_stop(CONTAINER_OF(t, struct monitor, idle_timer), STOP_GRACE_MS, "idle timeout");
}

static void on_max_timer(struct loop_timer *t)
{
    request_stop(CONTAINER_OF(t, struct monitor, max_timer), STOP_GRACE_MS, "maximum duration");
}

static void on_flush_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, flush_timer);
    exec_log_flush(&m->log);
    exec_log_flush(&m->system_log);
}

/* A sandbox that was acknowledged outlasts a power cut, too; but `create` does not wait for the
 * disk, and neither does the first command. */
static void on_sync_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, sync_timer);
    AUTO_CLOSE int fd = openat(m->run_fd, "state.json", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0)
        (void)fsync(fd);
    (void)fsync(m->run_fd);
}

static void on_signal(struct loop_src *src, uint32_t events)
{
    struct monitor *m = CONTAINER_OF(src, struct monitor, signals);
    struct signalfd_siginfo si;
    if (read(src->fd, &si, sizeof(si)) == (ssize_t)sizeof(si) && si.ssi_signo == SIGTERM)
        request_stop(m, STOP_GRACE_MS, "the monitor was asked to end (SIGTERM)");
}

/* The launcher's one byte, or its end. Before it nobody is told that the sandbox runs: it may still
 * have to be undone. */
static void on_report(struct loop_src *src, uint32_t events)
{
    struct monitor *m = CONTAINER_OF(src, struct monitor, report);
    char ack;
    ssize_t k = recv(src->fd, &ack, 1, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int fd = src->fd;
    loop_del(&m->loop, src);
    src->fd = fd; /* it is answered later */
    bool served = k == 1 && ack == MONITOR_END;
    if (served)
        kill_guest(m, false, "stopped");
    else if (k != 1)
        kill_guest(m, false, "its creator was killed before it was done");
    else if (m->spec->write_paths.n == 0)
        acknowledge(m);
    else if (control_seal(&m->control)) /* on_agent_sealed() follows, or it fails */
        loop_timer_set(&m->loop, &m->boot_timer, MS(BOOT_TIMEOUT_MS));
    else
        kill_guest(m, true, "the agent does not listen");
}

/* A process that serves a host directory is there for as long as we are. */
static void on_share(struct loop_src *src, uint32_t events)
{
    struct monitor *m = &mon;
    (void)events;
    loop_del(&m->loop, src);
    kill_guest(m, true, "the process that serves one of its mounts died");
}

static void on_connector_lost(void *ctx)
{
    kill_guest(ctx, true, "the process that connects to host sockets for it died");
}

/* A stray system call is the end of this monitor and so of its guest; readers of the state see that
 * it was killed, the log says why. It may have come from anywhere, malloc() on the other thread
 * included: nothing here may wait for a lock. */
static void on_stray_call(int sig, siginfo_t *si, void *uc)
{
    char line[96];
    (void)snprintf(line, sizeof(line), "monitor: system call %d is not allowed", si->si_syscall);
    exec_log_last_line(&mon.system_log, line);
    if (mon.phase == BOOTING)
        send_report(&mon, EPERM, line, ""); /* which a vCPU's thread may not: that ends it, too */
    _exit(1);
}

/* --- the network ---------------------------------------------------------------------------- */

static void on_net_failed(void *ctx, int code)
{
    char why[96];
    (void)snprintf(why, sizeof(why), "its network failed: %s", strerror(code));
    kill_guest(ctx, true, why);
}

/* Files of the monitor beside those of the network. */
static uint64_t other_files(const struct monitor *m)
{
    return RELAY_CLIENTS_MAX + FILES_MAX + m->p->image.n +
           (m->p->connector_fd >= 0 ? VSOCK_PORTS_CONNS_MAX : 0);
}

static int add_network(struct engine_params *ep, struct monitor *m, struct err *e)
{
    const struct spec_net *n = &m->spec->net;
    if (n->off)
        return 0;
    unsigned most = net_max_connections(n, other_files(m));
    if (most < n->max_connections)
        exec_log_printf(&m->system_log,
                        "the host's limit on open files leaves %u connections at once, not %u",
                        most, n->max_connections);
    int r = net_control_setup(&m->net, n, &m->p->host, &m->p->ports, most, &m->loop, m->run_fd,
                              m->logs_fd, on_net_failed, m, e);
    if (r == 0)
        ep->devices[ep->n_devices++] =
            (struct engine_device){net_thread_device(m->net.net), net_thread_loop(m->net.net)};
    return r;
}

/* --- set-up --------------------------------------------------------------------------------- */

static void *io_main(void *arg)
{
    struct monitor *m = arg;
    m->io_filter_error = seccomp_enter(SECCOMP_MONITOR);
    (void)sem_post(&m->io_ready);
    if (m->io_filter_error == 0)
        (void)loop_run(&m->io_loop);
    return NULL;
}

static int add_devices(struct engine_params *ep, struct monitor *m, struct err *e)
{
    int r = blk_devices(ep, m->p, &m->io_loop, e);
    if (r < 0)
        return r;
    struct virtio_dev *rng = NULL;
    r = virtio_vsock_new(&m->vsock, PROTO_GUEST_CID);
    if (r == 0)
        r = virtio_rng_new(&rng);
    if (r < 0)
        return err_sys(e, -r, "cannot make devices");
    ep->devices[ep->n_devices++] = (struct engine_device){m->vsock, &m->loop};
    ep->devices[ep->n_devices++] = (struct engine_device){rng, &m->loop};
    struct virtio_dev *balloon = NULL;
    if (m->p->engine->owns_memory && (r = virtio_balloon_new(&balloon)) < 0)
        return err_sys(e, -r, "cannot make devices");
    if (balloon) /* giving memory back takes the host a moment */
        ep->devices[ep->n_devices++] = (struct engine_device){balloon, &m->io_loop};
    if ((r = add_network(ep, m, e)) < 0)
        return r;
    for (size_t i = 0; i < m->p->n_shares; i++)
        ep->devices[ep->n_devices++] = (struct engine_device){
            .loop = &m->loop, .kind = &virtio_fs_ops, .server_fd = m->p->share_fd[i]};
    return 0;
}

static int open_run_directory(struct monitor *m, struct err *e)
{
    m->run_fd = open("/run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    m->logs_fd = m->run_fd < 0 ? -1 : openat(m->run_fd, "logs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->logs_fd < 0)
        return err_sys(e, errno, "cannot open the sandbox's directory");
    (void)snprintf(m->state.engine, sizeof(m->state.engine), "%s", m->p->engine->name);
    (void)save_state(m, m->p->creating ? STATUS_CREATING : STATUS_STARTING);
    int r = ports_save(m->run_fd, m->p->ports.port, m->p->ports.n);
    if (r < 0)
        return err_sys(e, -r, "cannot record the published ports");
    r = exec_log_open(&m->log, m->logs_fd, "exec.log");
    if (r == 0)
        r = exec_log_open(&m->system_log, m->logs_fd, "system.log");
    return r < 0 ? err_sys(e, -r, "cannot open the sandbox's logs") : 0;
}

static int watch_signals(struct monitor *m, struct err *e)
{
    struct sigaction stray = {.sa_sigaction = on_stray_call, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGSYS, &stray, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a disk that may not grow is an error for the guest */
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    m->signals =
        (struct loop_src){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .fn = on_signal};
    int r = m->signals.fd < 0 ? -errno : loop_add(&m->loop, &m->signals, EPOLLIN);
    return r < 0 ? err_sys(e, -r, "cannot watch signals") : 0;
}

static int watch_shares(struct monitor *m)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < m->p->n_shares; i++) {
        m->share[i] = (struct loop_src){.fd = m->p->share_fd[i], .fn = on_share};
        r = loop_add(&m->loop, &m->share[i], EPOLLIN);
    }
    return r;
}

static int start_engine(struct monitor *m, struct err *e)
{
    struct engine_params ep = {
        .memory_bytes = m->spec->memory_mib << 20,
        .n_cpus = (unsigned)MIN(MAX(ceil(m->spec->cpus), 1), m->p->engine->max_cpus),
        .device_fd = m->p->device_fd,
        .kernel_fd = m->p->kernel_fd,
        .null_fd = m->p->null_fd,
        .cpuinfo = m->p->cpuinfo,
        .init = "/init",
        .cpu = m->p->cpu,
        .verbose = verbose(m),
        .jail_dir = "/jail",
    };
    int r = add_devices(&ep, m, e);
    if (r < 0)
        return r;
    r = control_init(&m->control, m->vsock, m->spec, &m->p->host,
                     m->p->upper_fd >= 0 ? "/dev/vdc" : NULL, &control_events, m);
    if (r < 0)
        return err_sys(e, -r, "cannot listen for the agent");
    m->control.host_cas = m->p->host_cas;
    if (m->p->connector_fd >= 0 &&
        (r = vsock_ports_init(&m->vsock_ports, &m->loop, m->vsock, &m->spec->vsocks,
                              m->p->connector_fd, on_connector_lost, m)) < 0)
        return err_sys(e, -r, "cannot listen for the guest's connections to host sockets");
    return m->p->engine->start(&m->engine, &ep, &m->loop, &engine_events, m, e);
}

/* A table of descriptors that has to grow while two threads share it makes the host's kernel wait
 * until no CPU can be looking at the old one: 10 ms and more, in the middle of a boot. So it gets
 * its full size while there is one thread. */
static void reserve_files(int any_fd)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur > INT_MAX)
        return;
    int fd = fcntl(any_fd, F_DUPFD_CLOEXEC, (int)l.rlim_cur - 1);
    close_fd(&fd);
}

static int close_jail(struct monitor *m, struct err *e)
{
    /* What a monitor that was taken over could still use up. Guest memory is mapped shared and is
     * no data. */
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},
        {RLIMIT_DATA, DATA_MAX},
        {RLIMIT_NOFILE, other_files(m) + net_thread_files(&m->spec->net)},
    };
    int r = jail_set_limits(limits, ARRAY_LEN(limits), e);
    if (r < 0 || (r = jail_drop_caps(e)) < 0)
        return r;
    reserve_files(m->p->null_fd);
    (void)sem_init(&m->io_ready, 0, 0);
    r = pthread_create(&m->io_thread, NULL, io_main, m);
    if (r != 0)
        return err_sys(e, r, "cannot start the I/O thread");
    while (sem_wait(&m->io_ready) < 0)
        ;
    r = m->io_filter_error;
    if (r < 0)
        return err_sys(e, -r, "cannot install the system call filter of the I/O thread");
    if (m->net.net && (r = net_thread_start(m->net.net, e)) < 0)
        return r;
    /* The guest runs from here on; but nobody listens to it before this thread is behind its
     * filter, too. */
    if (m->p->engine->run && (r = m->p->engine->run(m->engine, e)) < 0)
        return r;
    r = seccomp_enter(SECCOMP_MONITOR);
    return r < 0 ? err_sys(e, -r, "cannot install the system call filter") : 0;
}

static int set_up(struct monitor *m, struct err *e)
{
    int r = monitor_lock_take(m->p->lock_fd);
    if (r < 0)
        return err_sys(e, -r, "another monitor runs this sandbox");
    r = jail_enter_root(e);
    if (r < 0 || (r = open_run_directory(m, e)) < 0)
        return r;
    if ((r = loop_init(&m->loop)) < 0 || (r = loop_init(&m->io_loop)) < 0)
        return err_sys(e, -r, "cannot make an event loop");
    if ((r = watch_signals(m, e)) < 0 || (r = start_engine(m, e)) < 0)
        return r;
    if (m->p->device_fd >= 0)
        (void)close(m->p->device_fd); /* no further machine is made from here */
    (void)relay_init(&m->relay, &m->loop, m->vsock, &m->log, m->p->listen_fd, &relay_events, m);
    if ((r = loop_add(&m->loop, &m->report, EPOLLIN)) < 0)
        return err_sys(e, -r, "cannot watch the launcher");
    if ((r = watch_shares(m)) < 0)
        return err_sys(e, -r, "cannot watch its mounts");
    m->boot_timer.fn = on_boot_timer;
    m->idle_timer.fn = on_idle_timer;
    m->max_timer.fn = on_max_timer;
    m->kill_timer.fn = on_kill_timer;
    m->flush_timer.fn = on_flush_timer;
    m->sync_timer.fn = on_sync_timer;
    loop_timer_set(&m->loop, &m->boot_timer, MS(BOOT_TIMEOUT_MS));
    return close_jail(m, e);
}

void monitor_main(const struct monitor_params *p)
{
    struct err e = {0};
    struct monitor *m = &mon;
    m->p = p;
    m->spec = p->spec;
    m->report = (struct loop_src){.fd = p->report_fd, .fn = on_report};
    m->run_fd = m->logs_fd = -1;
    (void)mallopt(M_ARENA_MAX,
                  1); /* a thread's own arena grows by mprotect, which is not allowed */
    if (set_up(m, &e) < 0) {
        send_report(m, e.code, e.msg, e.hints ? e.hint[0] : "");
        if (m->run_fd >= 0 && !p->creating) {
            (void)snprintf(m->state.reason, sizeof(m->state.reason), "%.255s", e.msg);
            (void)save_state(m, STATUS_CRASHED);
        }
        _exit(1); /* pid 1 of the namespace: whatever was started goes too */
    }
    while (!m->loop.stop && loop_turn(&m->loop, -1) == 0)
        if ((buf_len(&m->log.w.pending) || buf_len(&m->system_log.w.pending)) &&
            m->flush_timer.at_ns == 0)
            loop_timer_set(&m->loop, &m->flush_timer, MS(LOG_FLUSH_MS));
    note_reason(m, true, "the monitor's event loop failed");
    end(m);
}
