#include "cli/image.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- JSON ----------------------------------------------------------------------------------- */

static json_t *digest_json(const struct digest *d)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    return json_string(text);
}

static json_t *text_or_null(const char *s)
{
    return s && *s ? json_string(s) : json_null();
}

static json_t *list_json(char *const *list)
{
    json_t *a = json_array();
    for (; list && *list; list++)
        (void)json_array_append_new(a, json_string(*list));
    return a;
}

static json_t *labels_json(char *const *labels)
{
    json_t *o = json_object();
    for (; labels && *labels; labels++) {
        size_t n = strcspn(*labels, "=");
        AUTO_FREE char *key = strndup(*labels, n);
        if (key)
            (void)json_object_set_new(o, key, json_string((*labels)[n] ? *labels + n + 1 : ""));
    }
    return o;
}

static json_t *config_json(const struct image_record *r)
{
    const struct image_config *c = &r->parsed.run;
    struct digest config;
    if (digest_of(r->config, r->config_len, &config) < 0)
        return NULL;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "cmd", list_json(c->cmd),
                     "digest", digest_json(&config), "entrypoint", list_json(c->entrypoint), "env",
                     list_json(c->env), "exposed_ports", list_json(c->exposed_ports), "labels",
                     labels_json(c->labels), "stop_signal", text_or_null(c->stop_signal), "user",
                     text_or_null(c->user), "volumes", list_json(c->volumes), "working_dir",
                     text_or_null(c->workdir));
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
                         "media_type", text_or_null(l->media_type), "position", (int)i));
    }
    return a;
}

static int print_json(const struct image_record *r)
{
    json_t *j = image_json(r);
    if (json_object_set_new(j, "config", config_json(r)) < 0 ||
        json_object_set_new(j, "layers", layers_json(r)) < 0) {
        json_decref(j);
        j = NULL;
    }
    return ui_print_json(j);
}

/* --- text ----------------------------------------------------------------------------------- */

/* Whoever made the image chose these words: they are made safe to show. */
static void line(struct buf *b, const char *label, const char *value)
{
    AUTO_FREE char *safe = value && *value ? strdup(value) : NULL;
    if (!safe)
        return;
    utf8_defuse(safe);
    (void)buf_printf(b, "%-16s%s\n", label, safe);
}

static void words(struct buf *b, const char *label, char *const *list)
{
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    for (char *const *v = list; v && *v; v++)
        (void)buf_printf(&text, "%s%s", v == list ? "" : " ", *v);
    if (buf_append(&text, "", 1) == 0)
        line(b, label, (char *)buf_head(&text));
    buf_free(&text);
}

static void section(struct buf *b, const char *title, char *const *list)
{
    if (list && *list)
        (void)buf_printf(b, "\n%s\n", title);
    for (; list && *list; list++) {
        AUTO_FREE char *safe = strdup(*list);
        if (safe)
            utf8_defuse(safe);
        (void)buf_printf(b, "  %s\n", safe ? safe : "");
    }
}

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
    line(b, "Reference:", name);
    line(b, "Digest:", digest);
    oci_platform_text(&(struct oci_platform){.os = r->parsed.os,
                                             .architecture = r->parsed.architecture,
                                             .variant = r->parsed.variant},
                      text);
    line(b, "Platform:", text);
    format_bytes(image_size(r), text, sizeof(text));
    line(b, "Size:", text);
    time_local(r->stored_ns, created);
    line(b, "Created:", created);
    line(b, "Built:", r->parsed.created);
}

static int print_text(const struct image_record *r)
{
    const struct image_config *c = &r->parsed.run;
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    head(&b, r);
    words(&b, "Entrypoint:", c->entrypoint);
    words(&b, "Command:", c->cmd);
    line(&b, "Workdir:", c->workdir);
    line(&b, "User:", c->user);
    line(&b, "Stop signal:", c->stop_signal);
    words(&b, "Ports:", c->exposed_ports);
    words(&b, "Volumes:", c->volumes);
    section(&b, "Environment", c->env);
    section(&b, "Labels", c->labels);
    layers(&b, r);
    int code = ui_print(&b);
    buf_free(&b);
    return code;
}

/* --- the verb ------------------------------------------------------------------------------- */

static int image_inspect_run(const struct args *a)
{
    struct image_cache c;
    struct image_record rec = {0};
    struct err e = {0};
    int r = image_cache_open(&c, &e);
    if (r == 0) {
        r = image_find(&c, a->pos[0], &rec, &e);
        image_cache_close(&c);
    }
    if (r < 0)
        return ui_fail(&e);
    int code = wants_json(a) ? print_json(&rec) : print_text(&rec);
    image_record_free(&rec);
    return code;
}

static const struct opt image_inspect_opts[] = {FORMAT_OPTION, {0}};

const struct cmd cmd_image_inspect = {
    .name = "inspect",
    .group = GROUP_IMAGE,
    .summary = "Show everything about one image",
    .parent = &cmd_image,
    .opts = {image_inspect_opts},
    .pos = {.name = "REFERENCE", .help = "Image to show", .required = true},
    .examples = "  msb image inspect alpine:3\n"
                "  msb image inspect python:3.11-slim --format json",
    .run = image_inspect_run,
};
