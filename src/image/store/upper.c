/* Templates are stored packed: the few nonzero blocks of a fresh file system, after a list of their
 * offsets. Compared with cloning a sparse file, this needs no support from the host's file system,
 * takes one read instead of a search for data and holes, and is as fast as a reflink: 4 GiB of ext4
 * are 76 KiB in eleven places.
 */
#include "image/store/upper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "image/store/cache.h"
#include "image/store/lock.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

enum {
    BLOCK = 4096,
    SEGS_MAX = 4096,
    JOURNAL_SMALL_MIB = 4, /* the minimum for ext4 */
    JOURNAL_MIB = 16,      /* from this size of file system on: */
    NAME_BYTES = 128,
};
#define JOURNAL_FROM (1ULL << 30)
#define ROOM_MIN (4ULL << 20)   /* with less, this is why mke2fs failed */
#define PACK_MAX (256ULL << 20) /* sanity check: 8 TiB need about 4 MiB */

/* Part of the template's name: change it when the options of mke2fs change. */
#define UPPER_VERSION 2

static const char pack_magic[8] = "msbext4";

struct pack_header {
    char magic[8];
    uint64_t size; /* of the file system */
    uint64_t nsegs;
};

struct pack_seg {
    uint64_t offset, len; /* data follows the list, in order */
};

/* ---- making a template ---- */

