/* What is remembered about a container between calls.
 *
 * Written when it is created, first without a process and what follows from it; everything that
 * changes later is looked up: whether its process lives, whether its command was started (a file
 * appears), whether its group is frozen. So a caller that crashes leaves nothing to repair.
 */
#pragma once

#include "client/session.h"
#include "oci/runtime.h"

#include <jansson.h>
#include <sys/types.h>

enum oci_status { OCI_CREATING, OCI_CREATED, OCI_RUNNING, OCI_PAUSED, OCI_STOPPED };

struct oci_container {
    int dirfd; /* containers/ID */
    char *id;
    json_t *j; /* state.json: bundle, annotations, hooks, groups, ... */
    pid_t pid; /* of the container's process; 0 = none yet */
    enum oci_status status;
};
#define AUTO_CONTAINER CLEANUP(container_close)
#define CONTAINER_NONE \
    {                  \
        .dirfd = -1    \
    }

/* "container 'ID' does not exist" (ENOENT). */
int container_open(const struct oci_runtime *rt, const char *id, struct oci_container *ret,
                   struct err *e);
/* Creates one, without a state yet; EEXIST if the name is taken. */
int container_make(const struct oci_runtime *rt, const char *id, struct oci_container *ret,
                   struct err *e);
void container_close(struct oci_container *c); /* may be called twice */
/* Removes its directory, and nothing else. */
int container_forget(const struct oci_runtime *rt, const char *id, struct err *e);
/* All names, in no particular order. */
int container_list(const struct oci_runtime *rt, struct strlist *ret, struct err *e);

/* Takes `j` in any case, adds the process, and writes state.json. */
int container_save(struct oci_container *c, json_t *j, pid_t pid, struct err *e);
/* Saves the seccomp filter, which later commands (`exec`) get, too. */
int container_save_filter(const struct oci_container *c, const struct session_request *req,
                          struct err *e);
/* *ret has to be freed; NULL: there is none. */
int container_read_filter(const struct oci_container *c, char **ret, size_t *size, struct err *e);
/* Looks up again what may have changed. */
void container_refresh(struct oci_container *c);
const char *oci_status_name(enum oci_status s);

/* What `state` prints and hooks read. NULL: out of memory. */
json_t *container_state(const struct oci_container *c);
