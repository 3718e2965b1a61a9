/* The second half of writing an image: inodes, directories, superblock.
 *
 * Three passes over the tree in the same, breadth-first order. `collect` counts links and lists
 * inodes; `place` gives each inode its address, and directories and long symlinks their blocks;
 * `emit` writes. Addresses of inodes are relative to the metadata area, so directories can be
 * placed before it is known where that area starts.
 *
 * Invariants:
 * 1. An inode with its xattrs and inline tail lies within one block, or starts a block and has no
 *    inline tail.
 * 2. `place` puts nothing into a block more than OPEN_BLOCKS behind the newest, so `emit` needs
 *    only a window of blocks in memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/erofs/erofs.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    OPEN_BLOCKS = 32,
    /* OPEN_BLOCKS, and the blocks of the largest inode, with room. */
    WINDOW_BLOCKS = 128,
    DIR_BLOCK_ENTRIES = EROFS_BLOCK_SIZE / (sizeof(struct erofs_dirent) + 1),
};
_Static_assert(TREE_XATTRS_MAX * 2 < (WINDOW_BLOCKS - OPEN_BLOCKS) * (int)EROFS_BLOCK_SIZE,
               "an inode with its xattrs (padding included) must fit the window");

struct meta {
    struct erofs_writer *w;
    struct tree *t;
    struct tree_inode **inodes; /* in order of placing */
    size_t n, cap;
    int64_t epoch; /* the time most inodes have, if most have one */
    uint32_t epoch_nsec;
    /* place */
    uint64_t newest;            /* newest metadata block */
    uint16_t used[OPEN_BLOCKS]; /* bytes used in block b: used[b % OPEN_BLOCKS] */
    uint64_t late_blocks;
    /* emit */
    uint64_t late_base, meta_base; /* block addresses */
    uint64_t late_next;
    uint64_t window_base;
    uint8_t *window;
    struct erofs_out out;
    const uint8_t *tails;
};

/* An inode's layout; computed the same way when placing and when writing. */
struct shape {
    bool extended;
    bool inl;      /* the tail follows the inode */
    uint64_t size; /* i_size */
    size_t xattr;  /* bytes */
    size_t tail;   /* inline bytes */
    uint64_t late; /* late blocks */
};

/* ---- extended attributes ---- */

/* The index for a name's prefix, and the rest of the name; 0 for names that EROFS cannot store. */
static int xattr_index(const char *name, const char **rest)
{
    static const struct {
        const char *prefix;
        uint8_t index;
        bool whole;
    } table[] = {
        {"user.", EROFS_XATTR_USER, false},
        {"system.posix_acl_access", EROFS_XATTR_ACL_ACCESS, true},
        {"system.posix_acl_default", EROFS_XATTR_ACL_DEFAULT, true},
        {"trusted.", EROFS_XATTR_TRUSTED, false},
        {"security.", EROFS_XATTR_SECURITY, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        size_t n = strlen(table[i].prefix);
        if (strncmp(name, table[i].prefix, n) != 0 || (name[n] == '\0') != table[i].whole)
            continue;
        *rest = name + n;
        return table[i].index;
    }
    return 0;
}

static size_t xattr_entry_size(const char *name, size_t value_len)
{
    const char *rest;
    if (!xattr_index(name, &rest))
        return 0;
    return (sizeof(struct erofs_xattr_entry) + strlen(rest) + value_len + 3) & ~(size_t)3;
}

/* The marks of a layer that are written as attributes. */
static const struct {
    uint8_t flag;
    const char *name;
} marks[] = {{TREE_OPAQUE, EROFS_OPAQUE_XATTR},
             {TREE_IMPLICIT, EROFS_IMPLICIT_XATTR},
             {TREE_LINK, EROFS_LINK_XATTR}};

static bool has_mark(const struct erofs_writer *w, const struct tree_inode *ino, size_t i)
{
    return w->marks && (ino->flags & marks[i].flag);
}

size_t erofs_xattr_size(const struct erofs_writer *w, const struct tree_inode *ino)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(marks); i++)
        n += has_mark(w, ino, i) ? xattr_entry_size(marks[i].name, 1) : 0;
    for (const struct tree_xattr *x = ino->xattrs; x; x = x->next)
        n += xattr_entry_size(x->bytes, x->value_len);
    return n ? n + sizeof(struct erofs_xattr_header) : 0;
}

