#include "image/tar/scan.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image/tar/format.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    BLOCK = TAR_BLOCK,
    LONG_MAX_ = 64 << 10, /* bytes of a PAX header */
    MEMBERS_STEP = 64,
};

struct scan {
    int fd;
    uint64_t length, at;
    unsigned entries;
    struct tar_members out;
    size_t cap;
    /* What extended headers said about the next entry: */
    char name[TAR_NAME_MAX], link[TAR_NAME_MAX];
    bool has_name, has_link, has_size;
    uint64_t size;
};

void tar_members_free(struct tar_members *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->v[i].name);
        free(m->v[i].link);
    }
    free(m->v);
    *m = (struct tar_members){0};
}

/* ---- names ---- */

/* In place: no empty components, no "."; -EPERM for one that is "..". */
static int clean_name(char *name)
{
    char *to = name;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return -EPERM;
        if (n && !(n == 1 && p[0] == '.')) {
            if (to != name)
                *to++ = '/';
            memmove(to, p, n);
            to += n;
        }
        p += n + (p[n] == '/');
    }
    *to = '\0';
    return 0;
}

/* Bytes of a field or record as a string; a NUL ends a field. */
static int take_text(char out[TAR_NAME_MAX], const char *p, size_t n)
{
    n = strnlen(p, n);
    if (n >= TAR_NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(out, p, n);
    out[n] = '\0';
    return 0;
}

static int bad_entry(const struct scan *s, const char *why, struct err *e)
{
    return err_set(e, EBADMSG, "entry %u of the archive %s", s->entries, why);
}

static void entry_name(const struct scan *s, const struct tar_header *h, char out[TAR_NAME_MAX])
{
    size_t n = 0;
    if (s->has_name) {
        memcpy(out, s->name, strlen(s->name) + 1);
        return;
    }
    /* GNU's headers have other things where POSIX has the prefix. */
    if (memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0]) {
        n = strnlen(h->prefix, sizeof(h->prefix));
        memcpy(out, h->prefix, n);
        out[n++] = '/';
    }
    (void)take_text(out + n, h->name, sizeof(h->name)); /* 256 bytes at most */
}

/* ---- extended headers ---- */

/* One record, "LENGTH KEY=VALUE\n", at p; its length is in *ret. */
static int pax_record(struct scan *s, const char *p, size_t n, size_t *ret, struct err *e)
{
    size_t len = 0, i = 0;
    for (; i < n && i < 6 && p[i] >= '0' && p[i] <= '9'; i++)
        len = len * 10 + (size_t)(p[i] - '0');
    if (i == 0 || i >= n || p[i] != ' ' || len > n || len < i + 3 || p[len - 1] != '\n')
        return bad_entry(s, "has a damaged PAX header", e);
    const char *key = p + i + 1, *end = p + len - 1;
    const char *eq = memchr(key, '=', (size_t)(end - key));
    if (!eq)
        return bad_entry(s, "has a damaged PAX header", e);
    size_t key_len = (size_t)(eq - key), value_len = (size_t)(end - eq - 1);
    int r = 0;
    if (key_len == 4 && memcmp(key, "path", 4) == 0) {
        s->has_name = true;
        r = memchr(eq, '\0', value_len + 1) ? -EBADMSG : take_text(s->name, eq + 1, value_len);
    } else if (key_len == 8 && memcmp(key, "linkpath", 8) == 0) {
        s->has_link = true;
        r = memchr(eq, '\0', value_len + 1) ? -EBADMSG : take_text(s->link, eq + 1, value_len);
    } else if (key_len == 4 && memcmp(key, "size", 4) == 0) {
        uint64_t v = 0;
        for (const char *d = eq + 1; d < end && r == 0; d++) {
            r = *d < '0' || *d > '9' || v > INT64_MAX / 10 - 1 ? -EBADMSG : 0;
            v = v * 10 + (uint64_t)(*d - '0');
        }
        s->has_size = true;
        s->size = v;
    } else if (key_len > 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
        return bad_entry(s, "is sparse, which is not supported here", e);
    }
    if (r == -ENAMETOOLONG)
        return bad_entry(s, "has a name over 1023 bytes", e);
    *ret = len;
    return r < 0 ? bad_entry(s, "has a damaged PAX header", e) : 0;
}

