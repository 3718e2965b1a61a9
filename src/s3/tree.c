#include "s3/tree.h"

#include "util/array.h"
#include "util/loop.h"

#include <errno.h>
#include <string.h>

enum { TICKS_NS = 50000000 }; /* a safe bound on the granularity of file times */

void s3_tree_free(struct s3_tree *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].path);
        free(t->v[i].staged);
    }
    free(t->v);
    strlist_free(&t->pending);
    strlist_free(&t->gone);
    *t = (struct s3_tree){0};
}

struct s3_entry *s3_tree_add(struct s3_tree *t, const char *path, const struct s3_entry *from)
{
    if (t->n >= S3_ENTRIES_MAX)
        return NULL;
    if (ARRAY_GROW(t->v, t->n, t->cap, 64) < 0)
        return NULL;
    struct s3_entry *a = &t->v[t->n];
    *a = *from;
    a->path = strdup(path);
    a->staged = from->staged ? strdup(from->staged) : NULL;
    if (!a->path || (from->staged && !a->staged)) {
        free(a->path);
        free(a->staged);
        return NULL;
    }
    t->n++;
    return a;
}

static int by_path(const void *a, const void *b)
{
    const struct s3_entry *x = a, *y = b;
    return strcmp(x->path, y->path);
}

void s3_tree_sort(struct s3_tree *t)
{
    size_t n = 0;
    if (t->n)
        qsort(t->v, t->n, sizeof(*t->v), by_path);
    for (size_t i = 0; i < t->n; i++) {
        if (n && strcmp(t->v[n - 1].path, t->v[i].path) == 0) {
            free(t->v[i].path);
            free(t->v[i].staged);
        } else {
            t->v[n++] = t->v[i];
        }
    }
    t->n = n;
}

struct s3_entry *s3_tree_find(const struct s3_tree *t, const char *path)
{
    struct s3_entry key = {.path = (char *)path};
    return t->n ? bsearch(&key, t->v, t->n, sizeof(*t->v), by_path) : NULL;
}

size_t s3_tree_below(const struct s3_tree *t, const char *path)
{
    size_t from = 0, to = t->n, len = strlen(path);
    while (len && from < to) {
        size_t at = from + (to - from) / 2;
        const char *p = t->v[at].path;
        int order = strncmp(p, path, len);
        if (order < 0 || (order == 0 && p[len] < '/')) /* "a", "a-b", "a/b" */
            from = at + 1;
        else
            to = at;
    }
    return from;
}

static void become(struct s3_entry *a, const struct s3_entry *b)
{
    char *path = a->path;
    free(a->staged);
    *a = *b;
    a->path = path;
}

int s3_tree_imply_dirs(struct s3_tree *t)
{
    size_t n = t->n;
    const struct s3_entry dir = {.kind = S3_KIND_DIR, .mode = 0755};
    AUTO_FREE char *last = strdup("");
    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *path = strdup(t->v[i].path);
        if (!path || !last)
            return -ENOMEM;
        for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            size_t len = strlen(path);
            bool done = strncmp(last, path, len) == 0 && last[len] == '/';
            struct s3_entry key = {.path = path};
            struct s3_entry *at = done ? NULL : bsearch(&key, t->v, n, sizeof(*t->v), by_path);
            if (at && at->kind != S3_KIND_DIR)
                become(at, &dir);
            if (!at && !done && !s3_tree_add(t, path, &dir))
                return -ENOMEM;
            *slash = '/';
        }
        free(last);
        last = steal_ptr(&path);
    }
    s3_tree_sort(t);
    return 0;
}

bool s3_entry_same(const struct s3_entry *a, const struct s3_entry *b)
{
    if (!a || !b)
        return a == b;
    if (a->kind != b->kind || (a->kind != S3_KIND_LINK && a->mode != b->mode))
        return false;
    return a->kind == S3_KIND_DIR || (a->sha[0] && strcmp(a->sha, b->sha) == 0);
}

static int64_t ns_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

bool s3_entry_unwritten(const struct s3_entry *a, const struct stat *st)
{
    return a->ino == st->st_ino && a->size == (uint64_t)st->st_size &&
           a->mtime_ns == ns_of(&st->st_mtim);
}

bool s3_entry_untouched(const struct s3_entry *a, const struct stat *st)
{
    return s3_entry_unwritten(a, st) && a->ctime_ns == ns_of(&st->st_ctim);
}

void s3_entry_stat(struct s3_entry *a, const struct stat *st)
{
    a->ctime_ns = ns_of(&st->st_ctim);
    /* A second change within one clock tick would go unnoticed: such a file is read again. */
    a->ino = (int64_t)realtime_ns() - a->ctime_ns < TICKS_NS ? 0 : st->st_ino;
    a->mtime_ns = ns_of(&st->st_mtim);
    a->size = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size;
    a->mode = st->st_mode & 0777;
}
