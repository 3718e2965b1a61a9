/* Copies trees out of and into sandboxes.
 *
 * What comes from a guest is checked against the grammar of tree.h before it reaches a sink: 1.
 * Names are single components. 2. There is one top-level entry. 3. Directories are left as often as
 * they are entered, and are at most PROTO_DEPTH_MAX deep. 4. A file has no more data than
 * announced. 5. A link has a target. 6. There are at most COPY_ENTRIES_MAX entries.
 */
#pragma once

#include "client/files.h"
#include "copy/tree.h"

/* Gets what `path` names. name: the new name of the first entry. follow: if it is a link, get its
 * target. */
int tree_from_guest(struct files *f, const char *path, bool follow, const char *name,
                    struct tree_sink *to, struct tree_progress *p, struct err *e);

/* Puts what it receives into a directory in a sandbox. */
struct guest_sink {
    struct tree_sink sink;
    struct files *f;
    bool merge;
    int depth;
};
/* owner: keep the entries' owners; else they are root's. merge: the first entry must be a
 * directory, and represents `dir` itself. */
int guest_sink_begin(struct guest_sink *g, struct files *f, const char *dir, bool merge, bool owner,
                     struct err *e);
/* Waits until the guest confirms that everything has arrived. */
int guest_sink_end(struct guest_sink *g, struct err *e);
