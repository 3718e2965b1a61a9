/* msb as a server of the Model Context Protocol, on standard input and output.
 *
 * Supports the revision of 2026-07-28, in which each request is self-contained (server/discover),
 * and earlier ones, which begin with `initialize`. Offers tools and nothing else.
 *
 * The client is a program that does what a language model says, so it is trusted with sandboxes but
 * not with the host: it sees only sandboxes that were created through this server (MCP_LABEL),
 * unless configured otherwise; what a sandbox may do (network, mounts, limits) is decided by the
 * user who starts the server, with options that apply to every `create`; no tool takes a host path.
 * How much of the host it may use, and which registries it can make msb contact, is limited
 * (limits.h).
 *
 * One thread. Each call that takes time is a separate process (job.h), so calls run in parallel,
 * and a canceled one ends at once.
 */
#pragma once

#include "store/store.h"

#include <stdbool.h>
#include <stdio.h>

#define MCP_LABEL "msb.mcp"

enum {
    MCP_CALLS_MAX = 64,
    MCP_SANDBOXES_MAX = 1000, /* the largest value of --max-sandboxes */
    MCP_OUTPUT_DEFAULT = 64 * 1024,
    MCP_OUTPUT_MAX = 1 << 20,
    MCP_FILE_MAX = 4 << 20, /* read_file, write_file */
};

/* What one server may use of the host. */
struct mcp_share {
    unsigned sandboxes;
    uint64_t memory_mib;
    double cpus;
};

struct mcp_config {
    int (*msb)(int argc, char **argv); /* the command line, to be run in a child */
    bool (*msb_failed)(void); /* there: msb failed itself, so the code is not its command's */
    const struct store *store;
    const char *image;          /* the default of `create` */
    const char *const *options; /* for each `create`; NULL-terminated */
    size_t n_options;
    const struct strlist *registries; /* from which the client may have images pulled */
    struct mcp_share most;            /* all sandboxes of this server together */
    struct mcp_share each;            /* a sandbox for which the client asks for nothing else */
    uint64_t lifetime_ms;             /* how long after its start a sandbox is stopped; 0 = never */
    uint64_t id;                      /* of this server: a label of the sandboxes it creates */
    bool all;                         /* all sandboxes, not only those created by this server */
    bool keep;                        /* do not remove them at the end */
};

static inline void mcp_label(const struct mcp_config *c, char *out, size_t size)
{
    (void)snprintf(out, size, MCP_LABEL "=%016llx", (unsigned long long)c->id);
}

/* Serves until standard input ends or a signal arrives; 0, or -errno. */
int mcp_serve(const struct mcp_config *c);
