#include "cli/help.h"

#include "util/cleanup.h"
#include "util/text.h"

#include <stdio.h>
#include <string.h>

enum { LEFT_MAX = 34, SPELLING_MAX = 160 };

static const char *const group_names[GROUP_MAX] = {
    [GROUP_SANDBOX] = "Sandboxes",    [GROUP_IMAGE] = "Images", [GROUP_STORAGE] = "Storage",
    [GROUP_INSTALL] = "Installation", [GROUP_OTHER] = "Other",
};

const char *cmd_group_name(enum cmd_group g)
{
    return group_names[g];
}

static bool is_global_table(const struct opt *o)
{
    for (const struct opt *g = global_opts; g->name; g++)
        if (g == o)
            return true;
    return false;
}

/* Prints text after a left column of `indent` characters, wrapped between words. */
static void wrap(struct buf *out, const char *text, size_t indent, unsigned columns)
{
    size_t room = columns > indent + 20 ? columns - indent : 20;
    size_t used = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
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
        while (*text == ' ')
            text++;
    }
    (void)buf_append(out, "\n", 1);
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
    wrap(out, text, width + 4, columns);
}

/* "-n, --name <NAME>"; options without a letter line up in help, not in the tree. */
static void option_left(const struct opt *o, bool aligned, char *out, size_t size)
{
    char letter[8] = "";
    if (o->letter)
        (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    else if (aligned)
        (void)snprintf(letter, sizeof(letter), "    ");
    (void)snprintf(out, size, "%s--%s%s%s%s", letter, o->name, o->value ? " <" : "",
                   o->value ? o->value : "", o->value ? ">" : "");
}

static void pos_left(const struct pos *p, char *out, size_t size)
{
    (void)snprintf(out, size, "%s%s%s%s", p->required ? "<" : "[", p->name, p->required ? ">" : "]",
                   p->many ? "..." : "");
}

/* --- help ----------------------------------------------------------------------------------- */

struct listing {
    struct buf *out;
    size_t width;
    unsigned columns;
    bool global; /* list the global options, or the others */
    size_t n;
};

static bool listed(const struct opt *o, const struct listing *l)
{
    return !(o->flags & (OPT_HIDDEN | OPT_LATER)) && is_global_table(o) == l->global;
}

static bool measure_option(const struct opt *o, void *arg)
{
    struct listing *l = arg;
    char left[SPELLING_MAX];
    option_left(o, true, left, sizeof(left));
    size_t w = utf8_width(left);
    if (!(o->flags & (OPT_HIDDEN | OPT_LATER)) && w <= LEFT_MAX)
        l->width = MAX(l->width, w);
    return false;
}

static bool print_option(const struct opt *o, void *arg)
{
    struct listing *l = arg;
    if (!listed(o, l))
        return false;
    char left[SPELLING_MAX], text[1024];
    option_left(o, true, left, sizeof(left));
    (void)snprintf(text, sizeof(text), "%s%s%s%s%s", o->help,
                   o->flags & OPT_REPEAT ? " (repeatable)" : "", o->choices ? " [" : "",
                   o->choices ? o->choices : "", o->choices ? "]" : "");
    entry(l->out, left, l->width, text, l->columns);
    l->n++;
    return false;
}

static bool append_later(const struct opt *o, void *arg)
{
    struct buf *b = arg;
    if (o->flags & OPT_LATER)
        (void)buf_printf(b, "%s--%s", buf_len(b) ? " " : "", o->name);
    return false;
}

static void print_options(const struct cmd *c, struct buf *out, unsigned columns)
{
    struct listing l = {.out = out, .columns = columns};
    (void)cmd_each_opt(c, measure_option, &l);
    struct buf own;
    buf_init(&own, 1 << 20);
    l.out = &own;
    (void)cmd_each_opt(c, print_option, &l);
    if (l.n)
        (void)buf_printf(out, "\nOptions:\n%.*s", (int)buf_len(&own), (char *)buf_head(&own));
    buf_reset(&own);
    l.global = true;
    (void)cmd_each_opt(c, print_option, &l);
    (void)buf_printf(out, "\nGlobal options:\n%.*s", (int)buf_len(&own), (char *)buf_head(&own));
    buf_reset(&own);
    (void)cmd_each_opt(c, append_later, &own);
    if (buf_len(&own)) {
        (void)buf_append(&own, "", 1);
        (void)buf_printf(out, "\nNot available yet:\n  ");
        wrap(out, (char *)buf_head(&own), 2, columns);
    }
    buf_free(&own);
}

static bool shown(const struct cmd *c)
{
    return !(c->flags & (CMD_HIDDEN | CMD_LATER));
}

static void verb_entry(struct buf *out, const struct cmd *c, unsigned columns)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s%s%s%s", c->summary, c->alias ? " [alias: " : "",
                   c->alias ? c->alias : "", c->alias ? "]" : "");
    entry(out, c->name, 10, text, columns);
}

