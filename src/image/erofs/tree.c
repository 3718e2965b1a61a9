#include "image/erofs/tree.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"

enum { CHUNK_MIN = 16 << 10, CHUNK_MAX = 1 << 20 };

struct tree_chunk {
    struct tree_chunk *next;
    uint64_t bytes[]; /* aligned for anything we keep */
};

/* Bytes from the tree's memory, freed with it; aligned to 8. */
static void *tree_alloc(struct tree *t, size_t n)
{
    n = (n + 7) & ~(size_t)7;
    if (!t->chunks || t->chunk_size - t->chunk_used < n) {
        size_t size = t->chunk_size ? MIN(t->chunk_size * 2, (size_t)CHUNK_MAX) : CHUNK_MIN;
        size = MAX(size, n);
        if (size > TREE_MEMORY_MAX - t->memory)
            return NULL;
        struct tree_chunk *c = malloc(sizeof(*c) + size);
        if (!c)
            return NULL;
        c->next = t->chunks;
        t->chunks = c;
        t->chunk_size = size;
        t->memory += size;
        t->chunk_used = 0;
    }
    void *p = (char *)t->chunks->bytes + t->chunk_used;
    t->chunk_used += n;
    memset(p, 0, n);
    return p;
}

static struct tree_inode *new_dir(struct tree *t, struct tree_inode *parent)
{
    struct tree_inode *ino = tree_alloc(t, sizeof(*ino));
    if (!ino)
        return NULL;
    ino->mode = S_IFDIR | 0755;
    ino->flags = TREE_IMPLICIT;
    ino->dir.parent = parent ? parent : ino;
    ino->dir.depth = parent ? parent->dir.depth + 1 : 0;
    return ino;
}

int tree_init(struct tree *t, uint32_t max_entries, uint64_t max_bytes)
{
    *t = (struct tree){.max_entries = max_entries ? max_entries : TREE_ENTRIES_MAX,
                       .max_bytes = max_bytes ? max_bytes : UINT64_MAX};
    t->root = new_dir(t, NULL);
    return t->root ? 0 : -ENOMEM;
}

void tree_free(struct tree *t)
{
    for (struct tree_chunk *c = t->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *t = (struct tree){0};
}

/* ---- the children of a directory ---- */

static int name_cmp(const char *a, size_t alen, const char *b, size_t blen)
{
    int c = memcmp(a, b, MIN(alen, blen));
    if (c)
        return c;
    return alen < blen ? -1 : alen > blen;
}

static struct tree_dirent *child_find(const struct tree_inode *dir, const char *name, size_t len)
{
    struct tree_dirent *d = dir->dir.children;
    while (d) {
        int c = name_cmp(name, len, d->name, d->name_len);
        if (!c)
            return d;
        d = c < 0 ? d->left : d->right;
    }
    return NULL;
}

static struct tree_dirent *aa_skew(struct tree_dirent *n)
{
    struct tree_dirent *l = n->left;
    if (!l || l->level != n->level)
        return n;
    n->left = l->right;
    l->right = n;
    return l;
}

static struct tree_dirent *aa_split(struct tree_dirent *n)
{
    struct tree_dirent *r = n->right;
    if (!r || !r->right || r->right->level != n->level)
        return n;
    n->right = r->left;
    r->left = n;
    r->level++;
    return r;
}

/* Depth is at most twice the logarithm of the number of children. */
static struct tree_dirent *aa_insert(struct tree_dirent *n, struct tree_dirent *add)
{
    if (!n)
        return add;
    if (name_cmp(add->name, add->name_len, n->name, n->name_len) < 0)
        n->left = aa_insert(n->left, add);
    else
        n->right = aa_insert(n->right, add);
    return aa_split(aa_skew(n));
}

static struct tree_dirent *child_insert(struct tree *t, struct tree_inode *dir, const char *name,
                                        size_t len)
{
    struct tree_dirent *d = tree_alloc(t, sizeof(*d) + len + 1);
    if (!d)
        return NULL;
    d->level = 1;
    d->name_len = (uint8_t)len;
    memcpy(d->name, name, len);
    dir->dir.children = aa_insert(dir->dir.children, d);
    return d;
}

static void iter_push_left(struct tree_iter *it, struct tree_dirent *d)
{
    for (; d; d = d->left)
        it->stack[it->depth++] = d;
}

void tree_iter_init(struct tree_iter *it, const struct tree_inode *dir)
{
    it->depth = 0;
    iter_push_left(it, dir->dir.children);
}

struct tree_dirent *tree_iter_next(struct tree_iter *it)
{
    while (it->depth) {
        struct tree_dirent *d = it->stack[--it->depth];
        iter_push_left(it, d->right);
        if (d->inode)
            return d;
    }
    return NULL;
}

/* ---- paths ---- */

/* Rewrites a path as "a/b/c" (the root: "") into out[TREE_PATH_MAX]; rules 1 and 2. */
static int normalize(const char *path, char *out, struct err *e)
{
    size_t n = 0;
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");
        if (len == 2 && p[0] == '.' && p[1] == '.')
            return err_set(e, EINVAL, "entry '%.512s' has a '..' in its path", path);
        if (len > TREE_NAME_MAX)
            return err_set(e, ENAMETOOLONG, "entry '%.64s...' has a name over %d bytes", path,
                           TREE_NAME_MAX);
        if (len && !(len == 1 && p[0] == '.')) {
            if (n + len + 2 > TREE_PATH_MAX)
                return err_set(e, ENAMETOOLONG, "entry '%.64s...' has a path over %d bytes", path,
                               TREE_PATH_MAX - 1);
            if (n)
                out[n++] = '/';
            memcpy(out + n, p, len);
            n += len;
        }
        p += len + (p[len] == '/');
    }
    out[n] = '\0';
    return 0;
}

