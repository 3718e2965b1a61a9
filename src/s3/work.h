/* The state of one sync, shared by its parts. Runs in the process that sync.c creates for it. */
#pragma once

#include "image/oci/digest.h"
#include "s3/plan.h"
#include "s3/remote.h"
#include "s3/sync.h"

#include <pthread.h>
#include <stdatomic.h>

#define S3_BASE_FILE "s3-base.json"
#define S3_NEXT_FILE "s3-next.json" /* what the pull or push under way changes in it */
#define S3_LATER_FILE "s3-later"    /* there may be files whose content is not here */
/* "SHA ETAG PATH" for each guessed hash (tree.h) that is known by now. */
#define S3_FETCHED_FILE "s3-fetched"

struct s3_work {
    const struct s3_config *config;
    struct s3_client *client;
    int dir;  /* the workspace's */
    int data; /* the local side */
    int tmp;  /* beside it, for work in progress */
    struct s3_tree base, local;
    struct ignore ignore;
    struct s3_remote remote;
    struct s3_watch watch; /* of the listing */
    struct s3_plan plan;
    int cache;               /* of contents; -1: none */
    uint64_t cache_left;     /* bytes that may be added before its size is checked again */
    struct s3_entry **by_id; /* of base: those that are to be filled */
    size_t n_by_id;
    pthread_rwlock_t base_lock; /* guards base and by_id, which a sync may reload */
    atomic_bool later;          /* contents may be fetched on demand */
    bool lazy;                  /* so may the entries of directories */
    bool fresh;                 /* there has been no sync yet */
    bool unlisted;              /* there are directories whose entries are not here yet */
    bool pushed;                /* something was written to the bucket */
    bool caught_up;        /* base has changed: an earlier pull or push was not recorded there */
    bool unsettled;        /* the manifest still lists what the push has finished */
    bool second;           /* not the first pass of this sync */
    bool emptied;          /* that the bucket has lost everything is meant */
    struct strlist theirs; /* of all passes: paths where we announced an object, and others
                                 * have put one */
    struct s3_counts counts;
    void (*warn)(void *ctx, const char *text); /* under the lock */
    void *warn_ctx;
    const char *rival; /* "conflict: 'f' was changed ..." */
    char stamp[32];    /* of conflicts: "20260102-030405" */

    pthread_mutex_t lock; /* counts, warn, error, theirs */
    struct err *error;    /* the first one */
    int failed;           /* its code */
    atomic_bool cancel;
    atomic_bool again; /* something changed under us: the plan is outdated */
    atomic_size_t next;
    atomic_int crew; /* threads at work on steps */
    atomic_uint serial;
    atomic_ullong latest_ns; /* when the manifest was last found to be the one that was written */
};

