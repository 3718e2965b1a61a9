#include "cli/options/session.h"

#include "cli/core/ui.h"
#include "policy/rulebook.h"
#include "sandbox/lifecycle.h"
#include "sandbox/mount_wait.h"
#include "store/audit.h"
#include "store/secret.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/parse.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    RETRY_MS = 20000,   /* longer than a stop takes */
    RETRY_PAUSE_MS = 5, /* at first; it doubles, to relieve an overloaded guest */
    RETRY_PAUSE_MAX_MS = 160,
    EXIT_BY_SIGKILL = 128 + SIGKILL,
};

static const struct opt session_opts[] = {
    {"tty", 't', NULL, "Allocate a terminal; the default if stdin is one", .conflicts = "no-tty"},
    {"no-tty", 0, NULL, "Allocate no terminal, and do not read stdin if it is one"},
    {"timeout", 0, "TIME", "Kill the command after this long; exit code 124", OPT_COMMON},
    {"interactive", 'i', NULL, "No effect: stdin is always passed on", OPT_HIDDEN},
    DETACH_KEYS_OPTION,
    {0},
};
const struct opt_group session_group = {"Terminal and timeout", session_opts};

/* --- detach keys ---------------------------------------------------------------------------- */

/* One key: a character, or ctrl- and a letter or one of @[\]^_. */
static bool parse_key(const char *s, size_t n, uint8_t *ret)
{
    if (n == 1 && s[0] > 0x20 && s[0] < 0x7f) {
        *ret = (uint8_t)s[0];
        return true;
    }
    if (n != 6 || strncasecmp(s, "ctrl-", 5) != 0)
        return false;
    char c = s[5];
    if (c >= 'a' && c <= 'z')
        c = (char)(c - 'a' + 'A');
    if (c < '@' || c > '_')
        return false;
    *ret = (uint8_t)(c & 0x1f);
    return true;
}

int parse_detach_keys(const char *text, uint8_t keys[8], size_t *n, struct err *e)
{
    *n = 0;
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        uint8_t key;
        if (*n == 8 || !parse_key(p, len, &key))
            return err_set(e, EINVAL,
                           "invalid value '%s' for '--detach-keys <KEYS>': expected up to 8 keys "
                           "such as ctrl-p,ctrl-q",
                           text);
        keys[(*n)++] = key;
        p += len;
        if (!*p)
            return 0;
        p++;
    }
}

int detach_keys_option(const struct args *a, struct session_request *q, struct err *e)
{
    const char *keys = args_get(a, "detach-keys");
    return keys ? parse_detach_keys(keys, q->detach_keys, &q->n_detach_keys, e) : 0;
}

/* --- the request ---------------------------------------------------------------------------- */

static int add_rlimits(const struct args *a, struct session_request *q, struct err *e)
{
    for (size_t i = 0; i < a->n_opts; i++) {
        if (strcmp(a->opts[i].opt->name, "rlimit") != 0)
            continue;
        struct spec_rlimit l;
        int r = spec_parse_rlimit(a->opts[i].value, &l, e);
        if (r < 0)
            return r;
        size_t at = 0;
        while (at < q->n_rlimits && q->rlimits[at].resource != l.resource)
            at++;
        q->rlimits[at] = l; /* there is room for every resource */
        q->n_rlimits = MAX(q->n_rlimits, at + 1);
    }
    return 0;
}

static bool given(const struct args *a, const char *name)
{
    for (size_t i = 0; i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, name) == 0)
            return true;
    return false;
}

int session_request_parse(const struct args *a, struct session_request *q, struct err *e)
{
    *q = (struct session_request){0};
    const char *timeout = args_get(a, "timeout");
    if (timeout) {
        int r = parse_duration_ms(timeout, &q->timeout_ms);
        if (r < 0)
            return args_bad_value(a, "timeout", timeout,
                                  r == -ERANGE ? "too long" : PARSE_DURATION_EXAMPLES, e);
    }
    mount_wait_limit(q->timeout_ms);
    int r = add_rlimits(a, q, e);
    if (r == 0)
        r = detach_keys_option(a, q, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < a->n_command; i++)
        if (strlist_add(&q->argv, a->command[i]) < 0)
            return err_oom(e);
    bool terminal = isatty(STDIN_FILENO);
    bool stream = given(a, "stream");
    q->detach = args_has(a, "detach");
    q->interactive = terminal && !args_has(a, "no-tty") && !stream && !q->detach;
    q->tty = q->interactive || args_has(a, "tty");
    q->no_stdin = q->detach || (terminal && !q->interactive && !stream);
    return 0;
}

void session_request_free(struct session_request *q)
{
    strlist_free(&q->argv);
    strlist_free(&q->secrets);
    strlist_wipe(&q->env);
}

