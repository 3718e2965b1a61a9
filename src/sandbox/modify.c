#include "sandbox/modify.h"

#include "image/store/upper.h"
#include "store/audit.h"
#include "util/cleanup.h"

#include <errno.h>

int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e)
{
    if (old->root_disk == changed->root_disk && old->root_disk_bytes == changed->root_disk_bytes)
        return spec_validate(changed, e);
    if (old->root_disk != ROOT_DISK_MANAGED)
        return err_set(e, EINVAL, "sandbox '%s' has its root disk in memory: it cannot grow",
                       old->name);
    if (changed->root_disk_bytes < old->root_disk_bytes) {
        (void)err_set(e, EINVAL, "a root disk can only grow: that of sandbox '%s' has %llu MiB",
                      old->name, (unsigned long long)(old->root_disk_bytes >> 20));
        return -EINVAL;
    }
    changed->root_disk_grown = true;
    return spec_validate(changed, e);
}

static int apply(struct sandbox *sb, spec_edit_fn edit, void *ctx, struct err *e)
{
    /* What is on disk is read again: the edit is made on a copy of it. */
    struct sandbox_spec changed;
    spec_init(&changed);
    json_t *j = spec_to_json(&sb->spec);
    int r = j ? spec_from_json(&changed, j, e) : err_oom(e);
    json_decref(j);
    if (r == 0)
        r = edit(&changed, ctx, e);
    if (r == 0)
        r = spec_check_change(&sb->spec, &changed, e);
    /* The disk first: a spec that promises more than there is would be a lie. */
    if (r == 0 && changed.root_disk_bytes != sb->spec.root_disk_bytes)
        r = upper_grow(sb->dirfd, "upper.ext4", changed.root_disk_bytes, e);
    if (r == 0)
        r = spec_save(sb->dirfd, &changed, true, e);
    spec_free(&changed);
    return r;
}

int sandbox_modify(const struct store *s, const char *name, bool harmless, spec_edit_fn edit,
                   void *ctx, struct err *e)
{
    struct name_lock lock;
    struct sandbox sb;
    int r = name_lock_take(s, name, &lock, e);
    if (r < 0)
        return r;
    r = sandbox_open(s, name, &sb, e);
    bool gone = r == -ENOENT;
    if (r == 0) {
        if (sb.state.pid && !harmless) {
            r = err_set(e, EBUSY, "sandbox still running: cannot change sandbox '%s'", name);
            err_hint(e, "stop it first, or let it be restarted: msb modify %s --restart ...", name);
        } else {
            spec_sweep(sb.dirfd);
            r = apply(&sb, edit, ctx, e);
        }
        sandbox_close(&sb);
        audit_done(s, "modify", name, NULL, r, e);
    }
    name_lock_drop(s, &lock, gone);
    return r;
}
