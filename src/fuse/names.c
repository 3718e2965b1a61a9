/* Making, removing and moving names: MKNOD, MKDIR, SYMLINK, LINK, UNLINK, RMDIR, RENAME. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* #syscalls:fs mkdirat mknodat symlinkat linkat unlinkat renameat2 newfstatat fstat */

int new_owner(struct fuse_server *s, struct inode *parent, const struct fuse_in_header *h,
              uint32_t mode, bool dir, struct owner *ret)
{
    struct stat st;
    struct owner above;
    int fd = inode_dir_fd(s, parent);
    if (fd < 0)
        return fd;
    if (!owner_recent(s, parent, &above)) {
        if (stat_fd(s, fd, &st) < 0)
            return -errno;
        owner_load(s, fd, NULL, &st, &above);
    }
    *ret = (struct owner){.uid = h->uid, .gid = h->gid, .mode = mode & 07777};
    if (above.mode & S_ISGID) { /* the group is that of the directory */
        ret->gid = above.gid;
        if (dir)
            ret->mode |= S_ISGID;
    }
    return fd;
}

int reply_new_entry(struct fuse_server *s, struct call *c, struct inode *parent, const char *name,
                    const struct owner *o)
{
    struct stat st;
    int dir = inode_dir_fd(s, parent);
    if (dir < 0)
        return dir;
    if (stat_at(s, dir, name, &st) < 0)
        return -errno;
    if (o) {
        int r = owner_store_new(s, dir, name, &st, o);
        if (r < 0 || (r > 0 && stat_at(s, dir, name, &st) < 0))
            return r < 0 ? r : -errno;
        if (s->opt.quota)
            s->used += (uint64_t)st.st_blocks * 512;
    }
    return fill_entry(s, parent, name, &st, o, call_reply(s, c, sizeof(struct fuse_entry_out)));
}

int op_mknod(struct fuse_server *s, struct call *c)
{
    const struct fuse_mknod_in *in = c->arg;
    uint32_t type = in->mode & S_IFMT ? in->mode & S_IFMT : S_IFREG;
    struct owner o = {0};
    if (type != S_IFREG && type != S_IFIFO && type != S_IFSOCK)
        return -EPERM;
    int dir = new_owner(s, c->inode, &c->h, in->mode, false, &o);
    if (dir < 0)
        return dir;
    int r = quota_check(s, 1);
    if (r < 0)
        return r;
    if (mknodat(dir, c->name[0], type | owner_host_mode(s, type, o.mode), 0) < 0)
        return -errno;
    return reply_new_entry(s, c, c->inode, c->name[0], &o);
}

int op_mkdir(struct fuse_server *s, struct call *c)
{
    const struct fuse_mkdir_in *in = c->arg;
    struct owner o = {0};
    int dir = new_owner(s, c->inode, &c->h, in->mode, true, &o);
    if (dir < 0)
        return dir;
    int r = quota_check(s, 1);
    if (r < 0)
        return r;
    if (mkdirat(dir, c->name[0], owner_host_mode(s, S_IFDIR, o.mode)) < 0)
        return -errno;
    r = reply_new_entry(s, c, c->inode, c->name[0], &o);
    if (r == 0)
        put_dir_attr(s, c);
    return r;
}

int op_symlink(struct fuse_server *s, struct call *c)
{
    struct owner o = {0};
    const char *target = c->name[1];
    if (!*target)
        return -ENOENT;
    if (strlen(target) >= PATH_MAX)
        return -ENAMETOOLONG;
    int dir = new_owner(s, c->inode, &c->h, 0777, false, &o);
    if (dir < 0)
        return dir;
    int r = quota_check(s, 1);
    if (r < 0)
        return r;
    if (symlinkat(target, dir, c->name[0]) < 0)
        return -errno;
    return reply_new_entry(s, c, c->inode, c->name[0], &o);
}

