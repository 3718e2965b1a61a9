#include "mcp/limits.h"

#include "image/oci/reference.h"

#include <errno.h>
#include <string.h>

int limits_used(const struct mcp_config *c, bool (*skip)(void *ctx, const char *name), void *ctx,
                struct mcp_share *ret, struct err *e)
{
    char label[64];
    char *own[] = {label, NULL};
    struct sandbox *all;
    size_t n;
    mcp_label(c, label, sizeof(label));
    int r = store_list(c->store, &all, &n, e);
    if (r < 0)
        return r;
    *ret = (struct mcp_share){0};
    for (size_t i = 0; i < n; i++) {
        const struct sandbox_spec *s = &all[i].spec;
        if (!spec_matches_labels(s, &(struct strlist){.v = own, .n = 1}) || skip(ctx, s->name))
            continue;
        ret->sandboxes++;
        ret->memory_mib += s->memory_mib;
        ret->cpus += s->cpus;
    }
    sandbox_list_free(all, n);
    return 0;
}

int limits_fit(const struct mcp_config *c, const struct mcp_share *used,
               const struct mcp_share *more, struct err *e)
{
    const struct mcp_share *most = &c->most;
    if (used->sandboxes + more->sandboxes > most->sandboxes)
        return err_set(e, EDQUOT,
                       "there are %u sandboxes, and this server allows %u at a time "
                       "(--max-sandboxes): remove one with 'remove'",
                       used->sandboxes, most->sandboxes);
    if (used->memory_mib + more->memory_mib > most->memory_mib)
        return err_set(e, EDQUOT,
                       "%llu MiB of memory is too much: this server allows %llu MiB for all "
                       "sandboxes (--max-memory), of which %llu are taken",
                       (unsigned long long)more->memory_mib, (unsigned long long)most->memory_mib,
                       (unsigned long long)used->memory_mib);
    if (used->cpus + more->cpus > most->cpus)
        return err_set(
            e, EDQUOT,
            "%g CPUs are too many: this server allows %g for all sandboxes (--max-cpus), "
            "of which %g are taken",
            more->cpus, most->cpus, used->cpus);
    return 0;
}

bool limits_may_pull(const struct mcp_config *c, const char *image)
{
    AUTO_REFERENCE struct reference ref = {0};
    if (c->image && strcmp(image, c->image) == 0)
        return true; /* the user named it */
    return reference_parse(image, &ref, NULL) == 0 && c->registries &&
           strlist_has(c->registries, ref.registry);
}

int limits_check_registry(const char *text, struct err *e)
{
    char image[REFERENCE_MAX + 1];
    AUTO_REFERENCE struct reference ref = {0};
    int n = snprintf(image, sizeof(image), "%s/x", text);
    if (n < (int)sizeof(image) && reference_parse(image, &ref, NULL) == 0 &&
        strcmp(ref.registry, text) == 0)
        return 0;
    return err_hinted(e, err_set(e, EINVAL, "invalid registry '%.200s'", text),
                      "expected HOST[:PORT] as in an image's name, such as docker.io, ghcr.io or "
                      "localhost:5000");
}
