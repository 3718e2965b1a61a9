/* Requests that no kernel of ours would send: attacks 19 to 26 of the list. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fuse_client.h"
#include "unit.h"
#include "util/cleanup.h"

enum { ROOT = FUSE_ROOT_ID };

/* Every opcode that carries names, with room for a struct before them. */
static const struct {
    uint32_t op;
    size_t arg;
    unsigned names;
} named[] = {
    {FUSE_LOOKUP, 0, 1},
    {FUSE_SYMLINK, 0, 2},
    {FUSE_MKNOD, sizeof(struct fuse_mknod_in), 1},
    {FUSE_MKDIR, sizeof(struct fuse_mkdir_in), 1},
    {FUSE_UNLINK, 0, 1},
    {FUSE_RMDIR, 0, 1},
    {FUSE_RENAME, sizeof(struct fuse_rename_in), 2},
    {FUSE_RENAME2, sizeof(struct fuse_rename2_in), 2},
    {FUSE_LINK, sizeof(struct fuse_link_in), 1},
    {FUSE_CREATE, sizeof(struct fuse_create_in), 1},
};

static void test_h19_names(void **state)
{
    struct fuse_client c;
    char outside[80], long_name[4097];
    struct stat st;
    client_init(&c, NULL);
    (void)snprintf(outside, sizeof(outside), "%s-outside", c.dir);
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    const char *bad[] = {"", ".", "..", "/", "a/b", "../x", outside, "x/", "/x", long_name};
    client_put(&c, "f", "");
    for (size_t i = 0; i < ARRAY_LEN(named); i++)
        for (size_t j = 0; j < ARRAY_LEN(bad); j++) {
            uint64_t arg[16] = {ROOT}; /* the first field of rename and link is an inode */
            const char *second = named[i].names == 2 ? "ok" : NULL;
            int r = client_name(&c, named[i].op, ROOT, arg, named[i].arg, bad[j], second);
            assert_true(r == -EINVAL || r == -ENAMETOOLONG);
            if (named[i].op == FUSE_RENAME || named[i].op == FUSE_RENAME2)
                assert_true(client_name(&c, named[i].op, ROOT, arg, named[i].arg, "f", bad[j]) < 0);
            /* And without an end. */
            r = client_call(&c, named[i].op, ROOT, arg, named[i].arg, "abc", 3);
            assert_int_equal(r, -EINVAL);
            assert_int_equal(client_call(&c, named[i].op, ROOT, arg, named[i].arg, NULL, 0),
                             -EINVAL);
        }
    assert_int_equal(lstat(outside, &st), -1);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    client_fini(&c);
}

/* What comes behind the last name, or behind a NUL in it, counts for nothing. */
static void test_h19_bytes_behind_names(void **state)
{
    struct fuse_client c;
    struct stat st;
    client_init(&c, NULL);
    client_put(&c, "f", "");
    static const char hidden[] = "d\0../evil\0/evil";
    struct fuse_mkdir_in in = {.mode = 0755};
    assert_int_equal(client_call(&c, FUSE_MKDIR, ROOT, &in, sizeof(in), hidden, sizeof(hidden)), 0);
    assert_int_equal(fstatat(c.dir_fd, "d", &st, 0), 0);
    struct fuse_rename_in to = {.newdir = ROOT};
    static const char three[] = "f\0g\0../evil";
    assert_int_equal(client_call(&c, FUSE_RENAME, ROOT, &to, sizeof(to), three, sizeof(three)), 0);
    assert_int_equal(fstatat(c.dir_fd, "g", &st, 0), 0);
    assert_int_equal(fstatat(c.dir_fd, "evil", &st, 0), -1);
    assert_int_equal(fstatat(c.dir_fd, "../evil", &st, 0), -1);
    client_fini(&c);
}

