#include "image/tar/read.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/tar/format.h"
#include "util/cleanup.h"

enum {
    STREAM_READ = 64 << 10,
    FILE_READ = 4 << 10, /* content is skipped unread, so little more than headers is read */
    EXTENDED_MAX = 64 << 10,
};

enum {
    PAX_PATH = 1,
    PAX_LINK = 2,
    PAX_SIZE = 4,
    PAX_MTIME = 8,
    PAX_UID = 16,
    PAX_GID = 32,
    PAX_GLOBAL = PAX_MTIME | PAX_UID | PAX_GID, /* what a global header may set */
};

/* The contents of extended headers. */
struct pax {
    uint32_t set, cleared; /* cleared: by an empty value */
    uint64_t size, uid, gid;
    int64_t mtime_ns;
};

struct tar_reader {
    int fd;
    struct tar_reader_options o;
    struct err *e;
    uint64_t length; /* of a file */
    uint64_t entries;
    uint64_t pos;           /* in the archive, of the end of buf */
    size_t at, n;           /* of buf */
    uint64_t left, padding; /* of the entry's content */
    struct pax next, global;
    char path[TAR_PATH_MAX + 1], link[TAR_PATH_MAX + 1];
    char extended[EXTENDED_MAX + 1];
    uint8_t buf[STREAM_READ];
};

int tar_bad_entry(struct tar_reader *r, const char *why)
{
    return err_set(r->e, EBADMSG, "entry %llu of the archive %s", (unsigned long long)r->entries,
                   why);
}

static int truncated(struct tar_reader *r)
{
    return err_set(r->e, EBADMSG, "truncated or corrupt archive: it ends within entry %llu",
                   (unsigned long long)r->entries);
}

/* ---- bytes ---- */

uint64_t tar_offset(const struct tar_reader *r)
{
    return r->pos - (r->n - r->at);
}

static ssize_t read_more(struct tar_reader *r)
{
    if (!r->o.file)
        return read(r->fd, r->buf, STREAM_READ);
    return pread(r->fd, r->buf, (size_t)MIN((uint64_t)FILE_READ, r->length - r->pos),
                 (off_t)r->pos);
}

/* 1: there is at least one byte in buf; 0 at the end. */
static int fill(struct tar_reader *r)
{
    while (r->at == r->n) {
        ssize_t k = read_more(r);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_sys(r->e, errno, "cannot read the archive");
        if (k == 0 && r->o.file && r->pos < r->length)
            return err_set(r->e, EIO, "the archive shrank while it was being read");
        if (k == 0)
            return 0;
        r->at = 0;
        r->n = (size_t)k;
        r->pos += (uint64_t)k;
    }
    return 1;
}

/* *ret: how many of n bytes there were before the end. */
static int take(struct tar_reader *r, void *to, size_t n, size_t *ret)
{
    size_t got = 0;
    while (got < n) {
        int k = fill(r);
        if (k < 0)
            return k;
        if (k == 0)
            break;
        size_t m = MIN(n - got, r->n - r->at);
        memcpy((uint8_t *)to + got, r->buf + r->at, m);
        r->at += m;
        got += m;
    }
    *ret = got;
    return 0;
}

static int skip(struct tar_reader *r, uint64_t n)
{
    for (;;) {
        size_t m = (size_t)MIN(n, (uint64_t)(r->n - r->at));
        r->at += m;
        n -= m;
        if (r->o.file)
            r->pos += n; /* bounded by read_size() */
        if (r->o.file || n == 0)
            return 0;
        int k = fill(r);
        if (k <= 0)
            return k < 0 ? k : truncated(r);
    }
}

/* A program that writes the archive to us should not be killed while writing its end. */
static int drain(struct tar_reader *r)
{
    int k = 0;
    do
        r->at = r->n;
    while ((k = fill(r)) > 0);
    return k;
}

ssize_t tar_data(struct tar_reader *r, const void **ret)
{
    if (r->left == 0)
        return 0;
    int k = fill(r);
    if (k <= 0)
        return k < 0 ? k : truncated(r);
    size_t n = (size_t)MIN(r->left, (uint64_t)(r->n - r->at));
    *ret = r->buf + r->at;
    r->at += n;
    r->left -= n;
    return (ssize_t)n;
}

/* ---- extended headers ---- */

static int text_value(const struct tar_reader *r, const char *p, size_t n, char *to)
{
    if (n > r->o.path_max)
        return -ENAMETOOLONG;
    if (memchr(p, '\0', n))
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
    bool minus = p[0] == '-';
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

static uint32_t pax_key(const char *key, size_t n)
{
    static const struct {
        const char *key;
        uint32_t bit;
    } known[] = {{"path", PAX_PATH},   {"linkpath", PAX_LINK}, {"size", PAX_SIZE},
                 {"mtime", PAX_MTIME}, {"uid", PAX_UID},       {"gid", PAX_GID}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].key) == n && memcmp(known[i].key, key, n) == 0)
            return known[i].bit;
    return 0;
}