static int count_entry(struct tree *t, const char *path, struct err *e)
{
    if (t->entries >= t->max_entries)
        return err_set(e, E2BIG, "more than %u entries (at '%.512s')", t->max_entries, path);
    t->entries++;
    return 0;
}

/* The rest of a path while following links. */
struct walk {
    const char *path; /* as given, for messages */
    char rest[2 * TREE_PATH_MAX];
    size_t at;
    int links;
    struct tree_inode *dir;
    bool create; /* create missing parents */
};

static int walk_symlink(struct tree *t, struct walk *w, const char *target, struct err *e)
{
    if (++w->links > TREE_SYMLINKS_MAX)
        return err_set(e, ELOOP, "entry '%.512s' lies below too many symbolic links", w->path);
    size_t tlen = strlen(target), rlen = strlen(w->rest + w->at);
    if (tlen + 1 + rlen + 1 > sizeof(w->rest))
        return err_set(e, ENAMETOOLONG, "entry '%.512s' lies below a chain of long symbolic links",
                       w->path);
    memmove(w->rest + tlen + 1, w->rest + w->at, rlen + 1);
    memcpy(w->rest, target, tlen);
    w->rest[tlen] = '/';
    w->at = 0;
    if (target[0] == '/')
        w->dir = t->root;
    return 0;
}

static int walk_missing(struct tree *t, struct walk *w, const char *name, size_t len,
                        struct tree_dirent *d, struct err *e)
{
    if (!w->create)
        return -ENOENT;
    int r = count_entry(t, w->path, e);
    if (r < 0)
        return r;
    if (w->dir->dir.depth + 1 >= TREE_DEPTH_MAX)
        return err_set(e, ELOOP, "entry '%.512s' is nested deeper than %d directories", w->path,
                       TREE_DEPTH_MAX);
    struct tree_inode *ino = new_dir(t, w->dir);
    if (!d)
        d = child_insert(t, w->dir, name, len);
    if (!ino || !d)
        return err_oom(e);
    if (d->inode) /* deleted and recreated: nothing from below shows through */
        ino->flags |= TREE_OPAQUE;
    d->inode = ino;
    w->dir = ino;
    return 0;
}

