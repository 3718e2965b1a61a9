#include "logs/logs.h"
#include "cli/core/args.h"
#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/log.h"
#include "store/store.h"
#include "util/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static bool monitor_lives(void *arg)
{
    return monitor_lock_holder(*(int *)arg) != 0;
}

/* --source may be repeated, and each takes a list. */
static int parse_sources(const struct args *a, struct logs_options *o, struct err *e)
{
    AUTO_STRLIST struct strlist lists = {0};
    int r = args_list(a, "source", &lists);
    if (r < 0)
        return err_oom(e);
    for (size_t i = 0; i < lists.n && r == 0; i++) {
        unsigned bits;
        if (logs_parse_sources(lists.v[i], &bits) == 0)
            o->sources |= bits;
        else
            r = args_bad_value(a, "source", lists.v[i],
                               "expected stdout, stderr, output, system or all", e);
    }
    if (o->sources == 0)
        o->sources = LOGS_DEFAULT_SOURCES;
    return r;
}

static int parse_options(const struct args *a, struct logs_options *o, struct err *e)
{
    o->follow = args_has(a, "follow");
    o->timestamps = args_has(a, "timestamps");
    o->show_id = args_has(a, "show-id");
    o->color_sessions = args_has(a, "color-sessions");
    o->json = args_has(a, "json");
    o->escape = args_has(a, "escape");
    o->grep = args_get(a, "grep");
    const char *color = args_get(a, "color");
    if (args_has(a, "no-color") || (color && strcmp(color, "never") == 0))
        o->color = COLOR_NEVER;
    else if (color && strcmp(color, "always") == 0)
        o->color = COLOR_ALWAYS;
    int r = tail_option(a, &o->has_tail, &o->tail, e);
    if (r == 0)
        r = when_option(a, "since", &o->since_ns, e);
    if (r == 0)
        r = when_option(a, "until", &o->until_ns, e);
    return r == 0 ? parse_sources(a, o, e) : r;
}

static int show_sandbox(const char *name, const struct logs_options *o, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = show_open(name, &sb, e);
    if (r < 0)
        return r;
    struct logs_options follow = *o;
    follow.alive = monitor_lives;
    follow.arg = &sb.dirfd;
    AUTO_CLOSE int logs = sandbox_logs_open(sb.dirfd);
    if (logs == -ENOENT) /* never started: nothing was logged */
        return 0;
    return logs < 0 ? err_sys(e, -logs, "cannot open the logs of '%s'", name)
                    : logs_show(logs, &follow, e);
}

static int logs_run(const struct args *a)
{
    struct logs_options o = {0};
    struct err e = {0};
    if (parse_options(a, &o, &e) < 0)
        return ui_usage(&e);
    (void)signal(SIGPIPE, SIG_IGN);
    int r = show_sandbox(a->pos[0], &o, &e);
    if (r == -EPIPE)
        return EXIT_BY_SIGPIPE;
    return r < 0 ? ui_fail(&e) : EXIT_OK;
}

static const struct opt display_opts[] = {
    {"color", 0, "WHEN", "When to use colors (default: auto)", .choices = "auto|always|never"},
    {"no-color", 0, NULL, "Same as --color never", .conflicts = "color"},
    {"escape", 0, NULL,
     "Make control characters visible even in a pipe, such as to less -R or tail"},
    {"show-id", 0, NULL, "Prefix each line with its session number"},
    {"color-sessions", 0, NULL, "Give the lines of each session their own color"},
    {0},
};
static const struct opt_group display_group = {"Display", display_opts};

const struct cmd cmd_logs = {
    .name = "logs",
    .group = GROUP_SANDBOX,
    .summary = "Show the output of a sandbox's commands",
    .opts = OPTIONS(
        {"follow", 'f', NULL, "Keep printing until the sandbox stops"}, TAIL_OPTION('n', "lines"),
        SINCE_OPTION("lines"), {"until", 0, "TIME", "Show only lines up to TIME"},
        {"timestamps", 't', NULL, "Prefix each line with its time"},
        {"source", 0, "SOURCE",
         "stdout, stderr, output (of terminals), system, all, or a list (default: "
         "stdout,stderr,output)",
         OPT_REPEAT},
        {"grep", 0, "REGEX", "Show only lines that match (extended regex)"}, JSON_LINES_OPTION),
    .groups = GROUPS(&display_group),
    .pos = ONE("NAME", "Sandbox whose logs to show"),
    .details = "Output that commands wrote to stderr goes to stderr, everything else to stdout. On "
               "a terminal, control characters other than colors are made visible. A file or a "
               "pipe gets the original bytes, unless --escape is given.\n\n" TIME_DETAILS,
    .examples = "  msb logs web\n"
                "  msb logs -f --tail 20 web\n"
                "  msb logs --since 10m --grep 'error|fatal' web\n"
                "  msb logs --source system --timestamps web",
    .run = logs_run,
};
