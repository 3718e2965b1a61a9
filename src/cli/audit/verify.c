/* audit verify: checks that the audit log is what was written. */
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "store/audit_verify.h"
#include "store/store.h"
#include "util/json.h"

#include <inttypes.h>
#include <stdio.h>

static json_t *problem_json(const struct audit_problem *p)
{
    json_t *j = json_pack("{s:s}", "problem", p->what);
    if (j && p->file[0])
        (void)json_object_set_new(j, "file", json_string(p->file));
    if (j && p->line)
        (void)json_object_set_new(j, "line", json_integer((json_int_t)p->line));
    if (j && p->seq)
        (void)json_object_set_new(j, "seq", json_integer((json_int_t)p->seq));
    return j;
}

static void on_problem(void *ctx, const struct audit_problem *p)
{
    (void)json_array_append_new(ctx, problem_json(p));
}

static void print_problems(const json_t *list, uint64_t all)
{
    size_t i;
    json_t *p;
    json_array_foreach((json_t *)list, i, p)
    {
        const char *file = json_string_value(json_object_get(p, "file"));
        struct err e = {0};
        if (file)
            err_set(&e, 1, "%s:%lld: %s", file,
                    (long long)json_integer_value(json_object_get(p, "line")),
                    json_string_value(json_object_get(p, "problem")));
        else
            err_set(&e, 1, "%s", json_string_value(json_object_get(p, "problem")));
        ui_error(&e);
    }
    if (all > AUDIT_PROBLEMS_MAX) {
        struct err e = {0};
        err_set(&e, 1, "and %" PRIu64 " more", all - AUDIT_PROBLEMS_MAX);
        ui_error(&e);
    }
}

static void print_summary(const struct audit_check *c)
{
    char text[256];
    if (c->last.seq == 0) {
        ui_note("The audit log has no chained records yet.");
        return;
    }
    (void)snprintf(text, sizeof(text), "records %" PRIu64 " to %" PRIu64 ": unchanged", c->first,
                   c->last.seq);
    ui_success("Verified", text);
    if (c->first > 1)
        ui_note("Older records were removed when the log was rotated.");
    if (c->unchained) {
        (void)snprintf(text, sizeof(text),
                       "%" PRIu64 " line%s before record 1 cannot be verified: written before "
                       "records were chained.",
                       c->unchained, c->unchained == 1 ? "" : "s");
        ui_note(text);
    }
    if (c->repaired || c->cut) {
        (void)snprintf(text, sizeof(text),
                       "%" PRIu64 " record%s cut short when a writer was "
                       "killed.",
                       c->repaired + c->cut, c->repaired + c->cut == 1 ? " was" : "s were");
        ui_note(text);
    }
}

static int print_json(const struct audit_check *c, json_t *problems)
{
    char mark[AUDIT_MARK_TEXT_MAX] = "";
    if (c->last.seq)
        audit_mark_text(&c->last, mark);
    return ui_print_json(json_pack(
        "{s:b, s:I, s:I, s:I, s:I, s:I, s:s, s:O, s:I}", "ok", c->problems == 0, "first",
        (json_int_t)c->first, "last", (json_int_t)c->last.seq, "records", (json_int_t)c->records,
        "unchained", (json_int_t)c->unchained, "repaired", (json_int_t)c->repaired, "anchor", mark,
        "problems", problems, "problems_total", (json_int_t)c->problems));
}

static int verify_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_JSON json_t *problems = json_array();
    struct audit_check c = {.problem = on_problem, .ctx = problems};
    struct audit_mark expect;
    struct err e = {0};
    const char *v = args_get(a, "expect");
    if (v && audit_mark_parse(v, &expect) < 0) {
        (void)args_bad_value(a, "expect", v, "expected what --anchor printed: NUMBER:HASH", &e);
        return ui_usage(&e);
    }
    c.expect = v ? &expect : NULL;
    int r = store_open(&s, &e);
    if (r == 0)
        r = audit_verify(s.home_fd, &c, &e);
    if (r < 0)
        return ui_fail(&e);
    int code = EXIT_OK;
    if (wants_json(a))
        code = print_json(&c, problems);
    else if (c.problems)
        print_problems(problems, c.problems);
    else if (!args_has(a, "anchor"))
        print_summary(&c);
    if (c.problems == 0 && args_has(a, "anchor") && !wants_json(a)) {
        char mark[AUDIT_MARK_TEXT_MAX];
        audit_mark_text(&c.last, mark);
        code = c.last.seq ? ui_print_line(mark) : EXIT_FAILED;
        if (c.last.seq == 0)
            ui_warn("the audit log has no records yet");
    }
    return c.problems ? EXIT_FAILED : code;
}

const struct cmd cmd_audit_verify = {
    .name = "verify",
    .summary = "Check that the audit log has not been tampered with",
    .opts = OPTIONS(
        {"anchor", 0, NULL, "Print the newest record's number and hash, to be kept elsewhere"},
        {"expect", 0, "ANCHOR", "Fail unless the record that --anchor printed is still there"},
        FORMAT_OPTION, QUIET_OPTION),
    .details =
        "Each record has the hash of the one before it, and audit.head has the hash of the newest. "
        "Records that were changed, removed, inserted, moved or cut off at the end are found. What "
        "is wrong is printed with file, line and number; the exit code is 1.\n\n"
        "Anyone who can write to both files can write a new chain. Keep anchors where that user "
        "cannot write, and give one to --expect: it fails if that record is missing or different. "
        "An anchor older than the two rotated files can no longer be found.",
    .examples = "  msb audit verify\n"
                "  msb audit verify --anchor >> /mnt/elsewhere/anchors\n"
                "  msb audit verify --expect \"$(tail -n 1 /mnt/elsewhere/anchors)\"",
    .run = verify_run,
};
