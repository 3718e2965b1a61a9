#include "store/audit_chain.h"

#include "logs/format.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OPEN_TRIES = 100,
    CHUNK = 64 * 1024,
    NUMBER_DIGITS = 20,
    HEAD_SIZE = 3 * (NUMBER_DIGITS + 1) + DIGEST_HEX_SIZE,
    LINK_MAX = 128, /* {"seq":...,"prev":"...", */
    REPAIR_MAX = 512,
};

/* Far beyond what can be written, and far below what JSON's integers hold. Writers do not continue
 * from half of it on. */
static const uint64_t SEQ_MAX = 1ULL << 62;

#define LINK_FORMAT "{\"seq\":%" PRIu64 ",\"prev\":\"%s\","
#define LINK_BEGINS "\"begins\":true,"

/* --- marks ----------------------------------------------------------------------------------- */

void audit_mark_text(const struct audit_mark *m, char out[AUDIT_MARK_TEXT_MAX])
{
    (void)snprintf(out, AUDIT_MARK_TEXT_MAX, "%" PRIu64 ":%s", m->seq, m->hash);
}

/* Takes a number without leading zeros, up to SEQ_MAX; its length, or 0. */
static size_t take_number(const char *p, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    size_t i = 0;
    for (; i < n && p[i] >= '0' && p[i] <= '9'; i++) {
        unsigned digit = (unsigned)(p[i] - '0');
        if ((i == 1 && p[0] == '0') || v > (SEQ_MAX - digit) / 10)
            return 0;
        v = v * 10 + digit;
    }
    *ret = v;
    return i;
}

