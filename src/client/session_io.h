/* This process's stdin, stdout and stderr, used without ever blocking on them.
 *
 * They are inherited: other processes share the open file description, so O_NONBLOCK must not be set
 * on them. What is done instead depends on what they are:
 *   pipe, tty     reopened through /proc/self/fd: our own description, non-blocking
 *   socket        MSG_DONTWAIT
 *   file, device  read and written directly; they do not wait for a peer
 *   otherwise     (no /proc, or a pipe of another user) poll first, and never more than PIPE_BUF
 *                 at once, which a ready pipe accepts as a whole; only a second writer that
 *                 fills the pipe in between can then make us wait for its reader
 * Nothing is changed that would outlive this process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

enum stdio_kind {
    STDIO_CLOSED, /* not open: reads are EOF, writes are discarded */
    STDIO_PLAIN,
    STDIO_OWN, /* own description, non-blocking */
    STDIO_SOCKET,
    STDIO_POLLED,
};

struct stdio {
    int fd;
    enum stdio_kind kind;
    bool is_tty;
    bool is_null; /* /dev/null */
};

/* Never fails: a descriptor that cannot be used is STDIO_CLOSED. */
void stdio_open(struct stdio *s, int fd, bool for_writing);
/* Closes only what stdio_open opened. */
void stdio_close(struct stdio *s);

/* Like readv/writev, but -errno on failure and -EAGAIN instead of waiting. Writing may be partial.
 * No SIGPIPE from sockets; for pipes the caller ignores it. */
ssize_t stdio_read(const struct stdio *s, void *p, size_t n);
ssize_t stdio_writev(const struct stdio *s, const struct iovec *iov, int n);
