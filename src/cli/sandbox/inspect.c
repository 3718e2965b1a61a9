#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/verbs.h"
#include "proto/proto.h"
#include "spec/diff.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <stdio.h>

static bool active(const struct sandbox *sb)
{
    return sb->state.pid != 0;
}

/* The configuration, with the ports that were bound. `spec`: what it was started with. */
static json_t *active_config(const struct sandbox *sb, const struct sandbox_spec *spec)
{
    AUTO_FREE struct spec_port *p = NULL;
    if (!active(sb))
        return json_null();
    size_t n = show_ports(sb, &p);
    json_t *config = spec_to_config(spec), *ports = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(ports, spec_port_to_json(&p[i]));
    (void)json_object_set_new(json_object_get(config, "network"), "ports", ports);
    return config;
}

/* What its next start will change. */
static json_t *pending_changes(const struct sandbox_spec *active, const struct sandbox_spec *spec)
{
    AUTO_CHANGES struct spec_changes changes = {0};
    json_t *a = json_array();
    if (active == spec || spec_diff(active, spec, &changes) < 0)
        return a;
    for (size_t i = 0; i < changes.n; i++)
        json_add(&a, spec_change_json(&changes.v[i], "next start"));
    return a;
}

static json_t *sandbox_item_json(const struct items *l, size_t i)
{
    const struct sandbox *sb = sandbox_item(l, i);
    AUTO_SPEC struct sandbox_spec room;
    spec_init(&room);
    const struct sandbox_spec *spec = show_active(l, sb, &room);
    uint64_t updated = sb->state.updated_ns ? sb->state.updated_ns : sb->spec.created_ns;
    struct background b;
    background_load(l->store, sb, &b);
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:s, s:s, s:s, s:I, s:s, s:o, s:o, s:s, s:o}", "active_config",
        active_config(sb, spec), "background", background_json(&b), "config",
        spec_to_config(&sb->spec), "created_at", json_time(sb->spec.created_ns), "engine",
        sb->state.engine, "jail", sb->state.jail, "name", sb->spec.name, "oom_kills",
        (json_int_t)sb->state.oom_kills, "reason", sb->state.reason, "started_at",
        json_time(sb->state.started_ns), "pending_changes", pending_changes(spec, &sb->spec),
        "status", status_name(sb->state.status), "updated_at", json_time(updated));
}

static void cpus_line(struct buf *b, const char *label, double cpus)
{
    (void)buf_printf(b, "%-16s%g\n", label, cpus);
}

static void count_line(struct buf *b, const char *label, uint64_t n)
{
    (void)buf_printf(b, "%-16s%llu\n", label, (unsigned long long)n);
}

static void resources(struct buf *b, const struct sandbox_spec *s, uint64_t oom_kills)
{
    char text[64], size[32];
    (void)buf_printf(b, "\nResources\n");
    cpus_line(b, "  CPUs:", s->cpus);
    cpus_line(b, "  Max CPUs:", spec_max_cpus(s));
    text_line(b, "  Placement:", cpu_placement_name(s->placement));
    text_line(b, "  Profile:", s->placement_profile);
    (void)snprintf(text, sizeof(text), "%llu MiB", (unsigned long long)s->memory_mib);
    text_line(b, "  Memory:", text);
    if (oom_kills)
        count_line(b, "  OOM kills:", oom_kills);
    (void)snprintf(text, sizeof(text), "%llu MiB", (unsigned long long)spec_max_memory_mib(s));
    text_line(b, "  Max memory:", text);
    text_line(b, "  THP:", thp_name(s->thp));
    text_line(b, "  Engine:", engine_kind_name(s->engine));
    text_line(b, "  Jail:", jail_kind_name(s->jail));
    format_mib(s->root_disk_bytes / MIB, size, sizeof(size));
    (void)snprintf(text, sizeof(text), "%s%s%s",
                   s->root_disk == ROOT_DISK_TMPFS  ? "tmpfs"
                   : s->root_disk == ROOT_DISK_FILE ? s->root_disk_file
                                                    : "managed",
                   s->root_disk_bytes ? ", " : "", s->root_disk_bytes ? size : "");
    text_line(b, "  Root disk:", text);
    text_line(b, "  Disk sync:", spec_disk_sync(s) == DISK_SYNC_NEVER ? "never" : NULL);
}

