/* Trees out of the host's file system and into it.
 *
 * The sink is where names and targets that a guest chose meet the host's files. Invariants:
 * 1. Every name is looked up in a directory that we hold open, one component at a time, and never
 *    through a link: not one that the tree brought, nor one that somebody puts there meanwhile.
 * 2. Links are made, not followed. What is no file, directory or link is not made at all.
 * 3. A file has no name until it is complete (or a temporary one, where the file system knows no
 *    files without names); then it takes the place of another file or link, never of a directory.
 *    In a tree that nobody looks at before it is complete (`direct`) it has its own from the start,
 *    which is several times faster; nothing is replaced there.
 * 4. Only permissions are kept of a mode: nothing on the host becomes setuid by a copy.
 * 5. Directories that exist are entered and keep their mode; those that are made get theirs, and
 *    their times, when all is in them.
 */
#ifndef MSB_COPY_HOST_H
#define MSB_COPY_HOST_H

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

/* Puts trees into the directory that dirfd is, which stays the caller's. merge: the first thing has
 * to be a directory, and stands for dirfd itself. */
void host_sink_begin(struct host_sink *h, int dirfd, bool merge, bool owner);
/* Also after a failure: closes, and removes what is half there of a file. */
void host_sink_end(struct host_sink *h);

/* Sends dirfd/path, one thing with all below it. name: what it is called from here on. follow: a
 * link is. */
int tree_from_host(int dirfd, const char *path, bool follow, const char *name, struct tree_sink *to,
                   struct tree_progress *p, struct err *e);

#endif
