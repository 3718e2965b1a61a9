#include "s3/remote.h"

#include "image/oci/digest.h"
#include "util/fs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MANIFEST ".msb/manifest.json"
#define STAGED ".msb/new/"
#define KEPT_FILE "s3-manifest.json"
#define MARK_FILE "s3-mark"

enum { LOAD_TRIES = 4, ABANDONED_S = 24 * 3600, KEPT_HEAD = S3_ETAG_SIZE + 1 + S3_LINEAGE + 1 };

void s3_key(const struct s3_config *c, const char *path, char out[S3_KEY_SIZE])
{
    (void)snprintf(out, S3_KEY_SIZE, "%s%s", c->prefix, path);
}

void s3_staged_key(const struct s3_config *c, const char *id, char out[S3_KEY_SIZE])
{
    (void)snprintf(out, S3_KEY_SIZE, "%s" STAGED "%s", c->prefix, id);
}

void s3_key_id(const char *key, char out[S3_KEY_ID + 1])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex_of(key, strlen(key), hex);
    (void)snprintf(out, S3_KEY_ID + 1, "%.*s", S3_KEY_ID, hex);
}

void s3_id_end(const char *etag, char out[S3_ETAG_DIGITS + 1])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex_of(etag, strlen(etag), hex);
    (void)snprintf(out, S3_ETAG_DIGITS + 1, "%.*s", S3_ETAG_DIGITS, hex);
}

bool s3_id_replaces(const char *id, const char *etag)
{
    char end[S3_ETAG_DIGITS + 1];
    s3_id_end(etag, end);
    return strlen(id) != S3_ID || strcmp(id + S3_ID - S3_ETAG_DIGITS, end) == 0;
}

void s3_remote_free(struct s3_remote *r)
{
    s3_tree_free(&r->tree);
    s3_tree_free(&r->manifest);
    s3_tree_free(&r->pending);
    s3_tree_free(&r->gone);
    s3_tree_free(&r->gone_dirs);
    strlist_free(&r->leftover);
    *r = (struct s3_remote){0};
}

/* --- sorted lists ---------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct strlist *l)
{
    if (l->n)
        qsort(l->v, l->n, sizeof(*l->v), by_text);
}

static bool sorted_has(const struct strlist *l, const char *text)
{
    return l->n && bsearch(&text, l->v, l->n, sizeof(*l->v), by_text);
}

/* --- whose it is ----------------------------------------------------------------------------- */

/* It stays the same for as long as the workspace is on this host. */
static int who_we_are(int dir, char who[S3_MARK / 2 + 1], struct err *e)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    uint32_t random;
    if (file_read_at(dir, MARK_FILE, S3_MARK, &text, &n) == 0 && n == S3_MARK / 2 &&
        strspn(text, "0123456789abcdef") == n) {
        memcpy(who, text, n + 1);
        return 0;
    }
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return err_sys(e, EIO, "cannot get random bytes");
    (void)snprintf(who, S3_MARK / 2 + 1, "%08x", random);
    int r = file_replace_at(dir, MARK_FILE, who, S3_MARK / 2, 0600, false);
    return r < 0 ? err_sys(e, -r, "cannot write " MARK_FILE) : 0;
}

void s3_mark(const struct s3_remote *r, char out[S3_MARK + 1])
{
    (void)snprintf(out, S3_MARK + 1, "%s%08x", r->who, (unsigned)r->now);
}

static int64_t age_of(const struct s3_remote *r, const char *mark)
{
    char since[S3_MARK / 2 + 1];
    (void)snprintf(since, sizeof(since), "%s", mark + S3_MARK / 2);
    return r->now - (int64_t)strtoul(since, NULL, 16);
}

static bool is_ours(const struct s3_remote *r, const char *mark)
{
    return strncmp(mark, r->who, strlen(r->who)) == 0;
}

bool s3_mark_is_others(const struct s3_remote *r, const char *mark)
{
    int64_t age = strnlen(mark, S3_MARK) == S3_MARK ? age_of(r, mark) : ABANDONED_S;
    return !is_ours(r, mark) && age > -ABANDONED_S && age < ABANDONED_S;
}

bool s3_mark_is_fresh(const struct s3_remote *r, const char *mark)
{
    return is_ours(r, mark) && age_of(r, mark) < ABANDONED_S / 2;
}

static const char *path_of_pending(const void *p)
{
    return *(char *const *)p + S3_MARK + 1;
}

