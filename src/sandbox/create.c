/* create and start. */
#include "engine/engine.h"
#include "image/store/upper.h"
#include "launch/launch.h"
#include "launch/placement.h"
#include "policy/rulebook.h"
#include "proto/proto.h"
#include "sandbox/account.h"
#include "sandbox/bucket.h"
#include "sandbox/held.h"
#include "sandbox/lifecycle.h"
#include "sandbox/monitor.h"
#include "sandbox/mount_wait.h"
#include "sandbox/opener.h"
#include "sandbox/sync.h"
#include "store/audit.h"
#include "store/volume.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/json.h"
#include "util/loop.h"
#include "workspace/snapshot.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void warn_about_cpus(const struct sandbox_spec *spec, const struct engine_ops *engine,
                            const struct launch *l, warn_fn warn)
{
    double most_asked = spec_max_cpus(spec);
    if (!warn)
        return;
    if (l->n_cpus > 1 && engine->one_cpu && placement_cpus() == 1)
        warn("this host has one CPU, which the guest's CPUs share");
    if (most_asked <= l->n_cpus)
        return;
    char text[192], most[16] = "one CPU";
    const char *why = "";
    if (l->n_cpus > 1)
        (void)snprintf(most, sizeof(most), "%u CPUs", l->n_cpus);
    else if (l->reduced && engine->max_cpus_reduced < engine->max_cpus)
        why = " in a reduced jail";
    else if (engine->smp_file)
        why = " without its second kernel (make kernel-uml-smp)";
    (void)snprintf(text, sizeof(text), "the %s engine runs %s%s; --%scpus %g has no further effect",
                   engine->name, most, why, spec->cpus < most_asked ? "max-" : "", most_asked);
    warn(text);
}

static void warn_about_pages(const struct sandbox_spec *spec, const struct engine_ops *engine,
                             warn_fn warn)
{
    char text[128];
    if (!warn || spec->thp != THP_ALWAYS || engine->huge_pages)
        return;
    (void)snprintf(text, sizeof(text),
                   "the %s engine has no huge pages in the guest; --thp %s has no effect",
                   engine->name, thp_name(spec->thp));
    warn(text);
}

static int is_taken(const char *name, struct err *e)
{
    return err_hinted(
        e, err_set(e, EEXIST, "sandbox already exists: sandbox '%s' already exists", name),
        "remove it (msb rm %s), use it (msb exec %s), or recreate it with --replace", name, name);
}

int sandbox_check_free(const struct store *s, const struct sandbox_spec *spec, struct err *e)
{
    AUTO_SANDBOX struct sandbox old = SANDBOX_NONE;
    int r = sandbox_open(s, spec->name, &old, e);
    if (r == 0) {
        r = is_taken(spec->name, e);
        audit_done(s, "create", spec->name, audit_spec(spec), 0, r, e);
        return r;
    }
    if (r == -ENOENT)
        err_clear(e);
    return r == -ENOENT ? 0 : r;
}

/* Under the name's lock: removes an existing sandbox of that name, if it may be replaced, or the
 * remains of one. */
static int make_way(const struct store *s, const char *name, const struct create_options *opt,
                    warn_fn warn, struct err *e)
{
    AUTO_SANDBOX struct sandbox old = SANDBOX_NONE;
    int r = sandbox_open(s, name, &old, e);
    if (r == 0) {
        if (!opt->replace)
            return is_taken(name, e);
        json_t *more = account_take(&old);
        if (more)
            (void)json_object_set_new(more, "replaced", json_true());
        r = monitor_terminate(&old, opt->replace_grace_ms, e);
        if (r == 0)
            r = sync_workspace(s, &old, 0, warn, e);
        sandbox_close(&old);
        audit_done(s, "remove", name, more, 0, r, e);
    } else if (r == -ENOENT || (opt->replace && !store_is_passing(r))) {
        if (r != -ENOENT) /* damaged beyond use */
            sync_warn_lost(s, name, warn);
        monitor_kill_leftover(s, name);
        err_clear(e);
        r = 0;
    }
    return r < 0 ? r : sandbox_dir_remove(s, name, e);
}

static int make_disk(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                     struct err *e)
{
    if (spec->root_disk != ROOT_DISK_MANAGED || spec->root_share)
        return 0;
    AUTO_CLOSE int cache = store_cache_open(s, e);
    if (cache < 0)
        return cache;
    uint64_t t0 = now_ns();
    int r = upper_create(cache, dirfd, "upper.ext4", spec->root_disk_bytes, !spec->ephemeral, e);
    diag_took("making the root disk", t0);
    return r;
}

static int prepare(int dirfd, const struct create_options *create, struct err *e)
{
    int sock = sandbox_connect(dirfd);
    if (sock < 0)
        return err_sys(e, -sock, "cannot connect to the new sandbox");
    return create->prepare(create->prepare_ctx, sock, e);
}

