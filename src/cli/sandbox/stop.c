#include "cli/options/stop.h"
#include "cli/core/common_opts.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"
#include "util/parse.h"

#include <errno.h>

int stop_options(const struct args *a, uint64_t *grace_ms, bool *force, struct err *e)
{
    *force = args_has(a, "force");
    *grace_ms = STOP_GRACE_DEFAULT_MS;
    const char *v = args_get(a, "timeout");
    int r = v ? parse_duration_ms(v, grace_ms) : 0;
    if (r < 0)
        return args_bad_value(a, "timeout", v, r == -ERANGE ? "too long" : PARSE_DURATION_EXAMPLES,
                              e);
    return 0;
}

int stop_check(const struct args *a, struct err *e)
{
    return stop_options(a, &(uint64_t){0}, &(bool){false}, e);
}

static int stop_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    uint64_t grace;
    bool force;
    int r = stop_options(a, &grace, &force, e);
    return r < 0 ? r : sandbox_stop(s, name, grace, force, ui_warn, e);
}

const struct cmd cmd_stop = {
    .name = "stop",
    .group = GROUP_SANDBOX,
    .flags = CMD_DESTROYS,
    .summary = "Stop running sandboxes",
    .opts = OPTIONS(STOP_OPTS, {"all", 'a', NULL, "Stop all running sandboxes"},
                    LABEL_SELECTOR("Stop"), QUIET_OPTION),
    .pos = NAMES_POSITION("Sandboxes to stop"),
    .details = "Stopping a sandbox that is already stopped succeeds.",
    .examples = "  msb stop web\n"
                "  msb stop -t 30s db cache\n"
                "  msb stop --force --label team=search\n"
                "  msb stop --all",
    .each = &(const struct action){"Stopping", "Stopped", stop_one, .check = stop_check,
                                   .labels = true, .all = true},
};
