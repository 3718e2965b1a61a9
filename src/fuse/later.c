/* Files whose content is still elsewhere (util/later.h): they are looked up, listed, renamed and removed
 * like any other, and are filled before they are first opened. A request that needs one waits, the
 * others go on; it is then served again from its beginning, so nothing may be done before
 * later_bring() was asked.
 */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/later.h"
#include "util/sock.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <time.h>

/* #syscalls:fs getxattr close */
/* #syscalls:fs_later sendmsg sendto recvfrom clock_gettime */

enum { ASKED_MAX = 3 };      /* who fetches may have died of it */
#define TELL_NS 200000000ULL /* between two words about changes: less than anybody waits for more */

static struct wanted *find(struct fuse_server *s, const struct inode *i)
{
    for (size_t k = 0; k < WANTED_MAX; k++)
        if (s->wanted[k].number && s->wanted[k].dev == i->dev && s->wanted[k].ino == i->ino)
            return &s->wanted[k];
    return NULL;
}

/* A free one, or one whose outcome nobody has asked for. */
static struct wanted *find_free(struct fuse_server *s)
{
    for (size_t k = 0; k < WANTED_MAX; k++)
        if (!s->wanted[k].number || !s->wanted[k].waiting)
            return &s->wanted[k];
    return NULL;
}

static int ask(struct fuse_server *s, struct wanted *w, const char *path, bool empty)
{
    AUTO_CLOSE int fd = later_open(path);
    if (fd < 0)
        return fd;
    if (w->asked++ == ASKED_MAX)
        return -EIO;
    s->later_number += s->later_number == UINT32_MAX ? 2 : 1;
    w->number = s->later_number;
    struct later_request q = {.number = w->number, .empty = empty};
    if (sock_send_with_fd(s->later_sock, &q, sizeof(q), fd) != (ssize_t)sizeof(q))
        return -EIO;
    w->waiting = true;
    return -EINPROGRESS;
}

int later_bring(struct fuse_server *s, const struct inode *i, const char *path, bool empty)
{
    char id[LATER_SIZE];
    if (!s->opt.later)
        return 0;
    struct wanted *w = find(s, i);
    if (w && w->waiting)
        return -EINPROGRESS;
    if (getxattr(path, LATER_XATTR, id, sizeof(id)) < 0) {
        if (w)
            *w = (struct wanted){0};
        return 0;
    }
    int r = w && w->error ? w->error : s->later_sock < 0 ? -EIO : 0;
    if (r == 0 && !w && !(w = find_free(s)))
        return -EINPROGRESS; /* the next answer makes room */
    if (r == 0) {
        if (w->dev != i->dev || w->ino != i->ino)
            *w = (struct wanted){.dev = i->dev, .ino = i->ino};
        r = ask(s, w, path, empty);
    }
    if (r != -EINPROGRESS && w)
        *w = (struct wanted){0};
    return r;
}

void fuse_later_set(struct fuse_server *s, int sock)
{
    close_fd(&s->later_sock);
    s->later_sock = sock;
}

void fuse_tell_changes(struct fuse_server *s, int sock)
{
    close_fd(&s->change_sock);
    s->change_sock = sock;
}

void tell_change(struct fuse_server *s)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) < 0)
        return;
    uint64_t now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    if (now - s->told_ns < TELL_NS)
        return;
    s->told_ns = now;
    (void)send(s->change_sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: it knows */
}

static void take(struct fuse_server *s, const struct later_answer *a)
{
    for (size_t k = 0; k < WANTED_MAX; k++) {
        struct wanted *w = &s->wanted[k];
        if (!w->waiting || (a->number && w->number != a->number))
            continue;
        w->waiting = false;
        w->error = a->error < 0 && a->error > -4096 ? a->error : 0;
    }
}

bool fuse_later_event(struct fuse_server *s)
{
    struct later_answer a;
    ssize_t n;
    while ((n = recv(s->later_sock, &a, sizeof(a), MSG_DONTWAIT)) == (ssize_t)sizeof(a))
        take(s, &a);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    take(s, &(struct later_answer){.error = -EIO});
    close_fd(&s->later_sock);
    return false;
}
