#include "store/audit.h"

#include "logs/files.h"
#include "logs/net_record.h"
#include "proto/proto.h"
#include "store/audit_chain.h"
#include "store/audit_sinks.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void (*on_failure)(const char *text);

void audit_on_failure(void (*fn)(const char *text))
{
    on_failure = fn;
}

/* One warning is enough. */
static void audit_warn(const char *text)
{
    void (*fn)(const char *text) = on_failure;
    on_failure = NULL;
    if (fn)
        fn(text);
}

static void audit_failed(const char *what, int code)
{
    char text[256];
    (void)snprintf(text, sizeof(text), "cannot write to the audit log: %s: %s", what,
                   strerror(code));
    audit_warn(text);
}

/* --- settings -------------------------------------------------------------------------------- */

static struct audit_settings settings = {.level = -1};
static void (*find_settings)(const struct store *s);

void audit_configure(const struct audit_settings *given)
{
    settings = *given;
    find_settings = NULL;
}

void audit_configure_with(void (*find)(const struct store *s))
{
    find_settings = find;
}

/* Before anything depends on them. */
static void settle(const struct store *s)
{
    void (*find)(const struct store *s) = find_settings;
    find_settings = NULL;
    if (find)
        find(s);
}

/* The level that the environment asks for; -ENOENT: none. */
static int asked_level(void)
{
    static const char *const names[] = {"off", "denied", "all"};
    const char *v = getenv("MSB_AUDIT");
    if (!v || !*v)
        return -ENOENT;
    for (int i = 0; i < (int)ARRAY_LEN(names); i++)
        if (strcmp(v, names[i]) == 0)
            return i;
    return -EINVAL;
}

int audit_level(void)
{
    int asked = asked_level();
    if (asked == -EINVAL)
        return -EINVAL;
    if (asked < 0 && settings.level < 0)
        return AUDIT_DENIED;
    return MAX(asked, settings.level);
}

/* A value that we do not understand must not switch anything off. */
static enum audit_level level(void)
{
    int l = audit_level();
    if (l < 0)
        audit_warn(
            "invalid MSB_AUDIT: expected off, denied or all; the audit log records everything");
    return l < 0 ? AUDIT_ALL : (enum audit_level)l;
}

/* --- records --------------------------------------------------------------------------------- */

/* The program that started us, as an indication of who asked. */
static const char *parent_name(void)
{
    static char name[32];
    static pid_t of;
    char path[32];
    if (of == getpid())
        return name;
    of = getpid();
    name[0] = '\0';
    (void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)getppid());
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t k = fd < 0 ? 0 : read(fd, name, sizeof(name) - 1);
    name[k > 0 ? k : 0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    if (!utf8_valid(name))
        name[0] = '\0';
    return name;
}

/* The record's own members come first. */
static json_t *new_record(uint64_t t_ns, const char *event, const char *sandbox, json_t *more)
{
    char t[TIME_TEXT_MAX];
    time_rfc3339(t_ns, t);
    const char *parent = parent_name();
    json_t *j = json_pack("{s:s, s:s, s:s*, s:i, s:i, s:s, s:s*}", "t", t, "event", event,
                          "sandbox", sandbox, "uid", (int)getuid(), "pid", (int)getpid(), "program",
                          program_invocation_short_name, "parent", parent[0] ? parent : NULL);
    if (j && more && json_object_update_missing(j, more) < 0) {
        json_decref(j);
        j = NULL;
    }
    json_decref(more);
    return j;
}

/* Takes the record. */
static void append(const struct store *s, json_t *taken)
{
    AUTO_JSON json_t *j = taken;
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    AUTO_FREE char *line = NULL;
    const char *event = json_string_value(json_object_get(j, "event"));
    int r = text ? audit_chain_append(s->home_fd, text, strlen(text), &line) : -ENOMEM;
    if (r < 0)
        audit_failed(event ? event : "record", -r);
    else if (audit_has_sinks(&settings))
        audit_send(&settings, j, line, audit_warn);
}

void audit(const struct store *s, const char *event, const char *sandbox, json_t *more)
{
    settle(s);
    if (level() == AUDIT_OFF)
        json_decref(more);
    else
        append(s, new_record(realtime_ns(), event, sandbox, more));
}

void audit_done(const struct store *s, const char *event, const char *sandbox, json_t *more,
                uint64_t since_ns, int r, const struct err *e)
{
    if (!more)
        more = json_object();
    if (since_ns)
        (void)json_object_set_new(more, "ms",
                                  json_integer((json_int_t)((now_ns() - since_ns) / 1000000)));
    if (r < 0) {
        const char *text = e && e->msg[0] ? e->msg : strerror(-r);
        (void)json_object_set_new(more, "error", audit_text(text));
    }
    audit(s, event, sandbox, more);
}

