#include "monitor/net_thread.h"

#include "intercept/link.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "virtio/net.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* #syscalls:net write futex socketpair */
/* #syscalls:monitor write read futex */

/* Besides one descriptor per flow: queries to name servers (each over UDP, then over TCP), clients
 * of our own name server (two ends each), loop, eventfds, guest memory. */
enum { FILES_DNS = 2 * DNS_QUERIES_MAX + 2 * DNS_CLIENTS_MAX, FILES_OTHER = 32 };

/* There are two: the net thread fills one while the main loop reads the other. */
struct notes {
    size_t n;
    uint64_t missed;
    struct net_note note[NET_NOTES_MAX];
};

struct net_thread {
    struct loop loop; /* the thread's own */
    struct virtio_dev *dev;
    struct gate *gate;
    pthread_t thread;
    bool started;
    sem_t ready;      /* it has its filter, or ... */
    int filter_error; /* ... -errno */

    struct loop *main_loop;
    const struct net_thread_events *ev;
    void *ctx;
    struct loop_src told;      /* on the main loop: `filling` has something, or the thread ended */
    struct loop_src call;      /* on the thread's: there is a request */
    struct loop_src intercept; /* ... : to the interceptor; fd -1: there is none */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t done;
    struct notes *filling;
    bool ended;
    int end_code;
    net_thread_fn fn; /* NULL: there is no request */
    void *arg;
    int result;
    bool stop;

    struct notes *reading; /* the main loop's */
};

/* --- decisions: on the net thread ------------------------------------------------------------ */

static void fill_note(struct net_note *to, const struct gate_decision *d)
{
    to->at_ns = realtime_ns();
    to->what = d->what;
    to->allow = d->allow;
    to->filtered = d->filtered;
    to->violation = d->violation;
    to->has_id = d->id != NULL;
    to->id = d->id ? *d->id : (struct net_flow_id){0};
    (void)snprintf(to->name, sizeof(to->name), "%s", d->name ? d->name : "");
    (void)snprintf(to->why, sizeof(to->why), "%s", d->why ? d->why : "");
    to->to_host = d->to_host;
    to->to_guest = d->to_guest;
    to->ns = d->ns;
}

static void on_told(void *ctx, const struct gate_decision *d)
{
    struct net_thread *t = ctx;
    (void)pthread_mutex_lock(&t->lock);
    struct notes *to = t->filling;
    assert(to->n <= NET_NOTES_MAX);
    bool first = to->n == 0 && to->missed == 0;
    if (to->n < NET_NOTES_MAX)
        fill_note(&to->note[to->n++], d);
    else
        to->missed++;
    (void)pthread_mutex_unlock(&t->lock);
    if (first)
        (void)eventfd_write(t->told.fd, 1);
}

/* --- the interceptor: on the net thread ------------------------------------------------------ */

/* Hands it the connection; it takes the peer's place. */
static int on_divert(void *ctx, const struct net_flow_id *id, const char *name, int fd)
{
    struct net_thread *t = ctx;
    struct link_flow f = {.kind = LINK_FLOW, .id = *id};
    int pair[2];
    if (t->intercept.fd < 0)
        return -ENOTCONN;
    (void)snprintf(f.host, sizeof(f.host), "%s", name);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    AUTO_CLOSE int here = pair[0], there = pair[1];
    int r = link_send(t->intercept.fd, &f, sizeof(f), there, fd);
    return r < 0 ? r : steal_fd(&here);
}

/* What it says is as untrusted as what it reads. The main loop notices when it ends. */
static void on_intercept(struct loop_src *src, uint32_t events)
{
    struct net_thread *t = CONTAINER_OF(src, struct net_thread, intercept);
    struct link_report r;
    char why[SUBST_TEXT_MAX + 16];
    int fds[2];
    int k = link_recv(src->fd, &r, sizeof(r), fds);
    close_fd(&fds[0]);
    close_fd(&fds[1]);
    if (k == -EPIPE) {
        loop_del(&t->loop, src);
        return;
    }
    if (k != 1)
        return;
    r.host[sizeof(r.host) - 1] = r.text[sizeof(r.text) - 1] = '\0';
    (void)snprintf(why, sizeof(why), "denied: %s", r.text);
    struct gate_decision d = {.what = GATE_SECRET,
                              .id = &r.id,
                              .name = r.host,
                              .why = why,
                              .violation = r.kind == LINK_VIOLATION};
    gate_tell(t->gate, &d);
}

