/* Reads an EROFS file back into a tree.
 *
 * The files are our own layers, but a compromised converter could have written anything into one,
 * so nothing in it is trusted. Invariants:
 *
 * 1. Every byte is read through read_at(), which checks offset and length against the file.
 * 2. A directory is visited once: its number is noted, and meeting it again is an error. So there
 *    are no cycles, and the work is bounded by the tree's limit of entries.
 * 3. Names are checked by the tree, and must ascend as the format demands: there are no duplicates.
 * 4. Memory is the tree, the list of directories to visit, and one note per directory and hard
 *    link. File data is never read; for inline tails, their offset in the file is kept.
 */
#include "image/erofs/disk.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image/erofs/erofs.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum { CACHE_UNIT = 64 << 10, CACHE_UNITS = 16 };

/* Remembers an inode that may be encountered again. */
struct note {
    uint64_t nid;
    struct tree_inode *ino;
};

struct dir_item {
    struct dir_item *next;
    struct tree_inode *ino;
    uint64_t nid, parent;
};

struct loader {
    int fd;
    uint32_t blob;
    uint64_t size, blocks;
    struct erofs_super sb;
    struct tree *t;
    void *notes; /* tsearch */
    struct dir_item *first, **last;
    /* The file's bytes, in aligned units; unit u lives in slot u % CACHE_UNITS. */
    uint64_t unit[CACHE_UNITS]; /* number + 1; 0: empty */
    uint8_t *cache;
};

/* One inode, decoded. */
struct raw {
    uint64_t at; /* byte offset of the inode */
    size_t head; /* its size */
    size_t xattr;
    uint64_t nid, size;
    uint32_t u, nlink;
    bool inl;
    struct tree_attr attr;
};

static int damaged(struct err *e, const char *what)
{
    return err_set(e, EBADMSG, "the image file is damaged: %s", what);
}

/* ---- bytes ---- */

static int load_unit(struct loader *l, uint64_t unit, const uint8_t **ret)
{
    size_t slot = unit % CACHE_UNITS;
    uint8_t *p = l->cache + slot * CACHE_UNIT;
    if (l->unit[slot] != unit + 1) {
        uint64_t at = unit * CACHE_UNIT;
        l->unit[slot] = 0;
        int r = pread_all(l->fd, p, (size_t)MIN((uint64_t)CACHE_UNIT, l->size - at), at);
        if (r < 0)
            return r;
        l->unit[slot] = unit + 1;
    }
    *ret = p;
    return 0;
}

static int read_at(struct loader *l, uint64_t at, void *p, size_t n, struct err *e)
{
    if (at > l->size || n > l->size - at)
        return damaged(e, "it points past its end");
    for (uint8_t *to = p; n;) {
        const uint8_t *from;
        size_t off = at % CACHE_UNIT, k = MIN(n, CACHE_UNIT - off);
        int r = load_unit(l, at / CACHE_UNIT, &from);
        if (r < 0)
            return err_sys(e, -r, "cannot read the image file");
        memcpy(to, from + off, k);
        to += k;
        at += k;
        n -= k;
    }
    return 0;
}

/* ---- inodes ---- */

static int decode_inode(struct loader *l, const uint8_t *b, size_t n, struct raw *r, struct err *e)
{
    struct erofs_inode_compact c;
    struct erofs_inode_extended x;
    memcpy(&c, b, sizeof(c));
    bool extended = c.format & EROFS_FORMAT_EXTENDED;
    unsigned layout = c.format >> EROFS_FORMAT_LAYOUT_SHIFT;
    if (layout != EROFS_FLAT_PLAIN && layout != EROFS_FLAT_INLINE)
        return damaged(e, "an inode has an unknown layout");
    if (extended && n < sizeof(x))
        return damaged(e, "an inode is truncated");
    r->inl = layout == EROFS_FLAT_INLINE;
    r->xattr =
        c.xattr_count ? sizeof(struct erofs_xattr_header) + 4 * ((size_t)c.xattr_count - 1) : 0;
    r->attr = (struct tree_attr){.mode = c.mode, .uid = c.uid, .gid = c.gid};
    if (!extended) {
        r->head = sizeof(c);
        r->size = c.size;
        r->u = c.u;
        r->nlink = c.nlink;
        r->attr.mtime = (int64_t)(l->sb.epoch + c.mtime);
        r->attr.mtime_nsec = l->sb.epoch_nsec;
        return 0;
    }
    memcpy(&x, b, sizeof(x));
    r->head = sizeof(x);
    r->size = x.size;
    r->u = x.u;
    r->nlink = x.nlink;
    r->attr.uid = x.uid;
    r->attr.gid = x.gid;
    r->attr.mtime = (int64_t)x.mtime;
    r->attr.mtime_nsec = x.mtime_nsec;
    return 0;
}

