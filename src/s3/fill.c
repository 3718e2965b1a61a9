/* Contents of objects, and files that get theirs later (util/later.h).
 *
 * Filling a file requires its flock; the mark is checked again under it, and removed last, once the
 * content is on disk: so a file is filled once, whatever other sandboxes and syncs do, and a crash
 * leaves it marked. Its inode, times and mode stay the same; only its ctime changes.
 */
#include "s3/work.h"
#include "util/beneath.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

enum { FETCHED_MAX = 64 << 20, SEARCH_DEPTH_MAX = 256 };

/* --- content --------------------------------------------------------------------------------- */

static int on_data(void *ctx, const void *p, size_t n, struct err *e)
{
    struct s3_content *c = ctx;
    hasher_update(&c->h, p, n);
    if (c->size < S3_TARGET_MAX)
        memcpy(c->target + c->size, p, MIN(n, (size_t)(S3_TARGET_MAX - c->size)));
    int r = pwrite_all(c->fd, p, n, c->size);
    if (r == 0 && c->mtime) /* at once: this may take long, and others access the file */
        (void)futimens(c->fd, (struct timespec[2]){{.tv_nsec = UTIME_OMIT}, *c->mtime});
    c->size += n;
    return r < 0 ? err_sys(e, -r, "cannot store a file of the bucket") : 0;
}

int s3_content_get(struct s3_work *w, const struct s3_entry *of, int fd,
                   const struct timespec *mtime, struct s3_content *ret, struct err *e)
{
    char key[S3_KEY_SIZE];
    *ret = (struct s3_content){.fd = fd, .mtime = mtime};
    if (s3_cache_get(w, of, fd, ret))
        return 0;
    ret->size = 0;
    if (of->staged)
        s3_staged_key(w->config, of->staged, key);
    else
        s3_key(w->config, of->path, key);
    hasher_init(&ret->h);
    int r =
        s3_get(w->client, key, of->staged ? "" : of->etag, of->size, on_data, ret, &ret->object, e);
    if (r == -ESTALE && s3_head_listed(w->client, key, of->etag, &ret->object, NULL) == 0) {
        char etag[S3_ETAG_SIZE];
        memcpy(etag, ret->object.etag, sizeof(etag));
        hasher_init(&ret->h); /* some of it may have come before the connection broke */
        ret->size = 0;
        r = s3_get(w->client, key, etag, of->size, on_data, ret, &ret->object, e);
    }
    hasher_hex(&ret->h, ret->sha);
    if (r < 0)
        return r;
    if (ret->size != of->size)
        return err_set(e, EPROTO, "'%s' does not have the announced size", of->path);
    if (of->sha[0] && !of->guessed && strcmp(of->sha, ret->sha) != 0)
        return err_set(e, EBADMSG, "'%s' in the bucket does not match the manifest", of->path);
    s3_cache_put(w, ret);
    return 0;
}

/* --- marks ----------------------------------------------------------------------------------- */

void s3_later_plan(struct s3_work *w, struct s3_entry *a)
{
    char text[S3_ETAG_SIZE + 64], hex[DIGEST_HEX_SIZE];
    if (a->kind == S3_KIND_FILE &&
        !a->sha[0]) { /* until it is read, its etag represents its content */
        (void)snprintf(text, sizeof(text), "etag %s", a->etag);
        digest_hex_of(text, strlen(text), a->sha);
        a->guessed = a->size > 0;
        a->mode = 0644;
    }
    if (a->kind == S3_KIND_FILE && a->size == 0) { /* there is nothing to fetch */
        digest_hex_of("", 0, a->sha);
        return;
    }
    (void)snprintf(text, sizeof(text), "%llx %x %s", (unsigned long long)realtime_ns(),
                   atomic_fetch_add(&w->serial, 1), a->etag);
    digest_hex_of(text, strlen(text), hex);
    memcpy(a->later, hex, LATER_SIZE - 1);
    a->later[LATER_SIZE - 1] = '\0';
}

void s3_set_mtime(int dir, const char *name, int64_t ns)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {ns / 1000000000, ns % 1000000000}};
    if (ns > 0)
        (void)utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

int s3_later_mark(int fd, const struct s3_entry *a)
{
    if (a->size == 0)
        return 0;
    int r = later_mark(fd, LATER_XATTR, a->later, LATER_SIZE - 1);
    return r == 0 && ftruncate(fd, (off_t)a->size) < 0 ? -errno : r;
}

/* Records the real hash for a guessed one, for the next sync, which would otherwise take the file
 * for changed. */
static void note_fetched(const struct s3_work *w, const struct s3_entry *a, const char *sha)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(w->dir, S3_FETCHED_FILE,
                               O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size > FETCHED_MAX)
        return;
    (void)dprintf(fd, "%s %s %s\n", sha, a->etag, a->path);
}

