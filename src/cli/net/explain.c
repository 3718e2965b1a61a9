/* Whether a connection would be allowed: according to a running sandbox, or to the spec. */
#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "client/net_request.h"
#include "net/dns.h"
#include "net/packet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_DENIED = 3 };

static void target_text(const struct explain_target *t, char *out, size_t size)
{
    char end[END_TEXT_MAX];
    const char *proto = t->proto == PROTO_UDP ? "udp" : "tcp";
    end_format(&(struct net_end){.addr = t->addr, .port = t->port}, end);
    if (t->name[0])
        (void)snprintf(out, size, "%s:%u/%s", t->name, t->port, proto);
    else
        (void)snprintf(out, size, "%s/%s", end, proto);
}

static int print_json(const struct explain_target *t, const struct explain_answer *a, bool live)
{
    char target[POLICY_NAME_MAX + 16], addr[ADDR_TEXT_MAX];
    target_text(t, target, sizeof(target));
    json_t *peers = json_array();
    for (size_t i = 0; i < a->n_peers; i++) {
        addr_format(&a->peer[i].addr, addr);
        (void)json_array_append_new(peers, json_pack("{s:s, s:s, s:s}", "address", addr, "verdict",
                                                     a->peer[i].allow ? "allow" : "deny", "why",
                                                     a->peer[i].why));
    }
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:b, s:o}", "target", target, "verdict",
                  a->allow ? "allow" : "deny", "why", a->why, "running", live, "pinned", peers);
    if (j && a->is_name)
        (void)json_object_set_new(
            j, "name",
            json_pack("{s:s, s:s}", "verdict", a->may_ask ? "allow" : "deny", "why", a->ask_why));
    return ui_print_json(j);
}

static int print_text(const struct explain_target *t, const struct explain_answer *a, bool live)
{
    char target[POLICY_NAME_MAX + 16], addr[ADDR_TEXT_MAX];
    AUTO_BUF struct buf b = {.limit = 1 << 16};
    target_text(t, target, sizeof(target));
    (void)buf_printf(&b, "%s  %s  %s\n", a->allow ? "allow" : "deny", target, a->why);
    if (a->is_name)
        (void)buf_printf(&b, "  name      %s  %s\n", a->may_ask ? "allow" : "deny", a->ask_why);
    for (size_t i = 0; i < a->n_peers; i++) {
        addr_format(&a->peer[i].addr, addr);
        (void)buf_printf(&b, "  address   %s  %s  %s\n", a->peer[i].allow ? "allow" : "deny", addr,
                         a->peer[i].why);
    }
    bool host = strcmp(t->name, DNS_HOST_NAME) == 0;
    if (a->is_name && a->may_ask && a->n_peers == 0 && !host)
        (void)buf_printf(&b, "  address   %s\n",
                         live ? "not resolved yet; this applies to a public address"
                              : "the sandbox is not running; this applies to a public address");
    return ui_print(&b);
}

/* Uses the spec: a sandbox that is not running has resolved nothing. */
static int explain_stopped(const struct sandbox *sb, const struct explain_target *t,
                           struct explain_answer *ret, struct err *e)
{
    struct policy p;
    int r = spec_net_policy(&sb->spec.net, &p, e);
    if (r < 0)
        return r;
    explain_by_policy(&p, t, ret);
    if (sb->spec.net.proxy.version)
        explain_with_proxy(t, ret);
    policy_free(&p);
    return 0;
}

static int explain(const struct sandbox *sb, const struct explain_target *t,
                   struct explain_answer *ret, bool *live, struct err *e)
{
    *live = sb->state.pid && sb->state.status == STATUS_RUNNING;
    if (sb->spec.net.off) {
        *ret = (struct explain_answer){.is_name = t->name[0] != '\0'};
        (void)snprintf(ret->why, sizeof(ret->why), "denied: the sandbox has no network");
        (void)snprintf(ret->ask_why, sizeof(ret->ask_why), "%s", ret->why);
        return 0;
    }
    int r = *live ? net_request_explain(sb->dirfd, t, ret, e) : -ENOTCONN;
    if (r < 0 && monitor_lock_holder(sb->dirfd) == 0) { /* it has ended */
        *live = false;
        err_clear(e);
        r = explain_stopped(sb, t, ret, e);
    }
    return r < 0 ? err_wrap(e, r, "sandbox '%s'", sb->spec.name) : 0;
}

static int net_explain_run(const struct args *a)
{
    struct explain_target t;
    struct explain_answer answer = {0};
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    struct err e = {0};
    bool live = false;
    if (explain_parse(a->pos[1], args_has(a, "udp"), &t, &e) < 0)
        return ui_usage(&e);
    int code = show_one(a->pos[0], &sb);
    if (code != EXIT_OK)
        return code;
    int r = explain(&sb, &t, &answer, &live, &e);
    if (r < 0)
        return ui_fail(&e);
    code = wants_json(a) ? print_json(&t, &answer, live) : print_text(&t, &answer, live);
    return code == EXIT_OK && !answer.allow ? EXIT_DENIED : code;
}

const struct cmd cmd_net_explain = {
    .name = "explain",
    .summary = "Show whether a sandbox may reach a target, and which rule decides",
    .opts = OPTIONS({"udp", 0, NULL, "Ask about UDP instead of TCP"}, FORMAT_OPTION),
    .pos = ONE("NAME", "Sandbox to ask about"),
    .then = ONE("TARGET", "URL, HOST[:PORT] or ADDRESS[:PORT]"),
    .details = "Nothing is sent. A running sandbox is asked, since it knows which names it has "
               "resolved; for a stopped one its configured policy is evaluated. The default port "
               "is the URL scheme's, or 443. For a host name there are two decisions: whether it "
               "may be resolved, and whether its addresses may be reached. The exit code is 0 for "
               "allow and 3 for deny.",
    .examples = "  msb net explain web https://example.com/\n"
                "  msb net explain web 10.0.0.5:5432\n"
                "  msb net explain --udp --format json web dns.example.com:53",
    .run = net_explain_run,
};