static int read_inode(struct loader *l, uint64_t nid, struct raw *r, struct err *e)
{
    uint8_t b[sizeof(struct erofs_inode_extended)];
    if (nid > l->size >> EROFS_SLOT_BITS)
        return damaged(e, "it points past its end");
    *r = (struct raw){.nid = nid};
    r->at = ((uint64_t)l->sb.meta_block << EROFS_BLOCK_BITS) + (nid << EROFS_SLOT_BITS);
    /* The last inode of a file may be a short one. */
    size_t n = r->at < l->size ? (size_t)MIN(sizeof(b), l->size - r->at) : 0;
    if (n < sizeof(struct erofs_inode_compact))
        return damaged(e, "it points past its end");
    int got = read_at(l, r->at, b, n, e);
    if (got == 0)
        got = decode_inode(l, b, n, r, e);
    if (got < 0)
        return got;
    /* Content must lie inside the file: whole blocks, and a tail after the inode. */
    uint16_t type = r->attr.mode & S_IFMT;
    if (type != S_IFREG && type != S_IFDIR && type != S_IFLNK)
        return r->inl ? damaged(e, "an inode has an unknown layout") : 0;
    uint64_t tail = r->size % EROFS_BLOCK_SIZE;
    uint64_t blocks = (r->size >> EROFS_BLOCK_BITS) + (tail && !r->inl);
    if (r->inl && (!tail || tail > EROFS_BLOCK_SIZE - sizeof(struct erofs_inode_extended)))
        return damaged(e, "an inode has a bad tail");
    if (blocks && (r->u == 0 || r->u > l->blocks || blocks > l->blocks - r->u))
        return damaged(e, "it points past its end");
    uint64_t behind = r->at + r->head + r->xattr;
    if (r->inl && (behind > l->size || tail > l->size - behind))
        return damaged(e, "it points past its end");
    return 0;
}

/* n bytes of a directory or symlink. */
static int read_content(struct loader *l, const struct raw *r, uint64_t offset, void *p, size_t n,
                        struct err *e)
{
    uint64_t full = r->size & ~(uint64_t)(EROFS_BLOCK_SIZE - 1);
    if (r->inl && offset >= full)
        return read_at(l, r->at + r->head + r->xattr + (offset - full), p, n, e);
    return read_at(l, ((uint64_t)r->u << EROFS_BLOCK_BITS) + offset, p, n, e);
}

/* ---- extended attributes ---- */

static const char *xattr_prefix(uint8_t index)
{
    switch (index) {
    case EROFS_XATTR_USER:
        return "user.";
    case EROFS_XATTR_ACL_ACCESS:
        return "system.posix_acl_access";
    case EROFS_XATTR_ACL_DEFAULT:
        return "system.posix_acl_default";
    case EROFS_XATTR_TRUSTED:
        return "trusted.";
    case EROFS_XATTR_SECURITY:
        return "security.";
    default:
        return NULL;
    }
}

