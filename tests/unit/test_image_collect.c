/* The image store: what nothing leads to goes, and nothing else; how references become images; disks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "image/image.h"
#include "image_fixture.h"
#include "store_fixture.h"
#include "unit.h"
#include "util/cleanup.h"

/* --- removing ------------------------------------------------------------------------------- */

static void garbage_goes_and_nothing_else(void **state)
{
    struct image_store s;
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"base", "a"}, 2);
    (void)put_image(&s, "b", (const char *[]){"base", "b"}, 2);
    struct image_collected done = collect_garbage(&s, NULL, false);
    assert_int_equal(done.bytes, 0);
    assert_int_equal(done.images, 0);
    untag(&s, "b");
    assert_int_equal(count_files("layers"), 3);
    done = collect_garbage(&s, NULL, false);
    assert_true(done.bytes > 0);
    assert_int_equal(done.images, 1);
    assert_int_equal(count_files("layers"), 2);
    assert_int_equal(count_files("disks"), 1);
    assert_int_equal(count_files("docs"), 2);
    assert_int_equal(count_files("images"), 1);
    assert_true(is_there(&s, "a"));
    untag(&s, "a");
    (void)collect_garbage(&s, NULL, false);
    assert_int_equal(count_files("."), 1); /* gc.lock */
    image_store_close(&s);
}

static void an_image_of_a_sandbox_stays(void **state)
{
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
    struct image_collected done = collect_garbage(&s, &keep, true);
    assert_int_equal(done.refs, 1);
    assert_int_equal(done.images, 1);
    assert_true(is_there(&s, "mine"));
    assert_false(is_there(&s, "other"));
    untag(&s, "mine");
    (void)collect_garbage(&s, &keep, true);
    assert_int_equal(image_store_get(&s, &mine, &r, &e), 0);
    image_record_free(&r);
    assert_int_equal(image_disk_open(store_dir, text, &d, &e), 0);
    assert_int_equal(d.n, 3);
    image_disk_close(&d);
    image_disk_close(&d);
    strlist_free(&keep);
    (void)collect_garbage(&s, NULL, false);
    assert_int_equal(image_disk_open(store_dir, text, &d, &e), -ENOENT);
    image_store_close(&s);
}

static void leftovers_of_crashes_go(void **state)
{
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
    (void)collect_garbage(&s, NULL, false);
    assert_int_equal(count_files("."), before);
    assert_true(is_there(&s, "a"));
    image_store_close(&s);
}

static void local_images_and_downloads_stay_until_asked_for(void **state)
{
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
    (void)collect_garbage(&s, NULL, false);
    assert_int_equal(count_files("images") + count_files("index"), 2);
    assert_int_equal(count_files("partial"), 1);
    assert_int_equal(strlist_add(&keep, keep_text), 0);
    (void)collect_garbage(&s, &keep, true);
    assert_int_equal(count_files("images") + count_files("index"), 2);
    assert_int_equal(count_files("partial"), 0);
    (void)collect_garbage(&s, NULL, true);
    assert_int_equal(count_files("images") + count_files("index"), 0);
    strlist_free(&keep);
    image_store_close(&s);
}

static void nothing_goes_while_others_work(void **state)
{
    struct image_store s, other;
    struct err e = {0};
    open_store(&s);
    open_store(&other);
    (void)put_image(&s, "a", (const char *[]){"a"}, 1);
    untag(&s, "a");
    struct image_collect opt = {.used = used_by_sandboxes};
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
    return err_set(e, EIO, "cannot tell");
}

static void nothing_goes_when_users_cannot_be_told(void **state)
{
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
    struct image_ctx ctx = {.cache_dir = store_dir, .fetch = fetch};
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
    struct oci_platform other = {.os = (char *)"linux", .architecture = (char *)"riscv64"};
    struct image_ctx ctx = {.cache_dir = store_dir, .platform = &other};
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
    struct image_ctx ctx = {.cache_dir = store_dir};
    struct image img = IMAGE_INIT;
    struct image_store s;
    struct err e = {0};
    open_store(&s);
    (void)put_image(&s, "app", (const char *[]){"x"}, 1);
    assert_int_equal(image_resolve("app", &ctx, &img, &e), 0);
    struct image_collect opt = {.used = used_by_sandboxes, .unused = true};
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
    struct image_store s;
    struct image_disk d;
    struct err e = {0};
    char text[DIGEST_TEXT_SIZE];
    open_store(&s);
    struct digest image = put_image(&s, "a", (const char *[]){"1", "2", "3"}, 3);
    digest_text(&image, text);
    assert_int_equal(image_disk_open(store_dir, text, &d, &e), 0);
    assert_int_equal(d.n, 4);
    assert_int_equal(d.length[0], EROFS_BLOCK_SIZE);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(d.length[i], 2 * EROFS_BLOCK_SIZE);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(fcntl(d.fd[i], F_GETFL) & O_ACCMODE, O_RDONLY);
    image_disk_close(&d);
    assert_int_equal(image_disk_open(store_dir, "sha256:12", &d, &e), -EINVAL);
    damage("layers");
    assert_int_equal(image_disk_open(store_dir, text, &d, &e), -ENOENT);
    assert_non_null(strstr(e.msg, text));
    image_store_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_goes_and_nothing_else, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(an_image_of_a_sandbox_stays, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(leftovers_of_crashes_go, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(local_images_and_downloads_stay_until_asked_for,
                                        store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(nothing_goes_while_others_work, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(nothing_goes_when_users_cannot_be_told, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(pulled_when_it_should_be, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(an_image_for_another_machine_is_not_it, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(what_was_resolved_is_not_removed, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_disk_is_metadata_and_layers, store_setup, store_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
