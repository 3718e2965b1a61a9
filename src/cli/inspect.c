#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool active(const struct sandbox *sb)
{
    return sb->state.pid != 0;
}

/* What it was asked to be, with the ports that it got. */
static json_t *active_config(const struct sandbox *sb)
{
    AUTO_FREE struct spec_port *p = NULL;
    if (!active(sb))
        return json_null();
    size_t n = show_ports(sb, &p);
    json_t *config = spec_to_config(&sb->spec), *ports = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(ports, spec_port_to_json(&p[i]));
    (void)json_object_set_new(json_object_get(config, "network"), "ports", ports);
    return config;
}

static int print_json(const struct sandbox *sb)
{
    uint64_t updated = sb->state.updated_ns ? sb->state.updated_ns : sb->spec.created_ns;
    return ui_print_json(json_pack(
        "{s:o, s:o, s:o, s:s, s:s, s:s, s:o, s:[], s:s, s:o}", "active_config", active_config(sb),
        "config", spec_to_config(&sb->spec), "created_at", json_time(sb->spec.created_ns), "engine",
        sb->state.engine, "name", sb->spec.name, "reason", sb->state.reason, "started_at",
        json_time(sb->state.started_ns), "pending_changes", "status", status_name(sb->state.status),
        "updated_at", json_time(updated)));
}

/* A line "Label:   value"; what a guest or an image may have chosen is made safe to show. */
static void line(struct buf *b, const char *label, const char *value)
{
    AUTO_FREE char *safe = value ? strdup(value) : NULL;
    if (!safe || !*safe)
        return;
    utf8_defuse(safe);
    (void)buf_printf(b, "%-16s%s\n", label, safe);
}

static void number_line(struct buf *b, const char *label, double value)
{
    (void)buf_printf(b, "%-16s%g\n", label, value);
}

static void list_section(struct buf *b, const char *title, const struct strlist *l)
{
    if (l->n == 0)
        return;
    (void)buf_printf(b, "\n%s\n", title);
    for (size_t i = 0; i < l->n; i++) {
        AUTO_FREE char *safe = strdup(l->v[i]);
        if (safe)
            utf8_defuse(safe);
        (void)buf_printf(b, "  %s\n", safe ? safe : "");
    }
}

static void words_line(struct buf *b, const char *label, const struct strlist *l)
{
    struct buf words;
    buf_init(&words, 1 << 20);
    for (size_t i = 0; i < l->n; i++)
        (void)buf_printf(&words, "%s%s", i ? " " : "", l->v[i]);
    if (buf_append(&words, "", 1) == 0)
        line(b, label, (char *)buf_head(&words));
    buf_free(&words);
}

static void resources(struct buf *b, const struct sandbox_spec *s)
{
    char text[64], size[32];
    (void)buf_printf(b, "\nResources\n");
    number_line(b, "  CPUs:", s->cpus);
    number_line(b, "  Max CPUs:", s->cpus);
    line(b, "  Placement:", s->placement == PLACEMENT_SPREAD ? "spread" : "inherit");
    (void)snprintf(text, sizeof(text), "%llu MiB", (unsigned long long)s->memory_mib);
    line(b, "  Memory:", text);
    line(b, "  Max Memory:", text);
    line(b, "  THP:", "madvise");
    line(b, "  Engine:", engine_kind_name(s->engine));
    format_mib(s->root_disk_bytes / MIB, size, sizeof(size));
    (void)snprintf(text, sizeof(text), "%s%s%s",
                   s->root_disk == ROOT_DISK_TMPFS ? "tmpfs" : "managed",
                   s->root_disk_bytes ? ", " : "", s->root_disk_bytes ? size : "");
    line(b, "  Root disk:", text);
}

static void runtime(struct buf *b, const struct sandbox_spec *s)
{
    char text[64];
    (void)buf_printf(b, "\n");
    line(b, "Security:", "default");
    line(b, "Workdir:", s->workdir);
    line(b, "User:", s->user);
    line(b, "Shell:", s->shell);
    line(b, "Hostname:", s->hostname);
    words_line(b, "Entrypoint:", &s->entrypoint);
    words_line(b, "Command:", &s->cmd);
    line(b, "Stop signal:", s->stop_signal);
    words_line(b, "Exposed ports:", &s->ports);
    words_line(b, "Volumes:", &s->volumes);
    words_line(b, "Write paths:", &s->write_paths);
    if (s->workspace.name || s->workspace.path) {
        line(b, "Workspace:", s->workspace.name ? s->workspace.name : s->workspace.path);
        line(b, "  Mode:", s->workspace.mode == WORKSPACE_SNAPSHOT ? "snapshot" : "fuse");
    }
    line(b, "Ephemeral:", s->ephemeral ? "yes" : NULL);
    if (s->idle_timeout_ms) {
        format_duration(s->idle_timeout_ms, text, sizeof(text));
        line(b, "Idle timeout:", text);
    }
    if (s->max_duration_ms) {
        format_duration(s->max_duration_ms, text, sizeof(text));
        line(b, "Max duration:", text);
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
        line(b, label, text);
    }
}

