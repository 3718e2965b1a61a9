#include "s3/plan.h"

#include <errno.h>
#include <string.h>

static enum s3_action decide(const struct s3_step *s)
{
    bool here = !s3_entry_same(s->local, s->base), there = !s3_entry_same(s->remote, s->base);
    if (!here && !there)
        return S3_KEEP;
    if (!there)
        return s->local ? S3_UPLOAD : S3_DELETE_REMOTE;
    if (!here)
        return s->remote ? S3_DOWNLOAD : S3_DELETE_LOCAL;
    if (!s->local && !s->remote)
        return S3_FORGET;
    /* A change takes precedence over a removal. */
    if (!s->local || !s->remote)
        return s->local ? S3_UPLOAD : S3_DOWNLOAD;
    if (s3_entry_same(s->local, s->remote))
        return S3_KEEP;
    bool dirs = s->local->kind == S3_KIND_DIR && s->remote->kind == S3_KIND_DIR;
    return dirs ? S3_UPLOAD : S3_CONFLICT;
}

static const char *first(const char *a, const char *b)
{
    return !a ? b : !b ? a : strcmp(a, b) <= 0 ? a : b;
}

struct cursor {
    const struct s3_tree *t;
    size_t i;
};

static const char *peek(const struct cursor *c)
{
    return c->i < c->t->n ? c->t->v[c->i].path : NULL;
}

static const struct s3_entry *take(struct cursor *c, const char *path)
{
    const char *at = peek(c);
    return at && strcmp(at, path) == 0 ? &c->t->v[c->i++] : NULL;
}

int s3_plan_make(const struct s3_tree *base, const struct s3_tree *local,
                 const struct s3_tree *remote, struct ignore *ignore, struct s3_plan *ret,
                 struct err *e)
{
    struct cursor b = {.t = base}, l = {.t = local}, r = {.t = remote};
    struct s3_plan p = {.v = calloc(base->n + local->n + remote->n + 1, sizeof(*p.v))};
    if (!p.v)
        return err_oom(e);
    for (const char *path; (path = first(first(peek(&b), peek(&l)), peek(&r)));) {
        struct s3_step *s = &p.v[p.n++];
        *s = (struct s3_step){.path = path,
                              .base = take(&b, path),
                              .local = take(&l, path),
                              .remote = take(&r, path)};
        s->ignored =
            !s->local && s->remote && ignore_covers(ignore, path, s->remote->kind == S3_KIND_DIR);
        s->action = s->ignored ? S3_KEEP : decide(s);
        p.count[s->action]++;
        const struct s3_entry *stays = s->action == S3_KEEP ? s->remote : s->base;
        if (stays) {
            s->result = *stays;
            s->result.staged = NULL;
            if (stays->staged)
                s->result.etag[0] = '\0'; /* not of this content */
            if (s->action == S3_KEEP && s->local) {
                s->result.ino = s->local->ino;
                s->result.ctime_ns = s->local->ctime_ns;
                s->result.mtime_ns = s->local->mtime_ns;
                memcpy(s->result.later, s->local->later, sizeof(s->result.later));
            }
        }
    }
    int x = ignore_check(ignore, e);
    if (x < 0)
        free(p.v);
    else
        *ret = p;
    return x;
}

int s3_plan_results(const struct s3_plan *p, struct s3_tree *to)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct s3_step *s = &p->v[i];
        if (s->result.path && !s->ignored && !s3_tree_add(to, s->path, &s->result))
            return -ENOMEM;
    }
    s3_tree_sort(to);
    return 0;
}

void s3_plan_free(struct s3_plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->v[i].staged);
    free(p->v);
    *p = (struct s3_plan){0};
}
