/* Three-way comparison: the state at the last sync, the local state now, the bucket's state now.
 * Pure: trees in, steps out. */
#pragma once

#include "s3/tree.h"

enum s3_action {
    S3_KEEP,          /* both sides have the same */
    S3_DOWNLOAD,      /* the bucket has something new; also a directory */
    S3_DELETE_LOCAL,  /* it is gone from the bucket */
    S3_UPLOAD,        /* the local side has something new; also a directory */
    S3_DELETE_REMOTE, /* it is gone locally */
    S3_CONFLICT,      /* both have something new: the bucket's keeps the name, ours is renamed */
    S3_FORGET,        /* neither side has it any more */
};

/* Entries belong to the trees; NULL = not there. */
struct s3_step {
    const char *path;
    enum s3_action action;
    bool ignored; /* locally; the bucket's version stays */
    const struct s3_entry *base, *local, *remote;
    struct s3_entry
        result;   /* what both sides have afterwards, strings not owned; path NULL = nothing */
    char *staged; /* of the result; owned */
};

struct s3_plan {
    struct s3_step *v; /* one for each path, sorted */
    size_t n;
    size_t count[S3_FORGET + 1];
};

int s3_plan_make(const struct s3_tree *base, const struct s3_tree *local,
                 const struct s3_tree *remote, struct ignore *ignore, struct s3_plan *ret,
                 struct err *e);
/* Adds what both sides have afterwards, except what is ignored locally; sorted. */
int s3_plan_results(const struct s3_plan *p, struct s3_tree *to);
void s3_plan_free(struct s3_plan *p);
#define AUTO_S3_PLAN CLEANUP(s3_plan_free)
