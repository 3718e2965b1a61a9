#include "util/tar.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "util/cleanup.h"

enum {
    NAME_FIELD = 100,
    XATTR_NAME = 255, /* the kernel's limit */
};
#define ID_MAX 07777777U
#define SIZE_MAX_ 077777777777ULL

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

int tar_add_xattr(struct buf *records, const char *name, const void *value, size_t n)
{
    char key[XATTR_NAME + 32];
    if (strchr(name, '=') || strlen(name) > XATTR_NAME)
        return -EINVAL;
    (void)snprintf(key, sizeof(key), "SCHILY.xattr.%s", name);
    return add_record(records, key, value, n);
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
    if (r == 0 && t->xattrs)
        r = buf_append(b, buf_head(t->xattrs), buf_len(t->xattrs));
    return r;
}

/* ---- headers ---- */

static void put_octal(char *p, size_t width, uint64_t v)
{
    for (size_t i = width - 1; i-- > 0; v >>= 3)
        p[i] = (char)('0' + (v & 7));
}
#define PUT_OCTAL(field, v) put_octal(field, sizeof(field), v)

/* Values too large for their field are in a record, and 0 here. */
static int put_block(struct buf *out, const struct tar_entry *t)
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
    return buf_append(out, &h, sizeof(h));
}

int tar_format(struct buf *out, const struct tar_entry *t)
{
    static const uint8_t zeros[TAR_BLOCK];
    AUTO_BUF struct buf b;
    buf_init(&b, out->limit);
    int r = add_records(&b, t);
    if (r == 0 && buf_len(&b)) {
        const struct tar_entry x = {
            .path = "././@PaxHeader", .type = 'x', .mode = 0644, .size = buf_len(&b)};
        r = put_block(out, &x);
        if (r == 0)
            r = buf_append(out, buf_head(&b), buf_len(&b));
        if (r == 0)
            r = buf_append(out, zeros, (TAR_BLOCK - buf_len(&b) % TAR_BLOCK) % TAR_BLOCK);
    }
    return r < 0 ? r : put_block(out, t);
}
