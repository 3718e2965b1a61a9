/* copy: files between the host and sandboxes, by the rules of docker cp. */
#include "copy/copy.h"

#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "policy/rulebook.h"
#include "sandbox/files.h"
#include "store/audit.h"
#include "store/store.h"
#include "util/loop.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRAW_MS = 100 };

struct side {
    struct copy_end end;
    char *sandbox; /* malloc'd; NULL = the host */
    struct sandbox_files files;
};

/* --- endpoints ------------------------------------------------------------------------------- */

static int ambiguous(const char *arg, struct err *e)
{
    err_set(e, EINVAL, "ambiguous copy endpoint `%s`: a path in a sandbox must be absolute", arg);
    err_hint(e, "write SANDBOX:/path for a file in a sandbox, or ./%s for one on the host", arg);
    return -EINVAL;
}

static int parse_side(struct side *s, const char *arg, struct err *e)
{
    const char *colon = strchr(arg, ':');
    const char *slash = strchr(arg, '/');
    if (strcmp(arg, "-") == 0) {
        s->end.kind = COPY_STREAM;
        return 0;
    }
    if (!colon || arg[0] == '.' || arg[0] == '~' || (slash && slash < colon)) {
        s->end.kind = COPY_HOST;
        return copy_path_parse(&s->end.path, arg, e);
    }
    if (colon == arg || colon[1] != '/')
        return ambiguous(arg, e);
    s->end.kind = COPY_GUEST;
    s->sandbox = strndup(arg, (size_t)(colon - arg));
    if (!s->sandbox)
        return err_oom(e);
    int r = spec_check_name(s->sandbox, e);
    return r < 0 ? r : copy_path_parse(&s->end.path, colon + 1, e);
}

static int check_sides(const struct side *from, const struct side *to, struct err *e)
{
    if (!from->sandbox && !to->sandbox) {
        err_set(e, EINVAL, "msb copy requires at least one sandbox endpoint (SANDBOX:/path)");
        return -EINVAL;
    }
    if (to->end.kind == COPY_STREAM && isatty(STDOUT_FILENO))
        return err_set(e, EINVAL, "cannot write an archive to a terminal: redirect the output");
    return 0;
}

/* --- connections ----------------------------------------------------------------------------- */

/* Checks that the policy allows the host's side of the copy. */
static int hold_side(const struct store *s, const struct side *x, const struct side *other,
                     bool write, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    if (x->end.kind != COPY_HOST || !other->sandbox)
        return 0;
    int r = sandbox_open(s, other->sandbox, &sb, e);
    return r < 0 ? r : policy_hold_copy(s, &sb.spec, x->end.path.path, write, e);
}

static int connect_side(const struct store *s, struct side *x, struct err *e)
{
    if (!x->sandbox)
        return 0;
    x->end.files = &x->files.files;
    return sandbox_files_open(s, x->sandbox, ui_warn, &x->files, e);
}

static int release_side(const struct store *s, struct side *x, struct err *e)
{
    return x->sandbox ? sandbox_files_close(s, x->sandbox, ui_warn, &x->files, e) : 0;
}

/* --- progress -------------------------------------------------------------------------------- */

static uint64_t drawn_ns; /* 0 = nothing yet */
static bool on_screen;

static void describe(const struct tree_progress *p, char *out, size_t size)
{
    char bytes[32];
    format_bytes(p->bytes, bytes, sizeof(bytes));
    (void)snprintf(out, size, "%s in %llu file%s", bytes, (unsigned long long)p->files,
                   p->files == 1 ? "" : "s");
}

static void draw(struct tree_progress *p)
{
    char text[96];
    uint64_t now = now_ns();
    if (now - drawn_ns < DRAW_MS * 1000000ULL)
        return;
    drawn_ns = now;
    on_screen = true;
    describe(p, text, sizeof(text));
    (void)dprintf(STDERR_FILENO, "\r     Copying      %s\x1b[K", text);
}

static void wipe(void)
{
    if (on_screen)
        (void)dprintf(STDERR_FILENO, "\r\x1b[K");
    on_screen = false;
}

static void warn(const char *text)
{
    wipe();
    ui_warn(text);
}

/* --- the verb -------------------------------------------------------------------------------- */

