/* The FUSE server, by raw requests, on a real directory. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "fuse_client.h"
#include "unit.h"
#include "util/cleanup.h"

enum { ROOT = FUSE_ROOT_ID };

static bool has_xattrs(const struct fuse_client *c)
{
    bool ok = fsetxattr(c->dir_fd, "user.test", "1", 1, 0) == 0;
    (void)fremovexattr(c->dir_fd, "user.test");
    return ok;
}

/* --- contents -------------------------------------------------------------------------------- */

static void test_data_goes_both_ways(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    char big[200000];
    struct stat st;
    client_init(&c, NULL);
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (char)(i * 7);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0640, &node, &fh), 0);
    assert_int_equal(client_write(&c, node, fh, 0, "hello world", 11), 11);
    assert_int_equal(client_read(&c, node, fh, 6, 100), 5);
    assert_memory_equal(c.rep, "world", 5);
    assert_int_equal(client_write(&c, node, fh, 1ULL << 33, big, sizeof(big)), sizeof(big));
    assert_int_equal(client_read(&c, node, fh, 1ULL << 33, sizeof(big)), sizeof(big));
    assert_memory_equal(c.rep, big, sizeof(big));
    assert_int_equal(client_read(&c, node, fh, 1ULL << 40, 10), 0);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_release(&c, node, fh), -EBADF);
    assert_int_equal(client_read(&c, node, fh, 0, 10), -EBADF);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_true(st.st_size == (1LL << 33) + (off_t)sizeof(big));
    client_fini(&c);
}

static void test_append_truncate_seek(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    struct fuse_attr a;
    client_init(&c, NULL);
    client_put(&c, "log", "one\n");
    assert_int_equal(client_lookup(&c, ROOT, "log", NULL), 0);
    assert_int_equal(client_create(&c, ROOT, "log", O_WRONLY | O_APPEND, 0600, &node, &fh), 0);
    client_put(&c, "log", "host wrote this\n"); /* meanwhile */
    assert_int_equal(client_write(&c, node, fh, 4, "two\n", 4), 4);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.size, 20); /* at the end that there is, not the one that the guest knew */
    struct fuse_setattr_in in = {.valid = FATTR_SIZE, .size = 1 << 20};
    assert_int_equal(client_setattr(&c, node, &in, &a), 0);
    assert_int_equal(a.size, 1 << 20);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_open(&c, node, O_RDWR, &fh), 0);
    struct fuse_lseek_in seek = {.fh = fh, .offset = 0, .whence = SEEK_HOLE};
    struct fuse_lseek_out at;
    assert_int_equal(client_call(&c, FUSE_LSEEK, node, &seek, sizeof(seek), NULL, 0), 0);
    memcpy(&at, c.rep, sizeof(at));
    assert_in_range(at.offset, 20, 65536);
    seek.whence = SEEK_SET;
    assert_int_equal(client_call(&c, FUSE_LSEEK, node, &seek, sizeof(seek), NULL, 0), -EINVAL);
    struct fuse_fallocate_in fa = {.fh = fh, .offset = 2 << 20, .length = 4096};
    assert_int_equal(client_call(&c, FUSE_FALLOCATE, node, &fa, sizeof(fa), NULL, 0), 0);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.size, (2 << 20) + 4096);
    struct fuse_fsync_in sync = {.fh = fh};
    assert_int_equal(client_call(&c, FUSE_FSYNC, node, &sync, sizeof(sync), NULL, 0), 0);
    client_fini(&c);
}

