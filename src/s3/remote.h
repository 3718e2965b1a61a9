/* What a bucket holds of a workspace, and its manifest.
 *
 *     PREFIX/PATH                 a file's content, or a link's target; metadata x-amz-meta-msb-*
 *     PREFIX/.msb/manifest.json   all of the workspace, written last, only over the version it was
 *                                 made from
 *     PREFIX/.msb/new/ID          content that will replace an object once the manifest says so
 *
 * A reader that follows the manifest sees a push as a whole or not at all:
 *   - Before objects are added, the manifest names them as pending: they do not count.
 *   - New content of an existing object is staged; the manifest says where, once it counts.
 *   - What is removed is listed as gone, with its ETag: such an object does not count any more.
 *   - After that, objects are replaced and deleted, and the manifest drops what it said about them.
 * A push that died leaves pending names and staged content; the next one of the same workspace
 * finishes or removes them. What belongs to the push of another host is left alone for a day, since
 * it may be under way (S3_MARK).
 *
 * Objects that the manifest does not know, or knows with another ETag, were written by others, and
 * count as files. So were those under a pending name whose metadata has another ID than the push
 * that announced it gives them. Staged content does not count if others have written to the object
 * since it was staged: its ID stands for what it replaces.
 */
#pragma once

#include "s3/tree.h"

struct s3_remote {
    struct s3_tree tree;              /* the files that count */
    struct s3_tree manifest;          /* as it is */
    char manifest_etag[S3_ETAG_SIZE]; /* "" = there is none */
    struct s3_tree pending; /* objects that do not count, and that we may remove once it is certain
                             * that a push has put them there (s3_key_id) */
    struct s3_tree gone, gone_dirs; /* objects that the manifest lists as gone, and that are still
                                     * there: of files, and "DIR/" */
    struct strlist leftover;        /* the same, IDs below .msb/new/ */
    char who[S3_MARK / 2 + 1];      /* our half of a mark */
    int64_t now;                    /* seconds */
    size_t strange;                 /* objects whose names cannot be files */
    uint64_t bytes;
    bool damaged; /* the manifest cannot be read, and is ignored */
    bool lost;    /* it is not the one that was there, or one that has replaced that */
};

/* Is told that the server lists the bucket, and that one request is not enough. */
struct s3_watch {
    s3_more_fn more; /* may be NULL */
    void *ctx;
};

void s3_remote_free(struct s3_remote *r);
#define AUTO_S3_REMOTE CLEANUP(s3_remote_free)

/* dir is the workspace's: it keeps the last manifest that was read or written (s3-manifest.json),
 * so that an unchanged one is not read again, and its half of a mark (s3-mark). theirs: paths whose
 * objects count, whatever is pending; it is sorted. */
int s3_remote_load(struct s3_client *c, const struct s3_config *config, int dir,
                   const struct s3_tree *base, struct strlist *theirs, const struct s3_watch *watch,
                   struct s3_remote *ret, struct err *e);
/* Writes it over the version with the etag ("" = none), and updates the etag. -EEXIST: another
 * client was faster. */
int s3_manifest_write(struct s3_client *c, const struct s3_config *config, int dir,
                      const struct s3_tree *t, char etag[S3_ETAG_SIZE], struct err *e);

/* Makes a lineage, or a push's. */
int s3_random(char out[S3_LINEAGE + 1], struct err *e);

/* That there was one no longer counts. */
void s3_manifest_forget(int dir);

/* -EEXIST: it is not the version with the etag any more. */
int s3_manifest_check(struct s3_client *c, const struct s3_config *config, const char *etag,
                      struct err *e);

/* Our mark, as of now. */
void s3_mark(const struct s3_remote *r, char out[S3_MARK + 1]);
/* Whether it may be the mark of another host's push that is under way. */
bool s3_mark_is_others(const struct s3_remote *r, const char *mark);
/* Whether it is ours, and for half of that time others will not touch what it marks. */
bool s3_mark_is_fresh(const struct s3_remote *r, const char *mark);
/* How the manifest names an object that is gone. */
void s3_gone_name(const char *etag, const char *path, char out[S3_GONE_SIZE]);
/* The path in an entry of the manifest's list. */
const char *s3_gone_path(const char *gone);
/* The mark of an object that is gone; NULL: it is not. */
const char *s3_gone_find(const struct s3_remote *r, const struct s3_entry *object);
/* Drops from base what a push of ours has removed without recording that here: what has that name
 * since is new. It keeps files whose content is not here. 1: some were dropped. */
int s3_forget_gone(const struct s3_remote *r, const struct s3_tree *local, struct s3_tree *base);
/* "MARK PATH"; NULL: the path is not pending. The list is sorted by path. */
char *s3_pending_find(const struct strlist *sorted, const char *path);
void s3_pending_sort(struct strlist *l);

/* What the metadata of an object that a push adds says: it shows that others did not write it. */
enum { S3_KEY_ID = 32 };
void s3_key_id(const char *key, char out[S3_KEY_ID + 1]);
/* The digits of an ID that stand for an ETag; whether an ID has them, or says nothing about it. */
void s3_id_end(const char *etag, char out[S3_ETAG_DIGITS + 1]);
bool s3_id_replaces(const char *id, const char *etag);

/* PREFIX/PATH and PREFIX/.msb/new/ID, which begins with a mark. */
enum { S3_KEY_SIZE = S3_KEY_MAX + 1 };
void s3_key(const struct s3_config *c, const char *path, char out[S3_KEY_SIZE]);
void s3_staged_key(const struct s3_config *c, const char *id, char out[S3_KEY_SIZE]);
