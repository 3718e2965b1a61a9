/* The audit log, merged with the network decisions of existing sandboxes. */
#include "store/audit.h"
#include "cli/audit/filter.h"
#include "cli/audit/stats.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/log.h"
#include "logs/net_record.h"
#include "logs/records.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/text.h"
#include "util/utf8.h"
#include "util/words.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define AUDIT_FORMAT "%-19s  %-8s  %-20s  %s\n"

/* A sandbox whose own log is or was shown. When it is removed, its records are copied to the audit
 * log: those up to last_ns have been shown already. */
struct followed {
    struct followed *next;
    uint64_t last_ns;
    dev_t dev;
    ino_t ino;
    struct record_source *src; /* NULL: it is gone */
    bool there;                /* at the last look */
    char name[];
};

struct audit_view {
    const struct store *store;
    struct audit_filter filter;
    bool json, ascii, all;
    struct followed *followed;
};

/* --- records --------------------------------------------------------------------------------- */

/* Members beyond the common ones, as KEY=VALUE; a value is JSON unless it is a single word. */
static int put_details(const json_t *j, struct buf *out)
{
    static const char frame[] = "seq|prev|begins|t|event|sandbox|uid|pid|program|parent|exec";
    const char *key;
    json_t *v;
    int r = 0;
    json_object_foreach((json_t *)j, key, v)
    {
        if (word_among(frame, key) || r < 0)
            continue;
        const char *word = json_string_value(v);
        bool plain = word && *word && !strpbrk(word, " \t\"'\\");
        AUTO_FREE char *text = plain ? strdup(word) : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!text)
            return -ENOMEM;
        utf8_defuse(text);
        r = buf_printf(out, "%s%.64s=%s", buf_len(out) ? " " : "", key, text);
    }
    return r;
}

static int put_text(const char *event, const char *sandbox, uint64_t t_ns, const char *details,
                    struct buf *out)
{
    char t[TIME_TEXT_MAX], name[SPEC_NAME_MAX + 1], what[32];
    time_local(t_ns, t);
    (void)snprintf(name, sizeof(name), "%s", sandbox);
    (void)snprintf(what, sizeof(what), "%s", event);
    utf8_defuse(name);
    utf8_defuse(what);
    return buf_printf(out, AUDIT_FORMAT, t, what, name[0] ? name : "-", details[0] ? details : "-");
}

static int put_net(const struct audit_view *v, const char *sandbox, const struct net_record *r,
                   struct buf *out)
{
    if (v->json) {
        AUTO_JSON json_t *j = net_record_json(r);
        AUTO_JSON json_t *more =
            json_pack("{s:s, s:s, s:s}", "event", "net", "sandbox", sandbox, "from", "sandbox");
        bool ok = j && more && json_object_update(j, more) == 0;
        return record_json(ok ? json_incref(j) : NULL, v->ascii, out);
    }
    char peer[400], story[NET_RECORD_WHY_MAX + 200], details[2048];
    net_record_peer(r, peer, sizeof(peer));
    net_record_story(r, story, sizeof(story));
    (void)snprintf(details, sizeof(details), "%s %s%s%s%s", net_record_kind_name(r->kind), peer,
                   r->proto[0] ? "/" : "", r->proto, story[0] ? "  " : "");
    size_t n = strlen(details);
    (void)snprintf(details + n, sizeof(details) - n, "%s", story);
    return put_text("net", sandbox, r->t_ns, details, out);
}

/* A record of audit.log itself. */
static int put_own(struct audit_view *v, const struct log_entry *e, struct buf *out)
{
    const char *event = json_string_value(json_object_get(e->json, "event"));
    const char *sandbox = json_string_value(json_object_get(e->json, "sandbox"));
    if (!event)
        return 0;
    if (!audit_filter_passes(&v->filter, event, sandbox, e->t_ns, e->json))
        return 0;
    if (v->json)
        return record_json(json_incref(e->json), v->ascii, out) < 0 ? -ENOMEM : 1;
    AUTO_BUF struct buf details = {.limit = LOG_LINE_MAX};
    int r = put_details(e->json, &details);
    if (r == 0)
        r = buf_append(&details, "", 1);
    if (r == 0)
        r = put_text(event, sandbox ? sandbox : "", e->t_ns, (const char *)buf_head(&details), out);
    return r < 0 ? r : 1;
}

