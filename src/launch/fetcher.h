/* The fetcher: fetches contents of a workspace in a bucket when the guest first opens a file
 * (util/later.h, s3/fill.c).
 *
 * It waits, with the caller's rights and environment, beside the share server that asks for them.
 * The first request makes it look up the keys and start a process that talks to the bucket, jailed
 * as for a sync (s3/sync.h), which serves the requests itself and ends when none have come for a
 * while. If that process dies, another one is started. If a content cannot be fetched, the guest's
 * request fails, and a line is added to the sandbox's system log.
 */
#pragma once

#include "store/store.h"

/* For the sandbox at dirfd. *ret_fd becomes the share server's end of the socket: it ends when that is
 * closed. -1: its workspace is not in a bucket. */
int fetcher_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                  struct err *e);
/* Starts the syncer, which syncs the workspace after changes reported on *ret_fd, and once more at
 * the end, however the sandbox ends. -1: the sandbox does not ask for it. */
int syncer_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                 struct err *e);
