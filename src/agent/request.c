#include "agent/request.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

struct arena {
    char *p, *end;
};

/* Walks every field once and counts the repeated ones, so that the arena can be sized exactly. */
struct tally {
    size_t args, envs, mounts, scripts, dirs, writable;
};

static int count_fields(const struct proto_frame *f, struct tally *t)
{
    struct proto_reader r;
    struct proto_field x;
    int got;
    *t = (struct tally){0};
    proto_reader_init(&r, f->data, f->len);
    while ((got = proto_next(&r, &x)) == 1) {
        t->args += x.tag == F_ARG;
        t->envs += x.tag == F_ENV;
        t->mounts += x.tag == F_MOUNT;
        t->scripts += x.tag == F_SCRIPT;
        t->dirs += x.tag == F_DIRECTORY;
        t->writable += x.tag == F_WRITE_PATH;
    }
    return got;
}

/* Pointer arrays come first, then the bytes. Each string takes its length plus a NUL, which is
 * less than the field header it had in the frame, so the frame's length is room enough. */
static void *arena_new(struct arena *a, size_t table_bytes, const struct proto_frame *f)
{
    char *mem = calloc(1, table_bytes + f->len + 1);
    if (mem)
        *a = (struct arena){.p = mem + table_bytes, .end = mem + table_bytes + f->len + 1};
    return mem;
}

static char *arena_str(struct arena *a, const struct proto_field *x)
{
    if ((size_t)(a->end - a->p) < x->len + 1 || (x->len && memchr(x->data, 0, x->len)))
        return NULL;
    char *s = a->p;
    if (x->len)
        memcpy(s, x->data, x->len);
    s[x->len] = '\0';
    a->p += x->len + 1;
    return s;
}

static int get_str(struct arena *a, const struct proto_field *x, char **to)
{
    char *s = arena_str(a, x);
    if (!s)
        return -EPROTO;
    *to = s;
    return 0;
}

static int get_u32(const struct proto_field *x, uint32_t *to)
{
    return proto_get_u32(x, to) ? 0 : -EPROTO;
}

static int get_u64(const struct proto_field *x, uint64_t *to)
{
    return proto_get_u64(x, to) ? 0 : -EPROTO;
}

static int get_flag(const struct proto_field *x, bool *to)
{
    uint32_t v;
    if (!proto_get_u32(x, &v))
        return -EPROTO;
    *to = v != 0;
    return 0;
}

static int get_rlimit(struct req_common *c, const struct proto_field *nest)
{
    struct proto_reader r;
    struct proto_field x;
    struct req_rlimit lim = {.resource = UINT32_MAX};
    int got, err = 0;
    proto_reader_init(&r, nest->data, nest->len);
    while ((got = proto_next(&r, &x)) == 1 && !err) {
        if (x.tag == F_RESOURCE)
            err = get_u32(&x, &lim.resource);
        else if (x.tag == F_SOFT)
            err = get_u64(&x, &lim.soft);
        else if (x.tag == F_HARD)
            err = get_u64(&x, &lim.hard);
    }
    if (got < 0 || err || lim.resource == UINT32_MAX || c->nrlimits == REQ_RLIMITS_MAX)
        return -EPROTO;
    c->rlimits[c->nrlimits++] = lim;
    return 0;
}

/* 1: not one of the common fields. */
static int get_common(struct req_common *c, struct arena *a, const struct proto_field *x)
{
    switch (x->tag) {
    case F_ENV:
        return get_str(a, x, &c->env[c->nenv++]);
    case F_CWD:
        return get_str(a, x, &c->cwd);
    case F_USER:
        return get_str(a, x, &c->user);
    case F_RLIMIT:
        return get_rlimit(c, x);
    default:
        return 1;
    }
}

