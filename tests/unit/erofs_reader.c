#include <stdint.h>

#include "erofs_reader.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define BLOCK 4096U

static uint64_t le(const uint8_t *p, int n)
{
    uint64_t v = 0;
    for (int i = n; i--;)
        v = v << 8 | p[i];
    return v;
}

static const uint8_t *at(const struct er *r, uint64_t off, size_t n)
{
    assert_true(off <= r->len && n <= r->len - off);
    return r->map + off;
}

static uint32_t crc32c(const uint8_t *p, size_t n)
{
    uint32_t c = ~0U;
    while (n--) {
        c ^= *p++;
        for (int i = 0; i < 8; i++)
            c = c & 1 ? c >> 1 ^ 0x82f63b78U : c >> 1;
    }
    return c;
}

void er_open(struct er *r, int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    *r = (struct er){.len = (size_t)st.st_size};
    void *p = mmap(NULL, r->len, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    r->map = p;
    uint8_t sb[BLOCK - 1024];
    memcpy(sb, at(r, 1024, sizeof(sb)), sizeof(sb));
    assert_int_equal(le(sb, 4), 0xe0f5e1e2U);
    uint32_t sum = (uint32_t)le(sb + 4, 4);
    memset(sb + 4, 0, 4);
    assert_int_equal(sum, crc32c(sb, sizeof(sb)));
    assert_int_equal(sb[12], 12);        /* block bits */
    assert_int_equal(le(sb + 80, 4), 0); /* incompatible features */
    assert_true(le(sb + 36, 4) * BLOCK == r->len);
    r->root = le(sb + 14, 2);
    r->inos = le(sb + 16, 8);
    r->epoch = (int64_t)le(sb + 24, 8);
    r->epoch_nsec = (uint32_t)le(sb + 32, 4);
    r->meta = le(sb + 40, 4) * BLOCK;
    assert_true(r->root > 0);
}

void er_close(struct er *r)
{
    (void)munmap((void *)(uintptr_t)r->map, r->len);
}

void er_inode(const struct er *r, uint64_t nid, struct er_inode *ret)
{
    uint64_t off = r->meta + nid * 32;
    const uint8_t *p = at(r, off, 32);
    unsigned format = (unsigned)le(p, 2), layout = format >> 1 & 7;
    struct er_inode i = {.nid = nid, .mode = (uint16_t)le(p + 4, 2), .extended = format & 1};
    assert_int_equal(format & ~0xfU, 0);
    assert_true(layout == 0 || layout == 2);
    i.inl = layout == 2;
    if (i.extended) {
        p = at(r, off, 64);
        i.size = le(p + 8, 8);
        i.u = (uint32_t)le(p + 16, 4);
        i.uid = (uint32_t)le(p + 24, 4);
        i.gid = (uint32_t)le(p + 28, 4);
        i.mtime = (int64_t)le(p + 32, 8);
        i.mtime_nsec = (uint32_t)le(p + 40, 4);
        i.nlink = (uint32_t)le(p + 44, 4);
    } else {
        i.nlink = (uint32_t)le(p + 6, 2);
        i.size = le(p + 8, 4);
        assert_int_equal(le(p + 12, 4), 0);
        i.u = (uint32_t)le(p + 16, 4);
        i.uid = (uint32_t)le(p + 24, 2);
        i.gid = (uint32_t)le(p + 26, 2);
        i.mtime = r->epoch;
        i.mtime_nsec = r->epoch_nsec;
    }
    off += i.extended ? 64 : 32;
    size_t icount = (size_t)le(p + 2, 2);
    assert_true(icount != 1); /* a header without entries is undefined */
    if (icount) {
        i.xattr = off;
        i.xattr_len = 12 + 4 * (icount - 1);
        off += i.xattr_len;
    }
    if (i.inl) {
        size_t tail = i.size % BLOCK;
        assert_true(tail > 0);
        assert_true(off / BLOCK == (off + tail - 1) / BLOCK);
        (void)at(r, off, tail);
        i.tail = off;
    }
    if ((S_ISREG(i.mode) || S_ISDIR(i.mode) || S_ISLNK(i.mode)) && i.size) {
        uint64_t blocks = (i.size + BLOCK - 1) / BLOCK - i.inl;
        if (blocks) {
            assert_true(i.u > 0);
            assert_true((i.u + blocks) * BLOCK <= r->len);
        }
    }
    *ret = i;
}

size_t er_read(const struct er *r, const struct er_inode *ino, uint64_t offset, void *buf, size_t n)
{
    size_t done = 0;
    while (done < n && offset < ino->size) {
        uint64_t in_block = offset % BLOCK;
        size_t k = BLOCK - in_block;
        if (k > ino->size - offset)
            k = (size_t)(ino->size - offset);
        if (k > n - done)
            k = n - done;
        uint64_t full = ino->size / BLOCK * BLOCK;
        uint64_t from =
            ino->inl && offset >= full ? ino->tail + in_block : (uint64_t)ino->u * BLOCK + offset;
        memcpy((uint8_t *)buf + done, at(r, from, k), k);
        done += k;
        offset += k;
    }
    return done;
}

static int name_cmp(const char *a, size_t an, const char *b, size_t bn)
{
    int c = memcmp(a, b, an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

void er_each(const struct er *r, const struct er_inode *dir,
             void (*fn)(void *arg, const struct er_dirent *d), void *arg)
{
    uint8_t block[BLOCK], prev[256];
    size_t prev_len = 0;
    assert_true(S_ISDIR(dir->mode));
    for (uint64_t off = 0; off < dir->size; off += BLOCK) {
        size_t used = er_read(r, dir, off, block, BLOCK);
        size_t first = (size_t)le(block + 8, 2), count = first / 12;
        assert_true(count > 0 && first % 12 == 0 && first < used);
        for (size_t i = 0; i < count; i++) {
            const uint8_t *de = block + i * 12;
            size_t name = (size_t)le(de + 8, 2);
            size_t end = i + 1 < count ? (size_t)le(de + 12 + 8, 2) : used;
            assert_true(name < end && end <= used);
            struct er_dirent d = {(const char *)block + name, end - name, le(de, 8), de[10]};
            if (i + 1 == count) /* padding may follow the last name */
                d.len = strnlen(d.name, d.len);
            assert_true(d.len >= 1 && d.len <= 255);
            assert_null(memchr(d.name, 0, d.len));
            assert_null(memchr(d.name, '/', d.len));
            if (prev_len)
                assert_true(name_cmp((char *)prev, prev_len, d.name, d.len) < 0);
            memcpy(prev, d.name, d.len);
            prev_len = d.len;
            fn(arg, &d);
        }
    }
}

struct find {
    const char *name;
    size_t len;
    uint64_t nid;
};

static void find_one(void *arg, const struct er_dirent *d)
{
    struct find *f = arg;
    if (d->len == f->len && memcmp(d->name, f->name, d->len) == 0)
        f->nid = d->nid;
}

bool er_lookup(const struct er *r, const char *path, struct er_inode *ret)
{
    er_inode(r, r->root, ret);
    while (*path) {
        struct find f = {.name = path, .len = strcspn(path, "/")};
        if (f.len) {
            if (!S_ISDIR(ret->mode))
                return false;
            er_each(r, ret, find_one, &f);
            if (!f.nid)
                return false;
            er_inode(r, f.nid, ret);
        }
        path += f.len + (path[f.len] == '/');
    }
    return true;
}

const void *er_xattr(const struct er *r, const struct er_inode *ino, const char *name,
                     size_t *ret_len)
{
    static const char *const prefix[] = {
        "",  "user.",    "system.posix_acl_access", "system.posix_acl_default", "trusted.",
        "?", "security."};
    if (!ino->xattr)
        return NULL;
    const uint8_t *p = at(r, ino->xattr, ino->xattr_len), *end = p + ino->xattr_len;
    assert_int_equal(p[4], 0); /* none shared */
    for (p += 12; p < end;) {
        assert_true(p + 4 <= end);
        size_t nlen = p[0], vlen = (size_t)le(p + 2, 2), index = p[1];
        assert_true(index >= 1 && index <= 6 && index != 5);
        assert_true(p + 4 + nlen + vlen <= end);
        size_t plen = strlen(prefix[index]);
        if (strncmp(name, prefix[index], plen) == 0 && strlen(name) == plen + nlen &&
            memcmp(name + plen, p + 4, nlen) == 0) {
            *ret_len = vlen;
            return p + 4 + nlen;
        }
        p += (4 + nlen + vlen + 3) & ~(size_t)3;
    }
    return NULL;
}

/* ---- the whole image ---- */

struct seen {
    uint64_t nid;
    uint32_t links, nlink;
    bool dir;
};

struct check {
    const struct er *r;
    struct seen *seen;
    size_t n, cap, entries;
    const struct er_inode *dir;
    uint64_t parent;
    int dots;
    uint64_t *dirs; /* pairs: directory, parent */
    size_t ndirs, capdirs;
};

static struct seen *see(struct check *c, uint64_t nid)
{
    for (size_t i = nid * 0x9e3779b97f4a7c15ULL % c->cap;; i = (i + 1) % c->cap) {
        if (c->seen[i].nid == nid)
            return &c->seen[i];
        if (c->seen[i].nid == 0) {
            c->n++;
            assert_true(c->n < c->cap);
            c->seen[i].nid = nid;
            return &c->seen[i];
        }
    }
}

static const uint16_t type_mode[] = {0,       S_IFREG, S_IFDIR,  S_IFCHR,
                                     S_IFBLK, S_IFIFO, S_IFSOCK, S_IFLNK};

static void check_one(void *arg, const struct er_dirent *d)
{
    struct check *c = arg;
    if (d->len == 1 && d->name[0] == '.') {
        assert_true(d->nid == c->dir->nid && d->type == 2);
        c->dots |= 1;
        return;
    }
    if (d->len == 2 && d->name[0] == '.' && d->name[1] == '.') {
        assert_true(d->nid == c->parent && d->type == 2);
        c->dots |= 2;
        return;
    }
    struct er_inode ino;
    er_inode(c->r, d->nid, &ino);
    assert_true(d->type >= 1 && d->type <= 7);
    assert_int_equal(ino.mode & S_IFMT, type_mode[d->type]);
    struct seen *s = see(c, d->nid);
    s->links++;
    s->nlink = ino.nlink;
    c->entries++;
    if (S_ISDIR(ino.mode)) {
        assert_int_equal(s->links, 1);
        s->dir = true;
        s->links++; /* its own "." */
        see(c, c->dir->nid)->links++;
        if (c->ndirs + 2 > c->capdirs) {
            c->capdirs *= 2;
            c->dirs = realloc(c->dirs, c->capdirs * sizeof(c->dirs[0]));
            assert_non_null(c->dirs);
        }
        c->dirs[c->ndirs++] = d->nid;
        c->dirs[c->ndirs++] = c->dir->nid;
    }
}

static int by_start(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void check_overlap(const struct check *c)
{
    uint64_t *span = calloc(c->n, 2 * sizeof(*span));
    assert_non_null(span);
    size_t n = 0;
    for (size_t i = 0; i < c->cap; i++) {
        if (!c->seen[i].nid)
            continue;
        struct er_inode ino;
        er_inode(c->r, c->seen[i].nid, &ino);
        span[n++] = ino.nid * 32;
        span[n++] = ino.nid * 32 + (ino.extended ? 64 : 32) + ino.xattr_len +
                    (ino.inl ? ino.size % BLOCK : 0);
    }
    qsort(span, n / 2, 2 * sizeof(*span), by_start);
    for (size_t i = 2; i < n; i += 2)
        assert_true(span[i - 1] <= span[i]);
    free(span);
}

size_t er_check(const struct er *r)
{
    struct check c = {.r = r, .cap = r->inos * 2 + 16, .capdirs = 64};
    c.seen = calloc(c.cap, sizeof(c.seen[0]));
    c.dirs = calloc(c.capdirs, sizeof(c.dirs[0]));
    assert_non_null(c.seen);
    assert_non_null(c.dirs);
    struct er_inode root;
    er_inode(r, r->root, &root);
    *see(&c, r->root) = (struct seen){.nid = r->root, .links = 2, .nlink = root.nlink, .dir = true};
    c.dirs[c.ndirs++] = r->root;
    c.dirs[c.ndirs++] = r->root;
    for (size_t i = 0; i < c.ndirs; i += 2) {
        struct er_inode dir;
        er_inode(r, c.dirs[i], &dir);
        c.dir = &dir;
        c.parent = c.dirs[i + 1];
        c.dots = 0;
        er_each(r, &dir, check_one, &c);
        assert_int_equal(c.dots, 3);
    }
    for (size_t i = 0; i < c.cap; i++)
        if (c.seen[i].nid)
            assert_int_equal(c.seen[i].links, c.seen[i].nlink);
    assert_int_equal(c.n, r->inos);
    check_overlap(&c);
    free(c.seen);
    free(c.dirs);
    return c.entries;
}
