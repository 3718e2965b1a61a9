/* Files whose content comes later, as the FUSE server asks for them. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "fuse_client.h"
#include "util/cleanup.h"
#include "util/later.h"
#include "util/sock.h"

enum { ROOT = FUSE_ROOT_ID, WAITING_MAX = 64 };

struct box {
    struct fuse_client c;
    int far; /* where contents are fetched */
};

static void box_init(struct box *b)
{
    int sock[2];
    client_init(&b->c, &(struct fuse_options){.later = true});
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock), 0);
    fuse_later_set(b->c.s, sock[0]);
    b->far = sock[1];
}

static void box_fini(struct box *b)
{
    close_fd(&b->far);
    client_fini(&b->c);
}

/* A file of five bytes that are elsewhere; its node. */
static uint64_t put_later(struct box *b, const char *name)
{
    struct fuse_entry_out e;
    AUTO_CLOSE int fd = openat(b->c.dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 5), 0);
    if (fsetxattr(fd, LATER_XATTR, "0123456789abcdef", 16, 0) < 0) {
        box_fini(b);
        skip();
    }
    assert_int_equal(client_lookup(&b->c, ROOT, name, &e), 0);
    assert_int_equal(e.attr.size, 5);
    return e.nodeid;
}

/* What is asked for next; -1: nothing. The file's descriptor. */
static int asked(struct box *b, struct later_request *q)
{
    int fd = -1;
    ssize_t n = sock_recv_with_fd(b->far, q, sizeof(*q), &fd);
    assert_true(n == -EAGAIN || (n == (ssize_t)sizeof(*q) && q->number && fd >= 0));
    return n < 0 ? -1 : fd;
}

static void answer(struct box *b, uint32_t number, int error)
{
    struct later_answer a = {.number = number, .error = error};
    assert_int_equal(send(b->far, &a, sizeof(a), 0), sizeof(a));
    assert_true(fuse_later_event(b->c.s));
}

static void test_an_open_waits_for_the_content(void **state)
{
    struct box b;
    struct later_request q;
    uint64_t fh;
    char id[LATER_SIZE];
    box_init(&b);
    uint64_t node = put_later(&b, "f");
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    assert_int_equal(client_open(&b.c, node, O_RDWR, &fh), -EINPROGRESS);
    AUTO_CLOSE int fd = asked(&b, &q);
    assert_true(fd >= 0 && !q.empty && later_get(fd, id));
    assert_string_equal(id, "0123456789abcdef");
    assert_int_equal(asked(&b, &q), -1); /* once */
    assert_int_equal(pwrite(fd, "hello", 5, 0), 5);
    assert_int_equal(fremovexattr(fd, LATER_XATTR), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh),
                     -EINPROGRESS); /* not before it says so */
    answer(&b, q.number, 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    assert_int_equal(client_read(&b.c, node, fh, 0, 5), 5);
    assert_memory_equal(b.c.rep, "hello", 5);
    box_fini(&b);
}

static void test_failures_are_the_guests(void **state)
{
    struct box b;
    struct later_request q;
    uint64_t fh;
    box_init(&b);
    uint64_t node = put_later(&b, "f");
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    (void)close(asked(&b, &q));
    answer(&b, q.number + 1, -EPERM); /* nobody asked for that */
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    answer(&b, q.number, -EIO);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EIO);
    /* Who opens it again asks again. Whoever fetches may die, but not for ever. */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
        (void)close(asked(&b, &q));
        answer(&b, 0, 0);
    }
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EIO);
    /* An answer that does not hold what it says is like a death. */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
        (void)close(asked(&b, &q));
        answer(&b, q.number, i ? 0 : 7);
    }
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EIO);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    close_fd(&b.far);
    assert_false(fuse_later_event(b.c.s));
    for (int i = 0; i < 2; i++)
        assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EIO);
    client_fini(&b.c);
}

static void test_truncation_needs_no_content(void **state)
{
    struct box b;
    struct later_request q;
    struct fuse_attr attr;
    uint64_t fh, node2;
    box_init(&b);
    uint64_t node = put_later(&b, "f");
    assert_int_equal(client_open(&b.c, node, O_WRONLY | O_TRUNC, &fh), -EINPROGRESS);
    (void)close(asked(&b, &q));
    assert_true(q.empty);
    node = put_later(&b, "g");
    assert_int_equal(client_create(&b.c, ROOT, "g", O_WRONLY | O_TRUNC, 0644, &node2, &fh),
                     -EINPROGRESS);
    (void)close(asked(&b, &q));
    assert_true(q.empty);
    node = put_later(&b, "h");
    struct fuse_setattr_in in = {.valid = FATTR_SIZE, .size = 3};
    assert_int_equal(client_setattr(&b.c, node, &in, &attr), -EINPROGRESS);
    (void)close(asked(&b, &q));
    assert_false(q.empty);
    assert_int_equal(client_getattr(&b.c, node, &attr), 0);
    assert_int_equal(attr.size, 5);
    box_fini(&b);
}

static void test_what_waits_is_bounded_and_marks_are_ours(void **state)
{
    struct box b;
    struct later_request q;
    uint64_t fh, node[WAITING_MAX + 2];
    char name[16];
    box_init(&b);
    for (size_t i = 0; i < WAITING_MAX + 2; i++) {
        (void)snprintf(name, sizeof(name), "f%zu", i);
        node[i] = put_later(&b, name);
        assert_int_equal(client_open(&b.c, node[i], O_RDONLY, &fh), -EINPROGRESS);
    }
    unsigned n = 0;
    for (int fd; (fd = asked(&b, &q)) >= 0; n++)
        (void)close(fd);
    assert_int_equal(n, WAITING_MAX);
    answer(&b, q.number, -EIO); /* makes room for one */
    assert_int_equal(client_open(&b.c, node[WAITING_MAX], O_RDONLY, &fh), -EINPROGRESS);
    (void)close(asked(&b, &q));
    assert_int_equal(client_open(&b.c, node[WAITING_MAX + 1], O_RDONLY, &fh), -EINPROGRESS);
    assert_int_equal(asked(&b, &q), -1);
    struct fuse_setxattr_in set = {.size = 1};
    char text[] = LATER_XATTR "\0x";
    assert_int_equal(client_call(&b.c, FUSE_SETXATTR, node[0], &set, FUSE_COMPAT_SETXATTR_IN_SIZE,
                                 text, sizeof(text) - 1),
                     -EPERM);
    assert_int_equal(client_name(&b.c, FUSE_REMOVEXATTR, node[0], NULL, 0, LATER_XATTR, NULL),
                     -ENODATA);
    box_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_open_waits_for_the_content),
        cmocka_unit_test(test_failures_are_the_guests),
        cmocka_unit_test(test_truncation_needs_no_content),
        cmocka_unit_test(test_what_waits_is_bounded_and_marks_are_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