/* How what is allowed gets there. */
static void network_way(struct buf *b, const struct spec_net *n)
{
    char url[SPEC_PROXY_URL_MAX];
    limit(b, "  Limit out:", &n->egress_rate);
    limit(b, "  Limit in:", &n->ingress_rate);
    if (n->proxy.version) {
        spec_proxy_url(&n->proxy, url);
        line(b, "  Proxy:", url);
        line(b, "  Proxy user:", n->proxy.user);
        line(b, "  Password in:", n->proxy.password_env);
    }
    line(b, "  Host CAs:", n->trust_host_cas ? "trusted" : NULL);
}

static void vsocks(struct buf *b, const struct spec_vsocks *l)
{
    if (l->n > 0)
        (void)buf_printf(b, "\nHost sockets\n");
    for (size_t i = 0; i < l->n; i++)
        (void)buf_printf(b, "  vsock %-10u→ %s\n", l->v[i].port, l->v[i].path);
}

static void network(struct buf *b, const struct sandbox *sb)
{
    const struct spec_net *n = &sb->spec.net;
    AUTO_FREE struct spec_port *p = NULL;
    size_t n_ports = show_ports(sb, &p);
    bool open = !n->profile && n->rules.n == 0 && n->egress == NET_DEFAULT_UNSET;
    (void)buf_printf(b, "\nNetwork\n");
    if (n->off) {
        line(b, "  Profile:", "no network");
        return;
    }
    line(b, "  Profile:", open ? "public" : n->profile ? n->profile : "none");
    for (size_t i = 0; i < n->rules.n; i++)
        line(b, "  Rule:", n->rules.v[i]);
    line(b, "  Otherwise:", n->egress == NET_DEFAULT_ALLOW ? "allow" : "deny");
    line(b, "  Ingress:", n->ingress == NET_DEFAULT_DENY ? "deny" : "allow");
    line(b, "  Strict:", n->strict ? "yes" : NULL);
    for (unsigned i = 0; i < n->n_nameservers; i++) {
        char text[END_TEXT_MAX];
        end_format(&n->nameserver[i], text);
        line(b, "  Name server:", text);
    }
    for (size_t i = 0; i < n_ports; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&p[i], text);
        line(b, "  Port:", text);
    }
    network_way(b, n);
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

/* What was put into it before its first command. */
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

static int print_text(const struct sandbox *sb)
{
    const struct sandbox_spec *s = &sb->spec;
    struct buf b;
    char when[TIME_TEXT_MAX], pid[16];
    buf_init(&b, SIZE_MAX / 2);
    line(&b, "Name:", s->name);
    line(&b, "Status:", status_lower(sb->state.status));
    line(&b, "Reason:", sb->state.reason);
    time_local(s->created_ns, when);
    line(&b, "Created:", when);
    time_local(sb->state.updated_ns ? sb->state.updated_ns : s->created_ns, when);
    line(&b, "Updated:", when);
    line(&b, "Image:", s->image);
    line(&b, "Digest:", s->image_digest);
    if (active(sb)) {
        (void)snprintf(pid, sizeof(pid), "%d", (int)sb->state.pid);
        line(&b, "Monitor:", pid);
        line(&b, "Engine:", sb->state.engine);
    }
    resources(&b, s);
    network(&b, sb);
    vsocks(&b, &sb->spec.vsocks);
    runtime(&b, s);
    list_section(&b, "Environment", &s->env);
    list_section(&b, "Secrets", &s->secrets);
    list_section(&b, "Labels", &s->labels);
    mounts(&b, s);
    patches(&b, &s->patches);
    scripts_and_limits(&b, s);
    int code = ui_print(&b);
    buf_free(&b);
    return code;
}

static int inspect_run(const struct args *a)
{
    struct sandbox sb = {0};
    int code = show_one(a->pos[0], &sb);
    if (code)
        return code;
    code = wants_json(a) ? print_json(&sb) : print_text(&sb);
    sandbox_close(&sb);
    return code;
}

static const struct opt inspect_opts[] = {FORMAT_OPTION, {0}};

const struct cmd cmd_inspect = {
    .name = "inspect",
    .group = GROUP_SANDBOX,
    .summary = "Show everything about one sandbox",
    .opts = {inspect_opts},
    .pos = {.name = "NAME", .help = "Sandbox to show", .required = true},
    .examples = "  msb inspect web\n"
                "  msb inspect web --format json",
    .run = inspect_run,
};