static void test_copies(void **state)
{
    struct fuse_client c;
    uint64_t from, to, fh_from, fh_to;
    struct fuse_write_out out;
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "a", O_RDWR, 0600, &from, &fh_from), 0);
    assert_int_equal(client_create(&c, ROOT, "b", O_RDWR, 0600, &to, &fh_to), 0);
    assert_int_equal(client_write(&c, from, fh_from, 0, "0123456789", 10), 10);
    struct fuse_copy_file_range_in in = {.fh_in = fh_from,
                                         .off_in = 2,
                                         .nodeid_out = to,
                                         .fh_out = fh_to,
                                         .off_out = 1,
                                         .len = 1ULL << 62};
    assert_int_equal(client_call(&c, FUSE_COPY_FILE_RANGE, from, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    assert_int_equal(out.size, 8);
    assert_int_equal(client_read(&c, to, fh_to, 0, 20), 9);
    assert_memory_equal(c.rep, "\00023456789", 9);
    client_fini(&c);
}

static void test_tmpfile_and_its_name(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_open_out o;
    struct fuse_create_in in = {.flags = O_RDWR, .mode = 0644};
    client_init(&c, NULL);
    int r = client_name(&c, FUSE_TMPFILE, ROOT, &in, sizeof(in), "/", NULL);
    if (r == -EOPNOTSUPP) {
        client_fini(&c);
        skip();
    }
    assert_int_equal(r, 0);
    memcpy(&e, c.rep, sizeof(e));
    memcpy(&o, c.rep + sizeof(e), sizeof(o));
    assert_int_equal(client_write(&c, e.nodeid, o.fh, 0, "x", 1), 1);
    struct fuse_link_in link = {.oldnodeid = e.nodeid};
    assert_int_equal(client_name(&c, FUSE_LINK, ROOT, &link, sizeof(link), "named", NULL), 0);
    assert_int_equal(client_release(&c, e.nodeid, o.fh), 0);
    struct fuse_entry_out again;
    assert_int_equal(client_lookup(&c, ROOT, "named", &again), 0);
    assert_int_equal(again.nodeid, e.nodeid);
    assert_int_equal(again.attr.size, 1);
    client_fini(&c);
}

/* --- names ----------------------------------------------------------------------------------- */

static void test_rename_with_all_flags(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out a, b, e;
    uint64_t dir;
    client_init(&c, NULL);
    client_put(&c, "a", "A");
    client_put(&c, "b", "BB");
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &dir), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &a), 0);
    assert_int_equal(client_lookup(&c, ROOT, "b", &b), 0);
    struct fuse_rename2_in in = {.newdir = ROOT, .flags = RENAME_NOREPLACE};
    assert_int_equal(client_name(&c, FUSE_RENAME2, ROOT, &in, sizeof(in), "a", "b"), -EEXIST);
    in.flags = RENAME_EXCHANGE;
    assert_int_equal(client_name(&c, FUSE_RENAME2, ROOT, &in, sizeof(in), "a", "b"), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &e), 0);
    assert_int_equal(e.nodeid, b.nodeid);
    in.flags = RENAME_WHITEOUT; /* would be a device node */
    assert_int_equal(client_name(&c, FUSE_RENAME2, ROOT, &in, sizeof(in), "a", "c"), -EINVAL);
    struct fuse_rename_in plain = {.newdir = dir};
    assert_int_equal(client_name(&c, FUSE_RENAME, ROOT, &plain, sizeof(plain), "a", "moved"), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", NULL), -ENOENT);
    assert_int_equal(client_lookup(&c, dir, "moved", &e), 0);
    assert_int_equal(e.nodeid, b.nodeid);
    plain.newdir = 999;
    assert_int_equal(client_name(&c, FUSE_RENAME, ROOT, &plain, sizeof(plain), "b", "x"), -ESTALE);
    client_fini(&c);
}

static void test_links(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out f, l;
    client_init(&c, NULL);
    client_put(&c, "f", "text");
    assert_int_equal(client_lookup(&c, ROOT, "f", &f), 0);
    struct fuse_link_in in = {.oldnodeid = f.nodeid};
    assert_int_equal(client_name(&c, FUSE_LINK, ROOT, &in, sizeof(in), "g", NULL), 0);
    memcpy(&l, c.rep, sizeof(l));
    assert_int_equal(l.nodeid, f.nodeid);
    assert_int_equal(l.attr.nlink, 2);
    assert_int_equal(client_name(&c, FUSE_SYMLINK, ROOT, NULL, 0, "s", "/etc/passwd"), 0);
    memcpy(&l, c.rep, sizeof(l));
    assert_int_equal(client_call(&c, FUSE_READLINK, l.nodeid, NULL, 0, NULL, 0), 0);
    assert_int_equal(c.rep_len, 11);
    assert_memory_equal(c.rep, "/etc/passwd", 11);
    /* A symbolic link can have a second name, too. */
    in.oldnodeid = l.nodeid;
    assert_int_equal(client_name(&c, FUSE_LINK, ROOT, &in, sizeof(in), "s2", NULL), 0);
    char target[32] = {0};
    assert_int_equal(readlinkat(c.dir_fd, "s2", target, sizeof(target)), 11);
    in.oldnodeid = ROOT;
    assert_int_equal(client_name(&c, FUSE_LINK, ROOT, &in, sizeof(in), "dir", NULL), -EPERM);
    client_fini(&c);
}

static void test_unlinked_files_live_on(void **state)
{
    struct fuse_client c;
    uint64_t node, fh, again;
    struct fuse_attr a;
    client_init(&c, NULL);
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    assert_int_equal(client_name(&c, FUSE_UNLINK, ROOT, NULL, 0, "f", NULL), 0);
    assert_int_equal(client_write(&c, node, fh, 0, "still", 5), 5);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.size, 5);
    assert_int_equal(a.nlink, 0);
    assert_int_equal(client_open(&c, node, O_RDONLY, &again), 0);
    assert_int_equal(client_read(&c, node, again, 0, 5), 5);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_release(&c, node, again), 0);
    client_forget(&c, node, 1);
    assert_int_equal(client_getattr(&c, node, &a), -ESTALE);
    client_fini(&c);
}

