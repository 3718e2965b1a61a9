/* Prints the source of a man page: genman lists the pages, genman PAGE DIR prints one of them.
 *
 * Names, arguments, options and examples come from the command table, so that help and manual
 * cannot drift apart. The rest is prose: DIR holds PAGE.scd with sections of that page, and
 * common.scd with those that all pages share. The output is for scdoc(1).
 *
 * An empty section is an error and fails the build.
 */
#include "cli/core/args.h"
#include "cli/core/help.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { NOTES_MAX = 1 << 20, PAGE_MAX = 1 << 20 };

struct page {
    const struct cmd *cmd; /* NULL: msb itself */
    const char *notes;     /* the page's own prose; "" = none */
    const char *common;    /* the prose of all pages */
    struct buf *out;
};

/* --- text ----------------------------------------------------------------------------------- */

/* Escapes what scdoc would interpret. */
static void put_text(struct buf *out, const char *s)
{
    for (; *s; s++)
        (void)buf_printf(out, strchr("\\*_~^", *s) ? "\\%c" : "%c", *s);
}

/* Text of the table; its empty lines separate paragraphs. */
static void put_paragraph(struct buf *out, const char *s)
{
    put_text(out, s);
    (void)buf_printf(out, "\n\n");
}

/* The prose under "# TITLE": from the line after it to the next title. */
static const char *find_notes(const char *text, const char *title, size_t *len)
{
    size_t n = strlen(title);
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at += at != NULL) {
        if (strncmp(at, "# ", 2) != 0 || strncmp(at + 2, title, n) != 0 || at[2 + n] != '\n')
            continue;
        const char *body = at + 3 + n;
        const char *end = strstr(body, "\n# ");
        if (!end)
            end = body + strlen(body);
        while (body < end && *body == '\n')
            body++;
        while (end > body && isspace((unsigned char)end[-1]))
            end--;
        *len = (size_t)(end - body);
        return *len ? body : NULL;
    }
    return NULL;
}

/* A section: what was generated, then the prose of the page, or else the common one. */
static int put_section(const struct page *p, const char *title, const struct buf *generated,
                       bool required, struct err *e)
{
    size_t len = 0;
    const char *prose = find_notes(p->notes, title, &len);
    if (!prose)
        prose = find_notes(p->common, title, &len);
    size_t made = generated ? buf_len(generated) : 0;
    if (!prose && !made)
        return required ? err_set(e, ENOENT, "section %s is empty", title) : 0;
    (void)buf_printf(p->out, "# %s\n\n", title);
    if (made)
        (void)buf_append(p->out, buf_head(generated), made);
    if (prose)
        (void)buf_printf(p->out, "%.*s\n\n", (int)len, prose);
    return 0;
}

/* --- from the table ------------------------------------------------------------------------- */

static bool has_page(const struct cmd *c)
{
    return !(c->flags & (CMD_HIDDEN | CMD_LATER));
}

/* "msb", "msb-run", "msb-image-list". */
enum { TITLE_MAX = CMD_PATH_MAX + 8 };
static const char *page_title(const struct cmd *c, char out[TITLE_MAX])
{
    char path[CMD_PATH_MAX];
    cmd_path(c, '-', path);
    (void)snprintf(out, TITLE_MAX, "msb%s%s", *path ? "-" : "", path);
    return out;
}

static void name(const struct page *p, struct buf *out)
{
    const struct cmd *c = p->cmd ? p->cmd : &root_cmd;
    char title[TITLE_MAX];
    (void)buf_printf(out, "%s - %c", page_title(c, title), tolower((unsigned char)c->summary[0]));
    put_paragraph(out, c->summary + 1);
}

