/* metrics: what sandboxes use. `top` and `stats` are aliases. */
#include "cli/sandbox/metrics.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "client/terminal.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/parse.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INTERVAL_DEFAULT_MS = 1000, INTERVAL_MIN_MS = 50, GLANCE_MS = 200 };

#define ENTER_SCREEN "\x1b[?1049h\x1b[?25l"
#define LEAVE_SCREEN "\x1b[?25h\x1b[?1049l"

static int interval_option(const struct args *a, uint64_t *ms, struct err *e)
{
    const char *v = args_get(a, "interval");
    *ms = INTERVAL_DEFAULT_MS;
    if (v && (parse_duration_ms(v, ms) < 0 || *ms < INTERVAL_MIN_MS))
        return args_bad_value(a, "interval", v, "expected at least 50ms, such as 500ms or 2s", e);
    return 0;
}

/* Takes two samples, since rates need two. */
static int look(const struct args *a, struct metrics *now, struct metrics *before, uint64_t pause,
                struct err *e)
{
    metrics_free(before);
    *before = *now;
    *now = (struct metrics){0};
    if (pause)
        sleep_ms(pause);
    int r = metrics_load(a, now, e);
    metrics_compare(now, before);
    return r;
}

static int print_once(const struct args *a, const struct metrics *m)
{
    AUTO_BUF struct buf out = {.limit = SIZE_MAX / 2};
    const char *format = args_get(a, "format");
    if (format && strcmp(format, "json") == 0)
        return ui_print_json(metrics_json(m, a->n_pos > 0));
    if (format)
        metrics_prometheus(m, &out);
    else if (m->n == 0)
        ui_note("No running sandboxes.");
    else
        metrics_table(m, &out);
    return ui_print(&out);
}

/* True if a key that ends the display was pressed within that time. */
static bool wants_to_leave(uint64_t ms)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&p, 1, (int)MIN(ms, (uint64_t)60000)) <= 0)
        return false;
    return read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 3 || key == 27;
}

static void draw(const struct metrics *m)
{
    AUTO_BUF struct buf out, lines;
    buf_init(&out, 1 << 20);
    buf_init(&lines, 1 << 20);
    if (m->n)
        metrics_table(m, &out);
    else
        (void)buf_printf(&out, "No running sandboxes.\n");
    (void)buf_printf(&lines, "\x1b[H");
    for (const char *p = (const char *)buf_head(&out), *end = p + buf_len(&out); p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        (void)buf_printf(&lines, "%.*s\x1b[K\r\n", (int)n, p); /* the terminal is raw */
        p += n + 1;
    }
    (void)buf_printf(&lines, "\x1b[K\r\nq quits\x1b[J");
    (void)fwrite(buf_head(&lines), 1, buf_len(&lines), stdout);
    (void)fflush(stdout);
}

static int watch(const struct args *a, uint64_t interval, struct err *e)
{
    struct metrics now = {0}, before = {0};
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return err_hinted(e, err_set(e, ENOTTY, "a live view needs a terminal"),
                          "use --follow for a stream of JSON, or --format json for one sample");
    int r = look(a, &now, &before, 0, e);
    if (r == 0)
        r = look(a, &now, &before, GLANCE_MS, e);
    if (r == 0 && (r = terminal_raw(STDIN_FILENO)) == 0) {
        (void)fputs(ENTER_SCREEN, stdout);
        do {
            draw(&now);
        } while (!wants_to_leave(interval) && (r = look(a, &now, &before, 0, e)) == 0);
        (void)fputs(LEAVE_SCREEN, stdout);
        (void)fflush(stdout);
        terminal_restore();
    }
    metrics_free(&now);
    metrics_free(&before);
    return r;
}

/* Runs until its reader is gone, or it is interrupted. */
static int follow(const struct args *a, uint64_t interval, struct err *e)
{
    struct metrics now = {0}, before = {0};
    int r = look(a, &now, &before, 0, e), code = EXIT_OK;
    while (r == 0 && code == EXIT_OK) {
        AUTO_BUF struct buf out = {.limit = SIZE_MAX / 2};
        r = look(a, &now, &before, interval, e);
        metrics_lines(&now, &out);
        code = r == 0 ? ui_print(&out) : EXIT_FAILED;
    }
    metrics_free(&now);
    metrics_free(&before);
    return r;
}

static int once(const struct args *a, struct err *e, int *code)
{
    struct metrics now = {0}, before = {0};
    int r = look(a, &now, &before, 0, e);
    if (r == 0 && now.n)
        r = look(a, &now, &before, GLANCE_MS, e);
    if (r == 0)
        *code = print_once(a, &now);
    metrics_free(&now);
    metrics_free(&before);
    return r;
}

static int metrics_run(const struct args *a)
{
    struct err e = {0};
    uint64_t interval;
    int code = EXIT_OK, r = interval_option(a, &interval, &e);
    if (r < 0)
        return ui_usage(&e);
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    bool stream = args_has(a, "stream") && terminal && !args_has(a, "no-stream");
    if (args_has(a, "follow"))
        r = follow(a, interval, &e);
    else if (args_has(a, "watch") || (stream && !args_has(a, "format")))
        r = watch(a, interval, &e);
    else
        r = once(a, &e, &code);
    return r < 0 ? ui_fail(&e) : code;
}

const struct cmd cmd_metrics = {
    .name = "metrics",
    .group = GROUP_SANDBOX,
    .summary = "Show what sandboxes use: CPU, memory, disk, network",
    .opts = OPTIONS(
        {"watch", 'w', NULL, "Show a live full-screen view, until q", .conflicts = "follow"},
        {"follow", 'f', NULL, "Print one JSON object per sandbox and interval"},
        {"interval", 0, "TIME", "How often --watch and --follow update (default: 1s)"},
        {"all", 'a', NULL, "Also show stopped and crashed sandboxes"},
        {"sort", 0, "COLUMN", "Column to sort by (default: name)", .choices = "name|cpu|mem"},
        {"format", 0, "FORMAT", "Print JSON, or text for Prometheus", .choices = "json|prometheus"},
        {"stream", 0, NULL, "--watch on a terminal", OPT_HIDDEN},
        {"no-stream", 0, NULL, "One look", OPT_HIDDEN}),
    .pos = MAYBE("NAME", "One sandbox (default: all running ones)"),
    .details =
        "CPU and memory are those of the processes on this host that run a sandbox; disk and "
        "network are what its guest read and wrote. 'msb top' is 'msb metrics --watch'.",
    .examples = "  msb metrics\n"
                "  msb top\n"
                "  msb metrics web --format json\n"
                "  msb metrics --format prometheus > /var/lib/node_exporter/msb.prom",
    .run = metrics_run,
};
