#include "copy/tar.h"

#include "image/tar/format.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 64 * 1024,
    LONG_TEXT_MAX = 64 * 1024, /* bytes of a PAX header */
};

/* What extended headers say about the next entry. */
enum { SAID_NAME = 1, SAID_LINK = 2, SAID_SIZE = 4, SAID_MTIME = 8, SAID_UID = 16, SAID_GID = 32 };

struct reader {
    int fd;
    struct tree_sink *to;
    struct tree_progress *p;
    struct err *e;
    uint64_t entries;
    uint8_t buf[CHUNK];
    size_t at, n; /* of buf */

    uint32_t said;
    char name[PROTO_PATH_MAX + 1], link[PROTO_PATH_MAX + 1];
    uint64_t size, uid, gid;
    int64_t mtime_ns;

    char *dirs[PROTO_DEPTH_MAX]; /* that we are in */
    size_t depth;
    struct file_attr attr;
};

static int bad(struct reader *r, const char *why)
{
    return err_set(r->e, EBADMSG, "entry %llu of the archive %s", (unsigned long long)r->entries,
                   why);
}

/* --- bytes --- */

/* Makes sure that there is at least one byte; 0 at the end. */
static int fill(struct reader *r)
{
    while (r->at == r->n) {
        ssize_t k = read(r->fd, r->buf, sizeof(r->buf));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_sys(r->e, errno, "cannot read the archive");
        if (k == 0)
            return 0;
        r->at = 0;
        r->n = (size_t)k;
    }
    return 1;
}

/* All n bytes, or -EBADMSG; with `none_is_fine` 0 at a clean end, else 1. */
static int take(struct reader *r, void *to, size_t n, bool none_is_fine)
{
    uint8_t *out = to;
    size_t got = 0;
    while (got < n) {
        int k = fill(r);
        if (k < 0)
            return k;
        if (k == 0 && got == 0 && none_is_fine)
            return 0;
        if (k == 0)
            return err_set(r->e, EBADMSG, "the archive is cut off after entry %llu",
                           (unsigned long long)r->entries);
        size_t m = MIN(n - got, r->n - r->at);
        memcpy(out + got, r->buf + r->at, m);
        r->at += m;
        got += m;
    }
    return 1;
}

static int skip(struct reader *r, uint64_t n)
{
    while (n) {
        int k = fill(r);
        if (k <= 0)
            return k < 0 ? k : bad(r, "is cut off");
        size_t m = (size_t)MIN(n, (uint64_t)(r->n - r->at));
        r->at += m;
        n -= m;
    }
    return 0;
}

static uint64_t padding(uint64_t size)
{
    return (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK;
}

/* --- extended headers --- */

static int text_value(const char *p, size_t n, char *to)
{
    if (n > PROTO_PATH_MAX || memchr(p, 0, n))
        return -EBADMSG;
    memcpy(to, p, n);
    to[n] = '\0';
    return 0;
}

static int number_value(const char *p, size_t n, uint64_t max, uint64_t *to)
{
    uint64_t v = 0;
    if (n == 0 || n > 19)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return -EBADMSG;
        v = v * 10 + (uint64_t)(p[i] - '0');
    }
    *to = v;
    return v > max ? -EBADMSG : 0;
}

/* Seconds with a fraction. */
static int time_value(const char *p, size_t n, int64_t *to)
{
    bool minus = n && p[0] == '-';
    const char *dot = memchr(p, '.', n);
    size_t whole = dot ? (size_t)(dot - p) : n;
    uint64_t sec, ns = 0, scale = 100000000;
    if (number_value(p + minus, whole - minus, INT64_MAX / 1000000000 - 1, &sec) < 0)
        return -EBADMSG;
    for (size_t i = whole + 1; i < n; i++, scale /= 10) {
        if (p[i] < '0' || p[i] > '9')
            return -EBADMSG;
        ns += (uint64_t)(p[i] - '0') * scale;
    }
    int64_t v = (int64_t)(sec * 1000000000 + ns);
    *to = minus ? -v : v;
    return 0;
}

