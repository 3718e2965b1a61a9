#include "util/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util/cleanup.h"

enum { MODE = 0600 };

/* Splits it into a directory, which is opened, and a name in it. */
static int open_dir(struct output_file *f, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    AUTO_FREE char *dir =
        slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    f->name = strdup(name);
    if (!dir || !f->name)
        return -ENOMEM;
    if (!*name)
        return -EISDIR;
    f->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return f->dirfd < 0 ? -errno : 0;
}

static int open_temp(struct output_file *f)
{
    (void)snprintf(f->temp, sizeof(f->temp), ".msb-save.%d", (int)getpid());
    f->fd = openat(f->dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, MODE);
    if (f->fd >= 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
        return -errno;
    (void)unlinkat(f->dirfd, f->temp, 0); /* left by an earlier process with our pid */
    f->fd = openat(f->dirfd, f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    f->temp_used = f->fd >= 0;
    return f->fd < 0 ? -errno : 0;
}

int output_file_open(struct output_file *f, const char *path, struct err *e)
{
    struct stat st;
    char real[PATH_MAX];
    *f = (struct output_file){.fd = -1, .dirfd = -1, .path = strdup(path)};
    int r = 0;
    bool there = stat(path, &st) == 0;
    if (!f->path) {
        r = -ENOMEM;
    } else if (there && S_ISDIR(st.st_mode)) {
        r = -EISDIR;
    } else if (there && !S_ISREG(st.st_mode)) {
        f->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        r = f->fd < 0 ? -errno : 0;
    } else {
        /* A link stays a link: its target is replaced. */
        if (there && !realpath(path, real))
            r = -errno;
        if (r == 0)
            r = open_dir(f, there ? real : path);
        if (r == 0)
            r = open_temp(f);
    }
    if (r < 0) {
        output_file_close(f);
        return err_sys(e, -r, "cannot write '%s'", path);
    }
    return 0;
}

static int give_name(struct output_file *f)
{
    char self[64];
    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", f->fd);
    if (fdatasync(f->fd) < 0)
        return -errno;
    if (!f->temp_used) {
        (void)unlinkat(f->dirfd, f->temp, 0);
        if (linkat(AT_FDCWD, self, f->dirfd, f->temp, AT_SYMLINK_FOLLOW) < 0)
            return -errno;
        f->temp_used = true;
    }
    if (renameat(f->dirfd, f->temp, f->dirfd, f->name) < 0)
        return -errno;
    f->temp_used = false;
    return 0;
}

int output_file_publish(struct output_file *f, struct err *e)
{
    int r = f->name ? give_name(f) : 0;
    int fd = steal_fd(&f->fd);
    if (close(fd) < 0 && r == 0)
        r = -errno;
    return r < 0 ? err_sys(e, -r, "cannot write '%s'", f->path) : 0;
}

void output_file_close(struct output_file *f)
{
    close_fd(&f->fd);
    if (f->temp_used)
        (void)unlinkat(f->dirfd, f->temp, 0);
    f->temp_used = false;
    if (f->name || f->path) /* it was opened */
        close_fd(&f->dirfd);
    free(f->path);
    free(f->name);
    f->path = f->name = NULL;
}
