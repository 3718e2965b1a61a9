/* The operations of an OCI runtime. Each is one run of the program; messages are for its user and
 * for its caller's --log. */
#pragma once

#include "oci/runtime.h"
#include "util/strlist.h"

#include <jansson.h>

struct oci_create {
    const char *id, *bundle;
    const char *pid_file, *console_socket; /* NULL: none */
};
/* Boots the guest, which then waits for oci_start(). On failure, nothing is left behind. */
int oci_create(struct oci_runtime *rt, const struct oci_create *c, struct err *e);
int oci_start(const struct oci_runtime *rt, const char *id, struct err *e);
/* signal 0: only checks that it exists. all: no error if it has ended. SIGKILL ends all of its
 * processes in any case, any other signal reaches its command alone. */
int oci_kill(const struct oci_runtime *rt, const char *id, int signal, bool all, struct err *e);
/* force: kills it first; not an error if it does not exist. */
int oci_delete(const struct oci_runtime *rt, const char *id, bool force, struct err *e);
int oci_freeze(const struct oci_runtime *rt, const char *id, bool freeze, struct err *e);
/* resources: like linux.resources. */
int oci_update(const struct oci_runtime *rt, const char *id, const json_t *resources,
               struct err *e);
/* Waits for the process that oci_create() forked, which is a child until its creator ends: *code is
 * its exit code. */
int oci_wait(const struct oci_runtime *rt, const char *id, int *code, struct err *e);

struct oci_exec {
    const char *id;
    const json_t *process; /* like `process` in config.json */
    const char *pid_file, *console_socket;
    bool detach;
};
/* *code: the status to exit with, on success. */
int oci_exec(const struct oci_runtime *rt, const struct oci_exec *x, int *code, struct err *e);

/* What `events` prints: its resource usage. NULL with *e set, ESRCH when it has ended. */
json_t *oci_usage(const struct oci_runtime *rt, const char *id, struct err *e);
/* What `state` prints, or an entry of `list`; NULL with *e set. */
json_t *oci_state(const struct oci_runtime *rt, const char *id, bool listed, struct err *e);

int pid_file_write(const char *path, pid_t pid, struct err *e);
