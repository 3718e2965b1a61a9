#include "image/erofs/disk.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "image/erofs/erofs.h"
#include "util/cleanup.h"

/* Reads one layer and merges it over the base. */
static int add_layer(struct tree *base, int fd, uint32_t blob, struct err *e)
{
    struct tree layer;
    if (tree_init(&layer, 0, base->max_bytes) < 0)
        return err_oom(e);
    int r = erofs_load_tree(fd, blob, &layer, e);
    if (r == 0)
        r = tree_merge(base, &layer, e);
    tree_free(&layer);
    return r < 0 ? err_wrap(e, r, "layer %u", blob + 1) : 0;
}

static int add_layers(struct tree *t, struct erofs_blob *blobs, const int *fds, size_t n,
                      struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct stat st;
        if (fstat(fds[i], &st) < 0)
            return err_sys(e, errno, "cannot read layer %zu", i + 1);
        blobs[i].fd = fds[i];
        blobs[i].blocks = (uint32_t)((uint64_t)st.st_size >> EROFS_BLOCK_BITS);
        r = add_layer(t, fds[i], (uint32_t)i, e); /* also checks the size */
    }
    return r;
}

int disk_write_metadata(const int *layer_fds, size_t n, int out_fd, int spool_dirfd,
                        uint64_t max_bytes, struct err *e)
{
    struct tree t;
    struct erofs_writer w;
    AUTO_FREE struct erofs_blob *blobs = calloc(n + 1, sizeof(*blobs));
    if (!blobs || n > UINT32_MAX || tree_init(&t, 0, max_bytes) < 0)
        return err_oom(e);
    int r = add_layers(&t, blobs, layer_fds, n, e);
    erofs_begin(&w, out_fd, spool_dirfd);
    erofs_set_blobs(&w, blobs, (uint32_t)n);
    if (r == 0)
        r = erofs_finish(&w, &t, e);
    erofs_abort(&w);
    tree_free(&t);
    return r;
}
