/* The host's certificate authorities, in the places where programs of the guest look for theirs.
 *
 * Bundles that the image has get a block at their end, between two lines of ours; a later start
 * replaces it. Certificates that the image has anyway are left out of it. An image without any
 * bundle gets one; in any case there is PROTO_CAS_BUNDLE in the end, a file or a link to one.
 * OpenSSL's own name for it (cert.pem) is made where it is missing.
 */
#ifndef MSB_AGENT_CAS_H
#define MSB_AGENT_CAS_H

#include "util/buf.h"

#include <stddef.h>

enum { CAS_BUNDLE_MAX = 8 * 1024 * 1024 };

/* A bundle's new content: the old one without our block, then a block with what of `pem` it does
 * not have. */
int cas_merge(struct buf *out, const char *old, size_t old_len, const char *pem);
/* In the tree at `root` ("": the guest's own). 0, or -errno of the first thing that failed; the
 * rest is done all the same. */
int cas_install(const char *root, const char *pem);

#endif
