/* The members of archives: what is found, and what is refused. */
#include <stdint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/tar/scan.h"
#include "tar_builder.h"
#include "unit.h"
#include "util/cleanup.h"

static int scan_bytes(const void *p, size_t n, struct tar_members *ret, struct err *e)
{
    AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), (ssize_t)n);
    return tar_scan(fd, ret, e);
}

static struct tar_members scan(struct tb *b)
{
    struct tar_members m;
    struct err e = {0};
    if (scan_bytes(b->p, b->len, &m, &e) < 0)
        fail_msg("%s", e.msg);
    tb_free(b);
    return m;
}

static void refuse(struct tb *b, int code, const char *why)
{
    struct tar_members m = {0};
    struct err e = {0};
    assert_int_equal(scan_bytes(b->p, b->len, &m, &e), -code);
    if (!strstr(e.msg, why))
        fail_msg("'%s' does not say '%s'", e.msg, why);
    assert_null(m.v);
    tb_free(b);
    *b = (struct tb){0};
}

static void file(struct tb *b, const char *name, const char *data)
{
    tb_add(b, (struct tb_entry){.name = name, .type = '0', .data = data, .size = strlen(data)});
}

static void members(void **state)
{
    struct tb b = {0};
    char name[301], gnu[400];
    memset(name, 'n', sizeof(name) - 1);
    name[300] = '\0';
    memset(gnu, 'g', sizeof(gnu) - 1);
    gnu[399] = '\0';
    tb_add(&b, (struct tb_entry){.name = "dir/", .type = '5'});
    file(&b, "./b//./c", "hello");
    file(&b, "/a", "");
    tb_add(&b, (struct tb_entry){.name = "old/", .type = '\0'});
    tb_pax(&b, "path", name, 300);
    tb_pax(&b, "size", "3", 1);
    tb_add(&b, (struct tb_entry){.name = "short", .type = '0', .data = "xyz", .size = 3});
    tb_add(&b, (struct tb_entry){.name = "@", .type = 'L', .data = gnu, .size = sizeof(gnu)});
    file(&b, "short", "g");
    tb_add(&b, (struct tb_entry){.name = "g", .type = 'g', .data = "7 a=b\n\n", .size = 7});
    tb_add(&b, (struct tb_entry){.name = "null", .type = '3', .size = 99});
    file(&b, "last", "end");
    tb_end(&b);
    AUTO_FREE uint8_t *copy = malloc(b.len);
    assert_non_null(copy);
    memcpy(copy, b.p, b.len);
    struct tar_members m = scan(&b);
    assert_int_equal(m.n, 5);
    const struct tar_member *x = tar_find(&m, "b/c");
    assert_non_null(x);
    assert_int_equal(x->size, 5);
    assert_memory_equal(copy + x->offset, "hello", 5);
    assert_ptr_equal(tar_find(&m, "./b/c"), x);
    assert_int_equal(tar_find(&m, "a")->size, 0);
    assert_memory_equal(copy + tar_find(&m, name)->offset, "xyz", 3);
    assert_memory_equal(copy + tar_find(&m, gnu)->offset, "g", 1);
    assert_memory_equal(copy + tar_find(&m, "last")->offset, "end", 3);
    assert_null(tar_find(&m, "dir"));
    assert_null(tar_find(&m, "old"));
    assert_null(tar_find(&m, "short"));
    assert_null(tar_find(&m, "null"));
    assert_null(tar_find(&m, ""));
    assert_null(tar_find(&m, "../a"));
    tar_members_free(&m);
    tar_members_free(&m);
}

static void link_to(struct tb *b, const char *name, char type, const char *target)
{
    tb_add(b, (struct tb_entry){.name = name, .type = type, .link = target});
}

