/* The table of inodes that the guest knows.
 *
 *  1. An inode lives while the guest (lookups) or something here (refs) holds references to it.
 *  2. It has a descriptor, or a parent and a name, or both; the root always has a descriptor.
 *  3. (dev, ino) are in the hash once, or twice (struct seen); what is found under a name is the same
 *     object only if both are the same, and its type.
 *  4. Numbers are never reused, so that one that the guest has given up leads nowhere.
 *  5. Parents form no cycle, although the host may move directories so that remembered ones would.
 */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* #syscalls:fs openat close fstat newfstatat statx */

enum { BUCKETS = 1 << 14, SLOTS_FIRST = 256, DEPTH_MAX = 8192 };

/* --- hash, list of descriptors --------------------------------------------------------------- */

static struct inode **bucket_of(struct fuse_server *s, dev_t dev, ino_t ino)
{
    uint64_t h = ((uint64_t)ino ^ (uint64_t)dev << 40) * 0x9e3779b97f4a7c15ULL;
    return &s->bucket[h >> 50 & (BUCKETS - 1)];
}

static struct inode *hash_find(struct fuse_server *s, dev_t dev, ino_t ino, bool fixed)
{
    struct inode *i = *bucket_of(s, dev, ino);
    while (i && (i->dev != dev || i->ino != ino || i->fixed != fixed))
        i = i->hash_next;
    return i;
}

/* The mount through which a name, or (NULL) dir itself, is seen. */
static uint64_t mount_of(int dir, const char *name)
{
    struct statx x = {0};
    int how = name ? AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT : AT_EMPTY_PATH;
    return dir < 0 || statx(dir, name ? name : "", how, STATX_MNT_ID, &x) < 0 ? 0 : x.stx_mnt_id;
}

static bool is_read_only(int dir, const char *name)
{
    struct statvfs f;
    AUTO_CLOSE int fd = name ? openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
    return fstatvfs(name ? fd : dir, &f) == 0 && f.f_flag & ST_RDONLY;
}

/* With several trees, an object may be seen through several mounts. It is one inode to the guest,
 * which identifies locks and sockets by inode; but two if one of the mounts is read-only. */
struct seen {
    uint64_t mount;
    bool fixed;
};

static struct seen seen_as(struct fuse_server *s, struct inode *parent, int dir, const char *name)
{
    struct seen at = {0};
    if (!s->opt.many || dir < 0)
        return at;
    at.mount = mount_of(dir, name);
    at.fixed = parent && at.mount == parent->mount ? parent->fixed : is_read_only(dir, name);
    return at;
}

struct inode *inode_known(struct fuse_server *s, const struct stat *st)
{
    struct inode *i = hash_find(s, st->st_dev, st->st_ino, false);
    return i && i->type == (st->st_mode & S_IFMT) ? i : NULL;
}

bool inode_has_number(struct fuse_server *s, dev_t dev, ino_t ino)
{
    return hash_find(s, dev, ino, false) || hash_find(s, dev, ino, true);
}

static void hash_remove(struct fuse_server *s, struct inode *i)
{
    struct inode **at = bucket_of(s, i->dev, i->ino);
    while (*at && *at != i)
        at = &(*at)->hash_next;
    if (*at)
        *at = i->hash_next;
}

static void list_remove(struct fuse_server *s, struct inode *i)
{
    if (!i->older && !i->newer && s->oldest != i)
        return;
    *(i->older ? &i->older->newer : &s->oldest) = i->newer;
    *(i->newer ? &i->newer->older : &s->newest) = i->older;
    i->older = i->newer = NULL;
    assert(!s->oldest == !s->newest);
}

static void list_add(struct fuse_server *s, struct inode *i)
{
    assert(i->fd >= 0 && !i->pinned && !i->older && !i->newer);
    i->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = i;
    s->newest = i;
}

static void drop_fd(struct fuse_server *s, struct inode *i)
{
    if (i->fd < 0)
        return;
    assert(s->n_fds > 0 && s->n_pinned >= i->pinned);
    list_remove(s, i);
    s->n_pinned -= i->pinned;
    s->n_fds--;
    i->pinned = i->here = false;
    close_fd(&i->fd);
}

/* Makes room for one more. Those without a name stay; they are bounded by inode_name_goes. */
static void evict_fds(struct fuse_server *s)
{
    while (s->n_fds >= s->opt.fds_max && s->oldest)
        drop_fd(s, s->oldest);
}

void inode_set_fd(struct fuse_server *s, struct inode *i, int fd)
{
    if (i->fd >= 0) {
        (void)close(fd);
        return;
    }
    evict_fds(s);
    i->fd = fd;
    i->mount = s->opt.many ? mount_of(fd, NULL) : 0;
    s->n_fds++;
    list_add(s, i);
}

