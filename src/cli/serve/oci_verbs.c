/* The verbs of `msb oci`, called as runc's are. */
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/serve/oci.h"
#include "cli/serve/oci_console.h"
#include "oci/container.h"
#include "oci/process.h"
#include "oci/state.h"
#include "spec/signals.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A descriptor is an object in the host's kernel, and the command runs on another kernel. Dropping
 * them silently would leave it with closed ones, and a socket-activated service waiting forever. */
static int refuse_fds(const struct args *a, struct err *e)
{
    const char *n = args_get(a, "preserve-fds");
    if (!n || strcmp(n, "0") == 0)
        return 0;
    (void)err_set(e, ENOTSUP,
                  "--preserve-fds %s: descriptors of the host cannot be passed into a guest", n);
    err_hint(e, "mount files and directories, publish ports, and use stdin, stdout and stderr");
    return -ENOTSUP;
}

#define ID ONE("ID", "Container")
#define VERB(id, word, text, line, options, fn, ...) \
    const struct cmd id = {.name = word,             \
                           .group = GROUP_OTHER,     \
                           .summary = text,          \
                           .opts = options,          \
                           .pos = ID,                \
                           .examples = line,         \
                           .with_runtime = fn,       \
                           __VA_ARGS__}

/* --- create, run ----------------------------------------------------------------------------- */

static struct oci_create create_options(const struct args *a)
{
    const char *bundle = args_get(a, "bundle");
    return (struct oci_create){.id = a->pos[0],
                               .bundle = bundle ? bundle : ".",
                               .pid_file = args_get(a, "pid-file"),
                               .console_socket = args_get(a, "console-socket")};
}

static int create_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    const struct oci_create o = create_options(a);
    return oci_create(rt, &o, e);
}

#define CREATE_OPTIONS                                                                             \
    {"bundle", 'b', "DIR", "Bundle with config.json (default: the current directory)"},            \
        {"pid-file", 0, "FILE", "Write the PID of the container's process to it"},                 \
        {"console-socket", 0, "PATH", "Send the container's terminal over this socket"},           \
        {"no-pivot", 0, NULL, "No effect: a guest has its own root", OPT_HIDDEN},                  \
        {"no-new-keyring", 0, NULL, "No effect: a guest has its own keyrings", OPT_HIDDEN},        \
    {                                                                                              \
        "preserve-fds", 0, "N", "Must be 0: descriptors cannot be passed into a guest", OPT_HIDDEN \
    }

VERB(cmd_oci_create, "create", "Create a container: its guest boots, and waits for start",
     "  msb oci create --bundle /tmp/bundle c1", OPTIONS(CREATE_OPTIONS), create_run,
     .check = refuse_fds);

static volatile pid_t signaled;

static void pass_on(int sig)
{
    (void)kill(signaled, sig);
}

/* Signals go to the container's process, which passes them on. */
static int wait_here(const struct oci_runtime *rt, const char *id, struct oci_console *console,
                     int *code, struct err *e)
{
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    AUTO_JSON json_t *state = oci_state(rt, id, false, e);
    if (!state)
        return -e->code;
    signaled = (pid_t)json_integer_value(json_object_get(state, "pid"));
    for (size_t i = 0; signaled > 0 && i < ARRAY_LEN(passed); i++)
        (void)signal(passed[i], pass_on);
    if (console->master >= 0)
        oci_console_serve(console);
    return oci_wait(rt, id, code, e);
}

/* In the foreground, the terminal is this one unless another was requested. */
static int create_here(struct oci_runtime *rt, const struct args *a, struct oci_create *o,
                       struct oci_console *console, struct err *e)
{
    int r = 0;
    if (!o->console_socket && !args_has(a, "detach") && oci_console_wanted(o->bundle)) {
        r = oci_console_open(console, e);
        o->console_socket = console->path;
    }
    if (r == 0)
        r = oci_create(rt, o, e);
    if (r == 0 && console->listener >= 0 && (r = oci_console_take(console, e)) < 0) {
        struct err ignored = {0};
        (void)oci_delete(rt, o->id, true, &ignored);
    }
    return r;
}

static int run_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    AUTO_CONSOLE struct oci_console console = OCI_CONSOLE_NONE;
    struct err ignored = {0};
    struct oci_create o = create_options(a);
    int code = EXIT_OK;
    int r = create_here(rt, a, &o, &console, e);
    if (r < 0)
        return r;
    r = oci_start(rt, o.id, e);
    if (r == 0 && args_has(a, "detach"))
        return EXIT_OK;
    if (r == 0)
        r = wait_here(rt, o.id, &console, &code, e);
    if (r < 0 || !args_has(a, "keep"))
        (void)oci_delete(rt, o.id, true, &ignored);
    return r < 0 ? r : code;
}

