/* The client's end of one exec: from this process's stdio to a command in the sandbox.
 *
 * Streams both ways byte-faithfully with back-pressure, forwards signals and window size, puts
 * the terminal into raw mode for a tty session and restores it whatever happens.
 */
#ifndef MSB_CORE_SESSION_H
#define MSB_CORE_SESSION_H

#include "core/spec.h"
#include "util/err.h"
#include "util/strlist.h"

#include <stdbool.h>
#include <stdint.h>

struct session_request {
    struct strlist argv;
    struct strlist env; /* K=V, on top of the sandbox's own */
    const char *cwd;    /* NULL = the sandbox's */
    const char *user;   /* NULL = the sandbox's */
    struct spec_rlimit rlimits[SPEC_RLIMITS_MAX];
    size_t n_rlimits;
    bool tty;            /* a pty in the guest */
    bool interactive;    /* the local terminal is in raw mode; detach keys work */
    bool no_stdin;       /* the command reads /dev/null */
    bool detach;         /* start it, do not wait (run -d) */
    uint64_t timeout_ms; /* 0 = none */
    uint8_t detach_keys[8];
    size_t n_detach_keys; /* default: ctrl-] */
};

struct session_result {
    int exit_code; /* what msb exits with: the command's, 128+n, 126/127, 124 */
    bool detached; /* the user left; the command lives on */
    bool timed_out;
    bool failed_to_start; /* e says why; exit_code is 126, 127 or 1 */
};

/* Runs the request over a connection from sandbox_attach(); owns fd 0/1/2 meanwhile. Returns 0
 * with *res filled in, or -errno when the connection broke ("sandbox ended while the command
 * ran"). A command that did not start, or timed out, is 0 with e set: print it. */
int session_run(int sock, const struct session_request *req, struct session_result *res,
                struct err *e);

#endif
