#include "mcp/tools.h"

#include "mcp/message.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    ARGS_MAX = 1024,
    TIMEOUT_DEFAULT_S = 120,
    TIMEOUT_MAX_S = 24 * 3600,
    TAIL_DEFAULT = 200,
    TAIL_MAX = 10000,
    LIST_OUTPUT_MAX = 16 << 20,
};

void tool_run_free(struct tool_run *run)
{
    strlist_free(&run->argv);
    free(run->input);
}

/* --- arguments ------------------------------------------------------------------------------- */

/* NULL for a missing one and for null. */
static const json_t *member(const json_t *args, const char *key)
{
    const json_t *v = json_object_get(args, key);
    return json_is_null(v) ? NULL : v;
}

int arg_text(const json_t *args, const char *key, bool required, const char **ret, struct err *e)
{
    const json_t *v = member(args, key);
    *ret = NULL;
    if (!v)
        return required ? err_set(e, EINVAL, "the argument '%s' is missing", key) : 0;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return err_set(e, EINVAL, "the argument '%s' must be a string without NUL", key);
    *ret = json_string_value(v);
    return **ret || !required ? 0 : err_set(e, EINVAL, "the argument '%s' is empty", key);
}

int arg_number(const json_t *args, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
               struct err *e)
{
    const json_t *v = member(args, key);
    if (!v)
        return 0;
    double d = json_number_value(v);
    if (!json_is_number(v) || d != floor(d) || d < (double)min || d > (double)max)
        return err_set(e, EINVAL,
                       "the argument '%s' must be a whole number from %" PRIu64 " to %" PRIu64, key,
                       min, max);
    *ret = (uint64_t)d;
    return 0;
}

int arg_flag(const json_t *args, const char *key, bool *ret, struct err *e)
{
    const json_t *v = member(args, key);
    if (v && !json_is_boolean(v))
        return err_set(e, EINVAL, "the argument '%s' must be true or false", key);
    if (v)
        *ret = json_is_true(v);
    return 0;
}

/* Sandboxes of others are as good as not there. */
int arg_sandbox(const struct mcp_config *c, const json_t *args, const char **ret, struct err *e)
{
    char key[] = MCP_LABEL;
    char *own[] = {key, NULL};
    const struct strlist label = {.v = own, .n = 1};
    struct sandbox sb;
    struct err why = {0};
    int r = arg_text(args, "name", true, ret, e);
    if (r == 0)
        r = spec_check_name(*ret, e);
    if (r < 0)
        return r;
    r = sandbox_open(c->store, *ret, &sb, &why);
    bool ours = r == 0 && (c->all || spec_matches_labels(&sb.spec, &label));
    if (r == 0)
        sandbox_close(&sb);
    if (r < 0 && r != -ENOENT) {
        *e = why;
        return r;
    }
    return ours ? 0 : err_set(e, ENOENT, "there is no sandbox '%s': 'create' makes one", *ret);
}

/* --- command lines --------------------------------------------------------------------------- */

static int add(struct strlist *argv, const char *a, const char *b)
{
    int r = strlist_add(argv, a);
    return r < 0 || !b ? r : strlist_add(argv, b);
}

/* As one argument: a value that begins with '-' is no option. */
static int add_option(struct strlist *argv, const char *option, const char *value)
{
    char *text;
    return asprintf(&text, "--%s=%s", option, value) < 0 ? -ENOMEM : strlist_take(argv, text);
}

static int add_text(const json_t *args, const char *key, const char *option, struct strlist *argv,
                    struct err *e)
{
    const char *v;
    int r = arg_text(args, key, false, &v, e);
    if (r == 0 && v && add_option(argv, option, v) < 0)
        r = err_oom(e);
    return r;
}

/* {"env": {"K": "V"}} */
static int add_env(const json_t *args, struct strlist *argv, struct err *e)
{
    json_t *env = json_object_get(args, "env"), *v;
    const char *key;
    if (env && !json_is_object(env))
        return err_set(e, EINVAL, "the argument 'env' must be an object");
    json_object_foreach(env, key, v)
    {
        AUTO_FREE char *kv = NULL;
        const char *value = json_string_value(v);
        if (!value || !*key || strchr(key, '=') || strlen(value) != json_string_length(v))
            return err_set(e, EINVAL, "the argument 'env' must map names to strings");
        if (asprintf(&kv, "%s=%s", key, value) < 0 || add_option(argv, "env", kv) < 0)
            return err_oom(e);
    }
    return 0;
}

