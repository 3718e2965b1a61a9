#include "cli/image/progress.h"

#include "cli/core/ui.h"
#include "cli/image/cache.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/term.h"
#include "util/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    NOTICES_MAX = 8, /* waiting to be shown */
    BAR_MIN = 10,
    BAR_MAX = 40,
    COLUMNS_DEFAULT = 80,
    ROWS_DEFAULT = 24,
    STUCK_NS = 3 * 1000000000LL, /* how long workers may take to notice an interrupt */
};

struct progress {
    const struct pull_layer *layers;
    size_t n;
    int *shown;         /* states that plain lines have reported */
    const char *moving; /* "Downloading" */
    bool tty, color;
    unsigned drawn; /* lines on the terminal that are ours to redraw */
    uint64_t interrupted_ns;
    pthread_t owner;
    pthread_mutex_t lock; /* guards what follows */
    char *notices[NOTICES_MAX];
    size_t n_notices;
};

/* --- signals -------------------------------------------------------------------------------- */

static atomic_bool interrupted;
static volatile sig_atomic_t interrupted_by;

static void on_signal(int sig)
{
    interrupted_by = sig;
    atomic_store(&interrupted, true);
}

static const int watched[] = {SIGINT, SIGTERM, SIGHUP};

/* Once: the second Ctrl-C ends the process, wherever it is. */
static void watch_signals(struct sigaction old[ARRAY_LEN(watched)])
{
    atomic_store(&interrupted, false);
    interrupted_by = 0;
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < ARRAY_LEN(watched); i++) {
        (void)sigaction(watched[i], NULL, &old[i]);
        if (old[i].sa_handler != SIG_IGN)
            (void)sigaction(watched[i], &sa, NULL);
    }
}

static void restore_signals(const struct sigaction old[ARRAY_LEN(watched)])
{
    for (size_t i = 0; i < ARRAY_LEN(watched); i++)
        (void)sigaction(watched[i], &old[i], NULL);
}

int cli_pull_exit_code(void)
{
    return interrupted_by ? 128 + interrupted_by : 1;
}

/* --- drawing -------------------------------------------------------------------------------- */

static void short_digest(const struct pull_layer *l, char out[16])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(&l->blob, hex);
    (void)snprintf(out, 16, "%.12s", hex);
}

static unsigned rows_of(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 ? w.ws_row : ROWS_DEFAULT;
}

/* "   0123456789ab  Downloading  [====>     ]  1.2 MiB / 4.5 MiB" */
static void draw_layer(const struct progress *p, const struct pull_layer *l, unsigned columns,
                       struct buf *out)
{
    const char *const words[] = {"Waiting", p->moving, "Done", "Exists"};
    char id[16], total[24], read[24], bar[BAR_MAX + 1] = "";
    int state = atomic_load(&l->state);
    uint64_t have = MAX(atomic_load(&l->progress.read), atomic_load(&l->resumed));
    short_digest(l, id);
    format_bytes(l->size, total, sizeof(total));
    format_bytes(MIN(have, l->size), read, sizeof(read));
    /* What is beside the bar: 3 + 12 + 2 + 11 + 2, "[", "]  ", two sizes of at most 10 with " / ".
     */
    unsigned room = columns > 60 + BAR_MIN ? MIN(columns - 60, (unsigned)BAR_MAX) : 0;
    unsigned full =
        l->size ? (unsigned)((double)MIN(have, l->size) / (double)l->size * room) : room;
    for (unsigned i = 0; i < room; i++)
        bar[i] = (char)(i < full ? '=' : i == full ? '>' : ' ');
    const char *color = state == PULL_DOWNLOADING ? SGR_CYAN : state == PULL_DONE ? SGR_GREEN : "";
    bool on = p->color && *color;
    (void)buf_printf(out, "\r   %s  %s%-11s%s  ", id, on ? color : "", words[state],
                     on ? SGR_RESET : "");
    if (state == PULL_DOWNLOADING && room)
        (void)buf_printf(out, "[%s]  ", bar);
    if (state == PULL_DOWNLOADING)
        (void)buf_printf(out, "%s / ", read);
    (void)buf_printf(out, "%s\x1b[K\n", total);
}

static bool finished(const struct pull_layer *l)
{
    int state = atomic_load(&l->state);
    return state == PULL_DONE || state == PULL_EXISTS;
}

