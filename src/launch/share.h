/* The process that serves one host directory, or file, to a guest.
 *
 * It is not the monitor: files must be reached with the rights of whoever called msb, while a
 * monitor that root started is an unused user. And it sees that directory and nothing else, so one
 * share that was taken over does not lead to another, nor to the sandbox's own disk.
 *
 *   namespaces   mount, pid, network, ipc, uts; for an ordinary user also a user namespace, with
 *                that one user in it
 *   files        the share, as a mount of its own that is attached nowhere: nosuid, nodev, noexec,
 *                and read-only if the share is. The root is an empty read-only tmpfs, the current
 *                directory /proc/self/fd, again a mount of its own from which nothing leads up.
 *   rights       no capability but DAC_OVERRIDE and FOWNER; in a user namespace these reach the
 *                user's own files alone, which he could chmod anyway
 *   calls        those of profile `fs`
 *
 * It ends when the other end of its socket is closed, that is, with the monitor, however that dies.
 */
#ifndef MSB_LAUNCH_SHARE_H
#define MSB_LAUNCH_SHARE_H

#include "spec/spec.h"
#include "util/err.h"

#include <sys/types.h>

/* Starts it, on the guest's CPU if that has one (-1: anywhere): the two take turns. *ret_fd becomes
 * a socket that, once share_wait has succeeded, takes the vhost-user socket to serve, listening or
 * connected (sock_send_fd). *ret_stage is a child that share_wait reaps. */
int share_start(const struct spec_mount *m, size_t index, int cpu, int *ret_fd, pid_t *ret_stage,
                struct err *e);
/* Waits until it is ready to serve, or says why it is not. */
int share_wait(int fd, pid_t stage, struct err *e);

#endif
