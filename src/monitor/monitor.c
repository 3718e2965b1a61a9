#include "monitor/monitor.h"

#include "monitor/internal.h"
#include "monitor/net_thread.h"
#include "util/json.h"
#include "virtio/blk.h"
#include "virtio/net.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* #syscalls:monitor read close sendto recvfrom exit_group fsync openat */

enum { SYNC_DELAY_MS = 500, OOM_SAVE_MS = 1000 };

/* One monitor per process: signal handlers need to find it. */
static struct monitor mon;

/* --- engine events -------------------------------------------------------------------------- */

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
    if (monitor_verbose(m))
        log_engine(m);
    if (m->phase == RUNNING && clean)
        monitor_note_reason(m, false, "the guest powered itself off");
    else if (m->phase != DRAINING || !m->why[0])
        monitor_note_reason(m, true, m->console.panic[0] ? m->console.panic : how);
    monitor_end(m);
}

static void on_console(void *ctx, const char *p, size_t n)
{
    struct monitor *m = ctx;
    exec_log_write(&m->system_log, LOG_SYSTEM, 0, p, n);
    console_note(&m->console, p, n);
    /* It would not come up. Later, any program in the guest could write that line. */
    if (m->console.starved && m->phase == BOOTING)
        monitor_kill(m, true, "this host has no memory left for the guest");
}

/* On any thread. The main loop checks it once the agent is lost; a broken vsock device is on that
 * loop itself. */
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

/* An ephemeral sandbox whose command never came has lost its client: it does not wait forever. */
static void arm_idle(struct monitor *m)
{
    uint64_t limit_ms = m->spec->idle_timeout_ms;
    if (m->spec->ephemeral && !m->had_session)
        limit_ms = EPHEMERAL_WAIT_MS;
    if (limit_ms && m->phase == RUNNING && m->acknowledged && m->relay.n_sessions == 0)
        loop_timer_set(&m->loop, &m->idle_timer, MS(limit_ms));
    else
        loop_timer_off(&m->loop, &m->idle_timer);
}

/* on_agent_sealed() follows, or it fails. */
static void seal(struct monitor *m)
{
    if (control_seal(&m->control))
        loop_timer_set(&m->loop, &m->boot_timer, MS(BOOT_TIMEOUT_MS));
    else
        monitor_kill(m, true, "the agent does not respond");
}

static void on_agent_ready(void *ctx)
{
    struct monitor *m = ctx;
    if (m->why[0]) /* it is being killed */
        return;
    assert(m->phase == BOOTING);
    loop_timer_off(&m->loop, &m->boot_timer);
    m->phase = RUNNING;
    m->state.started_ns = realtime_ns();
    m->running_ns = now_ns();
    exec_log_printf(&m->system_log, "running (engine %s, %" PRIu64 " MiB)", m->p->engine->name,
                    m->spec->memory_mib);
    log_engine(m);
    relay_open(&m->relay);
    monitor_send_report(m, 0, "", "");
    if (m->p->seal_at_once && spec_is_sealed(m->spec))
        seal(m); /* while the launcher reads that */
}

static void on_agent_failed(void *ctx, const char *why)
{
    monitor_kill(ctx, true, why);
}

static void on_agent_pong(void *ctx, uint64_t cookie)
{
    struct monitor *m = ctx;
    relay_pong(&m->relay, cookie);
}

/* A user-mode kernel takes up to 20 ms to power itself off, with nothing left to do. */
static void on_agent_down(void *ctx)
{
    monitor_kill(ctx, false, "the guest powered itself off");
}

static void on_agent_log(void *ctx, const char *line)
{
    struct monitor *m = ctx;
    exec_log_printf(&m->system_log, "agent: %s", line);
}

/* For `msb inspect`. It is the guest's claim, which it may repeat as often as it likes: the state
 * is saved at most once a second, and always when the sandbox ends. */
static void on_agent_oom(void *ctx, uint64_t kills)
{
    struct monitor *m = ctx;
    uint64_t now = now_ns();
    if (kills <= m->state.oom_kills || kills > INT64_MAX)
        return;
    m->state.oom_kills = kills;
    if (!m->acknowledged || m->phase != RUNNING ||
        (m->oom_saved_ns && now - m->oom_saved_ns < MS(OOM_SAVE_MS)))
        return;
    m->oom_saved_ns = now;
    exec_log_printf(&m->system_log, "processes killed: out of memory (limit %lluM, see --memory)",
                    (unsigned long long)m->p->spec->memory_mib);
    (void)state_save(m->run_fd, &m->state);
}

