/* Processes beside the monitor that keep the identity of whoever called msb, because they reach
 * what is the caller's: host directories (share.h), host sockets (connector.h).
 *
 * Each is started by the launcher, has one socket to the monitor and nothing else of its caller,
 * and namespaces of its own: mount, pid, network, ipc, uts, and for an ordinary user also a user
 * namespace with that one user in it. It then gives up what it does not need, closes a filter and
 * reports. It ends when the other end of its socket is closed, that is, with the monitor, however
 * that dies.
 */
#ifndef MSB_LAUNCH_HELPER_H
#define MSB_LAUNCH_HELPER_H

#include "util/err.h"

#include <sys/types.h>

/* In the new process, which ends with it. `sock` is the helper's end of its socket
 * (SOCK_SEQPACKET). */
typedef void (*helper_main)(int sock, void *arg);

/* Starts one; its current directory is dir_fd (-1: the root). *ret_fd becomes the monitor's end;
 * *ret_stage is a child that helper_wait() reaps. */
int helper_start(helper_main run, void *arg, int dir_fd, int *ret_fd, pid_t *ret_stage,
                 struct err *e);
/* Waits until it is ready, or says why it is not; `what` it is, for the message. */
int helper_wait(int fd, pid_t stage, const char *what, struct err *e);

/* --- for the helper itself --- */

/* Says that it is ready (e->code is 0), or why it is not. Once. */
void helper_report(int sock, const struct err *e);
/* Says why it cannot go on, and ends. */
void helper_fail(int sock, const struct err *e) __attribute__((noreturn));
/* Into an empty read-only root, with /proc/self/fd as the current directory, a mount of its own
 * from which nothing leads up: "5/name" is a name in the directory that descriptor 5 is. */
int helper_enter_nowhere(struct err *e);

#endif