/* --- owners ---------------------------------------------------------------------------------- */

static void test_owners_are_the_guests(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    struct stat st;
    client_init(&c, &(struct fuse_options){.uid = 7, .gid = 8});
    client_put(&c, "f", "");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(e.attr.uid, 7); /* what is ours on the host is theirs */
    assert_int_equal(e.attr.gid, 8);
    struct fuse_setattr_in in = {
        .valid = FATTR_UID | FATTR_GID | FATTR_MODE, .uid = 1000, .gid = 100, .mode = 04755};
    assert_int_equal(client_setattr(&c, e.nodeid, &in, &a), 0);
    assert_int_equal(a.uid, 1000);
    assert_int_equal(a.gid, 100);
    assert_int_equal(a.mode, S_IFREG | 04755);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    assert_int_equal(st.st_uid, geteuid()); /* and on the host nothing has changed hands */
    assert_int_equal(st.st_mode & 07000, 0);
    fuse_reset(c.s); /* a new boot sees the same */
    client_hello(&c);
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(e.attr.uid, 1000);
    assert_int_equal(e.attr.mode, S_IFREG | 04755);
    /* A write by an unprivileged user clears the set-ID bit. */
    uint64_t fh;
    assert_int_equal(client_open(&c, e.nodeid, O_WRONLY, &fh), 0);
    struct fuse_write_in w = {.fh = fh, .size = 1, .write_flags = FUSE_WRITE_KILL_SUIDGID};
    assert_int_equal(client_call(&c, FUSE_WRITE, e.nodeid, &w, sizeof(w), "x", 1), 0);
    assert_int_equal(client_getattr(&c, e.nodeid, &a), 0);
    assert_int_equal(a.mode, S_IFREG | 0755);
    /* Back to what the host says: nothing is kept. */
    in = (struct fuse_setattr_in){.valid = FATTR_UID | FATTR_GID, .uid = 7, .gid = 8};
    assert_int_equal(client_setattr(&c, e.nodeid, &in, &a), 0);
    if (has_xattrs(&c)) {
        char path[100], value[64];
        (void)snprintf(path, sizeof(path), "%s/f", c.dir);
        assert_int_equal(getxattr(path, "user.msb.override_stat", value, sizeof(value)), -1);
    }
    client_fini(&c);
}

/* As root, and if asked for: the host's files have the owners and bits that the guest gives them. */
static void test_real_owners(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    struct stat st;
    if (geteuid() != 0)
        skip();
    client_init(&c, &(struct fuse_options){.uid = 7, .gid = 8, .real_owners = true});
    client_put(&c, "f", "");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(e.attr.uid, 0); /* not the 7 that others would see */
    struct fuse_setattr_in in = {
        .valid = FATTR_UID | FATTR_GID | FATTR_MODE, .uid = 1000, .gid = 100, .mode = 04755};
    assert_int_equal(client_setattr(&c, e.nodeid, &in, &a), 0);
    assert_int_equal(a.uid, 1000);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(st.st_gid, 100);
    assert_int_equal(st.st_mode & 07777, 04755);
    in = (struct fuse_setattr_in){.valid = FATTR_UID, .uid = 5}; /* takes the bit away */
    assert_int_equal(client_setattr(&c, e.nodeid, &in, &a), 0);
    assert_int_equal(a.mode, S_IFREG | 0755);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    /* What a user of the guest makes is that user's, links included. */
    c.uid = c.gid = 1234;
    assert_int_equal(client_call(&c, FUSE_SYMLINK, ROOT, "l\0f", 4, NULL, 0), 0);
    assert_int_equal(fstatat(c.dir_fd, "l", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_uid, 1234);
    assert_int_equal(fstatat(c.dir_fd, "f", &st, 0), 0);
    assert_int_equal(st.st_uid, 5);
    /* A leftover override is ignored. */
    char path[100];
    (void)snprintf(path, sizeof(path), "%s/f", c.dir);
    (void)setxattr(path, "user.msb.override_stat", "9:9:777", 7, 0);
    fuse_reset(c.s);
    client_hello(&c);
    c.uid = c.gid = 0;
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(e.attr.uid, 5);
    client_fini(&c);
}

/* What another sandbox, or the host, changes is seen although owners are remembered. */
static void test_owners_change_behind_our_back(void **state)
{
    static const struct timespec pause = {.tv_nsec = 120000000};
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    char path[100], text[32];
    client_init(&c, NULL);
    if (!has_xattrs(&c)) {
        client_fini(&c);
        skip();
    }
    client_put(&c, "f", "");
    (void)snprintf(path, sizeof(path), "%s/f", c.dir);
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    for (unsigned i = 1; i <= 3; i++) {
        /* Longer than anything is remembered without looking at the file; then its ctime is old
         * enough to be trusted, and is looked at. */
        (void)nanosleep(&pause, NULL);
        assert_int_equal(client_getattr(&c, e.nodeid, &a), 0);
        assert_int_equal(client_getattr(&c, e.nodeid, &a), 0);
        int n = snprintf(text, sizeof(text), "%u:%u:640", 1000 + i, 2000 + i);
        assert_int_equal(setxattr(path, "user.msb.override_stat", text, (size_t)n, 0), 0);
        assert_int_equal(client_getattr(&c, e.nodeid, &a), 0);
        assert_int_equal(a.uid, 1000 + i);
        assert_int_equal(a.gid, 2000 + i);
        assert_int_equal(a.mode, S_IFREG | 0640);
    }
    /* Our own changes at once, of directories too: a new file gets the group. */
    uint64_t dir, node, fh;
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &dir), 0);
    struct fuse_setattr_in in = {.valid = FATTR_GID | FATTR_MODE, .gid = 77, .mode = 02775};
    assert_int_equal(client_setattr(&c, dir, &in, NULL), 0);
    assert_int_equal(client_create(&c, dir, "g", O_WRONLY, 0644, &node, &fh), 0);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.gid, 77);
    in = (struct fuse_setattr_in){.valid = FATTR_GID | FATTR_MODE, .gid = 78, .mode = 0755};
    assert_int_equal(client_setattr(&c, dir, &in, NULL), 0);
    assert_int_equal(client_create(&c, dir, "h", O_WRONLY, 0644, &node, &fh), 0);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.gid, c.gid);
    client_fini(&c);
}

