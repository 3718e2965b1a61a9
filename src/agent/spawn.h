/* Starting a command.
 *
 * The child shares the agent's memory until it has called execve (clone with CLONE_VM and
 * CLONE_VFORK): copying page tables is the most expensive part of a fork, even more so in a
 * user-mode kernel. The price is discipline, kept in spawn.c: the child makes system calls and
 * nothing else, writes only to memory set aside for it, and the agent has no signal handlers.
 */
#pragma once

#include "agent/request.h"
#include "agent/users.h"
#include "proto/proto.h"

#include <sys/types.h>

struct spawn_req {
    char **argv; /* argv[-1] may be overwritten, see REQ_ARGV_SPARE */
    char **envp;
    const char *path; /* PATH, where argv[0] is looked up */
    const char *cwd;
    const struct identity *id;
    const struct req_common *limits[2]; /* rlimits, applied in this order; entries may be NULL */
    int fd[3];                          /* become 0, 1, 2; none of them may be below 3 */
    uint32_t umask;                     /* plus one; 0 = unchanged */
    uint64_t drop, ambient;             /* capabilities: given up; kept by a user other than root */
    bool no_new_privs;
    const void
        *filter; /* of its system calls: struct sock_filter[], filter_size bytes; NULL: none */
    size_t filter_size;
    bool tty; /* fd[0] becomes the controlling terminal */
};

/* Returns the pid of the child, which leads its own session and process group; or -errno, with
 * *kind and *e set for the client. */
pid_t spawn(const struct spawn_req *q, enum proto_fail *kind, struct err *e);

/* Switches this process, a child of the agent, to the user; -1 with errno set. */
int spawn_identity(const struct identity *id);
/* Reduces its capabilities to those of the bounding set, as executing a program would. */
int spawn_limit_caps(void);
