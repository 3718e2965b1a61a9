/* The host's policy: show, check, explain, init. */
#include "policy/rulebook.h"

#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/sandbox.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* --- show, check ------------------------------------------------------------------------------ */

static int open_book(const struct args *a, struct store *s, struct rulebook **ret, struct err *e)
{
    int r = store_open_for(a, s, e);
    return r < 0 ? r : rulebook_load(s, ret, e);
}

static int policy_show(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = NULL;
    AUTO_BUF struct buf out = {.limit = 1 << 22};
    int r = rulebook_load(s, &b, e);
    if (r < 0)
        return r;
    if (wants_json(a))
        return ui_print_json(rulebook_json(b));
    rulebook_print(b, &out);
    return ui_print(&out);
}

static const struct opt policy_opts[] = {POLICY_OPTION, FORMAT_OPTION, {0}};

static const struct cmd cmd_policy_show = {
    .name = "show",
    .summary = "Show the policy in effect, and where each setting comes from",
    .opts = policy_opts,
    .details = "A sandbox must satisfy every setting that is shown for all sandboxes and, of each "
               "file, those of the first rule set that matches it.",
    .examples = "  msb policy show\n"
                "  msb policy show --policy strict.yaml --format json",
    .with_store = policy_show,
};

static json_t *problem_json(const struct err *e)
{
    json_t *hints = json_array();
    for (int i = 0; i < e->hints; i++)
        (void)json_array_append_new(hints, json_string(e->hint[i]));
    return json_pack("{s:b, s:s, s:o}", "ok", 0, "error", e->msg, "hints", hints);
}

static int policy_check_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_RULEBOOK struct rulebook *b = NULL;
    struct err e = {0};
    int r = a->n_pos ? rulebook_load_file(a->pos[0], &b, &e) : open_book(a, &s, &b, &e);
    if (r == 0 && wants_json(a))
        return ui_print_json(json_pack("{s:b}", "ok", 1));
    if (r < 0) {
        if (wants_json(a))
            (void)ui_print_json(problem_json(&e));
        else
            ui_error(&e);
        return EXIT_FAILED;
    }
    if (!b)
        ui_note("There is no policy: everything is allowed.");
    else
        ui_success("Checked", a->n_pos ? a->pos[0] : "the policy in effect");
    return EXIT_OK;
}

static const struct cmd cmd_policy_check = {
    .name = "check",
    .summary = "Check a policy file for mistakes",
    .opts = policy_opts,
    .pos = MAYBE("FILE", "File to check (default: those in effect)"),
    .details =
        "If there is a mistake, shows where and exits with 1. As long as a file in effect cannot "
        "be read, trusted or understood, no sandbox can be created, started or changed.",
    .examples = "  msb policy check\n"
                "  msb policy check /tmp/new-policy.yaml",
    .run = policy_check_run,
};

/* --- explain ---------------------------------------------------------------------------------- */

static int print_verdict(const struct verdict *v)
{
    static const char *const headers[] = {"FIELD", "RESULT", "ASKED", "ALLOWED", "WHERE"};
    AUTO_BUF struct buf out = {.limit = 1 << 22};
    AUTO_TABLE struct table t;
    table_init(&t, 5, headers);
    t.max[2] = t.max[3] = 48;
    for (size_t i = 0; i < v->n; i++) {
        const struct finding *f = &v->v[i];
        char field[64], where[512];
        finding_field(f, field);
        (void)snprintf(where, sizeof(where), "%.400s:%u", f->file, f->line);
        TABLE_ROW(&t, field, outcome_name(f->outcome), f->asked, f->allowed, where);
    }
    (void)table_print(&t, &out, NULL);
    return ui_print(&out);
}

static int explain(const struct args *a, struct sandbox_request *q, struct verdict *v,
                   struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_RULEBOOK struct rulebook *b = NULL;
    int r = open_book(a, &s, &b, e);
    if (r == 0)
        r = rulebook_judge(b, &s, HOLD_CREATE, q->create.said, &q->spec, v, e);
    if (r < 0)
        return ui_fail(e);
    int code = wants_json(a) ? ui_print_json(verdict_json(v)) : EXIT_OK;
    if (!wants_json(a) && v->n)
        code = print_verdict(v);
    if (!wants_json(a) && !v->n)
        ui_note("No policy applies to this sandbox: it is allowed.");
    return code == EXIT_OK && v->refused ? EXIT_POLICY : code;
}

static int policy_explain_run(const struct args *a)
{
    struct sandbox_request q;
    AUTO_VERDICT struct verdict v = {0};
    struct err e = {0};
    int code;
    if (sandbox_request_parse(a, &q, &e) < 0)
        code = sandbox_request_fail(&q, &e);
    else
        code = explain(a, &q, &v, &e);
    sandbox_request_free(&q);
    return code;
}

