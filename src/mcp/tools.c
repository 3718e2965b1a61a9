#include "mcp/tools.h"

#include "mcp/limits.h"
#include "mcp/message.h"
#include "mcp/schema.h"
#include "tools_json.h" /* generated */
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/utf8.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    LIST_OUTPUT_MAX = 16 << 20,
    EXIT_TIMED_OUT = 124, /* of `msb exec` */
};

void tool_run_free(struct tool_run *run)
{
    strlist_free(&run->argv);
    free(run->input);
    if (run->timed_out)
        (void)munmap(run->timed_out, sizeof(bool));
}

/* --- arguments ------------------------------------------------------------------------------- */

const char *arg_text(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

uint64_t arg_number(const json_t *args, const char *key)
{
    return (uint64_t)json_number_value(json_object_get(args, key));
}

bool arg_flag(const json_t *args, const char *key)
{
    return json_is_true(json_object_get(args, key));
}

/* Other sandboxes are treated as missing. */
int arg_sandbox(const struct mcp_config *c, const json_t *args, const char **ret, struct err *e)
{
    char key[] = MCP_LABEL;
    char *own[] = {key, NULL};
    const struct strlist label = {.v = own, .n = 1};
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    *ret = arg_text(args, "name");
    int r = spec_check_name(*ret, e);
    if (r < 0)
        return r;
    r = sandbox_open(c->store, *ret, &sb, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && (c->all || spec_matches_labels(&sb.spec, &label)))
        return 0;
    err_clear(e);
    return err_set(e, ENOENT, "there is no sandbox '%s': create it with 'create'", *ret);
}

/* --- command lines --------------------------------------------------------------------------- */

static int add(struct strlist *argv, const char *a, const char *b)
{
    int r = strlist_add(argv, a);
    return r < 0 || !b ? r : strlist_add(argv, b);
}

/* As one argument, so that a value that begins with '-' is not taken as an option. */
static int add_option(struct strlist *argv, const char *option, const char *value)
{
    char *text;
    return asprintf(&text, "--%s=%s", option, value) < 0 ? -ENOMEM : strlist_take(argv, text);
}

static int add_text(const json_t *args, const char *key, const char *option, struct strlist *argv)
{
    const char *v = arg_text(args, key);
    return v ? add_option(argv, option, v) : 0;
}

/* {"env": {"K": "V"}} */
static int add_env(const json_t *args, struct strlist *argv)
{
    json_t *v;
    const char *key;
    json_object_foreach(json_object_get(args, "env"), key, v)
    {
        AUTO_FREE char *kv = NULL;
        if (asprintf(&kv, "%s=%s", key, json_string_value(v)) < 0 ||
            add_option(argv, "env", kv) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int begin(struct tool_run *run, const char *verb)
{
    return add(&run->argv, "msb", verb);
}

/* What msb printed: without "error: ", and on one line. */
static int tool_failed(const struct job *j, int code, struct err *e)
{
    char text[ERR_MSG_MAX];
    const struct buf *from = buf_len(&j->err.kept) ? &j->err.kept : &j->out.kept;
    /* What came before the error, such as the progress of a pull, does not matter any more. */
    const char *start = (const char *)buf_head(from), *error = NULL;
    size_t n = buf_len(from);
    if (n)
        error = memmem(start, n, "\nerror: ", 8);
    if (error) {
        n -= (size_t)(error + 1 - start);
        start = error + 1;
    }
    n = MIN(n, sizeof(text) - 1);
    memcpy(text, n ? start : "", n);
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

static json_t *name_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    return json_pack("{s:s}", "name", run->name);
}

/* --- create ---------------------------------------------------------------------------------- */

static int name_for(const json_t *args, struct tool_run *run, struct err *e)
{
    uint32_t id;
    const char *name = arg_text(args, "name");
    int r = name ? spec_check_name(name, e) : 0;
    if (r < 0)
        return r;
    if (!name && getrandom(&id, sizeof(id), 0) != sizeof(id))
        return err_sys(e, errno, "cannot generate a name");
    if (name)
        (void)snprintf(run->made, sizeof(run->made), "%s", name);
    else
        (void)snprintf(run->made, sizeof(run->made), "mcp-%08x", id);
    run->name = run->made;
    return 0;
}

/* The user who started the server has set this option: it overrides the model's. */
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

static int add_resources(const struct mcp_config *c, const json_t *args, struct tool_run *run)
{
    struct strlist *argv = &run->argv;
    const json_t *cpus = json_object_get(args, "cpus");
    uint64_t mib = arg_number(args, "memory_mib");
    char text[32];
    int r = 0;
    run->share = c->each;
    run->share.sandboxes = 1;
    if (mib && !decided(c, "memory", 'm')) {
        run->share.memory_mib = mib;
        (void)snprintf(text, sizeof(text), "%" PRIu64 "M", mib);
        r = add_option(argv, "memory", text);
    }
    if (r == 0 && cpus && !decided(c, "cpus", 'c')) {
        run->share.cpus = json_number_value(cpus);
        (void)snprintf(text, sizeof(text), "%.3f", json_number_value(cpus));
        r = add_option(argv, "cpus", text);
    }
    if (r == 0 && c->lifetime_ms && !decided(c, "max-duration", 0)) {
        format_duration(c->lifetime_ms, text, sizeof(text));
        r = add_option(argv, "max-duration", text);
    }
    if (r == 0 && !arg_flag(args, "network") && !decided(c, "no-net", 0) &&
        !decided(c, "no-network", 0))
        r = strlist_add(argv, "--no-net");
    if (r == 0 && !decided(c, "workdir", 'w'))
        r = add_text(args, "workdir", "workdir", argv);
    return r;
}

/* The user's options. An image that may not be pulled comes from the cache, regardless of them. */
static int add_decided(const struct mcp_config *c, bool cached, struct strlist *argv)
{
    int r = cached ? strlist_add(argv, "--pull=never") : 0;
    for (size_t i = 0; r == 0 && i < c->n_options; i++) {
        const char *o = c->options[i];
        if (cached && strcmp(o, "--pull") == 0)
            i++; /* and its value */
        else if (!cached || strncmp(o, "--pull=", 7) != 0)
            r = strlist_add(argv, o);
    }
    return r;
}

static int create_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                        struct err *e)
{
    const char *image = arg_text(args, "image");
    char label[64];
    int r = name_for(args, run, e);
    if (r < 0)
        return r;
    if (image && (*image == '-' || image_is_local(image)))
        return err_set(e, EINVAL, "invalid image '%.100s': host files are not accessible", image);
    run->cached = image && !limits_may_pull(c, image);
    if (!image)
        image = c->image;
    mcp_label(c, label, sizeof(label));
    r = begin(run, "create");
    if (r == 0)
        r = add_option(&run->argv, "name", run->made);
    if (r == 0)
        r = add_option(&run->argv, "label", label);
    if (r == 0)
        r = add_resources(c, args, run);
    if (r == 0)
        r = add_env(args, &run->argv);
    if (r == 0)
        r = add_decided(c, run->cached, &run->argv);
    if (r == 0 && image)
        r = strlist_add(&run->argv, image);
    return r < 0 ? err_oom(e) : 0;
}

/* --- exec ------------------------------------------------------------------------------------ */

static int add_command(const json_t *args, struct strlist *argv)
{
    const json_t *command = json_object_get(args, "command");
    const char *shell = arg_text(args, "shell");
    int r = shell ? add(argv, "sh", "-c") : 0;
    if (r == 0 && shell)
        r = strlist_add(argv, shell);
    for (size_t i = 0; r == 0 && i < json_array_size(command); i++)
        r = strlist_add(argv, json_string_value(json_array_get(command, i)));
    return r;
}

/* A command's own exit code may be 124, too. */
static int run_exec(void *arg)
{
    const struct tool_run *run = arg;
    int code = run->config->msb((int)run->argv.n, run->argv.v);
    *run->timed_out = code == EXIT_TIMED_OUT && run->config->msb_failed();
    return code;
}

static int exec_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    const char *input = arg_text(args, "stdin");
    double timeout = json_number_value(json_object_get(args, "timeout_seconds"));
    char limit[32];
    int r = arg_sandbox(c, args, &run->name, e);
    if (r < 0)
        return r;
    if (!json_object_get(args, "command") == !json_object_get(args, "shell"))
        return err_set(e, EINVAL, "pass either 'command', a list of strings, or 'shell', a script");
    (void)snprintf(limit, sizeof(limit), "%.0fms", ceil(timeout * 1000));
    r = begin(run, "exec");
    if (r == 0)
        r = add(&run->argv, "-q", "--no-tty");
    if (r == 0)
        r = add_option(&run->argv, "timeout", limit);
    if (r == 0)
        r = add_text(args, "cwd", "workdir", &run->argv);
    if (r == 0)
        r = add_text(args, "user", "user", &run->argv);
    if (r == 0)
        r = add_env(args, &run->argv);
    if (r == 0)
        r = add(&run->argv, run->name, "--");
    if (r == 0)
        r = add_command(args, &run->argv);
    void *shared =
        mmap(NULL, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared != MAP_FAILED)
        run->timed_out = shared;
    run->fn = run_exec;
    run->out_max = (size_t)arg_number(args, "max_output_bytes");
    run->n_input = input ? strlen(input) : 0;
    run->input = input ? strdup(input) : NULL;
    return r < 0 || !run->timed_out || (input && !run->input) ? err_oom(e) : 0;
}

static json_t *exec_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    return json_pack("{s:i, s:o, s:o, s:b, s:b}", "exit_code", code, "stdout",
                     mcp_text(buf_head(&j->out.kept), buf_len(&j->out.kept)), "stderr",
                     mcp_text(buf_head(&j->err.kept), buf_len(&j->err.kept)), "truncated",
                     capture_truncated(&j->out) || capture_truncated(&j->err), "timed_out",
                     *run->timed_out);
}

/* --- logs, list, stop, remove ---------------------------------------------------------------- */

/* Puts stdout and stderr into one stream, in the order in which they were written. */
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
    char text[32];
    int r = arg_sandbox(c, args, &run->name, e);
    if (r < 0)
        return r;
    (void)snprintf(text, sizeof(text), "%" PRIu64, arg_number(args, "tail"));
    if (begin(run, "logs") < 0 || add_option(&run->argv, "tail", text) < 0 ||
        strlist_add(&run->argv, run->name) < 0)
        return err_oom(e);
    run->out_max = MCP_OUTPUT_MAX;
    run->fn = run_logs;
    return 0;
}