static void security(struct buf *b, const struct spec_security *s)
{
    char text[SPEC_CAPS_TEXT_MAX];
    spec_caps_format(s->caps, text);
    text_line(b, "Security:", security_profile_name(s->profile));
    text_line(b, "  Capabilities:", text);
    text_line(b, "  New rights:", s->no_new_privs ? "none (no-new-privileges)" : NULL);
    text_line(b, "  Root:", s->read_only ? "read-only" : NULL);
    if (s->pids)
        count_line(b, "  Processes:", s->pids);
    text_words(b, "  Groups:", s->groups.v);
    text_words(b, "  Settings:", s->sysctls.v);
}

static void runtime(struct buf *b, const struct sandbox_spec *s)
{
    char text[64];
    (void)buf_printf(b, "\n");
    security(b, &s->security);
    text_line(b, "Deployment:", s->multi_tenant ? "multi-tenant" : NULL);
    text_line(b, "Init:", s->init.path);
    text_words(b, "  Arguments:", s->init.args.v);
    text_words(b, "  Variables:", s->init.env.v);
    text_line(b, "Workdir:", s->workdir);
    text_line(b, "User:", s->user);
    text_line(b, "Shell:", s->shell);
    text_line(b, "Hostname:", s->hostname);
    text_words(b, "Entrypoint:", s->entrypoint.v);
    text_words(b, "Command:", s->cmd.v);
    text_line(b, "Stop signal:", s->stop_signal);
    text_words(b, "Exposed ports:", s->ports.v);
    text_words(b, "Volumes:", s->volumes.v);
    text_words(b, "Write paths:", s->write_paths.v);
    if (s->workspace.name || s->workspace.path) {
        text_line(b, "Workspace:", s->workspace.name ? s->workspace.name : s->workspace.path);
        text_line(b, "  Mode:", s->workspace.mode == WORKSPACE_SNAPSHOT ? "snapshot" : "fuse");
    }
    text_line(b, "Ephemeral:", s->ephemeral ? "yes" : NULL);
    if (s->idle_timeout_ms) {
        format_duration(s->idle_timeout_ms, text, sizeof(text));
        text_line(b, "Idle timeout:", text);
    }
    if (s->output_max) {
        format_bytes(s->output_max, text, sizeof(text));
        text_line(b, "Max output:", text);
    }
    if (s->max_duration_ms) {
        format_duration(s->max_duration_ms, text, sizeof(text));
        text_line(b, "Max duration:", text);
    }
}

static void limit(struct buf *b, const char *label, const struct rate_limits *l)
{
    char text[SPEC_RATE_TEXT_MAX];
    const struct rate_limit *both[] = {&l->bytes, &l->packets};
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        if (both[i]->amount == 0)
            continue;
        spec_rate_format(both[i], i == 0, text);
        text_line(b, label, text);
    }
}

/* Limits, proxy and certificates of allowed traffic. */
static void traffic(struct buf *b, const struct spec_net *n)
{
    char url[SPEC_PROXY_URL_MAX];
    limit(b, "  Limit out:", &n->egress_rate);
    limit(b, "  Limit in:", &n->ingress_rate);
    if (n->proxy.version) {
        spec_proxy_url(&n->proxy, url);
        text_line(b, "  Proxy:", url);
        text_line(b, "  Proxy user:", n->proxy.user);
        text_line(b, "  Password in:", n->proxy.password_env);
    }
    text_line(b, "  Host CAs:", n->trust_host_cas ? "trusted" : NULL);
}

static void vsocks(struct buf *b, const struct spec_vsocks *l)
{
    if (l->n > 0)
        (void)buf_printf(b, "\nHost sockets\n");
    for (size_t i = 0; i < l->n; i++)
        (void)buf_printf(b, "  vsock %-10u→ %s\n", l->v[i].port, l->v[i].path);
}

static void pool(struct buf *b, const char *label, const struct addr_pool *p)
{
    char text[POOL_TEXT_MAX];
    if (p->bits == 0)
        return;
    spec_pool_format(p, text);
    text_line(b, label, text);
}

