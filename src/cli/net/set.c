/* Changing and showing the network policy of a sandbox. */
#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/net.h"
#include "client/net_request.h"
#include "sandbox/net_change.h"

#include <errno.h>
#include <stdio.h>

/* --- set ------------------------------------------------------------------------------------- */

/* The policy options, or --reset for the default policy. */
static int read_policy(const struct args *a, struct spec_net *n, struct err *e)
{
    int r = net_policy_options(a, n, e);
    if (r < 0)
        return r;
    n->off = false; /* the card cannot be removed: deny everything */
    bool said = n->profile || n->rules.n || n->egress != NET_DEFAULT_UNSET ||
                n->ingress != NET_DEFAULT_UNSET;
    if (said && args_has(a, "reset"))
        return err_set(e, EINVAL, "--reset cannot be used with other policy options");
    if (!said && !args_has(a, "reset"))
        return err_hinted(
            e, err_set(e, EINVAL, "no policy given"),
            "use --net, --net-rule, --net-default or --no-net, or --reset for the default policy");
    return 0;
}

static void report(const char *name, const struct net_policy_change *c)
{
    char text[128];
    ui_success("Changed", name);
    if (!c->live) {
        ui_note("note: the sandbox is not running; the policy applies from its next start");
    } else if (c->drop) {
        (void)snprintf(text, sizeof(text), "note: closed %u flow%s", c->cut,
                       c->cut == 1 ? "" : "s");
        ui_note(text);
    }
}

static int net_set_run(const struct args *a)
{
    struct spec_net n;
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    struct net_policy_change c = {
        .policy = &n, .add = args_has(a, "add"), .drop = args_has(a, "drop-existing")};
    spec_net_init(&n);
    if (read_policy(a, &n, &e) < 0) {
        spec_net_free(&n);
        return ui_usage(&e);
    }
    int r = store_open_for(a, &s, &e);
    if (r == 0)
        r = sandbox_net_set(&s, a->pos[0], &c, &e);
    if (r == 0) {
        report(a->pos[0], &c);
        if (!c.add)
            net_note_allowlist(&n);
    }
    spec_net_free(&n);
    return r < 0 ? ui_fail(&e) : EXIT_OK;
}

static const struct opt policy_opts[] = {NET_POLICY_OPTIONS, POLICY_OPTION, {0}};
static const struct opt_group policy_group = {"Policy", policy_opts};

const struct cmd cmd_net_set = {
    .name = "set",
    .summary = "Change the network policy of a sandbox",
    .opts =
        OPTIONS({"add", 0, NULL, "Add the rules before the current ones, and keep the rest"},
                {"reset", 0, NULL, "Restore the default policy: public addresses only"},
                {"drop-existing", 0, NULL, "Close flows that the new policy denies"}, QUIET_OPTION),
    .groups = GROUPS(&policy_group),
    .pos = ONE("NAME", "Sandbox to change"),
    .details =
        "The options replace the whole policy or, with --add, extend it. In a running sandbox "
        "the new policy applies at once to new flows and DNS queries; existing flows continue "
        "unless --drop-existing closes them. Later starts use it, too. --no-net denies "
        "everything.",
    .examples = "  msb net set web --net-rule allow@pypi.org,allow@*.debian.org\n"
                "  msb net set web --add --net-rule deny@example.com --drop-existing\n"
                "  msb net set web --reset\n"
                "  msb net set web --no-net --drop-existing",
    .run = net_set_run,
};

/* --- show ------------------------------------------------------------------------------------ */

struct shown {
    struct strlist rules;
    bool egress, ingress;
    bool off, live;
    bool pending; /* the spec differs from the policy in force */
    char counters[1024];
};

static int by_spec(const struct spec_net *n, struct shown *ret, struct err *e)
{
    struct policy p;
    int r = spec_net_policy(n, &p, e);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < p.n; i++)
        r = strlist_add(&ret->rules, p.rule[i].text);
    ret->egress = p.default_egress;
    ret->ingress = p.default_ingress;
    policy_free(&p);
    return r < 0 ? err_oom(e) : 0;
}

static int look(const struct sandbox *sb, struct shown *ret, struct err *e)
{
    struct net_in_force now = {0};
    ret->off = sb->spec.net.off;
    int r = by_spec(&sb->spec.net, ret, e);
    bool running = sb->state.pid && sb->state.status == STATUS_RUNNING;
    if (r < 0 || ret->off || !running)
        return r;
    r = net_request_show(sb->dirfd, &now, e);
    if (r < 0)
        return monitor_lock_holder(sb->dirfd) == 0 ? 0
                                                   : err_wrap(e, r, "sandbox '%s'", sb->spec.name);
    ret->live = true;
    ret->pending = !strlist_same(&now.rules, &ret->rules) || now.default_egress != ret->egress ||
                   now.default_ingress != ret->ingress;
    struct strlist by_file = ret->rules;
    ret->rules = now.rules;
    now.rules = by_file;
    ret->egress = now.default_egress;
    ret->ingress = now.default_ingress;
    (void)snprintf(ret->counters, sizeof(ret->counters), "%s", now.counters);
    net_in_force_free(&now);
    return 0;
}

static int print_json(const struct shown *s)
{
    json_t *rules = json_list(s->rules.v);
    json_t *counters = s->counters[0] ? json_loads(s->counters, 0, NULL) : NULL;
    return ui_print_json(json_pack("{s:b, s:b, s:b, s:o, s:s, s:s, s:o}", "enabled", !s->off,
                                   "running", s->live, "pending", s->pending, "rules", rules,
                                   "default_egress", s->egress ? "allow" : "deny",
                                   "default_ingress", s->ingress ? "allow" : "deny", "counters",
                                   counters ? counters : json_null()));
}

static int print_text(const struct shown *s)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    for (size_t i = 0; i < s->rules.n; i++)
        (void)buf_printf(&b, "rule %-3zu  %s\n", i + 1, s->rules.v[i]);
    if (s->off)
        (void)buf_printf(&b, "no network\n");
    else
        (void)buf_printf(&b, "otherwise egress %s, ingress %s\n", s->egress ? "allow" : "deny",
                         s->ingress ? "allow" : "deny");
    int code = ui_print(&b);
    if (s->pending)
        ui_warn(
            "the stored policy differs and applies from the next start: a change was interrupted; "
            "repeat it with `msb net set`");
    return code;
}

static int net_show_run(const struct args *a)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    struct shown s = {0};
    struct err e = {0};
    int code = show_one(a->pos[0], &sb);
    if (code != EXIT_OK)
        return code;
    int r = look(&sb, &s, &e);
    if (r < 0)
        code = ui_fail(&e);
    else
        code = wants_json(a) ? print_json(&s) : print_text(&s);
    strlist_free(&s.rules);
    return code;
}

const struct cmd cmd_net_show = {
    .name = "show",
    .summary = "Show the network policy of a sandbox, rule by rule",
    .opts = inspect_opts,
    .pos = ONE("NAME", "Sandbox whose policy to show"),
    .details = "Rules are numbered as in 'net log' and 'net explain'. For a running sandbox it is "
               "the policy in force; JSON also has its counters.",
    .examples = "  msb net show web\n"
                "  msb net show --format json web",
    .run = net_show_run,
};
