/* Owners and modes as the guest set them.
 *
 * On the host, everything belongs to the user who started msb, and has no set-ID bits. What the
 * guest should see instead is kept with the file, in the extended attribute user.msb.override_stat,
 * as "UID:GID:MODE" (decimal, decimal, octal); where the file system has no such attributes, or the
 * user may not write them, it is kept in memory until the sandbox ends; for files on FUSE mounts,
 * as long as guest or host know the file, and then until room is needed. Nothing is kept while the
 * host's own attributes say the same.
 *
 * With real owners, the host's own attributes are changed, and nothing is kept.
 *
 * What was found is cached with the inode. Changing an attribute changes the ctime, so the cache is
 * valid while that stays the same, provided it was old enough to tell two changes apart; and in any
 * case as long as the guest itself may cache attributes.
 */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/newer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* #syscalls:fs getxattrat getxattr lgetxattr setxattr lsetxattr removexattr lremovexattr clock_gettime */
/* #syscalls:fs_owners fchownat fchmodat */

#define ATTRIBUTE "user.msb.override_stat"

enum {
    OWNERS_MAX = 65536,
    BUCKETS = 4096,
    TEXT_MAX = 40,
    MODE_BITS = 07777,
    OVERFLOW_ID = 65534, /* /proc/sys/kernel/overflowuid, never changed in practice */
    TICKS_NS = 50000000, /* a safe bound on the granularity of file times */
};

struct owner_entry {
    dev_t dev;
    ino_t ino;
    struct owner o;
    struct owner_entry *next;
};

/* --- in memory ------------------------------------------------------------------------------- */

static struct owner_entry **entry_place(const struct fuse_server *s, const struct stat *st)
{
    uint64_t h = ((uint64_t)st->st_ino ^ (uint64_t)st->st_dev << 40) * 0x9e3779b97f4a7c15ULL;
    struct owner_entry **at = &s->owners[h >> 52 & (BUCKETS - 1)];
    while (*at && ((*at)->dev != st->st_dev || (*at)->ino != st->st_ino))
        at = &(*at)->next;
    return at;
}

static void entry_drop(struct fuse_server *s, struct owner_entry **at)
{
    struct owner_entry *e = *at;
    *at = e->next;
    free(e);
    s->n_owners--;
}

/* Whether the file may never be found again: the numbers of files on FUSE mounts (identity.c) are
 * only valid while the host's kernel knows the files, and it does not tell when it forgets them. */
static bool entry_lost(struct fuse_server *s, const struct owner_entry *e)
{
    return numbers_repeat(s, e->dev) && !inode_has_number(s, e->dev, e->ino);
}

static void drop_lost(struct fuse_server *s)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct owner_entry **at = &s->owners[i]; *at;)
            if (entry_lost(s, *at))
                entry_drop(s, at);
            else
                at = &(*at)->next;
}

static int entry_store(struct fuse_server *s, const struct stat *st, const struct owner *o)
{
    if (!s->owners && !(s->owners = calloc(BUCKETS, sizeof(struct owner_entry *))))
        return -ENOMEM;
    if (s->n_owners >= OWNERS_MAX && !*entry_place(s, st))
        drop_lost(s);
    struct owner_entry **at = entry_place(s, st);
    if (!*at) {
        if (s->n_owners >= OWNERS_MAX)
            return -ENOSPC;
        struct owner_entry *e = calloc(1, sizeof(*e));
        if (!e)
            return -ENOMEM;
        e->dev = st->st_dev;
        e->ino = st->st_ino;
        *at = e;
        s->n_owners++;
    }
    (*at)->o = *o;
    return 0;
}

void owner_forget(struct fuse_server *s, const struct stat *st)
{
    struct owner_entry **at = s->n_owners ? entry_place(s, st) : NULL;
    if (at && *at)
        entry_drop(s, at);
}

void owner_table_free(struct fuse_server *s)
{
    for (unsigned i = 0; s->owners && i < BUCKETS; i++)
        while (s->owners[i]) {
            struct owner_entry *e = s->owners[i];
            s->owners[i] = e->next;
            free(e);
        }
    free(s->owners);
    s->owners = NULL;
    s->n_owners = 0;
}

/* --- on the file ----------------------------------------------------------------------------- */

/* Any process on the host can write such an attribute: it is not trusted. */
static bool parse_owner(char *text, struct owner *o)
{
    unsigned long v[3];
    for (int i = 0; i < 3; i++) {
        char *end;
        if (*text < '0' || *text > '9')
            return false;
        errno = 0;
        v[i] = strtoul(text, &end, i == 2 ? 8 : 10);
        if (errno || *end != (i == 2 ? '\0' : ':') || v[i] > UINT32_MAX)
            return false;
        text = end + 1;
    }
    *o = (struct owner){(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2] & MODE_BITS};
    return true;
}