int session_default_command(struct session_request *q, const struct sandbox_spec *spec,
                            struct err *e)
{
    if (strlist_copy(&q->argv, &spec->entrypoint) < 0 || strlist_copy(&q->argv, &spec->cmd) < 0)
        return err_oom(e);
    if (q->argv.n > 0)
        return 1;
    if (q->interactive)
        return strlist_add(&q->argv, spec->shell ? spec->shell : "/bin/sh") < 0 ? err_oom(e) : 1;
    ui_warn("no command provided and stdin is not a terminal");
    return 0;
}

struct attachment {
    const struct store *store;
    const char *name;
    bool *started;
    uint64_t until_ns; /* when to give up on a sandbox that keeps refusing */
    unsigned pause_ms;
};

/* The sandbox refused because it was about to stop, which its state may not show yet, or because it
 * is overloaded. */
static int attach_again(void *ctx, struct err *e)
{
    struct attachment *a = ctx;
    bool started = false;
    int fd;
    if (now_ns() >= a->until_ns)
        return err_set(e, ETIMEDOUT, "sandbox '%s' refused the command for %d seconds", a->name,
                       RETRY_MS / 1000);
    sleep_ms(a->pause_ms);
    a->pause_ms = MIN(2 * a->pause_ms, (unsigned)RETRY_PAUSE_MAX_MS);
    int r = sandbox_attach(a->store, a->name, ui_warn, &fd, &started, e);
    *a->started = *a->started || started;
    return r < 0 ? r : fd;
}

/* Secrets of the sandbox and of the command, then the variables set for this command. */
struct secret_lookup {
    const struct store *store;
    const struct session_request *request;
    struct strlist env, names;
    uint64_t memory_mib; /* of the sandbox */
};

static int add_secrets(void *ctx, const struct sandbox_spec *spec, struct err *e)
{
    struct secret_lookup *l = ctx;
    l->memory_mib = spec->memory_mib;
    int r = policy_hold_exec(l->store, spec, &l->request->secrets, e);
    if (r == 0)
        r = secret_resolve(l->store, &spec->secrets, &l->env, e);
    if (r == 0)
        r = secret_resolve(l->store, &l->request->secrets, &l->env, e);
    if (r == 0 && (strlist_copy(&l->names, &spec->secrets) < 0 ||
                   strlist_copy(&l->names, &l->request->secrets) < 0))
        r = err_oom(e);
    if (r == 0 && strlist_copy(&l->env, &l->request->env) < 0)
        r = err_oom(e);
    return r;
}

/* A command that was killed for lack of memory looks like any other that got SIGKILL. */
static void tell_oom(const struct session_result *res, uint64_t memory_mib)
{
    struct err e = {0};
    if (res->oom == PROTO_OOM_NONE || res->timed_out || res->exit_code == 0)
        return;
    bool own = res->oom == PROTO_OOM_COMMAND || res->exit_code == EXIT_BY_SIGKILL;
    (void)err_set(&e, ENOMEM, "%skilled: out of memory (limit %lluM, see --memory)",
                  own ? "" : "a process in the sandbox was ", (unsigned long long)memory_mib);
    ui_error(&e);
}

/* A shell prompt comes next: put it on a separate line. */
static void tell_left(const char *name)
{
    char text[SPEC_NAME_MAX * 2 + 96];
    (void)snprintf(text, sizeof(text),
                   "\nDetached from %s; the command keeps running: 'msb attach "
                   "%s' reattaches",
                   name, name);
    ui_note(text);
}

int session_execute(const struct store *s, const char *name, const struct session_request *q,
                    bool *started, bool *detached)
{
    struct session_result res = {0};
    struct err e = {0};
    struct spinner spin = {0};
    int sock = -1;
    if (q->interactive)
        spinner_start(&spin, "Connecting", name);
    struct secret_lookup secrets = {.store = s, .request = q};
    const struct attach_look look = {add_secrets, &secrets};
    int r = sandbox_attach_look(s, name, &look, ui_warn, &sock, started, &e);
    spinner_stop(&spin);
    if (r < 0) {
        strlist_wipe(&secrets.env);
        strlist_free(&secrets.names);
        return ui_fail(&e);
    }
    struct attachment again = {s, name, started, now_ns() + RETRY_MS * 1000000ULL, RETRY_PAUSE_MS};
    struct session_request req = *q;
    req.env = secrets.env;
    req.reconnect = attach_again;
    req.reconnect_ctx = &again;
    char id[AUDIT_ID_MAX];
    if (!q->attach)
        audit_exec(
            s, name,
            &(struct audit_exec){&q->argv, q->user, q->cwd, q->tty, q->detach, &secrets.names}, id);
    strlist_free(&secrets.names);
    r = session_run(sock, &req, &res, &e);
    (void)close(sock);
    strlist_wipe(&secrets.env);
    *detached = r == 0 && res.detached;
    if (*detached && !q->detach)
        tell_left(name);
    if (!*detached && !q->detach && !q->attach)
        audit_exit(s, name, id, r < 0 ? EXIT_FAILED : res.exit_code);
    if (r < 0)
        return ui_fail(&e);
    if (e.code)
        ui_error(&e);
    tell_oom(&res, secrets.memory_mib);
    return res.exit_code;
}
