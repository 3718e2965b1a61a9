/* The FUSE server, by what only a guest with our kernel asks for: references that go with a name, and the
 * attributes of a directory with what is made in it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fuse_client.h"
#include "util/newer.h"

enum { ROOT = FUSE_ROOT_ID };

/* UNLINK or RMDIR that gives up so many references to that node. True: the server has taken them. */
static bool gives_up(struct fuse_client *c, uint32_t op, uint64_t dir, const char *name,
                     uint64_t node, uint64_t n)
{
    struct fuse_forget_one last = {.nodeid = node, .nlookup = n};
    assert_int_equal(client_call(c, op, dir, name, strlen(name) + 1, &last, sizeof(last)), 0);
    uint64_t taken = 0;
    assert_true(c->rep_len == 0 || c->rep_len == sizeof(taken));
    memcpy(&taken, c->rep, c->rep_len);
    assert_true(taken == 0 || taken == n);
    return taken != 0;
}

static uint64_t make(struct fuse_client *c, uint64_t dir, const char *name)
{
    uint64_t node, fh;
    assert_int_equal(client_create(c, dir, name, O_WRONLY, 0644, &node, &fh), 0);
    assert_int_equal(client_release(c, node, fh), 0);
    return node;
}

static bool is_there(const struct fuse_client *c, const char *name)
{
    return faccessat(c->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_references_go_with_the_name(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    uint64_t d;
    client_init(&c, NULL);
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &d), 0);
    uint64_t f = make(&c, d, "f");
    assert_true(gives_up(&c, FUSE_UNLINK, d, "f", f, 1));
    assert_false(is_there(&c, "d/f"));
    assert_int_equal(client_getattr(&c, f, &a), -ESTALE);
    assert_true(gives_up(&c, FUSE_RMDIR, ROOT, "d", d, 1)); /* nothing is known of what was in it */
    assert_false(is_there(&c, "d"));
    /* Neither number leads anywhere, ever again. */
    for (unsigned i = 0; i < 100; i++) {
        uint64_t next = make(&c, ROOT, "again");
        assert_true(next != f && next != d);
        assert_true(gives_up(&c, FUSE_UNLINK, ROOT, "again", next, 1));
    }
    client_forget(&c, f, 1); /* of nothing */
    assert_int_equal(client_getattr(&c, f, &a), -ESTALE);
    client_fini(&c);
}

/* Whatever else there is of an object: then it stays until it is forgotten. */
static void test_references_that_are_not_all(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    struct fuse_entry_out e;
    uint64_t fh, d, f = 0;
    client_init(&c, NULL);
    f = make(&c, ROOT, "twice"); /* looked up since */
    assert_int_equal(client_lookup(&c, ROOT, "twice", &e), 0);
    assert_false(gives_up(&c, FUSE_UNLINK, ROOT, "twice", f, 1));
    assert_int_equal(client_getattr(&c, f, &a), 0);
    assert_int_equal(a.nlink, 0);
    client_forget(&c, f, 2);
    assert_int_equal(client_getattr(&c, f, &a), -ESTALE);

    assert_int_equal(client_create(&c, ROOT, "open", O_RDWR, 0644, &f, &fh), 0);
    assert_int_equal(client_write(&c, f, fh, 0, "data", 4), 4);
    assert_false(gives_up(&c, FUSE_UNLINK, ROOT, "open", f, 1));
    assert_int_equal(client_read(&c, f, fh, 0, 4), 4);
    assert_memory_equal(c.rep, "data", 4);
    assert_int_equal(client_getattr(&c, f, &a), 0);

    f = make(&c, ROOT, "one");
    assert_int_equal(linkat(c.dir_fd, "one", c.dir_fd, "other", 0), 0);
    assert_false(gives_up(&c, FUSE_UNLINK, ROOT, "one", f, 1));
    assert_int_equal(client_getattr(&c, f, &a), 0);
    assert_true(is_there(&c, "other"));

    f = make(&c, ROOT, "this"); /* another one is there by now */
    assert_int_equal(unlinkat(c.dir_fd, "this", 0), 0);
    assert_int_equal(mkdirat(c.dir_fd, "that", 0755), 0);
    assert_int_equal(symlinkat("nowhere", c.dir_fd, "this"), 0);
    assert_false(gives_up(&c, FUSE_UNLINK, ROOT, "this", f, 1));
    assert_false(gives_up(&c, FUSE_RMDIR, ROOT, "that", f, 1));
    client_forget(&c, f, 1);

    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &d), 0);
    f = make(&c, d, "f"); /* something in it is known */
    assert_int_equal(unlinkat(c.dir_fd, "d/f", 0), 0);
    assert_false(gives_up(&c, FUSE_RMDIR, ROOT, "d", d, 1));
    client_fini(&c);
}

