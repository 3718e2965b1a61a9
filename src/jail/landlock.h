/* Landlock: a process gives up opening files by name, and signaling other processes. It needs no
 * privileges and no namespaces, and is a second line of defense where there are neither.
 *
 * What is already open stays usable. It does not cover names and attributes (stat), or connecting
 * to Unix sockets by path.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct landlock_grant {
    int fd; /* a directory, with all below it, or a file; O_PATH will do */
    bool write, execute;
};

/* The version that the host supports; 0 = none (before Linux 5.13, or disabled). Version 6 and
 * newer also restrict signals. */
int landlock_version(void);

/* From here on the calling thread, and what it starts, can open nothing but what is granted, and
 * signal nothing but what it starts. Sets no_new_privs. -EOPNOTSUPP if the host does not support
 * it. */
int landlock_enter(const struct landlock_grant *grants, size_t n);
