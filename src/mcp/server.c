#include "mcp/server.h"

#include "mcp/limits.h"
#include "mcp/message.h"
#include "mcp/tools.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/list.h"
#include "util/utf8.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    READ_SIZE = 64 * 1024,
    PROGRESS_PAUSE_MS = 200,
    PROGRESS_TEXT_MAX = 200,
    LIST_TTL_MS = 3600 * 1000,
};

#define META_VERSION "io.modelcontextprotocol/protocolVersion"
#define META_SERVER "io.modelcontextprotocol/serverInfo"
#define STATELESS_VERSION "2026-07-28"

/* Newest first. The first has no handshake. 2025-03-26 is missing: it alone demands batches. */
static const char *const versions[] = {STATELESS_VERSION, "2025-11-25", "2025-06-18", "2024-11-05"};

static const char instructions[] =
    "Sandboxes are disposable Linux machines, each with its own kernel. Create one with 'create', "
    "run commands with 'exec', transfer files with 'read_file' and 'write_file', and delete the "
    "sandbox with 'remove' when it is no longer needed.";

struct server {
    const struct mcp_config *config;
    struct loop loop;
    struct loop_src input, signals;
    struct buf in;
    bool skipping; /* the rest of a line that was too long */
    bool failed;   /* the client no longer reads */
    struct node calls;
    unsigned n_calls;
    struct strlist made; /* sandboxes, to be removed at the end */
};

/* A tools/call in progress. */
struct call {
    struct job job;
    struct node node;
    struct server *server;
    const struct tool *tool;
    struct tool_run run;
    json_t *id, *args;
    json_t *token; /* of progress; NULL = not wanted */
    bool stateless;
    uint64_t progress_ns; /* when the last one was sent */
};

/* --- output ---------------------------------------------------------------------------------- */

static void send_message(struct server *s, json_t *m)
{
    AUTO_JSON json_t *owned = m;
    AUTO_FREE char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;
    if (!text) {
        (void)fprintf(stderr, "msb mcp: out of memory: an answer was lost\n");
        return;
    }
    size_t n = strlen(text);
    text[n] = '\n'; /* in place of its end */
    if (!s->failed && write_all(STDOUT_FILENO, text, n + 1) < 0) {
        s->failed = true;
        loop_stop(&s->loop);
    }
}

static json_t *server_info(void)
{
    return json_pack("{s:s, s:s, s:s}", "name", "msb", "title", "msb sandboxes", "version",
                     MSB_VERSION);
}

/* In the stateless revision every result names its type and the server. */
static json_t *complete_result(json_t *result, bool stateless)
{
    if (!result || !stateless)
        return result;
    json_t *meta = json_pack("{s:o}", META_SERVER, server_info());
    if (json_object_set_new(result, "resultType", json_string("complete")) < 0 ||
        json_object_set_new(result, "_meta", meta) < 0) {
        json_decref(result);
        return NULL;
    }
    return result;
}

static void reply(struct server *s, const json_t *id, json_t *result, bool stateless)
{
    send_message(s, mcp_result(id, complete_result(result, stateless)));
}

static void refuse_request(struct server *s, const json_t *id, int code, const char *text)
{
    send_message(s, mcp_error(id, code, text, NULL));
}

/* --- calls ----------------------------------------------------------------------------------- */

static void call_free(struct call *c)
{
    node_unlink(&c->node);
    c->server->n_calls--;
    job_free(&c->job);
    tool_run_free(&c->run);
    json_decref(c->id);
    json_decref(c->args);
    json_decref(c->token);
    free(c);
}

/* {"content": [{"type": "text", ...}]}: what the model reads. */
static json_t *text_result(const char *text, bool is_error)
{
    return json_pack("{s:[{s:s, s:o}], s:b}", "content", "type", "text", "text",
                     mcp_text(text, strlen(text)), "isError", is_error);
}

