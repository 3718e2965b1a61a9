/* Verbs on a sandbox as a whole: create and start (create.c), stop and remove (stop.c), sync
 * (sync.c), requests to a running one (attach.c). Those that change it hold the lock of its name,
 * so that they run one at a time, however many clients there are.
 *
 * Messages are the documented ones; `struct err` is what the CLI prints after "error: ".
 */
#pragma once

#include "spec/spec.h"
#include "store/store.h"

#include <stdbool.h>
#include <stdint.h>

enum { STOP_GRACE_DEFAULT_MS = 10000 };

struct create_options {
    bool replace;              /* stop and remove a sandbox of that name first */
    uint64_t replace_grace_ms; /* the old one's grace period; 0 = kill at once */
    bool stop_when_idle;       /* stops when its last command has ended */
    unsigned said;             /* enum spec_said: the rest of the spec is defaults */
    bool in_group;             /* the caller is in the sandbox's cgroup */
    bool transient;            /* not meant to survive a power cut: no waiting for the disk */
    const struct net_tap
        *tap; /* its network, if msb does not provide it (monitor/params.h); NULL: none */
    /* May be NULL. Called once the guest is up, but before the sandbox is visible, with a
     * connection, which it takes. If it fails, so does the creation. */
    int (*prepare)(void *ctx, int sock, struct err *e);
    void *prepare_ctx;
};

/* Takes a validated spec whose image is resolved (image_digest set). Returns when the first exec
 * would succeed. On failure nothing is left behind. `warn`, if set, is called with one-line
 * warnings for the user (e.g. that this engine runs one CPU). */
int sandbox_create(const struct store *s, struct sandbox_spec *spec,
                   const struct create_options *opt, warn_fn warn, struct err *e);

/* Checks it against the host's policy (policy/rulebook.h) before anything is prepared, and fills in
 * defaults. sandbox_create() checks again. */
int sandbox_check_policy(const struct store *s, struct sandbox_spec *spec,
                         const struct create_options *opt, struct err *e);
/* Refuses a creation that could only fail (EEXIST) before anything is prepared for it. */
int sandbox_check_free(const struct store *s, const struct sandbox_spec *spec, struct err *e);

/* "sandbox still running: cannot start sandbox 'N': already running" (EBUSY) if it is running. */
int sandbox_start(const struct store *s, const char *name, warn_fn warn, struct err *e);
/* Starts a sandbox that stops when its last command has ended; 1 if it is already running. */
int sandbox_start_on_demand(const struct store *s, const char *name, warn_fn warn, struct err *e);

/* Stopping a stopped sandbox succeeds. grace 0 or force: SIGKILL. */
int sandbox_stop(const struct store *s, const char *name, uint64_t grace_ms, bool force,
                 warn_fn warn, struct err *e);

/* Waits for a stop under way; refuses a running sandbox unless force. */
int sandbox_remove(const struct store *s, const char *name, bool force, warn_fn warn,
                   struct err *e);

/* Brings a workspace that was copied into the sandbox back to the host, if it may have changed. A
 * sandbox that is not running is started just for this. Start does this by itself, and so do stop
 * and remove without force. max: 0 = the spec's limit. */
int sandbox_sync(const struct store *s, const char *name, uint64_t max, warn_fn warn,
                 struct err *e);

/* Ping: round trip through monitor and agent, in ns. "sandbox 'N' is not running (status: S);
 * cannot ping" if it is not. Does not count as activity; touch does. */
int sandbox_ping(const struct store *s, const char *name, uint64_t *rtt_ns, struct err *e);
int sandbox_touch(const struct store *s, const char *name, struct err *e);

/* For exec: connects to the sandbox, starting it if it is stopped or crashed. *started is set if
 * this call started it: such a sandbox stops by itself when its last command has ended, and
 * sandbox_release() waits for that. */
int sandbox_attach(const struct store *s, const char *name, warn_fn warn, int *ret_fd,
                   bool *started, struct err *e);
/* The same for a caller that needs the spec: `fn` gets it before anything is started; if it fails,
 * so does the call. */
struct attach_look {
    int (*fn)(void *ctx, const struct sandbox_spec *spec, struct err *e);
    void *ctx;
};
int sandbox_attach_look(const struct store *s, const char *name, const struct attach_look *look,
                        warn_fn warn, int *ret_fd, bool *started, struct err *e);
/* After a session in a sandbox that sandbox_attach() started: returns when it has stopped, or at
 * once if others still run commands in it. */
int sandbox_release(const struct store *s, const char *name, warn_fn warn, struct err *e);