const char *upper_mke2fs(void)
{
    static const char *const places[] = {"/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs",
                                         "/usr/local/sbin/mke2fs"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return "mke2fs";
}

#define MKE2FS_EXTENDED "lazy_itable_init=0,nodiscard,packed_meta_blocks=1,root_owner=0:0"

/* Every feature is named, and the system's mke2fs.conf is not read, so that a template is the same
 * everywhere. No reserved descriptors or discard; tables that are zero anyway are not written; all
 * metadata is at the front except a few backups, so that there is little to copy, in few places.
 * Descriptors are where a kernel can add more of them (meta_bg), and without sparse_super2, a
 * kernel can grow a mounted file system. */
static int run_mke2fs(int fd, uint64_t size, bool kept, const char *extended, struct err *e)
{
    char path[64], journal[32], features[160];
    /* uninit_bg: checksums of group descriptors only, which say what was never written */
    (void)snprintf(
        features, sizeof(features),
        "none,has_journal,ext_attr,dir_index,filetype,extent,flex_bg,meta_bg,sparse_super,"
        "large_file,huge_file,dir_nlink,extra_isize,%s",
        kept ? "metadata_csum" : "uninit_bg");
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)snprintf(journal, sizeof(journal), "size=%d",
                   size >= JOURNAL_FROM ? JOURNAL_MIB : JOURNAL_SMALL_MIB);
    const char *argv[] = {"mke2fs", "-q",    "-F",     "-b", "4096", "-I",    "256",
                          "-i",     "16384", "-m",     "0",  "-J",   journal, "-O",
                          features, "-E",    extended, path, NULL};
    const char *path_env = getenv("PATH");
    char path_var[4096];
    (void)snprintf(path_var, sizeof(path_var), "PATH=%s", path_env ? path_env : "/usr/bin:/bin");
    const char *envp[] = {"MKE2FS_CONFIG=/dev/null", "LC_ALL=C", path_var, NULL};

    posix_spawn_file_actions_t fa;
    pid_t pid;
    if (posix_spawn_file_actions_init(&fa))
        return err_oom(e);
    (void)posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addopen(&fa, 2, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&fa, fd, fd); /* clears close-on-exec in the child */
    int r = posix_spawnp(&pid, upper_mke2fs(), &fa, NULL, (char *const *)(uintptr_t)argv,
                         (char *const *)(uintptr_t)envp);
    (void)posix_spawn_file_actions_destroy(&fa);
    if (r) {
        r = err_sys(e, r, "cannot run mke2fs");
        if (r == -ENOENT)
            err_hint(e, "install the package e2fsprogs");
        return r;
    }
    int status = process_wait(pid);
    if (status < 0)
        return err_sys(e, -status, "cannot wait for mke2fs");
    if (status == 0)
        return 0;
    struct statvfs fs; /* mke2fs writes little, and cannot tell us why it failed */
    if (fstatvfs(fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < ROOM_MIN)
        return err_sys(e, ENOSPC, "cannot create a file system of %" PRIu64 " MiB", size >> 20);
    return err_set(e, EIO, "mke2fs failed to create a file system of %" PRIu64 " MiB", size >> 20);
}

/* Releases before 1.47 cannot be told that the file is zero, and write the zeros themselves, as
 * holes. */
static int make_ext4(int fd, uint64_t size, bool kept, struct err *e)
{
    int r = run_mke2fs(fd, size, kept, MKE2FS_EXTENDED ",assume_storage_prezeroed=1", e);
    if (r != -EIO)
        return r;
    err_clear(e);
    return run_mke2fs(fd, size, kept, MKE2FS_EXTENDED, e);
}

struct pack {
    struct pack_header h;
    struct pack_seg segs[SEGS_MAX];
    uint8_t *data;
    size_t len, cap;
};

static int pack_block(struct pack *p, uint64_t offset, const uint8_t *block)
{
    if (block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0)
        return 0;
    struct pack_seg *last = p->h.nsegs ? &p->segs[p->h.nsegs - 1] : NULL;
    if (!last || last->offset + last->len != offset) {
        if (p->h.nsegs == SEGS_MAX)
            return -E2BIG;
        last = &p->segs[p->h.nsegs++];
        *last = (struct pack_seg){.offset = offset};
    }
    if (p->len + BLOCK > p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64 << 10;
        void *d = realloc(p->data, cap);
        if (!d)
            return -ENOMEM;
        p->data = d;
        p->cap = cap;
    }
    memcpy(p->data + p->len, block, BLOCK);
    p->len += BLOCK;
    last->len += BLOCK;
    return 0;
}

/* Collects the blocks of a sparse file that contain data. */
static int pack_file(struct pack *p, int fd, uint64_t size)
{
    uint8_t block[BLOCK];
    for (uint64_t at = 0; at < size;) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        at = (uint64_t)data & ~(uint64_t)(BLOCK - 1);
        for (; at < (uint64_t)hole && at < size; at += BLOCK) {
            int r = pread_all(fd, block, BLOCK, at);
            if (r == 0)
                r = pack_block(p, at, block);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int pack_write(const struct pack *p, int fd)
{
    size_t list = (size_t)p->h.nsegs * sizeof(p->segs[0]);
    int r = pwrite_all(fd, &p->h, sizeof(p->h), 0);
    if (r == 0)
        r = pwrite_all(fd, p->segs, list, sizeof(p->h));
    if (r == 0)
        r = pwrite_all(fd, p->data, p->len, sizeof(p->h) + list);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    return r;
}

/* Formats a scratch file, packs it, publishes the pack. The caller holds the lock. */
static int make_template(int dirfd, const char *name, uint64_t size, bool kept, struct err *e)
{
    char scratch[NAME_BYTES], temp[NAME_BYTES + 8];
    (void)snprintf(scratch, sizeof(scratch), "%" PRIu64 ".scratch", size);
    (void)snprintf(temp, sizeof(temp), "%s.tmp", name);
    AUTO_CLOSE int fd =
        openat(dirfd, scratch, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, errno, "cannot create a disk template");
    (void)unlinkat(dirfd, scratch, 0);
    if (ftruncate(fd, (off_t)size) < 0) {
        int r = err_sys(e, errno, "cannot create a disk of %" PRIu64 " MiB", size >> 20);
        if (r == -EFBIG)
            err_hint(e, "the host's file system does not support files of that size");
        return r;
    }
    int r = make_ext4(fd, size, kept, e);
    if (r < 0)
        return r;

    AUTO_FREE struct pack *p = calloc(1, sizeof(*p));
    if (!p)
        return err_oom(e);
    memcpy(p->h.magic, pack_magic, sizeof(pack_magic));
    p->h.size = size;
    AUTO_CLOSE int out =
        openat(dirfd, temp, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    r = out < 0 ? -errno : pack_file(p, fd, size);
    if (r == 0)
        r = pack_write(p, out);
    free(p->data);
    if (r == 0 && renameat(dirfd, temp, dirfd, name) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlinkat(dirfd, temp, 0);
        return err_sys(e, -r, "cannot create a disk template");
    }
    return 0;
}

/* ---- using it ---- */

/* Reads and checks a whole template; -ENOENT if there is none or it is damaged. */
static int read_template(int dirfd, const char *name, uint64_t size, uint8_t **ret)
{
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    uint64_t len = (uint64_t)st.st_size;
    if (!S_ISREG(st.st_mode) || len < sizeof(struct pack_header) || len > PACK_MAX)
        return -ENOENT;
    AUTO_FREE uint8_t *p = malloc(len);
    if (!p)
        return -ENOMEM;
    int r = pread_all(fd, p, len, 0);
    if (r < 0)
        return r;
    struct pack_header h;
    memcpy(&h, p, sizeof(h));
    if (memcmp(h.magic, pack_magic, sizeof(pack_magic)) != 0 || h.size != size || h.nsegs == 0 ||
        h.nsegs > SEGS_MAX)
        return -ENOENT;
    uint64_t want = sizeof(h) + h.nsegs * sizeof(struct pack_seg);
    for (uint64_t i = 0; i < h.nsegs && want <= len; i++) {
        struct pack_seg s;
        memcpy(&s, p + sizeof(h) + i * sizeof(s), sizeof(s));
        if (s.offset > size || s.len > size - s.offset || s.len > len)
            return -ENOENT;
        want += s.len;
    }
    if (want != len)
        return -ENOENT;
    *ret = steal_ptr(&p);
    return 0;
}

static int unpack(const uint8_t *p, int fd)
{
    if (!p)
        return -ENOENT;
    struct pack_header h;
    memcpy(&h, p, sizeof(h));
    const uint8_t *data = p + sizeof(h) + h.nsegs * sizeof(struct pack_seg);
    if (ftruncate(fd, (off_t)h.size) < 0)
        return -errno;
    for (uint64_t i = 0; i < h.nsegs; i++) {
        struct pack_seg s;
        memcpy(&s, p + sizeof(h) + i * sizeof(s), sizeof(s));
        int r = pwrite_all(fd, data, (size_t)s.len, s.offset);
        if (r < 0)
            return r;
        data += s.len;
    }
    return 0;
}

static int check_size(uint64_t *size, struct err *e)
{
    if (*size < UPPER_SIZE_MIN)
        return err_set(e, EINVAL, "a disk of %" PRIu64 " MiB is too small: the minimum is %llu MiB",
                       *size >> 20, UPPER_SIZE_MIN >> 20);
    if (*size > UPPER_SIZE_MAX)
        return err_set(e, EINVAL, "a disk of %" PRIu64 " GiB is too large: the maximum is %llu GiB",
                       *size >> 30, UPPER_SIZE_MAX >> 30);
    *size = (*size + UPPER_SIZE_ALIGN - 1) & ~(UPPER_SIZE_ALIGN - 1);
    return 0;
}

/* Gets the template, making it if missing. */
static int get_template(int cache_dirfd, uint64_t size, bool kept, uint8_t **ret, struct err *e)
{
    AUTO_CLOSE int dirfd = cache_subdir(cache_dirfd, "upper");
    if (dirfd < 0)
        return err_sys(e, -dirfd, "cannot open the directory of disk templates");
    char name[NAME_BYTES], lock[NAME_BYTES];
    (void)snprintf(name, sizeof(name), "%" PRIu64 ".v%d%s", size, UPPER_VERSION,
                   kept ? "" : ".once");
    (void)snprintf(lock, sizeof(lock), "%" PRIu64 ".lock", size);
    int r = read_template(dirfd, name, size, ret);
    if (r != -ENOENT)
        return r < 0 ? err_sys(e, -r, "cannot read the disk template") : 0;
    int lock_fd = lock_take(dirfd, lock, true);
    if (lock_fd < 0)
        return err_sys(e, -lock_fd, "cannot lock the disk templates");
    r = read_template(dirfd, name, size, ret);
    if (r < 0) {
        r = make_template(dirfd, name, size, kept, e);
        if (r == 0 && (r = read_template(dirfd, name, size, ret)) < 0)
            r = err_sys(e, -r, "cannot read the disk template");
    }
    lock_drop(dirfd, lock, lock_fd);
    return r;
}

/* Creates an unnamed file if the host supports it; otherwise, *temp is the name to rename. */
static int open_new(int dirfd, const char *name, char *temp, size_t temp_size)
{
    temp[0] = '\0';
    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd < 0 ? -errno : fd;
    if ((size_t)snprintf(temp, temp_size, ".%s.%d", name, (int)getpid()) >= temp_size)
        return -ENAMETOOLONG;
    (void)unlinkat(dirfd, temp, 0); /* left by an earlier process with our pid */
    fd = openat(dirfd, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static int publish(int fd, const char *temp, int dirfd, const char *name)
{
    char path[64];
    if (temp[0])
        return renameat2(dirfd, temp, dirfd, name, RENAME_NOREPLACE) < 0 ? -errno : 0;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

int upper_create(int cache_dirfd, int dest_dirfd, const char *name, uint64_t size, bool kept,
                 struct err *e)
{
    AUTO_FREE uint8_t *pack = NULL;
    int r = check_size(&size, e);
    if (r == 0)
        r = get_template(cache_dirfd, size, kept, &pack, e);
    if (r < 0)
        return r;
    char temp[NAME_BYTES];
    AUTO_CLOSE int fd = open_new(dest_dirfd, name, temp, sizeof(temp));
    if (fd < 0)
        return err_sys(e, -fd, "cannot create the disk '%s'", name);
    r = unpack(pack, fd);
    if (r == 0)
        r = publish(fd, temp, dest_dirfd, name);
    if (r < 0) {
        if (temp[0])
            (void)unlinkat(dest_dirfd, temp, 0);
        err_sys(e, -r, "cannot create the disk '%s'", name);
        if (r == -EFBIG)
            err_hint(e, "the host's file system does not support files of that size");
    }
    return r;
}

/* ---- growing it ---- */

/* Whether the guest's kernel can grow it. The guest may have written anything there: only one
 * number at a fixed offset is read, and a false one only harms the guest. */
static bool can_grow(int fd)
{
    enum { COMPAT_AT = 1024 + 0x5c, SPARSE_SUPER2 = 0x200 };
    uint8_t features[4];
    return pread_all(fd, features, sizeof(features), COMPAT_AT) == 0 &&
           !((unsigned)features[1] << 8 & SPARSE_SUPER2);
}

int upper_grow(int dirfd, const char *name, uint64_t size, struct err *e)
{
    struct stat st;
    int r = check_size(&size, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot open the disk '%s'", name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "the disk '%s' is not a regular file", name);
    if ((uint64_t)st.st_size >= size)
        return 0;
    if (!can_grow(fd))
        return err_hinted(
            e, err_set(e, ENOTSUP, "the disk was created by an older msb and cannot grow"),
            "recreate the sandbox with a larger --root-disk");
    if (ftruncate(fd, (off_t)size) < 0 || fsync(fd) < 0) {
        r = err_sys(e, errno, "cannot enlarge the disk '%s'", name);
        if (r == -EFBIG)
            err_hint(e, "the host's file system does not support files of that size");
        return r;
    }
    return 0;
}
