#include "cli/core/args.h"

#include "cli/core/conf.h"
#include "cli/core/habits.h"
#include "util/cleanup.h"
#include "util/text.h"
#include "util/words.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the table ------------------------------------------------------------------------------ */

static const struct opt *each_in(const struct opt *o, opt_fn fn, void *arg)
{
    for (; o && o->name; o++)
        if (fn(o, arg))
            return o;
    return NULL;
}

const struct opt *cmd_each_opt(const struct cmd *c, opt_fn fn, void *arg)
{
    const struct opt *found = each_in(c->opts, fn, arg);
    for (const struct opt_group *const *g = c->groups; !found && g && *g; g++)
        found = each_in((*g)->opts, fn, arg);
    return found ? found : each_in(global_opts, fn, arg);
}

struct wanted {
    const char *name;
    size_t len;
    char letter;
};

static bool by_name(const struct opt *o, void *arg)
{
    const struct wanted *w = arg;
    return (strlen(o->name) == w->len && memcmp(o->name, w->name, w->len) == 0) ||
           (o->alias && strlen(o->alias) == w->len && memcmp(o->alias, w->name, w->len) == 0);
}

static bool by_letter(const struct opt *o, void *arg)
{
    const struct wanted *w = arg;
    return o->letter == w->letter;
}

static const struct opt *find_long(const struct cmd *c, const char *name, size_t len)
{
    return cmd_each_opt(c, by_name, &(struct wanted){.name = name, .len = len});
}

static const struct opt *find_letter(const struct cmd *c, char letter)
{
    return cmd_each_opt(c, by_letter, &(struct wanted){.letter = letter});
}

struct nearest {
    const char *typed;
    const struct opt *opt;
    unsigned unlike;
};

static bool nearer(const struct opt *o, void *arg)
{
    struct nearest *n = arg;
    unsigned d = word_unlikeness(n->typed, o->name);
    if (!(o->flags & OPT_HIDDEN) && d < n->unlike) {
        n->unlike = d;
        n->opt = o;
    }
    return false;
}

const struct cmd *cmd_find_spelling(const struct cmd *in, const char *name)
{
    for (const struct cmd *const *c = in->subs; *c; c++)
        if (strcmp((*c)->name, name) == 0 || ((*c)->alias && strcmp((*c)->alias, name) == 0))
            return *c;
    return NULL;
}

const struct cmd *cmd_find(const struct cmd *in, const char *name)
{
    const struct cmd *c = cmd_find_spelling(in, name);
    return c && c->same ? c->same : c;
}

const struct cmd *cmd_similar(const struct cmd *in, const char *typed)
{
    const struct cmd *best = NULL;
    unsigned unlike = TEXT_FAR;
    for (const struct cmd *const *c = in->subs; *c; c++) {
        unsigned d = word_unlikeness(typed, (*c)->name);
        if ((*c)->alias)
            d = MIN(d, word_unlikeness(typed, (*c)->alias));
        if (!((*c)->flags & CMD_HIDDEN) && d < unlike) {
            unlike = d;
            best = *c;
        }
    }
    /* If the most similar word must not be suggested, another one is hardly meant. */
    return best && best->flags & (CMD_LATER | CMD_DESTROYS) ? NULL : best;
}

const struct cmd *cmd_parent(const struct cmd *c)
{
    const struct cmd *found = NULL;
    for (const struct cmd *const *g = cmd_table; *g; g++) {
        if (*g == c)
            return NULL;
        for (const struct cmd *const *s = (*g)->subs; !found && s && *s; s++)
            if (*s == c)
                found = *g;
    }
    return found;
}

void cmd_path(const struct cmd *c, char sep, char out[CMD_PATH_MAX])
{
    out[0] = '\0';
    const struct cmd *group = cmd_parent(c);
    if (group)
        cmd_path(group, sep, out);
    size_t n = strlen(out);
    if (n && n + 1 < CMD_PATH_MAX)
        out[n++] = sep;
    (void)snprintf(out + n, CMD_PATH_MAX - n, "%s", c->name);
}

const char *cmd_rest_name(const struct cmd *c)
{
    return c->command_name ? c->command_name : "COMMAND";
}

