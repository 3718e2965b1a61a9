/* The connector: the process that connects to Unix sockets of the host for a guest (--vsock).
 *
 * The monitor cannot: its root is empty, it may run as another user, and it may not create sockets.
 * The connector is a helper (helper.h), so it has the caller's identity. The only files it sees are
 * the directories of these sockets, each as a mount on which no symbolic link is followed, so that
 * someone who can write there cannot redirect it. It can create AF_UNIX sockets, connect them to
 * those names, and pass them on. It never blocks: a full backlog counts as a refusal.
 *
 * It serves the requests of monitor/connector_link.h, which defines the messages.
 */
#pragma once

#include "spec/vsock.h"
#include "util/err.h"

#include <sys/types.h>

/* *ret_fd becomes the monitor's end; *ret_stage is a child that connector_wait() reaps. */
int connector_start(const struct spec_vsock *list, size_t n, int *ret_fd, pid_t *ret_stage,
                    struct err *e);
int connector_wait(int fd, pid_t stage, bool *refused, struct err *e);
