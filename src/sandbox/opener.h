/* The opener: syncs a workspace with its bucket while the guest that will use it boots.
 *
 * It is a process beside the sandbox (launch/beside.h). Until it is done, the share server serves
 * nothing of the workspace (fuse/gate.c), so the sandbox sees it as if the sync had come first. Its
 * result goes to the caller, who waits for it before the sandbox is acknowledged: if the sync
 * fails, so does the start.
 *
 * There is one exception. Listing a large bucket takes many requests, one after another. If the
 * workspace was never synced, or nothing in it has changed since, nothing here can be in conflict
 * with the bucket: as soon as the server has begun to list it, the caller continues, and the
 * guest's first access to the workspace waits. Failures from then on are logged in the sandbox's
 * system log, and are I/O errors in the guest if there is no earlier state to fall back on.
 */
#pragma once

#include "store/store.h"
#include "util/cleanup.h"

struct opener {
    int sock; /* -1: there is nothing to wait for */
    int gate; /* for the share server */
};

#define OPENER_NONE ((struct opener){-1, -1})

/* Starts it for the sandbox at dirfd; does nothing if the workspace is not in a bucket. */
int opener_start(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                 struct opener *ret, struct err *e);
/* The share server has the gate, and the opener ends with the share server. */
void opener_launched(struct opener *o);
int opener_wait(struct opener *o, warn_fn warn, struct err *e);
void opener_free(struct opener *o);
#define AUTO_OPENER CLEANUP(opener_free)