static void links(void **state)
{
    struct tb b = {0};
    file(&b, "x.tar", "layer");
    link_to(&b, "id/layer.tar", '2', "../x.tar");
    link_to(&b, "id/sub/layer.tar", '2', ".././layer.tar");
    link_to(&b, "hard", '1', "id/layer.tar");
    link_to(&b, "absolute", '2', "/x.tar");
    link_to(&b, "id/out", '2', "../../x.tar");
    link_to(&b, "loop", '2', "loop");
    link_to(&b, "dangling", '2', "nowhere");
    link_to(&b, "empty", '2', "");
    tb_end(&b);
    struct tar_members m = scan(&b);
    const struct tar_member *x = tar_find(&m, "x.tar");
    assert_non_null(x);
    assert_ptr_equal(tar_find(&m, "id/layer.tar"), x);
    assert_ptr_equal(tar_find(&m, "id/sub/layer.tar"), x);
    assert_ptr_equal(tar_find(&m, "hard"), x);
    assert_ptr_equal(tar_find(&m, "absolute"), x);
    static const char *const nowhere[] = {"id/out", "loop", "dangling", "empty"};
    for (size_t i = 0; i < ARRAY_LEN(nowhere); i++)
        assert_null(tar_find(&m, nowhere[i]));
    tar_members_free(&m);
    /* A chain that is just short enough, and one that is not. */
    for (int n = TAR_LINKS_MAX; n <= TAR_LINKS_MAX + 1; n++) {
        file(&b, "l0", "x");
        for (int i = 1; i <= n; i++) {
            char from[16], to[16];
            (void)snprintf(from, sizeof(from), "l%d", i);
            (void)snprintf(to, sizeof(to), "l%d", i - 1);
            link_to(&b, from, '2', to);
        }
        m = scan(&b);
        b = (struct tb){0};
        char last[16];
        (void)snprintf(last, sizeof(last), "l%d", n);
        assert_true(!tar_find(&m, last) == (n > TAR_LINKS_MAX));
        tar_members_free(&m);
    }
}

/* See test_copy_tar.c: the reader is the same, and names are all that counts here. */
static void global_headers(void **state)
{
    struct tb b = {0};
    tb_pax_global(&b, "comment", "0123456789abcdef");
    tb_pax_global(&b, "mtime", "7");
    file(&b, "a", "1");
    tb_add(&b, (struct tb_entry){.name = "x", .type = 'x', .data = "10 path=n\n", .size = 10});
    tb_pax_global(&b, "uid", "5");
    file(&b, "short", "22");
    tb_pax(&b, "path", "", 0);
    file(&b, "field", "");
    tb_end(&b);
    struct tar_members m = scan(&b);
    assert_int_equal(m.n, 3);
    assert_int_equal(tar_find(&m, "a")->size, 1);
    assert_int_equal(tar_find(&m, "n")->size, 2);
    assert_non_null(tar_find(&m, "field"));
    tar_members_free(&m);
    b = (struct tb){0};
    static const char *const keys[] = {"path", "linkpath", "size"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        tb_pax_global(&b, keys[i], "1");
        file(&b, "a", "1");
        refuse(&b, EBADMSG, "global PAX header");
    }
    tb_add(&b, (struct tb_entry){.name = "g", .type = 'g', .data = "x", .size = 1});
    file(&b, "a", "1");
    refuse(&b, EBADMSG, "PAX");
}

