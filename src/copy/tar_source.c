#include "copy/tar.h"

#include "image/tar/read.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert((int)TAR_PATH_MAX == (int)PROTO_PATH_MAX, "a target fits into struct file_attr");

struct reader {
    struct tar_reader *in;
    struct tree_sink *to;
    struct tree_progress *p;
    struct err *e;
    char *dirs[PROTO_DEPTH_MAX]; /* that we are in */
    size_t depth;
    struct file_attr attr;
};

/* --- directories --- */

static int leave_to(struct reader *r, size_t depth)
{
    int x = 0;
    while (x == 0 && r->depth > depth) {
        free(r->dirs[--r->depth]);
        x = r->to->ops->leave(r->to, r->e);
    }
    return x;
}

static int enter(struct reader *r, struct file_attr *a)
{
    if (r->depth == PROTO_DEPTH_MAX)
        return tar_bad_entry(r->in, "is nested too deeply");
    char *copy = strdup(a->name);
    if (!copy)
        return err_oom(r->e);
    r->dirs[r->depth++] = copy;
    return r->to->ops->dir(r->to, a, r->e);
}

/* Enters and leaves directories until we are in `path`'s. *name: its last component, "" for the
 * root of the archive. */
static int go_to(struct reader *r, char *path, const char **name)
{
    static struct file_attr implied;
    size_t depth = 0;
    bool same = true;
    for (char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        *slash = '\0';
        if (!file_name_ok(path))
            return tar_bad_entry(r->in, "has a name that is too long");
        same = same && depth < r->depth && strcmp(r->dirs[depth], path) == 0;
        int x = same ? 0 : leave_to(r, depth);
        implied = (struct file_attr){.has = FILE_HAS_NAME | FILE_HAS_MODE, .mode = S_IFDIR | 0755};
        memcpy(implied.name, path, strlen(path) + 1);
        if (x == 0 && !same)
            x = enter(r, &implied);
        if (x < 0)
            return x;
        depth++;
    }
    if (*path && !file_name_ok(path))
        return tar_bad_entry(r->in, "has a name that is too long");
    *name = path;
    return leave_to(r, depth);
}

/* --- entries --- */

static int send_file(struct reader *r)
{
    const void *p;
    ssize_t n = r->to->ops->file(r->to, &r->attr, r->e);
    if (n < 0)
        return (int)n;
    while ((n = tar_data(r->in, &p)) > 0) {
        int x = r->to->ops->data(r->to, p, (size_t)n, r->e);
        if (x < 0)
            return x;
        tree_note_bytes(r->p, (size_t)n);
    }
    return n < 0 ? (int)n : r->to->ops->done(r->to, r->e);
}

static int set_attr(struct reader *r, const struct tar_item *item, const char *name)
{
    static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFLNK, S_IFCHR,
                                     S_IFBLK, S_IFDIR, S_IFIFO}; /* of '0' to '6' */
    struct file_attr *a = &r->attr;
    a->has = FILE_HAS_NAME | FILE_HAS_MODE | FILE_HAS_SIZE | FILE_HAS_MTIME | FILE_HAS_UID |
             FILE_HAS_GID;
    a->mode = types[item->type - '0'] | item->mode;
    a->size = item->size;
    a->uid = item->uid;
    a->gid = item->gid;
    a->mtime_ns = item->mtime_ns;
    memcpy(a->name, name, strlen(name) + 1);
    if (!item->link)
        return 0;
    bool hard = item->type == '1'; /* names another entry */
    a->has |= hard ? FILE_HAS_HARD : FILE_HAS_TARGET;
    if (hard && tar_clean_path(item->link) < 0)
        return err_set(r->e, EPERM, "unsafe link target '%.256s' in the archive: it contains '..'",
                       item->link);
    memcpy(a->target, item->link, strlen(item->link) + 1);
    return a->target[0] ? 0 : tar_bad_entry(r->in, "has an empty link target");
}

static int send_entry(struct reader *r, const struct tar_item *item)
{
    const char *name = "";
    int x = go_to(r, item->path, &name);
    if (x < 0 || !*name) /* the archive's top directory exists */
        return x;
    x = set_attr(r, item, name);
    if (x == 0)
        x = tree_note(r->p, &r->attr, r->e);
    if (x < 0)
        return x;
    switch (item->type) {
    case '0':
        return send_file(r);
    case '1':
    case '2':
        return r->to->ops->link(r->to, &r->attr, r->e);
    case '5':
        return enter(r, &r->attr);
    default:
        return 0;
    }
}

static int send_all(struct reader *r)
{
    struct tar_item item;
    int x;
    while ((x = tar_next(r->in, &item)) > 0) {
        x = send_entry(r, &item);
        if (x < 0)
            return x;
    }
    if (x == -ENOMSG && tar_offset(r->in) == 0)
        return err_set(r->e, ENOMSG, "standard input is empty, not a tar archive");
    if (x == -ENOMSG) {
        err_set(r->e, ENOMSG, "standard input is not a tar archive");
        err_hint(r->e, "if it is compressed, unpack it on the way: zcat FILE | msb cp - ...");
    }
    return x < 0 ? x : leave_to(r, 0);
}

int tree_from_tar(int fd, struct tree_sink *to, struct tree_progress *p, struct err *e)
{
    /* An entry has up to three extended headers. */
    const struct tar_reader_options o = {.entries_max = 4ULL * COPY_ENTRIES_MAX,
                                         .path_max = PROTO_PATH_MAX};
    AUTO_FREE struct tar_reader *in = NULL;
    int x = tar_reader_new(&in, fd, &o, e);
    if (x < 0)
        return x;
    struct reader r = {.in = in, .to = to, .p = p, .e = e};
    x = send_all(&r);
    while (r.depth)
        free(r.dirs[--r.depth]);
    return x;
}
