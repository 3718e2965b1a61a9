#include "copy/guest.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

/* --- out --- */

struct getting {
    struct files *f;
    struct tree_sink *to;
    struct tree_progress *p;
    struct err *e;
    const char *first; /* name of the first entry; NULL once that has come */
    int depth;
    bool in_file;
    uint64_t left; /* of the file */
};

static int violation(const struct getting *g, const char *what)
{
    return err_set(g->e, EPROTO, "sandbox '%s' broke the protocol: %s", g->f->name, what);
}

static int end_file(struct getting *g)
{
    if (!g->in_file)
        return 0;
    g->in_file = false;
    return g->to->ops->done(g->to, g->e);
}

static int on_entry(struct getting *g, const struct proto_frame *frame)
{
    static struct file_attr a;
    int r = end_file(g);
    if (r < 0)
        return r;
    if (file_attr_parse(&a, frame) < 0 || !(a.has & FILE_HAS_NAME) || !(a.has & FILE_HAS_MODE))
        return violation(g, "a malformed entry");
    if (g->depth == 0 && !g->first)
        return violation(g, "a second tree");
    a.has &= ~(uint32_t)FILE_HAS_HARD; /* not in what a guest sends */
    if (g->first)
        (void)snprintf(a.name, sizeof(a.name), "%s", g->first);
    g->first = NULL;
    r = tree_note(g->p, &a, g->e);
    if (r < 0)
        return r;
    if (S_ISDIR(a.mode)) {
        if (g->depth++ == PROTO_DEPTH_MAX)
            return violation(g, "directories nested too deeply");
        return g->to->ops->dir(g->to, &a, g->e);
    }
    if (S_ISLNK(a.mode)) {
        if (!(a.has & FILE_HAS_TARGET))
            return violation(g, "a link without a target");
        return g->to->ops->link(g->to, &a, g->e);
    }
    if (!S_ISREG(a.mode))
        return 0;
    g->in_file = true;
    g->left = a.size;
    return g->to->ops->file(g->to, &a, g->e);
}

static int on_data(struct getting *g, const struct proto_frame *frame)
{
    if (!g->in_file)
        return violation(g, "data outside a file");
    if (frame->len > g->left)
        return violation(g, "more data than announced");
    g->left -= frame->len;
    tree_note_bytes(g->p, frame->len);
    return g->to->ops->data(g->to, frame->data, frame->len, g->e);
}

static int on_leave(struct getting *g)
{
    int r = end_file(g);
    if (r < 0)
        return r;
    if (g->depth-- == 0)
        return violation(g, "more directories left than entered");
    return g->to->ops->leave(g->to, g->e);
}

static int on_end(struct getting *g)
{
    int r = end_file(g);
    if (r < 0)
        return r;
    if (g->depth)
        return violation(g, "a directory was not left");
    if (g->first)
        return err_set(g->e, ENOENT, "%s: it disappeared before it could be read", g->f->name);
    return 0;
}

/* 1: that was all. */
static int on_frame(struct getting *g, const struct proto_frame *frame)
{
    int r;
    switch (frame->type) {
    case PROTO_FILE_ENTRY:
        return on_entry(g, frame);
    case PROTO_FILE_DATA:
        return on_data(g, frame);
    case PROTO_FILE_LEAVE:
        return on_leave(g);
    case PROTO_FILE_OK:
        r = on_end(g);
        return r < 0 ? r : 1;
    default:
        return 0; /* of a later version */
    }
}

int tree_from_guest(struct files *f, const char *path, bool follow, const char *name,
                    struct tree_sink *to, struct tree_progress *p, struct err *e)
{
    static struct file_req q;
    struct getting g = {.f = f, .to = to, .p = p, .e = e, .first = name};
    struct proto_frame frame;
    int r = file_req_init(&q, FILE_OP_GET, path, follow ? FILE_FOLLOW : 0);
    if (r < 0)
        return err_sys(e, -r, "%.256s", path);
    q.has |= FILE_HAS_LIMIT;
    q.limit = COPY_ENTRIES_MAX;
    r = files_send(f, &q, e);
    while (r == 0 && (r = files_next(f, &frame, e)) == 0)
        r = on_frame(&g, &frame);
    return r < 0 ? r : 0;
}

/* --- in --- */

/* Anything that arrives before the end can only be a failure. */
static int look(struct guest_sink *g, int r, struct err *e)
{
    if (r < 0 || !files_answered(g->f))
        return r;
    r = files_wait(g->f, NULL, e);
    return r < 0
               ? r
               : err_set(e, EPROTO, "sandbox '%s' broke the protocol: an early answer", g->f->name);
}

static int put(struct tree_sink *s, uint16_t type, const struct file_attr *a, struct err *e)
{
    struct guest_sink *g = (struct guest_sink *)s;
    return look(g, files_send_part(g->f, type, a, e), e);
}

static int put_entry(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    const struct guest_sink *g = (struct guest_sink *)s;
    if (g->merge && g->depth == 0)
        return err_set(e, ENOTDIR, "only a directory can be merged with a directory");
    return put(s, PROTO_FILE_ENTRY, a, e);
}

static int put_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct guest_sink *g = (struct guest_sink *)s;
    return g->depth++ == 0 && g->merge ? 0 : put(s, PROTO_FILE_ENTRY, a, e);
}

static int put_leave(struct tree_sink *s, struct err *e)
{
    struct guest_sink *g = (struct guest_sink *)s;
    assert(g->depth > 0);
    return --g->depth == 0 && g->merge ? 0 : put(s, PROTO_FILE_LEAVE, NULL, e);
}

static int put_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct guest_sink *g = (struct guest_sink *)s;
    return look(g, files_send_data(g->f, p, n, e), e);
}

static int put_done(struct tree_sink *s, struct err *e)
{
    return 0;
}

static const struct tree_sink_ops ops = {
    .dir = put_dir,
    .leave = put_leave,
    .file = put_entry,
    .data = put_data,
    .done = put_done,
    .link = put_entry,
};

int guest_sink_begin(struct guest_sink *g, struct files *f, const char *dir, bool merge, bool owner,
                     struct err *e)
{
    static struct file_req q;
    *g = (struct guest_sink){.sink.ops = &ops, .f = f, .merge = merge};
    int r = file_req_init(&q, FILE_OP_PUT, dir, owner ? FILE_OWNER : 0);
    if (r < 0)
        return err_sys(e, -r, "%.256s", dir);
    return files_send(f, &q, e);
}

int guest_sink_end(struct guest_sink *g, struct err *e)
{
    int r = files_send_part(g->f, PROTO_FILE_END, NULL, e);
    return r < 0 ? r : files_wait(g->f, NULL, e);
}
