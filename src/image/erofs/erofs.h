/* Writes an EROFS image in one pass over its source.
 *
 *     block 0          superblock
 *     data             full blocks of regular files, as they stream in
 *     late             directory blocks and long symlinks
 *     meta             inodes with their xattrs and inline tails; the root comes first
 *
 * File data goes out while the source is read; the tree of inodes is laid out when it is complete.
 * Memory is the tree plus fixed buffers: the bytes after a file's last full block, which belong
 * behind its inode, wait in an unlinked spool file. The root inode is first in the metadata because
 * its number must fit 16 bits. The same source gives the same bytes.
 *
 * A file's block addresses are relative to a blob. An image written here whole is its own blob 0 at
 * base 0. With erofs_set_blobs() only metadata is written, and the data stays in other images,
 * which follow on one stitched disk in the order of their blob numbers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/erofs/format.h"
#include "image/erofs/out.h"
#include "image/erofs/tree.h"
#include "image/oci/digest.h"
#include "util/err.h"

/* Block addresses are 32 bits wide. */
#define EROFS_BLOCKS_MAX 0xfffffffeULL

struct erofs_writer {
    int fd;          /* not owned */
    int spool_dirfd; /* not owned */
    int spool_fd;    /* owned; unlinked; -1 until there is a tail */
    struct erofs_out out;
    struct erofs_out spool;
    uint64_t spool_len;
    uint64_t next_block; /* first unused one */
    uint64_t size;       /* of the file, once it is finished */
    uint32_t inline_max; /* longer tails are padded to a block instead */
    bool marks;          /* a layer's marks are kept, for erofs_load_tree() */
    struct hasher hash;  /* of the metadata */
    /* The file being written: */
    struct tree_inode *file;
    uint64_t file_pos;
    uint8_t tail[EROFS_BLOCK_SIZE];
    /* A stitched disk; not owned. */
    const struct erofs_blob *blobs;
    uint32_t nblobs;
};

/* One of the images behind the metadata: tails are read from it. */
struct erofs_blob {
    int fd;
    uint32_t blocks;
};

/* out_fd: an empty regular file. spool_dirfd: a directory for the spool file, or -1 to keep tails
 * in memory. Both stay the caller's. */
void erofs_begin(struct erofs_writer *w, int out_fd, int spool_dirfd);
void erofs_abort(struct erofs_writer *w); /* also after erofs_finish; may be called twice */
/* The image will be a layer: tails over `inline_max` bytes are padded to a block, and implicit
 * directories are marked as such. */
void erofs_set_layer(struct erofs_writer *w, uint32_t inline_max);
/* Opens the spool file now, since this process may not be allowed to later. */
int erofs_open_spool(struct erofs_writer *w);

/* The data of one regular file: its size is ino->size and its xattrs are set already. Writes come
 * in ascending order; gaps read as zeros. Bytes past the size are an error. */
int erofs_file_begin(struct erofs_writer *w, struct tree_inode *ino, struct err *e);
int erofs_file_write(struct erofs_writer *w, uint64_t offset, const void *p, size_t n,
                     struct err *e);
int erofs_file_end(struct erofs_writer *w, struct err *e);

/* Declares that this image holds no data itself, but that these blobs follow it on the disk. Tails
 * are where data.tail says, in bytes of the blob's file. Comes before erofs_finish; the array must
 * live until then. */
void erofs_set_blobs(struct erofs_writer *w, const struct erofs_blob *blobs, uint32_t n);

/* Lays out the tree and writes everything else. The file's length becomes final; nothing is
 * synced. */
int erofs_finish(struct erofs_writer *w, struct tree *t, struct err *e);

/* How layers' marks are stored in their files. */
#define EROFS_OPAQUE_XATTR "trusted.overlay.opaque"
#define EROFS_IMPLICIT_XATTR "trusted.msb.implicit"
#define EROFS_LINK_XATTR "trusted.msb.link"

/* For the writer's own files: */
int erofs_write_failed(int code, struct err *e);
uint8_t erofs_file_type(uint16_t mode);
/* The size of an inode's extended attributes, which follow it. */
size_t erofs_xattr_size(const struct erofs_writer *w, const struct tree_inode *ino);
/* The kernel's crc32c (no final inversion). */
uint32_t erofs_crc32c(uint32_t crc, const void *p, size_t n);
