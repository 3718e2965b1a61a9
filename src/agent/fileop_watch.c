/* WATCH: changes to a file, a directory, or everything below it, by inotify.
 *
 * inotify identifies directories by number; `dirs` keeps the path of each, relative to the watched
 * one. New directories are watched as they appear, and what they already contain is reported as if
 * it had just been created, so that nothing is missed in between.
 */
#include "agent/fileop.h"

#include "util/array.h"
#include "util/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define WATCHED                                                                        \
    (IN_CREATE | IN_CLOSE_WRITE | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_ATTRIB | \
     IN_MOVED_FROM | IN_MOVED_TO | IN_MOVE_SELF | IN_EXCL_UNLINK)

struct watched {
    int wd;
    char *path; /* relative; "" = the watched path itself */
    bool gone;  /* events still queued for it are stale */
};

struct watching {
    struct fchan *c;
    int fd;
    const char *root;
    bool recursive;
    struct watched *dirs; /* sorted by wd, which only grows */
    size_t n, cap;
    char *moved;     /* a directory that moved away, and may turn up again */
    uint32_t cookie; /* of that move */
};

static struct watched *find_watched(struct watching *w, int wd)
{
    size_t lo = 0, hi = w->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (w->dirs[mid].wd < wd)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < w->n && w->dirs[lo].wd == wd ? &w->dirs[lo] : NULL;
}

static void forget_watched(struct watching *w, int wd)
{
    struct watched *d = find_watched(w, wd);
    if (!d)
        return;
    free(d->path);
    size_t i = (size_t)(d - w->dirs);
    memmove(d, d + 1, (w->n - i - 1) * sizeof(*d));
    w->n--;
}

/* Takes path. A directory that was moved keeps its number. */
static int remember(struct watching *w, int wd, char *path)
{
    struct watched *d = find_watched(w, wd);
    if (d) {
        free(d->path);
        d->path = path;
        return 0;
    }
    if (ARRAY_GROW(w->dirs, w->n, w->cap, 64) < 0) {
        free(path);
        return -ENOMEM;
    }
    size_t i = w->n++;
    for (; i > 0 && w->dirs[i - 1].wd > wd; i--)
        w->dirs[i] = w->dirs[i - 1];
    w->dirs[i] = (struct watched){.wd = wd, .path = path};
    return 0;
}

static void put_event(struct watching *w, uint32_t what, const char *path, uint32_t cookie)
{
    struct proto_writer p;
    proto_begin(&p, &w->c->tx, PROTO_FILE_EVENT);
    proto_u32(&p, F_FILE_EVENT, what);
    proto_str(&p, F_FILE_PATH, path);
    if (cookie)
        proto_u64(&p, F_COOKIE, cookie);
    if (proto_end(&p) < 0)
        w->c->lost = true;
    (void)fchan_relieve(w->c);
}

/* --- directories --- */