static int pax_value(struct tar_reader *r, struct pax *to, uint32_t bit, const char *p, size_t n)
{
    if (n == 0) {
        to->set &= ~bit;
        to->cleared |= bit;
        return 0;
    }
    if (to == &r->global && bit & ~PAX_GLOBAL)
        return -EPERM;
    to->set |= bit;
    switch (bit) {
    case PAX_PATH:
        return text_value(r, p, n, r->path);
    case PAX_LINK:
        return text_value(r, p, n, r->link);
    case PAX_SIZE:
        return number_value(p, n, INT64_MAX - TAR_BLOCK, &to->size);
    case PAX_MTIME:
        return time_value(p, n, &to->mtime_ns);
    case PAX_UID:
        return number_value(p, n, UINT32_MAX, &to->uid);
    case PAX_GID:
        return number_value(p, n, UINT32_MAX, &to->gid);
    default:
        return 0;
    }
}

/* One record, "LENGTH KEY=VALUE\n"; its length, or -errno. */
static ssize_t pax_record(struct tar_reader *r, struct pax *to, const char *p, size_t n)
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
    if (eq - key > 11 && memcmp(key, "GNU.sparse.", 11) == 0)
        return -ENOTSUP;
    int x = pax_value(r, to, pax_key(key, (size_t)(eq - key)), eq + 1, (size_t)(end - eq - 1));
    return x < 0 ? x : (ssize_t)len;
}

static int extended_error(struct tar_reader *r, int code)
{
    switch (code) {
    case -ENAMETOOLONG:
        return err_set(r->e, EBADMSG, "entry %llu of the archive has a path over %zu bytes",
                       (unsigned long long)r->entries, r->o.path_max);
    case -ENOTSUP:
        return tar_bad_entry(r, "is sparse, which is not supported");
    case -EPERM:
        return tar_bad_entry(r, "is a global PAX header that sets path, linkpath or size");
    default:
        return tar_bad_entry(r, "has an invalid PAX header");
    }
}

static int read_extended(struct tar_reader *r, char type)
{
    size_t size = 0;
    if (r->left > EXTENDED_MAX)
        return tar_bad_entry(r, "has an extended header over 64 KiB");
    ssize_t x = take(r, r->extended, (size_t)r->left, &size);
    if (x == 0 && size < r->left)
        return truncated(r);
    r->left = 0;
    r->extended[size] = '\0';
    if (x == 0 && (type == 'L' || type == 'K')) {
        r->next.set |= type == 'L' ? PAX_PATH : PAX_LINK;
        x = text_value(r, r->extended, strlen(r->extended), type == 'L' ? r->path : r->link);
        return x < 0 ? extended_error(r, (int)x) : 0;
    }
    struct pax *to = type == 'g' ? &r->global : &r->next;
    for (size_t at = 0; x >= 0 && at < size; at += (size_t)x) {
        x = pax_record(r, to, r->extended + at, size - at);
        if (x < 0)
            return extended_error(r, (int)x);
    }
    return x < 0 ? (int)x : 0;
}

/* ---- entries ---- */

int tar_clean_path(char *path)
{
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/')
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2]))
            return -EPERM;
    char *to = path;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
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

static size_t copy_field(char *to, const char *field, size_t size)
{
    size_t n = strnlen(field, size);
    memcpy(to, field, n);
    to[n] = '\0';
    return n;
}

static int read_path(struct tar_reader *r, const struct tar_header *h, struct tar_item *item)
{
    size_t n = 0;
    if (!(r->next.set & PAX_PATH)) {
        /* GNU's headers have other fields where POSIX has the prefix. */
        if (memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0]) {
            n = copy_field(r->path, h->prefix, sizeof(h->prefix));
            r->path[n++] = '/';
        }
        (void)copy_field(r->path + n, h->name, sizeof(h->name));
    }
    n = strlen(r->path);
    if (item->type == '0' && n && r->path[n - 1] == '/')
        item->type = '5'; /* the oldest tars mark directories like this */
    if (tar_clean_path(r->path) < 0)
        return err_set(r->e, EPERM, "unsafe path '%.256s' in the archive: it contains '..'",
                       r->path);
    if (!r->path[0] && item->type != '5')
        return tar_bad_entry(r, "has no name");
    item->path = r->path;
    if (item->type == '1' || item->type == '2') {
        if (!(r->next.set & PAX_LINK))
            (void)copy_field(r->link, h->link, sizeof(h->link));
        item->link = r->link;
    }
    return 0;
}

