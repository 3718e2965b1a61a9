#include "cli/core/help.h"

#include "cli/core/args.h"
#include "util/cleanup.h"
#include "util/text.h"

#include <stdio.h>
#include <string.h>

enum {
    LEFT_MAX = 28, /* a longer left column puts its text on the next line */
    SPELLING_MAX = 160,
    EXAMPLES_SHOWN = 3,
    SCREEN_LINES = 24,
};

static const char *const group_names[GROUP_MAX] = {
    [GROUP_SANDBOX] = "Sandboxes",    [GROUP_IMAGE] = "Images", [GROUP_STORAGE] = "Storage",
    [GROUP_INSTALL] = "Installation", [GROUP_OTHER] = "Other",
};

const char *cmd_group_name(enum cmd_group g)
{
    return group_names[g];
}

/* Whether it is one of those that every verb takes. */
static bool is_global(const struct opt *o)
{
    for (const struct opt *g = global_opts; g->name; g++)
        if (g == o)
            return true;
    return false;
}

/* Prints one paragraph after a left column of `indent` characters, wrapped between words; returns
 * where it ended: at an empty line or at the end of the text. */
static const char *wrap(struct buf *out, const char *text, size_t indent, unsigned columns)
{
    size_t room = columns > indent + 20 ? columns - indent : 20;
    size_t used = 0;
    while (*text && strncmp(text, "\n\n", 2) != 0) {
        size_t n = strcspn(text, " \n");
        char word[512];
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, text);
        size_t w = utf8_width(word);
        if (used > 0 && used + 1 + w > room) {
            (void)buf_printf(out, "\n%*s", (int)indent, "");
            used = 0;
        }
        (void)buf_printf(out, "%s%s", used > 0 ? " " : "", word);
        used += w + (used > 0);
        text += n;
        while (*text == ' ' || (*text == '\n' && text[1] != '\n'))
            text++;
    }
    (void)buf_append(out, "\n", 1);
    return text;
}

static void entry(struct buf *out, const char *left, size_t width, const char *text,
                  unsigned columns)
{
    size_t w = utf8_width(left);
    (void)buf_printf(out, "  %s", left);
    if (w > width)
        (void)buf_printf(out, "\n%*s", (int)width + 4, "");
    else
        (void)buf_printf(out, "%*s", (int)(width - w) + 2, "");
    (void)wrap(out, text, width + 4, columns);
}