/* --- requests: on the net thread ------------------------------------------------------------- */

static void on_call(struct loop_src *src, uint32_t events)
{
    struct net_thread *t = CONTAINER_OF(src, struct net_thread, call);
    (void)pthread_mutex_lock(&t->lock);
    net_thread_fn fn = t->fn;
    void *arg = t->arg;
    bool stop = t->stop;
    (void)pthread_mutex_unlock(&t->lock);
    if (stop)
        loop_stop(&t->loop);
    if (!fn)
        return;
    int result = fn(t->gate, arg); /* not under the lock: it may make decisions (on_told) */
    (void)pthread_mutex_lock(&t->lock);
    t->result = result;
    t->fn = NULL;
    (void)pthread_cond_broadcast(&t->done);
    (void)pthread_mutex_unlock(&t->lock);
}

static void *net_main(void *arg)
{
    struct net_thread *t = arg;
    t->filter_error = seccomp_enter(SECCOMP_NET);
    (void)sem_post(&t->ready);
    if (t->filter_error < 0)
        return NULL;
    int r = loop_run(&t->loop);
    (void)pthread_mutex_lock(&t->lock);
    t->ended = true;
    t->end_code = -r;
    (void)pthread_cond_broadcast(&t->done);
    (void)pthread_mutex_unlock(&t->lock);
    (void)eventfd_write(t->told.fd, 1);
    return NULL;
}

/* --- on the main loop ------------------------------------------------------------------------ */

/* Missed notes came after those that are there. */
static void deliver(struct net_thread *t, struct notes *n)
{
    for (size_t i = 0; i < n->n; i++)
        if (t->ev->decided)
            t->ev->decided(t->ctx, &n->note[i]);
    if (n->missed && t->ev->missed)
        t->ev->missed(t->ctx, n->missed);
    n->n = 0;
    n->missed = 0;
}

static void on_news(struct loop_src *src, uint32_t events)
{
    struct net_thread *t = CONTAINER_OF(src, struct net_thread, told);
    eventfd_t n;
    (void)eventfd_read(src->fd, &n);
    (void)pthread_mutex_lock(&t->lock);
    struct notes *full = t->filling;
    t->filling = t->reading;
    t->reading = full;
    bool failed = t->ended && !t->stop;
    int code = t->end_code;
    t->stop = t->stop || failed; /* so that it is reported once */
    (void)pthread_mutex_unlock(&t->lock);
    deliver(t, full);
    if (failed && t->ev->failed)
        t->ev->failed(t->ctx, code);
}

int net_thread_call(struct net_thread *t, net_thread_fn fn, void *arg)
{
    if (!t->started)
        return fn(t->gate, arg);
    (void)pthread_mutex_lock(&t->lock);
    assert(!t->fn); /* one caller, the main thread, that waits */
    t->fn = fn;
    t->arg = arg;
    if (!t->ended)
        (void)eventfd_write(t->call.fd, 1);
    while (t->fn && !t->ended)
        (void)pthread_cond_wait(&t->done, &t->lock);
    int r = t->fn ? -ESHUTDOWN : t->result;
    t->fn = NULL;
    (void)pthread_mutex_unlock(&t->lock);
    return r;
}

/* --- life ------------------------------------------------------------------------------------ */

static int add_eventfd(struct loop *l, struct loop_src *src, loop_fn fn, uint32_t events)
{
    *src = (struct loop_src){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .fn = fn};
    return src->fd < 0 ? -errno : loop_add(l, src, events);
}

static int net_thread_make(struct net_thread *t, const struct gate_config *given,
                           struct policy *policy)
{
    struct gate_config with = *given, *c = &with;
    c->divert = on_divert;
    /* Untouched pages cost nothing, and few flows touch few pages. */
    t->filling = calloc(1, sizeof(*t->filling));
    t->reading = calloc(1, sizeof(*t->reading));
    int r = t->filling && t->reading ? loop_init(&t->loop) : -ENOMEM;
    if (r == 0)
        r = add_eventfd(t->main_loop, &t->told, on_news, EPOLLIN);
    if (r == 0)
        r = add_eventfd(&t->loop, &t->call, on_call, EPOLLIN | EPOLLET); /* it may not read() */
    if (r == 0)
        r = virtio_net_new(&t->dev, c->net.guest_mac, NET_MTU);
    if (r == 0)
        r = gate_new(&t->gate, &t->loop, virtio_net_link(t->dev), c, policy, on_told, t);
    return r;
}