void cmd_usage(const struct cmd *c, char *out, size_t size)
{
    const struct pos *p = &c->pos;
    char path[CMD_PATH_MAX];
    cmd_path(c, ' ', path);
    if (c->subs) {
        (void)snprintf(out, size, "msb %s%s[OPTIONS] %s", path, *path ? " " : "",
                       c->otherwise && c->opts ? "[COMMAND]" : "<COMMAND>");
        return;
    }
    (void)snprintf(out, size, "msb %s [OPTIONS]%s%s%s%s%s%s%s%s%s%s%s", path,
                   p->name ? p->required ? " <" : " [" : "", p->name ? p->name : "",
                   p->name ? p->required ? ">" : "]" : "", p->many ? "..." : "",
                   c->then.name ? " <" : "", c->then.name ? c->then.name : "",
                   c->then.name ? ">" : "", c->then.many ? "..." : "",
                   c->command_help ? " [-- <" : "", c->command_help ? cmd_rest_name(c) : "",
                   c->command_help ? ">...]" : "");
}

void opt_spelling(const struct opt *o, char *out, size_t size)
{
    bool optional = o->flags & OPT_OPTIONAL;
    (void)snprintf(out, size, "--%s%s%s%s", o->name, o->value ? optional ? " [" : " <" : "",
                   o->value ? o->value : "", o->value ? optional ? "]" : ">" : "");
}

/* --- failures ------------------------------------------------------------------------------- */

static int usage_hint(const struct cmd *c, struct err *e)
{
    char usage[256], path[CMD_PATH_MAX];
    cmd_usage(c, usage, sizeof(usage));
    cmd_path(c, ' ', path);
    err_hint(e, "usage: %s", usage);
    err_hint(e, "see 'msb%s%s --help'", *path ? " " : "", path);
    return -EINVAL;
}

static int unexpected(const struct cmd *c, const char *word, struct err *e)
{
    const char *instead = habit_of_option(c, word);
    err_set(e, EINVAL, "unexpected argument '%s' found", word);
    if (instead) {
        err_hint(e, "%s", instead);
        return -EINVAL;
    }
    if (strncmp(word, "--", 2) == 0) {
        char typed[TEXT_WORD_MAX + 1];
        (void)snprintf(typed, sizeof(typed), "%.*s", (int)strcspn(word + 2, "="), word + 2);
        struct nearest n = {.typed = typed, .unlike = TEXT_FAR};
        (void)cmd_each_opt(c, nearer, &n);
        if (n.opt && !(n.opt->flags & (OPT_LATER | OPT_DESTROYS)))
            err_hint(e, "a similar argument exists: '--%s'", n.opt->name);
        else if (c->command_name)
            err_hint(e, "options for sandboxes go after '--': msb %s -- %s ...", c->name, word);
    }
    return usage_hint(c, e);
}

static int later(const struct cmd *c, const struct opt *o, struct err *e)
{
    char path[CMD_PATH_MAX];
    cmd_path(c, ' ', path);
    return err_hinted(e, err_set(e, ENOSYS, "--%s is not available yet", o->name),
                      "'msb %s --help-all' lists the options of this version", path);
}

static int bad_choice(const struct opt *o, const char *value, struct err *e)
{
    char spelling[128];
    opt_spelling(o, spelling, sizeof(spelling));
    err_set(e, EINVAL, "invalid value '%s' for '%s'", value, spelling);
    char list[256] = "";
    for (const char *p = o->choices; *p;) {
        size_t n = strcspn(p, "|"), at = strlen(list);
        (void)snprintf(list + at, sizeof(list) - at, "%s%.*s", at ? ", " : "", (int)n, p);
        p += n + (p[n] != '\0');
    }
    err_hint(e, "possible values: %s", list);
    return -EINVAL;
}

int args_bad_value(const struct args *a, const char *name, const char *value, const char *why,
                   struct err *e)
{
    const struct opt *o = find_long(a->cmd, name, strlen(name));
    char spelling[128] = "";
    if (o)
        opt_spelling(o, spelling, sizeof(spelling));
    return err_set(e, EINVAL, "invalid value '%s' for '%s': %s", value, spelling, why);
}

/* --- parsing -------------------------------------------------------------------------------- */

struct parser {
    int at, argc;
    char **argv;
    struct args *a;
    struct err *e;
};

static bool is_global(const struct opt *o, const char *name)
{
    for (const struct opt *g = global_opts; g->name; g++)
        if (g == o)
            return strcmp(o->name, name) == 0;
    return false;
}