void audit_refused(const struct store *s, const char *verb, const char *sandbox,
                   const struct audit_refusal *x)
{
    audit(s, "refused", sandbox,
          json_pack("{s:s, s:o*, s:o*, s:o*, s:o*}", "verb", verb, "field", audit_text(x->field),
                    "asked", audit_text(x->asked), "allowed", audit_text(x->allowed), "origin",
                    audit_text(x->origin)));
}

static json_t *text_of(const char *s, size_t most)
{
    char text[AUDIT_ARGV_MAX + 1];
    if (!s)
        return NULL;
    if (strlen(s) <= most && utf8_valid(s))
        return json_string(s);
    net_record_escape(s, text, MIN(sizeof(text), most + 1));
    return json_string(text);
}

json_t *audit_text(const char *s)
{
    return text_of(s, AUDIT_ARGV_MAX);
}

static json_t *names_of(const struct strlist *names)
{
    json_t *list = json_array();
    for (size_t i = 0; names && i < names->n; i++)
        (void)json_array_append_new(list, audit_text(names->v[i]));
    return list;
}

json_t *audit_labels(const struct sandbox_spec *spec)
{
    return names_of(&spec->labels);
}

/* --- what a sandbox is made of --------------------------------------------------------------- */

static json_t *mounts_of(const struct sandbox_spec *spec)
{
    static const char *const kinds[] = {"tmpfs", "bind", "volume"};
    json_t *list = json_array();
    for (size_t i = 0; i < spec->n_mounts; i++) {
        const struct spec_mount *m = &spec->mounts[i];
        if (m->kind == MOUNT_TMPFS || !m->source)
            continue;
        const char *kind = (size_t)m->kind < ARRAY_LEN(kinds) ? kinds[m->kind] : "disk";
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b}", "type", kind, "source",
                                                    m->source, "guest", m->guest, "read_only",
                                                    (m->options & PROTO_MOUNT_RO) != 0));
    }
    return list;
}

json_t *audit_net(const struct spec_net *n)
{
    static const char *const names[] = {NULL, "allow", "deny"};
    bool unset = !n->profile && n->rules.n == 0 && n->egress == NET_DEFAULT_UNSET;
    if (n->off)
        return json_pack("{s:b}", "off", 1);
    return json_pack("{s:s*, s:o, s:s*, s:s*}", "profile", unset ? "public" : n->profile, "rules",
                     names_of(&n->rules), "egress", names[n->egress], "ingress", names[n->ingress]);
}

static json_t *ports_of(const struct spec_net *n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n->n_ports; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&n->ports[i], text);
        (void)json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *vsocks_of(const struct spec_vsocks *l)
{
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:I}", "source", l->v[i].path, "port",
                                                    (json_int_t)l->v[i].port));
    return list;
}

static json_t *copies_of(const struct spec_patches *l)
{
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].source)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:s}", "source", l->v[i].source, "guest", l->v[i].path));
    return list;
}

static void put_list(json_t *j, const char *key, json_t *list)
{
    if (j && json_array_size(list))
        (void)json_object_set(j, key, list);
    json_decref(list);
}

/* Only their names: placeholders do not belong in the log, either. */
static json_t *bound_of(const struct spec_bound *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->secrets.n; i++)
        (void)json_array_append_new(list,
                                    json_stringn(b->secrets.v[i], strcspn(b->secrets.v[i], "@")));
    return list;
}

json_t *audit_spec(const struct sandbox_spec *spec)
{
    json_t *j = json_pack("{s:s*, s:s*, s:o*}", "image", spec->image, "digest", spec->image_digest,
                          "net", audit_net(&spec->net));
    put_list(j, "labels", audit_labels(spec));
    put_list(j, "secrets", names_of(&spec->secrets));
    put_list(j, "bound_secrets", bound_of(&spec->net.bound));
    put_list(j, "mounts", mounts_of(spec));
    put_list(j, "ports", ports_of(&spec->net));
    put_list(j, "vsocks", vsocks_of(&spec->vsocks));
    put_list(j, "copied", copies_of(&spec->patches));
    const char *workspace = spec->workspace.name ? spec->workspace.name : spec->workspace.path;
    if (j && workspace)
        (void)json_object_set_new(j, "workspace", audit_text(workspace));
    return j;
}

/* --- commands -------------------------------------------------------------------------------- */

