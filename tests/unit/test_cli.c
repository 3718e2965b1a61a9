/* The command line: the parser, and that the command table is one that help, completion and users
 * can rely on. */
#include "cli/core/args.h"
#include "cli/core/help.h"
#include "cli/core/template.h"
#include "cli/core/verbs.h"
#include "cli/options/sandbox.h"
#include "cli/options/session.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"

static void hinted(const struct cmd *c, const char *text, const char *hint)
{
    struct line l;
    bool found = false;
    parse(&l, c, text);
    assert_true(l.ret < 0);
    for (int i = 0; i < l.e.hints; i++)
        found = found || strcmp(l.e.hint[i], hint) == 0;
    if (!found)
        fail_msg("'%s': no hint '%s'", text, hint);
    args_free(&l.a);
}

/* --- the parser ----------------------------------------------------------------------------- */

static void options_stand_anywhere(void **state)
{
    static const char *const lines[] = {"--quiet a b", "a --quiet b", "a b --quiet",
                                        "-q a b",      "a b -q",      "a -q -- b"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct line l;
        parse(&l, &cmd_stop, lines[i]);
        assert_int_equal(l.ret, 0);
        assert_true(args_has(&l.a, "quiet"));
        assert_false(args_has(&l.a, "force"));
        assert_int_equal(l.a.n_pos, 2);
        assert_string_equal(l.a.pos[0], "a");
        assert_string_equal(l.a.pos[1], "b");
        args_free(&l.a);
    }
}

static void values_in_every_spelling(void **state)
{
    static const char *const lines[] = {"--timeout 5s a", "--timeout=5s a", "-t 5s a", "-t5s a",
                                        "-t=5s a",        "-fqt 5s a",      "-fqt5s a"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct line l;
        parse(&l, &cmd_stop, lines[i]);
        assert_int_equal(l.ret, 0);
        assert_string_equal(args_get(&l.a, "timeout"), "5s");
        assert_int_equal(args_has(&l.a, "force"), i >= 5);
        args_free(&l.a);
    }
    struct line l;
    parse(&l, &cmd_create, "--name= --env A=b --env=C --env ''");
    assert_int_equal(l.ret, 0);
    assert_string_equal(args_get(&l.a, "name"), "");
    struct strlist env = {0};
    assert_int_equal(args_list(&l.a, "env", &env), 0);
    assert_int_equal(env.n, 3);
    assert_string_equal(env.v[0], "A=b");
    assert_string_equal(env.v[1], "C");
    assert_string_equal(env.v[2], "");
    strlist_free(&env);
    args_free(&l.a);
}

static void the_command_comes_after_two_dashes(void **state)
{
    struct line l;
    parse(&l, &cmd_exec, "-q name -- sh -c --quiet -- x");
    assert_int_equal(l.ret, 0);
    assert_int_equal(l.a.n_command, 5);
    assert_string_equal(l.a.command[2], "--quiet");
    assert_string_equal(l.a.command[3], "--");
    assert_null(l.a.command[5]);
    args_free(&l.a);
    parse(&l, &cmd_exec, "name --");
    assert_int_equal(l.ret, 0);
    assert_null(l.a.command);
    args_free(&l.a);
    parse(&l, &cmd_exec, "name -- --help");
    assert_int_equal(l.ret, 0);
    assert_false(l.a.help);
    args_free(&l.a);
    parse(&l, &cmd_exec, "-it name ls -l --help"); /* without "--", from the second word on */
    assert_int_equal(l.ret, 0);
    assert_int_equal(l.a.n_pos, 1);
    assert_int_equal(l.a.n_command, 3);
    assert_string_equal(l.a.command[1], "-l");
    assert_false(l.a.help);
    args_free(&l.a);
    parse(&l, &cmd_run, "--rm image -e A=b cmd -- x");
    assert_int_equal(l.ret, 0);
    assert_true(args_has(&l.a, "rm"));
    assert_null(args_get(&l.a, "rm"));
    assert_string_equal(l.a.pos[0], "image");
    assert_int_equal(l.a.n_command, 3);
    args_free(&l.a);
    parse(&l, &cmd_run, "--rm /etc/motd image"); /* a path is a path */
    assert_int_equal(l.ret, 0);
    assert_string_equal(args_get(&l.a, "rm"), "/etc/motd");
    args_free(&l.a);
    refused(&cmd_exec, "-- ls", EINVAL,
            "the following required arguments were not provided: <NAME>");
}

