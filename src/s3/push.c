/* From the local side to the bucket; the order of writes is remote.h's. */
#include "image/oci/digest.h"
#include "s3/work.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define LATEST_NS 100000000ULL /* how old the knowledge may be that nobody has pushed meanwhile */

/* --- what may be removed or replaced --------------------------------------------------------- */

struct target {
    struct s3_work *w;
    const char *key;
    const char *etag;     /* as listed; "" = nothing that counts was there */
    const char *id;       /* what else may be there: the copy of this staged content; or NULL */
    struct s3_object now; /* out; its etag is "" if it is gone */
};

/* Whether the object is what it was, or (if that did not count) what a push has put there. 1: others
 * have written to it, and the plan is outdated. */
static int check_same(struct target *t, struct err *e)
{
    char added[S3_KEY_ID + 1];
    t->now = (struct s3_object){0};
    int r = s3_head_listed(t->w->client, t->key, t->etag, &t->now, e);
    if (r != -ESTALE)
        return r == -ENOENT ? 0 : r;
    s3_key_id(t->key, added);
    if ((t->id && strcmp(t->now.id, t->id) == 0) || (!*t->etag && strcmp(t->now.id, added) == 0))
        return 0;
    atomic_store(&t->w->again, true);
    return 1;
}

/* Whether nobody has pushed since: what is to be removed or replaced might be theirs. */
static int check_latest(struct s3_work *w, struct err *e)
{
    uint64_t now = now_ns();
    if (now - atomic_load(&w->latest_ns) < LATEST_NS)
        return 0;
    int r = s3_manifest_check(w->client, w->config, w->remote.manifest_etag, e);
    if (r == 0)
        atomic_store(&w->latest_ns, now);
    return r;
}

/* Few servers remove or copy on a condition, so it is checked before each try. */
static int check(void *ctx, struct err *e)
{
    struct target *t = ctx;
    int r = check_latest(t->w, e);
    return r < 0 ? r : check_same(t, e);
}

/* --- one object ------------------------------------------------------------------------------ */

struct upload {
    struct s3_work *w;
    struct s3_step *s;
    char key[S3_KEY_SIZE], id[S3_ID + 1]; /* or a key's, which is shorter */
    struct strlist meta;
    struct s3_entry got;
    const struct s3_entry *there; /* what check_pending() has found under that name; or NULL */
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

/* Whether another host's push is adding an object of that name. */
static bool is_claimed(const struct s3_work *w, const char *path)
{
    const char *mark = s3_pending_find(&w->remote.manifest.pending, path);
    return mark && s3_mark_is_others(&w->remote, mark);
}

/* Whether its content is put in place only once the manifest says so. */
static bool is_staged(const struct s3_work *w, const struct s3_step *s)
{
    return replaces(s) || is_claimed(w, s->path);
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
    if (r == 0)
        r = strlist_printf(&u->meta, "x-amz-meta-msb-id:%s", u->id);
    u->how.meta = &u->meta;
    u->how.id = u->id;
    return r;
}

/* If the reply is lost, a retry is told that there is an object already. */
static bool is_there(struct upload *u)
{
    struct s3_object o;
    const struct s3_entry *a = &u->got;
    if (s3_head(u->w->client, u->key, &o, NULL) < 0 || strcmp(o.id, u->id) != 0 ||
        strcmp(o.sha, a->sha) != 0 || o.size != (int64_t)a->size || o.mode != (int)a->mode ||
        o.mtime_ns != a->mtime_ns)
        return false;
    memcpy(u->got.etag, o.etag, sizeof(o.etag));
    return true;
}

static int put_whole(struct upload *u, const void *p, size_t n, struct err *e)
{
    const struct s3_entry *o = u->there;
    digest_hex_of(p, n, u->got.sha);
    u->got.size = n;
    if (o && strcmp(o->sha, u->got.sha) == 0 && o->mode == u->got.mode &&
        o->mtime_ns == u->got.mtime_ns) { /* sent by a push that has died since */
        memcpy(u->got.etag, o->etag, sizeof(o->etag));
        return 0;
    }
    u->how.sha = u->got.sha;
    if (describe(u, u->got.sha) < 0)
        return err_oom(e);
    int r = s3_put(u->w->client, u->key, p, n, &u->how, u->got.etag, e);
    if (r != -EEXIST || !is_there(u))
        return r;
    err_clear(e);
    return 0;
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
    return s3_put_parts(u->w, u->key, &u->how, fd, u->part, &u->got, e);
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
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        later_get(fd, (char[LATER_SIZE]){0})) /* moved here since */
        return 1;
    s3_entry_stat(&u->got, &st);
    int r = put_file(u, fd, e);
    if (r == 0 && (fstat(fd, &after) < 0 || !s3_entry_untouched(&u->got, &after)))
        u->got.ino = 0;
    return r;
}

