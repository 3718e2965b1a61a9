/* Landlock: a process gives up the files that it could open by name, and the processes that it
 * could signal. It needs no privilege and no namespace, and is a second line where there are
 * neither.
 *
 * What is open already stays usable. Not covered by it: looking at names and attributes (stat), and
 * connecting to Unix sockets by path.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct landlock_grant {
    int fd; /* a directory, with all below it, or a file; O_PATH will do */
    bool write, execute;
};

/* What the host has: a version, 0 = nothing (Linux 5.13; it may be switched off). 6 and newer also
 * keep signals inside. */
int landlock_version(void);

/* From here on the calling thread, and what it starts, can open nothing but what is granted, and
 * signal nothing but what it starts. Sets no_new_privs. -EOPNOTSUPP where the host has nothing. */
int landlock_enter(const struct landlock_grant *grants, size_t n);
