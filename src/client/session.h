/* The client's end of one exec: from this process's stdio to a command in the sandbox.
 *
 * Streams bytes unchanged both ways, with back-pressure, forwards signals and window size, puts the
 * terminal into raw mode for a tty session and restores it whatever happens.
 */
#pragma once

#include "proto/proto.h"
#include "spec/spec.h"
#include "util/err.h"
#include "util/strlist.h"

#include <stdbool.h>
#include <stdint.h>

struct session_request {
    struct strlist argv;
    struct strlist secrets; /* names, in addition to those of the sandbox; see store/secret.h */
    struct strlist env;     /* K=V, on top of the sandbox's own and of secrets */
    const char *cwd;        /* NULL = the sandbox's */
    const char *user;       /* NULL = the sandbox's */
    struct spec_rlimit rlimits[SPEC_RLIMITS_MAX];
    size_t n_rlimits;
    bool tty;         /* a pty in the guest */
    bool interactive; /* the local terminal is in raw mode; detach keys work */
    bool no_stdin;    /* the command reads /dev/null */
    bool detach;      /* start it, do not wait (run -d) */
    bool all_signals; /* every signal is passed on, to the command's main process only */
    uint16_t port;    /* not 0: stdin and stdout lead to that port in the guest, not to a command */
    uint32_t umask;   /* plus one; 0 = the sandbox's */
    /* Fewer rights than the sandbox's programs have: capabilities that it cannot get, and those
     * that a user other than root keeps (bits by number). */
    uint64_t caps_dropped, caps_ambient;
    bool no_new_privs;
    const void *filter; /* of its system calls (F_FILTER); NULL: none */
    size_t filter_size;
    struct strlist groups; /* additional groups, in place of the sandbox's; none: the sandbox's */
    uint32_t attach;       /* not 0: attach to that session instead of starting a command */
    uint64_t timeout_ms;   /* 0 = none */
    uint8_t detach_keys[8];
    size_t n_detach_keys; /* default: ctrl-] */
    /* May be NULL. Called for another connection when the sandbox refuses because it is going down
     * or has no room (FAIL_STATE): nothing was done, and everything can be resent. Returns the
     * connection, or -errno with *e set; -ETIMEDOUT: it was refused for too long. */
    int (*reconnect)(void *ctx, struct err *e);
    void *reconnect_ctx;
    /* May be NULL: called when the command runs. */
    void (*on_started)(void *ctx);
    void *started_ctx;
    int owner; /* a descriptor that is readable once the command is to be given up, even while our
                * output is full; 0 = none */
};

struct session_result {
    int exit_code; /* what msb exits with: the command's, 128+n, 126/127, 124 */
    bool detached; /* the user detached; the command keeps running */
    bool timed_out;
    bool failed_to_start; /* e says why; exit_code is 126, 127 or 1 */
    enum proto_oom oom;   /* possibly why it failed */
};

/* Runs the request over a connection from sandbox_attach(); owns fd 0/1/2 meanwhile, and restores
 * their modes. The connection is shut down afterwards; the caller closes it. Returns
 *   0, e->code 0    *res has the result. An output whose reader is gone means exit_code 141
 *                   (128 + SIGPIPE): end silently, as a filter does
 *   0, e->code set  the command did not start, timed out, or wrote too much: print e, exit with exit_code
 *   -errno          the connection broke ("sandbox ended while the command ran", ECONNRESET),
 *                   the peer broke the protocol (EPROTO), or our own output cannot be written:
 *                   print e, exit 1
 */
int session_run(int sock, const struct session_request *req, struct session_result *res,
                struct err *e);
