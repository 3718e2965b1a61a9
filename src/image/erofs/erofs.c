#include "image/erofs/erofs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "util/cleanup.h"

/* An unlinked file beside the image, so that tails compete for disk space, not for memory. */
static int open_spool(int dirfd)
{
    int fd = -1;
    if (dirfd >= 0)
        fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && dirfd >= 0) { /* no O_TMPFILE there */
        static _Atomic unsigned counter;
        char name[64];
        (void)snprintf(name, sizeof(name), "spool.%d.%u", (int)getpid(), counter++);
        fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0)
            (void)unlinkat(dirfd, name, 0);
    }
    if (fd < 0 && dirfd < 0)
        fd = memfd_create("spool", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void erofs_begin(struct erofs_writer *w, int out_fd, int spool_dirfd)
{
    *w = (struct erofs_writer){.fd = out_fd,
                               .spool_dirfd = spool_dirfd,
                               .spool_fd = -1,
                               .next_block = 1,
                               .inline_max = EROFS_BLOCK_SIZE};
    erofs_out_init(&w->out, out_fd);
    hasher_init(&w->hash);
}

void erofs_set_layer(struct erofs_writer *w, uint32_t inline_max)
{
    w->inline_max = inline_max;
    w->marks = true;
}

int erofs_open_spool(struct erofs_writer *w)
{
    if (w->spool_fd >= 0)
        return 0;
    int fd = open_spool(w->spool_dirfd);
    if (fd < 0)
        return fd;
    w->spool_fd = fd;
    erofs_out_init(&w->spool, fd);
    return 0;
}

/* Keeps a tail until its inode is written. */
static int spool_tail(struct erofs_writer *w, struct tree_inode *ino, size_t n)
{
    int r = erofs_open_spool(w);
    if (r < 0)
        return r;
    ino->data.tail = w->spool_len;
    w->spool_len += n;
    return erofs_out_write(&w->spool, ino->data.tail, w->tail, n);
}

void erofs_abort(struct erofs_writer *w)
{
    erofs_out_free(&w->out);
    erofs_out_free(&w->spool);
    close_fd(&w->spool_fd);
    w->file = NULL;
}

void erofs_set_blobs(struct erofs_writer *w, const struct erofs_blob *blobs, uint32_t n)
{
    w->blobs = blobs;
    w->nblobs = n;
}

static uint64_t full_bytes(const struct tree_inode *ino)
{
    return ino->size & ~(uint64_t)(EROFS_BLOCK_SIZE - 1);
}

int erofs_file_begin(struct erofs_writer *w, struct tree_inode *ino, struct err *e)
{
    assert(!w->file && S_ISREG(ino->mode));
    uint64_t tail = ino->size - full_bytes(ino);
    uint64_t blocks = ino->size >> EROFS_BLOCK_BITS;
    /* The inode must have room for its tail even at its largest. */
    bool inl =
        tail && tail <= w->inline_max &&
        sizeof(struct erofs_inode_extended) + erofs_xattr_size(w, ino) + tail <= EROFS_BLOCK_SIZE;
    if (tail && !inl)
        blocks++;
    if (blocks > EROFS_BLOCKS_MAX - w->next_block)
        return err_set(e, EFBIG, "the image is over 16 TiB");
    ino->data = (struct tree_data){.block = w->next_block};
    ino->flags = (uint8_t)((ino->flags & ~TREE_INLINE_TAIL) | (inl ? TREE_INLINE_TAIL : 0));
    w->next_block += blocks;
    w->file = ino;
    w->file_pos = 0;
    memset(w->tail, 0, sizeof(w->tail));
    return 0;
}

int erofs_file_write(struct erofs_writer *w, uint64_t offset, const void *p, size_t n,
                     struct err *e)
{
    struct tree_inode *ino = w->file;
    assert(ino);
    if (offset < w->file_pos || offset > ino->size || n > ino->size - offset)
        return err_set(e, EINVAL, "file data lies outside the file's size");
    w->file_pos = offset + n;
    uint64_t full = full_bytes(ino);
    int r = 0;
    if (offset < full) {
        size_t k = (size_t)MIN((uint64_t)n, full - offset);
        r = erofs_out_write(&w->out, (ino->data.block << EROFS_BLOCK_BITS) + offset, p, k);
        p = (const uint8_t *)p + k;
        offset += k;
        n -= k;
    }
    if (n)
        memcpy(w->tail + (offset - full), p, n);
    return r < 0 ? erofs_write_failed(-r, e) : 0;
}

int erofs_file_end(struct erofs_writer *w, struct err *e)
{
    struct tree_inode *ino = w->file;
    assert(ino);
    w->file = NULL;
    uint64_t full = full_bytes(ino);
    size_t tail = (size_t)(ino->size - full);
    if (!tail)
        return 0;
    int r;
    if (ino->flags & TREE_INLINE_TAIL) {
        r = spool_tail(w, ino, tail);
    } else {
        r = erofs_out_write(&w->out, (ino->data.block << EROFS_BLOCK_BITS) + full, w->tail,
                            EROFS_BLOCK_SIZE);
    }
    return r < 0 ? erofs_write_failed(-r, e) : 0;
}

int erofs_write_failed(int code, struct err *e)
{
    int r = err_sys(e, code, "cannot write the image");
    if (code == ENOSPC)
        err_hint(e, "free some space, or point MSB_HOME to a larger disk");
    return r;
}

uint32_t erofs_crc32c(uint32_t crc, const void *p, size_t n)
{
    for (const uint8_t *b = p; n; n--) {
        crc ^= *b++;
        for (int i = 0; i < 8; i++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78U : 0);
    }
    return crc;
}
