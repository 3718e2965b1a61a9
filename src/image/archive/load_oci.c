/* OCI layouts: index.json, and blobs by digest.
 *
 * Which entries of index.json are images, and their names, depend on the tool that wrote it:
 *
 *     docker, buildx    io.containerd.image.name: a full reference; ref.name is just the tag
 *     podman, skopeo    ref.name: a reference
 *     umoci and others  ref.name: a bare word, or nothing
 *
 * Entries with the same name are one image for several platforms. So are all entries if none has a
 * name. A bare word is a name unless it looks like a tag: "latest", "3.2", "v1".
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/archive/load_internal.h"
#include "util/cleanup.h"

enum { NESTED_MAX = 4 }; /* indexes inside of indexes */

#define BLOBS "blobs/sha256/"
enum { BLOB_NAME = sizeof(BLOBS) + DIGEST_HEX_SIZE };

static void blob_name(const struct digest *d, char name[BLOB_NAME])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(d, hex);
    (void)snprintf(name, BLOB_NAME, BLOBS "%s", hex);
}

/* A document, checked against its digest. */
static int read_blob(const struct load *l, const struct oci_descriptor *d, size_t max, char **ret,
                     size_t *ret_len, struct err *e)
{
    char name[BLOB_NAME];
    blob_name(&d->digest, name);
    AUTO_FREE char *doc = NULL;
    int r = bundle_read(&l->bundle, name, max, &doc, ret_len, e);
    if (r < 0)
        return r;
    struct digest is = digest_of(doc, *ret_len);
    if (!digest_equal(&is, &d->digest))
        return err_set(e, EBADMSG, "'%s' does not match its digest", name);
    *ret = steal_ptr(&doc);
    return 0;
}

/* ---- names ---- */

static bool looks_like_tag(const char *s)
{
    if (strchr(s, '/') || strchr(s, ':'))
        return false;
    return strcmp(s, "latest") == 0 || isdigit((unsigned char)*s) ||
           (*s == 'v' && isdigit((unsigned char)s[1]));
}

static const char *entry_name(const struct oci_index_entry *x)
{
    if (x->image_name)
        return x->image_name;
    return x->ref_name && !looks_like_tag(x->ref_name) ? x->ref_name : NULL;
}

static bool same_name(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

/* ---- one image ---- */

/* The entry with that name that suits the platform best. */
static const struct oci_index_entry *pick_entry(const struct load *l, const struct oci_index *x,
                                                const char *name)
{
    const struct oci_index_entry *best = NULL;
    unsigned how_well = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct oci_index_entry *at = &x->entries[i];
        if (!same_name(entry_name(at), name))
            continue;
        unsigned m = at->platform.os ? oci_platform_match(&at->platform, &l->platform) * 2 : 1;
        if (!best || m > how_well) {
            how_well = m;
            best = at;
        }
    }
    return best;
}

/* Follows indexes to the manifest for the platform. */
static int read_manifest(const struct load *l, const struct oci_descriptor *from,
                         struct load_source *src, struct err *e)
{
    struct oci_descriptor at = {.digest = from->digest};
    enum oci_kind kind;
    int r = 0;
    for (int depth = 0; r == 0; depth++) {
        if (depth > NESTED_MAX)
            return err_set(e, ELOOP, "its indexes are nested more than %d levels deep", NESTED_MAX);
        AUTO_FREE char *doc = NULL;
        size_t len;
        r = read_blob(l, &at, OCI_DOCUMENT_MAX, &doc, &len, e);
        if (r == 0)
            r = oci_kind(doc, len, &kind, e);
        if (r == 0 && kind == OCI_MANIFEST) {
            src->manifest = steal_ptr(&doc);
            src->manifest_len = len;
            return oci_manifest_parse(src->manifest, len, &src->m, e);
        }
        struct oci_descriptor next = {0};
        if (r == 0)
            r = oci_index_pick(doc, len, &l->platform, &next, e);
        at = next;
        free(at.media_type);
        at.media_type = NULL;
    }
    return r;
}

static int read_image(struct load *l, const struct oci_index_entry *x, struct load_source *src,
                      struct err *e)
{
    int r = read_manifest(l, &x->d, src, e);
    if (r == 0)
        r = read_blob(l, &src->m.config, OCI_CONFIG_MAX, &src->config, &src->config_len, e);
    if (r == 0)
        r = oci_config_parse(src->config, src->config_len, &src->c, e);
    if (r < 0)
        return r;
    src->layers = calloc(src->m.n_layers + 1, sizeof(char *));
    if (!src->layers)
        return err_oom(e);
    for (size_t i = 0; i < src->m.n_layers; i++) {
        char name[BLOB_NAME];
        blob_name(&src->m.layers[i].digest, name);
        if (!(src->layers[i] = strdup(name)))
            return err_oom(e);
    }
    const char *name = entry_name(x);
    if (!l->opt->tag && name && strlist_add(&src->names, name) < 0)
        return err_oom(e);
    return load_add(l, src, e);
}

/* ---- all of them ---- */

/* All names in the index. */
static int list_names(const struct load *l, const struct oci_index *x, struct strlist *ret,
                      struct err *e)
{
    size_t silent = 0;
    for (size_t i = 0; i < x->n; i++) {
        const char *name = entry_name(&x->entries[i]);
        silent += !name && !x->entries[i].platform.os;
        if (name && !strlist_has(ret, name) && strlist_add(ret, name) < 0)
            return err_oom(e);
    }
    if (!ret->n && silent > 1)
        return err_set(e, EINVAL, "the archive has %zu images and no names for them", silent);
    return load_check_names(l, ret->n, ret->n, e);
}

static int load_index(struct load *l, const struct oci_index *x, struct err *e)
{
    AUTO_STRLIST struct strlist names = {0};
    if (!x->n)
        return err_set(e, EBADMSG, "%s lists no images", LOAD_INDEX);
    int r = list_names(l, x, &names, e);
    for (size_t i = 0; r == 0 && i < MAX(names.n, (size_t)1); i++) {
        AUTO_LOAD_SOURCE struct load_source src = {0};
        const char *name = names.n ? names.v[i] : NULL;
        const struct oci_index_entry *entry = pick_entry(l, x, name);
        r = entry ? read_image(l, entry, &src, e) : err_set(e, EBADMSG, "%s is empty", LOAD_INDEX);
        if (r < 0 && name)
            (void)err_wrap(e, r, "image '%.256s'", name);
    }
    return r;
}

int load_oci(struct load *l, struct err *e)
{
    AUTO_FREE char *doc = NULL;
    size_t len;
    AUTO_OCI_INDEX struct oci_index x = {0};
    int r = bundle_read(&l->bundle, LOAD_INDEX, OCI_DOCUMENT_MAX, &doc, &len, e);
    if (r == 0)
        r = oci_index_parse(doc, len, &x, e);
    return r < 0 ? r : load_index(l, &x, e);
}
