#include "image/layer/to_tar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image/erofs/disk.h"
#include "image/erofs/format.h"
#include "image/layer/links.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    COPY_SIZE = 256 << 10,
    WHITEOUT_PREFIX = 4,
    /* As deep as a tree can be, each name as long as it can be, with slashes. */
    PATH_SIZE = (TREE_DEPTH_MAX + 1) * (TREE_NAME_MAX + 1) + 64,
};

struct frame {
    struct tree_iter it;
    size_t path_len;
};

struct walk {
    int fd;
    struct tar_out *o;
    uint64_t start; /* of the layer in the output */
    struct err *e;
    char *path;  /* of the current entry, without a leading slash */
    size_t len;  /* of it */
    size_t base; /* where its last name begins */
    struct frame *stack;
    uint8_t *buf;
    /* The first name of each inode that has several. */
    char **first;
    size_t n_first, cap_first;
    struct layer_links links;
};

typedef int (*visit_fn)(struct walk *w, struct tree_inode *ino);

static int output_failed(struct walk *w, int r)
{
    if (r == -EINVAL)
        return err_set(w->e, EINVAL, "'/%.512s' has an attribute that tar cannot represent",
                       w->path);
    return r < 0 ? err_sys(w->e, -r, "cannot write the archive") : 0;
}

/* ---- walking ---- */

/* Calls fn for every entry except the root, a directory before its contents. */
static int walk_tree(struct walk *w, struct tree *t, visit_fn fn)
{
    size_t depth = 1;
    int r = 0;
    tree_iter_init(&w->stack[0].it, t->root);
    w->stack[0].path_len = 0;
    while (r == 0 && depth) {
        struct frame *f = &w->stack[depth - 1];
        struct tree_dirent *d = tree_iter_next(&f->it);
        if (!d) {
            depth--;
            continue;
        }
        if (f->path_len + d->name_len + 2 + WHITEOUT_PREFIX > PATH_SIZE)
            return err_set(w->e, ENAMETOOLONG, "a path of the layer is too long");
        w->base = f->path_len;
        memcpy(w->path + w->base, d->name, d->name_len);
        w->len = w->base + d->name_len;
        w->path[w->len] = '\0';
        r = fn(w, d->inode);
        if (r == 0 && S_ISDIR(d->inode->mode)) {
            if (depth > TREE_DEPTH_MAX)
                return err_set(w->e, ENAMETOOLONG, "the layer is nested too deeply");
            w->path[w->base + d->name_len] = '/';
            tree_iter_init(&w->stack[depth].it, d->inode);
            w->stack[depth++].path_len = w->base + d->name_len + 1;
        }
    }
    return r;
}

/* ---- entries ---- */

/* A tar begins with a name, which could look like the magic number of a compressed file ("BZhack"):
 * the first name gets a harmless start. */
static int put_header(struct walk *w, const struct tar_entry *t, const struct tree_xattr *x)
{
    struct tar_entry first = *t;
    AUTO_FREE char *dotted = NULL;
    if (w->o->bytes == w->start && t->path[0] != '.') {
        if (asprintf(&dotted, "./%s", t->path) < 0) {
            dotted = NULL;
            return err_oom(w->e);
        }
        first.path = dotted;
    }
    return output_failed(w, tar_put_header_xattrs(w->o, &first, x));
}

static struct tar_entry entry_of(const struct tree_inode *ino, const char *path)
{
    return (struct tar_entry){.path = path,
                              .mode = ino->mode,
                              .uid = ino->uid,
                              .gid = ino->gid,
                              .mtime = ino->mtime,
                              .mtime_nsec = ino->mtime_nsec};
}

static int copy_range(struct walk *w, uint64_t at, uint64_t n)
{
    while (n) {
        size_t k = (size_t)MIN(n, (uint64_t)COPY_SIZE);
        int r = pread_all(w->fd, w->buf, k, at);
        if (r < 0)
            return err_sys(w->e, -r, "cannot read the layer");
        r = tar_out_write(w->o, w->buf, k);
        if (r < 0)
            return output_failed(w, r);
        at += k;
        n -= k;
    }
    return 0;
}

static int put_data(struct walk *w, const struct tree_inode *ino)
{
    bool tail = ino->flags & TREE_INLINE_TAIL;
    uint64_t blocks = tail ? ino->size / EROFS_BLOCK_SIZE * EROFS_BLOCK_SIZE : ino->size;
    int r = copy_range(w, ino->data.block * EROFS_BLOCK_SIZE, blocks);
    if (r == 0 && tail)
        r = copy_range(w, ino->data.tail, ino->size - blocks);
    return r < 0 ? r : output_failed(w, tar_put_padding(w->o, ino->size));
}

/* An empty file whose name is its meaning. */
static int put_mark(struct walk *w, const char *path)
{
    const struct tar_entry t = {.path = path, .type = '0'};
    return put_header(w, &t, NULL);
}

static int put_whiteout(struct walk *w)
{
    char *name = w->path + w->base;
    memmove(name + WHITEOUT_PREFIX, name, w->len - w->base + 1);
    memcpy(name, ".wh.", WHITEOUT_PREFIX);
    return put_mark(w, w->path);
}

