#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "erofs_reader.h"
#include "image/layer/convert.h"
#include "image_fixture.h"
#include "tar_builder.h"
#include "unit.h"

/* Converts bytes as a tar, in this process; *ret_fd is the image. Frees the builder. */
static int convert_limited(struct tb *b, bool layer, uint32_t max_entries, uint64_t max_bytes,
                           int *ret_fd, struct err *e)
{
    struct convert c;
    struct convert_made made;
    const struct convert_limits limits = {max_bytes, max_entries};
    int in = mk_memfile(), out = mk_memfile();
    assert_int_equal(write(in, b->p, b->len), b->len);
    assert_int_equal(lseek(in, 0, SEEK_SET), 0);
    tb_free(b);
    assert_int_equal(convert_init(&c, in, out, -1, layer, &limits, e), 0);
    int r = convert_run(&c, &made, e);
    convert_free(&c);
    close(in);
    if (r == 0 && ret_fd)
        *ret_fd = out;
    else
        close(out);
    return r;
}

static int convert(struct tb *b, int *ret_fd, struct err *e)
{
    return convert_limited(b, false, 0, 1ULL << 40, ret_fd, e);
}

static void good(struct tb *b, struct er *r, int *fd)
{
    struct err e = {0};
    tb_end(b);
    if (convert(b, fd, &e) < 0)
        fail_msg("%s", e.msg);
    er_open(r, *fd);
    (void)er_check(r);
}

static void done(struct er *r, int fd)
{
    er_close(r);
    fsck_erofs(fd);
    close(fd);
}

static void refused(struct tb *b, int code, const char *word)
{
    struct err e = {0};
    tb_end(b);
    int r = convert(b, NULL, &e);
    if (r != -code || !strstr(e.msg, word) || strchr(e.msg, '\n'))
        fail_msg("got %d '%s', wanted %d '%s'", r, e.msg, -code, word);
}

static void expect_text(const struct er *r, const char *path, const char *want)
{
    struct er_inode i;
    char got[256] = {0};
    if (!er_lookup(r, path, &i))
        fail_msg("%s is missing", path);
    assert_int_equal(i.size, strlen(want));
    assert_int_equal(er_read(r, &i, 0, got, sizeof(got)), strlen(want));
    assert_string_equal(got, want);
}

static void add_text(struct tb *b, const char *name, const char *text)
{
    tb_add(b, (struct tb_entry){.name = name, .type = '0', .size = strlen(text), .data = text});
}

static void test_plain(void **state)
{
    struct tb b = {0};
    struct er r;
    struct er_inode i, j;
    int fd;
    tb_add(&b, (struct tb_entry){.name = "./", .type = '5', .mode = 0711, .mtime = 77});
    tb_add(&b, (struct tb_entry){.name = "./bin/", .type = '5', .mode = 0755});
    tb_add(&b, (struct tb_entry){.name = "./bin/su",
                                 .type = '0',
                                 .mode = 04755,
                                 .uid = 100000,
                                 .gid = 3000000000U,
                                 .mtime = 1234567890,
                                 .size = 2,
                                 .data = "su"});
    tb_add(&b, (struct tb_entry){.name = "bin/link", .type = '1', .link = "./bin/su"});
    tb_add(&b, (struct tb_entry){.name = "sym", .type = '2', .link = "bin/su"});
    tb_add(&b, (struct tb_entry){.name = "tty", .type = '3', .major = 5, .minor = 2});
    tb_add(&b, (struct tb_entry){.name = "sda", .type = '4', .major = 8, .minor = 300});
    tb_add(&b, (struct tb_entry){.name = "fifo", .type = '6'});
    add_text(&b, "empty", "");
    good(&b, &r, &fd);
    assert_true(er_lookup(&r, "/", &i) && i.mode == (S_IFDIR | 0711) && i.mtime == 77);
    assert_true(er_lookup(&r, "bin/su", &i));
    assert_true(i.mode == (S_IFREG | 04755) && i.uid == 100000 && i.gid == 3000000000U);
    assert_int_equal(i.mtime, 1234567890);
    assert_true(er_lookup(&r, "bin/link", &j) && j.nid == i.nid && j.nlink == 2);
    assert_true(er_lookup(&r, "sym", &i) && S_ISLNK(i.mode) && i.size == 6);
    assert_true(er_lookup(&r, "tty", &i) && S_ISCHR(i.mode) && i.u == (5 << 8 | 2));
    assert_true(er_lookup(&r, "sda", &i) && S_ISBLK(i.mode) && i.u == (8 << 8 | 44 | 256 << 12));
    assert_true(er_lookup(&r, "fifo", &i) && S_ISFIFO(i.mode));
    expect_text(&r, "empty", "");
    done(&r, fd);
}

