/* Values that a command mints when a request needs them: the interceptor asks the process that gave
 * it its secrets (launch/mint.h), over the same socket.
 *
 *     interceptor ── struct mint_ask ──▶ minter: runs the command, one at a time
 *     interceptor ◀── struct mint_answer ── minter
 *
 * The interceptor may be compromised; all it can send is the name of a secret that is bound anyway.
 */
#pragma once

#include "intercept/conn.h"

enum { MINT_VALUE_MAX = 32 * 1024, MINT_RETRY_S = 2 }; /* not more often, after a failure */

struct mint_ask {
    char name[SUBST_NAME_MAX];
};

struct mint_answer {
    char name[SUBST_NAME_MAX];
    int32_t code; /* 0: there is a value */
    uint32_t ttl_s;
    uint32_t n;
    char why[256];
    char value[MINT_VALUE_MAX];
};

/* The interceptor's end. */
struct mint {
    struct loop_src src; /* fd -1: there is no minter */
    struct conn_host *conns;
};
void mint_init(struct mint *m, struct conn_host *conns);
/* Takes the socket, replacing the previous one. Waiting connections ask again. */
int mint_set(struct mint *m, int fd);
/* See conn_host.want. */
int mint_want(struct mint *m, const char *secret, const char **why);