/* The extended headers that determine `bit`; NULL: the entry's header does. */
static const struct pax *pax_of(const struct tar_reader *r, uint32_t bit)
{
    if ((r->next.set | r->next.cleared) & bit)
        return r->next.set & bit ? &r->next : NULL;
    return r->global.set & bit ? &r->global : NULL;
}

static int read_attributes(struct tar_reader *r, const struct tar_header *h, struct tar_item *item)
{
    uint64_t mode, uid, gid, mtime;
    if (tar_number(h->mode, sizeof(h->mode), &mode) < 0 ||
        tar_number(h->uid, sizeof(h->uid), &uid) < 0 || uid > UINT32_MAX ||
        tar_number(h->gid, sizeof(h->gid), &gid) < 0 || gid > UINT32_MAX)
        return tar_bad_entry(r, "has an invalid header");
    if (tar_number(h->mtime, sizeof(h->mtime), &mtime) < 0 || mtime > INT64_MAX / 1000000000)
        mtime = 0; /* before 1970, or no time at all */
    const struct pax *p;
    item->mode = (uint32_t)mode & 07777;
    item->uid = (uint32_t)((p = pax_of(r, PAX_UID)) ? p->uid : uid);
    item->gid = (uint32_t)((p = pax_of(r, PAX_GID)) ? p->gid : gid);
    item->mtime_ns = (p = pax_of(r, PAX_MTIME)) ? p->mtime_ns : (int64_t)mtime * 1000000000;
    return 0;
}

/* 1: there is an entry in *ret; 0: it was an entry that the caller does not want. */
static int read_item(struct tar_reader *r, const struct tar_header *h, struct tar_item *ret)
{
    struct tar_item item = {.type = h->type == '\0' || h->type == '7' ? '0' : h->type,
                            .offset = tar_offset(r)};
    if (item.type == 'S')
        return tar_bad_entry(r, "is sparse, which is not supported");
    bool known = item.type >= '0' && item.type <= '6';
    int x = known ? read_path(r, h, &item) : 0;
    if (x == 0 && known)
        x = read_attributes(r, h, &item);
    if (x < 0)
        return x;
    r->next = (struct pax){0};
    if (known) {
        item.size = item.type == '0' ? r->left : 0;
        *ret = item;
    }
    return known;
}

static int read_size(struct tar_reader *r, const struct tar_header *h, bool extended)
{
    uint64_t size;
    if (tar_number(h->size, sizeof(h->size), &size) < 0 || size > INT64_MAX - TAR_BLOCK)
        return tar_bad_entry(r, "has an invalid size");
    if (!extended && r->next.set & PAX_SIZE)
        size = r->next.size;
    if (h->type >= '1' && h->type <= '6')
        size = 0; /* links and devices have no content, whatever the field says */
    r->left = size;
    r->padding = (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK;
    if (r->o.file && size + r->padding > r->length - tar_offset(r))
        return truncated(r);
    return 0;
}

/* 1, 0 at the end. */
static int read_header(struct tar_reader *r, struct tar_header *h)
{
    size_t n = 0;
    int x = take(r, h, sizeof(*h), &n);
    if (x < 0)
        return x;
    bool whole = n == sizeof(*h);
    if (whole && tar_is_zero(h))
        return r->o.file ? 0 : drain(r);
    if (r->entries == 0 && (!whole || !tar_checksum_fits(h)))
        return err_set(r->e, ENOMSG, "it is not a tar archive");
    if (!whole)
        return n == 0 ? 0 : truncated(r);
    if (!tar_checksum_fits(h))
        return err_set(r->e, EBADMSG, "corrupt archive: invalid header after entry %llu",
                       (unsigned long long)r->entries);
    if (++r->entries > r->o.entries_max)
        return err_set(r->e, E2BIG, "the archive has more than %llu entries",
                       (unsigned long long)r->o.entries_max);
    return 1;
}

int tar_next(struct tar_reader *r, struct tar_item *ret)
{
    struct tar_header h = {0};
    for (;;) {
        int x = skip(r, r->left + r->padding);
        r->left = r->padding = 0;
        if (x == 0)
            x = read_header(r, &h);
        if (x <= 0)
            return x;
        bool extended = h.type && strchr("xgLK", h.type);
        x = read_size(r, &h, extended);
        if (x == 0)
            x = extended ? read_extended(r, h.type) : read_item(r, &h, ret);
        if (x != 0)
            return x;
    }
}

int tar_reader_new(struct tar_reader **ret, int fd, const struct tar_reader_options *o,
                   struct err *e)
{
    assert(o->path_max <= TAR_PATH_MAX && o->path_max >= sizeof(struct tar_header));
    struct stat st = {0};
    if (o->file && fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read the archive");
    struct tar_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return err_oom(e);
    r->fd = fd;
    r->o = *o;
    r->e = e;
    r->length = (uint64_t)st.st_size;
    *ret = r;
    return 0;
}
