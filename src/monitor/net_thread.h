/* The sandbox's network: the card, the stack behind it and its policy, on a thread of their own.
 *
 * That thread alone can make sockets (SECCOMP_NET); it has no files, and the monitor's other
 * threads have no sockets. Nothing on it ever waits for another thread, so whoever waits for it
 * waits for one turn of its loop at most.
 *
 *     main loop ── net_thread_call ──▶ net thread: fn(gate) between two turns; the caller waits
 *     main loop ◀── bounded queue ──── net thread: every decision of the gate
 *
 * The queue of decisions holds NET_NOTES_MAX; when the main loop does not keep up, further ones
 * are dropped and counted: a guest that floods gets no memory for it, and no attention.
 *
 * All functions are for the main thread.
 */
#ifndef MSB_MONITOR_NET_THREAD_H
#define MSB_MONITOR_NET_THREAD_H

#include "net/gate.h"
#include "spec/net.h"
#include "util/err.h"
#include "util/loop.h"
#include "virtio/device.h"

enum { NET_NOTES_MAX = 256 };

struct net_thread;

/* A decision of the gate (struct gate_decision), as it came over: a copy, good during the call. */
struct net_note {
    uint64_t at_ns; /* CLOCK_REALTIME of the decision */
    enum gate_what what;
    bool allow, filtered;
    bool has_id;
    struct net_flow_id id;
    char name[POLICY_NAME_MAX]; /* "" = none is known. A guest's bytes: not to be trusted */
    char why[POLICY_WHY_MAX];
    uint64_t to_host, to_guest; /* GATE_ENDED: bytes */
    uint64_t ns;                /* GATE_ENDED: how long it lasted */
};

/* Called on the main loop. */
struct net_thread_events {
    void (*decided)(void *ctx, const struct net_note *n);
    /* So many decisions were dropped after the one that came last. */
    void (*missed)(void *ctx, uint64_t n);
    /* The thread's loop failed: there is no network any more. */
    void (*failed)(void *ctx, int code);
};

/* Makes loop, card and gate; the thread does not run yet. Published ports are net_publish()ed by
 * the caller (net_thread_gate) before that. Nothing of the network is touched, so nothing is
 * waited for. Takes what *policy holds, on success. */
int net_thread_new(struct net_thread **ret, const struct gate_config *c, struct policy *policy,
                   struct loop *main_loop, const struct net_thread_events *ev, void *ctx,
                   struct err *e);
/* The card and the loop that serves it, for the engine. */
struct virtio_dev *net_thread_device(struct net_thread *t);
struct loop *net_thread_loop(struct net_thread *t);
/* Before net_thread_start(), and in functions called by net_thread_call(), only. */
struct gate *net_thread_gate(struct net_thread *t);

/* Starts the thread; returns when it is behind its filter. */
int net_thread_start(struct net_thread *t, struct err *e);

/* Runs fn(gate, arg) on the thread, between two turns of its loop, and waits for it. Returns what
 * fn returned, or -ESHUTDOWN when the thread has ended. fn makes no system calls but those of
 * SECCOMP_NET. */
typedef int (*net_thread_fn)(struct gate *g, void *arg);
int net_thread_call(struct net_thread *t, net_thread_fn fn, void *arg);

/* Stops the thread, cuts all flows, frees everything; the engine must have let go of the card.
 * NULL is fine. */
void net_thread_free(struct net_thread *t);

/* Descriptors that a sandbox's network may take. */
unsigned net_thread_files(const struct spec_net *n);

#endif
