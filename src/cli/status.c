#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
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

static int by_name(const void *a, const void *b)
{
    const struct sandbox *x = a, *y = b;
    return strcmp(x->spec.name, y->spec.name);
}

/* The default command as one line; words with spaces are quoted. NULL = it has none. */
static char *command_line(const struct sandbox_spec *s)
{
    const struct strlist *lists[] = {&s->entrypoint, &s->cmd};
    struct buf b;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (size_t j = 0; j < lists[i]->n; j++) {
            const char *w = lists[i]->v[j];
            const char *quote = !*w || strpbrk(w, " \t\n\"'\\$`&|;<>()*?") ? "\"" : "";
            (void)buf_printf(&b, "%s%s%s%s", buf_len(&b) ? " " : "", quote, w, quote);
        }
    char *line = buf_len(&b) ? strndup((char *)buf_head(&b), buf_len(&b)) : NULL;
    buf_free(&b);
    return line;
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

/* "127.0.0.1:8080->80/tcp, ..."; "-" = none. */
static void add_ports(struct table *t, const struct sandbox *sb)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = show_ports(sb, &p);
    struct buf b;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&p[i], text);
        (void)buf_printf(&b, "%s%s", i ? ", " : "", text);
    }
    table_add(t, n && buf_append(&b, "", 1) == 0 ? (const char *)buf_head(&b) : "-");
    buf_free(&b);
}

static json_t *to_json(const struct sandbox *sb)
{
    const struct sandbox_spec *s = &sb->spec;
    AUTO_FREE char *command = command_line(s);
    return json_pack("{s:o, s:o, s:s, s:o, s:I, s:I, s:s, s:o, s:s, s:s}", "command",
                     command ? json_string(command) : json_null(), "cpus", json_number(s->cpus),
                     "image", s->image, "max_cpus", json_number(s->cpus), "max_memory_mib",
                     (json_int_t)s->memory_mib, "memory_mib", (json_int_t)s->memory_mib, "name",
                     s->name, "ports", ports_json(sb), "status", status_name(sb->state.status),
                     "thp", "madvise");
}

static int print_json(const struct sandbox *list, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(a, to_json(&list[i]));
    return ui_print_json(a);
}

static void add_row(struct table *t, const struct sandbox *sb)
{
    const struct sandbox_spec *s = &sb->spec;
    AUTO_FREE char *command = command_line(s);
    char cpus[64], mib[32], memory[80];
    (void)snprintf(cpus, sizeof(cpus), "%g / %g", s->cpus, s->cpus);
    format_mib(s->memory_mib, mib, sizeof(mib));
    (void)snprintf(memory, sizeof(memory), "%s / %s", mib, mib);
    table_add(t, s->name);
    table_add(t, s->image);
    table_add(t, command ? command : "-");
    table_add(t, cpus);
    table_add(t, memory);
    table_add(t, status_lower(sb->state.status));
    add_ports(t, sb);
}

static int print_table(const struct sandbox *list, size_t n)
{
    static const char *const headers[] = {"NAME", "IMAGE",  "COMMAND", "CPUS",
                                          "MEM",  "STATUS", "PORTS"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    t.max[1] = 36;
    t.max[2] = 40;
    t.max[6] = 32;
    for (size_t i = 0; i < n; i++)
        add_row(&t, &list[i]);
    int code = show_table(&t, 5);
    table_free(&t);
    return code;
}

/* One, by name, whatever its status. */
static int status_one(const struct args *a)
{
    struct sandbox sb = {0};
    int code = show_one(a->pos[0], &sb);
    if (code)
        return code;
    if (args_has(a, "quiet"))
        code = show_names(&sb, 1);
    else if (wants_json(a))
        code = ui_print_json(to_json(&sb));
    else
        code = print_table(&sb, 1);
    sandbox_close(&sb);
    return code;
}

static int status_run(const struct args *a)
{
    if (a->n_pos)
        return status_one(a);
    struct sandbox *list = NULL;
    size_t n = 0;
    int code = show_list(a, keep, by_name, &list, &n);
    if (code != EXIT_OK)
        return code;
    if (args_has(a, "quiet"))
        code = show_names(list, n);
    else if (wants_json(a))
        code = print_json(list, n);
    else if (n == 0)
        ui_note(args_has(a, "all") ? "No sandboxes found." : "No running sandboxes.");
    else
        code = print_table(list, n);
    sandbox_list_free(list, n);
    return code;
}

static const struct opt status_opts[] = {
    {.name = "all", .letter = 'a', .help = "Show those that do not run as well"},
    LIST_OPTIONS,
    FORMAT_OPTION,
    {0},
};

const struct cmd cmd_status = {
    .name = "status",
    .alias = "ps",
    .group = GROUP_SANDBOX,
    .summary = "Show what runs, and with which resources",
    .opts = {status_opts},
    .pos = {.name = "NAME", .help = "One sandbox, running or not (default: all that run)"},
    .examples = "  msb ps\n"
                "  msb ps -a --format json\n"
                "  msb status web",
    .run = status_run,
};