/* A guest whose pid 1 is gone is about to panic or to power off: give it a moment to report how. */
static void on_agent_lost(void *ctx)
{
    struct monitor *m = ctx;
    if (m->phase == DRAINING)
        return;
    relay_refuse(&m->relay);
    loop_timer_set(&m->loop, &m->boot_timer, MS(POWEROFF_SLACK_MS));
}

/* The launcher has accepted it, and it is sealed if it has to be. Its time counts from now on: what
 * came before may have taken long (a workspace's sync), and is not charged to the sandbox. */
static void acknowledge(struct monitor *m)
{
    assert(!m->acknowledged && m->report.fd >= 0);
    int fd = m->report.fd;
    bool recorded = m->phase != RUNNING || monitor_save_state(m, STATUS_RUNNING);
    m->acknowledged = recorded;
    m->report.fd = -1;
    if (recorded)
        (void)send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (recorded && m->phase == RUNNING && m->spec->max_duration_ms)
        loop_timer_by(&m->loop, &m->max_timer, MS(m->spec->max_duration_ms));
    arm_idle(m);
    if (recorded && m->p->creating)
        loop_timer_set(&m->loop, &m->sync_timer, MS(SYNC_DELAY_MS));
    close_fd(&fd);
    if (!recorded)
        monitor_kill(m, true, "its state could not be saved");
}

static void on_agent_sealed(void *ctx)
{
    struct monitor *m = ctx;
    loop_timer_off(&m->loop, &m->boot_timer);
    m->sealed = true;
    if (m->answered && !m->acknowledged && !m->why[0])
        acknowledge(m);
}

static const struct control_events control_events = {
    .ready = on_agent_ready,
    .failed = on_agent_failed,
    .pong = on_agent_pong,
    .sealed = on_agent_sealed,
    .down = on_agent_down,
    .log = on_agent_log,
    .oom = on_agent_oom,
    .lost = on_agent_lost,
};

static void on_boot_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, boot_timer);
    const char *broken = atomic_load(&m->broken_device);
    if (m->phase == RUNNING && m->p->engine->going_down && m->p->engine->going_down(m->engine)) {
        monitor_kill(m, false, "the guest powered itself off"); /* all but the last step */
        return;
    }
    if (m->console.panic[0]) { /* that takes its time where the host is busy */
        monitor_kill(m, true, m->console.panic);
        return;
    }
    char why[160];
    (void)snprintf(why, sizeof(why), "%s%s%s",
                   m->phase == BOOTING ? "the guest did not come up in time" : "the agent died",
                   broken ? "; a device was broken by its driver: " : "", broken ? broken : "");
    monitor_kill(m, true, why);
}

/* --- relay events --------------------------------------------------------------------------- */

/* Longer than any sandbox lives; in nanoseconds it still fits. */
#define LIFE_MAX_MS (100ULL * 365 * 24 * 3600 * 1000)

static int on_touched(void *ctx, uint64_t life_ms, struct err *e)
{
    struct monitor *m = ctx;
    uint64_t lived_ms = (now_ns() - m->running_ns) / MS(1000) * 1000;
    life_ms = MIN(life_ms, LIFE_MAX_MS);
    if (life_ms && m->phase == RUNNING) {
        int r = ceiling_hold_number(&m->ceiling, LIMIT_LIFETIME, lived_ms + life_ms, e);
        if (r < 0)
            return r;
        loop_timer_set(&m->loop, &m->max_timer, MS(life_ms));
    }
    arm_idle(m);
    return 0;
}

/* Accepted from any client, since it only takes rights away. */
static void on_limit(struct monitor *m, const struct proto_frame *f, struct buf *out)
{
    struct err e = {0};
    AUTO_JSON json_t *j = net_control_json(f);
    int r = ceiling_add(&m->ceiling, j, &e);
    uint64_t most = ceiling_most(&m->ceiling, LIMIT_LIFETIME), lived = now_ns() - m->running_ns;
    if (m->phase == RUNNING && most < LIFE_MAX_MS)
        loop_timer_by(&m->loop, &m->max_timer, MS(most) > lived ? MS(most) - lived : 0);
    struct err cut = {0};
    int k = net_control_conform(&m->net, &cut);
    if (r < 0 || k < 0)
        net_control_refuse(out, r < 0 ? -r : -k, r < 0 ? e.msg : cut.msg);
    else
        (void)proto_put(out, PROTO_OK, NULL, 0);
}

static void on_sessions_changed(void *ctx, unsigned n)
{
    struct monitor *m = ctx;
    if (n && m->acknowledged) /* earlier ones are its creator's preparations */
        m->had_session = true;
    arm_idle(m);
    if (n || !m->had_session || m->phase != RUNNING)
        return;
    if (m->spec->ephemeral) /* nothing of it is kept except what is written to the host */
        monitor_stop(m, spec_last_writes_ms(m->spec), "its command ended");
    else if (m->p->stop_when_idle)
        monitor_stop(m, STOP_GRACE_MS, "started for one command, which ended");
}