static json_t *failure(const struct err *e)
{
    char text[2 * ERR_MSG_MAX];
    (void)snprintf(text, sizeof(text), "%s%s%s", e->msg, e->hints ? ": " : "",
                   e->hints ? e->hint[0] : "");
    return text_result(text, true);
}

static json_t *success(json_t *structured)
{
    AUTO_FREE char *text = structured ? json_dumps(structured, JSON_COMPACT) : NULL;
    json_t *r = text ? text_result(text, false) : NULL;
    if (r && json_object_set_new(r, "structuredContent", structured) == 0)
        return r;
    json_decref(r);
    return NULL;
}

static void note_made(struct call *c)
{
    if (c->run.made[0] && strlist_add(&c->server->made, c->run.made) < 0)
        (void)fprintf(stderr, "msb mcp: out of memory: sandbox '%s' will not be removed\n",
                      c->run.made);
}

static void on_done(struct job *j, int code)
{
    struct call *c = CONTAINER_OF(j, struct call, job);
    struct server *s = c->server;
    struct err e = {0};
    json_t *structured = tool_finish(c->tool, c->args, &c->run, j, code, &e);
    reply(s, c->id, structured || !e.code ? success(structured) : failure(&e), c->stateless);
    if (code == 0)
        note_made(c);
    call_free(c);
}

/* The last complete line, as a progress message. */
static void last_line(const struct capture *c, char out[PROGRESS_TEXT_MAX])
{
    const char *p = (const char *)buf_head(&c->kept);
    size_t n = buf_len(&c->kept);
    while (n > 0 && p[n - 1] != '\n')
        n--;
    size_t end = n ? n - 1 : 0, start = end;
    while (start > 0 && p[start - 1] != '\n')
        start--;
    size_t len = MIN(end - start, (size_t)PROGRESS_TEXT_MAX - 1);
    memcpy(out, len ? p + start : "", len);
    out[len] = '\0';
    utf8_defuse(out);
}

static void on_output(struct job *j)
{
    struct call *c = CONTAINER_OF(j, struct call, job);
    uint64_t now = now_ns(), total = j->out.total + j->err.total;
    char text[PROGRESS_TEXT_MAX];
    if (!c->token || (c->progress_ns && now - c->progress_ns < PROGRESS_PAUSE_MS * 1000000ULL))
        return;
    c->progress_ns = now;
    last_line(j->err.total > j->out.total ? &j->err : &j->out, text);
    send_message(c->server,
                 mcp_notification("notifications/progress",
                                  json_pack("{s:O, s:I, s:s}", "progressToken", c->token,
                                            "progress", (json_int_t)total, "message", text)));
}

static int run_msb(void *arg)
{
    const struct tool_run *run = arg;
    return run->config->msb((int)run->argv.n, run->argv.v);
}

/* Whether a sandbox with that name is being created. */
static bool is_being_made(void *ctx, const char *name)
{
    struct server *s = ctx;
    for (struct node *n = s->calls.next; n != &s->calls; n = n->next)
        if (strcmp(CONTAINER_OF(n, struct call, node)->run.made, name) == 0)
            return true;
    return false;
}

/* Checks whether a create, which is in the list of calls, would together with the others exceed the
 * limits. */
static int check_limits(struct server *s, const struct call *c, struct err *e)
{
    struct mcp_share used;
    if (c->run.made[0] == '\0')
        return 0;
    int r = limits_used(s->config, is_being_made, s, &used, e);
    if (r < 0)
        return r;
    for (struct node *n = s->calls.next; n != &s->calls; n = n->next) {
        const struct call *other = CONTAINER_OF(n, struct call, node);
        if (other == c)
            continue;
        used.sandboxes += other->run.share.sandboxes;
        used.memory_mib += other->run.share.memory_mib;
        used.cpus += other->run.share.cpus;
    }
    return limits_fit(s->config, &used, &c->run.share, e);
}

