#include "virtio/blk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/iov.h"
#include "util/loop.h"

/* #syscalls:monitor preadv pwritev fdatasync fallocate */

enum {
    SECTOR = 512,
    HEADER_LEN = 16,
    SEG_MAX = VIRTQ_CHAIN_MAX - 2, /* a chain minus the header and the status byte */
    REQUEST_MAX = 64 << 20,        /* bytes that one request may move */
    RANGES_MAX = 16,               /* in one discard or write-zeroes request */
    RANGE_SECTORS_MAX = 1 << 21,   /* 1 GiB */
};

/* A segment, placed on the disk. */
struct piece {
    int fd;
    uint64_t offset; /* in the file */
    uint64_t start;  /* on the disk */
    uint64_t length;
};

struct blk {
    struct virtio_dev dev;
    struct virtio_blk_config config;
    bool read_only, never_sync;
    bool unsynced; /* something may have been written since the last sync */
    char serial[BLK_SERIAL_LEN];
    uint64_t size; /* of the disk: a multiple of SECTOR; parts that no piece covers read as zeros */
    struct blk_stats stats;
    struct virtq_chain chain;
    struct iovec io[VIRTQ_CHAIN_MAX]; /* what the current system call moves */
    size_t n_pieces;
    struct piece piece[];
};

static void count(uint64_t *what, uint64_t n)
{
    __atomic_fetch_add(what, n, __ATOMIC_RELAXED);
}

/* The piece that holds byte pos, or NULL past the last one. Empty pieces do not exist. */
static const struct piece *find_piece(const struct blk *b, uint64_t pos)
{
    size_t lo = 0, hi = b->n_pieces;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct piece *p = &b->piece[mid];
        if (pos < p->start)
            hi = mid;
        else if (pos - p->start >= p->length)
            lo = mid + 1;
        else
            return p;
    }
    return NULL;
}

/* Moves up to len bytes between disk position pos and iov from byte off on; returns the bytes moved
 * or -errno, never 0. */
static ssize_t move_some(struct blk *b, bool write, uint64_t pos, const struct iovec *iov,
                         unsigned n, size_t off, size_t len)
{
    const struct piece *p = find_piece(b, pos);
    if (p)
        len = MIN(len, p->start + p->length - pos);
    if (!p || p->fd < 0) {
        if (write)
            return -EROFS;
        return (ssize_t)iov_zero(iov, n, off, len);
    }
    unsigned k = iov_slice(b->io, VIRTQ_CHAIN_MAX, iov, n, off, len);
    off_t at = (off_t)(p->offset + (pos - p->start));
    for (;;) {
        ssize_t r = write ? pwritev(p->fd, b->io, (int)k, at) : preadv(p->fd, b->io, (int)k, at);
        if (r > 0)
            return r;
        if (r == 0)
            return -EIO; /* the file has shrunk */
        if (errno != EINTR)
            return -errno;
    }
}

static bool in_bounds(const struct blk *b, uint64_t sector, uint64_t len)
{
    return len % SECTOR == 0 && len <= b->size && sector <= (b->size - len) / SECTOR;
}

static uint8_t serve_rw(struct blk *b, bool write, uint64_t sector, size_t len)
{
    const struct iovec *iov = write ? virtq_out(&b->chain) : virtq_in(&b->chain);
    unsigned n = write ? b->chain.n_out : b->chain.n_in;
    size_t off = write ? HEADER_LEN : 0;

    if ((write && b->read_only) || len > REQUEST_MAX || !in_bounds(b, sector, len))
        return VIRTIO_BLK_S_IOERR;
    b->unsynced |= write;
    for (uint64_t pos = sector * SECTOR, end = pos + len; pos < end;) {
        ssize_t r = move_some(b, write, pos, iov, n, off, (size_t)(end - pos));
        if (r <= 0)
            return VIRTIO_BLK_S_IOERR;
        pos += (uint64_t)r;
        off += (size_t)r;
    }
    count(write ? &b->stats.writes : &b->stats.reads, 1);
    count(write ? &b->stats.written_bytes : &b->stats.read_bytes, len);
    return VIRTIO_BLK_S_OK;
}

static uint8_t serve_flush(struct blk *b)
{
    count(&b->stats.flushes, 1);
    if (b->read_only || b->never_sync || !b->unsynced || b->n_pieces == 0)
        return VIRTIO_BLK_S_OK;
    count(&b->stats.syncs, 1);
    if (fdatasync(b->piece[0].fd) < 0)
        return VIRTIO_BLK_S_IOERR;
    b->unsynced = false;
    return VIRTIO_BLK_S_OK;
}

