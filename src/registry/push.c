#include "registry/push.h"

#include "image/layer/pack.h"
#include "image/oci/document.h"
#include "image/oci/json.h"
#include "image/store/internal.h"
#include "registry/registry_impl.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOUNTS_MAX = 3, /* repositories that are tried for one blob */
    TICK_NS = 100000000,
    QUERY_MAX = 3 * REFERENCE_REPOSITORY_MAX + DIGEST_TEXT_SIZE + 64,
};

struct push {
    struct image_store *store;
    const struct image_record *rec;
    const struct reference *ref;
    const struct registry_options *opt;
    const struct pull_events *ev;
    struct registry *registry;
    struct endpoint *ep;
    struct image_list known; /* for mounts */
    struct pull_layer *layers;
    struct oci_layer *described;
    bool other_blobs, other_layers; /* than in the image's own documents */
    uint64_t ticked_ns;
};

static void tick(struct push *p, bool now)
{
    uint64_t at = now_ns();
    if (!p->ev || !p->ev->tick || (!now && at - p->ticked_ns < TICK_NS))
        return;
    p->ticked_ns = at;
    p->ev->tick(p->ev->ctx);
}

/* --- blobs ---------------------------------------------------------------------------------- */

/* A blob being sent. */
struct parcel {
    struct push *p;
    const struct digest *digest;
    struct http_send send;
    struct pull_layer *layer; /* for progress; NULL: none */
};

static void on_sent(void *ctx, uint64_t bytes)
{
    struct parcel *x = ctx;
    if (x->layer)
        atomic_store(&x->layer->progress.read, bytes);
    tick(x->p, false);
}

/* 1: the registry has it. */
static int has_blob(struct push *p, const struct digest *d, struct err *e)
{
    char text[DIGEST_TEXT_SIZE], path[DIGEST_TEXT_SIZE + 16];
    struct http_response *resp = NULL;
    unsigned tries = 0;
    digest_text(d, text);
    (void)snprintf(path, sizeof(path), "blobs/%s", text);
    const struct endpoint_call q = {.method = "HEAD", .path = path};
    int r = registry_call(p->registry, p->ep, &q, path, &tries, &resp, e);
    if (r < 0)
        return r;
    assert(resp);
    /* The redirect is not followed: its existence is the answer. */
    r = resp->status == 200 || (resp->status / 100 == 3 && resp->location) ? 1 : 0;
    if (!r && resp->status != 404)
        r = registry_explain_push(p->registry, p->ep, resp, "a look for a blob", e);
    http_close(resp);
    return r;
}

/* Opens an upload: *ret is its address. With a query, it may turn out to be unnecessary: 1. */
static int begin_upload(struct push *p, const char *query, char **ret, struct err *e)
{
    char path[QUERY_MAX + 32];
    struct http_response *resp = NULL;
    unsigned tries = 0;
    (void)snprintf(path, sizeof(path), "blobs/uploads/%s", query ? query : "");
    const struct endpoint_call q = {.method = "POST", .path = path};
    int r = registry_call(p->registry, p->ep, &q, "an upload", &tries, &resp, e);
    if (r < 0)
        return r;
    assert(resp);
    if (resp->status == 201 && query)
        r = 1;
    else if (resp->status != 202)
        r = registry_explain_push(p->registry, p->ep, resp, "an upload", e);
    else if (!resp->location)
        r = err_set(e, EPROTO, "%s gives no location for the upload", p->ep->host);
    else
        *ret = steal_ptr(&resp->location);
    http_close(resp);
    return r;
}

/* Sends all of it at once. */
static int put_blob(struct parcel *x, const char *location, struct err *e)
{
    struct push *p = x->p;
    AUTO_FREE char *url = NULL;
    char text[DIGEST_TEXT_SIZE];
    struct http_response *resp = NULL;
    digest_text(x->digest, text);
    if (asprintf(&url, "%s%sdigest=%s", location, strchr(location, '?') ? "&" : "?", text) < 0) {
        url = NULL;
        return err_oom(e);
    }
    const struct endpoint_call q = {
        .method = "PUT", .url = url, .content_type = "application/octet-stream", .send = &x->send};
    int r = endpoint_call(p->ep, &q, &resp, e);
    if (r < 0)
        return r;
    assert(resp);
    if (resp->status != 201)
        r = registry_explain_push(p->registry, p->ep, resp, "a blob", e);
    http_close(resp);
    return r;
}

/* A broken upload starts over: what has arrived cannot be known without asking, and registries
 * disagree about how to answer. */