static void test_new_files_belong_to_their_maker(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    uint64_t dir, node, fh;
    client_init(&c, NULL);
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &dir), 0);
    struct fuse_setattr_in in = {
        .valid = FATTR_GID | FATTR_MODE, .gid = 50, .mode = S_ISGID | 0775};
    assert_int_equal(client_setattr(&c, dir, &in, &a), 0);
    assert_int_equal(a.mode, S_IFDIR | 02775);
    c.uid = c.gid = 1000;
    assert_int_equal(client_create(&c, dir, "f", O_RDWR, 0444, &node, &fh), 0);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.uid, 1000);
    assert_int_equal(a.gid, 50);
    assert_int_equal(a.mode, S_IFREG | 0444);
    assert_int_equal(client_mkdir(&c, dir, "sub", 0700, &node), 0);
    assert_int_equal(client_getattr(&c, node, &a), 0);
    assert_int_equal(a.mode, S_IFDIR | 02700);
    /* Symbolic links have no attributes: theirs is kept in memory, and dropped with them. */
    assert_int_equal(client_name(&c, FUSE_SYMLINK, dir, NULL, 0, "s", "f"), 0);
    assert_int_equal(client_lookup(&c, dir, "s", &e), 0);
    assert_int_equal(e.attr.uid, 1000);
    assert_int_equal(client_name(&c, FUSE_UNLINK, dir, NULL, 0, "s", NULL), 0);
    client_fini(&c);
}

/* --- extended attributes --------------------------------------------------------------------- */

static void test_extended_attributes(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    client_init(&c, NULL);
    if (!has_xattrs(&c)) {
        client_fini(&c);
        skip();
    }
    client_put(&c, "f", "");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    struct fuse_setxattr_in set = {.size = 5};
    static const char good[] = "user.mark\0value";
    assert_int_equal(client_call(&c, FUSE_SETXATTR, e.nodeid, &set, 8, good, 15), 0);
    struct fuse_getxattr_in get = {.size = 100};
    assert_int_equal(client_name(&c, FUSE_GETXATTR, e.nodeid, &get, sizeof(get), "user.mark", NULL),
                     0);
    assert_int_equal(c.rep_len, 5);
    assert_memory_equal(c.rep, "value", 5);
    get.size = 2;
    assert_int_equal(client_name(&c, FUSE_GETXATTR, e.nodeid, &get, sizeof(get), "user.mark", NULL),
                     -ERANGE);
    struct fuse_setattr_in own = {.valid = FATTR_UID, .uid = 1};
    assert_int_equal(client_setattr(&c, e.nodeid, &own, NULL), 0);
    get.size = 100; /* what we keep there ourselves is not to be seen */
    assert_int_equal(client_call(&c, FUSE_LISTXATTR, e.nodeid, &get, sizeof(get), NULL, 0), 0);
    assert_int_equal(c.rep_len, 10);
    assert_memory_equal(c.rep, "user.mark", 10);
    assert_int_equal(client_name(&c, FUSE_REMOVEXATTR, e.nodeid, NULL, 0, "user.mark", NULL), 0);
    assert_int_equal(client_name(&c, FUSE_REMOVEXATTR, e.nodeid, NULL, 0, "user.mark", NULL),
                     -ENODATA);
    client_fini(&c);
}

