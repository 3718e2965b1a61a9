/* The record of the last sync, and of what a pull or push under way will change in it. */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <string.h>

enum { BASE_MAX = 128 << 20 }; /* twice a manifest, to include what only this host needs */

/* Replaces guessed hashes that are now known. Damaged lines are ignored. */
static void learn_fetched(int dir, struct s3_tree *base)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    if (file_read_at(dir, S3_FETCHED_FILE, BASE_MAX, &text, &n) < 0)
        return;
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next ? (*next = '\0', 1) : 0;
        char *rest = line, *sha = strsep(&rest, " "), *etag = strsep(&rest, " ");
        struct s3_entry *a = rest ? s3_tree_find(base, rest) : NULL;
        if (!a || !a->guessed || strcmp(a->etag, etag) != 0 || strlen(sha) != 64)
            continue;
        memcpy(a->sha, sha, sizeof(a->sha));
        a->guessed = false;
    }
}

int s3_base_load(struct s3_work *w, struct err *e)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    s3_tree_free(&w->base);
    w->n_by_id = 0; /* they point into it */
    int r = file_read_at(w->dir, S3_BASE_FILE, BASE_MAX, &text, &n);
    w->fresh = r == -ENOENT;
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = s3_tree_parse(text, n, &w->base);
    /* Without it, every difference is a conflict, which loses nothing. */
    if (r < 0 && r != -EBADMSG)
        return err_sys(e, -r, "cannot read " S3_BASE_FILE);
    learn_fetched(w->dir, &w->base);
    return 0;
}

int s3_base_save(const struct s3_work *w, struct err *e)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    AUTO_FREE char *text = s3_plan_results(&w->plan, &t) < 0 ? NULL : s3_tree_dump(&t, true);
    int r = text ? file_replace_at(w->dir, S3_BASE_FILE, text, strlen(text), 0600, true) : -ENOMEM;
    if (r < 0)
        return err_sys(e, -r, "cannot write " S3_BASE_FILE);
    (void)unlinkat(w->dir, S3_NEXT_FILE, 0);
    bool names = later_get(w->data, (char[LATER_SIZE]){0}), later = names;
    for (size_t i = 0; i < t.n; i++) {
        later |= t.v[i].later[0];
        names |= t.v[i].later[0] && t.v[i].kind == S3_KIND_DIR;
    }
    if (later && !names)
        (void)file_replace_at(w->dir, S3_LATER_FILE, "", 0, 0600, false);
    if (!later) {
        (void)unlinkat(w->dir, S3_LATER_FILE, 0);
        (void)unlinkat(w->dir, S3_FETCHED_FILE, 0); /* nothing is guessed any more */
    }
    return 0;
}

/* What is fetched later is not recorded: it does not count without base. */
static bool is_pulled(struct s3_work *w, const struct s3_step *s)
{
    return s->action == S3_DELETE_LOCAL || s->action == S3_CONFLICT ||
           (s->action == S3_DOWNLOAD && !(atomic_load(&w->later) && s3_can_wait(s)));
}

int s3_base_foresee(struct s3_work *w, bool push, struct err *e)
{
    AUTO_S3_TREE struct s3_tree t = {0}; /* what goes is in its list */
    int r = 0;
    if (push)
        memcpy(t.push, w->remote.manifest.push, sizeof(t.push));
    for (size_t i = 0; r == 0 && i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        const struct s3_entry *a = !push ? s->remote : s->result.path ? &s->result : NULL;
        if (s->ignored || s3_entry_same(a, s->base) || (!push && !is_pulled(w, s)))
            continue;
        if (!a)
            r = strlist_printf(&t.pending, S3_NO_MARK " %s", s->path);
        else if (!s3_tree_add(&t, s->path, a))
            r = -ENOMEM;
    }
    if (r == 0 && !push && t.n + t.pending.n == 0)
        return 0;
    AUTO_FREE char *text = r < 0 ? NULL : s3_tree_dump(&t, true);
    r = text ? file_replace_at(w->dir, S3_NEXT_FILE, text, strlen(text), 0600, true) : -ENOMEM;
    return r < 0 ? err_sys(e, -r, "cannot write " S3_NEXT_FILE) : 0;
}

bool s3_base_is_saved(const struct s3_work *w)
{
    for (size_t i = 0; i < w->plan.n; i++) {
        const struct s3_entry *a = &w->plan.v[i].result, *b = w->plan.v[i].base;
        if (w->plan.v[i].ignored || !a->path || !b) {
            if ((a->path && !w->plan.v[i].ignored) || b)
                return false;
            continue;
        }
        if (a->ino != b->ino || a->ctime_ns != b->ctime_ns || a->mtime_ns != b->mtime_ns ||
            a->size != b->size || a->kind != b->kind || a->mode != b->mode ||
            a->guessed != b->guessed || strcmp(a->sha, b->sha) != 0 ||
            strcmp(a->etag, b->etag) != 0 || strcmp(a->later, b->later) != 0)
            return false;
    }
    return !w->fresh;
}

/* Whether that side has what a pull or push was to make of it. */
static bool is_done(const struct s3_tree *side, const struct s3_tree *next, const char *path)
{
    const struct s3_entry *a = s3_tree_find(next, path), *is = s3_tree_find(side, path);
    return a ? s3_entry_same(is, a) : !is && s3_pending_find(&next->pending, path);
}

/* If a pull has died, or a push after its manifest, and there has been no other manifest since:
 * changes base as that was to do, where the side that it changed is so. 1: it did. As long as
 * the first pull has not finished, there is no base, since files are still missing here. */
static int apply_next(struct s3_work *w, const struct s3_tree *side)
{
    AUTO_S3_TREE struct s3_tree next = {0}, t = {0};
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    const bool pull = side == &w->local;
    const char *push = pull ? "" : w->remote.manifest.push;
    if ((pull ? w->fresh : !*push) || file_read_at(w->dir, S3_NEXT_FILE, BASE_MAX, &text, &n) < 0 ||
        s3_tree_parse(text, n, &next) < 0 || strcmp(next.push, push) != 0)
        return 0;
    s3_pending_sort(&next.pending);
    int r = 0;
    for (size_t i = 0; r == 0 && i < w->base.n; i++)
        if (!is_done(side, &next, w->base.v[i].path) &&
            !s3_tree_add(&t, w->base.v[i].path, &w->base.v[i]))
            r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < next.n; i++)
        if (is_done(side, &next, next.v[i].path) && !s3_tree_add(&t, next.v[i].path, &next.v[i]))
            r = -ENOMEM;
    if (r < 0)
        return r;
    s3_tree_sort(&t);
    s3_tree_free(&w->base);
    w->base = t;
    w->fresh = false;
    t = (struct s3_tree){0};
    return 1;
}

static int caught_up(struct s3_work *w, int r, struct err *e)
{
    w->caught_up = w->caught_up || r == 1;
    return r < 0 || (r == 1 && s3_index_base(w) < 0) ? err_oom(e) : 0;
}

int s3_base_catch_up(struct s3_work *w, bool pulls, struct err *e)
{
    int r = caught_up(w, apply_next(w, pulls ? &w->local : &w->remote.tree), e);
    if (r == 0 && !pulls)
        r = caught_up(w, s3_forget_gone(&w->remote, &w->local, &w->base), e);
    return r;
}
