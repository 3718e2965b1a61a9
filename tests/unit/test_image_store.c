/* The image store: what is added is found, what nothing leads to goes, and whatever a crash or a
 * stranger left is repaired.
 *
 * Layers are fakes: this file's own layer_convert() and disk_write_metadata() stand in for the real
 * ones, so that the store alone is tested, and can be made to wait. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "image/erofs/disk.h"
#include "image/erofs/format.h"
#include "image/image.h"
#include "image/store/store.h"
#include "image_fixture.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum { THREADS = 8, LAYER_SIZE = 2 * EROFS_BLOCK_SIZE };

/* --- fake layers ---------------------------------------------------------------------------- */

static atomic_uint converted; /* how many layers were really made */
static int hold_fd = -1;      /* layer_convert() waits until this ends */

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
    (void)spool_dirfd;
    (void)progress;
    assert_int_equal(hasher_init(&h), 0);
    while ((n = stream_read(in, buf, sizeof(buf), e)) > 0) {
        hasher_update(&h, buf, (size_t)n);
        size += (uint64_t)n;
    }
    assert_int_equal(hasher_finish(&h, &ret->diff_id), 0);
    if (n < 0)
        return (int)n;
    write_super(out_fd, LAYER_SIZE, LAYER_SIZE);
    atomic_fetch_add(&converted, 1);
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
    (void)spool_dirfd;
    (void)max_bytes;
    (void)e;
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
    (void)e;
    n = MIN(n, strlen(t->at));
    memcpy(p, t->at, n);
    t->at += n;
    return (ssize_t)n;
}

static void text_close(struct stream *s)
{
    free(s);
}

static int text_open(void *ctx, struct stream **ret, struct err *e)
{
    static const struct stream_ops ops = {text_read, text_close};
    struct text_stream *t = calloc(1, sizeof(*t));
    (void)e;
    assert_non_null(t);
    *t = (struct text_stream){{&ops}, ctx};
    *ret = &t->s;
    return 0;
}

static int never_open(void *ctx, struct stream **ret, struct err *e)
{
    (void)ctx;
    (void)ret;
    return err_set(e, EIO, "nobody should have opened this");
}

/* --- the store ------------------------------------------------------------------------------ */

static const char *dir; /* the store's */

static int setup(void **state)
{
    (void)state;
    dir = mk_tmpdir();
    converted = 0;
    hold_fd = -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rm_tmpdir();
    return 0;
}

static void open_store(struct image_store *s)
{
    struct err e = {0};
    if (image_store_open(s, dir, &e) < 0)
        fail_msg("%s", e.msg);
}

static struct digest digest_of_text(const char *text)
{
    struct digest d;
    assert_int_equal(digest_of(text, strlen(text), &d), 0);
    return d;
}

static int add_layer(struct image_store *s, const char *text, struct image_layer *ret,
                     struct err *e)
{
    struct digest d = digest_of_text(text);
    struct layer_want want = {
        .blob = &d, .blob_size = strlen(text), .diff_id = &d, .name = "a layer", .layer = true};
    return image_store_add_layer(s, &want, text_open, (void *)text, NULL, ret, e);
}

static void print_config(char *out, size_t size, const struct digest *ids, size_t n,
                         const char *note)
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

static void print_manifest(char *out, size_t size, const char *config, const struct digest *ids,
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
static struct digest put_image(struct image_store *s, const char *name, const char *const *texts,
                               size_t n)
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
    assert_int_equal(image_store_tag(s, &ref, &image, &e), 0);
    reference_free(&ref);
    return image;
}

static int find(struct image_store *s, const char *name, struct image_record *ret, struct err *e)
{
    struct reference ref = {0};
    assert_int_equal(reference_parse(name, &ref, e), 0);
    int r = image_store_find(s, &ref, ret, e);
    reference_free(&ref);
    return r;
}

