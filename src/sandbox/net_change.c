#include "sandbox/net_change.h"

#include "client/net_request.h"
#include "launch/publish.h"
#include "net/packet.h"
#include "policy/rulebook.h"
#include "sandbox/held.h"
#include "store/audit.h"
#include "store/ports.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* --- a change of the spec that a running sandbox is told ------------------------------------- */

/* A sandbox that is going down gets the new spec when it next starts. */
static bool is_live(const struct sandbox *sb)
{
    return sb->state.pid && sb->state.status == STATUS_RUNNING;
}

/* Locks the sandbox, ready for a new spec. */
static int net_hold(const struct store *s, const char *name, struct held *h, struct err *e)
{
    int r = held_take(s, name, h, e);
    if (r == 0)
        spec_sweep(h->sb.dirfd);
    return r;
}

/* Copies it through the stored form: they cannot differ. Free *to, after a failure, too. */
static int copy_net(const struct spec_net *from, struct spec_net *to, struct err *e)
{
    spec_net_init(to);
    AUTO_JSON json_t *j = json_pack("{s:o}", "network", spec_net_to_json(from, false));
    return j ? spec_net_from_json(to, j, e) : err_oom(e);
}

/* Whether the host's policy allows the sandbox with `now` as its network. */
static int hold(struct held *h, struct spec_net *now, struct err *e)
{
    struct sandbox_spec with = h->sb.spec; /* shares everything but the network */
    with.net = *now;
    int r = policy_hold_change(h->lock.store, &h->sb.spec, &with, e);
    *now = with.net;
    return r;
}

/* Makes `now` the spec's network, tells a running sandbox with `tell`, and restores the old one if
 * it refuses. Takes what *now holds in any case. A sandbox that has ended meanwhile need not be
 * told. */
static int change(struct held *h, struct spec_net *now,
                  int (*tell)(struct held *h, void *arg, struct err *e), void *arg, struct err *e)
{
    struct spec_net was = h->sb.spec.net;
    h->sb.spec.net = *now;
    spec_net_init(now);
    int r = spec_net_validate(&h->sb.spec.net, e);
    if (r == 0)
        r = spec_save(h->sb.dirfd, &h->sb.spec, true, e);
    bool saved = r == 0;
    if (r == 0 && is_live(&h->sb)) {
        r = tell(h, arg, e);
        if (r < 0 && monitor_lock_holder(h->sb.dirfd) == 0) {
            err_clear(e);
            h->sb.state.pid = 0;
            r = 0;
        }
    }
    if (r == 0) {
        spec_net_free(&was);
        return 0;
    }
    spec_net_free(&h->sb.spec.net);
    h->sb.spec.net = was;
    struct err again = {0};
    if (saved && spec_save(h->sb.dirfd, &h->sb.spec, true, &again) < 0)
        err_hint(e, "the next start will use the change nevertheless: %s", again.msg);
    return r;
}

static int needs_card(const struct held *h, struct err *e)
{
    if (!is_live(&h->sb) || !h->sb.spec.net.off)
        return 0;
    err_set(e, ENETDOWN, "sandbox '%s' was started without a network", h->sb.spec.name);
    err_hint(e, "stop it first: it will have one at the next start");
    return -ENETDOWN;
}

/* --- policy ---------------------------------------------------------------------------------- */

struct telling {
    struct net_policy_change *c;
    const struct spec_port *port;
    int fd;
};

static int tell_policy(struct held *h, void *arg, struct err *e)
{
    struct telling *t = arg;
    return net_request_set(h->sb.dirfd, &h->sb.spec.net, t->c->drop, &t->c->cut, e);
}

/* Without any setting, public addresses are allowed; with rules, the profile must be explicit. */
static bool is_unset(const struct spec_net *n)
{
    return !n->profile && n->rules.n == 0 && n->egress == NET_DEFAULT_UNSET;
}