static int add_xattr(struct loader *l, struct tree_inode *ino, const struct erofs_xattr_entry *h,
                     const uint8_t *bytes, struct err *e)
{
    char name[TREE_XATTR_NAME_MAX + 1];
    const char *prefix = xattr_prefix(h->name_index);
    size_t plen = prefix ? strlen(prefix) : 0;
    if (!prefix || plen + h->name_len > TREE_XATTR_NAME_MAX || memchr(bytes, '\0', h->name_len))
        return damaged(e, "an extended attribute has a bad name");
    memcpy(name, prefix, plen);
    memcpy(name + plen, bytes, h->name_len);
    name[plen + h->name_len] = '\0';
    if (strcmp(name, EROFS_OPAQUE_XATTR) == 0 && S_ISDIR(ino->mode))
        ino->flags |= TREE_OPAQUE;
    else if (strcmp(name, EROFS_IMPLICIT_XATTR) == 0 && S_ISDIR(ino->mode))
        ino->flags |= TREE_IMPLICIT;
    else if (strcmp(name, EROFS_LINK_XATTR) == 0 && S_ISLNK(ino->mode))
        ino->flags |= TREE_LINK;
    else
        return tree_set_xattr(l->t, ino, name, bytes + h->name_len, h->value_len, e);
    return 0;
}

static int load_xattrs(struct loader *l, const struct raw *r, struct tree_inode *ino, struct err *e)
{
    struct erofs_xattr_header head;
    if (r->xattr <= sizeof(head))
        return r->xattr ? damaged(e, "extended attributes are truncated") : 0;
    AUTO_FREE uint8_t *b = malloc(r->xattr);
    if (!b)
        return err_oom(e);
    int got = read_at(l, r->at + r->head, b, r->xattr, e);
    if (got < 0)
        return got;
    memcpy(&head, b, sizeof(head));
    if (head.shared_count)
        return damaged(e, "it uses shared extended attributes");
    for (size_t at = sizeof(head); at < r->xattr;) {
        struct erofs_xattr_entry h;
        if (r->xattr - at < sizeof(h))
            return damaged(e, "extended attributes are truncated");
        memcpy(&h, b + at, sizeof(h));
        size_t len = sizeof(h) + h.name_len + (size_t)h.value_len;
        if (len > r->xattr - at)
            return damaged(e, "extended attributes are truncated");
        got = add_xattr(l, ino, &h, b + at + sizeof(h), e);
        if (got < 0)
            return got;
        at += (len + 3) & ~(size_t)3;
    }
    return 0;
}

/* ---- the tree ---- */

static int note_cmp(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    return x->nid < y->nid ? -1 : x->nid > y->nid;
}

/* The note of an inode: an old one, or a new one whose inode is not set yet. */
static struct note *note_of(struct loader *l, uint64_t nid)
{
    struct note *n = malloc(sizeof(*n));
    if (!n)
        return NULL;
    *n = (struct note){.nid = nid};
    struct note **at = tsearch(n, &l->notes, note_cmp);
    if (!at || *at != n)
        free(n);
    return at ? *at : NULL;
}

static int push_dir(struct loader *l, struct tree_inode *ino, uint64_t nid, uint64_t parent,
                    struct err *e)
{
    struct note *note = note_of(l, nid);
    struct dir_item *d = malloc(sizeof(*d));
    if (!note || !d) {
        free(d);
        return err_oom(e);
    }
    if (note->ino) {
        free(d);
        return damaged(e, "a directory is in two places");
    }
    note->ino = ino;
    *d = (struct dir_item){.ino = ino, .nid = nid, .parent = parent};
    *l->last = d;
    l->last = &d->next;
    return 0;
}

static int load_symlink(struct loader *l, const struct raw *r, char target[TREE_PATH_MAX],
                        struct err *e)
{
    if (r->size == 0 || r->size >= TREE_PATH_MAX)
        return damaged(e, "a symbolic link has a bad length");
    int got = read_content(l, r, 0, target, (size_t)r->size, e);
    if (got < 0)
        return got;
    target[r->size] = '\0';
    return strlen(target) == r->size ? 0 : damaged(e, "a symbolic link has a NUL in it");
}

/* Reads what depends on the type, before the inode is created ... */
static int load_attr(struct loader *l, struct raw *r, char target[TREE_PATH_MAX], struct err *e)
{
    r->attr.mode &= S_IFMT | 07777;
    switch (r->attr.mode & S_IFMT) {
    case S_IFREG:
        r->attr.size = r->size;
        return 0;
    case S_IFLNK:
        r->attr.target = target;
        return load_symlink(l, r, target, e);
    case S_IFCHR:
    case S_IFBLK:
        r->attr.major = (r->u & 0xfff00) >> 8;
        r->attr.minor = (r->u & 0xff) | ((r->u >> 12) & 0xfff00);
        return 0;
    default:
        return 0;
    }
}

