/* Downloads that can be resumed after a killed pull.
 *
 * What comes from the network is also written to partial/<blob digest>. The next download of the
 * blob reads that first and asks the registry for the rest. The file is not trusted: the digest is
 * checked over the whole blob, and a blob with a wrong digest leaves no file.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "registry/registry.h"
#include "util/err.h"
#include "util/stream.h"

/* Smaller blobs are not worth a file. */
enum { PARTIAL_MIN = 256 << 10 };

/* How the stream ended; outlives it. */
struct partial_fate {
    uint64_t replayed; /* bytes that came from the file */
    uint64_t had;      /* bytes that were in it at the start */
    bool broken;       /* the network or the user interrupted it: the file is worth keeping */
};

int partial_open(int dirfd, struct registry *r, const struct digest *blob, uint64_t size,
                 struct partial_fate *fate, struct stream **ret, struct err *e);
/* Removes it: after success, or if the bytes were wrong. */
void partial_drop(int dirfd, const struct digest *blob);
