/* The spec as JSON: "config" in `inspect --format json`, and spec.json on disk.
 *
 * The layout is the documented one. "config" also has the keys of features that this version lacks,
 * with values that say so, for readers written for the full set. Where the documented unit is
 * coarser than ours (seconds, MiB), a second key holds the exact value and is the one that is read
 * back. spec.json omits everything that is not needed to read it back: `ls` parses one for each
 * sandbox.
 *
 * Reading is strict about the type and range of keys it knows, and ignores others.
 */
#include "spec/spec.h"

#include "proto/proto.h"
#include "spec/read.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/words.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* --- writing -------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

static json_t *number(double v)
{
    return v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

static json_t *number_or_null(uint64_t v)
{
    return v ? json_integer((json_int_t)v) : json_null();
}

static json_t *list_or_null(const struct strlist *l)
{
    return l->n ? json_list(l->v) : json_null();
}

static json_t *env_json(const struct strlist *env)
{
    json_t *a = json_array();
    for (size_t i = 0; i < env->n; i++) {
        const char *kv = env->v[i];
        size_t n = strcspn(kv, "=");
        json_add(&a, json_pack("{s:s%, s:s}", "key", kv, n, "value", kv[n] ? kv + n + 1 : ""));
    }
    return a;
}

static json_t *scripts_json(const struct sandbox_spec *s)
{
    json_t *o = json_object();
    for (size_t i = 0; i < s->n_scripts; i++)
        json_put(&o, s->scripts[i].name, json_string(s->scripts[i].body));
    return o;
}

/* Owner and mode only where they were chosen. */
static json_t *tmpfs_json(const struct spec_mount *m, json_t *options)
{
    json_t *o = json_pack("{s:s, s:s, s:o, s:o, s:o}", "type", "Tmpfs", "guest", m->guest,
                          "size_mib", number_or_null((m->size + MIB - 1) / MIB), "size_bytes",
                          number_or_null(m->size), "options", options);
    const struct {
        const char *key;
        uint32_t v;
    } more[] = {{"mode", m->mode}, {"uid", m->uid}, {"gid", m->gid}};
    for (size_t i = 0; o && i < ARRAY_LEN(more); i++)
        if (more[i].v)
            json_put(&o, more[i].key, json_integer(more[i].v));
    if (o && m->options & PROTO_MOUNT_COPY)
        json_put(&o, "copy", json_true());
    return o;
}

static json_t *mount_json(const struct spec_mount *m)
{
    json_t *options =
        json_pack("{s:b, s:b, s:b, s:b}", "readonly", !!(m->options & PROTO_MOUNT_RO), "noexec",
                  !!(m->options & PROTO_MOUNT_NOEXEC), "nosuid",
                  !!(m->options & PROTO_MOUNT_NOSUID), "nodev", !!(m->options & PROTO_MOUNT_NODEV));
    if (m->kind == MOUNT_TMPFS)
        return tmpfs_json(m, options);
    if (m->kind == MOUNT_DISK)
        return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "type", "DiskImage", "host", m->source,
                         "guest", m->guest, "format", m->qcow2 ? "qcow2" : "raw", "fstype",
                         m->fstype ? m->fstype : "ext4", "options", options);
    bool named = m->kind == MOUNT_NAMED;
    if (m->disk)
        return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "type", "Named", "name", m->source,
                         "guest", m->guest, "kind", "disk", "size_bytes", number_or_null(m->size),
                         "options", options);
    json_t *real = m->real_owners ? json_true() : NULL, *pod = m->pod ? json_true() : NULL;
    return json_pack("{s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:o, s:o, s:o, s:o*, s:o*}", "type",
                     named ? "Named" : "Bind", named ? "name" : "host", m->source, "guest",
                     m->guest, "file", m->file, "cache", mount_cache_name(m->cache), "uid",
                     (json_int_t)m->uid, "gid", (json_int_t)m->gid, "quota_mib",
                     number_or_null((m->quota + MIB - 1) / MIB), "quota_bytes",
                     number_or_null(m->quota), "options", options, "real_owners", real, "pod", pod);
}

static json_t *mounts_json(const struct sandbox_spec *s)
{
    json_t *a = json_array();
    for (size_t i = 0; i < s->n_mounts; i++)
        json_add(&a, mount_json(&s->mounts[i]));
    return a;
}

