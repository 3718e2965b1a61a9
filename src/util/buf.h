/* A growable byte buffer with a hard upper limit.
 *
 * Bytes are appended at the end and consumed from the front. `limit` bounds what a peer can make us
 * buffer; an append past it fails with -ENOSPC and leaves the buffer as it was.
 */
#pragma once

#include "util/cleanup.h"

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t cap;
    size_t head; /* first unread byte */
    size_t tail; /* first free byte */
    size_t limit;
};

void buf_init(struct buf *b, size_t limit);
void buf_free(struct buf *b); /* may be called twice, or on zeros */
#define AUTO_BUF CLEANUP(buf_free)
/* Forgets the content; keeps the memory. */
void buf_reset(struct buf *b);

static inline size_t buf_len(const struct buf *b)
{
    return b->tail - b->head;
}
static inline uint8_t *buf_head(const struct buf *b)
{
    return b->head ? b->data + b->head : b->data; /* an empty one has no memory to point into */
}

/* Makes room for n more bytes and returns where they go, or NULL (limit or memory). */
uint8_t *buf_reserve(struct buf *b, size_t n);
/* Declares n bytes, written to what buf_reserve returned, as content. */
void buf_commit(struct buf *b, size_t n);
int buf_append(struct buf *b, const void *p, size_t n);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The content as text, valid until the buffer is changed; NULL: no room for its terminator. */
const char *buf_text(struct buf *b);
/* Drops n bytes from the front; n may not exceed buf_len. */
void buf_consume(struct buf *b, size_t n);
/* Frees the memory if the buffer is empty. */
void buf_shrink(struct buf *b);
