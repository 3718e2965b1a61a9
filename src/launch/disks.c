#include "launch/disks.h"

#include "proto/proto.h"
#include "store/volume.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SECTOR = 512, USER_MAX = SPEC_NAME_MAX + 16, PAUSE_MS = 20, PATIENCE_MS = 5000 };

static bool same_disk(const struct spec_mount *m, const struct spec_mount *other,
                      const struct stat *st)
{
    struct stat there;
    if (!mount_is_disk(other) || other->kind != m->kind)
        return false;
    if (m->kind == MOUNT_NAMED)
        return strcmp(m->source, other->source) == 0;
    return stat(other->source, &there) == 0 && there.st_dev == st->st_dev &&
           there.st_ino == st->st_ino;
}

static bool uses_disk(const struct sandbox_spec *spec, const struct spec_mount *m,
                      const struct stat *st)
{
    const struct spec_mount root = {.kind = MOUNT_DISK, .source = spec->root_disk_file};
    if (root.source && same_disk(m, &root, st))
        return true;
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (same_disk(m, &spec->mounts[i], st))
            return true;
    return false;
}

/* Finds the running sandbox that has it, if any. */
static bool find_user(const struct store *s, const struct spec_mount *m, const struct stat *st,
                      char who[static USER_MAX])
{
    struct sandbox *list = NULL;
    size_t n = 0;
    bool found = false;
    if (store_list(s, &list, &n, NULL) == 0)
        for (size_t i = 0; i < n && !found; i++) {
            found = list[i].state.pid && uses_disk(&list[i].spec, m, st);
            if (found)
                (void)snprintf(who, USER_MAX, "sandbox '%s'", list[i].spec.name);
        }
    sandbox_list_free(list, n);
    return found;
}

/* When a monitor is killed, the host releases its record lock, which shows that it is alive, a
 * moment before its flocks, or longer before on a busy host. So this waits for a lock that no
 * running sandbox has. */
static int lock_disk(const struct store *s, const struct spec_mount *m, const struct stat *st,
                     int fd, int op, struct err *e)
{
    char who[USER_MAX] = "another process";
    for (unsigned waited = 0; flock(fd, op | LOCK_NB) < 0; waited += PAUSE_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_sys(e, errno, "cannot lock disk '%s'", m->source);
        if (find_user(s, m, st, who) || waited >= PATIENCE_MS)
            return err_hinted(
                e, err_set(e, EBUSY, "disk '%s' is in use by %s", m->source, who),
                "only one sandbox can write to a disk; to share it, mount it ro in all of them");
        sleep_ms(PAUSE_MS);
    }
    return 0;
}

/* The path was canonical when the sandbox was created: any link in it was added since. */
static int open_file(const char *path, bool ro)
{
    struct open_how how = {.flags = (ro ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

static int open_disk(const struct store *s, const struct spec_mount *m, struct err *e)
{
    bool ro = m->options & PROTO_MOUNT_RO;
    struct stat st;
    AUTO_FREE char *path = NULL;
    if (m->kind == MOUNT_NAMED) {
        struct volume v;
        int r = volume_ensure(s, m, &v, e);
        if (r < 0)
            return r;
        AUTO_FREE char *named = volume_path(s, &v);
        path = named ? realpath(named, NULL) : NULL; /* MSB_HOME may be a link */
    }
    AUTO_CLOSE int fd =
        m->kind == MOUNT_NAMED && !path ? -ENOENT : open_file(path ? path : m->source, ro);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, fd < 0 ? -fd : errno, "cannot open disk '%s'", m->source);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "disk '%s' is not a regular file", m->source);
    if (st.st_size < SECTOR || (!ro && st.st_size % SECTOR))
        return err_set(e, EINVAL,
                       "invalid disk '%s': its size (%lld bytes) must be a non-zero multiple of %d",
                       m->source, (long long)st.st_size, SECTOR);
    int r = lock_disk(s, m, &st, fd, ro ? LOCK_SH : LOCK_EX, e);
    return r < 0 ? r : steal_fd(&fd);
}

int disks_open(const struct store *s, const struct sandbox_spec *spec, int *fds, size_t *n,
               struct err *e)
{
    for (size_t i = 0; i < spec->n_mounts; i++) {
        if (!mount_is_disk(&spec->mounts[i]))
            continue;
        int fd = open_disk(s, &spec->mounts[i], e);
        if (fd < 0)
            return fd;
        fds[(*n)++] = fd;
    }
    return 0;
}

int disks_open_root(const struct store *s, const struct sandbox_spec *spec, struct err *e)
{
    const struct spec_mount root = {.kind = MOUNT_DISK, .source = spec->root_disk_file};
    return open_disk(s, &root, e);
}
