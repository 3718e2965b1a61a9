#include "registry/pull.h"

#include "registry/partial.h"
#include "util/cleanup.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    WORKERS_MAX = 3,
    INDEX_DEPTH_MAX = 2, /* an index, and one inside it */
    TICK_MS = 100,
};

struct pull {
    struct image_store *store;
    struct registry *registry;
    const struct pull_options *opt;
    const struct pull_events *ev;
    const struct oci_platform *platform;
    struct oci_manifest manifest;
    struct oci_config config;
    struct pull_layer *layers;
    struct image_layer *made;
    atomic_bool stop; /* watched by registry and workers */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    size_t next;    /* layer to take */
    size_t running; /* workers */
    int code;       /* of the first failure */
    struct err e;
};

/* --- documents ------------------------------------------------------------------------------ */

static int follow_index(struct pull *p, struct buf *body, struct digest *digest, struct err *e)
{
    struct oci_descriptor d;
    int r = oci_index_pick(buf_head(body), buf_len(body), p->platform, &d, e);
    if (r < 0)
        return r;
    char text[DIGEST_TEXT_SIZE];
    digest_text(&d.digest, text);
    buf_reset(body);
    r = registry_manifest(p->registry, text, body, digest, e);
    if (r == 0 && buf_len(body) != d.size)
        r = err_set(e, EBADMSG, "manifest %.19s has %zu bytes, its index says %llu", text,
                    buf_len(body), (unsigned long long)d.size);
    oci_descriptor_free(&d);
    return r;
}

static int get_manifest(struct pull *p, const struct reference *ref, struct buf *body,
                        struct digest *digest, struct err *e)
{
    int r = registry_manifest(p->registry, ref->digest ? ref->digest : ref->tag, body, digest, e);
    for (int depth = 0; r == 0; depth++) {
        enum oci_kind kind;
        r = oci_kind(buf_head(body), buf_len(body), &kind, e);
        if (r < 0 || kind == OCI_MANIFEST)
            break;
        if (depth == INDEX_DEPTH_MAX)
            return err_set(e, ELOOP, "the indexes of the image are nested more than %d deep",
                           INDEX_DEPTH_MAX);
        r = follow_index(p, body, digest, e);
    }
    return r < 0 ? r : oci_manifest_parse(buf_head(body), buf_len(body), &p->manifest, e);
}

static int read_blob(struct pull *p, const struct oci_descriptor *d, struct buf *body,
                     struct err *e)
{
    struct stream *s;
    int r = registry_blob(p->registry, &d->digest, d->size, 0, &s, e);
    if (r < 0)
        return r;
    for (;;) {
        uint8_t *to = buf_reserve(body, 16384);
        ssize_t n = to ? stream_read(s, to, 16384, e) : err_oom(e);
        if (n <= 0) {
            r = (int)n;
            break;
        }
        buf_commit(body, (size_t)n);
    }
    stream_close(s);
    return r;
}

static int get_config(struct pull *p, struct buf *body, struct err *e)
{
    const struct oci_descriptor *d = &p->manifest.config;
    char text[DIGEST_TEXT_SIZE];
    digest_text(&d->digest, text);
    if (d->size > OCI_CONFIG_MAX)
        return err_set(e, EFBIG, "the image's configuration %.19s is larger than %d MiB", text,
                       OCI_CONFIG_MAX >> 20);
    int r = read_blob(p, d, body, e);
    struct digest is = digest_of(buf_head(body), buf_len(body));
    if (r == 0 && !digest_equal(&is, &d->digest)) {
        char other[DIGEST_TEXT_SIZE];
        digest_text(&is, other);
        r = err_set(e, EBADMSG, "the image's configuration %s is damaged: its digest is %s", text,
                    other);
    }
    if (r == 0)
        r = oci_config_parse(buf_head(body), buf_len(body), &p->config, e);
    if (r == 0)
        r = oci_check(&p->manifest, &p->config, p->platform, e);
    return r;
}

/* --- layers --------------------------------------------------------------------------------- */

/* A layer being handled by one worker. */
struct job {
    struct pull *p;
    size_t i;
    struct partial_fate fate;
    bool opened;
};