static void usage_errors(void **state)
{
    refused(&cmd_stop, "--quiett a", EINVAL, "unexpected argument '--quiett' found");
    refused(&cmd_stop, "-z a", EINVAL, "unexpected argument '-z' found");
    refused(&cmd_stop, "-qz a", EINVAL, "unexpected argument '-z' found");
    refused(&cmd_list, "name", EINVAL, "unexpected argument 'name' found");
    refused(&cmd_create, "a b", EINVAL, "unexpected argument 'b' found");
    refused(&cmd_list, "--quiet=3", EINVAL,
            "unexpected value '3' for '--quiet' found; no more were expected");
    refused(&cmd_create, "--name", EINVAL,
            "a value is required for '--name <NAME>' but none was supplied");
    refused(&cmd_create, "--name --quiet", EINVAL,
            "a value is required for '--name <NAME>' but none was supplied");
    refused(&cmd_create, "--name a --name b", EINVAL,
            "the argument '--name <NAME>' cannot be used multiple times");
    refused(&cmd_stop, "-q --quiet a", EINVAL,
            "the argument '--quiet' cannot be used multiple times");
    refused(&cmd_list, "--format yaml", EINVAL, "invalid value 'yaml' for '--format <FORMAT>'");
    refused(&cmd_list, "--format ''", EINVAL, "invalid value '' for '--format <FORMAT>'");
    refused(&cmd_exec, "--tty --no-tty a", EINVAL,
            "the argument '--no-tty' cannot be used with '--tty'");
    refused(&cmd_exec, "--no-tty --tty a", EINVAL,
            "the argument '--tty' cannot be used with '--no-tty'");
    refused(&cmd_list, "-V", EINVAL, "unexpected argument '-V' found");
    refused(&cmd_inspect, "", EINVAL, "the following required arguments were not provided: <NAME>");
}

static void suggestions(void **state)
{
    hinted(&cmd_stop, "--quiett", "a similar argument exists: '--quiet'");
    hinted(&cmd_create, "--no-nett", "a similar argument exists: '--no-net'");
    hinted(&cmd_create, "--no-netwrk", "a similar argument exists: '--no-net'");
    hinted(&cmd_create, "--volum=x", "a similar argument exists: '--volume'");
    hinted(&cmd_create, "--cpus -1", "write a value that begins with '-' as --cpus=-1");
    hinted(
        &cmd_create, "--gpus=all",
        "a sandbox cannot use a GPU: run programs that need one on this host, and reach them over "
        "the network (--net public,host)");
    assert_ptr_equal(cmd_similar(&root_cmd, "lst"), &cmd_list);
    assert_null(cmd_similar(&root_cmd, "sotp")); /* nothing that destroys is suggested */
    assert_ptr_equal(cmd_similar(&root_cmd, "creat"), &cmd_create);
    assert_null(cmd_similar(&root_cmd, "frobnicate"));
}

