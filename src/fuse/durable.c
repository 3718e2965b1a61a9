/* fsync that means "in the bucket": once the file is on disk, the process that syncs the workspace
 * is asked for a sync, and the request waits for the outcome while others proceed. Then it is
 * served again from its beginning.
 *
 * There is one sync at a time. Requests that arrive meanwhile wait together for the next one, which
 * begins after they have arrived, so a guest that calls fsync all the time gets one sync after
 * another, and no more than that.
 */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/later.h"

#include <errno.h>
#include <sys/socket.h>

/* #syscalls:fs_later sendto recvfrom */

static struct durable *find(struct fuse_server *s, uint64_t unique)
{
    for (size_t i = 0; i < DURABLE_MAX; i++)
        if (s->durable[i].sync && s->durable[i].unique == unique)
            return &s->durable[i];
    return NULL;
}

static struct durable *enter(struct fuse_server *s, uint64_t unique)
{
    for (size_t i = 0; i < DURABLE_MAX; i++)
        if (!s->durable[i].sync) {
            s->durable[i] = (struct durable){unique, s->sync_asked + 1};
            return &s->durable[i];
        }
    return NULL;
}

static int ask(struct fuse_server *s)
{
    const uint32_t next = s->sync_asked + 1;
    if (send(s->change_sock, &next, sizeof(next), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(next))
        return -EIO;
    s->sync_asked = next;
    return 0;
}

bool durable_waits(struct fuse_server *s, uint64_t unique)
{
    return s->fsync_far && find(s, unique);
}

int durable_wait(struct fuse_server *s, uint64_t unique)
{
    if (!s->fsync_far)
        return 0;
    struct durable *d = find(s, unique);
    int r = s->change_sock < 0 ? -EIO : 0;
    if (r == 0 && !d && !(d = enter(s, unique)))
        return -EINPROGRESS; /* the next answer makes room */
    if (r == 0 && d->sync > s->sync_done) {
        r = s->sync_asked == s->sync_done ? ask(s) : 0;
        if (r == 0)
            return -EINPROGRESS;
    } else if (r == 0) {
        r = s->sync_error;
    }
    if (d)
        *d = (struct durable){0};
    return r;
}

bool fuse_durable_event(struct fuse_server *s)
{
    struct later_answer a;
    ssize_t n;
    while ((n = recv(s->change_sock, &a, sizeof(a), MSG_DONTWAIT)) == (ssize_t)sizeof(a))
        if (a.number == s->sync_asked) {
            s->sync_done = a.number;
            s->sync_error = a.error ? -EIO : 0;
        }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    close_fd(&s->change_sock);
    return false;
}