/* The object of that name, if there is one that does not count. */
static struct s3_entry *find_hidden(struct s3_work *w, const char *path)
{
    struct s3_entry *gone = s3_tree_find(&w->remote.gone, path);
    return gone ? gone : s3_tree_find(&w->remote.pending, path);
}

/* Before anything is announced: checks that a push has put there what is pending, and what it is
 * now. */
static int check_pending(struct s3_work *w, struct s3_step *s, struct err *e)
{
    char key[S3_KEY_SIZE], added[S3_KEY_ID + 1];
    struct s3_entry *there = find_hidden(w, s->path);
    if (!there || !is_upload(s) || is_staged(w, s))
        return 0;
    s3_key(w->config, s->path, key);
    s3_key_id(key, added);
    bool gone = s3_gone_find(&w->remote, there);
    struct target t = {.w = w, .key = key, .etag = gone ? there->etag : ""};
    int r = check_same(&t, e);
    if (r == 0) {
        memcpy(there->etag, t.now.etag, sizeof(there->etag));
        there->mode = (unsigned)t.now.mode;
        there->mtime_ns = t.now.mtime_ns;
        if (strcmp(t.now.id, added) == 0)
            memcpy(there->sha, t.now.sha, sizeof(there->sha));
    }
    if (r <= 0)
        return r;
    (void)pthread_mutex_lock(&w->lock);
    r = strlist_add(&w->theirs, s->path);
    (void)pthread_mutex_unlock(&w->lock);
    return r < 0 ? err_oom(e) : 0;
}

/* The ETag of the object that staged content will replace; "" = none. */
static const char *replaced_etag(struct s3_work *w, const struct s3_step *s)
{
    const struct s3_entry *o = replaces(s) ? s->remote : find_hidden(w, s->path);
    return o && (replaces(s) || s3_gone_find(&w->remote, o)) ? o->etag : "";
}

static int new_id(const struct s3_work *w, const char *etag, char out[S3_ID + 1])
{
    uint64_t random;
    char end[S3_ETAG_DIGITS + 1];
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return -EIO;
    s3_mark(&w->remote, out);
    s3_id_end(etag, end);
    (void)snprintf(out + S3_MARK, S3_ID + 1 - S3_MARK, "%016llx%s", (unsigned long long)random,
                   end);
    return 0;
}

static int choose_key(struct upload *u, struct err *e)
{
    const struct s3_config *config = u->w->config;
    const char *etag = replaced_etag(u->w, u->s);
    if (!is_staged(u->w, u->s)) {
        const struct s3_entry *there = find_hidden(u->w, u->s->path);
        bool is_there = there && there->etag[0];
        s3_key(config, u->s->path, u->key);
        s3_key_id(u->key, u->id);
        u->there = there;
        u->how.match = is_there ? there->etag : NULL;
        u->how.when = !config->conditional ? S3_ALWAYS : is_there ? S3_IF_MATCH : S3_IF_ABSENT;
        return 0;
    }
    if ((!s3_resume_staged(u->w, u->s, etag, u->id) && new_id(u->w, etag, u->id) < 0) ||
        !(u->s->staged = strdup(u->id)))
        return err_oom(e);
    s3_staged_key(config, u->id, u->key);
    return 0;
}

static int upload(struct s3_work *w, struct s3_step *s, struct err *e)
{
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
    s->result = u.got; /* a copy of what is staged usually has its ETag */
    s->result.staged = s->staged;
    s3_work_count(w, &w->counts.uploaded, &w->counts.bytes_up, u.got.size);
    return 0;
}

/* --- the whole ------------------------------------------------------------------------------- */

/* Keeps pending what another host is adding and, until it has been removed, what nobody adds any
 * more. */
