#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/dns_impl.h"
#include "net/packet.h"
#include "util/cleanup.h"

/* #syscalls:net socket connect sendto recvfrom getrandom close */

enum { HOST_TTL = 60, READ_CHUNK = 4096 };

/* --- answers that are made here -------------------------------------------------------------- */

static void deliver(struct dns *d, const struct dns_asker *a, const uint8_t *p, size_t n)
{
    if (a->client)
        dns_client_reply(a->client, p, n);
    else
        d->hooks->reply(d->ctx, &a->gateway, &a->guest, p, n);
}

static size_t reply_max(const struct dns_asker *a, const struct dns_question *q)
{
    return a->client ? DNS_MSG_MAX : q->udp_size;
}

static void answer_code(struct dns *d, const struct dns_asker *a, const struct dns_question *q,
                        uint8_t code)
{
    struct dns_writer w;
    dns_begin(&w, d->reply, reply_max(a, q), q, code);
    deliver(d, a, d->reply, dns_end(&w, q));
}

static void answer_host(struct dns *d, const struct dns_asker *a, const struct dns_question *q)
{
    static const struct net_addr none;
    const struct net_addr *addr = q->type == DNS_AAAA ? &d->cfg.host6 : &d->cfg.host4;
    struct dns_writer w;
    struct dns_record rec = {.type = q->type, .ttl = HOST_TTL};
    (void)snprintf(rec.name, sizeof(rec.name), "%s", q->name);
    dns_begin(&w, d->reply, reply_max(a, q), q, DNS_NOERROR);
    if ((q->type == DNS_A || q->type == DNS_AAAA) && !addr_equal(addr, &none)) {
        memcpy(rec.addr, q->type == DNS_A ? addr_bytes4(addr) : addr->b, q->type == DNS_A ? 4 : 16);
        dns_put_record(&w, &rec, false);
    }
    deliver(d, a, d->reply, dns_end(&w, q));
}

/* --- questions upstream ---------------------------------------------------------------------- */

static void query_close(struct dns_query *u)
{
    loop_close(u->d->loop, &u->src);
}

static void query_free(struct dns_query *u)
{
    query_close(u);
    loop_timer_off(u->d->loop, &u->timer);
    free(u->socks);
    buf_free(&u->in);
    node_unlink(&u->all);
    assert(u->d->n_queries > 0);
    u->d->n_queries--;
    free(u);
}

void dns_forget(struct dns *d, const struct dns_client *c)
{
    struct node *next;
    for (struct node *at = d->queries.next; at != &d->queries; at = next) {
        next = at->next;
        struct dns_query *u = CONTAINER_OF(at, struct dns_query, all);
        if (u->asker.client == c)
            query_free(u);
    }
}

static void give_up(struct dns_query *u)
{
    u->d->stats.failed++;
    answer_code(u->d, &u->asker, &u->q, DNS_SERVFAIL);
    query_free(u);
}

static void on_upstream(struct loop_src *src, uint32_t events);

/* Whether an upstream is queried through the proxy. */
static bool by_proxy(const struct dns *d, const struct net_end *to)
{
    return d->cfg.proxy && d->cfg.proxy->version && addr_classify(&to->addr) != CLASS_LOOPBACK;
}

