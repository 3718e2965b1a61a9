/* Unix sockets by path. */
#ifndef MSB_UTIL_SOCK_H
#define MSB_UTIL_SOCK_H

/* A stream socket that listens at `path`, which nothing has yet; only we may connect to it. Close
 * on exec, non-blocking. -errno. Changes the process's umask for a moment. */
int listen_at(const char *path, int backlog);

#endif
