#include "agent/request.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct arena {
    char *p, *end;
};

/* How often a field occurs, so that the arena can be sized exactly. */
static int count_fields(const struct proto_frame *f, uint16_t tag, size_t *ret)
{
    struct proto_reader r;
    struct proto_field x;
    int got;
    *ret = 0;
    proto_reader_init(&r, f->data, f->len);
    while ((got = proto_next(&r, &x)) == 1)
        *ret += x.tag == tag;
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

/* --- fields --- */

/* Stores bytes, possibly none. NULL: they do not fit. */
static uint8_t *store_bytes(struct arena *a, const struct proto_field *x)
{
    uint8_t *at = (uint8_t *)a->p;
    if ((size_t)(a->end - a->p) < x->len)
        return NULL;
    if (x->len)
        memcpy(at, x->data, x->len);
    a->p += x->len;
    return at;
}

enum field_kind { TEXT, U32, U64, FLAG };

/* Where the value of a field is stored. */
struct field_spec {
    uint16_t tag;
    uint16_t at; /* offset in the struct */
    enum field_kind kind;
};

/* Where a repeated text is stored: a NULL-terminated list (char **), and its length. */
struct list_spec {
    uint16_t tag, at, n_at;
};

/* A message's fields: those that are simply stored, those that are repeated, if any, and a function
 * for the others, which may be NULL. Unknown fields are from a later minor version, and ignored. */
struct shape {
    const struct field_spec *fields;
    size_t n;
    int (*other)(void *to, struct arena *a, const struct proto_field *x);
    const struct list_spec *lists;
    size_t n_lists;
};

#define SHAPE(list, fn)                                       \
    {                                                         \
        .fields = (list), .n = ARRAY_LEN(list), .other = (fn) \
    }

static int store(void *at, enum field_kind kind, struct arena *a, const struct proto_field *x)
{
    uint32_t flag;
    bool ok;
    switch (kind) {
    case TEXT:
        *(char **)at = arena_str(a, x);
        ok = *(char **)at != NULL;
        break;
    case U32:
        ok = proto_get_u32(x, at);
        break;
    case U64:
        ok = proto_get_u64(x, at);
        break;
    default:
        ok = proto_get_u32(x, &flag);
        *(bool *)at = ok && flag;
        break;
    }
    return ok ? 0 : -EPROTO;
}

static void *member(void *of, size_t at)
{
    return (char *)of + at;
}

static int get_field(void *to, struct arena *a, const struct shape *s, const struct proto_field *x)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->fields[i].tag == x->tag)
            return store(member(to, s->fields[i].at), s->fields[i].kind, a, x);
    for (size_t i = 0; i < s->n_lists; i++)
        if (s->lists[i].tag == x->tag) {
            char **list = *(char ***)member(to, s->lists[i].at);
            size_t *n = member(to, s->lists[i].n_at);
            return store(&list[(*n)++], TEXT, a, x);
        }
    return s->other ? s->other(to, a, x) : 0;
}

static int get_fields(void *to, struct arena *a, const struct shape *s, const uint8_t *p, size_t n)
{
    struct proto_reader r;
    struct proto_field x;
    int got;
    proto_reader_init(&r, p, n);
    while ((got = proto_next(&r, &x)) == 1) {
        int k = get_field(to, a, s, &x);
        if (k < 0)
            return k;
    }
    return got;
}

/* Counts the pointers that a frame's lists take. */
static int count_lists(const struct shape *s, const struct proto_frame *f, size_t *ret)
{
    size_t n;
    *ret = s->n_lists; /* the NULL at the end of each */
    for (size_t i = 0; i < s->n_lists; i++) {
        if (count_fields(f, s->lists[i].tag, &n) < 0)
            return -EPROTO;
        *ret += n;
    }
    return 0;
}

/* Gives each list its place in a table of pointers. */
static void place_lists(void *to, char **table, const struct shape *s, const struct proto_frame *f)
{
    for (size_t i = 0; i < s->n_lists; i++) {
        size_t n = 0;
        *(char ***)member(to, s->lists[i].at) = table;
        (void)count_fields(f, s->lists[i].tag, &n);
        table += n + 1;
    }
}

