#include "monitor/net_control.h"

#include "store/ports.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:monitor getsockopt getsockname fcntl close openat renameat unlinkat write fsync */

enum { SPEC_TEXT_MAX = 1024 * 1024 };

static const char bad_request[] = "invalid request";
static const char network_failed[] = "the sandbox's network has failed";

/* --- replies ---------------------------------------------------------------------------------- */

static bool reply_fail(struct buf *out, enum proto_fail kind, int code, const char *text)
{
    (void)proto_put_fail(out, kind, code, text);
    return true;
}

void net_control_refuse(struct buf *out, int code, const char *text)
{
    (void)proto_put_fail(out, PROTO_FAIL_OTHER, code, text);
}

static bool reply_malformed(struct buf *out)
{
    return reply_fail(out, PROTO_FAIL_OTHER, EINVAL, bad_request);
}

static bool reply_ok(struct buf *out)
{
    (void)proto_put(out, PROTO_OK, NULL, 0);
    return true;
}

/* --- fields of requests ----------------------------------------------------------------------- */

/* A text field; false when it is absent, too long, or contains a NUL. */
static bool find_str(const struct proto_frame *f, uint16_t tag, char *to, size_t size)
{
    struct proto_field x;
    if (!proto_find(f, tag, &x) || x.len >= size || memchr(x.data, '\0', x.len))
        return false;
    memcpy(to, x.data, x.len);
    to[x.len] = '\0';
    return true;
}

static bool read_address(const struct proto_frame *f, struct net_addr *ret)
{
    char text[ADDR_TEXT_MAX];
    return find_str(f, F_CTL_ADDRESS, text, sizeof(text)) && addr_parse(text, ret) == 0;
}

static bool read_port(const struct proto_frame *f, uint16_t *port, uint8_t *proto)
{
    uint64_t n = proto_find_num(f, F_CTL_PORT, 0), p = proto_find_num(f, F_CTL_PROTO, 0);
    if (n == 0 || n > UINT16_MAX || (p != PROTO_TCP && p != PROTO_UDP))
        return false;
    *port = (uint16_t)n;
    *proto = (uint8_t)p;
    return true;
}

/* --- explain ---------------------------------------------------------------------------------- */

struct question {
    struct explain_target t;
    struct explain_answer a;
};

static int on_net_explain(struct gate *g, void *arg)
{
    struct question *q = arg;
    gate_explain(g, &q->t, &q->a);
    return 0;
}

static void put_peer(struct proto_writer *w, const struct explain_peer *p)
{
    char text[ADDR_TEXT_MAX];
    addr_format(&p->addr, text);
    size_t mark = proto_nest(w, F_CTL_PEER);
    proto_str(w, F_CTL_ADDRESS, text);
    proto_u32(w, F_CTL_ALLOW, p->allow);
    proto_str(w, F_CTL_WHY, p->why);
    proto_nest_end(w, mark);
}

static bool explain(struct net_control *c, const struct proto_frame *f, struct buf *out)
{
    struct question q = {0};
    char name[POLICY_NAME_MAX];
    bool named = find_str(f, F_CTL_NAME, name, sizeof(name));
    if (!read_port(f, &q.t.port, &q.t.proto) ||
        (named ? !policy_name_normal(name, q.t.name) : !read_address(f, &q.t.addr)))
        return reply_malformed(out);
    int r = net_thread_call(c->net, on_net_explain, &q);
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_STATE, -r, network_failed);
    struct proto_writer w;
    proto_begin(&w, out, PROTO_OK);
    proto_u32(&w, F_CTL_ALLOW, q.a.allow);
    proto_str(&w, F_CTL_WHY, q.a.why);
    if (named) {
        proto_u32(&w, F_CTL_MAY_ASK, q.a.may_ask);
        proto_str(&w, F_CTL_ASK_WHY, q.a.ask_why);
    }
    for (size_t i = 0; i < q.a.n_peers; i++)
        put_peer(&w, &q.a.peer[i]);
    (void)proto_end(&w);
    return true;
}

