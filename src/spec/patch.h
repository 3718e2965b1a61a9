/* Changes to a sandbox's files when it is created: --copy, --mkdir, --rm, in order. */
#pragma once

#include "util/err.h"

#include <jansson.h>
#include <stddef.h>

enum { SPEC_PATCHES_MAX = 256 };

enum patch_kind { PATCH_COPY_FILE, PATCH_COPY_DIR, PATCH_MKDIR, PATCH_REMOVE, PATCH_KINDS };

struct spec_patch {
    enum patch_kind kind;
    char *source; /* of a copy: an absolute host path */
    char *path;   /* in the guest, normalized; a copied file's may end in "/": a directory */
};

struct spec_patches {
    struct spec_patch *v;
    size_t n;
};

void spec_patches_free(struct spec_patches *l);
/* Checks and copies; source is NULL if there is none. */
int spec_patches_add(struct spec_patches *l, enum patch_kind kind, const char *source,
                     const char *path, struct err *e);
json_t *spec_patches_to_json(const struct spec_patches *l);
/* NULL = none. */
int spec_patches_from_json(struct spec_patches *l, const json_t *j, struct err *e);
