#include "copy/tar.h"

#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static struct tar_sink *self(struct tree_sink *s)
{
    return (struct tar_sink *)s;
}

static int failed(struct err *e, int code)
{
    return err_sys(e, code, "cannot write the archive");
}

/* The path of a thing that is called `name` here. Components are short and depth is bounded, so it
 * fits. */
static size_t append(struct tar_sink *t, const char *name, const char *end)
{
    size_t at = t->len[t->depth], n = strlen(name), k = strlen(end);
    assert(at + n + k < sizeof(t->path));
    memcpy(t->path + at, name, n);
    memcpy(t->path + at + n, end, k + 1);
    return at + n + k;
}

static int put_header(struct tar_sink *t, const struct file_attr *a, char type, struct err *e)
{
    struct timespec mtime = file_timespec(a->mtime_ns);
    struct tar_entry entry = {.path = t->path,
                              .type = type,
                              .link = type == '2' ? a->target : NULL,
                              .mode = (uint16_t)(a->mode & 07777),
                              .uid = a->uid,
                              .gid = a->gid,
                              .mtime = mtime.tv_sec,
                              .mtime_nsec = (uint32_t)mtime.tv_nsec,
                              .size = type == '0' ? a->size : 0};
    int r = tar_put_header(&t->out, &entry);
    return r < 0 ? failed(e, -r) : 0;
}

static int sink_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct tar_sink *t = self(s);
    if (t->depth + 1 == (int)ARRAY_LEN(t->len))
        return failed(e, ELOOP);
    size_t n = append(t, a->name, "/");
    t->len[++t->depth] = n;
    return put_header(t, a, '5', e);
}

static int sink_leave(struct tree_sink *s, struct err *e)
{
    assert(self(s)->depth > 0);
    self(s)->depth--;
    return 0;
}

static int sink_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct tar_sink *t = self(s);
    (void)append(t, a->name, "");
    t->size = t->left = a->size;
    return put_header(t, a, '0', e);
}

static int sink_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct tar_sink *t = self(s);
    assert(n <= t->left);
    t->left -= n;
    int r = tar_out_write(&t->out, p, n);
    return r < 0 ? failed(e, -r) : 0;
}

/* A file that has shrunk meanwhile: the header has promised more. */
static int sink_done(struct tree_sink *s, struct err *e)
{
    static const uint8_t zeros[4096];
    struct tar_sink *t = self(s);
    int r = 0;
    for (; r == 0 && t->left; t->left -= MIN(t->left, (uint64_t)sizeof(zeros)))
        r = tar_out_write(&t->out, zeros, (size_t)MIN(t->left, (uint64_t)sizeof(zeros)));
    if (r == 0)
        r = tar_put_padding(&t->out, t->size);
    return r < 0 ? failed(e, -r) : 0;
}

static int sink_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct tar_sink *t = self(s);
    (void)append(t, a->name, "");
    return put_header(t, a, '2', e);
}

static const struct tree_sink_ops ops = {
    .dir = sink_dir,
    .leave = sink_leave,
    .file = sink_file,
    .data = sink_data,
    .done = sink_done,
    .link = sink_link,
};

int tar_sink_begin(struct tar_sink *t, int fd, struct err *e)
{
    memset(t, 0, sizeof(*t));
    t->sink.ops = &ops;
    int r = tar_out_init(&t->out, fd, NULL);
    return r < 0 ? failed(e, -r) : 0;
}

int tar_sink_end(struct tar_sink *t, struct err *e)
{
    int r = tar_put_end(&t->out);
    if (r == 0)
        r = tar_out_flush(&t->out);
    return r < 0 ? failed(e, -r) : 0;
}

void tar_sink_free(struct tar_sink *t)
{
    tar_out_free(&t->out);
}
