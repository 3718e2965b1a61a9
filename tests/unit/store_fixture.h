/* An image store in a temporary directory, for its tests.
 *
 * Layers are fakes: this file's own layer_convert() and disk_write_metadata() stand in for the real
 * ones, so that the store alone is tested, and can be made to wait. */
#pragma once

#include "image/erofs/format.h"
#include "image/store/store.h"

#include <stdatomic.h>

enum { LAYER_SIZE = 2 * EROFS_BLOCK_SIZE };

extern atomic_uint layers_made; /* really */
extern int hold_fd;             /* layer_convert() waits until this ends */
extern const char *store_dir;

int store_setup(void **state);
int store_teardown(void **state);
void open_store(struct image_store *s);

/* A layer's content, from text; and one that must not be opened. */
int text_open(void *ctx, struct stream **ret, struct err *e);
int never_open(void *ctx, struct stream **ret, struct err *e);
struct digest digest_of_text(const char *text);
int add_layer(struct image_store *s, const char *text, struct image_layer *ret, struct err *e);

/* An image's documents. */
void print_config(char *out, size_t size, const struct digest *ids, size_t n, const char *note);
void print_manifest(char *out, size_t size, const char *config, const struct digest *ids,
                    const char *const *texts, size_t n);
/* Adds an image of these layers and gives it a name; its digest. */
struct digest put_image(struct image_store *s, const char *name, const char *const *texts,
                        size_t n);
int find_image(struct image_store *s, const char *name, struct image_record *ret, struct err *e);
bool is_there(struct image_store *s, const char *name);
void untag(struct image_store *s, const char *name);
size_t count_files(const char *sub);
/* Writes over every file there. */
void damage(const char *sub);

/* What sandboxes have: a list of digests in ctx. */
int used_by_sandboxes(void *ctx, struct strlist *ret, struct err *e);
struct image_collected collect_garbage(struct image_store *s, struct strlist *keep, bool unused);