static int get_rlimit(struct req_common *c, struct arena *a, const struct proto_field *nest)
{
    static const struct field_spec fields[] = {
        {F_RESOURCE, offsetof(struct req_rlimit, resource), U32},
        {F_SOFT, offsetof(struct req_rlimit, soft), U64},
        {F_HARD, offsetof(struct req_rlimit, hard), U64},
    };
    static const struct shape shape = SHAPE(fields, NULL);
    struct req_rlimit lim = {.resource = UINT32_MAX};
    if (get_fields(&lim, a, &shape, nest->data, nest->len) < 0 || lim.resource == UINT32_MAX ||
        c->nrlimits == REQ_RLIMITS_MAX)
        return -EPROTO;
    c->rlimits[c->nrlimits++] = lim;
    return 0;
}

static int get_common(struct req_common *c, struct arena *a, const struct proto_field *x)
{
    switch (x->tag) {
    case F_CWD:
        return store(&c->cwd, TEXT, a, x);
    case F_USER:
        return store(&c->user, TEXT, a, x);
    case F_RLIMIT:
        return get_rlimit(c, a, x);
    default:
        return 0;
    }
}

/* --- EXEC and FILES --- */

static int get_exec_field(void *to, struct arena *a, const struct proto_field *x)
{
    struct exec_req *q = to;
    if (x->tag == F_FILTER) {
        q->filter = store_bytes(a, x);
        q->filter_size = x->len;
        return q->filter && x->len ? 0 : -EPROTO;
    }
    return get_common(&q->c, a, x);
}

int files_req_parse(struct exec_req *q, const struct proto_frame *f)
{
    static const struct field_spec fields[] = {
        {F_TTY, offsetof(struct exec_req, tty), FLAG},
        {F_TERM, offsetof(struct exec_req, term), TEXT},
        {F_NO_STDIN, offsetof(struct exec_req, no_stdin), FLAG},
        {F_FILE_OP, offsetof(struct exec_req, only), U32},
        {F_ROWS, offsetof(struct exec_req, rows), U32},
        {F_COLS, offsetof(struct exec_req, cols), U32},
        {F_UMASK, offsetof(struct exec_req, umask), U32},
        {F_CTL_PORT, offsetof(struct exec_req, port), U32},
        {F_TIMEOUT_MS, offsetof(struct exec_req, timeout_ms), U64},
        {F_CAPABILITIES, offsetof(struct exec_req, caps), U64},
        {F_AMBIENT, offsetof(struct exec_req, ambient), U64},
        {F_NO_NEW_PRIVS, offsetof(struct exec_req, no_new_privs), FLAG},
    };
    static const struct list_spec lists[] = {
        {F_ARG, offsetof(struct exec_req, argv), offsetof(struct exec_req, argc)},
        {F_ENV, offsetof(struct exec_req, c.env), offsetof(struct exec_req, c.nenv)},
        {F_GROUP, offsetof(struct exec_req, groups), offsetof(struct exec_req, ngroups)},
    };
    static const struct shape shape = {fields, ARRAY_LEN(fields), get_exec_field, lists,
                                       ARRAY_LEN(lists)};
    struct arena a;
    size_t slots;
    *q = (struct exec_req){.caps = UINT64_MAX};
    if (count_lists(&shape, f, &slots) < 0)
        return -EPROTO;
    q->arena = arena_new(&a, (REQ_ARGV_SPARE + slots) * sizeof(char *), f);
    if (!q->arena)
        return -ENOMEM;
    place_lists(q, (char **)q->arena + REQ_ARGV_SPARE, &shape, f);
    int r = get_fields(q, &a, &shape, f->data, f->len);
    if (r < 0)
        exec_req_free(q);
    return r;
}

