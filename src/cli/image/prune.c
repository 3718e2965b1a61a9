#include "cli/core/prune.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "util/parse.h"

#include <stdio.h>

int prune_images(struct image_collected *done, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct spinner spin;
    int r = image_cache_open(&c, e);
    if (r < 0)
        return r;
    struct image_collect opt = {
        .used = image_cache_used, .ctx = &c.home, .unused = true, .wait = true};
    spinner_start(&spin, "Pruning", "images");
    r = image_store_collect(&c.images, &opt, done, e);
    spinner_stop(&spin);
    return r;
}

static int image_prune_run(const struct args *a)
{
    struct err e = {0};
    struct image_collected done = {0};
    int r = prune_confirm(a, "Remove all images that no sandbox uses?", "cached images", &e);
    if (r == 0)
        return EXIT_OK;
    if (r < 0 || prune_images(&done, &e) < 0)
        return ui_fail(&e);
    if (wants_json(a)) /* what we do not have need not be removed */
        return ui_print_json(
            json_pack("{s:I, s:i, s:I, s:I, s:I, s:i}", "bytes_reclaimed", (json_int_t)done.bytes,
                      "fsmeta_removed", 0, "image_refs_removed", (json_int_t)done.refs,
                      "layers_removed", (json_int_t)done.layers, "manifests_removed",
                      (json_int_t)done.images, "vmdk_removed", 0));
    char size[32], text[96];
    format_bytes(done.bytes, size, sizeof(size));
    (void)snprintf(text, sizeof(text), "%zu image%s, %s freed", done.images,
                   done.images == 1 ? "" : "s", size);
    ui_success("Pruned", text);
    return EXIT_OK;
}

const struct cmd cmd_image_prune = {
    .name = "prune",
    .flags = CMD_DESTROYS,
    .summary = "Remove all images that no sandbox uses",
    .opts = OPTIONS(YES_OPTION, FORCE_YES_OPTION, QUIET_OPTION, FORMAT_OPTION),
    .details = "This includes images built from directories and tar files, layers that no image "
               "needs, and the remains of interrupted downloads. Sandboxes, running or stopped, "
               "keep their images.",
    .examples = "  msb image prune\n"
                "  msb image prune --yes",
    .run = image_prune_run,
};