static bool is_there(struct image_store *s, const char *name)
{
    struct image_record r = {0};
    struct err e = {0};
    int code = find(s, name, &r, &e);
    image_record_free(&r);
    if (code < 0)
        assert_int_equal(code, -ENOENT);
    return code == 0;
}

static void untag(struct image_store *s, const char *name)
{
    struct reference ref = {0};
    struct err e = {0};
    assert_int_equal(reference_parse(name, &ref, &e), 0);
    assert_int_equal(image_store_untag(s, &ref, &e), 0);
    assert_int_equal(image_store_untag(s, &ref, &e), -ENOENT);
    reference_free(&ref);
}

static size_t count_files(const char *sub)
{
    char command[512];
    unsigned n = 0;
    (void)snprintf(command, sizeof(command), "find %s/%s -type f | wc -l", dir, sub);
    FILE *f = popen(command, "r"); // NOLINT(cert-env33-c)
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%u", &n), 1);
    (void)pclose(f);
    return n;
}

/* What sandboxes have: a list of digests in ctx. */
static int used(void *ctx, struct strlist *ret, struct err *e)
{
    (void)e;
    return ctx ? strlist_copy(ret, ctx) : 0;
}

static struct image_collected collect(struct image_store *s, struct strlist *keep, bool unused)
{
    struct err e = {0};
    struct image_collected done = {0};
    struct image_collect opt = {.used = used, .ctx = keep, .unused = unused};
    if (image_store_collect(s, &opt, &done, &e) < 0)
        fail_msg("%s", e.msg);
    return done;
}

/* --- adding and finding --------------------------------------------------------------------- */

static void what_was_added_is_found(void **state)
{
    (void)state;
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    open_store(&s);
    assert_false(is_there(&s, "alpine"));
    struct digest image = put_image(&s, "alpine", (const char *[]){"one", "two"}, 2);
    assert_int_equal(find(&s, "docker.io/library/alpine:latest", &r, &e), 0);
    assert_true(digest_equal(&r.digest, &image));
    assert_string_equal(r.reference, "docker.io/library/alpine:latest");
    assert_int_equal(r.n_layers, 2);
    struct digest one = digest_of_text("one");
    assert_true(digest_equal(&r.layers[0].diff_id, &one));
    assert_int_equal(r.layers[0].blob_size, 3);
    assert_int_equal(r.layers[0].erofs_size, 2 * EROFS_BLOCK_SIZE);
    assert_string_equal(r.layers[0].media_type, "application/vnd.oci.image.layer.v1.tar");
    assert_string_equal(r.parsed.os, "linux");
    assert_string_equal(r.parsed.run.env[0], "NOTE=alpine");
    assert_int_equal(r.disk_size, EROFS_BLOCK_SIZE);
    assert_true(r.stored_ns > 0);
    image_record_free(&r);
    assert_int_equal(image_store_get(&s, &image, &r, &e), 0);
    assert_null(r.reference);
    image_record_free(&r);
    assert_int_equal(find(&s, "alpine:3", &r, &e), -ENOENT);
    assert_string_equal(e.msg, "image not found: alpine:3");
    image_store_close(&s);
    image_store_close(&s);
}

static void layers_are_shared(void **state)
{
    (void)state;
    struct image_store s;
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"base", "a"}, 2);
    (void)put_image(&s, "b", (const char *[]){"base", "b"}, 2);
    (void)put_image(&s, "c", (const char *[]){"base", "a"}, 2);
    assert_int_equal(converted, 3);
    assert_int_equal(count_files("layers"), 3);
    assert_int_equal(count_files("disks"), 2); /* c has the layers of a */
    assert_int_equal(count_files("tmp"), 0);
    image_store_close(&s);
}

