#include "sandbox/modify.h"

#include "image/store/upper.h"
#include "launch/intercept_tell.h"
#include "policy/rulebook.h"
#include "sandbox/held.h"
#include "store/audit.h"
#include "util/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int spec_check_change(const struct sandbox_spec *old, struct sandbox_spec *changed, struct err *e)
{
    if (old->root_disk == changed->root_disk && old->root_disk_bytes == changed->root_disk_bytes)
        return spec_validate(changed, e);
    if (old->root_disk != ROOT_DISK_MANAGED)
        return err_set(e, EINVAL, "cannot grow the root disk of sandbox '%s': it is %s", old->name,
                       old->root_disk_file ? "a file of yours" : "in memory");
    if (changed->root_disk_bytes < old->root_disk_bytes)
        return err_set(e, EINVAL, "a root disk can only grow: sandbox '%s' has %llu MiB", old->name,
                       (unsigned long long)(old->root_disk_bytes >> 20));
    changed->root_disk_grown = true;
    return spec_validate(changed, e);
}

/* The names of the settings that differ: values may be private. */
static json_t *changed_names(const json_t *old, const struct sandbox_spec *changed)
{
    AUTO_JSON json_t *now = spec_to_json(changed);
    json_t *names = json_array(), *v;
    const char *key;
    json_object_foreach(now, key, v)
    {
        if (!json_equal(v, json_object_get(old, key)))
            (void)json_array_append_new(names, json_string(key));
    }
    json_object_foreach((json_t *)old, key, v)
    {
        if (!json_object_get(now, key))
            (void)json_array_append_new(names, json_string(key));
    }
    return names;
}

static bool same_texts(const struct strlist *a, const struct strlist *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = strcmp(a->v[i], b->v[i]) == 0;
    return same;
}

/* If the sandbox runs, and other secrets are bound than before; failing that, the old spec is back. */
static int tell_secrets(const struct store *s, struct sandbox *sb, const struct sandbox_spec *now,
                        struct err *e)
{
    struct err again = {0};
    if (!sb->state.pid || same_texts(&sb->spec.net.bound.secrets, &now->net.bound.secrets))
        return 0;
    int r = intercept_change(s, sb->dirfd, &sb->spec.net, &now->net, NULL, e);
    if (r < 0 && spec_save(sb->dirfd, &sb->spec, true, &again) < 0)
        err_hint(e, "the next start will use the change nevertheless: %s", again.msg);
    return r;
}

static int apply(const struct store *s, struct sandbox *sb, spec_edit_fn edit, void *ctx,
                 json_t **names, struct err *e)
{
    /* The edit is made on a copy, by way of what is stored: they cannot differ. */
    AUTO_SPEC struct sandbox_spec changed;
    AUTO_JSON json_t *j = spec_to_json(&sb->spec);
    spec_init(&changed);
    int r = j ? spec_from_json(&changed, j, e) : err_oom(e);
    if (r == 0)
        r = edit(&changed, ctx, e);
    if (r == 0)
        r = spec_check_change(&sb->spec, &changed, e);
    if (r == 0)
        r = policy_hold_change(s, &sb->spec, &changed, e);
    if (r == 0)
        *names = changed_names(j, &changed);
    /* The disk first: a spec must not promise more than there is. */
    if (r == 0 && changed.root_disk_bytes != sb->spec.root_disk_bytes)
        r = upper_grow(sb->dirfd, "upper.ext4", changed.root_disk_bytes, e);
    if (r == 0)
        r = spec_save(sb->dirfd, &changed, true, e);
    return r < 0 ? r : tell_secrets(s, sb, &changed, e);
}

int sandbox_modify(const struct store *s, const char *name, bool harmless, spec_edit_fn edit,
                   void *ctx, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    json_t *names = NULL;
    int r = held_take(s, name, &h, e);
    if (r < 0)
        return r;
    if (h.sb.state.pid && !harmless) {
        r = err_set(e, EBUSY, "sandbox still running: cannot change sandbox '%s'", name);
        err_hint(e, "stop it first, or let it be restarted: msb modify %s --restart ...", name);
    } else {
        spec_sweep(h.sb.dirfd);
        r = apply(s, &h.sb, edit, ctx, &names, e);
    }
    audit_done(s, "modify", name, json_pack("{s:o*}", "changed", names), 0, r, e);
    return r;
}

/* --- rotation -------------------------------------------------------------------------------- */

static int refresh(const struct store *s, const char *name, const char *secret, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    int r = held_take(s, name, &h, e);
    if (r < 0 || !h.sb.state.pid || h.sb.state.status != STATUS_RUNNING ||
        !spec_bound_find(&h.sb.spec.net.bound, secret))
        return r;
    r = intercept_change(s, h.sb.dirfd, &h.sb.spec.net, &h.sb.spec.net, secret, e);
    if (r < 0 && monitor_lock_holder(h.sb.dirfd) == 0)
        return 0; /* it has ended */
    audit_done(s, "modify", name, json_pack("{s:[s]}", "changed", "secret value"), 0, r, e);
    return r;
}

void sandboxes_refresh_secret(const struct store *s, const char *secret, warn_fn warn)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    struct err e = {0};
    if (store_list(s, &list, &n, &e) < 0)
        warn(e.msg);
    for (size_t i = 0; i < n; i++) {
        char text[SPEC_NAME_MAX + ERR_MSG_MAX + 80];
        e = (struct err){0};
        if (!list[i].state.pid || !spec_bound_find(&list[i].spec.net.bound, secret) ||
            refresh(s, list[i].spec.name, secret, &e) == 0)
            continue;
        (void)snprintf(text, sizeof(text), "sandbox '%s' goes on with the old value: %s",
                       list[i].spec.name, e.msg);
        warn(text);
    }
    sandbox_list_free(list, n);
}