static void set_state(struct pull *p, size_t i, enum pull_state state)
{
    (void)pthread_mutex_lock(&p->lock);
    atomic_store(&p->layers[i].state, state);
    (void)pthread_cond_signal(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

static int open_layer(void *ctx, struct stream **ret, struct err *e)
{
    struct job *j = ctx;
    const struct oci_descriptor *d = &j->p->manifest.layers[j->i];
    j->opened = true;
    int r = partial_open(j->p->store->partial_fd, j->p->registry, &d->digest, d->size, &j->fate,
                         ret, e);
    atomic_store(&j->p->layers[j->i].resumed, j->fate.had);
    set_state(j->p, j->i, PULL_DOWNLOADING); /* now its progress can be shown */
    return r;
}

static int add_once(struct job *j, struct err *e)
{
    struct pull *p = j->p;
    const struct oci_descriptor *d = &p->manifest.layers[j->i];
    char text[DIGEST_TEXT_SIZE], name[48];
    digest_text(&d->digest, text);
    (void)snprintf(name, sizeof(name), "layer %.19s", text);
    struct layer_want want = {
        .blob = &d->digest,
        .blob_size = d->size,
        .diff_id = &p->config.diff_ids[j->i],
        .name = name,
        .layer = true,
        .max_bytes = p->opt->max_expanded,
        .again = p->opt->again,
    };
    int r = image_store_add_layer(p->store, &want, open_layer, j, &p->layers[j->i].progress,
                                  &p->made[j->i], e);
    if (r == 0 || !j->fate.broken)
        partial_drop(p->store->partial_fd, &d->digest);
    return r;
}

static int add_layer(struct pull *p, size_t i, struct err *e)
{
    struct job j = {.p = p, .i = i};
    int r = add_once(&j, e);
    if (r < 0 && !j.fate.broken && j.fate.replayed > 0 && !atomic_load(&p->stop)) {
        /* What an earlier pull left may be damaged: download everything again. */
        atomic_store(&p->layers[i].progress.read, 0);
        atomic_store(&p->layers[i].resumed, 0);
        err_clear(e);
        j = (struct job){.p = p, .i = i};
        r = add_once(&j, e);
    }
    if (r == 0)
        set_state(p, i, j.opened ? PULL_DONE : PULL_EXISTS);
    return r;
}

static void *pull_worker(void *arg)
{
    struct pull *p = arg;
    for (;;) {
        (void)pthread_mutex_lock(&p->lock);
        size_t i = p->code < 0 || atomic_load(&p->stop) ? p->manifest.n_layers : p->next++;
        (void)pthread_mutex_unlock(&p->lock);
        if (i >= p->manifest.n_layers)
            break;
        struct err e = {0};
        int r = add_layer(p, i, &e);
        if (r == 0)
            continue;
        (void)pthread_mutex_lock(&p->lock);
        if (p->code == 0) {
            p->code = r;
            p->e = e;
        }
        (void)pthread_mutex_unlock(&p->lock);
        atomic_store(&p->stop, true);
    }
    (void)pthread_mutex_lock(&p->lock);
    p->running--;
    (void)pthread_cond_signal(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Signals are for the caller's thread. */
static size_t start_workers(struct pull *p, pthread_t *threads)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    size_t n = 0;
    (void)pthread_mutex_lock(&p->lock);
    while (n < MIN(p->manifest.n_layers, (size_t)WORKERS_MAX) &&
           pthread_create(&threads[n], NULL, pull_worker, p) == 0)
        n++;
    p->running = n;
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n;
}

static void pull_tick(struct pull *p)
{
    const atomic_bool *cancel = p->opt->registry.cancel[0];
    if (cancel && atomic_load(cancel))
        atomic_store(&p->stop, true);
    if (p->ev && p->ev->tick)
        p->ev->tick(p->ev->ctx);
}

static void wait_for_workers(struct pull *p)
{
    (void)pthread_mutex_lock(&p->lock);
    while (p->running) {
        struct timespec at;
        (void)clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_nsec += TICK_MS * 1000000L;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&p->changed, &p->lock, &at);
        (void)pthread_mutex_unlock(&p->lock);
        pull_tick(p);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static int get_layers(struct pull *p, struct err *e)
{
    size_t n = p->manifest.n_layers;
    p->layers = calloc(n, sizeof(*p->layers));
    p->made = calloc(n, sizeof(*p->made));
    if (!p->layers || !p->made)
        return err_oom(e);
    for (size_t i = 0; i < n; i++) {
        p->layers[i].blob = p->manifest.layers[i].digest;
        p->layers[i].size = p->manifest.layers[i].size;
        if (!p->opt->again && image_store_has_layer(p->store, &p->config.diff_ids[i], NULL))
            atomic_store(&p->layers[i].state, PULL_EXISTS);
    }
    if (p->ev && p->ev->layers)
        p->ev->layers(p->ev->ctx, p->layers, n);
    pthread_t threads[WORKERS_MAX];
    size_t workers = start_workers(p, threads);
    if (workers == 0)
        return err_set(e, EAGAIN, "cannot start a thread");
    wait_for_workers(p);
    for (size_t i = 0; i < workers; i++)
        (void)pthread_join(threads[i], NULL);
    pull_tick(p);
    if (p->code < 0)
        err_copy(e, &p->e);
    if (p->code == 0 && atomic_load(&p->stop))
        return err_set(e, EINTR, "interrupted");
    return p->code;
}

/* --- the whole ------------------------------------------------------------------------------ */

static int store_image(struct pull *p, const struct reference *ref, const struct buf *manifest,
                       const struct buf *config, struct digest *digest, struct err *e)
{
    size_t n = p->manifest.n_layers;
    for (size_t i = 0; i < n; i++) {
        p->made[i].blob = p->manifest.layers[i].digest;
        p->made[i].blob_size = p->manifest.layers[i].size;
        free(p->made[i].media_type);
        const char *type = p->manifest.layers[i].media_type;
        p->made[i].media_type = type ? strdup(type) : NULL;
    }
    int r = image_store_add_image(p->store, buf_head(manifest), buf_len(manifest), buf_head(config),
                                  buf_len(config), p->made, n, digest, e);
    if (r == 0 && p->opt->again)
        r = image_store_remake_disks(p->store, digest, e);
    return r < 0 ? r : image_store_tag(p->store, ref, digest, true, e);
}

static int pull_all(struct pull *p, const struct reference *ref, struct buf *manifest,
                    struct buf *config, struct digest *ret, struct err *e)
{
    struct registry_options o = p->opt->registry;
    struct digest digest;
    o.cancel[1] = &p->stop;
    int r = registry_open(&p->registry, ref, &o, e);
    if (r == 0)
        r = get_manifest(p, ref, manifest, &digest, e);
    if (r == 0)
        r = get_config(p, config, e);
    if (r == 0)
        r = get_layers(p, e);
    if (r == 0)
        r = store_image(p, ref, manifest, config, &digest, e);
    if (r == 0)
        *ret = digest;
    return r;
}

static void init_sync(struct pull *p)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&p->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&p->lock, NULL);
}

int pull_image(struct image_store *s, const struct reference *ref, const struct pull_options *opt,
               const struct pull_events *ev, struct digest *ret, struct err *e)
{
    struct oci_platform host = {0};
    if (!opt->platform)
        oci_platform_host(&host);
    struct pull p = {
        .store = s, .opt = opt, .ev = ev, .platform = opt->platform ? opt->platform : &host};
    AUTO_BUF struct buf manifest = {.limit = OCI_DOCUMENT_MAX};
    AUTO_BUF struct buf config;
    init_sync(&p);
    buf_init(&config, OCI_CONFIG_MAX + 16384); /* room for the last read */
    int r = pull_all(&p, ref, &manifest, &config, ret, e);
    for (size_t i = 0; p.made && i < p.manifest.n_layers; i++)
        free(p.made[i].media_type);
    free(p.made);
    free(p.layers);
    oci_manifest_free(&p.manifest);
    oci_config_free(&p.config);
    registry_free(p.registry);
    oci_platform_free(&host);
    (void)pthread_cond_destroy(&p.changed);
    (void)pthread_mutex_destroy(&p.lock);
    return r;
}
