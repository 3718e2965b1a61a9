#include "store_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/erofs/disk.h"
#include "image/erofs/format.h"
#include "image_fixture.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

/* --- fake layers ---------------------------------------------------------------------------- */

atomic_uint layers_made;
int hold_fd = -1;

static void write_super(int fd, uint64_t size, uint64_t total)
{
    struct erofs_super sb = {.magic = EROFS_MAGIC,
                             .block_bits = EROFS_BLOCK_BITS,
                             .blocks = (uint32_t)(total >> EROFS_BLOCK_BITS)};
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(pwrite_all(fd, &sb, sizeof(sb), EROFS_SUPER_OFFSET), 0);
}

int layer_convert(struct stream *in, const struct layer_want *want, int out_fd, int spool_dirfd,
                  struct layer_progress *progress, struct layer_made *ret, struct err *e)
{
    struct hasher h;
    char buf[4096];
    ssize_t n;
    uint64_t size = 0;
    hasher_init(&h);
    while ((n = stream_read(in, buf, sizeof(buf), e)) > 0) {
        hasher_update(&h, buf, (size_t)n);
        size += (uint64_t)n;
    }
    ret->diff_id = hasher_finish(&h);
    if (n < 0)
        return (int)n;
    write_super(out_fd, LAYER_SIZE, LAYER_SIZE);
    atomic_fetch_add(&layers_made, 1);
    if (hold_fd >= 0)
        while (read(hold_fd, buf, 1) < 0 && errno == EINTR)
            ;
    if (!digest_equal(&ret->diff_id, want->diff_id))
        return err_set(e, EBADMSG, "%s has the wrong diff_id", want->name);
    ret->blob = ret->diff_id;
    ret->blob_size = ret->tar_size = size;
    ret->erofs_size = LAYER_SIZE;
    return 0;
}

int disk_write_metadata(const int *layer_fds, size_t n, int out_fd, int spool_dirfd,
                        uint64_t max_bytes, struct err *e)
{
    uint64_t total = EROFS_BLOCK_SIZE;
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        assert_int_equal(fstat(layer_fds[i], &st), 0);
        total += (uint64_t)st.st_size;
    }
    write_super(out_fd, EROFS_BLOCK_SIZE, total);
    return 0;
}

/* A stream of some text, which a test may forbid to be opened. */
struct text_stream {
    struct stream s;
    const char *at;
};

static ssize_t text_read(struct stream *s, void *p, size_t n, struct err *e)
{
    struct text_stream *t = (struct text_stream *)s;
    n = MIN(n, strlen(t->at));
    memcpy(p, t->at, n);
    t->at += n;
    return (ssize_t)n;
}

static void text_close(struct stream *s)
{
    free(s);
}

int text_open(void *ctx, struct stream **ret, struct err *e)
{
    static const struct stream_ops ops = {text_read, text_close};
    struct text_stream *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    *t = (struct text_stream){{&ops}, ctx};
    *ret = &t->s;
    return 0;
}

int never_open(void *ctx, struct stream **ret, struct err *e)
{
    return err_set(e, EIO, "nobody should have opened this");
}

/* --- the store ------------------------------------------------------------------------------ */

const char *store_dir;

int store_setup(void **state)
{
    store_dir = mk_tmpdir();
    layers_made = 0;
    hold_fd = -1;
    return 0;
}

int store_teardown(void **state)
{
    rm_tmpdir();
    return 0;
}

void open_store(struct image_store *s)
{
    struct err e = {0};
    if (image_store_open(s, store_dir, &e) < 0)
        fail_msg("%s", e.msg);
}

struct digest digest_of_text(const char *text)
{
    return digest_of(text, strlen(text));
}

int add_layer(struct image_store *s, const char *text, struct image_layer *ret, struct err *e)
{
    struct digest d = digest_of_text(text);
    struct layer_want want = {
        .blob = &d, .blob_size = strlen(text), .diff_id = &d, .name = "a layer", .layer = true};
    return image_store_add_layer(s, &want, text_open, (void *)text, NULL, ret, e);
}

