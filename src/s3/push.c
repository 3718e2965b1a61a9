/* From the local side to the bucket; the order of writes is remote.h's. */
#include "image/oci/digest.h"
#include "s3/work.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* --- one object ------------------------------------------------------------------------------ */

struct upload {
    struct s3_work *w;
    struct s3_step *s;
    char key[S3_KEY_SIZE];
    struct strlist meta;
    struct s3_entry got;
    struct s3_put how;
    uint8_t *part;
};

static void upload_free(struct upload *u)
{
    strlist_free(&u->meta);
    free(u->part);
}

/* Whether an object in the bucket is replaced, rather than added. */
static bool replaces(const struct s3_step *s)
{
    return s->remote && s->remote->kind != S3_KIND_DIR;
}

static bool is_upload(const struct s3_step *s)
{
    return s->action == S3_UPLOAD && s->local->kind != S3_KIND_DIR;
}

/* Whether the new state no longer needs the existing object: the object of a file that is gone or
 * is now a directory; or one that represents a directory ("DIR/") that is gone or is now something
 * else. */
static bool is_obsolete(const struct s3_step *s)
{
    bool gone = s->action == S3_DELETE_REMOTE;
    bool dir = s->remote && s->remote->kind == S3_KIND_DIR;
    if (!s->remote || (!gone && s->action != S3_UPLOAD) || (dir && !s->remote->etag[0]))
        return false;
    return gone || (s->local->kind == S3_KIND_DIR) != dir;
}

static int describe(struct upload *u, const char *sha)
{
    const struct s3_entry *a = &u->got;
    int r = strlist_printf(&u->meta, "x-amz-meta-msb-mode:%o", a->mode);
    if (r == 0 && a->mtime_ns >= 0)
        r = strlist_printf(&u->meta, "x-amz-meta-msb-mtime:%lld", (long long)a->mtime_ns);
    if (r == 0 && *sha)
        r = strlist_printf(&u->meta, "x-amz-meta-msb-sha256:%s", sha);
    if (r == 0 && a->kind == S3_KIND_LINK)
        r = strlist_add(&u->meta, "x-amz-meta-msb-type:symlink");
    u->how.meta = &u->meta;
    return r;
}

static int put_whole(struct upload *u, const void *p, size_t n, struct err *e)
{
    digest_hex_of(p, n, u->got.sha);
    u->got.size = n;
    u->how.sha = u->got.sha;
    if (describe(u, u->got.sha) < 0)
        return err_oom(e);
    return s3_put(u->w->client, u->key, p, n, &u->how, u->got.etag, e);
}

static int put_file(struct upload *u, int fd, struct err *e)
{
    u->part = malloc(S3_PART);
    if (!u->part)
        return err_oom(e);
    ssize_t n = read_up_to(fd, u->part, S3_PART);
    if (n < 0)
        return err_sys(e, (int)-n, "cannot read '%s'", u->s->path);
    if (n < S3_PART)
        return put_whole(u, u->part, (size_t)n, e);
    if (describe(u, "") < 0)
        return err_oom(e);
    return s3_put_parts(u->w, u->key, &u->meta, fd, u->part, &u->got, e);
}

/* What is uploaded is what is recorded; if the file changes meanwhile, the next sync finds it
 * changed. 1: it no longer exists. */
static int put_content(struct upload *u, struct err *e)
{
    const char *name;
    struct stat st, after;
    AUTO_CLOSE int parent = s3_parent_open(u->w, u->s->path, false, &name);
    if (parent < 0)
        return 1;
    if (u->got.kind == S3_KIND_LINK) {
        char target[S3_TARGET_MAX + 1];
        ssize_t n = readlinkat(parent, name, target, sizeof(target));
        return n < 0 ? 1 : put_whole(u, target, (size_t)n, e);
    }
    AUTO_CLOSE int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 1;
    s3_entry_stat(&u->got, &st);
    int r = put_file(u, fd, e);
    if (r == 0 && (fstat(fd, &after) < 0 || !s3_entry_untouched(&u->got, &after)))
        u->got.ino = 0;
    return r;
}

/* Checks that the object has not been replaced since it was listed. */
static int check_same(struct s3_work *w, const struct s3_step *s, struct err *e)
{
    char key[S3_KEY_SIZE];
    struct s3_object o;
    s3_key(w->config, s->path, key);
    if (s->remote->staged)
        return 0;
    int r = s3_head_listed(w->client, key, s->remote->etag, &o, e);
    if (r != -ENOENT && r != -ESTALE)
        return r;
    atomic_store(&w->again, true);
    return 0;
}

static int new_id(char out[33])
{
    uint8_t random[16];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return -EIO;
    for (size_t i = 0; i < sizeof(random); i++)
        (void)snprintf(out + 2 * i, 3, "%02x", random[i]);
    return 0;
}

static int choose_key(struct upload *u, struct err *e)
{
    const struct s3_config *config = u->w->config;
    char id[33];
    if (!replaces(u->s)) {
        s3_key(config, u->s->path, u->key);
        bool ours = strlist_has(&u->w->remote.pending, u->s->path);
        u->how.when = config->conditional && !ours ? S3_IF_ABSENT : S3_ALWAYS;
        return 0;
    }
    if ((!s3_resume_staged(u->w, u->s, id) && new_id(id) < 0) || !(u->s->staged = strdup(id)))
        return err_oom(e);
    s3_staged_key(config, id, u->key);
    return check_same(u->w, u->s, e);
}

