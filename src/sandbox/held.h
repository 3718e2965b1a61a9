/* A sandbox that a verb works on: opened, with its name locked. */
#pragma once

#include "store/store.h"

struct held {
    struct name_lock lock;
    struct sandbox sb;
};
#define AUTO_HELD CLEANUP(held_drop)
#define HELD_NONE                     \
    {                                 \
        .lock.fd = -1, .sb.dirfd = -1 \
    }

/* Waits for the lock. On failure, only the lock may be held: a sandbox that cannot be read can
 * still be removed, and so can the remains of an interrupted creation or removal. */
int held_take(const struct store *s, const char *name, struct held *h, struct err *e);
/* Removes what is left of a sandbox that does not exist or cannot be read, its monitor first. */
int held_clear_leftover(struct held *h, struct err *e);
void held_drop(struct held *h); /* may be called twice */

/* Removes the sandbox's directory, and closes the sandbox. Its monitor has ended. */
int held_remove(struct held *h, struct err *e);