/* ---- directories ---- */

/* A directory's entries in order, with "." and ".." sorted in between. */
struct dir_cursor {
    struct tree_iter it;
    const struct tree_inode *dir;
    const struct tree_dirent *child; /* next real one */
    int dots;                        /* "." and ".." given out */
};

struct dir_entry {
    const char *name;
    size_t len;
    const struct tree_inode *inode;
};

static void dir_open(struct dir_cursor *c, const struct tree_inode *dir)
{
    c->dir = dir;
    c->dots = 0;
    tree_iter_init(&c->it, dir);
    c->child = tree_iter_next(&c->it);
}

static bool dir_peek(const struct dir_cursor *c, struct dir_entry *ret)
{
    static const char *const dots[] = {".", ".."};
    if (c->dots < 2 && (!c->child || strcmp(dots[c->dots], c->child->name) < 0)) {
        *ret = (struct dir_entry){dots[c->dots], (size_t)c->dots + 1,
                                  c->dots ? c->dir->dir.parent : c->dir};
        return true;
    }
    if (!c->child)
        return false;
    *ret = (struct dir_entry){c->child->name, c->child->name_len, c->child->inode};
    return true;
}

static void dir_advance(struct dir_cursor *c, const struct dir_entry *from)
{
    if (c->child && from->name == c->child->name)
        c->child = tree_iter_next(&c->it);
    else
        c->dots++;
}

uint8_t erofs_file_type(uint16_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return EROFS_FT_DIR;
    case S_IFLNK:
        return EROFS_FT_LNK;
    case S_IFCHR:
        return EROFS_FT_CHR;
    case S_IFBLK:
        return EROFS_FT_BLK;
    case S_IFIFO:
        return EROFS_FT_FIFO;
    case S_IFSOCK:
        return EROFS_FT_SOCK;
    default:
        return EROFS_FT_REG;
    }
}

/* Fills the next block (when buf is given, EROFS_BLOCK_SIZE bytes) and returns the bytes used in
 * it; 0 at the end. */
static size_t dir_block(struct dir_cursor *c, uint8_t *buf)
{
    struct dir_entry ent[DIR_BLOCK_ENTRIES + 1];
    size_t n = 0, used = 0;
    while (dir_peek(c, &ent[n]) &&
           used + sizeof(struct erofs_dirent) + ent[n].len <= EROFS_BLOCK_SIZE) {
        used += sizeof(struct erofs_dirent) + ent[n].len;
        dir_advance(c, &ent[n]);
        n++;
    }
    if (!buf)
        return used;
    memset(buf, 0, EROFS_BLOCK_SIZE);
    size_t nameoff = n * sizeof(struct erofs_dirent);
    for (size_t i = 0; i < n; i++) {
        struct erofs_dirent de = {.nid = ent[i].inode->nid,
                                  .nameoff = (uint16_t)nameoff,
                                  .type = erofs_file_type(ent[i].inode->mode)};
        memcpy(buf + i * sizeof(de), &de, sizeof(de));
        memcpy(buf + nameoff, ent[i].name, ent[i].len);
        nameoff += ent[i].len;
    }
    return used;
}

/* ---- collect ---- */

static int push_inode(struct meta *m, struct tree_inode *ino)
{
    if (ARRAY_GROW(m->inodes, m->n, m->cap, 256) < 0)
        return -ENOMEM;
    m->inodes[m->n++] = ino;
    return 0;
}

/* Lists only directories, resetting what an earlier image left in the inodes. */
static int reset_tree(struct meta *m)
{
    int r = push_inode(m, m->t->root);
    for (size_t i = 0; r == 0 && i < m->n; i++) {
        struct tree_iter it;
        tree_iter_init(&it, m->inodes[i]);
        for (struct tree_dirent *d; r == 0 && (d = tree_iter_next(&it));) {
            d->inode->nlink = 0;
            d->inode->nid = 0;
            if (S_ISDIR(d->inode->mode))
                r = push_inode(m, d->inode);
        }
    }
    m->t->root->nlink = 0;
    m->t->root->nid = 0;
    m->n = 0;
    return r;
}

