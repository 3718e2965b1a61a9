/* Copies trees out of and into tar streams.
 *
 * A tar names each entry by its whole path, in any order; a tree (tree.h) is entered and left. The
 * reader tracks the directories that it is in, leaves and enters them as the next path requires,
 * and creates those that the archive does not list.
 *
 * An archive comes from the user, who may have gotten it from anywhere: image/tar/read.h says what
 * is refused. Names are at most PROTO_PATH_MAX long and PROTO_DEPTH_MAX deep; devices and FIFOs are
 * skipped.
 */
#pragma once

#include "copy/tree.h"
#include "image/tar/write.h"

/* Reads an archive from fd to its end. */
int tree_from_tar(int fd, struct tree_sink *to, struct tree_progress *p, struct err *e);

struct tar_sink {
    struct tree_sink sink;
    struct tar_out out;
    int depth;
    size_t len[PROTO_DEPTH_MAX + 2]; /* of path, at each depth */
    char path[(PROTO_DEPTH_MAX + 2) * (PROTO_NAME_MAX + 1) + 1];
    uint64_t size, left; /* of the current file */
};

int tar_sink_begin(struct tar_sink *t, int fd, struct err *e);
int tar_sink_end(struct tar_sink *t, struct err *e);
void tar_sink_free(struct tar_sink *t);