static void hostile(void **state)
{
    struct tb b = {0};
    tb_raw(&b, "", 0);
    refuse(&b, ENOMSG, "not a tar archive");
    tb_raw(&b, "this is text", 12);
    refuse(&b, ENOMSG, "not a tar archive");
    static const char *const out[] = {"../evil", "a/../../evil", "/../evil", "a/.."};
    for (size_t i = 0; i < ARRAY_LEN(out); i++) {
        file(&b, out[i], "x");
        refuse(&b, EPERM, "unsafe path");
    }
    file(&b, "./", "");
    file(&b, "a", "1");
    file(&b, "./a", "2");
    refuse(&b, EBADMSG, "two members 'a'");
    file(&b, "a", "1");
    link_to(&b, "a", '2', "b");
    refuse(&b, EBADMSG, "two members 'a'");
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0', .size = 1025});
    tb_end(&b);
    refuse(&b, EBADMSG, "truncated or corrupt archive");
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0', .size = 1ULL << 62});
    refuse(&b, EBADMSG, "truncated or corrupt archive");
    tb_pax(&b, "size", "9223372036854775807", 19);
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0'});
    refuse(&b, EBADMSG, "PAX");
    tb_pax(&b, "size", "900000000000000000", 18);
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0'});
    refuse(&b, EBADMSG, "truncated or corrupt archive");
    tb_pax(&b, "size", "-1", 2);
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0'});
    refuse(&b, EBADMSG, "PAX");
    tb_pax(&b, "path", "a\0b", 3);
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0'});
    refuse(&b, EBADMSG, "PAX");
    tb_pax(&b, "GNU.sparse.major", "1", 1);
    tb_add(&b, (struct tb_entry){.name = "a", .type = '0'});
    refuse(&b, EBADMSG, "sparse");
    tb_add(&b, (struct tb_entry){.name = "a", .type = 'S'});
    refuse(&b, EBADMSG, "sparse");
    static const char *const records[] = {"x",        "9 a=b\n", "6 ab\n",    "3 =",    "6 a=b",
                                          "-6 a=b\n", "",        "6  a=b\n6", "7 a=bc", " "};
    for (size_t i = 0; i < ARRAY_LEN(records); i++) {
        tb_add(&b, (struct tb_entry){
                       .name = "p", .type = 'x', .data = records[i], .size = strlen(records[i])});
        file(&b, "a", "x");
        if (*records[i]) {
            refuse(&b, EBADMSG, "PAX");
            continue;
        }
        struct tar_members m = scan(&b);
        b = (struct tb){0};
        assert_int_equal(m.n, 1);
        tar_members_free(&m);
    }
    char big[TAR_NAME_MAX + 1];
    memset(big, 'n', sizeof(big));
    tb_pax(&b, "path", big, TAR_NAME_MAX);
    file(&b, "a", "x");
    refuse(&b, EBADMSG, "over 1023 bytes");
    tb_add(&b, (struct tb_entry){.name = "@", .type = 'L', .data = big, .size = sizeof(big)});
    file(&b, "a", "x");
    refuse(&b, EBADMSG, "over 1023 bytes");
    tb_add(&b, (struct tb_entry){.name = "@", .type = 'x', .size = 65537});
    tb_raw(&b, b.p, 0);
    for (int i = 0; i < 200; i++)
        tb_end(&b);
    refuse(&b, EBADMSG, "over 64 KiB");
    /* Damage in the middle. */
    file(&b, "a", "x");
    tb_raw(&b, big, 512);
    refuse(&b, EBADMSG, "corrupt archive: invalid header after entry 1");
    /* Cut off inside a header, and inside the padding of the last entry. */
    file(&b, "a", "x");
    tb_raw(&b, big, 511);
    refuse(&b, EBADMSG, "truncated or corrupt archive");
    file(&b, "a", "x");
    b.len--;
    refuse(&b, EBADMSG, "truncated or corrupt archive");
}

static void count(void **state)
{
    for (int n = TAR_MEMBERS_MAX; n <= TAR_MEMBERS_MAX + 1; n++) {
        struct tb b = {0};
        for (int i = 0; i < n; i++) {
            char name[16];
            (void)snprintf(name, sizeof(name), "m%d", i);
            file(&b, name, "");
        }
        tb_end(&b);
        if (n > TAR_MEMBERS_MAX) {
            refuse(&b, E2BIG, "more than 8192 entries");
        } else {
            struct tar_members m = scan(&b);
            assert_int_equal(m.n, n);
            tar_members_free(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members), cmocka_unit_test(links), cmocka_unit_test(global_headers),
        cmocka_unit_test(hostile), cmocka_unit_test(count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