static int take(struct parser *p, const struct opt *o, const char *value)
{
    struct args *a = p->a;
    char spelling[128];
    opt_spelling(o, spelling, sizeof(spelling));
    if (o->flags & OPT_LATER)
        return later(a->cmd, o, p->e);
    if (o->choices && !word_among(o->choices, value))
        return bad_choice(o, value, p->e);
    for (size_t i = 0; i < a->n_opts; i++) {
        const struct opt *other = a->opts[i].opt;
        if (!other)
            continue;
        if (other == o && !(o->flags & OPT_REPEAT)) {
            err_set(p->e, EINVAL, "the argument '%s' cannot be used multiple times", spelling);
            return usage_hint(a->cmd, p->e);
        }
        if ((o->conflicts && strcmp(o->conflicts, other->name) == 0) ||
            (other->conflicts && strcmp(other->conflicts, o->name) == 0)) {
            err_set(p->e, EINVAL, "the argument '%s' cannot be used with '--%s'", spelling,
                    other->name);
            return usage_hint(a->cmd, p->e);
        }
    }
    a->opts[a->n_opts++] = (struct arg_opt){o, value};
    a->help_all = a->help_all || is_global(o, "help-all");
    a->help = a->help || a->help_all || is_global(o, "help");
    a->tree = a->tree || is_global(o, "tree");
    return 0;
}

/* The value of an option that was given without "=value": the next word, unless that is an option
 * itself. A value that begins with '-' needs the "=" form, so that a forgotten one is noticed. */
static int next_value(struct parser *p, const struct opt *o, const char **ret)
{
    const char *next = p->at < p->argc ? p->argv[p->at] : NULL;
    if (!next || (next[0] == '-' && next[1] != '\0' && !(o->flags & OPT_HYPHEN))) {
        char spelling[128];
        opt_spelling(o, spelling, sizeof(spelling));
        err_set(p->e, EINVAL, "a value is required for '%s' but none was supplied", spelling);
        if (next && strcmp(next, "--") != 0)
            err_hint(p->e, "write a value that begins with '-' as --%s=%s", o->name, next);
        return usage_hint(p->a->cmd, p->e);
    }
    p->at++;
    *ret = next;
    return 0;
}

/* Whether the word after an option with an optional value is that value. */
static bool is_own_value(const struct opt *o, const char *word)
{
    return word[0] == '/' || (strcmp(word, "auto") == 0 && strstr(o->value, "auto"));
}

static int parse_long(struct parser *p, const char *word)
{
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    const struct opt *o = find_long(p->a->cmd, name, len);
    if (!o && strcmp(name, "json") == 0) { /* --format json, if that is available */
        o = find_long(p->a->cmd, "format", strlen("format"));
        if (o && o->choices && word_among(o->choices, name))
            return take(p, o, name);
        o = NULL;
    }
    if (!o)
        return unexpected(p->a->cmd, word, p->e);
    const char *value = name[len] ? name + len + 1 : NULL;
    if (!o->value && value) {
        err_set(p->e, EINVAL, "unexpected value '%s' for '--%s' found; no more were expected",
                value, o->name);
        return usage_hint(p->a->cmd, p->e);
    }
    if (o->flags & OPT_LATER) /* whether or not its value is there */
        return later(p->a->cmd, o, p->e);
    const char *next = p->at < p->argc ? p->argv[p->at] : "";
    if (o->value && !value && (!(o->flags & OPT_OPTIONAL) || is_own_value(o, next))) {
        int r = next_value(p, o, &value);
        if (r < 0)
            return r;
    }
    return take(p, o, value);
}

static int parse_short(struct parser *p, const char *word)
{
    for (const char *c = word + 1; *c; c++) {
        const struct opt *o = find_letter(p->a->cmd, *c);
        if (!o) {
            char flag[] = {'-', *c, '\0'};
            return unexpected(p->a->cmd, c == word + 1 ? word : flag, p->e);
        }
        if (o->flags & OPT_LATER)
            return later(p->a->cmd, o, p->e);
        if (o->value) {
            const char *value = c[1] == '=' ? c + 2 : c + 1;
            if (!c[1]) {
                int r = next_value(p, o, &value);
                if (r < 0)
                    return r;
            }
            return take(p, o, value);
        }
        int r = take(p, o, NULL);
        if (r < 0 || p->a->help)
            return r;
    }
    return 0;
}

