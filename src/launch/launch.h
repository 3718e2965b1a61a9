/* Starting a sandbox, on the caller's side of the jail.
 *
 * All of src/launch runs with the caller's rights: it opens, binds and locks what a sandbox needs
 * and is entitled to, so that the monitor (src/monitor), which is jailed, opens nothing of the host
 * by itself. struct monitor_params (monitor/params.h) is all that crosses, and the only other link
 * is the socket on which the monitor reports.
 *
 *     msb ──fork──▶ (janitor) ──fork──▶ stage ──unshare, fork──▶ monitor
 *       └───fork──▶ share servers, connector (helper.h)
 *
 * The stage creates the namespaces, whose id maps msb writes, and exits: so the monitor is pid 1 of
 * its namespaces, in its own session, without any other of its caller's descriptors. The janitor
 * exists for ephemeral sandboxes only: it stays outside the jail and deletes the sandbox's
 * directory when the monitor has ended, however it ended. Helpers keep the caller's identity, but
 * are confined in other ways. Where the host refuses namespaces, all of this is done again without
 * them (jail/reduced.h), unless the sandbox insists on its full jail.
 */
#pragma once

#include "engine/engine.h"
#include "launch/intercept.h"
#include "monitor/params.h"
#include "spec/spec.h"
#include "store/store.h"
#include "util/err.h"

struct launch {
    int report_fd;
    unsigned n_cpus; /* that the guest has */
    bool reduced;    /* its jail */
    struct intercept intercept;
};

struct launch_options {
    const struct engine_choice *engine;
    bool creating, seal_at_once, stop_when_idle; /* see struct monitor_params */
    bool in_group;                               /* the caller is in the sandbox's cgroup */
    const struct net_tap *tap; /* its network, if msb does not provide it; NULL: none */
    const int *gate;           /* of the workspace (share_gate()); NULL: none */
    warn_fn warn;              /* may be NULL */
    const json_t *limits;      /* see struct monitor_params */
};

/* Opens what the monitor needs and starts it; dirfd is the sandbox's directory. */
int launch_begin(struct launch *l, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, const struct launch_options *opt, struct err *e);
/* Waits until the guest and everything that serves it is up, or reports why not. */
int launch_wait(struct launch *l, struct err *e);
/* Undoes the start of a sandbox that is not acknowledged yet. */
void launch_undo(struct launch *l);
/* Acknowledges it: from now on it runs no matter what happens to the caller. */
int launch_finish(struct launch *l, struct err *e);
/* Ends it instead, unacknowledged: it was started for the caller's own use. */
void launch_dismiss(struct launch *l);