static int collect(struct meta *m)
{
    int r = reset_tree(m);
    if (r == 0)
        r = push_inode(m, m->t->root);
    m->t->root->nlink = 2;
    for (size_t i = 0; r == 0 && i < m->n; i++) {
        struct tree_inode *dir = m->inodes[i];
        if (!S_ISDIR(dir->mode))
            continue;
        struct tree_iter it;
        tree_iter_init(&it, dir);
        for (struct tree_dirent *d; r == 0 && (d = tree_iter_next(&it));) {
            struct tree_inode *ino = d->inode;
            if (ino->nlink == 0)
                r = push_inode(m, ino);
            ino->nlink++;
            if (S_ISDIR(ino->mode)) {
                ino->nlink++;
                dir->nlink++;
            }
        }
    }
    return r;
}

/* Majority vote: finds the time stamp that more than half of the inodes have, if there is one.
 * Those can be 32-byte inodes, which have no time stamp. */
static void choose_epoch(struct meta *m)
{
    size_t lead = 0;
    for (size_t i = 0; i < m->n; i++) {
        const struct tree_inode *ino = m->inodes[i];
        bool same = ino->mtime == m->epoch && ino->mtime_nsec == m->epoch_nsec;
        if (lead == 0) {
            m->epoch = ino->mtime;
            m->epoch_nsec = ino->mtime_nsec;
            lead = 1;
        } else {
            lead = same ? lead + 1 : lead - 1;
        }
    }
}

/* ---- place ---- */

static struct shape shape_of(const struct meta *m, const struct tree_inode *ino)
{
    struct shape s = {.size = ino->size, .xattr = erofs_xattr_size(m->w, ino)};
    size_t last = 0; /* bytes of the last, partial block */
    if (S_ISDIR(ino->mode)) {
        struct dir_cursor c;
        dir_open(&c, ino);
        s.size = 0;
        for (size_t used; (used = dir_block(&c, NULL)); last = used) {
            if (last)
                s.late++;
            s.size = (s.late << EROFS_BLOCK_BITS) + used;
        }
    } else if (S_ISLNK(ino->mode)) {
        last = (size_t)ino->size;
    } else if (!S_ISREG(ino->mode)) {
        s.size = 0;
    }
    s.extended = ino->mtime != m->epoch || ino->mtime_nsec != m->epoch_nsec ||
                 ino->uid > UINT16_MAX || ino->gid > UINT16_MAX || ino->nlink > UINT16_MAX ||
                 s.size > UINT32_MAX;
    size_t head =
        (s.extended ? sizeof(struct erofs_inode_extended) : sizeof(struct erofs_inode_compact)) +
        s.xattr;
    if (S_ISREG(ino->mode)) {
        s.inl = ino->flags & TREE_INLINE_TAIL;
        s.tail = s.inl ? s.size & (EROFS_BLOCK_SIZE - 1) : 0;
    } else if (last) {
        s.inl = last < EROFS_BLOCK_SIZE && head + last <= EROFS_BLOCK_SIZE;
        s.tail = s.inl ? last : 0;
        s.late += !s.inl;
    }
    return s;
}

static size_t meta_bytes(const struct shape *s)
{
    size_t n =
        (s->extended ? sizeof(struct erofs_inode_extended) : sizeof(struct erofs_inode_compact)) +
        s->xattr + s->tail;
    return (n + EROFS_SLOT_SIZE - 1) & ~(size_t)(EROFS_SLOT_SIZE - 1);
}

/* The byte offset of n free bytes in the metadata area: in the fullest open block that has room,
 * else in new blocks. */
static uint64_t place_bytes(struct meta *m, size_t n)
{
    uint64_t first = m->newest >= OPEN_BLOCKS ? m->newest - OPEN_BLOCKS + 1 : 0, best = UINT64_MAX;
    for (uint64_t b = first; n <= EROFS_BLOCK_SIZE && b <= m->newest; b++) {
        size_t used = m->used[b % OPEN_BLOCKS];
        if (used + n <= EROFS_BLOCK_SIZE &&
            (best == UINT64_MAX || used > m->used[best % OPEN_BLOCKS]))
            best = b;
    }
    if (best != UINT64_MAX) {
        uint64_t at = (best << EROFS_BLOCK_BITS) + m->used[best % OPEN_BLOCKS];
        m->used[best % OPEN_BLOCKS] = (uint16_t)(m->used[best % OPEN_BLOCKS] + n);
        return at;
    }
    uint64_t at = (m->newest + 1) << EROFS_BLOCK_BITS;
    for (;; n -= EROFS_BLOCK_SIZE) {
        m->newest++;
        m->used[m->newest % OPEN_BLOCKS] = (uint16_t)MIN(n, (size_t)EROFS_BLOCK_SIZE);
        if (n <= EROFS_BLOCK_SIZE)
            return at;
    }
}

