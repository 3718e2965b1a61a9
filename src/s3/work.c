#include "s3/work.h"
#include "util/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

void s3_work_stamp(struct s3_work *w)
{
    time_t now = time(NULL);
    struct tm tm = {0};
    (void)gmtime_r(&now, &tm);
    (void)strftime(w->stamp, sizeof(w->stamp), "%Y%m%d-%H%M%S", &tm);
}

void s3_work_count(struct s3_work *w, uint64_t *n, uint64_t *bytes, uint64_t size)
{
    (void)pthread_mutex_lock(&w->lock);
    ++*n;
    if (bytes)
        *bytes += size;
    (void)pthread_mutex_unlock(&w->lock);
}

void s3_work_warn(struct s3_work *w, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)pthread_mutex_lock(&w->lock);
    w->warn(w->warn_ctx, text);
    (void)pthread_mutex_unlock(&w->lock);
}

struct crew {
    struct s3_work *w;
    size_t n;
    s3_number_fn fn;
    const void *ctx;
};

bool s3_work_hire(struct s3_work *w)
{
    if (atomic_fetch_add(&w->crew, 1) < S3_THREADS)
        return true;
    s3_work_dismiss(w);
    return false;
}

void s3_work_dismiss(struct s3_work *w)
{
    (void)atomic_fetch_sub(&w->crew, 1);
}

static void *work(void *ctx)
{
    const struct crew *c = ctx;
    struct s3_work *w = c->w;
    for (;;) {
        size_t i = atomic_fetch_add(&w->next, 1);
        if (i >= c->n || atomic_load(&w->cancel)) {
            s3_work_dismiss(w);
            return NULL;
        }
        struct err e = {0};
        int r = c->fn(w, c->ctx, i, &e);
        if (r == 0)
            continue;
        (void)pthread_mutex_lock(&w->lock);
        if (!w->failed) {
            w->failed = r;
            *w->error = e;
        }
        (void)pthread_mutex_unlock(&w->lock);
        atomic_store(&w->cancel, true);
    }
}

int s3_work_numbers(struct s3_work *w, size_t n, s3_number_fn fn, const void *ctx, struct err *e)
{
    struct crew c = {.w = w, .n = n, .fn = fn, .ctx = ctx};
    pthread_t thread[S3_THREADS];
    size_t threads = 0;
    struct err first = {0};
    w->error = &first;
    w->failed = 0;
    atomic_store(&w->next, 0);
    atomic_store(&w->crew, (int)MIN((size_t)S3_THREADS, n));
    while (threads < MIN((size_t)S3_THREADS, n) &&
           pthread_create(&thread[threads], NULL, work, &c) == 0)
        threads++;
    if (threads == 0)
        (void)work(&c);
    for (size_t i = 0; i < threads; i++)
        (void)pthread_join(thread[i], NULL);
    w->error = NULL;
    if (w->failed < 0)
        err_copy(e, &first);
    return w->failed;
}

static int do_step(struct s3_work *w, const void *fn, size_t i, struct err *e)
{
    int r = (*(const s3_step_fn *)fn)(w, &w->plan.v[i], e);
    progress_file();
    return r;
}

int s3_work_each(struct s3_work *w, s3_step_fn fn, struct err *e)
{
    progress_begin(w->plan.n);
    return s3_work_numbers(w, w->plan.n, do_step, &fn, e);
}