static json_t *limit_json(uint64_t v)
{
    return v == RLIM_INFINITY ? json_string("unlimited") : json_integer((json_int_t)v);
}

static json_t *rlimits_json(const struct sandbox_spec *s)
{
    json_t *a = json_array();
    for (size_t i = 0; i < s->n_rlimits; i++) {
        const struct spec_rlimit *l = &s->rlimits[i];
        json_add(&a, json_pack("{s:s, s:o, s:o}", "resource", spec_rlimit_name(l->resource), "soft",
                               limit_json(l->soft), "hard", limit_json(l->hard)));
    }
    return a;
}

static const char *const image_kinds[] = {
    [IMAGE_BUILTIN] = "builtin",
    [IMAGE_DIRECTORY] = "directory",
    [IMAGE_TAR] = "tar",
    [IMAGE_OCI] = "oci",
};

static const char *const pull_policies[] = {
    [IMAGE_PULL_MISSING] = "IfMissing",
    [IMAGE_PULL_ALWAYS] = "Always",
    [IMAGE_PULL_NEVER] = "Never",
};

static json_t *image_json(const struct sandbox_spec *s)
{
    if (!s->image)
        return json_null();
    if (s->image_kind == IMAGE_DIRECTORY)
        return json_pack("{s:{s:s, s:b}}", "Bind", "path", s->image, "follow_root_symlinks", 0);
    if (s->image_kind == IMAGE_TAR)
        return json_pack("{s:{s:s}}", "Tar", "path", s->image);
    return json_pack("{s:{s:s}}", "Oci", "reference", s->image);
}

static const char *const placements[] = {
    [PLACEMENT_SPREAD] = "spread",   [PLACEMENT_INHERIT] = "inherit", [PLACEMENT_CORE] = "core",
    [PLACEMENT_COMPACT] = "compact", [PLACEMENT_AUTO] = "auto",
};

static const char *const thps[] = {
    [THP_MADVISE] = "madvise",
    [THP_ALWAYS] = "always",
    [THP_NEVER] = "never",
};

static const char *const tenancies[] = {"single_tenant", "multi_tenant"};

enum cpu_placement cpu_placement_parse(const char *name)
{
    return (enum cpu_placement)MAX(WORD_FIND(placements, name), 0);
}

enum thp_policy thp_parse(const char *name)
{
    return (enum thp_policy)MAX(WORD_FIND(thps, name), 0);
}

const char *cpu_placement_name(enum cpu_placement p)
{
    return placements[p];
}

const char *thp_name(enum thp_policy t)
{
    return thps[t];
}

static const char *const disk_syncs[] = {
    [DISK_SYNC_AUTO] = "auto",
    [DISK_SYNC_ALWAYS] = "always",
    [DISK_SYNC_NEVER] = "never",
};

static const char *const root_disks[] = {
    [ROOT_DISK_MANAGED] = "managed",
    [ROOT_DISK_TMPFS] = "tmpfs",
    [ROOT_DISK_FILE] = "file",
};

static json_t *resources_json(const struct sandbox_spec *s)
{
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:s, s:s*, s:s, s:s, s:s, s:o, s:{s:s, s:s*, s:o, s:b, s:s}}", "cpus",
        number(s->cpus), "max_cpus", number(spec_max_cpus(s)), "memory_mib",
        (json_int_t)s->memory_mib, "max_memory_mib", (json_int_t)spec_max_memory_mib(s),
        "cpu_placement", placements[s->placement], "placement_profile", s->placement_profile, "thp",
        thps[s->thp], "engine", engine_kind_name(s->engine), "jail", jail_kind_name(s->jail),
        "max_output_bytes", number_or_null(s->output_max), "root_disk", "type",
        root_disks[s->root_disk], "path", s->root_disk_file, "size_bytes",
        number_or_null(s->root_disk_bytes), "grown", s->root_disk_grown, "sync",
        disk_syncs[s->disk_sync]);
}