static int pax_value(struct reader *r, const char *key, size_t k, const char *p, size_t n)
{
    static const struct {
        const char *key;
        uint32_t said;
    } known[] = {{"path", SAID_NAME},   {"linkpath", SAID_LINK}, {"size", SAID_SIZE},
                 {"mtime", SAID_MTIME}, {"uid", SAID_UID},       {"gid", SAID_GID}};
    uint32_t said = 0;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].key) == k && memcmp(known[i].key, key, k) == 0)
            said = known[i].said;
    r->said |= said;
    switch (said) {
    case SAID_NAME:
        return text_value(p, n, r->name);
    case SAID_LINK:
        return text_value(p, n, r->link);
    case SAID_SIZE:
        return number_value(p, n, INT64_MAX, &r->size);
    case SAID_MTIME:
        return time_value(p, n, &r->mtime_ns);
    case SAID_UID:
        return number_value(p, n, UINT32_MAX, &r->uid);
    case SAID_GID:
        return number_value(p, n, UINT32_MAX, &r->gid);
    default:
        return k > 11 && memcmp(key, "GNU.sparse.", 11) == 0 ? -ENOTSUP : 0;
    }
}

/* One record, "LENGTH KEY=VALUE\n"; its length, or -errno. */
static ssize_t pax_record(struct reader *r, const char *p, size_t n)
{
    size_t len = 0, i = 0;
    for (; i < n && i < 6 && p[i] >= '0' && p[i] <= '9'; i++)
        len = len * 10 + (size_t)(p[i] - '0');
    if (i == 0 || i >= n || p[i] != ' ' || len > n || len < i + 3 || p[len - 1] != '\n')
        return -EBADMSG;
    const char *key = p + i + 1, *end = p + len - 1;
    const char *eq = memchr(key, '=', (size_t)(end - key));
    if (!eq)
        return -EBADMSG;
    int x = pax_value(r, key, (size_t)(eq - key), eq + 1, (size_t)(end - eq - 1));
    return x < 0 ? x : (ssize_t)len;
}

static int extended(struct reader *r, char type, uint64_t size)
{
    if (size > LONG_TEXT_MAX)
        return bad(r, "has an extended header over 64 KiB");
    AUTO_FREE char *p = calloc(1, size + 1);
    if (!p)
        return err_sys(r->e, ENOMEM, "cannot read the archive");
    int x = size ? take(r, p, size, false) : 0;
    if (x < 0)
        return x;
    if (type == 'L' || type == 'K') {
        r->said |= type == 'L' ? SAID_NAME : SAID_LINK;
        if (text_value(p, strnlen(p, size), type == 'L' ? r->name : r->link) < 0)
            return bad(r, "has a name that is too long");
    }
    for (size_t at = 0; type == 'x' && at < size;) {
        ssize_t k = pax_record(r, p + at, size - at);
        if (k < 0)
            return bad(r, k == -ENOTSUP ? "is sparse, which is not supported here"
                                        : "has a damaged PAX header");
        at += (size_t)k;
    }
    return skip(r, padding(size));
}

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
        return bad(r, "lies too deep");
    char *copy = strdup(a->name);
    if (!copy)
        return err_sys(r->e, ENOMEM, "cannot read the archive");
    r->dirs[r->depth++] = copy;
    return r->to->ops->dir(r->to, a, r->e);
}

/* Enters and leaves until `path`'s directory is where we are. *name: its last component, "" of the
 * archive's own root. */
static int go_to(struct reader *r, char *path, const char **name)
{
    static struct file_attr on_the_way;
    size_t depth = 0;
    bool same = true;
    *name = "";
    for (char *p = path, *next; *p; p = next) {
        size_t n = strcspn(p, "/");
        next = p + n + strspn(p + n, "/");
        bool last = !*next || (next[0] == '.' && !next[1]); /* "a/." is "a" */
        p[n] = '\0';
        if (n == 0 || strcmp(p, ".") == 0)
            continue;
        if (!file_name_ok(p))
            return bad(r, "has a name that leads out of it, or is too long");
        if (last) {
            *name = p;
            break;
        }
        same = same && depth < r->depth && strcmp(r->dirs[depth], p) == 0;
        int x = same ? 0 : leave_to(r, depth);
        on_the_way =
            (struct file_attr){.has = FILE_HAS_NAME | FILE_HAS_MODE, .mode = S_IFDIR | 0755};
        memcpy(on_the_way.name, p, n + 1);
        if (x == 0 && !same)
            x = enter(r, &on_the_way);
        if (x < 0)
            return x;
        depth++;
    }
    return leave_to(r, depth);
}

