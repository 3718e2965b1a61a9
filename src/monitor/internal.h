/* The monitor's state, and the files that share it, by job:
 *
 *     monitor.c   what happens: events of the engine, the agent, clients, timers, the launcher
 *     setup.c     from parameters to a running guest behind a closed jail
 *     stop.c      reasons, reports, recorded state, and the end
 *     trees.c     files of a pod's containers
 */
#pragma once

#include "monitor/ceiling.h"
#include "monitor/console.h"
#include "monitor/control.h"
#include "monitor/exec_log.h"
#include "monitor/net_control.h"
#include "monitor/params.h"
#include "monitor/relay.h"
#include "monitor/vsock_ports.h"
#include "store/store.h"
#include "util/loop.h"
#include "virtio/tap.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define MS(n) ((uint64_t)(n)*1000000ULL)

enum {
    BOOT_TIMEOUT_MS = 60000,
    POWEROFF_SLACK_MS = 1000,
    STOP_GRACE_MS = 10000,
    EPHEMERAL_WAIT_MS = 30000,
};

enum phase { BOOTING, RUNNING, DRAINING };

struct monitor {
    const struct monitor_params *p;
    const struct sandbox_spec *spec;
    enum phase phase;
    struct sandbox_state state;
    uint64_t oom_saved_ns; /* when oom_kills was saved last */
    struct background background;
    int run_fd, logs_fd;

    struct loop loop;    /* vsock, rng, clients, timers */
    struct loop io_loop; /* disks, balloon: their I/O may block */
    pthread_t io_thread;
    sem_t io_ready;                               /* the I/O thread has its filter, or ... */
    int io_filter_error;                          /* ... -errno */
    struct virtio_dev *disks[ENGINE_DEVICES_MAX]; /* for their counters */
    size_t n_disks;
    struct virtio_dev *vsock;
    struct vsock_ports vsock_ports;
    struct net_control net;
    struct tap *tap; /* of a network that msb does not provide; NULL: none */
    struct ceiling ceiling;
    uint64_t running_ns; /* when it started running (now_ns) */
    struct engine *engine;
    struct control control;
    struct relay relay;
    struct exec_log log, system_log;

    struct loop_src signals;
    struct loop_src share[SPEC_SHARES_MAX];
    struct loop_src interceptor;
    struct loop_src report; /* until the launcher has acknowledged */
    bool answered, sealed;  /* by the launcher; the guest, if it has to be: */
    bool acknowledged;      /* ... and the state is saved */
    struct loop_timer boot_timer, idle_timer, max_timer, kill_timer, flush_timer, sync_timer;
    bool had_session;

    struct console console;
    char why[192]; /* why it is ending; the first reason stays */
    bool crashed;
    _Atomic(const char *) broken_device;
};

static inline bool monitor_verbose(const struct monitor *m)
{
    const char *level = m->spec->log_level;
    return level && (strcmp(level, "debug") == 0 || strcmp(level, "trace") == 0);
}

/* --- setup.c --- */

/* How monitor.c handles events from what is set up. Sources and timers in struct monitor have their
 * handlers already. */
struct monitor_handlers {
    const struct engine_events *engine;
    const struct control_events *control;
    const struct relay_events *relay;
    void (*share_lost)(struct loop_src *src, uint32_t events);
    void (*connector_lost)(void *ctx);
    void (*intercept_lost)(struct loop_src *src, uint32_t events);
    void (*violated)(void *ctx, const char *host);
    void (*net_failed)(void *ctx, int code);
    void (*stray_call)(int sig, siginfo_t *si, void *uc);
};

/* Takes the lock, enters the jail, boots the guest and closes the jail. On failure the process must
 * end, which ends whatever was started. */
int monitor_setup(struct monitor *m, const struct monitor_handlers *h, struct err *e);

/* --- stop.c --- */

/* False if it could not be written; the log says why. */
void monitor_count_bytes(const struct monitor *m,
                         struct sandbox_used *u); /* all but the CPU time */
bool monitor_save_state(struct monitor *m, enum status st);
/* Sends a report to the launcher, if it still listens. */
void monitor_send_report(struct monitor *m, int code, const char *text, const char *hint);
/* The first reason stays. */
void monitor_note_reason(struct monitor *m, bool crashed, const char *why);
/* Ends the guest; the engine's `ended` follows. */
void monitor_kill(struct monitor *m, bool crashed, const char *why);
/* Shuts the guest down cleanly, and kills it after the grace period; at once if that is 0. */
void monitor_stop(struct monitor *m, uint64_t grace_ms, const char *why);
/* The guest is gone: the end of the process. */
void monitor_end(struct monitor *m) __attribute__((noreturn));

/* --- trees.c --- */

/* Whether this sandbox is a pod, which may be sent trees. */
bool monitor_has_pod(const struct monitor *m);
/* Handles TREE. *fd came with it, or is -1; it is taken. */
void monitor_tree(struct monitor *m, const struct proto_frame *f, int *fd, struct buf *out);
