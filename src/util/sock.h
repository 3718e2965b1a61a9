/* Unix sockets. */
#pragma once

#include "util/err.h"

#include <stddef.h>
#include <sys/types.h>

/* A stream socket that listens at `path`, which must not exist; only our user may connect to it.
 * Close-on-exec, non-blocking. -errno on failure. Changes the process's umask for a moment. */
int listen_at(const char *path, int backlog);

/* A stream connection to it; -errno. */
int connect_at(const char *path);

/* Two connected sockets that keep message boundaries (SOCK_SEQPACKET), close-on-exec. */
int packet_pair(int *ret_here, int *ret_there, struct err *e);
/* Like recv(), but restarted after signals. */
ssize_t packet_receive(int sock, void *to, size_t n);

/* Sends bytes, and a descriptor (-1 = none) with the first of them; returns how many were sent, or
 * -errno. */
ssize_t sock_send_with_fd(int sock, const void *p, size_t n, int fd);
/* Receives bytes and the descriptor that came with them, close-on-exec (-1 = none); does not block.
 * Like recv(), but returns -errno, and -EAGAIN if interrupted. */
ssize_t sock_recv_with_fd(int sock, void *p, size_t n, int *ret_fd);
/* Sends a descriptor along with one byte. */
int sock_send_fd(int sock, int fd);
/* Receives such a descriptor. -EAGAIN: none has arrived; -EPIPE: the other end is closed; -EPROTO:
 * something else arrived. Does not block. */
int sock_recv_fd(int sock);
