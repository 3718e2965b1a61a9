#include "s3/tree.h"

#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TICKS_NS = 50000000 }; /* a safe bound on the granularity of file times */

static const char *const kinds[] = {"file", "dir", "symlink"};

void s3_tree_free(struct s3_tree *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].path);
        free(t->v[i].staged);
    }
    free(t->v);
    strlist_free(&t->pending);
    *t = (struct s3_tree){0};
}

struct s3_entry *s3_tree_add(struct s3_tree *t, const char *path, const struct s3_entry *from)
{
    if (t->n >= S3_ENTRIES_MAX)
        return NULL;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        struct s3_entry *more = reallocarray(t->v, cap, sizeof(*more));
        if (!more)
            return NULL;
        t->v = more;
        t->cap = cap;
    }
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
    /* A second change within one tick of the clock would not show: such a file is read again. */
    a->ino = (int64_t)realtime_ns() - a->ctime_ns < TICKS_NS ? 0 : st->st_ino;
    a->mtime_ns = ns_of(&st->st_mtim);
    a->size = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size;
    a->mode = st->st_mode & 0777;
}

/* --- JSON ------------------------------------------------------------------------------------ */

/* Written by hand: for 200,000 entries, a tree of values would cost more than all the rest. */
static int put_text(struct buf *b, const char *name, const char *v)
{
    int r = name ? buf_printf(b, ",\"%s\":\"", name) : buf_append(b, "\"", 1);
    while (r == 0 && *v) {
        size_t n = strcspn(v, "\"\\");
        r = buf_append(b, v, n);
        v += n;
        if (r == 0 && *v)
            r = buf_printf(b, "\\%c", *v++);
    }
    return r < 0 ? r : buf_append(b, "\"", 1);
}

static int put_entry(struct buf *b, const struct s3_entry *a, bool local)
{
    int r = put_text(b, NULL, a->path);
    if (r == 0)
        r = buf_printf(b, ":{\"type\":\"%s\",\"mode\":%u,\"size\":%llu,\"mtime_ns\":%lld",
                       kinds[a->kind], a->mode, (unsigned long long)a->size,
                       (long long)a->mtime_ns);
    if (r == 0 && a->sha[0])
        r = put_text(b, "sha256", a->sha);
    if (r == 0 && a->etag[0])
        r = put_text(b, "etag", a->etag);
    if (r == 0 && a->staged)
        r = put_text(b, "staged", a->staged);
    if (r == 0 && local && a->guessed)
        r = buf_printf(b, ",\"guessed\":true");
    if (r == 0 && local && a->later[0])
        r = put_text(b, "later", a->later);
    if (r == 0 && local)
        r = buf_printf(b, ",\"ino\":%llu,\"ctime_ns\":%lld", (unsigned long long)a->ino,
                       (long long)a->ctime_ns);
    return r < 0 ? r : buf_append(b, "}", 1);
}

char *s3_tree_dump(const struct s3_tree *t, bool local)
{
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, 2L * S3_MANIFEST_MAX);
    int r = buf_printf(&b, "{\"version\":1,\"entries\":{");
    for (size_t i = 0; r == 0 && i < t->n; i++) {
        if (t->v[i].guessed && !local)
            continue;
        if (!first)
            r = buf_append(&b, ",", 1);
        first = false;
        if (r == 0)
            r = put_entry(&b, &t->v[i], local);
    }
    if (r == 0)
        r = buf_printf(&b, "},\"pending\":[");
    for (size_t i = 0; r == 0 && i < t->pending.n; i++) {
        r = i ? buf_append(&b, ",", 1) : 0;
        if (r == 0)
            r = put_text(&b, NULL, t->pending.v[i]);
    }
    if (r == 0)
        r = buf_append(&b, "]}", 3);
    return r < 0 ? NULL : strdup((const char *)buf_head(&b));
}

static bool get_number(const json_t *j, const char *name, uint64_t max, uint64_t *ret)
{
    const json_t *v = json_object_get(j, name);
    if (!v)
        return true;
    json_int_t n = json_integer_value(v);
    *ret = (uint64_t)n;
    return json_is_integer(v) && n >= 0 && (uint64_t)n <= max;
}

static bool get_text(const json_t *j, const char *name, char *out, size_t size, const char *chars)
{
    const char *v = json_string_value(json_object_get(j, name));
    if (v && strlen(v) < size && (!chars || strspn(v, chars) == strlen(v)))
        (void)snprintf(out, size, "%s", v);
    else
        out[0] = '\0';
    return true;
}

/* "staged" becomes part of a key. */
static bool name_ok(const char *name)
{
    return *name && strlen(name) <= 64 &&
           strspn(name, "0123456789abcdefghijklmnopqrstuvwxyz-") == strlen(name);
}

static bool read_entry(const json_t *j, struct s3_entry *a)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    uint64_t mode = 0644, mtime = 0, ctime = 0;
    size_t kind = 0;
    while (kind < ARRAY_LEN(kinds) && (!type || strcmp(type, kinds[kind]) != 0))
        kind++;
    a->kind = (enum s3_kind)kind;
    bool ok = kind < ARRAY_LEN(kinds) && get_number(j, "mode", 0777, &mode) &&
              get_number(j, "size", INT64_MAX, &a->size) &&
              get_number(j, "mtime_ns", INT64_MAX, &mtime) &&
              get_number(j, "ino", INT64_MAX, &a->ino) &&
              get_number(j, "ctime_ns", INT64_MAX, &ctime);
    a->mode = (unsigned)mode;
    a->mtime_ns = (int64_t)mtime;
    a->ctime_ns = (int64_t)ctime;
    (void)get_text(j, "sha256", a->sha, sizeof(a->sha), "0123456789abcdef");
    (void)get_text(j, "etag", a->etag, sizeof(a->etag), NULL);
    (void)get_text(j, "later", a->later, sizeof(a->later), "0123456789abcdef");
    a->guessed = json_is_true(json_object_get(j, "guessed"));
    const char *staged = json_string_value(json_object_get(j, "staged"));
    a->staged = staged && name_ok(staged) ? (char *)staged : NULL;
    for (const char *p = a->etag; *p; p++) /* it becomes part of a header */
        ok = ok && *p > 0x20 && *p < 0x7f && *p != '"';
    return ok && (a->kind == S3_KIND_DIR || strlen(a->sha) == 64);
}

static int read_pending(const json_t *j, struct s3_tree *t)
{
    size_t i;
    const json_t *v;
    /* clang-format off */
    json_array_foreach((json_t *)j, i, v)
    /* clang-format on */
    {
        const char *path = json_string_value(v);
        if (path && i < S3_ENTRIES_MAX && s3_path_ok(path) && strlist_add(&t->pending, path) < 0)
            return -ENOMEM;
    }
    return 0;
}

int s3_tree_parse(const char *text, size_t n, struct s3_tree *ret)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    AUTO_JSON json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    json_t *entries = json_object_get(root, "entries");
    const char *path;
    json_t *v;
    if (json_integer_value(json_object_get(root, "version")) != 1 || !json_is_object(entries) ||
        json_object_size(entries) > S3_ENTRIES_MAX)
        return -EBADMSG;
    /* clang-format off */
    json_object_foreach(entries, path, v)
    /* clang-format on */
    {
        struct s3_entry a = {0};
        if (s3_path_ok(path) && read_entry(v, &a) && !s3_tree_add(&t, path, &a))
            return -ENOMEM;
    }
    int r = read_pending(json_object_get(root, "pending"), &t);
    if (r < 0)
        return r;
    s3_tree_sort(&t);
    *ret = t;
    t = (struct s3_tree){0};
    return 0;
}
