/* The FUSE server on what other FUSE servers show, in its root or below it: their inode numbers mean
 * nothing. Here that is another one of ours in a thread, whose answers are changed on their way. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fuse/impl.h"
#include "fuse_client.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/newer.h"

enum {
    ROOT = FUSE_ROOT_ID,
    REQUEST_MAX = (1 << 20) + 4096,
    SAME = 42, /* the number of every file */
    EXCHANGES = 1000,
};
#define NO_EXPORT_SUPPORT (1ULL << 38)

struct below {
    struct fuse_client c; /* of the server that is tested */
    char dir[64];         /* what is behind the mount m in its root */
    int dir_fd, m_fd;
    int dev; /* /dev/fuse */
    bool no_export, no_xattrs, no_statfs;
    struct fuse_server *s;
    pthread_t thread;
    atomic_bool stop;
};

static void change_attr(struct fuse_attr *a)
{
    if (S_ISREG(a->mode))
        a->ino = SAME;
}

static void change(const struct below *b, const struct fuse_in_header *h, uint8_t *body)
{
    struct fuse_init_out *init = (struct fuse_init_out *)(void *)body;
    switch (h->opcode) {
    case FUSE_INIT:
        init->flags &= ~(uint32_t)(FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO);
        init->flags2 |= b->no_export ? NO_EXPORT_SUPPORT >> 32 : 0;
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR:
        change_attr(&((struct fuse_attr_out *)(void *)body)->attr);
        break;
    case FUSE_LOOKUP:
    case FUSE_MKNOD:
    case FUSE_LINK:
    case FUSE_CREATE:
        change_attr(&((struct fuse_entry_out *)(void *)body)->attr);
        break;
    case FUSE_STATFS:
        if (b->no_statfs)
            memset(body, 0, sizeof(struct fuse_statfs_out));
        break;
    default:
        break;
    }
}

/* How much the kernel expects of those in which more would be added. */
static size_t room_for(uint32_t op)
{
    const size_t head = sizeof(struct fuse_out_header), entry = sizeof(struct fuse_entry_out);
    return op == FUSE_LOOKUP || op == FUSE_MKDIR ? head + entry
           : op == FUSE_OPENDIR                  ? head + sizeof(struct fuse_open_out)
           : op == FUSE_CREATE                   ? head + entry + sizeof(struct fuse_open_out)
                                                 : (size_t)REQUEST_MAX;
}

/* Answers what this server of files does not support. Returns the reply's length; 0: it does. */
static ssize_t refuse(const struct below *b, const struct fuse_in_header *h, uint8_t *reply)
{
    if (!b->no_xattrs || h->opcode != FUSE_GETXATTR)
        return 0;
    struct fuse_out_header out = {.len = sizeof(out), .error = -ENOSYS, .unique = h->unique};
    memcpy(reply, &out, sizeof(out));
    return sizeof(out);
}

static void *serve_below(void *arg)
{
    struct below *b = arg;
    AUTO_FREE uint8_t *request = malloc(REQUEST_MAX);
    AUTO_FREE uint8_t *reply = malloc(REQUEST_MAX);
    ssize_t n;
    while (request && reply && ((n = read(b->dev, request, REQUEST_MAX)) > 0 || errno == ENOENT)) {
        struct fuse_in_header h;
        if (n <= 0)
            continue;
        memcpy(&h, request, sizeof(h));
        struct iovec out = {request, (size_t)n}, in = {reply, room_for(h.opcode)};
        struct fuse_request q = {&out, 1, out.iov_len, &in, 1, in.iov_len};
        ssize_t r = refuse(b, &h, reply);
        if (r == 0)
            r = fuse_serve(b->s, &q);
        if (r > (ssize_t)sizeof(struct fuse_out_header))
            change(b, &h, reply + sizeof(struct fuse_out_header));
        if (r > 0)
            (void)!write(b->dev, reply, (size_t)r);
    }
    return NULL;
}