/* Walks one component that is not the last: ends up in a directory (rules 3 and 4). */
static int walk_step(struct tree *t, struct walk *w, const char *name, size_t len, struct err *e)
{
    if (len == 0 || (len == 1 && name[0] == '.'))
        return 0;
    if (len == 2 && name[0] == '.' && name[1] == '.') { /* from a link; the root is its own
                                                         * parent */
        w->dir = w->dir->dir.parent;
        return 0;
    }
    if (len > TREE_NAME_MAX)
        return err_set(e, ENAMETOOLONG, "entry '%.512s' lies below a bad symbolic link", w->path);
    struct tree_dirent *d = child_find(w->dir, name, len);
    if (!d || !d->inode || (d->inode->flags & TREE_WHITEOUT))
        return walk_missing(t, w, name, len, d, e);
    if (S_ISDIR(d->inode->mode)) {
        w->dir = d->inode;
        return 0;
    }
    if (S_ISLNK(d->inode->mode))
        return walk_symlink(t, w, d->inode->target, e);
    if (!w->create)
        return -ENOENT;
    return err_set(e, ENOTDIR, "entry '%.512s' lies below '%s', which is not a directory", w->path,
                   d->name);
}

/* Leaves w->dir at the parent of the path's last component and *name at that component; *name is ""
 * for the root. *name points into w->rest. Without `create`, -ENOENT leaves *e alone. */
static int walk_parent(struct tree *t, struct walk *w, const char **name, struct err *e)
{
    int r = normalize(w->path, w->rest, e);
    if (r < 0)
        return r;
    w->at = 0;
    w->links = 0;
    w->dir = t->root;
    for (;;) {
        char *comp = w->rest + w->at;
        size_t len = strcspn(comp, "/");
        if (!comp[len]) {
            *name = comp;
            return 0;
        }
        char copy[TREE_NAME_MAX + 1];
        if (len > TREE_NAME_MAX)
            return err_set(e, ENAMETOOLONG, "entry '%.512s' lies below a bad symbolic link",
                           w->path);
        memcpy(copy, comp, len);
        copy[len] = '\0';
        w->at += len + 1;
        r = walk_step(t, w, copy, len, e);
        if (r < 0)
            return r;
    }
}

struct tree_inode *tree_lookup(struct tree *t, const char *path)
{
    struct walk w = {.path = path};
    const char *name = "";
    if (walk_parent(t, &w, &name, NULL) < 0)
        return NULL;
    if (!*name)
        return t->root;
    struct tree_dirent *d = child_find(w.dir, name, strlen(name));
    return d ? d->inode : NULL;
}

/* ---- adding ---- */

static int check_attr(struct tree *t, const char *path, const struct tree_attr *a, struct err *e)
{
    if (a->mtime_nsec >= 1000000000)
        return err_set(e, EINVAL, "entry '%.512s' has a bad time stamp", path);
    switch (a->mode & S_IFMT) {
    case S_IFREG:
        if (a->size > INT64_MAX || a->size > t->max_bytes - t->bytes)
            return err_set(e, EFBIG,
                           "entry '%.512s' takes the image over the limit of %llu MiB expanded",
                           path, (unsigned long long)(t->max_bytes >> 20));
        return 0;
    case S_IFLNK:
        if (!a->target || !a->target[0])
            return err_set(e, EINVAL, "entry '%.512s' is a symbolic link without a target", path);
        if (strlen(a->target) >= TREE_PATH_MAX)
            return err_set(e, ENAMETOOLONG, "entry '%.512s' is a symbolic link over %d bytes", path,
                           TREE_PATH_MAX - 1);
        return 0;
    case S_IFCHR:
    case S_IFBLK:
        if (a->major > TREE_MAJOR_MAX || a->minor > TREE_MINOR_MAX)
            return err_set(e, EINVAL, "entry '%.512s' has a bad device number %u:%u", path,
                           a->major, a->minor);
        return 0;
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
        return 0;
    default:
        return err_set(e, EINVAL, "entry '%.512s' is of an unknown type", path);
    }
}

static void set_attr(struct tree_inode *ino, const struct tree_attr *a)
{
    ino->mode = a->mode;
    ino->uid = a->uid;
    ino->gid = a->gid;
    ino->mtime = a->mtime;
    ino->mtime_nsec = a->mtime_nsec;
    ino->xattrs = NULL;
    ino->flags &= (uint8_t)~TREE_IMPLICIT;
}