static void network(struct buf *b, const struct sandbox *sb)
{
    const struct spec_net *n = &sb->spec.net;
    AUTO_FREE struct spec_port *p = NULL;
    size_t n_ports = show_ports(sb, &p);
    bool open = !n->profile && n->rules.n == 0 && n->egress == NET_DEFAULT_UNSET;
    (void)buf_printf(b, "\nNetwork\n");
    if (n->off) {
        text_line(b, "  Profile:", "no network");
        return;
    }
    text_line(b, "  Profile:", open ? "public" : n->profile ? n->profile : "none");
    for (size_t i = 0; i < n->rules.n; i++)
        text_line(b, "  Rule:", n->rules.v[i]);
    text_line(b, "  Otherwise:", n->egress == NET_DEFAULT_ALLOW ? "allow" : "deny");
    text_line(b, "  Ingress:", n->ingress == NET_DEFAULT_DENY ? "deny" : "allow");
    text_line(b, "  Strict:", n->strict ? "yes" : NULL);
    pool(b, "  IPv4 pool:", &n->pool4);
    pool(b, "  IPv6 pool:", &n->pool6);
    for (unsigned i = 0; i < n->n_nameservers; i++) {
        char text[END_TEXT_MAX];
        end_format(&n->nameserver[i], text);
        text_line(b, "  Name server:", text);
    }
    for (size_t i = 0; i < n_ports; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&p[i], text);
        text_line(b, "  Port:", text);
    }
    traffic(b, n);
}

static void mount_options(const struct spec_mount *m, char *out, size_t size)
{
    static const char *const names[] = {"ro", "noexec", "nosuid", "nodev"};
    static const uint32_t bits[] = {PROTO_MOUNT_RO, PROTO_MOUNT_NOEXEC, PROTO_MOUNT_NOSUID,
                                    PROTO_MOUNT_NODEV};
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < ARRAY_LEN(bits); i++)
        if (m->options & bits[i])
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "," : "", names[i]);
    if (mount_is_disk(m))
        n += (size_t)snprintf(out + n, size - n, "%sdisk%s%s", n ? "," : "",
                              m->fstype ? ",fstype=" : "", m->fstype ? m->fstype : "");
    if (!mount_is_share(m))
        return;
    if (m->cache != MOUNT_CACHE_AUTO)
        n += (size_t)snprintf(out + n, size - n, "%scache=%s", n ? "," : "",
                              mount_cache_name(m->cache));
    if (m->uid || m->gid)
        n += (size_t)snprintf(out + n, size - n, "%suid=%u,gid=%u", n ? "," : "", m->uid, m->gid);
    if (m->quota)
        (void)snprintf(out + n, size - n, "%squota=%lluM", n ? "," : "",
                       (unsigned long long)((m->quota + MIB - 1) / MIB));
}

static void mounts(struct buf *b, const struct sandbox_spec *s)
{
    if (s->n_mounts)
        (void)buf_printf(b, "\nMounts\n");
    for (size_t i = 0; i < s->n_mounts; i++) {
        const struct spec_mount *m = &s->mounts[i];
        char size[32] = "", options[160];
        if (m->size)
            format_mib((m->size + MIB - 1) / MIB, size, sizeof(size));
        mount_options(m, options, sizeof(options));
        (void)buf_printf(b, "  %-16s→ %s%s%s%s%s%s%s\n", m->guest,
                         m->kind == MOUNT_TMPFS ? "tmpfs" : m->source, *size ? " (" : "", size,
                         *size ? ")" : "", *options ? " (" : "", options, *options ? ")" : "");
    }
}

/* Changes to its files before the first command. */
static void patches(struct buf *b, const struct spec_patches *l)
{
    if (l->n)
        (void)buf_printf(b, "\nFiles\n");
    for (size_t i = 0; i < l->n; i++) {
        const struct spec_patch *p = &l->v[i];
        (void)buf_printf(b, "  %s %s%s%s\n",
                         p->kind == PATCH_MKDIR    ? "mkdir"
                         : p->kind == PATCH_REMOVE ? "rm"
                                                   : "copy",
                         p->path, p->source ? " ← " : "", p->source ? p->source : "");
    }
}