/* Writes the spec while the guest boots: syncing it to disk takes a good part of that time. */
static int boot(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                const struct launch_options *opt, const struct create_options *create,
                struct opener *opener, struct err *e)
{
    struct launch l;
    uint64_t t0 = now_ns();
    int r = launch_begin(&l, s, dirfd, spec, opt, e);
    opener_launched(opener);
    if (r < 0)
        return r;
    diag_took("starting the monitor", t0);
    int saved = create ? spec_save(dirfd, spec, !create->transient, e) : 0;
    if (saved < 0) {
        launch_undo(&l);
        return saved;
    }
    r = launch_wait(&l, e);
    if (r < 0)
        return r;
    diag_took("booting the guest", t0);
    r = opener_wait(opener, opt->warn, e);
    diag_took("syncing the workspace meanwhile", t0);
    if (r == 0 && create && create->prepare)
        r = prepare(dirfd, create, e);
    if (r == 0 && spec_has_snapshot(spec))
        r = snapshot_enter(s, dirfd, spec, opt->warn, e);
    if (r < 0) {
        launch_dismiss(&l);
        return r;
    }
    r = launch_finish(&l, e);
    if (r < 0)
        return r;
    warn_about_cpus(spec, opt->engine->ops, &l, opt->warn);
    warn_about_pages(spec, opt->engine->ops, opt->warn);
    return r;
}

static int choose_engine(const struct sandbox_spec *spec, struct engine_choice *ret, warn_fn warn,
                         struct err *e)
{
    int r = engine_choose(spec->engine, ret, e);
    if (r == 0)
        diag_debug("engine %s: %s", ret->ops->name, ret->why);
    if (r == 0 && ret->warning[0] && warn)
        warn(ret->warning);
    return r;
}

int sandbox_check_policy(const struct store *s, struct sandbox_spec *spec,
                         const struct create_options *opt, struct err *e)
{
    int r = policy_hold(s, HOLD_AHEAD, opt->said, spec, NULL, e);
    return r < 0 ? r : 0;
}

/* If the number of sandboxes is limited, they are counted one at a time: *lock is then held. */
static int hold_to_policy(const struct store *s, struct sandbox_spec *spec,
                          const struct create_options *opt, struct name_lock *lock, json_t **limits,
                          struct err *e)
{
    int r = policy_hold(s, HOLD_CREATE, opt->said, spec, limits, e);
    if (r != 1)
        return r;
    r = name_lock_take_kind(s, "policy", "sandboxes", lock, e);
    if (r == 0)
        r = policy_hold(s, HOLD_CREATE, opt->said, spec, limits, e);
    return r < 0 ? r : 0;
}

static const struct spec_mount *workspace_mount(const struct sandbox_spec *spec)
{
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (strcmp(spec->mounts[i].guest, WORKSPACE_GUEST_PATH) == 0)
            return &spec->mounts[i];
    return NULL;
}

/* Contents are fetched when the guest opens a file, unless it has copies of everything, or the
 * process that serves them may not write. */
static bool comes_later(const struct sandbox_spec *spec)
{
    const struct spec_mount *m = workspace_mount(spec);
    return spec->workspace.mode == WORKSPACE_FUSE && !(m && m->options & PROTO_MOUNT_RO);
}

/* The agent creates their mount points before it is ready. */
static bool has_mounts_inside(const struct sandbox_spec *spec)
{
    const char *dir = WORKSPACE_GUEST_PATH;
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (strcmp(spec->mounts[i].guest, dir) != 0 && spec_path_within(spec->mounts[i].guest, dir))
            return true;
    for (size_t i = 0; i < spec->write_paths.n; i++)
        if (strcmp(spec->write_paths.v[i], dir) != 0 &&
            spec_path_within(spec->write_paths.v[i], dir))
            return true;
    return false;
}

/* The sync comes first if a sandbox is to be replaced, which stays if the bucket is unreachable; if
 * the workspace has a limit (its contents are counted before it is served); and if the boot would
 * wait for it anyway. */
static bool syncs_while_booting(const struct sandbox_spec *spec, const struct create_options *opt)
{
    const struct spec_mount *m = workspace_mount(spec);
    return comes_later(spec) && m && !m->quota && !(opt && opt->replace) &&
           !has_mounts_inside(spec);
}

static int enter_bucket(const struct store *s, const struct sandbox_spec *spec, warn_fn warn,
                        struct err *e)
{
    struct s3_sync how = {.here = comes_later(spec) ? S3_HERE_MARKS : S3_HERE_ALL, .warn = warn};
    return bucket_enter(s, spec->workspace.name, &how, e);
}

