/* Options that a policy can forbid, each detected by its effect on the spec, no matter who wrote
 * that. */
#include "policy/impl.h"

#include <string.h>

static bool has_mount(const struct sandbox_spec *s, enum mount_kind kind)
{
    for (size_t i = 0; i < s->n_mounts; i++)
        if (s->mounts[i].kind == kind)
            return true;
    return false;
}

static bool has_copy(const struct sandbox_spec *s)
{
    for (size_t i = 0; i < s->patches.n; i++)
        if (s->patches.v[i].source)
            return true;
    return false;
}

static bool is_reduced(const struct sandbox_spec *s)
{
    enum jail_kind k = s->jail;
    return jail_kind_resolve(&k, NULL) < 0 || k == JAIL_REDUCED;
}

static bool trusts_blindly(const struct sandbox_spec *s)
{
    return s->net.bound.no_verify.n > 0;
}

/* Multi-tenant sandboxes are not: they get their own cores. */
static bool is_placed_as_usual(const struct sandbox_spec *s)
{
    return (s->placement == PLACEMENT_SPREAD || s->placement == PLACEMENT_AUTO) && !s->multi_tenant;
}

/* Name of the option, and whether the spec `s` shows it. */
#define OPTIONS(X)                                         \
    X("volume", has_mount(s, MOUNT_BIND))                  \
    X("mount-named", has_mount(s, MOUNT_NAMED))            \
    X("mount-disk", has_mount(s, MOUNT_DISK))              \
    X("workspace", s->workspace.name || s->workspace.path) \
    X("vsock", s->vsocks.n > 0)                            \
    X("copy", has_copy(s))                                 \
    X("port", s->net.n_ports > 0)                          \
    X("proxy", s->net.proxy.version != 0)                  \
    X("dns-nameserver", s->net.n_nameservers > 0)          \
    X("no-dns-rebind-protection", s->net.allow_rebind)     \
    X("trust-host-cas", s->net.trust_host_cas)             \
    X("secret-env", s->secrets.n > 0)                      \
    X("secret", s->net.bound.secrets.n > 0)                \
    X("tls-intercept", s->net.bound.intercept.n > 0)       \
    X("tls-intercept-ca-cert", s->net.bound.ca_cert)       \
    X("tls-no-verify-upstream-for", trusts_blindly(s))     \
    X("no-block-quic", s->net.bound.quic)                  \
    X("script", s->n_scripts > 0)                          \
    X("rlimit", s->n_rlimits > 0)                          \
    X("init", s->init.path)                                \
    X("net-ipv4-pool", s->net.pool4.bits > 0)              \
    X("net-ipv6-pool", s->net.pool6.bits > 0)              \
    X("jail", is_reduced(s))                               \
    X("cpu-placement", !is_placed_as_usual(s))             \
    X("disk-sync", s->disk_sync != DISK_SYNC_AUTO)

#define NAME(name, used) name,
const char *const forbidden_names[] = {OPTIONS(NAME) NULL};

static bool is_used(const char *option, const struct sandbox_spec *s)
{
#define USED(name, used)           \
    if (strcmp(option, name) == 0) \
        return used;
    OPTIONS(USED)
    return true;
}

void check_forbidden(struct judge *j, const struct layer *l, const struct setting *s)
{
    for (size_t i = 0; i < s->n; i++) {
        char asked[64];
        if (!is_used(s->item[i].text, j->spec))
            continue;
        (void)snprintf(asked, sizeof(asked), "--%s", s->item[i].text);
        judge_find(j, l, s, s->item[i].line, OUTCOME_REFUSED, asked, FORBIDDEN_TEXT);
    }
}