/* One that is forgotten already is kept by what the server itself has of it only: what it reads ahead. */
static void test_references_that_are_none(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    struct fuse_entry_out e;
    uint64_t d;
    client_init(&c, NULL);
    c.ahead = true;
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &d), 0);
    assert_int_equal(mkdirat(c.dir_fd, "d/e", 0755), 0);
    assert_int_equal(client_lookup(&c, d, "e", &e), 0);
    assert_int_equal(unlinkat(c.dir_fd, "d/e", AT_REMOVEDIR), 0);
    client_forget(&c, e.nodeid, 1);
    client_forget(&c, d, 1);
    assert_int_equal(client_getattr(&c, d, &a), 0);
    assert_false(gives_up(&c, FUSE_RMDIR, ROOT, "d", d, 0));
    assert_false(is_there(&c, "d"));
    uint64_t other = make(&c, ROOT, "other");
    assert_int_equal(client_getattr(&c, other, &a), 0);
    client_fini(&c);
    (void)state;
}

static void test_references_stay_with_a_name_that_stays(void **state)
{
    struct fuse_client c;
    struct fuse_attr a;
    uint64_t d;
    client_init(&c, NULL);
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &d), 0);
    assert_int_equal(mkdirat(c.dir_fd, "d/e", 0755), 0);
    struct fuse_forget_one last = {.nodeid = d, .nlookup = 1};
    assert_int_equal(client_call(&c, FUSE_RMDIR, ROOT, "d", 2, &last, sizeof(last)), -ENOTEMPTY);
    assert_int_equal(client_getattr(&c, d, &a), 0);
    /* Not a whole word, or more than one; nor is there an answer without room for one. */
    uint64_t f = make(&c, ROOT, "f");
    last = (struct fuse_forget_one){.nodeid = f, .nlookup = 1};
    assert_int_equal(client_call(&c, FUSE_UNLINK, ROOT, "f", 2, &last, sizeof(last) - 1), 0);
    assert_int_equal(c.rep_len, 0);
    assert_int_equal(client_getattr(&c, f, &a), 0);
    f = make(&c, ROOT, "f");
    last.nodeid = f;
    c.room = sizeof(struct fuse_out_header);
    assert_int_equal(client_call(&c, FUSE_UNLINK, ROOT, "f", 2, &last, sizeof(last)), 0);
    c.room = 1 << 20;
    assert_int_equal(client_getattr(&c, f, &a), 0);
    client_fini(&c);
}

/* Behind `head` bytes of the last reply. */
static void assert_attributes_behind(const struct fuse_client *c, size_t head, const char *path)
{
    struct fuse_attr_out out;
    struct stat st;
    assert_int_equal(fstatat(c->dir_fd, path, &st, 0), 0);
    assert_int_equal(c->rep_len, head + sizeof(out));
    memcpy(&out, c->rep + head, sizeof(out));
    assert_int_equal(out.attr.ino, st.st_ino);
    assert_int_equal(out.attr.mtime, st.st_mtim.tv_sec);
    assert_int_equal(out.attr.mtimensec, st.st_mtim.tv_nsec);
    assert_int_equal(out.attr.nlink, st.st_nlink);
    assert_int_equal(out.attr.mode, 040751);
    assert_true(out.attr_valid <= 1 && (out.attr_valid || out.attr_valid_nsec));
}

static void test_a_directory_comes_with_what_is_made(void **state)
{
    struct fuse_client c;
    struct fuse_create_in create = {.flags = O_WRONLY, .mode = 0100644};
    struct fuse_mkdir_in mkdir = {.mode = 0755};
    const size_t entry = sizeof(struct fuse_entry_out), both = entry + sizeof(struct fuse_open_out);
    uint64_t d;
    client_init(&c, NULL);
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0751, &d), 0);
    c.ahead = true;
    assert_int_equal(client_name(&c, FUSE_CREATE, d, &create, sizeof(create), "f", NULL), 0);
    assert_attributes_behind(&c, both, "d");
    assert_int_equal(client_name(&c, FUSE_MKDIR, d, &mkdir, sizeof(mkdir), "e", NULL), 0);
    assert_attributes_behind(&c, entry, "d");
    c.room = sizeof(struct fuse_out_header) + both + sizeof(struct fuse_attr_out) - 1;
    assert_int_equal(client_name(&c, FUSE_CREATE, d, &create, sizeof(create), "g", NULL), 0);
    assert_int_equal(c.rep_len, both); /* there was no room for all of them */
    client_fini(&c);
}

