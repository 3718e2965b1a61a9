/* One call of the OCI runtime: where its containers are kept, and where it reports errors.
 *
 *     ROOT/containers/ID/state.json   what the container is (state.h)
 *                        started      its command has been started
 *                        start.sock   where the container's process waits for that
 *     ROOT/sandboxes/ID/              its sandbox, as anywhere else (store/store.h)
 *
 * The root is a separate store, usually on a tmpfs: containers belong to the program that makes
 * them, do not survive a reboot, and are not in `msb ls`.
 */
#pragma once

#include "store/store.h"
#include "util/err.h"

#include <stdbool.h>

#define OCI_VERSION "1.0.2"

struct oci_globals {
    const char *root;    /* NULL: the default */
    const char *log;     /* a file that errors are appended to; NULL: none */
    int log_fd;          /* that file, once its path is no longer reachable; 0 = none */
    bool log_json;       /* one JSON object a line, as containerd and conmon read it */
    bool systemd_cgroup; /* cgroupsPath is "slice:prefix:name" */
};

struct oci_runtime {
    const struct oci_globals *g;
    struct store store;
    int containers_fd;
};
#define AUTO_OCI CLEANUP(oci_close)
#define OCI_NONE                                 \
    {                                            \
        .store = STORE_NONE, .containers_fd = -1 \
    }

/* Makes the root msb's home, for this process and those it forks. */
int oci_open(struct oci_runtime *rt, const struct oci_globals *g, struct err *e);
void oci_close(struct oci_runtime *rt);

/* Keeps the log open, in a process that is about to leave the host's file system. */
void oci_hold_log(struct oci_globals *g);
/* Appends it to the log, if there is one. */
void oci_log_error(const struct oci_globals *g, const struct err *e);
