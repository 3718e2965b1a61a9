#include "monitor/control.h"

#include "monitor/net_setup.h"
#include "spec/signals.h"
#include "util/cleanup.h"
#include "virtio/fs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CONTROL_IN_MAX = 2 * (PROTO_HDR_LEN + PROTO_DATA_MAX), CONTROL_TEXT_MAX = 512 };

static void control_flush(struct control *c)
{
    if (c->stream && buf_len(&c->out))
        buf_consume(&c->out, vsock_send_buf(c->stream, buf_head(&c->out), buf_len(&c->out)));
}

/* The last part of a path, which does not end in '/'. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Mounted disks follow the sandbox's own: tools, image, and the writable layer if it is a disk. */
static void put_disk(struct proto_writer *w, const struct spec_mount *m, size_t index)
{
    char dev[] = "/dev/vda";
    dev[sizeof(dev) - 2] = (char)('a' + index);
    proto_str(w, F_DEVICE, dev);
    proto_str(w, F_FSTYPE, m->fstype ? m->fstype : "ext4");
}

static void put_mount(struct proto_writer *w, const struct spec_mount *m, size_t *share,
                      size_t *disk)
{
    size_t mark = proto_nest(w, F_MOUNT);
    proto_str(w, F_PATH, m->guest);
    proto_u32(w, F_OPTIONS, m->options | (m->pod ? PROTO_MOUNT_POD : 0));
    if (m->kind == MOUNT_TMPFS) {
        proto_u64(w, F_SIZE, m->size);
        proto_u32(w, F_MOUNT_MODE, m->mode);
        proto_u32(w, F_MOUNT_UID, m->uid);
        proto_u32(w, F_MOUNT_GID, m->gid);
    } else if (mount_is_disk(m)) {
        put_disk(w, m, (*disk)++);
    } else {
        char tag[VIRTIO_FS_TAG_TEXT];
        virtio_fs_tag((*share)++, tag);
        proto_str(w, F_TAG, tag);
        if (m->file)
            proto_str(w, F_FILE, last_part(m->source));
    }
    proto_nest_end(w, mark);
}

static void put_strings(struct proto_writer *w, uint16_t tag, const struct strlist *l)
{
    for (size_t i = 0; i < l->n; i++)
        proto_str(w, tag, l->v[i]);
}

static void put_rlimit(struct proto_writer *w, const struct spec_rlimit *l)
{
    size_t mark = proto_nest(w, F_RLIMIT);
    proto_u32(w, F_RESOURCE, l->resource);
    proto_u64(w, F_SOFT, l->soft);
    proto_u64(w, F_HARD, l->hard);
    proto_nest_end(w, mark);
}

/* Includes variables for programs that bring their own certificates, or ask where they are; the
 * user's and the image's settings come later, and take precedence. */
static void put_host_cas(struct proto_writer *w, const char *pem)
{
    static const char *const variables[] = {
        "SSL_CERT_FILE",  "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO", "PIP_CERT",           "AWS_CA_BUNDLE",       "DENO_CERT"};
    proto_str(w, F_HOST_CAS, pem);
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        char text[96];
        (void)snprintf(text, sizeof(text), "%s=%s", variables[i], PROTO_CAS_BUNDLE);
        proto_str(w, F_ENV, text);
    }
}

static void put_security(struct proto_writer *w, const struct spec_security *s)
{
    if (s->caps != SPEC_CAPS_ALL)
        proto_u64(w, F_CAPABILITIES, s->caps);
    if (s->no_new_privs)
        proto_u32(w, F_NO_NEW_PRIVS, 1);
    if (s->read_only)
        proto_u32(w, F_READ_ONLY, 1);
    if (s->pids)
        proto_u32(w, F_PIDS_MAX, s->pids);
    put_strings(w, F_GROUP, &s->groups);
    put_strings(w, F_SYSCTL, &s->sysctls);
}

/* The placeholder for each secret that is bound to hosts. */
static void put_placeholders(struct proto_writer *w, const struct spec_bound *b)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    for (size_t i = 0; x && i < b->secrets.n; i++) {
        char text[SUBST_NAME_MAX + SUBST_HOLDER_MAX + 2];
        if (spec_bound_parse(b->secrets.v[i], x, NULL) < 0)
            continue;
        for (size_t k = 0; spec_bound_variable(x, k); k++) {
            (void)snprintf(text, sizeof(text), "%s=%s", spec_bound_variable(x, k), x->holder);
            proto_str(w, F_ENV, text);
        }
    }
}