static void synopsis(const struct page *p, struct buf *out)
{
    const struct cmd *c = p->cmd;
    if (!c) {
        (void)buf_printf(out, "*msb* [_OPTIONS_] _COMMAND_ [_ARGUMENTS_]\n\n");
        return;
    }
    char path[CMD_PATH_MAX];
    cmd_path(c, ' ', path);
    if (c->subs) {
        (void)buf_printf(out, "*msb %s* [_OPTIONS_] _COMMAND_ [_ARGUMENTS_]\n\n", path);
        return;
    }
    (void)buf_printf(out, "*msb %s* [_OPTIONS_]", path);
    if (c->pos.name)
        (void)buf_printf(out, c->pos.required ? " _%s_%s" : " [_%s_]%s", c->pos.name,
                         c->pos.many ? "..." : "");
    if (c->then.name)
        (void)buf_printf(out, " _%s_%s", c->then.name, c->then.many ? "..." : "");
    if (c->command_help)
        (void)buf_printf(out, " [\\-- _%s_...]", cmd_rest_name(c));
    (void)buf_printf(out, "\n\n");
}

static void description(const struct page *p, struct buf *out)
{
    const struct cmd *c = p->cmd;
    if (!c)
        return;
    if (c->details)
        put_paragraph(out, c->details);
    else {
        put_text(out, c->summary);
        (void)buf_printf(out, ".\n\n");
    }
    char group[CMD_PATH_MAX] = "";
    if (cmd_parent(c))
        cmd_path(cmd_parent(c), ' ', group);
    if (c->alias)
        (void)buf_printf(out, "*msb %s%s%s* is another name for this command.\n\n", group,
                         *group ? " " : "", c->alias);
    if (c->pos.name) {
        (void)buf_printf(out, "_%s_%s\n\t", c->pos.name, c->pos.many ? "..." : "");
        put_paragraph(out, c->pos.help);
    }
    if (c->then.name) {
        (void)buf_printf(out, "_%s_%s\n\t", c->then.name, c->then.many ? "..." : "");
        put_paragraph(out, c->then.help);
    }
    if (c->command_help) {
        (void)buf_printf(out, "\\-- _%s_...\n\t", cmd_rest_name(c));
        put_paragraph(out, c->command_help);
    }
}

static void put_command(const struct cmd *c, struct buf *out)
{
    char title[TITLE_MAX];
    (void)buf_printf(out, "*%s*", c->name);
    if (c->alias)
        (void)buf_printf(out, ", *%s*", c->alias);
    (void)buf_printf(out, "\n\t");
    put_text(out, c->summary);
    (void)buf_printf(out, ": *%s*(1)\n\n", page_title(c, title));
}

static void commands(const struct page *p, struct buf *out)
{
    for (const struct cmd *const *c = p->cmd ? p->cmd->subs : NULL; c && *c; c++)
        if (has_page(*c))
            put_command(*c, out);
    for (int g = 0; !p->cmd && g < GROUP_MAX; g++) {
        bool first = true;
        for (const struct cmd *const *c = cmd_table; *c; c++) {
            if ((int)(*c)->group != g || !has_page(*c))
                continue;
            if (first)
                (void)buf_printf(out, "## %s\n\n", cmd_group_name((*c)->group));
            first = false;
            put_command(*c, out);
        }
    }
}

static void put_option(const struct opt *o, struct buf *out)
{
    if (o->letter)
        (void)buf_printf(out, "*-%c*, ", o->letter);
    (void)buf_printf(out, "*--%s*", o->name);
    if (o->value)
        (void)buf_printf(out, " _%s_", o->value);
    (void)buf_printf(out, "\n\t");
    put_text(out, o->help);
    if (o->choices) {
        (void)buf_printf(out, "; one of ");
        for (const char *at = o->choices; *at; at++)
            (void)buf_append(out, *at == '|' ? ", " : at, *at == '|' ? 2 : 1);
    }
    if (o->flags & OPT_REPEAT)
        (void)buf_printf(out, "; may be given more than once");
    (void)buf_printf(out, ".\n\n");
}

static void put_options(const struct opt *o, const char *title, struct buf *out)
{
    for (; o && o->name; o++) {
        if (o->flags & (OPT_HIDDEN | OPT_LATER))
            continue;
        if (title)
            (void)buf_printf(out, "## %s\n\n", title);
        title = NULL;
        put_option(o, out);
    }
}

