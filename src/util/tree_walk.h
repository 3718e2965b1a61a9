/* A walk over all entries of an untrusted, possibly very deep directory tree.
 *
 * One descriptor is open at a time, whatever the depth, and nothing is kept on the stack; each
 * level takes a few bytes of heap. Symbolic links are not followed.
 */
#pragma once

#include <sys/stat.h>

/* Levels of directories: as many as fit into 24 MiB. */
enum { TREE_WALK_DEPTH_MAX = 1 << 20 };

/* Calls fn for every entry below dir_fd, which it owns. Entries that vanish and directories that
 * cannot be read are skipped. -ESTALE: a directory was moved meanwhile; start the walk over.
 * -ELOOP: deeper than the limit. */
int tree_walk(int dir_fd, void (*fn)(void *ctx, const struct stat *st), void *ctx);
