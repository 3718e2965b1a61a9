/* How `run` and `exec` run a command: terminal, timeout, resource limits, default command. */
#pragma once

#include "cli/core/args.h"
#include "client/session.h"
#include "spec/spec.h"
#include "store/store.h"

extern const struct opt_group session_group;

/* Terminal, timeout and resource limits; bad values fail before anything starts. */
int session_request_parse(const struct args *a, struct session_request *q, struct err *e);
void session_request_free(struct session_request *q);

/* For when no command was given: the sandbox's default command, or its shell on a terminal. Returns
 * 1, 0 if there is nothing to run (the user was warned), or -errno. */
int session_default_command(struct session_request *q, const struct sandbox_spec *spec,
                            struct err *e);

/* Connects to the sandbox, runs the command, reports failures; returns msb's exit code.
 * *started: the sandbox was started for it (sandbox_attach). *detached: the user detached. */
int session_execute(const struct store *s, const char *name, const struct session_request *q,
                    bool *started, bool *detached);

/* clang-format off */
#define DETACH_KEYS_OPTION \
    {"detach-keys", 0, "KEYS", "Keys that detach from an interactive command (default: ctrl-])"}
/* clang-format on */
/* "ctrl-p,ctrl-q", "ctrl-]" or "x", as the bytes to wait for. */
int parse_detach_keys(const char *text, uint8_t keys[8], size_t *n, struct err *e);
int detach_keys_option(const struct args *a, struct session_request *q, struct err *e);