static void test_h20_numbers_that_lead_nowhere(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    uint64_t node, fh;
    static const uint64_t nodes[] = {0, 2, 77, UINT32_MAX, UINT64_MAX, 1ULL << 63};
    client_init(&c, NULL);
    for (size_t i = 0; i < ARRAY_LEN(nodes); i++) {
        assert_int_equal(client_getattr(&c, nodes[i], &a), -ESTALE);
        assert_int_equal(client_lookup(&c, nodes[i], "x", NULL), -ESTALE);
        assert_int_equal(client_read(&c, ROOT, nodes[i], 0, 10), -EBADF);
        assert_int_equal(client_write(&c, ROOT, nodes[i], 0, "x", 1), -EBADF);
        assert_int_equal(client_release(&c, ROOT, nodes[i]), -EBADF);
        client_forget(&c, nodes[i], 5);
    }
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    /* More than there are, while a file is open; the root; twice. */
    client_forget(&c, node, UINT64_MAX);
    client_forget(&c, node, UINT64_MAX);
    client_forget(&c, ROOT, UINT64_MAX);
    assert_int_equal(client_write(&c, node, fh, 0, "x", 1), 1);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_getattr(&c, node, &a), -ESTALE);
    assert_int_equal(client_getattr(&c, ROOT, &a), 0);
    struct {
        struct fuse_batch_forget_in in;
        struct fuse_forget_one one[3];
    } batch = {.in.count = UINT32_MAX, .one = {{node, 1}, {UINT64_MAX, 1}, {ROOT, UINT64_MAX}}};
    assert_int_equal(client_call(&c, FUSE_BATCH_FORGET, 0, &batch, sizeof(batch), NULL, 0), 0);
    /* A directory's number is no file's, nor the other way round. */
    struct fuse_open_in in = {0};
    struct fuse_open_out out;
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    assert_int_equal(client_read(&c, ROOT, out.fh, 0, 10), -EBADF);
    assert_int_equal(client_release(&c, ROOT, out.fh), -EBADF);
    client_fini(&c);
}

/* Once closed, a number leads nowhere, also when its place is taken by another file. */
static void test_h20_released_twice(void **state)
{
    struct fuse_client c;
    struct fuse_open_in in = {0};
    struct fuse_open_out out;
    uint64_t node, fh, other;
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_release(&c, node, fh), -EBADF);
    assert_int_equal(client_open(&c, node, O_RDWR, &other), 0);
    assert_int_equal(client_write(&c, node, fh, 0, "x", 1), -EBADF);
    assert_int_equal(client_release(&c, node, fh), -EBADF);
    assert_int_equal(client_write(&c, node, other, 0, "x", 1), 1);
    assert_int_equal(client_release(&c, node, other), 0);
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    struct fuse_release_in end = {.fh = out.fh};
    assert_int_equal(client_call(&c, FUSE_RELEASEDIR, ROOT, &end, sizeof(end), NULL, 0), 0);
    assert_int_equal(client_call(&c, FUSE_RELEASEDIR, ROOT, &end, sizeof(end), NULL, 0), -EBADF);
    client_fini(&c);
}

static void test_h21_lengths(void **state)
{
    struct fuse_client c;
    struct fuse_in_header h = {.opcode = FUSE_GETATTR, .unique = 1, .nodeid = ROOT};
    uint8_t buf[4096] = {0};
    client_init(&c, NULL);
    client_put(&c, "f", "");
    for (size_t n = 0; n < sizeof(h); n++)
        assert_int_equal(client_raw(&c, buf, n, 4096), -EPROTO);
    for (uint32_t op = 0; op < 64; op++)
        for (size_t n = sizeof(h); n < sizeof(h) + 140; n++)
            for (unsigned lie = 0; lie < 2; lie++) {
                h.opcode = op;
                h.len = lie ? (uint32_t)n + 1 : (uint32_t)n;
                memcpy(buf, &h, sizeof(h));
                ssize_t r = client_raw(&c, buf, n, 4096);
                assert_true(r >= 0 && r != 1);
                if (op == FUSE_DESTROY && !lie)
                    client_hello(&c);
            }
    /* Room for nothing, and for less than the answer. */
    h.opcode = FUSE_STATFS;
    h.len = sizeof(h);
    memcpy(buf, &h, sizeof(h));
    for (size_t room = 0; room < sizeof(struct fuse_out_header); room++)
        assert_int_equal(client_raw(&c, buf, sizeof(h), room), -EPROTO);
    for (size_t room = sizeof(struct fuse_out_header); room < 90; room++) {
        ssize_t r = client_raw(&c, buf, sizeof(h), room);
        assert_int_equal(r, room < 96 ? 16 : 96);
    }
    client_fini(&c);
}

