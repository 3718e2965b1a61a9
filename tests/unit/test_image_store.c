/* The image store: what is added is found, even if others add it at the same time, and damage from
 * a crash or from outside is repaired. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "image_fixture.h"
#include "store_fixture.h"
#include "unit.h"
#include "util/cleanup.h"

enum { THREADS = 8 };

/* --- adding and finding --------------------------------------------------------------------- */

static void what_was_added_is_found(void **state)
{
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    open_store(&s);
    assert_false(is_there(&s, "alpine"));
    struct digest image = put_image(&s, "alpine", (const char *[]){"one", "two"}, 2);
    assert_int_equal(find_image(&s, "docker.io/library/alpine:latest", &r, &e), 0);
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
    assert_int_equal(find_image(&s, "alpine:3", &r, &e), -ENOENT);
    assert_string_equal(e.msg, "image not found: alpine:3");
    image_store_close(&s);
    image_store_close(&s);
}

static void layers_are_shared(void **state)
{
    struct image_store s;
    open_store(&s);
    (void)put_image(&s, "a", (const char *[]){"base", "a"}, 2);
    (void)put_image(&s, "b", (const char *[]){"base", "b"}, 2);
    (void)put_image(&s, "c", (const char *[]){"base", "a"}, 2);
    assert_int_equal(layers_made, 3);
    assert_int_equal(count_files("layers"), 3);
    assert_int_equal(count_files("disks"), 2); /* c has the layers of a */
    assert_int_equal(count_files("tmp"), 0);
    image_store_close(&s);
}

static void a_layer_that_is_there_is_not_opened(void **state)
{
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
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    open_store(&s);
    struct digest old = put_image(&s, "app:1", (const char *[]){"old"}, 1);
    struct digest new = put_image(&s, "app:1", (const char *[]){"new"}, 1);
    assert_int_equal(find_image(&s, "app:1", &r, &e), 0);
    assert_true(digest_equal(&r.digest, &new));
    image_record_free(&r);
    /* by digest, the old one is still there */
    char name[256], text[DIGEST_TEXT_SIZE];
    digest_text(&old, text);
    (void)snprintf(name, sizeof(name), "app@%s", text);
    assert_int_equal(find_image(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &old));
    image_record_free(&r);
    (void)snprintf(name, sizeof(name), "app:1@%s", text);
    assert_int_equal(find_image(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &old));
    image_record_free(&r);
    image_store_close(&s);
}

/* A pull by the digest of an index ends at a manifest of another digest. */
static void a_digest_may_be_that_of_an_index(void **state)
{
    struct image_store s;
    struct image_record r = {0};
    struct err e = {0};
    char name[256], text[DIGEST_TEXT_SIZE];
    open_store(&s);
    struct digest index = digest_of_text("an index");
    digest_text(&index, text);
    (void)snprintf(name, sizeof(name), "app:1@%s", text);
    struct digest image = put_image(&s, name, (const char *[]){"x"}, 1);
    assert_int_equal(find_image(&s, name, &r, &e), 0);
    assert_true(digest_equal(&r.digest, &image));
    image_record_free(&r);
    assert_false(is_there(&s, "app:1")); /* the tag was not asked for */
    image_store_close(&s);
}

static void images_are_listed_by_name(void **state)
{
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

static void what_is_damaged_is_missing_and_made_anew(void **state)
{
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

/* Whether the disks can be made again with `n` descriptors more than are open. */
static int remake_with(struct image_store *s, const struct digest *image, rlim_t n, struct err *e)
{
    struct rlimit all, few;
    int first = dup(STDERR_FILENO);
    assert_true(first >= 0);
    close(first);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)first + n, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = image_store_remake_disks(s, image, e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    return r;
}

static void a_shortage_costs_no_disk(void **state)
{
    struct image_store s;
    struct err e = {0};
    rlim_t n = 0;
    int r = -EMFILE;
    open_store(&s);
    struct digest image = put_image(&s, "app", (const char *[]){"one", "two"}, 2);
    (void)put_image(&s, "other", (const char *[]){"one"}, 1);
    (void)put_image(&s, "another", (const char *[]){"one", "two", "three", "four"}, 4);
    while (r == -EMFILE) {
        err_clear(&e);
        r = remake_with(&s, &image, n++, &e);
        assert_int_equal(e.code, -r);
        assert_int_equal(count_files("disks"), 3);
        assert_true(is_there(&s, "app") && is_there(&s, "other") && is_there(&s, "another"));
    }
    assert_int_equal(r, 0);
    assert_in_range(n, 3, 64);
    image_store_close(&s);
}

/* A record can say anything. */
static void hostile_records(void **state)
{
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
    assert_int_equal(layers_made, 1);
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
        if (image_store_open(&s, store_dir, &e) < 0 || write(ready[1], "", 1) != 1)
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
    assert_int_equal(layers_made, 0); /* not by us */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)waitpid(other, NULL, 0);
    assert_int_equal(count_files("layers"), 1);
    assert_int_equal(count_files("tmp"), 0);
    image_store_close(&s);
}

static void a_killed_adder_is_cleaned_up_after(void **state)
{
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_added_is_found, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(layers_are_shared, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_layer_that_is_there_is_not_opened, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_wrong_layer_leaves_nothing, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(documents_must_agree, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_reference_moves, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_digest_may_be_that_of_an_index, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(images_are_listed_by_name, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(what_is_damaged_is_missing_and_made_anew, store_setup,
                                        store_teardown),
        cmocka_unit_test_setup_teardown(a_shortage_costs_no_disk, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(hostile_records, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(threads_share_the_work, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(processes_share_the_work, store_setup, store_teardown),
        cmocka_unit_test_setup_teardown(a_killed_adder_is_cleaned_up_after, store_setup,
                                        store_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
