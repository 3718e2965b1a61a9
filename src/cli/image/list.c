#include "cli/core/common_opts.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <stdlib.h>

enum { SHORT_DIGEST = 7 + 12 }; /* "sha256:" and enough digits to compare by eye */

static const struct image_record *image_item(const struct items *l, size_t i)
{
    return &((const struct image_list *)l->v)->v[i];
}

static int image_items_load(struct items *l, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct image_list *list = l->v = calloc(1, sizeof(*list));
    if (!list)
        return err_oom(e);
    int r = image_cache_open(&c, e);
    if (r == 0)
        r = image_store_list(&c.images, list, e);
    l->n = list->n;
    return r;
}

static void image_items_free(struct items *l)
{
    if (l->v)
        image_list_free(l->v);
    free(l->v);
}

static void image_item_name(const struct items *l, size_t i, struct buf *out)
{
    AUTO_FREE char *name = image_name(image_item(l, i));
    (void)buf_printf(out, "%s", name ? name : "");
}

static void image_item_row(const struct items *l, size_t i, struct table *t)
{
    const struct image_record *r = image_item(l, i);
    AUTO_FREE char *name = image_name(r);
    char digest[DIGEST_TEXT_SIZE], size[32], created[TIME_TEXT_MAX];
    digest_text(&r->digest, digest);
    digest[SHORT_DIGEST] = '\0';
    format_bytes(image_size(r), size, sizeof(size));
    time_local(r->stored_ns, created);
    TABLE_ROW(t, name ? name : "", digest, size, created);
}

static json_t *image_item_json(const struct items *l, size_t i)
{
    return image_json(image_item(l, i));
}

static const struct noun images = {
    .none = "No images found.",
    .headers = {"REFERENCE", "DIGEST", "SIZE", "CREATED"},
    .load = image_items_load,
    .free = image_items_free,
    .name = image_item_name,
    .row = image_item_row,
    .json = image_item_json,
};

const struct cmd cmd_image_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List images",
    .opts = list_opts,
    .details = "CREATED is when an image was pulled or loaded. SIZE is its size on disk; layers "
               "shared by several images are counted for each of them.",
    .examples = "  msb image ls\n"
                "  msb image ls --format json\n"
                "  msb image rm $(msb image ls -q)",
    .list = &images,
};
