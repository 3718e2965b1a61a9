/* File trees of a pod's containers: the monitor passes them on to the share that holds them. */
#include "monitor/internal.h"
#include "util/cleanup.h"
#include "util/sock.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

/* #syscalls:monitor close */
/* #syscalls:monitor_pod sendmsg */

/* -1: this sandbox is not a pod. */
static int pod_share(const struct monitor *m)
{
    size_t share = 0;
    for (size_t i = 0; i < m->spec->n_mounts; i++) {
        const struct spec_mount *x = &m->spec->mounts[i];
        if (x->pod && share < m->p->n_shares)
            return m->p->share_fd[share];
        share += mount_is_share(x);
    }
    return -1;
}

bool monitor_has_pod(const struct monitor *m)
{
    return pod_share(m) >= 0;
}

void monitor_tree(struct monitor *m, const struct proto_frame *f, int *fd, struct buf *out)
{
    char name[NAME_MAX + 1];
    int share = pod_share(m);
    proto_find_text(f, F_NAME, name, sizeof(name));
    if (share < 0 || !*name) {
        net_control_refuse(out, EINVAL,
                           share < 0 ? "this sandbox is not a pod" : "a tree must have a name");
        return;
    }
    ssize_t n = sock_send_with_fd(share, name, strlen(name), *fd);
    close_fd(fd);
    if (n == (ssize_t)strlen(name))
        (void)proto_put(out, PROTO_OK, NULL, 0);
    else
        net_control_refuse(out, n < 0 ? (int)-n : EIO, "the share server does not accept it");
}