static void put_init(struct proto_writer *w, const struct guest_init *i)
{
    if (i->path)
        proto_str(w, F_INIT, i->path);
    put_strings(w, F_INIT_ARG, &i->args);
    put_strings(w, F_INIT_ENV, &i->env);
}

static int put_config(struct control *c)
{
    const struct sandbox_spec *s = c->spec;
    struct proto_writer w;
    proto_begin(&w, &c->out, PROTO_CONFIG);
    proto_str(&w, F_HOSTNAME, s->hostname);
    if (!s->root_share)
        proto_str(&w, F_LOWER_DEV, "/dev/vdb");
    if (c->upper_dev)
        proto_str(&w, F_UPPER_DEV, c->upper_dev);
    else
        proto_u64(&w, F_UPPER_SIZE, s->root_disk_bytes);
    if (c->upper_dev && s->root_disk_grown)
        proto_u32(&w, F_UPPER_GROW, 1);
    if (s->ephemeral && !s->root_disk_file && spec_disk_sync(s) == DISK_SYNC_NEVER)
        proto_u32(&w, F_UPPER_VOLATILE, 1);
    if (c->host_cas)
        put_host_cas(&w, c->host_cas);
    put_strings(&w, F_ENV, &s->env);
    put_placeholders(&w, &s->net.bound);
    if (s->workdir)
        proto_str(&w, F_CWD, s->workdir);
    if (s->user)
        proto_str(&w, F_USER, s->user);
    for (size_t i = 0; i < s->n_rlimits; i++)
        put_rlimit(&w, &s->rlimits[i]);
    size_t share = 0, disk = c->upper_dev ? 3 : s->root_share ? 1 : 2;
    for (size_t i = 0; i < s->n_mounts; i++)
        put_mount(&w, &s->mounts[i], &share, &disk);
    for (size_t i = 0; i < s->n_scripts; i++) {
        size_t mark = proto_nest(&w, F_SCRIPT);
        proto_str(&w, F_NAME, s->scripts[i].name);
        proto_str(&w, F_BODY, s->scripts[i].body);
        proto_nest_end(&w, mark);
    }
    put_strings(&w, F_DIRECTORY, &s->volumes);
    put_strings(&w, F_MASK, &s->masked);
    put_strings(&w, F_FIXED, &s->fixed);
    put_strings(&w, F_WRITE_PATH, &s->write_paths);
    put_security(&w, &s->security);
    if (s->thp != THP_MADVISE)
        proto_str(&w, F_THP, thp_name(s->thp));
    put_init(&w, &s->init);
    if (s->stop_signal)
        proto_u32(&w, F_STOP_SIGNAL, (uint32_t)signal_number(s->stop_signal));
    if (c->tap)
        net_put_tap(&w, c->tap);
    else
        net_put_config(&w, &s->net, c->host);
    return proto_end(&w);
}

static void greet(struct control *c, const struct proto_frame *f)
{
    if (!proto_is_hello(f)) {
        c->ev->failed(c->ctx, "the agent speaks another version of the protocol");
        return;
    }
    c->greeted = true;
    if (put_config(c) < 0) {
        c->ev->failed(c->ctx, "the sandbox's settings are too large to send");
        return;
    }
    control_flush(c);
}

/* A guest may claim anything; users of the value do their own bounds checks. */
static void note_cpu(struct control *c, const struct proto_frame *f)
{
    c->cpu_ns = MAX(c->cpu_ns, proto_find_num(f, F_CPU_NS, 0));
}

static void control_handle(struct control *c, const struct proto_frame *f)
{
    char text[CONTROL_TEXT_MAX];
    assert(c->called && (c->greeted || !c->ready) && (c->ready || !c->sealing));
    if (!c->greeted) {
        greet(c, f);
        return;
    }
    switch (f->type) {
    case PROTO_READY:
        if (!c->ready) {
            c->ready = true;
            c->ev->ready(c->ctx);
        }
        break;
    case PROTO_FAIL:
        if (!c->ready || c->sealing) {
            proto_find_text(f, F_TEXT, text, sizeof(text));
            c->ev->failed(c->ctx, text);
        }
        break;
    case PROTO_SEALED:
        if (c->sealing) {
            c->sealing = false;
            c->ev->sealed(c->ctx);
        }
        break;
    case PROTO_PONG:
        note_cpu(c, f);
        c->ev->pong(c->ctx, proto_find_num(f, F_COOKIE, 0));
        break;
    case PROTO_DOWN:
        note_cpu(c, f);
        c->ev->down(c->ctx);
        break;
    case PROTO_OOM:
        c->ev->oom(c->ctx, proto_find_num(f, F_KILLS, 0));
        break;
    case PROTO_LOG:
        proto_find_text(f, F_TEXT, text, sizeof(text));
        c->ev->log(c->ctx, text);
        break;
    default: /* from a newer version */
        break;
    }
}

