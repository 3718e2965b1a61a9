#include "monitor/exec_log.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* #syscalls:monitor write */

enum {
    FLUSH_AT = 256 * 1024, /* bytes for one write() */
    AROUND_MAX = 160,      /* what a line contains besides the escaped bytes */
};
_Static_assert(FLUSH_AT + 2 * LOG_LINE_MAX <= LOG_PENDING_MAX, "a line fits when it must");

static const char *const source_names[] = {"stdout", "stderr", "output", "system"};

int exec_log_open(struct exec_log *l, int logs_dirfd, const char *name)
{
    *l = (struct exec_log){0};
    return log_writer_open(&l->w, logs_dirfd, name);
}

/* --- lines --- */

static void put_line(struct exec_log *l, enum log_source s, uint32_t id, const uint8_t *p, size_t n)
{
    uint8_t *start = l->w.broken ? NULL : buf_reserve(&l->w.pending, 6 * n + AROUND_MAX);
    if (!start)
        return; /* out of memory: lose this line rather than the log */
    uint8_t *to = log_put_text(start, "{\"t\":\"");
    to = log_put_text(log_put_time(&l->w, to), "Z\",\"s\":\"");
    to = log_put_text(log_put_text(to, source_names[s]), "\",\"d\":\"");
    uint8_t *text_end = log_escape(to, p, n);
    if (text_end)
        to = text_end;
    else
        to += EVP_EncodeBlock(to, p, (int)n);
    *to++ = '"';
    if (id)
        to = log_put_decimal(log_put_text(to, ",\"id\":"), id, 1);
    if (!text_end)
        to = log_put_text(to, ",\"e\":\"b64\"");
    to = log_put_text(to, "}\n");
    buf_commit(&l->w.pending, (size_t)(to - start));
    if (buf_len(&l->w.pending) >= FLUSH_AT)
        log_writer_flush(&l->w);
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

/* Logs what was held back together with as much of p as completes its character (or shows that it
 * is not one); returns how much of p that is. */
static size_t finish_carry(struct exec_log *l, struct log_carry *c, const uint8_t *p, size_t n)
{
    uint8_t whole[4];
    uint32_t cp;
    size_t took = 0;
    int r = 0;
    memcpy(whole, c->b, c->n);
    while (r == 0 && took < n) {
        assert(c->n + took < sizeof(whole));
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
    if (l->w.broken || n == 0)
        return;
    struct log_carry *c = find_carry(l, s, id);
    if (c) {
        size_t took = finish_carry(l, c, p, n);
        p += took;
        n -= took;
    }
    while (n && !l->w.broken) {
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
    if (n < 0 || l->w.broken)
        return;
    size_t len = MIN((size_t)n, sizeof(text) - 1);
    if ((size_t)n >= sizeof(text)) /* truncated: not inside a character */
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
    log_writer_flush(&l->w);
    buf_shrink(&l->w.pending);
}

void exec_log_last_line(const struct exec_log *l, const char *text)
{
    char line[256];
    int n =
        snprintf(line, sizeof(line), "{\"t\":\"%s000000000Z\",\"s\":\"system\",\"d\":\"%.160s\"}\n",
                 l->w.stamp[0] ? l->w.stamp : "1970-01-01T00:00:00.", text);
    if (n > 0 && l->w.fd >= 0)
        (void)!write(l->w.fd, line, MIN((size_t)n, sizeof(line) - 1));
}

void exec_log_close(struct exec_log *l)
{
    exec_log_flush(l);
    log_writer_close(&l->w);
}