static struct followed *find_followed(const struct audit_view *v, const char *name)
{
    for (struct followed *f = v->followed; f; f = f->next)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static int render(void *ctx, const struct record_source *from, const struct log_entry *e,
                  struct buf *out)
{
    struct audit_view *v = ctx;
    struct net_record r;
    const char *event = json_string_value(json_object_get(e->json, "event"));
    bool copied = !from->label && event && strcmp(event, "net") == 0;
    if (!from->label && !copied)
        return put_own(v, e, out);
    const char *sandbox =
        copied ? json_string_value(json_object_get(e->json, "sandbox")) : from->label;
    if (!sandbox || net_record_read(e, &r) < 0 ||
        !audit_filter_passes(&v->filter, "net", sandbox, e->t_ns, copied ? e->json : NULL))
        return 0;
    if (!v->all && !copied && r.verdict != NET_RECORD_DENY && r.kind != NET_RECORD_MISSED)
        return 0;
    struct followed *f = find_followed(v, sandbox);
    if (copied && f && e->t_ns <= f->last_ns)
        return 0;
    if (!copied && f)
        f->last_ns = MAX(f->last_ns, e->t_ns);
    int k = put_net(v, sandbox, &r, out);
    return k < 0 ? k : 1;
}

/* --- sandboxes ------------------------------------------------------------------------------- */

static int follow_one(struct audit_view *v, struct records *r, const char *name)
{
    struct stat st;
    AUTO_CLOSE int dirfd = dir_open_at(v->store->sandboxes_fd, name);
    if (dirfd < 0 || fstat(dirfd, &st) < 0)
        return 0;
    struct followed *f = find_followed(v, name);
    if (f)
        f->there = f->ino == st.st_ino && f->dev == st.st_dev;
    if (f && f->src && f->there)
        return 0;
    if (f && f->src) /* a new one with that name waits until the old one is finished */
        return 0;
    AUTO_CLOSE int logs = sandbox_logs_open(dirfd);
    if (logs < 0 || faccessat(logs, LOG_NET_NAME, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* it has no network, or has not started yet */
    int k = records_add(r, steal_fd(&logs), LOG_NET_NAME, name);
    if (k < 0)
        return k;
    if (!f) {
        f = calloc(1, sizeof(*f) + strlen(name) + 1);
        if (!f)
            return -ENOMEM;
        memcpy(f->name, name, strlen(name) + 1);
        f->next = v->followed;
        v->followed = f;
    }
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->src = r->src[r->n - 1];
    f->there = true;
    return 0;
}

/* Adds new sandboxes; marks those that are gone. */
static int look_around(struct audit_view *v, struct records *r)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(v->store->sandboxes_fd, ".");
    if (!d)
        return -errno;
    for (struct followed *f = v->followed; f; f = f->next)
        f->there = false;
    int k = 0;
    const struct dirent *e;
    while (k == 0 && (e = readdir(d)))
        if (e->d_name[0] != '.' && (!v->filter.name || strcmp(e->d_name, v->filter.name) == 0))
            k = follow_one(v, r, e->d_name);
    for (struct followed *f = v->followed; f; f = f->next)
        if (f->src && !f->there) {
            f->src->gone = true;
            f->src = NULL;
        }
    return k;
}

static bool look_again(void *ctx, struct records *r)
{
    return look_around(ctx, r) == 0;
}

/* --- the verb -------------------------------------------------------------------------------- */

/* Each sandbox has up to three files. */
static void raise_file_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l);
    }
}

static int print_head(void)
{
    AUTO_BUF struct buf out = {.limit = 256};
    int r = buf_printf(&out, AUDIT_FORMAT, "TIME", "EVENT", "SANDBOX", "DETAILS");
    return r < 0 || ui_print(&out) == EXIT_OK ? r : -EPIPE;
}