static void later_options_are_refused_not_ignored(void **state)
{
    static const char *const lines[] = {"--from-snapshot x", "--from-snapshot=x", "--from-snapshot",
                                        "--from-snap x"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        refused(&cmd_run, lines[i], ENOSYS, "--from-snapshot is not available yet");
}

static void other_spellings(void **state)
{
    struct line l;
    parse(&l, &cmd_create, "--no-network");
    assert_int_equal(l.ret, 0);
    assert_true(args_has(&l.a, "no-net"));
    args_free(&l.a);
    assert_ptr_equal(cmd_find(&root_cmd, "ls"), &cmd_list);
    assert_null(cmd_find(&cmd_port, "web")); /* a sandbox: */
    assert_ptr_equal(cmd_port.otherwise, &cmd_port_list);
    assert_ptr_equal(cmd_find(&root_cmd, "list"), &cmd_list);
    assert_ptr_equal(cmd_find(&root_cmd, "ps"), &cmd_status);
    assert_ptr_equal(cmd_find(&root_cmd, "rm"), &cmd_remove);
    assert_null(cmd_find(&root_cmd, ""));
    assert_null(cmd_find(&root_cmd, "lst"));
}

static void tree_and_help_need_no_arguments(void **state)
{
    for (const struct cmd *const *c = cmd_table; *c; c++) {
        struct line l;
        parse(&l, *c, "--tree");
        assert_int_equal(l.ret, 0);
        assert_true(l.a.tree);
        args_free(&l.a);
        parse(&l, *c, "-h");
        assert_int_equal(l.ret, 0);
        assert_true(l.a.help);
        args_free(&l.a);
    }
}

static void options_before_the_verb(void **state)
{
    char *argv[] = {(char *)"msb", (char *)"--debug", (char *)"ls", (char *)"-q", NULL};
    struct args a;
    struct err e = {0};
    assert_int_equal(args_parse(&root_cmd, 1, 4, argv, &a, &e), 0);
    assert_int_equal(a.rest, 2);
    assert_true(args_has(&a, "debug"));
    args_free(&a);
    argv[1] = (char *)"--bogus";
    assert_int_equal(args_parse(&root_cmd, 1, 4, argv, &a, &e), -EINVAL);
    args_free(&a);
    assert_int_equal(args_parse(&root_cmd, 1, 1, argv, &a, &e), 0);
    assert_int_equal(a.rest, 1);
    args_free(&a);
}

/* --- the table ------------------------------------------------------------------------------ */

struct seen {
    const struct cmd *cmd;
    char *names[256];
    size_t n;
    char letters[128];
};

static void once(struct seen *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0)
            fail_msg("msb %s has two options --%s", s->cmd->name, name);
    s->names[s->n++] = (char *)name;
}

static bool check_option(const struct opt *o, void *arg)
{
    struct seen *s = arg;
    once(s, o->name);
    if (o->alias)
        once(s, o->alias);
    unsigned char letter = (unsigned char)o->letter;
    if (letter && s->letters[letter]++)
        fail_msg("msb %s has two options -%c", s->cmd->name, letter);
    if (!o->help || !*o->help || o->help[strlen(o->help) - 1] == '.')
        fail_msg("msb %s: --%s needs a help line", s->cmd->name, o->name);
    if (o->choices && !o->value)
        fail_msg("msb %s: --%s has choices but no value", s->cmd->name, o->name);
    return false;
}

static void check_options(const struct cmd *in)
{
    for (const struct cmd *const *c = in->subs; *c; c++) {
        struct seen s = {.cmd = *c};
        (void)cmd_each_opt(*c, check_option, &s);
        if ((*c)->subs)
            check_options(*c);
    }
}

static void every_option_is_described_and_unique(void **state)
{
    check_options(&root_cmd);
}

static void check_verbs(const struct cmd *in)
{
    for (const struct cmd *const *c = in->subs; *c; c++) {
        const struct cmd *verb = (*c)->same ? (*c)->same : *c;
        assert_ptr_equal(cmd_find(in, (*c)->name), verb);
        if ((*c)->alias)
            assert_ptr_equal(cmd_find(in, (*c)->alias), verb);
        assert_true(!(*c)->same || ((*c)->flags & CMD_HIDDEN));
        const char *summary = verb->summary ? verb->summary : "";
        size_t n = strlen(summary);
        if (n == 0 || summary[n - 1] == '.')
            fail_msg("msb %s: summary '%s'", verb->name, summary);
        if (verb->flags & CMD_LATER)
            continue;
        assert_int_equal(!!verb->run + !!verb->with_store + !!verb->with_runtime + !!verb->list +
                             !!verb->inspect + !!verb->each,
                         !verb->subs);
        assert_true(!verb->with_runtime || in->perform);
        assert_non_null(verb->examples);
        if ((*c)->subs) /* not by way of another spelling: "container" is msb itself */
            check_verbs(verb);
    }
}

static void every_verb_is_described_and_unique(void **state)
{
    check_verbs(&root_cmd);
}