static void put_below(const struct below *b, const char *name, const char *text)
{
    int fd = openat(b->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

static bool mount_below(struct below *b)
{
    char path[80], options[128];
    b->dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    (void)snprintf(path, sizeof(path), "%s/m", b->c.dir);
    (void)snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", b->dev);
    return b->dev >= 0 && mount("test", path, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
}

/* A root with two files, and a mount m with two others that have the same number. */
static bool below_init(struct below *b, const struct fuse_options *o)
{
    struct fuse_options under = {.cache = FUSE_CACHE_NONE, .privileged = true};
    char path[80];
    b->dev = b->m_fd = -1;
    client_init(&b->c, o);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/test-below-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->dir_fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put_below(b, "a", "a");
    put_below(b, "b", "bb");
    assert_int_equal(linkat(b->dir_fd, "a", b->dir_fd, "link", 0), 0);
    assert_int_equal(mkdirat(b->c.dir_fd, "m", 0755), 0);
    under.root_fd = open(b->dir, O_PATH | O_CLOEXEC);
    assert_int_equal(fuse_new(&b->s, &under), 0);
    if (!mount_below(b))
        return false;
    assert_int_equal(pthread_create(&b->thread, NULL, serve_below, b), 0);
    (void)snprintf(path, sizeof(path), "%s/m", b->c.dir);
    b->m_fd = open(path, O_PATH | O_CLOEXEC);
    struct stat st;
    assert_int_equal(fstatat(b->m_fd, "a", &st, 0), 0);
    assert_int_equal(st.st_ino, SAME);
    return true;
}

static void below_fini(struct below *b, bool mounted)
{
    struct fuse_client *c = &b->c;
    fuse_free(c->s);
    c->s = NULL;
    close_fd(&b->m_fd);
    if (mounted) {
        char path[80];
        (void)snprintf(path, sizeof(path), "%s/m", c->dir);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
        assert_int_equal(pthread_join(b->thread, NULL), 0);
    }
    close_fd(&b->dev);
    fuse_free(b->s);
    close_fd(&b->dir_fd);
    client_fini(c);
    assert_int_equal(remove_tree_at(AT_FDCWD, b->dir), 0);
}

static void need_mount(struct below *b, const struct fuse_options *o)
{
    if (below_init(b, o))
        return;
    below_fini(b, false);
    skip();
}

static struct fuse_entry_out found(struct below *b, uint64_t dir, const char *name)
{
    struct fuse_entry_out e = {0};
    assert_int_equal(client_lookup(&b->c, dir, name, &e), 0);
    return e;
}

static void assert_told_apart(struct below *b, uint64_t dir)
{
    struct fuse_entry_out e = found(b, dir, "a"), other = found(b, dir, "b");
    struct fuse_entry_out link = found(b, dir, "link");
    struct fuse_attr a;
    assert_true(e.nodeid != other.nodeid && e.attr.ino != other.attr.ino);
    assert_int_equal(e.attr.size, 1);
    assert_int_equal(other.attr.size, 2);
    /* What is one file there is one here. */
    assert_int_equal(link.nodeid, e.nodeid);
    assert_int_equal(link.attr.ino, e.attr.ino);
    assert_int_equal(client_getattr(&b->c, e.nodeid, &a), 0);
    assert_int_equal(a.ino, e.attr.ino);
}

static void test_files_of_a_mount_below_the_root(void **state)
{
    struct below b = {0};
    struct stat st;
    need_mount(&b, NULL);
    assert_told_apart(&b, found(&b, ROOT, "m").nodeid);
    /* On the root's own file system the numbers are the host's. */
    assert_int_equal(mkdirat(b.c.dir_fd, "d", 0755), 0);
    assert_int_equal(fstatat(b.c.dir_fd, "d", &st, 0), 0);
    assert_int_equal(found(&b, ROOT, "d").attr.ino, st.st_ino);
    below_fini(&b, true);
}

static void test_files_of_a_tree_that_is_a_mount(void **state)
{
    struct below b = {0};
    need_mount(&b, &(struct fuse_options){.many = true});
    assert_int_equal(fuse_tree_add(b.c.s, "t", fcntl(b.m_fd, F_DUPFD_CLOEXEC, 0)), 0);
    assert_told_apart(&b, found(&b, ROOT, "t").nodeid);
    assert_int_equal(fuse_tree_remove(b.c.s, "t"), 0);
    below_fini(&b, true);
}

/* A mount may get the device number of one that is gone, about which other things were known. */
static void test_files_of_a_mount_with_a_used_number(void **state)
{
    struct below b = {0};
    struct stat st;
    need_mount(&b, NULL);
    assert_int_equal(fstat(b.m_fd, &st), 0);
    b.c.s->device[DEVICES_MAX - 1] =
        (struct device){.dev = st.st_dev, .known = true, .no_xattrs = true};
    uint64_t m = found(&b, ROOT, "m").nodeid;
    assert_told_apart(&b, m);
    assert_true(may_have_xattrs(b.c.s, st.st_dev));
    below_fini(&b, true);
}

/* Such a server says that nothing of it can be opened by a handle. */
static void test_files_without_handles_to_open_by(void **state)
{
    struct below b = {.no_export = true};
    need_mount(&b, NULL);
    struct {
        struct file_handle head;
        uint8_t bytes[MAX_HANDLE_SZ];
    } h = {.head.handle_bytes = MAX_HANDLE_SZ};
    int mount;
    if (name_to_handle_at(b.m_fd, "a", &h.head, &mount, AT_HANDLE_FID) < 0) {
        below_fini(&b, true);
        skip();
    }
    assert_told_apart(&b, found(&b, ROOT, "m").nodeid);
    below_fini(&b, true);
}

/* --- listings -------------------------------------------------------------------------------- */

/* The number of that name in a listing; *ret_attr: that of its attributes, if it has some. */
static uint64_t listed(struct below *b, uint64_t dir, const char *name, bool plus,
                       uint64_t *ret_attr)
{
    struct fuse_open_in in = {0};
    struct fuse_open_out o;
    assert_int_equal(client_call(&b->c, FUSE_OPENDIR, dir, &in, sizeof(in), NULL, 0), 0);
    memcpy(&o, b->c.rep, sizeof(o));
    struct fuse_read_in read = {.fh = o.fh, .size = 32768};
    uint32_t op = plus ? FUSE_READDIRPLUS : FUSE_READDIR;
    assert_int_equal(client_call(&b->c, op, dir, &read, sizeof(read), NULL, 0), 0);
    const size_t head = plus ? sizeof(struct fuse_entry_out) : 0;
    for (size_t at = 0; at < b->c.rep_len;) {
        struct fuse_entry_out e;
        struct fuse_dirent d;
        memcpy(&e, b->c.rep + at, head);
        memcpy(&d, b->c.rep + at + head, FUSE_NAME_OFFSET);
        if (plus)
            *ret_attr = e.attr.ino;
        if (d.namelen == strlen(name) &&
            memcmp(b->c.rep + at + head + FUSE_NAME_OFFSET, name, d.namelen) == 0)
            return d.ino;
        at += FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + d.namelen);
    }
    fail_msg("no %s", name);
    return 0;
}

static void test_numbers_in_listings(void **state)
{
    struct below b = {0};
    uint64_t attr;
    struct stat st;
    need_mount(&b, NULL);
    struct fuse_entry_out m = found(&b, ROOT, "m"), a = found(&b, m.nodeid, "a");
    assert_int_equal(listed(&b, m.nodeid, "a", true, &attr), a.attr.ino);
    assert_int_equal(attr, a.attr.ino);
    assert_int_equal(listed(&b, m.nodeid, "a", false, NULL), 0xffffffff);
    assert_int_equal(listed(&b, m.nodeid, ".", true, &attr), m.attr.ino);
    assert_int_equal(listed(&b, m.nodeid, ".", false, NULL), m.attr.ino);
    /* Elsewhere they are the host's. */
    assert_int_equal(mkdirat(b.c.dir_fd, "d", 0755), 0);
    assert_int_equal(fstatat(b.c.dir_fd, "d", &st, 0), 0);
    assert_int_equal(listed(&b, ROOT, "d", true, &attr), st.st_ino);
    assert_int_equal(listed(&b, ROOT, "d", false, NULL), st.st_ino);
    assert_int_equal(listed(&b, ROOT, "m", true, &attr), m.attr.ino);
    below_fini(&b, true);
}

/* Of other file systems that have numbers of their own. */
static void test_numbers_in_listings_of_other_file_systems(void **state)
{
    struct below b = {0};
    char path[80];
    need_mount(&b, NULL);
    (void)snprintf(path, sizeof(path), "%s/t", b.c.dir);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, NULL), 0);
    assert_int_equal(mkdirat(b.c.dir_fd, "t/d", 0755), 0);
    uint64_t t = found(&b, ROOT, "t").nodeid, d = found(&b, t, "d").attr.ino, attr;
    assert_int_equal(listed(&b, t, "d", true, &attr), d);
    assert_int_equal(listed(&b, t, "d", false, NULL), d);
    assert_int_equal(listed(&b, t, ".", false, NULL), found(&b, ROOT, "t").attr.ino);
    fuse_reset(b.c.s);
    assert_int_equal(umount2(path, MNT_DETACH), 0);
    below_fini(&b, true);
}

