/* Single paths on the local side. A guest may be changing files there: nothing that it has written
 * is lost, and no link that it makes is followed. What is to be replaced or removed is checked
 * after it has lost its name, when nothing can change it under that name any more. */
#include "s3/work.h"
#include "util/beneath.h"
#include "util/fs.h"
#include "util/utf8.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFLICTS_MAX = 100, HELD = 80 };

/* The name below tmp of what was at a path. In case that this process is killed, it says which, and
 * the inode of what has that name, too, until it is put in place. */
static void held_name(const char *tmp, const char *path, ino_t ino, char out[HELD])
{
    char id[S3_KEY_ID + 1];
    s3_key_id(path, id);
    (void)snprintf(out, HELD, "x%.20s-%llx-%s", tmp, (unsigned long long)ino, id);
}

int s3_parent_open(const struct s3_work *w, const char *path, bool make, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    AUTO_FREE char *dir = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    if (!dir)
        return -ENOMEM;
    return beneath_dir(w->data, dir, false, make);
}

int s3_keep_aside(struct s3_work *w, int from, const char *held, int parent, const char *name,
                  const char *path, struct err *e)
{
    char to[NAME_MAX + 1];
    for (int i = 0; i < CONFLICTS_MAX; i++) {
        char nth[8] = "";
        if (i)
            (void)snprintf(nth, sizeof(nth), "-%d", i + 1);
        (void)snprintf(to, sizeof(to), "%.200s.conflict-%s%s", name, w->stamp, nth);
        size_t cut = strlen(name) > 200 ? utf8_unfinished((const uint8_t *)name, 200) : 0;
        if (cut)
            (void)snprintf(to, sizeof(to), "%.*s.conflict-%s%s", (int)(200 - cut), name, w->stamp,
                           nth);
        if (renameat2(from, held, parent, to, RENAME_NOREPLACE) == 0) {
            s3_work_warn(w, "conflict: '%s' was changed %s; yours is now '%s'", path, w->rival, to);
            s3_work_count(w, &w->counts.conflicts, NULL, 0);
            atomic_store(&w->again, true); /* it is a new file */
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return err_sys(e, errno, "cannot keep your version of '%s': it is now %s%s", path, held,
                   from == w->tmp ? " in the workspace's s3-tmp" : "");
}

/* Losing a file that was never filled does no harm, unless it was moved here since the last sync:
 * then the bucket may be about to lose it under its old name. */
static bool is_empty_shell(struct s3_work *w, const char *tmp, const char *path)
{
    struct s3_entry of = {0};
    char later[LATER_SIZE];
    AUTO_CLOSE int fd = openat(w->tmp, tmp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || !later_get(fd, later))
        return false;
    if (s3_known_in_base(w, later, &of) < 0)
        return true;
    bool here = strcmp(of.path, path) == 0;
    free(of.path);
    return here;
}

/* Whether w->tmp/tmp is a file with the content of `old`, or a link with its target. */
static bool has_content(const struct s3_work *w, const char *tmp, const struct s3_entry *old)
{
    char hex[DIGEST_HEX_SIZE], target[S3_TARGET_MAX + 1];
    if (old->kind == S3_KIND_LINK) {
        ssize_t n = readlinkat(w->tmp, tmp, target, sizeof(target));
        digest_hex_of(target, n < 0 ? 0 : (size_t)n, hex);
        return n >= 0 && strcmp(hex, old->sha) == 0;
    }
    AUTO_CLOSE int fd = openat(w->tmp, tmp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 && digest_hex_of_fd(fd, hex) == 0 && strcmp(hex, old->sha) == 0;
}

/* Whether what was at a path, and is now w->tmp/tmp, is `old`. */
static bool is_old(struct s3_work *w, const char *tmp, const struct stat *st, const char *path,
                   const struct s3_entry *old)
{
    /* A rename changes the ctime, so that proves nothing here. A file that was young when scanned
     * (s3_entry_stat) has to be read again. */
    bool kept = old && (S_ISREG(st->st_mode)   ? old->kind == S3_KIND_FILE
                        : S_ISLNK(st->st_mode) ? old->kind == S3_KIND_LINK
                                               : false);
    bool same = kept && (s3_entry_unwritten(old, st) || has_content(w, tmp, old));
    return same || (S_ISREG(st->st_mode) && is_empty_shell(w, tmp, path));
}

/* Deals with it. */
static int retire(struct s3_work *w, int parent, const char *name, const char *path,
                  const char *tmp, const struct s3_entry *old, bool keep_old, struct err *e)
{
    struct stat st;
    if (fstatat(w->tmp, tmp, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_sys(e, errno, "cannot look at '%s'", path);
    if (S_ISDIR(st.st_mode) && !keep_old && unlinkat(w->tmp, tmp, AT_REMOVEDIR) == 0)
        return 0;
    if (!keep_old && is_old(w, tmp, &st, path, old))
        return unlinkat(w->tmp, tmp, 0) < 0 ? err_sys(e, errno, "cannot remove '%s'", path) : 0;
    return s3_keep_aside(w, w->tmp, tmp, parent, name, path, e);
}

int s3_place(struct s3_work *w, const char *path, const char *tmp, const struct s3_entry *old,
             bool keep_old, struct err *e)
{
    const char *name;
    AUTO_CLOSE int parent = s3_parent_open(w, path, true, &name);
    if (parent == -ENOTDIR || parent == -ELOOP || parent == -EEXIST) {
        s3_work_warn(w, "'%s' stays in the bucket: its parent is not a directory here", path);
        (void)unlinkat(w->tmp, tmp, 0);
        return 1;
    }
    if (parent < 0)
        return err_sys(e, -parent, "cannot write '%s'", path);
    if (renameat2(w->tmp, tmp, parent, name, RENAME_NOREPLACE) == 0)
        return 0;
    char held[HELD]; /* after the exchange, it is the user's work: see s3_recover() */
    struct stat st;
    if (errno != EEXIST || fstatat(w->tmp, tmp, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, errno, "cannot write '%s'", path);
    held_name(tmp, path, st.st_ino, held);
    if (renameat(w->tmp, tmp, w->tmp, held) < 0 ||
        renameat2(w->tmp, held, parent, name, RENAME_EXCHANGE) < 0)
        return err_sys(e, errno, "cannot write '%s'", path);
    return retire(w, parent, name, path, held, old, keep_old, e);
}

int s3_unplace(struct s3_work *w, const struct s3_step *s, struct err *e)
{
    const char *name;
    char serial[16], tmp[HELD];
    AUTO_CLOSE int parent = s3_parent_open(w, s->path, false, &name);
    if (parent < 0)
        return parent == -ENOENT || parent == -ENOTDIR
                   ? 0
                   : err_sys(e, -parent, "cannot remove '%s'", s->path);
    if (s->local->kind == S3_KIND_DIR) {
        /* Not empty: something new is in it. */
        if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT && errno != ENOTEMPTY &&
            errno != ENOTDIR)
            return err_sys(e, errno, "cannot remove '%s'", s->path);
        return 0;
    }
    (void)snprintf(serial, sizeof(serial), "%u", atomic_fetch_add(&w->serial, 1));
    held_name(serial, s->path, 0, tmp);
    if (renameat2(parent, name, w->tmp, tmp, RENAME_NOREPLACE) < 0)
        return errno == ENOENT ? 0 : err_sys(e, errno, "cannot remove '%s'", s->path);
    return retire(w, parent, name, s->path, tmp, s->local, false, e);
}

static int load_base(struct s3_work *w, struct err *e)
{
    int r = s3_base_load(w, e);
    return r == 0 && s3_index_base(w) < 0 ? err_oom(e) : r;
}

/* Removes what a killed sync had not put in place yet, and what it was about to remove, if that is
 * as of the sync before. */
static bool drop_held(struct s3_work *w, const char *held)
{
    struct stat st;
    char id[S3_KEY_ID + 1];
    const char *ino = strchr(held, '-'), *path = strrchr(held, '-');
    if (!ino || fstatat(w->tmp, held, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    bool dir = S_ISDIR(st.st_mode), drop = strtoull(ino + 1, NULL, 16) == st.st_ino;
    for (size_t i = 0; !drop && i < w->base.n; i++) {
        const struct s3_entry *b = &w->base.v[i];
        s3_key_id(b->path, id);
        if (strcmp(id, path + 1) != 0)
            continue;
        if (b->kind != S3_KIND_LINK && (st.st_mode & 0777) != b->mode)
            return false;
        drop = dir ? b->kind == S3_KIND_DIR : is_old(w, held, &st, b->path, b);
        break;
    }
    return drop && unlinkat(w->tmp, held, dir ? AT_REMOVEDIR : 0) == 0;
}

int s3_recover(struct s3_work *w, struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(w->tmp, ".");
    const struct dirent *entry;
    bool loaded = w->dir < 0;
    int r = 0;
    if (!d)
        return err_sys(e, errno, "cannot read the workspace's s3-tmp");
    while (r == 0 && (entry = readdir(d))) {
        char to[NAME_MAX + 1];
        if (entry->d_name[0] == '.')
            continue;
        if (entry->d_name[0] != 'x') {
            (void)remove_tree_at(w->tmp, entry->d_name);
            continue;
        }
        r = loaded ? 0 : load_base(w, e);
        loaded = true;
        if (r < 0 || drop_held(w, entry->d_name))
            continue;
        (void)snprintf(to, sizeof(to), "recovered-%.*s.conflict-%s",
                       (int)MIN(strcspn(entry->d_name, "-"), (size_t)32), entry->d_name, w->stamp);
        if (renameat2(w->tmp, entry->d_name, w->data, to, RENAME_NOREPLACE) < 0)
            r = err_sys(e, errno, "cannot recover %s from the workspace's s3-tmp", entry->d_name);
        else
            s3_work_warn(w, "a sync or restore was interrupted: what it had replaced is now '%s'",
                         to);
    }
    return r;
}