static void test_h22_offsets(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    static const uint64_t offsets[] = {UINT64_MAX, INT64_MAX, 1ULL << 63, INT64_MAX - 1};
    for (size_t i = 0; i < ARRAY_LEN(offsets); i++) {
        assert_true(client_write(&c, node, fh, offsets[i], "xyz", 3) < 0);
        assert_int_equal(client_read(&c, node, fh, offsets[i], 100), -EINVAL);
        struct fuse_fallocate_in fa = {.fh = fh, .offset = offsets[i], .length = offsets[i]};
        assert_true(client_call(&c, FUSE_FALLOCATE, node, &fa, sizeof(fa), NULL, 0) < 0);
        struct fuse_setattr_in in = {.valid = FATTR_SIZE, .size = offsets[i]};
        assert_true(client_setattr(&c, node, &in, NULL) < 0);
        struct fuse_lseek_in seek = {.fh = fh, .offset = offsets[i], .whence = SEEK_DATA};
        assert_true(client_call(&c, FUSE_LSEEK, node, &seek, sizeof(seek), NULL, 0) < 0);
    }
    /* More than there is in the request, or room for. */
    struct fuse_write_in w = {.fh = fh, .size = UINT32_MAX};
    assert_int_equal(client_call(&c, FUSE_WRITE, node, &w, sizeof(w), "abc", 3), -EINVAL);
    w.size = 1U << 31;
    assert_int_equal(client_call(&c, FUSE_WRITE, node, &w, sizeof(w), "abc", 3), -EINVAL);
    assert_int_equal(client_write(&c, node, fh, 0, "abc", 3), 3);
    assert_int_equal(client_read(&c, node, fh, 0, UINT32_MAX), 3);
    client_fini(&c);
}

static void test_h23_things_not_to_make_or_open(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    uint64_t node, fh;
    client_init(&c, NULL);
    static const uint32_t types[] = {S_IFCHR, S_IFBLK, S_IFLNK, S_IFDIR, 0170000};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct fuse_mknod_in in = {.mode = types[i] | 0666, .rdev = 0x103};
        assert_int_equal(client_name(&c, FUSE_MKNOD, ROOT, &in, sizeof(in), "x", NULL), -EPERM);
    }
    struct fuse_mknod_in fifo = {.mode = S_IFIFO | 04666};
    assert_int_equal(client_name(&c, FUSE_MKNOD, ROOT, &fifo, sizeof(fifo), "fifo", NULL), 0);
    memcpy(&e, c.rep, sizeof(e));
    assert_int_equal(client_open(&c, e.nodeid, O_RDONLY, &fh), -ENXIO);
    assert_int_equal(client_open(&c, e.nodeid, O_RDWR, &fh), -ENXIO);
    assert_int_equal(client_create(&c, ROOT, "fifo", O_RDWR, 0600, &node, &fh), -ENXIO);
    if (geteuid() == 0 && mknodat(c.dir_fd, "null", S_IFCHR | 0666, makedev(1, 3)) == 0) {
        assert_int_equal(client_lookup(&c, ROOT, "null", &e), 0);
        assert_int_equal(client_open(&c, e.nodeid, O_RDONLY, &fh), -ENXIO);
        assert_int_equal(client_create(&c, ROOT, "null", O_RDWR, 0600, &node, &fh), -ENXIO);
        struct fuse_setattr_in in = {.valid = FATTR_SIZE};
        assert_int_equal(client_setattr(&c, e.nodeid, &in, NULL), -EINVAL);
    }
    /* A link of the host's is never followed, whatever it points to. */
    assert_int_equal(symlinkat("/etc/passwd", c.dir_fd, "out"), 0);
    assert_int_equal(symlinkat("/etc", c.dir_fd, "etc"), 0);
    assert_int_equal(client_lookup(&c, ROOT, "out", &e), 0);
    assert_int_equal(client_open(&c, e.nodeid, O_RDONLY, &fh), -ELOOP);
    assert_int_equal(client_create(&c, ROOT, "out", O_RDONLY, 0600, &node, &fh), -ELOOP);
    assert_int_equal(client_lookup(&c, ROOT, "etc", &e), 0);
    assert_int_equal(client_lookup(&c, e.nodeid, "passwd", NULL), -ENOTDIR);
    assert_int_equal(client_mkdir(&c, e.nodeid, "x", 0700, NULL), -ENOTDIR);
    struct fuse_setattr_in mode = {.valid = FATTR_MODE, .mode = 0777};
    assert_int_equal(client_lookup(&c, ROOT, "out", &e), 0);
    (void)client_setattr(&c, e.nodeid, &mode, NULL);
    struct stat st;
    assert_int_equal(stat("/etc/passwd", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    client_fini(&c);
}

/* By whatever request they come, set-ID bits stay in what the guest is told. */
static void test_h23_set_id_bits(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct stat st;
    uint64_t node, fh;
    static const char *const names[] = {"made", "dir", "node", "set"};
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "made", O_RDWR, 06755, &node, &fh), 0);
    assert_int_equal(client_mkdir(&c, ROOT, "dir", 06755, &node), 0);
    struct fuse_mknod_in in = {.mode = S_IFREG | 06755};
    assert_int_equal(client_name(&c, FUSE_MKNOD, ROOT, &in, sizeof(in), "node", NULL), 0);
    client_put(&c, "set", "");
    assert_int_equal(client_lookup(&c, ROOT, "set", &e), 0);
    struct fuse_setattr_in mode = {.valid = FATTR_MODE, .mode = S_IFREG | 06755};
    assert_int_equal(client_setattr(&c, e.nodeid, &mode, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(fstatat(c.dir_fd, names[i], &st, 0), 0);
        if (st.st_mode & (S_ISUID | S_ISGID))
            fail_msg("%s has mode %o", names[i], st.st_mode);
    }
    client_fini(&c);
}