static int by_pending_path(const void *a, const void *b)
{
    return strcmp(path_of_pending(a), path_of_pending(b));
}

void s3_pending_sort(struct strlist *l)
{
    if (l->n)
        qsort(l->v, l->n, sizeof(*l->v), by_pending_path);
}

static int is_pending_path(const void *path, const void *p)
{
    return strcmp(path, path_of_pending(p));
}

char *s3_pending_find(const struct strlist *sorted, const char *path)
{
    char **found =
        sorted->n ? bsearch(path, sorted->v, sorted->n, sizeof(*sorted->v), is_pending_path) : NULL;
    return found ? *found : NULL;
}

void s3_gone_name(const char *etag, const char *path, char out[S3_GONE_SIZE])
{
    s3_id_end(etag, out);
    (void)snprintf(out + S3_ETAG_DIGITS, S3_GONE_SIZE - S3_ETAG_DIGITS, "/%s", path);
}

const char *s3_gone_path(const char *gone)
{
    return gone + S3_MARK + 1 + S3_ETAG_DIGITS + 1;
}

/* What is there instead may be a file where there was an object for a directory, or the reverse. */
const char *s3_gone_find(const struct s3_remote *r, const struct s3_entry *o)
{
    char name[S3_GONE_SIZE];
    if (!r->manifest.gone.n)
        return NULL;
    const struct s3_entry *m = s3_tree_find(&r->manifest, o->path);
    if (m && (m->kind == S3_KIND_DIR) == (o->kind == S3_KIND_DIR))
        return NULL;
    s3_gone_name(o->etag, o->path, name);
    return s3_pending_find(&r->manifest.gone, name);
}

/* If nothing that counts is there, the ETag does not matter: base may not have had it. */
static bool was_removed_by_us(const struct s3_remote *r, const struct strlist *ours,
                              const struct s3_entry *b)
{
    const char *mark = s3_gone_find(r, b);
    return (mark && is_ours(r, mark)) ||
           (sorted_has(ours, b->path) && !s3_tree_find(&r->tree, b->path));
}

int s3_forget_gone(const struct s3_remote *r, const struct s3_tree *local, struct s3_tree *base)
{
    AUTO_STRLIST struct strlist ours = {0};
    const struct strlist *l = &r->manifest.gone;
    size_t n = 0, all = base->n;
    for (size_t i = 0; i < l->n; i++)
        if (is_ours(r, l->v[i]) && strlist_add(&ours, s3_gone_path(l->v[i])) < 0)
            return -ENOMEM;
    sort(&ours);
    for (size_t i = 0; i < all; i++) {
        struct s3_entry *b = &base->v[i];
        const struct s3_entry *here = s3_tree_find(local, b->path);
        if ((here ? here : b)->later[0] || !was_removed_by_us(r, &ours, b)) {
            base->v[n++] = *b;
            continue;
        }
        free(b->path);
        free(b->staged);
    }
    base->n = n;
    return n < all;
}

/* --- the listing ----------------------------------------------------------------------------- */

struct listing {
    struct s3_client *client;
    const struct s3_config *config;
    struct s3_remote *r;
    const struct s3_tree *base;
    const struct strlist *theirs;
    const struct s3_watch *watch;
    int dir;
    struct s3_tree objects, dirs, staged; /* dirs: "DIR/" */
};

static void listing_free(struct listing *l)
{
    s3_tree_free(&l->objects);
    s3_tree_free(&l->dirs);
    s3_tree_free(&l->staged);
}

static int on_key(void *ctx, const char *key, uint64_t size, const char *etag, struct err *e)
{
    struct listing *l = ctx;
    struct s3_entry a = {.kind = S3_KIND_FILE, .mode = 0644, .size = size};
    size_t n = strlen(l->config->prefix), len = strlen(key);
    if (strncmp(key, l->config->prefix, n) != 0)
        return err_set(e, EPROTO, "the server lists objects that were not requested");
    const char *path = key + n;
    (void)snprintf(a.etag, sizeof(a.etag), "%s", etag);
    if (strcmp(path, MANIFEST) == 0) {
        (void)snprintf(l->r->manifest_etag, sizeof(l->r->manifest_etag), "%s", etag);
        return 0;
    }
    if (strncmp(path, STAGED, strlen(STAGED)) == 0)
        return s3_tree_add(&l->staged, path + strlen(STAGED), &a) ? 0 : err_oom(e);
    if (strncmp(path, ".msb/", 5) == 0 || !*path)
        return 0;
    AUTO_FREE char *dir = len && key[len - 1] == '/' ? strndup(path, strlen(path) - 1) : NULL;
    if (dir)
        a.kind = S3_KIND_DIR, a.mode = 0755,
        a.size = 0; /* the ETag shows that there is an object */
    if (!s3_path_ok(dir ? dir : path)) {
        l->r->strange++;
        return 0;
    }
    return s3_tree_add(dir ? &l->dirs : &l->objects, dir ? dir : path, &a) ? 0 : err_oom(e);
}