int sandbox_create(const struct store *s, struct sandbox_spec *spec,
                   const struct create_options *opt, warn_fn warn, struct err *e)
{
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    AUTO_CLOSE int volumes = -1;
    AUTO_NAME_LOCK struct name_lock counting = NAME_LOCK_NONE;
    uint64_t began = now_ns();
    AUTO_JSON json_t *limits = NULL;
    int r = hold_to_policy(s, spec, opt, &counting, &limits, e);
    if (r == 0)
        r = volume_hold(s, spec, &volumes, e);
    if (r == 0)
        r = volume_settle(s, spec, e);
    if (r == 0)
        r = bucket_settle(s, &spec->workspace, warn, e);
    if (r == 0)
        r = workspace_settle(s, spec, e);
    if (r == 0)
        r = spec_secure_mounts(spec, e);
    if (r == 0 && !syncs_while_booting(spec, opt))
        r = enter_bucket(s, spec, warn, e);
    if (r == 0)
        r = choose_engine(spec, &engine, warn, e);
    if (r < 0)
        return r;
    AUTO_OPENER struct opener opener = OPENER_NONE;
    AUTO_HELD struct held h = HELD_NONE;
    r = name_lock_take(s, spec->name, &h.lock, e);
    if (r < 0)
        return r;
    spec->created_ns = realtime_ns();
    r = make_way(s, spec->name, opt, warn, e);
    h.lock.forget = r == 0; /* until the sandbox exists */
    if (r == 0)
        r = sandbox_dir_make(s, spec->name, &h.sb.dirfd, e);
    name_lock_drop(&counting);
    if (r == 0 && syncs_while_booting(spec, opt))
        r = opener_start(s, h.sb.dirfd, spec, &opener, e);
    if (r == 0)
        r = make_disk(s, h.sb.dirfd, spec, e);
    if (r == 0)
        r = boot(s, h.sb.dirfd, spec,
                 &(struct launch_options){.engine = &engine,
                                          .creating = true,
                                          .seal_at_once = opt->transient && !opt->prepare &&
                                                          !spec_has_snapshot(spec),
                                          .stop_when_idle = opt->stop_when_idle,
                                          .in_group = opt->in_group,
                                          .tap = opt->tap,
                                          .gate = opener.gate >= 0 ? &opener.gate : NULL,
                                          .warn = warn,
                                          .limits = limits},
                 opt, &opener, e);
    engine_choice_close(&engine); /* cleaning up may need the descriptors */
    if (r == 0) {
        h.lock.forget = false;
    } else if (h.sb.dirfd >= 0) {
        (void)held_clear_leftover(&h, NULL);
    }
    audit_done(s, "create", spec->name, audit_spec(spec), began, r, e);
    return r;
}

/* --- start ---------------------------------------------------------------------------------- */

/* The sandbox ended by itself, and has not been synced since. If the sync fails, its changes stay
 * in the guest. */
static void sync_before_start(const struct store *s, struct sandbox *sb, warn_fn warn)
{
    struct err why = {0};
    if (sync_workspace(s, sb, 0, warn, &why) < 0 && warn)
        warn(why.msg);
}

/* Before taking its lock, so that it can be removed meanwhile. */
static int wait_for_mounts(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = sandbox_open(s, name, &sb, e);
    return r < 0 || sb.state.pid ? r : mounts_wait(&sb.spec, warn, e);
}

/* 1 = it is already running. */
static int start(const struct store *s, const char *name, bool stop_when_idle, warn_fn warn,
                 struct err *e)
{
    CLEANUP(engine_choice_close) struct engine_choice engine = ENGINE_CHOICE_NONE;
    AUTO_HELD struct held h = HELD_NONE;
    AUTO_OPENER struct opener opener = OPENER_NONE;
    AUTO_JSON json_t *limits = NULL;
    int r = wait_for_mounts(s, name, warn, e);
    if (r == 0)
        r = held_take(s, name, &h, e);
    if (r < 0)
        return r;
    monitor_wait_ending(&h.sb);
    if (h.sb.state.pid)
        return 1;
    uint64_t began = now_ns();
    json_t *before = account_take(&h.sb);
    sync_before_start(s, &h.sb, warn);
    active_forget(h.sb.dirfd);
    r = policy_hold(s, HOLD_START, SAID_ALL, &h.sb.spec, &limits, e);
    if (r == 0)
        r = syncs_while_booting(&h.sb.spec, NULL)
                ? opener_start(s, h.sb.dirfd, &h.sb.spec, &opener, e)
                : enter_bucket(s, &h.sb.spec, warn, e);
    if (r == 0)
        r = choose_engine(&h.sb.spec, &engine, warn, e);
    if (r == 0)
        r = boot(s, h.sb.dirfd, &h.sb.spec,
                 &(struct launch_options){.engine = &engine,
                                          .stop_when_idle = stop_when_idle,
                                          .gate = opener.gate >= 0 ? &opener.gate : NULL,
                                          .warn = warn,
                                          .limits = limits},
                 NULL, &opener, e);
    json_t *more = audit_spec(&h.sb.spec);
    if (more && before)
        (void)json_object_update_missing(more, before); /* it may have ended by itself */
    json_decref(before);
    audit_done(s, "start", name, more, began, r, e);
    return r;
}

int sandbox_start(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    int r = start(s, name, false, warn, e);
    return r <= 0
               ? r
               : err_set(e, EBUSY,
                         "sandbox still running: cannot start sandbox '%s': already running", name);
}

int sandbox_start_on_demand(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    return start(s, name, true, warn, e);
}
