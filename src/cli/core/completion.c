/* Completion scripts, generated from the command table, so that they agree with the parser. */
#include "cli/core/args.h"
#include "cli/core/completion_elv.h" /* generated */
#include "cli/core/completion_ps1.h" /* generated */
#include "cli/core/help.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What an argument or a value may be: words, what a verb lists, and files. */
struct things {
    const char *plural; /* zsh's function is named after it */
    const char *words;  /* NULL = none */
    const char *list;   /* a verb that prints names with -q; NULL = none */
    const char *suffix; /* appended to such a name */
    const char *files;  /* zsh's function for files or directories; NULL = neither */
};
static const struct things sandboxes = {"sandboxes", .list = "ls"};
static const struct things volumes = {"volumes", .list = "volume ls"};
static const struct things workspaces = {"workspaces", .list = "workspace ls",
                                         .files = "_files -/"};
static const struct things named_workspaces = {"named_workspaces", .list = "workspace ls"};
static const struct things workspace_paths = {"workspace_paths", .list = "workspace ls",
                                              .suffix = ":", .files = "_files"};
static const struct things secrets = {"secrets", .list = "secret ls"};
static const struct things images = {"images", .list = "image ls"};
static const struct things bootables = {"bootables", "msb/base", .list = "image ls",
                                        .files = "_files"};
static const struct things registries = {"registries", .list = "registry ls"};
static const struct things shells = {"shells", "bash zsh fish powershell elvish"};
static const struct things paths = {"paths", .list = "ls", .suffix = ":/", .files = "_files"};
static const struct things *const all_things[] = {
    &sandboxes, &volumes,   &workspaces, &named_workspaces, &workspace_paths, &secrets,
    &images,    &bootables, &registries, &shells,           &paths,
};

static bool offered(const struct cmd *c)
{
    return !(c->flags & (CMD_HIDDEN | CMD_LATER));
}

static bool offered_opt(const struct opt *o)
{
    return !(o->flags & (OPT_LATER | OPT_HIDDEN));
}

/* What a verb's argument is, by its name in help; NULL: nothing that exists yet. */
static const struct things *argument_of(const struct cmd *c)
{
    static const struct {
        const char *name;
        const struct things *is;
    } kinds[] = {{"REFERENCE", &images},         {"REFERENCES", &images}, {"IMAGE", &bootables},
                 {"REGISTRY", &registries},      {"SHELL", &shells},      {"SRC", &paths},
                 {"NAME:PATH", &workspace_paths}};
    const char *name = c->pos.name ? c->pos.name : "";
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(name, kinds[i].name) == 0)
            return kinds[i].is;
    if (c == &cmd_workspace_put)
        return &workspace_paths;
    if ((strcmp(name, "NAME") != 0 && strcmp(name, "NAMES") != 0) || c == &cmd_volume_create ||
        c == &cmd_workspace_create)
        return NULL;
    const struct cmd *group = cmd_parent(c);
    return group == &cmd_volume      ? &volumes
           : group == &cmd_workspace ? &named_workspaces
           : group == &cmd_secret    ? &secrets
                                     : &sandboxes;
}

/* The same for the value of an option. */
static const struct things *value_of(const struct opt *o)
{
    return strcmp(o->name, "secret-env") == 0  ? &secrets
           : strcmp(o->name, "workspace") == 0 ? &workspaces
           : strcmp(o->name, "name") == 0      ? &sandboxes
                                               : NULL;
}

/* The command that prints the names, for a shell with pipes. */
static void put_list(struct buf *out, const struct things *is, bool fish)
{
    (void)buf_printf(out, "msb %s -q 2>/dev/null", is->list);
    if (is->suffix)
        (void)buf_printf(out, fish ? " | string replace -r \"\\$\" %s" : " | sed s,$,%s,",
                         is->suffix);
}

/* "a|b|c" with spaces between. */
static void put_choices(struct buf *out, const char *choices)
{
    for (; *choices; choices++)
        (void)buf_printf(out, "%c", *choices == '|' ? ' ' : *choices);
}

