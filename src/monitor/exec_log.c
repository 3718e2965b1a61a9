#include "monitor/exec_log.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* #syscalls:monitor openat write pread64 renameat fstat newfstatat close clock_gettime */
/* #syscalls:monitor mmap munmap brk */

enum {
    FLUSH_AT = 256 * 1024, /* one write() for about that much */
    AROUND_MAX = 160,      /* what a line has besides the escaped bytes */
    PENDING_MAX = FLUSH_AT + 2 * LOG_LINE_MAX,
    NAME_MAX_LEN = 64,
};

static const char *const source_names[] = {"stdout", "stderr", "output", "system"};

/* --- JSON strings --- */

/* How an ASCII character is written inside a JSON string. NUL has no entry: see escape(). */
struct json_char {
    uint8_t len;
    uint8_t text[7];
};
static struct json_char json_chars[128];

static void fill_json_chars(void)
{
    static const char hex[] = "0123456789abcdef";
    static const char short_form[0x20] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    for (unsigned c = 1; c < 128; c++) {
        struct json_char j = {.len = 1, .text = {(uint8_t)c}};
        if (c == '"' || c == '\\' || (c < 0x20 && short_form[c]))
            j = (struct json_char){2, {'\\', (uint8_t)(c < 0x20 ? short_form[c] : (char)c)}};
        else if (c < 0x20)
            j = (struct json_char){
                6, {'\\', 'u', '0', '0', (uint8_t)hex[c >> 4], (uint8_t)hex[c & 0xf]}};
        json_chars[c] = j;
    }
}

#define ONES 0x0101010101010101ULL
#define HIGHS 0x8080808080808080ULL

/* A high bit set in every byte of w that is not plain inside a JSON string: below 0x20, '"',
 * '\\', or not ASCII. Bytes above the first such one may be set wrongly (a borrow), the first
 * never is. */
static inline uint64_t not_plain(uint64_t w)
{
    uint64_t quote = w ^ (ONES * '"');
    uint64_t slash = w ^ (ONES * '\\');
    return (w | (w - ONES * 0x20) | ((quote - ONES) & ~quote) | ((slash - ONES) & ~slash)) & HIGHS;
}

static inline bool has_nul(uint64_t w)
{
    return ((w - ONES) & ~w & HIGHS) != 0;
}

/* utf8_char for what most text is made of, in line: two bytes, and three from U+1000 to U+CFFF. */
static inline int utf8_len(const uint8_t *p, size_t n)
{
    if (n >= 2 && *p >= 0xc2 && *p <= 0xdf && (p[1] & 0xc0) == 0x80)
        return 2;
    if (n >= 3 && *p >= 0xe1 && *p <= 0xec && (p[1] & 0xc0) == 0x80 && (p[2] & 0xc0) == 0x80)
        return 3;
    uint32_t cp;
    return utf8_char(p, n, &cp);
}

/* Writes ASCII characters and copies UTF-8 ones until p is at `end` or, once past `stop`, wherever
 * it then is. NULL for a NUL or when it is not UTF-8. */
static uint8_t *escape_some(uint8_t *to, const uint8_t **pp, const uint8_t *stop,
                            const uint8_t *end)
{
    const uint8_t *p = *pp;
    while (p < stop) {
        if (*p < 0x80) {
            const struct json_char *j = &json_chars[*p++];
            if (j->len == 0)
                return NULL;
            memcpy(to, j->text, sizeof(j->text));
            to += j->len;
            continue;
        }
        int len = utf8_len(p, (size_t)(end - p));
        if (len <= 0)
            return NULL;
        for (int i = 0; i < len; i++)
            *to++ = *p++;
    }
    *pp = p;
    return to;
}

/* Writes n bytes as the inside of a JSON string; `to` has room for 6 n + 8. Returns the end, or
 * NULL when the bytes are not text: not UTF-8, or with a NUL among them (which would take six
 * times its size, and which not every JSON reader accepts).
 *
 * Eight bytes at a time: most are plain and are copied as they are; eight ASCII bytes with
 * something to escape among them go through the table without a branch. */
static uint8_t *escape(uint8_t *to, const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    while (end - p >= 8) {
        uint64_t w;
        memcpy(&w, p, sizeof(w));
        if (!not_plain(w)) {
            memcpy(to, &w, sizeof(w));
            to += sizeof(w);
            p += sizeof(w);
        } else if (w & HIGHS) {
            to = escape_some(to, &p, p + 8, end);
            if (!to)
                return NULL;
        } else {
            if (has_nul(w))
                return NULL;
            for (int i = 0; i < 8; i++) {
                const struct json_char *j = &json_chars[p[i]];
                memcpy(to, j->text, sizeof(j->text));
                to += j->len;
            }
            p += 8;
        }
    }
    return escape_some(to, &p, end, end);
}