static bool take_hash(const char *p, size_t n, char hash[DIGEST_HEX_SIZE])
{
    if (n < DIGEST_HEX_SIZE - 1)
        return false;
    for (size_t i = 0; i < DIGEST_HEX_SIZE - 1; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f')))
            return false;
    memcpy(hash, p, DIGEST_HEX_SIZE - 1);
    hash[DIGEST_HEX_SIZE - 1] = '\0';
    return true;
}

int audit_mark_parse(const char *text, struct audit_mark *ret)
{
    size_t n = strlen(text), k = take_number(text, n, &ret->seq);
    if (k == 0 || ret->seq == 0 || n != k + DIGEST_HEX_SIZE || text[k] != ':' ||
        !take_hash(text + k + 1, n - k - 1, ret->hash))
        return -EINVAL;
    return 0;
}

static bool take_text(const char **p, size_t *n, const char *what)
{
    size_t k = strlen(what);
    if (*n < k || memcmp(*p, what, k) != 0)
        return false;
    *p += k;
    *n -= k;
    return true;
}

bool audit_link_parse(const char *text, size_t n, struct audit_mark *ret)
{
    if (!take_text(&text, &n, "{\"seq\":"))
        return false;
    size_t k = take_number(text, n, &ret->seq);
    text += k;
    n -= k;
    if (k == 0 || ret->seq == 0 || !take_text(&text, &n, ",\"prev\":\"") ||
        !take_hash(text, n, ret->hash))
        return false;
    text += DIGEST_HEX_SIZE - 1;
    n -= DIGEST_HEX_SIZE - 1;
    return take_text(&text, &n, "\",");
}

static void start_of_chain(struct audit_mark *m)
{
    m->seq = 0;
    memset(m->hash, '0', DIGEST_HEX_SIZE - 1);
    m->hash[DIGEST_HEX_SIZE - 1] = '\0';
}

/* --- lines ----------------------------------------------------------------------------------- */

int audit_reader_open(struct audit_reader *r, int fd, off_t at, off_t end)
{
    *r = (struct audit_reader){.fd = fd, .at = at, .end = end};
    r->chunk = malloc(CHUNK);
    r->text = malloc(LOG_LINE_MAX + 1);
    return r->chunk && r->text ? 0 : -ENOMEM;
}

void audit_reader_close(struct audit_reader *r)
{
    free(r->chunk);
    free(r->text);
    r->chunk = NULL;
    r->text = NULL;
}

bool audit_reader_fits(const struct audit_reader *r)
{
    return r->n <= LOG_LINE_MAX;
}

/* 1: there are bytes; 0: none are left; -errno. */
static int fill(struct audit_reader *r)
{
    while (r->used == r->have) {
        size_t most = (size_t)MIN((off_t)CHUNK, r->end - r->at);
        ssize_t k = most ? pread(r->fd, r->chunk, most, r->at) : 0;
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : 0;
        r->at += k;
        r->used = 0;
        r->have = (size_t)k;
    }
    return 1;
}

int audit_reader_next(struct audit_reader *r)
{
    struct hasher h;
    int k;
    hasher_init(&h);
    r->n = 0;
    r->whole = false;
    while (!r->whole && (k = fill(r)) != 0) {
        if (k < 0)
            return k;
        const uint8_t *p = r->chunk + r->used;
        size_t left = r->have - r->used;
        const uint8_t *nl = memchr(p, '\n', left);
        size_t n = nl ? (size_t)(nl - p) : left;
        hasher_update(&h, p, n);
        if (r->n < LOG_LINE_MAX)
            memcpy(r->text + r->n, p, MIN(n, LOG_LINE_MAX - (size_t)r->n));
        r->n += n;
        r->whole = nl != NULL;
        r->used += n + (nl ? 1 : 0);
    }
    if (!r->whole && r->n == 0)
        return 0;
    r->nth++;
    r->text[MIN(r->n, (uint64_t)LOG_LINE_MAX)] = '\0';
    struct digest d = hasher_finish(&h);
    digest_hex(&d, r->hash);
    return 1;
}

/* --- audit.head ------------------------------------------------------------------------------ */

static bool take_padded(const char **p, uint64_t *ret)
{
    *ret = 0;
    for (int i = 0; i < NUMBER_DIGITS; i++, (*p)++) {
        if (**p < '0' || **p > '9' || *ret > (INT64_MAX - 9ULL) / 10)
            return false;
        *ret = *ret * 10 + (uint64_t)(**p - '0');
    }
    return *(*p)++ == ' ';
}

static int head_read(int fd, struct audit_head *h)
{
    char text[HEAD_SIZE + 1];
    ssize_t n = pread(fd, text, sizeof(text), 0);
    const char *p = text;
    start_of_chain(&h->mark);
    h->end = h->ino = 0;
    if (n <= 0)
        return n < 0 ? -errno : -ENOENT;
    if (n != HEAD_SIZE || text[HEAD_SIZE - 1] != '\n' || !take_padded(&p, &h->mark.seq) ||
        !take_padded(&p, &h->end) || !take_padded(&p, &h->ino) ||
        !take_hash(p, DIGEST_HEX_SIZE - 1, h->mark.hash) || h->mark.seq >= SEQ_MAX / 2) {
        start_of_chain(&h->mark);
        h->end = h->ino = 0;
        return -EINVAL;
    }
    return 0;
}

int audit_head_load(int home_fd, struct audit_head *ret)
{
    AUTO_CLOSE int fd =
        openat(home_fd, AUDIT_HEAD_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd < 0 ? -errno : head_read(fd, ret);
}

static int head_write(int fd, const struct audit_head *h)
{
    char text[HEAD_SIZE + 1];
    (void)snprintf(text, sizeof(text), "%020" PRIu64 " %020" PRIu64 " %020" PRIu64 " %s\n",
                   h->mark.seq, h->end, h->ino, h->mark.hash);
    return pwrite_all(fd, text, HEAD_SIZE, 0);
}

/* --- the file -------------------------------------------------------------------------------- */

/* Whether the name still leads to this file. */
static bool is_current(int home_fd, const struct stat *st)
{
    struct stat now;
    return fstatat(home_fd, AUDIT_NAME, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           now.st_ino == st->st_ino && now.st_dev == st->st_dev;
}

/* With the lock on the current file. */
static int rotate(int home_fd)
{
    for (int i = LOG_FILES - 1; i > 0; i--) { /* .1 -> .2, then NAME -> .1 */
        char from[32] = AUDIT_NAME, to[32];
        if (i > 1)
            (void)snprintf(from, sizeof(from), AUDIT_NAME ".%d", i - 1);
        (void)snprintf(to, sizeof(to), AUDIT_NAME ".%d", i);
        if (renameat(home_fd, from, home_fd, to) < 0 && errno != ENOENT)
            return -errno;
    }
    return 0;
}

/* The current file, locked. */
static int open_locked(int home_fd, struct stat *st)
{
    for (int i = 0; i < OPEN_TRIES; i++) {
        AUTO_CLOSE int fd =
            openat(home_fd, AUDIT_NAME,
                   O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
            return -errno;
        while (flock(fd, LOCK_EX) < 0)
            if (errno != EINTR)
                return -errno;
        if (fstat(fd, st) < 0)
            return -errno;
        if (!S_ISREG(st->st_mode))
            return -EINVAL;
        if (is_current(home_fd, st))
            return steal_fd(&fd);
    }
    return -EBUSY;
}

struct chain {
    int fd, head_fd;
    uint64_t size; /* of the file */
    struct audit_head head;
};

static void chain_close(struct chain *c)
{
    close_fd(&c->head_fd);
    close_fd(&c->fd); /* and with it the lock */
}

/* One write; all of it or nothing. */
static int chain_write(struct chain *c, const void *p, size_t n)
{
    ssize_t k;
    do
        k = write(c->fd, p, n);
    while (k < 0 && errno == EINTR);
    if (k == (ssize_t)n) {
        c->size += n;
        return 0;
    }
    int code = k < 0 ? errno : ENOSPC;
    if (k > 0)
        (void)!ftruncate(c->fd, (off_t)c->size);
    return -code;
}

/* `text` (with a newline before and after it, or not) becomes the newest record. */
static void advance(struct chain *c, const char *text, size_t n)
{
    struct digest d = digest_of(text, n);
    c->head.mark.seq++;
    digest_hex(&d, c->head.mark.hash);
}

/* The line that a killed writer left (invariant 3). */
static int repair(struct chain *c, const struct audit_reader *cut)
{
    char t[TIME_TEXT_MAX], text[REPAIR_MAX];
    time_rfc3339(realtime_ns(), t);
    int n = snprintf(text, sizeof(text),
                     "\n" LINK_FORMAT "\"t\":\"%s\",\"event\":\"repair\",\"uid\":%d,\"pid\":%d,"
                     "\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}\n",
                     c->head.mark.seq + 1, c->head.mark.hash, t, (int)getuid(), (int)getpid(),
                     cut->n, cut->hash);
    int r = chain_write(c, text, (size_t)n);
    if (r == 0)
        advance(c, text + 1, (size_t)n - 2);
    return r;
}

/* Brings the head up to date if it does not match the file's end: a writer was killed before writing it,
 * the file is new, or it has been changed. */
static int catch_up(struct chain *c, const struct stat *st)
{
    struct audit_reader r;
    struct audit_mark m;
    bool known = c->head.ino == st->st_ino && c->head.end <= c->size;
    off_t from = known ? (off_t)c->head.end : 0;
    if ((uint64_t)from == c->size)
        return 0;
    int k = audit_reader_open(&r, c->fd, from, (off_t)c->size);
    while (k == 0 && (k = audit_reader_next(&r)) == 1) {
        k = 0;
        if (!r.whole) {
            k = repair(c, &r);
            break;
        }
        if (audit_link_parse(r.text, MIN(r.n, (uint64_t)LOG_LINE_MAX), &m) &&
            m.seq > c->head.mark.seq && m.seq < SEQ_MAX / 2) { /* invariant 2 */
            c->head.mark.seq = m.seq;
            memcpy(c->head.mark.hash, r.hash, sizeof(r.hash));
        }
    }
    audit_reader_close(&r);
    return k;
}

static int head_save(struct chain *c, const struct stat *st)
{
    c->head.end = c->size;
    c->head.ino = st->st_ino;
    return head_write(c->head_fd, &c->head);
}

/* Ready for a record of n bytes. */
static int chain_open(struct chain *c, int home_fd, size_t n, struct stat *st)
{
    c->head_fd = openat(home_fd, AUDIT_HEAD_NAME,
                        O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (c->head_fd < 0)
        return -errno;
    for (int i = 0; i < OPEN_TRIES; i++) {
        c->fd = open_locked(home_fd, st);
        if (c->fd < 0)
            return c->fd;
        c->size = (uint64_t)st->st_size;
        int r = head_read(c->head_fd, &c->head);
        if (r == 0 || r == -ENOENT || r == -EINVAL)
            r = catch_up(c, st);
        if (r < 0 || c->size == 0 || c->size + n <= LOG_FILE_MAX)
            return r;
        r = head_save(c, st);
        if (r == 0)
            r = rotate(home_fd);
        if (r < 0)
            return r;
        close_fd(&c->fd);
    }
    return -EBUSY;
}

int audit_chain_append(int home_fd, const char *body, size_t n, char **line)
{
    CLEANUP(chain_close) struct chain c = {.fd = -1, .head_fd = -1};
    struct stat st = {0};
    if (n < 3 || n + LINK_MAX > LOG_LINE_MAX)
        return n < 3 ? -EINVAL : -E2BIG;
    AUTO_FREE char *text = malloc(n + LINK_MAX);
    if (!text)
        return -ENOMEM;
    int r = chain_open(&c, home_fd, n + LINK_MAX, &st);
    if (r < 0)
        return r;
    size_t k = (size_t)snprintf(text, LINK_MAX, LINK_FORMAT "%s", c.head.mark.seq + 1,
                                c.head.mark.hash, c.size ? "" : LINK_BEGINS);
    memcpy(text + k, body + 1, n - 1); /* without its brace */
    k += n - 1;
    text[k] = '\n';
    r = chain_write(&c, text, k + 1);
    if (r < 0)
        return r;
    advance(&c, text, k);
    (void)head_save(&c, &st); /* if that fails, the next writer finds the record */
    text[k] = '\0';
    if (line)
        *line = steal_ptr(&text);
    return 0;
}