/* Names of a group's verbs, each with a space before it. */
static void verb_names(const struct cmd *in, struct buf *out)
{
    for (const struct cmd *const *c = in->subs; *c; c++)
        if (offered(*c))
            (void)buf_printf(out, " %s%s%s", (*c)->name, (*c)->alias ? " " : "",
                             (*c)->alias ? (*c)->alias : "");
}

/* --- bash ----------------------------------------------------------------------------------- */

static bool bash_word(const struct opt *o, void *arg)
{
    struct buf *out = arg;
    if (!offered_opt(o))
        return false;
    (void)buf_printf(out, " --%s", o->name);
    if (o->letter)
        (void)buf_printf(out, " -%c", o->letter);
    return false;
}

/* A case branch per option with a value: its choices, names, or files. */
static bool bash_value(const struct opt *o, void *arg)
{
    struct buf *out = arg;
    const struct things *names = value_of(o);
    if (!o->value || !offered_opt(o))
        return false;
    (void)buf_printf(out, "            --%s", o->name);
    if (o->letter)
        (void)buf_printf(out, "|-%c", o->letter);
    (void)buf_printf(out, ") COMPREPLY=($(compgen ");
    if (o->choices) {
        (void)buf_printf(out, "-W \"");
        put_choices(out, o->choices);
        (void)buf_printf(out, "\"");
    } else if (names) {
        (void)buf_printf(out, "%s-W \"$(", names->files ? "-d " : "");
        put_list(out, names, false);
        (void)buf_printf(out, ")\"");
    } else {
        (void)buf_printf(out, "-f");
    }
    (void)buf_printf(out, " -- \"$cur\")); return ;;\n");
    return false;
}

/* "image list"|"image ls": a verb as it is typed in a group, and then what can follow it. */
static void bash_cmd(const struct cmd *c, const struct cmd *in, struct buf *out)
{
    char group[CMD_PATH_MAX];
    cmd_path(in, ' ', group);
    const char *space = *group ? " " : "";
    (void)buf_printf(out, "    \"%s%s%s\"", group, space, c->name);
    if (c->alias)
        (void)buf_printf(out, "|\"%s%s%s\"", group, space, c->alias);
    (void)buf_printf(out, ")\n        case \"$prev\" in\n");
    (void)cmd_each_opt(c, bash_value, out);
    (void)buf_printf(out, "        esac\n        words=\"");
    (void)cmd_each_opt(c, bash_word, out);
    (void)buf_printf(out, "\"\n");
    const struct things *is = argument_of(c->otherwise ? c->otherwise : c);
    if (c->subs || is)
        (void)buf_printf(out, "        %snames=\"", is && is->files ? "files=1 " : "");
    if (c->subs)
        verb_names(c, out);
    if (is && is->words)
        (void)buf_printf(out, "%s ", is->words);
    if (is && is->list) {
        (void)buf_printf(out, "%s$(", c->subs ? " " : "");
        put_list(out, is, false);
        (void)buf_printf(out, ")");
    }
    if (c->subs || is)
        (void)buf_printf(out, "\"\n");
    (void)buf_printf(out, "        ;;\n");
    for (const struct cmd *const *s = c->subs; s && *s; s++)
        if (offered(*s))
            bash_cmd(*s, c, out);
}