static void start_call(struct server *s, const struct tool *t, const struct mcp_message *m,
                       bool stateless)
{
    struct err e = {0};
    json_t *args = json_object_get(m->params, "arguments");
    struct call *c = calloc(1, sizeof(*c));
    if (!c) {
        refuse_request(s, m->id, MCP_INTERNAL, "out of memory");
        return;
    }
    const json_t *meta = json_object_get(m->params, "_meta");
    c->server = s;
    c->tool = t;
    c->stateless = stateless;
    c->id = json_incref(m->id);
    c->args = args ? json_copy(args) : json_object();
    c->token = json_incref(json_object_get(meta, "progressToken"));
    c->run = (struct tool_run){.config = s->config, .out_max = MCP_OUTPUT_DEFAULT, .fn = run_msb};
    c->job = (struct job){.output = on_output, .done = on_done};
    node_append(&s->calls, &c->node);
    s->n_calls++;
    int r = c->args ? tool_start(t, c->args, &c->run, &e) : err_oom(&e);
    if (r == 0)
        r = check_limits(s, c, &e);
    if (r == 0) {
        r = job_start(&c->job, &s->loop, c->run.fn, &c->run, c->run.input, c->run.n_input,
                      c->run.out_max);
        if (r < 0)
            (void)err_sys(&e, -r, "cannot start a process");
    }
    if (r < 0) {
        reply(s, c->id, failure(&e), stateless);
        call_free(c);
    }
}

static void call_kill(struct call *c)
{
    job_kill(&c->job);
    note_made(c); /* it may have been created */
    call_free(c);
}

static struct call *find_call(struct server *s, const json_t *id)
{
    for (struct node *n = s->calls.next; n != &s->calls; n = n->next) {
        struct call *c = CONTAINER_OF(n, struct call, node);
        if (json_equal(c->id, id))
            return c;
    }
    return NULL;
}

/* --- requests -------------------------------------------------------------------------------- */

static json_t *capabilities(void)
{
    return json_pack("{s:{s:b}}", "tools", "listChanged", 0);
}

static json_t *version_list(void)
{
    json_t *a = json_array();
    for (size_t i = 0; i < ARRAY_LEN(versions); i++)
        (void)json_array_append_new(a, json_string(versions[i]));
    return a;
}

static bool is_supported(const char *version)
{
    for (size_t i = 0; i < ARRAY_LEN(versions); i++)
        if (strcmp(version, versions[i]) == 0)
            return true;
    return false;
}

/* Offers the client's version, or the newest before it, which it is likely to know; else the newest
 * that has a handshake. */
static const char *offered(const char *asked)
{
    for (size_t i = 1; i < ARRAY_LEN(versions); i++)
        if (strcmp(versions[i], asked) <= 0)
            return versions[i];
    return versions[1];
}

static void do_initialize(struct server *s, const struct mcp_message *m, bool stateless)
{
    const char *asked = json_string_value(json_object_get(m->params, "protocolVersion"));
    if (!asked) {
        refuse_request(s, m->id, MCP_PARAMS, "\"protocolVersion\" is missing");
        return;
    }
    reply(s, m->id,
          json_pack("{s:s, s:o, s:o, s:s}", "protocolVersion", offered(asked), "capabilities",
                    capabilities(), "serverInfo", server_info(), "instructions", instructions),
          false);
}

static void do_discover(struct server *s, const struct mcp_message *m, bool stateless)
{
    reply(s, m->id,
          json_pack("{s:o, s:o, s:s, s:i, s:s}", "supportedVersions", version_list(),
                    "capabilities", capabilities(), "instructions", instructions, "ttlMs",
                    LIST_TTL_MS, "cacheScope", "public"),
          true);
}

static void do_ping(struct server *s, const struct mcp_message *m, bool stateless)
{
    reply(s, m->id, json_object(), stateless);
}

