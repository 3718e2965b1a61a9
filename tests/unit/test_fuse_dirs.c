/* Directories of the FUSE server, by raw requests: read whole, in part, and ahead of being asked for. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fuse_client.h"
#include "unit.h"

enum { ROOT = FUSE_ROOT_ID };

static void test_directories_are_read_whole(void **state)
{
    struct fuse_client c;
    enum { FILES = 500 };
    client_init(&c, NULL);
    for (int i = 0; i < FILES; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "file-%d-%0*d", i, i % 7 + 1, 0);
        client_put(&c, name, "");
    }
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIR, false), FILES);
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIR, true), FILES);
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIRPLUS, false), FILES);
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIRPLUS, true), FILES);
    client_fini(&c);
}

/* The entries behind the first n bytes of the last reply, by name; returns how many. */
static unsigned entries_behind(const struct fuse_client *c, size_t n, uint64_t nodes[10])
{
    unsigned count = 0;
    memset(nodes, 0, 10 * sizeof(nodes[0]));
    while (n < c->rep_len) {
        struct fuse_entry_out e;
        struct fuse_dirent d;
        memcpy(&e, c->rep + n, sizeof(e));
        memcpy(&d, c->rep + n + sizeof(e), FUSE_NAME_OFFSET);
        const uint8_t *name = c->rep + n + sizeof(e) + FUSE_NAME_OFFSET;
        if (d.namelen == 2 && name[0] == 'f') {
            count++;
            nodes[name[1] - '0'] = e.nodeid;
        }
        n += FUSE_DIRENT_ALIGN(sizeof(e) + FUSE_NAME_OFFSET + d.namelen);
    }
    assert_int_equal(n, c->rep_len);
    return count;
}

static void put_ten(struct fuse_client *c)
{
    for (int i = 0; i < 10; i++) {
        char name[] = {'f', (char)('0' + i), '\0'};
        client_put(c, name, "");
    }
}

static void test_opening_brings_entries(void **state)
{
    struct fuse_client c;
    struct fuse_open_in in = {0};
    struct fuse_open_out out;
    uint64_t nodes[10];
    client_init(&c, NULL);
    put_ten(&c);
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    assert_int_equal(c.rep_len, sizeof(out)); /* there was no room for any */
    memcpy(&out, c.rep, sizeof(out));
    assert_false(out.open_flags >> 31);
    c.ahead = true;
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    assert_int_equal(entries_behind(&c, sizeof(out), nodes), 10);
    assert_true(out.open_flags >> 31); /* these are all */
    struct fuse_attr a;
    assert_int_equal(client_getattr(&c, nodes[3], &a), 0);
    c.room = 1000;
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    assert_in_range(entries_behind(&c, sizeof(out), nodes), 1, 9);
    assert_false(out.open_flags >> 31);
    c.room = 1 << 20;
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIR, false),
                     0); /* names of two letters */
    client_put(&c, "one more", "");
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIRPLUS, true), 1);
    client_fini(&c);
    client_init(&c, &(struct fuse_options){.cache = FUSE_CACHE_ALWAYS});
    put_ten(&c);
    c.ahead = true; /* the guest has a copy of its own, as likely as not */
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    assert_int_equal(c.rep_len, sizeof(out));
    client_fini(&c);
}

/* A guest that leaves no room reads the directory as it is then, not as it was when it was opened. */
static void test_opening_reads_nothing(void **state)
{
    struct fuse_client c;
    struct fuse_open_in in = {0};
    struct fuse_open_out out;
    uint64_t nodes[10];
    client_init(&c, NULL);
    client_put(&c, "f1", "");
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    client_put(&c, "f2", "");
    struct fuse_read_in read = {.fh = out.fh, .size = 4096};
    assert_int_equal(client_call(&c, FUSE_READDIRPLUS, ROOT, &read, sizeof(read), NULL, 0), 0);
    assert_int_equal(entries_behind(&c, 0, nodes), 2);
    client_fini(&c);
}