/* Opens a socket to the current upstream and sends, or starts to. */
static int start_query(struct dns_query *u)
{
    struct dns *d = u->d;
    const struct net_end *to = &d->cfg.upstream[u->upstream];
    struct sockaddr_storage a;
    query_close(u);
    buf_reset(&u->in);
    free(u->socks);
    u->socks = NULL;
    if (by_proxy(d, to)) {
        if (!(u->socks = malloc(sizeof(*u->socks))))
            return -ENOMEM;
        socks_begin(u->socks, d->cfg.proxy, to);
        to = &d->cfg.proxy->at;
        u->tcp = true;
    }
    if (getrandom(&u->id, sizeof(u->id), 0) != sizeof(u->id))
        return -EIO;
    size_t n = dns_write_question(u->out + 2, u->id, u->q.name, u->q.type);
    put16(u->out, (uint16_t)n);
    u->out_len = n + 2;
    u->out_done = u->tcp ? 0 : 2; /* a datagram has no length in front */
    AUTO_CLOSE int fd =
        socket(addr_is4(&to->addr) ? AF_INET : AF_INET6,
               (u->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t alen = end_to_sockaddr(to, &a);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&a, alen) < 0 && errno != EINPROGRESS))
        return -errno;
    if (!u->tcp && send(fd, u->out + 2, n, MSG_NOSIGNAL) != (ssize_t)n)
        return -errno;
    u->src = (struct loop_src){.fd = fd, .fn = on_upstream};
    int r = loop_add(d->loop, &u->src, u->tcp ? EPOLLIN | EPOLLOUT : EPOLLIN);
    if (r < 0) {
        u->src.fd = -1;
        return r;
    }
    (void)steal_fd(&fd);
    uint64_t share = d->cfg.timeout_ms / d->cfg.n_upstreams;
    loop_timer_set(d->loop, &u->timer, share * 1000000ULL);
    return 0;
}

/* Tries the next upstream, until one can be queried. */
static void try_next(struct dns_query *u)
{
    u->tcp = false;
    while (++u->upstream < u->d->cfg.n_upstreams)
        if (start_query(u) == 0)
            return;
    give_up(u);
}

static void on_timeout(struct loop_timer *t)
{
    try_next(CONTAINER_OF(t, struct dns_query, timer));
}

/* --- answers from upstream ------------------------------------------------------------------- */

/* How an answer's records are filtered. */
struct filter {
    struct dns *d;
    const struct dns_question *q;
    char at[DNS_NAME_MAX]; /* how far the chain of aliases has led */
    struct net_addr addr[DNS_RECORDS_MAX];
    uint32_t ttl[DNS_RECORDS_MAX];
    unsigned n_addr;
    bool bad;
};

static bool address_ok(const struct dns *d, const struct net_addr *a)
{
    return d->cfg.allow_rebind || addr_classify(a) == CLASS_PUBLIC ||
           policy_names_address(d->policy, a);
}

/* True if the record is to be passed on. */
static bool keep_record(struct filter *f, const struct dns_record *rec)
{
    if (strcmp(rec->name, f->at) != 0)
        return false;
    if (rec->type == DNS_CNAME && f->q->type != DNS_CNAME) {
        struct policy_answer a = policy_decide_name(f->d->policy, rec->target);
        if (!a.allow && a.by_name)
            f->bad = true; /* an alias of a name that is denied */
        (void)snprintf(f->at, sizeof(f->at), "%s", rec->target);
        return true;
    }
    if (rec->type != f->q->type)
        return false;
    if (rec->type == DNS_A || rec->type == DNS_AAAA) {
        struct net_addr a = rec->type == DNS_A ? addr_from4(rec->addr) : addr_from6(rec->addr);
        if (!address_ok(f->d, &a) || f->n_addr == DNS_RECORDS_MAX) {
            f->bad = true;
            return false;
        }
        f->addr[f->n_addr] = a;
        f->ttl[f->n_addr++] = rec->ttl;
    }
    return true;
}

/* Writes the answer for the guest; 0: the message was malformed. */
static size_t rewrite(struct dns_query *u, struct dns_reader *r, struct filter *f)
{
    struct dns_writer w;
    struct dns_record rec;
    unsigned seen = 0;
    int k;
    dns_begin(&w, u->d->reply, reply_max(&u->asker, &u->q), &u->q, r->rcode);
    while ((k = dns_next(r, &rec)) > 0 && ++seen <= DNS_RECORDS_MAX)
        if (k == 1 && keep_record(f, &rec))
            dns_put_record(&w, &rec, false);
    if (k < 0)
        return 0;
    r->left = MIN(r->authority, 4U); /* how long the negative answer is valid */
    while (w.answers == 0 && (k = dns_next(r, &rec)) > 0)
        if (k == 1 && rec.type == DNS_SOA)
            dns_put_record(&w, &rec, true);
    return k < 0 ? 0 : dns_end(&w, &u->q);
}

