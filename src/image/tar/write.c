#include "image/tar/write.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/tar/format.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    BLOCK = TAR_BLOCK,
    OUT_BUF = 256 << 10,
    NAME_FIELD = 100,
    /* A path, a link, and all attributes of an inode. */
    RECORDS_MAX = 2 * (256 << 10) + 2 * TREE_XATTRS_MAX,
};
#define ID_MAX 07777777U
#define SIZE_MAX_ 077777777777ULL

/* ---- output ---- */

int tar_out_init(struct tar_out *o, int fd, struct hasher *hash)
{
    *o = (struct tar_out){.fd = fd, .hash = hash, .buf = malloc(OUT_BUF)};
    return o->buf ? 0 : -ENOMEM;
}

void tar_out_free(struct tar_out *o)
{
    free(o->buf);
    *o = (struct tar_out){.fd = -1};
}

static int put(struct tar_out *o, const void *p, size_t n)
{
    if (o->hash && n)
        hasher_update(o->hash, p, n);
    return o->fd >= 0 ? write_all(o->fd, p, n) : 0;
}

int tar_out_flush(struct tar_out *o)
{
    int r = put(o, o->buf, o->len);
    o->len = 0;
    return r;
}

int tar_out_write(struct tar_out *o, const void *p, size_t n)
{
    o->bytes += n;
    int r = n > OUT_BUF - o->len ? tar_out_flush(o) : 0;
    if (r < 0)
        return r;
    if (n >= OUT_BUF)
        return put(o, p, n);
    memcpy(o->buf + o->len, p, n);
    o->len += n;
    return 0;
}

int tar_put_padding(struct tar_out *o, uint64_t size)
{
    static const uint8_t zeros[BLOCK];
    return tar_out_write(o, zeros, (size_t)((BLOCK - size % BLOCK) % BLOCK));
}

int tar_put_end(struct tar_out *o)
{
    static const uint8_t zeros[2 * BLOCK];
    return tar_out_write(o, zeros, sizeof(zeros));
}

/* ---- PAX records ---- */

/* "LENGTH KEY=VALUE\n", where LENGTH counts itself. */
static int add_record(struct buf *b, const char *key, const void *value, size_t n)
{
    size_t rest = strlen(key) + n + 3, len = rest + 1;
    char digits[24];
    while (len != rest + (size_t)snprintf(digits, sizeof(digits), "%zu", len))
        len = rest + strlen(digits);
    int r = buf_printf(b, "%zu %s=", len, key);
    if (r == 0)
        r = buf_append(b, value, n);
    return r < 0 ? r : buf_append(b, "\n", 1);
}

static int add_number(struct buf *b, const char *key, uint64_t v)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    return add_record(b, key, text, (size_t)n);
}

/* Seconds with as many decimals as needed; for a negative time the decimals count upwards in struct
 * timespec, and downwards here. */
static int add_time(struct buf *b, int64_t sec, uint32_t nsec)
{
    char text[48];
    const char *sign = "";
    uint64_t whole = (uint64_t)sec;
    if (sec < 0) {
        sign = "-";
        whole = -(uint64_t)sec - (nsec ? 1 : 0);
        nsec = nsec ? 1000000000 - nsec : 0;
    }
    int n = snprintf(text, sizeof(text), "%s%llu.%09u", sign, (unsigned long long)whole, nsec);
    while (text[n - 1] == '0')
        n--;
    n -= text[n - 1] == '.';
    return add_record(b, "mtime", text, (size_t)n);
}

static int add_xattrs(struct buf *b, const struct tree_xattr *x)
{
    int r = 0;
    for (; r == 0 && x; x = x->next) {
        char key[TREE_XATTR_NAME_MAX + 32];
        if (strchr(x->bytes, '='))
            return -EINVAL;
        (void)snprintf(key, sizeof(key), "SCHILY.xattr.%s", x->bytes);
        r = add_record(b, key, x->bytes + x->name_len + 1, x->value_len);
    }
    return r;
}

static int add_records(struct buf *b, const struct tar_entry *t)
{
    int r = 0;
    if (strlen(t->path) > NAME_FIELD)
        r = add_record(b, "path", t->path, strlen(t->path));
    if (r == 0 && t->link && strlen(t->link) > NAME_FIELD)
        r = add_record(b, "linkpath", t->link, strlen(t->link));
    if (r == 0 && t->uid > ID_MAX)
        r = add_number(b, "uid", t->uid);
    if (r == 0 && t->gid > ID_MAX)
        r = add_number(b, "gid", t->gid);
    if (r == 0 && t->size > SIZE_MAX_)
        r = add_number(b, "size", t->size);
    if (r == 0 && (t->mtime_nsec || t->mtime < 0 || (uint64_t)t->mtime > SIZE_MAX_))
        r = add_time(b, t->mtime, t->mtime_nsec);
    return r < 0 ? r : add_xattrs(b, t->xattrs);
}

/* ---- headers ---- */

static void put_octal(char *p, size_t width, uint64_t v)
{
    for (size_t i = width - 1; i-- > 0; v >>= 3)
        p[i] = (char)('0' + (v & 7));
}
#define PUT_OCTAL(field, v) put_octal(field, sizeof(field), v)

/* What is too large for its field is in a record, and 0 here. */
static int put_block(struct tar_out *o, const struct tar_entry *t)
{
    struct tar_header h = {.type = t->type, .magic = {'u', 's', 't', 'a', 'r', 0, '0', '0'}};
    bool time_fits = t->mtime >= 0 && (uint64_t)t->mtime <= SIZE_MAX_;
    memcpy(h.name, t->path, MIN(strlen(t->path), sizeof(h.name)));
    PUT_OCTAL(h.mode, t->mode & 07777);
    PUT_OCTAL(h.uid, t->uid <= ID_MAX ? t->uid : 0);
    PUT_OCTAL(h.gid, t->gid <= ID_MAX ? t->gid : 0);
    PUT_OCTAL(h.size, t->size <= SIZE_MAX_ ? t->size : 0);
    PUT_OCTAL(h.mtime, time_fits ? (uint64_t)t->mtime : 0);
    if (t->link)
        memcpy(h.link, t->link, MIN(strlen(t->link), sizeof(h.link)));
    PUT_OCTAL(h.major, t->major);
    PUT_OCTAL(h.minor, t->minor);
    memset(h.checksum, ' ', sizeof(h.checksum));
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const uint8_t *)&h)[i];
    put_octal(h.checksum, sizeof(h.checksum) - 1, sum); /* the last byte stays a blank */
    h.checksum[6] = '\0';
    return tar_out_write(o, &h, sizeof(h));
}

int tar_put_header(struct tar_out *o, const struct tar_entry *t)
{
    AUTO_BUF struct buf b;
    buf_init(&b, RECORDS_MAX);
    int r = add_records(&b, t);
    if (r == 0 && buf_len(&b)) {
        const struct tar_entry x = {
            .path = "././@PaxHeader", .type = 'x', .mode = 0644, .size = buf_len(&b)};
        r = put_block(o, &x);
        if (r == 0)
            r = tar_out_write(o, buf_head(&b), buf_len(&b));
        if (r == 0)
            r = tar_put_padding(o, x.size);
    }
    return r < 0 ? r : put_block(o, t);
}

int tar_put_file(struct tar_out *o, const char *path, const void *p, size_t n)
{
    const struct tar_entry t = {.path = path, .type = '0', .mode = 0644, .size = n};
    int r = tar_put_header(o, &t);
    if (r == 0)
        r = tar_out_write(o, p, n);
    return r < 0 ? r : tar_put_padding(o, n);
}