static void set_pinned(struct fuse_server *s, struct inode *i, bool on)
{
    if (i->pinned == on || i->fd < 0 || i->id == FUSE_ROOT_ID)
        return;
    i->pinned = on;
    s->n_pinned += on ? 1 : -1U;
    if (on)
        list_remove(s, i);
    else
        list_add(s, i);
}

void inode_pin(struct fuse_server *s, struct inode *i)
{
    set_pinned(s, i, true);
}

/* --- life ------------------------------------------------------------------------------------ */

static int table_grow(struct fuse_server *s)
{
    uint32_t n = s->n_slots ? s->n_slots * 2 : SLOTS_FIRST;
    struct inode **slot = reallocarray(s->slot, n, sizeof(struct inode *));
    if (!slot)
        return -ENOMEM;
    s->slot = slot;
    uint32_t *free_slot = reallocarray(s->free_slot, n, sizeof(*free_slot));
    if (!free_slot)
        return -ENOMEM;
    s->free_slot = free_slot;
    memset(slot + s->n_slots, 0, (n - s->n_slots) * sizeof(struct inode *));
    s->n_slots = n;
    return 0;
}

static int new_inode(struct fuse_server *s, const struct stat *st, struct inode **ret)
{
    if (s->n_inodes >= s->opt.inodes_max)
        return -ENFILE;
    if (s->free_slots == 0 && s->slots_used >= s->n_slots && table_grow(s) < 0)
        return -ENOMEM;
    struct inode *i = calloc(1, sizeof(*i));
    if (!i)
        return -ENOMEM;
    uint32_t at = s->free_slots ? s->free_slot[--s->free_slots] : s->slots_used++;
    i->generation = ++s->generation;
    i->id = at == FUSE_ROOT_ID ? at : (i->generation & INT32_MAX) << 32 | at;
    i->fd = -1;
    i->dev = st->st_dev;
    i->ino = st->st_ino;
    i->type = st->st_mode & S_IFMT;
    struct inode **b = bucket_of(s, i->dev, i->ino);
    i->hash_next = *b;
    *b = i;
    assert(at < s->n_slots && !s->slot[at]);
    s->slot[at] = i;
    s->n_inodes++;
    *ret = i;
    return 0;
}

/* Where it was found, and that of the directories above it. */
static uint64_t trees_of(const struct inode *i)
{
    uint64_t trees = 0;
    for (unsigned depth = 0; i && depth < DEPTH_MAX; i = i->parent, depth++)
        trees |= i->trees;
    return trees;
}

static void set_parent(struct fuse_server *s, struct inode *i, struct inode *parent, char *name)
{
    struct inode *old = i->parent;
    assert(parent ? name != NULL : i->fd >= 0); /* 2. */
    if (s->opt.many && old)
        i->trees |= trees_of(old);
    free(i->name);
    i->name = name;
    i->parent = parent;
    if (parent)
        inode_ref(parent);
    if (old)
        inode_unref(s, old);
}

void inode_ref(struct inode *i)
{
    i->refs++;
}

/* Frees an inode without references, and then perhaps its parents. */
static void free_unheld(struct fuse_server *s, struct inode *i)
{
    while (i && i->refs == 0 && i->lookups == 0 && i->id != FUSE_ROOT_ID) {
        struct inode *parent = i->parent;
        const uint32_t at = (uint32_t)i->id;
        assert(s->slot[at] == i && s->free_slots < s->n_slots && i->opens == 0);
        drop_fd(s, i);
        hash_remove(s, i);
        s->slot[at] = NULL;
        s->free_slot[s->free_slots++] = at;
        s->n_inodes--;
        free(i->name);
        free(i);
        assert(!parent || parent->refs > 0);
        if (parent)
            parent->refs--;
        i = parent;
    }
}

void inode_unref(struct fuse_server *s, struct inode *i)
{
    assert(i->refs > i->opens);
    i->refs--;
    free_unheld(s, i);
}

void inode_forget(struct fuse_server *s, struct inode *i, uint64_t n)
{
    i->lookups -= MIN(n, i->lookups);
    free_unheld(s, i);
}

struct inode *inode_get(struct fuse_server *s, uint64_t id)
{
    struct inode *i = (uint32_t)id < s->n_slots ? s->slot[(uint32_t)id] : NULL;
    return i && i->id == id ? i : NULL;
}

/* --- names ----------------------------------------------------------------------------------- */

static bool is_above(const struct inode *i, const struct inode *below)
{
    unsigned depth = 0;
    for (; below && depth < DEPTH_MAX; below = below->parent, depth++)
        if (below == i)
            return true;
    return depth == DEPTH_MAX;
}

