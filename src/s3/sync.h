/* Workspaces whose files are kept in a bucket: the local side, workspaces/NAME/data, is an ordinary
 * directory, and a sync makes it and the bucket the same.
 *
 *     $MSB_HOME/workspaces/NAME/s3.json       where the bucket is (config.h)
 *                               s3-base.json  what both sides had after the last sync (tree.h)
 *                               s3-manifest.json  the bucket's manifest, as last seen (remote.h)
 *                               s3-uploads/   uploads in parts that are not finished (resume.c)
 *                               s3-tmp/       what a sync has under way; removed by the next one
 *                               s3-later      there may be files whose content is not here yet; not empty:
 *                                             also directories whose entries are not
 *                               s3-fetched    what has been learnt of contents since (work.h)
 *
 * What changed on one side goes to the other. What changed on both is kept twice: the bucket's
 * version has the name, the local one is renamed and uploaded, too, and the user is told. A sync
 * may be killed at any moment: each file is the old or the new one, the bucket's manifest likewise
 * (remote.h), and the next sync goes on from there.
 *
 * It runs in a process of its own, which parses what the server sends and can open nothing but the
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

/* For each path that differs, if only looking: "upload", "download", "delete-local",
 * "delete-remote" or "conflict". */
typedef void (*s3_differs_fn)(void *ctx, const char *what, const char *path);

/* What is here after a sync. */
enum s3_here {
    S3_HERE_ALL,
    S3_HERE_NAMES, /* contents come when they are wanted */
    S3_HERE_MARKS, /* and so do the entries of directories */
};

struct s3_sync {
    bool look; /* change nothing */
    enum s3_here here;
    uint64_t max; /* of bytes; 0 = the workspace's own */
    s3_differs_fn differs;
    void *ctx;
    warn_fn warn;
    /* The bucket is there and may be read, but listing it takes several requests, and what is here cannot be in
     * conflict with it. */
    void (*goes_on)(void *ctx);
    /* Not 0: a socket; when its other end is closed, nobody wants the sync any more: -ECANCELED. */
    int until;
    struct s3_counts counts; /* out */
};

/* 0 = the workspace is not in a bucket, or has been synced; 1 with `*is_remote`. */
int s3_workspace_sync(const struct store *s, const char *name, struct s3_sync *how, bool *is_remote,
                      struct err *e);
/* Checks that the bucket can be used and what its server is capable of; c->conditional is set. */
int s3_workspace_probe(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                       struct err *e);
/* Brings contents that were left for later, as a share server asks for them on `sock` (util/later.h).
 * Returns when it has not asked for a while, or is gone; failures that it was told of are warned of.
 * -EIO: the process that did it died, and what it was asked for may be lost. */
int s3_workspace_fetch(const struct store *s, const char *name, int sock, warn_fn warn,
                       struct err *e);
/* Has the last sync left out something of that? */
bool s3_workspace_lacks(int dirfd, enum s3_here here);
/* Has it been synced at least once? */
bool s3_workspace_is_filled(int dirfd);
