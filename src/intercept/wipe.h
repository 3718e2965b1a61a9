/* Buffers that leave no secrets behind. */
#pragma once

#include "util/buf.h"

/* Overwrites and frees the content; the limit stays. */
void buf_wipe(struct buf *b);
#define AUTO_WIPE CLEANUP(buf_wipe)
/* Makes room for n more bytes, without leaving copies behind. 0, -ENOSPC. */
int buf_reserve_wiping(struct buf *b, size_t n);