/* --- what a mount does not have -------------------------------------------------------------- */

#define ATTRIBUTE "user.msb.override_stat"

/* That a mount has no attributes says nothing about the file system around it. */
static void test_owners_around_a_mount_without_attributes(void **state)
{
    struct below b = {.no_xattrs = true};
    struct fuse_setattr_in in = {.valid = FATTR_UID, .uid = 1001};
    struct fuse_attr attr;
    char text[40] = "";
    need_mount(&b, NULL);
    client_put(&b.c, "set", "");
    client_put(&b.c, "was", "");
    AUTO_CLOSE int set = openat(b.c.dir_fd, "set", O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int was = openat(b.c.dir_fd, "was", O_RDONLY | O_CLOEXEC);
    if (fsetxattr(was, ATTRIBUTE, "1000:1000:600", 13, 0) < 0) {
        below_fini(&b, true);
        skip();
    }
    uint64_t a = found(&b, found(&b, ROOT, "m").nodeid, "a").nodeid;
    assert_int_equal(client_setattr(&b.c, a, &in, &attr), 0);
    assert_int_equal(attr.uid, 1001);
    assert_int_equal(found(&b, ROOT, "was").attr.uid, 1000);
    assert_int_equal(client_setattr(&b.c, found(&b, ROOT, "set").nodeid, &in, &attr), 0);
    assert_true(fgetxattr(set, ATTRIBUTE, text, sizeof(text) - 1) > 0);
    assert_memory_equal(text, "1001:", 5);
    below_fini(&b, true);
}

/* Some servers answer this request with zeros. */
static void test_a_quota_on_a_mount_of_unknown_size(void **state)
{
    struct below b = {.no_statfs = true};
    struct fuse_options o = {.quota = 1 << 20};
    struct fuse_statfs_out st;
    need_mount(&b, NULL);
    o.root_fd = fcntl(b.m_fd, F_DUPFD_CLOEXEC, 0);
    fuse_free(b.c.s);
    assert_int_equal(fuse_new(&b.c.s, &o), 0);
    client_hello(&b.c);
    assert_int_equal(client_call(&b.c, FUSE_STATFS, ROOT, NULL, 0, NULL, 0), 0);
    memcpy(&st, b.c.rep, sizeof(st));
    assert_int_equal(st.st.blocks * st.st.frsize, 1 << 20);
    below_fini(&b, true);
}

/* --- the host at work at the same time ------------------------------------------------------- */

static void *exchange(void *arg)
{
    struct below *b = arg;
    while (!b->stop)
        (void)renameat2(b->m_fd, "a", b->m_fd, "b", RENAME_EXCHANGE);
    return NULL;
}

static void test_numbers_belong_to_attributes(void **state)
{
    struct below b = {0};
    pthread_t thread;
    unsigned wrong = 0, moved = 0;
    need_mount(&b, &(struct fuse_options){.cache = FUSE_CACHE_NONE});
    /* The host's kernel keeps what it calls them while they are open. */
    int fd = openat(b.m_fd, "a", O_PATH | O_CLOEXEC);
    int other = openat(b.m_fd, "b", O_PATH | O_CLOEXEC);
    assert_true(fd >= 0 && other >= 0);
    uint64_t m = found(&b, ROOT, "m").nodeid, one = found(&b, m, "a").attr.ino;
    b.c.room = 1024;
    assert_int_equal(pthread_create(&thread, NULL, exchange, &b), 0);
    for (unsigned i = 0; i < EXCHANGES; i++) {
        struct fuse_entry_out e;
        if (client_lookup(&b.c, m, "a", &e) < 0)
            continue;
        wrong += (e.attr.ino == one) != (e.attr.size == 1);
        moved += e.attr.size == 2;
    }
    b.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(wrong, 0);
    assert_in_range(moved, 1, EXCHANGES - 1);
    (void)close(fd);
    (void)close(other);
    below_fini(&b, true);
}

/* Where it is refused, so is the mount. */
static int leave_namespace(void **state)
{
    return unshare(CLONE_NEWNS) == 0 ? mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_a_mount_below_the_root),
        cmocka_unit_test(test_files_of_a_tree_that_is_a_mount),
        cmocka_unit_test(test_files_of_a_mount_with_a_used_number),
        cmocka_unit_test(test_files_without_handles_to_open_by),
        cmocka_unit_test(test_numbers_in_listings),
        cmocka_unit_test(test_numbers_in_listings_of_other_file_systems),
        cmocka_unit_test(test_owners_around_a_mount_without_attributes),
        cmocka_unit_test(test_a_quota_on_a_mount_of_unknown_size),
        cmocka_unit_test(test_numbers_belong_to_attributes),
    };
    return cmocka_run_group_tests_name("fuse_below", tests, leave_namespace, NULL);
}