static int fill_inode(struct tree *t, struct tree_inode *ino, const struct tree_attr *a)
{
    set_attr(ino, a);
    switch (a->mode & S_IFMT) {
    case S_IFREG:
        ino->size = a->size;
        t->bytes += a->size;
        break;
    case S_IFLNK: {
        size_t len = strlen(a->target);
        char *copy = tree_alloc(t, len + 1);
        if (!copy)
            return -ENOMEM;
        memcpy(copy, a->target, len);
        ino->target = copy;
        ino->size = len;
        break;
    }
    case S_IFCHR:
    case S_IFBLK:
        ino->dev.major = a->major;
        ino->dev.minor = a->minor;
        break;
    default:
        break;
    }
    return 0;
}

/* Puts `name` into `dir`, with the inode given or a new one. */
static int put(struct tree *t, struct tree_inode *dir, const char *path, const char *name,
               const struct tree_attr *attr, struct tree_inode *link, struct tree_inode **ret,
               struct err *e)
{
    int r = count_entry(t, path, e);
    if (r < 0)
        return r;
    if (dir->dir.depth + 1 >= TREE_DEPTH_MAX)
        return err_set(e, ELOOP, "entry '%.512s' is nested deeper than %d directories", path,
                       TREE_DEPTH_MAX);
    size_t len = strlen(name);
    struct tree_dirent *d = child_find(dir, name, len);
    struct tree_inode *old = d ? d->inode : NULL;
    if (old && old == link) /* a link to itself */
        return 0;
    if (!link && old && S_ISDIR(old->mode) && S_ISDIR(attr->mode)) {
        set_attr(old, attr);
        if (ret)
            *ret = old;
        return 0;
    }
    struct tree_inode *ino = link;
    if (!ino) {
        ino = S_ISDIR(attr->mode) ? new_dir(t, dir) : tree_alloc(t, sizeof(*ino));
        if (!ino || fill_inode(t, ino, attr) < 0)
            return err_oom(e);
    }
    if (!d)
        d = child_insert(t, dir, name, len);
    if (!d)
        return err_oom(e);
    if (old && (old->flags & TREE_WHITEOUT) && S_ISDIR(ino->mode))
        ino->flags |= TREE_OPAQUE;
    d->inode = ino;
    if (ret)
        *ret = ino;
    return 0;
}

int tree_add(struct tree *t, const char *path, const struct tree_attr *attr,
             struct tree_inode **ret, struct err *e)
{
    struct walk w = {.path = path, .create = true};
    const char *name;
    int r = check_attr(t, path, attr, e);
    if (r < 0)
        return r;
    r = walk_parent(t, &w, &name, e);
    if (r < 0)
        return r;
    if (*name)
        return put(t, w.dir, path, name, attr, NULL, ret, e);
    if (!S_ISDIR(attr->mode))
        return err_set(e, EINVAL, "entry '%.512s' would replace the root directory", path);
    set_attr(t->root, attr);
    if (ret)
        *ret = t->root;
    return 0;
}

static int check_name(const char *name, struct err *e)
{
    size_t len = strlen(name);
    if (len > 0 && len <= TREE_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
        strcmp(name, "..") != 0)
        return 0;
    return err_set(e, EINVAL, "invalid file name '%.256s'", name);
}

int tree_add_at(struct tree *t, struct tree_inode *dir, const char *name,
                const struct tree_attr *attr, struct tree_inode **ret, struct err *e)
{
    int r = check_name(name, e);
    if (r == 0)
        r = check_attr(t, name, attr, e);
    return r < 0 ? r : put(t, dir, name, name, attr, NULL, ret, e);
}

int tree_link_at(struct tree *t, struct tree_inode *dir, const char *name,
                 struct tree_inode *target, struct err *e)
{
    int r = check_name(name, e);
    if (r < 0)
        return r;
    if (S_ISDIR(target->mode))
        return err_set(e, EPERM, "'%.256s' is a hard link to a directory", name);
    return put(t, dir, name, name, NULL, target, NULL, e);
}