/* Remembers where i was found. */
static int set_name(struct fuse_server *s, struct inode *i, struct inode *parent, const char *name)
{
    if (i->id == FUSE_ROOT_ID || (i->parent == parent && i->name && strcmp(i->name, name) == 0))
        return 0;
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    /* The host has moved them: what we remember about `parent`, which is open, is out of date. */
    if (S_ISDIR(i->type) && is_above(i, parent)) {
        set_pinned(s, parent, true);
        set_parent(s, parent, NULL, NULL);
    }
    set_parent(s, i, parent, copy);
    set_pinned(s, i, false);
    return 0;
}

static int find_in(struct fuse_server *s, struct inode *parent, const char *name,
                   const struct stat *st, struct seen at, struct inode **ret)
{
    struct inode *i = hash_find(s, st->st_dev, st->st_ino, at.fixed);
    int r = 0;
    if (i && i->type != (st->st_mode & S_IFMT)) { /* the number was reused */
        hash_remove(s, i);
        i = NULL;
    }
    if (!i && (r = new_inode(s, st, &i)) == 0)
        i->fixed = at.fixed;
    if (r == 0 && parent) {
        inode_ref(i); /* it may be new, and must outlive the change of parents */
        r = set_name(s, i, parent, name);
        i->refs--;
    }
    if (r == 0)
        *ret = i;
    else if (i)
        free_unheld(s, i);
    return r;
}

int inode_find(struct fuse_server *s, struct inode *parent, const char *name, const struct stat *st,
               struct inode **ret)
{
    int dir = s->opt.many && parent ? inode_fd(s, parent) : -1;
    return find_in(s, parent, name, st, seen_as(s, parent, dir, name), ret);
}

int inode_find_new(struct fuse_server *s, struct inode *dir, int fd, const struct stat *st,
                   struct inode **ret)
{
    int r = find_in(s, NULL, NULL, st, seen_as(s, dir, fd, NULL), ret);
    if (r == 0 && s->opt.many)
        (*ret)->trees |= trees_of(dir);
    return r;
}

int inode_find_root(struct fuse_server *s, uint64_t tree, int fd, const struct stat *st,
                    struct inode **ret)
{
    struct seen at = seen_as(s, NULL, fd, NULL);
    int r = find_in(s, NULL, NULL, st, at, ret);
    if (r == 0)
        (*ret)->trees |= tree;
    if (r < 0 || (*ret)->fd >= 0)
        return r;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        r = -errno;
        free_unheld(s, *ret);
        return r;
    }
    (*ret)->mount = at.mount;
    (*ret)->fd = copy; /* not in the list: it has no name by which it could be reopened */
    (*ret)->pinned = true;
    s->n_fds++;
    s->n_pinned++;
    return 0;
}

/* --- a tree goes ------------------------------------------------------------------------------ */

enum { FATE_UNKNOWN, FATE_STAYS, FATE_GOES };

/* Decides its fate: its own, or that of the nearest directory above that has one; everything in
 * between gets the same. */
static void decide(struct inode *i)
{
    const struct inode *p = i;
    while (p->fate == FATE_UNKNOWN && p->parent)
        p = p->parent;
    uint8_t fate = p->fate == FATE_STAYS ? FATE_STAYS : FATE_GOES;
    for (; i && i->fate == FATE_UNKNOWN; i = i->parent)
        i->fate = fate;
}

/* It is elsewhere, too, and can no longer be found here. */
static void keep_without_name(struct fuse_server *s, struct inode *i)
{
    if (s->n_pinned >= s->opt.fds_max / 2 || inode_fd(s, i) < 0)
        return;
    set_pinned(s, i, true);
    set_parent(s, i, NULL, NULL);
}

void inode_leave_tree(struct fuse_server *s, uint64_t tree)
{
    for (uint32_t k = 0; k < s->n_slots; k++) {
        struct inode *i = s->slot[k];
        if (!i)
            continue;
        i->trees &= ~tree;
        i->fate = i->trees || i->id == FUSE_ROOT_ID ? FATE_STAYS : FATE_UNKNOWN;
    }
    for (uint32_t k = 0; k < s->n_slots; k++)
        if (s->slot[k])
            decide(s->slot[k]);
    for (uint32_t k = 0; k < s->n_slots; k++) {
        struct inode *i = s->slot[k];
        if (i && i->fate == FATE_STAYS && i->parent && i->parent->fate == FATE_GOES)
            keep_without_name(s, i);
    }
    /* These must not be found again: a file system that is mounted later may have the same device
     * number, and the guest would use what it has cached from this one. */
    for (uint32_t k = 0; k < s->n_slots; k++) {
        struct inode *i = s->slot[k];
        if (!i || i->fate != FATE_GOES)
            continue;
        drop_fd(s, i);
        hash_remove(s, i);
        i->gone = true;
    }
}

