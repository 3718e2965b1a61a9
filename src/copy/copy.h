/* Copying between the host, sandboxes and tar streams: the engine of `msb cp`.
 *
 * Both ends are examined first, so that a copy that cannot work fails before anything is written.
 */
#pragma once

#include "client/files.h"
#include "copy/place.h"
#include "copy/tree.h"

/* COPY_BELOW: a host directory that a guest may write to. Its links are followed as long as they
 * stay below it; one at the destination itself is replaced. Missing directories on the way to the
 * destination are created. */
enum copy_kind { COPY_HOST, COPY_GUEST, COPY_STREAM, COPY_BELOW };

struct copy_end {
    enum copy_kind kind;
    struct copy_path path; /* not of a stream */
    struct files *files;   /* of a sandbox: connected, as the user to act as */
    int below;             /* the directory */
};

struct copy_options {
    bool archive; /* keep owners: in a sandbox, and on the host if root */
    bool follow;  /* follow SRC if it is a link */
};

/* Streams are stdin and stdout. */
int copy_run(const struct copy_end *from, const struct copy_end *to, const struct copy_options *opt,
             struct tree_progress *p, struct err *e);