/* As many arguments as fit; *cut: the last one was truncated. */
static json_t *argv_of(const struct strlist *argv, bool *cut)
{
    json_t *list = json_array();
    size_t left = AUDIT_ARGV_MAX;
    *cut = false;
    for (size_t i = 0; i < argv->n && !*cut; i++) {
        size_t n = strlen(argv->v[i]) + 3; /* quotes and a comma */
        *cut = n > left;
        (void)json_array_append_new(list, text_of(argv->v[i], left));
        left -= MIN(n, left);
    }
    return list;
}

/* The hash of the arguments, each followed by a NUL. */
static json_t *argv_hash(const struct strlist *argv)
{
    struct hasher h;
    char text[DIGEST_TEXT_SIZE];
    hasher_init(&h);
    for (size_t i = 0; i < argv->n; i++)
        hasher_update(&h, argv->v[i], strlen(argv->v[i]) + 1);
    struct digest d = hasher_finish(&h);
    digest_text(&d, text);
    return json_string(text);
}

void audit_exec(const struct store *s, const char *sandbox, const struct audit_exec *x,
                char id[AUDIT_ID_MAX])
{
    bool cut = false;
    (void)snprintf(id, AUDIT_ID_MAX, "%d-%" PRIx64, (int)getpid(), now_ns());
    settle(s);
    if (level() == AUDIT_OFF)
        return;
    json_t *argv = settings.hash_argv ? argv_hash(x->argv) : argv_of(x->argv, &cut);
    json_t *j =
        json_pack("{s:s, s:o, s:o*, s:o*}", "exec", id, settings.hash_argv ? "argv_hash" : "argv",
                  argv, "user", audit_text(x->user), "workdir", audit_text(x->cwd));
    if (j && x->tty)
        (void)json_object_set_new(j, "tty", json_true());
    if (j && cut)
        (void)json_object_set_new(j, "cut", json_true());
    if (j && x->detached)
        (void)json_object_set_new(j, "detached", json_true());
    put_list(j, "secrets", names_of(x->secrets));
    audit(s, "exec", sandbox, j);
}

/* Its id begins with its start time. */
static uint64_t began_at(const char *id)
{
    const char *dash = strchr(id, '-');
    return dash ? strtoull(dash + 1, NULL, 16) : 0;
}

void audit_exit(const struct store *s, const char *sandbox, const char *id, int code)
{
    audit_done(s, "exit", sandbox, json_pack("{s:s, s:i}", "exec", id, "code", code), began_at(id),
               0, NULL);
}

/* --- what sandboxes leave -------------------------------------------------------------------- */

static bool is_kept(const struct net_record *r, enum audit_level l)
{
    return l == AUDIT_ALL || r->verdict == NET_RECORD_DENY || r->kind == NET_RECORD_MISSED;
}

static void write_collected(const struct store *s, const char *sandbox, const struct net_record *r)
{
    json_t *j = new_record(r->t_ns, "net", sandbox, net_record_json(r));
    if (j)
        (void)json_object_set_new(j, "from", json_string("sandbox"));
    append(s, j);
}

/* Goes back until there are enough, then forward. */
static void collect(const struct store *s, const char *sandbox, struct log_stream *in)
{
    enum audit_level l = level();
    struct net_record r;
    size_t n = 0;
    struct log_place from = {0};
    while (n < AUDIT_COLLECT_MAX && log_stream_prev(in) == 1)
        if (net_record_read(&in->entry, &r) == 0 && is_kept(&r, l)) {
            from = in->entry_at;
            n++;
        }
    if (n == 0)
        return;
    log_stream_seek(in, from);
    while (n > 0 && log_stream_next(in) == 1)
        if (net_record_read(&in->entry, &r) == 0 && is_kept(&r, l)) {
            write_collected(s, sandbox, &r);
            n--;
        }
}

void audit_collect(const struct store *s, const char *sandbox, int dirfd)
{
    settle(s);
    if (level() == AUDIT_OFF)
        return;
    struct log_stream in;
    AUTO_CLOSE int logs = sandbox_logs_open(dirfd);
    if (logs < 0 || log_stream_open(&in, logs, LOG_NET_NAME, 0) < 0)
        return; /* it never had a network */
    in.parse = log_record_parse;
    collect(s, sandbox, &in);
    log_stream_close(&in);
    /* So that a repeated removal does not collect them again. */
    for (int i = 0; i < LOG_FILES; i++) {
        char file[32] = LOG_NET_NAME;
        if (i > 0)
            (void)snprintf(file, sizeof(file), LOG_NET_NAME ".%d", i);
        (void)unlinkat(logs, file, 0);
    }
}