static void test_h23_attributes_of_the_system(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    static const struct {
        const char *name;
        int set, get;
    } cases[] = {{"security.capability", -EOPNOTSUPP, -EOPNOTSUPP},
                 {"trusted.overlay.opaque", -EOPNOTSUPP, -EOPNOTSUPP},
                 {"system.posix_acl_access", -EOPNOTSUPP, -EOPNOTSUPP},
                 {"user.msb.override_stat", -EPERM, -ENODATA},
                 {"user.", -EINVAL, -EINVAL},
                 {"", -EOPNOTSUPP, -EOPNOTSUPP}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fuse_setxattr_in set = {.size = 1};
        struct fuse_getxattr_in get = {.size = 100};
        assert_int_equal(client_name(&c, FUSE_SETXATTR, node, &set, 8, cases[i].name, "v"),
                         cases[i].set);
        assert_int_equal(
            client_name(&c, FUSE_GETXATTR, node, &get, sizeof(get), cases[i].name, NULL),
            cases[i].get);
        assert_int_equal(client_name(&c, FUSE_REMOVEXATTR, node, NULL, 0, cases[i].name, NULL),
                         cases[i].get);
    }
    struct fuse_setxattr_in lie = {.size = 60000};
    assert_int_equal(client_name(&c, FUSE_SETXATTR, node, &lie, 8, "user.x", "v"), -EINVAL);
    lie.size = UINT32_MAX;
    assert_int_equal(client_name(&c, FUSE_SETXATTR, node, &lie, 8, "user.x", "v"), -E2BIG);
    client_fini(&c);
}

static void test_h24_hoarding(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    uint64_t node = 0, fh, dir = ROOT;
    int r = 0;
    unsigned n = 0;
    client_init(&c, &(struct fuse_options){.inodes_max = 100, .files_max = 20, .fds_max = 16});
    client_put(&c, "f", "");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    while (n < 100 && (r = client_open(&c, e.nodeid, O_RDONLY, &fh)) == 0)
        n++;
    assert_int_equal(r, -EMFILE);
    assert_int_equal(n, 20);
    assert_int_equal(client_create(&c, ROOT, "g", O_RDWR, 0600, &node, &fh), -EMFILE);
    struct fuse_open_in in = {0};
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &in, sizeof(in), NULL, 0), -EMFILE);
    for (n = 0; n < 200 && (r = client_mkdir(&c, dir, "d", 0755, &dir)) == 0; n++)
        ;
    assert_int_equal(r, -ENFILE);
    assert_in_range(n, 90, 100);
    client_forget(&c, dir, 1); /* one goes, one fits */
    assert_int_equal(client_lookup(&c, ROOT, "none", NULL), -ENOENT);
    /* Files without a name keep their descriptors, but not without end. */
    fuse_reset(c.s);
    client_hello(&c);
    for (n = 0; n < 90; n++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "u%u", n);
        client_put(&c, name, "");
        assert_int_equal(client_lookup(&c, ROOT, name, &e), 0);
        assert_int_equal(client_name(&c, FUSE_UNLINK, ROOT, NULL, 0, name, NULL), 0);
    }
    unsigned open_fds = 0;
    for (int fd = 0; fd < 256; fd++)
        open_fds += fcntl(fd, F_GETFD) >= 0;
    assert_in_range(open_fds, 1, 40);
    client_fini(&c);
}