static void test_pax(void **state)
{
    static const uint8_t cap[20] = {1, 0, 0, 2, 0, 4};
    struct tb b = {0};
    struct er r;
    struct er_inode i;
    size_t len;
    int fd;
    char longname[300];
    memset(longname, 'd', 150);
    longname[150] = '/';
    memset(longname + 151, 'f', 140);
    longname[291] = '\0';
    tb_pax(&b, "path", longname, 291);
    add_text(&b, "short", "long name");
    tb_pax(&b, "path", "caf\xc3\xa9", 5);
    add_text(&b, "x", "utf-8");
    add_text(&b, "latin\xe9\xff", "bytes");
    tb_pax(&b, "mtime", "1500000000.123456789", 20);
    tb_pax(&b, "uid", "4000000000", 10);
    tb_pax(&b, "SCHILY.xattr.user.note", "hi\0there", 8);
    tb_pax(&b, "SCHILY.xattr.security.capability", cap, sizeof(cap));
    tb_pax(&b, "SCHILY.xattr.security.selinux", "label", 5);
    tb_pax(&b, "SCHILY.xattr.trusted.overlay.opaque", "y", 1);
    tb_pax(&b, "SCHILY.acl.access", "user::rwx,user:1000:r-x:1000,group::r-x,mask::r-x,other::r--",
           strlen("user::rwx,user:1000:r-x:1000,group::r-x,mask::r-x,other::r--"));
    add_text(&b, "attrs", "data");
    tb_pax(&b, "linkpath", "very/long/target", 16);
    tb_add(&b, (struct tb_entry){.name = "sym", .type = '2', .link = "short"});
    good(&b, &r, &fd);
    expect_text(&r, longname, "long name");
    expect_text(&r, "caf\xc3\xa9", "utf-8");
    expect_text(&r, "latin\xe9\xff", "bytes");
    assert_true(er_lookup(&r, "attrs", &i));
    assert_true(i.mtime == 1500000000 && i.mtime_nsec == 123456789 && i.uid == 4000000000U);
    assert_memory_equal(er_xattr(&r, &i, "user.note", &len), "hi\0there", 8);
    assert_int_equal(len, 8);
    assert_memory_equal(er_xattr(&r, &i, "security.capability", &len), cap, sizeof(cap));
    assert_null(er_xattr(&r, &i, "security.selinux", &len));
    assert_null(er_xattr(&r, &i, "trusted.overlay.opaque", &len));
    static const uint8_t acl[] = {2,   0,   0,   0,    1,   0,   7,    0,   255, 255, 255,
                                  255, 2,   0,   5,    0,   232, 3,    0,   0,   4,   0,
                                  5,   0,   255, 255,  255, 255, 0x10, 0,   5,   0,   255,
                                  255, 255, 255, 0x20, 0,   4,   0,    255, 255, 255, 255};
    const void *got = er_xattr(&r, &i, "system.posix_acl_access", &len);
    assert_non_null(got);
    assert_int_equal(len, sizeof(acl));
    assert_memory_equal(got, acl, sizeof(acl));
    char target[32] = {0};
    assert_true(er_lookup(&r, "sym", &i));
    assert_int_equal(er_read(&r, &i, 0, target, sizeof(target)), 16);
    assert_string_equal(target, "very/long/target");
    done(&r, fd);
}