/* The content of the entry at s->at, malloc'd and terminated. */
static char *read_long(struct scan *s, uint64_t size, struct err *e)
{
    if (size > LONG_MAX_) {
        (void)bad_entry(s, "has an extended header over 64 KiB", e);
        return NULL;
    }
    char *p = malloc(size + 1);
    int r = p ? pread_all(s->fd, p, size, s->at) : -ENOMEM;
    if (r < 0) {
        free(p);
        (void)err_sys(e, -r, "cannot read the archive");
        return NULL;
    }
    p[size] = '\0';
    return p;
}

static int read_pax(struct scan *s, uint64_t size, struct err *e)
{
    AUTO_FREE char *p = read_long(s, size, e);
    int r = p ? 0 : -EBADMSG;
    for (size_t at = 0, len = 0; r == 0 && at < size; at += len)
        r = pax_record(s, p + at, size - at, &len, e);
    return r;
}

static int read_gnu(struct scan *s, uint64_t size, bool link, struct err *e)
{
    AUTO_FREE char *p = read_long(s, size, e);
    if (!p)
        return -EBADMSG;
    if (take_text(link ? s->link : s->name, p, size) < 0)
        return bad_entry(s, "has a name over 1023 bytes", e);
    *(link ? &s->has_link : &s->has_name) = true;
    return 0;
}

/* ---- entries ---- */

static int add_member(struct scan *s, const struct tar_header *h, enum tar_kind kind, uint64_t size,
                      struct err *e)
{
    char name[TAR_NAME_MAX], link[TAR_NAME_MAX];
    entry_name(s, h, name);
    if (kind == TAR_FILE && *name && name[strlen(name) - 1] == '/')
        return 0; /* the oldest tars say "directory" like this */
    if (clean_name(name) < 0)
        return err_set(e, EPERM, "the archive has a member '%.256s', which leads out of it", name);
    if (!*name)
        return bad_entry(s, "has no name", e);
    if (s->out.n == s->cap) {
        size_t cap = s->cap + s->cap / 2 + MEMBERS_STEP;
        void *more = reallocarray(s->out.v, cap, sizeof(*s->out.v));
        if (!more)
            return err_sys(e, ENOMEM, "cannot read the archive");
        s->out.v = more;
        s->cap = cap;
    }
    struct tar_member m = {.offset = s->at, .size = size, .kind = kind};
    if (kind != TAR_FILE) {
        if (s->has_link)
            memcpy(link, s->link, strlen(s->link) + 1);
        else
            (void)take_text(link, h->link, sizeof(h->link));
        m.link = strdup(link);
    }
    m.name = strdup(name);
    if (!m.name || (kind != TAR_FILE && !m.link)) {
        free(m.name);
        free(m.link);
        return err_sys(e, ENOMEM, "cannot read the archive");
    }
    s->out.v[s->out.n++] = m;
    return 0;
}

/* Whether an entry has content after its header; the size of a link or a device means nothing. */
static bool has_content(char type)
{
    return type < '1' || type > '6';
}

static int read_entry(struct scan *s, const struct tar_header *h, struct err *e)
{
    uint64_t size = 0;
    bool extended = strchr("xgLK", h->type) && h->type;
    if (tar_number(h->size, sizeof(h->size), &size) < 0)
        return bad_entry(s, "has a bad size", e);
    if (s->has_size && !extended)
        size = s->size;
    if (!has_content(h->type))
        size = 0;
    if (size > s->length - s->at)
        return bad_entry(s, "is longer than the file: it was cut off, or lies", e);
    int r = 0;
    switch (h->type) {
    case 'x':
        r = read_pax(s, size, e);
        break;
    case 'L':
    case 'K':
        r = read_gnu(s, size, h->type == 'K', e);
        break;
    case 'S':
        return bad_entry(s, "is sparse, which is not supported here", e);
    case '\0':
    case '0':
    case '7':
        r = add_member(s, h, TAR_FILE, size, e);
        break;
    case '1':
    case '2':
        r = add_member(s, h, h->type == '1' ? TAR_HARDLINK : TAR_SYMLINK, 0, e);
        break;
    default:
        break;
    }
    if (!extended)
        s->has_name = s->has_link = s->has_size = false;
    s->at += (size + BLOCK - 1) / BLOCK * BLOCK;
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tar_member *)a)->name, ((const struct tar_member *)b)->name);
}

