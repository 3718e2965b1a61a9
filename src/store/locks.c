#include "store/impl.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

/* --- names ---------------------------------------------------------------------------------- */

int name_lock_try(const struct store *s, const char *name, int create, int op,
                  struct name_lock *ret)
{
    assert(ret->fd < 0);
    if (strlen(name) >= sizeof(ret->name))
        return -ENAMETOOLONG; /* a stray file among the locks */
    int fd = lock_file_at(s->locks_fd, name, create, op);
    if (fd < 0)
        return fd;
    *ret = (struct name_lock){.store = s, .fd = fd};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    return 0;
}

int name_lock_take(const struct store *s, const char *name, struct name_lock *ret, struct err *e)
{
    int r = spec_check_name(name, e);
    if (r < 0)
        return r;
    r = name_lock_try(s, name, O_CREAT, LOCK_EX, ret);
    return r < 0 ? err_sys(e, -r, "cannot lock %s/locks/%s", s->home, name) : 0;
}

int name_lock_take_kind(const struct store *s, const char *kind, const char *name,
                        struct name_lock *ret, struct err *e)
{
    char file[LOCK_NAME_MAX + 1];
    int n = snprintf(file, sizeof(file), "%s:%s", kind, name);
    assert(n > 0 && (size_t)n < sizeof(file));
    int r = name_lock_try(s, file, O_CREAT, LOCK_EX, ret);
    if (r < 0)
        return err_sys(e, -r, "cannot lock %s/locks/%s", s->home, file);
    ret->forget = true;
    return 0;
}

void name_lock_drop(struct name_lock *l)
{
    if (l->fd >= 0 && l->forget)
        (void)unlinkat(l->store->locks_fd, l->name, 0);
    close_fd(&l->fd);
}

/* --- monitors ------------------------------------------------------------------------------- */

static struct flock whole_file(short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET};
}

int monitor_lock_take(int lock_fd)
{
    struct flock fl = whole_file(F_WRLCK);
    return fcntl(lock_fd, F_SETLK, &fl) < 0 ? -errno : 0;
}

pid_t lock_holder_at(int at, const char *path)
{
    AUTO_CLOSE int fd = openat(at, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    struct flock fl = whole_file(F_WRLCK);
    if (fcntl(fd, F_GETLK, &fl) < 0)
        return -errno;
    if (fl.l_type == F_UNLCK)
        return 0;
    return fl.l_pid > 0 ? fl.l_pid : -EPROTO; /* a kind of lock that no monitor takes */
}

pid_t monitor_lock_holder(int dirfd)
{
    return lock_holder_at(dirfd, "lock");
}