/* ... and after that. */
static int load_data(struct loader *l, const struct raw *r, struct tree_inode *ino, struct err *e)
{
    if (S_ISCHR(ino->mode) && !ino->dev.major && !ino->dev.minor)
        ino->flags |= TREE_WHITEOUT;
    if (!S_ISREG(ino->mode))
        return 0;
    ino->data = (struct tree_data){.block = r->u, .blob = l->blob};
    if (!r->inl)
        return 0;
    /* The writer of the merged image may need the larger kind of inode. */
    size_t tail = (size_t)(r->size % EROFS_BLOCK_SIZE);
    if (sizeof(struct erofs_inode_extended) + r->xattr + tail > EROFS_BLOCK_SIZE)
        return damaged(e, "an inode has a bad tail");
    ino->flags |= TREE_INLINE_TAIL;
    ino->data.tail = r->at + r->head + r->xattr;
    return 0;
}

static int load_entry(struct loader *l, const struct dir_item *dir, const char *name,
                      const struct erofs_dirent *de, struct err *e)
{
    struct raw r = {0};
    struct note *note = NULL;
    struct tree_inode *ino = NULL;
    char target[TREE_PATH_MAX];
    int got = read_inode(l, de->nid, &r, e);
    if (got == 0 && de->type != erofs_file_type(r.attr.mode))
        got = damaged(e, "a directory entry is of the wrong type");
    if (got < 0)
        return got;
    bool is_dir = S_ISDIR(r.attr.mode);
    if (!is_dir && r.nlink > 1) {
        if (!(note = note_of(l, de->nid)))
            return err_oom(e);
        if (note->ino)
            return tree_link_at(l->t, dir->ino, name, note->ino, e);
    }
    got = load_attr(l, &r, target, e);
    if (got == 0)
        got = tree_add_at(l->t, dir->ino, name, &r.attr, &ino, e);
    if (got == 0)
        got = load_data(l, &r, ino, e);
    if (got == 0)
        got = load_xattrs(l, &r, ino, e);
    if (got == 0 && (ino->flags & TREE_LINK))
        l->t->has_links = true;
    if (got == 0 && note)
        note->ino = ino;
    return got == 0 && is_dir ? push_dir(l, ino, de->nid, dir->nid, e) : got;
}

/* The position in a directory's file. */
struct dir_state {
    char last[TREE_NAME_MAX + 1];
    bool any, dot, dotdot;
};

static int load_dirent(struct loader *l, const struct dir_item *dir, struct dir_state *s,
                       const char *name, const struct erofs_dirent *de, struct err *e)
{
    if (s->any && strcmp(s->last, name) >= 0)
        return damaged(e, "a directory is not sorted");
    memcpy(s->last, name, strlen(name) + 1);
    s->any = true;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        bool up = name[1];
        *(up ? &s->dotdot : &s->dot) = true;
        return de->nid == (up ? dir->parent : dir->nid) ? 0
                                                        : damaged(e, "a directory is misplaced");
    }
    return load_entry(l, dir, name, de, e);
}

