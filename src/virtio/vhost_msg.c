#include "virtio/vhost_msg.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/cleanup.h"

/* #syscalls:monitor,fs,net recvmsg sendto close */

void vhost_conn_drop_fds(struct vhost_conn *c)
{
    for (unsigned i = 0; i < c->n_fds; i++)
        close_fd(&c->fds[i]);
    c->n_fds = 0;
}

void vhost_conn_next(struct vhost_conn *c)
{
    vhost_conn_drop_fds(c);
    c->have = 0;
}

const char *vhost_conn_reply(struct vhost_conn *c, uint32_t size)
{
    uint8_t out[sizeof(struct header) + PAYLOAD_MAX];
    c->msg.h.flags = F_VERSION | F_REPLY;
    c->msg.h.size = size;
    memcpy(out, &c->msg.h, sizeof(c->msg.h));
    memcpy(out + sizeof(c->msg.h), c->msg.p.bytes, size);
    size_t len = sizeof(c->msg.h) + size;
    if (send(c->fd, out, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len)
        return "vhost-user: the front end does not read its replies";
    return NULL;
}

static const char *check_header(const struct vhost_conn *c)
{
    const struct header *h = &c->msg.h;
    bool reply = h->flags & F_REPLY;
    if ((h->flags & F_VERSION_MASK) != F_VERSION || reply != c->front)
        return "vhost-user: bad header flags";
    if (h->size > PAYLOAD_MAX)
        return "vhost-user: message is too long";
    return NULL;
}

/* Keeps the descriptors that came with a piece of a message; false if there are too many. */
static bool keep_fds(struct vhost_conn *c, struct msghdr *m)
{
    bool ok = !(m->msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(fd), sizeof(fd));
            if (c->n_fds < FDS_MAX) {
                c->fds[c->n_fds++] = fd;
            } else {
                (void)close(fd);
                ok = false;
            }
        }
    }
    return ok;
}

int vhost_conn_read(struct vhost_conn *c, const char **ret_why)
{
    const size_t header = sizeof(c->msg.h);
    for (;;) {
        bool in_header = c->have < header;
        size_t want = in_header ? header - c->have : header + c->msg.h.size - c->have;
        if (want == 0)
            return 1;
        uint8_t *to =
            in_header ? (uint8_t *)&c->msg.h + c->have : c->msg.p.bytes + (c->have - header);
        union {
            struct cmsghdr align;
            uint8_t space[CMSG_SPACE(FDS_MAX * sizeof(int))];
        } control;
        struct iovec iov = {.iov_base = to, .iov_len = want};
        struct msghdr m = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        const char *why = NULL;
        if (n > 0 && !keep_fds(c, &m))
            why = "vhost-user: message with too many descriptors";
        else if (n <= 0)
            why = c->have == 0 ? "vhost-user: the front end is gone"
                               : "vhost-user: the front end went away within a message";
        c->have += n > 0 ? (size_t)n : 0;
        if (!why && in_header && c->have == header)
            why = check_header(c);
        if (why) {
            *ret_why = why;
            return -1;
        }
    }
}