/* --- changing the policy ---------------------------------------------------------------------- */

struct change {
    struct policy policy;
    bool drop;
    unsigned cut;
};

static int on_net_set(struct gate *g, void *arg)
{
    struct change *c = arg;
    c->cut = gate_set_policy(g, &c->policy, c->drop);
    return 0;
}

json_t *net_control_json(const struct proto_frame *f)
{
    struct proto_field x;
    bool found = proto_find(f, F_CTL_SPEC, &x) && x.len <= SPEC_TEXT_MAX;
    return found ? json_loadb((const char *)x.data, x.len, 0, NULL) : NULL;
}

/* The network in the request's JSON; to be freed in any case. */
static int read_net(const struct proto_frame *f, struct spec_net *ret, struct err *e)
{
    AUTO_JSON json_t *j = net_control_json(f);
    spec_net_init(ret);
    return j ? spec_net_from_json(ret, j, e) : err_set(e, EINVAL, "%s", bad_request);
}

static int read_policy(const struct proto_frame *f, struct policy *ret, struct err *e)
{
    CLEANUP(spec_net_free) struct spec_net n;
    int r = read_net(f, &n, e);
    return r < 0 ? r : spec_net_policy(&n, ret, e);
}

static bool set_policy(struct net_control *c, const struct proto_frame *f, struct buf *out)
{
    struct change change = {.drop = proto_find_num(f, F_CTL_DROP, 0) != 0};
    struct err e = {0};
    int r = read_policy(f, &change.policy, &e);
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_OTHER, -r, e.msg);
    r = c->ceiling ? ceiling_hold_policy(c->ceiling, &change.policy, &e) : 0;
    if (r < 0) {
        policy_free(&change.policy);
        return reply_fail(out, PROTO_FAIL_OTHER, -r, e.msg);
    }
    r = net_thread_call(c->net, on_net_set, &change);
    policy_free(&change.policy);
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_STATE, -r, network_failed);
    struct proto_writer w;
    proto_begin(&w, out, PROTO_OK);
    proto_u32(&w, F_CTL_CUT, change.cut);
    (void)proto_end(&w);
    return true;
}

/* --- the policy in force ---------------------------------------------------------------------- */

struct shown {
    struct proto_writer w;
    struct net_stats net;
    struct dns_stats dns;
};

static int on_net_show(struct gate *g, void *arg)
{
    struct shown *s = arg;
    const struct policy *p = gate_policy(g);
    for (size_t i = 0; i < p->n; i++)
        proto_str(&s->w, F_CTL_RULE, p->rule[i].text);
    proto_u32(&s->w, F_CTL_DEFAULTS, (p->default_egress ? 1U : 0) | (p->default_ingress ? 2U : 0));
    s->net = *net_stats(gate_net(g));
    s->dns = *gate_dns_stats(g);
    return 0;
}

/* malloc'd; NULL: out of memory. */
static char *counters_text(const struct net_stats *n, const struct dns_stats *d)
{
    AUTO_JSON json_t *j = json_pack(
        "{s:{s:i, s:I, s:I, s:I, s:I}, s:{s:i, s:I, s:I}, s:{s:I, s:I, s:I, s:I}}", "tcp", "open",
        (int)n->tcp_flows, "opened", (json_int_t)n->tcp_opened, "denied", (json_int_t)n->tcp_denied,
        "failed", (json_int_t)n->tcp_failed, "refused", (json_int_t)n->tcp_refused, "udp", "open",
        (int)n->udp_flows, "opened", (json_int_t)n->udp_opened, "denied", (json_int_t)n->udp_denied,
        "dns", "questions", (json_int_t)d->questions, "denied", (json_int_t)d->denied, "filtered",
        (json_int_t)d->filtered, "limited", (json_int_t)d->limited);
    return j ? json_dumps(j, JSON_COMPACT) : NULL;
}

