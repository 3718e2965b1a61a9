/* Image references, as Docker reads them.
 *
 *     [REGISTRY[:PORT]/]REPOSITORY[:TAG][@DIGEST]
 *
 * Without a registry ("alpine", "library/alpine", "user/app"), it is Docker Hub; the first
 * component names a registry if it has a dot or a colon, or is "localhost". Without tag and digest
 * the tag is "latest"; with both, the digest decides.
 */
#pragma once

#include "image/oci/digest.h"
#include "util/err.h"

#define REFERENCE_HUB "docker.io"
enum { REFERENCE_MAX = 1024, REFERENCE_REPOSITORY_MAX = 255, REFERENCE_TAG_MAX = 128 };

struct reference {
    char *registry;   /* "docker.io", "localhost:5000", "ghcr.io" */
    char *repository; /* "library/alpine" */
    char *tag;        /* NULL with a digest and no tag */
    char *digest;     /* "sha256:..."; NULL without one */
};

/* Errors name the reference, say which part is wrong, and how it should look. */
int reference_parse(const char *text, struct reference *ret, struct err *e);
void reference_free(struct reference *r);
#define AUTO_REFERENCE CLEANUP(reference_free)

/* The canonical spelling, under which an image is stored: "docker.io/library/alpine:3".
 * malloc'd. */
char *reference_full(const struct reference *r);
/* The short spelling that people use: "alpine:3", "ghcr.io/a/b:1". malloc'd. */
char *reference_familiar(const struct reference *r);
