/* Workspaces in buckets: create, status. */
#include "sandbox/bucket.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/options/mount.h"
#include "cli/workspace/files.h"
#include "s3/sync.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- create ---------------------------------------------------------------------------------- */

static int set(char **field, const char *v)
{
    return v && !(*field = strdup(v)) ? -ENOMEM : 0;
}

static int read_options(const struct args *a, struct s3_config *c, struct err *e)
{
    static const char *const others[] = {"endpoint",   "region", "credentials", "ca-certs",
                                         "addressing", "max",    "bandwidth"};
    const char *url = args_get(a, "s3"), *how = args_get(a, "addressing");
    const char *max = args_get(a, "max"), *ca = args_get(a, "ca-certs");
    const char *speed = args_get(a, "bandwidth");
    for (size_t i = 0; !url && i < ARRAY_LEN(others); i++)
        if (args_has(a, others[i]))
            return err_set(e, EINVAL, "--%s requires --s3", others[i]);
    if (!url)
        return 0;
    c->max = S3_MAX_DEFAULT;
    if (max && (parse_size(max, MIB, &c->max) < 0 || c->max > INT64_MAX))
        return args_bad_value(a, "max", max, PARSE_SIZE_EXAMPLES, e);
    if (speed && (parse_size(speed, MIB, &c->bandwidth) < 0 || c->bandwidth < S3_BANDWIDTH_MIN ||
                  c->bandwidth > INT64_MAX))
        return args_bad_value(a, "bandwidth", speed, "a size of at least 16K per second", e);
    c->addressing = !how || strcmp(how, "auto") == 0 ? S3_AUTO
                    : strcmp(how, "path") == 0       ? S3_PATH
                                                     : S3_VIRTUAL;
    if (set(&c->endpoint, args_get(a, "endpoint")) < 0 ||
        set(&c->region, args_get(a, "region")) < 0 ||
        set(&c->credentials, args_get(a, "credentials")) < 0)
        return err_oom(e);
    int r = ca ? mount_resolve(ca, false, &c->ca_certs, e) : 0;
    if (r == 0)
        r = s3_config_url(c, url, e);
    return r < 0 ? r : s3_config_settle(c, e);
}

static int create_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    AUTO_S3_CONFIG struct s3_config config = {0};
    struct err e = {0};
    int r = read_options(a, &config, &e);
    if (r < 0)
        return r == -EINVAL ? ui_usage(&e) : ui_fail(&e);
    r = store_open(&s, &e);
    if (r == 0)
        r = config.bucket ? bucket_create(&s, a->pos[0], &config, ui_warn, &e)
                          : workspace_create(&s, a->pos[0], NULL, NULL, &e);
    if (r < 0)
        return ui_fail(&e);
    return ui_quiet() ? EXIT_OK : ui_print_line(a->pos[0]);
}

static const struct opt bucket_opts[] = {
    {"s3", 0, "URL", "Keep its files in a bucket: s3://BUCKET[/PREFIX]", OPT_COMMON},
    {"endpoint", 0, "URL", "Server, if it is not AWS: http[s]://HOST[:PORT]", OPT_COMMON},
    {"region", 0, "REGION", "Region (default: $AWS_REGION, or us-east-1)", OPT_COMMON},
    {"credentials", 0, "SOURCE",
     "A secret's name, env, profile[:NAME] or none (default: env, else profile)", OPT_COMMON},
    {"addressing", 0, "STYLE", "How requests address the bucket (default: auto)",
     .choices = "auto|path|virtual"},
    CA_CERTS_OPTION,
    {"max", 0, "SIZE", "Refuse a bucket that holds more (default: 10G)"},
    {"bandwidth", 0, "SIZE", "Bytes per second, in both directions together (default: no limit)"},
    {0},
};
static const struct opt_group bucket_group = {"Bucket", bucket_opts};

const struct cmd cmd_workspace_create = {
    .name = "create",
    .summary = "Create a workspace, optionally in an S3 bucket",
    .opts = quiet_opts,
    .groups = GROUPS(&bucket_group),
    .pos = ONE("NAME", "Name of the workspace"),
    .details =
        "With --s3, the workspace is a local directory that is synced with the bucket: before a "
        "sandbox starts with it, after the sandbox stops, and by `msb workspace sync`. Each file "
        "is an object of the same name; PREFIX/.msb/ has metadata that objects cannot express.\n\n"
        "The keys come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_SESSION_TOKEN), from a profile in ~/.aws, or from a secret whose value is ID:SECRET. "
        "They are looked up for every sync; no sandbox sees them.",
    .examples = "  msb workspace create data --s3 s3://team-data/agents\n"
                "  msb workspace create data --s3 s3://data --endpoint http://minio.lan:9000\n"
                "  msb workspace create data --s3 s3://data --credentials S3_KEY",
    .run = create_run,
};

/* --- status ---------------------------------------------------------------------------------- */

static int print_status(const struct args *a, const char *name, bool remote, struct differences *d)
{
    if (wants_json(a))
        return ui_print_json(
            json_pack("{s:b, s:O, s:s}", "bucket", remote, "differences", d->list, "name", name));
    if (!remote)
        ui_note("The workspace is local: there is nothing to compare it with.");
    else if (json_array_size(d->list) == 0)
        ui_note("The workspace and its bucket are the same.");
    return ui_print(d->text);
}

static int status(const struct args *a, const struct store *s, struct err *e)
{
    AUTO_BUF struct buf text = {.limit = 256 << 20};
    struct workspace w;
    bool remote = false;
    struct differences d = {"action", 14, json_array(), &text};
    struct s3_sync how = {.look = true, .differs = difference_note, .ctx = &d, .warn = ui_warn};
    int r = workspace_open(s, a->pos[0], &w, e);
    if (r == 0)
        r = bucket_sync(s, a->pos[0], &how, &remote, e);
    if (r == 0)
        r = print_status(a, a->pos[0], remote, &d);
    json_decref(d.list);
    return r;
}

const struct cmd cmd_workspace_status = {
    .name = "status",
    .summary = "Show what a sync with the bucket would do",
    .opts = OPTIONS(FORMAT_OPTION, QUIET_OPTION),
    .pos = ONE("NAME", "Workspace to compare"),
    .details =
        "One line for each path that differs: upload, download, delete-local, delete-remote or "
        "conflict. Nothing is changed.",
    .examples = "  msb workspace status data\n"
                "  msb workspace status data --format json",
    .with_store = status,
};
