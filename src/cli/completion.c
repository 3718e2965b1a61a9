/* Completion scripts, generated from the command table, so that they agree with the parser. */
#include "cli/args.h"
#include "cli/help.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What an argument or a value may be: words, what a command lists, and files. */
struct things {
    const char *plural; /* zsh's function is named after it */
    const char *words;  /* NULL = none */
    const char *list;   /* a command that prints names; NULL = none */
    const char *fish;   /* the same where fish needs another; NULL = list */
    const char *files;  /* zsh's function for files or directories; NULL = neither */
};
static const struct things sandboxes = {"sandboxes", .list = "msb ls -q 2>/dev/null"};
static const struct things volumes = {"volumes", .list = "msb volume ls -q 2>/dev/null"};
static const struct things workspaces = {"workspaces", .list = "msb workspace ls -q 2>/dev/null",
                                         .files = "_files -/"};
static const struct things named_workspaces = {"named_workspaces",
                                               .list = "msb workspace ls -q 2>/dev/null"};
static const struct things workspace_paths = {
    "workspace_paths", .list = "msb workspace ls -q 2>/dev/null | sed s,$,:,",
    .fish = "msb workspace ls -q 2>/dev/null | string replace -r \"\\$\" :", .files = "_files"};
static const struct things secrets = {"secrets", .list = "msb secret ls -q 2>/dev/null"};
static const struct things images = {"images", .list = "msb image ls -q 2>/dev/null"};
static const struct things bootables = {"bootables", "msb/base",
                                        .list = "msb image ls -q 2>/dev/null", .files = "_files"};
static const struct things registries = {"registries", .list = "msb registry ls -q 2>/dev/null"};
static const struct things shells = {"shells", "bash zsh fish"};
static const struct things paths = {"paths", .list = "msb ls -q 2>/dev/null | sed s,$,:/,",
                                    .fish = "msb ls -q 2>/dev/null | string replace -r \"\\$\" :/",
                                    .files = "_files"};
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

/* What a verb's argument is, by the name that help gives it; NULL: nothing that exists yet. */
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
    return c->parent == &cmd_volume      ? &volumes
           : c->parent == &cmd_workspace ? &named_workspaces
           : c->parent == &cmd_secret    ? &secrets
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
        (void)buf_printf(out, "%s-W \"$(%s)\"", names->files ? "-d " : "", names->list);
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
    if (is && is->list)
        (void)buf_printf(out, "%s$(%s)", c->subs ? " " : "", is->list);
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
        if (t->list)
            (void)buf_printf(out,
                             "    local -a names\n"
                             "    names=(${(f)\"$(%s)\"})\n"
                             "    compadd -a names\n",
                             t->list);
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

/* True after the verb. One of msb's own must not be taken for a group's of the same name. */
static void fish_condition(struct buf *out, const struct cmd *c)
{
    (void)buf_printf(out, "complete -c msb -n '");
    if (c->parent) {
        fish_names(out, c->parent);
        (void)buf_printf(out, "; and ");
    }
    fish_names(out, c);
    for (const struct cmd *const *g = c->parent ? NULL : cmd_table; g && *g; g++) {
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
        (void)buf_printf(out, " %s -a '(%s)'", value_of(o)->files ? "-r" : "-x", value_of(o)->list);
    } else if (o->value) {
        (void)buf_printf(out, " -r");
    }
    (void)buf_printf(out, " -d '");
    fish_text(out, o->help);
    (void)buf_printf(out, "'\n");
    return false;
}

/* Offers a verb where a verb of that group is due. */
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
    if (c->parent != in && in != &root_cmd)
        return;
    struct fish f = {out, c};
    (void)cmd_each_opt(c, fish_option, &f);
    const struct things *is = argument_of(c);
    if (is) {
        fish_condition(out, c);
        (void)buf_printf(out, "%s -a '%s", is->files ? "" : " -f", is->words ? is->words : "");
        if (is->list)
            (void)buf_printf(out, "%s(%s)", is->words ? " " : "", is->fish ? is->fish : is->list);
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

/* --- the verb ------------------------------------------------------------------------------- */

void completion_script(const char *shell, struct buf *out)
{
    if (strcmp(shell, "bash") == 0)
        bash_script(out);
    else if (strcmp(shell, "zsh") == 0)
        zsh_script(out);
    else
        fish_script(out);
}

static int completion_run(const struct args *a)
{
    const char *shell = a->pos[0];
    if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0 && strcmp(shell, "fish") != 0) {
        struct err e = {0};
        err_set(&e, EINVAL, "invalid value '%s' for '<SHELL>'", shell);
        err_hint(&e, "possible values: bash, zsh, fish");
        return ui_usage(&e);
    }
    AUTO_BUF struct buf out;
    buf_init(&out, 1 << 20);
    completion_script(shell, &out);
    return ui_print(&out);
}

const struct cmd cmd_completion = {
    .name = "completion",
    .group = GROUP_INSTALL,
    .summary = "Print a shell completion script",
    .pos = {.name = "SHELL", .help = "bash, zsh or fish", .required = true},
    .examples = "  msb completion bash > ~/.local/share/bash-completion/completions/msb\n"
                "  msb completion zsh > \"${fpath[1]}/_msb\"\n"
                "  msb completion fish > ~/.config/fish/completions/msb.fish",
    .run = completion_run,
};