static void answer_query(struct dns_query *u, struct dns_reader *r)
{
    struct dns *d = u->d;
    struct filter f = {.d = d, .q = &u->q};
    (void)snprintf(f.at, sizeof(f.at), "%s", u->q.name);
    size_t n = rewrite(u, r, &f);
    if (n == 0) {
        try_next(u);
        return;
    }
    if (d->hooks->decided)
        d->hooks->decided(d->ctx, u->q.name, u->q.type, &u->answer, f.bad);
    if (f.bad) {
        d->stats.filtered++;
        /* Some resolvers take NXDOMAIN for one family as an answer for both. */
        answer_code(d, &u->asker, &u->q, u->q.type == DNS_AAAA ? DNS_NOERROR : DNS_NXDOMAIN);
    } else {
        for (unsigned i = 0; i < f.n_addr; i++)
            pins_add(d->pins, &f.addr[i], u->q.name, f.ttl[i], now_ns());
        deliver(d, &u->asker, d->reply, n);
    }
    query_free(u);
}

/* A message from upstream; anything but an answer to this question is ignored. */
static void handle_message(struct dns_query *u, const uint8_t *p, size_t n)
{
    struct dns_reader r;
    if (dns_read_answer(&r, p, n, u->id, u->q.name, u->q.type) < 0) {
        u->d->stats.malformed++;
        if (u->tcp)
            try_next(u);
        return;
    }
    if (r.truncated && !u->tcp) {
        u->tcp = true;
        if (start_query(u) < 0)
            try_next(u);
    } else if (r.rcode != DNS_NOERROR && r.rcode != DNS_NXDOMAIN) {
        try_next(u);
    } else {
        answer_query(u, &r);
    }
}

static void read_tcp(struct dns_query *u)
{
    uint8_t *to = buf_reserve(&u->in, READ_CHUNK);
    ssize_t k = to ? recv(u->src.fd, to, READ_CHUNK, MSG_DONTWAIT) : 0;
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (k <= 0) {
        try_next(u);
        return;
    }
    buf_commit(&u->in, (size_t)k);
    size_t have = buf_len(&u->in);
    const uint8_t *p = buf_head(&u->in);
    size_t n = have >= 2 ? be16(p) : 0;
    if (n > DNS_MSG_MAX)
        try_next(u);
    else if (have >= 2 && have - 2 >= n)
        handle_message(u, p + 2, n);
}

/* True once the upstream can be queried; if not, the query may be gone. */
static bool through_proxy(struct dns_query *u)
{
    int r = socks_drive(u->socks, u->src.fd);
    if (r < 0) {
        try_next(u);
        return false;
    }
    if (r == 0) {
        (void)loop_mod(u->d->loop, &u->src, socks_pending(u->socks) ? EPOLLOUT : EPOLLIN);
        return false;
    }
    free(u->socks);
    u->socks = NULL;
    (void)loop_mod(u->d->loop, &u->src, EPOLLIN | EPOLLOUT);
    return true;
}