int net_thread_new(struct net_thread **ret, const struct gate_config *c, struct policy *policy,
                   struct loop *main_loop, const struct net_thread_events *ev, void *ctx,
                   struct err *e)
{
    struct net_thread *t = calloc(1, sizeof(*t));
    if (!t)
        return err_oom(e);
    *t = (struct net_thread){.loop.epfd = -1, .main_loop = main_loop, .ev = ev, .ctx = ctx};
    t->told.fd = t->call.fd = t->intercept.fd = -1;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->done, NULL);
    (void)sem_init(&t->ready, 0, 0);
    int r = net_thread_make(t, c, policy);
    if (r < 0) {
        net_thread_free(t);
        return err_sys(e, -r, "cannot create the sandbox's network");
    }
    *ret = t;
    return 0;
}

int net_thread_intercept(struct net_thread *t, int fd)
{
    assert(!t->started);
    t->intercept = (struct loop_src){.fd = fd, .fn = on_intercept};
    return loop_add(&t->loop, &t->intercept, EPOLLIN);
}

struct handing {
    int to, fd;
    const struct strlist *names;
};

static int on_hand(struct gate *g, void *arg)
{
    const struct handing *h = arg;
    struct link_flow f = {.kind = LINK_NAME};
    int r = 0;
    for (size_t i = 0; r == 0 && i < h->names->n; i++) {
        (void)snprintf(f.host, sizeof(f.host), "%s", h->names->v[i]);
        r = link_send(h->to, &f, sizeof(f), -1, -1);
    }
    f.kind = h->fd < 0 ? LINK_CUT : LINK_CHANGE;
    return r < 0 ? r : link_send(h->to, &f, sizeof(f), h->fd, -1);
}

bool net_thread_intercepts(const struct net_thread *t)
{
    return t->intercept.fd >= 0;
}

int net_thread_reconfigure(struct net_thread *t, const struct strlist *names, int fd)
{
    struct handing h = {.to = t->intercept.fd, .fd = fd, .names = names};
    return net_thread_intercepts(t) ? net_thread_call(t, on_hand, &h) : -ENOTCONN;
}

struct virtio_dev *net_thread_device(struct net_thread *t)
{
    return t->dev;
}

struct loop *net_thread_loop(struct net_thread *t)
{
    return &t->loop;
}

struct gate *net_thread_gate(struct net_thread *t)
{
    assert(!t->started);
    return t->gate;
}

int net_thread_start(struct net_thread *t, struct err *e)
{
    assert(!t->started);
    int r = pthread_create(&t->thread, NULL, net_main, t);
    if (r != 0)
        return err_sys(e, r, "cannot start the network's thread");
    t->started = true;
    while (sem_wait(&t->ready) < 0)
        ;
    if (t->filter_error < 0)
        return err_sys(e, -t->filter_error,
                       "cannot install the system call filter of the network's thread");
    return 0;
}

static void net_thread_join(struct net_thread *t)
{
    (void)pthread_mutex_lock(&t->lock);
    t->stop = true;
    (void)pthread_mutex_unlock(&t->lock);
    (void)eventfd_write(t->call.fd, 1);
    (void)pthread_join(t->thread, NULL);
}

void net_thread_free(struct net_thread *t)
{
    if (!t)
        return;
    if (t->started)
        net_thread_join(t);
    int fds[] = {t->told.fd, t->call.fd};
    gate_free(t->gate);
    virtio_dev_free(t->dev);
    loop_del(t->main_loop, &t->told);
    loop_del(&t->loop, &t->call);
    if (t->intercept.fd >= 0)
        loop_del(&t->loop, &t->intercept);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close_fd(&fds[i]);
    if (t->loop.epfd >= 0)
        loop_fini(&t->loop);
    (void)sem_destroy(&t->ready);
    (void)pthread_cond_destroy(&t->done);
    (void)pthread_mutex_destroy(&t->lock);
    free(t->filling);
    free(t->reading);
    free(t);
}

unsigned net_thread_files(const struct spec_net *n)
{
    return n->off
               ? 0
               : n->max_connections + NET_UDP_DEFAULT + NET_PUBLISHED_MAX + FILES_DNS + FILES_OTHER;
}
