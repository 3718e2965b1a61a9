/* A tree that is brought up to date while the guest boots: a workspace, from its bucket. What the
 * guest asks for meanwhile waits, and is then served from its beginning, so it never sees what was
 * there before. The root's attributes are an exception: they are all that mounting and entering it
 * take.
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
