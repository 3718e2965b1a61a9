#include "monitor/log_writer.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* #syscalls:monitor openat write pread64 renameat fstat newfstatat close clock_gettime */
/* #syscalls:monitor mmap munmap brk */

enum { NAME_MAX_LEN = 64 };

/* --- JSON strings --- */

/* How an ASCII character is written inside a JSON string. NUL has no entry: see log_escape(). */
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

/* A high bit set in every byte of w that is not plain inside a JSON string: below 0x20, '"', '\\',
 * or not ASCII. Bytes above the first such one may be set wrongly (because of a borrow); the first
 * one never is. */
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

/* utf8_char(), inlined for most text: two bytes, and three from U+1000 to U+CFFF. */
static inline int utf8_len(const uint8_t *p, size_t n)
{
    if (n >= 2 && *p >= 0xc2 && *p <= 0xdf && (p[1] & 0xc0) == 0x80)
        return 2;
    if (n >= 3 && *p >= 0xe1 && *p <= 0xec && (p[1] & 0xc0) == 0x80 && (p[2] & 0xc0) == 0x80)
        return 3;
    uint32_t cp;
    return utf8_char(p, n, &cp);
}

/* Escapes ASCII characters and copies UTF-8 ones, up to the first character boundary at or after
 * `stop`. NULL for a NUL, or if it is not UTF-8. */
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

/* Eight bytes at a time: plain ones, which most are, are copied; eight ASCII bytes of which some
 * need escaping go through the table without a branch. */
uint8_t *log_escape(uint8_t *to, const uint8_t *p, size_t n)
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

static int open_file(const struct log_writer *l)
{
    int fd = openat(l->dirfd, l->name,
                    O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    return fd < 0 ? -errno : fd;
}

int log_writer_open(struct log_writer *l, int logs_dirfd, const char *name)
{
    *l = (struct log_writer){.dirfd = logs_dirfd, .name = name, .fd = -1, .stamp_sec = -1};
    buf_init(&l->pending, LOG_PENDING_MAX);
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

static int rotate(struct log_writer *l)
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

static void log_give_up(struct log_writer *l, int err)
{
    l->broken = err;
    close_fd(&l->fd);
    buf_free(&l->pending);
}

void log_writer_flush(struct log_writer *l)
{
    if (l->broken || buf_len(&l->pending) == 0)
        return;
    if (l->size && l->size + buf_len(&l->pending) > LOG_FILE_MAX) {
        int r = rotate(l);
        if (r < 0) {
            log_give_up(l, r);
            return;
        }
    }
    while (buf_len(&l->pending)) {
        ssize_t n = write(l->fd, buf_head(&l->pending), buf_len(&l->pending));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            log_give_up(l, n < 0 ? -errno : -EIO);
            return;
        }
        l->size += (uint64_t)n;
        buf_consume(&l->pending, (size_t)n);
    }
}

/* --- lines --- */

uint8_t *log_put_text(uint8_t *to, const char *s)
{
    return mempcpy(to, s, strlen(s));
}

uint8_t *log_put_decimal(uint8_t *to, uint64_t v, int width)
{
    char digits[20];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) || n < width);
    while (n)
        *to++ = (uint8_t)digits[--n];
    return to;
}

uint8_t *log_put_time(struct log_writer *l, uint8_t *to)
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
    return log_put_decimal(log_put_text(to, l->stamp), (uint32_t)ts.tv_nsec, 9);
}

void log_writer_close(struct log_writer *l)
{
    log_writer_flush(l);
    close_fd(&l->fd);
    buf_free(&l->pending);
}
