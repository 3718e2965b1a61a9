#include "store/audit_verify.h"

#include "logs/format.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { OPEN_TRIES = 100 };

#define OLDEST AUDIT_NAME ".2"
static_assert(LOG_FILES == 3, "the oldest of them has that name");

struct place {
    char file[16];
    uint64_t line;
};

struct verify {
    struct audit_check *check;
    struct audit_head head;
    int head_state;           /* 0, or why there is none */
    struct audit_mark before; /* the record before the last one */
    struct place last_at;     /* of check->last */
    uint64_t compared;        /* up to this record */
    bool odd;                 /* the line before is not a record: a repair may follow */
    bool odd_whole;
    struct place odd_at;
    uint64_t odd_bytes;
    char odd_hash[DIGEST_HEX_SIZE];
    bool saw_expect;
};

__attribute__((format(printf, 4, 5))) static void complain(struct verify *v, const struct place *at,
                                                           uint64_t seq, const char *format, ...)
{
    struct audit_problem p = {.seq = seq};
    va_list args;
    if (++v->check->problems > AUDIT_PROBLEMS_MAX || !v->check->problem)
        return;
    if (at) {
        memcpy(p.file, at->file, sizeof(p.file));
        p.line = at->line;
    }
    va_start(args, format);
    (void)vsnprintf(p.what, sizeof(p.what), format, args);
    va_end(args);
    v->check->problem(v->check->ctx, &p);
}

static bool same(const char *a, const char *b)
{
    return memcmp(a, b, DIGEST_HEX_SIZE - 1) == 0;
}

/* "record 7 is missing", "records 7 to 9 are missing" */
static void complain_missing(struct verify *v, const struct place *at, uint64_t from, uint64_t to,
                             const char *where)
{
    if (from == to)
        complain(v, at, from, "record %" PRIu64 " is missing%s", from, where);
    else
        complain(v, at, from, "records %" PRIu64 " to %" PRIu64 " are missing%s", from, to, where);
}

static void complain_odd(struct verify *v)
{
    if (v->odd)
        complain(v, &v->odd_at, 0, "not a record of the chain: inserted or damaged");
    v->odd = false;
}

/* --- one line -------------------------------------------------------------------------------- */

/* Compares marks known from elsewhere with the actual records, once the next line has confirmed the
 * last one. */
static void compare_known(struct verify *v)
{
    const struct audit_mark *x = v->check->expect, *now = &v->check->last;
    const struct place *at = &v->last_at;
    if (now->seq <= v->compared)
        return;
    v->compared = now->seq;
    if (x && x->seq == now->seq) {
        v->saw_expect = true;
        if (!same(x->hash, now->hash))
            complain(v, at, now->seq, "record %" PRIu64 " is not the one that is expected",
                     now->seq);
    }
    if (v->head_state == 0 && v->head.mark.seq == now->seq && !same(v->head.mark.hash, now->hash))
        complain(v, at, now->seq,
                 "record %" PRIu64 " was changed: " AUDIT_HEAD_NAME " names another hash",
                 now->seq);
}

/* Whether this is how the record after `m` begins. */
static bool follows(const struct audit_mark *link, const struct audit_mark *m)
{
    bool hash = m->seq ? same(link->hash, m->hash) : strspn(link->hash, "0") == DIGEST_HEX_SIZE - 1;
    return hash && link->seq == m->seq + 1;
}

/* The first existing record. Older ones were removed legitimately if there are as many files as
 * allowed, each from its first record on. */
static void begin(struct verify *v, const struct audit_mark *link, const struct place *at)
{
    struct audit_check *c = v->check;
    const struct audit_mark *x = c->expect;
    c->first = link->seq;
    if (link->seq > 1 && (c->unchained || strcmp(at->file, OLDEST) != 0))
        complain_missing(v, at, 1, link->seq - 1, " before this one");
    if (link->seq == 1 && !follows(link, &c->last))
        complain(v, at, 1, "record 1 was changed: nothing can be before it");
    if (x && x->seq + 1 == link->seq) { /* the link vouches for the missing record */
        v->saw_expect = true;
        if (!same(x->hash, link->hash))
            complain(v, at, link->seq, "record %" PRIu64 " does not follow the one expected",
                     link->seq);
    }
}

