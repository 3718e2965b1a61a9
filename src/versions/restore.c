/* Restores files to an earlier state. A guest may be changing them: what it has written since they
 * were scanned is kept under another name (s3/work.h). */
#include "s3/work.h"
#include "util/fs.h"
#include "versions/impl.h"

#include <errno.h>
#include <stdio.h>

static int remove_old(struct s3_work *w, const struct s3_tree *now, const struct s3_tree *then,
                      struct err *e)
{
    int r = 0;
    for (size_t i = now->n; r == 0 && i-- > 0;) { /* a directory's contents come before it */
        const struct s3_entry *b = s3_tree_find(then, now->v[i].path);
        struct s3_step step = {.path = now->v[i].path, .local = &now->v[i]};
        if (!b || (b->kind != now->v[i].kind &&
                   (b->kind == S3_KIND_DIR || now->v[i].kind == S3_KIND_DIR)))
            r = s3_unplace(w, &step, e);
    }
    return r;
}

static int restore_dir(struct s3_work *w, const struct s3_entry *a, struct err *e)
{
    const char *name;
    AUTO_CLOSE int parent = s3_parent_open(w, a->path, true, &name);
    if (parent < 0 || (mkdirat(parent, name, 0700) < 0 && errno != EEXIST))
        return err_sys(e, parent < 0 ? -parent : errno, "cannot make '%s'", a->path);
    AUTO_CLOSE int fd = dir_open_at(parent, name);
    if (fd < 0 || fchmod(fd, a->mode | 0700) < 0)
        return err_sys(e, fd < 0 ? -fd : errno, "cannot make '%s'", a->path);
    return 0;
}

static int restore_one(struct s3_work *w, struct depot *d, const struct s3_entry *now,
                       const struct s3_entry *a, struct err *e)
{
    char tmp[16];
    if (a->kind == S3_KIND_DIR)
        return restore_dir(w, a, e);
    (void)snprintf(tmp, sizeof(tmp), "r%u", atomic_fetch_add(&w->serial, 1));
    int r = depot_take(d, a, tmp, e);
    if (r == 0)
        r = s3_place(w, a->path, tmp, now, false, e);
    return MIN(r, 0);
}

int version_restore(int dir, unsigned id, uint64_t max, warn_fn warn, struct err *e)
{
    AUTO_S3_TREE struct s3_tree then = {0}, now = {0}, last = {0};
    struct version before = {0};
    bool made = false;
    int r = version_tree(dir, id, warn, &then, e);
    if (r == 0)
        r = version_make(dir, "before a restore", max, warn, &before, &made, e);
    if (r < 0)
        return r;
    AUTO_DEPOT struct depot d = DEPOT_NONE;
    r = depot_open(dir, true, warn, &d, e);
    if (r == 0)
        r = version_load_tree(&d, before.id, &last, e);
    if (r == 0)
        r = version_scan(&d, &last, &now, e);
    struct s3_work w = {.data = d.data,
                        .tmp = d.fresh,
                        .warn = depot_warn,
                        .warn_ctx = &d,
                        .rival = "while it was restored",
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    s3_work_stamp(&w);
    if (r == 0)
        r = remove_old(&w, &now, &then, e);
    for (size_t i = 0; r == 0 && i < then.n; i++) {
        const struct s3_entry *a = s3_tree_find(&now, then.v[i].path);
        if (!s3_entry_same(a, &then.v[i]))
            r = restore_one(&w, &d, a, &then.v[i], e);
    }
    return r;
}