static int load_dir_block(struct loader *l, const struct dir_item *dir, struct dir_state *s,
                          const uint8_t *b, size_t n, struct err *e)
{
    struct erofs_dirent de, next;
    if (n < sizeof(de))
        return damaged(e, "a directory is truncated");
    memcpy(&de, b, sizeof(de));
    size_t count = de.nameoff / sizeof(de);
    if (de.nameoff % sizeof(de) || count == 0 || de.nameoff > n)
        return damaged(e, "a directory block is invalid");
    for (size_t i = 0; i < count; i++, de = next) {
        size_t end = n;
        next = de;
        if (i + 1 < count) {
            memcpy(&next, b + (i + 1) * sizeof(next), sizeof(next));
            end = next.nameoff;
        }
        if (de.nameoff > end || end > n)
            return damaged(e, "a directory block is invalid");
        size_t len = end - de.nameoff;
        if (i + 1 == count) /* the last name ends with the block or at a NUL */
            len = strnlen((const char *)b + de.nameoff, len);
        char name[TREE_NAME_MAX + 1];
        if (len == 0 || len > TREE_NAME_MAX || memchr(b + de.nameoff, '\0', len))
            return damaged(e, "a name is invalid");
        memcpy(name, b + de.nameoff, len);
        name[len] = '\0';
        int r = load_dirent(l, dir, s, name, &de, e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int load_dir(struct loader *l, const struct dir_item *dir, struct err *e)
{
    struct dir_state s = {.any = false};
    struct raw r = {0};
    uint8_t b[EROFS_BLOCK_SIZE];
    int got = read_inode(l, dir->nid, &r, e);
    for (uint64_t at = 0; got == 0 && at < r.size; at += sizeof(b)) {
        size_t n = (size_t)MIN(sizeof(b), r.size - at);
        got = read_content(l, &r, at, b, n, e);
        if (got == 0)
            got = load_dir_block(l, dir, &s, b, n, e);
    }
    if (got == 0 && !(s.dot && s.dotdot))
        got = damaged(e, "a directory is misplaced");
    return got;
}

static int load_root(struct loader *l, struct err *e)
{
    struct raw r = {0};
    struct tree_inode *ino = NULL;
    uint64_t nid = l->sb.root_nid;
    int got = read_inode(l, nid, &r, e);
    if (got == 0 && !S_ISDIR(r.attr.mode))
        got = damaged(e, "its root is not a directory");
    r.attr.mode &= S_IFMT | 07777;
    if (got == 0)
        got = tree_add(l->t, "/", &r.attr, &ino, e);
    if (got == 0)
        got = load_xattrs(l, &r, ino, e);
    return got < 0 ? got : push_dir(l, ino, nid, nid, e);
}

static int load_super(struct loader *l, struct err *e)
{
    struct stat st;
    if (fstat(l->fd, &st) < 0)
        return err_sys(e, errno, "cannot read the image file");
    l->size = (uint64_t)st.st_size;
    l->blocks = l->size >> EROFS_BLOCK_BITS;
    if (!S_ISREG(st.st_mode) || l->size % EROFS_BLOCK_SIZE || l->blocks > EROFS_BLOCKS_MAX)
        return damaged(e, "its length is invalid");
    uint8_t b[EROFS_BLOCK_SIZE - EROFS_SUPER_OFFSET];
    int r = read_at(l, EROFS_SUPER_OFFSET, b, sizeof(b), e);
    if (r < 0)
        return r;
    memcpy(&l->sb, b, sizeof(l->sb));
    memset(b + offsetof(struct erofs_super, checksum), 0, sizeof(l->sb.checksum));
    if (l->sb.magic != EROFS_MAGIC || l->sb.block_bits != EROFS_BLOCK_BITS ||
        l->sb.feature_incompat || l->sb.blocks != l->blocks || l->sb.meta_block >= l->blocks ||
        l->sb.checksum != erofs_crc32c(~0U, b, sizeof(b)))
        return damaged(e, "its superblock is invalid");
    return 0;
}

int erofs_load_tree(int fd, uint32_t blob, struct tree *t, struct err *e)
{
    struct loader l = {
        .fd = fd, .blob = blob, .t = t, .cache = malloc((size_t)CACHE_UNITS * CACHE_UNIT)};
    l.last = &l.first;
    int r = l.cache ? load_super(&l, e) : err_oom(e);
    if (r == 0)
        r = load_root(&l, e);
    for (struct dir_item *d; r == 0 && (d = l.first);) {
        r = load_dir(&l, d, e);
        l.first = d->next;
        if (!l.first)
            l.last = &l.first;
        free(d);
    }
    for (struct dir_item *d, *next = l.first; (d = next); free(d))
        next = d->next;
    tdestroy(l.notes, free);
    free(l.cache);
    return r;
}
