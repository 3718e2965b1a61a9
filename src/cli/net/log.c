/* The network decisions of a sandbox: net.log, as text and as JSON. */
#include "cli/options/log.h"
#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "logs/net_record.h"
#include "logs/records.h"
#include "store/store.h"

#include <errno.h>
#include <unistd.h>

struct net_log_view {
    bool json, ascii, denied_only;
    int dirfd; /* of the sandbox */
};

static int render(void *ctx, const struct record_source *from, const struct log_entry *e,
                  struct buf *out)
{
    const struct net_log_view *v = ctx;
    struct net_record r;
    if (net_record_read(e, &r) < 0 ||
        (v->denied_only && r.verdict != NET_RECORD_DENY && r.kind != NET_RECORD_MISSED))
        return 0;
    int k = v->json ? record_json(net_record_json(&r), v->ascii, out) : net_record_text(&r, out);
    return k < 0 ? k : 1;
}

static bool is_alive(void *ctx, struct records *r)
{
    const struct net_log_view *v = ctx;
    return monitor_lock_holder(v->dirfd) != 0;
}

static int print_head(void)
{
    AUTO_BUF struct buf out = {.limit = 512};
    int r = buf_printf(&out, NET_RECORD_FORMAT, "TIME", "KIND", "VERDICT", "PROTO", "PEER", "WHY");
    return r < 0 || ui_print(&out) == EXIT_OK ? r : -EPIPE;
}

static int show(const char *name, struct records *r, struct net_log_view *v, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int k = show_open(name, &sb, e);
    if (k < 0)
        return k;
    v->dirfd = sb.dirfd;
    int logs = sandbox_logs_open(sb.dirfd);
    k = logs < 0 ? logs : records_add(r, logs, LOG_NET_NAME, NULL);
    if (k == 0 && !v->json)
        k = print_head();
    if (k == 0)
        k = records_show(r);
    records_free(r);
    if (k == -ENOENT) /* it was never started */
        k = 0;
    return k < 0 && k != -EPIPE ? err_sys(e, -k, "cannot show the network log of '%s'", name) : k;
}

static int net_log_run(const struct args *a)
{
    struct net_log_view v = {.json = json_lines_option(a),
                             .ascii = isatty(STDOUT_FILENO),
                             .denied_only = args_has(a, "denied")};
    struct records r = {
        .follow = args_has(a, "follow"), .render = render, .more = is_alive, .ctx = &v};
    struct err e = {0};
    if (tail_option(a, &r.has_tail, &r.tail, &e) < 0 ||
        when_option(a, "since", &r.since_ns, &e) < 0)
        return ui_usage(&e);
    (void)signal(SIGPIPE, SIG_IGN);
    int k = show(a->pos[0], &r, &v, &e);
    if (k == -EPIPE)
        return EXIT_BY_SIGPIPE;
    return k < 0 ? ui_fail(&e) : EXIT_OK;
}

const struct cmd cmd_net_log = {
    .name = "log",
    .summary = "Show the network decisions of a sandbox",
    .opts = OPTIONS({"follow", 'f', NULL, "Keep printing until the sandbox stops"},
                    {"denied", 0, NULL, "Show only denied traffic"}, TAIL_OPTION('n', "decisions"),
                    SINCE_OPTION("decisions"), JSON_LINES_OPTION, FORMAT_OPTION),
    .pos = ONE("NAME", "Sandbox, running or stopped"),
    .details =
        "One line for each flow that was opened or denied, each name that was queried, each "
        "name that a flow presented, and the end of each flow, with the rule that decided. "
        "Equal denials are counted; when there are too many decisions to log, a line says "
        "how many are missing. " TIME_DETAILS "\n\n"
        "JSON members: t, kind (flow, question, shown, ended, secret, missed), verdict, direction, "
        "proto, address, port, name, why, to_host, to_guest, ms, count.",
    .examples = "  msb net log web\n"
                "  msb net log -f --denied web\n"
                "  msb net log --since 10m --json web",
    .run = net_log_run,
};
