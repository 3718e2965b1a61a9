/* `process` in config.json, and the file of `exec --process`: what to run, and as whom. */
#pragma once

#include "client/session.h"
#include "spec/spec.h"
#include "util/err.h"

#include <jansson.h>

struct oci_process {
    struct session_request req; /* its strings are here and in the lists */
    char *cwd;
    char user[32]; /* "UID:GID" */
    bool terminal;
    unsigned rows, cols; /* of the terminal; 0 = not given */
    char oom_score[8];   /* oomScoreAdj, as text; "": not given */
};

/* Reads and checks it all; *p is empty before; free it after a failure, too. */
int process_read(struct oci_process *p, const json_t *j, struct err *e);
void process_free(struct oci_process *p);

/* Sets the OOM score from the configuration, for the calling process and what it starts; guests
 * have a higher one (jail_yield_memory()). Without the right to do so, it stays as it is. */
void process_set_oom_score(const struct oci_process *p);

/* Refuses a list in which two entries have the same type. */
int check_twice(const json_t *list, const char *what, struct err *e);

/* Checks that the command exists, over a connection to the sandbox, which it takes. Callers look
 * for "executable file not found" and "permission denied" in the message. */
int process_find_command(const struct oci_process *p, int sock, const char *name, struct err *e);
/* Whether it is in the container's root as seen from the host, which needs no guest. If not, the
 * guest may still have it. */
bool process_is_here(const struct oci_process *p, const struct sandbox_spec *spec);
/* The same words for a command that the guest could not start. */
void process_explain(const struct oci_process *p, int exit_code, struct err *e);

/* A whole JSON file, or stdin (-). Null members are dropped; numbers beyond json_int_t are strings:
 * see oci_number(). */
json_t *oci_json_read(const char *path, struct err *e);
/* The same for its text; path is for messages. */
json_t *oci_json_parse(const char *text, size_t n, const char *path, struct err *e);
/* Reads a number from 0 to 2^64 - 1, exactly. false: it is none. */
bool oci_number(const json_t *v, uint64_t *ret);
/* The same for config.json in a bundle, which is a regular file. */
json_t *oci_config_read(int bundle, struct err *e);
/* Reads a list, which may be missing. */
int oci_read_strings(const json_t *a, const char *what, struct strlist *to, struct err *e);
