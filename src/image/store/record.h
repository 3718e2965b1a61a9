/* Records of the image store: what images/ and refs/ hold, as JSON.
 *
 * Records are bounded and checked like untrusted input when read. An invalid record is -ENOENT, as
 * if there were none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/oci/digest.h"
#include "image/store/store.h"

enum {
    RECORD_MAX = 256 << 10, /* bytes of an image's record: 128 layers take about 50 KiB */
    RECORD_REF_MAX = 8 << 10,
    RECORD_MEDIA_TYPE_MAX = 255,
    RECORD_NAME_SIZE = CACHE_NAME_SIZE, /* of any file named by a digest */
};

struct record {
    struct digest config; /* of the configuration's document */
    struct digest disk;   /* names the merged metadata */
    uint64_t disk_size;
    uint64_t stored_ns;
    struct image_layer *layers;
    size_t n_layers;
};

/* Names of files: "<hex>.json", "<hex>.1.erofs". */
void record_json_name(const struct digest *d, char name[RECORD_NAME_SIZE]);
void record_erofs_name(const struct digest *d, char name[RECORD_NAME_SIZE]);

/* The digest in "<hex>.json"; false if that is not what the name is. */
bool record_digest(const char *name, struct digest *ret);

/* The record of an image, images/<digest>.json. */
int record_read(int images_fd, const struct digest *image, struct record *ret);
int record_write(int images_fd, const struct digest *image, const struct record *r);
/* The same, from its text. */
int record_parse(const char *text, size_t len, struct record *ret);
void record_free(struct record *r);
#define AUTO_RECORD CLEANUP(record_free)
void record_layers_free(struct image_layer *layers, size_t n);

/* Reads a reference: its canonical spelling, the image, and whether its registry says that it means
 * that image. `name` is the file's name, in refs/. */
int ref_read(int refs_fd, const char *name, char **ret_reference, struct digest *ret_image,
             bool *ret_pulled);
int ref_write(int refs_fd, const char *name, const char *reference, const struct digest *image,
              bool pulled);
int ref_parse(const char *name, const char *file, size_t len, char **ret_reference,
              struct digest *ret_image, bool *ret_pulled);
/* The spelling under which a reference is stored, malloc'd, and its file's name. With a digest, the
 * tag is meaningless and left out. */
char *ref_spelling(const struct reference *ref);
void ref_name(const char *spelling, char name[RECORD_NAME_SIZE]);
