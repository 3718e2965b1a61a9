/* What tells the host's objects apart: device and inode number, except where the share is a FUSE file
 * system. Some of those (rclone's) give a new file the number of one that was renamed, and the guest
 * would take both for one file. There, what the host's own kernel calls the object is its number; the
 * host keeps that for as long as we have a descriptor of it. */
#include "fuse/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>

/* #syscalls:fs fstat newfstatat fstatfs name_to_handle_at */

enum { HANDLE_BYTES = 12 }; /* of fs/fuse: its number, and how often that was used */

static void set_number(const struct fuse_server *s, int dir, const char *name, struct stat *st)
{
    struct {
        struct file_handle head;
        uint8_t bytes[MAX_HANDLE_SZ];
    } h = {.head.handle_bytes = MAX_HANDLE_SZ};
    int mount;
    uint64_t number = 0;
    uint32_t used = 0;
    if (!s->numbers_repeat ||
        name_to_handle_at(dir, name, &h.head, &mount, *name ? 0 : AT_EMPTY_PATH) < 0 ||
        h.head.handle_bytes != HANDLE_BYTES)
        return;
    memcpy(&number, h.bytes, sizeof(number));
    memcpy(&used, h.bytes + sizeof(number), sizeof(used));
    number = number << 32 | number >> 32; /* its halves come the other way around */
    st->st_ino = number ^ (uint64_t)used * 0x9e3779b97f4a7c15ULL;
}

void identity_init(struct fuse_server *s, int root_fd)
{
    struct statfs f;
    s->numbers_repeat = !s->opt.many && fstatfs(root_fd, &f) == 0 && f.f_type == FUSE_SUPER_MAGIC;
}

int stat_at(const struct fuse_server *s, int dir, const char *name, struct stat *st)
{
    if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
        return -errno;
    set_number(s, dir, name, st);
    return 0;
}

int stat_fd(const struct fuse_server *s, int fd, struct stat *st)
{
    if (fstat(fd, st) < 0)
        return -errno;
    set_number(s, fd, "", st);
    return 0;
}
