/* What is written is read back by libarchive: at the limits of each field, and beyond. */
#include <stdint.h>

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/tar/write.h"
#include "unit.h"
#include "util/cleanup.h"

/* Writes one entry (no content) and opens the archive at it. */
static struct archive *written_with(const struct tar_entry *t, const struct tree_xattr *x,
                                    struct archive_entry **ret)
{
    struct tar_out o;
    AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(tar_out_init(&o, fd, NULL), 0);
    assert_int_equal(tar_put_header_xattrs(&o, t, x), 0);
    if (!t->size)
        assert_int_equal(tar_put_end(&o), 0);
    assert_int_equal(tar_out_flush(&o), 0);
    assert_int_equal(o.bytes % 512, 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, o.bytes);
    tar_out_free(&o);
    static uint8_t copy[1 << 20];
    assert_true((size_t)st.st_size <= sizeof(copy));
    assert_int_equal(pread(fd, copy, sizeof(copy), 0), st.st_size);
    struct archive *a = archive_read_new();
    assert_non_null(a);
    assert_int_equal(archive_read_support_format_tar(a), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(a, copy, (size_t)st.st_size), ARCHIVE_OK);
    int got = archive_read_next_header(a, ret);
    if (got != ARCHIVE_OK)
        fail_msg("%s", archive_error_string(a));
    return a;
}

static struct archive *written(const struct tar_entry *t, struct archive_entry **ret)
{
    return written_with(t, NULL, ret);
}

/* Names whose record's length has one digit more than the name's, and one less. */
static void names(void **state)
{
    static const size_t lengths[] = {1, 99, 100, 101, 255, 985, 986, 987, 988, 989, 990, 4000};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        char name[4096], link[4096];
        struct archive_entry *ent;
        memset(name, 'n', lengths[i]);
        memset(link, 'l', lengths[i]);
        name[lengths[i]] = link[lengths[i]] = '\0';
        struct archive *a =
            written(&(struct tar_entry){.path = name, .type = '2', .link = link}, &ent);
        assert_string_equal(archive_entry_pathname(ent), name);
        assert_string_equal(archive_entry_symlink(ent), link);
        assert_int_equal(archive_entry_filetype(ent), S_IFLNK);
        archive_read_free(a);
        a = written(&(struct tar_entry){.path = name, .type = '1', .link = link}, &ent);
        assert_string_equal(archive_entry_hardlink(ent), link);
        archive_read_free(a);
    }
}

static void numbers(void **state)
{
    static const struct {
        uint32_t id;
        uint64_t size;
        int64_t mtime;
        uint32_t nsec;
    } t[] = {
        {0, 0, 0, 0},
        {07777777, 077777777777, 077777777777, 0},
        {010000000, 0100000000000, 0100000000000, 0},
        {UINT32_MAX - 1, 1ULL << 42, 1, 1},
        {1, 1, 1700000000, 999999999},
        {1, 1, 1700000000, 100000000},
        {1, 1, -1, 0},
        {1, 1, -3000000000, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct archive_entry *ent;
        const struct tar_entry e = {.path = "f",
                                    .type = '0',
                                    .mode = S_IFREG | 04751,
                                    .uid = t[i].id,
                                    .gid = t[i].id,
                                    .size = t[i].size,
                                    .mtime = t[i].mtime,
                                    .mtime_nsec = t[i].nsec};
        struct archive *a = written(&e, &ent);
        assert_int_equal(archive_entry_mode(ent), S_IFREG | 04751);
        assert_int_equal(archive_entry_uid(ent), t[i].id);
        assert_int_equal(archive_entry_gid(ent), t[i].id);
        assert_int_equal(archive_entry_size(ent), t[i].size);
        assert_true(archive_entry_mtime(ent) == t[i].mtime);
        assert_int_equal(archive_entry_mtime_nsec(ent), t[i].nsec);
        archive_read_free(a);
    }
}

/* -1.25 is what POSIX writes for 2 seconds before and 0.75 after. */
static void times_before_1970(void **state)
{
    static const struct {
        int64_t sec;
        uint32_t nsec;
        const char *text;
    } t[] = {{-2, 750000000, "15 mtime=-1.25\n"},
             {-1, 999999999, "22 mtime=-0.000000001\n"},
             {INT64_MIN, 0, "30 mtime=-9223372036854775808\n"}};
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct tar_out o;
        AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
        char got[64] = "";
        const struct tar_entry e = {
            .path = "f", .type = '0', .mtime = t[i].sec, .mtime_nsec = t[i].nsec};
        assert_int_equal(tar_out_init(&o, fd, NULL), 0);
        assert_int_equal(tar_put_header(&o, &e), 0);
        assert_int_equal(tar_out_flush(&o), 0);
        tar_out_free(&o);
        assert_true(pread(fd, got, sizeof(got) - 1, 512) > 0);
        assert_string_equal(got, t[i].text);
    }
}

