/* Unix sockets by path. */
#ifndef MSB_UTIL_SOCK_H
#define MSB_UTIL_SOCK_H

/* A stream socket that listens at `path`, which nothing has yet; only we may connect to it. Close
 * on exec, non-blocking. -errno. Changes the process's umask for a moment. */
int listen_at(const char *path, int backlog);

/* Sends a descriptor along with one byte. */
int sock_send_fd(int sock, int fd);
/* Takes one that was sent so. -EAGAIN: nothing there now; -EPIPE: the other end is closed; -EPROTO:
 * something else came. Does not block. */
int sock_recv_fd(int sock);

#endif
