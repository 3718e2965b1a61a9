/* Trees out of the host's file system and into it.
 *
 * The sink is where names and targets chosen by a guest meet the host's files. Invariants:
 * 1. Every name is looked up in a directory that we hold open, one component at a time, and never
 *    through a link: neither one that the tree brought, nor one that appears meanwhile.
 * 2. Links are made, not followed. Only files, directories and links are made.
 * 3. A file has no name until it is complete (or a temporary one, where the file system does not
 *    support files without names); then it replaces another file or link, never a directory. In a
 *    tree that is not used before it is complete (`direct`) it has its own name from the start,
 *    which is several times faster; nothing is replaced there.
 * 4. Only permissions are kept of a mode: nothing on the host becomes setuid by a copy.
 * 5. Directories that exist are entered and keep their mode; those that are made get theirs, and
 *    their times, when all is in them.
 */
#pragma once

#include "copy/tree.h"

struct host_dir {
    int fd;
    bool made;
    struct file_attr *attr; /* of one that was made; malloc'd */
};

struct host_sink {
    struct tree_sink sink;
    bool owner;  /* set owners as the tree says */
    bool merge;  /* the first thing, a directory, is what we were given */
    bool direct; /* to be set by the caller, after host_sink_begin() */
    bool temp_used;
    int depth;
    struct host_dir dirs[PROTO_DEPTH_MAX + 2];
    int fd;                /* the file under way */
    struct file_attr attr; /* of it */
    char temp[32];
};

/* Puts trees into dirfd, which stays the caller's. merge: the first thing must be a directory, and
 * stands for dirfd itself. */
void host_sink_begin(struct host_sink *h, int dirfd, bool merge, bool owner);
/* Also after a failure: closes, and removes an incomplete file. */
void host_sink_end(struct host_sink *h);

/* Sends dirfd/path with everything below it. name: its new name. follow: if it is a link, what that
 * leads to. */
int tree_from_host(int dirfd, const char *path, bool follow, const char *name, struct tree_sink *to,
                   struct tree_progress *p, struct err *e);