static int place(struct meta *m)
{
    m->used[0] = EROFS_SLOT_SIZE; /* inode number 0 stays unused */
    for (size_t i = 0; i < m->n; i++) {
        struct shape s = shape_of(m, m->inodes[i]);
        m->inodes[i]->nid = place_bytes(m, meta_bytes(&s)) >> EROFS_SLOT_BITS;
        m->late_blocks += s.late;
    }
    /* erofs-utils before 1.6 looks for an xattr header after every inode, even if there is none. */
    if (m->used[m->newest % OPEN_BLOCKS] + sizeof(struct erofs_xattr_header) > EROFS_BLOCK_SIZE)
        m->newest++;
    m->late_base = m->w->next_block;
    m->meta_base = m->late_base + m->late_blocks;
    if (m->meta_base + m->newest + 1 > EROFS_BLOCKS_MAX)
        return -EFBIG;
    return 0;
}

/* ---- emit ---- */

static int window_write_first(struct meta *m)
{
    uint8_t *b = m->window + (m->window_base % WINDOW_BLOCKS) * EROFS_BLOCK_SIZE;
    hasher_update(&m->w->hash, b, EROFS_BLOCK_SIZE);
    int r = erofs_out_write(&m->out, (m->meta_base + m->window_base) << EROFS_BLOCK_BITS, b,
                            EROFS_BLOCK_SIZE);
    memset(b, 0, EROFS_BLOCK_SIZE);
    m->window_base++;
    return r;
}

/* Puts bytes into the metadata area; invariant 2 says that they lie in or after the window. */
static int meta_put(struct meta *m, uint64_t at, const void *p, size_t n)
{
    for (const uint8_t *src = p; n;) {
        uint64_t block = at >> EROFS_BLOCK_BITS;
        size_t off = at & (EROFS_BLOCK_SIZE - 1), k = MIN(n, EROFS_BLOCK_SIZE - off);
        while (block >= m->window_base + WINDOW_BLOCKS) {
            int r = window_write_first(m);
            if (r < 0)
                return r;
        }
        if (block < m->window_base)
            return -EIO;
        memcpy(m->window + (block % WINDOW_BLOCKS) * EROFS_BLOCK_SIZE + off, src, k);
        at += k;
        src += k;
        n -= k;
    }
    return 0;
}

static int late_put(struct meta *m, const uint8_t *block)
{
    hasher_update(&m->w->hash, block, EROFS_BLOCK_SIZE);
    return erofs_out_write(&m->w->out, (m->late_base + m->late_next++) << EROFS_BLOCK_BITS, block,
                           EROFS_BLOCK_SIZE);
}

static int put_xattr(struct meta *m, uint64_t *at, const char *name, const void *value, size_t len)
{
    const char *rest = NULL;
    int index = xattr_index(name, &rest);
    if (!index)
        return 0;
    struct erofs_xattr_entry h = {.name_len = (uint8_t)strlen(rest),
                                  .name_index = (uint8_t)index,
                                  .value_len = (uint16_t)len};
    int r = meta_put(m, *at, &h, sizeof(h));
    if (r == 0)
        r = meta_put(m, *at + sizeof(h), rest, h.name_len);
    if (r == 0)
        r = meta_put(m, *at + sizeof(h) + h.name_len, value, len);
    *at += xattr_entry_size(name, len);
    return r;
}

static int put_xattrs(struct meta *m, const struct tree_inode *ino, uint64_t at)
{
    at += sizeof(struct erofs_xattr_header); /* all zero: no filter, none shared */
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(marks); i++)
        if (has_mark(m->w, ino, i))
            r = put_xattr(m, &at, marks[i].name, "y", 1);
    for (const struct tree_xattr *x = ino->xattrs; r == 0 && x; x = x->next)
        r = put_xattr(m, &at, x->bytes, x->bytes + x->name_len + 1, x->value_len);
    return r;
}

