/* A background job: a forked process with captured output, which the server does not wait for and
 * can end at any time.
 *
 * The process is msb itself, without an exec: it runs a function, mostly the command line's. When
 * it is killed, the command that it runs in a sandbox ends with its connection. */
#pragma once

#include "util/buf.h"
#include "util/loop.h"

#include <stdbool.h>
#include <sys/types.h>

struct capture {
    struct loop_src src;
    struct buf kept;
    uint64_t total; /* bytes received; those beyond the limit are dropped */
    struct job *job;
};

struct job {
    struct loop *loop;
    pid_t pid;
    struct loop_src exited; /* a pidfd */
    struct capture out, err;
    void (*output)(struct job *j);         /* new output; may be NULL */
    void (*done)(struct job *j, int code); /* it has ended: 128+n for a signal, as in a shell */
};

/* Runs fn(arg) in a child whose standard input is `in` (n bytes; NULL = nothing) and whose exit
 * code is what fn returns. The job belongs to the caller and must stay until done() or job_kill(). */
int job_start(struct job *j, struct loop *l, int (*fn)(void *arg), void *arg, const void *in,
              size_t n, size_t out_max);
/* Ends it; done() will not be called. */
void job_kill(struct job *j);
/* Frees what was captured, after either. */
void job_free(struct job *j);

static inline bool capture_truncated(const struct capture *c)
{
    return c->total > buf_len(&c->kept);
}
