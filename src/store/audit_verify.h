/* Checks the chain of the audit log (audit_chain.h).
 *
 * It can detect that a record was changed, removed, inserted or moved, and that the newest ones
 * were cut off. Anyone who can write both audit.log and audit.head can compute a new chain, or
 * truncate both: only a mark kept elsewhere reveals that.
 */
#pragma once

#include "store/audit_chain.h"

enum { AUDIT_PROBLEMS_MAX = 20 }; /* that are described; all are counted */

struct audit_problem {
    char file[16];
    uint64_t line; /* 0: none in particular */
    uint64_t seq;  /* 0: none */
    char what[256];
};

struct audit_check {
    /* The caller's. */
    const struct audit_mark *expect; /* a record that must be there; NULL */
    void (*problem)(void *ctx, const struct audit_problem *p);
    void *ctx;
    /* What was found. */
    uint64_t records, unchained, repaired, problems;
    uint64_t first;         /* the oldest number present; 0: none */
    struct audit_mark last; /* the newest */
    bool cut;               /* a writer was killed; the next one will repair it */
};

/* -errno if a file cannot be read; otherwise c->problems has the result. */
int audit_verify(int home_fd, struct audit_check *c, struct err *e);