static void a_layer_that_is_there_is_not_opened(void **state)
{
    (void)state;
    struct image_store s;
    struct image_layer l = {0};
    struct err e = {0};
    uint64_t size = 0;
    open_store(&s);
    assert_int_equal(add_layer(&s, "x", &l, &e), 0);
    struct layer_want want = {.diff_id = &l.diff_id, .name = "x"};
    struct image_layer again = {0};
    assert_int_equal(image_store_add_layer(&s, &want, never_open, NULL, NULL, &again, &e), 0);
    assert_true(digest_equal(&again.diff_id, &l.diff_id));
    assert_int_equal(again.erofs_size, l.erofs_size);
    assert_true(image_store_has_layer(&s, &l.diff_id, &size));
    assert_int_equal(size, l.erofs_size);
    image_store_close(&s);
}

static void a_wrong_layer_leaves_nothing(void **state)
{
    (void)state;
    struct image_store s;
    struct image_layer l = {0};
    struct err e = {0};
    open_store(&s);
    struct digest other = digest_of_text("other");
    struct layer_want want = {.diff_id = &other, .name = "layer sha256:1234"};
    assert_int_equal(image_store_add_layer(&s, &want, text_open, (void *)"text", NULL, &l, &e),
                     -EBADMSG);
    assert_non_null(strstr(e.msg, "layer sha256:1234"));
    assert_int_equal(image_store_add_layer(&s, &want, never_open, NULL, NULL, &l, &e), -EIO);
    assert_int_equal(count_files("layers") + count_files("tmp"), 0);
    image_store_close(&s);
}

static void documents_must_agree(void **state)
{
    (void)state;
    struct image_store s;
    struct image_layer l[2] = {0};
    struct err e = {0};
    struct digest image, ids[2];
    char config[4096], manifest[4096];
    const char *texts[] = {"one", "two"};
    open_store(&s);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(add_layer(&s, texts[i], &l[i], &e), 0);
        ids[i] = l[i].diff_id;
    }
    print_config(config, sizeof(config), ids, 2, "x");
    print_manifest(manifest, sizeof(manifest), "{}", ids, texts, 2);
    assert_int_equal(image_store_add_image(&s, manifest, strlen(manifest), config, strlen(config),
                                           l, 2, &image, &e),
                     -EBADMSG);
    print_manifest(manifest, sizeof(manifest), config, ids, texts, 1);
    assert_int_equal(image_store_add_image(&s, manifest, strlen(manifest), config, strlen(config),
                                           l, 2, &image, &e),
                     -EBADMSG);
    print_manifest(manifest, sizeof(manifest), config, ids, texts, 2);
    struct image_layer swapped[2] = {l[1], l[0]};
    assert_int_equal(image_store_add_image(&s, manifest, strlen(manifest), config, strlen(config),
                                           swapped, 2, &image, &e),
                     -EBADMSG);
    ids[1] = l[1].diff_id = digest_of_text("not there");
    print_config(config, sizeof(config), ids, 2, "x");
    print_manifest(manifest, sizeof(manifest), config, ids, texts, 2);
    assert_int_equal(image_store_add_image(&s, manifest, strlen(manifest), config, strlen(config),
                                           l, 2, &image, &e),
                     -ENOENT);
    assert_int_equal(count_files("images") + count_files("disks"), 0);
    image_store_close(&s);
}

static void a_reference_moves(void **state)
{
    (void)state;
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    open_store(&s);
    struct digest old = put_image(&s, "app:1", (const char *[]){"old"}, 1);
    struct digest new = put_image(&s, "app:1", (const char *[]){"new"}, 1);
    assert_int_equal(find(&s, "app:1", &r, &e), 0);
    assert_true(digest_equal(&r.digest, &new));
    image_record_free(&r);
    /* by digest, the old one is still there */
    char name[256], text[DIGEST_TEXT_SIZE];
    digest_text(&old, text);
    (void)snprintf(name, sizeof(name), "app@%s", text);
    assert_int_equal(find(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &old));
    image_record_free(&r);
    (void)snprintf(name, sizeof(name), "app:1@%s", text);
    assert_int_equal(find(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &old));
    image_record_free(&r);
    image_store_close(&s);
}