/* The attribute of fd or, if name is not NULL, of that name in fd, which is not followed.
 * getxattrat() takes a third of the time that the detour through /proc takes. Hosts before Linux
 * 6.13 do not have it; it does not take O_PATH descriptors of files, and needs search permission
 * for a directory. */
static ssize_t attr_get(struct fuse_server *s, int fd, const char *name, bool dir, char *to,
                        size_t n)
{
    char path[PATH_REF_MAX];
    struct xattr_value v = {.value = (uintptr_t)to, .size = (uint32_t)n};
    const char *at = name || !dir ? name : ".";
    if (at && !s->no_getxattrat) {
        long r = syscall(SYS_getxattrat, fd, at, AT_SYMLINK_NOFOLLOW, ATTRIBUTE, &v, sizeof(v));
        if (r >= 0 || errno == ENODATA || errno == EOPNOTSUPP)
            return r;
        s->no_getxattrat = errno == ENOSYS || errno == EPERM;
    }
    path_of(path, fd, name);
    return name ? lgetxattr(path, ATTRIBUTE, to, n) : getxattr(path, ATTRIBUTE, to, n);
}

static int attr_put(int fd, const char *name, const char *text, size_t n)
{
    char path[PATH_REF_MAX];
    path_of(path, fd, name);
    return name ? lsetxattr(path, ATTRIBUTE, text, n, 0) : setxattr(path, ATTRIBUTE, text, n, 0);
}

static void attr_remove(int fd, const char *name)
{
    char path[PATH_REF_MAX];
    path_of(path, fd, name);
    (void)(name ? lremovexattr(path, ATTRIBUTE) : removexattr(path, ATTRIBUTE));
}

static bool can_have_attribute(const struct fuse_server *s, const struct stat *st)
{
    return (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)) && may_have_xattrs(s, st->st_dev);
}

static bool load_override(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                          struct owner *ret)
{
    char text[TEXT_MAX];
    if (s->n_owners) {
        const struct owner_entry *e = *entry_place(s, st);
        if (e) {
            *ret = e->o;
            return true;
        }
    }
    if (s->opt.real_owners || !can_have_attribute(s, st))
        return false;
    ssize_t n = attr_get(s, fd, name, S_ISDIR(st->st_mode), text, sizeof(text) - 1);
    if (n < 0 && errno == EOPNOTSUPP)
        has_no_xattrs(s, st->st_dev);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return parse_owner(text, ret);
}

/* --- with the inode -------------------------------------------------------------------------- */

static int64_t ns_between(const struct timespec *from, const struct timespec *to)
{
    int64_t s = (int64_t)to->tv_sec - from->tv_sec;
    return s > 1000 ? INT64_MAX : s < -1000 ? -1 : s * 1000000000 + to->tv_nsec - from->tv_nsec;
}

/* *age is set if so. */
static bool young(const struct fuse_server *s, const struct timespec *at, uint64_t *age)
{
    struct timespec now;
    int64_t ns = clock_gettime(CLOCK_REALTIME, &now) < 0 ? -1 : ns_between(at, &now);
    if (ns < 0 || (uint64_t)ns >= s->entry_ns)
        return false;
    *age = (uint64_t)ns;
    return true;
}

static bool found_before(const struct fuse_server *s, const struct inode *i, const struct stat *st)
{
    uint64_t age;
    return i && i->owner_known && i->owner_ctime.tv_sec == st->st_ctim.tv_sec &&
           i->owner_ctime.tv_nsec == st->st_ctim.tv_nsec &&
           (ns_between(&st->st_ctim, &i->owner_at) > TICKS_NS || young(s, &i->owner_at, &age));
}

void owner_note(struct inode *i, const struct stat *st, const struct owner *o)
{
    if (clock_gettime(CLOCK_REALTIME, &i->owner_at) < 0)
        return;
    i->owner = *o;
    i->owner_ctime = st->st_ctim;
    i->owner_mode = st->st_mode;
    i->owner_uid = st->st_uid;
    i->owner_gid = st->st_gid;
    i->owner_known = true;
}

bool owner_recent(const struct fuse_server *s, const struct inode *i, struct owner *ret)
{
    uint64_t age;
    if (!i->owner_known || !young(s, &i->owner_at, &age))
        return false;
    *ret = i->owner;
    return true;
}

