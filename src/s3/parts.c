/* Large files are fetched in parts, as they are read (util/later.h). Consecutive parts are fetched
 * with one request, and each counts as soon as it is here: the guest sees a part as a whole or not
 * at all.
 *
 * Parts are of the version with the ETag in the record. The hash can only be checked once all parts
 * are here, and is, before the last one counts: if it does not match the manifest, they are
 * discarded, and no more parts are fetched. The file may then be fetched as a whole: by a sync, or
 * for a writer.
 */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>

enum { WRONG = 1 }; /* a bit that belongs to no part */

/* --- who fetches what ------------------------------------------------------------------------ */

struct run {
    dev_t dev;
    ino_t ino;
    uint32_t next, end; /* the parts that are still missing; end 0 = a free slot */
};

/* Shared by this process's threads: no part is fetched twice at a time. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct run v[S3_THREADS];
} runs = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};

static bool is_under_way(const struct stat *st, uint32_t part)
{
    for (size_t i = 0; i < ARRAY_LEN(runs.v); i++) {
        const struct run *r = &runs.v[i];
        if (r->next <= part && part < r->end && r->dev == st->st_dev && r->ino == st->st_ino)
            return true;
    }
    return false;
}

/* Waits for the part if another thread is fetching it; claims the parts from there to `end`, up to
 * the first that is claimed already. Each thread has one run at a time, so there is a slot for it;
 * if not, NULL. */
static struct run *begin(const struct stat *st, uint32_t part, uint32_t end)
{
    struct run *mine = NULL;
    (void)pthread_mutex_lock(&runs.lock);
    while (is_under_way(st, part))
        (void)pthread_cond_wait(&runs.came, &runs.lock);
    for (size_t i = 0; !mine && i < ARRAY_LEN(runs.v); i++)
        mine = runs.v[i].end ? NULL : &runs.v[i];
    uint32_t to = part + 1;
    while (to < end && !is_under_way(st, to))
        to++;
    if (mine)
        *mine = (struct run){.dev = st->st_dev, .ino = st->st_ino, .next = part, .end = to};
    (void)pthread_mutex_unlock(&runs.lock);
    return mine;
}

/* end: gives up the parts from there on. */
static void set_run(struct run *r, uint32_t next, uint32_t end)
{
    (void)pthread_mutex_lock(&runs.lock);
    r->next = next;
    r->end = end;
    (void)pthread_cond_broadcast(&runs.came);
    (void)pthread_mutex_unlock(&runs.lock);
}

/* --- storing --------------------------------------------------------------------------------- */

struct arrival {
    struct s3_work *w;
    int fd;
    const struct s3_entry *of;
    struct run *run;
    s3_part_fn told;
    void *ctx;
    bool complete; /* all parts are here */
    size_t used;
    uint8_t bytes[LATER_PART]; /* of run->next */
};

static int refuse(const struct s3_entry *of, struct err *e)
{
    return err_set(e, EBADMSG, "'%s' in the bucket does not match the manifest", of->path);
}

/* Checks the hash: all parts are here, and the last one is about to count. */
static int check_sum(int fd, const struct s3_entry *of, struct err *e)
{
    char sha[DIGEST_HEX_SIZE];
    if (!of->sha[0] || of->guessed)
        return 0;
    int r = lseek(fd, 0, SEEK_SET) < 0 ? -errno : digest_hex_of_fd(fd, sha);
    if (r < 0)
        return err_sys(e, -r, "cannot read '%s'", of->path);
    if (strcmp(of->sha, sha) == 0)
        return 0;
    (void)later_parts_set(fd, (const uint8_t[LATER_PARTS_SIZE]){WRONG}, 1);
    return refuse(of, e);
}

/* Under the lock. -ECANCELED: the mark is gone, since the file was filled or written to
 * meanwhile. */
static int store(struct arrival *a, struct err *e)
{
    uint8_t parts[LATER_PARTS_SIZE];
    char id[LATER_SIZE];
    struct stat st;
    const struct s3_entry *of = a->of;
    uint32_t part = a->run->next, all = later_count(of->size), have = 0;
    if (!later_get(a->fd, id) || strcmp(id, of->later) != 0)
        return -ECANCELED;
    if (fstat(a->fd, &st) < 0)
        return err_sys(e, errno, "cannot look at '%s'", of->path);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    int r = pwrite_all(a->fd, a->bytes, a->used, (uint64_t)(part - 1) * LATER_PART);
    if (futimens(a->fd, times) < 0 && r == 0)
        r = -errno;
    if (r < 0)
        return err_sys(e, -r, "cannot store '%s'", of->path);
    later_parts_of(a->fd, parts);
    if (parts[0] & WRONG)
        return refuse(of, e);
    parts[part / 8] |= (uint8_t)(1U << part % 8);
    for (uint32_t i = 1; i <= all; i++)
        have += later_has_part(parts, i);
    a->complete = have == all;
    r = a->complete ? check_sum(a->fd, of, e) : 0;
    if (r < 0)
        return r;
    r = later_parts_set(a->fd, parts, all);
    return r < 0 ? err_sys(e, -r, "cannot store '%s'", of->path) : 0;
}

