/* `msb image`: the group, and functions its verbs share. */
#include "cli/image/image.h"

#include "cli/core/verbs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int image_find(struct image_cache *c, const char *arg, struct image_record *ret, struct err *e)
{
    struct digest d;
    if (digest_parse(arg, &d, NULL) == 0)
        return image_store_get(&c->images, &d, ret, e);
    AUTO_REFERENCE struct reference ref = {0};
    int r = reference_parse(arg, &ref, e);
    if (r == 0)
        r = image_store_find(&c->images, &ref, ret, e);
    if (r == -ENOENT)
        err_hint(e, IMAGE_LIST_HINT);
    return r;
}

char *image_name(const struct image_record *r)
{
    AUTO_REFERENCE struct reference ref = {0};
    if (!r->reference || reference_parse(r->reference, &ref, NULL) < 0)
        return strdup(r->reference ? r->reference : "<none>");
    return reference_familiar(&ref);
}

uint64_t image_size(const struct image_record *r)
{
    uint64_t size = r->disk_size;
    for (size_t i = 0; i < r->n_layers; i++)
        size += r->layers[i].erofs_size;
    return size;
}

json_t *image_json(const struct image_record *r)
{
    AUTO_FREE char *name = image_name(r);
    char digest[DIGEST_TEXT_SIZE];
    digest_text(&r->digest, digest);
    return json_pack("{s:o, s:o, s:s, s:i, s:o, s:s, s:I}", "architecture",
                     json_text(r->parsed.architecture), "created_at", json_time(r->stored_ns),
                     "digest", digest, "layer_count", (int)r->n_layers, "os",
                     json_text(r->parsed.os), "reference", name ? name : "", "size_bytes",
                     (json_int_t)image_size(r));
}

const struct cmd cmd_image = {
    .name = "image",
    .group = GROUP_IMAGE,
    .summary = "Manage images",
    .subs = VERBS(&cmd_image_list, &cmd_image_inspect, &cmd_image_remove, &cmd_image_prune,
                  &cmd_pull, &cmd_commit, &cmd_tag, &cmd_push, &cmd_load, &cmd_save),
    .details = "Images are pulled from registries or loaded from archives into a store below "
               "$MSB_HOME. A layer shared by several images is stored once.",
    .examples = "  msb image ls\n"
                "  msb image inspect alpine:3\n"
                "  msb image prune",
};
