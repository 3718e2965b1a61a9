#include "logs/logs.h"
#include "cli/args.h"
#include "cli/log_opts.h"
#include "cli/ui.h"
#include "cli/verbs.h"
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
    struct strlist lists = {0};
    int r = args_list(a, "source", &lists);
    if (r < 0)
        return err_sys(e, -r, "cannot read the options");
    for (size_t i = 0; i < lists.n && r == 0; i++) {
        unsigned bits;
        if (logs_parse_sources(lists.v[i], &bits) == 0)
            o->sources |= bits;
        else
            r = args_bad_value(a, "source", lists.v[i],
                               "expected stdout, stderr, output, system or all", e);
    }
    strlist_free(&lists);
    if (o->sources == 0)
        o->sources = LOGS_DEFAULT_SOURCES;
    return r;
}

static int parse_options(const struct args *a, struct logs_options *o, struct err *e)
{
    o->follow = args_has(a, "follow");
    o->timestamps = args_has(a, "timestamps");
    o->show_id = args_has(a, "show-id");
    o->json = args_has(a, "json");
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
    struct store s;
    struct sandbox sb;
    int r = store_open(&s, e);
    if (r < 0)
        return r;
    r = sandbox_open(&s, name, &sb, e);
    if (r == 0) {
        struct logs_options follow = *o;
        follow.alive = monitor_lives;
        follow.arg = &sb.dirfd;
        AUTO_CLOSE int logs = sandbox_logs_open(sb.dirfd);
        if (logs >= 0)
            r = logs_show(logs, &follow, e);
        else if (logs != -ENOENT) /* never started: nothing was logged */
            r = err_sys(e, -logs, "cannot open the logs of '%s'", name);
        sandbox_close(&sb);
    }
    store_close(&s);
    return r;
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

static const struct opt logs_opts[] = {
    TAIL_OPTION("lines"),
    SINCE_OPTION("was written"),
    {.name = "until", .value = "TIME", .help = "Show what was written up to TIME"},
    {.name = "follow",
     .letter = 'f',
     .help = "Go on showing what is written, until the sandbox stops"},
    {.name = "timestamps", .help = "Begin each line with the time it was written"},
    {.name = "source",
     .value = "SOURCE",
     .help = "What to show: stdout, stderr, output (of terminals), system, all, or a list of them "
             "(default: stdout,stderr,output)",
     .flags = OPT_REPEAT},
    {.name = "grep",
     .value = "REGEX",
     .help = "Show only lines that match an extended regular expression"},
    {.name = "json", .help = "Print log entries as JSON, one a line"},
    {.name = "color",
     .value = "WHEN",
     .help = "When to use colours (default: auto)",
     .choices = "auto|always|never"},
    {.name = "no-color", .help = "The same as --color never", .conflicts = "color"},
    {.name = "show-id", .help = "Begin each line with the number of the command's session"},
    {0},
};

const struct cmd cmd_logs = {
    .name = "logs",
    .group = GROUP_SANDBOX,
    .summary = "Show what commands of a sandbox printed",
    .opts = {logs_opts},
    .pos = {.name = "NAME", .help = "Sandbox whose logs to show", .required = true},
    .details =
        "What commands wrote to stderr goes to stderr, everything else to stdout.\n" TIME_DETAILS
        "On a terminal, control characters other than colours are shown, not obeyed. A file or\n"
        "a pipe gets the bytes as they were written.",
    .examples = "  msb logs web\n"
                "  msb logs -f --tail 20 web\n"
                "  msb logs --source system --timestamps web\n"
                "  msb logs --since 10m --grep 'error|fatal' web",
    .run = logs_run,
};