static int show(struct audit_view *v, struct records *r, struct err *e)
{
    raise_file_limit();
    int home = openat(v->store->home_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int k = home < 0 ? -errno : records_add(r, home, AUDIT_NAME, NULL);
    if (k == 0) {
        r->src[0]->unordered = true; /* network records are copied when their sandbox is removed */
        k = look_around(v, r);
    }
    if (k == 0 && !v->json)
        k = print_head();
    if (k == 0)
        k = records_show(r);
    records_free(r);
    while (v->followed) {
        struct followed *next = v->followed->next;
        free(v->followed);
        v->followed = next;
    }
    return k < 0 && k != -EPIPE ? err_sys(e, -k, "cannot show the audit log") : k;
}

static int stats(struct audit_view *v, uint64_t since_ns, int *code, struct err *e)
{
    struct log_stream in;
    struct audit_stats sums;
    int k = log_stream_open(&in, v->store->home_fd, AUDIT_NAME, since_ns);
    in.parse = log_record_parse;
    int r = audit_stats_init(&sums);
    while (k >= 0 && r == 0 && (k = log_stream_next(&in)) == 1) {
        const char *event = json_string_value(json_object_get(in.entry.json, "event"));
        const char *sandbox = json_string_value(json_object_get(in.entry.json, "sandbox"));
        if (audit_filter_passes(&v->filter, event, sandbox, in.entry.t_ns, in.entry.json) &&
            in.entry.t_ns >= since_ns)
            audit_stats_add(&sums, event, sandbox, in.entry.json);
    }
    log_stream_close(&in);
    r = r < 0 ? r : k;
    if (r == 0)
        *code = audit_stats_print(&sums, v->json);
    audit_stats_free(&sums);
    return r < 0 ? err_sys(e, -r, "cannot read the audit log") : 0;
}

static int audit_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    int code = EXIT_OK;
    struct audit_view v = {.store = &s,
                           .json = json_lines_option(a),
                           .ascii = isatty(STDOUT_FILENO),
                           .all = args_has(a, "all") || audit_level() == AUDIT_ALL};
    struct records r = {
        .follow = args_has(a, "follow"), .render = render, .more = look_again, .ctx = &v};
    struct err e = {0};
    int k = audit_filter_read(a, &v.filter, &e);
    if (k < 0 || tail_option(a, &r.has_tail, &r.tail, &e) < 0 ||
        when_option(a, "since", &r.since_ns, &e) < 0) {
        audit_filter_free(&v.filter);
        return ui_usage(&e);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    k = store_open(&s, &e);
    if (k == 0)
        k = audit_filter_look(&v.filter, &s, &e);
    if (k == 0)
        k = args_has(a, "stats") ? stats(&v, r.since_ns, &code, &e) : show(&v, &r, &e);
    audit_filter_free(&v.filter);
    if (k == -EPIPE)
        return EXIT_BY_SIGPIPE;
    return k < 0 ? ui_fail(&e) : code;
}

static const struct opt audit_opts[] = {
    {"name", 'n', "NAME", "Show only this sandbox"},
    TAIL_OPTION(0, "records"),
    SINCE_OPTION("records"),
    {"follow", 'f', NULL, "Keep printing new records until interrupted"},
    {"all", 0, NULL, "Show allowed network traffic as well as denied"},
    {"stats", 0, NULL, "Sum up resource usage of sandboxes, by label", .conflicts = "follow"},
    JSON_LINES_OPTION,
    FORMAT_OPTION,
    {0},
};

/* Shared by `msb audit` and the hidden verb that it runs. */
#define AUDIT_VIEW                                                                           \
    .summary = "Show who did what to sandboxes, and what sandboxes were denied",             \
    .opts = audit_opts, .groups = GROUPS(&audit_filter_group),                               \
    .details =                                                                               \
        "Everything that is done to sandboxes is appended to $MSB_HOME/audit.log: create, "  \
        "start, stop, kill, remove, exec (with its arguments) and exit (with its code), "    \
        "copy, modify, pull, and changes of network policies and ports, by whom (uid, pid, " \
        "program and the program that started it), how long it took, and why it failed. "    \
        "Values of environment variables and secrets are never recorded; arguments, and "    \
        "names of secrets, are. Records of kind net come from the logs of the sandboxes; "   \
        "when a sandbox is removed, its last 500 are copied. $MSB_AUDIT is off, denied "     \
        "(the default) or all, which also records allowed network traffic and the files "    \
        "that programs read through the SDK.\n\nWith --stats the runs that have ended are "  \
        "summed up: time, CPU time, network and disk bytes. A sandbox with several labels "  \
        "counts in each.\n\n" TIME_DETAILS

static const struct cmd cmd_audit_show = {
    .name = "show",
    .flags = CMD_HIDDEN,
    AUDIT_VIEW,
    .examples = "  msb audit --since 1h\n"
                "  msb audit -f --name web\n"
                "  msb audit --stats --label team --since 2026-01-01",
    .run = audit_run,
};

const struct cmd cmd_audit = {
    .name = "audit",
    .group = GROUP_SANDBOX,
    .subs = VERBS(&cmd_audit_show, &cmd_audit_verify),
    .otherwise = &cmd_audit_show,
    AUDIT_VIEW,
    .examples = "  msb audit --since 1h\n"
                "  msb audit --verb exec --user alice --json\n"
                "  msb audit verify",
};