static int get_exec_field(struct exec_req *q, struct arena *a, const struct proto_field *x)
{
    int err = get_common(&q->c, a, x);
    if (err <= 0)
        return err;
    switch (x->tag) {
    case F_ARG:
        return get_str(a, x, &q->argv[q->argc++]);
    case F_TTY:
        return get_flag(x, &q->tty);
    case F_NO_STDIN:
        return get_flag(x, &q->no_stdin);
    case F_ROWS:
        return get_u32(x, &q->rows);
    case F_COLS:
        return get_u32(x, &q->cols);
    case F_TIMEOUT_MS:
        return get_u64(x, &q->timeout_ms);
    default:
        return 0; /* of a later minor version */
    }
}

int files_req_parse(struct exec_req *q, const struct proto_frame *f)
{
    struct tally t;
    struct arena a;
    *q = (struct exec_req){0};
    if (count_fields(f, &t) < 0)
        return -EPROTO;
    size_t slots = REQ_ARGV_SPARE + t.args + 1 + t.envs + 1;
    q->arena = arena_new(&a, slots * sizeof(char *), f);
    if (!q->arena)
        return -ENOMEM;
    q->argv = (char **)q->arena + REQ_ARGV_SPARE;
    q->c.env = q->argv + t.args + 1;

    struct proto_reader r;
    struct proto_field x;
    int err = 0;
    proto_reader_init(&r, f->data, f->len);
    while (!err && proto_next(&r, &x) == 1)
        err = get_exec_field(q, &a, &x);
    if (err)
        exec_req_free(q);
    return err;
}

int exec_req_parse(struct exec_req *q, const struct proto_frame *f)
{
    int r = files_req_parse(q, f);
    if (r == 0 && q->argc == 0) {
        exec_req_free(q);
        return -EPROTO;
    }
    return r;
}

void exec_req_free(struct exec_req *q)
{
    free(q->arena);
    *q = (struct exec_req){0};
}

static int get_mount(struct config *c, struct arena *a, const struct proto_field *nest)
{
    struct req_mount *m = &c->mounts[c->nmounts++];
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    proto_reader_init(&r, nest->data, nest->len);
    while ((got = proto_next(&r, &x)) == 1 && !err) {
        if (x.tag == F_PATH)
            err = get_str(a, &x, &m->path);
        else if (x.tag == F_SIZE)
            err = get_u64(&x, &m->size);
        else if (x.tag == F_OPTIONS)
            err = get_u32(&x, &m->options);
        else if (x.tag == F_TAG)
            err = get_str(a, &x, &m->tag);
        else if (x.tag == F_FILE)
            err = get_str(a, &x, &m->file);
        else if (x.tag == F_DEVICE)
            err = get_str(a, &x, &m->device);
        else if (x.tag == F_FSTYPE)
            err = get_str(a, &x, &m->fstype);
    }
    if (m->device && !m->fstype)
        return -EPROTO;
    if (m->file && (!*m->file || strchr(m->file, '/')))
        return -EPROTO;
    return got < 0 || err || !m->path || m->path[0] != '/' ? -EPROTO : 0;
}

static int get_script(struct config *c, struct arena *a, const struct proto_field *nest)
{
    struct req_script *s = &c->scripts[c->nscripts++];
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    proto_reader_init(&r, nest->data, nest->len);
    while ((got = proto_next(&r, &x)) == 1 && !err) {
        if (x.tag == F_NAME) {
            err = get_str(a, &x, &s->name);
        } else if (x.tag == F_BODY) {
            if ((size_t)(a->end - a->p) < x.len)
                return -EPROTO;
            s->body = x.len ? memcpy(a->p, x.data, x.len) : a->p;
            s->len = x.len;
            a->p += x.len;
        }
    }
    /* The name is one path component below /.msb/scripts. */
    if (got < 0 || err || !s->name || !*s->name || strchr(s->name, '/') ||
        strcmp(s->name, ".") == 0 || strcmp(s->name, "..") == 0)
        return -EPROTO;
    return 0;
}