static void record(const struct store *s, const struct args *a, const struct side *x,
                   const struct tree_progress *p, uint64_t began, int r, const struct err *e)
{
    if (x->sandbox)
        audit_done(s, "copy", x->sandbox,
                   json_pack("{s:o, s:o, s:I, s:I}", "from", audit_text(a->pos[0]), "to",
                             audit_text(a->pos[1]), "files", (json_int_t)p->files, "bytes",
                             (json_int_t)p->bytes),
                   began, r, e);
}

static int copy_between(const struct args *a, struct side *from, struct side *to,
                        struct tree_progress *p, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err late = {0};
    struct copy_options opt = {.archive = args_has(a, "archive"),
                               .follow = args_has(a, "follow-link")};
    uint64_t began = now_ns();
    int r = store_open_for(a, &s, e);
    if (r < 0)
        return r;
    r = hold_side(&s, from, to, false, e);
    if (r == 0)
        r = hold_side(&s, to, from, true, e);
    if (r == 0)
        r = connect_side(&s, from, e);
    if (r == 0)
        r = connect_side(&s, to, e);
    if (r == 0) {
        drawn_ns = now_ns();
        r = copy_run(&from->end, &to->end, &opt, p, e);
        wipe();
    }
    record(&s, a, from, p, began, r, e);
    if (!from->sandbox || !to->sandbox || strcmp(from->sandbox, to->sandbox) != 0)
        record(&s, a, to, p, began, r, e);
    int first = release_side(&s, from, &late), second = release_side(&s, to, &late);
    if (r == 0 && (first < 0 || second < 0)) {
        err_copy(e, &late);
        r = first < 0 ? first : second;
    }
    return r;
}

static int copy_run_verb(const struct args *a)
{
    static struct side from, to;
    struct err e = {0};
    char text[160], what[96];
    bool show = ui_shows(UI_INFO) && isatty(STDERR_FILENO);
    struct tree_progress p = {.warn = warn, .tick = show ? draw : NULL};
    int r = parse_side(&from, a->pos[0], &e);
    if (r == 0)
        r = parse_side(&to, a->pos[1], &e);
    if (r == 0)
        r = check_sides(&from, &to, &e);
    bool usage = r < 0;
    if (r == 0)
        r = copy_between(a, &from, &to, &p, &e);
    int code = r == 0 ? EXIT_OK : usage ? ui_usage(&e) : ui_fail(&e);
    if (r == 0) {
        describe(&p, what, sizeof(what));
        (void)snprintf(text, sizeof(text), "%s to %.48s%s", what, a->pos[1],
                       strlen(a->pos[1]) > 48 ? "..." : "");
        ui_success("Copied", text);
    }
    free(from.sandbox);
    free(to.sandbox);
    return code;
}

const struct cmd cmd_copy = {
    .name = "copy",
    .alias = "cp",
    .group = GROUP_SANDBOX,
    .summary = "Copy files between the host and sandboxes",
    .opts =
        OPTIONS({"archive", 'a', NULL, "Keep owners (default: root in a sandbox, you on the host)"},
                {"follow-link", 'L', NULL, "If SRC is a link, copy its target"}, POLICY_OPTION,
                QUIET_OPTION),
    .pos = ONE("SRC", "Path, SANDBOX:/path, or - for a tar archive on stdin"),
    .then = ONE("DST", "Path, SANDBOX:/path, or - for a tar archive on stdout"),
    .details = "If DST is a directory, SRC is copied into it under its own name; SRC/. means the "
               "contents of SRC. Otherwise DST becomes the copy. A stopped sandbox is started for "
               "the copy and stopped again afterwards.\n\n"
               "Files, directories and links are copied, with modes and times. Links are copied as "
               "links; other kinds of files are skipped. The directory that DST is in must exist. "
               "On the host, nothing becomes setuid and nothing is written outside DST, whatever a "
               "sandbox sends.",
    .examples = "  msb cp data.csv web:/srv/\n"
                "  msb cp web:/var/log ./logs\n"
                "  tar c site | msb cp - web:/srv\n"
                "  msb cp ./src/. build:/work\n"
                "  msb cp build:/out/app web:/usr/local/bin/\n"
                "  msb cp web:/srv - > srv.tar",
    .run = copy_run_verb,
};