/* --- both ------------------------------------------------------------------------------------ */

/* For an owner unknown in this process's namespace. As in every such namespace, the set-ID bits of
 * such a file mean nothing: running the host's /bin/mount does not turn anyone into the user
 * "nobody". */
static uint32_t mode_known(const struct stat *st)
{
    uint32_t mode = st->st_mode & MODE_BITS;
    if (st->st_uid == OVERFLOW_ID)
        mode &= ~(uint32_t)S_ISUID;
    if (st->st_gid == OVERFLOW_ID && !S_ISDIR(st->st_mode))
        mode &= ~(uint32_t)S_ISGID;
    return mode;
}

/* What the guest sees of a file about which nothing is kept. */
static struct owner host_owner(const struct fuse_server *s, const struct stat *st)
{
    if (s->opt.real_owners)
        return (struct owner){st->st_uid, st->st_gid, st->st_mode & MODE_BITS};
    return (struct owner){
        .uid = st->st_uid == s->host_uid ? s->opt.uid : st->st_uid,
        .gid = st->st_gid == s->host_gid ? s->opt.gid : st->st_gid,
        .mode = mode_known(st),
    };
}

bool owner_same(const struct owner *a, const struct owner *b)
{
    return a->uid == b->uid && a->gid == b->gid && a->mode == b->mode;
}

void owner_load(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                struct owner *ret)
{
    struct inode *i = inode_known(s, st);
    if (found_before(s, i, st)) {
        *ret = i->owner;
        return;
    }
    if (!load_override(s, fd, name, st, ret))
        *ret = host_owner(s, st);
    if (i)
        owner_note(i, st, ret);
}

bool owner_before(struct fuse_server *s, const struct stat *st, struct owner *ret, uint64_t *age)
{
    const struct inode *i = inode_known(s, st);
    if (!i || !i->owner_known || i->owner_mode != st->st_mode || i->owner_uid != st->st_uid ||
        i->owner_gid != st->st_gid || !young(s, &i->owner_at, age))
        return false;
    *ret = i->owner;
    return true;
}

/* An unprivileged server keeps its own access; the guest sees the mode that it asked for. */
uint32_t owner_host_mode(const struct fuse_server *s, uint32_t type, uint32_t mode)
{
    bool dir = type == S_IFDIR;
    if (s->opt.real_owners) /* a new file gets its set-ID bits once it has its owner */
        return mode & (dir ? 01777U : 0777U);
    uint32_t keep = s->opt.privileged ? 0 : dir ? 0700 : 0600;
    return (mode & (dir ? 01777U : 0777U)) | keep;
}

/* A change of owner clears set-ID bits, so the mode comes last. */
static int store_real(int fd, const char *name, const struct stat *st, const struct owner *want)
{
    char path[PATH_REF_MAX];
    int how = name ? AT_SYMLINK_NOFOLLOW : 0;
    path_of(path, fd, name);
    bool chowned = want->uid != st->st_uid || want->gid != st->st_gid;
    if (chowned && fchownat(AT_FDCWD, path, want->uid, want->gid, how) < 0)
        return -errno;
    if (S_ISLNK(st->st_mode) || (!chowned && (st->st_mode & MODE_BITS) == want->mode))
        return 0;
    return fchmodat(AT_FDCWD, path, want->mode, 0) < 0 ? -errno : 0;
}

static int store_override(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                          const struct owner *want)
{
    char text[TEXT_MAX];
    if (s->opt.real_owners)
        return store_real(fd, name, st, want);
    int n = snprintf(text, sizeof(text), "%u:%u:%o", want->uid, want->gid, want->mode);
    if (can_have_attribute(s, st) && attr_put(fd, name, text, (size_t)n) == 0) {
        owner_forget(s, st);
        return 0;
    }
    return entry_store(s, st, want);
}

int owner_store(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                const struct owner *want)
{
    struct owner now, base = host_owner(s, st);
    struct inode *i = inode_known(s, st);
    if (i)
        i->owner_known = false;
    bool have = load_override(s, fd, name, st, &now);
    if (owner_same(want, &base)) {
        owner_forget(s, st);
        if (have && can_have_attribute(s, st))
            attr_remove(fd, name);
        return 0;
    }
    return have && owner_same(want, &now) ? 0 : store_override(s, fd, name, st, want);
}

int owner_store_new(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                    const struct owner *want)
{
    struct owner base = host_owner(s, st);
    owner_forget(s, st); /* of a file that had this inode number before */
    if (owner_same(want, &base))
        return 0;
    int r = store_override(s, fd, name, st, want);
    return r < 0 ? r : 1;
}