/* "-n, --name <NAME>"; options without a letter line up in help, not in the tree. */
static void option_left(const struct opt *o, bool aligned, char *out, size_t size)
{
    char letter[8] = "";
    if (o->letter)
        (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    else if (aligned)
        (void)snprintf(letter, sizeof(letter), "    ");
    char spelling[SPELLING_MAX];
    opt_spelling(o, spelling, sizeof(spelling));
    (void)snprintf(out, size, "%s%s", letter, spelling);
}

static void pos_left(const struct pos *p, char *out, size_t size)
{
    (void)snprintf(out, size, "%s%s%s%s", p->required ? "<" : "[", p->name, p->required ? ">" : "]",
                   p->many ? "..." : "");
}

/* --- help ----------------------------------------------------------------------------------- */

struct help {
    struct buf *out;
    unsigned columns;
    bool all;     /* --help-all */
    size_t width; /* of the left column of options */
};

static bool available(const struct opt *o)
{
    return !(o->flags & (OPT_HIDDEN | OPT_LATER));
}

static void measure_options(struct help *h, const struct opt *o, unsigned flags)
{
    for (; o && o->name; o++) {
        char left[SPELLING_MAX];
        option_left(o, true, left, sizeof(left));
        size_t w = utf8_width(left);
        if (available(o) && (o->flags & flags) == flags && w <= LEFT_MAX)
            h->width = MAX(h->width, w);
    }
}

static void measure_all(struct help *h, const struct cmd *c)
{
    measure_options(h, c->opts, 0);
    bool groups = h->all || !(c->flags & CMD_TERSE);
    for (const struct opt_group *const *g = groups ? c->groups : NULL; g && *g; g++)
        measure_options(h, (*g)->opts, h->all ? 0 : OPT_COMMON);
    if (h->all)
        measure_options(h, global_opts, 0);
}

/* Prints the options of a table that have all of `flags`, below a title if there are any. Common options
 * show only the part of their help before a semicolon. */
static void print_options(const struct help *h, const char *title, const struct opt *o,
                          unsigned flags)
{
    for (; o && o->name; o++) {
        if (!available(o) || (o->flags & flags) != flags)
            continue;
        if (title)
            (void)buf_printf(h->out, "\n%s:\n", title);
        title = NULL;
        char left[SPELLING_MAX], text[1024];
        option_left(o, true, left, sizeof(left));
        int most = flags & OPT_COMMON ? (int)strcspn(o->help, ";") : (int)strlen(o->help);
        (void)snprintf(text, sizeof(text), "%.*s%s%s%s%s", most, o->help,
                       h->all && o->flags & OPT_REPEAT ? " (repeatable)" : "",
                       o->choices ? " [" : "", o->choices ? o->choices : "", o->choices ? "]" : "");
        entry(h->out, left, h->width, text, h->columns);
    }
}

static bool append_later(const struct opt *o, void *arg)
{
    struct buf *b = arg;
    if (o->flags & OPT_LATER)
        (void)buf_printf(b, "%s--%s", buf_len(b) ? " " : "", o->name);
    return false;
}

static bool shown(const struct cmd *c)
{
    return !(c->flags & (CMD_HIDDEN | CMD_LATER));
}

/* What is documented but not built: options of the verb, verbs of the group. */
static void print_later(const struct help *h, const struct cmd *c)
{
    AUTO_BUF struct buf later = {.limit = 1 << 16};
    (void)cmd_each_opt(c, append_later, &later);
    for (const struct cmd *const *s = c->subs; s && *s; s++)
        if (((*s)->flags & CMD_LATER) && !((*s)->flags & CMD_HIDDEN))
            (void)buf_printf(&later, "%s%s", buf_len(&later) ? " " : "", (*s)->name);
    if (buf_append(&later, "", 1) < 0 || buf_len(&later) <= 1)
        return;
    (void)buf_printf(h->out, "\nNot available yet:\n  ");
    (void)wrap(h->out, (char *)buf_head(&later), 2, h->columns);
}

static void print_all_options(const struct help *h, const struct cmd *c)
{
    print_options(h, "Options", c->opts, 0);
    for (const struct opt_group *const *g = c->groups; g && *g; g++)
        print_options(h, (*g)->title, (*g)->opts, 0);
    print_options(h, "Global options", global_opts, 0);
    print_later(h, c);
}

static void print_common_options(const struct help *h, const struct cmd *c)
{
    const char *title = "Options";
    for (const struct opt_group *const *g = c->flags & CMD_TERSE ? NULL : c->groups; g && *g; g++) {
        size_t before = buf_len(h->out);
        print_options(h, title, (*g)->opts, OPT_COMMON);
        title = buf_len(h->out) > before ? NULL : title;
    }
    print_options(h, title, c->opts, 0);
}

static void verb_entry(const struct help *h, const struct cmd *c)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s%s%s%s", c->summary, c->alias ? " [alias: " : "",
                   c->alias ? c->alias : "", c->alias ? "]" : "");
    entry(h->out, c->name, 10, text, h->columns);
}

static void print_examples(const struct help *h, const struct cmd *c)
{
    const char *end = c->examples;
    for (int i = 0; end && *end && (h->all || i < EXAMPLES_SHOWN); i++)
        end += strcspn(end, "\n") + (end[strcspn(end, "\n")] == '\n');
    if (!end)
        return;
    size_t n = (size_t)(end - c->examples);
    (void)buf_printf(h->out, "\nExamples:\n%.*s%s", (int)n, c->examples,
                     n && c->examples[n - 1] == '\n' ? "" : "\n");
}

