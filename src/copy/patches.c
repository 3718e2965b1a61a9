#include "copy/patches.h"

#include "copy/copy.h"

static int ask(struct files *f, uint32_t op, const char *path, uint32_t flags, struct err *e)
{
    static struct file_req q;
    int r = file_req_init(&q, op, path, flags);
    return r < 0 ? err_sys(e, -r, "%.256s", path) : files_ask(f, &q, NULL, e);
}

/* A file gets the requested name, or goes into a directory with that name; a directory's content
 * goes into the requested one. */
static int apply_copy(const struct spec_patch *p, struct files *f, struct err *e)
{
    static struct copy_end from, to;
    struct tree_progress progress = {0};
    from = (struct copy_end){.kind = COPY_HOST};
    to = (struct copy_end){.kind = COPY_GUEST, .files = f};
    int r = copy_path_parse(&from.path, p->source, e);
    if (r == 0)
        r = copy_path_parse(&to.path, p->path, e);
    if (r < 0)
        return r;
    bool dir = p->kind == PATCH_COPY_DIR;
    if (dir)
        from.path.slash = from.path.contents = true;
    r = ask(f, FILE_OP_MKDIR, dir || to.path.slash ? to.path.path : to.path.parent, FILE_PARENTS,
            e);
    if (r == 0)
        r = copy_run(&from, &to, &(struct copy_options){.follow = true}, &progress, e);
    return r;
}

static int apply(const struct spec_patch *p, struct files *f, struct err *e)
{
    static const char *const options[PATCH_KINDS] = {
        [PATCH_COPY_FILE] = "--copy",
        [PATCH_COPY_DIR] = "--copy",
        [PATCH_MKDIR] = "--mkdir",
        [PATCH_REMOVE] = "--rm",
    };
    int r;
    if (p->kind == PATCH_MKDIR)
        r = ask(f, FILE_OP_MKDIR, p->path, FILE_PARENTS, e);
    else if (p->kind == PATCH_REMOVE)
        r = ask(f, FILE_OP_REMOVE, p->path, FILE_RECURSIVE | FILE_FORCE, e);
    else
        r = apply_copy(p, f, e);
    return r < 0 ? err_wrap(e, r, "%s %s%s%s", options[p->kind], p->source ? p->source : "",
                            p->source ? ":" : "", p->path)
                 : 0;
}

int patches_apply(const struct spec_patches *l, int sock, const char *name, struct err *e)
{
    struct files f;
    int r = files_open(&f, sock, name, "0", "/", e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < l->n; i++)
        r = apply(&l->v[i], &f, e);
    files_close(&f);
    return r;
}
