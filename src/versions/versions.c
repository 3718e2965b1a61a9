#include "versions/impl.h"

#include "store/json_file.h"
#include "store/volume.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_MAX = 64 << 10 };

/* --- records --------------------------------------------------------------------------------- */

static void name_of(unsigned id, const char *kind, char out[VERSION_NAME_MAX])
{
    (void)snprintf(out, VERSION_NAME_MAX, "%u.%s", id, kind);
}

/* "12.json"; 0 = something else. */
static unsigned id_of(const char *name)
{
    char *end;
    unsigned long id = name[0] >= '1' && name[0] <= '9' ? strtoul(name, &end, 10) : 0;
    return id && id <= 1000000000 && strcmp(end, ".json") == 0 ? (unsigned)id : 0;
}

static int load_record(int dir, unsigned id, struct version *v)
{
    AUTO_JSON json_t *j = NULL;
    char name[VERSION_NAME_MAX];
    name_of(id, "json", name);
    int r = json_file_load(dir, name, RECORD_MAX, &j);
    if (r < 0)
        return r;
    const char *message = json_string_value(json_object_get(j, "message"));
    *v = (struct version){.id = id,
                          .created_ns =
                              (uint64_t)json_integer_value(json_object_get(j, "created_ns")),
                          .files = (uint64_t)json_integer_value(json_object_get(j, "files")),
                          .bytes = (uint64_t)json_integer_value(json_object_get(j, "bytes"))};
    (void)snprintf(v->message, sizeof(v->message), "%s", message ? message : "");
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct version *x = a, *y = b;
    return x->id < y->id ? 1 : -1;
}

static int list_records(const struct depot *d, struct version **ret, size_t *n, struct err *e)
{
    AUTO_CLOSEDIR DIR *names = dir_read_at(d->dir, ".");
    AUTO_FREE struct version *v = calloc(VERSIONS_MAX, sizeof(*v));
    const struct dirent *entry;
    size_t k = 0;
    if (!v)
        return err_oom(e);
    while (names && k < VERSIONS_MAX && (entry = readdir(names))) {
        unsigned id = id_of(entry->d_name);
        if (id && load_record(d->dir, id, &v[k]) == 0)
            k++;
    }
    if (!names)
        return err_sys(e, errno, "cannot read the versions of the workspace");
    if (k)
        qsort(v, k, sizeof(*v), newest_first);
    *ret = steal_ptr(&v);
    *n = k;
    return 0;
}

int versions_list(int dir, struct version **ret, size_t *n, struct err *e)
{
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    int r = depot_open(dir, false, NULL, &d, e);
    if (r == -ENOENT) {
        *ret = NULL;
        *n = 0;
        return 0;
    }
    return r < 0 ? r : list_records(&d, ret, n, e);
}

int version_load_tree(const struct depot *d, unsigned id, struct s3_tree *ret, struct err *e)
{
    AUTO_FREE char *text = NULL;
    char name[VERSION_NAME_MAX];
    size_t n = 0;
    struct version v;
    name_of(id, "tree", name);
    if (load_record(d->dir, id, &v) == -ENOENT)
        return err_set(e, ENOENT, "no such version: %u", id);
    int r = file_read_at(d->dir, name, TREE_MAX, &text, &n);
    if (r == 0)
        r = s3_tree_parse(text, n, ret);
    return r < 0 ? err_sys(e, -r, "cannot read version %u", id) : 0;
}

/* --- what is there now ----------------------------------------------------------------------- */

int version_scan(const struct depot *d, const struct s3_tree *base, struct s3_tree *ret,
                 struct err *e)
{
    AUTO_IGNORE struct ignore g = {0};
    int r = ignore_load(d->data, &g, e);
    return r < 0 ? r
                 : s3_tree_scan(
                       d->data,
                       &(struct s3_scan){
                           .base = base, .ignore = &g, .warn = depot_warn, .warn_ctx = (void *)d},
                       ret, e);
}

int version_tree(int dir, unsigned id, warn_fn warn, struct s3_tree *ret, struct err *e)
{
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    AUTO_S3_TREE struct s3_tree last = {0};
    AUTO_FREE struct version *v = NULL;
    size_t n = 0;
    int r = depot_open(dir, false, warn, &d, e);
    if (r == -ENOENT)
        return err_hinted(e, err_set(e, ENOENT, "the workspace has no versions"),
                          "make one with: msb workspace checkpoint NAME");
    if (r < 0 || id)
        return r < 0 ? r : version_load_tree(&d, id, ret, e);
    r = list_records(&d, &v, &n, e);
    if (r == 0 && n)
        r = version_load_tree(&d, v[0].id, &last, e);
    return r < 0 ? r : version_scan(&d, &last, ret, e);
}

/* --- checkpoint ------------------------------------------------------------------------------ */

static void count(void *ctx, const char *what, const char *path)
{
    ++*(size_t *)ctx;
}

/* Stores contents that are not stored yet; files that vanished meanwhile are not part of the
 * version. */
static int store_contents(struct depot *d, struct s3_tree *t, struct version *v, struct err *e)
{
    size_t kept = 0;
    int r = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct s3_entry *a = &t->v[i];
        int one = a->kind == S3_KIND_DIR || depot_has(d, a->sha) || r < 0 ? 0 : depot_add(d, a, e);
        if (one < 0 && e->msg[0])
            r = one;
        if (one < 0) {
            free(a->path);
            free(a->staged);
            continue;
        }
        v->files += a->kind != S3_KIND_DIR;
        v->bytes += a->size;
        t->v[kept++] = *a;
    }
    t->n = kept;
    return r;
}

