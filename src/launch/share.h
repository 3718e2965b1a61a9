/* The share server: the process that serves one host directory, or file, to a guest.
 *
 * It is not part of the monitor, because it needs the caller's rights, while a monitor started by
 * root runs as an unused user. It sees that directory and nothing else, so a compromised share
 * server reaches neither other shares nor the sandbox's own disk. It is a helper (helper.h), with
 *
 *   files         the share, as a detached mount: nosuid, nodev, noexec, and read-only if the share
 *                 is. The root is an empty read-only tmpfs, the current directory /proc/self/fd.
 *   capabilities  DAC_OVERRIDE and FOWNER only, and CHOWN and FSETID for real owners; in a user
 *                 namespace they apply to nothing but the user's own files
 *   system calls  those of the profile `fs`; for real owners those of `fs_owners`; to have contents
 *                 fetched those of `fs_later`
 */
#pragma once

#include "spec/spec.h"
#include "util/err.h"

#include <sys/types.h>

struct share_place {
    int cpu;      /* the guest's CPU, if it is pinned (-1: any), since the two take turns */
    bool reduced; /* without namespaces (helper.h) */
    bool later;   /* contents may have to be fetched: share_fetch_from() follows */
};

/* Starts it. *ret_fd becomes a socket that, once share_placed() has succeeded, takes the vhost-user
 * socket to serve, listening or connected (sock_send_fd). *ret_stage is a child that share_placed()
 * reaps. */
int share_start(const struct spec_mount *m, size_t index, const struct share_place *place,
                int *ret_fd, pid_t *ret_stage, struct err *e);
/* Sends, before the socket to serve, one on which the server asks for contents that are fetched
 * later (util/later.h), and one on which it reports changes (-1: none); `durable`: an fsync waits
 * for an answer on the latter. */
int share_fetch_from(int fd, int sock, int changes, bool durable);
/* Sends a socket, also before the one to serve: nothing is served until a struct later_answer on it
 * says that the tree is up to date. */
int share_gate(int fd, int sock);
/* Waits until it has its namespaces, or reports why not. */
int share_placed(int fd, pid_t stage, bool *refused, struct err *e);
/* After that: waits until it is ready to serve, or reports why not. */
int share_ready(int fd, bool *refused, struct err *e);
