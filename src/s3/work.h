/* One sync at work: what its parts share. Runs in the process that sync.c makes for it. */
#ifndef MSB_S3_WORK_H
#define MSB_S3_WORK_H

#include "s3/plan.h"
#include "s3/remote.h"
#include "s3/sync.h"

#include <pthread.h>
#include <stdatomic.h>

struct s3_work {
    const struct s3_config *config;
    struct s3_client *client;
    int dir;  /* the workspace's */
    int data; /* the local side */
    int tmp;  /* beside it, for what is under way */
    struct s3_tree base, local;
    struct ignore ignore;
    struct s3_remote remote;
    struct s3_plan plan;
    struct s3_counts counts;
    void (*warn)(void *ctx, const char *text); /* under the lock */
    void *warn_ctx;
    const char *rival; /* "conflict: 'f' was changed ..." */
    char stamp[32];    /* of conflicts: "20260102-030405" */

    pthread_mutex_t lock; /* counts, warn, error */
    struct err *error;    /* the first one */
    int failed;           /* its code */
    atomic_bool cancel;
    atomic_bool again; /* something changed under our hands: the plan is outdated */
    atomic_size_t next;
    atomic_uint serial;
};

/* Sets the stamp, to now. */
void s3_work_stamp(struct s3_work *w);
void s3_work_warn(struct s3_work *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Calls fn for every step, from several threads; the first failure ends it. */
typedef int (*s3_step_fn)(struct s3_work *w, struct s3_step *s, struct err *e);
int s3_work_each(struct s3_work *w, s3_step_fn fn, struct err *e);

/* pull.c: brings the local side up to date. push.c: the bucket. */
int s3_pull(struct s3_work *w, struct err *e);
int s3_push(struct s3_work *w, struct err *e);

/* place.c: single paths below `data`. No link is followed on the way. */
int s3_parent_open(const struct s3_work *w, const char *path, bool make, const char **name);
/* Moves tmp/TMP to the path. What is there and is not `old` (or is to be kept) gets another name.
 * 1: it cannot be there, and the user was told. */
int s3_place(struct s3_work *w, const char *path, const char *tmp, const struct s3_entry *old,
             bool keep_old, struct err *e);
/* Removes what the step says is there; the same holds. */
int s3_unplace(struct s3_work *w, const struct s3_step *s, struct err *e);
/* After a sync that was killed: what may be the only copy of somebody's work comes back. */
int s3_recover(struct s3_work *w, struct err *e);

#endif