static void print_arguments(const struct help *h, const struct cmd *c)
{
    struct {
        char left[SPELLING_MAX];
        const char *help;
    } rows[3];
    size_t n = 0, width = 0;
    const struct pos *const both[] = {&c->pos, &c->then};
    for (size_t i = 0; i < ARRAY_LEN(both); i++)
        if (both[i]->name) {
            pos_left(both[i], rows[n].left, sizeof(rows[n].left));
            rows[n++].help = both[i]->help;
        }
    if (c->command_help) {
        (void)snprintf(rows[n].left, sizeof(rows[n].left), "[-- %s...]", cmd_rest_name(c));
        rows[n++].help = c->command_help;
    }
    if (n)
        (void)buf_printf(h->out, "\nArguments:\n");
    for (size_t i = 0; i < n; i++)
        width = MAX(width, utf8_width(rows[i].left));
    for (size_t i = 0; i < n; i++)
        entry(h->out, rows[i].left, width, rows[i].help, h->columns);
}

static size_t count_lines(const struct buf *b)
{
    size_t n = 0;
    const char *p = (const char *)buf_head(b), *end = p + buf_len(b);
    for (; p < end; p++)
        n += *p == '\n';
    return n;
}

/* Paragraphs; in --help only as many as fit on the screen, with the footer. */
static void print_details(const struct help *h, const struct cmd *c)
{
    for (const char *p = c->details; p && *p;) {
        AUTO_BUF struct buf text = {.limit = 1 << 16};
        (void)buf_printf(&text, "\n");
        p = wrap(&text, p, 0, h->columns);
        p += strspn(p, "\n");
        if (!h->all && count_lines(h->out) + count_lines(&text) + 2 > SCREEN_LINES)
            return;
        (void)buf_append(h->out, buf_head(&text), buf_len(&text));
    }
}

void help_cmd(const struct cmd *c, bool all, struct buf *out, unsigned columns)
{
    struct help h = {.out = out, .columns = columns, .all = all};
    char usage[256], path[CMD_PATH_MAX] = "", page[CMD_PATH_MAX];
    cmd_usage(c, usage, sizeof(usage));
    (void)buf_printf(out, "%s\n\nUsage: %s\n", c->summary, usage);
    if (cmd_parent(c))
        cmd_path(cmd_parent(c), ' ', path);
    if (c->alias)
        (void)buf_printf(out, "Alias: msb %s%s%s\n", path, *path ? " " : "", c->alias);
    print_examples(&h, c);
    if (c->subs)
        (void)buf_printf(out, "\nCommands:\n");
    for (const struct cmd *const *s = c->subs; s && *s; s++)
        if (shown(*s))
            verb_entry(&h, *s);
    print_arguments(&h, c);
    measure_all(&h, c);
    if (all)
        print_all_options(&h, c);
    else
        print_common_options(&h, c);
    print_details(&h, c);
    cmd_path(c, ' ', path);
    cmd_path(c, '-', page);
    if (!all)
        (void)buf_printf(out, "\nMore: msb %s --help-all, man msb-%s\n", path, page);
}

void help_root(bool all, struct buf *out, unsigned columns)
{
    struct help h = {.out = out, .columns = columns, .all = all};
    (void)buf_printf(out,
                     "msb %s: sandboxes that each have their own Linux kernel\n\n"
                     "Usage: msb [OPTIONS] <COMMAND>\n",
                     MSB_VERSION);
    print_examples(&h, &root_cmd);
    for (int g = 0; g < GROUP_MAX; g++) {
        bool first = true;
        for (const struct cmd *const *c = cmd_table; *c; c++) {
            if ((int)(*c)->group != g || !shown(*c))
                continue;
            if (first)
                (void)buf_printf(out, "\n%s:\n", cmd_group_name((*c)->group));
            first = false;
            verb_entry(&h, *c);
        }
    }
    measure_all(&h, &root_cmd);
    if (all)
        print_all_options(&h, &root_cmd);
    else
        (void)buf_printf(out, "\nHelp on a command: 'msb COMMAND --help'. Global options: "
                              "'msb --help-all'.\n");
}

/* --- tree ----------------------------------------------------------------------------------- */

