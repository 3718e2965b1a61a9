#include "spec/patch.h"

#include "spec/read.h"
#include "spec/spec.h"
#include "util/json.h"

#include <stdio.h>

static const char *const kinds[PATCH_KINDS] = {
    [PATCH_COPY_FILE] = "CopyFile",
    [PATCH_COPY_DIR] = "CopyDir",
    [PATCH_MKDIR] = "Mkdir",
    [PATCH_REMOVE] = "Remove",
};

static bool is_copy(enum patch_kind kind)
{
    return kind == PATCH_COPY_FILE || kind == PATCH_COPY_DIR;
}

void spec_patches_free(struct spec_patches *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].source);
        free(l->v[i].path);
    }
    free(l->v);
    *l = (struct spec_patches){0};
}

/* Only the destination of a file keeps a slash at its end, which means that it is a directory. */
static char *clean_path(enum patch_kind kind, const char *path)
{
    size_t n = strlen(path);
    bool slash = kind == PATCH_COPY_FILE && n > 1 && path[n - 1] == '/';
    AUTO_FREE char *clean = spec_guest_path(path);
    char *out = NULL;
    if (!clean || !slash || strcmp(clean, "/") == 0)
        return steal_ptr(&clean);
    return asprintf(&out, "%s/", clean) < 0 ? NULL : out;
}

int spec_patches_add(struct spec_patches *l, enum patch_kind kind, const char *source,
                     const char *path, struct err *e)
{
    AUTO_FREE char *clean = clean_path(kind, path);
    if (!clean)
        return err_set(e, EINVAL, "'%s' must be an absolute path in the sandbox, without '..'",
                       path);
    if (kind == PATCH_REMOVE && strcmp(clean, "/") == 0)
        return err_set(e, EINVAL, "'/' cannot be removed");
    if (is_copy(kind) && (!source || source[0] != '/'))
        return err_set(e, EINVAL, "the source of a copy must be an absolute path");
    if (l->n == SPEC_PATCHES_MAX)
        return err_set(e, E2BIG, "more than %d copies, directories and removals", SPEC_PATCHES_MAX);
    struct spec_patch *v = reallocarray(l->v, l->n + 1, sizeof(*v));
    if (v)
        l->v = v;
    AUTO_FREE char *from = source ? strdup(source) : NULL;
    if (!v || (source && !from))
        return err_oom(e);
    v[l->n++] =
        (struct spec_patch){.kind = kind, .source = steal_ptr(&from), .path = steal_ptr(&clean)};
    return 0;
}

json_t *spec_patches_to_json(const struct spec_patches *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const struct spec_patch *p = &l->v[i];
        json_add(&a, is_copy(p->kind)
                         ? json_pack("{s:s, s:s, s:s}", "type", kinds[p->kind], "src", p->source,
                                     "dst", p->path)
                         : json_pack("{s:s, s:s}", "type", kinds[p->kind], "path", p->path));
    }
    return a;
}

static int read_one(struct spec_patches *l, const json_t *o, struct err *e)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    size_t kind = 0;
    while (kind < PATCH_KINDS && (!type || strcmp(type, kinds[kind]) != 0))
        kind++;
    if (kind == PATCH_KINDS)
        return bad(e, "patches");
    bool copy = is_copy((enum patch_kind)kind);
    const char *path = json_string_value(json_object_get(o, copy ? "dst" : "path"));
    const char *src = json_string_value(json_object_get(o, "src"));
    if (!path)
        return bad(e, "patches");
    return spec_patches_add(l, (enum patch_kind)kind, copy ? src : NULL, path, e);
}

int spec_patches_from_json(struct spec_patches *l, const json_t *j, struct err *e)
{
    if (j && !json_is_array(j))
        return bad(e, "patches");
    int r = 0;
    for (size_t i = 0; r == 0 && j && i < json_array_size(j); i++)
        r = read_one(l, json_array_get(j, i), e);
    return r;
}
