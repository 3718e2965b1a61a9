#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"

#include <stdio.h>

static int ping_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    uint64_t rtt;
    int r = sandbox_ping(s, name, &rtt, e);
    if (r == 0 && args_has(a, "touch"))
        r = sandbox_touch(s, name, e);
    if (r < 0)
        return r;
    char text[SPEC_NAME_MAX + 32];
    uint64_t us = rtt / 1000;
    if (us < 10000)
        (void)snprintf(text, sizeof(text), "%s (%.1fms)", name, (double)us / 1000);
    else
        (void)snprintf(text, sizeof(text), "%s (%llums)", name, (unsigned long long)us / 1000);
    ui_success("Reachable", text);
    return 0;
}

const struct cmd cmd_ping = {
    .name = "ping",
    .group = GROUP_SANDBOX,
    .summary = "Check that sandboxes respond, and how fast",
    .opts = OPTIONS({"touch", 0, NULL, "Reset the idle timer as well"}, LABEL_SELECTOR("Ping"),
                    QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to ping"),
    .examples = "  msb ping web\n"
                "  msb ping --touch --label team=search",
    .each = &(const struct action){.fn = ping_one, .labels = true},
};
