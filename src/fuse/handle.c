/* The guest's open files and directories. Numbers are never reused, so that one that was closed
 * leads nowhere. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* #syscalls:fs close */

enum { FIRST = 64 };

static int free_place(struct fuse_server *s, unsigned *ret)
{
    for (unsigned i = 0; s->handles_used < s->n_handles && i < s->n_handles; i++)
        if (!s->handle[i]) {
            *ret = i;
            return 0;
        }
    if (s->handles_used >= s->opt.files_max)
        return -EMFILE;
    unsigned n = s->n_handles ? s->n_handles * 2 : FIRST;
    struct handle **more = reallocarray(s->handle, n, sizeof(struct handle *));
    if (!more)
        return -ENOMEM;
    s->handle = more;
    for (unsigned i = s->n_handles; i < n; i++)
        more[i] = NULL;
    *ret = s->n_handles;
    s->n_handles = n;
    return 0;
}

int handle_new(struct fuse_server *s, struct inode *i, int fd, bool dir, struct handle **ret)
{
    AUTO_CLOSE int owned = fd;
    unsigned at = 0;
    int r = s->handles_used >= s->opt.files_max ? -EMFILE : free_place(s, &at);
    if (r < 0)
        return r;
    struct handle *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->id = (uint64_t)++s->handle_serial << 32 | at;
    h->fd = steal_fd(&owned);
    h->dir = dir;
    h->inode = i;
    inode_ref(i);
    i->opens++;
    s->handle[at] = h;
    s->handles_used++;
    *ret = h;
    return 0;
}

struct handle *handle_get(struct fuse_server *s, uint64_t id, bool dir)
{
    uint32_t at = (uint32_t)id;
    struct handle *h = at < s->n_handles ? s->handle[at] : NULL;
    return h && h->id == id && h->dir == dir ? h : NULL;
}

static void handle_release(struct handle *h)
{
    close_fd(&h->fd);
    free(h->buf);
    free(h);
}

void handle_free(struct fuse_server *s, struct handle *h)
{
    struct inode *i = h->inode;
    assert(s->handle[(uint32_t)h->id] == h && s->handles_used > 0 && i->opens > 0);
    s->handle[(uint32_t)h->id] = NULL;
    s->handles_used--;
    handle_release(h);
    i->opens--;
    inode_unref(s, i);
}

/* The inodes are freed with their own table. */
void handle_table_free(struct fuse_server *s)
{
    for (unsigned i = 0; i < s->n_handles; i++)
        if (s->handle[i])
            handle_release(s->handle[i]);
    free(s->handle);
    s->handle = NULL;
    s->n_handles = s->handles_used = 0;
}
