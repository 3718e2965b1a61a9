/* From the bucket to the local side: removals, directories, then contents, several at a time. */
#include "image/oci/digest.h"
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct download {
    struct s3_work *w;
    int fd;
    struct s3_content c;
};

/* A target that no system call would accept cannot become a link. */
static bool target_ok(const struct download *d)
{
    return d->c.size > 0 && d->c.size <= S3_TARGET_MAX && !memchr(d->c.target, '\0', d->c.size);
}

/* Gives the complete download its kind, mode and times; *got describes the result. */
static int finish(const struct download *d, const char *tmp, const struct s3_step *s,
                  struct s3_entry *got, struct err *e)
{
    const struct s3_entry *r = s->remote;
    const struct s3_object *o = &d->c.object;
    bool known = r->sha[0];
    *got = *r;
    got->staged = NULL;
    if (r->staged)
        got->etag[0] = '\0'; /* of what it will replace */
    if (!known) {
        got->kind = o->link && target_ok(d) ? S3_KIND_LINK : S3_KIND_FILE;
        got->mode = o->mode >= 0 ? (unsigned)o->mode : 0644;
    }
    got->mode = got->kind == S3_KIND_LINK ? 0777 : got->mode | 0400;
    if (got->kind == S3_KIND_LINK) {
        if (unlinkat(d->w->tmp, tmp, 0) < 0 || symlinkat(d->c.target, d->w->tmp, tmp) < 0)
            return err_sys(e, errno, "cannot write '%s'", s->path);
    } else if (fchmod(d->fd, got->mode) < 0) {
        return err_sys(e, errno, "cannot write '%s'", s->path);
    }
    s3_set_mtime(d->w->tmp, tmp, known ? r->mtime_ns : o->mtime_ns);
    return 0;
}

/* Moves the complete tmp/TMP into place, unless the local side already has the same. */
static int settle(struct s3_work *w, struct s3_step *s, const char *tmp, struct s3_entry *got,
                  struct err *e)
{
    struct stat st;
    if (s->action == S3_CONFLICT && s3_entry_same(s->local, got)) {
        (void)unlinkat(w->tmp, tmp, 0);
        got->ino = s->local->ino;
        got->ctime_ns = s->local->ctime_ns;
        got->mtime_ns = s->local->mtime_ns;
        s->result = *got;
        return 0;
    }
    int r = s3_place(w, s->path, tmp, s->local, s->action == S3_CONFLICT, e);
    if (r != 0)
        return MIN(r, 0);
    const char *name;
    AUTO_CLOSE int parent = s3_parent_open(w, s->path, false, &name);
    got->ino = 0;
    if (parent >= 0 && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        unsigned mode = got->mode;
        s3_entry_stat(got, &st); /* young: it is read again next time */
        got->mode = mode;
    }
    s->result = *got;
    s3_work_count(w, &w->counts.downloaded, &w->counts.bytes_down, got->later[0] ? 0 : got->size);
    return 0;
}

static int fetch(struct download *d, const char *tmp, struct s3_step *s, struct err *e)
{
    struct s3_work *w = d->w;
    const struct s3_entry *r = s->remote;
    struct s3_entry got = {0};
    int x = s3_content_get(w, r, d->fd, NULL, &d->c, e);
    if (x == -ESTALE || x == -ENOENT) { /* it was changed or removed since it was listed */
        atomic_store(&w->again, true);
        (void)unlinkat(w->tmp, tmp, 0);
        return 0;
    }
    if (x == 0 && r->sha[0] && r->kind == S3_KIND_LINK && !target_ok(d))
        x = err_set(e, EBADMSG, "'%s' in the bucket is not a link", s->path);
    if (x == 0)
        x = finish(d, tmp, s, &got, e);
    if (x < 0)
        return x;
    memcpy(got.sha, d->c.sha, sizeof(got.sha));
    got.guessed = false;
    got.later[0] = '\0';
    return settle(w, s, tmp, &got, e);
}

/* Creates it with its size and times; its content is fetched on demand. */
static int put_off(struct download *d, const char *tmp, struct s3_step *s, struct err *e)
{
    struct s3_work *w = d->w;
    const struct s3_entry *r = s->remote;
    struct s3_entry got = *r;
    s3_later_plan(w, &got);
    int x = s3_later_mark(d->fd, &got);
    got.mode |= 0400;
    if (x == 0 && fchmod(d->fd, got.mode) < 0)
        x = -errno;
    if (x == 0 && r->sha[0])
        s3_set_mtime(w->tmp, tmp, r->mtime_ns);
    if (x == -EOPNOTSUPP) { /* no extended attributes here: fetch contents at once */
        atomic_store(&w->later, false);
        return fetch(d, tmp, s, e);
    }
    return x < 0 ? err_sys(e, -x, "cannot write '%s'", s->path) : settle(w, s, tmp, &got, e);
}