static int take_word(struct parser *p, const char *word)
{
    struct args *a = p->a;
    const struct pos *pos = &a->cmd->pos;
    bool many = pos->many || a->cmd->then.many;
    if (!pos->name || (!many && a->n_pos > (a->cmd->then.name != NULL)))
        return unexpected(a->cmd, word, p->e);
    a->pos[a->n_pos++] = word;
    return 0;
}

/* "exec web ls -l": the second word begins the command, and all that follows belongs to it. */
static bool begins_command(const struct args *a)
{
    return a->cmd->command_help && !a->cmd->command_name && a->n_pos > 0;
}

static int take_rest(struct parser *p)
{
    struct args *a = p->a;
    if (a->cmd->command_help) {
        a->n_command = (size_t)(p->argc - p->at);
        a->command = a->n_command ? p->argv + p->at : NULL;
        return 0;
    }
    int r = 0;
    while (r == 0 && p->at < p->argc)
        r = take_word(p, p->argv[p->at++]);
    return r;
}

static int missing(const struct cmd *c, size_t given, struct err *e)
{
    const struct pos *p = given ? &c->then : &c->pos;
    bool both = !given && c->then.name;
    err_set(e, EINVAL, "the following required arguments were not provided: <%s>%s%s%s%s%s",
            p->name, p->many ? "..." : "", both ? " <" : "", both ? c->then.name : "",
            both ? ">" : "", both && c->then.many ? "..." : "");
    return usage_hint(c, e);
}

static int parse(struct parser *p)
{
    struct args *a = p->a;
    while (p->at < p->argc) {
        char *word = p->argv[p->at];
        bool option = word[0] == '-' && word[1] != '\0';
        if (!option && a->cmd->subs)
            return 0;
        if (!option && begins_command(a))
            return take_rest(p);
        p->at++;
        int r;
        if (!option)
            r = take_word(p, word);
        else if (strcmp(word, "--") == 0)
            return take_rest(p);
        else
            r = word[1] == '-' ? parse_long(p, word) : parse_short(p, word);
        if (r < 0 || a->help || a->tree)
            return r;
    }
    return 0;
}

static int run_parser(const struct cmd *c, int first, int argc, char **argv, struct args *a,
                      struct err *e)
{
    *a = (struct args){.cmd = c};
    /* No cluster has more flags than its word has bytes. */
    size_t most = 1;
    for (int i = first; i < argc; i++)
        most += argv[i][0] == '-' && argv[i][1] != '-' ? strlen(argv[i]) : 1;
    a->opts = calloc(most, sizeof(*a->opts));
    a->pos = calloc((size_t)(argc - first) + 1, sizeof(*a->pos));
    if (!a->opts || !a->pos)
        return err_oom(e);
    struct parser p = {.at = first, .argc = argc, .argv = argv, .a = a, .e = e};
    int r = parse(&p);
    a->rest = p.at;
    return r;
}

int args_parse(const struct cmd *c, int first, int argc, char **argv, struct args *a, struct err *e)
{
    int r = run_parser(c, first, argc, argv, a, e);
    if (r < 0 || a->help || a->tree)
        return r;
    if (!c->subs && (r = conf_expand(a, e)) < 0)
        return r;
    size_t least = (size_t)c->pos.required + (c->then.name != NULL);
    return a->n_pos < least ? missing(c, a->n_pos, e) : 0;
}

void args_free(struct args *a)
{
    free(a->opts);
    free(a->pos);
    strlist_free(&a->own);
    *a = (struct args){0};
}

/* --- answers -------------------------------------------------------------------------------- */

static const struct arg_opt *given(const struct args *a, const char *name)
{
    assert(find_long(a->cmd, name, strlen(name)));
    for (size_t i = 0; i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, name) == 0)
            return &a->opts[i];
    return NULL;
}

bool args_has(const struct args *a, const char *name)
{
    return given(a, name) != NULL;
}

const char *args_get(const struct args *a, const char *name)
{
    const struct arg_opt *o = given(a, name);
    return o ? o->value : NULL;
}

int args_list(const struct args *a, const char *name, struct strlist *ret)
{
    if (!given(a, name))
        return 0;
    for (size_t i = 0; i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, name) == 0 && strlist_add(ret, a->opts[i].value) < 0)
            return -ENOMEM;
    return 0;
}
