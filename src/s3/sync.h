/* Workspaces whose files are kept in a bucket: the local side, workspaces/NAME/data, is an ordinary
 * directory, and a sync makes it and the bucket the same.
 *
 *     $MSB_HOME/workspaces/NAME/s3.json       where the bucket is (config.h)
 *                               s3-base.json  what both sides had after the last sync (tree.h)
 *                               s3-manifest.json  the bucket's manifest, as last seen (remote.h)
 *                               s3-mark       what tells our unfinished pushes from others' (remote.h)
 *                               s3-uploads/   uploads in parts that are not finished (resume.c)
 *                               s3-tmp/       a sync's work in progress; removed by the next one
 *                               s3-later      there may be files whose content is not here yet; not empty:
 *                                             also directories whose entries are not
 *                               s3-fetched    what has been learned about contents since (work.h)
 *
 * What changed on one side goes to the other. If a file changed on both, both versions are kept:
 * the bucket's keeps the name, the local one is renamed and also uploaded, and the user is told. A
 * sync may be killed at any moment: each file is either old or new, so is the bucket's manifest
 * (remote.h), and the next sync continues from there.
 *
 * A separate process does it, which parses what the server sends and can open nothing but the
 * workspace's directory and what name lookups and certificates need. The keys are in its memory and
 * nowhere else.
 */
#pragma once

#include "s3/config.h"
#include "store/store.h"

struct s3_counts {
    uint64_t uploaded, downloaded, removed_here, removed_there, conflicts;
    uint64_t bytes_up, bytes_down;
};

/* Called for each path that differs, in a dry run: "upload", "download", "delete-local",
 * "delete-remote" or "conflict". */
typedef void (*s3_differs_fn)(void *ctx, const char *what, const char *path);

/* What is here after a sync. */
enum s3_here {
    S3_HERE_ALL,
    S3_HERE_NAMES, /* contents are fetched on demand */
    S3_HERE_MARKS, /* and so do the entries of directories */
};

struct s3_sync {
    bool look; /* dry run: change nothing */
    enum s3_here here;
    bool emptied; /* if the bucket has lost its manifest and files, remove them here, too */
    uint64_t max; /* limit in bytes; 0 = the workspace's own */
    s3_differs_fn differs;
    void *ctx;
    warn_fn warn;
    /* Called if the bucket exists and is readable, listing it takes several requests, and the local
     * files cannot be in conflict with it. */
    void (*goes_on)(void *ctx);
    /* Not 0: a socket; when its other end is closed, the sync is no longer wanted: -ECANCELED. */
    int until;
    struct s3_counts counts; /* out */
};

/* 0 = the workspace is not in a bucket, or has been synced; 1 with `*is_remote`. */
int s3_workspace_sync(const struct store *s, const char *name, struct s3_sync *how, bool *is_remote,
                      struct err *e);
/* Checks that the bucket can be used and what its server can do; sets c->conditional. */
int s3_workspace_probe(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                       struct err *e);
/* Fetches contents that were left for later, as a share server asks for them on `sock`
 * (util/later.h). Returns once the server has not asked for a while, or is gone; failures reported
 * to it become warnings. -EIO: the fetching process died, and requests may be lost. */
int s3_workspace_fetch(const struct store *s, const char *name, int sock, warn_fn warn,
                       struct err *e);
/* Whether the last sync left some of that out. */
bool s3_workspace_lacks(int dirfd, enum s3_here here);
/* Whether it has been synced at least once. */
bool s3_workspace_is_filled(int dirfd);
