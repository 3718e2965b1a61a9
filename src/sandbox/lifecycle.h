/* Verbs on a sandbox as a whole: create and start (create.c), stop and remove (stop.c), sync (sync.c),
 * requests to a running one (attach.c). Those that change it hold the lock of its name, so that
 * they run one after another however many clients there are.
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
    uint64_t replace_grace_ms; /* how long the old one may take; 0 = kill at once */
    bool stop_when_idle;       /* it stops when its last command has ended */
    unsigned said;             /* enum spec_said: the rest of the spec is defaults */
    bool in_group;             /* the caller is in the cgroup that it belongs in */
    bool transient;            /* not meant to survive a power cut: no waiting for the disk */
    const struct net_tap
        *tap; /* its network, if that is not msb's (monitor/params.h); NULL: none */
    /* May be NULL. Called when the guest is up, before the sandbox can be seen, with a connection
     * that it takes. If it fails, so does the creation. */
    int (*prepare)(void *ctx, int sock, struct err *e);
    void *prepare_ctx;
};

/* Takes a validated spec whose image is resolved (image_digest set). Returns when the first exec
 * would succeed. On failure nothing is left behind. `warn`, if set, is called with one-line
 * warnings for the user (e.g. that this engine runs one CPU). */
int sandbox_create(const struct store *s, struct sandbox_spec *spec,
                   const struct create_options *opt, warn_fn warn, struct err *e);

/* What the host's policy says about it (policy/rulebook.h), before anything is prepared: defaults are
 * filled in. sandbox_create() asks again. */
int sandbox_check_policy(const struct store *s, struct sandbox_spec *spec,
                         const struct create_options *opt, struct err *e);
/* The same refusal, before anything is prepared for a creation that could only fail (EEXIST). */
int sandbox_check_free(const struct store *s, const struct sandbox_spec *spec, struct err *e);

/* "sandbox still running: cannot start sandbox 'N': already running" (EBUSY) when it runs. */
int sandbox_start(const struct store *s, const char *name, warn_fn warn, struct err *e);
/* Starts a sandbox that stops when its last command has ended; 1 when it runs already. */
int sandbox_start_on_demand(const struct store *s, const char *name, warn_fn warn, struct err *e);

/* Stopping a stopped sandbox succeeds. grace 0 or force: SIGKILL. */
int sandbox_stop(const struct store *s, const char *name, uint64_t grace_ms, bool force,
                 warn_fn warn, struct err *e);

/* Waits for a stop under way; refuses a running sandbox unless force. */
int sandbox_remove(const struct store *s, const char *name, bool force, warn_fn warn,
                   struct err *e);

/* Brings a workspace that was copied into the sandbox back to the host, if it may have changed. A
 * sandbox that is not running is started for this alone. Start, and stop and remove without force,
 * do it by themselves. max: 0 = what the spec says. */
int sandbox_sync(const struct store *s, const char *name, uint64_t max, warn_fn warn,
                 struct err *e);

/* Ping: round trip through monitor and agent, in ns. "sandbox 'N' is not running (status: S);
 * cannot ping" when it is not. Does not count as activity; touch does. */
int sandbox_ping(const struct store *s, const char *name, uint64_t *rtt_ns, struct err *e);
int sandbox_touch(const struct store *s, const char *name, struct err *e);

/* For exec: connects to the sandbox, starting it when it is stopped or crashed. *started says
 * that this call started it: such a sandbox stops by itself when its last command has ended, and
 * sandbox_release() waits for that. */
int sandbox_attach(const struct store *s, const char *name, warn_fn warn, int *ret_fd,
                   bool *started, struct err *e);
/* The same for a caller that needs the spec: `fn` sees it before anything is started; if it fails, so
 * does the call. */
struct attach_look {
    int (*fn)(void *ctx, const struct sandbox_spec *spec, struct err *e);
    void *ctx;
};
int sandbox_attach_look(const struct store *s, const char *name, const struct attach_look *look,
                        warn_fn warn, int *ret_fd, bool *started, struct err *e);
/* After a session in a sandbox that sandbox_attach() started: returns when it has stopped, or at
 * once when others still run commands in it. */
int sandbox_release(const struct store *s, const char *name, warn_fn warn, struct err *e);
