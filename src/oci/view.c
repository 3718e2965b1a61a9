#include "oci/view.h"

#include "proto/proto.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int clone_tree(const char *path)
{
    int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path,
                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    return fd < 0 ? -errno : fd;
}

int view_open(int root, const char *path)
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

/* Creates the missing parts of a path, one name at a time: here, too, links lead into the
 * container. */
static int make_place(int root, const char *path, bool dir)
{
    char part[PATH_MAX];
    for (size_t n = 1; path[n - 1]; n++) {
        if (path[n] != '/' && path[n] != '\0')
            continue;
        (void)snprintf(part, sizeof(part), "%.*s", (int)MIN(n, sizeof(part) - 1), path);
        AUTO_CLOSE int there = view_open(root, part);
        if (there != -ENOENT)
            continue;
        char *slash = strrchr(part, '/');
        *slash = '\0';
        AUTO_CLOSE int above = view_open(root, *part ? part : "/");
        if (above < 0)
            return above;
        AUTO_CLOSE int file = -1;
        if (path[n] || dir ? mkdirat(above, slash + 1, 0755) < 0
                           : (file = openat(above, slash + 1,
                                            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) < 0)
            return -errno;
    }
    return 0;
}

static int clone_share(const struct spec_mount *m)
{
    AUTO_CLOSE int tree = clone_tree(m->source);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    if (m->options & PROTO_MOUNT_RO)
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    if (tree < 0)
        return tree;
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        return -errno;
    return steal_fd(&tree);
}

static int make_and_mount(int root, const struct spec_mount *m)
{
    int r = make_place(root, m->guest, !m->file);
    AUTO_CLOSE int place = r < 0 ? r : view_open(root, m->guest);
    AUTO_CLOSE int tree = place < 0 || !mount_is_share(m) ? -1 : clone_share(m);
    return place < 0 ? place : !mount_is_share(m) ? 0 : tree < 0 ? tree : attach(tree, place);
}

/* A new file system of that type, mounted nowhere yet. A proc shows this namespace's processes and no
 * others. */
static int new_mount(const char *type)
{
    AUTO_CLOSE int fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
    if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    int fd = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                          MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    return fd < 0 ? -errno : fd;
}

static int mount_dev(int root)
{
    AUTO_CLOSE int place = view_open(root, "/dev");
    AUTO_CLOSE int tree = place < 0 ? place : new_mount("tmpfs");
    return tree < 0 ? tree : attach(tree, place);
}

/* Creates the mount points of the guest's own file systems. Those in /dev exist only here. */
static int make_places(int root, struct err *e)
{
    static const char *const own[] = {"/proc", "/sys", "/dev"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(own); i++)
        r = make_place(root, own[i], true);
    if (r == 0)
        r = mount_dev(root);
    return r < 0 ? err_sys(e, -r, "cannot prepare the container's root") : 0;
}

/* Where a pending mount belongs; the first is the proc. */
static const char *place_of(const struct sandbox_spec *spec, size_t i)
{
    return i ? spec->mounts[i].guest : "/proc";
}

int view_build(const struct sandbox_spec *spec, bool whole, int *trees, struct err *e)
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
    r = whole ? make_places(root, e) : 0;
    trees[0] = new_mount("proc");
    for (size_t i = 1; r == 0 && i < spec->n_mounts; i++) {
        const struct spec_mount *m = &spec->mounts[i];
        int k = whole && !m->pod ? make_and_mount(root, m) : 0;
        trees[i] = whole || m->pod || !mount_is_share(m) ? -1 : clone_share(m);
        if (k < 0)
            r = err_sys(e, -k, "mounts: cannot mount %s on %s", m->source ? m->source : "a tmpfs",
                        m->guest);
    }
    return r < 0 ? r : steal_fd(&root);
}

void view_complete(const struct sandbox_spec *spec, int root, int *trees)
{
    for (size_t i = 0; i < spec->n_mounts; i++) {
        AUTO_CLOSE int place = trees[i] < 0 ? -1 : view_open(root, place_of(spec, i));
        if (place >= 0)
            (void)attach(trees[i], place);
        close_fd(&trees[i]);
    }
}

int view_copy(const struct sandbox_spec *spec, int root, struct err *e)
{
    unsigned how = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
                              .propagation = MS_PRIVATE},
                      fixed = {.attr_set = MOUNT_ATTR_RDONLY};
    AUTO_CLOSE int fd = (int)syscall(SYS_open_tree, root, "", how);
    if (fd < 0 ||
        syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof(attr)) < 0 ||
        (spec->mounts[0].options & PROTO_MOUNT_RO &&
         syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &fixed, sizeof(fixed)) < 0))
        return err_sys(e, errno, "cannot serve the container's files");
    return steal_fd(&fd);
}

int view_enter(int root, struct err *e)
{
    if (fchdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
        chdir("/") < 0)
        return err_sys(e, errno, "cannot enter the container's root");
    return 0;
}
