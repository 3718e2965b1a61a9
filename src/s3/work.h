/* One sync at work: what its parts share. Runs in the process that sync.c makes for it. */
#pragma once

#include "image/oci/digest.h"
#include "s3/plan.h"
#include "s3/remote.h"
#include "s3/sync.h"

#include <pthread.h>
#include <stdatomic.h>

/* "SHA ETAG PATH" of each guessed sum (tree.h) that is known by now. */
#define S3_FETCHED_FILE "s3-fetched"

struct s3_work {
    const struct s3_config *config;
    struct s3_client *client;
    int dir;  /* the workspace's */
    int data; /* the local side */
    int tmp;  /* beside it, for what is under way */
    struct s3_tree base, local;
    struct ignore ignore;
    struct s3_remote remote;
    struct s3_watch watch; /* of the listing */
    struct s3_plan plan;
    int cache;               /* of contents; -1: none */
    uint64_t cache_left;     /* bytes that may be added before it is looked at again */
    struct s3_entry **by_id; /* of base: those that are to be filled */
    size_t n_by_id;
    pthread_rwlock_t base_lock; /* guards base and by_id, which a sync may reload */
    atomic_bool later;          /* contents may come when they are wanted */
    bool lazy;                  /* so may the entries of directories */
    bool fresh;                 /* there has been no sync yet */
    bool unlisted;              /* there are directories whose entries are not here yet */
    bool pushed;                /* something was written to the bucket */
    bool second;                /* not the first pass of this sync */
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
    atomic_int crew; /* threads at work on steps */
    atomic_uint serial;
};

