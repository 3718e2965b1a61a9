/* What identifies the host's objects: device and inode number, except on FUSE file systems. Some of
 * those (rclone's) give a new file the number of a renamed one, and the guest would take both for
 * one file. There, the host kernel's own id for the object serves as its number, which is stable as
 * long as we have a descriptor of it.
 *
 * A share may contain several file systems. Their kind is remembered for a few, until the host may
 * have given their device number to another one. */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/newer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>

/* #syscalls:fs openat fstat newfstatat fstatfs name_to_handle_at close clock_gettime */

enum { HANDLE_BYTES = 12 }; /* of fs/fuse: its number and generation */

/* --- file systems ---------------------------------------------------------------------------- */

static const struct device *device_find(const struct fuse_server *s, dev_t dev)
{
    const struct device *last = &s->device[s->device_last];
    if (last->known && last->dev == dev)
        return last;
    for (size_t i = 0; i < DEVICES_MAX; i++)
        if (s->device[i].known && s->device[i].dev == dev)
            return &s->device[i];
    return NULL;
}

/* A coarse clock is read without a system call. */
static time_t second_now(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC_COARSE, &t) < 0 ? 0 : t.tv_sec;
}

/* Whether it may be another file system by now: where the number is not that of a block device, the
 * host gives it to the next one that is mounted after this one was unmounted. */
static bool is_old(const struct device *d)
{
    return major(d->dev) == 0 && d->second != second_now();
}

/* The file system that fd is on. Some FUSE servers do not respond, or not soon; other file systems
 * always do. So those on FUSE are asked once: handles are as good for whatever has that number
 * later. */
static const struct device *device_of(struct fuse_server *s, dev_t dev, int fd)
{
    struct statfs f;
    const struct device *d = device_find(s, dev);
    if (!d || is_old(d)) {
        bool fuse = d && d->repeats;
        if (!fuse)
            fuse = fstatfs(fd, &f) < 0 ? !d : f.f_type == FUSE_SUPER_MAGIC;
        if (!d)
            s->device_next = (s->device_next + 1) % DEVICES_MAX;
        struct device *mine = &s->device[d ? d - s->device : s->device_next];
        *mine = (struct device){.dev = dev, .known = true, .repeats = fuse, .second = second_now()};
        d = mine;
    }
    s->device_last = (unsigned)(d - s->device);
    return d;
}

bool numbers_repeat(const struct fuse_server *s, dev_t dev)
{
    const struct device *d = device_find(s, dev);
    return d && d->repeats;
}

bool may_have_xattrs(const struct fuse_server *s, dev_t dev)
{
    const struct device *d = device_find(s, dev);
    return !d || !d->no_xattrs;
}

void has_no_xattrs(struct fuse_server *s, dev_t dev)
{
    const struct device *d = device_find(s, dev);
    if (d)
        s->device[d - s->device].no_xattrs = true;
}

void identity_forget(struct fuse_server *s)
{
    memset(s->device, 0, sizeof(s->device));
}

/* --- objects --------------------------------------------------------------------------------- */

struct handle_of {
    struct file_handle head;
    uint8_t bytes[MAX_HANDLE_SZ];
};

/* Some servers do not support opening by handle; then there are only handles that identify. */
static bool get_handle(int fd, struct handle_of *h)
{
    int mount;
    h->head.handle_bytes = MAX_HANDLE_SZ;
    int r = name_to_handle_at(fd, "", &h->head, &mount, AT_EMPTY_PATH);
    if (r < 0 && errno == EOPNOTSUPP)
        r = name_to_handle_at(fd, "", &h->head, &mount, AT_EMPTY_PATH | AT_HANDLE_FID);
    return r == 0 && h->head.handle_bytes == HANDLE_BYTES;
}

/* Where handles are not available, the host's number stays. */
static void set_number(int fd, struct stat *st)
{
    struct handle_of h = {0};
    uint64_t number = 0;
    uint32_t used = 0;
    if (!get_handle(fd, &h))
        return;
    memcpy(&number, h.bytes, sizeof(number));
    memcpy(&used, h.bytes + sizeof(number), sizeof(used));
    number = number << 32 | number >> 32; /* its halves come in the other order */
    st->st_ino = number ^ (uint64_t)used * 0x9e3779b97f4a7c15ULL;
}

int stat_fd(struct fuse_server *s, int fd, struct stat *st)
{
    if (fstat(fd, st) < 0)
        return -errno;
    if (device_of(s, st->st_dev, fd)->repeats)
        set_number(fd, st);
    return 0;
}

/* The host may give the name to another object at any time, so attributes and handle are not both
 * looked up by name; nor is the name looked up twice if the last object needed its handle. */
int stat_at(struct fuse_server *s, int dir, const char *name, struct stat *st)
{
    if (!s->device[s->device_last].repeats) {
        if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
            return -errno;
        const struct device *d = device_find(s, st->st_dev);
        if (d && !d->repeats && !is_old(d))
            return 0;
    }
    AUTO_CLOSE int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : stat_fd(s, fd, st);
}
