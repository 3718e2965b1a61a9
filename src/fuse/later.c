/* Files whose content is still elsewhere (util/later.h): they are looked up, listed, renamed and
 * removed like any other, and are filled before they are first opened. A request that needs one
 * waits, while others proceed; it is then served again from its beginning, so nothing may be done
 * before calling later_bring().
 */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/later.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <time.h>

/* #syscalls:fs getxattr fgetxattr close fstat newfstatat */
/* #syscalls:fs_later sendmsg sendto recvfrom poll clock_gettime */

enum {
    ASKED_MAX = 3,  /* the request itself may be what kills the fetching process */
    AHEAD_RUNS = 4, /* runs asked for in advance, over all files */
};
#define TELL_NS 200000000ULL /* between two reports of changes; shorter than any wait for more */

static struct wanted *find(struct fuse_server *s, const struct stat *i, uint32_t part)
{
    for (size_t k = 0; k < WANTED_MAX; k++)
        if (s->wanted[k].number && s->wanted[k].dev == i->st_dev && s->wanted[k].ino == i->st_ino &&
            s->wanted[k].part == part)
            return &s->wanted[k];
    return NULL;
}

static bool has_part(const char *path, uint32_t part)
{
    uint8_t parts[LATER_PARTS_SIZE];
    if (part)
        later_parts(path, parts);
    return part && later_has_part(parts, part);
}

/* A free one, or one whose outcome no request has asked for. */
static struct wanted *find_free(struct fuse_server *s)
{
    for (size_t k = 0; k < WANTED_MAX; k++)
        if (!s->wanted[k].number || !s->wanted[k].waiting)
            return &s->wanted[k];
    return NULL;
}

static int ask(struct fuse_server *s, struct wanted *w, const char *path, bool dir,
               struct later_request q)
{
    AUTO_CLOSE int fd = dir ? later_open_dir(path) : later_open(path);
    if (fd < 0)
        return fd;
    if (w->asked++ == ASKED_MAX)
        return -EIO;
    s->later_number += s->later_number == UINT32_MAX ? 2 : 1;
    w->number = s->later_number;
    q.number = w->number;
    if (sock_send_with_fd(s->later_sock, &q, sizeof(q), fd) != (ssize_t)sizeof(q))
        return -EIO;
    w->waiting = true;
    return -EINPROGRESS;
}

static int bring(struct fuse_server *s, const struct stat *i, const char *path,
                 struct later_request q)
{
    char id[LATER_SIZE];
    const uint32_t part = q.part;
    struct wanted *w = find(s, i, part);
    if (w && w->waiting)
        return -EINPROGRESS;
    if (getxattr(path, LATER_XATTR, id, sizeof(id)) < 0 || has_part(path, part)) {
        if (w)
            *w = (struct wanted){0};
        return 0;
    }
    int r = w && w->error ? w->error : s->later_sock < 0 ? -EIO : 0;
    if (r == 0 && !w && !(w = find_free(s)))
        return -EINPROGRESS; /* the next answer makes room */
    if (r == 0) {
        if (w->dev != i->st_dev || w->ino != i->st_ino || w->part != part)
            *w = (struct wanted){.dev = i->st_dev, .ino = i->st_ino, .part = part};
        r = ask(s, w, path, S_ISDIR(i->st_mode), q);
    }
    if (r != -EINPROGRESS && w)
        *w = (struct wanted){0};
    return r;
}

/* `path` leads to the inode's own descriptor. Only new files are ever marked, so a content that is
 * here stays here. */
int later_bring(struct fuse_server *s, struct inode *i, const char *path, bool empty)
{
    const struct stat st = {.st_dev = i->dev, .st_ino = i->ino, .st_mode = i->type};
    if (!s->opt.later || i->here)
        return 0;
    int r = bring(s, &st, path, (struct later_request){.empty = empty});
    i->here = r == 0 && errno == ENODATA;
    return r;
}

bool later_in_parts(const struct fuse_server *s, const struct inode *i, const char *path)
{
    struct stat st;
    char id[LATER_SIZE];
    return s->opt.later && !i->here && later_know_boot() && stat(path, &st) == 0 &&
           st.st_size >= LATER_LARGE && (uint64_t)st.st_size <= LATER_PARTED_MAX &&
           getxattr(path, LATER_XATTR, id, sizeof(id)) >= 0;
}

bool later_is_whole(const struct fuse_server *s, struct handle *h)
{
    h->whole =
        h->whole || !s->opt.later || h->inode->here || !later_get(h->fd, (char[LATER_SIZE]){0});
    return h->whole;
}

/* How many parts up to this one are here without a gap, at most LATER_RUN_MAX. That is the length
 * of the next run; each run is one request to the server. */