/* A pull by the digest of an index ends at a manifest of another digest. */
static void a_digest_may_be_that_of_an_index(void **state)
{
    (void)state;
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    char name[256], text[DIGEST_TEXT_SIZE];
    open_store(&s);
    struct digest index = digest_of_text("an index");
    digest_text(&index, text);
    (void)snprintf(name, sizeof(name), "app:1@%s", text);
    struct digest image = put_image(&s, name, (const char *[]){"x"}, 1);
    assert_int_equal(find(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &image));
    image_record_free(&r);
    assert_false(is_there(&s, "app:1")); /* the tag was not asked for */
    image_store_close(&s);
}

static void images_are_listed_by_name(void **state)
{
    (void)state;
    struct image_store s;
    struct image_list l = {0};
    struct err e = {0};
    open_store(&s);
    (void)put_image(&s, "zebra", (const char *[]){"z"}, 1);
    (void)put_image(&s, "localhost:5000/x:1", (const char *[]){"x"}, 1);
    (void)put_image(&s, "ant", (const char *[]){"z"}, 1);
    put_file(tmp_path("refs/damaged.json"), "{", 1);
    put_file(tmp_path("refs/.left.tmp-1"), "{", 1);
    assert_int_equal(image_store_list(&s, &l, &e), 0);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.v[0].reference, "docker.io/library/ant:latest");
    assert_string_equal(l.v[1].reference, "docker.io/library/zebra:latest");
    assert_string_equal(l.v[2].reference, "localhost:5000/x:1");
    image_list_free(&l);
    image_store_close(&s);
}

/* --- damage --------------------------------------------------------------------------------- */

static void damage(const char *sub)
{
    char command[512];
    (void)snprintf(command, sizeof(command),
                   "for f in %s/%s/*; do chmod u+w $f; echo damaged > $f; done", dir, sub);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
}

static void what_is_damaged_is_missing_and_made_anew(void **state)
{
    (void)state;
    static const char *const parts[] = {"layers", "disks", "docs", "images", "refs"};
    struct image_store s;
    struct image_list l = {0};
    struct err e = {0};
    open_store(&s);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        (void)put_image(&s, "app", (const char *[]){"one", "two"}, 2);
        assert_true(is_there(&s, "app"));
        damage(parts[i]);
        if (is_there(&s, "app"))
            fail_msg("the damage in %s was not seen", parts[i]);
        assert_int_equal(image_store_list(&s, &l, &e), 0);
        assert_int_equal(l.n, 0);
        image_list_free(&l);
        (void)put_image(&s, "app", (const char *[]){"one", "two"}, 2);
        if (!is_there(&s, "app"))
            fail_msg("%s was not repaired", parts[i]);
    }
    image_store_close(&s);
}

/* A record can say anything. */
static void hostile_records(void **state)
{
    (void)state;
    static const char *const records[] = {
        "",
        "[]",
        "{}",
        "{\"version\":1}",
        "{\"version\":1,\"config\":\"sha256:..\",\"disk\":1,\"disk_size\":-1,\"layers\":[]}",
        "{\"version\":2,\"config\":null,\"layers\":{}}",
    };
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    char path[256], hex[DIGEST_HEX_SIZE];
    open_store(&s);
    struct digest image = put_image(&s, "app", (const char *[]){"one"}, 1);
    digest_hex(&image, hex);
    (void)snprintf(path, sizeof(path), "images/%s.json", hex);
    for (size_t i = 0; i < ARRAY_LEN(records); i++) {
        put_file(tmp_path(path), records[i], strlen(records[i]));
        assert_int_equal(image_store_get(&s, &image, &r, &e), -ENOENT);
    }
    /* more layers than any image has, and a file without end */
    AUTO_FREE char *big = malloc(1 << 20);
    assert_non_null(big);
    memset(big, '[', 1 << 20);
    put_file(tmp_path(path), big, 1 << 20);
    assert_int_equal(image_store_get(&s, &image, &r, &e), -ENOENT);
    assert_int_equal(unlink(tmp_path(path)), 0);
    assert_int_equal(symlink("/dev/zero", tmp_path(path)), 0);
    assert_int_equal(image_store_get(&s, &image, &r, &e), -ENOENT);
    assert_int_equal(unlink(tmp_path(path)), 0);
    assert_int_equal(mkfifo(tmp_path(path), 0600), 0);
    assert_int_equal(image_store_get(&s, &image, &r, &e), -ENOENT);
    image_store_close(&s);
}