static uint8_t serve_id(struct blk *b)
{
    if (b->chain.in_len - 1 < BLK_SERIAL_LEN)
        return VIRTIO_BLK_S_IOERR;
    (void)virtq_chain_write(&b->chain, 0, b->serial, BLK_SERIAL_LEN);
    return VIRTIO_BLK_S_OK;
}

/* Makes a range of the (single) file zeros; keeps the blocks if asked to and where possible. */
static int zero_range(const struct piece *p, uint64_t pos, uint64_t len, bool unmap)
{
    off_t at = (off_t)(p->offset + pos);
    int mode = (unmap ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE) | FALLOC_FL_KEEP_SIZE;
    int r;
    do {
        r = fallocate(p->fd, mode, at, (off_t)len);
        if (r < 0 && errno == EOPNOTSUPP && !unmap) {
            unmap = true; /* tmpfs can only punch holes, which also read as zeros */
            mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
            errno = EINTR;
        }
    } while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

static uint8_t serve_range(struct blk *b, const struct virtio_blk_discard_write_zeroes *z,
                           bool discard)
{
    if (z->flags & ~(discard ? 0U : (uint32_t)VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP))
        return VIRTIO_BLK_S_UNSUPP;
    uint64_t len = (uint64_t)z->num_sectors * SECTOR;
    if (z->num_sectors > RANGE_SECTORS_MAX || !in_bounds(b, z->sector, len))
        return VIRTIO_BLK_S_IOERR;
    if (len == 0)
        return VIRTIO_BLK_S_OK;
    b->unsynced = true;
    int r = zero_range(&b->piece[0], z->sector * SECTOR, len, discard || z->flags != 0);
    if (r == -EOPNOTSUPP)
        return VIRTIO_BLK_S_UNSUPP;
    return r < 0 ? VIRTIO_BLK_S_IOERR : VIRTIO_BLK_S_OK;
}

static uint8_t serve_ranges(struct blk *b, bool discard)
{
    struct virtio_blk_discard_write_zeroes z[RANGES_MAX];
    size_t len = b->chain.out_len - HEADER_LEN;

    if (!virtio_dev_has(&b->dev, discard ? VIRTIO_BLK_F_DISCARD : VIRTIO_BLK_F_WRITE_ZEROES))
        return VIRTIO_BLK_S_UNSUPP;
    if (b->read_only || b->n_pieces == 0 || len == 0 || len > sizeof(z) || len % sizeof(z[0]) != 0)
        return VIRTIO_BLK_S_IOERR;
    if (virtq_chain_read(&b->chain, HEADER_LEN, z, len) != len)
        return VIRTIO_BLK_S_IOERR;
    for (size_t i = 0; i < len / sizeof(z[0]); i++) {
        uint8_t status = serve_range(b, &z[i], discard);
        if (status != VIRTIO_BLK_S_OK)
            return status;
    }
    count(&b->stats.discards, 1);
    return VIRTIO_BLK_S_OK;
}

/* Serves the request in b->chain and gives it back; returns its bytes of payload. */
static size_t serve(struct virtio_dev *d, unsigned queue)
{
    struct blk *b = CONTAINER_OF(d, struct blk, dev);
    struct virtq_chain *c = &b->chain;
    struct virtio_blk_outhdr h;
    size_t in = 0, moved = 0; /* payload written into the guest; payload both ways */
    uint8_t status;

    _Static_assert(sizeof(h) == HEADER_LEN, "header layout");
    if (c->in_len == 0) {
        virtio_dev_break(d, "blk: request without a status byte");
        return 0;
    }
    if (virtq_chain_read(c, 0, &h, sizeof(h)) != sizeof(h)) {
        virtio_dev_break(&b->dev, "blk: request without a header");
        return 0;
    }
    switch (h.type) {
    case VIRTIO_BLK_T_IN:
        in = moved = c->in_len - 1;
        status = serve_rw(b, false, h.sector, in);
        break;
    case VIRTIO_BLK_T_OUT:
        moved = c->out_len - HEADER_LEN;
        status = serve_rw(b, true, h.sector, moved);
        break;
    case VIRTIO_BLK_T_FLUSH:
        status = serve_flush(b);
        break;
    case VIRTIO_BLK_T_GET_ID:
        in = BLK_SERIAL_LEN;
        status = serve_id(b);
        break;
    case VIRTIO_BLK_T_DISCARD:
    case VIRTIO_BLK_T_WRITE_ZEROES:
        status = serve_ranges(b, h.type == VIRTIO_BLK_T_DISCARD);
        break;
    default:
        status = VIRTIO_BLK_S_UNSUPP;
        break;
    }
    if (status != VIRTIO_BLK_S_OK) {
        count(&b->stats.errors, 1);
        in = 0;
    }
    (void)virtq_chain_write(c, c->in_len - 1, &status, 1);
    virtq_push(&d->vq[queue], c, (uint32_t)in + 1);
    return moved;
}

static int64_t blk_kick(struct virtio_dev *d, unsigned queue)
{
    return virtio_dev_serve(d, queue, &CONTAINER_OF(d, struct blk, dev)->chain, serve);
}

static void blk_free(struct virtio_dev *d)
{
    free(CONTAINER_OF(d, struct blk, dev));
}

const struct virtio_dev_ops virtio_blk_ops = {
    .name = "blk",
    .id = VIRTIO_ID_BLOCK,
    .n_queues = 1,
    .kick = blk_kick,
    .free = blk_free,
};

static int add_piece(struct blk *b, const struct blk_segment *s)
{
    if (s->length > INT64_MAX / 2 || s->offset > INT64_MAX / 2 || b->size > INT64_MAX / 2)
        return -EINVAL;
    if (s->length == 0)
        return 0;
    if (s->fd >= 0) {
        struct stat st;
        if (fstat(s->fd, &st) < 0)
            return -errno;
        if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
            return -EINVAL;
        if (S_ISREG(st.st_mode) && (uint64_t)st.st_size < s->offset + s->length)
            return -EINVAL;
    }
    b->piece[b->n_pieces++] =
        (struct piece){.fd = s->fd, .offset = s->offset, .start = b->size, .length = s->length};
    b->size += s->length;
    return 0;
}

static void describe(struct blk *b)
{
    b->config = (struct virtio_blk_config){
        .capacity = b->size / SECTOR,
        .seg_max = SEG_MAX,
        .blk_size = SECTOR,
    };
    b->dev.features = VIRTIO_BASE_FEATURES | 1ULL << VIRTIO_BLK_F_SEG_MAX |
                      1ULL << VIRTIO_BLK_F_BLK_SIZE | 1ULL << VIRTIO_BLK_F_FLUSH;
    if (b->read_only) {
        b->dev.features |= 1ULL << VIRTIO_BLK_F_RO;
        return;
    }
    b->dev.features |= 1ULL << VIRTIO_BLK_F_DISCARD | 1ULL << VIRTIO_BLK_F_WRITE_ZEROES;
    b->config.max_discard_sectors = RANGE_SECTORS_MAX;
    b->config.max_discard_seg = RANGES_MAX;
    b->config.discard_sector_alignment = 4096 / SECTOR;
    b->config.max_write_zeroes_sectors = RANGE_SECTORS_MAX;
    b->config.max_write_zeroes_seg = RANGES_MAX;
    b->config.write_zeroes_may_unmap = 1;
}

int virtio_blk_new(struct virtio_dev **ret, const struct blk_segment *seg, size_t n, bool read_only,
                   const char *serial)
{
    if (n == 0 || n > BLK_SEGMENTS_MAX || (!read_only && (n != 1 || seg[0].fd < 0)))
        return -EINVAL;
    AUTO_FREE struct blk *b = calloc(1, sizeof(*b) + n * sizeof(b->piece[0]));
    if (!b)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int r = add_piece(b, &seg[i]);
        if (r < 0)
            return r;
    }
    if (b->size % SECTOR != 0 && !read_only)
        return -EINVAL;
    b->size = (b->size + SECTOR - 1) / SECTOR * SECTOR;
    b->read_only = read_only;
    b->unsynced = true; /* by the program that created the file */
    if (serial)
        memcpy(b->serial, serial, strnlen(serial, BLK_SERIAL_LEN));
    describe(b);
    b->dev.ops = &virtio_blk_ops;
    b->dev.config = &b->config;
    b->dev.config_len = sizeof(b->config);
    *ret = &steal_ptr(&b)->dev;
    return 0;
}

void virtio_blk_never_sync(struct virtio_dev *d)
{
    struct blk *b = CONTAINER_OF(d, struct blk, dev);
    assert(!d->transport);
    b->never_sync = true;
    d->features &= ~(1ULL << VIRTIO_BLK_F_FLUSH);
}

void virtio_blk_stats(const struct virtio_dev *d, struct blk_stats *ret)
{
    const struct blk *b = CONTAINER_OF(d, const struct blk, dev);
#define LOAD(field) ret->field = __atomic_load_n(&b->stats.field, __ATOMIC_RELAXED)
    LOAD(reads);
    LOAD(writes);
    LOAD(flushes);
    LOAD(syncs);
    LOAD(discards);
    LOAD(errors);
    LOAD(read_bytes);
    LOAD(written_bytes);
#undef LOAD
}
