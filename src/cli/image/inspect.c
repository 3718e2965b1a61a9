#include "cli/core/common_opts.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "image/oci/json.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <stdlib.h>

/* --- JSON ----------------------------------------------------------------------------------- */

/* What an image does not set is null. */
static json_t *list_or_null(char *const *list)
{
    return list && *list ? json_list(list) : json_null();
}

static json_t *config_json(const struct image_record *r)
{
    const struct image_config *c = &r->parsed.run;
    struct digest config = digest_of(r->config, r->config_len);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "cmd",
                     list_or_null(c->cmd), "digest", digest_json(&config), "entrypoint",
                     list_or_null(c->entrypoint), "env", json_list(c->env), "exposed_ports",
                     json_list(c->exposed_ports), "labels",
                     c->labels && *c->labels ? json_pairs(c->labels) : json_null(), "stop_signal",
                     json_text(c->stop_signal), "user", json_text(c->user), "volumes",
                     json_list(c->volumes), "working_dir", json_text(c->workdir));
}

static json_t *layers_json(const struct image_record *r)
{
    json_t *a = json_array();
    for (size_t i = 0; i < r->n_layers; i++) {
        const struct image_layer *l = &r->layers[i];
        (void)json_array_append_new(
            a, json_pack("{s:o, s:I, s:o, s:I, s:o, s:i}", "blob_digest", digest_json(&l->blob),
                         "compressed_size_bytes", (json_int_t)l->blob_size, "diff_id",
                         digest_json(&l->diff_id), "erofs_size_bytes", (json_int_t)l->erofs_size,
                         "media_type", json_text(l->media_type), "position", (int)i));
    }
    return a;
}

static json_t *image_item_json(const struct items *l, size_t i)
{
    const struct image_record *r = l->v;
    json_t *j = image_json(r);
    if (json_object_set_new(j, "config", config_json(r)) == 0 &&
        json_object_set_new(j, "layers", layers_json(r)) == 0)
        return j;
    json_decref(j);
    return NULL;
}

/* --- text ----------------------------------------------------------------------------------- */

static void layers(struct buf *b, const struct image_record *r)
{
    (void)buf_printf(b, "\nLayers\n");
    for (size_t i = 0; i < r->n_layers; i++) {
        char digest[DIGEST_TEXT_SIZE], size[32];
        digest_text(&r->layers[i].diff_id, digest);
        format_bytes(r->layers[i].erofs_size, size, sizeof(size));
        (void)buf_printf(b, "  %s  %s\n", digest, size);
    }
}

static void head(struct buf *b, const struct image_record *r)
{
    AUTO_FREE char *name = image_name(r);
    char digest[DIGEST_TEXT_SIZE], text[OCI_PLATFORM_TEXT], created[TIME_TEXT_MAX];
    digest_text(&r->digest, digest);
    text_line(b, "Reference:", name);
    text_line(b, "Digest:", digest);
    oci_platform_text(&(struct oci_platform){.os = r->parsed.os,
                                             .architecture = r->parsed.architecture,
                                             .variant = r->parsed.variant},
                      text);
    text_line(b, "Platform:", text);
    format_bytes(image_size(r), text, sizeof(text));
    text_line(b, "Size:", text);
    time_local(r->stored_ns, created);
    text_line(b, "Created:", created);
    text_line(b, "Built:", r->parsed.created);
}

static void image_text(const struct items *l, struct buf *b)
{
    const struct image_record *r = l->v;
    const struct image_config *c = &r->parsed.run;
    head(b, r);
    text_words(b, "Entrypoint:", c->entrypoint);
    text_words(b, "Command:", c->cmd);
    text_line(b, "Workdir:", c->workdir);
    text_line(b, "User:", c->user);
    text_line(b, "Stop signal:", c->stop_signal);
    text_words(b, "Ports:", c->exposed_ports);
    text_words(b, "Volumes:", c->volumes);
    text_section(b, "Environment", c->env);
    text_section(b, "Labels", c->labels);
    layers(b, r);
}

/* --- the verb ------------------------------------------------------------------------------- */

static int image_items_open(struct items *l, const char *name, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    l->v = calloc(1, sizeof(struct image_record));
    int r = l->v ? image_cache_open(&c, e) : err_oom(e);
    return r < 0 ? r : image_find(&c, name, l->v, e);
}

static void image_items_free(struct items *l)
{
    if (l->v)
        image_record_free(l->v);
    free(l->v);
}

static const struct noun image = {.open = image_items_open,
                                  .free = image_items_free,
                                  .json = image_item_json,
                                  .text = image_text};

const struct cmd cmd_image_inspect = {
    .name = "inspect",
    .summary = "Show details of an image",
    .opts = inspect_opts,
    .pos = ONE("REFERENCE", "Image to show"),
    .examples = "  msb image inspect alpine:3\n"
                "  msb image inspect python:3.11-slim --format json",
    .inspect = &image,
};