static bool show(struct net_control *c, struct buf *out)
{
    struct shown s = {0};
    proto_begin(&s.w, out, PROTO_OK);
    int r = net_thread_call(c->net, on_net_show, &s);
    AUTO_FREE char *text = counters_text(&s.net, &s.dns);
    proto_str(&s.w, F_TEXT, text ? text : "{}");
    int k = proto_end(&s.w);
    if (k == 0 && r == 0)
        return true;
    buf_reset(out);
    if (k < 0)
        return reply_fail(out, PROTO_FAIL_LIMIT, -k,
                          "the rules in force are too long for one reply");
    return reply_fail(out, PROTO_FAIL_STATE, EIO, network_failed);
}

/* --- ports ------------------------------------------------------------------------------------ */

struct publishing {
    uint8_t proto;
    uint16_t guest;
    int fd, handle;
};

static int on_net_publish(struct gate *g, void *arg)
{
    struct publishing *p = arg;
    return net_publish(gate_net(g), p->proto, p->fd, p->guest);
}

static int on_net_unpublish(struct gate *g, void *arg)
{
    struct publishing *p = arg;
    return net_unpublish(gate_net(g), p->handle);
}

static int socket_option(int fd, int name)
{
    int v = -1;
    socklen_t n = sizeof(v);
    return getsockopt(fd, SOL_SOCKET, name, &v, &n) < 0 ? -1 : v;
}

/* Checks that it is what the request says; where it is bound is read from the socket itself. NULL,
 * or what is wrong. */
static const char *check_socket(int fd, struct spec_port *p)
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof(sa);
    struct net_end end;
    bool tcp = p->proto == PROTO_TCP;
    if (fd < 0)
        return "the request carries no socket";
    if (socket_option(fd, SO_TYPE) != (tcp ? SOCK_STREAM : SOCK_DGRAM) ||
        socket_option(fd, SO_PROTOCOL) != p->proto)
        return "the socket has the wrong type";
    if (tcp && socket_option(fd, SO_ACCEPTCONN) != 1)
        return "the socket is not listening";
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || !(flags & O_NONBLOCK))
        return "the socket is in blocking mode";
    if (getsockname(fd, (struct sockaddr *)&sa, &n) < 0 || !end_from_sockaddr(&sa, &end) ||
        end.port == 0)
        return "the socket is not bound";
    p->bind = end.addr;
    p->host = end.port;
    return NULL;
}

static bool add_port(struct net_control *c, const struct proto_frame *f, int *fd, struct buf *out)
{
    struct spec_port p = {0};
    if (!read_port(f, &p.guest, &p.proto))
        return reply_malformed(out);
    const char *wrong = check_socket(*fd, &p);
    if (wrong)
        return reply_fail(out, PROTO_FAIL_OTHER, EINVAL, wrong);
    if (c->n_ports == SPEC_PUBLISH_MAX)
        return reply_fail(out, PROTO_FAIL_LIMIT, E2BIG, "too many ports are published");
    struct err e = {0};
    int r = c->ceiling ? ceiling_hold_number(c->ceiling, LIMIT_PORTS, c->n_ports + 1, &e) : 0;
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_OTHER, -r, e.msg);
    struct publishing x = {.proto = p.proto, .guest = p.guest, .fd = *fd};
    int handle = net_thread_call(c->net, on_net_publish, &x);
    if (handle < 0)
        return reply_fail(out, PROTO_FAIL_OTHER, -handle, "cannot publish the port");
    *fd = -1; /* the stack owns it now */
    c->port[c->n_ports] = p;
    c->handle[c->n_ports++] = handle;
    r = ports_save(c->run_fd, c->port, c->n_ports);
    if (r < 0) { /* a port that is not recorded must not stay open */
        x.handle = handle;
        c->n_ports--;
        (void)net_thread_call(c->net, on_net_unpublish, &x);
        return reply_fail(out, PROTO_FAIL_OTHER, -r, "cannot record the port");
    }
    return reply_ok(out);
}

