#include "sandbox/conform.h"

#include "client/net_request.h"
#include "net/packet.h"
#include "sandbox/lifecycle.h"
#include "sandbox/net_change.h"
#include "store/ports.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *remedy_name(enum remedy r)
{
    static const char *const names[] = {[REMEDY_NET] = "narrow its network",
                                        [REMEDY_PORTS] = "unpublish ports",
                                        [REMEDY_STOP] = "stop it"};
    return names[r];
}

enum remedy remedy_for(const struct finding *f)
{
    if (strcmp(f->section, "egress") == 0)
        return f->fixed ? REMEDY_STOP : REMEDY_NET;
    if (strcmp(f->section, "caps") == 0 && strcmp(f->key, "ports") == 0)
        return REMEDY_PORTS;
    return REMEDY_STOP;
}

int sandbox_examine(const struct store *s, const struct rulebook *b, struct sandbox_spec *spec,
                    struct verdict *ret, struct err *e)
{
    AUTO_VERDICT struct verdict all = {0};
    int r = rulebook_judge(b, s, HOLD_START, SAID_ALL, spec, &all, e);
    size_t kept = 0;
    for (size_t i = 0; r == 0 && i < all.n; i++)
        if (all.v[i].outcome == OUTCOME_REFUSED) {
            struct finding f = all.v[kept];
            all.v[kept++] = all.v[i];
            all.v[i] = f;
        }
    if (r < 0)
        return r;
    for (size_t i = kept; i < all.n; i++) {
        free(all.v[i].asked);
        free(all.v[i].allowed);
    }
    all.n = kept;
    *ret = all;
    all = (struct verdict){0};
    return 0;
}

/* Narrows its network to what is allowed, as for a caller that made no specific request. */
static int narrow_net(const struct store *s, const struct rulebook *b, struct sandbox *sb,
                      struct err *e)
{
    AUTO_VERDICT struct verdict v = {0};
    int r = rulebook_judge(b, s, HOLD_START, SAID_ALL & ~SAID_NET, &sb->spec, &v, e);
    struct net_policy_change c = {.policy = &sb->spec.net, .drop = true};
    return r < 0 ? r : sandbox_net_set(s, sb->spec.name, &c, e);
}

/* The smallest limit is in one of the findings. */
static int drop_ports(const struct store *s, const struct sandbox *sb, const struct verdict *v,
                      struct err *e)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = 0;
    uint64_t limit, most = SPEC_PUBLISH_MAX;
    int r = sandbox_ports(s, sb, &p, &n); /* as actually bound: the spec may leave that open */
    if (r < 0)
        return err_sys(e, -r, "cannot read which ports sandbox '%s' publishes", sb->spec.name);
    for (size_t i = 0; i < v->n; i++)
        if (remedy_for(&v->v[i]) == REMEDY_PORTS && parse_u64(v->v[i].allowed, &limit) == 0)
            most = MIN(most, limit);
    for (; r == 0 && n > most; n--) {
        char end[END_TEXT_MAX], text[END_TEXT_MAX + 8];
        end_format(&(struct net_end){.addr = p[n - 1].bind, .port = p[n - 1].host}, end);
        (void)snprintf(text, sizeof(text), "%s/%s", end,
                       p[n - 1].proto == PROTO_UDP ? "udp" : "tcp");
        r = sandbox_port_remove(s, sb->spec.name, text, e);
    }
    return r;
}

/* Its monitor enforces the limits even if the spec does not have them. */
static int lower_ceiling(const struct rulebook *b, struct sandbox *sb, struct err *e)
{
    AUTO_JSON json_t *limits = NULL;
    int r = policy_limits(b, &sb->spec, &limits, e);
    if (r < 0 || json_array_size(limits) == 0)
        return r;
    r = net_request_limit(sb->dirfd, limits, e);
    if (r < 0 && monitor_lock_holder(sb->dirfd) == 0) { /* it has ended, which is just as good */
        err_clear(e);
        return 0;
    }
    return r < 0 ? err_wrap(e, r, "sandbox '%s'", sb->spec.name) : 0;
}

int sandbox_conform(const struct store *s, const struct rulebook *b, const char *name,
                    const struct verdict *v, warn_fn warn, struct err *e)
{
    bool needs[REMEDY_STOP + 1] = {false};
    for (size_t i = 0; i < v->n; i++)
        needs[remedy_for(&v->v[i])] = true;
    if (needs[REMEDY_STOP])
        return sandbox_stop(s, name, STOP_GRACE_DEFAULT_MS, false, warn, e);
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = sandbox_open(s, name, &sb, e);
    if (r == 0 && needs[REMEDY_PORTS])
        r = drop_ports(s, &sb, v, e);
    if (r == 0)
        r = lower_ceiling(b, &sb, e);
    return r == 0 && needs[REMEDY_NET] ? narrow_net(s, b, &sb, e) : r;
}