/* All layers where they fit; else those that are not finished, and how many are. */
static void draw(struct progress *p)
{
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    unsigned columns = term_columns(STDERR_FILENO, COLUMNS_DEFAULT);
    unsigned rows = rows_of(STDERR_FILENO), lines = 0;
    size_t max = rows > 3 ? rows - 3 : 1;
    if (p->drawn)
        (void)buf_printf(&out, "\x1b[%uA", p->drawn);
    bool all = p->n <= max;
    size_t done = 0;
    for (size_t i = 0; i < p->n; i++) {
        bool is_done = finished(&p->layers[i]);
        done += is_done;
        if (lines >= max || (!all && is_done))
            continue;
        draw_layer(p, &p->layers[i], columns, &out);
        lines++;
    }
    if (!all) {
        (void)buf_printf(&out, "\r   %zu of %zu layers done\x1b[K\n", done, p->n);
        lines++;
    }
    /* Fewer lines than before: wipe what is below. */
    if (lines < p->drawn)
        (void)buf_printf(&out, "\x1b[J");
    if (buf_len(&out) && write(STDERR_FILENO, buf_head(&out), buf_len(&out)) > 0)
        p->drawn = lines;
}

static void say_plainly(struct progress *p)
{
    static const char *const words[] = {"waiting", "downloading", "done", "exists"};
    for (size_t i = 0; i < p->n && p->shown; i++) {
        int state = atomic_load(&p->layers[i].state);
        if (state == p->shown[i] || !finished(&p->layers[i]))
            continue;
        char id[16], total[24], line[96];
        short_digest(&p->layers[i], id);
        format_bytes(p->layers[i].size, total, sizeof(total));
        (void)snprintf(line, sizeof(line), "   %s  %-6s  %s", id, words[state], total);
        ui_note(line);
        p->shown[i] = state;
    }
}

/* --- events --------------------------------------------------------------------------------- */

/* Erases what is drawn, so that a line can be written in its place. */
static void wipe(struct progress *p)
{
    if (p->drawn)
        (void)fprintf(stderr, "\x1b[%uA\r\x1b[J", p->drawn);
    p->drawn = 0;
}

static void show_notices(struct progress *p)
{
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_notices; i++) {
        wipe(p);
        ui_warn(p->notices[i]);
        free(p->notices[i]);
    }
    p->n_notices = 0;
    (void)pthread_mutex_unlock(&p->lock);
}

/* Workers must not write into the display: the next tick does. */
static void on_notice(void *ctx, const char *text)
{
    struct progress *p = ctx;
    char *copy = strdup(text);
    if (copy)
        utf8_defuse(copy);
    (void)pthread_mutex_lock(&p->lock);
    if (copy && p->n_notices < NOTICES_MAX) {
        p->notices[p->n_notices++] = copy;
        copy = NULL;
    }
    (void)pthread_mutex_unlock(&p->lock);
    free(copy);
    if (pthread_equal(pthread_self(), p->owner))
        show_notices(p);
}

static void on_layers(void *ctx, const struct pull_layer *v, size_t n)
{
    struct progress *p = ctx;
    p->layers = v;
    p->n = n;
    p->shown = calloc(n, sizeof(*p->shown));
}

static void on_tick(void *ctx)
{
    struct progress *p = ctx;
    show_notices(p);
    if (!ui_shows(UI_INFO))
        ;
    else if (p->tty)
        draw(p);
    else
        say_plainly(p);
    if (!atomic_load(&interrupted))
        return;
    /* A worker may be waiting for another pull's lock. It is safe to die at any point. */
    if (p->interrupted_ns == 0)
        p->interrupted_ns = now_ns();
    else if (now_ns() - p->interrupted_ns > STUCK_NS)
        _exit(cli_pull_exit_code());
}

/* --- the whole ------------------------------------------------------------------------------ */

static int find_home(char **ret, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    int r = store_open(&s, e);
    if (r < 0)
        return r;
    *ret = strdup(s.home);
    return *ret ? 0 : err_oom(e);
}

/* Whether the next attempt can resume from what this one downloaded. */
static bool worth_keeping(int code)
{
    static const int passing[] = {EINTR,        EAGAIN,       ECONNRESET, ETIMEDOUT, EIO,
                                  ECONNREFUSED, EHOSTUNREACH, EACCES,     ENOENT,    ENOMEM};
    for (size_t i = 0; i < ARRAY_LEN(passing); i++)
        if (code == -passing[i])
            return true;
    return false;
}