static void test_gnu(void **state)
{
    struct tb b = {0};
    struct er r;
    struct er_inode i;
    int fd;
    char name[256];
    memset(name, 'g', 255);
    name[255] = '\0';
    tb_add(&b, (struct tb_entry){.name = "././@LongLink", .type = 'L', .size = 256, .data = name});
    add_text(&b, "ggg", "long");
    /* A sparse file in PAX format 1.0: the map leads the data. */
    char data[512 + 4] = "2\n0\n4\n1048576\n0\n";
    memcpy(data + 512, "HEAD", 4);
    tb_pax(&b, "GNU.sparse.major", "1", 1);
    tb_pax(&b, "GNU.sparse.minor", "0", 1);
    tb_pax(&b, "GNU.sparse.name", "sparse", 6);
    tb_pax(&b, "GNU.sparse.realsize", "1048576", 7);
    tb_add(&b,
           (struct tb_entry){
               .name = "GNUSparseFile.0/sparse", .type = '0', .size = sizeof(data), .data = data});
    good(&b, &r, &fd);
    expect_text(&r, name, "long");
    assert_true(er_lookup(&r, "sparse", &i));
    assert_int_equal(i.size, 1048576);
    char got[8];
    assert_int_equal(er_read(&r, &i, 0, got, 8), 8);
    assert_memory_equal(got, "HEAD\0\0\0\0", 8);
    done(&r, fd);
}

/* What an archive could use to reach outside, or to confuse. Nothing is written on the host, so the
 * question is whether the result is refused or makes sense. */
static void test_attacks(void **state)
{
    struct tb b = {0};
    struct er r;
    struct er_inode i;
    int fd;
    add_text(&b, "../../etc/passwd", "x");
    refused(&b, EINVAL, "'..'");
    add_text(&b, "a/../../b", "x");
    refused(&b, EINVAL, "'..'");
    tb_add(&b, (struct tb_entry){.name = ".", .type = '2', .link = "/etc"});
    refused(&b, EINVAL, "root directory");
    tb_add(&b, (struct tb_entry){.name = "./", .type = '2', .link = "/etc"});
    refused(&b, EINVAL, "root directory");
    tb_add(&b, (struct tb_entry){.name = "l", .type = '1', .link = "/etc/passwd"});
    refused(&b, ENOENT, "hard link");
    tb_add(&b, (struct tb_entry){.name = "l", .type = '1', .link = "../../etc/passwd"});
    refused(&b, ENOENT, "hard link");
    add_text(&b, "file", "x");
    add_text(&b, "file/below", "x");
    refused(&b, ENOTDIR, "not a directory");
    tb_add(&b, (struct tb_entry){.name = "loop", .type = '2', .link = "loop"});
    add_text(&b, "loop/x", "x");
    refused(&b, ELOOP, "symbolic links");
    tb_pax(&b, "path", "../../x", 7);
    add_text(&b, "innocent", "x");
    refused(&b, EINVAL, "'..'");
    tb_pax(&b, "linkpath", "/etc/shadow", 11);
    tb_add(&b, (struct tb_entry){.name = "h", .type = '1', .link = "innocent"});
    refused(&b, ENOENT, "/etc/shadow");
    tb_add(&b, (struct tb_entry){.name = "dev", .type = '4', .major = 0777777, .minor = 1});
    refused(&b, EINVAL, "device number");

    add_text(&b, "/abs/olute", "abs");
    tb_add(&b, (struct tb_entry){.name = "out", .type = '2', .link = "../../../tmp"});
    add_text(&b, "out/evil", "inside");
    add_text(&b, "twice", "first");
    add_text(&b, "twice", "second");
    tb_add(&b, (struct tb_entry){.name = "was-dir/", .type = '5'});
    add_text(&b, "was-dir/x", "x");
    add_text(&b, "was-dir", "file now");
    tb_add(&b, (struct tb_entry){.name = "sym", .type = '2', .link = "/etc/passwd"});
    add_text(&b, "sym", "not through the link");
    add_text(&b, ".wh.kept", "an ordinary name here");
    good(&b, &r, &fd);
    expect_text(&r, "abs/olute", "abs");
    expect_text(&r, "tmp/evil", "inside");
    expect_text(&r, "twice", "second");
    expect_text(&r, "was-dir", "file now");
    expect_text(&r, "sym", "not through the link");
    expect_text(&r, ".wh.kept", "an ordinary name here");
    assert_false(er_lookup(&r, "etc/passwd", &i));
    done(&r, fd);
}