static void verbs_of_a_group(void **state)
{
    const struct cmd *group = &cmd_image;
    struct line l;
    char text[256];
    assert_ptr_equal(cmd_find(group, "ls"), &cmd_image_list);
    assert_ptr_equal(cmd_find(group, "push"), &cmd_push);
    assert_null(cmd_find(group, "run"));
    assert_ptr_equal(cmd_similar(group, "lst"), &cmd_image_list);
    assert_ptr_equal(cmd_parent(&cmd_image_list), group);
    assert_null(cmd_parent(&cmd_push)); /* msb's, listed in the group, too */
    assert_null(cmd_parent(&root_cmd));
    cmd_usage(group, text, sizeof(text));
    assert_string_equal(text, "msb image [OPTIONS] <COMMAND>");
    cmd_usage(&cmd_image_inspect, text, sizeof(text));
    assert_string_equal(text, "msb image inspect [OPTIONS] <REFERENCE>");
    cmd_path(&cmd_image_list, '-', text);
    assert_string_equal(text, "image-list");
    cmd_path(&root_cmd, '-', text);
    assert_string_equal(text, "");
    parse(&l, group, "--debug list --bogus");
    assert_int_equal(l.ret, 0);
    assert_int_equal(l.a.rest, 1);
    args_free(&l.a);
    refused(group, "--bogus list", EINVAL, "unexpected argument '--bogus' found");
    hinted(&cmd_image_inspect, "a b", "usage: msb image inspect [OPTIONS] <REFERENCE>");
    hinted(&cmd_image_inspect, "a b", "see 'msb image inspect --help'");
}

static void help_and_tree_of_a_group(void **state)
{
    struct buf b = {.limit = 1 << 20};
    help_cmd(&cmd_image, false, &b, 80);
    assert_int_equal(buf_append(&b, "", 1), 0);
    const char *text = (char *)buf_head(&b);
    assert_non_null(strstr(text, "\nUsage: msb image [OPTIONS] <COMMAND>\n"));
    assert_non_null(strstr(text, "\n  list        List images [alias: ls]\n"));
    assert_non_null(strstr(text, "\n  push        "));
    buf_reset(&b);
    help_cmd(&cmd_image_list, false, &b, 80);
    assert_int_equal(buf_append(&b, "", 1), 0);
    text = (char *)buf_head(&b);
    assert_non_null(strstr(text, "\nUsage: msb image list [OPTIONS]\n"
                                 "Alias: msb image ls\n"));
    buf_reset(&b);
    help_tree(&cmd_image, &b);
    assert_int_equal(buf_append(&b, "", 1), 0);
    text = (char *)buf_head(&b);
    assert_non_null(strstr(text, "msb image\n├── list (alias: ls)"));
    assert_non_null(strstr(text, "│   ├── <REFERENCE>        Image to show\n"));
    assert_non_null(strstr(text, "├── push "));
    assert_null(strstr(text, "--ca-certs")); /* push is shown where it belongs */
    buf_free(&b);
}