static bool later_option(const struct opt *o, void *arg)
{
    struct buf *out = arg;
    if (o->flags & OPT_LATER)
        (void)buf_printf(out, "%s*--%s*", buf_len(out) ? ", " : "", o->name);
    return false;
}

static void options(const struct page *p, struct buf *out)
{
    const struct cmd *c = p->cmd ? p->cmd : &root_cmd;
    put_options(c->opts, NULL, out);
    for (const struct opt_group *const *g = c->groups; g && *g; g++)
        put_options((*g)->opts, (*g)->title, out);
    if (!p->cmd) {
        put_options(global_opts, NULL, out);
        return;
    }
    if (c->groups)
        (void)buf_printf(out, "## Global options\n\n");
    (void)buf_printf(out, "Every command also takes ");
    for (const struct opt *g = global_opts; g->name; g++)
        (void)buf_printf(out, "%s*--%s*",
                         g == global_opts ? ""
                         : g[1].name      ? ", "
                                          : " and ",
                         g->name);
    (void)buf_printf(out, "; see *msb*(1).\n\n");
}

/* Lists what is refused: options of a verb, verbs of msb or of a group. */
static void not_yet(const struct page *p, struct buf *out)
{
    AUTO_BUF struct buf list = {.limit = PAGE_MAX};
    if (p->cmd)
        (void)cmd_each_opt(p->cmd, later_option, &list);
    for (const struct cmd *const *c = p->cmd ? p->cmd->subs : cmd_table; c && *c; c++)
        if (((*c)->flags & CMD_LATER) && !((*c)->flags & CMD_HIDDEN))
            (void)buf_printf(&list, "%s*%s*", buf_len(&list) ? ", " : "", (*c)->name);
    if (buf_len(&list))
        (void)buf_printf(out, "Not available yet, and refused: %.*s.\n\n", (int)buf_len(&list),
                         (char *)buf_head(&list));
}

static void examples(const struct page *p, struct buf *out)
{
    if (p->cmd && p->cmd->examples)
        (void)buf_printf(out, "```\n%s\n```\n\n", p->cmd->examples);
}

static void see_also(const struct page *p, struct buf *out)
{
    const struct cmd *group = p->cmd ? cmd_parent(p->cmd) : NULL;
    char title[TITLE_MAX];
    if (p->cmd)
        (void)buf_printf(out, "*msb*(1)");
    if (group)
        (void)buf_printf(out, ", *%s*(1)", page_title(group, title));
    for (const struct cmd *const *c = group ? group->subs : cmd_table; *c; c++)
        if (*c != p->cmd && has_page(*c) && (!p->cmd || group || (*c)->group == p->cmd->group))
            (void)buf_printf(out, "%s*%s*(1)", buf_len(out) ? ", " : "", page_title(*c, title));
    (void)buf_printf(out, "\n\n");
}

/* --- the page ------------------------------------------------------------------------------- */

static const struct section {
    const char *title;
    void (*fn)(const struct page *p, struct buf *out); /* NULL: prose alone */
    bool required;
} sections[] = {
    {"NAME", name, true},          {"SYNOPSIS", synopsis, true}, {"DESCRIPTION", description, true},
    {"COMMANDS", commands, false}, {"OPTIONS", options, true}, /* the page's own come next */
    {"EXIT STATUS", NULL, true},   {"EXAMPLES", examples, true}, {"ENVIRONMENT", NULL, true},
    {"FILES", NULL, true},         {"NOTES", not_yet, false},    {"SEE ALSO", see_also, true},
};

static bool is_usual(const char *title)
{
    for (size_t i = 0; i < ARRAY_LEN(sections); i++)
        if (strcmp(sections[i].title, title) == 0)
            return true;
    return false;
}

/* Sections that only this page has, in order. */
static int put_own_sections(const struct page *p, struct err *e)
{
    int r = 0;
    for (const char *at = p->notes; r == 0 && at && *at; at = strchr(at, '\n'), at += at != NULL) {
        if (strncmp(at, "# ", 2) != 0)
            continue;
        AUTO_FREE char *title = strndup(at + 2, strcspn(at + 2, "\n"));
        if (!title)
            return err_oom(e);
        if (!is_usual(title))
            r = put_section(p, title, NULL, true, e);
    }
    return r;
}