static void test_long_names(void **state)
{
    struct tb b = {0};
    char *huge = malloc(1 << 20);
    assert_non_null(huge);
    memset(huge, 'n', 1 << 20);
    huge[(1 << 20) - 1] = '\0';
    tb_add(&b, (struct tb_entry){.name = "L", .type = 'L', .size = 1 << 20, .data = huge});
    add_text(&b, "x", "x");
    refused(&b, ENAMETOOLONG, "255");
    for (int i = 99; i < 1 << 20; i += 100)
        huge[i] = '/';
    huge[(1 << 20) - 1] = '\0';
    tb_pax(&b, "path", huge, 100000);
    add_text(&b, "x", "x");
    refused(&b, ENAMETOOLONG, "4095");
    tb_pax(&b, "linkpath", huge, 5000);
    tb_add(&b, (struct tb_entry){.name = "s", .type = '2', .link = "x"});
    refused(&b, ENAMETOOLONG, "symbolic link");
    memset(huge, 'v', 1 << 20);
    tb_pax(&b, "SCHILY.xattr.user.big", huge, 70000);
    add_text(&b, "x", "x");
    refused(&b, E2BIG, "extended attribute");
    free(huge);
}

static void test_bombs(void **state)
{
    struct tb b = {0};
    struct err e = {0};
    /* A sparse file that claims a terabyte and brings nothing. */
    char data[512] = "1\n1099511627776\n0\n";
    tb_pax(&b, "GNU.sparse.major", "1", 1);
    tb_pax(&b, "GNU.sparse.minor", "0", 1);
    tb_pax(&b, "GNU.sparse.realsize", "1099511627776", 13);
    tb_add(&b, (struct tb_entry){.name = "s", .type = '0', .size = 512, .data = data});
    tb_end(&b);
    assert_int_equal(convert_limited(&b, false, 0, 1 << 30, NULL, &e), -EFBIG);
    assert_non_null(strstr(e.msg, "limit of 1024 MiB"));
    /* A header with an absurd size. */
    tb_add(&b, (struct tb_entry){.name = "huge", .type = '0', .size = 1ULL << 62});
    refused(&b, EFBIG, "limit");
    tb_add(&b, (struct tb_entry){.name = "huge", .type = '0', .size = 1ULL << 39});
    refused(&b, EINVAL, "Truncated");
    /* The same name over and over, and many names. */
    for (int i = 0; i < 1001; i++)
        add_text(&b, "same", "");
    tb_end(&b);
    assert_int_equal(convert_limited(&b, false, 1000, 0, NULL, &e), -E2BIG);
    assert_non_null(strstr(e.msg, "1000 entries"));
}

/* Zeros as a file, compressed a thousand to one. */
static void test_compression_bomb(void **state)
{
    static uint8_t zeros[1 << 20];
    struct tb head = {0}, b = {0};
    struct err e = {0};
    tb_add(&head, (struct tb_entry){.name = "zeros", .type = '0', .size = 128 << 20});
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    uint8_t out[65536];
    for (int i = -1; i <= 128; i++) {
        z.next_in = i < 0 ? head.p : zeros;
        z.avail_in = (uInt)(i < 0 ? head.len : sizeof(zeros));
        do {
            z.next_out = out;
            z.avail_out = sizeof(out);
            (void)deflate(&z, i == 128 ? Z_FINISH : Z_NO_FLUSH);
            tb_raw(&b, out, sizeof(out) - z.avail_out);
        } while (z.avail_out == 0);
    }
    (void)deflateEnd(&z);
    tb_free(&head);
    assert_true(b.len < 1 << 20);
    assert_int_equal(convert_limited(&b, false, 0, 64 << 20, NULL, &e), -EFBIG);
    assert_non_null(strstr(e.msg, "64 MiB"));
}

static void squeeze_gzip(struct tb *b)
{
    uLong bound = compressBound(b->len) + 64;
    uint8_t *out = malloc(bound);
    assert_non_null(out);
    z_stream z = {
        .next_in = b->p, .avail_in = (uInt)b->len, .next_out = out, .avail_out = (uInt)bound};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    free(b->p);
    *b = (struct tb){.p = out, .len = z.total_out, .cap = bound};
    (void)deflateEnd(&z);
}

static void squeeze_zstd(struct tb *b)
{
    size_t bound = ZSTD_compressBound(b->len);
    uint8_t *out = malloc(bound);
    assert_non_null(out);
    size_t n = ZSTD_compress(out, bound, b->p, b->len, 3);
    assert_false(ZSTD_isError(n));
    free(b->p);
    *b = (struct tb){.p = out, .len = n, .cap = bound};
}