static const struct opt run_opts[] = {
    CREATE_OPTIONS,
    {"detach", 'd', NULL, "Do not wait for it to end"},
    {"keep", 0, NULL, "Do not delete it when it has ended"},
    {0},
};
VERB(cmd_oci_run, "run", "Create and start a container, and wait for it",
     "  msb oci run --bundle /tmp/bundle c1", run_opts, run_run, .check = refuse_fds);

/* --- exec ------------------------------------------------------------------------------------ */

/* Only the ids: the rest of process.user applies to whichever user runs the command. */
static int set_user(json_t *process, const char *text, struct err *e)
{
    uint64_t uid, gid = 0;
    AUTO_FREE char *ids = strdup(text);
    char *colon = ids ? strchr(ids, ':') : NULL;
    json_t *user = json_object_get(process, "user");
    if (colon)
        *colon++ = '\0';
    if (ids && (parse_u64(ids, &uid) < 0 || uid >= UINT32_MAX ||
                (colon && (parse_u64(colon, &gid) < 0 || gid >= UINT32_MAX))))
        return err_set(e, EINVAL, "--user %s: expected UID[:GID]", text);
    if (!json_is_object(user))
        (void)json_object_set_new(process, "user", user = json_object());
    if (!ids || json_object_set_new(user, "uid", json_integer((json_int_t)uid)) < 0 ||
        (colon && json_object_set_new(user, "gid", json_integer((json_int_t)gid)) < 0))
        return err_oom(e);
    return 0;
}

/* Adds to the groups of whichever user runs the command. */
static int add_groups(json_t *process, const struct args *a, struct err *e)
{
    AUTO_STRLIST struct strlist gids = {0};
    json_t *user = json_object_get(process, "user");
    json_t *list = json_object_get(user, "additionalGids");
    if (args_list(a, "additional-gids", &gids) < 0)
        return err_oom(e);
    if (gids.n && !list && json_object_set_new(user, "additionalGids", list = json_array()) < 0)
        return err_set(e, EINVAL, "--additional-gids: process.user is not an object");
    for (size_t i = 0; i < gids.n; i++) {
        uint64_t gid;
        if (parse_u64(gids.v[i], &gid) < 0 || gid >= UINT32_MAX)
            return err_set(e, EINVAL, "--additional-gids %s: expected a number", gids.v[i]);
        if (json_array_append_new(list, json_integer((json_int_t)gid)) < 0)
            return err_oom(e);
    }
    return 0;
}

/* The container's own process with another command, and with the options applied. */
static json_t *process_from_options(const struct oci_runtime *rt, const struct args *a,
                                    struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    AUTO_STRLIST struct strlist env = {0};
    if (container_open(rt, a->pos[0], &c, e) < 0)
        return NULL;
    const char *bundle = json_string_value(json_object_get(c.j, "bundle"));
    AUTO_CLOSE int dir = open(bundle ? bundle : "", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_JSON json_t *config = oci_config_read(dir, e);
    AUTO_JSON json_t *p = json_deep_copy(json_object_get(config, "process"));
    if (!p) {
        if (!e->code)
            (void)err_set(e, EINVAL, "container '%s' has no process", a->pos[0]);
        return NULL;
    }
    json_t *words = json_list(a->command), *vars = json_object_get(p, "env");
    int r =
        json_object_set_new(p, "args", words) < 0 || args_list(a, "env", &env) < 0 ? err_oom(e) : 0;
    if (env.n && !vars)
        (void)json_object_set_new(p, "env", vars = json_array());
    for (size_t i = 0; r == 0 && i < env.n; i++)
        if (json_array_append_new(vars, json_string(env.v[i])) < 0)
            r = err_set(e, EINVAL, "--env %s cannot be added to process.env", env.v[i]);
    if (r == 0 && args_get(a, "cwd"))
        r = json_object_set_new(p, "cwd", json_string(args_get(a, "cwd")));
    if (r == 0 && args_get(a, "user"))
        r = set_user(p, args_get(a, "user"), e);
    if (r == 0)
        r = add_groups(p, a, e);
    if (r == 0)
        r = json_object_set_new(p, "terminal", json_boolean(args_has(a, "tty")));
    return r < 0 ? NULL : steal_ptr(&p);
}

static int exec_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    const char *file = args_get(a, "process");
    int code = OCI_EXEC_FAILED;
    AUTO_JSON json_t *p = file ? oci_json_read(file, e) : process_from_options(rt, a, e);
    if (!p)
        return -1;
    if (args_has(a, "tty"))
        (void)json_object_set_new(p, "terminal", json_true());
    const struct oci_exec x = {.id = a->pos[0],
                               .process = p,
                               .pid_file = args_get(a, "pid-file"),
                               .console_socket = args_get(a, "console-socket"),
                               .detach = args_has(a, "detach")};
    int r = oci_exec(rt, &x, &code, e);
    return r < 0 ? r : code;
}