static json_t *lifecycle_json(const struct sandbox_spec *s)
{
    return json_pack("{s:b, s:o, s:o, s:o, s:o}", "ephemeral", s->ephemeral, "idle_timeout_secs",
                     number_or_null((s->idle_timeout_ms + 999) / 1000), "idle_timeout_ms",
                     number_or_null(s->idle_timeout_ms), "max_duration_secs",
                     number_or_null((s->max_duration_ms + 999) / 1000), "max_duration_ms",
                     number_or_null(s->max_duration_ms));
}

static json_t *runtime_json(const struct sandbox_spec *s)
{
    return json_pack("{s:o, s:b, s:o, s:o, s:o, s:i, s:o, s:s, s:o, s:o, s:o}", "cmd",
                     list_or_null(&s->cmd), "disable_metrics_sample", 0, "entrypoint",
                     list_or_null(&s->entrypoint), "hostname", text_or_null(s->hostname),
                     "log_level", text_or_null(s->log_level), "metrics_sample_interval_ms", 1000,
                     "scripts", scripts_json(s), "shell", s->shell ? s->shell : "/bin/sh",
                     "stop_signal", text_or_null(s->stop_signal), "user", text_or_null(s->user),
                     "workdir", text_or_null(s->workdir));
}

json_t *spec_to_config(const struct sandbox_spec *s)
{
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, "
        "s:o, s:o, s:o, s:s, s:o, s:I, s:o?, s:o, s:o, s:o*, s:o*, s:o*, s:o*}",
        "deployment_profile", tenancies[s->multi_tenant], "env", env_json(&s->env), "exposed_ports",
        json_list(s->ports.v), "image", image_json(s), "image_kind", image_kinds[s->image_kind],
        "image_labels", json_list(s->image_labels.v), "image_volumes", json_list(s->volumes.v),
        "init", spec_init_to_json(&s->init), "labels", json_pairs(s->labels.v), "lifecycle",
        lifecycle_json(s), "manifest_digest", text_or_null(s->image_digest), "mounts",
        mounts_json(s), "name", text_or_null(s->name), "network", spec_net_to_json(&s->net, true),
        "patches", spec_patches_to_json(&s->patches), "pull_policy", pull_policies[s->pull],
        "resources", resources_json(s), "rlimits", rlimits_json(s), "runtime", runtime_json(s),
        "secret_env", json_list(s->secrets.v), "security_profile",
        security_profile_name(s->security.profile), "security", spec_security_to_json(&s->security),
        "created_ns", (json_int_t)s->created_ns, "vsocks", spec_vsock_to_json(&s->vsocks),
        "write_paths", json_list(s->write_paths.v), "workspace", spec_workspace_json(s),
        "root_share", s->root_share ? json_true() : NULL, "image_named_here",
        s->image_named_here ? json_true() : NULL, "masked_paths",
        s->masked.n ? json_list(s->masked.v) : NULL, "fixed_paths",
        s->fixed.n ? json_list(s->fixed.v) : NULL);
}

/* Defaults that will never change, and so need not be stored. Sizes are not among them. */
static bool is_usual(const char *key, const json_t *v)
{
    static const struct {
        const char *key, *value;
    } usual[] = {{"cpu_placement", "spread"},
                 {"engine", "auto"},
                 {"jail", "auto"},
                 {"pull_policy", "IfMissing"},
                 {"shell", "/bin/sh"},
                 {"sync", "auto"},
                 {"profile", "default"},
                 {"thp", "madvise"},
                 {"deployment_profile", "single_tenant"}};
    for (size_t i = 0; json_is_string(v) && i < ARRAY_LEN(usual); i++)
        if (strcmp(key, usual[i].key) == 0 && strcmp(json_string_value(v), usual[i].value) == 0)
            return true;
    return false;
}

/* Removes what carries no information: null, false, empty, defaults, and what is derived from other
 * keys or the same in every spec. `ls` reads every spec, and reading JSON is most of its work. */
static void prune(json_t *o)
{
    static const char *const redundant[] = {
        "disable_metrics_sample", "idle_timeout_secs",          "max_duration_secs",
        "security_profile",       "metrics_sample_interval_ms",
    };
    for (size_t i = 0; i < ARRAY_LEN(redundant); i++)
        (void)json_object_del(o, redundant[i]);
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(o, next, key, v)
    {
        bool empty = json_is_null(v) || json_is_false(v) ||
                     (json_is_array(v) && json_array_size(v) == 0 &&
                      strcmp(key, "capabilities") != 0) || /* none is less than all */
                     (json_is_object(v) && json_object_size(v) == 0);
        if (empty || is_usual(key, v))
            (void)json_object_del(o, key);
    }
}