/* Lines are collected first, because the left column is as wide as the widest of them. */
struct tree {
    struct buf *out;
    char indent[64];
    size_t left;  /* lines still to come in this branch */
    size_t width; /* 0 = only measuring */
    size_t widest;
};

static void branch(struct tree *t, const char *text, const char *help)
{
    char line[256];
    t->left--;
    (void)snprintf(line, sizeof(line), "%s%s %s", t->indent, t->left ? "├──" : "└──", text);
    size_t w = utf8_width(line);
    t->widest = MAX(t->widest, w);
    if (t->width)
        (void)buf_printf(t->out, "%s%*s  %s\n", line, (int)(t->width - w), "", help);
}

static bool in_tree(const struct opt *o)
{
    return available(o) && !is_global(o);
}

static bool count_option(const struct opt *o, void *arg)
{
    *(size_t *)arg += in_tree(o);
    return false;
}

static bool option_branch(const struct opt *o, void *arg)
{
    struct tree *t = arg;
    char left[SPELLING_MAX];
    if (!in_tree(o))
        return false;
    option_left(o, false, left, sizeof(left));
    branch(t, left, o->help);
    return false;
}

static void verb_branches(const struct cmd *in, struct tree *t);

static size_t count_verbs(const struct cmd *in)
{
    size_t n = 0;
    for (const struct cmd *const *c = in->subs; c && *c; c++)
        n += shown(*c);
    return n;
}

static void cmd_branches(const struct cmd *c, struct tree *t)
{
    char left[SPELLING_MAX];
    t->left =
        (c->pos.name != NULL) + (c->then.name != NULL) + (c->command_help != NULL) + count_verbs(c);
    (void)cmd_each_opt(c, count_option, &t->left);
    if (c->pos.name) {
        pos_left(&c->pos, left, sizeof(left));
        branch(t, left, c->pos.help);
    }
    if (c->then.name) {
        pos_left(&c->then, left, sizeof(left));
        branch(t, left, c->then.help);
    }
    if (c->command_help) {
        (void)snprintf(left, sizeof(left), "[-- %s...]", cmd_rest_name(c));
        branch(t, left, c->command_help);
    }
    (void)cmd_each_opt(c, option_branch, t);
    if (c->subs)
        verb_branches(c, t);
}

/* The verbs of a group, each with its own branches; they come last in the branch that t is in. */
static void verb_branches(const struct cmd *in, struct tree *t)
{
    size_t verbs = count_verbs(in), n = strlen(t->indent);
    for (const struct cmd *const *c = in->subs; *c; c++) {
        if (!shown(*c))
            continue;
        char left[SPELLING_MAX];
        t->left = verbs--;
        (void)snprintf(left, sizeof(left), "%s%s%s%s", (*c)->name, (*c)->alias ? " (alias: " : "",
                       (*c)->alias ? (*c)->alias : "", (*c)->alias ? ")" : "");
        branch(t, left, (*c)->summary);
        (void)snprintf(t->indent + n, sizeof(t->indent) - n, "%s", verbs ? "│   " : "    ");
        if (in == &root_cmd || cmd_parent(*c) == in) /* others are shown in their own group */
            cmd_branches(*c, t);
        t->indent[n] = '\0';
    }
}

static void root_branches(struct tree *t)
{
    char left[SPELLING_MAX];
    t->left = count_verbs(&root_cmd);
    for (const struct opt *o = global_opts; o->name; o++)
        t->left++;
    for (const struct opt *o = global_opts; o->name; o++) {
        option_left(o, false, left, sizeof(left));
        branch(t, left, o->help);
    }
    verb_branches(&root_cmd, t);
}

void help_tree(const struct cmd *c, struct buf *out)
{
    char path[CMD_PATH_MAX];
    cmd_path(c ? c : &root_cmd, ' ', path);
    (void)buf_printf(out, "msb%s%s\n", c ? " " : "", path);
    struct tree t = {.out = out};
    for (int pass = 0; pass < 2; pass++) {
        if (c)
            cmd_branches(c, &t);
        else
            root_branches(&t);
        t.width = t.widest;
    }
}