static void hang_up(struct control *c)
{
    if (c->stream) {
        struct vsock_stream *s = c->stream;
        c->stream = NULL;
        vsock_abort(s);
    }
    c->ev->lost(c->ctx);
}

static size_t on_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    struct control *c = ctx;
    size_t taken = 0;
    assert(c->stream == s);
    while (taken < n) {
        struct proto_frame f;
        int r;
        assert(buf_len(&c->in) <= CONTROL_IN_MAX);
        size_t k = MIN(n - taken, CONTROL_IN_MAX - buf_len(&c->in));
        bool full = k == 0 || buf_append(&c->in, (const uint8_t *)p + taken, k) < 0;
        taken += k;
        while ((r = proto_peek(&c->in, &f)) == 1) {
            control_handle(c, &f);
            proto_consume(&c->in, &f);
        }
        if (r < 0 || full) { /* our agent sends no frame that does not fit */
            hang_up(c);
            break;
        }
    }
    return n;
}

static void on_writable(struct vsock_stream *s, void *ctx)
{
    control_flush(ctx);
}

static void on_closed(struct vsock_stream *s, void *ctx, bool reset)
{
    struct control *c = ctx;
    c->stream = NULL;
    c->ev->lost(c->ctx);
}

static void on_peer_shutdown(struct vsock_stream *s, void *ctx)
{
    hang_up(ctx);
}

static const struct vsock_stream_ops control_ops = {
    .data = on_data,
    .writable = on_writable,
    .peer_shutdown = on_peer_shutdown,
    .closed = on_closed,
};

static int on_call(struct vsock_stream *s, void *ctx)
{
    struct control *c = ctx;
    if (c->called) /* the agent connects once; this is another program */
        return -EBUSY;
    c->called = true;
    c->stream = s;
    vsock_set_ops(s, &control_ops, c);
    return 0;
}

int control_init(struct control *c, struct virtio_dev *vsock, const struct sandbox_spec *spec,
                 const struct net_host *host, const char *upper_dev,
                 const struct control_events *ev, void *ctx)
{
    *c = (struct control){.spec = spec, .host = host, .upper_dev = upper_dev, .ev = ev, .ctx = ctx};
    buf_init(&c->in, CONTROL_IN_MAX);
    buf_init(&c->out, 2 * (size_t)PROTO_MSG_MAX);
    return vsock_listen(vsock, PROTO_PORT_CONTROL, on_call, c);
}

static bool send_number(struct control *c, uint16_t type, uint16_t tag, uint64_t v)
{
    struct proto_writer w;
    if (!c->stream || !c->ready || buf_len(&c->out) > PROTO_DATA_MAX)
        return false; /* it is not there, or not reading */
    proto_begin(&w, &c->out, type);
    proto_u64(&w, tag, v);
    bool ok = proto_end(&w) == 0;
    control_flush(c);
    return ok;
}

bool control_seal(struct control *c)
{
    assert(!c->sealing);
    c->sealing = send_number(c, PROTO_SEAL, F_COOKIE, 0);
    return c->sealing;
}

bool control_ping(struct control *c, uint64_t cookie)
{
    return send_number(c, PROTO_PING, F_COOKIE, cookie);
}

void control_env(struct control *c, const struct proto_frame *request)
{
    struct proto_writer w;
    struct proto_reader r;
    struct proto_field x;
    if (!c->stream || !c->ready || buf_len(&c->out) > PROTO_DATA_MAX)
        return;
    proto_begin(&w, &c->out, PROTO_ENV);
    proto_reader_init(&r, request->data, request->len);
    while (proto_next(&r, &x) == 1)
        if (x.tag == F_ENV)
            proto_bytes(&w, F_ENV, x.data, x.len);
    (void)proto_end(&w);
    control_flush(c);
}

bool control_shutdown(struct control *c, uint64_t grace_ms)
{
    return send_number(c, PROTO_SHUTDOWN, F_GRACE_MS, grace_ms);
}