int tree_link(struct tree *t, const char *path, const char *target, struct err *e)
{
    struct tree_inode *to = tree_lookup(t, target);
    if (!to || (to->flags & TREE_WHITEOUT))
        return err_set(e, ENOENT, "entry '%.400s' is a hard link to '%.400s', which is missing",
                       path, target);
    if (S_ISDIR(to->mode))
        return err_set(e, EPERM, "entry '%.400s' is a hard link to '%.400s', a directory", path,
                       target);
    struct walk w = {.path = path, .create = true};
    const char *name;
    int r = walk_parent(t, &w, &name, e);
    if (r < 0)
        return r;
    if (!*name)
        return err_set(e, EINVAL, "entry '%.512s' would replace the root directory", path);
    return put(t, w.dir, path, name, NULL, to, NULL, e);
}

int tree_set_xattr(struct tree *t, struct tree_inode *ino, const char *name, const void *value,
                   size_t len, struct err *e)
{
    size_t nlen = strlen(name), total = nlen + len, count = 1;
    if (nlen == 0 || nlen > TREE_XATTR_NAME_MAX || len > TREE_XATTR_VALUE_MAX)
        return err_set(e, E2BIG, "extended attribute '%.64s' is too large", name);
    struct tree_xattr **at = &ino->xattrs;
    for (struct tree_xattr *x = ino->xattrs; x; x = x->next, count++)
        total += x->name_len + (size_t)x->value_len;
    if (count > TREE_XATTR_COUNT_MAX)
        return err_set(e, E2BIG, "more than %d extended attributes", TREE_XATTR_COUNT_MAX);
    if (total > TREE_XATTRS_MAX)
        return err_set(e, E2BIG, "more than %d KiB of extended attributes", TREE_XATTRS_MAX >> 10);
    while (*at && strcmp((*at)->bytes, name) < 0)
        at = &(*at)->next;
    struct tree_xattr *x = tree_alloc(t, sizeof(*x) + nlen + 1 + len);
    if (!x)
        return err_oom(e);
    x->value_len = (uint16_t)len;
    x->name_len = (uint8_t)nlen;
    memcpy(x->bytes, name, nlen);
    if (len)
        memcpy(x->bytes + nlen + 1, value, len);
    if (*at && strcmp((*at)->bytes, name) == 0) /* the last one wins */
        x->next = (*at)->next;
    else
        x->next = *at;
    *at = x;
    return 0;
}

/* ---- layers ---- */

int tree_whiteout(struct tree *t, const char *path, struct err *e)
{
    /* A whiteout only applies to lower layers: this layer's own entry with that name stays. */
    struct tree_inode *ino = tree_lookup(t, path);
    if (ino) {
        if (S_ISDIR(ino->mode))
            ino->flags |= TREE_OPAQUE;
        return 0;
    }
    int r = tree_add(t, path, &(struct tree_attr){.mode = S_IFCHR}, &ino, e);
    if (r == 0)
        ino->flags |= TREE_WHITEOUT;
    return r;
}

int tree_link_below(struct tree *t, const char *path, const char *target, struct err *e)
{
    struct tree_inode *ino = tree_lookup(t, target);
    char plain[TREE_PATH_MAX] = "";
    if (ino && !(ino->flags & TREE_WHITEOUT))
        return tree_link(t, path, target, e);
    int r = normalize(target, plain, e);
    if (r < 0)
        return r;
    const struct tree_attr a = {.mode = S_IFLNK | 0777, .target = plain[0] ? plain : "/"};
    r = tree_add(t, path, &a, &ino, e);
    if (r == 0 && ino) {
        ino->flags |= TREE_LINK;
        t->has_links = true;
    }
    return r;
}

int tree_opaque(struct tree *t, const char *path, struct err *e)
{
    struct walk w = {.path = path, .create = true};
    const char *name = "";
    int r = walk_parent(t, &w, &name, e);
    if (r < 0)
        return r;
    if (*name) {
        struct tree_dirent *d = child_find(w.dir, name, strlen(name));
        if (!d || !d->inode || (d->inode->flags & TREE_WHITEOUT))
            r = walk_missing(t, &w, name, strlen(name), d, e);
        else if (!S_ISDIR(d->inode->mode))
            r = err_set(e, ENOTDIR, "'%.512s' is marked opaque but is not a directory", path);
        else
            w.dir = d->inode;
    }
    if (r == 0)
        w.dir->flags |= TREE_OPAQUE;
    return r;
}