/* Locks are the guest's own: there is none on the host, however many it asks for. */
static void test_h24_locks(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    static const uint32_t ops[] = {FUSE_GETLK, FUSE_SETLK, FUSE_SETLKW};
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    for (uint64_t i = 0; i < 3000; i++) {
        struct fuse_lk_in in = {.fh = fh,
                                .owner = i,
                                .lk = {.start = 2 * i, .end = 2 * i, .type = F_WRLCK},
                                .lk_flags = i & 1 ? FUSE_LK_FLOCK : 0};
        assert_int_equal(client_call(&c, ops[i % ARRAY_LEN(ops)], node, &in, sizeof(in), NULL, 0),
                         -ENOSYS);
    }
    client_fini(&c);
}

/* Deeper than any path, with few descriptors: every level can be reached, and it can be removed. */
static void test_h24_deep_directories(void **state)
{
    enum { DEPTH = 4096 };
    struct fuse_client c;
    struct fuse_attr a;
    uint64_t dir = ROOT, at[DEPTH];
    client_init(&c, &(struct fuse_options){.fds_max = 16});
    for (unsigned i = 0; i < DEPTH; i++) {
        assert_int_equal(client_mkdir(&c, dir, "d", 0755, &dir), 0);
        at[i] = dir;
    }
    for (unsigned i = 0; i < DEPTH; i += 511)
        assert_int_equal(client_getattr(&c, at[i], &a), 0);
    assert_int_equal(client_getattr(&c, dir, &a), 0);
    assert_int_equal(client_lookup(&c, dir, "none", NULL), -ENOENT);
    /* A directory does not go into itself. */
    struct fuse_rename_in in = {.newdir = dir};
    assert_int_equal(client_name(&c, FUSE_RENAME, ROOT, &in, sizeof(in), "d", "x"), -EINVAL);
    client_fini(&c);
}

/* --- directories that only what is in them holds ---------------------------------------------- */

static uint64_t found(struct fuse_client *c, uint64_t dir, const char *name)
{
    struct fuse_entry_out e;
    assert_int_equal(client_lookup(c, dir, name, &e), 0);
    return e.nodeid;
}

/* P/f, or P/a and Q/b, which are one file; the guest has forgotten P. */
static uint64_t forgotten_parent(struct fuse_client *c, const char *name)
{
    assert_int_equal(mkdirat(c->dir_fd, "P", 0755), 0);
    assert_int_equal(mkdirat(c->dir_fd, "Q", 0755), 0);
    client_put(c, "P/a", "a");
    client_put(c, "P/c", "c");
    assert_int_equal(mkdirat(c->dir_fd, "P/d", 0755), 0);
    assert_int_equal(linkat(c->dir_fd, "P/a", c->dir_fd, "Q/b", 0), 0);
    uint64_t p = found(c, ROOT, "P");
    (void)found(c, p, name);
    client_forget(c, p, 1);
    return p;
}

static void test_last_name_in_a_forgotten_directory(void **state)
{
    static const uint32_t ops[] = {FUSE_UNLINK, FUSE_RMDIR};
    static const char *const names[] = {"a", "d"};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct fuse_client c;
        struct fuse_attr a;
        char path[8];
        client_init(&c, NULL);
        uint64_t p = forgotten_parent(&c, names[i]);
        assert_int_equal(client_name(&c, ops[i], p, NULL, 0, names[i], NULL), 0);
        (void)snprintf(path, sizeof(path), "P/%s", names[i]);
        assert_int_equal(faccessat(c.dir_fd, path, F_OK, 0), -1);
        assert_int_equal(client_getattr(&c, p, &a), -ESTALE); /* nothing holds it any more */
        client_fini(&c);
    }
}

