/* The workspace of a sandbox: where it is, and how it gets into the guest. */
#include "spec/read.h"
#include "spec/spec.h"

#include "util/cleanup.h"
#include "util/text.h"
#include "util/words.h"

static const char *const modes[] = {[WORKSPACE_FUSE] = "fuse", [WORKSPACE_SNAPSHOT] = "snapshot"};

static const char *const syncs[] = {[WORKSPACE_SYNC_STOP] = "stop",
                                    [WORKSPACE_SYNC_CLOSE] = "close",
                                    [WORKSPACE_SYNC_IDLE] = "idle",
                                    [WORKSPACE_SYNC_FSYNC] = "fsync"};

bool workspace_sync_parse(const char *word, enum workspace_sync *ret)
{
    int i = WORD_FIND(syncs, word);
    if (i >= 0)
        *ret = (enum workspace_sync)i;
    return i >= 0;
}

const char *workspace_mode_name(enum workspace_mode m)
{
    return modes[m];
}

bool spec_has_snapshot(const struct sandbox_spec *s)
{
    return (s->workspace.name || s->workspace.path) && s->workspace.mode == WORKSPACE_SNAPSHOT;
}

static bool may_write_workspace(const struct sandbox_spec *s)
{
    for (size_t i = 0; i < s->write_paths.n; i++)
        if (spec_path_within("/workspace", s->write_paths.v[i]))
            return true;
    return s->write_paths.n == 0;
}

static int check_snapshot(const struct sandbox_spec *s, struct err *e)
{
    if (s->root_disk == ROOT_DISK_TMPFS)
        return err_set(
            e, EINVAL,
            "invalid config: a workspace in mode snapshot is kept on the root disk, which "
            "cannot be in memory");
    if (!may_write_workspace(s)) {
        (void)err_set(e, EINVAL,
                      "invalid config: the workspace is copied to /workspace, which no write path "
                      "covers");
        err_hint(e, "add --write-path /workspace, or use --workspace-mode fuse");
        return -EINVAL;
    }
    for (size_t i = 0; i < s->n_mounts; i++)
        if (spec_path_within(s->mounts[i].guest, "/workspace"))
            return err_set(e, EINVAL,
                           "invalid config: nothing can be mounted on %s while /workspace is a "
                           "snapshot",
                           s->mounts[i].guest);
    return 0;
}

int spec_validate_workspace(const struct sandbox_spec *s, struct err *e)
{
    const struct spec_workspace *w = &s->workspace;
    if (!w->name && !w->path)
        return 0;
    if (w->name && w->path)
        return err_set(e, EINVAL, "invalid config: a workspace has a name or a path, not both");
    int r = w->name ? workspace_check_name(w->name, e) : 0;
    if (r == 0 && w->path && (w->path[0] != '/' || !utf8_valid(w->path)))
        r = err_set(e, EINVAL,
                    "invalid config: the path of a workspace must be absolute and UTF-8");
    if (r == 0 && (w->max < SPEC_WORKSPACE_MIN || w->max > INT64_MAX))
        r = err_set(e, EINVAL,
                    "invalid config: the maximum size of a workspace must be at least %llu MiB",
                    SPEC_WORKSPACE_MIN >> 20);
    return r == 0 && w->mode == WORKSPACE_SNAPSHOT ? check_snapshot(s, e) : r;
}

json_t *spec_workspace_json(const struct sandbox_spec *s)
{
    const struct spec_workspace *w = &s->workspace;
    if (!w->name && !w->path)
        return json_null();
    return json_pack("{s:s?, s:s?, s:s, s:I, s:s}", "name", w->name, "host", w->path, "mode",
                     modes[w->mode], "max_bytes", (json_int_t)w->max, "sync", syncs[w->sync]);
}

int spec_read_workspace(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *o;
    size_t mode = s->workspace.mode, sync = s->workspace.sync;
    int r = read_object(j, "workspace", &o, e);
    if (r < 0 || !o)
        return r;
    r = read_text(o, "name", &s->workspace.name, e);
    if (r == 0)
        r = read_text(o, "host", &s->workspace.path, e);
    if (r == 0)
        r = read_u64(o, "max_bytes", &s->workspace.max, e);
    if (r == 0)
        r = read_choice(o, "mode", modes, ARRAY_LEN(modes), &mode, e);
    s->workspace.mode = (enum workspace_mode)mode;
    if (r == 0)
        r = read_choice(o, "sync", syncs, ARRAY_LEN(syncs), &sync, e);
    s->workspace.sync = (enum workspace_sync)sync;
    return r;
}

void spec_workspace_free(struct spec_workspace *w)
{
    free(w->name);
    free(w->path);
    free(w->url);
}