static void on_stop_request(void *ctx, uint64_t grace_ms)
{
    monitor_stop(ctx, grace_ms, "stopped on request");
}

/* For `msb ps`, `wait` and `attach`. How often is up to the clients that start these commands. */
static void on_background(void *ctx, const struct background_command *c)
{
    struct monitor *m = ctx;
    background_note(&m->background, c);
    int r = background_save(m->run_fd, &m->background);
    if (r < 0)
        exec_log_printf(&m->system_log, "cannot save the list of commands: %s", strerror(-r));
}

static bool on_ping_request(void *ctx, uint64_t cookie)
{
    struct monitor *m = ctx;
    return control_ping(&m->control, cookie);
}

void monitor_count_bytes(const struct monitor *m, struct sandbox_used *u)
{
    for (size_t i = 0; i < m->n_disks; i++) {
        struct blk_stats one;
        virtio_blk_stats(m->disks[i], &one);
        u->read += one.read_bytes;
        u->written += one.written_bytes;
    }
    if (m->net.net) { /* its thread keeps counting */
        const struct virtio_net_stats *n = virtio_net_stats(net_thread_device(m->net.net));
        u->received = __atomic_load_n(&n->rx_bytes, __ATOMIC_RELAXED);
        u->sent = __atomic_load_n(&n->tx_bytes, __ATOMIC_RELAXED);
    }
}

/* (jansson seeds its hash tables from /dev/urandom when it makes its first object, which the filter
 * would not allow; monitor_save_state() has made one before the filter was closed.) */
static char *on_info_request(void *ctx)
{
    struct monitor *m = ctx;
    struct vsock_stats vs;
    struct sandbox_used u = {0};
    vsock_stats(m->vsock, &vs);
    monitor_count_bytes(m, &u);
    AUTO_JSON json_t *j =
        json_pack("{s:i, s:i, s:I, s:{s:I, s:I, s:i}, s:{s:I, s:I}, s:{s:I, s:I}, s:{s:I}}",
                  "sessions", (int)m->relay.n_sessions, "clients", (int)m->relay.n_clients, "execs",
                  (json_int_t)m->relay.n_execs, "vsock", "rx_bytes", (json_int_t)vs.rx_bytes,
                  "tx_bytes", (json_int_t)vs.tx_bytes, "streams", (int)vs.streams, "disk",
                  "read_bytes", (json_int_t)u.read, "write_bytes", (json_int_t)u.written, "net",
                  "rx_bytes", (json_int_t)u.received, "tx_bytes", (json_int_t)u.sent, "guest",
                  "cpu_ns", (json_int_t)MIN(m->control.cpu_ns, (uint64_t)INT64_MAX));
    return j ? json_dumps(j, JSON_COMPACT) : NULL;
}

static bool on_other_request(void *ctx, const struct proto_frame *f, int *fd, struct buf *out)
{
    struct monitor *m = ctx;
    if (f->type == PROTO_LIMIT) {
        on_limit(m, f, out);
        return true;
    }
    if (f->type == PROTO_TREE) {
        monitor_tree(m, f, fd, out);
        return true;
    }
    if (f->type == PROTO_SECRETS)
        control_env(&m->control, f);
    return net_control_request(&m->net, f, fd, out);
}

static const struct relay_events relay_events = {
    .touched = on_touched,
    .sessions_changed = on_sessions_changed,
    .stop = on_stop_request,
    .background = on_background,
    .ping = on_ping_request,
    .info = on_info_request,
    .request = on_other_request,
};

/* --- timers, signals, launcher -------------------------------------------------------------- */

static void on_kill_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, kill_timer);
    exec_log_printf(&m->system_log, "the guest did not power off in time; killing it");
    monitor_kill(m, false, "killed after the grace period");
}

static void on_idle_timer(struct loop_timer *t)
{
    monitor_stop(CONTAINER_OF(t, struct monitor, idle_timer), STOP_GRACE_MS, "idle timeout");
}

static void on_max_timer(struct loop_timer *t)
{
    monitor_stop(CONTAINER_OF(t, struct monitor, max_timer), STOP_GRACE_MS, "maximum duration");
}

static void on_flush_timer(struct loop_timer *t)
{
    struct monitor *m = CONTAINER_OF(t, struct monitor, flush_timer);
    exec_log_flush(&m->log);
    exec_log_flush(&m->system_log);
}