/* --- filling --------------------------------------------------------------------------------- */

int s3_fill_done(struct s3_work *w, int fd, const struct s3_entry *of, const char *sha,
                 const struct timespec *mtime, struct err *e)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *mtime};
    if (fdatasync(fd) < 0 || futimens(fd, times) < 0)
        return err_sys(e, errno, "cannot store '%s'", of->path);
    if (of->guessed)
        note_fetched(w, of, sha);
    (void)later_mark(fd, LATER_PARTS_XATTR, NULL, 0);
    int r = later_mark(fd, LATER_XATTR, NULL, 0);
    if (r < 0)
        return err_sys(e, -r, "cannot store '%s'", of->path);
    s3_work_count(w, &w->counts.downloaded, &w->counts.bytes_down, of->size);
    return 0;
}

int s3_file_lock(int fd, struct err *e)
{
    int r;
    while ((r = flock(fd, LOCK_EX)) < 0 && errno == EINTR)
        ;
    return r < 0 ? err_sys(e, errno, "cannot lock a file of the workspace") : 0;
}

static int fill(struct s3_work *w, int fd, const struct s3_entry *of, struct s3_entry *filled,
                struct err *e)
{
    struct stat st;
    AUTO_FREE struct s3_content *c = malloc(sizeof(*c));
    if (!c)
        return err_oom(e);
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot look at '%s'", of->path);
    int r = s3_content_get(w, of, fd, &st.st_mtim, c, e);
    if (r == -ESTALE || r == -ENOENT)
        return err_set(e, ESTALE, "'%s' was changed or removed in the bucket since the last sync",
                       of->path);
    if (r < 0)
        return r;
    r = s3_fill_done(w, fd, of, c->sha, &st.st_mtim, e);
    if (r < 0)
        return r;
    if (filled) {
        *filled = *of;
        memcpy(filled->sha, c->sha, sizeof(c->sha));
        filled->guessed = false;
    }
    return 0;
}

static int list(struct s3_work *w, int fd, const struct s3_entry *of, struct err *e)
{
    int r = s3_list_dir(w, fd, of->path);
    return r < 0 ? err_sys(e, -r, "cannot make the files in '%s'", of->path) : 0;
}

int s3_later_fill(struct s3_work *w, int fd, s3_known_fn known, void *ctx, struct s3_entry *filled,
                  struct err *e)
{
    char id[LATER_SIZE];
    struct s3_entry of = {0};
    int r = s3_file_lock(fd, e);
    if (r < 0)
        return r;
    if (!later_get(fd, id)) {
        r = 0;
    } else if ((r = known(ctx, id, &of)) == 0) {
        r = of.kind == S3_KIND_DIR ? list(w, fd, &of, e) : fill(w, fd, &of, filled, e);
        if (filled)
            filled->path = NULL;
        free(of.path);
    } else {
        r = err_sys(e, -r, "a file of the workspace cannot be fetched: its object is unknown");
    }
    (void)flock(fd, LOCK_UN); /* the process that gave us the file may keep it open */
    return r;
}

/* --- what is known --------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    return strcmp((*(struct s3_entry *const *)a)->later, (*(struct s3_entry *const *)b)->later);
}

int s3_index_base(struct s3_work *w)
{
    free(w->by_id);
    w->n_by_id = 0;
    w->by_id = calloc(w->base.n + 1, sizeof(struct s3_entry *));
    if (!w->by_id)
        return -ENOMEM;
    for (size_t i = 0; i < w->base.n; i++)
        if (w->base.v[i].later[0])
            w->by_id[w->n_by_id++] = &w->base.v[i];
    if (w->n_by_id)
        qsort(w->by_id, w->n_by_id, sizeof(struct s3_entry *), by_id);
    return 0;
}

int s3_known_in_base(void *ctx, const char *id, struct s3_entry *ret)
{
    const struct s3_work *w = ctx;
    struct s3_entry key = {0}, *p = &key, **at;
    if (strcmp(id, LATER_ROOT) == 0 && w->base.n) {
        *ret = (struct s3_entry){.kind = S3_KIND_DIR, .path = strdup("")};
        return ret->path ? 0 : -ENOMEM;
    }
    (void)snprintf(key.later, sizeof(key.later), "%s", id);
    at = w->n_by_id ? bsearch(&p, w->by_id, w->n_by_id, sizeof(struct s3_entry *), by_id) : NULL;
    if (!at)
        return -ESTALE;
    *ret = **at;
    ret->staged = NULL;
    return (ret->path = strdup((*at)->path)) ? 0 : -ENOMEM;
}

/* --- what has moved -------------------------------------------------------------------------- */

