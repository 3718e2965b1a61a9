/* Removes images: everything to which no reference and no sandbox leads.
 *
 * Under the exclusive lock, nothing is being added, or about to be used without a spec that names
 * it. Names are removed before what they lead to, so that an interruption leaves only garbage.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "image/store/internal.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

enum {
    WAIT_MS = 10000, /* for others to finish */
    WAIT_STEP_MS = 50,
    PARTIAL_AGE_S = 24 * 3600, /* of an interrupted download that was not resumed */
};

/* A set of file names, to be sorted before lookups. */
struct names {
    char (*v)[RECORD_NAME_SIZE];
    size_t n, cap;
};

struct gc {
    struct image_store *s;
    const struct image_collect *opt;
    struct image_collected done;
    struct strlist used; /* digests of sandboxes' images */
    struct names records, singles, disks, layers, docs;
    const struct names *keep; /* in the current directory */
};

static void names_free(struct names *k)
{
    free(k->v);
    *k = (struct names){0};
}

static int names_add(struct names *k, const char *name)
{
    if (ARRAY_GROW(k->v, k->n, k->cap, 64) < 0)
        return -ENOMEM;
    (void)snprintf(k->v[k->n++], RECORD_NAME_SIZE, "%s", name);
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void names_sort(struct names *k)
{
    if (k->n)
        qsort(k->v, k->n, sizeof(*k->v), compare);
}

static bool names_have(const struct names *k, const char *name)
{
    return k->n && bsearch(name, k->v, k->n, sizeof(*k->v), compare);
}

/* --- directories ---------------------------------------------------------------------------- */

typedef int (*entry_fn)(struct gc *g, int dirfd, const char *name);

static int each_entry(struct gc *g, int dirfd, entry_fn fn)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(dirfd, ".");
    if (!d)
        return -errno;
    int r = 0;
    for (const struct dirent *ent; r == 0 && (ent = readdir(d));)
        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0)
            r = fn(g, dirfd, ent->d_name);
    return r;
}

static int drop(struct gc *g, int dirfd, const char *name)
{
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (unlinkat(dirfd, name, 0) < 0)
        return errno == ENOENT || errno == EISDIR ? 0 : -errno; /* directories are not ours */
    if (S_ISREG(st.st_mode) && st.st_nlink == 1)
        g->done.bytes += (uint64_t)st.st_blocks * 512;
    return 0;
}

/* --- what is kept --------------------------------------------------------------------------- */

static int keep_image(struct gc *g, const struct digest *d)
{
    char name[RECORD_NAME_SIZE];
    record_json_name(d, name);
    return names_add(&g->records, name);
}

static int keep_used(struct gc *g)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < g->used.n; i++) {
        struct digest d;
        char name[RECORD_NAME_SIZE];
        if (digest_parse(g->used.v[i], &d, NULL) < 0)
            continue;
        record_erofs_name(&d, name);
        r = names_add(&g->singles, name);
        if (r == 0)
            r = keep_image(g, &d);
    }
    return r;
}

/* Keeps a reference, and its image, unless unused ones are to be removed. */
static int visit_ref(struct gc *g, int dirfd, const char *name)
{
    AUTO_FREE char *reference = NULL;
    struct digest d;
    char text[DIGEST_TEXT_SIZE];
    int r = ref_read(dirfd, name, &reference, &d, &(bool){false});
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0) {
        digest_text(&d, text);
        if (!g->opt->unused || strlist_has(&g->used, text))
            return keep_image(g, &d);
        g->done.refs++;
    }
    return drop(g, dirfd, name);
}

static int keep_parts(struct gc *g, const struct digest *image, const struct record *rec)
{
    char name[RECORD_NAME_SIZE], hex[2][DIGEST_HEX_SIZE];
    record_erofs_name(&rec->disk, name);
    digest_hex(image, hex[0]);
    digest_hex(&rec->config, hex[1]);
    int r = names_add(&g->disks, name);
    for (size_t i = 0; r == 0 && i < 2; i++)
        r = names_add(&g->docs, hex[i]);
    for (size_t i = 0; r == 0 && i < rec->n_layers; i++) {
        record_erofs_name(&rec->layers[i].diff_id, name);
        r = names_add(&g->layers, name);
    }
    return r;
}

