/* The operations of an OCI runtime. Each is one call of the program; messages are for its user and
 * for the --log of its caller. */
#pragma once

#include "oci/runtime.h"
#include "util/strlist.h"

#include <jansson.h>

struct oci_create {
    const char *id, *bundle;
    const char *pid_file, *console_socket; /* NULL: none */
};
/* The guest is up, and waits for oci_start(). On failure nothing is left. */
int oci_create(struct oci_runtime *rt, const struct oci_create *c, struct err *e);
int oci_start(const struct oci_runtime *rt, const char *id, struct err *e);
/* signal 0: is it there? all: not an error if it has ended. */
int oci_kill(const struct oci_runtime *rt, const char *id, int signal, bool all, struct err *e);
/* force: kills it first, and one that does not exist is gone already. */
int oci_delete(const struct oci_runtime *rt, const char *id, bool force, struct err *e);
int oci_freeze(const struct oci_runtime *rt, const char *id, bool freeze, struct err *e);
/* resources: as linux.resources. */
int oci_update(const struct oci_runtime *rt, const char *id, const json_t *resources,
               struct err *e);
/* A process that was forked by oci_create() is a child until its creator ends; this one waits for
 * it: *code is its exit code. */
int oci_wait(const struct oci_runtime *rt, const char *id, int *code, struct err *e);

struct oci_exec {
    const char *id;
    const json_t *process; /* as `process` of a configuration */
    const char *pid_file, *console_socket;
    bool detach;
};
/* *code: what to exit with, unless it fails. */
int oci_exec(const struct oci_runtime *rt, const struct oci_exec *x, int *code, struct err *e);

/* What `events` prints: what it uses. NULL with *e set, ESRCH when it has ended. */
json_t *oci_usage(const struct oci_runtime *rt, const char *id, struct err *e);
/* What `state` prints, or an entry of `list`; NULL with *e set. */
json_t *oci_state(const struct oci_runtime *rt, const char *id, bool listed, struct err *e);

int pid_file_write(const char *path, pid_t pid, struct err *e);