/* Follows the symlink `name` in `dir` to a directory; a missing one is made if `create`, else
 * -ENOENT. */
static int merge_through_link(struct tree *base, struct tree_inode *dir, const char *name,
                              const char *target, bool create, struct tree_inode **ret,
                              struct err *e)
{
    struct walk w = {.path = name, .create = create, .dir = dir};
    int r = walk_symlink(base, &w, target, e);
    while (r == 0 && w.rest[w.at]) {
        char comp[TREE_NAME_MAX + 1];
        size_t len = strcspn(w.rest + w.at, "/");
        if (len > TREE_NAME_MAX)
            return err_set(e, ENAMETOOLONG, "'%.256s' lies below a bad symbolic link", name);
        memcpy(comp, w.rest + w.at, len);
        comp[len] = '\0';
        w.at += len + (w.rest[w.at + len] == '/');
        r = walk_step(base, &w, comp, len, e);
    }
    *ret = w.dir;
    return r;
}

/* A layer's directory and the one below it; a work list instead of recursion. */
struct merge_item {
    struct merge_item *next;
    struct tree_inode *to, *from;
};

static int merge_push(struct tree *base, struct merge_item **work, struct tree_inode *to,
                      struct tree_inode *from, struct err *e)
{
    struct merge_item *m = tree_alloc(base, sizeof(*m));
    if (!m)
        return err_oom(e);
    *m = (struct merge_item){.next = *work, .to = to, .from = from};
    *work = m;
    return 0;
}

static void merge_dir_attr(struct tree_inode *to, const struct tree_inode *from)
{
    assert(to && from);
    if (from->flags & TREE_OPAQUE)
        to->dir.children = NULL;
    if (from->flags & TREE_IMPLICIT)
        return;
    to->mode = from->mode;
    to->uid = from->uid;
    to->gid = from->gid;
    to->mtime = from->mtime;
    to->mtime_nsec = from->mtime_nsec;
    to->xattrs = from->xattrs;
    to->flags &= (uint8_t)~TREE_IMPLICIT;
}

/* The base's directory that a layer's directory `from` covers or becomes; -ENOENT (e untouched) if
 * there is none and none is needed. */
static int merge_find_dir(struct tree *base, struct tree_inode *to, struct tree_dirent *from,
                          struct tree_inode *old, struct tree_inode **ret, struct err *e)
{
    bool phantom = from->inode->flags & TREE_PHANTOM;
    if (old && S_ISLNK(old->mode) && (from->inode->flags & TREE_IMPLICIT))
        return merge_through_link(base, to, from->name, old->target, !phantom, ret, e);
    if (old && S_ISDIR(old->mode)) {
        *ret = old;
        return 0;
    }
    if (phantom)
        return -ENOENT;
    if (to->dir.depth + 1 >= TREE_DEPTH_MAX)
        return err_set(e, ELOOP, "'%.256s' is nested deeper than %d directories", from->name,
                       TREE_DEPTH_MAX);
    *ret = new_dir(base, to);
    return *ret ? 0 : err_oom(e);
}

static int merge_entry(struct tree *base, struct merge_item **work, struct tree_inode *to,
                       struct tree_dirent *from, struct err *e)
{
    struct tree_inode *ino = from->inode;
    struct tree_dirent *d = child_find(to, from->name, from->name_len);
    if (ino->flags & TREE_WHITEOUT) {
        if (d)
            d->inode = NULL;
        return 0;
    }
    struct tree_inode *old = d ? d->inode : NULL, *dest = NULL;
    int r;
    if (S_ISDIR(ino->mode)) {
        r = merge_find_dir(base, to, from, old, &dest, e);
        if (r < 0)
            return r == -ENOENT ? 0 : r;
        merge_dir_attr(dest, ino);
        r = merge_push(base, work, dest, ino, e);
        bool through = old && S_ISLNK(old->mode) && (ino->flags & TREE_IMPLICIT);
        if (r < 0 || through)
            return r;
        ino = dest;
    }
    if (!d)
        d = child_insert(base, to, from->name, from->name_len);
    if (!d)
        return err_oom(e);
    d->inode = ino;
    return 0;
}

