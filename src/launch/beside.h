/* Processes beside a sandbox that work for its workspace in a bucket, with the caller's rights.
 * They are detached and outlive the launcher; each ends when the other end of its socket is closed
 * or its work is done.
 */
#pragma once

#include "store/store.h"

struct beside {
    const char *title; /* of the process */
    /* It acts on its caller's behalf and ends soon: it keeps the caller's directory and whole
     * environment. Others keep only the variables needed to find the keys and reach the server. */
    bool deputy;
    void (*run)(const struct store *s, const struct spec_workspace *w, int sock);
};

/* Starts one for the sandbox at dirfd; *ret_fd becomes the other end of the socket. */
int beside_start(const struct beside *b, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, int *ret_fd, struct err *e);
/* In such a process: adds a line to the sandbox's system log, once it has one. */
void beside_log(const char *text);