static int full_path(const struct watching *w, const char *rel, char *to, size_t size)
{
    int n = snprintf(to, size, "%s%s%s", w->root, *rel ? "/" : "", rel);
    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

static char *join(const char *dir, const char *name)
{
    char *p = NULL;
    return asprintf(&p, "%s%s%s", dir, *dir && *name ? "/" : "", name) < 0 ? NULL : p;
}

static int watch_tree(struct watching *w, char *rel, bool report, int depth);

static int watch_children(struct watching *w, const char *rel, const char *full, bool report,
                          int depth)
{
    AUTO_CLOSEDIR DIR *d = opendir(full);
    const struct dirent *de;
    int r = 0;
    while (d && r == 0 && (de = readdir(d))) {
        struct stat st;
        if (!file_name_ok(de->d_name) ||
            fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        char *child = join(rel, de->d_name);
        if (!child)
            return -ENOMEM;
        if (report)
            put_event(w, FILE_CREATED | (S_ISDIR(st.st_mode) ? FILE_IS_DIR : 0), child, 0);
        if (S_ISDIR(st.st_mode))
            r = watch_tree(w, child, report, depth + 1);
        else
            free(child);
    }
    return r;
}

/* Takes rel. A path that is gone again is not an error, except the root. */
static int watch_tree(struct watching *w, char *rel, bool report, int depth)
{
    char full[PATH_MAX];
    if (w->n >= PROTO_WATCH_MAX || depth > PROTO_DEPTH_MAX) {
        free(rel);
        return -ENOSPC;
    }
    int r = full_path(w, rel, full, sizeof(full));
    int flags = depth ? IN_DONT_FOLLOW | IN_ONLYDIR : 0;
    int wd = r < 0 ? -1 : inotify_add_watch(w->fd, full, WATCHED | (uint32_t)flags);
    if (wd < 0) {
        r = r < 0 ? r : -errno;
        free(rel);
        return depth && r != -ENOSPC ? 0 : r;
    }
    r = remember(w, wd, rel);
    if (r == 0 && w->recursive)
        r = watch_children(w, rel, full, report, depth);
    return r;
}

/* --- events --- */

static uint32_t meaning(uint32_t mask)
{
    static const struct {
        uint32_t in, out;
    } map[] = {
        {IN_CREATE, FILE_CREATED},      {IN_CLOSE_WRITE | IN_MODIFY, FILE_MODIFIED},
        {IN_DELETE, FILE_REMOVED},      {IN_DELETE_SELF, FILE_REMOVED},
        {IN_ATTRIB, FILE_ATTRIB},       {IN_MOVED_FROM, FILE_MOVED_FROM},
        {IN_MOVED_TO, FILE_MOVED_TO},   {IN_MOVE_SELF, FILE_MOVED_FROM},
        {IN_Q_OVERFLOW, FILE_OVERFLOW}, {IN_ISDIR, FILE_IS_DIR},
    };
    uint32_t what = 0;
    for (size_t i = 0; i < ARRAY_LEN(map); i++)
        if (mask & map[i].in)
            what |= map[i].out;
    return what;
}

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

/* A directory that moved away did not turn up again: it and everything below it are no longer
 * watched. IN_IGNORED follows for each, and it is forgotten. */
static void drop_moved(struct watching *w)
{
    for (size_t i = 0; w->moved && i < w->n; i++)
        if (is_below(w->dirs[i].path, w->moved)) {
            (void)inotify_rm_watch(w->fd, w->dirs[i].wd);
            w->dirs[i].gone = true;
        }
    free(w->moved);
    w->moved = NULL;
}

/* It turned up again: everything below it has a new path. */
static int rename_moved(struct watching *w, const char *to)
{
    size_t n = strlen(w->moved);
    for (size_t i = 0; i < w->n; i++) {
        struct watched *d = &w->dirs[i];
        if (!is_below(d->path, w->moved))
            continue;
        char *path = NULL;
        if (asprintf(&path, "%s%s", to, d->path + n) < 0)
            return -ENOMEM;
        free(d->path);
        d->path = path;
    }
    free(w->moved);
    w->moved = NULL;
    return 0;
}

/* A directory was created, moved or removed. Takes path. */
static int on_dir(struct watching *w, const struct inotify_event *ev, char *path)
{
    if (ev->mask & IN_MOVED_FROM) {
        w->moved = path;
        w->cookie = ev->cookie;
        return 0;
    }
    if (ev->mask & IN_MOVED_TO && w->moved) {
        int r = rename_moved(w, path);
        free(path);
        return r;
    }
    if (ev->mask & (IN_CREATE | IN_MOVED_TO))
        return watch_tree(w, path, ev->mask & IN_CREATE, 1);
    free(path);
    return 0;
}

static void report_event(struct watching *w, const struct inotify_event *ev,
                         const struct watched *d)
{
    uint32_t what = meaning(ev->mask);
    char *path = join(d->path, ev->len ? ev->name : "");
    if (!path) {
        w->c->lost = true;
        return;
    }
    if (what & ~(uint32_t)FILE_IS_DIR)
        put_event(w, what, path, ev->cookie);
    if (!w->recursive || !(ev->mask & IN_ISDIR) || !ev->len)
        free(path);
    else if (on_dir(w, ev, path) < 0)
        put_event(w, FILE_OVERFLOW, "", 0); /* it exists but is not watched */
}

/* false: the watched path itself is gone. */
static bool on_event(struct watching *w, const struct inotify_event *ev)
{
    if (w->moved && !(ev->mask & IN_MOVED_TO && ev->cookie == w->cookie))
        drop_moved(w);
    if (ev->mask & IN_Q_OVERFLOW) {
        put_event(w, FILE_OVERFLOW, "", 0);
        return true;
    }
    struct watched *d = find_watched(w, ev->wd);
    if (!d)
        return true;
    if (ev->mask & IN_IGNORED) {
        bool root = !*d->path;
        forget_watched(w, ev->wd);
        return !root;
    }
    bool of_itself = *d->path && !ev->len; /* its parent's event also has the name */
    if (!d->gone && !of_itself)
        report_event(w, ev, d);
    return true;
}

static bool read_events(struct watching *w)
{
    static _Alignas(struct inotify_event) char buf[16 * 1024];
    ssize_t n = read(w->fd, buf, sizeof(buf));
    if (n <= 0)
        return n < 0 && (errno == EINTR || errno == EAGAIN);
    const struct inotify_event *ev;
    for (char *p = buf; p < buf + n; p += sizeof(*ev) + ev->len) {
        ev = (const struct inotify_event *)(const void *)p;
        if (!on_event(w, ev))
            return false;
    }
    return true;
}

/* No further requests come on this stream: any event on it is its end. */
static void pass_events(struct watching *w)
{
    struct pollfd p[2] = {{.fd = w->fd, .events = POLLIN}, {.fd = w->c->fd, .events = POLLRDHUP}};
    while (fchan_flush(w->c) == 0) {
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            break;
        if (p[1].revents || (p[0].revents && !read_events(w)))
            break;
    }
    (void)fchan_flush(w->c);
    w->c->lost = true;
}

int fileop_watch(struct fchan *c, const struct file_req *q, struct err *e)
{
    struct watching w = {.c = c, .root = q->path, .recursive = q->flags & FILE_RECURSIVE};
    w.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    char *rel = w.fd < 0 ? NULL : strdup(""); /* watch_tree() takes it */
    int r = rel ? watch_tree(&w, rel, false, 0) : -errno;
    if (r == 0) {
        fchan_put_attr(c, PROTO_FILE_OK, NULL);
        pass_events(&w);
    }
    for (size_t i = 0; i < w.n; i++)
        free(w.dirs[i].path);
    free(w.dirs);
    free(w.moved);
    close_fd(&w.fd);
    if (r == -ENOSPC)
        return err_set(e, ENOSPC, "%s: too many directories to watch", q->path);
    return r < 0 ? err_sys(e, -r, "%s", q->path) : 0;
}