/* A damaged or refused image leaves nothing, not even its good layers. While other processes use
 * the store nothing happens; a later removal does it. */
static void sweep(struct image_store *s)
{
    AUTO_STORE struct store home = STORE_NONE;
    struct image_collect opt = {.used = image_cache_used, .ctx = &home};
    if (store_open(&home, NULL) == 0)
        (void)image_store_collect(s, &opt, NULL, NULL);
}

static void record(const char *event, const char *name, const struct digest *digest, uint64_t began,
                   int r, const struct err *e)
{
    AUTO_STORE struct store home = STORE_NONE;
    char text[DIGEST_TEXT_SIZE];
    if (r == 0)
        digest_text(digest, text);
    if (store_open(&home, NULL) == 0)
        audit_done(
            &home, event, NULL,
            json_pack("{s:o*, s:s*}", "image", audit_text(name), "digest", r == 0 ? text : NULL),
            began, r, e);
}

/* What is set up during a transfer. */
struct transfer {
    struct progress p;
    struct pull_events ev;
    char *home, *name;
    struct sigaction old[ARRAY_LEN(watched)], old_pipe;
};

static int transfer_begin(struct transfer *t, const char *title, const char *moving,
                          const struct reference *ref, struct registry_options *o, struct err *e)
{
    *t = (struct transfer){.p = {.moving = moving,
                                 .tty = isatty(STDERR_FILENO) == 1 && !ui_shows(UI_DEBUG),
                                 .color = term_colors(STDERR_FILENO),
                                 .owner = pthread_self(),
                                 .lock = PTHREAD_MUTEX_INITIALIZER}};
    t->ev = (struct pull_events){.layers = on_layers, .tick = on_tick, .ctx = &t->p};
    t->name = reference_familiar(ref);
    if (!o->home) {
        int r = find_home(&t->home, e);
        if (r < 0) {
            free(t->name);
            return r;
        }
        o->home = t->home;
    }
    if (!o->notice) {
        o->notice = on_notice;
        o->ctx = &t->p;
    }
    if (!o->cancel[0])
        o->cancel[0] = &interrupted;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    watch_signals(t->old);
    (void)sigaction(SIGPIPE, &ignore, &t->old_pipe); /* a connection that is gone is an error */
    if (t->name && ui_shows(UI_INFO))
        (void)fprintf(stderr, "   %s %s\n", title, t->name);
    return 0;
}

static void transfer_end(struct transfer *t, int r, const char *verb, uint64_t began,
                         const struct digest *digest, struct err *e)
{
    show_notices(&t->p);
    (void)sigaction(SIGPIPE, &t->old_pipe, NULL);
    restore_signals(t->old);
    if (r < 0 && r != -EINTR && t->name && e)
        (void)err_wrap(e, r, "cannot %s %s", verb, t->name);
    record(verb, t->name, digest, began, r, e);
    free(t->p.shown);
    free(t->home);
    free(t->name);
}

int cli_pull(struct image_store *s, const struct reference *ref, const struct pull_options *opt,
             struct digest *ret, struct err *e)
{
    struct transfer t;
    struct pull_options o = *opt;
    uint64_t began = now_ns();
    int r = transfer_begin(&t, "Pulling", "Downloading", ref, &o.registry, e);
    if (r < 0)
        return r;
    r = pull_image(s, ref, &o, &t.ev, ret, e);
    if (r < 0 && !worth_keeping(r))
        sweep(s);
    if (r == -EINTR && e)
        err_hint(e, "downloaded data is kept: the next pull resumes from there");
    transfer_end(&t, r, "pull", began, ret, e);
    return r;
}

int cli_push(struct image_store *s, const struct image_record *rec, const struct reference *ref,
             const struct registry_options *opt, struct digest *ret, struct err *e)
{
    struct transfer t;
    struct registry_options o = *opt;
    uint64_t began = now_ns();
    int r = transfer_begin(&t, "Pushing", "Uploading", ref, &o, e);
    if (r < 0)
        return r;
    r = push_image(s, rec, ref, &o, &t.ev, ret, e);
    if (r == -EINTR && e)
        err_hint(e, "layers already uploaded are kept: the next push skips them");
    transfer_end(&t, r, "push", began, ret, e);
    return r;
}