static uint32_t read_through(const uint8_t parts[LATER_PARTS_SIZE], uint32_t part)
{
    uint32_t n = 0;
    while (n < LATER_RUN_MAX && later_has_part(parts, part - n))
        n++;
    return n;
}

/* Records that these parts were requested. Either they follow those requested before, or the reader
 * has moved elsewhere. */
static void note_asked(struct handle *h, uint32_t part, uint32_t to)
{
    if (part >= h->asked_from && part <= h->asked)
        return;
    if (part != h->asked + 1)
        h->asked_from = part;
    h->asked = to;
}

/* For a file that is read sequentially: requests the next parts before they are wanted, and more of
 * them the longer that goes on. */
static void look_ahead(struct fuse_server *s, struct handle *h, const struct stat *st,
                       const char *path, const uint8_t parts[LATER_PARTS_SIZE], uint32_t part)
{
    uint32_t through = read_through(parts, part), run = MAX(through, (uint32_t)LATER_RUN);
    uint32_t all = later_count((uint64_t)st->st_size), under_way = 0;
    uint32_t end = MIN(all, part + AHEAD_RUNS * through);
    for (size_t k = 0; k < WANTED_MAX; k++)
        under_way += s->wanted[k].waiting && s->wanted[k].ahead;
    note_asked(h, part, part);
    while (h->asked < end && under_way < AHEAD_RUNS) {
        uint32_t at = h->asked + 1, n = 0;
        while (n < run && at + n <= all && !later_has_part(parts, at + n))
            n++;
        const struct wanted *w = find(s, st, at);
        h->asked += MAX(n, 1U);
        if (n == 0 || (w && w->waiting))
            continue;
        int r = bring(s, st, path, (struct later_request){.part = at, .count = n});
        struct wanted *mine = r == -EINPROGRESS ? find(s, st, at) : NULL;
        if (!mine)
            break;
        mine->ahead = true;
        under_way++;
    }
}

int later_bring_part(struct fuse_server *s, struct handle *h, uint64_t off, uint64_t len)
{
    uint8_t parts[LATER_PARTS_SIZE];
    char path[PATH_REF_MAX];
    struct stat st;
    if (later_is_whole(s, h))
        return 0;
    if (stat_fd(s, h->fd, &st) < 0)
        return -errno;
    if (off >= (uint64_t)st.st_size) /* its part may have no number */
        return 0;
    later_parts_of(h->fd, parts);
    path_of(path, h->fd, NULL);
    uint64_t end = MIN(off + len, (uint64_t)st.st_size);
    uint32_t part = (uint32_t)(off / LATER_PART), last = later_count(end);
    int r = 0;
    while (r == 0 && ++part <= last) {
        bool through = part == 1 || later_has_part(parts, part - 1) || find(s, &st, part - 1);
        uint32_t run = MAX(read_through(parts, part - 1), (uint32_t)LATER_RUN);
        struct later_request q = {.part = part, .count = through ? run : 1};
        r = later_has_part(parts, part) ? 0 : bring(s, &st, path, q);
        if (r == -EINPROGRESS && through)
            note_asked(h, part, part + run - 1);
    }
    if (r == 0 && h->ahead_of != last) {
        h->ahead_of = last;
        look_ahead(s, h, &st, path, parts, last);
    }
    return r;
}

int later_list(struct fuse_server *s, struct inode *dir, const char *name)
{
    char path[PATH_REF_MAX];
    struct stat st;
    if (!s->opt.later || (!name && dir->here))
        return 0;
    int fd = inode_fd(s, dir);
    if (fd < 0)
        return fd;
    if (name && (stat_at(s, fd, name, &st) < 0 || !S_ISDIR(st.st_mode)))
        return 0;
    path_of(path, fd, name);
    if (!name)
        return later_bring(s, dir, path, false);
    return bring(s, &st, path, (struct later_request){0});
}

void fuse_later_set(struct fuse_server *s, int sock)
{
    close_fd(&s->later_sock);
    s->later_sock = sock;
}

void fuse_tell_changes(struct fuse_server *s, int sock, bool far)
{
    close_fd(&s->change_sock);
    s->change_sock = sock;
    s->fsync_far = far;
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
    /* Unread reports say the same, and other messages need the room (durable.c): a socket that is
     * not nearly empty is not ready. */
    struct pollfd p = {.fd = s->change_sock, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1)
        (void)send(s->change_sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void take(struct fuse_server *s, const struct later_answer *a)
{
    for (size_t k = 0; k < WANTED_MAX; k++) {
        struct wanted *w = &s->wanted[k];
        if (!w->waiting || (a->number && w->number != a->number))
            continue;
        w->waiting = false;
        if (w->ahead) { /* no request waits for it: a later one asks again */
            *w = (struct wanted){0};
            continue;
        }
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