static int get_net_address(struct req_net *n, struct arena *a, const struct proto_field *nest)
{
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    if (n->n_addresses == REQ_ADDRESSES_MAX)
        return -EPROTO;
    struct req_net_address *to = &n->address[n->n_addresses++];
    proto_reader_init(&r, nest->data, nest->len);
    while ((got = proto_next(&r, &x)) == 1 && !err) {
        if (x.tag == F_NET_IP)
            err = get_str(a, &x, &to->ip);
        else if (x.tag == F_NET_BITS)
            err = get_u32(&x, &to->bits);
        else if (x.tag == F_NET_GATEWAY)
            err = get_str(a, &x, &to->gateway);
    }
    return got < 0 || err || !to->ip || !to->gateway ? -EPROTO : 0;
}

static int get_net(struct req_net *n, struct arena *a, const struct proto_field *nest)
{
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    proto_reader_init(&r, nest->data, nest->len);
    while ((got = proto_next(&r, &x)) == 1 && !err) {
        if (x.tag == F_NAME)
            err = get_str(a, &x, &n->name);
        else if (x.tag == F_NET_MTU)
            err = get_u32(&x, &n->mtu);
        else if (x.tag == F_NET_ADDRESS)
            err = get_net_address(n, a, &x);
        else if (x.tag == F_NET_HOST_NAME)
            err = get_str(a, &x, &n->host_name);
        else if (x.tag == F_NET_RESOLVER)
            err = n->n_resolvers < REQ_RESOLVERS_MAX
                      ? get_str(a, &x, &n->resolver[n->n_resolvers++])
                      : -EPROTO;
    }
    return got < 0 || err ? -EPROTO : 0;
}

static int get_config_field(struct config *c, struct arena *a, const struct proto_field *x)
{
    int err = get_common(&c->c, a, x);
    if (err <= 0)
        return err;
    switch (x->tag) {
    case F_HOSTNAME:
        return get_str(a, x, &c->hostname);
    case F_LOWER_DEV:
        return get_str(a, x, &c->lower);
    case F_UPPER_DEV:
        return get_str(a, x, &c->upper);
    case F_UPPER_SIZE:
        return get_u64(x, &c->upper_size);
    case F_UPPER_GROW:
        return get_flag(x, &c->upper_grow);
    case F_MOUNT:
        return get_mount(c, a, x);
    case F_SCRIPT:
        return get_script(c, a, x);
    case F_DIRECTORY:
        return get_str(a, x, &c->dirs[c->ndirs++]);
    case F_WRITE_PATH:
        return get_str(a, x, &c->writable[c->nwritable++]);
    case F_HOST_CAS:
        return get_str(a, x, &c->host_cas);
    case F_STOP_SIGNAL:
        return get_u32(x, &c->stop_signal);
    case F_NET:
        return get_net(&c->net, a, x);
    default:
        return 0;
    }
}

int config_parse(struct config *c, const struct proto_frame *f)
{
    struct tally t;
    struct arena a;
    *c = (struct config){0};
    if (count_fields(f, &t) < 0)
        return -EPROTO;
    size_t mounts = t.mounts * sizeof(struct req_mount);
    size_t scripts = t.scripts * sizeof(struct req_script);
    size_t texts = (t.envs + 1 + t.dirs + t.writable) * sizeof(char *);
    c->arena = arena_new(&a, mounts + scripts + texts, f);
    if (!c->arena)
        return -ENOMEM;
    c->mounts = c->arena;
    c->scripts = (struct req_script *)(c->mounts + t.mounts);
    c->c.env = (char **)(c->scripts + t.scripts);
    c->dirs = c->c.env + t.envs + 1;
    c->writable = c->dirs + t.dirs;

    struct proto_reader r;
    struct proto_field x;
    int err = 0;
    proto_reader_init(&r, f->data, f->len);
    while (!err && proto_next(&r, &x) == 1)
        err = get_config_field(c, &a, &x);
    if (err)
        config_free(c);
    return err;
}

void config_free(struct config *c)
{
    free(c->arena);
    *c = (struct config){0};
}