static void on_more(void *ctx)
{
    const struct listing *l = ctx;
    if (l->watch->more)
        l->watch->more(l->watch->ctx);
}

/* "ETAG LINEAGE\n" and the manifest. If it is old, only its lineage counts: -ESTALE. */
static int read_kept(int dir, const char *etag, char lineage[S3_LINEAGE + 1], struct s3_tree *ret)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    int r = file_read_at(dir, KEPT_FILE, S3_MANIFEST_MAX + KEPT_HEAD, &text, &n);
    if (r < 0)
        return r;
    char *body = text, *line = strsep(&body, "\n"), *is = strsep(&line, " ");
    if (line)
        (void)snprintf(lineage, S3_LINEAGE + 1, "%s", line);
    return !body || strcmp(is, etag) != 0 ? -ESTALE
                                          : s3_tree_parse(body, n - (size_t)(body - text), ret);
}

static void keep_manifest(int dir, const char *etag, const char *lineage, const char *text,
                          size_t n)
{
    AUTO_BUF struct buf b;
    buf_init(&b, S3_MANIFEST_MAX + KEPT_HEAD);
    if (buf_printf(&b, "%s %s\n", etag, lineage) == 0 && buf_append(&b, text, n) == 0)
        (void)file_replace_at(dir, KEPT_FILE, buf_head(&b), buf_len(&b), 0600, false);
}

int s3_random(char out[S3_LINEAGE + 1], struct err *e)
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return err_sys(e, EIO, "cannot get random bytes");
    (void)snprintf(out, S3_LINEAGE + 1, "%016llx", (unsigned long long)random);
    return 0;
}

/* -ESTALE: it was replaced since it was listed. */
static int read_manifest(struct s3_client *c, struct listing *l, struct err *e)
{
    AUTO_BUF struct buf text;
    char key[S3_KEY_SIZE], was[S3_LINEAGE + 1] = "";
    struct s3_object o;
    buf_init(&text, S3_MANIFEST_MAX);
    struct s3_tree *m = &l->r->manifest;
    int r = read_kept(l->dir, l->r->manifest_etag, was, m);
    if (r == 0)
        return 0;
    if (!l->r->manifest_etag[0]) {
        l->r->lost = r != -ENOENT;
        return s3_random(m->lineage, e);
    }
    s3_key(l->config, MANIFEST, key);
    r = s3_get_all(c, key, &text, &o, e);
    if (r == -ENOENT || (r == 0 && strcmp(o.etag, l->r->manifest_etag) != 0))
        return -ESTALE;
    if (r < 0)
        return r;
    r = s3_tree_parse((const char *)buf_head(&text), buf_len(&text), m);
    l->r->damaged = r == -EBADMSG;
    l->r->lost = was[0] && m->lineage[0] && strcmp(was, m->lineage) != 0;
    if (r == 0 && !l->r->lost)
        keep_manifest(l->dir, o.etag, m->lineage, (const char *)buf_head(&text), buf_len(&text));
    return r == -ENOMEM ? err_oom(e) : 0;
}

/* --- what counts ----------------------------------------------------------------------------- */

static const struct s3_entry *staged_at(const struct listing *l, const struct s3_entry *m)
{
    return m && m->staged ? s3_tree_find(&l->staged, m->staged) : NULL;
}

/* Whether the staged content counts, rather than the object: that is what it will replace, or its
 * copy already. 0: others have written to the object since. */
static int is_to_replace(const struct listing *l, const struct s3_entry *m,
                         const struct s3_entry *o, struct err *e)
{
    const struct s3_entry *staged = staged_at(l, m);
    char key[S3_KEY_SIZE], id[S3_KEY_ID + 1];
    struct s3_object now = {0};
    if (!staged)
        return 0;
    if (s3_id_replaces(m->staged, o->etag) || strcmp(staged->etag, o->etag) == 0)
        return 1;
    s3_key(l->config, o->path, key);
    s3_key_id(key, id);
    int r = s3_head(l->client, key, &now, e);
    if (r < 0)
        return r == -ENOENT ? 1 : r;
    return strcmp(now.id, m->staged) == 0 ||
           (s3_id_replaces(m->staged, "") && strcmp(now.id, id) == 0);
}

