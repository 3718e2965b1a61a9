/* CONFIG and EXEC as the agent uses them: parsed, checked, in one allocation each.
 *
 * The strings are in one arena that belongs to the struct: a two-megabyte argument list takes one
 * allocation, not thousands, and is freed with one call.
 */
#pragma once

#include "proto/proto.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    REQ_RLIMITS_MAX = 16, /* Linux has 16 resources */
    REQ_ARGV_SPARE = 1,   /* free slots before argv[0], for running a script with /bin/sh */
    REQ_ADDRESSES_MAX = 2,
    REQ_RESOLVERS_MAX = 3,
};

struct req_rlimit {
    uint32_t resource;
    uint64_t soft, hard;
};

/* Fields that both messages may have; EXEC overrides CONFIG. */
struct req_common {
    char **env; /* "K=V", in order */
    size_t nenv;
    char *cwd;  /* NULL when absent */
    char *user; /* NULL when absent */
    struct req_rlimit rlimits[REQ_RLIMITS_MAX];
    size_t nrlimits;
};

struct exec_req {
    struct req_common c;
    char **argv; /* NULL-terminated; argv[-REQ_ARGV_SPARE..-1] are free to write */
    size_t argc;
    bool tty, no_stdin;
    uint32_t only; /* of FILES: the one file operation to serve; 0 = all that users may use */
    char *term;    /* NULL when absent */
    uint32_t rows, cols;
    uint32_t port;       /* not 0: in place of a command (proxy.h) */
    uint32_t umask;      /* plus one; 0 = the agent's */
    uint64_t timeout_ms; /* 0 = none */
    uint64_t caps;       /* at most these; UINT64_MAX = whatever the guest leaves */
    uint64_t ambient;    /* those that a user other than root keeps */
    bool no_new_privs;
    const void *filter; /* of system calls, filter_size bytes; NULL: none */
    size_t filter_size;
    char **groups; /* in place of the groups that the guest gives every command */
    size_t ngroups;
    void *arena;
};

struct req_mount {
    char *path;
    uint32_t options;        /* enum proto_mount_option */
    char *tag;               /* of the share */
    char *device;            /* of the disk; with neither, it is a tmpfs */
    char *fstype;            /* of the disk */
    int fd;                  /* of the mounted disk, for freezing it; 0 = none */
    char *file;              /* the one file of the share that is mounted, or NULL */
    uint64_t size;           /* of the tmpfs */
    uint32_t mode, uid, gid; /* of its root; mode 0 = 01777 */
};

struct req_script {
    char *name;
    const uint8_t *body;
    size_t len;
};

struct req_net_address {
    char *ip, *gateway;
    uint32_t bits;
};

/* Texts are checked where they are used. */
struct req_net {
    char *name; /* of the interface; NULL: there is no network */
    uint32_t mtu;
    struct req_net_address address[REQ_ADDRESSES_MAX];
    size_t n_addresses;
    char *resolver[REQ_RESOLVERS_MAX];
    size_t n_resolvers;
    char *host_name;   /* a name for the first gateway, or NULL */
    uint8_t *messages; /* F_NET_MESSAGES */
    size_t messages_len;
};

#define OWN_PIDS UINT32_MAX

struct config {
    struct req_common c;
    char *hostname; /* NULL when absent, like the next two */
    char *lower, *upper;
    uint64_t upper_size;
    bool upper_grow, upper_volatile;
    struct req_mount *mounts; /* parents first */
    size_t nmounts;
    struct req_script *scripts;
    size_t nscripts;
    char **dirs; /* created when missing */
    size_t ndirs;
    char **writable; /* if there are any, everything else is read-only */
    size_t nwritable;
    uint64_t caps; /* the most that root may have */
    bool no_new_privs, read_only;
    uint32_t pids_max; /* 0 = no limit */
    char **groups;     /* additional groups for every command */
    size_t ngroups;
    char **sysctls; /* "K=V" */
    size_t nsysctls;
    char **masked, **fixed; /* see F_MASK, F_FIXED */
    size_t nmasked, nfixed;
    int tools_fd, pod_fd; /* of a pod: the first root, and the share of its containers; else 0 */
    /* CONTAINER */
    char *tree;                /* NULL in CONFIG */
    uint32_t options, pids_of; /* F_PIDS_OF, or OWN_PIDS */
    char **limits;
    size_t nlimits;
    uint32_t stop_signal; /* 0 = SIGTERM */
    char *thp;            /* for transparent_hugepage/enabled; NULL = as it is */
    char *init;           /* PID 1 of the commands: a path, or "auto"; NULL = the agent */
    char **init_args, **init_env;
    size_t ninit_args, ninit_env;
    char *host_cas; /* PEM, or NULL */
    struct req_net net;
    void *arena;
    void *env_arena; /* of c.env, once that has changed */
};

/* The root is a share: whatever is written to it ends up on the host. */
static inline bool config_shares_root(const struct config *c)
{
    return c->tree ||
           (!c->lower && c->nmounts > 0 && c->mounts[0].tag && strcmp(c->mounts[0].path, "/") == 0);
}

/* Each returns 0, -EPROTO (malformed) or -ENOMEM; on failure the struct is empty. */
int exec_req_parse(struct exec_req *q, const struct proto_frame *f);
/* FILES has some of EXEC's fields, and no command. */
int files_req_parse(struct exec_req *q, const struct proto_frame *f);
void exec_req_free(struct exec_req *q);
int config_parse(struct config *c, const struct proto_frame *f);
void config_free(struct config *c);
/* ENV: changes the variables of new commands. 0, -EPROTO or -ENOMEM: nothing has changed. */
int config_change_env(struct config *c, const struct proto_frame *f);
/* Whether sealing the guest takes anything away from programs. */
bool config_is_restricted(const struct config *c);
/* Whether something is mounted exactly there. */
bool config_mounts(const struct config *c, const char *path);