int exec_req_parse(struct exec_req *q, const struct proto_frame *f)
{
    int r = files_req_parse(q, f);
    if (r == 0 && q->argc == 0 && !q->port) {
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

/* --- CONFIG --- */

static int get_mount(struct config *c, struct arena *a, const struct proto_field *nest)
{
    static const struct field_spec fields[] = {
        {F_PATH, offsetof(struct req_mount, path), TEXT},
        {F_SIZE, offsetof(struct req_mount, size), U64},
        {F_OPTIONS, offsetof(struct req_mount, options), U32},
        {F_MOUNT_MODE, offsetof(struct req_mount, mode), U32},
        {F_MOUNT_UID, offsetof(struct req_mount, uid), U32},
        {F_MOUNT_GID, offsetof(struct req_mount, gid), U32},
        {F_TAG, offsetof(struct req_mount, tag), TEXT},
        {F_FILE, offsetof(struct req_mount, file), TEXT},
        {F_DEVICE, offsetof(struct req_mount, device), TEXT},
        {F_FSTYPE, offsetof(struct req_mount, fstype), TEXT},
    };
    static const struct shape shape = SHAPE(fields, NULL);
    struct req_mount *m = &c->mounts[c->nmounts++];
    if (get_fields(m, a, &shape, nest->data, nest->len) < 0 || !m->path || m->path[0] != '/')
        return -EPROTO;
    if (m->device && !m->fstype)
        return -EPROTO;
    return m->file && (!*m->file || strchr(m->file, '/')) ? -EPROTO : 0;
}

static int get_script_body(void *to, struct arena *a, const struct proto_field *x)
{
    struct req_script *s = to;
    if (x->tag != F_BODY)
        return 0;
    s->body = store_bytes(a, x);
    s->len = x->len;
    return s->body ? 0 : -EPROTO;
}

static int get_script(struct config *c, struct arena *a, const struct proto_field *nest)
{
    static const struct field_spec fields[] = {{F_NAME, offsetof(struct req_script, name), TEXT}};
    static const struct shape shape = SHAPE(fields, get_script_body);
    struct req_script *s = &c->scripts[c->nscripts++];
    /* The name is one path component below /.msb/scripts. */
    if (get_fields(s, a, &shape, nest->data, nest->len) < 0 || !s->name || !*s->name ||
        strchr(s->name, '/') || strcmp(s->name, ".") == 0 || strcmp(s->name, "..") == 0)
        return -EPROTO;
    return 0;
}

static int get_net_address(struct req_net *n, struct arena *a, const struct proto_field *nest)
{
    static const struct field_spec fields[] = {
        {F_NET_IP, offsetof(struct req_net_address, ip), TEXT},
        {F_NET_BITS, offsetof(struct req_net_address, bits), U32},
        {F_NET_GATEWAY, offsetof(struct req_net_address, gateway), TEXT},
    };
    static const struct shape shape = SHAPE(fields, NULL);
    if (n->n_addresses == REQ_ADDRESSES_MAX)
        return -EPROTO;
    struct req_net_address *to = &n->address[n->n_addresses++];
    int r = get_fields(to, a, &shape, nest->data, nest->len);
    return r < 0 || !to->ip || !to->gateway ? -EPROTO : 0;
}

static int get_net_field(void *to, struct arena *a, const struct proto_field *x)
{
    struct req_net *n = to;
    if (x->tag == F_NET_ADDRESS)
        return get_net_address(n, a, x);
    if (x->tag == F_NET_MESSAGES) {
        n->messages = store_bytes(a, x);
        n->messages_len = x->len;
        return n->messages ? 0 : -EPROTO;
    }
    if (x->tag != F_NET_RESOLVER)
        return 0;
    return n->n_resolvers < REQ_RESOLVERS_MAX ? store(&n->resolver[n->n_resolvers++], TEXT, a, x)
                                              : -EPROTO;
}

static int get_net(struct req_net *n, struct arena *a, const struct proto_field *nest)
{
    static const struct field_spec fields[] = {
        {F_NAME, offsetof(struct req_net, name), TEXT},
        {F_NET_MTU, offsetof(struct req_net, mtu), U32},
        {F_NET_HOST_NAME, offsetof(struct req_net, host_name), TEXT},
    };
    static const struct shape shape = SHAPE(fields, get_net_field);
    return get_fields(n, a, &shape, nest->data, nest->len);
}

static int get_config_field(void *to, struct arena *a, const struct proto_field *x)
{
    struct config *c = to;
    switch (x->tag) {
    case F_MOUNT:
        return get_mount(c, a, x);
    case F_SCRIPT:
        return get_script(c, a, x);
    case F_NET:
        return get_net(&c->net, a, x);
    default:
        return get_common(&c->c, a, x);
    }
}

static const struct field_spec config_fields[] = {
    {F_HOSTNAME, offsetof(struct config, hostname), TEXT},
    {F_LOWER_DEV, offsetof(struct config, lower), TEXT},
    {F_UPPER_DEV, offsetof(struct config, upper), TEXT},
    {F_UPPER_SIZE, offsetof(struct config, upper_size), U64},
    {F_UPPER_GROW, offsetof(struct config, upper_grow), FLAG},
    {F_UPPER_VOLATILE, offsetof(struct config, upper_volatile), FLAG},
    {F_HOST_CAS, offsetof(struct config, host_cas), TEXT},
    {F_STOP_SIGNAL, offsetof(struct config, stop_signal), U32},
    {F_CAPABILITIES, offsetof(struct config, caps), U64},
    {F_NO_NEW_PRIVS, offsetof(struct config, no_new_privs), FLAG},
    {F_READ_ONLY, offsetof(struct config, read_only), FLAG},
    {F_PIDS_MAX, offsetof(struct config, pids_max), U32},
    {F_NAME, offsetof(struct config, tree), TEXT},
    {F_OPTIONS, offsetof(struct config, options), U32},
    {F_PIDS_OF, offsetof(struct config, pids_of), U32},
    {F_THP, offsetof(struct config, thp), TEXT},
    {F_INIT, offsetof(struct config, init), TEXT},
};
#define LIST(tag, name)                                                      \
    {                                                                        \
        tag, offsetof(struct config, name), offsetof(struct config, n##name) \
    }
static const struct list_spec config_lists[] = {
    {F_ENV, offsetof(struct config, c.env), offsetof(struct config, c.nenv)},
    LIST(F_DIRECTORY, dirs),
    LIST(F_WRITE_PATH, writable),
    LIST(F_GROUP, groups),
    LIST(F_SYSCTL, sysctls),
    LIST(F_MASK, masked),
    LIST(F_FIXED, fixed),
    LIST(F_LIMIT, limits),
    LIST(F_INIT_ARG, init_args),
    LIST(F_INIT_ENV, init_env),
};
static const struct shape config_shape = {config_fields, ARRAY_LEN(config_fields), get_config_field,
                                          config_lists, ARRAY_LEN(config_lists)};

int config_parse(struct config *c, const struct proto_frame *f)
{
    struct arena a;
    size_t mounts, scripts, texts;
    *c = (struct config){.caps = UINT64_MAX, .pids_of = OWN_PIDS};
    if (count_fields(f, F_MOUNT, &mounts) < 0 || count_fields(f, F_SCRIPT, &scripts) < 0 ||
        count_lists(&config_shape, f, &texts) < 0)
        return -EPROTO;
    c->arena = arena_new(
        &a, mounts * sizeof(*c->mounts) + scripts * sizeof(*c->scripts) + texts * sizeof(char *),
        f);
    if (!c->arena)
        return -ENOMEM;
    c->mounts = c->arena;
    c->scripts = (struct req_script *)(c->mounts + mounts);
    place_lists(c, (char **)(c->scripts + scripts), &config_shape, f);
    int r = get_fields(c, &a, &config_shape, f->data, f->len);
    if (r < 0)
        config_free(c);
    return r;
}

/* K=V or K: whether both are about the same variable. */
static bool same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return n == strcspn(b, "=") && memcmp(a, b, n) == 0;
}

static bool is_changed(const struct exec_req *by, const char *var)
{
    for (size_t i = 0; i < by->c.nenv; i++)
        if (same_name(by->c.env[i], var))
            return true;
    return false;
}

int config_change_env(struct config *c, const struct proto_frame *f)
{
    struct exec_req by;
    size_t n = 0, bytes = 0;
    int r = files_req_parse(&by, f);
    if (r < 0)
        return r;
    for (size_t i = 0; i < c->c.nenv; i++)
        bytes += sizeof(char *) + strlen(c->c.env[i]) + 1;
    for (size_t i = 0; i < by.c.nenv; i++)
        bytes += sizeof(char *) + strlen(by.c.env[i]) + 1;
    char **env = malloc(bytes + 1);
    char *text = env ? (char *)(env + c->c.nenv + by.c.nenv) : NULL;
    for (size_t i = 0; env && i < c->c.nenv + by.c.nenv; i++) {
        bool old = i < c->c.nenv;
        const char *var = old ? c->c.env[i] : by.c.env[i - c->c.nenv];
        if (old ? is_changed(&by, var) : !strchr(var, '='))
            continue;
        env[n++] = text;
        text = stpcpy(text, var) + 1;
    }
    exec_req_free(&by);
    if (!env)
        return -ENOMEM;
    free(c->env_arena);
    c->env_arena = env;
    c->c.env = env;
    c->c.nenv = n;
    return 0;
}

void config_free(struct config *c)
{
    free(c->arena);
    free(c->env_arena);
    *c = (struct config){0};
}

bool config_is_restricted(const struct config *c)
{
    return c->caps != UINT64_MAX || c->no_new_privs || c->read_only || c->pids_max || c->nwritable;
}

bool config_mounts(const struct config *c, const char *path)
{
    for (size_t i = 0; i < c->nmounts; i++)
        if (strcmp(c->mounts[i].path, path) == 0)
            return true;
    return false;
}
