/* Buffers that leave no secret behind. */
#pragma once

#include "util/buf.h"

/* Overwrites all of it, and frees it; the limit stays. */
void buf_wipe(struct buf *b);
#define AUTO_WIPE CLEANUP(buf_wipe)
/* Room for n more bytes, without leaving copies behind. 0, -ENOSPC. */
int buf_reserve_wiping(struct buf *b, size_t n);