static void do_list(struct server *s, const struct mcp_message *m, bool stateless)
{
    json_t *result = json_pack("{s:O}", "tools", tools_described());
    if (stateless) {
        (void)json_object_set_new(result, "ttlMs", json_integer(LIST_TTL_MS));
        (void)json_object_set_new(result, "cacheScope", json_string("public"));
    }
    reply(s, m->id, result, stateless);
}

static void do_call(struct server *s, const struct mcp_message *m, bool stateless)
{
    const char *name = json_string_value(json_object_get(m->params, "name"));
    const json_t *args = json_object_get(m->params, "arguments");
    const struct tool *t = name ? tool_find(name) : NULL;
    char text[128];
    if (!t) {
        (void)snprintf(text, sizeof(text), "unknown tool '%.60s'", name ? name : "");
        utf8_defuse(text);
        refuse_request(s, m->id, MCP_PARAMS, text);
    } else if (args && !json_is_object(args)) {
        refuse_request(s, m->id, MCP_PARAMS, "\"arguments\" must be an object");
    } else if (find_call(s, m->id)) {
        refuse_request(s, m->id, MCP_INVALID, "a request with this \"id\" is in progress");
    } else if (s->n_calls >= MCP_CALLS_MAX) {
        refuse_request(s, m->id, MCP_INTERNAL, "too many calls at once");
    } else {
        start_call(s, t, m, stateless);
    }
}

static void do_cancel(struct server *s, const struct mcp_message *m)
{
    const json_t *id = json_object_get(m->params, "requestId");
    struct call *c = id ? find_call(s, id) : NULL;
    if (c) /* else it has just ended */
        call_kill(c);
}

/* Whether the request names a version, as in the stateless revision; one that we do not support is
 * refused. */
static int check_version(struct server *s, const struct mcp_message *m, bool *stateless)
{
    const json_t *meta = json_object_get(m->params, "_meta");
    const char *version = json_string_value(json_object_get(meta, META_VERSION));
    *stateless = version != NULL;
    if (!version || is_supported(version))
        return 0;
    json_t *data = json_pack("{s:o, s:s}", "supported", version_list(), "requested", version);
    send_message(s, mcp_error(m->id, MCP_VERSION, "unsupported protocol version", data));
    return -EPROTO;
}

static void handle_message(struct server *s, const struct mcp_message *m)
{
    static const struct {
        const char *method;
        void (*fn)(struct server *s, const struct mcp_message *m, bool stateless);
    } requests[] = {{"initialize", do_initialize},
                    {"server/discover", do_discover},
                    {"ping", do_ping},
                    {"tools/list", do_list},
                    {"tools/call", do_call}};
    bool stateless;
    if (!m->method)
        return;
    if (!m->id) {
        if (strcmp(m->method, "notifications/cancelled") == 0)
            do_cancel(s, m);
        return;
    }
    if (check_version(s, m, &stateless) < 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++)
        if (strcmp(m->method, requests[i].method) == 0) {
            requests[i].fn(s, m, stateless);
            return;
        }
    refuse_request(s, m->id, MCP_NO_METHOD, "unknown method");
}

/* --- input ----------------------------------------------------------------------------------- */

static void on_line(struct server *s, const char *line, size_t n)
{
    struct mcp_message m;
    const char *why = "";
    if (n > 0 && line[n - 1] == '\r')
        n--;
    if (n == 0)
        return;
    int r = mcp_message_parse(line, n, &m, &why);
    if (r < 0)
        refuse_request(s, m.id, r, why);
    else
        handle_message(s, &m);
    mcp_message_free(&m);
}

static void take_lines(struct server *s)
{
    for (;;) {
        const char *p = (const char *)buf_head(&s->in);
        const char *end = buf_len(&s->in) ? memchr(p, '\n', buf_len(&s->in)) : NULL;
        if (!end)
            break;
        size_t n = (size_t)(end - p);
        if (!s->skipping)
            on_line(s, p, n);
        s->skipping = false;
        buf_consume(&s->in, n + 1);
    }
    if (s->skipping) {
        buf_reset(&s->in);
    } else if (buf_len(&s->in) >= MCP_LINE_MAX) {
        refuse_request(s, NULL, MCP_INVALID, "the message is too long");
        s->skipping = true;
        buf_reset(&s->in);
    }
    buf_shrink(&s->in);
}