static int begin(struct tool_run *run, const char *verb, struct err *e)
{
    return add(&run->argv, "msb", verb) < 0 ? err_oom(e) : 0;
}

/* What msb printed: without "error: ", and on one line. */
int tool_failed(const struct job *j, int code, struct err *e)
{
    char text[ERR_MSG_MAX];
    const struct buf *from = buf_len(&j->err.kept) ? &j->err.kept : &j->out.kept;
    size_t n = MIN(buf_len(from), sizeof(text) - 1);
    memcpy(text, n ? (const char *)buf_head(from) : "", n);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    utf8_defuse(text);
    const char *says = strncmp(text, "error: ", 7) == 0 ? text + 7 : text;
    return *says ? err_set(e, EIO, "%s", says) : err_set(e, EIO, "msb ended with code %d", code);
}

static json_t *finish_plain(const struct tool_run *run, const json_t *args, const struct job *j,
                            int code, struct err *e)
{
    (void)run;
    if (code != 0) {
        (void)tool_failed(j, code, e);
        return NULL;
    }
    return json_pack("{s:O}", "name", json_object_get(args, "name"));
}

/* --- create ---------------------------------------------------------------------------------- */

static int name_for(const json_t *args, struct tool_run *run, struct err *e)
{
    const char *name;
    uint32_t id;
    int r = arg_text(args, "name", false, &name, e);
    if (r == 0 && name)
        r = spec_check_name(name, e);
    if (r < 0)
        return r;
    if (name) {
        (void)snprintf(run->made, sizeof(run->made), "%s", name);
        return 0;
    }
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        return err_sys(e, errno, "cannot make up a name");
    (void)snprintf(run->made, sizeof(run->made), "mcp-%08x", id);
    return 0;
}

/* Whoever started the server has set this option: then the model's wish does not count. */
static bool decided(const struct mcp_config *c, const char *name, char letter)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < c->n_options; i++) {
        const char *o = c->options[i];
        if (strncmp(o, "--", 2) == 0 && strncmp(o + 2, name, n) == 0 &&
            (o[2 + n] == '\0' || o[2 + n] == '='))
            return true;
        if (letter && o[0] == '-' && o[1] == letter)
            return true;
    }
    return false;
}

static int add_resources(const struct mcp_config *c, const json_t *args, struct strlist *argv,
                         struct err *e)
{
    uint64_t mib = 0;
    const json_t *cpus = member(args, "cpus");
    bool network = true;
    char text[32];
    int r = arg_number(args, "memory_mib", SPEC_MEMORY_MIN_MIB, SPEC_MEMORY_MAX_MIB, &mib, e);
    if (r == 0)
        r = arg_flag(args, "network", &network, e);
    if (r == 0 && cpus && !json_is_number(cpus))
        r = err_set(e, EINVAL, "the argument 'cpus' must be a number");
    if (r < 0)
        return r;
    if (mib && !decided(c, "memory", 'm')) {
        (void)snprintf(text, sizeof(text), "%" PRIu64 "M", mib);
        if (add_option(argv, "memory", text) < 0)
            return err_oom(e);
    }
    if (cpus && !decided(c, "cpus", 'c')) {
        (void)snprintf(text, sizeof(text), "%.3f", json_number_value(cpus));
        if (add_option(argv, "cpus", text) < 0)
            return err_oom(e);
    }
    bool add_no_net = !network && !decided(c, "no-net", 0) && !decided(c, "no-network", 0);
    return add_no_net && strlist_add(argv, "--no-net") < 0 ? err_oom(e) : 0;
}

static int create_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                        struct err *e)
{
    const char *image = NULL;
    char label[64];
    mcp_label(c, label, sizeof(label));
    int r = begin(run, "create", e);
    if (r == 0)
        r = name_for(args, run, e);
    if (r == 0 && (add_option(&run->argv, "name", run->made) < 0 ||
                   add_option(&run->argv, "label", label) < 0))
        r = err_oom(e);
    if (r == 0)
        r = add_resources(c, args, &run->argv, e);
    if (r == 0 && !decided(c, "workdir", 'w'))
        r = add_text(args, "workdir", "workdir", &run->argv, e);
    if (r == 0)
        r = add_env(args, &run->argv, e);
    if (r == 0)
        r = arg_text(args, "image", false, &image, e);
    if (r < 0)
        return r;
    if (image && (!*image || *image == '-' || image_is_local(image)))
        return err_set(e, EINVAL, "'%.100s' is no image: files of the host are out of reach",
                       image);
    for (size_t i = 0; i < c->n_options; i++)
        if (strlist_add(&run->argv, c->options[i]) < 0)
            return err_oom(e);
    if (!image)
        image = c->image;
    return image && strlist_add(&run->argv, image) < 0 ? err_oom(e) : 0;
}