/* images/ holds records, and images of directories and tars. */
static int visit_image(struct gc *g, int dirfd, const char *name)
{
    struct digest d;
    AUTO_RECORD struct record rec = {0};
    size_t n = strlen(name);
    if (n > 6 && strcmp(name + n - 6, ".erofs") == 0)
        return g->opt->unused && !names_have(&g->singles, name) ? drop(g, dirfd, name) : 0;
    int r = -ENOENT;
    if (record_digest(name, &d) && names_have(&g->records, name))
        r = record_read(dirfd, &d, &rec);
    if (r == 0)
        return keep_parts(g, &d, &rec);
    if (r != -ENOENT)
        return r;
    g->done.images += record_digest(name, &d);
    return drop(g, dirfd, name);
}

/* --- the rest ------------------------------------------------------------------------------- */

static int visit_part(struct gc *g, int dirfd, const char *name)
{
    if (names_have(g->keep, name))
        return 0;
    int r = drop(g, dirfd, name);
    g->done.layers += r == 0 && g->keep == &g->layers && strstr(name, ".erofs");
    return r;
}

static int visit_partial(struct gc *g, int dirfd, const char *name)
{
    struct stat st;
    if (!g->opt->unused && fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        time(NULL) - st.st_mtime < PARTIAL_AGE_S)
        return 0;
    return drop(g, dirfd, name);
}

/* The index entries of host files whose image is gone. */
static int visit_index(struct gc *g, int dirfd, const char *name)
{
    char hex[DIGEST_HEX_SIZE], image[CACHE_NAME_SIZE];
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, hex, sizeof(hex) - 1);
    hex[n > 0 ? n : 0] = '\0';
    cache_image_name(hex, image);
    if (name[0] != '.' && faccessat(g->s->cache.images_fd, image, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    return drop(g, dirfd, name);
}

static int sweep(struct gc *g)
{
    struct image_store *s = g->s;
    int r = keep_used(g);
    if (r == 0)
        r = each_entry(g, s->refs_fd, visit_ref);
    if (r < 0)
        return r;
    (void)fsync(s->refs_fd);
    names_sort(&g->records);
    names_sort(&g->singles);
    r = each_entry(g, s->cache.images_fd, visit_image);
    if (r < 0)
        return r;
    (void)fsync(s->cache.images_fd);
    const struct {
        int fd;
        entry_fn fn;
        struct names *keep;
    } rest[] = {{s->disks_fd, visit_part, &g->disks},
                {s->docs_fd, visit_part, &g->docs},
                {s->layers_fd, visit_part, &g->layers},
                {s->partial_fd, visit_partial, NULL},
                {s->cache.index_fd, visit_index, NULL},
                {s->cache.tmp_fd, drop, NULL}}; /* nothing is being built */
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(rest); i++) {
        g->keep = rest[i].keep;
        if (rest[i].keep)
            names_sort(rest[i].keep);
        r = each_entry(g, rest[i].fd, rest[i].fn);
    }
    return r;
}

/* --- the lock ------------------------------------------------------------------------------- */

/* Others may hold the lock for as long as a download takes, so the wait is limited. */
static int lock_out(struct image_store *s, bool wait, struct err *e)
{
    int r = store_flock(s->gc_fd, LOCK_EX | LOCK_NB);
    for (int t = 0; r == -EWOULDBLOCK && wait && t < WAIT_MS; t += WAIT_STEP_MS) {
        sleep_ms(WAIT_STEP_MS);
        r = store_flock(s->gc_fd, LOCK_EX | LOCK_NB);
    }
    if (r == 0)
        return 0;
    if (r != -EWOULDBLOCK)
        return err_sys(e, -r, "cannot lock the image store");
    (void)store_flock(s->gc_fd, LOCK_SH);
    (void)err_set(e, EBUSY, "the image store is in use: images are being pulled, loaded or saved");
    err_hint(e, "try again when that is done");
    return -EBUSY;
}

int image_store_collect(struct image_store *s, const struct image_collect *opt,
                        struct image_collected *ret, struct err *e)
{
    struct gc g = {.s = s, .opt = opt};
    int r = lock_out(s, opt->wait, e);
    if (r < 0)
        return r;
    r = opt->used(opt->ctx, &g.used, e);
    if (r == 0 && (r = sweep(&g)) < 0)
        (void)err_sys(e, -r, "cannot remove unused images");
    (void)store_flock(s->gc_fd, LOCK_SH);
    struct names *all[] = {&g.records, &g.singles, &g.disks, &g.layers, &g.docs};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        names_free(all[i]);
    strlist_free(&g.used);
    if (ret)
        *ret = g.done;
    return r;
}