static int upload(struct s3_work *w, struct s3_step *s, struct err *e)
{
    if (is_obsolete(s) && replaces(s))
        return check_same(w, s, e);
    if (!is_upload(s) || atomic_load(&w->again))
        return 0;
    CLEANUP(upload_free) struct upload u = {.w = w, .s = s, .got = *s->local};
    int r = choose_key(&u, e);
    if (r == 0)
        r = put_content(&u, e);
    if (r == 1) {
        atomic_store(&w->again, true);
        return 0;
    }
    if (r < 0)
        return r;
    if (s->staged)
        u.got.etag[0] = '\0'; /* not in its object yet */
    s->result = u.got;
    s->result.staged = s->staged;
    s3_work_count(w, &w->counts.uploaded, &w->counts.bytes_up, u.got.size);
    return 0;
}

/* --- the whole ------------------------------------------------------------------------------- */

/* The state that both sides will have. */
static int new_manifest(struct s3_work *w, struct s3_tree *ret)
{
    for (size_t i = 0; i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        bool dir = s->action == S3_UPLOAD && s->local->kind == S3_KIND_DIR;
        if (dir)
            s->result = *s->local;
        if (s->action == S3_DELETE_REMOTE)
            s->result = (struct s3_entry){0};
        if (!s->result.path)
            continue;
        if (!s3_tree_add(ret, s->path, &s->result))
            return -ENOMEM;
    }
    s3_tree_sort(ret);
    return 0;
}

/* Before anything is added: announces additions, which do not count yet. */
static int announce(struct s3_work *w, struct err *e)
{
    struct s3_remote *r = &w->remote;
    size_t before = r->manifest.pending.n;
    int x = 0;
    for (size_t i = 0; x == 0 && i < w->plan.n; i++)
        if (is_upload(&w->plan.v[i]) && !replaces(&w->plan.v[i]))
            x = strlist_add(&r->manifest.pending, w->plan.v[i].path);
    if (x < 0)
        return err_oom(e);
    return r->manifest.pending.n == before
               ? 0
               : s3_manifest_write(w->client, w->config, w->dir, &r->manifest, r->manifest_etag, e);
}

/* Moves staged content to its object. */
static int bring_home(struct s3_work *w, struct s3_step *s, struct err *e)
{
    char from[S3_KEY_SIZE], to[S3_KEY_SIZE + 1];
    s3_key(w->config, s->path, to);
    if (is_obsolete(s)) {
        size_t n = strlen(to);
        if (!replaces(s))
            (void)snprintf(to + n, sizeof(to) - n, "/");
        return s3_delete(w->client, to, e);
    }
    if (!s->result.staged)
        return 0;
    s3_staged_key(w->config, s->result.staged, from);
    int r = s3_copy(w->client, from, to, s->result.etag, e);
    if (r == 0)
        r = s3_delete(w->client, from, e);
    if (r == 0)
        s->result.staged = NULL;
    return r;
}

/* Removes what interrupted pushes have left. */
static int tidy(struct s3_work *w, struct err *e)
{
    char key[S3_KEY_SIZE];
    int r = 0;
    for (size_t i = 0; r == 0 && i < w->remote.leftover.n; i++) {
        s3_staged_key(w->config, w->remote.leftover.v[i], key);
        r = s3_delete(w->client, key, e);
    }
    for (size_t i = 0; r == 0 && i < w->remote.pending.n; i++) {
        const char *path = w->remote.pending.v[i];
        bool taken = false;
        for (size_t k = 0; !taken && k < w->plan.n; k++)
            taken = w->plan.v[k].result.path && strcmp(w->plan.v[k].path, path) == 0;
        s3_key(w->config, path, key);
        if (!taken)
            r = s3_delete(w->client, key, e);
    }
    return r;
}

static bool anything_to_do(const struct s3_work *w)
{
    const size_t *n = w->plan.count;
    if (n[S3_UPLOAD] || n[S3_DELETE_REMOTE] || w->remote.leftover.n || w->remote.manifest.pending.n)
        return true;
    for (size_t i = 0; i < w->remote.tree.n; i++)
        if (w->remote.tree.v[i].staged)
            return true;
    return false;
}

static int push(struct s3_work *w, struct err *e)
{
    AUTO_S3_TREE struct s3_tree m = {0}, last = {0};
    bool staged = false;
    if (!anything_to_do(w))
        return 0;
    w->pushed = true;
    /* What an interrupted push has staged but not moved to its object. */
    for (size_t i = 0; i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        bool stays = s->action == S3_KEEP || s->action == S3_DOWNLOAD;
        if (stays && s->result.path && s->remote)
            s->result.staged = s->remote->staged;
    }
    int r = announce(w, e);
    if (r == 0)
        r = s3_work_each(w, upload, e);
    if (r < 0 || atomic_load(&w->again))
        return r;
    if (new_manifest(w, &m) < 0)
        return err_oom(e);
    for (size_t i = 0; i < m.n; i++)
        staged = staged || m.v[i].staged;
    r = s3_manifest_write(w->client, w->config, w->dir, &m, w->remote.manifest_etag, e);
    w->counts.removed_there += r == 0 ? w->plan.count[S3_DELETE_REMOTE] : 0;
    if (r == 0)
        r = s3_work_each(w, bring_home, e);
    if (r == 0)
        r = tidy(w, e);
    if (r < 0 || !staged)
        return r;
    if (new_manifest(w, &last) < 0)
        return err_oom(e);
    return s3_manifest_write(w->client, w->config, w->dir, &last, w->remote.manifest_etag, e);
}

int s3_push(struct s3_work *w, struct err *e)
{
    int r = push(w, e);
    if (r == 0 && !atomic_load(&w->again))
        s3_resume_give_up(w);
    return r;
}
