/* How `run` and `exec` run a command: terminal, time limit, resource limits, what to run. */
#ifndef MSB_CLI_SESSION_OPTS_H
#define MSB_CLI_SESSION_OPTS_H

#include "cli/args.h"
#include "client/session.h"
#include "spec/spec.h"
#include "store/store.h"

extern const struct opt session_opts[];

/* Terminal, time limit, detach keys and resource limits; bad ones fail before anything starts. */
int session_request_parse(const struct args *a, struct session_request *q, struct err *e);
void session_request_free(struct session_request *q);

/* What to run when the user gave no command: the sandbox's default command, else its shell on a
 * terminal. Returns 1 when there is something, 0 when there is nothing (the user was warned),
 * -errno. */
int session_default_command(struct session_request *q, const struct sandbox_spec *spec,
                            struct err *e);

/* Connects to the sandbox, runs the command, prints what there is to say; returns msb's exit code.
 * *started: the sandbox was started for it (sandbox_attach). *detached: the user left. */
int session_execute(const struct store *s, const char *name, const struct session_request *q,
                    bool *started, bool *detached);

/* "ctrl-p,ctrl-q" or "ctrl-]" or "x": the bytes to wait for. */
int parse_detach_keys(const char *text, uint8_t keys[8], size_t *n, struct err *e);

#endif
