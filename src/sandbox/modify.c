#include "sandbox/modify.h"

#include "client/net_request.h"
#include "image/store/upper.h"
#include "jail/cgroup.h"
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
    if (old->root_disk == ROOT_DISK_FILE)
        return err_set(e, EINVAL, "cannot grow the root disk of sandbox '%s': it is your own file",
                       old->name);
    if (old->root_disk == ROOT_DISK_TMPFS) /* it is made again at each start */
        return spec_validate(changed, e);
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

/* NULL, or why the change cannot take effect at once in a running sandbox. `active`: what it was
 * started with. */
static const char *obstacle(const struct sandbox *sb, const struct sandbox_spec *active,
                            const struct spec_change *c, const struct sandbox_spec *now)
{
    if (strcmp(c->field, "label") == 0)
        return NULL;
    if (strcmp(c->field, "memory") == 0 || strcmp(c->field, "max_memory") == 0)
        return "a guest's memory cannot be changed while it runs";
    if (strcmp(c->field, "secret") == 0)
        return net_request_secrets(sb->dirfd, -1, NULL, NULL, NULL) == 0
                   ? NULL
                   : "it was started without secrets";
    if (strcmp(c->field, "cpus") != 0)
        return "it was told when it started";
    if (now->cpus > spec_max_cpus(active))
        return "it was started with fewer CPUs (see --max-cpus)";
    return cgroup_has_cpus(sb->dirfd) ? NULL : "it has no cgroup that could limit its CPUs";
}

const char *modify_obstacle(const struct store *s, const struct sandbox *sb,
                            const struct spec_changes *l, const struct sandbox_spec *now)
{
    AUTO_SPEC struct sandbox_spec active;
    const char *why = NULL;
    spec_init(&active);
    bool differs = active_load(s, sb, &active);
    for (size_t i = 0; sb->state.pid && !why && i < l->n; i++)
        why = obstacle(sb, differs ? &active : &sb->spec, &l->v[i], now);
    return why;
}

/* Checked again under the lock, where no other process can start or stop it. */
static int refuse_obstacle(const struct store *s, const struct sandbox *sb,
                           const struct sandbox_spec *now, struct err *e)
{
    AUTO_CHANGES struct spec_changes changes = {0};
    if (spec_diff(&sb->spec, now, &changes) < 0)
        return err_oom(e);
    const char *why = modify_obstacle(s, sb, &changes, now);
    if (!why)
        return 0;
    (void)err_set(e, EBUSY, "sandbox still running: cannot change sandbox '%s': %s", sb->spec.name,
                  why);
    err_hint(e, "--restart restarts it with the change, --next-start keeps the change for its next "
                "start");
    return -EBUSY;
}

/* Tells the sandbox if the bound secrets have changed. On failure, the old spec is restored. */
static int tell_secrets(const struct store *s, struct sandbox *sb, const struct sandbox_spec *now,
                        struct err *e)
{
    struct err again = {0};
    if (strlist_same(&sb->spec.net.bound.secrets, &now->net.bound.secrets))
        return 0;
    int r = intercept_change(s, sb->dirfd, &sb->spec.net, &now->net, NULL, e);
    if (r < 0 && spec_save(sb->dirfd, &sb->spec, true, &again) < 0)
        err_hint(e, "the next start will use the change nevertheless: %s", again.msg);
    return r;
}

/* If the running sandbox's settings are recorded separately from its spec, updates that record with
 * a change that takes effect at once. Its CPUs may be among what waits for the next start. */
static int follow(const struct store *s, const struct sandbox *sb,
                  const struct sandbox_spec *changed, struct err *e)
{
    AUTO_SPEC struct sandbox_spec active;
    spec_init(&active);
    if (!active_load(s, sb, &active))
        return 0;
    if (changed->cpus != sb->spec.cpus)
        active.cpus = changed->cpus;
    strlist_free(&active.labels);
    strlist_free(&active.net.bound.secrets);
    if (strlist_copy(&active.labels, &changed->labels) < 0 ||
        strlist_copy(&active.net.bound.secrets, &changed->net.bound.secrets) < 0)
        return err_oom(e);
    return active_save(sb->dirfd, &active, e);
}

/* The CPUs of a running sandbox. */
static int set_cpus(const struct sandbox *sb, double cpus, struct err *e)
{
    int r = cgroup_set_cpus(sb->dirfd, cpus);
    return r < 0 ? err_sys(e, -r, "cannot change the CPUs of running sandbox '%s'", sb->spec.name)
                 : 0;
}

/* A running sandbox keeps what it was started with, which is recorded once. */
static int keep_active(const struct store *s, const struct sandbox *sb, struct err *e)
{
    AUTO_SPEC struct sandbox_spec active;
    spec_init(&active);
    return active_load(s, sb, &active) ? 0 : active_save(sb->dirfd, &sb->spec, e);
}

static int apply(const struct store *s, struct sandbox *sb, enum modify_how how, spec_edit_fn edit,
                 void *ctx, json_t **names, struct err *e)
{
    /* The edit is made on a copy, which goes through the stored form: they cannot differ. */
    AUTO_SPEC struct sandbox_spec changed;
    AUTO_JSON json_t *j = spec_to_json(&sb->spec);
    bool live = sb->state.pid && how == MODIFY_NOW;
    spec_init(&changed);
    int r = j ? spec_from_json(&changed, j, e) : err_oom(e);
    if (r == 0)
        r = edit(&changed, ctx, e);
    if (r == 0)
        r = spec_check_change(&sb->spec, &changed, e);
    if (r == 0)
        r = policy_hold_change(s, &sb->spec, &changed, e);
    if (r == 0 && live)
        r = refuse_obstacle(s, sb, &changed, e);
    if (r < 0)
        return r;
    *names = changed_names(j, &changed);
    /* The disk first: a spec must not promise more than there is. */
    if (sb->spec.root_disk == ROOT_DISK_MANAGED &&
        changed.root_disk_bytes != sb->spec.root_disk_bytes)
        r = upper_grow(sb->dirfd, "upper.ext4", changed.root_disk_bytes, e);
    bool cpus = live && changed.cpus != sb->spec.cpus;
    if (r == 0 && cpus)
        r = set_cpus(sb, changed.cpus, e);
    if (r == 0 && live)
        r = follow(s, sb, &changed, e);
    else if (r == 0 && sb->state.pid)
        r = keep_active(s, sb, e);
    if (r == 0)
        r = spec_save(sb->dirfd, &changed, true, e);
    if (r == 0 && live)
        r = tell_secrets(s, sb, &changed, e);
    if (r < 0 && cpus)
        (void)cgroup_set_cpus(sb->dirfd, sb->spec.cpus);
    return r;
}

int sandbox_modify(const struct store *s, const char *name, enum modify_how how, spec_edit_fn edit,
                   void *ctx, struct err *e)
{
    AUTO_NAME_LOCK struct name_lock counting = NAME_LOCK_NONE;
    AUTO_HELD struct held h = HELD_NONE;
    json_t *names = NULL;
    /* As for a creation: if sandboxes are counted, another label can make it count as one more. */
    int r = name_lock_take_kind(s, "policy", "sandboxes", &counting, e);
    if (r == 0)
        r = held_take(s, name, &h, e);
    if (r < 0)
        return r;
    spec_sweep(h.sb.dirfd);
    r = apply(s, &h.sb, how, edit, ctx, &names, e);
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
