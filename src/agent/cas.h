/* The host's certificate authorities, where programs in the guest look for them.
 *
 * Each bundle of the image gets a block at its end, between two marker lines; a later start
 * replaces it. It omits certificates that the image already has. An image without a bundle gets
 * one; PROTO_CAS_BUNDLE exists in any case, as a file or a link to one. OpenSSL's own name for it
 * (cert.pem) is created where it is missing.
 */
#pragma once

#include "util/buf.h"

#include <stddef.h>

enum { CAS_BUNDLE_MAX = 8 * 1024 * 1024 };

/* The new content of a bundle: the old one without our block, then a block with the certificates in
 * `pem` that it lacks. */
int cas_merge(struct buf *out, const char *old, size_t old_len, const char *pem);
/* Installs them in the tree at `root` ("": the guest's own). 0, or -errno of the first step that
 * failed; the other steps are still done. */
int cas_install(const char *root, const char *pem);