static void test_renamed_over_its_other_name(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    client_init(&c, NULL);
    uint64_t p = forgotten_parent(&c, "a"), q = found(&c, ROOT, "Q");
    struct fuse_rename_in in = {.newdir = q};
    /* From the directory that only "a" holds, over what is the same file. */
    assert_int_equal(client_name(&c, FUSE_RENAME, p, &in, sizeof(in), "c", "b"), 0);
    assert_int_equal(faccessat(c.dir_fd, "P/c", F_OK, 0), -1);
    assert_int_equal(client_getattr(&c, p, &a), -ESTALE);
    client_fini(&c);
    /* The other way around: into it, over what holds it. */
    client_init(&c, NULL);
    p = forgotten_parent(&c, "a");
    q = found(&c, ROOT, "Q");
    in.newdir = p;
    client_put(&c, "Q/x", "x");
    assert_int_equal(client_name(&c, FUSE_RENAME, q, &in, sizeof(in), "x", "a"), 0);
    assert_int_equal(faccessat(c.dir_fd, "Q/x", F_OK, 0), -1);
    client_fini(&c);
}

static void test_exchanged_out_of_a_forgotten_directory(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    struct stat one, other;
    client_init(&c, NULL);
    uint64_t p = forgotten_parent(&c, "a"), q = found(&c, ROOT, "Q");
    client_put(&c, "Q/x", "x");
    assert_int_equal(fstatat(c.dir_fd, "Q/x", &one, 0), 0);
    struct fuse_rename2_in in = {.newdir = q, .flags = RENAME_EXCHANGE};
    assert_int_equal(client_name(&c, FUSE_RENAME2, p, &in, sizeof(in), "a", "x"), 0);
    assert_int_equal(fstatat(c.dir_fd, "P/a", &other, 0), 0);
    assert_int_equal(one.st_ino, other.st_ino);
    assert_int_equal(client_getattr(&c, p, &a), -ESTALE);
    client_fini(&c);
}

/* --- the host at work at the same time ------------------------------------------------------- */

struct swapper {
    const struct fuse_client *c;
    atomic_bool stop;
};

/* A directory, and a file, become links that lead out, and back, as fast as it goes. */
static void *swap(void *arg)
{
    struct swapper *s = arg;
    int dir = s->c->dir_fd;
    while (!s->stop) {
        (void)renameat2(dir, "d", dir, "d-link", RENAME_EXCHANGE);
        (void)renameat2(dir, "f", dir, "f-link", RENAME_EXCHANGE);
    }
    return NULL;
}

