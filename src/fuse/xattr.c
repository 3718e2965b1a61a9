/* Extended attributes: only those of users. Attributes with a meaning for the host's kernel or its
 * administrator are out of reach, and so are those of owner.c. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <errno.h>
#include <limits.h>
#include <linux/limits.h>
#include <string.h>
#include <sys/xattr.h>

/* #syscalls:fs getxattr setxattr listxattr removexattr */

#define USERS "user."
#define OURS "user.msb."

enum { SETXATTR_HEAD = FUSE_COMPAT_SETXATTR_IN_SIZE };

static int check_attr_name(const char *name)
{
    if (strncmp(name, USERS, strlen(USERS)) != 0)
        return -EOPNOTSUPP;
    size_t n = strlen(name);
    if (n == strlen(USERS))
        return -EINVAL;
    return n > XATTR_NAME_MAX ? -ERANGE : 0;
}

static bool is_ours(const char *name)
{
    return strncmp(name, OURS, strlen(OURS)) == 0;
}

static int path_to(struct fuse_server *s, const struct call *c, char path[PATH_REF_MAX])
{
    if (is_made_up(s, c->inode))
        return -EOPNOTSUPP;
    int fd = inode_fd(s, c->inode);
    if (fd < 0)
        return fd;
    path_of(path, fd, NULL);
    return 0;
}

int op_setxattr(struct fuse_server *s, struct call *c)
{
    struct fuse_setxattr_in in = {0};
    char path[PATH_REF_MAX];
    memcpy(&in, c->arg, SETXATTR_HEAD);
    size_t head = SETXATTR_HEAD + strlen(c->name[0]) + 1;
    int r = check_attr_name(c->name[0]);
    if (r < 0)
        return r;
    if (is_ours(c->name[0]))
        return -EPERM;
    if (in.size > XATTR_SIZE_MAX)
        return -E2BIG;
    if (in.size > c->arg_len - head)
        return -EINVAL;
    r = path_to(s, c, path);
    if (r < 0)
        return r;
    const uint8_t *value = (const uint8_t *)c->arg + head;
    return setxattr(path, c->name[0], value, in.size, (int)in.flags) < 0 ? -errno : 0;
}

/* Replies with n bytes that are in s->rep, or with their number if that was requested. */
static int reply_sized(struct fuse_server *s, struct call *c, size_t n, uint32_t room)
{
    if (room == 0) {
        struct fuse_getxattr_out *out = call_reply(s, c, sizeof(*out));
        out->size = (uint32_t)n;
        return 0;
    }
    if (n > room)
        return -ERANGE;
    c->rep_len = n;
    return 0;
}

/* The path for an attribute named by the guest, for which our own attributes do not exist. */
static int path_to_named(struct fuse_server *s, const struct call *c, char path[PATH_REF_MAX])
{
    int r = check_attr_name(c->name[0]);
    if (r < 0)
        return r;
    return is_ours(c->name[0]) ? -ENODATA : path_to(s, c, path);
}

int op_getxattr(struct fuse_server *s, struct call *c)
{
    const struct fuse_getxattr_in *in = c->arg;
    char path[PATH_REF_MAX];
    int r = path_to_named(s, c, path);
    if (r < 0)
        return r;
    ssize_t n = getxattr(path, c->name[0], s->rep, REP_MAX_BYTES);
    return n < 0 ? -errno : reply_sized(s, c, (size_t)n, in->size);
}

int op_listxattr(struct fuse_server *s, struct call *c)
{
    const struct fuse_getxattr_in *in = c->arg;
    char path[PATH_REF_MAX];
    int r = path_to(s, c, path);
    if (r < 0)
        return r == -EOPNOTSUPP ? reply_sized(s, c, 0, in->size) : r;
    ssize_t n = listxattr(path, (char *)s->rep, REP_MAX_BYTES - 1);
    if (n < 0)
        return -errno;
    s->rep[n] = '\0';
    size_t kept = 0;
    for (char *p = (char *)s->rep, *end = p + n; p < end;) {
        size_t len = strlen(p) + 1;
        if (check_attr_name(p) == 0 && !is_ours(p)) {
            memmove(s->rep + kept, p, len);
            kept += len;
        }
        p += len;
    }
    return reply_sized(s, c, kept, in->size);
}

int op_removexattr(struct fuse_server *s, struct call *c)
{
    char path[PATH_REF_MAX];
    int r = path_to_named(s, c, path);
    if (r < 0)
        return r;
    return removexattr(path, c->name[0]) < 0 ? -errno : 0;
}
