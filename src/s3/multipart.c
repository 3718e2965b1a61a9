/* Uploads a large file in parts, several at a time. They are read one after another, under a lock,
 * and exactly what was read is hashed and sent: so the hash matches the object, whatever happens to
 * the file meanwhile.
 */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { HELPERS = S3_THREADS - 1 };

struct sending {
    struct s3_work *w;
    const char *path;
    int fd;
    struct s3_upload up;
    struct s3_resume resume;
    pthread_mutex_t lock; /* guards what follows, and the file's offset */
    struct hasher h;
    uint64_t size;
    unsigned parts;
    bool end;
    int failed;
    struct err error; /* the first one */
};

struct part {
    uint8_t *p; /* S3_PART bytes */
    size_t n;
    unsigned number; /* from 1 */
};

/* Counts what was read as the next part. */
static int count(struct sending *x, struct part *a, struct err *e)
{
    x->size += a->n;
    x->end = a->n < S3_PART;
    if (x->size > S3_FILE_MAX)
        return err_set(e, EFBIG, "'%s' grew while it was being uploaded", x->path);
    hasher_update(&x->h, a->p, a->n);
    a->number = ++x->parts;
    return 0;
}

static void fail(struct sending *x, int r, const struct err *e)
{
    if (!x->failed) {
        x->failed = r;
        x->error = *e;
    }
}

/* False: there are no more parts, or they are no longer needed. */
static bool next(struct sending *x, struct part *a)
{
    struct err e = {0};
    (void)pthread_mutex_lock(&x->lock);
    ssize_t n = x->end || x->failed ? 0 : read_up_to(x->fd, a->p, S3_PART);
    int r = n < 0 ? err_sys(&e, (int)-n, "cannot read '%s'", x->path) : 0;
    a->n = n < 0 ? 0 : (size_t)n;
    if (a->n)
        r = count(x, a, &e);
    if (r < 0)
        fail(x, r, &e);
    (void)pthread_mutex_unlock(&x->lock);
    return r == 0 && a->n;
}

static void deliver(struct sending *x, const struct part *a)
{
    struct err e = {0};
    char sha[DIGEST_HEX_SIZE];
    digest_hex_of(a->p, a->n, sha);
    if (s3_resume_has(&x->resume, a->number, sha, &x->up))
        return;
    int r = s3_upload_part(x->w->client, &x->up, a->number, a->p, a->n, sha, &e);
    if (r == 0) {
        s3_resume_note(&x->resume, a->number, sha, &x->up);
        return;
    }
    (void)pthread_mutex_lock(&x->lock);
    fail(x, r, &e);
    (void)pthread_mutex_unlock(&x->lock);
}

static void *help(void *ctx)
{
    struct sending *x = ctx;
    AUTO_FREE uint8_t *p = malloc(S3_PART);
    struct part a = {.p = p};
    while (p && next(x, &a))
        deliver(x, &a);
    s3_work_dismiss(x->w);
    return NULL;
}

/* Sends the parts, with the help of as many threads as may be hired. */
static void deliver_all(struct sending *x, struct part *first, uint64_t size)
{
    pthread_t helper[HELPERS];
    size_t n = 0, useful = (size_t)MIN(size / S3_PART, (uint64_t)HELPERS);
    struct part a = *first;
    do {
        while (n < useful && s3_work_hire(x->w)) {
            if (pthread_create(&helper[n], NULL, help, x) == 0) {
                n++;
                continue;
            }
            s3_work_dismiss(x->w);
            useful = n;
        }
        deliver(x, &a);
    } while (next(x, &a));
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(helper[i], NULL);
}

/* If the reply is lost, a retry is told that there is no such upload, or that there is an object
 * already, which may be another one. */
static int finish(struct sending *x, const struct s3_put *how, struct s3_entry *got, struct err *e)
{
    struct s3_object o;
    struct s3_client *c = x->w->client;
    int r = s3_upload_end(c, &x->up, x->parts, how, got->etag, e);
    if ((r != -ENOENT && r != -EEXIST) || s3_head(c, x->up.key, &o, NULL) < 0 ||
        strcmp(o.id, how->id) != 0 || o.size != (int64_t)x->size || o.mtime_ns != got->mtime_ns)
        return r;
    err_clear(e);
    memcpy(got->etag, o.etag, sizeof(o.etag));
    return 0;
}

int s3_put_parts(struct s3_work *w, const char *key, const struct s3_put *how, int fd,
                 uint8_t *first, struct s3_entry *got, struct err *e)
{
    struct part a = {.p = first, .n = S3_PART};
    AUTO_FREE struct sending *x = calloc(1, sizeof(*x));
    if (!x)
        return err_oom(e);
    x->w = w;
    x->path = got->path;
    x->fd = fd;
    int r = s3_resume_begin(w, x->path, key, how->meta, &x->up, &x->resume, e);
    if (r < 0) {
        free(x->resume.part);
        return r;
    }
    (void)pthread_mutex_init(&x->lock, NULL);
    hasher_init(&x->h);
    (void)count(x, &a, NULL); /* one is never too large */
    deliver_all(x, &a, got->size);
    r = x->failed;
    if (r < 0)
        err_copy(e, &x->error);
    if (r == 0)
        r = finish(x, how, got, e);
    s3_resume_end(w, x->path, &x->up, &x->resume, r);
    hasher_hex(&x->h, got->sha);
    got->size = x->size;
    s3_upload_free(&x->up);
    (void)pthread_mutex_destroy(&x->lock);
    return r;
}