/* --- files --- */

static int open_file(const struct exec_log *l)
{
    int fd = openat(l->dirfd, l->name,
                    O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    return fd < 0 ? -errno : fd;
}

int exec_log_open(struct exec_log *l, int logs_dirfd, const char *name)
{
    *l = (struct exec_log){.dirfd = logs_dirfd, .name = name, .fd = -1, .stamp_sec = -1};
    buf_init(&l->pending, PENDING_MAX);
    fill_json_chars();
    int fd = open_file(l);
    if (fd < 0)
        return l->broken = fd;
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        l->broken = -EINVAL;
        (void)close(fd);
        return l->broken;
    }
    l->fd = fd;
    l->size = (uint64_t)st.st_size;
    char last;
    if (l->size && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n')
        (void)buf_append(&l->pending, "\n", 1);
    return 0;
}

static int rotate(struct exec_log *l)
{
    close_fd(&l->fd);
    for (int i = LOG_FILES - 1; i > 0; i--) { /* .1 -> .2, then NAME -> .1 */
        char from[NAME_MAX_LEN], to[NAME_MAX_LEN];
        if (i == 1)
            (void)snprintf(from, sizeof(from), "%s", l->name);
        else
            (void)snprintf(from, sizeof(from), "%s.%d", l->name, i - 1);
        (void)snprintf(to, sizeof(to), "%s.%d", l->name, i);
        if (renameat(l->dirfd, from, l->dirfd, to) < 0 && errno != ENOENT)
            return -errno;
    }
    int fd = open_file(l);
    if (fd < 0)
        return fd;
    l->fd = fd;
    l->size = 0;
    return 0;
}

static void give_up(struct exec_log *l, int err)
{
    l->broken = err;
    close_fd(&l->fd);
    buf_free(&l->pending);
    memset(l->carry, 0, sizeof(l->carry));
}

static void write_out(struct exec_log *l)
{
    if (l->broken || buf_len(&l->pending) == 0)
        return;
    if (l->size && l->size + buf_len(&l->pending) > LOG_FILE_MAX) {
        int r = rotate(l);
        if (r < 0) {
            give_up(l, r);
            return;
        }
    }
    while (buf_len(&l->pending)) {
        ssize_t n = write(l->fd, buf_head(&l->pending), buf_len(&l->pending));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            give_up(l, n < 0 ? -errno : -EIO);
            return;
        }
        l->size += (uint64_t)n;
        buf_consume(&l->pending, (size_t)n);
    }
}

/* --- lines --- */

static uint8_t *put_text(uint8_t *to, const char *s)
{
    return mempcpy(to, s, strlen(s));
}

static uint8_t *put_decimal(uint8_t *to, uint32_t v, int width)
{
    char digits[10];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) || n < width);
    while (n)
        *to++ = (uint8_t)digits[--n];
    return to;
}

static uint8_t *put_time(struct exec_log *l, uint8_t *to)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    if (ts.tv_sec != l->stamp_sec) {
        struct tm tm;
        if (!gmtime_r(&ts.tv_sec, &tm) ||
            strftime(l->stamp, sizeof(l->stamp), "%Y-%m-%dT%H:%M:%S.", &tm) == 0)
            (void)snprintf(l->stamp, sizeof(l->stamp), "1970-01-01T00:00:00.");
        l->stamp_sec = ts.tv_sec;
    }
    return put_decimal(put_text(to, l->stamp), (uint32_t)ts.tv_nsec, 9);
}

static void put_line(struct exec_log *l, enum log_source s, uint32_t id, const uint8_t *p, size_t n)
{
    uint8_t *start = buf_reserve(&l->pending, 6 * n + AROUND_MAX);
    if (!start)
        return; /* memory is short: lose this line rather than the log */
    uint8_t *to = put_text(start, "{\"t\":\"");
    to = put_text(put_time(l, to), "Z\",\"s\":\"");
    to = put_text(put_text(to, source_names[s]), "\",\"d\":\"");
    uint8_t *text_end = escape(to, p, n);
    if (text_end)
        to = text_end;
    else
        to += EVP_EncodeBlock(to, p, (int)n);
    *to++ = '"';
    if (id)
        to = put_decimal(put_text(to, ",\"id\":"), id, 1);
    if (!text_end)
        to = put_text(to, ",\"e\":\"b64\"");
    to = put_text(to, "}\n");
    buf_commit(&l->pending, (size_t)(to - start));
    if (buf_len(&l->pending) >= FLUSH_AT)
        write_out(l);
}