/* --- entries --- */

static int send_data(struct reader *r, uint64_t size)
{
    int x = r->to->ops->file(r->to, &r->attr, r->e);
    for (uint64_t left = size; x == 0 && left;) {
        int k = fill(r);
        if (k <= 0)
            return k < 0 ? k : bad(r, "is cut off");
        size_t n = (size_t)MIN(left, (uint64_t)(r->n - r->at));
        x = r->to->ops->data(r->to, r->buf + r->at, n, r->e);
        r->at += n;
        left -= n;
        tree_note_bytes(r->p, n);
    }
    if (x == 0)
        x = r->to->ops->done(r->to, r->e);
    return x < 0 ? x : skip(r, padding(size));
}

static uint32_t type_of(char type)
{
    switch (type) {
    case '\0':
    case '0':
    case '1':
    case '7':
        return S_IFREG;
    case '2':
        return S_IFLNK;
    case '5':
        return S_IFDIR;
    case '3':
        return S_IFCHR;
    case '4':
        return S_IFBLK;
    case '6':
        return S_IFIFO;
    default:
        return 0;
    }
}

static void entry_path(struct reader *r, const struct tar_header *h, char *out)
{
    size_t n = 0;
    if (r->said & SAID_NAME) {
        memcpy(out, r->name, strlen(r->name) + 1);
        return;
    }
    /* GNU's headers have other things where POSIX has the prefix. */
    if (memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0]) {
        n = strnlen(h->prefix, sizeof(h->prefix));
        memcpy(out, h->prefix, n);
        out[n++] = '/';
    }
    size_t k = strnlen(h->name, sizeof(h->name));
    memcpy(out + n, h->name, k);
    out[n + k] = '\0';
}

/* A hard link names another entry: in place, single slashes, no "." and no "..". */
static int clean_target(char *path)
{
    char *to = path;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return -EPERM;
        if (n && !(n == 1 && p[0] == '.')) {
            if (to != path)
                *to++ = '/';
            memmove(to, p, n);
            to += n;
        }
        p += n + (p[n] == '/');
    }
    *to = '\0';
    return 0;
}

static int read_attr(struct reader *r, const struct tar_header *h, uint32_t type, uint64_t size)
{
    struct file_attr *a = &r->attr;
    uint64_t mode, uid, gid, mtime;
    if (tar_number(h->mode, sizeof(h->mode), &mode) < 0 ||
        tar_number(h->uid, sizeof(h->uid), &uid) < 0 ||
        tar_number(h->gid, sizeof(h->gid), &gid) < 0)
        return bad(r, "has a damaged header");
    if (tar_number(h->mtime, sizeof(h->mtime), &mtime) < 0 || mtime > INT64_MAX / 1000000000)
        mtime = 0; /* before 1970, or no time at all */
    a->has = FILE_HAS_NAME | FILE_HAS_MODE | FILE_HAS_SIZE | FILE_HAS_MTIME | FILE_HAS_UID |
             FILE_HAS_GID;
    a->mode = type | ((uint32_t)mode & 07777);
    a->size = size;
    a->uid = (uint32_t)(r->said & SAID_UID ? r->uid : uid);
    a->gid = (uint32_t)(r->said & SAID_GID ? r->gid : gid);
    a->mtime_ns = r->said & SAID_MTIME ? r->mtime_ns : (int64_t)mtime * 1000000000;
    bool hard = h->type == '1';
    if (type != S_IFLNK && !hard)
        return 0;
    a->has |= hard ? FILE_HAS_HARD : FILE_HAS_TARGET;
    if (r->said & SAID_LINK) {
        memcpy(a->target, r->link, strlen(r->link) + 1);
    } else {
        size_t n = strnlen(h->link, sizeof(h->link));
        memcpy(a->target, h->link, n);
        a->target[n] = '\0';
    }
    if (hard && clean_target(a->target) < 0)
        return bad(r, "is a link to something outside of it");
    return a->target[0] ? 0 : bad(r, "is a link to nowhere");
}

