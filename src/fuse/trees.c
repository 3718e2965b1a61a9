/* Several trees in one server: those of a pod's containers, added while its guest runs. */
#include "fuse/impl.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct tree *find(struct fuse_server *s, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(s->trees); i++)
        if (s->trees[i].name && strcmp(s->trees[i].name, name) == 0)
            return &s->trees[i];
    return NULL;
}

const struct tree *tree_find(struct fuse_server *s, const char *name)
{
    if (!find(s, name) && s->opt.more)
        s->opt.more(s->opt.ctx);
    return find(s, name);
}

int fuse_tree_add(struct fuse_server *s, const char *name, int fd)
{
    AUTO_CLOSE int mine = fd;
    struct stat st;
    int r = check_name(name);
    if (r < 0 || find(s, name))
        return r < 0 ? r : -EEXIST;
    if (fstat(mine, &st) < 0 || !S_ISDIR(st.st_mode))
        return -ENOTDIR;
    for (size_t i = 0; i < ARRAY_LEN(s->trees); i++) {
        struct tree *t = &s->trees[i];
        if (t->name)
            continue;
        if (!(t->name = strdup(name)))
            return -ENOMEM;
        t->fd = steal_fd(&mine);
        return 0;
    }
    return -ENOSPC;
}

static void drop(struct tree *t)
{
    close_fd(&t->fd);
    free(t->name);
    *t = (struct tree){.fd = -1};
}

int fuse_tree_remove(struct fuse_server *s, const char *name)
{
    struct tree *t = find(s, name);
    if (!t)
        return -ENOENT;
    inode_leave_tree(s, 1ULL << (t - s->trees));
    identity_forget(s);
    drop(t);
    return 0;
}

void trees_free(struct fuse_server *s)
{
    for (size_t i = 0; i < ARRAY_LEN(s->trees); i++)
        if (s->trees[i].name)
            drop(&s->trees[i]);
}