/* Longer than an owner that was found is taken for true without looking. */
static void wait_for_a_while(void)
{
    const struct timespec t = {.tv_nsec = 120000000};
    assert_int_equal(nanosleep(&t, NULL), 0);
}

static uint64_t valid_ns(const struct fuse_client *c, size_t head)
{
    struct fuse_attr_out out;
    assert_int_equal(c->rep_len, head + sizeof(out));
    memcpy(&out, c->rep + head, sizeof(out));
    return out.attr_valid * 1000000000 + out.attr_valid_nsec;
}

/* Of a directory, and of a file in it, whose owners the server has known for a while. */
static void assert_valid_for(enum fuse_cache cache, uint64_t dir_ns, uint64_t file_ns)
{
    struct fuse_client c;
    struct fuse_setattr_in in = {.valid = FATTR_MTIME, .mtime = 1};
    struct fuse_create_in create = {.flags = O_WRONLY, .mode = 0100644};
    struct fuse_mkdir_in mkdir = {.mode = 0755};
    const size_t entry = sizeof(struct fuse_entry_out);
    uint64_t d;
    client_init(&c, &(struct fuse_options){.cache = cache});
    assert_int_equal(client_mkdir(&c, ROOT, "d", 0755, &d), 0);
    uint64_t f = make(&c, d, "f");
    wait_for_a_while();
    assert_int_equal(client_setattr(&c, f, &in, NULL), 0);
    assert_in_range(valid_ns(&c, 0), file_ns * 3 / 4, file_ns);
    c.ahead = true;
    assert_int_equal(client_name(&c, FUSE_CREATE, d, &create, sizeof(create), "g", NULL), 0);
    assert_in_range(valid_ns(&c, entry + sizeof(struct fuse_open_out)), dir_ns * 3 / 4, dir_ns);
    wait_for_a_while();
    assert_int_equal(client_name(&c, FUSE_MKDIR, d, &mkdir, sizeof(mkdir), "e", NULL), 0);
    assert_in_range(valid_ns(&c, entry), dir_ns * 3 / 4, dir_ns);
    client_fini(&c);
}

static void test_how_long_attributes_hold(void **state)
{
    assert_valid_for(FUSE_CACHE_AUTO, 1000000000, 100000000);
    assert_valid_for(FUSE_CACHE_NONE, 0, 0);
    assert_valid_for(FUSE_CACHE_ALWAYS, 86400000000000, 86400000000000);
}

/* From here on the host is one that does not have the call; so this comes last. */
static void forget_getxattrat(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getxattrat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = 4, .filter = code};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
    assert_int_equal(syscall(SYS_getxattrat, 0, "", 0, "", NULL, 0), -1);
    assert_int_equal(errno, ENOSYS);
}

static void test_owners_on_older_hosts(void **state)
{
    struct fuse_client c;
    struct fuse_entry_out e;
    client_init(&c, NULL);
    assert_int_equal(mkdirat(c.dir_fd, "d", 0755), 0);
    (void)make(&c, ROOT, "f");
    const char *names[] = {"d", "f"};
    char path[100];
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", c.dir, names[i]);
        if (setxattr(path, "user.msb.override_stat", "77:78:640", 9, 0) < 0) {
            client_fini(&c);
            skip();
        }
    }
    forget_getxattrat();
    for (unsigned i = 0; i < 2; i++) {
        struct fuse_attr a;
        assert_int_equal(client_lookup(&c, ROOT, names[i], &e), 0);
        assert_int_equal(e.attr.uid, 77);
        assert_int_equal(client_getattr(&c, e.nodeid, &a), 0);
        assert_int_equal(a.gid, 78);
    }
    client_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references_go_with_the_name),
        cmocka_unit_test(test_references_that_are_not_all),
        cmocka_unit_test(test_references_that_are_none),
        cmocka_unit_test(test_references_stay_with_a_name_that_stays),
        cmocka_unit_test(test_a_directory_comes_with_what_is_made),
        cmocka_unit_test(test_how_long_attributes_hold),
        cmocka_unit_test(test_owners_on_older_hosts),
    };
    return cmocka_run_group_tests_name("fuse_guest", tests, NULL, NULL);
}