/* --- several at once ------------------------------------------------------------------------ */

static void *add_in_thread(void *arg)
{
    struct image_layer l = {0};
    struct err e = {0};
    return add_layer(arg, "shared", &l, &e) == 0 ? arg : NULL;
}

static void threads_share_the_work(void **state)
{
    (void)state;
    struct image_store s;
    pthread_t t[THREADS];
    open_store(&s);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, add_in_thread, &s), 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *ok = NULL;
        assert_int_equal(pthread_join(t[i], &ok), 0);
        assert_non_null(ok);
    }
    assert_int_equal(converted, 1);
    assert_int_equal(count_files("layers"), 1);
    assert_int_equal(count_files("tmp"), 0);
    image_store_close(&s);
}

/* A child that is in the middle of making a layer; it goes on when the pipe closes. */
static pid_t start_adder(const char *text, int *ret_pipe)
{
    int ready[2], go[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct image_store s;
        struct image_layer l;
        struct err e = {0};
        (void)close(go[1]);
        hold_fd = go[0];
        if (image_store_open(&s, dir, &e) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        _exit(add_layer(&s, text, &l, &e) == 0 ? 0 : 1);
    }
    char c;
    (void)close(ready[1]);
    (void)close(go[0]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    /* Its file is there once it is at work. */
    for (int i = 0; count_files("tmp") < 2 && i < 500; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(count_files("tmp"), 2);
    *ret_pipe = go[1];
    return pid;
}

static void processes_share_the_work(void **state)
{
    (void)state;
    struct image_store s;
    struct image_layer l = {0};
    struct err e = {0};
    int go, status;
    pid_t pid = start_adder("shared", &go);
    pid_t other = fork(); /* lets it go on while we wait for it */
    if (other == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        _exit(0);
    }
    (void)close(go);
    open_store(&s);
    assert_int_equal(add_layer(&s, "shared", &l, &e), 0);
    assert_int_equal(converted, 0); /* not by us */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)waitpid(other, NULL, 0);
    assert_int_equal(count_files("layers"), 1);
    assert_int_equal(count_files("tmp"), 0);
    image_store_close(&s);
}

static void a_killed_adder_is_cleaned_up_after(void **state)
{
    (void)state;
    struct image_store s;
    struct image_layer l = {0};
    struct err e = {0};
    int go, status;
    pid_t pid = start_adder("mine", &go);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)close(go);
    assert_int_equal(count_files("layers"), 0);
    open_store(&s);
    assert_int_equal(add_layer(&s, "another", &l, &e), 0);
    assert_int_equal(count_files("tmp"), 0);
    assert_int_equal(add_layer(&s, "mine", &l, &e), 0);
    assert_int_equal(count_files("layers"), 2);
    image_store_close(&s);
}

/* --- removing ------------------------------------------------------------------------------- */

static void garbage_goes_and_nothing_else(void **state)
{
    (void)state;
    struct image_store s;
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"base", "a"}, 2);
    (void)put_image(&s, "b", (const char *[]){"base", "b"}, 2);
    struct image_collected done = collect(&s, NULL, false);
    assert_int_equal(done.bytes, 0);
    assert_int_equal(done.images, 0);
    untag(&s, "b");
    assert_int_equal(count_files("layers"), 3);
    done = collect(&s, NULL, false);
    assert_true(done.bytes > 0);
    assert_int_equal(done.images, 1);
    assert_int_equal(count_files("layers"), 2);
    assert_int_equal(count_files("disks"), 1);
    assert_int_equal(count_files("docs"), 2);
    assert_int_equal(count_files("images"), 1);
    assert_true(is_there(&s, "a"));
    untag(&s, "a");
    (void)collect(&s, NULL, false);
    assert_int_equal(count_files("."), 1); /* gc.lock */
    image_store_close(&s);
}