/* Turns a layer's link entry into a real hard link to a lower layer's file. */
static int merge_link(struct tree *base, struct tree_dirent *d, struct err *e)
{
    const char *target = d->inode->target;
    struct tree_inode *to = tree_lookup(base, target);
    if (!to)
        return err_set(e, ENOENT, "'%.256s' is a hard link to '%.512s', which is missing", d->name,
                       target);
    if (S_ISDIR(to->mode))
        return err_set(e, EPERM, "'%.256s' is a hard link to '%.512s', a directory", d->name,
                       target);
    d->inode = to;
    return 0;
}

static int merge_look(struct tree *base, struct merge_item **work, struct tree_dirent *d,
                      struct tree_inode *dir, struct err *e)
{
    struct tree_inode *ino = d->inode;
    int r = 0;
    if (S_ISDIR(ino->mode)) {
        if (ino->flags & TREE_IMPLICIT)
            ino->flags |= TREE_PHANTOM;
        r = merge_push(base, work, NULL, ino, e);
    } else if (ino->flags & TREE_LINK) {
        r = merge_link(base, d, e);
    }
    if (!(ino->flags & (TREE_WHITEOUT | TREE_PHANTOM)))
        for (; dir->flags & TREE_PHANTOM; dir = dir->dir.parent)
            dir->flags &= (uint8_t)~TREE_PHANTOM;
    return r;
}

/* A pass over the layer before the base changes: hard links refer to the base's present files, and
 * directories that contain only marks are found. */
static int merge_prepare(struct tree *base, struct tree_inode *from, struct err *e)
{
    struct merge_item *work = NULL;
    int r = merge_push(base, &work, NULL, from, e);
    while (r == 0 && work) {
        struct tree_inode *dir = work->from;
        struct tree_iter it;
        work = work->next;
        tree_iter_init(&it, dir);
        for (struct tree_dirent *d; r == 0 && (d = tree_iter_next(&it));)
            r = merge_look(base, &work, d, dir, e);
    }
    return r;
}

int tree_merge(struct tree *base, struct tree *layer, struct err *e)
{
    struct tree_inode *from = layer->root;
    uint64_t bytes = layer->bytes, memory = layer->memory;
    uint32_t entries = layer->entries;
    /* The layer's memory now belongs to the base, after the chunk in use. */
    struct tree_chunk **tail = &base->chunks;
    while (*tail)
        tail = &(*tail)->next;
    *tail = layer->chunks;
    *layer = (struct tree){0};

    /* Checked once the memory is ours, so that it is freed with the rest. */
    if (memory > TREE_MEMORY_MAX - base->memory)
        return err_set(e, ENOMEM,
                       "the layers together are over the limit of %llu MiB of names and "
                       "attributes",
                       (unsigned long long)(TREE_MEMORY_MAX >> 20));
    base->memory += memory;
    if (entries > base->max_entries - base->entries)
        return err_set(e, E2BIG, "the layers together have more than %u entries",
                       base->max_entries);
    base->entries += entries;
    if (bytes > base->max_bytes - base->bytes)
        return err_set(e, EFBIG, "the layers together are over the limit of %llu MiB",
                       (unsigned long long)(base->max_bytes >> 20));
    base->bytes += bytes;
    struct merge_item *work = NULL;
    int r = merge_prepare(base, from, e);
    if (r < 0)
        return r;
    merge_dir_attr(base->root, from);
    r = merge_push(base, &work, base->root, from, e);
    while (r == 0 && work) {
        struct merge_item m = *work;
        work = work->next;
        struct tree_iter it;
        tree_iter_init(&it, m.from);
        for (struct tree_dirent *d; r == 0 && (d = tree_iter_next(&it));)
            r = merge_entry(base, &work, m.to, d, e);
    }
    return r;
}