static void bash_script(struct buf *out)
{
    (void)buf_printf(out,
                     "# bash completion for msb\n"
                     "_msb() {\n"
                     "    local cur prev verb words names files i colon\n"
                     "    COMPREPLY=()\n"
                     "    cur=\"${COMP_WORDS[COMP_CWORD]}\"\n"
                     "    prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
                     "    # bash takes --engine=kvm and alpine:3 for three words each\n"
                     "    if [[ $cur == = ]]; then\n"
                     "        cur=\n"
                     "    elif [[ $prev == = ]]; then\n"
                     "        prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
                     "    elif [[ ${COMP_LINE:0:COMP_POINT} =~ [^[:space:]]*:[^[:space:]]*$ &&\n"
                     "        $COMP_WORDBREAKS == *:* ]]; then\n"
                     "        cur=\"${BASH_REMATCH[0]}\" colon=\"${BASH_REMATCH[0]%%:*}:\"\n"
                     "    fi\n"
                     "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                     "        [[ ${COMP_WORDS[i]} == -- ]] && return\n"
                     "        [[ ${COMP_WORDS[i]} == -* ]] && continue\n"
                     "        case \"$verb\" in\n"
                     "        '') verb=\"${COMP_WORDS[i]}\" ;;\n");
    for (const struct cmd *const *c = cmd_table; *c; c++)
        if (offered(*c) && (*c)->subs)
            (void)buf_printf(out, "        %s%s%s) verb=\"%s ${COMP_WORDS[i]}\" ;;\n", (*c)->name,
                             (*c)->alias ? "|" : "", (*c)->alias ? (*c)->alias : "", (*c)->name);
    (void)buf_printf(out, "        esac\n"
                          "    done\n"
                          "    case \"$verb\" in\n"
                          "    '')\n        words=\"");
    verb_names(&root_cmd, out);
    (void)cmd_each_opt(&root_cmd, bash_word, out);
    (void)buf_printf(out, "\"\n        ;;\n");
    for (const struct cmd *const *c = cmd_table; *c; c++)
        if (offered(*c))
            bash_cmd(*c, &root_cmd, out);
    (void)buf_printf(out, "    esac\n"
                          "    [[ $cur == -* || -z $verb ]] || words=\"\"\n"
                          "    COMPREPLY=($(compgen -W \"$words $names\" -- \"$cur\"))\n"
                          "    [[ -n $files ]] && COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
                          "    COMPREPLY=(\"${COMPREPLY[@]#\"$colon\"}\")\n"
                          "}\n"
                          "complete -o bashdefault -F _msb msb\n");
}

/* --- zsh ------------------------------------------------------------------------------------ */

/* Text inside single quotes inside an _arguments specification. */
static void zsh_text(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\'')
            (void)buf_printf(out, "'\\''");
        else if (strchr("[]:\\", *s))
            (void)buf_printf(out, "\\%c", *s);
        else
            (void)buf_printf(out, "%c", *s);
    }
}

static bool zsh_option(const struct opt *o, void *arg)
{
    struct buf *out = arg;
    if (!offered_opt(o))
        return false;
    const char *many = o->flags & OPT_REPEAT ? "*" : "";
    char letter[3] = {'-', o->letter, '\0'};
    for (int pass = o->letter ? 0 : 1; pass < 2; pass++) {
        (void)buf_printf(out, "            '%s%s%s%s[", many, pass ? "--" : letter,
                         pass ? o->name : "", o->value ? pass ? "=" : "+" : "");
        zsh_text(out, o->help);
        (void)buf_printf(out, "]");
        if (o->value) {
            (void)buf_printf(out, ":");
            zsh_text(out, o->value);
            (void)buf_printf(out, ":");
            if (o->choices) {
                (void)buf_printf(out, "(");
                put_choices(out, o->choices);
                (void)buf_printf(out, ")");
            } else {
                (void)buf_printf(out, value_of(o) ? "_msb_%s" : "_files",
                                 value_of(o) ? value_of(o)->plural : "");
            }
        }
        (void)buf_printf(out, "' \\\n");
    }
    return false;
}

static void zsh_cmd(const struct cmd *c, struct buf *out)
{
    (void)buf_printf(out, "        %s%s%s) ", c->name, c->alias ? "|" : "",
                     c->alias ? c->alias : "");
    if (c->subs) {
        (void)buf_printf(out, "_msb_%s ;;\n", c->name);
        return;
    }
    (void)buf_printf(out, "_arguments -S \\\n");
    (void)cmd_each_opt(c, zsh_option, out);
    const struct things *is = argument_of(c);
    char what[32];
    (void)snprintf(what, sizeof(what), is ? "_msb_%s" : "_files", is ? is->plural : "");
    if (c->pos.name && c->then.name)
        (void)buf_printf(out, "            '1:%s:%s' '2:%s:%s' ;;\n", c->pos.name, what,
                         c->then.name, is == &paths ? what : " ");
    else if (c->pos.name)
        (void)buf_printf(out, "            '%s:%s:%s' ;;\n", c->pos.many ? "*" : "1", c->pos.name,
                         what);
    else
        (void)buf_printf(out, "            && return ;;\n");
}