json_t *spec_to_json(const struct sandbox_spec *s)
{
    static const char *const parts[] = {"lifecycle", "resources", "runtime", "security"};
    json_t *j = spec_to_config(s);
    if (!j)
        return NULL;
    char hostname[SPEC_HOSTNAME_MAX];
    spec_hostname_from(s->name ? s->name : "", hostname);
    if (s->hostname && strcmp(s->hostname, hostname) == 0)
        (void)json_object_del(json_object_get(j, "runtime"), "hostname");
    json_t *resources = json_object_get(j, "resources");
    if (s->max_cpus == 0)
        (void)json_object_del(resources, "max_cpus");
    if (s->max_memory_mib == 0)
        (void)json_object_del(resources, "max_memory_mib");
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        prune(json_object_get(j, parts[i]));
    json_put(&j, "network", spec_net_to_json(&s->net, false));
    if (j)
        prune(j);
    return j;
}

/* --- reading -------------------------------------------------------------------------------- */

static int read_env(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *a;
    int r = read_array(j, "env", &a, e);
    for (size_t i = 0; r == 0 && i < json_array_size(a); i++) {
        const json_t *entry = json_array_get(a, i);
        const char *key = plain_text(json_object_get(entry, "key"));
        const char *value = plain_text(json_object_get(entry, "value"));
        if (!key || !value || !*key || strchr(key, '='))
            return bad(e, "env");
        char *kv;
        if (asprintf(&kv, "%s=%s", key, value) < 0 || strlist_take(&s->env, kv) < 0)
            return err_oom(e);
    }
    return r;
}

/* An object of texts, each of which is added under its name. */
static int read_texts(struct sandbox_spec *s, const json_t *j, const char *key,
                      int (*add)(struct sandbox_spec *, const char *, const char *, struct err *),
                      struct err *e)
{
    const json_t *o;
    int r = read_object(j, key, &o, e);
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)o, name, v)
    {
        const char *text = plain_text(v);
        r = text ? add(s, name, text, e) : bad(e, key);
        if (r < 0)
            return r;
    }
    return r;
}

static int add_label(struct sandbox_spec *s, const char *key, const char *value, struct err *e)
{
    AUTO_FREE char *kv = NULL;
    if (strchr(key, '='))
        return bad(e, "labels");
    return asprintf(&kv, "%s=%s", key, value) < 0 ? err_oom(e) : spec_add_label(s, kv, e);
}

static int read_labels(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    return read_texts(s, j, "labels", add_label, e);
}

static int read_mount_options(const json_t *m, uint32_t *bits, struct err *e)
{
    static const struct {
        const char *key;
        uint32_t bit;
    } flags[] = {{"readonly", PROTO_MOUNT_RO},
                 {"noexec", PROTO_MOUNT_NOEXEC},
                 {"nosuid", PROTO_MOUNT_NOSUID},
                 {"nodev", PROTO_MOUNT_NODEV}};
    const json_t *options;
    int r = read_object(m, "options", &options, e);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(flags); i++) {
        bool on = false;
        r = read_bool(options, flags[i].key, &on, e);
        if (on)
            *bits |= flags[i].bit;
    }
    return r;
}

static int read_id(const json_t *m, const char *key, uint32_t *ret, struct err *e)
{
    uint64_t v = 0;
    int r = read_u64(m, key, &v, e);
    if (r == 0 && v >= UINT32_MAX)
        return bad(e, key);
    *ret = (uint32_t)v;
    return r;
}

static int read_disk(const json_t *j, struct spec_mount *m, struct err *e)
{
    const char *format = plain_text(json_object_get(j, "format"));
    m->kind = MOUNT_DISK;
    m->source = (char *)plain_text(json_object_get(j, "host"));
    m->fstype = (char *)plain_text(json_object_get(j, "fstype"));
    m->qcow2 = format && strcmp(format, "qcow2") == 0;
    if (!m->source || (format && strcmp(format, "raw") != 0 && !m->qcow2))
        return bad(e, "mounts");
    return 0;
}