static void sample(struct tb *b)
{
    static uint8_t noise[50000];
    fill_bytes(noise, sizeof(noise), 5);
    tb_add(b, (struct tb_entry){.name = "a", .type = '0', .size = sizeof(noise), .data = noise});
    add_text(b, "b", "text");
    tb_end(b);
}

static void test_compressed(void **state)
{
    void (*squeeze[])(struct tb *) = {NULL, squeeze_gzip, squeeze_zstd};
    for (int i = 0; i < 3; i++) {
        struct tb b = {0};
        struct er r;
        struct err e = {0};
        int fd;
        sample(&b);
        if (squeeze[i])
            squeeze[i](&b);
        if (convert(&b, &fd, &e) < 0)
            fail_msg("%s", e.msg);
        er_open(&r, fd);
        assert_int_equal(er_check(&r), 2);
        expect_text(&r, "b", "text");
        done(&r, fd);
        /* Cut anywhere it is damaged. (The last bytes of a plain tar are padding.) */
        for (int part = 1; part < 8; part++) {
            sample(&b);
            if (squeeze[i])
                squeeze[i](&b);
            b.len = b.len * (size_t)part / 8;
            assert_true(convert(&b, NULL, &e) < 0);
            assert_true(strstr(e.msg, "damaged"));
        }
        /* A flipped bit in compressed data shows. */
        sample(&b);
        if (squeeze[i]) {
            squeeze[i](&b);
            b.p[b.len / 2] ^= 0x10;
            (void)convert(&b, NULL, &e); /* no crash; zstd without checksum may not notice */
        }
        tb_free(&b);
    }
}

static void test_not_a_tar(void **state)
{
    struct tb b = {0};
    struct err e = {0};
    tb_raw(&b, "just some text, not an archive at all\n", 38);
    assert_int_equal(convert(&b, NULL, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "is not a tar archive"));
    assert_int_equal(e.hints, 1);
    uint8_t noise[20000];
    fill_bytes(noise, sizeof(noise), 1);
    tb_raw(&b, noise, sizeof(noise));
    assert_int_equal(convert(&b, NULL, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "is not a tar archive"));
    tb_end(&b);
    assert_int_equal(convert(&b, NULL, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "empty"));
    /* Garbage after a good entry. */
    add_text(&b, "a", "x");
    tb_raw(&b, noise, sizeof(noise));
    assert_int_equal(convert(&b, NULL, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "damaged"));
}

static void test_layer(void **state)
{
    struct tb b = {0};
    struct er r;
    struct er_inode i;
    struct err e = {0};
    size_t len;
    int fd;
    add_text(&b, "etc/.wh.gone", "");
    add_text(&b, "opt/.wh..wh..opq", "");
    add_text(&b, "opt/new", "new");
    add_text(&b, "opt/.wh..wh.plnk", "");
    tb_add(&b, (struct tb_entry){.name = "s", .type = '2', .link = "/"});
    add_text(&b, "s/.wh.through", "");
    tb_end(&b);
    if (convert_limited(&b, true, 0, 0, &fd, &e) < 0)
        fail_msg("%s", e.msg);
    er_open(&r, fd);
    (void)er_check(&r);
    assert_true(er_lookup(&r, "etc/gone", &i) && S_ISCHR(i.mode) && i.u == 0);
    assert_false(er_lookup(&r, "etc/.wh.gone", &i));
    assert_true(er_lookup(&r, "opt", &i));
    assert_memory_equal(er_xattr(&r, &i, "trusted.overlay.opaque", &len), "y", 1);
    expect_text(&r, "opt/new", "new");
    assert_true(er_lookup(&r, "through", &i) && S_ISCHR(i.mode));
    done(&r, fd);
    static const char *const bad[] = {".wh.", "a/.wh..", "a/.wh...", ".wh.x/../y"};
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
        add_text(&b, bad[k], "");
        tb_end(&b);
        assert_int_equal(convert_limited(&b, true, 0, 0, NULL, &e), -EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_pax),
        cmocka_unit_test(test_gnu),
        cmocka_unit_test(test_attacks),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_compression_bomb),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_not_a_tar),
        cmocka_unit_test(test_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