/* However little room there is, and however few inodes and descriptors. */
static void test_entries_ahead_within_limits(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_open_in in = {0};
    struct fuse_init_in init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    client_init(&c, &(struct fuse_options){.inodes_max = 8, .fds_max = 16});
    put_ten(&c);
    c.ahead = true;
    for (size_t more = 0; more < 400; more += 13) {
        c.room = sizeof(struct fuse_out_header) + sizeof(e) + more;
        assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
        assert_in_range(c.rep_len, sizeof(e), sizeof(e) + more);
        c.room = sizeof(struct fuse_out_header) + sizeof(struct fuse_open_out) + more;
        assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
        assert_in_range(c.rep_len, sizeof(struct fuse_open_out),
                        sizeof(struct fuse_open_out) + more);
    }
    c.room = 1 << 20;
    assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0); /* only eight inodes are to be had */
    (void)client_call(&c, FUSE_DESTROY, 0, NULL, 0, NULL, 0);
    assert_int_equal(client_call(&c, FUSE_INIT, 0, &init, sizeof(init), NULL, 0), 0);
    assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
    client_fini(&c);
}

static void test_looking_up_brings_others(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    uint64_t nodes[10], sub;
    client_init(&c, NULL);
    put_ten(&c);
    assert_int_equal(client_mkdir(&c, ROOT, "sub", 0755, &sub), 0);
    assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
    assert_int_equal(c.rep_len, sizeof(e)); /* there was no room for any */
    client_forget(&c, e.nodeid, 1);
    c.ahead = true;
    for (int round = 0; round < 2; round++) { /* the second time from what was read before */
        assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
        assert_int_equal(entries_behind(&c, sizeof(e), nodes), 9);
        assert_int_equal(nodes[4], 0);
        for (int i = 0; i < 10; i++)
            if (i != 4)
                client_forget(&c, nodes[i], 1);
        client_forget(&c, e.nodeid, 1);
        assert_int_equal(client_getattr(&c, nodes[3], &a), -ESTALE); /* one reference each */
    }
    /* A file that is new, and one that is gone, since the directory was read. */
    assert_int_equal(unlinkat(c.dir_fd, "f7", 0), 0);
    client_put(&c, "g", "");
    assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
    assert_int_equal(entries_behind(&c, sizeof(e), nodes), 9);
    assert_int_equal(nodes[7], 0);
    assert_int_equal(client_lookup(&c, ROOT, "g", &e), 0);
    assert_int_equal(entries_behind(&c, sizeof(e), nodes), 9);
    assert_int_equal(client_lookup(&c, ROOT, "none", &e), -ENOENT);
    assert_int_equal(c.rep_len, sizeof(e));
    /* The directory that was read goes, and its number may be that of another. */
    assert_int_equal(client_lookup(&c, sub, "none", &e), -ENOENT);
    assert_int_equal(mkdirat(c.dir_fd, "sub/x", 0755), 0);
    assert_int_equal(client_lookup(&c, sub, "x", &e), 0);
    assert_int_equal(unlinkat(c.dir_fd, "sub/x", AT_REMOVEDIR), 0);
    assert_int_equal(client_name(&c, FUSE_RMDIR, ROOT, NULL, 0, "sub", NULL), 0);
    client_forget(&c, e.nodeid, 1);
    client_forget(&c, sub, 1);
    assert_int_equal(client_lookup(&c, ROOT, "f1", &e), 0);
    client_fini(&c);
    client_init(&c, &(struct fuse_options){.cache = FUSE_CACHE_NONE});
    put_ten(&c);
    c.ahead = true; /* they would be good for nothing */
    assert_int_equal(client_lookup(&c, ROOT, "f4", &e), 0);
    assert_int_equal(c.rep_len, sizeof(e));
    client_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directories_are_read_whole),
        cmocka_unit_test(test_opening_brings_entries),
        cmocka_unit_test(test_opening_reads_nothing),
        cmocka_unit_test(test_looking_up_brings_others),
        cmocka_unit_test(test_entries_ahead_within_limits),
    };
    return cmocka_run_group_tests_name("fuse directories", tests, NULL, NULL);
}
