#include "oci/view.h"

#include "proto/proto.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static int clone_tree(const char *path)
{
    int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path,
                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    return fd < 0 ? -errno : fd;
}

/* A path in the container: its links lead to its own files, never to the host's. */
static int open_inside(int root, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

static int attach(int tree, int place)
{
    int how = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    return syscall(SYS_move_mount, tree, "", place, "", how) < 0 ? -errno : 0;
}

static void mount_one(int root, const struct spec_mount *m)
{
    AUTO_CLOSE int place = open_inside(root, m->guest);
    AUTO_CLOSE int tree = place < 0 ? -1 : clone_tree(m->source);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (m->options & PROTO_MOUNT_RO)
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr,
                             sizeof(attr)) == 0)
        (void)attach(tree, place);
}

/* A new one, which shows this namespace's processes and no others. */
static void mount_proc(int root)
{
    AUTO_CLOSE int place = open_inside(root, "/proc");
    AUTO_CLOSE int fs = place < 0 ? -1 : (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
    if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return;
    AUTO_CLOSE int tree = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (tree >= 0)
        (void)attach(tree, place);
}

int view_enter(const struct sandbox_spec *spec, struct err *e)
{
    const char *path = spec->mounts[0].source;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(e, errno, "cannot make the container's mounts private");
    AUTO_CLOSE int tree = clone_tree(path);
    AUTO_CLOSE int place = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = tree < 0 ? tree : place < 0 ? -errno : attach(tree, place);
    AUTO_CLOSE int root = r < 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_sys(e, r < 0 ? -r : errno, "cannot open the container's root %s", path);
    for (size_t i = 1; i < spec->n_mounts; i++)
        if (mount_is_share(&spec->mounts[i]))
            mount_one(root, &spec->mounts[i]);
    mount_proc(root);
    if (fchdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
        chdir("/") < 0)
        return err_sys(e, errno, "cannot enter the container's root %s", path);
    return 0;
}