static void on_input(struct loop_src *src, uint32_t events)
{
    struct server *s = CONTAINER_OF(src, struct server, input);
    uint8_t *to = buf_reserve(&s->in, READ_SIZE);
    ssize_t n = to ? read(src->fd, to, READ_SIZE) : -1;
    if (n > 0) {
        buf_commit(&s->in, (size_t)n);
        take_lines(s);
    } else if (n == 0 || !to || (errno != EAGAIN && errno != EINTR)) {
        loop_stop(&s->loop);
    }
}

static void on_signal(struct loop_src *src, uint32_t events)
{
    loop_stop(&CONTAINER_OF(src, struct server, signals)->loop);
}

/* --- the end --------------------------------------------------------------------------------- */

static void on_removed(struct job *j, int code)
{
    if (code != 0)
        (void)fprintf(stderr, "msb mcp: %.*s", (int)buf_len(&j->err.kept),
                      (const char *)buf_head(&j->err.kept));
    loop_stop(j->loop);
}

/* Not a later sandbox with the same name that was created elsewhere. */
static bool is_ours(const struct server *s, const char *name)
{
    char label[64];
    char *own[] = {label, NULL};
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    mcp_label(s->config, label, sizeof(label));
    return sandbox_open(s->config->store, name, &sb, NULL) == 0 &&
           spec_matches_labels(&sb.spec, &(struct strlist){.v = own, .n = 1});
}

/* Sandboxes that this server has created end with it. */
static void remove_made(struct server *s)
{
    struct tool_run run = {.config = s->config};
    struct job j = {.done = on_removed};
    int r = strlist_add(&run.argv, "msb");
    for (const char *const *a = (const char *const[]){"remove", "-q", "--force", NULL};
         r == 0 && *a; a++)
        r = strlist_add(&run.argv, *a);
    size_t n = 0;
    for (size_t i = 0; r == 0 && i < s->made.n; i++) {
        if (!is_ours(s, s->made.v[i]))
            continue;
        r = strlist_add(&run.argv, s->made.v[i]);
        n++;
    }
    s->loop.stop = false;
    if (r == 0 && n > 0 &&
        job_start(&j, &s->loop, run_msb, &run, NULL, 0, MCP_OUTPUT_DEFAULT) == 0) {
        (void)loop_run(&s->loop);
        job_free(&j);
    }
    tool_run_free(&run);
}

static int watch_input(struct server *s)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    s->signals =
        (struct loop_src){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .fn = on_signal};
    s->input = (struct loop_src){.fd = STDIN_FILENO, .fn = on_input};
    if (s->signals.fd < 0)
        return -errno;
    int r = loop_add(&s->loop, &s->signals, EPOLLIN);
    return r < 0 ? r : loop_add(&s->loop, &s->input, EPOLLIN);
}

int mcp_serve(const struct mcp_config *c)
{
    struct server s = {.config = c, .signals.fd = -1};
    int r = loop_init(&s.loop);
    if (r < 0)
        return r;
    buf_init(&s.in, MCP_LINE_MAX + READ_SIZE);
    node_init(&s.calls);
    r = watch_input(&s);
    if (r == 0)
        r = loop_run(&s.loop);
    loop_del(&s.loop, &s.input);
    loop_close(&s.loop, &s.signals);
    while (node_linked(&s.calls))
        call_kill(CONTAINER_OF(s.calls.next, struct call, node));
    if (!c->keep)
        remove_made(&s);
    strlist_free(&s.made);
    buf_free(&s.in);
    loop_fini(&s.loop);
    return r;
}