/* --- one file -------------------------------------------------------------------------------- */

static void test_a_single_file(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_attr a;
    uint64_t fh, node;
    client_init(&c, &(struct fuse_options){.file = "one"});
    client_put(&c, "other", "hidden");
    assert_int_equal(client_getattr(&c, ROOT, &a), 0);
    assert_true(S_ISDIR(a.mode));
    assert_int_equal(client_lookup(&c, ROOT, "other", NULL), -ENOENT);
    assert_int_equal(client_lookup(&c, ROOT, "one", &e), 0);
    assert_true(e.entry_valid_nsec > 0 && e.attr_valid + e.attr_valid_nsec == 0);
    assert_int_equal(client_open(&c, e.nodeid, O_RDWR, &fh), 0);
    assert_int_equal(client_read(&c, e.nodeid, fh, 0, 100), 7);
    assert_int_equal(client_write(&c, e.nodeid, fh, 0, "C", 1), 1);
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIR, false), 1);
    assert_int_equal(client_count_entries(&c, ROOT, FUSE_READDIRPLUS, false), 1);
    assert_int_equal(client_create(&c, ROOT, "new", O_RDWR, 0600, &node, &fh), -EROFS);
    assert_int_equal(client_mkdir(&c, ROOT, "new", 0700, NULL), -EROFS);
    assert_int_equal(client_name(&c, FUSE_UNLINK, ROOT, NULL, 0, "one", NULL), -EROFS);
    struct fuse_rename_in in = {.newdir = ROOT};
    assert_int_equal(client_name(&c, FUSE_RENAME, ROOT, &in, sizeof(in), "one", "two"), -EROFS);
    client_fini(&c);
}

/* --- limits ---------------------------------------------------------------------------------- */

static void test_descriptors_are_found_again(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e[200], d;
    struct fuse_attr a;
    uint64_t dir = ROOT, fh;
    client_init(&c, &(struct fuse_options){.fds_max = 16});
    for (int depth = 0; depth < 40; depth++)
        assert_int_equal(client_mkdir(&c, dir, "deep", 0755, &dir), 0);
    for (int i = 0; i < 200; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "f%d", i);
        client_put(&c, name, name);
        assert_int_equal(client_lookup(&c, ROOT, name, &e[i]), 0);
        assert_int_equal(client_getattr(&c, e[i].nodeid, &a), 0);
    }
    for (int i = 0; i < 200; i++) {
        assert_int_equal(client_open(&c, e[i].nodeid, O_RDONLY, &fh), 0);
        assert_int_equal(client_read(&c, e[i].nodeid, fh, 0, 10), i < 10 ? 2 : i < 100 ? 3 : 4);
        assert_int_equal(client_release(&c, e[i].nodeid, fh), 0);
    }
    assert_int_equal(client_mkdir(&c, dir, "deeper", 0755, &dir), 0);
    assert_int_equal(client_lookup(&c, dir, "none", &d), -ENOENT);
    /* Moved by the host: the guest is told to look again, and finds it. */
    assert_int_equal(renameat(c.dir_fd, "f3", c.dir_fd, "g3"), 0);
    client_put(&c, "f3", "another");
    assert_int_equal(client_open(&c, e[3].nodeid, O_RDONLY, &fh), -ESTALE);
    assert_int_equal(client_lookup(&c, ROOT, "g3", &d), 0);
    assert_int_equal(d.nodeid, e[3].nodeid);
    assert_int_equal(client_open(&c, e[3].nodeid, O_RDONLY, &fh), 0);
    client_fini(&c);
}

static void test_the_host_may_turn_directories_around(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out a, b;
    struct fuse_attr attr;
    client_init(&c, &(struct fuse_options){.fds_max = 16});
    assert_int_equal(mkdirat(c.dir_fd, "a", 0755), 0);
    assert_int_equal(mkdirat(c.dir_fd, "a/b", 0755), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &a), 0);
    assert_int_equal(client_lookup(&c, a.nodeid, "b", &b), 0);
    assert_int_equal(client_getattr(&c, b.nodeid, &attr), 0);
    assert_int_equal(renameat(c.dir_fd, "a/b", c.dir_fd, "b"), 0);
    assert_int_equal(renameat(c.dir_fd, "a", c.dir_fd, "b/a"), 0);
    assert_int_equal(client_lookup(&c, b.nodeid, "a", &a), 0); /* each is now above the other */
    assert_int_equal(client_getattr(&c, a.nodeid, &attr), 0);
    client_forget(&c, a.nodeid, 2);
    client_forget(&c, b.nodeid, 1);
    assert_int_equal(client_getattr(&c, a.nodeid, &attr), -ESTALE);
    assert_int_equal(client_getattr(&c, b.nodeid, &attr), -ESTALE);
    client_fini(&c);
}