static void an_image_of_a_sandbox_stays(void **state)
{
    (void)state;
    struct image_store s;
    struct image_record r = {0};
    struct image_disk d;
    struct err e = {0};
    char text[DIGEST_TEXT_SIZE];
    struct strlist keep = {0};
    open_store(&s);
    struct digest mine = put_image(&s, "mine", (const char *[]){"base", "mine"}, 2);
    (void)put_image(&s, "other", (const char *[]){"base", "other"}, 2);
    digest_text(&mine, text);
    assert_int_equal(strlist_add(&keep, text), 0);
    assert_int_equal(strlist_add(&keep, "nonsense"), 0);
    struct image_collected done = collect(&s, &keep, true);
    assert_int_equal(done.refs, 1);
    assert_int_equal(done.images, 1);
    assert_true(is_there(&s, "mine"));
    assert_false(is_there(&s, "other"));
    untag(&s, "mine");
    (void)collect(&s, &keep, true);
    assert_int_equal(image_store_get(&s, &mine, &r, &e), 0);
    image_record_free(&r);
    assert_int_equal(image_disk_open(dir, text, &d, &e), 0);
    assert_int_equal(d.n, 3);
    image_disk_close(&d);
    image_disk_close(&d);
    strlist_free(&keep);
    (void)collect(&s, NULL, false);
    assert_int_equal(image_disk_open(dir, text, &d, &e), -ENOENT);
    image_store_close(&s);
}

static void leftovers_of_crashes_go(void **state)
{
    (void)state;
    static const char *const files[] = {
        "refs/.x.json.tmp-1",  "images/.x.json.tmp-1", "docs/.x.tmp-1", "layers/x.1.erofs",
        "layers/x.0.erofs",    "disks/x.1.erofs",      "docs/0123",     "tmp/x.img",
        "images/whatever.json"};
    struct image_store s;
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"a"}, 1);
    size_t before = count_files(".");
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        put_file(tmp_path(files[i]), "x", 1);
    (void)collect(&s, NULL, false);
    assert_int_equal(count_files("."), before);
    assert_true(is_there(&s, "a"));
    image_store_close(&s);
}

static void local_images_and_downloads_stay_until_asked_for(void **state)
{
    (void)state;
    struct image_store s;
    char name[256], hex[DIGEST_HEX_SIZE], keep_text[DIGEST_TEXT_SIZE];
    struct strlist keep = {0};
    open_store(&s);
    struct digest d = digest_of_text("a directory");
    digest_hex(&d, hex);
    digest_text(&d, keep_text);
    (void)snprintf(name, sizeof(name), "images/%s.%d.erofs", hex, CACHE_VERSION);
    put_file(tmp_path(name), "x", 1);
    put_file(tmp_path("index/0123"), hex, strlen(hex));
    put_file(tmp_path("partial/new"), "x", 1);
    put_file(tmp_path("partial/old"), "x", 1);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, tmp_path("partial/old"), old, 0), 0);
    (void)collect(&s, NULL, false);
    assert_int_equal(count_files("images") + count_files("index"), 2);
    assert_int_equal(count_files("partial"), 1);
    assert_int_equal(strlist_add(&keep, keep_text), 0);
    (void)collect(&s, &keep, true);
    assert_int_equal(count_files("images") + count_files("index"), 2);
    assert_int_equal(count_files("partial"), 0);
    (void)collect(&s, NULL, true);
    assert_int_equal(count_files("images") + count_files("index"), 0);
    strlist_free(&keep);
    image_store_close(&s);
}