static void scripts_and_limits(struct buf *b, const struct sandbox_spec *s)
{
    if (s->n_scripts)
        (void)buf_printf(b, "\nScripts\n");
    for (size_t i = 0; i < s->n_scripts; i++)
        (void)buf_printf(b, "  /.msb/scripts/%s\n", s->scripts[i].name);
    if (s->n_rlimits)
        (void)buf_printf(b, "\nResource limits\n");
    for (size_t i = 0; i < s->n_rlimits; i++) {
        const struct spec_rlimit *l = &s->rlimits[i];
        char v[2][32];
        const uint64_t limits[] = {l->soft, l->hard};
        for (size_t j = 0; j < 2; j++)
            (void)snprintf(v[j], sizeof(v[j]), limits[j] == UINT64_MAX ? "unlimited" : "%llu",
                           (unsigned long long)limits[j]);
        (void)buf_printf(b, "  %s=%s:%s\n", spec_rlimit_name(l->resource), v[0], v[1]);
    }
}

static void pending(struct buf *b, const struct items *l)
{
    AUTO_SPEC struct sandbox_spec room;
    AUTO_CHANGES struct spec_changes changes = {0};
    const struct sandbox *sb = sandbox_item(l, 0);
    spec_init(&room);
    if (show_active(l, sb, &room) != &room || spec_diff(&room, &sb->spec, &changes) < 0)
        return;
    if (changes.n)
        (void)buf_printf(b, "\nPending changes, for its next start\n");
    for (size_t i = 0; i < changes.n; i++) {
        const struct spec_change *c = &changes.v[i];
        (void)buf_printf(b, "  %-14s%s → %s\n", c->field, c->before ? c->before : "-",
                         c->after ? c->after : "-");
    }
}

static void background(struct buf *b, const struct items *l)
{
    struct background list;
    background_load(l->store, sandbox_item(l, 0), &list);
    if (list.n)
        (void)buf_printf(b, "\nCommands in the background\n");
    for (size_t i = 0; i < list.n; i++) {
        const struct background_command *c = &list.v[i];
        char when[TIME_TEXT_MAX], how[32] = "running since";
        if (c->ended && c->exit_code == BACKGROUND_UNKNOWN)
            (void)snprintf(how, sizeof(how), "ended");
        else if (c->ended)
            (void)snprintf(how, sizeof(how), "exited %d", c->exit_code);
        time_local(c->ended ? c->ended_ns : c->started_ns, when);
        (void)buf_printf(b, "  %-5u %s (%s %s)\n", c->id, c->text, how, when);
    }
}

static void sandbox_text(const struct items *l, struct buf *b)
{
    const struct sandbox *sb = sandbox_item(l, 0);
    const struct sandbox_spec *s = &sb->spec;
    char when[TIME_TEXT_MAX], pid[16];
    text_line(b, "Name:", s->name);
    text_line(b, "Status:", status_lower(sb->state.status));
    text_line(b, "Reason:", sb->state.reason);
    time_local(s->created_ns, when);
    text_line(b, "Created:", when);
    time_local(sb->state.updated_ns ? sb->state.updated_ns : s->created_ns, when);
    text_line(b, "Updated:", when);
    text_line(b, "Image:", s->image);
    text_line(b, "Digest:", s->image_digest);
    if (active(sb)) {
        (void)snprintf(pid, sizeof(pid), "%d", (int)sb->state.pid);
        text_line(b, "Monitor:", pid);
        text_line(b, "Engine:", sb->state.engine);
        text_line(b, "Jail:", sb->state.jail);
    }
    background(b, l);
    pending(b, l);
    resources(b, s, sb->state.oom_kills);
    network(b, sb);
    vsocks(b, &sb->spec.vsocks);
    runtime(b, s);
    text_section(b, "Environment", s->env.v);
    text_section(b, "Secrets", s->secrets.v);
    text_section(b, "Bound secrets", s->net.bound.secrets.v);
    text_section(b, "Labels", s->labels.v);
    mounts(b, s);
    patches(b, &s->patches);
    scripts_and_limits(b, s);
}

static const struct noun sandbox = {.open = sandboxes_open,
                                    .free = sandboxes_free,
                                    .json = sandbox_item_json,
                                    .text = sandbox_text};

const struct cmd cmd_inspect = {
    .name = "inspect",
    .group = GROUP_SANDBOX,
    .summary = "Show details of a sandbox",
    .opts = inspect_opts,
    .pos = ONE("NAME", "Sandbox to show"),
    .examples = "  msb inspect web\n"
                "  msb inspect web --format json",
    .inspect = &sandbox,
};