int s3_fill_moved(void *ctx, int fd, const char *path, struct err *e)
{
    struct s3_work *w = ctx;
    struct s3_entry of = {0};
    char id[LATER_SIZE];
    if (later_get(fd, id) && s3_known_in_base(w, id, &of) < 0)
        return 1; /* left by a killed sync */
    free(of.path);
    int r = s3_later_fill(w, fd, s3_known_in_base, w, NULL, e);
    if (r != -ESTALE)
        return r;
    s3_work_warn(w, "'%s' is left out: %s", path, e ? e->msg : "");
    err_clear(e);
    return 1;
}

/* Whether it is where base has it. */
static bool is_in_place(const struct s3_work *w, const struct s3_entry *of)
{
    const struct s3_entry *here = s3_tree_find(&w->local, of->path);
    return here && strcmp(here->later, of->later) == 0;
}

static int fill_if_moved(struct s3_work *w, int at, const char *name, bool dir, struct err *e)
{
    char id[LATER_SIZE];
    struct s3_entry of = {0};
    if (!later_get(at, id) || s3_known_in_base(w, id, &of) < 0)
        return 0;
    bool stays = is_in_place(w, &of);
    free(of.path);
    AUTO_CLOSE int fd = stays || dir ? -1 : later_reopen(at);
    if (!stays && !dir && fd < 0)
        return err_sys(e, -fd, "cannot write '%s'", name);
    int r = stays ? 1 : s3_fill_moved(w, dir ? at : fd, name, e);
    if (r == 0 && fsync(dir ? at : fd) < 0) /* it is about to be the only copy */
        return err_sys(e, errno, "cannot store '%s'", name);
    return MIN(r, 0);
}

static int search(struct s3_work *w, int at, unsigned depth, struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(at, ".");
    const struct dirent *x;
    int r = 0;
    while (r == 0 && d && (x = readdir(d))) {
        struct stat st;
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0 ||
            fstatat(at, x->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
            continue;
        AUTO_CLOSE int fd = beneath_open(at, x->d_name, O_RDONLY | O_NONBLOCK, false);
        if (fd >= 0)
            r = fill_if_moved(w, fd, x->d_name, S_ISDIR(st.st_mode), e);
        if (r == 0 && fd >= 0 && S_ISDIR(st.st_mode) && depth < SEARCH_DEPTH_MAX)
            r = search(w, fd, depth + 1, e);
    }
    return r;
}

int s3_fill_lost(struct s3_work *w, struct err *e)
{
    for (size_t i = 0; i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        bool takes =
            s->action == S3_DELETE_REMOTE || s->action == S3_UPLOAD || s->action == S3_CONFLICT;
        if (takes && s->base && s->base->later[0] && !is_in_place(w, s->base))
            return search(w, w->data, 0, e);
    }
    return 0;
}

/* --- all ------------------------------------------------------------------------------------- */

static int known_by_step(void *ctx, const char *id, struct s3_entry *ret)
{
    const struct s3_step *s = ctx;
    if (strcmp(s->result.later, id) != 0)
        return -ESTALE;
    *ret = s->result;
    return (ret->path = strdup(s->path)) ? 0 : -ENOMEM;
}

static int fill_step(struct s3_work *w, struct s3_step *s, struct err *e)
{
    const char *name;
    struct stat st;
    struct s3_entry filled = {0};
    if (!s->result.path || !s->result.later[0] || s->ignored)
        return 0;
    int x = s3_list_to(w, s->path, true, e);
    if (x < 0 || s->result.kind == S3_KIND_DIR) {
        s->result.later[0] = '\0';
        return x;
    }
    AUTO_CLOSE int parent = s3_parent_open(w, s->path, false, &name);
    AUTO_CLOSE int at =
        parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    AUTO_CLOSE int fd = at < 0 ? -1 : later_reopen(at);
    int r = fd < 0 ? -ESTALE : s3_later_fill(w, fd, known_by_step, s, &filled, e);
    if (r < 0 && r != -ESTALE)
        return r;
    s->result.later[0] = '\0';
    s->result.ino = 0;                    /* it is checked again next time */
    if (r == -ESTALE || !filled.sha[0]) { /* it was changed on either side, or filled by others */
        err_clear(e);
        if (r < 0)
            atomic_store(&w->again, true);
        return 0;
    }
    memcpy(s->result.sha, filled.sha, sizeof(s->result.sha));
    s->result.guessed = false;
    if (fstat(fd, &st) == 0)
        s3_entry_stat(&s->result, &st);
    return 0;
}

int s3_fill_all(struct s3_work *w, struct err *e)
{
    int r = s3_list_to(w, "", true, e);
    return r < 0 ? r : s3_work_each(w, fill_step, e);
}