static int read_share(const json_t *j, enum mount_kind kind, struct spec_mount *m, struct err *e)
{
    static const char *const kinds[] = {"dir", "disk"};
    const char *cache = plain_text(json_object_get(j, "cache"));
    size_t what = 0;
    m->kind = kind;
    if (kind == MOUNT_NAMED && read_choice(j, "kind", kinds, ARRAY_LEN(kinds), &what, e) < 0)
        return bad(e, "mounts");
    m->disk = what == 1;
    m->source = (char *)plain_text(json_object_get(j, kind == MOUNT_NAMED ? "name" : "host"));
    if (!m->source || (cache && !mount_cache_parse(cache, &m->cache)))
        return bad(e, "mounts");
    int r = read_bool(j, "file", &m->file, e);
    if (r == 0)
        r = read_bool(j, "real_owners", &m->real_owners, e);
    if (r == 0)
        r = read_bool(j, "pod", &m->pod, e);
    if (r == 0 && m->disk)
        r = read_u64(j, "size_bytes", &m->size, e);
    if (r == 0)
        r = read_id(j, "uid", &m->uid, e);
    if (r == 0)
        r = read_id(j, "gid", &m->gid, e);
    if (r == 0)
        r = read_scaled(j, "quota_bytes", "quota_mib", MIB, &m->quota, e);
    return r;
}

static int read_tmpfs(const json_t *j, struct spec_mount *m, struct err *e)
{
    bool copy = false;
    int r = read_scaled(j, "size_bytes", "size_mib", MIB, &m->size, e);
    if (r == 0)
        r = read_bool(j, "copy", &copy, e);
    m->options |= copy ? PROTO_MOUNT_COPY : 0;
    if (r == 0)
        r = read_id(j, "mode", &m->mode, e);
    if (r == 0 && m->mode > 07777)
        return bad(e, "mode");
    if (r == 0)
        r = read_id(j, "uid", &m->uid, e);
    return r < 0 ? r : read_id(j, "gid", &m->gid, e);
}

static int read_mount(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const char *type = plain_text(json_object_get(j, "type"));
    struct spec_mount m = {.guest = (char *)plain_text(json_object_get(j, "guest"))};
    int r;
    if (!type || !m.guest)
        return bad(e, "mounts");
    if (strcmp(type, "Tmpfs") == 0)
        r = read_tmpfs(j, &m, e);
    else if (strcmp(type, "Bind") == 0)
        r = read_share(j, MOUNT_BIND, &m, e);
    else if (strcmp(type, "Named") == 0)
        r = read_share(j, MOUNT_NAMED, &m, e);
    else if (strcmp(type, "DiskImage") == 0)
        r = read_disk(j, &m, e);
    else
        return bad(e, "mounts");
    if (r == 0)
        r = read_mount_options(j, &m.options, e);
    return r < 0 ? r : spec_add_mount(s, &m, e);
}

static int read_mounts(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *a;
    int r = read_bool(j, "root_share", &s->root_share, e);
    if (r == 0)
        r = read_array(j, "mounts", &a, e);
    for (size_t i = 0; r == 0 && i < json_array_size(a); i++)
        r = read_mount(s, json_array_get(a, i), e);
    return r;
}

static const char *limit_text(const json_t *v, char *out, size_t size)
{
    if (json_is_string(v))
        return plain_text(v);
    if (!json_is_integer(v))
        return NULL;
    (void)snprintf(out, size, "%lld", (long long)json_integer_value(v));
    return out;
}

static int read_rlimits(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *a;
    int r = read_array(j, "rlimits", &a, e);
    for (size_t i = 0; r == 0 && i < json_array_size(a); i++) {
        const json_t *o = json_array_get(a, i);
        char nums[2][32];
        const char *resource = plain_text(json_object_get(o, "resource"));
        const char *soft = limit_text(json_object_get(o, "soft"), nums[0], sizeof(nums[0]));
        const char *hard = limit_text(json_object_get(o, "hard"), nums[1], sizeof(nums[1]));
        if (!resource || !soft || !hard)
            return bad(e, "rlimits");
        AUTO_FREE char *arg = NULL;
        if (asprintf(&arg, "%s=%s:%s", resource, soft, hard) < 0)
            return err_oom(e);
        r = spec_add_rlimit(s, arg, e);
    }
    return r;
}