static void on_upstream(struct loop_src *src, uint32_t events)
{
    struct dns_query *u = CONTAINER_OF(src, struct dns_query, src);
    struct dns *d = u->d;
    if (!u->tcp) {
        ssize_t k = recv(src->fd, d->msg, sizeof(d->msg), MSG_DONTWAIT);
        if (k >= 0)
            handle_message(u, d->msg, (size_t)k);
        else if (errno != EAGAIN && errno != EINTR)
            try_next(u); /* closed port */
        return;
    }
    if (u->socks && !through_proxy(u))
        return;
    if (events & EPOLLOUT && u->out_done < u->out_len) {
        ssize_t k = send(src->fd, u->out + u->out_done, u->out_len - u->out_done,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN && errno != EINTR) {
            try_next(u);
            return;
        }
        u->out_done += k > 0 ? (size_t)k : 0;
        if (u->out_done == u->out_len)
            (void)loop_mod(d->loop, src, EPOLLIN);
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        read_tcp(u);
}

/* --- questions of the guest ------------------------------------------------------------------ */

static bool take_token(struct dns *d)
{
    if (bucket_level(&d->rate, now_ns()) == 0)
        return false;
    bucket_take(&d->rate, 1);
    return true;
}

/* Types that programs need. Others carry too much (TXT, NULL), ask for too much (ANY, AXFR), or
 * hide where a connection goes (HTTPS, SVCB with ECH). */
static bool type_ok(uint16_t type)
{
    return type == DNS_A || type == DNS_AAAA || type == DNS_CNAME || type == DNS_PTR ||
           type == DNS_MX || type == DNS_SRV || type == DNS_NS || type == DNS_SOA;
}

static void forward_question(struct dns *d, const struct dns_asker *a, const struct dns_question *q,
                             const struct policy_answer *answer)
{
    if (d->cfg.n_upstreams == 0 || d->n_queries == DNS_QUERIES_MAX || !take_token(d)) {
        d->stats.limited++;
        answer_code(d, a, q, DNS_REFUSED);
        return;
    }
    struct dns_query *u = calloc(1, sizeof(*u));
    if (!u) {
        answer_code(d, a, q, DNS_SERVFAIL);
        return;
    }
    u->d = d;
    u->q = *q;
    u->asker = *a;
    u->answer = *answer;
    u->src.fd = -1;
    u->timer.fn = on_timeout;
    buf_init(&u->in, 2 + DNS_MSG_MAX + READ_CHUNK);
    node_append(&d->queries, &u->all);
    d->n_queries++;
    d->stats.upstream++;
    if (start_query(u) < 0)
        try_next(u);
}

void dns_ask(struct dns *d, const struct dns_asker *a, const uint8_t *p, size_t n)
{
    struct dns_question q;
    int code = dns_read_question(p, n, &q);
    d->stats.questions++;
    if (code != 0) {
        d->stats.malformed++;
        if (code > 0)
            answer_code(d, a, &q, (uint8_t)code);
        return;
    }
    if (strcmp(q.name, DNS_HOST_NAME) == 0) {
        answer_host(d, a, &q); /* whether it can be reached is for the flow's verdict */
        return;
    }
    struct policy_answer answer = policy_decide_name(d->policy, q.name);
    if (!answer.allow || q.name[0] == '\0') {
        d->stats.denied++;
        if (d->hooks->decided)
            d->hooks->decided(d->ctx, q.name, q.type, &answer, false);
        answer_code(d, a, &q, DNS_NXDOMAIN);
    } else if (!type_ok(q.type)) {
        d->stats.denied++;
        answer_code(d, a, &q,
                    q.type == DNS_HTTPS || q.type == DNS_SVCB ? DNS_NOERROR : DNS_REFUSED);
    } else {
        forward_question(d, a, &q, &answer);
    }
}

void dns_datagram(struct dns *d, const struct net_end *guest, const struct net_end *gateway,
                  const void *p, size_t n)
{
    struct dns_asker a = {.guest = *guest, .gateway = *gateway};
    dns_ask(d, &a, p, n);
}

/* --- life ------------------------------------------------------------------------------------ */

int dns_new(struct dns **ret, struct loop *l, const struct dns_config *c,
            const struct policy *policy, struct pins *pins, const struct dns_hooks *hooks,
            void *ctx)
{
    struct dns *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->loop = l;
    d->cfg = *c;
    if (d->cfg.timeout_ms == 0)
        d->cfg.timeout_ms = DNS_TIMEOUT_MS;
    d->policy = policy;
    d->pins = pins;
    d->hooks = hooks;
    d->ctx = ctx;
    bucket_init(&d->rate, DNS_PER_SECOND, 1000000000ULL, DNS_BURST, 0, now_ns());
    node_init(&d->queries);
    node_init(&d->clients);
    *ret = d;
    return 0;
}

void dns_free(struct dns *d)
{
    if (!d)
        return;
    dns_clients_free(d);
    while (node_linked(&d->queries))
        query_free(CONTAINER_OF(d->queries.next, struct dns_query, all));
    free(d);
}

const struct dns_stats *dns_stats(const struct dns *d)
{
    return &d->stats;
}