static void test_quota(void **state)
{
    struct fuse_client c;
    uint64_t node, fh;
    struct fuse_statfs_out st;
    AUTO_FREE char *mib = calloc(1, 1 << 20);
    client_init(&c, &(struct fuse_options){.quota = 8 << 20});
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    int r = 0;
    unsigned n = 0;
    while (n < 20 && (r = client_write(&c, node, fh, (uint64_t)n << 20, mib, 1 << 20)) == 1 << 20)
        n++;
    assert_int_equal(r, -EDQUOT);
    assert_in_range(n, 7, 8);
    assert_int_equal(client_write(&c, node, fh, 0, "over", 4), 4); /* what is there may change */
    assert_int_equal(client_call(&c, FUSE_STATFS, ROOT, NULL, 0, NULL, 0), 0);
    memcpy(&st, c.rep, sizeof(st));
    assert_int_equal(st.st.blocks * st.st.frsize, 8 << 20);
    struct fuse_fallocate_in fa = {.fh = fh, .offset = 1ULL << 32, .length = 4 << 20};
    assert_int_equal(client_call(&c, FUSE_FALLOCATE, node, &fa, sizeof(fa), NULL, 0), -EDQUOT);
    /* Away, but still open: it counts until it is closed. */
    assert_int_equal(client_name(&c, FUSE_UNLINK, ROOT, NULL, 0, "f", NULL), 0);
    uint64_t node2, fh2;
    if (client_create(&c, ROOT, "g", O_RDWR, 0600, &node2, &fh2) == 0)
        assert_int_equal(client_write(&c, node2, fh2, 0, mib, 1 << 20), -EDQUOT);
    assert_int_equal(client_release(&c, node, fh), 0);
    assert_int_equal(client_create(&c, ROOT, "g", O_RDWR, 0600, &node2, &fh2), 0);
    assert_int_equal(client_write(&c, node2, fh2, 0, mib, 1 << 20), 1 << 20);
    client_fini(&c);
}

static uint64_t bytes_left(struct fuse_client *c)
{
    struct fuse_statfs_out st;
    assert_int_equal(client_call(c, FUSE_STATFS, ROOT, NULL, 0, NULL, 0), 0);
    memcpy(&st, c->rep, sizeof(st));
    return st.st.bavail * st.st.frsize;
}

/* However a file is emptied, its room is free again. */
static void test_quota_and_truncation(void **state)
{
    static const char data[1 << 20] = {1};
    struct fuse_client c;
    struct fuse_attr a;
    uint64_t node, fh;
    client_init(&c, &(struct fuse_options){.quota = 8 << 20});
    assert_int_equal(client_create(&c, ROOT, "f", O_RDWR, 0600, &node, &fh), 0);
    uint64_t empty = bytes_left(&c);
    for (int i = 0; i < 3; i++) {
        uint64_t other, same;
        assert_int_equal(client_write(&c, node, fh, 0, data, sizeof(data)), sizeof(data));
        assert_true(bytes_left(&c) < empty);
        if (i < 2)
            assert_int_equal(client_open(&c, node, (i ? O_RDWR : O_RDONLY) | O_TRUNC, &other), 0);
        else
            assert_int_equal(client_create(&c, ROOT, "f", O_WRONLY | O_TRUNC, 0600, &same, &other),
                             0);
        assert_int_equal(client_getattr(&c, node, &a), 0);
        assert_int_equal(a.size, 0);
        assert_true(bytes_left(&c) == empty);
    }
    client_fini(&c);
}