/* Finds the known entry for an object. */
static const struct s3_entry *known_as(const struct listing *l, const struct s3_entry *o)
{
    const struct s3_entry *m = s3_tree_find(&l->r->manifest, o->path);
    const struct s3_entry *b = s3_tree_find(l->base, o->path);
    if (o->kind == S3_KIND_DIR)
        return m && m->kind == S3_KIND_DIR ? m : o;
    if (m && m->etag[0] && strcmp(m->etag, o->etag) == 0)
        return m;
    if (b && b->etag[0] && b->sha[0] && strcmp(b->etag, o->etag) == 0)
        return b;
    return o;
}

/* Its mark, if the object does not count yet. What the manifest has may be a directory that it is to
 * replace. What we have already counted before its name was announced. */
static const char *pending_mark(const struct listing *l, const struct s3_entry *o)
{
    const char *mark =
        o->kind == S3_KIND_DIR ? NULL : s3_pending_find(&l->r->manifest.pending, o->path);
    if (!mark)
        return NULL;
    const struct s3_entry *m = s3_tree_find(&l->r->manifest, o->path);
    const struct s3_entry *b = s3_tree_find(l->base, o->path);
    bool counts = (m && m->kind != S3_KIND_DIR) ||
                  (b && b->etag[0] && strcmp(b->etag, o->etag) == 0) ||
                  sorted_has(l->theirs, o->path);
    return counts ? NULL : mark;
}

static bool counts(const struct listing *l, const struct s3_entry *o)
{
    return o && !s3_gone_find(l->r, o) && !pending_mark(l, o);
}

static int add_object(struct listing *l, const struct s3_entry *o, struct err *e)
{
    struct s3_tree *gone = o->kind == S3_KIND_DIR ? &l->r->gone_dirs : &l->r->gone;
    if (s3_gone_find(l->r, o))
        return s3_tree_add(gone, o->path, o) ? 0 : err_oom(e);
    const char *mark = pending_mark(l, o);
    if (mark && s3_mark_is_others(l->r, mark))
        return 0;
    if (mark)
        return s3_tree_add(&l->r->pending, o->path, o) ? 0 : err_oom(e);
    const struct s3_entry *m = s3_tree_find(&l->r->manifest, o->path);
    int staged = o->kind == S3_KIND_DIR ? 0 : is_to_replace(l, m, o, e);
    if (staged < 0)
        return staged;
    const struct s3_entry *as = staged ? m : known_as(l, o);
    struct s3_entry *a = s3_tree_add(&l->r->tree, o->path, as);
    if (!a)
        return err_oom(e);
    if (!staged) {
        free(a->staged);
        a->staged = NULL;
        a->size = o->size; /* as the server reports it, since the download is checked against it */
    }
    (void)snprintf(a->etag, sizeof(a->etag), "%s", o->etag);
    return 0;
}

static int merge(struct listing *l, struct err *e)
{
    struct s3_remote *r = l->r;
    int x = 0;
    s3_pending_sort(&r->manifest.pending);
    s3_pending_sort(&r->manifest.gone);
    for (size_t i = 0; x == 0 && i < l->objects.n; i++)
        x = add_object(l, &l->objects.v[i], e);
    for (size_t i = 0; x == 0 && i < l->dirs.n; i++)
        if (s3_gone_find(r, &l->dirs.v[i]) ||
            !counts(l, s3_tree_find(&l->objects, l->dirs.v[i].path)))
            x = add_object(l, &l->dirs.v[i], e);
    for (size_t i = 0; x == 0 && i < r->manifest.n; i++) {
        const struct s3_entry *m = &r->manifest.v[i];
        if (counts(l, s3_tree_find(&l->objects, m->path)) ||
            counts(l, s3_tree_find(&l->dirs, m->path)))
            continue;
        if (m->kind != S3_KIND_DIR && !staged_at(l, m))
            continue;
        struct s3_entry *a = s3_tree_add(&r->tree, m->path, m);
        if (!a)
            x = err_oom(e);
        else if (a->staged)
            a->etag[0] = '\0'; /* its object does not exist yet */
    }
    s3_tree_sort(&r->tree);
    return x < 0 ? x : s3_tree_imply_dirs(&r->tree) < 0 ? err_oom(e) : 0;
}