static int sort_members(struct tar_members *m, struct err *e)
{
    if (m->n)
        qsort(m->v, m->n, sizeof(*m->v), by_name);
    for (size_t i = 1; i < m->n; i++)
        if (strcmp(m->v[i - 1].name, m->v[i].name) == 0)
            return err_set(e, EBADMSG, "the archive has two members '%.256s'", m->v[i].name);
    return 0;
}

static int scan_all(struct scan *s, struct err *e)
{
    struct tar_header h;
    int r = 0;
    while (r == 0 && s->at <= s->length && s->length - s->at >= BLOCK) {
        r = pread_all(s->fd, &h, BLOCK, s->at);
        if (r < 0)
            return err_sys(e, -r, "cannot read the archive");
        if (tar_is_zero(&h))
            return 0;
        if (!tar_checksum_fits(&h))
            return s->entries
                       ? err_set(e, EBADMSG, "the archive is damaged after entry %u", s->entries)
                       : err_set(e, ENOMSG, "it is not a tar archive");
        s->at += BLOCK;
        if (++s->entries > TAR_MEMBERS_MAX)
            return err_set(e, E2BIG, "the archive has more than %d entries", TAR_MEMBERS_MAX);
        r = read_entry(s, &h, e);
    }
    if (r == 0 && !s->entries)
        return err_set(e, ENOMSG, "it is not a tar archive");
    return r;
}

int tar_scan(int fd, struct tar_members *ret, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read the archive");
    struct scan s = {.fd = fd, .length = (uint64_t)st.st_size};
    int r = scan_all(&s, e);
    if (r == 0)
        r = sort_members(&s.out, e);
    if (r < 0) {
        tar_members_free(&s.out);
        return r;
    }
    *ret = s.out;
    return 0;
}

/* ---- finding ---- */

/* Where a symlink in `from` leads, as a name of the archive; false when it leads out. */
static bool resolve_link(const char *from, const char *link, char out[TAR_NAME_MAX])
{
    const char *slash = strrchr(from, '/');
    size_t n = *link == '/' || !slash ? 0 : (size_t)(slash - from);
    memcpy(out, from, n); /* shorter than TAR_NAME_MAX, as all names are */
    for (const char *p = link; *p;) {
        size_t k = strcspn(p, "/");
        if (k == 2 && p[0] == '.' && p[1] == '.') {
            if (!n)
                return false;
            while (n && out[n - 1] != '/')
                n--;
            n -= n > 0;
        } else if (k && !(k == 1 && p[0] == '.')) {
            if (n + k + 2 > TAR_NAME_MAX)
                return false;
            if (n)
                out[n++] = '/';
            memcpy(out + n, p, k);
            n += k;
        }
        p += k + (p[k] == '/');
    }
    out[n] = '\0';
    return n > 0;
}

const struct tar_member *tar_find(const struct tar_members *m, const char *name)
{
    char at[TAR_NAME_MAX], next[TAR_NAME_MAX];
    if (!m->n || strlen(name) >= sizeof(at))
        return NULL;
    memcpy(at, name, strlen(name) + 1);
    if (clean_name(at) < 0)
        return NULL;
    for (int i = 0; i <= TAR_LINKS_MAX; i++) {
        struct tar_member key = {.name = at};
        const struct tar_member *found = bsearch(&key, m->v, m->n, sizeof(*m->v), by_name);
        if (!found || found->kind == TAR_FILE)
            return found;
        /* A hard link's target is a name of the archive, a symlink's is relative to it. */
        bool hard = found->kind == TAR_HARDLINK;
        if (!resolve_link(hard ? "" : at, found->link, next))
            return NULL;
        memcpy(at, next, strlen(next) + 1);
    }
    return NULL;
}
