/* Downloads that a killed pull can be taken up from.
 *
 * What comes from the network is also written to partial/<blob digest>. The next download of the
 * blob reads that first and asks the registry for the rest. Nothing is trusted for being there: the
 * digest is checked over all of it, as ever, and a blob whose digest was wrong leaves no file.
 */
#ifndef MSB_REGISTRY_PARTIAL_H
#define MSB_REGISTRY_PARTIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "registry/registry.h"
#include "util/err.h"
#include "util/stream.h"

/* Smaller blobs are not worth a file. */
enum { PARTIAL_MIN = 256 << 10 };

/* What became of the stream; outlives it. */
struct partial_fate {
    uint64_t replayed; /* bytes that came from the file */
    bool broken;       /* the network (or the user) ended it: what is here is worth keeping */
};

int partial_open(int dirfd, struct registry *r, const struct digest *blob, uint64_t size,
                 struct partial_fate *fate, struct stream **ret, struct err *e);
/* After success, or when the bytes were wrong. */
void partial_drop(int dirfd, const struct digest *blob);

#endif
