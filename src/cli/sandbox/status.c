#include "cli/core/common_opts.h"
#include "cli/core/show.h"
#include "cli/core/verbs.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool keep(const struct sandbox *sb, const struct args *a)
{
    enum status st = sb->state.status;
    return args_has(a, "all") || (st != STATUS_STOPPED && st != STATUS_CRASHED);
}

static int status_items_load(struct items *l, struct err *e)
{
    return sandboxes_load(l, keep, sandbox_by_name, e);
}

/* The default command on one line; words with spaces are quoted. NULL = there is none. */
static char *command_line(const struct sandbox_spec *s)
{
    const struct strlist *lists[] = {&s->entrypoint, &s->cmd};
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (size_t j = 0; j < lists[i]->n; j++) {
            const char *w = lists[i]->v[j];
            const char *quote = !*w || strpbrk(w, " \t\n\"'\\$`&|;<>()*?") ? "\"" : "";
            (void)buf_printf(&b, "%s%s%s%s", buf_len(&b) ? " " : "", quote, w, quote);
        }
    return buf_len(&b) ? strndup((char *)buf_head(&b), buf_len(&b)) : NULL;
}

/* The latest command in the background, or the default one; "-" = there is none. */
static char *command_text(const struct sandbox_spec *s, const struct background *b)
{
    const struct background_command *latest = background_latest(b, false);
    char *command = latest ? strdup(latest->text) : command_line(s);
    return command ? command : strdup("-");
}

static json_t *ports_json(const struct sandbox *sb)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = show_ports(sb, &p);
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&p[i], text);
        (void)json_array_append_new(a, json_string(text));
    }
    return a;
}

/* "-" = none. */
static void add_ports(struct table *t, const struct sandbox *sb)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    show_ports_text(sb, &b);
    table_add(t, buf_len(&b) && buf_append(&b, "", 1) == 0 ? (const char *)buf_head(&b) : "-");
}

static json_t *status_item_json(const struct items *l, size_t i)
{
    const struct sandbox *sb = sandbox_item(l, i);
    AUTO_SPEC struct sandbox_spec room;
    struct background b;
    spec_init(&room);
    const struct sandbox_spec *s = show_active(l, sb, &room);
    background_load(l->store, sb, &b);
    AUTO_FREE char *command = command_text(s, &b);
    return json_pack("{s:o*, s:s?, s:o, s:s, s:o, s:I, s:I, s:s, s:o, s:s, s:s}", "background",
                     b.n ? background_json(&b) : NULL, "command", command, "cpus",
                     json_number(s->cpus), "image", s->image, "max_cpus",
                     json_number(spec_max_cpus(s)), "max_memory_mib",
                     (json_int_t)spec_max_memory_mib(s), "memory_mib", (json_int_t)s->memory_mib,
                     "name", s->name, "ports", ports_json(sb), "status",
                     status_name(sb->state.status), "thp", thp_name(s->thp));
}

static void status_item_row(const struct items *l, size_t i, struct table *t)
{
    const struct sandbox *sb = sandbox_item(l, i);
    AUTO_SPEC struct sandbox_spec room;
    char cpus[64], mib[32], most[32], memory[80], status[STATUS_TEXT_MAX];
    struct background b;
    spec_init(&room);
    const struct sandbox_spec *s = show_active(l, sb, &room);
    background_load(l->store, sb, &b);
    AUTO_FREE char *command = command_text(s, &b);
    show_status(sb, &b, status);
    (void)snprintf(cpus, sizeof(cpus), "%g / %g", s->cpus, spec_max_cpus(s));
    format_mib(s->memory_mib, mib, sizeof(mib));
    format_mib(spec_max_memory_mib(s), most, sizeof(most));
    (void)snprintf(memory, sizeof(memory), "%s / %s", mib, most);
    TABLE_ROW(t, s->name, s->image, command ? command : "-", cpus, memory, status);
    add_ports(t, sb);
}

static int status_run(const struct args *a)
{
    struct noun sandboxes = {
        .none = args_has(a, "all") ? "No sandboxes found." : "No running sandboxes.",
        .headers = {"NAME", "IMAGE", "COMMAND", "CPUS", "MEM", "STATUS", "PORTS"},
        .widths = {0, 36, 40, 0, 0, 0, 32},
        .status_column = 5,
        .load = status_items_load,
        .open = sandboxes_open, /* whatever its status */
        .free = sandboxes_free,
        .name = sandbox_item_name,
        .row = status_item_row,
        .json = status_item_json,
    };
    return noun_list(&sandboxes, a);
}

const struct cmd cmd_status = {
    .name = "status",
    .alias = "ps",
    .group = GROUP_SANDBOX,
    .summary = "Show running sandboxes and their resources",
    .opts = OPTIONS({"all", 'a', NULL, "Also show stopped and crashed sandboxes"}, LABEL_FILTER,
                    NAMES_ONLY_OPTION, FORMAT_OPTION),
    .pos = MAYBE("NAME", "One sandbox, running or not (default: all running ones)"),
    .examples = "  msb ps\n"
                "  msb ps -a --format json\n"
                "  msb status web",
    .run = status_run,
};