/* Sets the stamp, to now. */
void s3_work_stamp(struct s3_work *w);
/* Adds one, and so many bytes; NULL: none. */
void s3_work_count(struct s3_work *w, uint64_t *n, uint64_t *bytes, uint64_t size);
void s3_work_warn(struct s3_work *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

enum { S3_THREADS = 8 }; /* that make requests */

/* Calls fn for every step, from several threads; the first failure ends it. */
typedef int (*s3_step_fn)(struct s3_work *w, struct s3_step *s, struct err *e);
int s3_work_each(struct s3_work *w, s3_step_fn fn, struct err *e);
/* Whether one more thread may be started to help with a step; it is dismissed at its end. */
bool s3_work_hire(struct s3_work *w);
void s3_work_dismiss(struct s3_work *w);

/* fill.c: contents. That of an object, into a new or marked file; -ESTALE, -ENOENT: it was changed, or
 * is gone. */
struct s3_content {
    struct hasher h;
    int fd;
    const struct timespec *mtime; /* which stays; NULL: it may change */
    uint64_t size;
    char sha[65];
    struct s3_object object;
    char target[S3_TARGET_MAX + 1]; /* the beginning, in case it is a link's */
};
int s3_content_get(struct s3_work *w, const struct s3_entry *of, int fd,
                   const struct timespec *mtime, struct s3_content *ret, struct err *e);
/* cache.c: the same from the cache, and into it. */
bool s3_cache_get(struct s3_work *w, const struct s3_entry *of, int fd, struct s3_content *ret);
void s3_cache_put(struct s3_work *w, const struct s3_content *c);
/* *a becomes a file that is to be filled later. */
void s3_later_plan(struct s3_work *w, struct s3_entry *a);
/* The time of a new file; 0, or less: it stays. */
void s3_set_mtime(int dir, const char *name, int64_t ns);
/* Marks an empty file as that. */
int s3_later_mark(int fd, const struct s3_entry *a);
/* Fills such a file or directory; `known` finds what it is by its id, with a path that is malloc'd. 0 also if
 * somebody else has done it; *filled, which may be NULL, then stays as it is. -ESTALE: it cannot be
 * had any more. */
typedef int (*s3_known_fn)(void *ctx, const char *id, struct s3_entry *ret);
int s3_later_fill(struct s3_work *w, int fd, s3_known_fn known, void *ctx, struct s3_entry *filled,
                  struct err *e);
/* lazy.c: directories that get their entries when somebody looks. */
/* Makes those that base has below `path`, in an empty directory that is marked. */
int s3_list_dir(struct s3_work *w, int fd, const char *path);
/* Whatever is above the path has its entries, and with `itself` what is there, too. */
int s3_list_to(struct s3_work *w, const char *path, bool itself, struct err *e);
/* The same for all that the plan knows of. */
int s3_list_all(struct s3_work *w, struct err *e);
/* Whether this sync can begin by marking the workspace alone: nothing is here yet. */
bool s3_can_be_lazy(const struct s3_work *w);
/* Decides all steps that way. -EOPNOTSUPP: there are no extended attributes; -ENOTEMPTY: something is here by
 * now. */
int s3_plan_lazily(struct s3_work *w);

/* parts.c: the parts of a large file that the request names (util/later.h). told is called with ctx for each
 * that has come; the mark goes with the last one. */
typedef void (*s3_part_fn)(void *ctx);
int s3_part_fill(struct s3_work *w, int fd, const struct later_request *q, s3_known_fn known,
                 s3_part_fn told, void *ctx, struct err *e);
/* fill.c: the file has its content, as sha says; the lock is held. */
int s3_fill_done(struct s3_work *w, int fd, const struct s3_entry *of, const char *sha,
                 const struct timespec *mtime, struct err *e);
int s3_file_lock(int fd, struct err *e);

/* All that the plan knows of. */
int s3_fill_all(struct s3_work *w, struct err *e);
/* In w->base, which has to be indexed before. */
int s3_index_base(struct s3_work *w);
int s3_known_in_base(void *w, const char *id, struct s3_entry *ret);

/* What both sides had after the last sync, with what has been fetched since. */
int s3_base_load(struct s3_work *w, struct err *e);

/* fetch.c: answers share servers (util/later.h), until none has asked for a while. */
int s3_fetch_serve(struct s3_work *w, int sock, int idle_ms, struct err *e);

/* pull.c: brings the local side up to date. push.c: the bucket. */
/* Whether the content may come later, if anything may. */
bool s3_can_wait(const struct s3_step *s);
int s3_pull(struct s3_work *w, struct err *e);
int s3_pull_one(struct s3_work *w, struct s3_step *s, struct err *e);
int s3_push(struct s3_work *w, struct err *e);
/* multipart.c: a file that begins with the S3_PART bytes of `first`. *got, which has its path and its
 * size as far as that is known, gets what was sent. */
int s3_put_parts(struct s3_work *w, const char *key, const struct strlist *meta, int fd,
                 uint8_t *first, struct s3_entry *got, struct err *e);

/* resume.c: an upload that may have been begun by a sync which failed or was killed. */
struct s3_resume {
    int fd; /* its record; -1: there is none */
    struct s3_sent {
        char etag[S3_ETAG_SIZE]; /* "" = not there */
        char sha[65];
    } * part; /* what the server has already */
};
int s3_resume_begin(struct s3_work *w, const char *path, const char *key,
                    const struct strlist *meta, struct s3_upload *up, struct s3_resume *ret,
                    struct err *e);
/* Whether that content need not be sent; `up` then knows it. */
bool s3_resume_has(const struct s3_resume *r, unsigned number, const char *sha,
                   struct s3_upload *up);
/* It was sent. */
void s3_resume_note(const struct s3_resume *r, unsigned number, const char *sha,
                    const struct s3_upload *up);
/* After a failure the record stays, for the next time. */
void s3_resume_end(struct s3_work *w, const char *path, struct s3_upload *up, struct s3_resume *r,
                   int result);
/* Whether one is under way to .msb/new/ID. */
bool s3_resume_staged(struct s3_work *w, const struct s3_step *s, char id[33]);
/* All there are: nobody has a use for them any more. */
void s3_resume_give_up(struct s3_work *w);

/* place.c: single paths below `data`. No link is followed on the way. */
int s3_parent_open(const struct s3_work *w, const char *path, bool make, const char **name);
/* Moves tmp/TMP to the path. What is there and is not `old` (or is to be kept) gets another name.
 * 1: it cannot be there, and the user was told. */
int s3_place(struct s3_work *w, const char *path, const char *tmp, const struct s3_entry *old,
             bool keep_old, struct err *e);
/* Gives what is FROM/HELD, and had that path, a new name beside it: it is a conflict. */
int s3_keep_aside(struct s3_work *w, int from, const char *held, int parent, const char *name,
                  const char *path, struct err *e);
/* Removes what the step says is there; the same holds. */
int s3_unplace(struct s3_work *w, const struct s3_step *s, struct err *e);
/* After a sync that was killed: what may be the only copy of somebody's work comes back. */
int s3_recover(struct s3_work *w, struct err *e);