/* --- descriptors ------------------------------------------------------------------------------ */

/* Opens i by its name, a single component, without following links; its parent is open. */
static int reopen_by_name(struct fuse_server *s, struct inode *i)
{
    struct stat st;
    int fd = openat(i->parent->fd, i->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
    if (stat_fd(s, fd, &st) < 0 || st.st_dev != i->dev || st.st_ino != i->ino ||
        (st.st_mode & S_IFMT) != i->type) {
        (void)close(fd);
        return -ESTALE;
    }
    inode_set_fd(s, i, fd);
    return i->fd;
}

static void touch_fd(struct fuse_server *s, struct inode *i)
{
    if (i->pinned || i->id == FUSE_ROOT_ID || s->newest == i)
        return;
    list_remove(s, i);
    list_add(s, i);
}

int inode_fd(struct fuse_server *s, struct inode *i)
{
    if (i->gone)
        return -ESTALE;
    if (i->fd >= 0) {
        touch_fd(s, i);
        return i->fd;
    }
    /* From the nearest parent that is open, down. */
    unsigned depth = 0;
    for (struct inode *p = i; p->fd < 0; p = p->parent)
        if (!p->parent || ++depth > DEPTH_MAX)
            return -ESTALE;
    AUTO_FREE struct inode **chain = calloc(depth, sizeof(struct inode *));
    if (!chain)
        return -ENOMEM;
    unsigned n = depth;
    for (struct inode *p = i; p->fd < 0; p = p->parent)
        chain[--n] = p;
    touch_fd(s, chain[0]->parent);
    int r = 0;
    for (n = 0; r >= 0 && n < depth; n++)
        r = reopen_by_name(s, chain[n]);
    return r;
}

int inode_dir_fd(struct fuse_server *s, struct inode *i)
{
    if (!S_ISDIR(i->type))
        return -ENOTDIR;
    if (is_made_up(s, i))
        return -EROFS;
    return inode_fd(s, i);
}

void inode_name_goes(struct fuse_server *s, struct inode *parent, const char *name,
                     const struct stat *st)
{
    int dir = s->opt.many ? inode_fd(s, parent) : -1;
    struct inode *i = hash_find(s, st->st_dev, st->st_ino, seen_as(s, parent, dir, name).fixed);
    if (!i || i->id == FUSE_ROOT_ID)
        return;
    inode_ref(i);
    /* By the name that is about to go, which certainly exists. */
    if (set_name(s, i, parent, name) == 0 && s->n_pinned < s->opt.fds_max / 2 &&
        inode_fd(s, i) >= 0) {
        set_pinned(s, i, true);
        set_parent(s, i, NULL, NULL);
    }
    inode_unref(s, i);
}

void inode_name_came(struct fuse_server *s, struct inode *parent, const char *name)
{
    struct stat st;
    int dir = inode_dir_fd(s, parent);
    if (dir < 0 || stat_at(s, dir, name, &st) < 0)
        return;
    struct inode *i = hash_find(s, st.st_dev, st.st_ino, seen_as(s, parent, dir, name).fixed);
    if (!i)
        return;
    inode_ref(i);
    (void)set_name(s, i, parent, name);
    inode_unref(s, i);
}

/* --- the table ------------------------------------------------------------------------------- */

int inode_table_init(struct fuse_server *s, int root_fd)
{
    struct stat st = {0};
    struct inode *root;
    bool made_up = s->opt.file || s->opt.many;
    s->bucket = calloc(BUCKETS, sizeof(struct inode *));
    if (!s->bucket)
        return -ENOMEM;
    if (!s->opt.many && stat_fd(s, root_fd, &st) < 0)
        return -errno;
    if (made_up) {
        st.st_mode = S_IFDIR; /* a directory that does not exist, without a number */
        st.st_dev = 0;
        st.st_ino = 0;
    }
    s->slots_used = FUSE_ROOT_ID;
    int r = new_inode(s, &st, &root);
    if (r == 0 && !made_up)
        root->fd = root_fd; /* not counted, not in the list: it stays */
    return r;
}

void inode_table_free(struct fuse_server *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct inode *x = s->slot[i];
        if (!x)
            continue;
        if (x->id != FUSE_ROOT_ID)
            close_fd(&x->fd);
        free(x->name);
        free(x);
    }
    free(s->slot);
    free(s->free_slot);
    free(s->bucket);
    s->slot = NULL;
    s->free_slot = NULL;
    s->bucket = NULL;
    s->n_slots = s->slots_used = s->free_slots = s->n_inodes = 0;
    s->n_fds = s->n_pinned = 0;
    s->oldest = s->newest = NULL;
}