/* A function that completes a group: its verbs, and what follows each. */
static void zsh_group(const struct cmd *in, struct buf *out)
{
    for (const struct cmd *const *c = in->subs; *c; c++)
        if (offered(*c) && (*c)->subs)
            zsh_group(*c, out);
    (void)buf_printf(out,
                     "_msb%s%s() {\n"
                     "    local context state state_descr line\n"
                     "    typeset -A opt_args\n"
                     "    _arguments -C '1:command:->verb' '*::argument:->rest'\n"
                     "    case $state in\n"
                     "    verb)\n"
                     "        local -a verbs=(\n",
                     *in->name ? "_" : "", in->name);
    for (const struct cmd *const *c = in->subs; *c; c++) {
        if (!offered(*c))
            continue;
        (void)buf_printf(out, "            '%s:", (*c)->name);
        zsh_text(out, (*c)->summary);
        (void)buf_printf(out, "'\n");
    }
    (void)buf_printf(out, "        )\n"
                          "        _describe command verbs ;;\n"
                          "    rest)\n"
                          "        case $line[1] in\n");
    for (const struct cmd *const *c = in->subs; *c; c++)
        if (offered(*c))
            zsh_cmd(*c, out);
    (void)buf_printf(out, "        esac ;;\n"
                          "    esac\n"
                          "}\n");
}

static void zsh_script(struct buf *out)
{
    (void)buf_printf(out, "#compdef msb\n");
    for (size_t i = 0; i < ARRAY_LEN(all_things); i++) {
        const struct things *t = all_things[i];
        (void)buf_printf(out, "_msb_%s() {\n", t->plural);
        if (t->words)
            (void)buf_printf(out, "    compadd %s\n", t->words);
        if (t->list) {
            (void)buf_printf(out, "    local -a names\n"
                                  "    names=(${(f)\"$(");
            put_list(out, t, false);
            (void)buf_printf(out, ")\"})\n"
                                  "    compadd -a names\n");
        }
        if (t->files)
            (void)buf_printf(out, "    %s\n", t->files);
        (void)buf_printf(out, "}\n");
    }
    zsh_group(&root_cmd, out);
    (void)buf_printf(out,
                     "if [ \"$funcstack[1]\" = _msb ]; then _msb \"$@\"; else compdef _msb msb; "
                     "fi\n");
}

/* --- fish ----------------------------------------------------------------------------------- */

struct fish {
    struct buf *out;
    const struct cmd *cmd;
};