static json_t *create_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                             int code, struct err *e)
{
    (void)args;
    if (code != 0) {
        (void)tool_failed(j, code, e);
        return NULL;
    }
    return json_pack("{s:s}", "name", run->made);
}

/* --- exec ------------------------------------------------------------------------------------ */

static int add_command(const json_t *args, struct strlist *argv, struct err *e)
{
    const json_t *command = member(args, "command");
    const char *shell;
    int r = arg_text(args, "shell", false, &shell, e);
    if (r < 0)
        return r;
    if (!command == !shell)
        return err_set(e, EINVAL, "give either 'command', a list of strings, or 'shell', a script");
    if (shell)
        return add(argv, "sh", "-c") < 0 || strlist_add(argv, shell) < 0 ? err_oom(e) : 0;
    size_t n = json_array_size(command);
    if (n == 0 || n > ARGS_MAX)
        return err_set(e, EINVAL, "the argument 'command' must be a list of 1 to %d strings",
                       ARGS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(command, i);
        const char *s = json_string_value(v);
        if (!s || strlen(s) != json_string_length(v))
            return err_set(e, EINVAL, "the argument 'command' must be a list of strings");
        if (strlist_add(argv, s) < 0)
            return err_oom(e);
    }
    return 0;
}

static int add_timeout(const json_t *args, struct strlist *argv, struct err *e)
{
    const json_t *v = member(args, "timeout_seconds");
    double s = v ? json_number_value(v) : TIMEOUT_DEFAULT_S;
    char text[32];
    if (!(s > 0 && s <= TIMEOUT_MAX_S))
        return err_set(e, EINVAL, "the argument 'timeout_seconds' must be above 0 and at most %d",
                       TIMEOUT_MAX_S);
    (void)snprintf(text, sizeof(text), "%.0fms", ceil(s * 1000));
    return add_option(argv, "timeout", text) < 0 ? err_oom(e) : 0;
}

static int exec_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    const char *input = NULL;
    uint64_t max = MCP_OUTPUT_DEFAULT;
    int r = arg_sandbox(c, args, &run->name, e);
    if (r == 0)
        r = begin(run, "exec", e);
    if (r == 0 && add(&run->argv, "-q", "--no-tty") < 0)
        r = err_oom(e);
    if (r == 0)
        r = add_timeout(args, &run->argv, e);
    if (r == 0)
        r = add_text(args, "cwd", "workdir", &run->argv, e);
    if (r == 0)
        r = add_text(args, "user", "user", &run->argv, e);
    if (r == 0)
        r = add_env(args, &run->argv, e);
    if (r == 0)
        r = arg_number(args, "max_output_bytes", 1, MCP_OUTPUT_MAX, &max, e);
    if (r == 0)
        r = arg_text(args, "stdin", false, &input, e);
    if (r == 0 && add(&run->argv, run->name, "--") < 0)
        r = err_oom(e);
    if (r == 0)
        r = add_command(args, &run->argv, e);
    if (r < 0)
        return r;
    run->out_max = (size_t)max;
    if (input) {
        run->n_input = strlen(input);
        run->input = strdup(input);
        r = run->input ? 0 : err_oom(e);
    }
    return r;
}

static json_t *exec_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    (void)run;
    (void)args;
    (void)e;
    return json_pack("{s:i, s:o, s:o, s:b, s:b}", "exit_code", code, "stdout",
                     mcp_text(buf_head(&j->out.kept), buf_len(&j->out.kept)), "stderr",
                     mcp_text(buf_head(&j->err.kept), buf_len(&j->err.kept)), "truncated",
                     capture_truncated(&j->out) || capture_truncated(&j->err), "timed_out",
                     code == 124);
}

/* --- logs, list, stop, remove ---------------------------------------------------------------- */

/* What went to stdout and what went to stderr, in the order in which it did. */
static int run_logs(void *arg)
{
    const struct tool_run *run = arg;
    if (dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
        return 1;
    return run->config->msb((int)run->argv.n, run->argv.v);
}

static int logs_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    uint64_t tail = TAIL_DEFAULT;
    char text[32];
    int r = arg_sandbox(c, args, &run->name, e);
    if (r == 0)
        r = begin(run, "logs", e);
    if (r == 0)
        r = arg_number(args, "tail", 1, TAIL_MAX, &tail, e);
    if (r < 0)
        return r;
    (void)snprintf(text, sizeof(text), "%" PRIu64, tail);
    if (add_option(&run->argv, "tail", text) < 0 || strlist_add(&run->argv, run->name) < 0)
        return err_oom(e);
    run->out_max = MCP_OUTPUT_MAX;
    run->fn = run_logs;
    return 0;
}