static uint64_t blob_base(const struct meta *m, uint32_t blob)
{
    if (!m->w->nblobs)
        return 0;
    uint64_t base = m->meta_base + m->newest + 1;
    for (uint32_t i = 0; i < blob && i < m->w->nblobs; i++)
        base += m->w->blobs[i].blocks;
    return base;
}

static uint32_t first_block(const struct meta *m, const struct tree_inode *ino,
                            const struct shape *s)
{
    switch (ino->mode & S_IFMT) {
    case S_IFREG:
        return ino->size ? (uint32_t)(blob_base(m, ino->data.blob) + ino->data.block) : 0;
    case S_IFDIR:
    case S_IFLNK:
        return s->late ? (uint32_t)(m->late_base + m->late_next) : 0;
    case S_IFCHR:
    case S_IFBLK:
        return (ino->dev.minor & 0xff) | ino->dev.major << 8 | (ino->dev.minor & ~0xffU) << 12;
    default:
        return 0;
    }
}

static int put_inode(struct meta *m, const struct tree_inode *ino, const struct shape *s,
                     uint32_t number, uint64_t at)
{
    uint16_t format =
        (uint16_t)((s->inl ? EROFS_FLAT_INLINE : EROFS_FLAT_PLAIN) << EROFS_FORMAT_LAYOUT_SHIFT);
    uint16_t xattrs =
        s->xattr ? (uint16_t)(1 + (s->xattr - sizeof(struct erofs_xattr_header)) / 4) : 0;
    if (!s->extended) {
        struct erofs_inode_compact c = {
            .format = format,
            .xattr_count = xattrs,
            .mode = ino->mode,
            .nlink = (uint16_t)ino->nlink,
            .size = (uint32_t)s->size,
            .u = first_block(m, ino, s),
            .ino = number,
            .uid = (uint16_t)ino->uid,
            .gid = (uint16_t)ino->gid,
        };
        return meta_put(m, at, &c, sizeof(c));
    }
    struct erofs_inode_extended x = {
        .format = (uint16_t)(format | EROFS_FORMAT_EXTENDED),
        .xattr_count = xattrs,
        .mode = ino->mode,
        .size = s->size,
        .u = first_block(m, ino, s),
        .ino = number,
        .uid = ino->uid,
        .gid = ino->gid,
        .mtime = (uint64_t)ino->mtime,
        .mtime_nsec = ino->mtime_nsec,
        .nlink = ino->nlink,
    };
    return meta_put(m, at, &x, sizeof(x));
}

/* Writes what follows the inode: late blocks, and the inline tail at `at`. */
static int put_content(struct meta *m, const struct tree_inode *ino, const struct shape *s,
                       uint64_t at)
{
    uint8_t block[EROFS_BLOCK_SIZE];
    int r = 0;
    if (S_ISDIR(ino->mode)) {
        struct dir_cursor c;
        dir_open(&c, ino);
        for (uint64_t i = 0; r == 0 && i < s->late; i++) {
            (void)dir_block(&c, block);
            r = late_put(m, block);
        }
        if (r == 0 && s->inl) {
            (void)dir_block(&c, block);
            r = meta_put(m, at, block, s->tail);
        }
    } else if (S_ISLNK(ino->mode)) {
        if (s->inl)
            return meta_put(m, at, ino->target, s->tail);
        memset(block, 0, sizeof(block));
        memcpy(block, ino->target, (size_t)ino->size);
        r = late_put(m, block);
    } else if (s->inl) {
        const uint8_t *tail = block;
        if (m->w->nblobs)
            r = pread_all(m->w->blobs[ino->data.blob].fd, block, s->tail, ino->data.tail);
        else
            tail = m->tails + ino->data.tail;
        if (r == 0)
            r = meta_put(m, at, tail, s->tail);
    }
    return r;
}