/* --- characters split between writes --- */

static struct log_carry *find_carry(struct exec_log *l, enum log_source s, uint32_t id)
{
    for (size_t i = 0; i < LOG_CARRIES; i++)
        if (l->carry[i].n && l->carry[i].s == s && l->carry[i].id == id)
            return &l->carry[i];
    return NULL;
}

static void drop_carry(struct exec_log *l, struct log_carry *c)
{
    struct log_carry was = *c;
    c->n = 0;
    if (was.n)
        put_line(l, was.s, was.id, was.b, was.n);
}

static void carry(struct exec_log *l, enum log_source s, uint32_t id, const uint8_t *p, size_t n)
{
    struct log_carry *c = NULL;
    for (size_t i = 0; i < LOG_CARRIES && !c; i++)
        if (l->carry[i].n == 0)
            c = &l->carry[i];
    if (!c) {
        c = &l->carry[l->next_carry++ % LOG_CARRIES];
        drop_carry(l, c);
    }
    *c = (struct log_carry){.s = s, .id = id, .n = (uint8_t)n};
    memcpy(c->b, p, n);
}

/* Logs what was held back together with as much of p as ends its character (or shows that there
 * is none); returns how much that took. */
static size_t finish_carry(struct exec_log *l, struct log_carry *c, const uint8_t *p, size_t n)
{
    uint8_t whole[4];
    uint32_t cp;
    size_t took = 0;
    int r = 0;
    memcpy(whole, c->b, c->n);
    while (r == 0 && took < n) {
        whole[c->n + took] = p[took];
        took++;
        r = utf8_char(whole, c->n + took, &cp);
    }
    if (r == 0) { /* all of p is still the beginning */
        memcpy(c->b, whole, c->n + took);
        c->n = (uint8_t)(c->n + took);
        return took;
    }
    if (r < 0) /* the last byte does not belong to it */
        took--;
    put_line(l, c->s, c->id, whole, c->n + took);
    c->n = 0;
    return took;
}

void exec_log_write(struct exec_log *l, enum log_source s, uint32_t id, const void *data, size_t n)
{
    const uint8_t *p = data;
    if (l->broken || n == 0)
        return;
    struct log_carry *c = find_carry(l, s, id);
    if (c) {
        size_t took = finish_carry(l, c, p, n);
        p += took;
        n -= took;
    }
    while (n && !l->broken) {
        size_t take = MIN(n, (size_t)LOG_CHUNK_MAX);
        size_t unfinished = utf8_unfinished(p, take);
        if (unfinished < take)
            put_line(l, s, id, p, take - unfinished);
        p += take - unfinished;
        n -= take - unfinished;
        if (n == unfinished && n) {
            carry(l, s, id, p, n);
            n = 0;
        }
    }
}

void exec_log_printf(struct exec_log *l, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0 || l->broken)
        return;
    size_t len = MIN((size_t)n, sizeof(text) - 1);
    if ((size_t)n >= sizeof(text)) /* cut: not inside a character */
        len -= utf8_unfinished((const uint8_t *)text, len);
    while (len && text[len - 1] == '\n')
        len--;
    put_line(l, LOG_SYSTEM, 0, (const uint8_t *)text, len);
}

void exec_log_flush(struct exec_log *l)
{
    for (size_t i = 0; i < LOG_CARRIES; i++)
        if (l->carry[i].n)
            drop_carry(l, &l->carry[i]);
    write_out(l);
    buf_shrink(&l->pending);
}

void exec_log_last_line(const struct exec_log *l, const char *text)
{
    char line[256];
    int n =
        snprintf(line, sizeof(line), "{\"t\":\"%s000000000Z\",\"s\":\"system\",\"d\":\"%.160s\"}\n",
                 l->stamp[0] ? l->stamp : "1970-01-01T00:00:00.", text);
    if (n > 0 && l->fd >= 0)
        (void)!write(l->fd, line, MIN((size_t)n, sizeof(line) - 1));
}

void exec_log_close(struct exec_log *l)
{
    exec_log_flush(l);
    close_fd(&l->fd);
    buf_free(&l->pending);
}