int op_link(struct fuse_server *s, struct call *c)
{
    const struct fuse_link_in *in = c->arg;
    struct inode *old = inode_get(s, in->oldnodeid);
    char path[PATH_REF_MAX];
    if (!old)
        return -ESTALE;
    if (S_ISDIR(old->type))
        return -EPERM;
    int fd = inode_fd(s, old);
    if (fd < 0)
        return fd;
    path_of(path, fd, NULL);
    int dir = inode_dir_fd(s, c->inode);
    if (dir < 0)
        return dir;
    if (old->fd != fd) /* finding the directory has taken all descriptors */
        return -ESTALE;
    if (linkat(AT_FDCWD, path, dir, c->name[0], AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    return reply_new_entry(s, c, c->inode, c->name[0], NULL);
}

/* --- away ------------------------------------------------------------------------------------ */

static bool is_open(struct fuse_server *s, const struct stat *st)
{
    for (unsigned i = 0; i < s->n_handles; i++)
        if (s->handle[i] && s->handle[i]->inode->dev == st->st_dev &&
            s->handle[i]->inode->ino == st->st_ino)
            return true;
    return false;
}

/* Called before and after a name is removed: an open file stays reachable, and what is stored about
 * a file is dropped with its last name. */
static int name_goes(struct fuse_server *s, struct inode *parent, const char *name,
                     const struct stat *st)
{
    inode_name_goes(s, parent, name, st);
    return inode_dir_fd(s, parent);
}

static void name_gone(struct fuse_server *s, const struct stat *st)
{
    if (!S_ISDIR(st->st_mode) && st->st_nlink > 1)
        return;
    owner_forget(s, st);
    if (s->opt.quota && !is_open(s, st))
        quota_gone(s, st);
}

/* The inode whose references the guest gives up with the name, or NULL. After the name, a guest may
 * send how many references it holds to an object that nothing in it uses any more. If these are all
 * of them and this is the last name, the object need not be kept open. A guest that holds none has
 * nothing to give up, and an inode may end with the entries read ahead. */
static struct inode *given_up(struct fuse_server *s, const struct call *c, const struct stat *st)
{
    struct fuse_forget_one last;
    const char *behind = c->name[0] + strlen(c->name[0]) + 1;
    size_t left = c->arg_len - (size_t)(behind - (const char *)c->arg);
    if (left != sizeof(last) || s->opt.many ||
        c->q->in_len < sizeof(struct fuse_out_header) + sizeof(last.nlookup))
        return NULL;
    memcpy(&last, behind, sizeof(last));
    struct inode *i = inode_get(s, last.nodeid);
    if (!i || i->lookups == 0 || i->lookups != last.nlookup || i != inode_known(s, st) ||
        (st->st_nlink > 1 && !S_ISDIR(st->st_mode)))
        return NULL;
    if (s->ahead.inode == i)
        ahead_close(s);
    return i->refs == 0 && i->id != FUSE_ROOT_ID ? i : NULL;
}

static int remove_name(struct fuse_server *s, struct call *c, int flags)
{
    struct stat st;
    int dir = inode_dir_fd(s, c->inode);
    if (dir < 0)
        return dir;
    if (stat_at(s, dir, c->name[0], &st) < 0)
        return -errno;
    struct inode *i = given_up(s, c, &st);
    if (!i)
        dir = name_goes(s, c->inode, c->name[0], &st);
    if (dir < 0)
        return dir;
    if (unlinkat(dir, c->name[0], flags) < 0)
        return -errno;
    name_gone(s, &st);
    if (i) {
        *(uint64_t *)call_reply(s, c, sizeof(uint64_t)) = i->lookups;
        inode_forget(s, i, i->lookups);
    }
    return 0;
}

int op_unlink(struct fuse_server *s, struct call *c)
{
    return remove_name(s, c, 0);
}

int op_rmdir(struct fuse_server *s, struct call *c)
{
    int r = later_list(s, c->inode, c->name[0]);
    return r < 0 ? r : remove_name(s, c, AT_REMOVEDIR);
}

/* --- elsewhere ------------------------------------------------------------------------------- */

static int rename_into(struct fuse_server *s, const struct call *c, struct inode *to,
                       unsigned flags)
{
    struct inode *from = c->inode;
    struct stat st;
    bool replaced = false;
    /* A whiteout is a device node. */
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    int r = later_list(s, from, c->name[0]);
    if (r == 0)
        r = later_list(s, to, NULL);
    if (r == 0)
        r = later_list(s, to, c->name[1]);
    if (r < 0)
        return r;
    int to_fd = inode_dir_fd(s, to);
    if (to_fd >= 0 && flags == 0 && stat_at(s, to_fd, c->name[1], &st) == 0) {
        replaced = true;
        to_fd = name_goes(s, to, c->name[1], &st);
    }
    int from_fd = inode_dir_fd(s, from);
    if (to_fd < 0 || from_fd < 0)
        return to_fd < 0 ? to_fd : from_fd;
    to_fd = inode_dir_fd(s, to); /* opening the other may have closed it */
    if (to_fd < 0 || from->fd != from_fd)
        return to_fd < 0 ? to_fd : -ESTALE;
    if (syscall(SYS_renameat2, from_fd, c->name[0], to_fd, c->name[1], flags) < 0)
        return -errno;
    if (replaced)
        name_gone(s, &st);
    inode_name_came(s, to, c->name[1]);
    if (flags & RENAME_EXCHANGE)
        inode_name_came(s, from, c->name[0]);
    return 0;
}

/* Like the inode of every request, the other directory is held until the request is done. */
static int do_rename(struct fuse_server *s, const struct call *c, uint64_t to_id, unsigned flags)
{
    struct inode *to = inode_get(s, to_id);
    if (!to)
        return -ESTALE;
    inode_ref(to);
    int r = rename_into(s, c, to, flags);
    inode_unref(s, to);
    return r;
}

int op_rename(struct fuse_server *s, struct call *c)
{
    const struct fuse_rename_in *in = c->arg;
    return do_rename(s, c, in->newdir, 0);
}

int op_rename2(struct fuse_server *s, struct call *c)
{
    const struct fuse_rename2_in *in = c->arg;
    return do_rename(s, c, in->newdir, in->flags);
}
