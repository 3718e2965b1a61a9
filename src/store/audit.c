#include "store/audit.h"

#include "logs/files.h"
#include "logs/net_record.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_TRIES = 100 };

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

int audit_level(void)
{
    const char *v = getenv("MSB_AUDIT");
    if (!v || !*v || strcmp(v, "denied") == 0)
        return AUDIT_DENIED;
    if (strcmp(v, "all") == 0)
        return AUDIT_ALL;
    return strcmp(v, "off") == 0 ? AUDIT_OFF : -EINVAL;
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

/* --- the file -------------------------------------------------------------------------------- */

/* Does the name still lead to this file? */
static bool is_current(const struct store *s, const struct stat *st)
{
    struct stat now;
    return fstatat(s->home_fd, AUDIT_NAME, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           now.st_ino == st->st_ino && now.st_dev == st->st_dev;
}

/* With the exclusive lock on the current file. */
static int rotate(const struct store *s)
{
    for (int i = LOG_FILES - 1; i > 0; i--) { /* .1 -> .2, then NAME -> .1 */
        char from[32] = AUDIT_NAME, to[32];
        if (i > 1)
            (void)snprintf(from, sizeof(from), AUDIT_NAME ".%d", i - 1);
        (void)snprintf(to, sizeof(to), AUDIT_NAME ".%d", i);
        if (renameat(s->home_fd, from, s->home_fd, to) < 0 && errno != ENOENT)
            return -errno;
    }
    return 0;
}

/* The current file, locked, with room for n bytes. */
static int open_for(const struct store *s, size_t n)
{
    for (int i = 0; i < OPEN_TRIES; i++) {
        struct stat st;
        AUTO_CLOSE int fd =
            openat(s->home_fd, AUDIT_NAME,
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
            return -errno;
        int lock = LOCK_SH;
        for (;;) {
            while (flock(fd, lock) < 0)
                if (errno != EINTR)
                    return -errno;
            if (fstat(fd, &st) < 0)
                return -errno;
            if (!S_ISREG(st.st_mode))
                return -EINVAL;
            if (!is_current(s, &st))
                break; /* another process has rotated it meanwhile */
            if (st.st_size == 0 || (uint64_t)st.st_size + n <= LOG_FILE_MAX)
                return steal_fd(&fd);
            if (lock == LOCK_EX) {
                int r = rotate(s);
                if (r < 0)
                    return r;
                break;
            }
            lock = LOCK_EX;
        }
    }
    return -EBUSY;
}

static int append(const struct store *s, json_t *record)
{
    AUTO_FREE char *text = json_dumps(record, JSON_COMPACT);
    if (!text)
        return -ENOMEM;
    size_t n = strlen(text);
    text[n++] = '\n'; /* replaces the NUL: these are bytes from here on */
    if (n > LOG_LINE_MAX)
        return -E2BIG;
    AUTO_CLOSE int fd = open_for(s, n);
    if (fd < 0)
        return fd;
    ssize_t k;
    do
        k = write(fd, text, n);
    while (k < 0 && errno == EINTR);
    if (k < 0)
        return -errno;
    if ((size_t)k == n)
        return 0;
    (void)!write(fd, "\n", 1); /* the disk is full: the next record begins a new line */
    return -ENOSPC;
}

/* --- records --------------------------------------------------------------------------------- */

/* The record's own members come first. */
static json_t *new_record(uint64_t t_ns, const char *event, const char *sandbox, json_t *more)
{
    char t[TIME_TEXT_MAX];
    time_rfc3339(t_ns, t);
    json_t *j = json_pack("{s:s, s:s, s:s*, s:i, s:i}", "t", t, "event", event, "sandbox", sandbox,
                          "uid", (int)getuid(), "pid", (int)getpid());
    if (j && more && json_object_update_missing(j, more) < 0) {
        json_decref(j);
        j = NULL;
    }
    json_decref(more);
    return j;
}

void audit(const struct store *s, const char *event, const char *sandbox, json_t *more)
{
    if (level() == AUDIT_OFF) {
        json_decref(more);
        return;
    }
    json_t *j = new_record(realtime_ns(), event, sandbox, more);
    int r = j ? append(s, j) : -ENOMEM;
    json_decref(j);
    if (r < 0)
        audit_failed(event, -r);
}

void audit_done(const struct store *s, const char *event, const char *sandbox, json_t *more, int r,
                const struct err *e)
{
    if (r < 0) {
        if (!more)
            more = json_object();
        const char *text = e && e->msg[0] ? e->msg : strerror(-r);
        (void)json_object_set_new(more, "error", json_string(text));
    }
    audit(s, event, sandbox, more);
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
    json_t *rules = json_array();
    for (size_t i = 0; i < n->rules.n; i++)
        (void)json_array_append_new(rules, json_string(n->rules.v[i]));
    return json_pack("{s:s*, s:o, s:s*, s:s*}", "profile", unset ? "public" : n->profile, "rules",
                     rules, "egress", names[n->egress], "ingress", names[n->ingress]);
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

json_t *audit_spec(const struct sandbox_spec *spec)
{
    json_t *j = json_pack("{s:s*, s:s*, s:o*}", "image", spec->image, "digest", spec->image_digest,
                          "net", audit_net(&spec->net));
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

/* As many arguments as fit; *cut: the last one was cut. */
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

void audit_exec(const struct store *s, const char *sandbox, const struct audit_exec *x,
                char id[AUDIT_ID_MAX])
{
    bool cut;
    (void)snprintf(id, AUDIT_ID_MAX, "%d-%" PRIx64, (int)getpid(), now_ns());
    if (level() == AUDIT_OFF)
        return;
    json_t *j = json_pack("{s:s, s:o, s:o*, s:o*}", "exec", id, "argv", argv_of(x->argv, &cut),
                          "user", audit_text(x->user), "workdir", audit_text(x->cwd));
    if (j && x->tty)
        (void)json_object_set_new(j, "tty", json_true());
    if (j && cut)
        (void)json_object_set_new(j, "cut", json_true());
    if (j && x->detached)
        (void)json_object_set_new(j, "detached", json_true());
    audit(s, "exec", sandbox, j);
}

void audit_exit(const struct store *s, const char *sandbox, const char *id, int code)
{
    if (level() != AUDIT_OFF)
        audit(s, "exit", sandbox, json_pack("{s:s, s:i}", "exec", id, "code", code));
}

/* --- what sandboxes leave -------------------------------------------------------------------- */

static bool is_kept(const struct net_record *r, enum audit_level l)
{
    return l == AUDIT_ALL || r->verdict == NET_RECORD_DENY || r->kind == NET_RECORD_MISSED;
}

static void write_collected(const struct store *s, const char *sandbox, const struct net_record *r)
{
    json_t *more = net_record_json(r);
    json_t *j = new_record(r->t_ns, "net", sandbox, more);
    if (j)
        (void)json_object_set_new(j, "from", json_string("sandbox"));
    int k = j ? append(s, j) : -ENOMEM;
    json_decref(j);
    if (k < 0)
        audit_failed("net", -k);
}

/* Goes back until there are enough, then forward from there. */
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
    if (level() == AUDIT_OFF)
        return;
    struct log_stream in;
    AUTO_CLOSE int logs = sandbox_logs_open(dirfd);
    if (logs < 0 || log_stream_open(&in, logs, LOG_NET_NAME, 0) < 0)
        return; /* it never had a network */
    in.parse = log_record_parse;
    collect(s, sandbox, &in);
    log_stream_close(&in);
    /* So that a removal that is repeated does not collect them again. */
    for (int i = 0; i < LOG_FILES; i++) {
        char file[32] = LOG_NET_NAME;
        if (i > 0)
            (void)snprintf(file, sizeof(file), LOG_NET_NAME ".%d", i);
        (void)unlinkat(logs, file, 0);
    }
}