static json_t *logs_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    (void)run;
    (void)args;
    if (code != 0) {
        (void)tool_failed(j, code, e);
        return NULL;
    }
    return json_pack("{s:o, s:b}", "logs", mcp_text(buf_head(&j->out.kept), buf_len(&j->out.kept)),
                     "truncated", capture_truncated(&j->out));
}

static int list_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    (void)args;
    int r = begin(run, "list", e);
    if (r == 0 && (add(&run->argv, "--format", "json") < 0 ||
                   (!c->all && add_option(&run->argv, "label", MCP_LABEL) < 0)))
        r = err_oom(e);
    run->out_max = LIST_OUTPUT_MAX;
    return r;
}

static json_t *list_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    (void)run;
    (void)args;
    json_t *list =
        code == 0 ? json_loadb((const char *)buf_head(&j->out.kept), buf_len(&j->out.kept), 0, NULL)
                  : NULL;
    if (!list) {
        (void)tool_failed(j, code, e);
        return NULL;
    }
    return json_pack("{s:o}", "sandboxes", list);
}

static int verb_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      const char *verb, const char *option, struct err *e)
{
    int r = arg_sandbox(c, args, &run->name, e);
    if (r == 0)
        r = begin(run, verb, e);
    if (r == 0 && (add(&run->argv, "-q", option) < 0 || strlist_add(&run->argv, run->name) < 0))
        r = err_oom(e);
    return r;
}

static int stop_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    return verb_start(c, args, run, "stop", NULL, e);
}

static int remove_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                        struct err *e)
{
    return verb_start(c, args, run, "remove", "--force", e);
}

/* --- the table ------------------------------------------------------------------------------- */

#define NAME_PROPERTY "\"name\": {\"type\": \"string\", \"description\": \"Name of the sandbox\"}"
#define PATH_PROPERTY                                  \
    "\"path\": {\"type\": \"string\", \"description\"" \
    ": \"Path in the sandbox; a relative one begins at its working directory\"}"
#define ENCODING_PROPERTY                                                     \
    "\"encoding\": {\"type\": \"string\", \"enum\": [\"utf-8\", \"base64\"]," \
    " \"default\": \"utf-8\"}"
#define ONLY_NAME                                                             \
    "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY \
    "}, \"required\": [\"name\"], \"additionalProperties\": false}"