static void test_h25_links_put_in_its_way(void **state)
{
    struct fuse_client c;
    char outside[96], path[128], buf[64];
    pthread_t thread;
    client_init(&c, &(struct fuse_options){.fds_max = 16, .cache = FUSE_CACHE_NONE});
    (void)snprintf(outside, sizeof(outside), "%s-outside", c.dir);
    assert_int_equal(mkdir(outside, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/secret", outside);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, "SECRET", 6) == 6);
    assert_int_equal(mkdirat(c.dir_fd, "d", 0755), 0);
    client_put(&c, "d/secret", "inside");
    client_put(&c, "f", "inside");
    assert_int_equal(symlinkat(outside, c.dir_fd, "d-link"), 0);
    assert_int_equal(symlinkat(path, c.dir_fd, "f-link"), 0);
    struct swapper s = {.c = &c};
    c.room = 1024;
    assert_int_equal(pthread_create(&thread, NULL, swap, &s), 0);
    unsigned read_inside = 0;
    for (int i = 0; i < 5000; i++) {
        struct fuse_entry_out e, x;
        uint64_t node, fh;
        const char *name = i & 1 ? "d" : "f";
        if (client_lookup(&c, ROOT, name, &e) < 0)
            continue;
        uint64_t target = e.nodeid;
        if (i & 1) {
            if (client_lookup(&c, e.nodeid, "secret", &x) == 0)
                target = x.nodeid;
            else
                target = 0;
            if (client_create(&c, e.nodeid, "new", O_RDWR, 0644, &node, &fh) == 0)
                (void)client_release(&c, node, fh);
        }
        if (target && client_open(&c, target, O_RDWR, &fh) == 0) {
            int n = client_read(&c, target, fh, 0, sizeof(buf));
            assert_int_equal(n, 6);
            assert_memory_equal(c.rep, "inside", 6);
            read_inside++;
            (void)client_release(&c, target, fh);
        }
        client_forget(&c, e.nodeid, 1);
    }
    s.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(read_inside > 0);
    assert_int_equal(pread(fd, buf, sizeof(buf), 0), 6);
    assert_memory_equal(buf, "SECRET", 6);
    (void)snprintf(path, sizeof(path), "%s/new", outside);
    assert_int_equal(access(path, F_OK), -1);
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/secret", outside);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(outside), 0);
    client_fini(&c);
}

/* --- read-only ------------------------------------------------------------------------------- */

static void test_h26_read_only(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    uint64_t fh, arg[20] = {0};
    struct stat before, after;
    client_init(&c, &(struct fuse_options){.read_only = true});
    client_put(&c, "f", "text");
    assert_int_equal(fstatat(c.dir_fd, "f", &before, 0), 0);
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    static const uint32_t ops[] = {
        FUSE_SETATTR, FUSE_SYMLINK, FUSE_MKNOD,     FUSE_MKDIR,
        FUSE_UNLINK,  FUSE_RMDIR,   FUSE_RENAME,    FUSE_RENAME2,
        FUSE_LINK,    FUSE_WRITE,   FUSE_SETXATTR,  FUSE_REMOVEXATTR,
        FUSE_CREATE,  FUSE_TMPFILE, FUSE_FALLOCATE, FUSE_COPY_FILE_RANGE};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        assert_int_equal(client_call(&c, ops[i], ROOT, arg, sizeof(arg), "f\0g", 4), -EROFS);
    static const uint32_t flags[] = {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_APPEND, 3};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        assert_int_equal(client_open(&c, e.nodeid, flags[i], &fh), -EROFS);
    assert_int_equal(client_open(&c, e.nodeid, O_RDONLY, &fh), 0);
    assert_int_equal(client_read(&c, e.nodeid, fh, 0, 10), 4);
    assert_int_equal(client_write(&c, e.nodeid, fh, 0, "x", 1), -EROFS);
    assert_int_equal(fstatat(c.dir_fd, "f", &after, 0), 0);
    assert_memory_equal(&before.st_ctim, &after.st_ctim, sizeof(before.st_ctim));
    client_fini(&c);
    /* A descriptor that was opened for reading does not write on a share that may be written. */
    client_init(&c, NULL);
    client_put(&c, "f", "text");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(client_open(&c, e.nodeid, O_RDONLY, &fh), 0);
    assert_int_equal(client_write(&c, e.nodeid, fh, 0, "x", 1), -EBADF);
    client_fini(&c);
}

static void test_nothing_before_init(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    client_init(&c, NULL);
    fuse_reset(c.s);
    assert_int_equal(client_getattr(&c, ROOT, &a), -EPROTO);
    assert_int_equal(client_mkdir(&c, ROOT, "x", 0755, NULL), -EPROTO);
    struct fuse_init_in in = {.major = 6, .minor = 1};
    assert_int_equal(client_call(&c, FUSE_INIT, 0, &in, sizeof(in), NULL, 0), -EPROTO);
    in = (struct fuse_init_in){.major = 8, .minor = 1};
    assert_int_equal(client_call(&c, FUSE_INIT, 0, &in, sizeof(in), NULL, 0), 0);
    assert_int_equal(client_getattr(&c, ROOT, &a), -EPROTO);
    client_hello(&c);
    assert_int_equal(client_getattr(&c, ROOT, &a), 0);
    client_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h19_names),
        cmocka_unit_test(test_h19_bytes_behind_names),
        cmocka_unit_test(test_h20_numbers_that_lead_nowhere),
        cmocka_unit_test(test_h20_released_twice),
        cmocka_unit_test(test_h21_lengths),
        cmocka_unit_test(test_h22_offsets),
        cmocka_unit_test(test_h23_things_not_to_make_or_open),
        cmocka_unit_test(test_h23_set_id_bits),
        cmocka_unit_test(test_h23_attributes_of_the_system),
        cmocka_unit_test(test_h24_hoarding),
        cmocka_unit_test(test_h24_locks),
        cmocka_unit_test(test_h24_deep_directories),
        cmocka_unit_test(test_h25_links_put_in_its_way),
        cmocka_unit_test(test_h26_read_only),
        cmocka_unit_test(test_last_name_in_a_forgotten_directory),
        cmocka_unit_test(test_renamed_over_its_other_name),
        cmocka_unit_test(test_exchanged_out_of_a_forgotten_directory),
        cmocka_unit_test(test_nothing_before_init),
    };
    return cmocka_run_group_tests_name("fs_hostile", tests, NULL, NULL);
}