static int read_image(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    static const struct {
        const char *variant, *key;
        enum image_kind kind;
    } variants[] = {{"Oci", "reference", IMAGE_OCI},
                    {"Bind", "path", IMAGE_DIRECTORY},
                    {"Tar", "path", IMAGE_TAR}};
    const json_t *image;
    int r = read_object(j, "image", &image, e);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(variants); i++) {
        const json_t *v;
        r = read_object(image, variants[i].variant, &v, e);
        if (r == 0 && v) {
            s->image_kind = variants[i].kind;
            r = read_text(v, variants[i].key, &s->image, e);
        }
    }
    size_t kind = s->image_kind;
    if (r == 0)
        r = read_choice(j, "image_kind", image_kinds, ARRAY_LEN(image_kinds), &kind, e);
    s->image_kind = (enum image_kind)kind;
    s->image_named_here = json_is_true(json_object_get(j, "image_named_here"));
    size_t pull = s->pull;
    if (r == 0)
        r = read_choice(j, "pull_policy", pull_policies, ARRAY_LEN(pull_policies), &pull, e);
    s->pull = (enum image_pull)pull;
    return r < 0 ? r : read_text(j, "manifest_digest", &s->image_digest, e);
}

/* A list whose entries are checked one by one. */
static int read_each(struct sandbox_spec *s, const json_t *j, const char *key,
                     int (*add)(struct sandbox_spec *, const char *, struct err *), struct err *e)
{
    AUTO_STRLIST struct strlist l = {0};
    int r = read_list(j, key, &l, e);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = add(s, l.v[i], e);
    return r;
}

static int read_declared(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    int r = read_each(s, j, "exposed_ports", spec_add_port, e);
    if (r == 0)
        r = read_list(j, "image_labels", &s->image_labels, e);
    if (r == 0)
        r = read_each(s, j, "secret_env", spec_add_secret, e);
    if (r == 0)
        r = read_each(s, j, "write_paths", spec_add_write_path, e);
    if (r == 0)
        r = read_list(j, "masked_paths", &s->masked, e);
    if (r == 0)
        r = read_list(j, "fixed_paths", &s->fixed, e);
    return r < 0 ? r : read_each(s, j, "image_volumes", spec_add_volume, e);
}

static int read_engine(struct sandbox_spec *s, const json_t *resources, struct err *e)
{
    const json_t *v = member(resources, "engine");
    if (!v)
        return 0;
    const char *name = plain_text(v);
    s->engine = name ? engine_kind_parse(name) : ENGINE_INVALID;
    return s->engine == ENGINE_INVALID ? bad(e, "engine") : 0;
}

static int read_jail(struct sandbox_spec *s, const json_t *resources, struct err *e)
{
    const json_t *v = member(resources, "jail");
    if (!v)
        return 0;
    const char *name = plain_text(v);
    s->jail = name ? jail_kind_parse(name) : JAIL_INVALID;
    return s->jail == JAIL_INVALID ? bad(e, "jail") : 0;
}

static int read_cpus(const json_t *o, const char *key, double *ret, struct err *e)
{
    const json_t *v = member(o, key);
    if (v && !json_is_number(v))
        return bad(e, key);
    if (v)
        *ret = json_number_value(v);
    return 0;
}

/* Amounts of resources, and CPU placement. */
static int read_quantities(struct sandbox_spec *s, const json_t *o, struct err *e)
{
    size_t placement = s->placement, thp = s->thp;
    int r = read_cpus(o, "cpus", &s->cpus, e);
    if (r == 0)
        r = read_cpus(o, "max_cpus", &s->max_cpus, e);
    if (r == 0)
        r = read_u64(o, "memory_mib", &s->memory_mib, e);
    if (r == 0)
        r = read_u64(o, "max_memory_mib", &s->max_memory_mib, e);
    if (r == 0)
        r = read_choice(o, "cpu_placement", placements, ARRAY_LEN(placements), &placement, e);
    s->placement = (enum cpu_placement)placement;
    if (r == 0)
        r = read_text(o, "placement_profile", &s->placement_profile, e);
    if (r == 0)
        r = read_choice(o, "thp", thps, ARRAY_LEN(thps), &thp, e);
    s->thp = (enum thp_policy)thp;
    return r;
}

