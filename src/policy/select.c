/* Selects the policy settings that apply to a sandbox. */
#include "policy/impl.h"

#include "image/image.h"
#include "image/oci/reference.h"
#include "util/parse.h"

#include <fnmatch.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- who -------------------------------------------------------------------------------------- */

static bool is_user(const struct setting *s)
{
    for (size_t i = 0; i < s->n; i++) {
        uint64_t uid;
        const struct passwd *pw = NULL;
        if (parse_u64(s->item[i].text, &uid) < 0) {
            pw = getpwnam(s->item[i].text);
            if (!pw)
                continue;
            uid = pw->pw_uid;
        }
        if (uid == getuid())
            return true;
    }
    return false;
}

static bool in_group(gid_t gid)
{
    int n = getgroups(0, NULL);
    AUTO_FREE gid_t *list = n > 0 ? calloc((size_t)n, sizeof(*list)) : NULL;
    if (gid == getgid())
        return true;
    n = list ? getgroups(n, list) : 0;
    for (int i = 0; i < n; i++)
        if (list[i] == gid)
            return true;
    return false;
}

static bool is_member(const struct setting *s)
{
    for (size_t i = 0; i < s->n; i++) {
        uint64_t gid;
        if (parse_u64(s->item[i].text, &gid) < 0) {
            const struct group *g = getgrnam(s->item[i].text);
            if (!g)
                continue;
            gid = g->gr_gid;
        }
        if (gid <= UINT32_MAX && in_group((gid_t)gid))
            return true;
    }
    return false;
}

/* --- what ------------------------------------------------------------------------------------- */

bool label_is_own(const struct sandbox_spec *spec, const char *label)
{
    size_t n = strcspn(label, "=");
    for (size_t i = 0; i < spec->image_labels.n; i++)
        if (strlen(spec->image_labels.v[i]) == n && strncmp(spec->image_labels.v[i], label, n) == 0)
            return false;
    return true;
}

/* KEY matches any value; KEY=VALUE has wildcards. */
static bool has_label(const struct sandbox_spec *spec, const char *want)
{
    for (size_t i = 0; i < spec->labels.n; i++) {
        const char *l = spec->labels.v[i];
        size_t n = strcspn(l, "=");
        if (!label_is_own(spec, l))
            continue;
        if (strchr(want, '=') ? fnmatch(want, l, FNM_NOESCAPE) == 0
                              : strlen(want) == n && strncmp(want, l, n) == 0)
            return true;
    }
    return false;
}

static bool any_label(const struct setting *s, const struct sandbox_spec *spec)
{
    for (size_t i = 0; i < s->n; i++)
        if (has_label(spec, s->item[i].text))
            return true;
    return false;
}

/* With neither tag nor digest. */
static void cut_version(char *s)
{
    s[strcspn(s, "@")] = '\0';
    char *slash = strrchr(s, '/');
    char *colon = strchr(slash ? slash : s, ':');
    if (colon)
        *colon = '\0';
}

/* A reference in either of its spellings; a pattern without tag and digest is for all of them.
 * Docker Hub's msb/base is not the built-in image, and must be spelled in full. */
static bool reference_matches(const struct setting *s, const char *image, bool named_here)
{
    AUTO_REFERENCE struct reference ref = {0};
    if (named_here) { /* then it can be anything */
        bool any = false;
        for (size_t i = 0; i < s->n; i++)
            any = any || strcmp(s->item[i].text, "*") == 0;
        return any;
    }
    if (reference_parse(image, &ref, NULL) < 0)
        return false;
    AUTO_FREE char *full = reference_full(&ref), *familiar = reference_familiar(&ref),
                   *bare = familiar ? strdup(familiar) : NULL;
    if (!full || !bare)
        return false;
    cut_version(bare);
    bool ours = strcmp(bare, IMAGE_BASE_REF) == 0;
    if (item_matches(s, full) || (!ours && (item_matches(s, familiar) || item_matches(s, bare))))
        return true;
    cut_version(full);
    return item_matches(s, full);
}

bool image_matches(const struct setting *s, const struct sandbox_spec *spec)
{
    if (strcmp(spec->image, IMAGE_BASE_REF) == 0)
        return item_matches(s, spec->image);
    if (!image_is_local(spec->image))
        return reference_matches(s, spec->image, spec->image_named_here);
    AUTO_FREE char *path = realpath(spec->image, NULL);
    for (size_t i = 0; path && i < s->n; i++) /* only a path can name a path */
        if ((s->item[i].text[0] == '/' || strcmp(s->item[i].text, "*") == 0) &&
            fnmatch(s->item[i].text, path, FNM_NOESCAPE) == 0)
            return true;
    return false;
}

/* --- rule sets -------------------------------------------------------------------------------- */

bool layer_matches(const struct layer *l, const struct sandbox_spec *spec)
{
    const struct setting *labels = layer_get(l, "match", "labels"),
                         *images = layer_get(l, "match", "images"),
                         *users = layer_get(l, "match", "users"),
                         *groups = layer_get(l, "match", "groups");
    return (!labels || any_label(labels, spec)) && (!images || image_matches(images, spec)) &&
           (!users || is_user(users)) && (!groups || is_member(groups));
}

int rulebook_choose(const struct rulebook *b, const struct sandbox_spec *spec, struct chosen *ret,
                    const struct book_file **none)
{
    ret->n = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct book_file *f = &b->file[i];
        size_t k = 0;
        ret->v[ret->n++] = &f->all;
        while (k < f->n_rules && !layer_matches(&f->rule[k], spec))
            k++;
        if (f->rules_line && k == f->n_rules) {
            *none = f;
            return -1;
        }
        if (f->rules_line)
            ret->v[ret->n++] = &f->rule[k];
    }
    return 0;
}