static struct tree_xattr *xattr(const char *name, const void *value, size_t n)
{
    size_t len = strlen(name);
    struct tree_xattr *x = calloc(1, sizeof(*x) + len + 1 + n);
    assert_non_null(x);
    x->name_len = (uint8_t)len;
    x->value_len = (uint16_t)n;
    memcpy(x->bytes, name, len);
    memcpy(x->bytes + len + 1, value, n);
    return x;
}

static void attributes(void **state)
{
    static uint8_t large[TREE_XATTR_VALUE_MAX];
    memset(large, '\n', sizeof(large));
    struct tree_xattr *a = xattr("security.capability", "\1\0=\n\0", 5);
    struct tree_xattr *b = xattr("user.large", large, sizeof(large));
    struct tree_xattr *c = xattr("user.none", "", 0);
    a->next = b;
    b->next = c;
    struct archive_entry *ent;
    const char *name;
    const void *value;
    size_t n, seen = 0;
    struct archive *ar = written_with(&(struct tar_entry){.path = "f", .type = '0'}, a, &ent);
    assert_int_equal(archive_entry_xattr_reset(ent), 3);
    while (archive_entry_xattr_next(ent, &name, &value, &n) == ARCHIVE_OK)
        for (const struct tree_xattr *x = a; x; x = x->next)
            if (strcmp(x->bytes, name) == 0) {
                assert_int_equal(n, x->value_len);
                assert_memory_equal(value, x->bytes + x->name_len + 1, n);
                seen++;
            }
    assert_int_equal(seen, 3);
    archive_read_free(ar);
    struct tree_xattr *bad = xattr("user.a=b", "x", 1);
    struct tar_out o;
    assert_int_equal(tar_out_init(&o, -1, NULL), 0);
    const struct tar_entry f = {.path = "f"};
    assert_int_equal(tar_put_header_xattrs(&o, &f, bad), -EINVAL);
    tar_out_free(&o);
    tar_out_free(&o);
    free(a);
    free(b);
    free(c);
    free(bad);
}

static void devices(void **state)
{
    struct archive_entry *ent;
    const struct tar_entry e = {
        .path = "d", .type = '4', .major = TREE_MAJOR_MAX, .minor = TREE_MINOR_MAX};
    struct archive *a = written(&e, &ent);
    assert_int_equal(archive_entry_filetype(ent), S_IFBLK);
    assert_int_equal(archive_entry_rdevmajor(ent), TREE_MAJOR_MAX);
    assert_int_equal(archive_entry_rdevminor(ent), TREE_MINOR_MAX);
    archive_read_free(a);
}

/* Only hashed: the digest is that of the bytes that would have been written. */
static void hashes(void **state)
{
    struct hasher h;
    struct digest got, want;
    struct tar_out o;
    static uint8_t big[300 << 10], copy[400 << 10];
    AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
    for (int pass = 0; pass < 2; pass++) {
        hasher_init(&h);
        assert_int_equal(tar_out_init(&o, pass ? fd : -1, &h), 0);
        assert_int_equal(tar_put_file(&o, "big", big, sizeof(big)), 0);
        assert_int_equal(tar_put_file(&o, "small", "x", 1), 0);
        assert_int_equal(tar_put_end(&o), 0);
        assert_int_equal(tar_out_flush(&o), 0);
        *(pass ? &want : &got) = hasher_finish(&h);
        assert_int_equal(o.bytes, 512 + sizeof(big) + 1024 + 1024);
        tar_out_free(&o);
    }
    assert_true(digest_equal(&got, &want));
    ssize_t n = pread(fd, copy, sizeof(copy), 0);
    assert_true(n > 0);
    want = digest_of(copy, (size_t)n);
    assert_true(digest_equal(&got, &want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(numbers),
        cmocka_unit_test(times_before_1970),
        cmocka_unit_test(attributes),
        cmocka_unit_test(devices),
        cmocka_unit_test(hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
