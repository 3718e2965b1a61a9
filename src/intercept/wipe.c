#include "intercept/wipe.h"

#include <errno.h>
#include <string.h>

void buf_wipe(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->cap);
    buf_free(b);
}

int buf_reserve_wiping(struct buf *b, size_t n)
{
    struct buf larger = {.limit = b->limit};
    if (b->data && b->cap - b->tail >= n)
        return 0;
    if (!buf_reserve(&larger, buf_len(b) + n))
        return -ENOSPC;
    (void)buf_append(&larger, buf_head(b), buf_len(b));
    buf_wipe(b);
    *b = larger;
    return 0;
}
