/* The network policy of a sandbox: show, explain, set, log. */
#include "cli/core/verbs.h"

const struct cmd cmd_net = {
    .name = "net",
    .group = GROUP_SANDBOX,
    .summary = "Show, explain and change a sandbox's network policy",
    .subs = VERBS(&cmd_net_show, &cmd_net_explain, &cmd_net_set, &cmd_net_log),
    .examples = "  msb net explain web https://example.com/\n"
                "  msb net set web --net-rule allow@pypi.org\n"
                "  msb net log -f --denied web",
};