static const struct opt exec_opts[] = {
    {"process", 'p', "FILE", "What to run, as 'process' of a config.json"},
    {"detach", 'd', NULL, "Do not wait for it to end"},
    {"pid-file", 0, "FILE", "Write the PID of its process to it"},
    {"console-socket", 0, "PATH", "Send its terminal over this socket"},
    {"tty", 't', NULL, "Give it a terminal"},
    {"env", 'e', "KEY=VALUE", "Set an environment variable", OPT_REPEAT},
    {"cwd", 0, "DIR", "Working directory"},
    {"user", 'u', "UID[:GID]", "User to run as"},
    {"additional-gids", 'g', "GID", "Supplementary group to run with", OPT_REPEAT},
    {"preserve-fds", 0, "N", "Must be 0: descriptors cannot be passed into a guest", OPT_HIDDEN},
    {0},
};

const struct cmd cmd_oci_exec = {
    .name = "exec",
    .summary = "Run another command in a container",
    .opts = exec_opts,
    .pos = ID,
    .command_help = "Command to run, without --process",
    .examples = "  msb oci exec c1 -- ps\n"
                "  msb oci exec --process /tmp/process.json --detach --pid-file /tmp/pid c1",
    .with_runtime = exec_run,
    .check = refuse_fds,
};

/* --- state, list, ps ------------------------------------------------------------------------- */

static int state_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    json_t *j = oci_state(rt, a->pos[0], false, e);
    return j ? ui_print_json(j) : -1;
}
VERB(cmd_oci_state, "state", "Print the state of a container, as JSON", "  msb oci state c1", NULL,
     state_run);

#define LIST_LINE(pid) "%-36s %-8" pid " %-8s %-40s %-30s %s\n"

/* One that is only being created may have less. */
static const char *text_of(const json_t *one, const char *key)
{
    const char *text = json_string_value(json_object_get(one, key));
    return text ? text : "";
}

static int print_list(const struct args *a, json_t *all)
{
    const char *format = args_get(a, "format");
    const json_t *one;
    size_t i;
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    if (!all)
        return ui_print_json(NULL);
    if (format && strcmp(format, "json") == 0) { /* in one line */
        AUTO_FREE char *text = json_dumps(all, JSON_COMPACT);
        json_decref(all);
        return text ? ui_print_line(text) : ui_print_json(NULL);
    }
    if (!args_has(a, "quiet"))
        (void)buf_printf(&out, LIST_LINE("s"), "ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER");
    json_array_foreach(all, i, one)
    {
        const char *id = text_of(one, "id");
        if (args_has(a, "quiet"))
            (void)buf_printf(&out, "%s\n", id);
        else
            (void)buf_printf(&out, LIST_LINE("d"), id,
                             (int)json_integer_value(json_object_get(one, "pid")),
                             text_of(one, "status"), text_of(one, "bundle"),
                             text_of(one, "created"), text_of(one, "owner"));
    }
    json_decref(all);
    return ui_print(&out);
}

static int list_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    AUTO_STRLIST struct strlist names = {0};
    int r = container_list(rt, &names, e);
    if (r < 0)
        return r;
    json_t *all = json_array();
    for (size_t i = 0; i < names.n; i++) {
        json_t *one = oci_state(rt, names.v[i], true, e); /* one may have gone meanwhile */
        if (one)
            json_add(&all, one);
    }
    return print_list(a, all);
}

static const struct opt format_opts[] = {
    {"format", 'f', "FORMAT", "Table or JSON (default: table)", .choices = "table|json"},
    {"quiet", 'q', NULL, "Print only names"},
    {0},
};

const struct cmd cmd_oci_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List containers",
    .opts = format_opts,
    .examples = "  msb oci list --format json",
    .with_runtime = list_run,
};