/* What is there at the start counts, however deep a guest has put it. */
static void test_quota_reaches_everything(void **state)
{
    enum { DEPTH = 700, BYTES = 16384 };
    static const char data[BYTES] = {1};
    struct fuse_client c;
    struct fuse_statfs_out st;
    uint64_t dir = ROOT, node, fh;
    client_init(&c, NULL);
    for (unsigned i = 0; i < DEPTH; i++) {
        assert_int_equal(client_mkdir(&c, dir, "d", 0755, &node), 0);
        for (const char *name = "a"; name; name = *name == 'a' ? "z" : NULL) {
            uint64_t file;
            assert_int_equal(client_create(&c, dir, name, O_RDWR, 0600, &file, &fh), 0);
            assert_int_equal(client_write(&c, file, fh, 0, data, BYTES), BYTES);
            assert_int_equal(client_release(&c, file, fh), 0);
        }
        dir = node;
    }
    fuse_free(c.s);
    struct fuse_options o = {.root_fd = fcntl(c.dir_fd, F_DUPFD_CLOEXEC, 0), .quota = 1 << 30};
    assert_int_equal(fuse_new(&c.s, &o), 0);
    client_hello(&c);
    assert_int_equal(client_call(&c, FUSE_STATFS, ROOT, NULL, 0, NULL, 0), 0);
    memcpy(&st, c.rep, sizeof(st));
    uint64_t used = (st.st.blocks - st.st.bfree) * st.st.frsize;
    assert_in_range(used, 2 * DEPTH * BYTES, 2 * DEPTH * BYTES + DEPTH * 8192);
    client_fini(&c);
}

/* The guest keeps its pages only for files that were not changed. */
static void test_caches(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    struct fuse_open_in in = {.flags = O_RDONLY};
    struct fuse_open_out out;
    client_init(&c, NULL);
    client_put(&c, "f", "one");
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(c.dir_fd, "f", old, 0), 0);
    (void)usleep(80000); /* older than a tick of the clock */
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    bool keeps[3];
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            client_put(&c, "f", "two");
        assert_int_equal(client_call(&c, FUSE_OPEN, e.nodeid, &in, sizeof(in), NULL, 0), 0);
        memcpy(&out, c.rep, sizeof(out));
        keeps[i] = out.open_flags & FOPEN_KEEP_CACHE;
    }
    assert_false(keeps[0]);
    assert_true(keeps[1]);
    assert_false(keeps[2]);
    client_fini(&c);
    client_init(&c, &(struct fuse_options){.cache = FUSE_CACHE_NONE});
    client_put(&c, "f", "one");
    assert_int_equal(client_lookup(&c, ROOT, "f", &e), 0);
    assert_int_equal(e.attr_valid + e.attr_valid_nsec + e.entry_valid + e.entry_valid_nsec, 0);
    assert_int_equal(client_call(&c, FUSE_OPEN, e.nodeid, &in, sizeof(in), NULL, 0), 0);
    memcpy(&out, c.rep, sizeof(out));
    assert_true(out.open_flags & FOPEN_DIRECT_IO);
    client_fini(&c);
}

static void add_tree(struct fuse_client *c, const char *name, int expected)
{
    int fd = openat(c->dir_fd, name, O_PATH | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fuse_tree_add(c->s, name, fd), expected);
}

static void bring(void *ctx)
{
    struct fuse_client *c = ctx;
    int fd = openat(c->dir_fd, "b", O_PATH | O_CLOEXEC);
    (void)fuse_tree_add(c->s, "late", fd);
}

static void test_several_trees(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out a, b, e;
    struct fuse_open_out o;
    struct fuse_open_in open_in = {0};
    uint64_t node, fh;
    client_init(&c, &(struct fuse_options){.many = true, .more = bring, .ctx = &c});
    assert_int_equal(mkdirat(c.dir_fd, "a", 0755), 0);
    assert_int_equal(mkdirat(c.dir_fd, "b", 0755), 0);
    client_put(&c, "b/f", "of b");
    add_tree(&c, "a", 0);
    add_tree(&c, "a", -EEXIST);
    add_tree(&c, "b/f", -EINVAL); /* that is no name */
    /* The directory around them can neither be listed nor changed. */
    assert_int_equal(client_mkdir(&c, ROOT, "new", 0755, &node), -EROFS);
    assert_int_equal(client_call(&c, FUSE_OPENDIR, ROOT, &open_in, sizeof(open_in), NULL, 0), 0);
    memcpy(&o, c.rep, sizeof(o));
    struct fuse_read_in in = {.fh = o.fh, .size = 4096};
    assert_int_equal(client_call(&c, FUSE_READDIR, ROOT, &in, sizeof(in), NULL, 0), 0);
    assert_int_equal(c.rep_len, 2 * FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + 2));
    /* One that comes just in time. */
    assert_int_equal(client_lookup(&c, ROOT, "late", &b), 0);
    assert_int_equal(client_lookup(&c, b.nodeid, "f", &e), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &a), 0);
    assert_int_equal(client_create(&c, a.nodeid, "new", O_RDWR, 0600, &node, &fh), 0);
    assert_int_equal(client_lookup(&c, a.nodeid, "..", &e), -EINVAL);
    /* What goes is not found any more, by whatever the guest remembers. It may come again, or what
     * comes has the same number by chance: it is new to the guest. */
    assert_int_equal(fuse_tree_remove(c.s, "late"), 0);
    assert_int_equal(fuse_tree_remove(c.s, "a"), 0);
    assert_int_equal(fuse_tree_remove(c.s, "a"), -ENOENT);
    assert_int_equal(client_lookup(&c, a.nodeid, "new", &e), -ESTALE);
    assert_int_equal(client_open(&c, node, O_RDWR, &fh), -ESTALE);
    add_tree(&c, "a", 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &a), 0);
    assert_int_equal(client_lookup(&c, a.nodeid, "new", &e), 0);
    assert_int_not_equal(e.nodeid, node);
    assert_int_equal(client_open(&c, node, O_RDWR, &fh), -ESTALE);
    assert_int_equal(client_open(&c, e.nodeid, O_RDWR, &fh), 0);
    for (int i = 1; i <= FUSE_TREES_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "t%d", i);
        int fd = openat(c.dir_fd, "b", O_PATH | O_CLOEXEC);
        assert_int_equal(fuse_tree_add(c.s, name, fd), i < FUSE_TREES_MAX ? 0 : -ENOSPC);
    }
    client_fini(&c);
}