static void nothing_goes_while_others_work(void **state)
{
    (void)state;
    struct image_store s, other;
    struct err e = {0};
    open_store(&s);
    open_store(&other);
    (void)put_image(&s, "a", (const char *[]){"a"}, 1);
    untag(&s, "a");
    struct image_collect opt = {.used = used};
    assert_int_equal(image_store_collect(&s, &opt, NULL, &e), -EBUSY);
    assert_int_equal(count_files("layers"), 1);
    /* the store holds its shared lock again */
    AUTO_CLOSE int lock = open(tmp_path("gc.lock"), O_RDWR | O_CLOEXEC);
    image_store_close(&other);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), -1);
    assert_int_equal(image_store_collect(&s, &opt, NULL, &e), 0);
    assert_int_equal(count_files("layers"), 0);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), -1);
    image_store_close(&s);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
}

static int used_fails(void *ctx, struct strlist *ret, struct err *e)
{
    (void)ctx;
    (void)ret;
    return err_set(e, EIO, "cannot tell");
}

static void nothing_goes_when_users_cannot_be_told(void **state)
{
    (void)state;
    struct image_store s;
    struct err e = {0};
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"a"}, 1);
    struct image_collect opt = {.used = used_fails, .unused = true};
    assert_int_equal(image_store_collect(&s, &opt, NULL, &e), -EIO);
    assert_string_equal(e.msg, "cannot tell");
    assert_true(is_there(&s, "a"));
    image_store_close(&s);
}

/* --- references, as a sandbox is made from them --------------------------------------------- */

static unsigned fetched;

/* Brings an image with a note of how often it was asked. */
static int fetch(void *ctx, struct image_store *s, const struct reference *ref, struct err *e)
{
    AUTO_FREE char *name = reference_full(ref);
    char text[32];
    fetched++;
    if (ctx)
        return err_set(e, EIO, "no network");
    (void)snprintf(text, sizeof(text), "layer %u", fetched);
    (void)put_image(s, name, (const char *[]){text}, 1);
    return 0;
}

static void pulled_when_it_should_be(void **state)
{
    (void)state;
    struct image_ctx ctx = {.cache_dir = dir, .fetch = fetch};
    struct image img = IMAGE_INIT, again = IMAGE_INIT;
    struct err e = {0};
    fetched = 0;
    ctx.pull = IMAGE_PULL_NEVER;
    assert_int_equal(image_resolve("app", &ctx, &img, &e), -ENOENT);
    assert_string_equal(e.msg, "image not found: app:latest");
    assert_string_equal(e.hint[0], "pull it with: msb pull app:latest");
    assert_int_equal(fetched, 0);
    ctx.pull = IMAGE_PULL_MISSING;
    assert_int_equal(image_resolve("app", &ctx, &img, &e), 0);
    assert_int_equal(img.kind, IMAGE_OCI);
    assert_string_equal(img.config.env[0], "NOTE=docker.io/library/app:latest");
    assert_int_equal(img.size, 3 * EROFS_BLOCK_SIZE);
    assert_int_equal(image_resolve("docker.io/library/app", &ctx, &again, &e), 0);
    assert_string_equal(again.digest, img.digest);
    assert_int_equal(fetched, 1);
    image_free(&again);
    ctx.pull = IMAGE_PULL_ALWAYS;
    assert_int_equal(image_resolve("app", &ctx, &again, &e), 0);
    assert_string_not_equal(again.digest, img.digest);
    assert_int_equal(fetched, 2);
    image_free(&again);
    ctx.fetch_ctx = &ctx; /* it fails from now on */
    assert_int_equal(image_resolve("app", &ctx, &again, &e), -EIO);
    ctx.pull = IMAGE_PULL_MISSING;
    assert_int_equal(image_resolve("app", &ctx, &again, &e), 0);
    image_free(&again);
    image_free(&img);
}