/* The guest's processes are not processes of this host: the container's is. */
static int ps_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    const char *format = args_get(a, "format");
    AUTO_JSON json_t *j = oci_state(rt, a->pos[0], false, e);
    if (!j)
        return -1;
    int pid = (int)json_integer_value(json_object_get(j, "pid"));
    char line[32] = "[]", number[16];
    if (pid)
        (void)snprintf(line, sizeof(line), "[%d]", pid);
    if (format && strcmp(format, "json") == 0)
        return ui_print_line(line);
    if (!pid)
        return ui_print_line("UID          PID    PPID  C STIME TTY          TIME CMD");
    (void)snprintf(number, sizeof(number), "%d", pid);
    (void)execlp("ps", "ps", "-f", "-p", number, NULL);
    (void)snprintf(line, sizeof(line), "PID\n%d", pid);
    return ui_print_line(line);
}
VERB(cmd_oci_ps, "ps", "List the processes of a container on this host",
     "  msb oci ps --format json c1", format_opts, ps_run);

/* --- the rest -------------------------------------------------------------------------------- */

static int start_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    return oci_start(rt, a->pos[0], e);
}
VERB(cmd_oci_start, "start", "Start the command of a created container", "  msb oci start c1", NULL,
     start_run);

/* Signal 0 only checks whether the command is running. */
static int read_signal(const struct args *a, int *ret, struct err *e)
{
    const char *text = a->n_pos > 1 ? a->pos[1] : "TERM";
    if (a->n_pos > 2)
        return err_set(e, EINVAL, "unexpected argument '%s' found", a->pos[2]);
    *ret = signal_number(text);
    return *ret || strcmp(text, "0") == 0 ? 0 : err_set(e, EINVAL, "unknown signal '%.32s'", text);
}

static int kill_check(const struct args *a, struct err *e)
{
    int signal;
    return read_signal(a, &signal, e);
}

static int kill_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    int signal = 0;
    int r = read_signal(a, &signal, e);
    return r < 0 ? r : oci_kill(rt, a->pos[0], signal, args_has(a, "all"), e);
}

const struct cmd cmd_oci_kill = {
    .name = "kill",
    .summary = "Send a signal to a container's command",
    .opts = OPTIONS(
        {"all", 'a', NULL, "Not an error if it has ended; only KILL reaches all of its processes"}),
    .pos = SOME("ID [SIGNAL]", "Container, and the signal (default: TERM)"),
    .examples = "  msb oci kill c1 KILL",
    .with_runtime = kill_run,
    .check = kill_check,
};

static int delete_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    return oci_delete(rt, a->pos[0], args_has(a, "force"), e);
}

VERB(cmd_oci_delete, "delete", "Delete a container that has ended", "  msb oci delete c1",
     OPTIONS({"force", 'f', NULL, "Kill it first; not an error if it does not exist",
              OPT_DESTROYS}),
     delete_run);

static int pause_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    return oci_freeze(rt, a->pos[0], true, e);
}
VERB(cmd_oci_pause, "pause", "Freeze a container", "  msb oci pause c1", NULL, pause_run);

static int resume_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    return oci_freeze(rt, a->pos[0], false, e);
}
VERB(cmd_oci_resume, "resume", "Thaw a container", "  msb oci resume c1", NULL, resume_run);

enum { EVENTS_INTERVAL_MS = 5000 };

static int print_usage(const struct oci_runtime *rt, const char *id, struct err *e)
{
    AUTO_JSON json_t *j = oci_usage(rt, id, e);
    AUTO_FREE char *line = j ? json_dumps(j, JSON_COMPACT) : NULL;
    return line ? ui_print_line(line) : -1;
}

static int read_interval(const struct args *a, uint64_t *ms, struct err *e)
{
    const char *text = args_get(a, "interval");
    *ms = EVENTS_INTERVAL_MS;
    if (text && (parse_duration_ms(text, ms) < 0 || *ms == 0))
        return err_set(e, EINVAL, "invalid value '%s' for '--interval': " PARSE_DURATION_EXAMPLES,
                       text);
    return 0;
}

static int events_check(const struct args *a, struct err *e)
{
    uint64_t ms;
    return read_interval(a, &ms, e);
}

/* Once, or repeatedly until it ends. */
static int events_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    uint64_t ms;
    int r = read_interval(a, &ms, e);
    if (r == 0)
        r = print_usage(rt, a->pos[0], e);
    while (r == 0 && !args_has(a, "stats")) {
        sleep_ms(ms);
        r = print_usage(rt, a->pos[0], e);
        if (e->code == ESRCH || e->code == ENOENT)
            return EXIT_OK;
    }
    return e->code ? -e->code : r;
}

