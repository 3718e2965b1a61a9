#include "agent/copyup.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 128, PIECE = 1 << 20 };

static int copy_below(int from, int to, unsigned depth);

/* Other containers of a pod may be changing what is copied, so that the name can be another file's
 * by now: st tells of the one whose content it is. */
static int copy_file(int from, int to, const char *name, struct stat *st)
{
    AUTO_CLOSE int in = openat(from, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (in < 0 || fstat(in, st) < 0)
        return -errno;
    if (!S_ISREG(st->st_mode))
        return -EBUSY;
    AUTO_CLOSE int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n = out < 0 ? -1 : 1;
    while (n > 0)
        n = sendfile(out, in, NULL, PIECE);
    return n < 0 ? -errno : 0;
}

static int copy_link(int from, int to, const char *name)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(from, name, target, sizeof(target) - 1);
    target[n > 0 ? n : 0] = '\0';
    return n < 0 || symlinkat(target, to, name) < 0 ? -errno : 0;
}

static int copy_directory(int from, int to, const char *name, unsigned depth, struct stat *st)
{
    AUTO_CLOSE int in = dir_open_at(from, name);
    if (in < 0 || fstat(in, st) < 0)
        return in < 0 ? in : -errno;
    AUTO_CLOSE int out = mkdirat(to, name, 0700) < 0 ? -errno : dir_open_at(to, name);
    return out < 0 ? out : depth == 0 ? -ELOOP : copy_below(in, out, depth - 1);
}

static int copy_one(int from, int to, const char *name, unsigned depth)
{
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode) &&
        !S_ISFIFO(st.st_mode))
        return 0;
    int r = S_ISDIR(st.st_mode)                        ? copy_directory(from, to, name, depth, &st)
            : S_ISREG(st.st_mode)                      ? copy_file(from, to, name, &st)
            : S_ISLNK(st.st_mode)                      ? copy_link(from, to, name)
            : mknodat(to, name, S_IFIFO | 0600, 0) < 0 ? -errno
                                                       : 0;
    if (r == 0 &&
        (fchownat(to, name, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) < 0 ||
         (!S_ISLNK(st.st_mode) && fchmodat(to, name, st.st_mode & 07777, 0) < 0) ||
         utimensat(to, name, (struct timespec[]){st.st_atim, st.st_mtim}, AT_SYMLINK_NOFOLLOW) < 0))
        r = -errno;
    return r;
}

static int copy_below(int from, int to, unsigned depth)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(from, ".");
    int r = 0;
    if (!d)
        return -errno;
    while (r == 0) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (!entry)
            return -errno;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            r = copy_one(from, to, entry->d_name, depth);
    }
    return r;
}

int copyup(int from, int to)
{
    return copy_below(from, to, DEPTH_MAX);
}