void print_config(char *out, size_t size, const struct digest *ids, size_t n, const char *note)
{
    char list[4096] = "";
    for (size_t i = 0; i < n; i++) {
        char id[DIGEST_TEXT_SIZE];
        size_t at = strlen(list);
        digest_text(&ids[i], id);
        (void)snprintf(list + at, sizeof(list) - at, "%s\"%s\"", i ? "," : "", id);
    }
    struct oci_platform host;
    oci_platform_host(&host);
    (void)snprintf(out, size,
                   "{\"architecture\":\"%s\",\"os\":\"linux\",\"config\":{\"Env\":[\"NOTE=%s\"]},"
                   "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[%s]}}",
                   host.architecture, note, list);
    oci_platform_free(&host);
}

void print_manifest(char *out, size_t size, const char *config, const struct digest *ids,
                    const char *const *texts, size_t n)
{
    struct digest c = digest_of_text(config);
    char id[DIGEST_TEXT_SIZE];
    digest_text(&c, id);
    (void)snprintf(out, size,
                   "{\"schemaVersion\":2,"
                   "\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
                   "\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\","
                   "\"digest\":\"%s\",\"size\":%zu},\"layers\":[",
                   id, strlen(config));
    for (size_t i = 0; i < n; i++) {
        size_t at = strlen(out);
        digest_text(&ids[i], id);
        (void)snprintf(out + at, size - at,
                       "%s{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\","
                       "\"digest\":\"%s\",\"size\":%zu}",
                       i ? "," : "", id, strlen(texts[i]));
    }
    (void)strncat(out, "]}", size - strlen(out) - 1);
}

/* Adds an image of these layers and gives it a name; its digest. */
struct digest put_image(struct image_store *s, const char *name, const char *const *texts, size_t n)
{
    struct err e = {0};
    struct image_layer layers[16] = {0};
    struct digest ids[16], image;
    char config[8192], manifest[8192];
    for (size_t i = 0; i < n; i++) {
        if (add_layer(s, texts[i], &layers[i], &e) < 0)
            fail_msg("%s", e.msg);
        ids[i] = layers[i].diff_id;
    }
    print_config(config, sizeof(config), ids, n, name);
    print_manifest(manifest, sizeof(manifest), config, ids, texts, n);
    if (image_store_add_image(s, manifest, strlen(manifest), config, strlen(config), layers, n,
                              &image, &e) < 0)
        fail_msg("%s", e.msg);
    struct reference ref = {0};
    assert_int_equal(reference_parse(name, &ref, &e), 0);
    assert_int_equal(image_store_tag(s, &ref, &image, true, &e), 0);
    reference_free(&ref);
    return image;
}

int find_image(struct image_store *s, const char *name, struct image_record *ret, struct err *e)
{
    struct reference ref = {0};
    assert_int_equal(reference_parse(name, &ref, e), 0);
    int r = image_store_find(s, &ref, ret, e);
    reference_free(&ref);
    return r;
}

bool is_there(struct image_store *s, const char *name)
{
    struct image_record r = {0};
    struct err e = {0};
    int code = find_image(s, name, &r, &e);
    image_record_free(&r);
    if (code < 0)
        assert_int_equal(code, -ENOENT);
    return code == 0;
}

void untag(struct image_store *s, const char *name)
{
    struct reference ref = {0};
    struct err e = {0};
    assert_int_equal(reference_parse(name, &ref, &e), 0);
    assert_int_equal(image_store_untag(s, &ref, &e), 0);
    assert_int_equal(image_store_untag(s, &ref, &e), -ENOENT);
    reference_free(&ref);
}

size_t count_files(const char *sub)
{
    char command[512];
    unsigned n = 0;
    (void)snprintf(command, sizeof(command), "find %s/%s -type f | wc -l", store_dir, sub);
    FILE *f = popen(command, "r"); // NOLINT(cert-env33-c)
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%u", &n), 1);
    (void)pclose(f);
    return n;
}

/* What sandboxes have: a list of digests in ctx. */
int used_by_sandboxes(void *ctx, struct strlist *ret, struct err *e)
{
    return ctx ? strlist_copy(ret, ctx) : 0;
}

struct image_collected collect_garbage(struct image_store *s, struct strlist *keep, bool unused)
{
    struct err e = {0};
    struct image_collected done = {0};
    struct image_collect opt = {.used = used_by_sandboxes, .ctx = keep, .unused = unused};
    if (image_store_collect(s, &opt, &done, &e) < 0)
        fail_msg("%s", e.msg);
    return done;
}

void damage(const char *sub)
{
    char command[512];
    (void)snprintf(command, sizeof(command),
                   "for f in %s/%s/*; do chmod u+w $f; echo damaged > $f; done", store_dir, sub);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
}
