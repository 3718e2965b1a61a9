/* The disk of an image: merged metadata in front, then the layers' files as they are.
 *
 *     [ metadata: superblock, directories, inodes ][ layer 0 ][ layer 1 ] ...
 *
 * Metadata is written once for each combination of layers. It holds no file data except short
 * tails; its inodes point into the layers behind it, so each layer is stored, and cached by the
 * host, only once.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/erofs/tree.h"
#include "util/err.h"

/* Reads an EROFS file, which may be hostile: everything is checked against the file. Fills the
 * tree, which is empty before; data addresses are blocks of this file, with blob number `blob`, and
 * those of inline tails are bytes. Whiteouts, opaque and implicit directories become the tree's
 * marks. On failure, the tree is incomplete. */
int erofs_load_tree(int fd, uint32_t blob, struct tree *t, struct err *e);

/* Writes the metadata of a disk made of these layers (lowest first) to out_fd, an empty file. Marks
 * are applied and not written. max_bytes: the total size of the layers' files; 0: no limit. */
int disk_write_metadata(const int *layer_fds, size_t n, int out_fd, int spool_dirfd,
                        uint64_t max_bytes, struct err *e);