static int read_resources(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *o, *disk = NULL;
    int r = read_object(j, "resources", &o, e);
    if (r < 0)
        return r;
    r = read_quantities(s, o, e);
    if (r == 0)
        r = read_u64(o, "max_output_bytes", &s->output_max, e);
    if (r == 0)
        r = read_engine(s, o, e);
    if (r == 0)
        r = read_jail(s, o, e);
    size_t kind = s->root_disk, sync = s->disk_sync;
    if (r == 0)
        r = read_object(o, "root_disk", &disk, e);
    if (r < 0 || !disk)
        return r;
    s->root_disk_bytes = 0;
    r = read_choice(disk, "type", root_disks, ARRAY_LEN(root_disks), &kind, e);
    s->root_disk = (enum root_disk_kind)kind;
    if (r == 0)
        r = read_text(disk, "path", &s->root_disk_file, e);
    if (r == 0)
        r = read_choice(disk, "sync", disk_syncs, ARRAY_LEN(disk_syncs), &sync, e);
    s->disk_sync = (enum disk_sync)sync;
    if (r == 0)
        r = read_bool(disk, "grown", &s->root_disk_grown, e);
    return r < 0 ? r : read_u64(disk, "size_bytes", &s->root_disk_bytes, e);
}

static int read_tenancy(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    size_t which = s->multi_tenant;
    int r = read_choice(j, "deployment_profile", tenancies, ARRAY_LEN(tenancies), &which, e);
    s->multi_tenant = which == 1;
    return r < 0 ? r : spec_init_from_json(&s->init, j, e);
}

static int read_lifecycle(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *o;
    int r = read_object(j, "lifecycle", &o, e);
    if (r == 0)
        r = read_bool(o, "ephemeral", &s->ephemeral, e);
    if (r == 0)
        r = read_scaled(o, "idle_timeout_ms", "idle_timeout_secs", 1000, &s->idle_timeout_ms, e);
    if (r == 0)
        r = read_scaled(o, "max_duration_ms", "max_duration_secs", 1000, &s->max_duration_ms, e);
    return r;
}

static int read_runtime(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    const json_t *o;
    int r = read_object(j, "runtime", &o, e);
    const struct {
        const char *key;
        char **to;
    } texts[] = {{"hostname", &s->hostname}, {"log_level", &s->log_level},
                 {"shell", &s->shell},       {"stop_signal", &s->stop_signal},
                 {"user", &s->user},         {"workdir", &s->workdir}};
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(texts); i++)
        r = read_text(o, texts[i].key, texts[i].to, e);
    if (r == 0)
        r = read_list(o, "cmd", &s->cmd, e);
    if (r == 0)
        r = read_list(o, "entrypoint", &s->entrypoint, e);
    return r < 0 ? r : read_texts(s, o, "scripts", spec_add_script, e);
}

static int read_network(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    int r = spec_net_from_json(&s->net, j, e);
    return r < 0 ? r : spec_vsock_from_json(&s->vsocks, json_object_get(j, "vsocks"), e);
}

static int read_security(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    return spec_security_from_json(&s->security, j, e);
}

static int read_patches(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    return spec_patches_from_json(&s->patches, json_object_get(j, "patches"), e);
}

int spec_from_json(struct sandbox_spec *s, const json_t *j, struct err *e)
{
    spec_free(s);
    if (!json_is_object(j))
        return err_set(e, EINVAL, "spec: not a JSON object");
    static int (*const parts[])(struct sandbox_spec *, const json_t *, struct err *) = {
        read_image,    read_env,       read_labels,  read_resources,
        read_declared, read_lifecycle, read_runtime, read_mounts,
        read_rlimits,  read_network,   read_patches, spec_read_workspace,
        read_security, read_tenancy,
    };
    int r = read_text(j, "name", &s->name, e);
    if (r == 0)
        r = read_u64(j, "created_ns", &s->created_ns, e);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(parts); i++)
        r = parts[i](s, j, e);
    return r < 0 ? r : spec_validate(s, e);
}
