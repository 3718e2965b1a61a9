/* Turns a compressed tar into an EROFS image: decompresses, hashes, parses and writes it in one
 * pass.
 *
 * Two threads: one decompresses into a ring of buffers; the other hashes them, hands them to the
 * tar parser without copying, and writes. All bytes are hostile, and most code that reads them is
 * third-party, so this is designed to run in a confined process (layer.h):
 *
 * 1. convert_init() runs in the caller. It opens what must be opened and takes the locks that must
 *    be taken (locale, OpenSSL's method store): another thread may hold them when a process forks.
 * 2. convert_start() creates the thread, which installs the filter on itself, and waits.
 * 3. The caller installs the filter on itself.
 * 4. convert_run() does the work with the system calls listed beside the code.
 */
#pragma once

#include <locale.h>
#include <stdbool.h>
#include <stdint.h>

#include "image/erofs/erofs.h"
#include "image/oci/digest.h"
#include "util/err.h"

struct convert_ring;

struct convert {
    int in_fd; /* not owned */
    bool layer;
    uint64_t max_bytes; /* sum of the files' sizes */
    uint64_t max_tar;   /* of the tar itself */
    uint32_t max_entries;
    struct erofs_writer w;
    struct hasher hash; /* of the tar */
    locale_t locale;
    struct convert_ring *ring;
};

struct convert_made {
    struct digest diff_id;
    uint64_t tar_size, erofs_size;
    uint32_t entries;
};

struct convert_limits {
    uint64_t max_bytes;   /* 0: IMAGE_EXPANDED_MAX_DEFAULT */
    uint32_t max_entries; /* 0: TREE_ENTRIES_MAX */
};

/* out_fd: an empty regular file. spool_dirfd: as for erofs_begin(). `layer`: names with .wh.
 * delete, and the image keeps a layer's marks. */
int convert_init(struct convert *c, int in_fd, int out_fd, int spool_dirfd, bool layer,
                 const struct convert_limits *limits, struct err *e);
/* Optional. `confine` is called in the thread before it reads anything; if it does not return 0,
 * that is the conversion's result. */
int convert_start(struct convert *c, int (*confine)(void)); /* -errno */
int convert_run(struct convert *c, struct convert_made *ret, struct err *e);
/* Also ends the thread, which may first wait for bytes from in_fd, or its end. */
void convert_free(struct convert *c);
