#include "copy/host.h"

#include "util/cleanup.h"
#include "util/later.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_CHUNK = 256 * 1024 };

struct walk {
    struct tree_sink *to;
    struct tree_progress *p;
    struct err *e;
    uint8_t *buf;
    int depth;
};

static int failed(struct walk *w, int code, const char *name)
{
    return err_sys(w->e, code, "cannot read '%s'", name);
}

static int send_one(struct walk *w, int dirfd, const char *path, const char *name, int at);

/* At most the entry's size: a file that grows while being read would otherwise never end. */
static int send_file(struct walk *w, int dirfd, const char *path, struct file_attr *a, int at)
{
    struct stat st;
    char later[LATER_SIZE];
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (at ? O_NOFOLLOW : 0);
    AUTO_CLOSE int fd = openat(dirfd, path, flags);
    if (fd < 0 || fstat(fd, &st) < 0)
        return failed(w, errno, path);
    if (!S_ISREG(st.st_mode))
        return failed(w, EAGAIN, path); /* it was a file a moment ago */
    if (later_get(fd, later))
        return later_missing(path, w->e);
    uint32_t has = a->has & FILE_HAS_NAME;
    file_attr_of(a, &st);
    a->has |= has;
    int r = w->to->ops->file(w->to, a, w->e);
    for (uint64_t left = a->size; r == 0 && left;) {
        ssize_t n = read(fd, w->buf, (size_t)MIN(left, (uint64_t)READ_CHUNK));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(w, errno, path);
        if (n == 0)
            break;
        left -= (uint64_t)n;
        r = w->to->ops->data(w->to, w->buf, (size_t)n, w->e);
        tree_note_bytes(w->p, (size_t)n);
    }
    return r < 0 ? r : w->to->ops->done(w->to, w->e);
}

static int send_link(struct walk *w, int dirfd, const char *path, struct file_attr *a)
{
    ssize_t n = readlinkat(dirfd, path, a->target, sizeof(a->target) - 1);
    if (n <= 0)
        return failed(w, n < 0 ? errno : EINVAL, path);
    a->target[n] = '\0';
    a->has |= FILE_HAS_TARGET;
    return w->to->ops->link(w->to, a, w->e);
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Names are read at once, and sorted: no directory stays open for reading, and copies are
 * reproducible. */
static int send_children(struct walk *w, int fd, const char *path)
{
    struct dirent **names = NULL;
    int n = scandirat(fd, ".", &names, not_dots, by_name), r = 0;
    if (n < 0)
        return failed(w, errno, path);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = send_one(w, fd, names[i]->d_name, names[i]->d_name, AT_SYMLINK_NOFOLLOW);
        free(names[i]);
    }
    free(names);
    return r;
}

static int send_dir(struct walk *w, int dirfd, const char *path, const struct file_attr *a, int at)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (at ? O_NOFOLLOW : 0);
    AUTO_CLOSE int fd = openat(dirfd, path, flags);
    if (fd < 0)
        return failed(w, errno, path);
    if (w->depth++ == PROTO_DEPTH_MAX)
        return failed(w, ELOOP, path);
    int r = w->to->ops->dir(w->to, a, w->e);
    if (r == 0)
        r = send_children(w, fd, path);
    w->depth--;
    return r < 0 ? r : w->to->ops->leave(w->to, w->e);
}

static int send_one(struct walk *w, int dirfd, const char *path, const char *name, int at)
{
    static struct file_attr a; /* no longer used when anything below is handled */
    struct stat st;
    if (fstatat(dirfd, path, &st, at) < 0)
        return failed(w, errno, path);
    file_attr_of(&a, &st);
    if (snprintf(a.name, sizeof(a.name), "%s", name) >= (int)sizeof(a.name))
        return failed(w, ENAMETOOLONG, path);
    a.has |= FILE_HAS_NAME;
    int r = tree_note(w->p, &a, w->e);
    if (r < 0)
        return r;
    if (S_ISDIR(st.st_mode))
        return send_dir(w, dirfd, path, &a, at);
    if (S_ISREG(st.st_mode))
        return send_file(w, dirfd, path, &a, at);
    return S_ISLNK(st.st_mode) ? send_link(w, dirfd, path, &a) : 0;
}

int tree_from_host(int dirfd, const char *path, bool follow, const char *name, struct tree_sink *to,
                   struct tree_progress *p, struct err *e)
{
    AUTO_FREE uint8_t *buf = malloc(READ_CHUNK);
    struct walk w = {.to = to, .p = p, .e = e, .buf = buf};
    if (!buf)
        return err_oom(e);
    return send_one(&w, dirfd, path, name, follow ? 0 : AT_SYMLINK_NOFOLLOW);
}
