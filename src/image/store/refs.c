/* References, and the records of images. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image/store/internal.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"

void image_record_free(struct image_record *r)
{
    free(r->reference);
    free(r->manifest);
    free(r->config);
    oci_config_free(&r->parsed);
    record_layers_free(r->layers, r->n_layers);
    *r = (struct image_record){0};
}

static int not_found(const char *what, struct err *e)
{
    return err_set(e, ENOENT, "image not found: %s", what);
}

int image_store_tag(struct image_store *s, const struct reference *ref, const struct digest *image,
                    bool pulled, struct err *e)
{
    AUTO_FREE char *spelling = ref_spelling(ref);
    char name[RECORD_NAME_SIZE];
    if (!spelling)
        return err_oom(e);
    ref_name(spelling, name);
    int r = ref_write(s->refs_fd, name, spelling, image, pulled);
    return r < 0 ? err_sys(e, -r, "cannot record the reference '%s'", spelling) : 0;
}

int image_store_untag(struct image_store *s, const struct reference *ref, struct err *e)
{
    AUTO_FREE char *spelling = ref_spelling(ref);
    AUTO_FREE char *familiar = reference_familiar(ref);
    char name[RECORD_NAME_SIZE];
    if (!spelling || !familiar)
        return err_oom(e);
    ref_name(spelling, name);
    if (unlinkat(s->refs_fd, name, 0) < 0)
        return errno == ENOENT ? not_found(familiar, e)
                               : err_sys(e, errno, "cannot remove the reference '%s'", familiar);
    (void)fsync(s->refs_fd);
    return 0;
}

/* --- images --------------------------------------------------------------------------------- */

static bool has_file(int dirfd, const struct digest *d, uint64_t size)
{
    char name[RECORD_NAME_SIZE];
    struct stat st;
    record_erofs_name(d, name);
    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size == size;
}

static bool is_whole(const struct image_store *s, const struct record *r)
{
    bool ok = has_file(s->disks_fd, &r->disk, r->disk_size);
    for (size_t i = 0; ok && i < r->n_layers; i++)
        ok = has_file(s->layers_fd, &r->layers[i].diff_id, r->layers[i].erofs_size);
    return ok;
}

static int load_documents(struct image_store *s, const struct record *rec, struct image_record *ret)
{
    int r = store_read_doc(s->docs_fd, &ret->digest, OCI_DOCUMENT_MAX, &ret->manifest,
                           &ret->manifest_len);
    if (r == 0)
        r = store_read_doc(s->docs_fd, &rec->config, OCI_CONFIG_MAX, &ret->config,
                           &ret->config_len);
    if (r < 0)
        return r;
    r = oci_config_parse(ret->config, ret->config_len, &ret->parsed, NULL);
    if (r == -ENOMEM)
        return r;
    return r < 0 || ret->parsed.n_diff_ids != rec->n_layers ? -ENOENT : 0;
}

/* -errno; -ENOENT if the image is missing or incomplete. */
static int load_image(struct image_store *s, const struct digest *image, struct image_record *ret)
{
    AUTO_RECORD struct record rec = {0};
    struct image_record out = {.digest = *image};
    int r = record_read(s->cache.images_fd, image, &rec);
    if (r == 0 && !is_whole(s, &rec))
        r = -ENOENT;
    if (r == 0)
        r = load_documents(s, &rec, &out);
    if (r < 0) {
        image_record_free(&out);
        return r;
    }
    out.layers = steal_ptr(&rec.layers);
    out.n_layers = rec.n_layers;
    out.disk_size = rec.disk_size;
    out.stored_ns = rec.stored_ns;
    *ret = out;
    return 0;
}

int image_store_get(struct image_store *s, const struct digest *image, struct image_record *ret,
                    struct err *e)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(image, text);
    int r = load_image(s, image, ret);
    if (r == -ENOENT)
        return not_found(text, e);
    return r < 0 ? err_sys(e, -r, "cannot read image %s", text) : 0;
}

/* Finds the image that a reference means, first by name: a digest may be an index's. */
static int find_image(struct image_store *s, const struct reference *ref, const char *spelling,
                      struct image_record *ret)
{
    char name[RECORD_NAME_SIZE];
    AUTO_FREE char *stored = NULL;
    struct digest d, want;
    bool pulled = false;
    ref_name(spelling, name);
    int r = ref_read(s->refs_fd, name, &stored, &d, &pulled);
    if (r == 0)
        r = load_image(s, &d, ret);
    if (r == -ENOENT && ref->digest && digest_parse(ref->digest, &d, NULL) == 0)
        r = load_image(s, &d, ret);
    if (r == 0) /* a digest is proof enough */
        ret->pulled = pulled || (ref->digest && digest_parse(ref->digest, &want, NULL) == 0 &&
                                 digest_equal(&want, &ret->digest));
    return r;
}

int image_store_find(struct image_store *s, const struct reference *ref, struct image_record *ret,
                     struct err *e)
{
    AUTO_FREE char *spelling = ref_spelling(ref);
    AUTO_FREE char *familiar = reference_familiar(ref);
    if (!spelling || !familiar)
        return err_oom(e);
    struct image_record out = {0};
    int r = find_image(s, ref, spelling, &out);
    if (r == -ENOENT)
        return not_found(familiar, e);
    if (r < 0)
        return err_sys(e, -r, "cannot look up image '%s'", familiar);
    out.reference = steal_ptr(&spelling);
    *ret = out;
    return 0;
}

/* --- the list ------------------------------------------------------------------------------- */

void image_list_free(struct image_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        image_record_free(&l->v[i]);
    free(l->v);
    *l = (struct image_list){0};
}

static int by_reference(const void *a, const void *b)
{
    const struct image_record *x = a, *y = b;
    return strcmp(x->reference, y->reference);
}

/* Damaged ones are left out. */
static int list_one(struct image_store *s, const char *name, struct image_list *l)
{
    if (ARRAY_RESIZE(l->v, l->n + 1) < 0)
        return -ENOMEM;
    AUTO_FREE char *reference = NULL;
    struct digest d;
    int r = ref_read(s->refs_fd, name, &reference, &d, &(bool){false});
    if (r == 0)
        r = load_image(s, &d, &l->v[l->n]);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    l->v[l->n++].reference = steal_ptr(&reference);
    return 0;
}

int image_store_list(struct image_store *s, struct image_list *ret, struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(s->refs_fd, ".");
    struct image_list l = {0};
    int r = 0;
    if (!d)
        return err_sys(e, errno, "cannot list the images");
    for (const struct dirent *ent; r == 0 && (ent = readdir(d));)
        if (ent->d_name[0] != '.')
            r = list_one(s, ent->d_name, &l);
    if (r < 0) {
        image_list_free(&l);
        return err_sys(e, -r, "cannot list the images");
    }
    if (l.n)
        qsort(l.v, l.n, sizeof(*l.v), by_reference);
    *ret = l;
    return 0;
}