static void an_image_for_another_machine_is_not_it(void **state)
{
    (void)state;
    struct oci_platform other = {.os = (char *)"linux", .architecture = (char *)"riscv64"};
    struct image_ctx ctx = {.cache_dir = dir, .platform = &other};
    struct image img = IMAGE_INIT;
    struct image_store s;
    struct err e = {0};
    open_store(&s);
    (void)put_image(&s, "app", (const char *[]){"x"}, 1);
    image_store_close(&s);
    assert_int_equal(image_resolve("app", &ctx, &img, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "not for linux/riscv64"));
    fetched = 0;
    ctx.fetch = fetch; /* which brings the same again */
    assert_int_equal(image_resolve("app", &ctx, &img, &e), -ENOENT);
    assert_int_equal(fetched, 1);
}

/* Between finding an image and having a spec on disk that names it, a sandbox holds on to it. */
static void what_was_resolved_is_not_removed(void **state)
{
    (void)state;
    struct image_ctx ctx = {.cache_dir = dir};
    struct image img = IMAGE_INIT;
    struct image_store s;
    struct err e = {0};
    open_store(&s);
    (void)put_image(&s, "app", (const char *[]){"x"}, 1);
    assert_int_equal(image_resolve("app", &ctx, &img, &e), 0);
    struct image_collect opt = {.used = used, .unused = true};
    assert_int_equal(image_store_collect(&s, &opt, NULL, &e), -EBUSY);
    assert_true(is_there(&s, "app"));
    image_free(&img);
    assert_int_equal(image_store_collect(&s, &opt, NULL, &e), 0);
    assert_false(is_there(&s, "app"));
    image_store_close(&s);
}

/* --- disks ---------------------------------------------------------------------------------- */

static void a_disk_is_metadata_and_layers(void **state)
{
    (void)state;
    struct image_store s;
    struct image_disk d;
    struct err e = {0};
    char text[DIGEST_TEXT_SIZE];
    open_store(&s);
    struct digest image = put_image(&s, "a", (const char *[]){"1", "2", "3"}, 3);
    digest_text(&image, text);
    assert_int_equal(image_disk_open(dir, text, &d, &e), 0);
    assert_int_equal(d.n, 4);
    assert_int_equal(d.length[0], EROFS_BLOCK_SIZE);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(d.length[i], 2 * EROFS_BLOCK_SIZE);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(fcntl(d.fd[i], F_GETFL) & O_ACCMODE, O_RDONLY);
    image_disk_close(&d);
    assert_int_equal(image_disk_open(dir, "sha256:12", &d, &e), -EINVAL);
    damage("layers");
    assert_int_equal(image_disk_open(dir, text, &d, &e), -ENOENT);
    assert_non_null(strstr(e.msg, text));
    image_store_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_added_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(layers_are_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(a_layer_that_is_there_is_not_opened, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wrong_layer_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(documents_must_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reference_moves, setup, teardown),
        cmocka_unit_test_setup_teardown(a_digest_may_be_that_of_an_index, setup, teardown),
        cmocka_unit_test_setup_teardown(images_are_listed_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_damaged_is_missing_and_made_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile_records, setup, teardown),
        cmocka_unit_test_setup_teardown(threads_share_the_work, setup, teardown),
        cmocka_unit_test_setup_teardown(processes_share_the_work, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_adder_is_cleaned_up_after, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage_goes_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(an_image_of_a_sandbox_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(leftovers_of_crashes_go, setup, teardown),
        cmocka_unit_test_setup_teardown(local_images_and_downloads_stay_until_asked_for, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(nothing_goes_while_others_work, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_goes_when_users_cannot_be_told, setup, teardown),
        cmocka_unit_test_setup_teardown(pulled_when_it_should_be, setup, teardown),
        cmocka_unit_test_setup_teardown(an_image_for_another_machine_is_not_it, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_resolved_is_not_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_is_metadata_and_layers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
