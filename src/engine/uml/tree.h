/* The process tree of a user-mode kernel, and the jail around it.
 *
 *     monitor ── reaper: pid 1 of a pid namespace ── kernel ── one stub process per guest process
 *
 * For this engine the jail is the boundary to the host: guest user space can reach all of the
 * guest's memory, so the kernel must be regarded as the attacker. The tree has an empty root (a
 * tmpfs that holds the guest's memory, and so limits it), no network, no capabilities, a strict
 * seccomp filter, and no descriptors except those named here.
 */
#pragma once

#include "engine/engine.h"

#include <sys/types.h>

enum {
    UML_CMDLINE_MAX = 48,
    UML_MEMORY_FD = 4, /* the guest's memory, as the kernel finds it; not in a reduced jail */
};

struct uml_tree {
    pid_t reaper;
    int pidfd;
    int console_fd;                    /* read end, non-blocking */
    int listen_fd[ENGINE_DEVICES_MAX]; /* where the kernel will connect, in device order */
};

/* Starts the tree. argv is the kernel's, NULL-terminated; device i listens at uml_device_path().
 * traced: the kernel uses ptrace, which its filter must allow. */
int uml_tree_start(struct uml_tree *t, const struct engine_params *p, char *const argv[],
                   bool traced, struct err *e);
void uml_device_path(size_t i, char out[16]);
