#include "util/fs.h"

#include "util/cleanup.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SMALL_FILE = 4096, REMOVE_TRIES = 1000 /* 1 ms apart */ };

/* #syscalls:monitor openat write fsync renameat unlinkat getpid close */

/* offset NULL: at the descriptor's own position. */
static int write_whole(int fd, const char *p, size_t n, uint64_t *offset)
{
    while (n) {
        ssize_t w = offset ? pwrite(fd, p, n, (off_t)*offset) : write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -errno;
        p += w;
        n -= (size_t)w;
        if (offset)
            *offset += (uint64_t)w;
    }
    return 0;
}

int write_all(int fd, const void *p, size_t n)
{
    return write_whole(fd, p, n, NULL);
}

int pwrite_all(int fd, const void *p, size_t n, uint64_t offset)
{
    return write_whole(fd, p, n, &offset);
}

int pread_all(int fd, void *p, size_t n, uint64_t offset)
{
    for (char *b = p; n;) {
        ssize_t k = pread(fd, b, n, (off_t)offset);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        b += k;
        n -= (size_t)k;
        offset += (uint64_t)k;
    }
    return 0;
}

int lock_file_at(int dirfd, const char *name, int create, int op)
{
    for (;;) {
        struct stat mine, there;
        AUTO_CLOSE int fd =
            openat(dirfd, name, O_RDWR | create | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
        if (fd < 0)
            return -errno;
        while (flock(fd, op) < 0)
            if (errno != EINTR)
                return -errno;
        if (fstat(fd, &mine) < 0)
            return -errno;
        if (fstatat(dirfd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_dev == there.st_dev &&
            mine.st_ino == there.st_ino)
            return steal_fd(&fd);
    }
}

ssize_t read_up_to(int fd, void *p, size_t n)
{
    size_t len = 0;
    while (len < n) {
        ssize_t k = read(fd, (char *)p + len, n - len);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        if (k == 0)
            break;
        len += (size_t)k;
    }
    return (ssize_t)len;
}

DIR *dir_read_at(int dirfd, const char *name)
{
    return dir_take(openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

DIR *dir_take(int fd)
{
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    int code = errno;
    if (!d)
        close_fd(&fd);
    errno = code;
    return d;
}

int file_read_at(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len)
{
    /* O_NONBLOCK: a fifo in its place must not make us wait. */
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    /* Most files are small, and `ls` reads two for each sandbox: no fstat() for those. */
    char first[SMALL_FILE];
    ssize_t n = read(fd, first, sizeof(first));
    if (n < 0)
        return errno == EAGAIN || errno == EISDIR ? -EINVAL : -errno;
    size_t len = (size_t)n, cap = len + 1;
    if (len == 0 || len == sizeof(first)) { /* a fifo seems empty */
        struct stat st;
        if (fstat(fd, &st) < 0)
            return -errno;
        if (!S_ISREG(st.st_mode))
            return -EINVAL;
        if ((uintmax_t)st.st_size > max)
            return -EFBIG;
        cap = MAX((size_t)st.st_size, len) + 1;
    }
    if (len > max)
        return -EFBIG;
    AUTO_FREE char *p = malloc(cap);
    if (!p)
        return -ENOMEM;
    memcpy(p, first, len);
    ssize_t more = len + 1 < cap ? read_up_to(fd, p + len, cap - 1 - len) : 0;
    if (more < 0)
        return (int)more;
    len += (size_t)more;
    p[len] = '\0';
    *ret = steal_ptr(&p);
    if (ret_len)
        *ret_len = len;
    return 0;
}

int file_replace_at(int dirfd, const char *name, const void *p, size_t n, mode_t mode, bool sync)
{
    char tmp[NAME_MAX + 1];
    int k = snprintf(tmp, sizeof(tmp), ".%s.tmp-%d", name, (int)getpid());
    if (k < 0 || (size_t)k >= sizeof(tmp))
        return -ENAMETOOLONG;
    /* A file with this name was left by an earlier process with our pid, or planted to stop us. */
    (void)unlinkat(dirfd, tmp, 0);
    AUTO_CLOSE int fd =
        openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, p, n);
    if (r == 0 && sync && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && renameat(dirfd, tmp, dirfd, name) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(dirfd, tmp, 0);
    if (r == 0 && sync)
        (void)fsync(dirfd); /* not every file system supports it; the rename itself is done */
    return r;
}

/* --- removal --------------------------------------------------------------------------------- */

/* Trees may come from a guest, which chose their depth. Each level takes a descriptor and stack
 * space, so anything deeper than this is moved to the top and removed from there. */
enum { REMOVE_DEPTH = 64 };

struct removal {
    int top;            /* the directory to be removed */
    unsigned long next; /* the next name for what is moved there */
    bool moved;         /* something was: the top must be read again */
};

/* Removes a file: -ENOENT. Opens a directory, with the rights needed to remove its children. */
static int unlink_or_open(int dirfd, const char *name)
{
    struct stat st;
    if (unlinkat(dirfd, name, 0) == 0)
        return -ENOENT;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    int fd = dir_open_at(dirfd, name);
    if (fd == -EACCES && fchmodat(dirfd, name, 0700, AT_SYMLINK_NOFOLLOW) == 0)
        fd = dir_open_at(dirfd, name);
    if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0700) != 0700)
        (void)fchmod(fd, 0700); /* if this fails, removing its children will, too */
    return fd;
}

static int move_to_top(struct removal *x, int dirfd, const char *name)
{
    for (;;) {
        char to[32];
        (void)snprintf(to, sizeof(to), ".deep-%lu", x->next++);
        if (renameat(dirfd, name, x->top, to) == 0)
            break;
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) /* the name is taken */
            return errno == ENOENT ? 0 : -errno;
    }
    x->moved = true;
    return 0;
}

static int remove_below(struct removal *x, int dirfd, const char *name, unsigned depth);

/* Owns fd. */
static int remove_children(struct removal *x, int fd, unsigned depth)
{
    AUTO_CLOSEDIR DIR *d = dir_take(fd);
    if (!d)
        return -errno;
    int first = 0;
    for (;;) {
        errno = 0;
        const struct dirent *de = readdir(d);
        if (!de)
            return first ? first : -errno;
        if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
            continue;
        int r = remove_below(x, dirfd(d), de->d_name, depth);
        if (r < 0 && !first)
            first = r;
    }
}

static int remove_below(struct removal *x, int dirfd, const char *name, unsigned depth)
{
    AUTO_CLOSE int fd = unlink_or_open(dirfd, name);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    if (depth == REMOVE_DEPTH)
        return unlinkat(dirfd, name, AT_REMOVEDIR) == 0 ? 0 : move_to_top(x, dirfd, name);
    int r = remove_children(x, steal_fd(&fd), depth + 1);
    if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return r < 0 ? r : -errno;
    return 0;
}

int remove_tree_at(int dirfd, const char *name)
{
    AUTO_CLOSE int top = unlink_or_open(dirfd, name);
    if (top < 0)
        return top == -ENOENT ? 0 : top;
    struct removal x = {.top = top, .moved = true};
    int r = 0;
    while (x.moved) {
        x.moved = false;
        int fd = dir_open_at(top, ".");
        r = fd < 0 ? fd : remove_children(&x, fd, 1);
    }
    if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return r < 0 ? r : -errno;
    return 0;
}

int remove_tree_patiently(int dirfd, const char *name)
{
    int r = remove_tree_at(dirfd, name);
    for (int i = 0; r == -ENOTEMPTY && i < REMOVE_TRIES; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        r = remove_tree_at(dirfd, name);
    }
    return r;
}

int mkdir_parents(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0 || errno == EEXIST)
        return 0;
    if (errno != ENOENT)
        return -errno;
    AUTO_FREE char *p = strdup(path);
    if (!p)
        return -ENOMEM;
    for (char *at = p + 1;; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char c = *at;
        *at = '\0';
        if (mkdir(p, mode) < 0 && errno != EEXIST)
            return -errno;
        *at = c;
        if (c == '\0')
            return 0;
    }
}