static json_t *logs_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    return json_pack("{s:o, s:b}", "logs", mcp_text(buf_head(&j->out.kept), buf_len(&j->out.kept)),
                     "truncated", capture_truncated(&j->out));
}

static int list_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      struct err *e)
{
    run->out_max = LIST_OUTPUT_MAX;
    if (begin(run, "list") < 0 || add(&run->argv, "--format", "json") < 0 ||
        (!c->all && add_option(&run->argv, "label", MCP_LABEL) < 0))
        return err_oom(e);
    return 0;
}

static json_t *json_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    json_t *result =
        json_loadb((const char *)buf_head(&j->out.kept), buf_len(&j->out.kept), 0, NULL);
    if (!result)
        (void)tool_failed(j, code, e);
    return result;
}

static json_t *list_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                           int code, struct err *e)
{
    json_t *list = json_finish(run, args, j, code, e);
    return list ? json_pack("{s:o}", "sandboxes", list) : NULL;
}

static int verb_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                      const char *verb, const char *option, struct err *e)
{
    int r = arg_sandbox(c, args, &run->name, e);
    if (r < 0)
        return r;
    if (begin(run, verb) < 0 || add(&run->argv, "-q", option) < 0 ||
        strlist_add(&run->argv, run->name) < 0)
        return err_oom(e);
    return 0;
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

static const struct tool tools[] = {
    {"create", create_start, name_finish},
    {"exec", exec_start, exec_finish, .any_code = true},
    {"read_file", read_file_start, read_file_finish},
    {"write_file", write_file_start, json_finish, .raw = "content"},
    {"list_files", list_files_start, json_finish},
    {"logs", logs_start, logs_finish},
    {"list", list_start, list_finish},
    {"stop", stop_start, name_finish},
    {"remove", remove_start, name_finish},
};

const struct tool *tool_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(tools); i++)
        if (strcmp(tools[i].name, name) == 0)
            return &tools[i];
    return NULL;
}

json_t *tools_described(void)
{
    static json_t *list;
    if (!list)
        list = json_loads(tools_json, 0, NULL);
    assert(!list || json_array_size(list) == ARRAY_LEN(tools));
    return list;
}

static const json_t *schema_of(const struct tool *t)
{
    const json_t *all = tools_described();
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *d = json_array_get(all, i);
        if (strcmp(t->name, arg_text(d, "name")) == 0)
            return json_object_get(d, "inputSchema");
    }
    return NULL;
}

int tool_start(const struct tool *t, json_t *args, struct tool_run *run, struct err *e)
{
    const json_t *schema = schema_of(t);
    int r = schema ? schema_apply(schema, args, t->raw, e) : err_oom(e);
    return r < 0 ? r : t->start(run->config, args, run, e);
}

json_t *tool_finish(const struct tool *t, const json_t *args, const struct tool_run *run,
                    const struct job *j, int code, struct err *e)
{
    if (code == 0 || t->any_code)
        return t->finish(run, args, j, code, e);
    (void)tool_failed(j, code, e);
    if (run->cached && strstr(e->msg, "msb pull"))
        err_hint(e,
                 "this server pulls nothing from that registry; the user who started it can allow "
                 "it: msb mcp --registry HOST");
    return NULL;
}
