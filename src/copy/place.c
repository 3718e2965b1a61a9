#include "copy/place.h"

#include "util/cleanup.h"

#include <errno.h>
#include <string.h>

/* Takes slashes and "/." off the end; n is the length so far. */
static size_t strip(struct copy_path *p, size_t n)
{
    for (;;) {
        if (n > 1 && p->path[n - 1] == '/') {
            n--;
            p->slash = true;
        } else if (n > 1 && p->path[n - 1] == '.' && p->path[n - 2] == '/') {
            n = n > 2 ? n - 2 : 1;
            p->slash = p->contents = true;
        } else {
            p->path[n] = '\0';
            return n;
        }
    }
}

int copy_path_parse(struct copy_path *p, const char *text, struct err *e)
{
    size_t n = strlen(text);
    *p = (struct copy_path){0};
    if (n == 0)
        return err_set(e, ENOENT, "the path is empty");
    if (n > PROTO_PATH_MAX)
        return err_set(e, ENAMETOOLONG, "the path '%.64s...' is too long", text);
    memcpy(p->path, text, n + 1);
    n = strip(p, n);
    const char *slash = strrchr(p->path, '/');
    const char *name = slash ? slash + 1 : p->path;
    size_t dir = slash ? (size_t)(slash - p->path) : 0;
    memcpy(p->parent, slash ? p->path : ".", slash ? MAX(dir, (size_t)1) : 1);
    if (strlen(name) > PROTO_NAME_MAX)
        return err_sys(e, ENAMETOOLONG, "%.64s...", name);
    if (file_name_ok(name)) {
        memcpy(p->name, name, strlen(name) + 1);
    } else { /* ".", "..", "/": a directory without a usable name */
        p->slash = p->contents = true;
    }
    return 0;
}

int copy_place(const struct copy_facts *f, struct err *e)
{
    const struct copy_path *src = f->src, *dst = f->dst;
    if (src->slash && !f->src_is_dir)
        return err_set(e, ENOTDIR, "'%s' is not a directory", src->path);
    if (f->dst_is_dir)
        return f->src_is_dir && src->contents ? PLACE_MERGE : PLACE_IN;
    if (f->dst_exists && f->src_is_dir)
        return err_set(e, ENOTDIR, "cannot copy a directory over '%s', which is a file", dst->path);
    if (f->dst_exists && dst->slash)
        return err_set(e, ENOTDIR, "'%s' is not a directory", dst->path);
    if (!f->dst_exists && dst->slash && !f->src_is_dir)
        return err_hinted(e, err_set(e, ENOENT, "there is no directory '%s'", dst->path),
                          "leave out the trailing slash to give the copy that name");
    if (!*dst->name)
        return err_set(e, ENOENT, "there is no directory '%s'", dst->path);
    return PLACE_AS;
}