/* A file's first record says that it is the first, or repairs one. A gap before it is reported. */
static void check_beginning(struct verify *v, const json_t *j, const struct audit_mark *link,
                            const struct place *at)
{
    const char *event = json_string_value(json_object_get(j, "event"));
    bool begun = v->check->first != 0;
    bool first = begun
                     ? link->seq == v->check->last.seq + 1 && strcmp(at->file, v->last_at.file) != 0
                     : link->seq > 1 && strcmp(at->file, OLDEST) == 0;
    bool repair = at->line == 2 && event && strcmp(event, "repair") == 0;
    if (first && !repair && !json_is_true(json_object_get(j, "begins")))
        complain(v, at, link->seq,
                 "record %" PRIu64 " is not where its file began: others were before it",
                 link->seq);
}

/* Whether it repairs the previous line. That may have lost only its end: then it looked like a
 * record, whatever its number, and the repair follows the record before it. */
static bool repairs(struct verify *v, const json_t *j, const struct audit_mark *link)
{
    const char *event = json_string_value(json_object_get(j, "event"));
    const char *hash = json_string_value(json_object_get(j, "sha256"));
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(j, "bytes"));
    struct audit_check *c = v->check;
    if (!event || strcmp(event, "repair") != 0 || !hash || strlen(hash) != DIGEST_HEX_SIZE - 1)
        return false;
    if (v->odd && bytes == v->odd_bytes && same(hash, v->odd_hash)) {
        v->odd = false;
        c->repaired++;
    } else if (!v->odd && c->last.seq && same(hash, c->last.hash) && follows(link, &v->before)) {
        c->last = v->before;
        c->first = c->last.seq ? c->first : 0;
        c->records--;
        c->repaired++;
    } else {
        return false;
    }
    return true;
}

static void take_record(struct verify *v, const struct audit_mark *link, const char *hash,
                        const struct place *at)
{
    struct audit_check *c = v->check;
    compare_known(v);
    if (c->first == 0)
        begin(v, link, at);
    else if (link->seq <= c->last.seq) {
        complain(v, at, link->seq,
                 "record %" PRIu64 " stands after record %" PRIu64 ": moved or inserted", link->seq,
                 c->last.seq);
        return;
    } else if (link->seq > c->last.seq + 1)
        complain_missing(v, at, c->last.seq + 1, link->seq - 1, " before this one");
    else if (!same(link->hash, c->last.hash))
        complain(v, &v->last_at, c->last.seq,
                 "record %" PRIu64 " was changed, or record %" PRIu64 ", which names another hash",
                 c->last.seq, link->seq);
    v->before = c->last;
    c->last.seq = link->seq;
    memcpy(c->last.hash, hash, DIGEST_HEX_SIZE);
    v->last_at = *at;
    c->records++;
}

static void take_line(struct verify *v, const struct audit_reader *r, const struct place *at)
{
    struct audit_mark link;
    AUTO_JSON json_t *j = NULL;
    bool fits = audit_reader_fits(r);
    bool linked = fits && audit_link_parse(r->text, (size_t)r->n, &link);
    if (linked)
        j = json_loadb(r->text, (size_t)r->n, JSON_REJECT_DUPLICATES, NULL);
    if (j && r->whole) {
        (void)repairs(v, j, &link);
        complain_odd(v);
        check_beginning(v, j, &link, at);
        take_record(v, &link, r->hash, at);
        return;
    }
    complain_odd(v);
    if (r->whole && v->check->first == 0 && !linked) {
        v->check->unchained++; /* from before the chain */
        return;
    }
    v->odd = true;
    v->odd_whole = r->whole;
    v->odd_at = *at;
    v->odd_bytes = r->n;
    memcpy(v->odd_hash, r->hash, sizeof(r->hash));
}

/* --- all of them ----------------------------------------------------------------------------- */

struct part {
    int fd;
    off_t size;
    char file[16];
};

struct parts {
    struct part v[LOG_FILES]; /* newest first */
};

static void parts_close(struct parts *p)
{
    for (int i = 0; i < LOG_FILES; i++)
        close_fd(&p->v[i].fd);
}

