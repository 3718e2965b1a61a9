#include "image/layer/convert.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "image/erofs/tree.h"
#include "image/layer/decode.h"
#include "image/layer/layer.h"
#include "image/layer/source.h"

/* #syscalls:converter read write pwrite64 pread64 ftruncate fstatfs close
 * mmap munmap mremap brk madvise mprotect getrandom
 * futex exit exit_group rt_sigprocmask rt_sigreturn restart_syscall
 * rseq set_robust_list sched_yield */

enum {
    SLOTS = 4,
    SLOT_SIZE = 256 << 10, /* whole tar blocks, so that the parser copies nothing */
    STACK_SIZE = 512 << 10,
};
/* A tar is larger than its files: headers, padding, long names. */
#define TAR_OVERHEAD (64ULL << 20)

struct convert_ring {
    struct decoder decoder;
    int (*confine)(void);
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, go, stop, done;
    unsigned filled, taken; /* totals; filled - taken are in use */
    size_t len[SLOTS];
    struct err e; /* why it is done; code 0: the end of the stream */
    uint8_t mem[SLOTS][SLOT_SIZE];
};

/* ---- the thread that decompresses ---- */

/* False if no more is wanted. */
static bool wait_for_slot(struct convert_ring *r)
{
    (void)pthread_mutex_lock(&r->lock);
    while (!r->stop && (!r->go || r->filled - r->taken == SLOTS))
        (void)pthread_cond_wait(&r->changed, &r->lock);
    bool more = !r->stop;
    (void)pthread_mutex_unlock(&r->lock);
    return more;
}

static void *decompress(void *arg)
{
    struct convert_ring *r = arg;
    int confined = r->confine ? r->confine() : 0;
    for (bool more = true; more && wait_for_slot(r);) {
        struct err e = {0};
        unsigned slot = r->filled % SLOTS;
        ssize_t n = confined < 0 ? err_sys(&e, -confined, "cannot confine the converter")
                                 : decoder_read(&r->decoder, r->mem[slot], SLOT_SIZE, &e);
        (void)pthread_mutex_lock(&r->lock);
        more = n == SLOT_SIZE;
        r->done = !more;
        r->e = e;
        r->len[slot] = n > 0 ? (size_t)n : 0;
        r->filled += n > 0;
        (void)pthread_cond_broadcast(&r->changed);
        (void)pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

static void ring_free(struct convert_ring *r)
{
    if (!r)
        return;
    (void)pthread_mutex_lock(&r->lock);
    r->stop = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->lock);
    if (r->started)
        (void)pthread_join(r->thread, NULL);
    decoder_free(&r->decoder);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

static int ring_new(struct convert_ring **ret, int in_fd)
{
    struct convert_ring *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->changed, NULL);
    if (decoder_init(&r->decoder, in_fd) < 0) {
        ring_free(r);
        return -ENOMEM;
    }
    *ret = r;
    return 0;
}

/* ---- the thread that parses and writes ---- */

struct feed {
    struct convert *c;
    bool holding; /* the parser has a slot */
    uint64_t bytes;
};

static ssize_t next_bytes(void *ctx, const void **ret, struct err *e)
{
    struct feed *f = ctx;
    struct convert_ring *r = f->c->ring;
    (void)pthread_mutex_lock(&r->lock);
    if (f->holding) {
        r->taken++;
        (void)pthread_cond_broadcast(&r->changed);
    }
    f->holding = false;
    while (r->filled == r->taken && !r->done)
        (void)pthread_cond_wait(&r->changed, &r->lock);
    assert(r->filled - r->taken <= SLOTS);
    bool have = r->filled != r->taken;
    (void)pthread_mutex_unlock(&r->lock);
    if (!have) {
        if (r->e.code)
            err_copy(e, &r->e);
        return -r->e.code;
    }
    f->holding = true;
    unsigned slot = r->taken % SLOTS;
    f->bytes += r->len[slot];
    if (f->bytes > f->c->max_tar)
        return err_set(e, EFBIG, "it expands to more than the limit of %llu MiB",
                       (unsigned long long)(f->c->max_bytes >> 20));
    hasher_update(&f->c->hash, r->mem[slot], r->len[slot]);
    *ret = r->mem[slot];
    return (ssize_t)r->len[slot];
}

int convert_init(struct convert *c, int in_fd, int out_fd, int spool_dirfd, bool layer,
                 const struct convert_limits *limits, struct err *e)
{
    uint64_t bytes = limits->max_bytes ? limits->max_bytes : IMAGE_EXPANDED_MAX_DEFAULT;
    uint64_t more = bytes / 8 + TAR_OVERHEAD;
    *c = (struct convert){
        .in_fd = in_fd,
        .layer = layer,
        .max_bytes = bytes,
        .max_tar = bytes > UINT64_MAX - more ? UINT64_MAX : bytes + more,
        .max_entries = limits->max_entries ? limits->max_entries : TREE_ENTRIES_MAX,
        .locale = newlocale(LC_ALL_MASK, "C", (locale_t)0),
    };
    decode_prepare();
    source_tar_prepare();
    erofs_begin(&c->w, out_fd, spool_dirfd);
    if (layer)
        erofs_set_layer(&c->w, LAYER_INLINE_MAX);
    hasher_init(&c->hash);
    int r = c->locale ? 0 : -ENOMEM;
    if (r == 0)
        r = ring_new(&c->ring, in_fd);
    if (r == 0)
        r = erofs_open_spool(&c->w);
    if (r < 0) {
        convert_free(c);
        return err_sys(e, -r, "cannot prepare the conversion");
    }
    return 0;
}

int convert_start(struct convert *c, int (*confine)(void))
{
    struct convert_ring *r = c->ring;
    r->confine = confine;
    pthread_attr_t attr;
    int code = pthread_attr_init(&attr);
    if (code == 0) {
        (void)pthread_attr_setstacksize(&attr, STACK_SIZE);
        code = pthread_create(&r->thread, &attr, decompress, r);
        (void)pthread_attr_destroy(&attr);
    }
    r->started = code == 0;
    return -code;
}

static int convert_tree(struct convert *c, struct tree *t, struct convert_made *ret, struct err *e)
{
    struct feed f = {.c = c};
    struct source_tar s = {.next = next_bytes, .ctx = &f, .layer = c->layer, .locale = c->locale};
    int r = source_tar_load(&s, t, &c->w, e);
    ret->diff_id = hasher_finish(&c->hash);
    if (r == 0)
        r = erofs_finish(&c->w, t, e);
    ret->tar_size = f.bytes;
    ret->erofs_size = c->w.size;
    ret->entries = t->entries;
    return r;
}

int convert_run(struct convert *c, struct convert_made *ret, struct err *e)
{
    struct convert_ring *r = c->ring;
    struct tree t;
    int code = r->started ? 0 : convert_start(c, NULL);
    if (code == 0)
        code = tree_init(&t, c->max_entries, c->max_bytes);
    if (code < 0)
        return err_sys(e, -code, "cannot prepare the conversion");
    (void)pthread_mutex_lock(&r->lock);
    r->go = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->lock);
    code = convert_tree(c, &t, ret, e);
    tree_free(&t);
    return code;
}

void convert_free(struct convert *c)
{
    ring_free(c->ring);
    erofs_abort(&c->w);
    if (c->locale)
        freelocale(c->locale);
    *c = (struct convert){.in_fd = -1};
    c->w.spool_fd = -1;
}