static int emit(struct meta *m)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < m->n; i++) {
        const struct tree_inode *ino = m->inodes[i];
        struct shape s = shape_of(m, ino);
        uint64_t at = ino->nid << EROFS_SLOT_BITS;
        r = put_inode(m, ino, &s, (uint32_t)(i + 1), at);
        at += s.extended ? sizeof(struct erofs_inode_extended) : sizeof(struct erofs_inode_compact);
        if (r == 0 && s.xattr)
            r = put_xattrs(m, ino, at);
        if (r == 0)
            r = put_content(m, ino, &s, at + s.xattr);
    }
    while (r == 0 && m->window_base <= m->newest)
        r = window_write_first(m);
    if (r == 0)
        r = erofs_out_flush(&m->out);
    return r < 0 ? r : erofs_out_flush(&m->w->out);
}

static int put_super(struct meta *m)
{
    uint8_t block[EROFS_BLOCK_SIZE] = {0};
    uint64_t blocks = m->meta_base + m->newest + 1;
    for (uint32_t i = 0; i < m->w->nblobs; i++)
        blocks += m->w->blobs[i].blocks;
    if (blocks > EROFS_BLOCKS_MAX)
        return -EFBIG;
    struct digest digest = hasher_finish(&m->w->hash);
    struct erofs_super sb = {
        .magic = EROFS_MAGIC,
        .feature_compat = EROFS_COMPAT_SB_CHECKSUM | EROFS_COMPAT_MTIME,
        .block_bits = EROFS_BLOCK_BITS,
        .root_nid = (uint16_t)m->t->root->nid,
        .inos = m->n,
        .epoch = (uint64_t)m->epoch,
        .epoch_nsec = m->epoch_nsec,
        .blocks = (uint32_t)blocks,
        .meta_block = (uint32_t)m->meta_base,
    };
    /* A name-based UUID of the metadata, which holds all names, sizes, times and small files. */
    memcpy(sb.uuid, digest.b, sizeof(sb.uuid));
    sb.uuid[6] = (uint8_t)((sb.uuid[6] & 0x0f) | 0x80);
    sb.uuid[8] = (uint8_t)((sb.uuid[8] & 0x3f) | 0x80);
    memcpy(block + EROFS_SUPER_OFFSET, &sb, sizeof(sb));
    sb.checksum =
        erofs_crc32c(~0U, block + EROFS_SUPER_OFFSET, EROFS_BLOCK_SIZE - EROFS_SUPER_OFFSET);
    memcpy(block + EROFS_SUPER_OFFSET, &sb, sizeof(sb));
    int r = erofs_out_write(&m->w->out, 0, block, sizeof(block));
    if (r == 0)
        r = erofs_out_flush(&m->w->out);
    m->w->size = (m->meta_base + m->newest + 1) << EROFS_BLOCK_BITS;
    if (r == 0 && ftruncate(m->w->fd, (off_t)m->w->size) < 0)
        r = -errno;
    return r;
}

static int write_meta(struct meta *m)
{
    struct erofs_writer *w = m->w;
    int r = w->spool_len ? erofs_out_flush(&w->spool) : 0;
    if (r < 0)
        return r;
    if (w->spool_len) {
        void *p = mmap(NULL, w->spool_len, PROT_READ, MAP_SHARED, w->spool_fd, 0);
        if (p == MAP_FAILED)
            return -errno;
        /* A run of zeros at the end may not have been written. */
        if (ftruncate(w->spool_fd, (off_t)w->spool_len) < 0) {
            r = -errno;
            (void)munmap(p, w->spool_len);
            return r;
        }
        m->tails = p;
    }
    m->window = calloc(WINDOW_BLOCKS, EROFS_BLOCK_SIZE);
    erofs_out_init(&m->out, w->fd);
    if (!m->window)
        return -ENOMEM;
    r = collect(m);
    if (r < 0)
        return r;
    choose_epoch(m);
    r = place(m);
    if (r == 0)
        r = emit(m);
    return r < 0 ? r : put_super(m);
}

int erofs_finish(struct erofs_writer *w, struct tree *t, struct err *e)
{
    struct meta m = {.w = w, .t = t, .out = {.fd = -1}};
    int r = write_meta(&m);
    if (m.tails)
        (void)munmap((void *)(uintptr_t)m.tails, w->spool_len);
    erofs_out_free(&m.out);
    free(m.window);
    free(m.inodes);
    erofs_abort(w);
    if (r == -EFBIG)
        return err_set(e, EFBIG, "the image is over 16 TiB");
    return r < 0 ? erofs_write_failed(-r, e) : 0;
}