/* What several trees have in common stays until the last of them goes. */
static void test_what_trees_share(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out a, b, v, e, again;
    struct fuse_attr attr;
    client_init(&c, &(struct fuse_options){.many = true});
    assert_int_equal(mkdirat(c.dir_fd, "a", 0755), 0);
    assert_int_equal(mkdirat(c.dir_fd, "a/v", 0755), 0);
    assert_int_equal(mkdirat(c.dir_fd, "a/v/d", 0755), 0);
    client_put(&c, "a/only", "in a");
    client_put(&c, "a/v/d/f", "in both");
    add_tree(&c, "a", 0);
    assert_int_equal(
        fuse_tree_add(c.s, "b", openat(c.dir_fd, "a/v", O_PATH | O_DIRECTORY | O_CLOEXEC)), 0);
    assert_int_equal(client_lookup(&c, ROOT, "b", &b), 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &a), 0);
    assert_int_equal(client_lookup(&c, a.nodeid, "only", &e), 0);
    assert_int_equal(client_lookup(&c, a.nodeid, "v", &v), 0); /* found there last */
    assert_int_equal(v.nodeid, b.nodeid);
    assert_int_equal(client_lookup(&c, v.nodeid, "d", &v), 0);
    assert_int_equal(fuse_tree_remove(c.s, "a"), 0);
    assert_int_equal(client_getattr(&c, a.nodeid, &attr), -ESTALE);
    assert_int_equal(client_getattr(&c, e.nodeid, &attr), -ESTALE);
    assert_int_equal(client_getattr(&c, b.nodeid, &attr), 0);
    assert_int_equal(client_lookup(&c, v.nodeid, "f", &e), 0);
    add_tree(&c, "a", 0);
    assert_int_equal(client_lookup(&c, ROOT, "a", &again), 0);
    assert_int_not_equal(again.nodeid, a.nodeid);
    assert_int_equal(client_lookup(&c, again.nodeid, "v", &a), 0);
    assert_int_equal(a.nodeid, b.nodeid);
    assert_int_equal(fuse_tree_remove(c.s, "b"), 0);
    assert_int_equal(client_getattr(&c, e.nodeid, &attr), 0);
    assert_int_equal(fuse_tree_remove(c.s, "a"), 0);
    assert_int_equal(client_getattr(&c, e.nodeid, &attr), -ESTALE);
    assert_int_equal(client_getattr(&c, b.nodeid, &attr), -ESTALE);
    client_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_goes_both_ways),
        cmocka_unit_test(test_append_truncate_seek),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_tmpfile_and_its_name),
        cmocka_unit_test(test_rename_with_all_flags),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_unlinked_files_live_on),
        cmocka_unit_test(test_owners_are_the_guests),
        cmocka_unit_test(test_real_owners),
        cmocka_unit_test(test_owners_change_behind_our_back),
        cmocka_unit_test(test_new_files_belong_to_their_maker),
        cmocka_unit_test(test_extended_attributes),
        cmocka_unit_test(test_a_single_file),
        cmocka_unit_test(test_descriptors_are_found_again),
        cmocka_unit_test(test_the_host_may_turn_directories_around),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_quota_and_truncation),
        cmocka_unit_test(test_quota_reaches_everything),
        cmocka_unit_test(test_caches),
        cmocka_unit_test(test_several_trees),
        cmocka_unit_test(test_what_trees_share),
    };
    return cmocka_run_group_tests_name("fs", tests, NULL, NULL);
}
