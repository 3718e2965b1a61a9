/* Paths on the host, and buckets, that a sandbox may use. */
#include "policy/impl.h"

#include "proto/proto.h"
#include "s3/config.h"
#include "util/cleanup.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- paths ------------------------------------------------------------------------------------ */

/* Whether the path, or a directory above it, matches. */
static bool path_within(const char *pattern, size_t n, const char *path)
{
    char want[BOOK_ITEM_TEXT_MAX + 1], part[PATH_MAX];
    (void)snprintf(want, sizeof(want), "%.*s", (int)n, pattern);
    if ((size_t)snprintf(part, sizeof(part), "%s", path) >= sizeof(part))
        return false;
    if (strcmp(want, "/") == 0)
        return true;
    while (part[0]) {
        if (fnmatch(want, part, FNM_NOESCAPE | FNM_PATHNAME) == 0)
            return true;
        char *slash = strrchr(part, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return false;
}

static bool may_use(const struct setting *s, const char *path, bool write)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *text = s->item[i].text;
        size_t n = strlen(text);
        bool ro = n > 3 && strcmp(text + n - 3, ":ro") == 0;
        if (ro || (n > 3 && strcmp(text + n - 3, ":rw") == 0))
            n -= 3;
        if (!(write && ro) && path_within(text, n, path))
            return true;
    }
    return false;
}

static void check_path(struct judge *j, const struct layer *l, const struct setting *s,
                       const char *path, bool write)
{
    char asked[512];
    (void)snprintf(asked, sizeof(asked), "%.400s%s", path, write ? "" : ":ro");
    (may_use(s, path, write) ? judge_allow : judge_refuse)(j, l, s, asked);
}

void check_paths(struct judge *j, const struct layer *l, const struct setting *s)
{
    const struct sandbox_spec *spec = j->spec;
    const char *key = s->field->key;
    if (strcmp(key, "volumes") == 0) {
        for (size_t i = 0; i < spec->n_mounts; i++)
            if (spec->mounts[i].kind == MOUNT_BIND || spec->mounts[i].kind == MOUNT_DISK)
                check_path(j, l, s, spec->mounts[i].source,
                           !(spec->mounts[i].options & PROTO_MOUNT_RO));
        if (spec->root_disk_file)
            check_path(j, l, s, spec->root_disk_file, true);
    } else if (strcmp(key, "workspaces") == 0) {
        if (spec->workspace.path)
            check_path(j, l, s, spec->workspace.path, true);
    } else if (strcmp(key, "copies") == 0) {
        for (size_t i = 0; i < spec->patches.n; i++)
            if (spec->patches.v[i].source)
                check_path(j, l, s, spec->patches.v[i].source, false);
        for (size_t i = 0; i < spec->script_files.n; i++)
            check_path(j, l, s, spec->script_files.v[i], false);
    } else {
        for (size_t i = 0; i < spec->vsocks.n; i++)
            check_path(j, l, s, spec->vsocks.v[i].path, true);
    }
}

/* --- buckets ---------------------------------------------------------------------------------- */

int valid_bucket(const char *text, struct err *e)
{
    const char *at = strstr(text, "://");
    size_t n = at ? (size_t)(at - text) : 0;
    bool own = n == 2 && strncmp(text, "s3", n) == 0;
    bool web = (n == 4 || n == 5) && strncmp(text, "https", n) == 0;
    const char *host = at ? at + 3 : "", *bucket = own ? host : strchr(host, '/');
    if (bucket && !own)
        bucket++;
    bool whole = bucket && *bucket && *bucket != '/' && !strstr(bucket, "//") &&
                 text[strlen(text) - 1] != '/';
    return (own || web) && *host != '/' && whole
               ? 0
               : err_set(e, EINVAL,
                         "'%s' is not a bucket: expected s3://BUCKET[/PREFIX], or "
                         "https://HOST/BUCKET[/PREFIX] for one that is not at AWS",
                         text);
}

/* A name alone does not tell whose bucket it is: a bucket on another server is spelled with the
 * server. */
static char *bucket_text(const struct s3_config *c)
{
    char *text = NULL;
    size_t n = strlen(c->prefix ? c->prefix : "");
    if (n && c->prefix[n - 1] == '/')
        n--;
    if (asprintf(&text, "%s/%s%s%.*s", c->endpoint ? c->endpoint : "s3:/", c->bucket, n ? "/" : "",
                 (int)n, c->prefix ? c->prefix : "") < 0)
        return NULL;
    return text;
}

static void check_bucket(struct judge *j, const struct layer *l, const struct setting *s,
                         const char *text)
{
    bool ok = false;
    for (size_t i = 0; i < s->n; i++)
        ok = ok || path_within(s->item[i].text, strlen(s->item[i].text), text);
    (ok ? judge_allow : judge_refuse)(j, l, s, text);
}

/* A path that cannot be resolved is refused, as it could lead anywhere. One that does not exist yet
 * counts, too. */
void check_buckets(struct judge *j, const struct layer *l, const struct setting *s)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    const char *name = j->spec->workspace.name;
    AUTO_CLOSE int dir = name ? workspace_dir_open(j->store, name, NULL) : -1;
    int r = dir < 0 ? -ENOENT : s3_config_load(dir, &c, NULL);
    if (r == -ENOENT && j->spec->workspace.url) {
        r = s3_config_url(&c, j->spec->workspace.url, NULL);
        r = r < 0 ? r : s3_config_settle(&c, NULL);
    }
    AUTO_FREE char *text = r == 0 ? bucket_text(&c) : NULL;
    if (r == 0 && !text)
        j->failed = true;
    else if (r == 0)
        check_bucket(j, l, s, text);
    else if (r != -ENOENT)
        judge_refuse(j, l, s, "a bucket that cannot be read");
}