/* The names of a group's verbs that are not there yet. */
static void print_coming(struct buf *out, const struct cmd *in, unsigned columns)
{
    struct buf coming;
    buf_init(&coming, 1 << 16);
    for (const struct cmd *const *c = in->subs; *c; c++)
        if (((*c)->flags & CMD_LATER) && !((*c)->flags & CMD_HIDDEN))
            (void)buf_printf(&coming, "%s%s", buf_len(&coming) ? " " : "", (*c)->name);
    if (buf_append(&coming, "", 1) == 0 && buf_len(&coming) > 1) {
        (void)buf_printf(out, "\nNot available yet:\n  ");
        wrap(out, (char *)buf_head(&coming), 2, columns);
    }
    buf_free(&coming);
}

static void help_group(const struct cmd *c, struct buf *out, unsigned columns)
{
    (void)buf_printf(out, "\nCommands:\n");
    for (const struct cmd *const *s = c->subs; *s; s++)
        if (shown(*s))
            verb_entry(out, *s, columns);
}

void help_cmd(const struct cmd *c, struct buf *out, unsigned columns)
{
    char usage[256], left[SPELLING_MAX], path[CMD_PATH_MAX] = "";
    cmd_usage(c, usage, sizeof(usage));
    (void)buf_printf(out, "%s\n\nUsage: %s\n", c->summary, usage);
    if (c->parent)
        cmd_path(c->parent, ' ', path);
    if (c->alias)
        (void)buf_printf(out, "Alias: msb %s%s%s\n", path, *path ? " " : "", c->alias);
    if (c->subs)
        help_group(c, out, columns);
    if (c->pos.name || c->command_help)
        (void)buf_printf(out, "\nArguments:\n");
    char then[128] = "";
    if (c->then.name)
        pos_left(&c->then, then, sizeof(then));
    if (c->pos.name) {
        pos_left(&c->pos, left, sizeof(left));
        size_t width = MAX(utf8_width(left), utf8_width(then));
        entry(out, left, c->command_help ? 16 : width, c->pos.help, columns);
        if (c->then.name)
            entry(out, then, width, c->then.help, columns);
    }
    if (c->command_help) {
        (void)snprintf(left, sizeof(left), "[-- %s...]", cmd_rest_name(c));
        entry(out, left, 16, c->command_help, columns);
    }
    print_options(c, out, columns);
    if (c->subs)
        print_coming(out, c, columns);
    if (c->details)
        (void)buf_printf(out, "\n%s\n", c->details);
    if (c->examples)
        (void)buf_printf(out, "\nExamples:\n%s\n", c->examples);
}

void help_root(struct buf *out, unsigned columns)
{
    (void)buf_printf(out,
                     "msb %s: sandboxes with a Linux kernel of their own\n\n"
                     "Usage: msb [OPTIONS] <COMMAND>\n",
                     MSB_VERSION);
    for (int g = 0; g < GROUP_MAX; g++) {
        bool first = true;
        for (const struct cmd *const *c = cmd_table; *c; c++) {
            if ((int)(*c)->group != g || !shown(*c))
                continue;
            if (first)
                (void)buf_printf(out, "\n%s:\n", cmd_group_name((*c)->group));
            first = false;
            verb_entry(out, *c, columns);
        }
    }
    (void)buf_printf(out, "\nOptions:\n");
    struct listing l = {.out = out, .columns = columns};
    (void)cmd_each_opt(&root_cmd, measure_option, &l);
    (void)cmd_each_opt(&root_cmd, print_option, &l);
    l.global = true;
    (void)cmd_each_opt(&root_cmd, print_option, &l);
    print_coming(out, &root_cmd, columns);
    (void)buf_printf(out, "\n'msb COMMAND --help' says more about a command; 'msb doctor' checks "
                          "this machine.\n");
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
    return !(o->flags & (OPT_HIDDEN | OPT_LATER)) && !is_global_table(o);
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

/* A group's verbs, each with what is below it, which closes the branch that t is in. */
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
        if (in == &root_cmd || (*c)->parent == in) /* what is another's is shown there */
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