static int put_directory(struct walk *w, const struct tree_inode *ino)
{
    static const char opaque[] = ".wh..wh..opq";
    int r = 0;
    memcpy(w->path + w->len, "/", 2);
    if (!(ino->flags & TREE_IMPLICIT)) {
        struct tar_entry t = entry_of(ino, w->len ? w->path : "./");
        t.type = '5';
        r = put_header(w, &t, ino->xattrs);
    }
    if (r == 0 && (ino->flags & TREE_OPAQUE)) {
        memcpy(w->path + w->len + (w->len ? 1 : 0), opaque, sizeof(opaque));
        r = put_mark(w, w->path);
    }
    return r;
}

static int put_link(struct walk *w, const char *target)
{
    const struct tar_entry t = {.path = w->path, .type = '1', .link = target, .mode = 0644};
    return put_header(w, &t, NULL);
}

static int put_other(struct walk *w, const struct tree_inode *ino)
{
    struct tar_entry t = entry_of(ino, w->path);
    switch (ino->mode & S_IFMT) {
    case S_IFREG:
        t.type = '0';
        t.size = ino->size;
        break;
    case S_IFLNK:
        t.type = '2';
        t.link = ino->target;
        break;
    case S_IFCHR:
    case S_IFBLK:
        t.type = S_ISCHR(ino->mode) ? '3' : '4';
        t.major = ino->dev.major;
        t.minor = ino->dev.minor;
        break;
    case S_IFIFO:
        t.type = '6';
        break;
    default:
        return err_set(w->e, EINVAL, "'/%.512s' is of a type that tar cannot represent", w->path);
    }
    int r = put_header(w, &t, ino->xattrs);
    return r == 0 && S_ISREG(ino->mode) ? put_data(w, ino) : r;
}

/* ---- the passes ---- */

static int count_names(struct walk *w, struct tree_inode *ino)
{
    ino->nlink++;
    return 0;
}

static int note_link(struct walk *w, struct tree_inode *ino)
{
    return ino->flags & TREE_LINK ? layer_links_add(&w->links, w->path, ino->target) : 0;
}

/* Writes hard links to files in lower layers. */
static int put_links(struct walk *w, struct tree *t)
{
    int r = walk_tree(w, t, note_link);
    if (r == 0)
        r = layer_links_sort(&w->links);
    if (r == -ENOMEM)
        return err_oom(w->e);
    for (size_t i = 0; r == 0 && i < w->links.n; i++) {
        const struct layer_link *l = w->links.order[i];
        (void)snprintf(w->path, PATH_SIZE, "%s", l->path);
        r = put_link(w, l->target);
    }
    return r;
}

static int note_first(struct walk *w)
{
    if (ARRAY_GROW(w->first, w->n_first, w->cap_first, 64) < 0)
        return err_oom(w->e);
    char *name = strdup(w->path);
    if (!name)
        return err_oom(w->e);
    w->first[w->n_first++] = name;
    return 0;
}

/* The first of several names is the file, the others are links to it. */
static int put_entry(struct walk *w, struct tree_inode *ino)
{
    if (ino->flags & TREE_LINK)
        return 0;
    if (S_ISDIR(ino->mode))
        return put_directory(w, ino);
    if (ino->flags & TREE_WHITEOUT)
        return put_whiteout(w);
    if (S_ISSOCK(ino->mode)) /* useless without its process */
        return 0;
    if (ino->nlink > 1) {
        if (ino->nid && w->first)
            return put_link(w, w->first[ino->nid - 1]);
        int r = note_first(w);
        if (r < 0)
            return r;
        ino->nid = w->n_first;
    }
    return put_other(w, ino);
}

static int put_all(struct walk *w, struct tree *t)
{
    int r = walk_tree(w, t, count_names);
    if (r == 0 && t->has_links)
        r = put_links(w, t);
    if (r == 0) {
        w->len = 0;
        r = put_directory(w, t->root);
    }
    if (r == 0)
        r = walk_tree(w, t, put_entry);
    return r < 0 ? r : output_failed(w, tar_put_end(w->o));
}

int layer_write_tar(int fd, struct tar_out *o, struct err *e)
{
    struct tree t;
    struct walk w = {.fd = fd, .o = o, .start = o->bytes, .e = e};
    if (tree_init(&t, 0, 0) < 0)
        return err_oom(w.e);
    w.path = malloc(PATH_SIZE + 64);
    w.stack = calloc(TREE_DEPTH_MAX + 1, sizeof(*w.stack));
    w.buf = malloc(COPY_SIZE);
    int r = -ENOMEM;
    if (!w.path || !w.stack || !w.buf)
        (void)err_oom(w.e);
    else if ((r = erofs_load_tree(fd, 0, &t, e)) == 0)
        r = put_all(&w, &t);
    for (size_t i = 0; i < w.n_first; i++)
        free(w.first[i]);
    free(w.first);
    layer_links_free(&w.links);
    free(w.path);
    free(w.stack);
    free(w.buf);
    tree_free(&t);
    return r;
}

int layer_measure_tar(int fd, struct digest *ret, uint64_t *ret_size, struct err *e)
{
    struct hasher h;
    struct tar_out o;
    hasher_init(&h);
    if (tar_out_init(&o, -1, &h) < 0)
        return err_oom(e);
    int r = layer_write_tar(fd, &o, e);
    if (r == 0)
        (void)tar_out_flush(&o);
    *ret_size = o.bytes;
    tar_out_free(&o);
    *ret = hasher_finish(&h);
    return r;
}