/* --- outside of a spec ------------------------------------------------------------------------ */

typedef void (*place_fn)(struct judge *j, const struct layer *l, const struct setting *s,
                         const char *text, bool write);

/* Applies every setting with that name in these layers. */
static int hold_place(const struct store *s, const struct chosen *c, struct sandbox_spec *spec,
                      const char *section, const char *key, place_fn fn, const char *text,
                      bool write, struct err *e)
{
    AUTO_VERDICT struct verdict v = {0};
    struct judge j = {.store = s, .why = HOLD_COPY, .spec = spec, .out = &v};
    for (size_t i = 0; i < c->n; i++) {
        const struct setting *x = layer_get(c->v[i], section, key);
        if (x)
            fn(&j, c->v[i], x, text, write);
    }
    if (j.failed)
        return err_oom(e);
    return v.refused ? verdict_refuse(s, HOLD_COPY, spec->name, &v, e) : 0;
}

/* Resolves links, also for a path that does not exist yet. */
static char *real_place(const char *path)
{
    char *real = realpath(path, NULL);
    if (real || errno != ENOENT)
        return real;
    AUTO_FREE char *copy = strdup(path);
    char *slash = copy ? strrchr(copy, '/') : NULL;
    const char *name = slash ? slash + 1 : path;
    if (!copy || !*name || strcmp(name, "..") == 0)
        return NULL;
    if (slash)
        *slash = '\0';
    AUTO_FREE char *parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (!parent || asprintf(&real, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, name) < 0)
        return NULL;
    return real;
}

int policy_hold_copy(const struct store *s, struct sandbox_spec *spec, const char *path, bool write,
                     struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    struct chosen c = {0};
    const struct book_file *none = NULL;
    int r = rulebook_load_for(s, HOLD_COPY, spec->name, &b, e);
    if (r < 0 || !b)
        return r;
    AUTO_FREE char *real = real_place(path);
    if (!real)
        return err_sys(e, errno, "cannot tell where %s is", path);
    if (rulebook_choose(b, spec, &c, &none) < 0) {
        AUTO_VERDICT struct verdict v = {0};
        struct judge j = {.out = &v};
        judge_none(&j, none);
        return j.failed ? err_oom(e) : verdict_refuse(s, HOLD_COPY, spec->name, &v, e);
    }
    return hold_place(s, &c, spec, "paths", "copies", check_path, real, write, e);
}

static void hold_bucket(struct judge *j, const struct layer *l, const struct setting *s,
                        const char *text, bool write)
{
    check_bucket(j, l, s, text);
}

/* Checks without a sandbox: `none` only has what is asked for, and its owner. */
static int hold_apart(const struct store *s, const struct rulebook *b, struct sandbox_spec *none,
                      const char *section, const char *key, place_fn fn, const char *text,
                      bool write, struct err *e)
{
    struct chosen c = {0};
    for (size_t i = 0; i < b->n; i++)
        c.v[c.n++] = &b->file[i].all;
    return hold_place(s, &c, none, section, key, fn, text, write, e);
}

int policy_hold_bucket(const struct store *s, const char *workspace, const struct s3_config *at,
                       struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    int r = rulebook_load_for(s, HOLD_COPY, workspace, &b, e);
    if (r < 0 || !b)
        return r;
    AUTO_FREE char *text = bucket_text(at);
    struct sandbox_spec none = {.name = (char *)workspace};
    return text ? hold_apart(s, b, &none, "", "buckets", hold_bucket, text, true, e) : err_oom(e);
}

int policy_hold_workspace(const struct store *s, const char *name, struct err *e)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    AUTO_CLOSE int dir = workspace_dir_open(s, name, NULL);
    return dir >= 0 && s3_config_load(dir, &c, NULL) == 0 ? policy_hold_bucket(s, name, &c, e) : 0;
}

int policy_hold_transfer(const struct store *s, const char *workspace, const char *path, bool write,
                         struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    int r = rulebook_load_for(s, HOLD_COPY, workspace, &b, e);
    if (r < 0 || !b)
        return r;
    AUTO_FREE char *real = real_place(path);
    if (!real)
        return err_sys(e, errno, "cannot tell where %s is", path);
    struct sandbox_spec none = {.name = (char *)workspace};
    return hold_apart(s, b, &none, "paths", "copies", check_path, real, write, e);
}

static void hold_size(struct judge *j, const struct layer *l, const struct setting *s,
                      const char *text, bool write)
{
    check_disk_volumes(j, l, s);
}

int policy_hold_volume(const struct store *s, const char *volume, uint64_t size, struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    struct spec_mount m = {.kind = MOUNT_NAMED, .source = (char *)volume, .size = size};
    struct sandbox_spec none = {.name = (char *)volume, .mounts = &m, .n_mounts = 1};
    int r = rulebook_load_for(s, HOLD_COPY, volume, &b, e);
    return r < 0 || !b ? r : hold_apart(s, b, &none, "caps", "disk", hold_size, "", true, e);
}