/* An acknowledged sandbox survives a power cut, too; but neither `create` nor the first command
 * waits for the disk. */
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
        monitor_stop(m, STOP_GRACE_MS, "the monitor was asked to end (SIGTERM)");
}

/* The launcher's one byte, or its end. Until then, the sandbox is not announced as running, and may
 * be undone. */
static void on_report(struct loop_src *src, uint32_t events)
{
    struct monitor *m = CONTAINER_OF(src, struct monitor, report);
    char ack;
    ssize_t k = recv(src->fd, &ack, 1, MSG_DONTWAIT);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int fd = src->fd;
    loop_del(&m->loop, src);
    src->fd = fd; /* still to be answered */
    m->answered = true;
    if (k == 1 && ack == MONITOR_END)
        monitor_kill(m, false, "stopped");
    else if (k != 1)
        monitor_kill(m, false, "its creator ended before it was done");
    else if (m->sealed || !spec_is_sealed(m->spec))
        acknowledge(m);
    else if (!m->p->seal_at_once)
        seal(m);
}

/* A share server lives as long as we do. */
static void on_share_lost(struct loop_src *src, uint32_t events)
{
    loop_del(&mon.loop, src);
    monitor_kill(&mon, true, "the process that serves one of its mounts died");
}

static void on_connector_lost(void *ctx)
{
    monitor_kill(ctx, true, "the process that connects to host sockets for it died");
}

static void on_intercept_lost(struct loop_src *src, uint32_t events)
{
    loop_del(&mon.loop, src);
    monitor_kill(&mon, true, "the process that intercepts its TLS connections died");
}

static void on_violated(void *ctx, const char *host)
{
    char why[160];
    (void)snprintf(why, sizeof(why), "a secret was about to go where it may not (%.100s)", host);
    monitor_kill(ctx, true, why);
}

/* A stray system call ends this monitor, and so its guest; readers of the state see that it was
 * killed, and the log says why. (A failed assert() does the same, since its abort() is a stray
 * call.) The call may come from anywhere, even from malloc() on another thread: nothing here may
 * wait for a lock. */
static void on_stray_call(int sig, siginfo_t *si, void *uc)
{
    char line[96];
    (void)snprintf(line, sizeof(line), "monitor: system call %d is not allowed", si->si_syscall);
    exec_log_last_line(&mon.system_log, line);
    if (mon.phase == BOOTING) /* on a vCPU's thread, sending would also end it */
        monitor_send_report(&mon, EPERM, line, "");
    _exit(1);
}

static void on_net_failed(void *ctx, int code)
{
    char why[96];
    (void)snprintf(why, sizeof(why), "its network failed: %s", strerror(code));
    monitor_kill(ctx, true, why);
}

static const struct monitor_handlers handlers = {
    .engine = &engine_events,
    .control = &control_events,
    .relay = &relay_events,
    .share_lost = on_share_lost,
    .connector_lost = on_connector_lost,
    .intercept_lost = on_intercept_lost,
    .violated = on_violated,
    .net_failed = on_net_failed,
    .stray_call = on_stray_call,
};

void monitor_main(const struct monitor_params *p)
{
    struct err e = {0};
    struct monitor *m = &mon;
    m->p = p;
    m->spec = p->spec;
    m->run_fd = m->logs_fd = -1;
    m->report = (struct loop_src){.fd = p->report_fd, .fn = on_report};
    m->signals = (struct loop_src){.fd = -1, .fn = on_signal};
    m->boot_timer.fn = on_boot_timer;
    m->idle_timer.fn = on_idle_timer;
    m->max_timer.fn = on_max_timer;
    m->kill_timer.fn = on_kill_timer;
    m->flush_timer.fn = on_flush_timer;
    m->sync_timer.fn = on_sync_timer;
    (void)mallopt(M_ARENA_MAX, 1); /* another arena would grow by mprotect, which is not allowed */
    if (monitor_setup(m, &handlers, &e) < 0) {
        monitor_send_report(m, e.code, e.msg, e.hints ? e.hint[0] : "");
        if (m->run_fd >= 0 && !p->creating) {
            (void)snprintf(m->state.reason, sizeof(m->state.reason), "%.255s", e.msg);
            (void)monitor_save_state(m, STATUS_CRASHED);
        }
        _exit(1); /* pid 1 of the namespace: whatever was started ends too */
    }
    while (!m->loop.stop && loop_turn(&m->loop, -1) == 0)
        if ((buf_len(&m->log.w.pending) || buf_len(&m->system_log.w.pending)) &&
            m->flush_timer.at_ns == 0)
            loop_timer_set(&m->loop, &m->flush_timer, MS(LOG_FLUSH_MS));
    monitor_note_reason(m, true, "the monitor's event loop failed");
    monitor_end(m);
}