static int upload(struct parcel *x, struct err *e)
{
    struct push *p = x->p;
    x->send.sent = on_sent;
    x->send.ctx = x;
    for (unsigned tries = 0;;) {
        AUTO_FREE char *location = NULL;
        err_clear(e);
        int r = begin_upload(p, NULL, &location, e);
        if (r == 0 && location)
            r = put_blob(x, location, e);
        if (r == 0)
            return 0;
        r = registry_again(p->registry, p->ep, r, &tries, 0, e);
        if (r < 0)
            return r;
    }
}

/* Repositories of this registry that have the blob, as far as we know. */
static int mount_blob(struct push *p, const struct digest *blob)
{
    char text[DIGEST_TEXT_SIZE];
    size_t tried = 0;
    digest_text(blob, text);
    for (size_t i = 0; i < p->known.n && tried < MOUNTS_MAX; i++) {
        const struct image_record *rec = &p->known.v[i];
        AUTO_REFERENCE struct reference ref = {0};
        bool has = false;
        for (size_t k = 0; !has && k < rec->n_layers; k++)
            has = digest_equal(&rec->layers[k].blob, blob);
        if (!has || reference_parse(rec->reference, &ref, NULL) < 0 ||
            strcmp(ref.registry, p->ref->registry) != 0 ||
            strcmp(ref.repository, p->ref->repository) == 0)
            continue;
        char query[QUERY_MAX];
        AUTO_FREE char *from = http_escape(ref.repository), *unused = NULL;
        (void)snprintf(query, sizeof(query), "?mount=%s&from=%s", text, from ? from : "");
        tried++;
        if (begin_upload(p, query, &unused, NULL) == 1)
            return 1;
    }
    return 0; /* it was worth a try: failures are reported when uploading */
}

/* --- layers --------------------------------------------------------------------------------- */

static void set_state(struct push *p, size_t i, enum pull_state state)
{
    atomic_store(&p->layers[i].state, state);
    tick(p, true);
}

