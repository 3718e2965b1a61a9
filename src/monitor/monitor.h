/* The monitor: one process per sandbox, which is alive exactly as long as the sandbox runs.
 *
 * It boots the guest, serves its devices, relays clients to the agent, keeps logs and timers, and
 * ends when the guest does, leaving the reason in state.json. It is started by monitor_launch()
 * with everything it will ever need already open; after its jail is closed it can open nothing
 * outside the sandbox's own run/ directory.
 *
 *     booting ──READY──▶ running ──stop/idle/max duration──▶ draining ──▶ ended (stopped)
 *        └────────────────┴── panic, agent or device lost ──────────────▶ ended (crashed)
 */
#ifndef MSB_MONITOR_MONITOR_H
#define MSB_MONITOR_MONITOR_H

#include "engine/engine.h"
#include "image/store/store.h"
#include "monitor/net_setup.h"
#include "spec/spec.h"

enum {
    BOOT_TIMEOUT_MS = 60000,
    POWEROFF_SLACK_MS = 1000,
    STOP_GRACE_MS = 10000,
    EPHEMERAL_WAIT_MS = 30000
};

struct monitor_params {
    const struct sandbox_spec *spec;
    const struct engine_ops *engine;
    int device_fd; /* what the engine needs of the host; -1 = nothing */
    bool creating; /* the sandbox is new: if its creator goes before it is acknowledged, it goes */
    bool stop_when_idle; /* it was started for one command, and goes with the last one */
    int cpu;             /* for the guest; -1 = any */
    const char *cpuinfo;
    int kernel_fd, tools_fd;
    struct image_disk image; /* its files, in order */
    int upper_fd;            /* -1: the writable layer is a tmpfs in the guest */
    int null_fd;
    int lock_fd;   /* of the sandbox's lock file */
    int listen_fd; /* agent.sock, listening */
    int report_fd; /* to the launcher: SOCK_SEQPACKET */
    /* To the processes that serve host directories; they end when these are closed. */
    int share_fd[SPEC_SHARES_MAX];
    size_t n_shares;
    int disk_fd[SPEC_SHARES_MAX]; /* that it mounts, in the order of the spec; locked */
    size_t n_disks;
    int connector_fd;     /* to the process that connects to host sockets; -1 = none is asked for */
    const char *host_cas; /* certificates for the guest to trust, PEM; NULL = none */
    struct net_host host; /* its resolvers, and whether it has IPv6 */
    struct net_ports ports; /* published, bound */
};

/* The launcher's answer to a report that all is well: the sandbox runs, or it has served already.
 */
enum { MONITOR_RUN = 0, MONITOR_END = 1 };

/* What the monitor tells its launcher, once. Only after the launcher's answer (one byte) is the
 * sandbox acknowledged; the monitor records that it runs, and says so with a byte of its own. */
struct monitor_report {
    int code;       /* 0 = ready */
    char text[512]; /* what went wrong */
    char hint[512]; /* last words of the kernel, perhaps */
};

/* Runs the sandbox to its end. Called in a fresh process: pid 1 of its namespaces, the current
 * directory being the sandbox's run/. */
void monitor_main(const struct monitor_params *p) __attribute__((noreturn));

#endif
