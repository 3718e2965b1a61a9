/* Starting a command.
 *
 * The child shares the agent's memory until it has called execve (clone with CLONE_VM and
 * CLONE_VFORK): copying page tables is the dearest part of a fork, and dearer still in a user-mode
 * kernel. The price is a discipline, kept in spawn.c: the child makes system calls and nothing
 * else, writes only to memory set aside for it, and the agent has no signal handlers at all.
 */
#ifndef MSB_AGENT_SPAWN_H
#define MSB_AGENT_SPAWN_H

#include "agent/request.h"
#include "agent/users.h"
#include "proto/proto.h"

#include <sys/types.h>

struct spawn_req {
    char **argv; /* argv[-1] may be overwritten, see REQ_ARGV_SPARE */
    char **envp;
    const char *path; /* PATH to look argv[0] up on */
    const char *cwd;
    const struct identity *id;
    const struct req_common *limits[2]; /* rlimits, applied in this order; entries may be NULL */
    int fd[3];                          /* become 0, 1, 2; none of them may be below 3 */
    bool tty;                           /* fd[0] becomes the controlling terminal */
};

/* The child's pid: a session leader, its own process group. Or -errno, with *kind and *err saying
 * what the client is told. */
pid_t spawn(const struct spawn_req *q, enum proto_fail *kind, struct err *err);

/* Makes this process, a child of the agent's, the user's; -1 with errno set. */
int spawn_identity(const struct identity *id);

#endif
