/* Files whose content comes later, as the FUSE server asks for them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "fuse/impl.h"
#include "fuse_client.h"
#include "util/cleanup.h"
#include "util/later.h"
#include "util/sock.h"

enum { ROOT = FUSE_ROOT_ID, WAITING_MAX = 64 };

enum { FDS_MAX = 16 };

struct box {
    struct fuse_client c;
    int far; /* where contents are fetched */
};

static void box_init(struct box *b)
{
    int sock[2];
    client_init(&b->c, &(struct fuse_options){.later = true, .fds_max = FDS_MAX});
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
    if (later_mark(fd, LATER_XATTR, "0123456789abcdef", 16) < 0) {
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
    assert_int_equal(later_mark(fd, LATER_XATTR, NULL, 0), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh),
                     -EINPROGRESS); /* not before it says so */
    answer(&b, q.number, 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    assert_int_equal(client_read(&b.c, node, fh, 0, 5), 5);
    assert_memory_equal(b.c.rep, "hello", 5);
    box_fini(&b);
}

/* Looks at so many others that the server has closed what it had open. */
static void crowd_out(struct box *b)
{
    struct fuse_entry_out e;
    uint64_t fh;
    for (int i = 0; i < 2 * FDS_MAX; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "o%d", i);
        AUTO_CLOSE int fd = openat(b->c.dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(client_lookup(&b->c, ROOT, name, &e), 0);
        assert_int_equal(client_open(&b->c, e.nodeid, O_RDONLY, &fh), 0);
        assert_int_equal(client_release(&b->c, e.nodeid, fh), 0);
    }
}

/* Only what is new is marked: here, what got the number of a file that is gone. */
static void test_what_is_here_stays_here_as_long_as_its_number_does(void **state)
{
    struct box b;
    struct later_request q;
    uint64_t fh;
    box_init(&b);
    uint64_t node = put_later(&b, "f");
    assert_int_equal(fchmodat(b.c.dir_fd, "f", 0644, 0), 0);
    AUTO_CLOSE int fd = openat(b.c.dir_fd, "f", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(later_mark(fd, LATER_XATTR, NULL, 0), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    assert_int_equal(client_release(&b.c, node, fh), 0);
    assert_int_equal(later_mark(fd, LATER_XATTR, "0123456789abcdef", 16), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0); /* it does not ask again */
    assert_int_equal(client_release(&b.c, node, fh), 0);
    crowd_out(&b);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    AUTO_CLOSE int wanted = asked(&b, &q);
    assert_true(wanted >= 0);
    box_fini(&b);
}

static void test_nothing_is_served_before_the_gate_opens(void **state)
{
    struct box b;
    struct fuse_entry_out e;
    struct fuse_attr attr;
    box_init(&b);
    AUTO_CLOSE int fd = openat(b.c.dir_fd, "f", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    fuse_gate_shut(b.c.s);
    assert_int_equal(client_lookup(&b.c, ROOT, "f", &e), -EINPROGRESS);
    assert_int_equal(client_lookup(&b.c, ROOT, "g", &e), -EINPROGRESS);
    assert_int_equal(client_mkdir(&b.c, ROOT, "d", 0755, &e.nodeid), -EINPROGRESS);
    assert_int_equal(client_getattr(&b.c, ROOT, &attr), 0);
    fuse_gate_open(b.c.s, false);
    assert_int_equal(client_lookup(&b.c, ROOT, "f", &e), 0);
    fuse_gate_shut(b.c.s);
    fuse_gate_open(b.c.s, true);
    assert_int_equal(client_lookup(&b.c, ROOT, "f", &e), -EIO);
    assert_int_equal(client_getattr(&b.c, ROOT, &attr), 0);
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
    answer(&b, q.number + 1, -EPERM); /* not requested */
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    answer(&b, q.number, -EIO);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EIO);
    /* Opening it again asks again. The fetching process may die, but not forever. */
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

static void expect_truncation_without_content(uint64_t quota)
{
    struct box b;
    struct later_request q;
    struct fuse_attr attr;
    uint64_t fh, node2;
    box_init(&b);
    b.c.s->opt.quota = quota;
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

static void test_truncation_needs_no_content(void **state)
{
    expect_truncation_without_content(0);
    expect_truncation_without_content(1 << 20);
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

/* The parts up to that one are here, as of some boot. */
static void have(int fd, uint32_t last, bool this_boot)
{
    uint8_t parts[LATER_PARTS_SIZE] = {0}, value[LATER_PARTS_SIZE];
    for (uint32_t i = 1; i <= last; i++)
        parts[i / 8] |= (uint8_t)(1U << i % 8);
    assert_int_equal(later_parts_set(fd, parts, last), 0);
    if (this_boot)
        return;
    ssize_t n = fgetxattr(fd, LATER_PARTS_XATTR, value, sizeof(value));
    assert_true(n > 8);
    value[0] ^= 1;
    assert_int_equal(later_mark(fd, LATER_PARTS_XATTR, value, (size_t)n), 0);
}

static void expect(struct box *b, uint32_t part, uint32_t count, uint32_t *number)
{
    struct later_request q;
    int fd = asked(b, &q);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(q.part, part);
    assert_int_equal(q.count, count);
    *number = q.number;
}

static void test_parts_come_as_they_are_read(void **state)
{
    const uint64_t mib = LATER_PART;
    struct box b;
    struct later_request q;
    uint64_t fh;
    uint32_t number, ahead;
    box_init(&b);
    if (!later_know_boot())
        skip();
    uint64_t node = put_later(&b, "f");
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/f", b.c.dir_fd);
    AUTO_CLOSE int fd = later_open(path); /* whatever its mode says */
    assert_int_equal(ftruncate(fd, (off_t)(200 * mib)), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    /* One by itself in the middle, a run at the beginning. */
    assert_int_equal(client_read(&b.c, node, fh, 99 * mib, 5), -EINPROGRESS);
    expect(&b, 100, 1, &number);
    assert_int_equal(client_read(&b.c, node, fh, 0, 5), -EINPROGRESS);
    expect(&b, 1, LATER_RUN, &number);
    have(fd, 3, false); /* before the machine crashed */
    assert_int_equal(client_read(&b.c, node, fh, mib, 5), -EINPROGRESS);
    expect(&b, 2, LATER_RUN, &ahead);
    have(fd, 1, true);
    answer(&b, number, 0);
    assert_int_equal(client_read(&b.c, node, fh, 0, 5), 5);
    assert_int_equal(asked(&b, &q), -1); /* that was not much */
    /* A sequential reader finds the next parts requested: more and more, but not all. */
    have(fd, 2, true);
    answer(&b, ahead, 0);
    assert_int_equal(client_read(&b.c, node, fh, mib, 5), 5);
    expect(&b, 9, LATER_RUN, &ahead);
    assert_int_equal(asked(&b, &q), -1);
    have(fd, 8, true);
    assert_int_equal(client_read(&b.c, node, fh, 7 * mib, 5), 5);
    uint32_t others[3];
    for (uint32_t i = 0; i < 3; i++)
        expect(&b, (i + 2) * LATER_RUN + 1, LATER_RUN, &others[i]);
    assert_int_equal(asked(&b, &q), -1);
    /* A reader that needs it waits for it, and retries if it fails. */
    assert_int_equal(client_read(&b.c, node, fh, 8 * mib, 5), -EINPROGRESS);
    assert_int_equal(asked(&b, &q), -1);
    answer(&b, ahead, -EIO);
    assert_int_equal(client_read(&b.c, node, fh, 8 * mib, 5), -EINPROGRESS);
    expect(&b, 9, LATER_RUN, &ahead);
    /* Runs become longer, up to a limit, and leave out what is here. */
    have(fd, 50, true);
    answer(&b, ahead, 0);
    for (uint32_t i = 0; i < 3; i++)
        answer(&b, others[i], 0);
    assert_int_equal(client_read(&b.c, node, fh, 49 * mib, 5), 5);
    for (uint32_t at = 51; at < 51 + 4 * LATER_RUN_MAX; at += LATER_RUN_MAX)
        expect(&b, at, LATER_RUN_MAX, &number);
    assert_int_equal(asked(&b, &q), -1);
    /* One who turns back is looked ahead for again. */
    assert_int_equal(client_read(&b.c, node, fh, 3 * mib, 5), 5);
    assert_int_equal(asked(&b, &q), -1);
    box_fini(&b);
}

static void test_no_part_is_behind_the_end(void **state)
{
    struct box b;
    struct later_request q;
    uint64_t fh;
    box_init(&b);
    if (!later_know_boot())
        skip();
    uint64_t node = put_later(&b, "f");
    assert_int_equal(fchmodat(b.c.dir_fd, "f", 0644, 0), 0);
    AUTO_CLOSE int fd = openat(b.c.dir_fd, "f", O_RDWR | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, LATER_LARGE), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    for (unsigned shift = 25; shift < 63; shift++)
        assert_int_equal(client_read(&b.c, node, fh, 1ULL << shift, 5), 0);
    assert_int_equal(asked(&b, &q), -1);
    box_fini(&b);
}

/* One that has more parts than are kept track of. */
static void test_the_largest_files_come_whole(void **state)
{
    const off_t most = (off_t)8191 << 20;
    struct box b;
    struct later_request q;
    uint64_t fh;
    box_init(&b);
    if (!later_know_boot())
        skip();
    uint64_t node = put_later(&b, "f");
    assert_int_equal(fchmodat(b.c.dir_fd, "f", 0644, 0), 0);
    AUTO_CLOSE int fd = openat(b.c.dir_fd, "f", O_RDWR | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, most), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), 0);
    assert_int_equal(client_read(&b.c, node, fh, (uint64_t)most - 5, 5), -EINPROGRESS);
    AUTO_CLOSE int last = asked(&b, &q);
    assert_true(last >= 0);
    assert_int_equal(q.part, 8191);
    assert_int_equal(client_release(&b.c, node, fh), 0);
    assert_int_equal(ftruncate(fd, most + 1), 0);
    assert_int_equal(client_open(&b.c, node, O_RDONLY, &fh), -EINPROGRESS);
    AUTO_CLOSE int whole = asked(&b, &q);
    assert_true(whole >= 0);
    assert_true(q.part == 0 && !q.empty);
    box_fini(&b);
}

/* --- fsync that waits for a sync -------------------------------------------------------------- */

static int fsync_as(struct box *b, uint64_t unique, uint64_t node, uint64_t fh)
{
    struct {
        struct fuse_in_header h;
        struct fuse_fsync_in in;
    } q = {{.len = sizeof(q), .opcode = FUSE_FSYNC, .unique = unique, .nodeid = node}, {.fh = fh}};
    struct fuse_out_header out;
    ssize_t r = client_raw(&b->c, &q, sizeof(q), b->c.room);
    if (r < 0)
        return (int)r;
    memcpy(&out, b->c.rep, sizeof(out));
    return out.error;
}

/* The sync that is asked for; 0: none. */
static uint32_t sync_asked(struct box *b)
{
    uint32_t number = 0;
    ssize_t n = recv(b->far, &number, sizeof(number), MSG_DONTWAIT);
    assert_true(n == sizeof(number) || (n < 0 && errno == EAGAIN));
    return number;
}

static void synced(struct box *b, uint32_t number, int error)
{
    struct later_answer a = {.number = number, .error = error};
    assert_int_equal(send(b->far, &a, sizeof(a), 0), sizeof(a));
    assert_true(fuse_durable_event(b->c.s));
}

/* A server whose fsync means the bucket, and an open file. */
static void box_init_far(struct box *b, uint64_t *node, uint64_t *fh)
{
    int sock[2];
    client_init(&b->c, NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock), 0);
    assert_int_equal(client_create(&b->c, ROOT, "f", O_RDWR, 0644, node, fh), 0);
    fuse_tell_changes(b->c.s, sock[0], true);
    b->far = sock[1];
}

static void test_an_fsync_waits_for_a_sync_that_begins_after_it(void **state)
{
    struct box b;
    uint64_t fh, node;
    box_init_far(&b, &node, &fh);
    for (uint64_t i = 1; i < 4; i++)
        assert_int_equal(fsync_as(&b, i, node, fh), -EINPROGRESS);
    assert_int_equal(sync_asked(&b), 1);
    assert_int_equal(sync_asked(&b), 0);
    synced(&b, 2, 0); /* not requested */
    assert_int_equal(fsync_as(&b, 1, node, fh), -EINPROGRESS);
    synced(&b, 1, 0);
    assert_int_equal(fsync_as(&b, 2, node, fh), -EINPROGRESS); /* came when that had begun */
    assert_int_equal(fsync_as(&b, 1, node, fh), 0);
    assert_int_equal(fsync_as(&b, 3, node, fh), -EINPROGRESS);
    assert_int_equal(sync_asked(&b), 2);
    assert_int_equal(sync_asked(&b), 0);
    synced(&b, 2, -ENOSPC);
    for (uint64_t i = 2; i < 4; i++)
        assert_int_equal(fsync_as(&b, i, node, fh), -EIO);
    /* However many come, they wait together, and all of them get an answer. */
    for (uint64_t i = 0; i < (uint64_t)3 * WAITING_MAX; i++)
        assert_int_equal(fsync_as(&b, i, node, fh), -EINPROGRESS);
    bool done[3 * WAITING_MAX] = {false};
    unsigned waiting = ARRAY_LEN(done);
    for (uint32_t n = 3; waiting; n++) {
        assert_int_equal(sync_asked(&b), n);
        assert_int_equal(sync_asked(&b), 0);
        assert_true(n < 3 + 6);
        synced(&b, n, 0);
        for (uint64_t i = 0; i < ARRAY_LEN(done); i++)
            if (!done[i] && fsync_as(&b, i, node, fh) == 0) {
                done[i] = true;
                waiting--;
            }
    }
    box_fini(&b);
}

static void test_an_fsync_finds_room_behind_many_changes(void **state)
{
    struct box b;
    uint64_t fh, node;
    box_init_far(&b, &node, &fh);
    for (int i = 0; i < 5000; i++) { /* for as long as a sync may take */
        b.c.s->told_ns = 0;
        tell_change(b.c.s);
    }
    assert_int_equal(fsync_as(&b, 1, node, fh), -EINPROGRESS);
    char byte;
    unsigned told = 0;
    while (recv(b.far, &byte, 1, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC) == 1) {
        assert_int_equal(recv(b.far, &byte, 1, 0), 1);
        told++;
    }
    assert_true(told > 0);
    assert_int_equal(sync_asked(&b), 1);
    synced(&b, 1, 0);
    assert_int_equal(fsync_as(&b, 1, node, fh), 0);
    box_fini(&b);
}

static void *write_to_it(void *name)
{
    for (int i = 0; i < 5000; i++) {
        AUTO_CLOSE int at = open(name, O_RDONLY | O_CLOEXEC);
        AUTO_CLOSE int fd = i % 2 ? later_open(name) : later_reopen(at);
        if (fd < 0 || later_mark(fd, LATER_XATTR, "0123456789abcdef", 16) < 0)
            return NULL;
    }
    return name;
}

/* As their owner; root may write to them anyway. */
static int write_read_only_file(char *name)
{
    pthread_t thread[2];
    void *done[2];
    struct stat st;
    if (geteuid() == 0 && setuid(65534) < 0)
        return 2;
    AUTO_CLOSE int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    if (fd < 0 || later_mark(fd, LATER_XATTR, "0123456789abcdef", 16) < 0)
        return 1;
    for (size_t i = 0; i < 2; i++)
        (void)pthread_create(&thread[i], NULL, write_to_it, name);
    for (size_t i = 0; i < 2; i++)
        (void)pthread_join(thread[i], &done[i]);
    return done[0] && done[1] && fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0444 ? 0 : 3;
}

static void test_read_only_files_stay_so_for_all_at_once(void **state)
{
    char dir[] = "/tmp/msb-later-XXXXXX", name[64];
    int status;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0777), 0);
    (void)snprintf(name, sizeof(name), "%s/f", dir);
    pid_t pid = fork();
    if (pid == 0)
        _exit(write_read_only_file(name));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    (void)unlink(name);
    assert_int_equal(rmdir(dir), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 1)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_an_fsync_fails_when_nobody_syncs(void **state)
{
    struct box b;
    uint64_t fh, node;
    box_init_far(&b, &node, &fh);
    assert_int_equal(fsync_as(&b, 1, node, fh), -EINPROGRESS);
    close_fd(&b.far);
    assert_false(fuse_durable_event(b.c.s));
    for (uint64_t i = 1; i < 4; i++)
        assert_int_equal(fsync_as(&b, i, node, fh), -EIO);
    client_fini(&b.c);
}

/* 0, or what went wrong: a mark comes and goes, and the mode stays. */
static int mark_read_only(int fd)
{
    struct stat st;
    char id[LATER_SIZE];
    if (fsetxattr(fd, LATER_XATTR, "x", 1, 0) == 0)
        return 2; /* the kernel does not mind: this proves nothing */
    if (later_mark(fd, LATER_XATTR, "0123456789abcdef", 16) < 0 || !later_get(fd, id))
        return 3;
    if (later_mark(fd, LATER_XATTR, NULL, 0) < 0 || later_get(fd, id))
        return 4;
    return fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0444 ? 0 : 5;
}

/* Git's objects are files that their owner may not write. */
static void test_marks_of_what_is_write_protected(void **state)
{
    struct box b;
    box_init(&b);
    (void)put_later(&b, "f"); /* or skip: no attributes here */
    AUTO_CLOSE int fd = openat(b.c.dir_fd, "g", O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    assert_true(fd >= 0);
    if (geteuid() == 0)
        assert_int_equal(fchown(fd, 65534, 65534), 0);
    pid_t pid = fork();
    if (pid == 0) /* root may do everything */
        _exit(geteuid() == 0 && setresuid(65534, 65534, 65534) < 0 ? 1 : mark_read_only(fd));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    box_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_open_waits_for_the_content),
        cmocka_unit_test(test_what_is_here_stays_here_as_long_as_its_number_does),
        cmocka_unit_test(test_nothing_is_served_before_the_gate_opens),
        cmocka_unit_test(test_failures_are_the_guests),
        cmocka_unit_test(test_truncation_needs_no_content),
        cmocka_unit_test(test_what_waits_is_bounded_and_marks_are_ours),
        cmocka_unit_test(test_parts_come_as_they_are_read),
        cmocka_unit_test(test_no_part_is_behind_the_end),
        cmocka_unit_test(test_the_largest_files_come_whole),
        cmocka_unit_test(test_marks_of_what_is_write_protected),
        cmocka_unit_test(test_an_fsync_waits_for_a_sync_that_begins_after_it),
        cmocka_unit_test(test_an_fsync_finds_room_behind_many_changes),
        cmocka_unit_test(test_read_only_files_stay_so_for_all_at_once),
        cmocka_unit_test(test_an_fsync_fails_when_nobody_syncs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