/* Sets the stamp to the current time. */
void s3_work_stamp(struct s3_work *w);
/* Adds one to *n, and `size` to *bytes unless that is NULL. */
void s3_work_count(struct s3_work *w, uint64_t *n, uint64_t *bytes, uint64_t size);
void s3_work_warn(struct s3_work *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

enum { S3_THREADS = 8 }; /* that make requests */

/* Calls fn for every step, from several threads; the first failure stops it. */
typedef int (*s3_step_fn)(struct s3_work *w, struct s3_step *s, struct err *e);
int s3_work_each(struct s3_work *w, s3_step_fn fn, struct err *e);
/* The same for each number below n. */
typedef int (*s3_number_fn)(struct s3_work *w, const void *ctx, size_t i, struct err *e);
int s3_work_numbers(struct s3_work *w, size_t n, s3_number_fn fn, const void *ctx, struct err *e);
/* Whether one more thread may be started to help with a step; dismiss it when it ends. */
bool s3_work_hire(struct s3_work *w);
void s3_work_dismiss(struct s3_work *w);

/* fill.c: writes an object's content into a new or marked file; -ESTALE, -ENOENT: the object was
 * changed, or is gone. */
struct s3_content {
    struct hasher h;
    int fd;
    const struct timespec *mtime; /* which is kept; NULL: it may change */
    uint64_t size;
    char sha[65];
    struct s3_object object;
    char target[S3_TARGET_MAX + 1]; /* the beginning, in case it is a link's */
};
int s3_content_get(struct s3_work *w, const struct s3_entry *of, int fd,
                   const struct timespec *mtime, struct s3_content *ret, struct err *e);
/* cache.c: gets contents from the cache, and puts them into it. */
bool s3_cache_get(struct s3_work *w, const struct s3_entry *of, int fd, struct s3_content *ret);
void s3_cache_put(struct s3_work *w, const struct s3_content *c);
/* Turns *a into a file that will be filled later. */
void s3_later_plan(struct s3_work *w, struct s3_entry *a);
/* Sets the time of a new file; if 0 or less, leaves it alone. */
void s3_set_mtime(int dir, const char *name, int64_t ns);
/* Marks an empty file as such. */
int s3_later_mark(int fd, const struct s3_entry *a);
/* Fills such a file or directory; `known` looks it up by its id, and returns a malloc'd path. 0
 * also if another process has filled it; *filled, which may be NULL, is then unchanged. -ESTALE:
 * its content is no longer available. */
typedef int (*s3_known_fn)(void *ctx, const char *id, struct s3_entry *ret);
int s3_later_fill(struct s3_work *w, int fd, s3_known_fn known, void *ctx, struct s3_entry *filled,
                  struct err *e);
/* lazy.c: directories that get their entries when first accessed. */
/* Creates the entries that base has below `path`, in an empty, marked directory. */
int s3_list_dir(struct s3_work *w, int fd, const char *path);
/* Makes sure that every directory above the path has its entries, and with `itself` also the path
 * itself. */
int s3_list_to(struct s3_work *w, const char *path, bool itself, struct err *e);
/* The same for all paths in the plan. */
int s3_list_all(struct s3_work *w, struct err *e);
/* Whether this sync can begin by only marking the workspace: nothing is here yet. */
bool s3_can_be_lazy(const struct s3_work *w);
/* Decides all steps that way. -EOPNOTSUPP: there are no extended attributes; -ENOTEMPTY: something
 * has appeared here. */
int s3_plan_lazily(struct s3_work *w);

/* parts.c: fetches the parts of a large file that the request names (util/later.h). told is called
 * with ctx for each that has arrived; the last one removes the mark. */
typedef void (*s3_part_fn)(void *ctx);
int s3_part_fill(struct s3_work *w, int fd, const struct later_request *q, s3_known_fn known,
                 s3_part_fn told, void *ctx, struct err *e);
/* fill.c: the file has its content, whose hash is sha; the lock is held. */
int s3_fill_done(struct s3_work *w, int fd, const struct s3_entry *of, const char *sha,
                 const struct timespec *mtime, struct err *e);
int s3_file_lock(int fd, struct err *e);

/* Fills a file or directory that now has another name or mode, and was never read. 1: it is left
 * out. */
int s3_fill_moved(void *w, int fd, const char *path, struct err *e);
/* If the bucket is about to lose what was never fetched: fills it wherever it has been moved or
 * linked to here, also where no scan looks (.msbignore). */
int s3_fill_lost(struct s3_work *w, struct err *e);
/* Fills all files in the plan. */
int s3_fill_all(struct s3_work *w, struct err *e);
/* Finds an id in w->base, which must have been indexed. */
int s3_index_base(struct s3_work *w);
int s3_known_in_base(void *w, const char *id, struct s3_entry *ret);

/* base.c: what both sides had after the last sync, with what has been fetched since. */
int s3_base_load(struct s3_work *w, struct err *e);
/* Whether s3_base_save(), which writes what the plan has led to, would write what is there. */
bool s3_base_is_saved(const struct s3_work *w);
int s3_base_save(const struct s3_work *w, struct err *e);
/* Before a pull, or the manifest of a push: records what it will change there. */
int s3_base_foresee(struct s3_work *w, bool push, struct err *e);
/* Changes base as a pull (whose files have been read here) or push was to do that has died. */
int s3_base_catch_up(struct s3_work *w, bool pulls, struct err *e);

/* fetch.c: answers share servers (util/later.h), until they have not asked for a while. */
int s3_fetch_serve(struct s3_work *w, int sock, int idle_ms, struct err *e);

/* pull.c: brings the local side up to date. push.c: the bucket. */
/* Whether the content may come later, if anything may. */
bool s3_can_wait(const struct s3_step *s);
/* Refuses to remove files here because the bucket was wiped or replaced. */
int s3_check_loss(const struct s3_work *w, struct err *e);
int s3_pull(struct s3_work *w, struct err *e);
int s3_pull_one(struct s3_work *w, struct s3_step *s, struct err *e);
int s3_push(struct s3_work *w, struct err *e);
/* Once the result is recorded here: drops from the manifest what it said about the push. */
int s3_push_end(struct s3_work *w, struct err *e);
/* multipart.c: a file that begins with the S3_PART bytes of `first`. *got, which has its path and,
 * if known, its size, is updated to what was sent. */
int s3_put_parts(struct s3_work *w, const char *key, const struct s3_put *how, int fd,
                 uint8_t *first, struct s3_entry *got, struct err *e);

/* resume.c: an upload that a failed or killed sync may have begun. */
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
/* Whether that part need not be sent again; if so, `up` includes it. */
bool s3_resume_has(const struct s3_resume *r, unsigned number, const char *sha,
                   struct s3_upload *up);
/* Records that it was sent. */
void s3_resume_note(const struct s3_resume *r, unsigned number, const char *sha,
                    const struct s3_upload *up);
/* After a failure, the record stays, for the next attempt. */
void s3_resume_end(struct s3_work *w, const char *path, struct s3_upload *up, struct s3_resume *r,
                   int result);
/* Whether one is under way to .msb/new/ID, to replace the object with the ETag. */
bool s3_resume_staged(struct s3_work *w, const struct s3_step *s, const char *etag,
                      char id[S3_ID + 1]);
/* Gives up all uploads: none is needed any more. */
void s3_resume_give_up(struct s3_work *w);

/* place.c: single paths below `data`. No link is followed on the way. */
int s3_parent_open(const struct s3_work *w, const char *path, bool make, const char **name);
/* Moves tmp/TMP to the path. If something other than `old` is there (or it is to be kept), that is
 * renamed. 1: it cannot be placed there, and the user was told. */
int s3_place(struct s3_work *w, const char *path, const char *tmp, const struct s3_entry *old,
             bool keep_old, struct err *e);
/* Renames a conflicting file: FROM/HELD, which had that path, gets a new name beside it. */
int s3_keep_aside(struct s3_work *w, int from, const char *held, int parent, const char *name,
                  const char *path, struct err *e);
/* Removes what the step says is there; anything else found in its place is renamed. */
int s3_unplace(struct s3_work *w, const struct s3_step *s, struct err *e);
/* After a killed sync: restores what may be the only copy of a user's work. If w->dir is -1, there
 * is no base to compare with, and all of it is restored. */
int s3_recover(struct s3_work *w, struct err *e);
