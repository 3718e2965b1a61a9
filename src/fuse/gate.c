/* A tree that is brought up to date while the guest boots: a workspace, from its bucket. The
 * guest's requests wait meanwhile, and are then served from their beginning, so it never sees the
 * previous state. The root's attributes are an exception: they are all that is needed to mount and
 * enter it.
 */
#include "fuse/impl.h"

#include <errno.h>

int gate_pass(const struct fuse_server *s)
{
    return s->gate;
}

void fuse_gate_shut(struct fuse_server *s)
{
    s->gate = -EINPROGRESS;
}

void fuse_gate_open(struct fuse_server *s, bool failed)
{
    s->gate = failed ? -EIO : 0;
}
