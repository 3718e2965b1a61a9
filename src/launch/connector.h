/* The process that connects to sockets of the host for a guest (--vsock).
 *
 * The monitor cannot: its root is empty, it may be another user, and it may not make sockets. This
 * one (helper.h) has the caller's identity, and of all files the directories that hold these
 * sockets, each as a mount of its own on which no symbolic link is followed, so that whoever can
 * write there cannot lead it elsewhere. It can make sockets of the family AF_UNIX, connect them to
 * those names, and pass them on. It does not wait for anybody: a server whose queue is full counts
 * as one that refuses.
 */
#ifndef MSB_LAUNCH_CONNECTOR_H
#define MSB_LAUNCH_CONNECTOR_H

#include "spec/vsock.h"
#include "util/err.h"

#include <sys/types.h>

/* *ret_fd becomes the monitor's end, *ret_stage a child that connector_wait() reaps. */
int connector_start(const struct spec_vsock *list, size_t n, int *ret_fd, pid_t *ret_stage,
                    struct err *e);
int connector_wait(int fd, pid_t stage, struct err *e);

#endif
