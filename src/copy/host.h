/* Copies trees out of and into the host's file system.
 *
 * The sink is where names and targets chosen by a guest meet the host's files. Invariants:
 * 1. Every name is looked up in a directory that we hold open, one component at a time, and never
 *    through a link: neither one from the tree, nor one that appears meanwhile.
 * 2. Links are created, not followed. Only files, directories and links are created.
 * 3. A file has no name until it is complete (or a temporary one, where the file system does not
 *    support files without names); then it replaces another file or link, never a directory. In a
 *    tree that is not used before it is complete (`direct`) it has its own name from the start,
 *    which is several times faster; nothing is replaced there.
 * 4. Only permissions are kept of a mode: nothing on the host becomes setuid by a copy.
 * 5. Existing directories are entered and keep their mode; new ones get their mode, and
 *    their times, once they are complete.
 */
#pragma once

#include "copy/tree.h"

struct host_dir {
    int fd;
    bool made;
    struct file_attr *attr; /* of a new directory; malloc'd */
};

struct host_sink {
    struct tree_sink sink;
    bool owner;  /* set owners as in the tree */
    bool merge;  /* the first entry, a directory, represents the one that we were given */
    bool direct; /* to be set by the caller, after host_sink_begin() */
    bool temp_used;
    int depth;
    struct host_dir dirs[PROTO_DEPTH_MAX + 2];
    int fd;                /* the current file */
    struct file_attr attr; /* of it */
    char temp[32];
};

/* Puts trees into dirfd, which stays the caller's. merge: the first entry must be a directory, and
 * represents dirfd itself. */
void host_sink_begin(struct host_sink *h, int dirfd, bool merge, bool owner);
/* Also after a failure: closes, and removes an incomplete file. */
void host_sink_end(struct host_sink *h);

/* Sends dirfd/path with everything below it. name: its new name. follow: if it is a link, send its
 * target. */
int tree_from_host(int dirfd, const char *path, bool follow, const char *name, struct tree_sink *to,
                   struct tree_progress *p, struct err *e);
