/* A FUSE server for one host directory (or one file), independent of how requests arrive.
 *
 * Requests are scattered buffers, and so are replies: file data moves by preadv and pwritev
 * straight between the file and the guest's buffers. Everything else is copied once, then checked,
 * then used. The guest's kernel decides permissions (it mounts with default_permissions); we act
 * with the rights of the process, which are those of the user who started msb.
 *
 * Containment:
 *  1. Every object is reached from the root's descriptor, one name at a time; a name is one path
 *     component, checked in every opcode that has one. No symbolic link of the host is followed.
 *  2. Only regular files and directories are ever opened for I/O. Device nodes are neither opened
 *     nor made, and no file gets a set-user-ID bit on the host, unless owners are real.
 *  3. A read-only share refuses every opcode that changes something before any system call, and
 *     opens files for reading only.
 *  4. Inodes, descriptors, open files and remembered owners are all bounded.
 *
 * What the host's files cannot show (owners, set-ID bits) is kept in an extended attribute,
 * `user.msb.override_stat`, or in memory where there are no such attributes (owner.c). With real
 * owners, nothing is emulated: the files are the guest's own, in a directory that other users of
 * the host cannot enter.
 *
 * One thread. The process's current directory must be /proc/self/fd, through which O_PATH
 * descriptors are opened, linked, or asked for attributes; its umask must be 0.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct fuse_server;

/* How long the guest may cache names and attributes. */
enum fuse_cache {
    FUSE_CACHE_AUTO,   /* briefly: changes on the host show up promptly */
    FUSE_CACHE_NONE,   /* not at all: every access asks the server */
    FUSE_CACHE_ALWAYS, /* forever: nothing else changes these files */
};

struct fuse_options {
    int root_fd;      /* O_PATH; belongs to the server if fuse_new succeeds */
    const char *file; /* not NULL: root_fd is a file, shown under this name in an empty directory */
    /* True: there are several trees, found by name in a directory that cannot be listed. root_fd is
     * -1; fuse_tree_add() adds them. more, if not NULL, is called before a name is reported
     * missing. */
    bool many;
    void (*more)(void *ctx);
    void *ctx;
    bool read_only;
    enum fuse_cache cache;
    uint32_t uid, gid; /* how the guest sees the process's own user */
    bool privileged;   /* the process may read and write its files whatever their modes say */
    bool
        real_owners; /* owners and set-ID bits are those of the host's files; needs CHOWN, FSETID */
    uint64_t quota;  /* bytes that the tree may take; 0 = no limit */
    bool later;      /* contents may still be missing from files: see fuse_later_set() */
    unsigned inodes_max, fds_max, files_max; /* 0 = the defaults below */
};

enum {
    FUSE_INODES_MAX = 1 << 20, /* ENFILE beyond */
    FUSE_FDS_MAX = 16384,      /* O_PATH descriptors kept; the oldest are closed, and reopened
                                * later */
    FUSE_FILES_MAX = 8192,     /* open files and directories: EMFILE beyond */
    FUSE_TREES_MAX = 64,       /* ENOSPC beyond */
};

struct fuse_request {
    const struct iovec *out; /* the request */
    unsigned n_out;
    size_t out_len;
    const struct iovec *in; /* room for the reply */
    unsigned n_in;
    size_t in_len;
};

int fuse_new(struct fuse_server **ret, const struct fuse_options *o);
void fuse_free(struct fuse_server *s);
/* The guest is gone, or starts over: drops all its inodes and open files. */
void fuse_reset(struct fuse_server *s);

/* Adds a tree, whose root (O_PATH) is a directory; takes fd in any case. -EEXIST, -ENOSPC. */
int fuse_tree_add(struct fuse_server *s, const char *name, int fd);
/* Makes everything in it unreachable. Open files stay open. */
int fuse_tree_remove(struct fuse_server *s, const char *name);

/* Serves one request. Returns the length of its reply (0: this kind has none), or -EPROTO if it is
 * not a request or leaves no room for a reply. -EINPROGRESS: nothing was done, since a content is
 * still missing; serve it again after fuse_later_event(). */
ssize_t fuse_serve(struct fuse_server *s, const struct fuse_request *q);

/* Sets the socket over which missing contents are fetched (util/later.h), and takes it. Without
 * one, files that lack their content cannot be opened. */
void fuse_later_set(struct fuse_server *s, int sock);
/* The tree is being brought up to date: nothing but the root's attributes is served from it. */
void fuse_gate_shut(struct fuse_server *s);
/* The tree is up to date; or that has failed, and requests fail, too. Serve waiting requests
 * again. */
void fuse_gate_open(struct fuse_server *s, bool failed);
/* Takes the socket on which to report changes: a byte, soon after each change or before a later
 * one. With `far`, an fsync waits for an answer on it: a 32-bit number asks for a sync, and a
 * struct later_answer has its outcome. */
void fuse_tell_changes(struct fuse_server *s, int sock, bool far);
/* That socket has an answer. False: the other end is gone, and the socket is closed. Serve waiting
 * requests again. */
bool fuse_durable_event(struct fuse_server *s);
/* The socket for later contents can be read, or has ended (false). */
bool fuse_later_event(struct fuse_server *s);
