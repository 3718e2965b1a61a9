/* Processes beside the monitor that keep the caller's identity, because they access what belongs to
 * the caller: host directories (share.h), host sockets (connector.h).
 *
 * Each is started by the launcher. It keeps one descriptor, its socket to the monitor, and gets its
 * own namespaces: mount, pid, network, ipc, uts, and, for an ordinary user, also a user namespace
 * that maps only that user. In a reduced jail (jail/reduced.h) there are none of these, and
 * Landlock takes their place as far as it can. It then drops the rights it does not need, installs
 * its seccomp filter and reports. It ends when the other end of its socket is closed, that is, with
 * the monitor, however that ends.
 */
#pragma once

#include "jail/seccomp.h"
#include "util/err.h"

#include <stdbool.h>
#include <sys/types.h>

/* Runs in the new process, which ends when it returns. `sock` is the helper's end of its socket
 * (SOCK_SEQPACKET). */
typedef void (*helper_main)(int sock, void *arg);

struct helper_place {
    int dir_fd;   /* the directory that it starts in; -1: the root */
    bool reduced; /* without namespaces */
    bool at_once; /* all namespaces are entered first; it does not report: see helper_reap() */
};

/* Starts one. *ret_fd becomes the monitor's end; *ret_stage is a child that helper_wait() reaps. */
int helper_start(helper_main run, void *arg, const struct helper_place *place, int *ret_fd,
                 pid_t *ret_stage, struct err *e);
/* Waits until it is ready, or reports why not. The message calls it "the process that WHAT".
 * *refused becomes true if the host denies it namespaces. */
int helper_wait(int fd, pid_t stage, const char *what, bool *refused, struct err *e);
/* helper_wait() in two steps: waits until it has all its namespaces except the network's; then
 * until it has that one, too, and is ready. */
int helper_placed(int fd, pid_t stage, const char *what, bool *refused, struct err *e);
int helper_ready(int fd, const char *what, bool *refused, struct err *e);
/* For a helper that reports in another way: waits until it has its namespaces. */
int helper_reap(pid_t stage, const char *what, bool *refused, struct err *e);

/* --- for the helper itself --- */

/* Reports that it is ready (e->code is 0), or why not. Call it once. */
void helper_report(int sock, const struct err *e);
/* Reports why it cannot continue, and exits. */
void helper_fail(int sock, const struct err *e) __attribute__((noreturn));
/* The last step: hides its memory, which is a copy of the caller's, and installs its filter. */
int helper_seal(enum seccomp_profile profile, struct err *e);
/* Enters an empty read-only root. The current directory becomes /proc/self/fd, as a separate mount
 * with no way up: "5/name" is `name` in the directory that descriptor 5 refers to. */
int helper_enter_nowhere(struct err *e);
/* The same without namespaces: there is a way up, which Landlock closes where the host has it. Then
 * nothing can be opened except at or below `fd`. */
int helper_enter_reduced(int fd, bool write, struct err *e);