static int close_port(struct net_control *c, size_t i)
{
    struct publishing x = {.handle = c->handle[i]};
    int r = net_thread_call(c->net, on_net_unpublish, &x);
    if (r < 0)
        return r;
    c->n_ports--;
    memmove(&c->port[i], &c->port[i + 1], (c->n_ports - i) * sizeof(c->port[0]));
    memmove(&c->handle[i], &c->handle[i + 1], (c->n_ports - i) * sizeof(c->handle[0]));
    (void)ports_save(c->run_fd, c->port, c->n_ports);
    return 0;
}

static bool remove_port(struct net_control *c, const struct proto_frame *f, struct buf *out)
{
    struct spec_port p = {0};
    if (!read_port(f, &p.host, &p.proto) || !read_address(f, &p.bind))
        return reply_malformed(out);
    for (size_t i = 0; i < c->n_ports; i++) {
        const struct spec_port *o = &c->port[i];
        if (o->host != p.host || o->proto != p.proto || !addr_equal(&o->bind, &p.bind))
            continue;
        int r = close_port(c, i);
        return r < 0 ? reply_fail(out, PROTO_FAIL_OTHER, -r, "cannot close the port")
                     : reply_ok(out);
    }
    return reply_fail(out, PROTO_FAIL_NOT_FOUND, ENOENT, "this port is not published");
}

/* --- bound secrets ---------------------------------------------------------------------------- */

struct hosts {
    struct gate_host *list;
    size_t n;
};

static int on_net_hosts(struct gate *g, void *arg)
{
    struct hosts *h = arg;
    gate_set_hosts(g, h->list, h->n);
    return 0;
}

/* NAME@... */
static int take_names(const struct strlist *bound, struct strlist *ret)
{
    for (size_t i = 0; i < bound->n; i++)
        if (strlist_take(ret, strndup(bound->v[i], strcspn(bound->v[i], "@"))) < 0)
            return -ENOMEM;
    return 0;
}

static int set_hosts(struct net_control *c, const struct proto_frame *f, struct err *e)
{
    CLEANUP(spec_net_free) struct spec_net n;
    AUTO_STRLIST struct strlist names = {0};
    struct hosts h = {0};
    int r = read_net(f, &n, e);
    if (r == 0 && take_names(&n.bound.secrets, &names) < 0)
        r = err_oom(e);
    for (size_t i = 0; r == 0 && c->ceiling && i < names.n; i++)
        r = ceiling_hold_secret(c->ceiling, names.v[i], e);
    if (r == 0)
        r = net_hosts(&n.bound, &h.list, &h.n, e);
    if (r == 0 && (r = net_thread_call(c->net, on_net_hosts, &h)) < 0) {
        free(h.list);
        return err_set(e, -r, "%s", network_failed);
    }
    if (r == 0) {
        struct strlist old = c->secrets;
        c->secrets = names;
        names = old;
    }
    return r;
}

static bool set_secrets(struct net_control *c, const struct proto_frame *f, int fd, struct buf *out)
{
    struct err e = {0};
    if (!net_thread_intercepts(c->net))
        return reply_fail(out, PROTO_FAIL_STATE, ENOTCONN,
                          "the sandbox was started without bound secrets");
    int r = proto_find(f, F_CTL_SPEC, &(struct proto_field){0}) ? set_hosts(c, f, &e) : 0;
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_OTHER, -r, e.msg);
    r = fd >= 0 ? net_thread_reconfigure(c->net, &c->secrets, fd) : 0;
    if (r < 0)
        return reply_fail(out, PROTO_FAIL_OTHER, -r, "the interceptor accepts no configuration");
    return reply_ok(out);
}

/* --- a ceiling that has come down ------------------------------------------------------------- */

