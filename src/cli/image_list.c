#include "cli/image.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <stdio.h>

enum { SHORT_DIGEST = 7 + 12 }; /* "sha256:" and as many digits as anybody compares */

static int print_json(const struct image_list *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        (void)json_array_append_new(a, image_json(&l->v[i]));
    return ui_print_json(a);
}

static int print_names(const struct image_list *l)
{
    struct buf out;
    buf_init(&out, SIZE_MAX / 2);
    for (size_t i = 0; i < l->n; i++) {
        AUTO_FREE char *name = image_name(&l->v[i]);
        (void)buf_printf(&out, "%s\n", name ? name : "");
    }
    int code = ui_print(&out);
    buf_free(&out);
    return code;
}

static int print_table(const struct image_list *l)
{
    static const char *const headers[] = {"REFERENCE", "DIGEST", "SIZE", "CREATED"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < l->n; i++) {
        AUTO_FREE char *name = image_name(&l->v[i]);
        char digest[DIGEST_TEXT_SIZE], size[32], created[TIME_TEXT_MAX];
        digest_text(&l->v[i].digest, digest);
        digest[SHORT_DIGEST] = '\0';
        format_bytes(image_size(&l->v[i]), size, sizeof(size));
        time_local(l->v[i].stored_ns, created);
        table_add(&t, name ? name : "");
        table_add(&t, digest);
        table_add(&t, size);
        table_add(&t, created);
    }
    int code = show_table(&t, TABLE_COLUMNS_MAX);
    table_free(&t);
    return code;
}

static int image_list_run(const struct args *a)
{
    struct image_cache c;
    struct image_list l = {0};
    struct err e = {0};
    int r = image_cache_open(&c, &e);
    if (r < 0)
        return ui_fail(&e);
    r = image_store_list(&c.images, &l, &e);
    image_cache_close(&c);
    int code = EXIT_OK;
    if (r < 0)
        code = ui_fail(&e);
    else if (args_has(a, "quiet"))
        code = print_names(&l);
    else if (wants_json(a))
        code = print_json(&l);
    else if (l.n == 0)
        ui_note("No images found.");
    else
        code = print_table(&l);
    image_list_free(&l);
    return code;
}

static const struct opt image_list_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Print references and nothing else"},
    FORMAT_OPTION,
    {0},
};

const struct cmd cmd_image_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_IMAGE,
    .summary = "List images",
    .parent = &cmd_image,
    .opts = {image_list_opts},
    .details =
        "CREATED is when an image was pulled or loaded. SIZE is what it has on disk; layers\n"
        "that images share are counted for each of them.",
    .examples = "  msb image ls\n"
                "  msb image ls --format json\n"
                "  msb image rm $(msb image ls -q)",
    .run = image_list_run,
};