const struct tool tools[] = {
    {"create",
     "{\"title\": \"Create a sandbox\", \"description\": \"Boots a disposable Linux machine with "
     "its own kernel, in a fraction of a second, and returns its name. Nothing that runs in it can "
     "reach the host. What of the network it reaches was decided by whoever started this server.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {"
     "\"name\": {\"type\": \"string\", \"description\": \"Name to give it; made up if missing\"},"
     "\"image\": {\"type\": \"string\", \"description\": \"Image to boot, as for docker run: "
     "python:3.12-slim\"},"
     "\"memory_mib\": {\"type\": \"integer\", \"minimum\": 32},"
     "\"cpus\": {\"type\": \"number\", \"exclusiveMinimum\": 0},"
     "\"env\": {\"type\": \"object\", \"additionalProperties\": {\"type\": \"string\"}},"
     "\"workdir\": {\"type\": \"string\", \"description\": \"Where commands start\"},"
     "\"network\": {\"type\": \"boolean\", \"description\": \"false: no network at all\"}},"
     "\"additionalProperties\": false},"
     "\"annotations\": {\"destructiveHint\": false, \"openWorldHint\": true}}",
     create_start, create_finish},
    {"exec",
     "{\"title\": \"Run a command\", \"description\": \"Runs a command in a sandbox, waits for it, "
     "and returns its exit code and output. Give 'command' (no shell in between) or 'shell' (a "
     "script for sh). A stopped sandbox is started for it.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY ","
     "\"command\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}},"
     "\"shell\": {\"type\": \"string\"},"
     "\"cwd\": {\"type\": \"string\"},"
     "\"user\": {\"type\": \"string\"},"
     "\"env\": {\"type\": \"object\", \"additionalProperties\": {\"type\": \"string\"}},"
     "\"stdin\": {\"type\": \"string\"},"
     "\"timeout_seconds\": {\"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 86400, "
     "\"default\": 120},"
     "\"max_output_bytes\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 1048576, "
     "\"default\": 65536, \"description\": \"Of each stream; the rest is cut off\"}},"
     "\"required\": [\"name\"], \"additionalProperties\": false},"
     "\"outputSchema\": {\"type\": \"object\", \"properties\": {"
     "\"exit_code\": {\"type\": \"integer\"}, \"stdout\": {\"type\": \"string\"},"
     "\"stderr\": {\"type\": \"string\"}, \"truncated\": {\"type\": \"boolean\"},"
     "\"timed_out\": {\"type\": \"boolean\"}},"
     "\"required\": [\"exit_code\", \"stdout\", \"stderr\", \"truncated\", \"timed_out\"]},"
     "\"annotations\": {\"destructiveHint\": true, \"openWorldHint\": true}}",
     exec_start, exec_finish},
    {"read_file",
     "{\"title\": \"Read a file\", \"description\": \"Returns the content of a file in a "
     "sandbox.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY "," PATH_PROPERTY ","
     "\"offset\": {\"type\": \"integer\", \"minimum\": 0},"
     "\"length\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 4194304, "
     "\"default\": 1048576}," ENCODING_PROPERTY "},"
     "\"required\": [\"name\", \"path\"], \"additionalProperties\": false},"
     "\"annotations\": {\"readOnlyHint\": true, \"openWorldHint\": false}}",
     read_file_start, read_file_finish},
    {"write_file",
     "{\"title\": \"Write a file\", \"description\": \"Makes or replaces a file in a sandbox; "
     "missing directories are made.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY "," PATH_PROPERTY ","
     "\"content\": {\"type\": \"string\"}," ENCODING_PROPERTY ","
     "\"mode\": {\"type\": \"string\", \"pattern\": \"^[0-7]{3,4}$\", \"default\": \"0644\"},"
     "\"append\": {\"type\": \"boolean\", \"default\": false}},"
     "\"required\": [\"name\", \"path\", \"content\"], \"additionalProperties\": false},"
     "\"annotations\": {\"destructiveHint\": true, \"openWorldHint\": false}}",
     write_file_start, write_file_finish},
    {"list_files",
     "{\"title\": \"List a directory\", \"description\": \"Returns the entries of a directory in a "
     "sandbox: name, type, size, mode, time of modification.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY "," PATH_PROPERTY
     "},"
     "\"required\": [\"name\", \"path\"], \"additionalProperties\": false},"
     "\"annotations\": {\"readOnlyHint\": true, \"openWorldHint\": false}}",
     list_files_start, list_files_finish},
    {"logs",
     "{\"title\": \"Read the logs\", \"description\": \"Returns what commands in a sandbox have "
     "printed, also of those that have ended.\","
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" NAME_PROPERTY ","
     "\"tail\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 10000, \"default\": 200, "
     "\"description\": \"How many lines, from the end\"}},"
     "\"required\": [\"name\"], \"additionalProperties\": false},"
     "\"annotations\": {\"readOnlyHint\": true, \"openWorldHint\": false}}",
     logs_start, logs_finish},
    {"list",
     "{\"title\": \"List sandboxes\", \"description\": \"Returns the sandboxes there are, with "
     "their state.\","
     "\"inputSchema\": {\"type\": \"object\", \"additionalProperties\": false},"
     "\"annotations\": {\"readOnlyHint\": true, \"openWorldHint\": false}}",
     list_start, list_finish},
    {"stop",
     "{\"title\": \"Stop a sandbox\", \"description\": \"Powers a sandbox off. Its files stay; the "
     "next command starts it again.\"," ONLY_NAME ","
     "\"annotations\": {\"destructiveHint\": false, \"idempotentHint\": true, "
     "\"openWorldHint\": false}}",
     stop_start, finish_plain},
    {"remove",
     "{\"title\": \"Remove a sandbox\", \"description\": \"Stops a sandbox if it runs, and deletes "
     "it with everything in it.\"," ONLY_NAME ","
     "\"annotations\": {\"destructiveHint\": true, \"openWorldHint\": false}}",
     remove_start, finish_plain},
};
const size_t n_tools = ARRAY_LEN(tools);

const struct tool *tool_find(const char *name)
{
    for (size_t i = 0; i < n_tools; i++)
        if (strcmp(tools[i].name, name) == 0)
            return &tools[i];
    return NULL;
}