static int make_policy(struct spec_net *n, const struct net_policy_change *c, struct err *e)
{
    const struct spec_net *w = c->policy;
    struct strlist old = n->rules;
    int r = 0;
    if (c->add && is_unset(n) && !w->profile)
        r = spec_net_set_profile(n, "public", e);
    if (!c->add) {
        free(n->profile);
        n->profile = NULL;
        n->egress = n->ingress = NET_DEFAULT_UNSET;
    }
    n->off = false;
    n->rules = (struct strlist){0};
    if (r == 0 && w->profile)
        r = spec_net_set_profile(n, w->profile, e);
    if (r == 0 &&
        (strlist_copy(&n->rules, &w->rules) < 0 || (c->add && strlist_copy(&n->rules, &old) < 0)))
        r = err_oom(e);
    strlist_free(&old);
    if (w->egress != NET_DEFAULT_UNSET)
        n->egress = w->egress;
    if (w->ingress != NET_DEFAULT_UNSET)
        n->ingress = w->ingress;
    return r;
}

int sandbox_net_set(const struct store *s, const char *name, struct net_policy_change *c,
                    struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    CLEANUP(spec_net_free) struct spec_net now = {0};
    int r = net_hold(s, name, &h, e);
    if (r < 0)
        return r;
    r = needs_card(&h, e);
    if (r == 0)
        r = copy_net(&h.sb.spec.net, &now, e);
    if (r == 0) {
        struct telling t = {.c = c};
        r = make_policy(&now, c, e);
        if (r == 0)
            r = hold(&h, &now, e);
        if (r == 0)
            r = change(&h, &now, tell_policy, &t, e);
        json_t *more = audit_net(r == 0 ? &h.sb.spec.net : c->policy);
        if (more && c->cut)
            (void)json_object_set_new(more, "cut", json_integer(c->cut));
        audit_done(s, "net-set", name, more, 0, r, e);
    }
    c->live = is_live(&h.sb);
    return r;
}

/* --- ports ----------------------------------------------------------------------------------- */

static void audit_port(const struct store *s, const char *event, const char *name,
                       const struct spec_port *p, int r, const struct err *e)
{
    char text[SPEC_PORT_TEXT_MAX];
    spec_port_format(p, text);
    audit_done(s, event, name, json_pack("{s:s}", "port", text), 0, r, e);
}

static int tell_publish(struct held *h, void *arg, struct err *e)
{
    struct telling *t = arg;
    return net_request_publish(h->sb.dirfd, t->port, t->fd, e);
}

static int tell_unpublish(struct held *h, void *arg, struct err *e)
{
    struct telling *t = arg;
    return net_request_unpublish(h->sb.dirfd, t->port, e);
}

/* One port; *got is what it became. */
static int add_one(struct held *h, const struct spec_port *want, struct spec_port *got,
                   struct err *e)
{
    CLEANUP(spec_net_free) struct spec_net now = {0};
    AUTO_CLOSE int fd = -1;
    *got = *want;
    int r = is_live(&h->sb) ? publish_bind(h->lock.store, want, &fd, got, e) : 0;
    if (r == 0)
        r = copy_net(&h->sb.spec.net, &now, e);
    if (r < 0)
        return r;
    struct telling t = {.port = got, .fd = fd};
    r = spec_net_add_port(&now, want, e);
    if (r == 0)
        r = hold(h, &now, e);
    return r < 0 ? r : change(h, &now, tell_publish, &t, e);
}

static bool same_port(const struct spec_port *a, const struct spec_port *b)
{
    return a->host == b->host && a->proto == b->proto && addr_equal(&a->bind, &b->bind);
}

/* The spec's entry for a port that is open: the same, or any host port for that guest port. */
static size_t find_spec(const struct spec_net *n, const struct spec_port *p)
{
    for (int any = 0; any < 2; any++)
        for (size_t i = 0; i < n->n_ports; i++) {
            const struct spec_port *o = &n->ports[i];
            struct spec_port want = *p;
            if (any)
                want.host = 0;
            if (same_port(o, &want) && o->guest == p->guest)
                return i;
        }
    return n->n_ports;
}

static int remove_one(struct held *h, const struct spec_port *p, struct err *e)
{
    CLEANUP(spec_net_free) struct spec_net now = {0};
    int r = copy_net(&h->sb.spec.net, &now, e);
    if (r < 0)
        return r;
    size_t i = find_spec(&now, p);
    if (i < now.n_ports) {
        now.n_ports--;
        memmove(&now.ports[i], &now.ports[i + 1], (now.n_ports - i) * sizeof(*now.ports));
    }
    struct telling t = {.port = p};
    return change(h, &now, tell_unpublish, &t, e);
}

