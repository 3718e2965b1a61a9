#include "image/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "image/layer/to_tar.h"
#include "image/oci/change.h"
#include "image/oci/document.h"
#include "image/oci/json.h"
#include "image/store/internal.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/text.h"

struct making {
    struct image_store *store;
    const struct commit *c;
    json_t *config; /* the document */
    struct image_layer layers[OCI_LAYERS_MAX];
    struct oci_layer described[OCI_LAYERS_MAX];
    size_t n;
};

/* ---- layers ---- */

static int add_layer(struct making *m, struct stream *in, struct err *e)
{
    struct image_layer l;
    if (m->n == OCI_LAYERS_MAX) {
        err_set(e, E2BIG, "an image has at most %d layers, and this would be another one",
                OCI_LAYERS_MAX);
        err_hint(e, "start again from fewer layers: msb cp %s:/ - > root.tar; msb run ./root.tar",
                 m->c->name);
        return -E2BIG;
    }
    const struct layer_want want = {.name = "the layer", .layer = true};
    int r = image_store_make_layer(m->store, &want, in, &l, e);
    if (r < 0)
        return r;
    m->described[m->n] =
        (struct oci_layer){.diff_id = l.diff_id, .blob = l.blob, .size = l.blob_size};
    m->layers[m->n++] = l;
    return 0;
}

/* Uses the layers and the configuration of a stored image. */
static int use_image(struct making *m, const struct image_record *rec, struct err *e)
{
    AUTO_OCI_MANIFEST struct oci_manifest manifest = {0};
    int r = oci_manifest_parse(rec->manifest, rec->manifest_len, &manifest, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < rec->n_layers; i++) {
        const struct oci_descriptor *d = &manifest.layers[i];
        m->described[i] = (struct oci_layer){.diff_id = rec->layers[i].diff_id,
                                             .blob = d->digest,
                                             .size = d->size,
                                             .compression = d->compression};
        m->layers[m->n++] = (struct image_layer){.diff_id = rec->layers[i].diff_id};
    }
    m->config =
        oci_json_load(rec->config, rec->config_len, OCI_CONFIG_MAX, "image's configuration", e);
    return m->config ? 0 : -EBADMSG;
}

/* A directory, a tar or the built-in image is one file, and becomes one layer. */
static int use_file(struct making *m, int image_fd, struct err *e)
{
    struct tar_out o;
    struct fd_stream in;
    AUTO_CLOSE int fd = openat(m->store->cache.tmp_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, errno, "cannot make a temporary file");
    if (tar_out_init(&o, fd, NULL) < 0)
        return err_oom(e);
    int r = layer_write_tar(image_fd, &o, e);
    if (r == 0 && (r = tar_out_flush(&o)) < 0)
        r = err_sys(e, -r, "cannot write a temporary file");
    tar_out_free(&o);
    if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
        r = err_sys(e, errno, "cannot read a temporary file");
    fd_stream_init(&in, fd, "a temporary file");
    if (r == 0)
        r = add_layer(m, &in.s, e);
    struct oci_platform host = {0};
    oci_platform_host(&host);
    m->config = json_pack("{s:s*, s:s*}", "architecture", host.architecture, "os", host.os);
    oci_platform_free(&host);
    return r < 0 ? r : m->config ? 0 : err_oom(e);
}

static int use_parent(struct making *m, struct err *e)
{
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    struct digest d;
    char hex[DIGEST_HEX_SIZE];
    int r = digest_parse(m->c->parent, &d, e);
    if (r == 0)
        r = image_store_get(m->store, &d, &rec, e);
    if (r == 0)
        return use_image(m, &rec, e);
    if (r != -ENOENT)
        return r;
    digest_hex(&d, hex);
    AUTO_CLOSE int fd = cache_open_image(&m->store->cache, hex);
    if (fd < 0)
        return r;
    err_clear(e);
    return use_file(m, fd, e);
}

/* ---- documents ---- */

static int apply_changes(const struct commit *c, json_t *document, struct err *e)
{
    json_t *config = json_object_get(document, "config");
    if (!json_is_object(config)) {
        config = json_object();
        if (json_object_set_new(document, "config", config) < 0)
            return err_oom(e);
    }
    int r = 0;
    for (size_t i = 0; r == 0 && c->changes && i < c->changes->n; i++)
        r = oci_change(config, c->changes->v[i], e);
    return r;
}

int image_commit_check(const struct commit *c, struct err *e)
{
    AUTO_JSON json_t *j = json_object();
    return j ? apply_changes(c, j, e) : err_oom(e);
}

static int set_history(const struct making *m, struct err *e)
{
    const struct commit *c = m->c;
    char now[TIME_TEXT_MAX], by[160];
    time_rfc3339(realtime_ns(), now);
    (void)snprintf(by, sizeof(by), "msb commit %.128s", c->name);
    json_t *history = json_object_get(m->config, "history");
    json_t *entry = json_pack("{s:s, s:s, s:s*, s:s*}", "created", now, "created_by", by, "author",
                              c->author, "comment", c->message);
    if (!json_is_array(history)) {
        history = json_array();
        if (json_object_set_new(m->config, "history", history) < 0)
            return err_oom(e);
    }
    if (!entry || json_array_append_new(history, entry) < 0)
        return err_set(e, EINVAL, "author and message must be valid UTF-8");
    if (json_object_set_new(m->config, "created", json_string(now)) < 0 ||
        (c->author && json_object_set_new(m->config, "author", json_string(c->author)) < 0))
        return err_oom(e);
    return apply_changes(c, m->config, e);
}

static int add_image(struct making *m, struct digest *ret, struct err *e)
{
    AUTO_OCI_DOCUMENT struct oci_document config = {0};
    AUTO_OCI_DOCUMENT struct oci_document manifest = {0};
    int r = set_history(m, e);
    if (r == 0)
        r = oci_document_config(&config, m->config, m->described, m->n, e);
    if (r == 0)
        r = oci_document_manifest(&manifest, &config, m->described, m->n, NULL, e);
    if (r == 0)
        r = image_store_add_image(m->store, manifest.text, manifest.len, config.text, config.len,
                                  m->layers, m->n, ret, e);
    if (r == 0 && m->c->target)
        r = image_store_tag(m->store, m->c->target, ret, false, e);
    return r;
}

int image_commit(struct image_store *s, const struct commit *c, struct stream *layer,
                 struct digest *ret, struct err *e)
{
    struct making *m = calloc(1, sizeof(*m));
    if (!m)
        return err_oom(e);
    m->store = s;
    m->c = c;
    int r = use_parent(m, e);
    if (r == 0)
        r = add_layer(m, layer, e);
    if (r == 0)
        r = add_image(m, ret, e);
    json_decref(m->config);
    free(m);
    return r;
}