static const struct cmd cmd_policy_explain = {
    .name = "explain",
    .flags = CMD_TERSE,
    .summary = "Show what the policy would do to a sandbox, without creating it",
    .opts = OPTIONS(FORMAT_OPTION),
    .groups = GROUPS(SANDBOX_GROUPS),
    .pos = MAYBE("IMAGE", IMAGE_ARGUMENT_HELP),
    .details = "Takes the options of 'msb create'. Each setting that applies is shown as allowed, "
               "refused, filled in with a default, or narrowed to the limit, if you did not ask "
               "for it. Exits with 3 if the sandbox would be refused.",
    .examples = "  msb policy explain --memory 8G python:3.12\n"
                "  msb policy explain --format json -v ./src:/src",
    .run = policy_explain_run,
};

/* --- copies ----------------------------------------------------------------------------------- */

static int policy_copies(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    int r = sandbox_open(s, a->pos[0], &sb, e);
    for (size_t i = 1; r == 0 && i < a->n_pos; i++)
        r = policy_hold_copy(s, &sb.spec, a->pos[i], args_has(a, "write"), e);
    return r;
}

static const struct cmd cmd_policy_copies = {
    .name = "copies",
    .summary = "Check whether host paths may be copied into a sandbox, or out of it",
    .opts = OPTIONS({"write", 0, NULL, "From the sandbox to these paths"}, POLICY_OPTION),
    .pos = ONE("NAME", "Sandbox"),
    .then = SOME("PATHS", "Paths of the host"),
    .details = "Exits with 3 if the policy refuses one of them (paths.copies). For programs that "
               "copy files by themselves: the SDK asks this before an upload or a download.",
    .examples = "  msb policy copies web ./src\n"
                "  msb policy copies web --write /srv/results",
    .with_store = policy_copies,
};

/* --- init ------------------------------------------------------------------------------------- */

static int write_new(const char *path, const struct buf *text, bool force, struct err *e)
{
    AUTO_CLOSE int fd =
        open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0644);
    if (fd < 0 && errno == EEXIST)
        return err_hinted(e, err_set(e, EEXIST, "%s exists", path),
                          "use --force to replace it, or '-' to print the text");
    int r = fd < 0 ? -errno : write_all(fd, buf_head(text), buf_len(text));
    return r < 0 ? err_sys(e, -r, "cannot write %s", path) : 0;
}

static int policy_init_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_FREE char *path = NULL;
    AUTO_BUF struct buf text = {.limit = 1 << 20};
    struct err e = {0};
    rulebook_template(&text);
    if (a->n_pos && strcmp(a->pos[0], "-") == 0)
        return ui_print(&text);
    int r = a->n_pos ? 0 : store_open(&s, &e);
    if (r == 0 && !a->n_pos && asprintf(&path, "%s/" POLICY_FILE_NAME, s.home) < 0)
        r = err_oom(&e);
    const char *to = a->n_pos ? a->pos[0] : path;
    if (r == 0)
        r = write_new(to, &text, args_has(a, "force"), &e);
    if (r < 0)
        return ui_fail(&e);
    ui_success("Wrote", to);
    return EXIT_OK;
}

static const struct cmd cmd_policy_init = {
    .name = "init",
    .summary = "Write a policy file to start from",
    .opts =
        OPTIONS({"force", 'f', NULL, "Replace the file if it exists", OPT_DESTROYS}, QUIET_OPTION),
    .pos = MAYBE("FILE", "File to write (default: $MSB_HOME/policy.yaml); '-' prints it"),
    .details = "All settings in it are explained and commented out: it allows everything until you "
               "uncomment some. The operator's file is /etc/msb/policy.yaml.",
    .examples = "  msb policy init\n"
                "  sudo msb policy init /etc/msb/policy.yaml",
    .run = policy_init_run,
};

const struct cmd cmd_policy = {
    .name = "policy",
    .group = GROUP_OTHER,
    .summary = "Show, check, explain and apply the rules for sandboxes",
    .subs = VERBS(&cmd_policy_show, &cmd_policy_check, &cmd_policy_explain, &cmd_policy_copies,
                  &cmd_policy_init, &cmd_policy_apply),
    .details =
        "/etc/msb/policy.yaml is the operator's, $MSB_HOME/policy.yaml a user's own, and "
        "--policy FILE applies to one command. A sandbox must satisfy all of them: a user can "
        "only narrow what the operator allows.",
    .examples = "  msb policy show\n"
                "  msb policy explain --memory 8G python:3.12\n"
                "  msb policy apply --dry-run",
};