static int send_entry(struct reader *r, const struct tar_header *h, uint32_t type, uint64_t size)
{
    static char path[PROTO_PATH_MAX + 1];
    const char *name;
    entry_path(r, h, path);
    if (type == S_IFREG && *path && path[strlen(path) - 1] == '/')
        type = S_IFDIR; /* the oldest tars say "directory" like this */
    int x = go_to(r, path, &name);
    if (x == 0)
        x = read_attr(r, h, type, type == S_IFREG ? size : 0);
    if (x < 0)
        return x;
    if (!*name) /* the directory that the archive is about, which is there */
        return type == S_IFDIR ? skip(r, size + padding(size)) : bad(r, "has no name");
    memcpy(r->attr.name, name, strlen(name) + 1);
    x = tree_note(r->p, &r->attr, r->e);
    if (x < 0)
        return x;
    bool link = type == S_IFLNK || r->attr.has & FILE_HAS_HARD;
    if (type == S_IFREG && !link)
        return send_data(r, size);
    if (type == S_IFDIR)
        x = enter(r, &r->attr);
    else if (link)
        x = r->to->ops->link(r->to, &r->attr, r->e);
    return x < 0 ? x : skip(r, size + padding(size));
}

static int read_entry(struct reader *r, const struct tar_header *h)
{
    uint64_t size = 0;
    bool ahead = h->type && strchr("xLK", h->type);
    if (tar_number(h->size, sizeof(h->size), &size) < 0 || size > INT64_MAX)
        return bad(r, "has a bad size");
    if (ahead)
        return extended(r, h->type, size);
    if (r->said & SAID_SIZE)
        size = r->size;
    if (h->type >= '1' && h->type <= '6')
        size = 0; /* of a link or a device it means nothing */
    uint32_t type = type_of(h->type);
    int x;
    if (h->type == 'S')
        x = bad(r, "is sparse, which is not supported here");
    else if (type)
        x = send_entry(r, h, type, size);
    else
        x = skip(r, size + padding(size)); /* of somebody's own kind */
    r->said = 0;
    return x;
}

/* Who writes the archive should not be killed for writing to its end. */
static int drain(struct reader *r)
{
    int k;
    while ((k = fill(r)) > 0)
        r->at = r->n;
    return k;
}

static int read_all(struct reader *r)
{
    struct tar_header h;
    for (;;) {
        int x = take(r, &h, sizeof(h), true);
        if (x < 0)
            return x;
        if (x == 0 && !r->entries)
            return err_set(r->e, ENOMSG, "standard input is empty, not a tar archive");
        if (x == 0)
            return 0;
        if (tar_is_zero(&h))
            return drain(r);
        if (!tar_checksum_fits(&h) && !r->entries) {
            err_set(r->e, ENOMSG, "standard input is not a tar archive");
            err_hint(r->e, "if it is compressed, unpack it on the way: zcat FILE | msb cp - ...");
            return -ENOMSG;
        }
        if (!tar_checksum_fits(&h))
            return err_set(r->e, EBADMSG, "the archive is damaged after entry %llu",
                           (unsigned long long)r->entries);
        r->entries++;
        x = read_entry(r, &h);
        if (x < 0)
            return x;
    }
}

int tree_from_tar(int fd, struct tree_sink *to, struct tree_progress *p, struct err *e)
{
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        return err_sys(e, ENOMEM, "cannot read the archive");
    *r = (struct reader){.fd = fd, .to = to, .p = p, .e = e};
    int x = read_all(r);
    if (x == 0)
        x = leave_to(r, 0);
    while (r->depth)
        free(r->dirs[--r->depth]);
    free(r);
    return x;
}