static int put_page(const struct page *p, struct err *e)
{
    char title[TITLE_MAX];
    (void)buf_printf(p->out, "%s(1) \"msb %s\" \"msb manual\"\n\n",
                     page_title(p->cmd ? p->cmd : &root_cmd, title), MSB_VERSION);
    AUTO_BUF struct buf generated = {.limit = PAGE_MAX};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(sections); i++) {
        buf_reset(&generated);
        if (sections[i].fn)
            sections[i].fn(p, &generated);
        r = put_section(p, sections[i].title, &generated, sections[i].required, e);
        if (r == 0 && sections[i].fn == options)
            r = put_own_sections(p, e);
    }
    return r;
}

static int read_notes(int dirfd, const char *file, bool required, char **ret, struct err *e)
{
    int r = file_read_at(dirfd, file, NOTES_MAX, ret, NULL);
    if (r == -ENOENT && !required) {
        *ret = strdup("");
        r = *ret ? 0 : -ENOMEM;
    }
    return r < 0 ? err_sys(e, -r, "cannot read %s", file) : 0;
}

/* The verb that a page describes; NULL if there is none. */
static const struct cmd *find_page(const struct cmd *in, const char *title)
{
    char other[TITLE_MAX];
    for (const struct cmd *const *c = in->subs; *c; c++) {
        const struct cmd *found = NULL;
        if (has_page(*c) && strcmp(page_title(*c, other), title) == 0)
            found = *c;
        else if ((*c)->subs)
            found = find_page(*c, title);
        if (found)
            return found;
    }
    return NULL;
}

/* One page per line, followed by its aliases. */
static void list_pages(const struct cmd *in)
{
    char title[TITLE_MAX];
    for (const struct cmd *const *c = in->subs; *c; c++) {
        if (!has_page(*c) || (in != &root_cmd && cmd_parent(*c) != in))
            continue;
        (void)printf("%s", page_title(*c, title));
        if ((*c)->alias)
            (void)printf(" %.*s%s", (int)(strlen(title) - strlen((*c)->name)), title, (*c)->alias);
        (void)printf("\n");
        if ((*c)->subs)
            list_pages(*c);
    }
}

static int print_page(const char *title, const char *dir, struct err *e)
{
    struct page p = {0};
    bool root = strcmp(title, "msb") == 0;
    if (!root)
        p.cmd = find_page(&root_cmd, title);
    if (!root && !p.cmd)
        return err_set(e, EINVAL, "no such page");
    AUTO_CLOSE int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return err_sys(e, errno, "cannot open %s", dir);
    char file[128];
    (void)snprintf(file, sizeof(file), "%s.scd", title);
    AUTO_FREE char *notes = NULL;
    AUTO_FREE char *common = NULL;
    int r = read_notes(dirfd, file, root, &notes, e);
    if (r == 0)
        r = read_notes(dirfd, "common.scd", true, &common, e);
    if (r < 0)
        return r;
    AUTO_BUF struct buf out = {.limit = PAGE_MAX};
    p.notes = notes;
    p.common = common;
    p.out = &out;
    r = put_page(&p, e);
    if (r == 0 && fwrite(buf_head(&out), 1, buf_len(&out), stdout) != buf_len(&out))
        r = err_sys(e, errno, "cannot write");
    return r;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc == 1) {
        (void)printf("msb\n");
        list_pages(&root_cmd);
        return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
    }
    if (argc != 3) {
        (void)fprintf(stderr, "usage: genman [PAGE DIRECTORY]\n");
        return EXIT_USAGE;
    }
    if (print_page(argv[1], argv[2], &e) == 0)
        return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
    (void)fprintf(stderr, "genman: %s: %s\n", argv[1], e.msg);
    return EXIT_FAILED;
}