/* Generates the blob and sends it, unless the registry has that one. */
static int push_new(struct push *p, size_t i, struct err *e)
{
    struct layer_blob blob;
    uint64_t size;
    const struct digest *was = &p->rec->layers[i].diff_id;
    AUTO_CLOSE int layer = store_open_layer(p->store->layers_fd, was, &size);
    AUTO_CLOSE int fd = openat(p->store->cache.tmp_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (layer < 0 || fd < 0)
        return err_sys(e, layer < 0 ? -layer : errno, "cannot open layer %zu of the image", i + 1);
    int r = layer_pack(layer, fd, p->opt->cancel[0], &blob, e);
    if (r < 0)
        return r;
    p->other_layers = p->other_layers || !digest_equal(&blob.diff_id, was);
    p->other_blobs = true;
    p->described[i] = (struct oci_layer){
        .diff_id = blob.diff_id, .blob = blob.digest, .size = blob.size, .compression = OCI_GZIP};
    p->layers[i].blob = blob.digest;
    p->layers[i].size = blob.size;
    r = has_blob(p, &blob.digest, e);
    if (r == 0) {
        struct parcel x = {.p = p,
                           .digest = &blob.digest,
                           .send = {.fd = fd, .size = blob.size},
                           .layer = &p->layers[i]};
        set_state(p, i, PULL_DOWNLOADING);
        r = upload(&x, e);
        if (r == 0)
            set_state(p, i, PULL_DONE);
    } else if (r == 1) {
        set_state(p, i, PULL_EXISTS);
        r = 0;
    }
    return r;
}

static int push_layer(struct push *p, size_t i, struct err *e)
{
    const struct digest *blob = &p->described[i].blob;
    int r = has_blob(p, blob, e);
    if (r == 0)
        r = mount_blob(p, blob);
    if (r < 0)
        return r;
    if (r == 0)
        return push_new(p, i, e);
    set_state(p, i, PULL_EXISTS);
    return 0;
}

static int push_layers(struct push *p, struct err *e)
{
    AUTO_OCI_MANIFEST struct oci_manifest m = {0};
    size_t n = p->rec->n_layers;
    int r = oci_manifest_parse(p->rec->manifest, p->rec->manifest_len, &m, e);
    if (r < 0)
        return r;
    if (m.n_layers != n)
        return err_set(e, EBADMSG, "the image's documents disagree about its layers");
    p->layers = calloc(n, sizeof(*p->layers));
    p->described = calloc(n, sizeof(*p->described));
    if (!p->layers || !p->described)
        return err_oom(e);
    for (size_t i = 0; i < n; i++) {
        p->described[i] = (struct oci_layer){.diff_id = p->rec->layers[i].diff_id,
                                             .blob = m.layers[i].digest,
                                             .size = m.layers[i].size,
                                             .compression = m.layers[i].compression};
        p->layers[i].blob = m.layers[i].digest;
        p->layers[i].size = m.layers[i].size;
    }
    (void)image_store_list(p->store, &p->known, NULL);
    if (p->ev && p->ev->layers)
        p->ev->layers(p->ev->ctx, p->layers, n);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = push_layer(p, i, e);
    return r;
}

/* --- documents ------------------------------------------------------------------------------ */

/* Unchanged if the layers are the same, byte for byte; else adapted. */
static int make_documents(struct push *p, struct oci_document *config,
                          struct oci_document *manifest, struct err *e)
{
    const struct image_record *rec = p->rec;
    AUTO_JSON json_t *old = NULL, *was = NULL;
    int r = oci_documents_load(rec->config, rec->config_len, rec->manifest, rec->manifest_len, &old,
                               &was, e);
    if (r < 0)
        return r;
    r = p->other_layers ? oci_document_config(config, old, p->described, rec->n_layers, e)
                        : oci_document_copy(config, rec->config, rec->config_len, e);
    if (r == 0)
        r = p->other_blobs ? oci_document_manifest(manifest, config, p->described, rec->n_layers,
                                                   json_object_get(was, "annotations"), e)
                           : oci_document_copy(manifest, rec->manifest, rec->manifest_len, e);
    return r;
}

static int push_config(struct push *p, const struct oci_document *d, struct err *e)
{
    struct parcel x = {.p = p, .digest = &d->digest, .send = {.p = d->text, .size = d->len}};
    int r = has_blob(p, &d->digest, e);
    return r == 0 ? upload(&x, e) : r < 0 ? r : 0;
}

/* What the registry says it stored must be what we sent. */
static int check_answer(const struct push *p, const struct oci_document *d,
                        struct http_response *resp, struct err *e)
{
    struct digest is;
    if (resp->status != 201 && resp->status != 200)
        return registry_explain_push(p->registry, p->ep, resp, "the manifest", e);
    if (digest_parse(resp->docker_digest, &is, NULL) == 0 && !digest_equal(&is, &d->digest))
        return err_set(e, EBADMSG, "%s stored a different manifest from the one sent: %.80s",
                       p->ep->host, resp->docker_digest);
    return 0;
}

static int push_manifest(struct push *p, const struct oci_document *d, struct err *e)
{
    char path[REFERENCE_TAG_MAX + 16];
    struct http_response *resp = NULL;
    unsigned tries = 0;
    const struct http_send send = {.p = d->text, .size = d->len};
    AUTO_JSON json_t *j = oci_json_load(d->text, d->len, OCI_DOCUMENT_MAX, "manifest", e);
    const char *type = json_string_value(json_object_get(j, "mediaType"));
    if (!j)
        return -EBADMSG;
    (void)snprintf(path, sizeof(path), "manifests/%s", p->ref->tag);
    const struct endpoint_call q = {.method = "PUT",
                                    .path = path,
                                    .content_type = type ? type : OCI_TYPE_MANIFEST,
                                    .send = &send};
    int r = registry_call(p->registry, p->ep, &q, "the manifest", &tries, &resp, e);
    if (r < 0)
        return r;
    assert(resp);
    r = check_answer(p, d, resp, e);
    http_close(resp);
    return r;
}

static int push_documents(struct push *p, struct digest *ret, struct err *e)
{
    AUTO_OCI_DOCUMENT struct oci_document config = {0};
    AUTO_OCI_DOCUMENT struct oci_document manifest = {0};
    int r = make_documents(p, &config, &manifest, e);
    if (r == 0)
        r = push_config(p, &config, e);
    if (r == 0)
        r = push_manifest(p, &manifest, e);
    if (r == 0)
        *ret = manifest.digest;
    return r;
}

int push_image(struct image_store *s, const struct image_record *rec, const struct reference *ref,
               const struct registry_options *opt, const struct pull_events *ev, struct digest *ret,
               struct err *e)
{
    struct push p = {.store = s, .rec = rec, .ref = ref, .opt = opt, .ev = ev};
    struct err own = {0};
    e = e ? e : &own;
    int r = registry_open(&p.registry, ref, opt, e);
    if (r == 0) {
        p.ep = p.registry->ep[p.registry->n - 1]; /* mirrors are for reading */
        p.ep->push = true;
        r = push_layers(&p, e);
    }
    if (r == 0)
        r = push_documents(&p, ret, e);
    tick(&p, true);
    image_list_free(&p.known);
    free(p.layers);
    free(p.described);
    registry_free(p.registry);
    return r;
}
