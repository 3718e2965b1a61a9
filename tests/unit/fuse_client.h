/* A FUSE client for tests of the server: requests and replies are scattered over odd buffers, each
 * a heap block of exactly its size, so that a sanitizer sees every byte that is touched outside. */
#pragma once

#include "fuse/fuse.h"

#include <linux/fuse.h>
#include <stdint.h>
#include <sys/stat.h>

struct fuse_client {
    struct fuse_server *s;
    char dir[64]; /* the share's root on the host */
    int dir_fd;
    uint32_t uid, gid; /* the guest's process */
    uint8_t *rep;      /* the last reply, without its header */
    size_t rep_len;
    size_t room; /* for the next reply */
    bool ahead;  /* also where more would be added than was asked for */
};

/* A new directory with a server on it; `o` may be NULL. INIT is done. */
void client_init(struct fuse_client *c, const struct fuse_options *o);
void client_fini(struct fuse_client *c);
/* A file of the host's in the share's root. */
void client_put(const struct fuse_client *c, const char *name, const char *text);
void client_hello(struct fuse_client *c);

/* One request: the opcode's struct and what follows it. Returns the reply's error (0 or -errno). */
int client_call(struct fuse_client *c, uint32_t op, uint64_t node, const void *arg, size_t n,
                const void *more, size_t m);
/* The same with one or two strings behind the struct. */
int client_name(struct fuse_client *c, uint32_t op, uint64_t node, const void *arg, size_t n,
                const char *name, const char *second);
/* Sends bytes as they are; what fuse_serve says. */
ssize_t client_raw(struct fuse_client *c, const void *p, size_t n, size_t room);

/* Each returns an error, or 0 and the answer. */
int client_lookup(struct fuse_client *c, uint64_t dir, const char *name,
                  struct fuse_entry_out *ret);
int client_open(struct fuse_client *c, uint64_t node, uint32_t flags, uint64_t *ret);
int client_create(struct fuse_client *c, uint64_t dir, const char *name, uint32_t flags,
                  uint32_t mode, uint64_t *ret_node, uint64_t *ret_fh);
int client_write(struct fuse_client *c, uint64_t node, uint64_t fh, uint64_t off, const void *p,
                 size_t n);
int client_read(struct fuse_client *c, uint64_t node, uint64_t fh, uint64_t off, size_t n);
int client_release(struct fuse_client *c, uint64_t node, uint64_t fh);
int client_getattr(struct fuse_client *c, uint64_t node, struct fuse_attr *ret);
int client_setattr(struct fuse_client *c, uint64_t node, const struct fuse_setattr_in *in,
                   struct fuse_attr *ret);
int client_mkdir(struct fuse_client *c, uint64_t dir, const char *name, uint32_t mode,
                 uint64_t *ret_node);
void client_forget(struct fuse_client *c, uint64_t node, uint64_t n);
/* Reads all of a directory in small bites; how many entries it has beside "." and "..". jump: only the
 * first of each reply is used. */
unsigned client_count_entries(struct fuse_client *c, uint64_t node, uint32_t op, bool jump);