static int on_net_narrow(struct gate *g, void *arg)
{
    const struct net_control *c = arg;
    struct policy now;
    if (ceiling_narrow(c->ceiling, gate_policy(g), &now)) {
        (void)gate_set_policy(g, &now, true);
        policy_free(&now);
    }
    return 0;
}

/* Cuts secrets bound by a client whose names are no longer allowed. */
static int cut_secrets(struct net_control *c)
{
    AUTO_STRLIST struct strlist names = {0};
    for (size_t i = 0; i < c->secrets.n; i++)
        if (ceiling_hold_secret(c->ceiling, c->secrets.v[i], NULL) == 0 &&
            strlist_add(&names, c->secrets.v[i]) < 0)
            return -ENOMEM;
    if (names.n == c->secrets.n || !net_thread_intercepts(c->net))
        return 0;
    struct strlist old = c->secrets;
    c->secrets = names;
    names = old;
    return net_thread_reconfigure(c->net, &c->secrets, -1);
}

int net_control_conform(struct net_control *c, struct err *e)
{
    int r = c->net ? net_thread_call(c->net, on_net_narrow, c) : 0;
    if (r == 0 && c->net)
        r = cut_secrets(c);
    while (r == 0 && c->n_ports > ceiling_most(c->ceiling, LIMIT_PORTS))
        r = close_port(c, c->n_ports - 1);
    return r < 0 ? err_set(e, -r, "%s", network_failed) : 0;
}

/* --- set-up and events ------------------------------------------------------------------------ */

bool net_control_request(struct net_control *c, const struct proto_frame *f, int *fd,
                         struct buf *out)
{
    if (f->type < PROTO_NET_ASK || f->type > PROTO_SECRETS)
        return false;
    if (!c->net)
        return reply_fail(out, PROTO_FAIL_STATE, ENETDOWN, "the sandbox has no network");
    switch (f->type) {
    case PROTO_NET_ASK:
        return explain(c, f, out);
    case PROTO_NET_SET:
        return set_policy(c, f, out);
    case PROTO_NET_SHOW:
        return show(c, out);
    case PROTO_PORT_ADD:
        return add_port(c, f, fd, out);
    case PROTO_SECRETS:
        return set_secrets(c, f, *fd, out);
    default:
        return remove_port(c, f, out);
    }
}

static void on_decided(void *ctx, const struct net_note *n)
{
    struct net_control *c = ctx;
    net_log_note(&c->log, n);
    if (n->violation && c->on_violation == VIOLATION_TERMINATE && c->violated)
        c->violated(c->ctx, n->name);
}

static void on_missed(void *ctx, uint64_t n)
{
    struct net_control *c = ctx;
    net_log_missed(&c->log, n);
}

static void on_failed(void *ctx, int code)
{
    struct net_control *c = ctx;
    c->failed(c->ctx, code);
}

static const struct net_thread_events events = {
    .decided = on_decided, .missed = on_missed, .failed = on_failed};

int net_control_setup(struct net_control *c, const struct spec_net *n, const struct net_host *host,
                      const struct net_ports *ports, unsigned max_connections, struct loop *loop,
                      int run_fd, int logs_fd, void (*failed)(void *ctx, int code), void *ctx,
                      struct err *e)
{
    c->run_fd = run_fd;
    c->failed = failed;
    c->ctx = ctx;
    c->on_violation = n->bound.on_violation;
    if (take_names(&n->bound.secrets, &c->secrets) < 0)
        return err_oom(e);
    int r = net_log_open(&c->log, loop, logs_fd);
    if (r < 0)
        return err_sys(e, -r, "cannot open the log of the sandbox's network");
    r = net_setup(&c->net, n, host, ports, max_connections, loop, &events, c, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ports->n; i++) {
        c->port[i] = ports->port[i];
        c->handle[i] = (int)i; /* the first ones that were published */
    }
    c->n_ports = ports->n;
    return 0;
}

void net_control_close(struct net_control *c)
{
    if (c->net)
        net_log_close(&c->log);
    strlist_free(&c->secrets);
}
