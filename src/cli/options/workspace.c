#include "cli/options/workspace.h"

#include "cli/options/mount.h"
#include "s3/config.h"
#include "store/volume.h"
#include "util/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The workspace is created along with the sandbox. */
static int parse_bucket(const char *url, struct spec_workspace *w, struct err *e)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    int r = s3_config_url(&c, url, e);
    if (r == 0)
        r = s3_config_settle(&c, e);
    if (r < 0)
        return r;
    w->name = s3_config_name(&c);
    w->url = strdup(url);
    return w->name && w->url ? 0 : err_oom(e);
}

static int parse_workspace(const char *v, struct spec_workspace *w, struct err *e)
{
    struct stat st;
    if (strncmp(v, "s3://", 5) == 0)
        return parse_bucket(v, w, e);
    if (!*v || !strchr("./~", *v)) {
        int r = workspace_check_name(v, e);
        w->name = r < 0 ? NULL : strdup(v);
        return r == 0 && !w->name ? err_oom(e) : r;
    }
    int r = mount_resolve(v, false, &w->path, e);
    if (r == 0 && (stat(w->path, &st) < 0 || !S_ISDIR(st.st_mode)))
        r = err_set(e, ENOTDIR, "'%s' is not a directory", v);
    return r;
}

/* A snapshot replaces the directory, which a mount does not allow. */
static int check_place(const struct spec_workspace *w, struct err *e)
{
    struct statx st;
    if (w->mode != WORKSPACE_SNAPSHOT || !w->path ||
        statx(AT_FDCWD, w->path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) < 0 ||
        !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return 0;
    (void)err_set(e, EBUSY, "a snapshot cannot be copied back to '%s', which is a mount", w->path);
    err_hint(e, "use --workspace-mode fuse, or a directory in it");
    return -EBUSY;
}

/* A volume, named after the workspace or the sandbox. */
static int persist_home(struct sandbox_spec *s, bool named, struct err *e)
{
    char volume[VOLUME_NAME_MAX + 1];
    const char *of = s->workspace.name ? s->workspace.name : named ? s->name : NULL;
    if (!of)
        return err_hinted(
            e, err_set(e, EINVAL, "--persist-home requires a named sandbox or workspace"),
            "use --name NAME or --workspace NAME");
    if ((size_t)snprintf(volume, sizeof(volume), "home-%s", of) >= sizeof(volume))
        return err_set(e, ENAMETOOLONG, "--persist-home: the name '%s' is too long", of);
    struct spec_mount m = {.kind = MOUNT_NAMED, .guest = (char *)"/root", .source = volume};
    return spec_add_mount(s, &m, e);
}

int workspace_options_check(const struct args *a, struct err *e)
{
    const char *mode = args_get(a, "workspace-mode");
    bool max = args_has(a, "workspace-max"), sync = args_has(a, "workspace-sync");
    if (!args_has(a, "workspace") && (mode || max || sync))
        return err_set(e, EINVAL, "--workspace-%s requires --workspace",
                       mode  ? "mode"
                       : max ? "max"
                             : "sync");
    if (sync && mode && strcmp(mode, "snapshot") == 0)
        return err_set(e, EINVAL, "--workspace-sync requires --workspace-mode fuse");
    return 0;
}

int workspace_options(const struct args *a, struct sandbox_spec *s, bool named, struct err *e)
{
    const char *v = args_get(a, "workspace"), *mode = args_get(a, "workspace-mode");
    const char *max = args_get(a, "workspace-max");
    int r = v ? parse_workspace(v, &s->workspace, e) : 0;
    if (r < 0)
        return err_wrap(e, r, "--workspace");
    if (mode && strcmp(mode, "snapshot") == 0)
        s->workspace.mode = WORKSPACE_SNAPSHOT;
    r = check_place(&s->workspace, e);
    if (r < 0)
        return r;
    const char *sync = args_get(a, "workspace-sync");
    if (sync)
        (void)workspace_sync_parse(sync, &s->workspace.sync);
    s->workspace.limited = max != NULL;
    if (max && parse_size(max, MIB, &s->workspace.max) < 0)
        return args_bad_value(a, "workspace-max", max, PARSE_SIZE_EXAMPLES, e);
    return args_has(a, "persist-home") ? persist_home(s, named, e) : 0;
}
