/* Large files come in parts, as somebody reads them (util/later.h), with those that follow while they are
 * read one after another. What is written in one piece: the guest sees a part whole or not at all.
 *
 * A part is of the version with the ETag that the record has. Its sum can only be compared once all
 * parts are here, and is: if it is not what the manifest says, they are forgotten, and no other one is
 * fetched. All of it at once may then be: by a sync, or for somebody who wants to write.
 */
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>

enum { AHEAD = 3, WRONG = 1 }; /* the bit of no part */

/* Those that threads of this process are fetching: the others wait for them. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct {
        dev_t dev;
        ino_t ino;
        uint32_t part; /* 0 = a free place */
    } v[64];
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* The place that was taken, or -1: somebody else has had it, or there is no room. */
static int enter(const struct stat *st, uint32_t part)
{
    int place = -1;
    (void)pthread_mutex_lock(&busy.lock);
    for (int i = 0; i < (int)ARRAY_LEN(busy.v); i++) {
        if (busy.v[i].part == part && busy.v[i].dev == st->st_dev && busy.v[i].ino == st->st_ino) {
            while (busy.v[i].part == part && busy.v[i].ino == st->st_ino)
                (void)pthread_cond_wait(&busy.done, &busy.lock);
            (void)pthread_mutex_unlock(&busy.lock);
            return -1;
        }
        if (!busy.v[i].part)
            place = i;
    }
    if (place >= 0) {
        busy.v[place].dev = st->st_dev;
        busy.v[place].ino = st->st_ino;
        busy.v[place].part = part;
    }
    (void)pthread_mutex_unlock(&busy.lock);
    return place;
}

static void leave(int place)
{
    if (place < 0)
        return;
    (void)pthread_mutex_lock(&busy.lock);
    busy.v[place].part = 0;
    (void)pthread_cond_broadcast(&busy.done);
    (void)pthread_mutex_unlock(&busy.lock);
}

static uint32_t parts_of(uint64_t size)
{
    return (uint32_t)((size + LATER_PART - 1) / LATER_PART);
}

static int refuse(const struct s3_entry *of, struct err *e)
{
    return err_set(e, EBADMSG, "'%s' in the bucket is not what the manifest says it is", of->path);
}

/* All parts are here: it becomes an ordinary file. */
static int finish(struct s3_work *w, int fd, const struct s3_entry *of,
                  const struct timespec *mtime, struct err *e)
{
    struct digest d;
    char sha[DIGEST_HEX_SIZE];
    int r = digest_of_fd(fd, &d);
    if (r < 0)
        return err_sys(e, -r, "cannot read '%s'", of->path);
    digest_hex(&d, sha);
    if (of->sha[0] && !of->guessed && strcmp(of->sha, sha) != 0) {
        (void)fsetxattr(fd, LATER_PARTS_XATTR, &(uint8_t){WRONG}, 1, 0);
        return refuse(of, e);
    }
    return s3_fill_done(w, fd, of, sha, mtime, e);
}

/* Under the lock. Whoever filled the file meanwhile, or wrote to it, has taken the mark away. */
static int store(struct s3_work *w, int fd, const struct s3_entry *of, uint32_t part,
                 const uint8_t *p, size_t n, struct err *e)
{
    uint8_t parts[LATER_PARTS_SIZE];
    char id[LATER_SIZE];
    struct stat st;
    uint32_t have = 0, all = parts_of(of->size);
    if (!later_get(fd, id) || strcmp(id, of->later) != 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot look at '%s'", of->path);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    int r = pwrite_all(fd, p, n, (uint64_t)(part - 1) * LATER_PART);
    if (futimens(fd, times) < 0 && r == 0)
        r = -errno;
    if (r < 0)
        return err_sys(e, -r, "cannot store '%s'", of->path);
    later_parts(fd, parts);
    parts[part / 8] |= (uint8_t)(1U << part % 8);
    for (uint32_t i = 1; i <= all; i++)
        have += later_has_part(parts, i);
    if (have == all)
        return finish(w, fd, of, &st.st_mtim, e);
    /* After a crash the part may not be on disk though the attribute is: it goes there first. */
    if (fdatasync(fd) < 0 || fsetxattr(fd, LATER_PARTS_XATTR, parts, all / 8 + 1, 0) < 0)
        return err_sys(e, errno, "cannot store '%s'", of->path);
    return 0;
}

static int bring(struct s3_work *w, int fd, const struct s3_entry *of, uint32_t part, struct err *e)
{
    char key[S3_KEY_SIZE];
    uint64_t from = (uint64_t)(part - 1) * LATER_PART;
    size_t n = (size_t)MIN(of->size - from, (uint64_t)LATER_PART);
    AUTO_FREE uint8_t *p = malloc(n);
    if (!p)
        return err_oom(e);
    s3_key(w->config, of->path, key);
    int r = s3_get_part(w->client, key, of->etag, from, n, p, e);
    if (r == -ESTALE || r == -ENOENT)
        return err_set(e, ESTALE, "'%s' was changed or removed in the bucket since the last sync",
                       of->path);
    if (r == 0)
        r = s3_file_lock(fd, e);
    if (r == 0) {
        r = store(w, fd, of, part, p, n, e);
        (void)flock(fd, LOCK_UN);
    }
    return r;
}

int s3_part_fill(struct s3_work *w, int fd, uint32_t part, s3_known_fn known, void *ctx,
                 struct err *e)
{
    uint8_t parts[LATER_PARTS_SIZE];
    char id[LATER_SIZE];
    struct s3_entry of = {0};
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot look at a file of the workspace");
    int place = enter(&st, part), r = 0;
    later_parts(fd, parts);
    if (later_get(fd, id) && !later_has_part(parts, part)) {
        r = known(ctx, id, &of);
        if (r < 0)
            r = err_sys(e, -r,
                        "a file of the workspace was to be fetched, but it is not known what");
        else if (part > parts_of(of.size) || part / 8 >= LATER_PARTS_SIZE)
            r = -EINVAL;
        else if (parts[0] & WRONG)
            r = refuse(&of, e);
        else
            r = bring(w, fd, &of, part, e);
        free(of.path);
    }
    leave(place);
    return r;
}

void s3_part_go_on(struct s3_work *w, int fd, uint32_t part, s3_known_fn known, void *ctx)
{
    uint8_t parts[LATER_PARTS_SIZE];
    struct stat st;
    later_parts(fd, parts);
    if ((part > 1 && !later_has_part(parts, part - 1)) || fstat(fd, &st) < 0)
        return;
    for (uint32_t i = part + 1; i <= part + AHEAD && i <= parts_of((uint64_t)st.st_size); i++)
        if (s3_part_fill(w, fd, i, known, ctx, NULL) < 0)
            return;
}