static int open_part(int home_fd, int number, struct part *p)
{
    struct stat st;
    if (number)
        (void)snprintf(p->file, sizeof(p->file), AUDIT_NAME ".%d", number);
    else
        (void)snprintf(p->file, sizeof(p->file), AUDIT_NAME);
    close_fd(&p->fd);
    p->size = 0;
    p->fd = openat(home_fd, p->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (p->fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (number == 0)
        while (flock(p->fd, LOCK_SH) < 0)
            if (errno != EINTR)
                return -errno;
    if (fstat(p->fd, &st) < 0)
        return -errno;
    p->size = st.st_size;
    return S_ISREG(st.st_mode) ? 0 : -EINVAL;
}

/* -EAGAIN: it was rotated while we waited for its lock. */
static int is_still(int home_fd, const struct part *p)
{
    struct stat mine, now;
    int there = fstatat(home_fd, p->file, &now, AT_SYMLINK_NOFOLLOW);
    if (p->fd < 0)
        return there < 0 ? 0 : -EAGAIN;
    if (there < 0 || fstat(p->fd, &mine) < 0)
        return -EAGAIN;
    return mine.st_ino == now.st_ino && mine.st_dev == now.st_dev ? 0 : -EAGAIN;
}

/* Opens files and head at one moment: nothing writes while the lock is held. */
static int open_all(int home_fd, struct parts *p, struct verify *v, struct err *e)
{
    int r = -EAGAIN;
    for (int i = 0; r == -EAGAIN && i < OPEN_TRIES; i++) {
        r = open_part(home_fd, 0, &p->v[0]);
        if (r == 0)
            r = is_still(home_fd, &p->v[0]);
    }
    const char *file = AUDIT_NAME;
    for (int i = 1; r == 0 && i < LOG_FILES; i++) {
        r = open_part(home_fd, i, &p->v[i]);
        file = p->v[i].file;
    }
    v->head_state = audit_head_load(home_fd, &v->head);
    if (p->v[0].fd >= 0)
        (void)flock(p->v[0].fd, LOCK_UN);
    return r < 0 ? err_sys(e, -r, "cannot read %s", file) : 0;
}

static int read_part(struct verify *v, const struct part *p, struct err *e)
{
    CLEANUP(audit_reader_close) struct audit_reader r = {0};
    struct place at;
    memcpy(at.file, p->file, sizeof(at.file));
    bool rotated = strcmp(p->file, AUDIT_NAME) != 0;
    if (rotated && p->size + LOG_LINE_MAX < LOG_FILE_MAX)
        complain(v, NULL, 0, "%s was rotated before it was full: it was cut or moved", p->file);
    int k = audit_reader_open(&r, p->fd, 0, p->size);
    while (k == 0 && (k = audit_reader_next(&r)) == 1) {
        at.line = r.nth;
        take_line(v, &r, &at);
        k = 0;
    }
    return k < 0 ? err_sys(e, -k, "cannot read %s", p->file) : 0;
}

/* Checks what only the end shows. */
static void finish(struct verify *v)
{
    struct audit_check *c = v->check;
    const struct audit_mark *x = c->expect;
    compare_known(v);
    if (v->odd && !v->odd_whole) { /* a writer was killed, and nothing was written since */
        v->odd = false;
        c->cut = true;
    }
    complain_odd(v);
    if (v->head_state == -EINVAL)
        complain(v, NULL, 0, AUDIT_HEAD_NAME " is damaged");
    else if (v->head_state < 0 && c->last.seq)
        complain(v, NULL, 0,
                 AUDIT_HEAD_NAME " is missing: nothing tells whether newer records are, too");
    else if (v->head_state == 0 && v->head.mark.seq > c->last.seq)
        complain_missing(v, NULL, c->last.seq + 1, v->head.mark.seq, " at the end");
    if (x && x->seq > c->last.seq)
        complain_missing(v, NULL, c->last.seq + 1, x->seq, " at the end: they are expected");
    else if (x && !v->saw_expect)
        complain(v, NULL, x->seq,
                 "record %" PRIu64 " is expected and not there: the oldest is %" PRIu64, x->seq,
                 c->first);
}

int audit_verify(int home_fd, struct audit_check *c, struct err *e)
{
    CLEANUP(parts_close) struct parts parts;
    struct verify v = {.check = c};
    for (int i = 0; i < LOG_FILES; i++)
        parts.v[i] = (struct part){.fd = -1};
    int r = open_all(home_fd, &parts, &v, e);
    for (int i = LOG_FILES - 1; r == 0 && i >= 0; i--)
        if (parts.v[i].fd >= 0)
            r = read_part(&v, &parts.v[i], e);
    if (r == 0)
        finish(&v);
    return r;
}
