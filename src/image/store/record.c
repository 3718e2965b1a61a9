#include "image/store/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/oci/json.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    RECORD_VERSION = 1,
    REF_SPELLING_MAX = REFERENCE_MAX + 64, /* omitted parts are spelled out */
};

void record_json_name(const struct digest *d, char name[RECORD_NAME_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(d, hex);
    (void)snprintf(name, RECORD_NAME_SIZE, "%s.json", hex);
}

bool record_digest(const char *name, struct digest *ret)
{
    char text[DIGEST_TEXT_SIZE];
    if (strlen(name) < DIGEST_HEX_SIZE - 1 || strcmp(name + DIGEST_HEX_SIZE - 1, ".json") != 0)
        return false;
    (void)snprintf(text, sizeof(text), "sha256:%.64s", name);
    return digest_parse(text, ret, NULL) == 0;
}

void record_erofs_name(const struct digest *d, char name[RECORD_NAME_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(d, hex);
    cache_image_name(hex, name);
}

void record_layers_free(struct image_layer *layers, size_t n)
{
    for (size_t i = 0; layers && i < n; i++)
        free(layers[i].media_type);
    free(layers);
}

void record_free(struct record *r)
{
    record_layers_free(r->layers, r->n_layers);
    *r = (struct record){0};
}

/* --- writing -------------------------------------------------------------------------------- */

static json_t *layer_json(const struct image_layer *l)
{
    json_t *j = json_pack("{s:o, s:o, s:I, s:I}", "diff_id", digest_json(&l->diff_id), "blob",
                          digest_json(&l->blob), "blob_size", (json_int_t)l->blob_size,
                          "erofs_size", (json_int_t)l->erofs_size);
    /* Dropped if it is not UTF-8: nothing depends on it. */
    if (j && l->media_type)
        (void)json_object_set_new(j, "media_type", json_string(l->media_type));
    return j;
}

static int write_json(int dirfd, const char *name, json_t *j)
{
    AUTO_JSON json_t *owned = j;
    AUTO_FREE char *text = owned ? json_dumps(owned, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    return text ? file_replace_at(dirfd, name, text, strlen(text), 0600, true) : -ENOMEM;
}

int record_write(int images_fd, const struct digest *image, const struct record *r)
{
    AUTO_JSON json_t *layers = json_array();
    for (size_t i = 0; i < r->n_layers; i++)
        if (json_array_append_new(layers, layer_json(&r->layers[i])) < 0)
            return -ENOMEM;
    char name[RECORD_NAME_SIZE];
    record_json_name(image, name);
    return write_json(images_fd, name,
                      json_pack("{s:i, s:o, s:o, s:I, s:I, s:O}", "version", RECORD_VERSION,
                                "config", digest_json(&r->config), "disk", digest_json(&r->disk),
                                "disk_size", (json_int_t)r->disk_size, "stored_ns",
                                (json_int_t)r->stored_ns, "layers", layers));
}

/* --- reading -------------------------------------------------------------------------------- */

static bool get_digest(const json_t *o, const char *key, struct digest *ret)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text && digest_parse(text, ret, NULL) == 0;
}

static bool get_size(const json_t *o, const char *key, uint64_t *ret)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(v);
    return true;
}

static int get_layer(const json_t *o, struct image_layer *l)
{
    if (!get_digest(o, "diff_id", &l->diff_id) || !get_digest(o, "blob", &l->blob) ||
        !get_size(o, "blob_size", &l->blob_size) || !get_size(o, "erofs_size", &l->erofs_size))
        return -ENOENT;
    const char *type = json_string_value(json_object_get(o, "media_type"));
    if (!type)
        return 0;
    if (strlen(type) > RECORD_MEDIA_TYPE_MAX)
        return -ENOENT;
    l->media_type = strdup(type);
    return l->media_type ? 0 : -ENOMEM;
}

static int get_layers(const json_t *a, struct record *r)
{
    size_t n = json_array_size(a);
    if (!json_is_array(a) || n > OCI_LAYERS_MAX)
        return -ENOENT;
    r->layers = calloc(n + 1, sizeof(*r->layers));
    if (!r->layers)
        return -ENOMEM;
    r->n_layers = n;
    int code = 0;
    for (size_t i = 0; code == 0 && i < n; i++)
        code = get_layer(json_array_get(a, i), &r->layers[i]);
    return code;
}

/* A file that is too long or not regular is -ENOENT; other errors are passed on. */
static int read_text(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len)
{
    int r = file_read_at(dirfd, name, max, ret, ret_len);
    return r == -EFBIG || r == -EINVAL || r == -ELOOP ? -ENOENT : r;
}

int record_parse(const char *text, size_t len, struct record *ret)
{
    struct record r = {0};
    AUTO_JSON json_t *j = json_loadb(text, len, 0, NULL);
    bool ok = json_integer_value(json_object_get(j, "version")) == RECORD_VERSION &&
              get_digest(j, "config", &r.config) && get_digest(j, "disk", &r.disk) &&
              get_size(j, "disk_size", &r.disk_size) && get_size(j, "stored_ns", &r.stored_ns);
    int code = ok ? get_layers(json_object_get(j, "layers"), &r) : -ENOENT;
    if (code < 0) {
        record_free(&r);
        return code;
    }
    *ret = r;
    return 0;
}

int record_read(int images_fd, const struct digest *image, struct record *ret)
{
    char name[RECORD_NAME_SIZE];
    AUTO_FREE char *text = NULL;
    size_t len = 0;
    record_json_name(image, name);
    int r = read_text(images_fd, name, RECORD_MAX, &text, &len);
    return r < 0 ? r : record_parse(text, len, ret);
}

/* --- references ----------------------------------------------------------------------------- */

char *ref_spelling(const struct reference *ref)
{
    struct reference r = *ref;
    if (r.digest)
        r.tag = NULL;
    return reference_full(&r);
}

void ref_name(const char *spelling, char name[RECORD_NAME_SIZE])
{
    struct digest d = digest_of(spelling, strlen(spelling));
    record_json_name(&d, name);
}

int ref_write(int refs_fd, const char *name, const char *reference, const struct digest *image,
              bool pulled)
{
    return write_json(refs_fd, name,
                      json_pack("{s:s, s:o, s:b}", "reference", reference, "image",
                                digest_json(image), "pulled", pulled));
}

int ref_read(int refs_fd, const char *name, char **ret_reference, struct digest *ret_image,
             bool *ret_pulled)
{
    AUTO_FREE char *text = NULL;
    size_t len = 0;
    int r = read_text(refs_fd, name, RECORD_REF_MAX, &text, &len);
    return r < 0 ? r : ref_parse(name, text, len, ret_reference, ret_image, ret_pulled);
}

int ref_parse(const char *name, const char *file, size_t len, char **ret_reference,
              struct digest *ret_image, bool *ret_pulled)
{
    struct digest d;
    char expected[RECORD_NAME_SIZE];
    AUTO_JSON json_t *j = json_loadb(file, len, 0, NULL);
    const char *text = json_string_value(json_object_get(j, "reference"));
    if (!text || strlen(text) > REF_SPELLING_MAX || !get_digest(j, "image", &d))
        return -ENOENT;
    ref_name(text, expected);
    if (strcmp(expected, name) != 0) /* a file with another name is not that reference's */
        return -ENOENT;
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    *ret_reference = copy;
    *ret_image = d;
    *ret_pulled = json_is_true(json_object_get(j, "pulled"));
    return 0;
}
