/* Copying between the host, sandboxes and tar streams: what `msb cp` does, without its words.
 *
 * Both ends are looked at first, so that what cannot work fails before anything is written.
 */
#ifndef MSB_COPY_COPY_H
#define MSB_COPY_COPY_H

#include "client/files.h"
#include "copy/place.h"
#include "copy/tree.h"

enum copy_kind { COPY_HOST, COPY_GUEST, COPY_STREAM };

struct copy_end {
    enum copy_kind kind;
    struct copy_path path; /* not of a stream */
    struct files *files;   /* of a sandbox: connected, as the user who is to act */
};

struct copy_options {
    bool archive; /* owners are kept: in a sandbox, and on the host where one is root */
    bool follow;  /* a link that SRC names is followed */
};

/* Streams are stdin and stdout. */
int copy_run(const struct copy_end *from, const struct copy_end *to, const struct copy_options *opt,
             struct tree_progress *p, struct err *e);

#endif