static int save(const struct depot *d, const struct s3_tree *t, const struct version *v,
                struct err *e)
{
    char name[VERSION_NAME_MAX];
    AUTO_FREE char *text = s3_tree_dump(t, true);
    name_of(v->id, "tree", name);
    int r = text ? file_replace_at(d->dir, name, text, strlen(text), 0600, true) : -ENOMEM;
    name_of(v->id, "json", name);
    if (r == 0)
        r = json_file_save(d->dir, name,
                           json_pack("{s:I, s:I, s:I, s:s}", "created_ns",
                                     (json_int_t)v->created_ns, "files", (json_int_t)v->files,
                                     "bytes", (json_int_t)v->bytes, "message", v->message),
                           true);
    return r < 0 ? err_sys(e, -r, "cannot record the version") : 0;
}

static int check_room(const struct depot *d, size_t n, uint64_t max, struct err *e)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/.", d->dir);
    int r = 0;
    if (n >= VERSIONS_MAX)
        r = err_set(e, E2BIG, "the workspace already has %d versions", VERSIONS_MAX);
    else if (tree_used(path) > max)
        r = err_set(e, EFBIG, "the versions of the workspace take more than %llu MiB",
                    (unsigned long long)(max >> 20));
    if (r < 0)
        err_hint(e, "remove old ones with: msb workspace prune --keep N NAME");
    return r;
}

static int make(struct depot *d, const char *message, uint64_t max, struct version *ret, bool *made,
                struct err *e)
{
    AUTO_S3_TREE struct s3_tree last = {0}, now = {0};
    AUTO_FREE struct version *v = NULL;
    size_t n = 0, changes = 0;
    int r = list_records(d, &v, &n, e);
    if (r == 0 && n)
        r = version_load_tree(d, v[0].id, &last, e);
    if (r == 0)
        r = version_scan(d, &last, &now, e);
    if (r < 0)
        return r;
    version_compare(&last, &now, count, &changes);
    *made = !n || changes;
    if (!*made) {
        *ret = v[0];
        return 0;
    }
    struct version fresh = {.id = n ? v[0].id + 1 : 1, .created_ns = realtime_ns()};
    (void)snprintf(fresh.message, sizeof(fresh.message), "%s", message);
    r = check_room(d, n, max, e);
    if (r == 0)
        r = store_contents(d, &now, &fresh, e);
    if (r == 0)
        r = check_room(d, n, max, e); /* before it counts */
    if (r == 0)
        r = depot_settle(d, e);
    if (r == 0)
        r = save(d, &now, &fresh, e);
    if (r == 0)
        *ret = fresh;
    return r;
}

int version_make(int dir, const char *message, uint64_t max, warn_fn warn, struct version *ret,
                 bool *made, struct err *e)
{
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    if (strlen(message) > VERSION_MESSAGE_MAX)
        return err_set(e, EINVAL, "the message has more than %d bytes", VERSION_MESSAGE_MAX);
    int r = depot_open(dir, true, warn, &d, e);
    return r < 0 ? r : make(&d, message, max, ret, made, e);
}

/* --- compare --------------------------------------------------------------------------------- */

void version_compare(const struct s3_tree *old, const struct s3_tree *now, version_differs_fn fn,
                     void *ctx)
{
    for (size_t i = 0, k = 0; i < old->n || k < now->n;) {
        int order = i == old->n ? 1 : k == now->n ? -1 : strcmp(old->v[i].path, now->v[k].path);
        if (order < 0)
            fn(ctx, "removed", old->v[i].path);
        else if (order > 0)
            fn(ctx, "added", now->v[k].path);
        else if (!s3_entry_same(&old->v[i], &now->v[k]))
            fn(ctx, "changed", old->v[i].path);
        i += order <= 0;
        k += order >= 0;
    }
}

/* --- prune ----------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int collect(const struct depot *d, unsigned id, struct strlist *used, struct err *e)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    int r = version_load_tree(d, id, &t, e);
    for (size_t i = 0; r == 0 && i < t.n; i++)
        if (t.v[i].kind != S3_KIND_DIR && strlist_add(used, t.v[i].sha) < 0)
            r = err_oom(e);
    if (used->n)
        qsort(used->v, used->n, sizeof(*used->v), by_text);
    size_t k = 0;
    for (size_t i = 0; i < used->n; i++) {
        if (k && strcmp(used->v[k - 1], used->v[i]) == 0)
            free(used->v[i]);
        else
            used->v[k++] = used->v[i];
    }
    used->n = k;
    return r;
}

int versions_prune(int dir, size_t keep, size_t *removed, struct err *e)
{
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    AUTO_STRLIST struct strlist used = {0};
    AUTO_FREE struct version *v = NULL;
    size_t n = 0;
    *removed = 0;
    int r = depot_open(dir, false, NULL, &d, e);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = list_records(&d, &v, &n, e);
    for (size_t i = 0; r == 0 && i < n && i < keep; i++)
        r = collect(&d, v[i].id, &used, e);
    for (size_t i = keep; r == 0 && i < n; i++) {
        char name[VERSION_NAME_MAX];
        name_of(v[i].id, "json", name); /* without it, the rest is meaningless */
        if (unlinkat(d.dir, name, 0) < 0)
            r = err_sys(e, errno, "cannot remove version %u", v[i].id);
        name_of(v[i].id, "tree", name);
        (void)unlinkat(d.dir, name, 0);
        *removed += r == 0;
    }
    return r < 0 ? r : depot_sweep(&d, used.v, used.n, e);
}
