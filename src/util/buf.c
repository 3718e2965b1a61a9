#include "util/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t limit)
{
    *b = (struct buf){.limit = limit};
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.limit = b->limit};
}

void buf_reset(struct buf *b)
{
    b->head = b->tail = 0;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    size_t len = buf_len(b);
    if (n > b->limit || len > b->limit - n)
        return NULL;
    if (b->data && b->cap - b->tail >= n)
        return b->data + b->tail;
    if (b->data && b->cap - len >= n && b->head >= len) { /* cheap to slide: no overlap */
        memcpy(b->data, b->data + b->head, len);
    } else {
        size_t cap = b->cap ? b->cap : 256;
        while (cap < len + n)
            cap *= 2;
        uint8_t *data = malloc(cap);
        if (!data)
            return NULL;
        if (b->data)
            memcpy(data, b->data + b->head, len);
        free(b->data);
        b->data = data;
        b->cap = cap;
    }
    b->head = 0;
    b->tail = len;
    return b->data + b->tail;
}

void buf_commit(struct buf *b, size_t n)
{
    assert(n <= b->cap - b->tail);
    b->tail += n;
}

int buf_append(struct buf *b, const void *p, size_t n)
{
    if (n == 0)
        return 0;
    uint8_t *to = buf_reserve(b, n);
    if (!to)
        return -ENOSPC;
    memcpy(to, p, n);
    b->tail += n;
    return 0;
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -EINVAL;
    uint8_t *to = buf_reserve(b, (size_t)n + 1);
    if (!to)
        return -ENOSPC;
    va_start(ap, fmt);
    (void)vsnprintf((char *)to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->tail += (size_t)n;
    return 0;
}

const char *buf_text(struct buf *b)
{
    uint8_t *end = buf_reserve(b, 1);
    if (end)
        *end = '\0';
    return end ? (const char *)buf_head(b) : NULL;
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= buf_len(b));
    b->head += n;
    if (b->head == b->tail)
        b->head = b->tail = 0;
}

void buf_shrink(struct buf *b)
{
    if (buf_len(b) == 0)
        buf_free(b);
}