/* The whole text; also that no line is wider than it was asked to be. */
static char *text_of(struct buf *b, size_t columns)
{
    assert_int_equal(buf_append(b, "", 1), 0);
    for (const char *p = (char *)buf_head(b); columns && *p;) {
        size_t n = strcspn(p, "\n");
        if (n > columns)
            fail_msg("too wide: %.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
    return (char *)buf_head(b);
}

/* A screen, and the three verbs whose options, or verbs, do not fit on one. */
enum { SCREEN_COLUMNS = 80, SCREEN_LINES = 24, LONG_HELP_LINES = 35 };

static bool in_help(const struct opt *o, void *arg)
{
    char want[64];
    (void)snprintf(want, sizeof(want), "--%s", o->name);
    if (!(o->flags & OPT_HIDDEN) && !strstr(arg, want))
        fail_msg("help does not mention %s", want);
    return false;
}

static void check_help(const struct cmd *c, struct buf *b)
{
    buf_reset(b);
    help_cmd(c, false, b, SCREEN_COLUMNS);
    const char *text = text_of(b, SCREEN_COLUMNS), *examples = strstr(text, "\nExamples:\n  ");
    const char *options = strstr(text, "\nOptions:\n"), *usage = strstr(text, "\nUsage: msb ");
    int lines = 0,
        most = c == &cmd_run || c == &cmd_create || c == &cmd_oci ? LONG_HELP_LINES : SCREEN_LINES;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    if (lines > most)
        fail_msg("msb %s --help has %d lines:\n%s", c->name, lines, text);
    assert_true(usage && examples && usage < examples);
    assert_true(!options || examples < options);
    assert_non_null(strstr(text, "\nMore: msb "));
    buf_reset(b);
    help_cmd(c, true, b, SCREEN_COLUMNS);
    char *all = text_of(b, 0);
    (void)cmd_each_opt(c, in_help, all);
    assert_true(!c->details || !strchr("'.", c->details[0])); /* roff's control characters */
}

static void check_helps(const struct cmd *in, struct buf *b)
{
    for (const struct cmd *const *c = in->subs; *c; c++) {
        if (((*c)->flags & CMD_LATER) || (*c)->same)
            continue;
        check_help(*c, b);
        buf_reset(b);
        help_tree(*c, b);
        const char *text = text_of(b, 0);
        assert_non_null(strstr(text, (*c)->name));
        assert_null(strstr(text, "--help"));
        if ((*c)->subs)
            check_helps(*c, b);
    }
}

static void help_fits_a_screen_and_help_all_has_every_option(void **state)
{
    struct buf b = {.limit = 1 << 20};
    check_helps(&root_cmd, &b);
    buf_free(&b);
}

static void root_help_mentions_everything(void **state)
{
    struct buf b = {.limit = 1 << 20};
    for (int all = 0; all < 2; all++) {
        buf_reset(&b);
        help_root(all, &b, SCREEN_COLUMNS);
        char *text = text_of(&b, SCREEN_COLUMNS);
        for (const struct cmd *const *c = cmd_table; *c; c++)
            if (!((*c)->flags & CMD_HIDDEN) && (all || !((*c)->flags & CMD_LATER)))
                assert_non_null(strstr(text, (*c)->name));
        if (all)
            (void)cmd_each_opt(&root_cmd, in_help, text);
    }
    buf_reset(&b);
    help_tree(NULL, &b);
    const char *text = text_of(&b, 0);
    assert_non_null(strstr(text, "├── stop"));
    assert_non_null(strstr(text, "│   ├── -f, --force"));
    assert_null(strstr(text, "--from-snapshot"));
    buf_free(&b);
}

static void completions_offer_every_verb(void **state)
{
    static const char *const shells[] = {"bash", "zsh", "fish", "powershell", "elvish"};
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        struct buf b = {.limit = 1 << 20};
        assert_true(completion_script(shells[i], &b));
        const char *text = text_of(&b, 0);
        for (const struct cmd *const *c = cmd_table; *c; c++)
            if (!((*c)->flags & (CMD_LATER | CMD_HIDDEN)))
                assert_non_null(strstr(text, (*c)->name));
        assert_non_null(strstr(text, "root-disk"));
        assert_null(strstr(text, "from-snapshot"));
        buf_free(&b);
    }
}

/* --- templates ------------------------------------------------------------------------------- */

static void check_template(const char *template, const char *want)
{
    json_t *v = json_loads("{\"A\":{\"B\":\"b\",\"N\":3,\"T\":true,\"Z\":null},\"L\":[\"x\",\"y\"],"
                           "\"M\":{\"k 1\":[{\"P\":\"p\"}]},\"E\":[]}",
                           0, NULL);
    struct err e = {0};
    struct buf b = {.limit = 4096};
    int r = template_render(template, v, &b, &e);
    if (r != (want ? 0 : -EINVAL))
        fail_msg("%s: %d, %s", template, r, e.msg);
    if (want) {
        assert_int_equal(buf_append(&b, "", 1), 0);
        assert_string_equal((const char *)buf_head(&b), want);
    } else {
        assert_int_equal(strncmp(e.msg, "template: ", 10), 0);
    }
    buf_free(&b);
    json_decref(v);
}

static void templates(void **state)
{
    static const struct {
        const char *template, *want;
    } good[] = {
        {"", ""},
        {"plain } { text", "plain } { text"},
        {"{{.A.B}}-{{.A.N}}-{{.A.T}}", "b-3-true"},
        {"{{ .A.Z }}", "<no value>"},
        {"{{.L}} {{.M}}", "[x y] map[k 1:[map[P:p]]]"},
        {"{{json .L}}{{json .A.B}}", "[\"x\",\"y\"]\"b\""},
        {"{{json .}}", "{\"A\":{\"B\":\"b\",\"N\":3,\"T\":true,\"Z\":null},\"L\":[\"x\",\"y\"],"
                       "\"M\":{\"k 1\":[{\"P\":\"p\"}]},\"E\":[]}"},
        {"{{index .L 1}}{{index .L 9}}{{index .M \"none\"}}", "y"},
        {"{{(index (index .M \"k 1\") 0).P}}", "p"},
        {"{{range .L}}<{{.}}>{{end}}{{range .E}}x{{else}}none{{end}}", "<x><y>none"},
        {"{{range $i, $v := .L}}{{$i}}{{$v}}{{$.A.B}}{{end}}", "0xb1yb"},
        {"{{range $v := .L}}{{$v}}{{end}}", "xy"},
        {"{{if .A.T}}1{{if .E}}2{{else}}3{{end}}{{end}}{{if .A.Z}}4{{end}}", "13"},
        {"{{if not .E}}a{{end}}{{if eq .A.B \"b\"}}b{{end}}{{if ne .A.N 3}}c{{end}}", "ab"},
        {"{{.A.B | upper | json}}{{join .L \",\"}}{{len .L}}{{len .A.B}}", "\"B\"x,y21"},
        {"a {{- .A.B -}} c", "abc"},
        {"{{.M \"none\"}}{{println .A.B}}", "b\n"},
        {"<{{join .E \",\"}}>", "<>"},
    };
    static const char *const bad[] = {"{{",
                                      "{{.A",
                                      "{{}}",
                                      "{{.X}}",
                                      "{{.A.X}}",
                                      "{{.A.B.C}}",
                                      "{{end}}",
                                      "{{else}}",
                                      "{{if .A}}",
                                      "{{range .L}}",
                                      "{{range .L}}{{else}}",
                                      "{{nope .A}}",
                                      "{{$x}}",
                                      "{{index}}",
                                      "{{index .L}}",
                                      "{{\"x}}",
                                      "{{(.A}}",
                                      "{{.A)}}",
                                      "{{.A | }}",
                                      "{{| .A}}",
                                      "{{.A .B .L .M}}",
                                      "{{json . . . . .}}",
                                      "{{((((((((((((((((((((.A))))))))))))))))))))}}",
                                      "{{/*x*/}}",
                                      "{{if}}{{end}}"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        check_template(good[i].template, good[i].want);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        check_template(bad[i], NULL);
}

/* --- from options to a spec ----------------------------------------------------------------- */

static int request(const char *text, struct sandbox_request *q, struct err *e)
{
    struct line l;
    parse(&l, &cmd_create, text);
    assert_int_equal(l.ret, 0);
    int r = sandbox_request_parse(&l.a, q, e);
    args_free(&l.a);
    return r;
}

static void specs_from_options(void **state)
{
    struct sandbox_request q;
    struct err e = {0};
    (void)setenv("MSB_TEST_IMPORT", "value", 1);
    (void)unsetenv("MSB_ENGINE");
    assert_int_equal(
        request("-n web -c 0.5 -m 1.5G -e A=b -e MSB_TEST_IMPORT -e A=c --tmpfs "
                "/t:64M:ro,nosuid --tmpfs /u:rw,exec,size=1g --root-disk tmpfs:1G --label team=x "
                "--rlimit nofile=1:2 --max-duration 1h30m --idle-timeout 500ms --engine uml "
                "--max-output 1.5M "
                "--replace-with-timeout 0 --script hi=echo\\n\\\"x\\\"\\q -w /w -u u:g image",
                &q, &e),
        0);
    const struct sandbox_spec *s = &q.spec;
    assert_true(q.named && q.create.replace && q.create.replace_grace_ms == 0);
    assert_string_equal(s->name, "web");
    assert_string_equal(s->image, "image");
    assert_true(s->cpus == 0.5);
    assert_int_equal(s->memory_mib, 1536);
    assert_int_equal(s->env.n, 2);
    assert_string_equal(s->env.v[0], "A=c");
    assert_string_equal(s->env.v[1], "MSB_TEST_IMPORT=value");
    assert_int_equal(s->mounts[0].size, 64 * MIB);
    assert_int_equal(s->mounts[0].options, PROTO_MOUNT_RO | PROTO_MOUNT_NOSUID);
    assert_int_equal(s->mounts[1].size, GIB);
    assert_int_equal(s->mounts[1].options, 0);
    assert_int_equal(s->root_disk, ROOT_DISK_TMPFS);
    assert_int_equal(s->root_disk_bytes, GIB);
    assert_int_equal(s->max_duration_ms, 5400000);
    assert_int_equal(s->idle_timeout_ms, 500);
    assert_int_equal(s->output_max, 3 * MIB / 2);
    assert_int_equal(s->engine, ENGINE_UML);
    assert_string_equal(s->scripts[0].body, "#!/bin/sh\necho\n\"x\"\\q\n");
    sandbox_request_free(&q);

    assert_int_equal(request("-v /etc/../tmp:/w/deep:ro,uid=5,gid=6,quota=2G,cache=none "
                             "--mount-file /etc/passwd:/w//p -v .:/v:nosuid,nodev,noexec",
                             &q, &e),
                     0);
    s = &q.spec;
    assert_int_equal(s->n_mounts, 3);
    assert_string_equal(s->mounts[0].guest, "/v");
    assert_int_equal(s->mounts[0].options,
                     PROTO_MOUNT_NOSUID | PROTO_MOUNT_NODEV | PROTO_MOUNT_NOEXEC);
    assert_string_equal(s->mounts[1].guest, "/w/deep");
    assert_string_equal(s->mounts[1].source, "/tmp");
    assert_int_equal(s->mounts[1].options, PROTO_MOUNT_RO);
    assert_int_equal(s->mounts[1].uid, 5);
    assert_int_equal(s->mounts[1].gid, 6);
    assert_int_equal(s->mounts[1].quota, 2 * GIB);
    assert_int_equal(s->mounts[1].cache, MOUNT_CACHE_NONE);
    assert_false(s->mounts[1].file);
    assert_string_equal(s->mounts[2].guest, "/w/p");
    assert_true(s->mounts[2].file);
    sandbox_request_free(&q);

    assert_int_equal(request("", &q, &e), 0);
    assert_false(q.named || q.create.replace);
    assert_int_equal(strlen(q.spec.name), 12);
    assert_memory_equal(q.spec.name, "msb-", 4);
    assert_string_equal(q.spec.image, "msb/base");
    sandbox_request_free(&q);
}

static void bad_options_name_themselves(void **state)
{
    static const struct {
        const char *text, *msg;
        bool usage;
    } cases[] = {
        {"-m 5x", "invalid value '5x' for '--memory <SIZE>': " PARSE_SIZE_EXAMPLES, false},
        {"-m ''", "invalid value '' for '--memory <SIZE>': " PARSE_SIZE_EXAMPLES, false},
        {"-m 99999999999T", "invalid value '99999999999T' for '--memory <SIZE>': too large", false},
        {"-m 0", "invalid config: memory must be greater than 0", false},
        {"-c 0", "invalid config: cpus must be greater than 0", false},
        {"-c two",
         "invalid value 'two' for '--cpus <N>': expected a number up to 255, such as 1, 2 or 0.5",
         true},
        {"-c 256",
         "invalid value '256' for '--cpus <N>': expected a number up to 255, such as 1, 2 or 0.5",
         true},
        {"-e MSB_TEST_NOT_SET", "environment variable 'MSB_TEST_NOT_SET' not set", false},
        {"--max-duration 5x",
         "invalid value '5x' for '--max-duration <TIME>': " PARSE_DURATION_EXAMPLES, false},
        {"--tmpfs rel", "invalid config: guest mount path must be absolute: rel", false},
        {"--tmpfs /x:ro,rw", "--tmpfs '/x:ro,rw': mount option 'rw' repeats or contradicts another",
         false},
        {"--tmpfs /x:size=1m,size=2m",
         "--tmpfs '/x:size=1m,size=2m': mount option 'size=2m' repeats or contradicts another",
         false},
        {"-v /tmp:/x,ro", "--volume: mount options come after a colon, not a comma: '/tmp:/x,ro'",
         false},
        {"-v /tmp:rel",
         "--volume: expected SOURCE:DEST[:OPTIONS] with an absolute DEST: got '/tmp:rel'", false},
        {"-v /tmp", "--volume: expected SOURCE:DEST[:OPTIONS] with an absolute DEST: got '/tmp'",
         false},
        {"-v /no/such:/x", "--volume: cannot mount '/no/such': No such file or directory", false},
        {"-v /dev/null:/x",
         "--volume: cannot mount '/dev/null': it is neither a directory nor a regular file", false},
        {"--mount-dir /etc/passwd:/x", "--mount-dir: '/etc/passwd' is a file (use --mount-file)",
         false},
        {"--mount-file /tmp:/x", "--mount-file: '/tmp' is a directory (use --mount-dir)", false},
        {"-v /tmp:/x:uid=1", "--volume: uid= and gid= must be given together", false},
        {"-v /tmp:/x:cache=some",
         "--volume: mount option 'cache=some': expected auto, none or always", false},
        {"-v /tmp:/x:ro,ro", "--volume: mount option 'ro' repeats or contradicts another", false},
        {"-v /tmp:/x:quota=0", "--volume: mount option 'quota=0': " PARSE_SIZE_EXAMPLES, false},
        {"-v /tmp:/x:stat-virt=off",
         "--volume: mount option 'stat-virt=off' is not available yet (only stat-virt=strict is)",
         false},
        {"-v /tmp:/x -v /etc:/x", "invalid config: two mounts on the same guest path: /x", false},
        {"-v /tmp:/", "invalid config: cannot mount a volume at guest root /", false},
        {"-v /tmp:/proc/x", "invalid config: /proc is set up by msb; mount elsewhere than /proc/x",
         false},
        {"--script x", "script must be in format NAME=BODY: got --script 'x'", false},
        {"--script =x", "script name must not be empty (NAME=BODY)", false},
        {"--label =x", "invalid config: label key must not be empty", false},
        {"--root-disk flat", "--root-disk flat is not available yet", false},
        {"--hostname -x-", NULL, false},
        {"--rlimit nofile=2:1", "soft limit cannot exceed hard limit: rlimit 'nofile=2:1'", false},
    };
    (void)unsetenv("MSB_TEST_NOT_SET");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sandbox_request q;
        struct err e = {0};
        if (!cases[i].msg)
            continue;
        assert_true(request(cases[i].text, &q, &e) < 0);
        assert_string_equal(e.msg, cases[i].msg);
        assert_int_equal(q.exit_code == EXIT_USAGE, cases[i].usage);
        sandbox_request_free(&q);
    }
}

static void detach_keys(void **state)
{
    uint8_t keys[8];
    size_t n;
    struct err e = {0};
    assert_int_equal(parse_detach_keys("ctrl-p,ctrl-q", keys, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_int_equal(keys[0], 0x10);
    assert_int_equal(keys[1], 0x11);
    assert_int_equal(parse_detach_keys("ctrl-]", keys, &n, &e), 0);
    assert_int_equal(keys[0], 0x1d);
    assert_int_equal(parse_detach_keys("CTRL-A,x", keys, &n, &e), 0);
    assert_int_equal(keys[0], 1);
    assert_int_equal(keys[1], 'x');
    static const char *const bad[] = {
        "", ",", "ctrl-", "ctrl-1", "alt-x", "a,", "a,b,c,d,e,f,g,h,i"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(parse_detach_keys(bad[i], keys, &n, &e), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_stand_anywhere),
        cmocka_unit_test(values_in_every_spelling),
        cmocka_unit_test(the_command_comes_after_two_dashes),
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(later_options_are_refused_not_ignored),
        cmocka_unit_test(other_spellings),
        cmocka_unit_test(tree_and_help_need_no_arguments),
        cmocka_unit_test(options_before_the_verb),
        cmocka_unit_test(every_option_is_described_and_unique),
        cmocka_unit_test(every_verb_is_described_and_unique),
        cmocka_unit_test(verbs_of_a_group),
        cmocka_unit_test(help_and_tree_of_a_group),
        cmocka_unit_test(help_fits_a_screen_and_help_all_has_every_option),
        cmocka_unit_test(root_help_mentions_everything),
        cmocka_unit_test(completions_offer_every_verb),
        cmocka_unit_test(templates),
        cmocka_unit_test(specs_from_options),
        cmocka_unit_test(bad_options_name_themselves),
        cmocka_unit_test(detach_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
