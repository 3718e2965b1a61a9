/* Turns one layer, a plain or compressed tar stream, into one EROFS file.
 *
 * The bytes are hostile, so a child process converts them: it has a pipe to read from, the output
 * file, a spool file and a pipe for its result, and a system call filter that allows nothing else.
 * This process downloads (or reads) the bytes, hashes them as it passes them on, and accepts the
 * result only if every digest matches. Download, decompression and conversion overlap.
 *
 * A layer's EROFS file is complete: fsck.erofs accepts it. Deletions are stored as overlayfs stores
 * them (0:0 character devices, trusted.overlay.opaque). Tails of files up to LAYER_INLINE_MAX bytes
 * are inline, longer ones are padded to a block, since inline tails are repeated in the metadata of
 * each image that uses the layer.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "util/err.h"
#include "util/stream.h"

/* How much an archive may expand to if the caller sets no limit. */
#define IMAGE_EXPANDED_MAX_DEFAULT (64ULL << 30)

enum { LAYER_INLINE_MAX = 512 };

/* What the layer is expected to be; NULL and 0 where unknown. */
struct layer_want {
    const struct digest *blob; /* of the bytes in the stream */
    uint64_t blob_size;
    const struct digest *diff_id; /* of the tar inside */
    const char *name;             /* for messages: "layer sha256:0123456789ab" */
    bool layer;                   /* names starting with .wh. delete; false: a plain root tar */
    bool again;                   /* the store remakes it even if it has it */
    uint64_t max_bytes;           /* how much it may expand to; 0 = IMAGE_EXPANDED_MAX_DEFAULT */
    uint32_t max_entries;         /* 0 = TREE_ENTRIES_MAX */
};

struct layer_made {
    struct digest blob, diff_id;
    uint64_t blob_size, tar_size;
    uint64_t erofs_size; /* a multiple of the block size */
    uint32_t entries;
};

/* Progress, readable from another thread during the conversion. */
struct layer_progress {
    _Atomic uint64_t read; /* bytes taken from the stream */
};

/* out_fd: an empty regular file. spool_dirfd: where a temporary file may be created. On failure,
 * the file's content is undefined and the error names the layer. Safe to call from several
 * threads. */
int layer_convert(struct stream *in, const struct layer_want *want, int out_fd, int spool_dirfd,
                  struct layer_progress *progress, struct layer_made *ret, struct err *e);