int sandbox_port_add(const struct store *s, const char *name, const char *text,
                     struct spec_port **ret, size_t *n, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    CLEANUP(spec_net_free) struct spec_net parsed;
    spec_net_init(&parsed);
    int r = spec_net_add_ports(&parsed, text, e);
    if (r == 0)
        r = net_hold(s, name, &h, e);
    if (r < 0)
        return r;
    r = needs_card(&h, e);
    struct spec_port *all = reallocarray(*ret, *n + parsed.n_ports, sizeof(*all));
    if (all)
        *ret = all;
    else if (r == 0)
        r = err_oom(e);
    size_t done = 0;
    for (; all && r == 0 && done < parsed.n_ports; done += r == 0) {
        r = add_one(&h, &parsed.ports[done], &all[*n + done], e);
        audit_port(s, "port-add", name, r == 0 ? &all[*n + done] : &parsed.ports[done], r, e);
    }
    if (r < 0) /* of a range, all or nothing */
        for (struct err ignored = {0}; done > 0; done--) {
            (void)remove_one(&h, &all[*n + done - 1], &ignored);
            audit_port(s, "port-rm", name, &all[*n + done - 1], 0, NULL);
        }
    *n += done;
    return r;
}

/* [BIND:]PORT[/PROTO]; without an address, any. */
static int parse_host_side(const char *text, struct spec_port *ret, bool *any_bind, struct err *e)
{
    char copy[END_TEXT_MAX + 8], *s = copy, *slash, *colon;
    uint64_t port;
    *ret = (struct spec_port){.proto = PROTO_TCP};
    *any_bind = true;
    if (strlen(text) >= sizeof(copy))
        return err_set(e, EINVAL, "invalid port '%.32s...': too long", text);
    (void)snprintf(copy, sizeof(copy), "%s", text);
    slash = strchr(s, '/');
    if (slash)
        *slash++ = '\0';
    bool ok = !slash || strcmp(slash, "tcp") == 0 || strcmp(slash, "udp") == 0;
    if (ok && slash && strcmp(slash, "udp") == 0)
        ret->proto = PROTO_UDP;
    colon = strrchr(s, ':');
    if (ok && colon) {
        *colon++ = '\0';
        size_t n = strlen(s);
        if (n > 2 && s[0] == '[' && s[n - 1] == ']') {
            s[n - 1] = '\0';
            s++;
        }
        *any_bind = false;
        ok = addr_parse(s, &ret->bind) == 0;
        s = colon;
    }
    if (!ok || parse_u64(s, &port) < 0 || port < 1 || port > UINT16_MAX)
        return err_hinted(e, err_set(e, EINVAL, "invalid port '%s'", text),
                          "expected the host's side: [BIND:]HOST[/udp], such as 8080, 53/udp or "
                          "127.0.0.1:8080");
    ret->host = (uint16_t)port;
    return 0;
}

static int find_open(struct held *h, const struct spec_port *want, bool any_bind,
                     struct spec_port *ret, struct err *e)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = 0, found = 0;
    int r = sandbox_ports(h->lock.store, &h->sb, &p, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read which ports sandbox '%s' publishes", h->sb.spec.name);
    for (size_t i = 0; i < n; i++)
        if (p[i].host == want->host && p[i].proto == want->proto &&
            (any_bind || addr_equal(&p[i].bind, &want->bind))) {
            *ret = p[i];
            found++;
        }
    if (found > 1)
        return err_set(e, EINVAL,
                       "port %u is published at several addresses: specify one as ADDRESS:%u",
                       want->host, want->host);
    if (found == 1)
        return 0;
    err_set(e, ENOENT, "sandbox '%s' does not publish port %u/%s", h->sb.spec.name, want->host,
            want->proto == PROTO_UDP ? "udp" : "tcp");
    err_hint(e, "run `msb port %s` to see its ports", h->sb.spec.name);
    return -ENOENT;
}

int sandbox_port_remove(const struct store *s, const char *name, const char *text, struct err *e)
{
    AUTO_HELD struct held h = HELD_NONE;
    struct spec_port want = {0}, p = {0};
    bool any_bind = false;
    int r = parse_host_side(text, &want, &any_bind, e);
    if (r == 0)
        r = net_hold(s, name, &h, e);
    if (r < 0)
        return r;
    r = find_open(&h, &want, any_bind, &p, e);
    if (r == 0) {
        r = remove_one(&h, &p, e);
        audit_port(s, "port-rm", name, &p, r, e);
    }
    return r;
}