VERB(cmd_oci_events, "events", "Print what a container uses on this host, as JSON",
     "  msb oci events --stats c1",
     OPTIONS({"stats", 0, NULL, "Print once and exit"},
             {"interval", 0, "DURATION", "Interval between lines (default: 5s)"}),
     events_run, .check = events_check);

/* The options of runc that have an effect here, with their places in linux.resources. */
static const struct {
    const char *option, *in, *key;
    enum { OF_TEXT, OF_NUMBER, OF_BYTES } kind;
    bool liftable; /* by -1 */
} update_flags[] = {
    {"cpu-period", "cpu", "period", OF_NUMBER},
    {"cpu-quota", "cpu", "quota", OF_NUMBER, .liftable = true},
    {"cpu-share", "cpu", "shares", OF_NUMBER},
    {"cpuset-cpus", "cpu", "cpus", OF_TEXT},
    {"cpuset-mems", "cpu", "mems", OF_TEXT},
    {"memory", "memory", "limit", OF_BYTES, .liftable = true},
    {"memory-reservation", "memory", "reservation", OF_BYTES},
    {"pids-limit", "pids", "limit", OF_NUMBER, .liftable = true},
};

static json_t *resources_from_options(const struct args *a, struct err *e)
{
    json_t *j = json_pack("{s:{}, s:{}, s:{}}", "cpu", "memory", "pids");
    bool any = false;
    for (size_t i = 0; j && !e->code && i < ARRAY_LEN(update_flags); i++) {
        const char *name = update_flags[i].option, *text = args_get(a, name);
        uint64_t v = 0;
        if (!text)
            continue;
        any = true;
        bool lifted = update_flags[i].liftable && strcmp(text, "-1") == 0;
        if (update_flags[i].kind != OF_TEXT && !lifted &&
            ((update_flags[i].kind == OF_BYTES ? parse_size(text, 1, &v) : parse_u64(text, &v)) <
                 0 ||
             v == 0 || v > INT64_MAX))
            (void)args_bad_value(a, name, text, "expected a positive number", e);
        else if (json_object_set_new(json_object_get(j, update_flags[i].in), update_flags[i].key,
                                     update_flags[i].kind == OF_TEXT
                                         ? json_string(text)
                                         : json_integer(lifted ? -1 : (json_int_t)v)) < 0)
            (void)err_oom(e);
    }
    if (args_has(a, "cpu-period") && !args_has(a, "cpu-quota"))
        (void)err_set(e, EINVAL, "--cpu-period has no effect without --cpu-quota");
    if (j && !e->code && !any)
        (void)err_set(e, EINVAL, "update needs --resources FILE (- for stdin), or a limit");
    if (j && !e->code)
        return j;
    json_decref(j);
    if (!j)
        (void)err_oom(e);
    return NULL;
}

/* Otherwise, that limit is inside the guest, fixed at its start. */
static int check_pids(const struct oci_runtime *rt, const struct args *a, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    int r = args_has(a, "pids-limit") ? container_open(rt, a->pos[0], &c, e) : 0;
    if (r == 0 && c.j && !json_object_get(c.j, "pod"))
        r = err_set(e, ENOTSUP, "--pids-limit can be changed only for containers in a pod");
    return r;
}

static int update_run(const struct args *a, struct oci_runtime *rt, struct err *e)
{
    const char *file = args_get(a, "resources");
    if (!file && check_pids(rt, a, e) < 0)
        return -1;
    AUTO_JSON json_t *j = file ? oci_json_read(file, e) : resources_from_options(a, e);
    return j ? oci_update(rt, a->pos[0], j, e) : -1;
}

static const struct opt update_opts[] = {
    {"resources", 'r', "FILE", "All limits, as linux.resources; - is stdin"},
    {"cpu-period", 0, "USEC", "Period that the quota applies to (default: 100000)"},
    {"cpu-quota", 0, "USEC", "CPU time in each period; -1: no limit", OPT_HYPHEN},
    {"cpu-share", 0, "N", "CPU weight relative to others, usually 1024"},
    {"cpuset-cpus", 0, "LIST", "CPUs of the host to run on"},
    {"cpuset-mems", 0, "LIST", "Memory nodes of the host to use"},
    {"memory", 0, "SIZE", "Memory limit of its cgroup (-1: none); the guest's size stays",
     OPT_HYPHEN},
    {"memory-reservation", 0, "SIZE", "Memory it keeps when memory is scarce"},
    {"pids-limit", 0, "N", "Processes of a container in a pod (-1: no limit)", OPT_HYPHEN},
    {0},
};
VERB(cmd_oci_update, "update", "Change a container's limits",
     "  msb oci update --cpu-quota 50000 c1", update_opts, update_run);
