/* The sandbox's network: the card, the stack behind it and its policy, on a separate thread.
 *
 * Only that thread can create sockets (SECCOMP_NET); it can open no files, which the monitor's
 * other threads can. It never waits for another thread, so a caller waits for at most one turn of
 * its loop.
 *
 *     main loop ── net_thread_call ──▶ net thread: fn(gate) between two turns; the caller waits
 *     main loop ◀── bounded queue ──── net thread: every decision of the gate
 *
 * The queue of decisions holds NET_NOTES_MAX; when the main loop does not keep up, further ones are
 * dropped and counted, so that a guest that floods it uses up neither memory nor time.
 *
 * All functions are for the main thread.
 */
#pragma once

#include "net/gate.h"
#include "spec/net.h"
#include "util/err.h"
#include "util/loop.h"
#include "virtio/device.h"

enum { NET_NOTES_MAX = 256 };

struct net_thread;

/* A decision of the gate (struct gate_decision), copied; valid during the call. */
struct net_note {
    uint64_t at_ns; /* CLOCK_REALTIME of the decision */
    enum gate_what what;
    bool allow, filtered, violation;
    bool has_id;
    struct net_flow_id id;
    char name[POLICY_NAME_MAX]; /* "" = unknown. Chosen by the guest: untrusted */
    char why[POLICY_WHY_MAX];
    uint64_t to_host, to_guest; /* GATE_ENDED: bytes */
    uint64_t ns;                /* GATE_ENDED: how long it lasted */
};

/* Called on the main loop. */
struct net_thread_events {
    void (*decided)(void *ctx, const struct net_note *n);
    /* n decisions were dropped after the last one. */
    void (*missed)(void *ctx, uint64_t n);
    /* The thread's loop failed: the network is gone. */
    void (*failed)(void *ctx, int code);
};

/* Creates loop, card and gate; the thread does not run yet, so that the caller can publish ports
 * (net_thread_gate, net_publish). It uses no network and does not block. Takes what *policy holds,
 * on success. */
int net_thread_new(struct net_thread **ret, const struct gate_config *c, struct policy *policy,
                   struct loop *main_loop, const struct net_thread_events *ev, void *ctx,
                   struct err *e);
/* Flows to hosts that are intercepted (gate_set_hosts) go to the interceptor at the other end of
 * `fd`, which stays the caller's. Call before net_thread_start() only. */
int net_thread_intercept(struct net_thread *t, int fd);
/* Hands the interceptor, before any further flow, a socket over which it will get its new
 * configuration, and the names of the secrets that it may have. `fd` stays the caller's; -1: the
 * interceptor only forgets secrets with other names. -ENOTCONN: there is no interceptor. */
int net_thread_reconfigure(struct net_thread *t, const struct strlist *names, int fd);
bool net_thread_intercepts(const struct net_thread *t);
/* The card and the loop that serves it, for the engine. */
struct virtio_dev *net_thread_device(struct net_thread *t);
struct loop *net_thread_loop(struct net_thread *t);
/* Only before net_thread_start(); later, net_thread_call() passes the gate. */
struct gate *net_thread_gate(struct net_thread *t);

/* Starts the thread, and returns once it has installed its filter. */
int net_thread_start(struct net_thread *t, struct err *e);

/* Runs fn(gate, arg) on the thread, between two turns of its loop, and waits for it. Returns what
 * fn returned, or -ESHUTDOWN when the thread has ended. fn may make only the system calls of
 * SECCOMP_NET. */
typedef int (*net_thread_fn)(struct gate *g, void *arg);
int net_thread_call(struct net_thread *t, net_thread_fn fn, void *arg);

/* Stops the thread, cuts all flows, frees everything; the engine must have released the card. `t`
 * may be NULL. */
void net_thread_free(struct net_thread *t);

/* How many descriptors a sandbox's network may use. */
unsigned net_thread_files(const struct spec_net *n);
