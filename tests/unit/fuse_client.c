#include "fuse_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum { PIECES = 4 };

void client_init(struct fuse_client *c, const struct fuse_options *o)
{
    struct fuse_options opt = o ? *o : (struct fuse_options){0};
    *c = (struct fuse_client){.room = 1 << 20};
    (void)umask(0);
    (void)snprintf(c->dir, sizeof(c->dir), "/tmp/test-fs-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    c->dir_fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(c->dir_fd >= 0);
    assert_int_equal(chdir("/proc/self/fd"), 0);
    if (opt.file) {
        int fd = openat(c->dir_fd, opt.file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0 && write(fd, "content", 7) == 7);
        (void)close(fd);
        opt.root_fd = openat(c->dir_fd, opt.file, O_PATH | O_CLOEXEC);
    } else if (opt.many) {
        opt.root_fd = -1;
    } else {
        opt.root_fd = open(c->dir, O_PATH | O_CLOEXEC);
    }
    opt.privileged = geteuid() == 0;
    assert_int_equal(fuse_new(&c->s, &opt), 0);
    client_hello(c);
}

void client_fini(struct fuse_client *c)
{
    fuse_free(c->s);
    free(c->rep);
    (void)close(c->dir_fd);
    assert_int_equal(remove_tree_at(AT_FDCWD, c->dir), 0);
}

/* Cuts [p, p+n) into pieces of odd sizes, copied to the heap. */
static unsigned scatter(struct iovec *iov, const uint8_t *p, size_t n)
{
    static const size_t sizes[PIECES - 1] = {17, 40, 3};
    unsigned k = 0;
    for (; k < PIECES && n > 0; k++) {
        size_t len = k < PIECES - 1 && sizes[k] < n ? sizes[k] : n;
        iov[k] = (struct iovec){malloc(len), len};
        assert_non_null(iov[k].iov_base);
        if (p) {
            memcpy(iov[k].iov_base, p, len);
            p += len;
        }
        n -= len;
    }
    return k;
}

static void gather(struct iovec *iov, unsigned k, uint8_t *to)
{
    for (unsigned i = 0; i < k; i++) {
        if (to) {
            memcpy(to, iov[i].iov_base, iov[i].iov_len);
            to += iov[i].iov_len;
        }
        free(iov[i].iov_base);
    }
}

ssize_t client_raw(struct fuse_client *c, const void *p, size_t n, size_t room)
{
    struct iovec out[PIECES], in[PIECES];
    struct fuse_request q = {.out = out, .out_len = n, .in = in, .in_len = room};
    q.n_out = scatter(out, p, n);
    q.n_in = scatter(in, NULL, room);
    ssize_t r = fuse_serve(c->s, &q);
    uint8_t *rep = malloc(room + 1);
    assert_non_null(rep);
    gather(out, q.n_out, NULL);
    gather(in, q.n_in, rep);
    assert_true(r <= (ssize_t)room);
    free(c->rep);
    c->rep = rep;
    c->rep_len = r > 0 ? (size_t)r : 0;
    return r;
}

int client_call(struct fuse_client *c, uint32_t op, uint64_t node, const void *arg, size_t n,
                const void *more, size_t m)
{
    static uint64_t unique;
    struct fuse_in_header h = {.len = (uint32_t)(sizeof(h) + n + m),
                               .opcode = op,
                               .unique = ++unique,
                               .nodeid = node,
                               .uid = c->uid,
                               .gid = c->gid};
    AUTO_FREE uint8_t *buf = malloc(h.len);
    assert_non_null(buf);
    memcpy(buf, &h, sizeof(h));
    if (n)
        memcpy(buf + sizeof(h), arg, n);
    if (m)
        memcpy(buf + sizeof(h) + n, more, m);
    size_t room = c->room, only = sizeof(struct fuse_out_header);
    only += op == FUSE_LOOKUP    ? sizeof(struct fuse_entry_out)
            : op == FUSE_MKDIR   ? sizeof(struct fuse_entry_out)
            : op == FUSE_OPENDIR ? sizeof(struct fuse_open_out)
            : op == FUSE_CREATE  ? sizeof(struct fuse_entry_out) + sizeof(struct fuse_open_out)
                                 : room;
    ssize_t r = client_raw(c, buf, h.len, c->ahead ? room : MIN(room, only));
    if (r <= 0)
        return (int)r;
    struct fuse_out_header out;
    memcpy(&out, c->rep, sizeof(out));
    assert_int_equal(out.len, r);
    assert_true(out.unique == h.unique);
    assert_true(out.error <= 0 && (out.error == 0 || r == (ssize_t)sizeof(out)));
    c->rep_len = (size_t)r - sizeof(out);
    memmove(c->rep, c->rep + sizeof(out), c->rep_len);
    return out.error;
}

int client_name(struct fuse_client *c, uint32_t op, uint64_t node, const void *arg, size_t n,
                const char *name, const char *second)
{
    size_t a = strlen(name) + 1, b = second ? strlen(second) + 1 : 0;
    AUTO_FREE char *both = malloc(a + b);
    assert_non_null(both);
    memcpy(both, name, a);
    if (second)
        memcpy(both + a, second, b);
    return client_call(c, op, node, arg, n, both, a + b);
}

void client_put(const struct fuse_client *c, const char *name, const char *text)
{
    int fd = openat(c->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

void client_hello(struct fuse_client *c)
{
    struct fuse_init_in in = {.major = FUSE_KERNEL_VERSION,
                              .minor = FUSE_KERNEL_MINOR_VERSION,
                              .max_readahead = 1 << 20,
                              .flags = UINT32_MAX,
                              .flags2 = UINT32_MAX};
    assert_int_equal(client_call(c, FUSE_INIT, 0, &in, sizeof(in), NULL, 0), 0);
    assert_int_equal(c->rep_len, sizeof(struct fuse_init_out));
}

static int answer(struct fuse_client *c, int r, void *to, size_t n)
{
    if (r < 0)
        return r;
    assert_true(c->rep_len >= n);
    if (to)
        memcpy(to, c->rep, n);
    return 0;
}

int client_lookup(struct fuse_client *c, uint64_t dir, const char *name, struct fuse_entry_out *ret)
{
    struct fuse_entry_out e = {0};
    int r = answer(c, client_name(c, FUSE_LOOKUP, dir, NULL, 0, name, NULL), &e, sizeof(e));
    if (r < 0)
        return r;
    if (ret)
        *ret = e;
    return e.nodeid ? 0 : -ENOENT; /* it is told, too, that there is no such name */
}

int client_open(struct fuse_client *c, uint64_t node, uint32_t flags, uint64_t *ret)
{
    struct fuse_open_in in = {.flags = flags};
    struct fuse_open_out out = {0};
    int r = answer(c, client_call(c, FUSE_OPEN, node, &in, sizeof(in), NULL, 0), &out, sizeof(out));
    if (r == 0)
        *ret = out.fh;
    return r;
}

int client_create(struct fuse_client *c, uint64_t dir, const char *name, uint32_t flags,
                  uint32_t mode, uint64_t *ret_node, uint64_t *ret_fh)
{
    struct fuse_create_in in = {.flags = flags, .mode = mode};
    struct {
        struct fuse_entry_out e;
        struct fuse_open_out o;
    } out = {0};
    int r =
        answer(c, client_name(c, FUSE_CREATE, dir, &in, sizeof(in), name, NULL), &out, sizeof(out));
    if (r == 0) {
        *ret_node = out.e.nodeid;
        *ret_fh = out.o.fh;
    }
    return r;
}

int client_write(struct fuse_client *c, uint64_t node, uint64_t fh, uint64_t off, const void *p,
                 size_t n)
{
    struct fuse_write_in in = {.fh = fh, .offset = off, .size = (uint32_t)n};
    struct fuse_write_out out = {0};
    int r = answer(c, client_call(c, FUSE_WRITE, node, &in, sizeof(in), p, n), &out, sizeof(out));
    return r < 0 ? r : (int)out.size;
}

int client_read(struct fuse_client *c, uint64_t node, uint64_t fh, uint64_t off, size_t n)
{
    struct fuse_read_in in = {.fh = fh, .offset = off, .size = (uint32_t)n};
    int r = client_call(c, FUSE_READ, node, &in, sizeof(in), NULL, 0);
    return r < 0 ? r : (int)c->rep_len;
}

int client_release(struct fuse_client *c, uint64_t node, uint64_t fh)
{
    struct fuse_release_in in = {.fh = fh};
    return client_call(c, FUSE_RELEASE, node, &in, sizeof(in), NULL, 0);
}

int client_getattr(struct fuse_client *c, uint64_t node, struct fuse_attr *ret)
{
    struct fuse_getattr_in in = {0};
    struct fuse_attr_out out = {0};
    int r =
        answer(c, client_call(c, FUSE_GETATTR, node, &in, sizeof(in), NULL, 0), &out, sizeof(out));
    if (r == 0)
        *ret = out.attr;
    return r;
}

int client_setattr(struct fuse_client *c, uint64_t node, const struct fuse_setattr_in *in,
                   struct fuse_attr *ret)
{
    struct fuse_attr_out out = {0};
    int r =
        answer(c, client_call(c, FUSE_SETATTR, node, in, sizeof(*in), NULL, 0), &out, sizeof(out));
    if (r == 0 && ret)
        *ret = out.attr;
    return r;
}

int client_mkdir(struct fuse_client *c, uint64_t dir, const char *name, uint32_t mode,
                 uint64_t *ret_node)
{
    struct fuse_mkdir_in in = {.mode = mode};
    struct fuse_entry_out e = {0};
    int r = answer(c, client_name(c, FUSE_MKDIR, dir, &in, sizeof(in), name, NULL), &e, sizeof(e));
    if (r == 0 && ret_node)
        *ret_node = e.nodeid;
    return r;
}

void client_forget(struct fuse_client *c, uint64_t node, uint64_t n)
{
    struct fuse_forget_in in = {.nlookup = n};
    assert_int_equal(client_call(c, FUSE_FORGET, node, &in, sizeof(in), NULL, 0), 0);
}

unsigned client_count_entries(struct fuse_client *c, uint64_t node, uint32_t op, bool jump)
{
    struct fuse_open_in open_in = {0};
    struct fuse_open_out out;
    size_t head = op == FUSE_READDIRPLUS ? sizeof(struct fuse_entry_out) : 0;
    unsigned n = 0;
    uint64_t off = 0;
    assert_int_equal(client_call(c, FUSE_OPENDIR, node, &open_in, sizeof(open_in), NULL, 0), 0);
    memcpy(&out, c->rep, sizeof(out));
    for (;;) {
        struct fuse_read_in in = {.fh = out.fh, .offset = off, .size = jump ? 700 : 4096};
        assert_int_equal(client_call(c, op, node, &in, sizeof(in), NULL, 0), 0);
        if (c->rep_len == 0)
            break;
        for (size_t at = 0; at < c->rep_len;) {
            struct fuse_dirent d;
            memcpy(&d, c->rep + at + head, FUSE_NAME_OFFSET);
            n += d.namelen > 2;
            off = d.off;
            at += FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + d.namelen);
            if (jump) /* only the first of each reply is used: the next one asks again */
                break;
        }
    }
    struct fuse_release_in rel = {.fh = out.fh};
    assert_int_equal(client_call(c, FUSE_RELEASEDIR, node, &rel, sizeof(rel), NULL, 0), 0);
    return n;
}
