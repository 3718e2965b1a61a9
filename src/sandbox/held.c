#include "sandbox/held.h"

#include "sandbox/monitor.h"

#include <assert.h>
#include <errno.h>

int held_take(const struct store *s, const char *name, struct held *h, struct err *e)
{
    int r = name_lock_take(s, name, &h->lock, e);
    if (r < 0)
        return r;
    r = sandbox_open(s, name, &h->sb, e);
    h->lock.forget = r == -ENOENT;
    return r;
}

int held_clear_leftover(struct held *h, struct err *e)
{
    monitor_kill_leftover(h->lock.store, h->lock.name);
    return held_remove(h, e);
}

void held_drop(struct held *h)
{
    sandbox_close(&h->sb);
    name_lock_drop(&h->lock);
}

int held_remove(struct held *h, struct err *e)
{
    assert(h->lock.fd >= 0);
    sandbox_close(&h->sb);
    int r = sandbox_dir_remove(h->lock.store, h->lock.name, e);
    h->lock.forget = r == 0;
    return r;
}