static int on_bytes(void *ctx, const void *p, size_t n, struct err *e)
{
    struct arrival *a = ctx;
    const uint8_t *from = p;
    while (n) {
        uint64_t at = (uint64_t)(a->run->next - 1) * LATER_PART;
        size_t size = (size_t)MIN(a->of->size - at, (uint64_t)LATER_PART);
        size_t k = MIN(n, size - a->used);
        memcpy(a->bytes + a->used, from, k);
        a->used += k;
        from += k;
        n -= k;
        if (a->used < size)
            break;
        int r = s3_file_lock(a->fd, e);
        if (r == 0)
            r = store(a, e);
        (void)flock(a->fd, LOCK_UN);
        if (r < 0)
            return r;
        a->used = 0;
        set_run(a->run, a->run->next + 1, a->run->end);
        a->told(a->ctx);
    }
    return 0;
}

/* --- fetching -------------------------------------------------------------------------------- */

/* Makes it an ordinary file. */
static int finish(struct arrival *a, struct err *e)
{
    char sha[DIGEST_HEX_SIZE] = "", id[LATER_SIZE];
    struct stat st;
    int r = s3_file_lock(a->fd, e);
    if (r < 0)
        return r;
    if (later_get(a->fd, id) && strcmp(id, a->of->later) == 0) {
        if (fstat(a->fd, &st) < 0 || lseek(a->fd, 0, SEEK_SET) < 0)
            r = -errno;
        if (r == 0 && a->of->guessed)
            r = digest_hex_of_fd(a->fd, sha);
        r = r < 0 ? err_sys(e, -r, "cannot read '%s'", a->of->path)
                  : s3_fill_done(a->w, a->fd, a->of, sha, &st.st_mtim, e);
    }
    (void)flock(a->fd, LOCK_UN);
    return r;
}

/* From the first part that is not here. */
static int bring_version(struct arrival *a, const char *key, const char *etag, struct err *e)
{
    uint64_t from = (uint64_t)(a->run->next - 1) * LATER_PART;
    uint64_t end = MIN((uint64_t)(a->run->end - 1) * LATER_PART, a->of->size);
    a->used = 0;
    return s3_get_range(a->w->client, key, etag, from, end - from, on_bytes, a, e);
}

static int bring(struct arrival *a, struct err *e)
{
    char key[S3_KEY_SIZE];
    s3_key(a->w->config, a->of->path, key);
    int r = bring_version(a, key, a->of->etag, e);
    struct s3_object o; /* only if the hash will be checked */
    if (r == -ESTALE && a->of->sha[0] && !a->of->guessed &&
        s3_head_listed(a->w->client, key, a->of->etag, &o, NULL) == 0)
        r = bring_version(a, key, o.etag, e);
    if (r == -ECANCELED)
        return 0;
    if (r == -ESTALE || r == -ENOENT)
        return err_set(e, ESTALE, "'%s' was changed or removed in the bucket since the last sync",
                       a->of->path);
    return r == 0 && a->complete ? finish(a, e) : r;
}

/* Fetches the wanted parts of a known file. */
static int fetch(struct s3_work *w, int fd, const struct s3_entry *of, struct run *run,
                 const uint8_t parts[LATER_PARTS_SIZE], s3_part_fn told, void *ctx, struct err *e)
{
    uint32_t all = later_count(of->size), end = run->next + 1;
    if (run->next > all || of->size > LATER_PARTED_MAX)
        return err_set(e, EINVAL, "part %u of '%s' cannot be fetched: it has %llu bytes", run->next,
                       of->path, (unsigned long long)of->size);
    if (parts[0] & WRONG)
        return refuse(of, e);
    while (end < run->end && end <= all && !later_has_part(parts, end))
        end++;
    set_run(run, run->next, end);
    AUTO_FREE struct arrival *a = calloc(1, sizeof(*a));
    if (!a)
        return err_oom(e);
    a->w = w;
    a->fd = fd;
    a->of = of;
    a->run = run;
    a->told = told;
    a->ctx = ctx;
    return bring(a, e);
}

int s3_part_fill(struct s3_work *w, int fd, const struct later_request *q, s3_known_fn known,
                 s3_part_fn told, void *ctx, struct err *e)
{
    uint8_t parts[LATER_PARTS_SIZE];
    char id[LATER_SIZE];
    struct s3_entry of = {0};
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot look at a file of the workspace");
    if (q->part > later_count(LATER_PARTED_MAX))
        return err_set(e, EINVAL, "no file of the workspace has a part %u", q->part);
    struct run *run = begin(&st, q->part, q->part + MIN(q->count, (uint32_t)LATER_RUN_MAX));
    if (!run)
        return -EAGAIN;
    later_parts_of(fd, parts);
    int r = 0;
    if (later_get(fd, id) && !later_has_part(parts, q->part)) {
        r = known(ctx, id, &of);
        if (r < 0)
            r = err_sys(e, -r, "a file of the workspace cannot be fetched: its object is unknown");
        else
            r = fetch(w, fd, &of, run, parts, told, ctx, e);
        free(of.path);
    }
    set_run(run, 0, 0);
    if (r != -ESTALE || !of.guessed)
        return r;
    /* The object's ETag may differ from the listed one, and without a hash, nothing proves that all
     * parts are of the same version: so the whole file is fetched at once. */
    err_clear(e);
    return s3_later_fill(w, fd, known, ctx, NULL, e);
}