static int keep_pending(const struct s3_work *w, bool tidied, struct s3_tree *ret)
{
    const struct strlist *l = &w->remote.manifest.pending;
    for (size_t i = 0; i < l->n; i++) {
        const char *path = l->v[i] + S3_MARK + 1;
        bool keep = s3_mark_is_others(&w->remote, l->v[i]) ||
                    (!tidied && s3_tree_find(&w->remote.pending, path));
        const struct s3_entry *a = s3_tree_find(ret, path);
        if (keep && (!a || a->kind == S3_KIND_DIR) && strlist_add(&ret->pending, l->v[i]) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Whether an object that does not count has been replaced by one that does. */
static bool is_superseded(const struct s3_tree *m, const struct s3_entry *o)
{
    const struct s3_entry *a = s3_tree_find(m, o->path);
    return a && (a->kind == S3_KIND_DIR) == (o->kind == S3_KIND_DIR);
}

/* Whether that object is still there, and nothing counts in its place. */
static bool is_left(const struct s3_work *w, const struct s3_tree *m, const char *gone)
{
    const struct s3_tree *const there[] = {&w->remote.gone, &w->remote.gone_dirs};
    bool left = false;
    for (size_t i = 0; i < ARRAY_LEN(there); i++) {
        const struct s3_entry *o = s3_tree_find(there[i], s3_gone_path(gone));
        left = left || (o && !is_superseded(m, o) && s3_gone_find(&w->remote, o) == gone);
    }
    return left;
}

/* What another host has removed is listed even if its object is gone already: if its push died
 * there, it learns from it that it was the one. */
static int keep_gone(const struct s3_work *w, bool tidied, struct s3_tree *ret)
{
    const struct strlist *l = &w->remote.manifest.gone;
    int r = 0;
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        bool theirs = s3_mark_is_others(&w->remote, l->v[i]);
        if ((theirs && !s3_tree_find(ret, s3_gone_path(l->v[i]))) ||
            ((theirs || !tidied) && is_left(w, ret, l->v[i])))
            r = strlist_add(&ret->gone, l->v[i]);
    }
    return r;
}

/* Lists what is gone until its object is, too; that of another host, until it has removed it. */
static int list_gone(const struct s3_work *w, bool tidied, struct s3_tree *ret)
{
    char name[S3_GONE_SIZE], ours[S3_MARK + 1];
    s3_mark(&w->remote, ours);
    int r = keep_gone(w, tidied, ret);
    /* If there is another pass, what this one did is not recorded here. */
    bool recorded = tidied && !atomic_load(&w->again);
    for (size_t i = 0; r == 0 && !recorded && i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        if (!is_obsolete(s))
            continue;
        s3_gone_name(s->remote->etag, s->path, name);
        r = strlist_printf(&ret->gone, "%s %s", ours, name);
    }
    s3_pending_sort(&ret->gone);
    return r;
}

/* The state that both sides will have. */
static int new_manifest(struct s3_work *w, bool tidied, struct s3_tree *ret)
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
    memcpy(ret->lineage, w->remote.manifest.lineage, sizeof(ret->lineage));
    memcpy(ret->push, w->remote.manifest.push, sizeof(ret->push));
    int r = keep_pending(w, tidied, ret);
    return r < 0 ? r : list_gone(w, tidied, ret);
}

/* Before anything is added: announces additions, which do not count yet. */
static int announce(struct s3_work *w, struct err *e)
{
    struct s3_remote *r = &w->remote;
    struct strlist *l = &r->manifest.pending;
    AUTO_STRLIST struct strlist more = {0};
    char mark[S3_MARK + 1];
    bool news = false;
    s3_mark(r, mark);
    for (size_t i = 0; i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        if (!is_upload(s) || is_staged(w, s))
            continue;
        const char *there = s3_pending_find(l, s->path);
        news = news || !there || !s3_mark_is_fresh(r, there);
        if (!there && strlist_printf(&more, "%s %s", mark, s->path) < 0)
            return err_oom(e);
    }
    if (!news)
        return 0;
    for (size_t i = 0; i < l->n; i++)
        if (!s3_mark_is_others(r, l->v[i]))
            memcpy(l->v[i], mark, S3_MARK);
    if (strlist_copy(l, &more) < 0)
        return err_oom(e);
    s3_pending_sort(l);
    return s3_manifest_write(w->client, w->config, w->dir, &r->manifest, r->manifest_etag, e);
}

/* Unless others have written to it. */
static int remove_entry(struct s3_work *w, const struct s3_entry *a, struct err *e)
{
    char key[S3_KEY_SIZE + 1];
    s3_key(w->config, a->path, key);
    size_t n = strlen(key);
    if (a->kind == S3_KIND_DIR)
        (void)snprintf(key + n, sizeof(key) - n, "/");
    struct target t = {.w = w, .key = key, .etag = a->etag, .id = a->staged};
    int r = s3_delete(w->client, key, &(struct s3_check){check, &t}, e);
    return MIN(r, 0);
}

/* Moves staged content to its object. */
static int bring_home(struct s3_work *w, struct s3_step *s, struct err *e)
{
    char from[S3_KEY_SIZE], to[S3_KEY_SIZE];
    bool theirs = s->result.staged && s3_mark_is_others(&w->remote, s->result.staged);
    int r = is_obsolete(s) ? remove_entry(w, s->remote, e) : 0;
    if (r < 0 || !s->result.staged || theirs)
        return r;
    s3_key(w->config, s->path, to);
    s3_staged_key(w->config, s->result.staged, from);
    struct target t = {.w = w, .key = to, .etag = replaced_etag(w, s), .id = s->result.staged};
    r = s3_copy(w->client, from, to, &(struct s3_check){check, &t}, s->result.etag, e);
    if (r == 0)
        r = s3_delete(w->client, from, NULL, e);
    if (r == 0)
        s->result.staged = NULL;
    return MIN(r, 0);
}

static int remove_leftover(struct s3_work *w, const char *id, struct err *e)
{
    char key[S3_KEY_SIZE];
    s3_staged_key(w->config, id, key);
    return s3_delete(w->client, key, NULL, e);
}

static int remove_pending(struct s3_work *w, const char *name, struct err *e)
{
    const struct s3_entry added = {.path = (char *)name + S3_MARK + 1};
    return s3_mark_is_others(&w->remote, name) ? 0 : remove_entry(w, &added, e);
}

static int remove_gone(struct s3_work *w, const struct s3_entry *o, const struct s3_tree *m,
                       struct err *e)
{
    const char *mark = is_superseded(m, o) ? NULL : s3_gone_find(&w->remote, o);
    return !mark || s3_mark_is_others(&w->remote, mark) ? 0 : remove_entry(w, o, e);
}

static int tidy_one(struct s3_work *w, const void *manifest, size_t i, struct err *e)
{
    const struct s3_remote *r = &w->remote;
    const struct s3_tree *m = manifest;
    if (i < r->leftover.n)
        return remove_leftover(w, r->leftover.v[i], e);
    i -= r->leftover.n;
    if (i < m->pending.n)
        return remove_pending(w, m->pending.v[i], e);
    i -= m->pending.n;
    return remove_gone(w, i < r->gone.n ? &r->gone.v[i] : &r->gone_dirs.v[i - r->gone.n], m, e);
}

/* Removes what interrupted pushes have left; m: the manifest as it is. */
static int tidy(struct s3_work *w, const struct s3_tree *m, struct err *e)
{
    const struct s3_remote *r = &w->remote;
    size_t n = r->leftover.n + m->pending.n + r->gone.n + r->gone_dirs.n;
    return s3_work_numbers(w, n, tidy_one, m, e);
}

/* Whether nothing is staged, pending or yet to be removed, except by other hosts. */
static bool is_settled(const struct s3_work *w, const struct s3_tree *t)
{
    bool settled = true;
    for (size_t i = 0; settled && i < t->n; i++)
        settled = !t->v[i].staged || s3_mark_is_others(&w->remote, t->v[i].staged);
    for (size_t i = 0; settled && i < t->pending.n; i++)
        settled = s3_mark_is_others(&w->remote, t->pending.v[i]);
    for (size_t i = 0; settled && i < t->gone.n; i++)
        settled = s3_mark_is_others(&w->remote, t->gone.v[i]);
    return settled;
}

static bool anything_to_do(const struct s3_work *w)
{
    const size_t *n = w->plan.count;
    if (n[S3_UPLOAD] || n[S3_DELETE_REMOTE] || w->remote.leftover.n)
        return true;
    return !is_settled(w, &w->remote.tree) || !is_settled(w, &w->remote.manifest);
}

static int push(struct s3_work *w, struct err *e)
{
    AUTO_S3_TREE struct s3_tree m = {0};
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
    int r = w->remote.pending.n || w->remote.gone.n ? s3_work_each(w, check_pending, e) : 0;
    if (r < 0 || atomic_load(&w->again))
        return r;
    r = announce(w, e);
    if (r == 0)
        r = s3_work_each(w, upload, e);
    if (r < 0 || atomic_load(&w->again))
        return r;
    r = s3_random(w->remote.manifest.push, e);
    if (r == 0 && new_manifest(w, false, &m) < 0)
        r = err_oom(e);
    if (r == 0)
        r = s3_base_foresee(w, true, e);
    if (r == 0)
        r = s3_manifest_write(w->client, w->config, w->dir, &m, w->remote.manifest_etag, e);
    w->counts.removed_there += r == 0 ? w->plan.count[S3_DELETE_REMOTE] : 0;
    if (r == 0)
        r = s3_work_each(w, bring_home, e);
    if (r == 0)
        r = tidy(w, &m, e);
    w->unsettled = !is_settled(w, &m);
    return r;
}

int s3_push(struct s3_work *w, struct err *e)
{
    int r = push(w, e);
    if (r == 0 && !atomic_load(&w->again))
        s3_resume_give_up(w);
    return r;
}

int s3_push_end(struct s3_work *w, struct err *e)
{
    AUTO_S3_TREE struct s3_tree last = {0};
    if (!w->unsettled)
        return 0;
    if (new_manifest(w, true, &last) < 0)
        return err_oom(e);
    return s3_manifest_write(w->client, w->config, w->dir, &last, w->remote.manifest_etag, e);
}