/* Contents that decisions depend on are fetched at once, and so is what the server may remove. */
bool s3_can_wait(const struct s3_step *s)
{
    const struct s3_entry *r = s->remote;
    return s->action == S3_DOWNLOAD && r->kind == S3_KIND_FILE && r->etag[0] && !r->staged &&
           strcmp(s->path, IGNORE_FILE) != 0;
}

int s3_pull_one(struct s3_work *w, struct s3_step *s, struct err *e)
{
    bool wanted =
        (s->action == S3_DOWNLOAD || s->action == S3_CONFLICT) && s->remote->kind != S3_KIND_DIR;
    char tmp[32];
    if (!wanted || (w->lazy && s3_can_wait(s)))
        return 0;
    int r = s3_list_to(w, s->path, false, e);
    if (r < 0)
        return r;
    AUTO_FREE struct download *d = calloc(1, sizeof(*d));
    if (!d)
        return err_oom(e);
    (void)snprintf(tmp, sizeof(tmp), "g%u", atomic_fetch_add(&w->serial, 1));
    AUTO_CLOSE int fd =
        openat(w->tmp, tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, errno, "cannot store '%s'", s->path);
    d->w = w;
    d->fd = fd;
    bool waits = atomic_load(&w->later) && s3_can_wait(s);
    r = waits ? put_off(d, tmp, s, e) : fetch(d, tmp, s, e);
    if (r < 0)
        (void)unlinkat(w->tmp, tmp, 0);
    return r;
}

static int make_dir(struct s3_work *w, struct s3_step *s, struct err *e)
{
    const char *name;
    struct stat st;
    int x = s3_list_to(w, s->path, true, e);
    if (x < 0)
        return x;
    if (s->local && s->local->kind != S3_KIND_DIR) { /* a file of ours is in its way */
        char tmp[32];
        (void)snprintf(tmp, sizeof(tmp), "m%u", atomic_fetch_add(&w->serial, 1));
        if (mkdirat(w->tmp, tmp, 0755) < 0)
            return err_sys(e, errno, "cannot make '%s'", s->path);
        int r = s3_place(w, s->path, tmp, s->local, s->action == S3_CONFLICT, e);
        if (r != 0)
            return MIN(r, 0);
    }
    AUTO_CLOSE int parent = s3_parent_open(w, s->path, true, &name);
    if (parent < 0)
        return parent == -ENOTDIR || parent == -ELOOP
                   ? 0
                   : err_sys(e, -parent, "cannot make '%s'", s->path);
    if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make '%s'", s->path);
    AUTO_CLOSE int fd = dir_open_at(parent, name);
    if (fd < 0)
        return 0; /* something else has its name: the next comparison sees it */
    if (fchmod(fd, s->remote->mode | 0700) < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot make '%s'", s->path);
    s->result = *s->remote;
    s->result.mode = st.st_mode & 0777;
    return 0;
}

int s3_check_loss(const struct s3_work *w, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; w->remote.lost && !w->emptied && i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        n += s->action == S3_DELETE_LOCAL && s->local->kind != S3_KIND_DIR;
    }
    if (n == 0)
        return 0;
    (void)err_set(e, ENODATA, "the bucket has lost its manifest and %zu file%s of the last sync%s",
                  n, n == 1 ? "" : "s",
                  w->remote.manifest_etag[0] ? ", and another host has written a new one" : "");
    err_hint(e, "restore it; or, to remove them here, too: msb workspace sync --emptied");
    return -ENODATA;
}

int s3_pull(struct s3_work *w, struct err *e)
{
    int r = 0;
    for (size_t i = w->plan.n; r == 0 && i-- > 0;) {
        struct s3_step *s = &w->plan.v[i];
        if (s->action != S3_DELETE_LOCAL)
            continue;
        r = s3_list_to(w, s->path, true, e);
        if (r == 0)
            r = s3_unplace(w, s, e);
        if (r < 0)
            break;
        s->result = (struct s3_entry){0};
        w->counts.removed_here++;
    }
    for (size_t i = 0; r == 0 && i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        bool wanted = s->action == S3_DOWNLOAD || s->action == S3_CONFLICT;
        if (wanted && s->remote->kind == S3_KIND_DIR && !w->lazy)
            r = make_dir(w, s, e);
        if (s->action == S3_FORGET)
            s->result = (struct s3_entry){0};
    }
    return r < 0 ? r : s3_work_each(w, s3_pull_one, e);
}
