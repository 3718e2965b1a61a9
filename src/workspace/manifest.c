#include "workspace/manifest.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct walk {
    struct hasher h;
    struct manifest *m;
    const char *what;
    struct err *e;
};

/* What changes whenever an entry changes. */
struct record {
    uint64_t inode, size;
    int64_t sec;
    uint32_t nsec, mode, name_len, target_len;
};

static int walk_dir(struct walk *w, int at, const char *name, unsigned depth);

static int add_entry(struct walk *w, int dirfd, const char *name, const struct statx *st)
{
    char target[PATH_MAX];
    ssize_t n = 0;
    if (S_ISLNK(st->stx_mode) && (n = readlinkat(dirfd, name, target, sizeof(target))) < 0)
        return err_sys(w->e, errno, "cannot read '%s' in %s", name, w->what);
    struct record r = {.inode = st->stx_ino,
                       .size = S_ISDIR(st->stx_mode) ? 0 : st->stx_size,
                       .sec = st->stx_mtime.tv_sec,
                       .nsec = st->stx_mtime.tv_nsec,
                       .mode = st->stx_mode,
                       .name_len = (uint32_t)strlen(name),
                       .target_len = (uint32_t)n};
    hasher_update(&w->h, &r, sizeof(r));
    hasher_update(&w->h, name, r.name_len);
    hasher_update(&w->h, target, (size_t)n);
    if (++w->m->entries > MANIFEST_ENTRIES_MAX)
        return err_set(w->e, E2BIG, "%s has more than %d files", w->what, MANIFEST_ENTRIES_MAX);
    w->m->bytes += S_ISREG(st->stx_mode) ? st->stx_size : 0;
    return 0;
}

static int visit(struct walk *w, int dirfd, const char *name, unsigned depth)
{
    struct statx st;
    if (statx(dirfd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) < 0)
        return err_sys(w->e, errno, "cannot read '%s' in %s", name, w->what);
    if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return err_set(w->e, EXDEV, "cannot copy '%s' in %s: it is a mount point", name, w->what);
    if (!S_ISREG(st.stx_mode) && !S_ISDIR(st.stx_mode) && !S_ISLNK(st.stx_mode))
        return err_set(w->e, EINVAL,
                       "cannot copy '%s' in %s: it is not a file, directory or symbolic link", name,
                       w->what);
    int r = add_entry(w, dirfd, name, &st);
    return r == 0 && S_ISDIR(st.stx_mode) ? walk_dir(w, dirfd, name, depth + 1) : r;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Grows by steps, unlike a strlist: there may be very many. */
struct names {
    char **v;
    size_t n;
};

static void names_free(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
}

static int read_names(struct walk *w, DIR *d, struct names *l)
{
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (l->n >= MANIFEST_ENTRIES_MAX)
            return err_set(w->e, E2BIG, "a directory in %s is too large", w->what);
        char **more = l->n % 64 ? l->v : reallocarray(l->v, l->n + 64, sizeof(*more));
        if (more)
            l->v = more;
        if (!more || !(l->v[l->n] = strdup(entry->d_name)))
            return err_oom(w->e);
        l->n++;
    }
    if (l->n)
        qsort(l->v, l->n, sizeof(*l->v), compare);
    return 0;
}

static int walk_dir(struct walk *w, int at, const char *name, unsigned depth)
{
    CLEANUP(names_free) struct names names = {0};
    static const uint8_t leave = 0;
    if (depth > MANIFEST_DEPTH_MAX)
        return err_set(w->e, ELOOP, "%s has directories more than %d deep", w->what,
                       MANIFEST_DEPTH_MAX);
    AUTO_CLOSEDIR DIR *d = dir_read_at(at, name);
    if (!d)
        return err_sys(w->e, errno, "cannot read '%s' in %s", name, w->what);
    int r = read_names(w, d, &names);
    for (size_t i = 0; r == 0 && i < names.n; i++)
        r = visit(w, dirfd(d), names.v[i], depth);
    if (r == 0)
        hasher_update(&w->h, &leave, 1);
    return r;
}

int manifest_of(int dirfd, const char *name, const char *what, struct manifest *ret, struct err *e)
{
    struct manifest m = {0};
    struct walk w = {.m = &m, .what = what, .e = e};
    hasher_init(&w.h);
    int r = walk_dir(&w, dirfd, name, 0);
    m.digest = hasher_finish(&w.h);
    if (r == 0)
        *ret = m;
    return r;
}