/* Finds staged content that does not count: its manifest was never written, or others have written
 * to the object since. */
static int find_leftovers(struct listing *l)
{
    AUTO_STRLIST struct strlist used = {0};
    int r = 0;
    for (size_t i = 0; r == 0 && i < l->r->tree.n; i++)
        if (l->r->tree.v[i].staged)
            r = strlist_add(&used, l->r->tree.v[i].staged);
    sort(&used);
    for (size_t i = 0; r == 0 && i < l->staged.n; i++) {
        const char *id = l->staged.v[i].path;
        if (!sorted_has(&used, id) && s3_path_ok(id) && !s3_mark_is_others(l->r, id))
            r = strlist_add(&l->r->leftover, id);
    }
    return r;
}

static int load(struct s3_client *c, struct listing *l, struct err *e)
{
    int r = s3_list(c, l->config->prefix, on_key, on_more, l, e);
    if (r < 0)
        return r;
    s3_tree_sort(&l->objects);
    s3_tree_sort(&l->dirs);
    s3_tree_sort(&l->staged);
    l->r->now = s3_client_now(c);
    r = who_we_are(l->dir, l->r->who, e);
    if (r == 0)
        r = read_manifest(c, l, e);
    if (r == 0)
        r = merge(l, e);
    if (r < 0)
        return r;
    if (find_leftovers(l) < 0)
        return err_oom(e);
    for (size_t i = 0; i < l->r->tree.n; i++)
        l->r->bytes += l->r->tree.v[i].size;
    return 0;
}

int s3_remote_load(struct s3_client *c, const struct s3_config *config, int dir,
                   const struct s3_tree *base, struct strlist *theirs, const struct s3_watch *watch,
                   struct s3_remote *ret, struct err *e)
{
    sort(theirs);
    for (int i = 0;; i++) {
        AUTO_S3_REMOTE struct s3_remote r = {0};
        CLEANUP(listing_free)
        struct listing l = {.client = c,
                            .config = config,
                            .r = &r,
                            .base = base,
                            .theirs = theirs,
                            .watch = watch,
                            .dir = dir};
        int x = load(c, &l, e);
        if (x == -ESTALE && i < LOAD_TRIES)
            continue;
        if (x == -ESTALE)
            return err_set(e, EAGAIN, "the bucket keeps changing");
        if (x < 0)
            return x;
        *ret = r;
        r = (struct s3_remote){0};
        return 0;
    }
}

/* --- the manifest ---------------------------------------------------------------------------- */

void s3_manifest_forget(int dir)
{
    (void)unlinkat(dir, KEPT_FILE, 0);
}

int s3_manifest_check(struct s3_client *c, const struct s3_config *config, const char *etag,
                      struct err *e)
{
    char key[S3_KEY_SIZE];
    struct s3_object o = {0};
    s3_key(config, MANIFEST, key);
    int r = s3_head(c, key, &o, e);
    if (r < 0 && r != -ENOENT)
        return r;
    return strcmp(r == -ENOENT ? "" : o.etag, etag) == 0
               ? 0
               : err_set(e, EEXIST, "the manifest was changed by another client");
}

int s3_manifest_write(struct s3_client *c, const struct s3_config *config, int dir,
                      const struct s3_tree *t, char etag[S3_ETAG_SIZE], struct err *e)
{
    char key[S3_KEY_SIZE];
    AUTO_FREE char *text = s3_tree_dump(t, false);
    struct s3_put how = {.when = etag[0] ? S3_IF_MATCH : S3_IF_ABSENT, .match = etag};
    if (!text)
        return err_oom(e);
    s3_key(config, MANIFEST, key);
    if (strlen(text) > S3_MANIFEST_MAX)
        return err_set(e, EFBIG, "the workspace has too many files for its manifest");
    int r = 0;
    if (!config->conditional) { /* as good as it gets */
        how.when = S3_ALWAYS;
        r = s3_manifest_check(c, config, etag, e);
    }
    char fresh[S3_ETAG_SIZE] = "";
    if (r == 0)
        r = s3_put(c, key, text, strlen(text), &how, fresh, e);
    if (r < 0)
        return r;
    memcpy(etag, fresh, sizeof(fresh));
    if (t->pending.n == 0) /* of a push, only the final one is worth keeping */
        keep_manifest(dir, etag, t->lineage, text, strlen(text));
    return 0;
}