static void fish_text(struct buf *out, const char *s)
{
    for (; *s; s++)
        (void)buf_printf(out, *s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
}

static void fish_names(struct buf *out, const struct cmd *c)
{
    (void)buf_printf(out, "__fish_seen_subcommand_from %s%s%s", c->name, c->alias ? " " : "",
                     c->alias ? c->alias : "");
}

/* True after the verb. One of msb's own must not be mistaken for a group's with the same name. */
static void fish_condition(struct buf *out, const struct cmd *c)
{
    const struct cmd *group = cmd_parent(c);
    (void)buf_printf(out, "complete -c msb -n '");
    if (group) {
        fish_names(out, group);
        (void)buf_printf(out, "; and ");
    }
    fish_names(out, c);
    for (const struct cmd *const *g = group ? NULL : cmd_table; g && *g; g++) {
        const struct cmd *other = (*g)->subs && offered(*g) ? cmd_find(*g, c->name) : NULL;
        if (other && other != c) {
            (void)buf_printf(out, "; and not ");
            fish_names(out, *g);
        }
    }
    (void)buf_printf(out, "'");
}

static bool fish_option(const struct opt *o, void *arg)
{
    const struct fish *f = arg;
    struct buf *out = f->out;
    if (!offered_opt(o))
        return false;
    fish_condition(out, f->cmd);
    (void)buf_printf(out, " -l %s", o->name);
    if (o->letter)
        (void)buf_printf(out, " -s %c", o->letter);
    if (o->choices) {
        (void)buf_printf(out, " -x -a '");
        put_choices(out, o->choices);
        (void)buf_printf(out, "'");
    } else if (value_of(o)) {
        (void)buf_printf(out, " %s -a '(", value_of(o)->files ? "-r" : "-x");
        put_list(out, value_of(o), true);
        (void)buf_printf(out, ")'");
    } else if (o->value) {
        (void)buf_printf(out, " -r");
    }
    (void)buf_printf(out, " -d '");
    fish_text(out, o->help);
    (void)buf_printf(out, "'\n");
    return false;
}

/* Offers a verb where a verb of that group is expected. */
static void fish_offer(const struct cmd *c, const struct cmd *in, struct buf *out)
{
    if (in == &root_cmd) {
        (void)buf_printf(out, "complete -c msb -n __fish_use_subcommand");
    } else {
        (void)buf_printf(out, "complete -c msb -n '");
        fish_names(out, in);
        (void)buf_printf(out, "; and not __fish_seen_subcommand_from");
        verb_names(in, out);
        (void)buf_printf(out, "'");
    }
    (void)buf_printf(out, " -f -a %s -d '", c->name);
    fish_text(out, c->summary);
    (void)buf_printf(out, "'\n");
}

static void fish_cmd(const struct cmd *c, const struct cmd *in, struct buf *out)
{
    fish_offer(c, in, out);
    if (cmd_parent(c) != in && in != &root_cmd)
        return;
    struct fish f = {out, c};
    (void)cmd_each_opt(c, fish_option, &f);
    const struct things *is = argument_of(c);
    if (is) {
        fish_condition(out, c);
        (void)buf_printf(out, "%s -a '%s", is->files ? "" : " -f", is->words ? is->words : "");
        if (is->list) {
            (void)buf_printf(out, "%s(", is->words ? " " : "");
            put_list(out, is, true);
            (void)buf_printf(out, ")");
        }
        (void)buf_printf(out, "'\n");
    }
    for (const struct cmd *const *s = c->subs; s && *s; s++)
        if (offered(*s))
            fish_cmd(*s, c, out);
}

static void fish_script(struct buf *out)
{
    (void)buf_printf(out, "# fish completion for msb\n");
    for (const struct cmd *const *c = cmd_table; *c; c++)
        if (offered(*c))
            fish_cmd(*c, &root_cmd, out);
}

/* --- elvish and PowerShell ------------------------------------------------------------------- */

/* Both get the same table in a string, and a few lines that look into it. A row is a context (the
 * verb, or the verb and an option that takes a value), a word that can follow there, and what it
 * is. In place of the word stand
 *     =   another name: see the context named after it
 *     @   the names that the verb after it lists, with what follows the @ appended
 *     /   files
 * An option that takes a value always has a row, so that the value is not mistaken for a
 * verb. Strings are quoted alike in both. */
static void put_row(struct buf *out, const char *context, const char *word, const char *what)
{
    (void)buf_printf(out, "%s\t%s\t", context, word);
    for (; *what; what++)
        (void)buf_printf(out, *what == '\'' ? "''" : "%c", *what);
    (void)buf_printf(out, "\n");
}

/* Words with this character between them. */
static void put_words(struct buf *out, const char *context, const char *words, char sep)
{
    while (words && *words) {
        const char *end = strchrnul(words, sep);
        (void)buf_printf(out, "%s\t%.*s\t\n", context, (int)(end - words), words);
        words = *end ? end + 1 : end;
    }
}

static void put_things(struct buf *out, const char *context, const struct things *is)
{
    put_words(out, context, is->words, ' ');
    if (is->list)
        (void)buf_printf(out, "%s\t@%s\t%s\n", context, is->suffix ? is->suffix : "", is->list);
    if (is->files)
        put_row(out, context, "/", "");
}

struct rows {
    struct buf *out;
    const char *context;
};

static bool option_rows(const struct opt *o, void *arg)
{
    const struct rows *t = arg;
    AUTO_FREE char *full = NULL, *brief = NULL;
    char letter[3] = {'-', o->letter, '\0'}, name[64];
    if (!offered_opt(o))
        return false;
    (void)snprintf(name, sizeof(name), "--%s", o->name);
    put_row(t->out, t->context, name, o->help);
    if (o->letter)
        put_row(t->out, t->context, letter, o->help);
    const char *space = *t->context ? " " : "";
    if (!o->value || asprintf(&full, "%s%s%s", t->context, space, name) < 0 ||
        asprintf(&brief, "%s%s%s", t->context, space, letter) < 0)
        return false;
    put_words(t->out, full, o->choices, '|');
    if (!o->choices && value_of(o))
        put_things(t->out, full, value_of(o));
    else if (!o->choices)
        put_row(t->out, full, "/", "");
    if (o->letter)
        put_row(t->out, brief, "=", full);
    return false;
}

static void verb_rows(const struct cmd *c, struct buf *out)
{
    char context[CMD_PATH_MAX];
    cmd_path(c, ' ', context);
    struct rows t = {out, context};
    (void)cmd_each_opt(c, option_rows, &t);
    const struct things *is = c == &root_cmd ? NULL : argument_of(c->otherwise ? c->otherwise : c);
    if (is)
        put_things(out, context, is);
    const char *space = *context ? " " : "";
    for (const struct cmd *const *s = c->subs; s && *s; s++) {
        char own[CMD_PATH_MAX], typed[CMD_PATH_MAX + 32];
        if (!offered(*s))
            continue;
        cmd_path(*s, ' ', own);
        put_row(out, context, (*s)->name, (*s)->summary);
        (void)snprintf(typed, sizeof(typed), "%s%s%s", context, space, (*s)->name);
        if (strcmp(typed, own) != 0) /* one of msb's own verbs that a group also has */
            put_row(out, typed, "=", own);
        else
            verb_rows(*s, out);
        (void)snprintf(typed, sizeof(typed), "%s%s%s", context, space,
                       (*s)->alias ? (*s)->alias : "");
        if ((*s)->alias)
            put_row(out, typed, "=", own);
    }
}

/* The script, with the table where it says so. */
static void table_script(struct buf *out, const char *script)
{
    static const char mark[] = "@TABLE@";
    const char *at = strstr(script, mark);
    assert(at);
    (void)buf_append(out, script, (size_t)(at - script));
    verb_rows(&root_cmd, out);
    (void)buf_printf(out, "%s", at + strlen(mark));
}

static void elvish_script(struct buf *out)
{
    table_script(out, completion_elv);
}

static void powershell_script(struct buf *out)
{
    table_script(out, completion_ps1);
}

/* --- the verb ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*script)(struct buf *out);
} kinds_of_shell[] = {{"bash", bash_script},
                      {"zsh", zsh_script},
                      {"fish", fish_script},
                      {"powershell", powershell_script},
                      {"elvish", elvish_script}};

bool completion_script(const char *shell, struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds_of_shell); i++)
        if (strcmp(shell, kinds_of_shell[i].name) == 0) {
            kinds_of_shell[i].script(out);
            return true;
        }
    return false;
}

static int completion_run(const struct args *a)
{
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    if (completion_script(a->pos[0], &out))
        return ui_print(&out);
    struct err e = {0};
    err_set(&e, EINVAL, "invalid value '%s' for '<SHELL>'", a->pos[0]);
    err_hint(&e, "possible values: bash, zsh, fish, powershell, elvish");
    return ui_usage(&e);
}

const struct cmd cmd_completion = {
    .name = "completion",
    .group = GROUP_INSTALL,
    .summary = "Print a shell completion script",
    .pos = ONE("SHELL", "bash, zsh, fish, powershell or elvish"),
    .examples = "  msb completion bash > ~/.local/share/bash-completion/completions/msb\n"
                "  msb completion zsh > \"${fpath[1]}/_msb\"\n"
                "  msb completion fish > ~/.config/fish/completions/msb.fish\n"
                "  msb completion powershell >> \"$(pwsh -c 'echo $PROFILE')\"\n"
                "  msb completion elvish >> ~/.config/elvish/rc.elv",
    .run = completion_run,
};
