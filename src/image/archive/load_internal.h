/* Shared by the readers of the archive formats. */
#pragma once

#include "image/archive/bundle.h"
#include "image/archive/load.h"
#include "util/strlist.h"

/* An image from the archive, ready for its references. */
struct loaded {
    struct digest digest;
    struct strlist names;
};

struct load {
    struct image_store *store;
    const struct load_options *opt;
    struct bundle bundle;
    struct oci_platform platform;
    struct loaded *images;
    size_t n;
};

/* One image to load. */
struct load_source {
    char *manifest, *config; /* the documents */
    size_t manifest_len, config_len;
    struct oci_manifest m;
    struct oci_config c;
    char **layers; /* names in the bundle, as many as the manifest has */
    struct strlist names;
};
void load_source_free(struct load_source *src);
#define AUTO_LOAD_SOURCE CLEANUP(load_source_free)

/* Puts the layers and the image into the store and adds it, with its names, to l->images. */
int load_add(struct load *l, struct load_source *src, struct err *e);

/* Checks l->opt against an archive with `n` images, which have names or not. */
int load_check_names(const struct load *l, size_t n, bool named, struct err *e);

int load_docker(struct load *l, struct err *e);
int load_oci(struct load *l, struct err *e);

/* The files by which the formats are recognized. */
#define LOAD_MANIFEST "manifest.json"
#define LOAD_INDEX "index.json"
#define LOAD_LAYOUT "oci-layout"
