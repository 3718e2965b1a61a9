#include "virtio/qcow2.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "util/array.h"
#include "util/cleanup.h"

/* #syscalls:monitor preadv */

enum {
    HEADER_V2 = 72, /* bytes; version 3 has more */
    HEADER_V3 = 104,
    CLUSTER_BITS_MIN = 9,
    CLUSTER_BITS_MAX = 21,
    L1_MAX = 1 << 20, /* entries */
    SECTOR = 512,
};
#define DISK_MAX (8ULL << 40)
#define MAGIC 0x514649fbU

/* Entries of both tables: the offset of the next table or the data, and two flags of the second
 * table. */
#define OFFSET_MASK 0x00fffffffffffe00ULL
#define COPIED (1ULL << 63)
#define COMPRESSED (1ULL << 62)
#define ZERO 1ULL

/* Features without which an image cannot be read; DIRTY concerns counters that a reader ignores. */
enum { DIRTY = 1, CORRUPT = 2, DATA_FILE = 4, COMPRESSION_TYPE = 8, EXTENDED_L2 = 16 };

struct image {
    int fd;
    uint64_t file; /* bytes */
    uint64_t size; /* of the disk */
    uint32_t version, cluster_bits, n_l1;
    uint64_t l1_at;
    uint64_t *l2; /* one table */
    struct blk_segment *seg;
    size_t n, room;
    const char *why;
};

static int refuse(struct image *m, const char *why)
{
    m->why = why;
    return -EINVAL;
}

static int damaged(struct image *m)
{
    return refuse(m, "it is damaged");
}

static int read_at(const struct image *m, uint64_t at, void *to, size_t n)
{
    while (n) {
        struct iovec io = {to, n};
        ssize_t k = at > INT64_MAX - n ? 0 : preadv(m->fd, &io, 1, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EINVAL; /* tables must not extend beyond the file */
        to = (char *)to + k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

/* --- the header ------------------------------------------------------------------------------ */

static uint32_t be32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return be32toh(v);
}

static uint64_t be64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return be64toh(v);
}

static int check_features(struct image *m, uint64_t needed)
{
    if (needed & CORRUPT)
        return damaged(m);
    if (needed & DATA_FILE)
        return refuse(m, "its data is in another file");
    if (needed & COMPRESSION_TYPE)
        return refuse(m, "it is compressed");
    if (needed & ~(uint64_t)DIRTY)
        return refuse(m, "it has features that msb does not know");
    return 0;
}

static int read_header(struct image *m)
{
    uint8_t h[HEADER_V3] = {0};
    int r = read_at(m, 0, h, HEADER_V2);
    if (r < 0 || be32(h) != MAGIC)
        return r < 0 && r != -EINVAL ? r : refuse(m, "it is not a qcow2 image");
    m->version = be32(h + 4);
    if (m->version != 2 && m->version != 3)
        return refuse(m, "its version is neither 2 nor 3");
    if (m->version == 3 && read_at(m, 0, h, HEADER_V3) < 0)
        return damaged(m);
    if (be64(h + 8) || be32(h + 16))
        return refuse(m, "it has a backing file");
    if (be32(h + 32))
        return refuse(m, "it is encrypted");
    m->cluster_bits = be32(h + 20);
    m->size = be64(h + 24);
    m->n_l1 = be32(h + 36);
    m->l1_at = be64(h + 40);
    if (m->cluster_bits < CLUSTER_BITS_MIN || m->cluster_bits > CLUSTER_BITS_MAX)
        return damaged(m);
    if (m->size < SECTOR || m->size > DISK_MAX)
        return refuse(m, "its size is not supported");
    return m->version == 3 ? check_features(m, be64(h + 72)) : 0;
}

/* --- tables ---------------------------------------------------------------------------------- */

/* Adds the next bytes of the disk: at this offset in the file, or zeros. */
static int add(struct image *m, int fd, uint64_t at, uint64_t length)
{
    struct blk_segment *last = m->n ? &m->seg[m->n - 1] : NULL;
    if (length == 0)
        return 0;
    if (last && last->fd == fd && (fd < 0 || last->offset + last->length == at)) {
        last->length += length;
        return 0;
    }
    if (m->n == BLK_SEGMENTS_MAX)
        return refuse(m, "it is too fragmented");
    if (m->n == m->room) {
        size_t room = MIN(MAX(m->room * 2, (size_t)64), (size_t)BLK_SEGMENTS_MAX);
        if (ARRAY_RESIZE(m->seg, room) < 0)
            return -ENOMEM;
        m->room = room;
    }
    m->seg[m->n++] = (struct blk_segment){.fd = fd, .offset = fd < 0 ? 0 : at, .length = length};
    return 0;
}

static int add_cluster(struct image *m, uint64_t entry, uint64_t length)
{
    uint64_t at = entry & OFFSET_MASK;
    bool zero = m->version == 3 && (entry & ZERO);
    if (entry & COMPRESSED)
        return refuse(m, "it is compressed");
    if ((entry & ~(OFFSET_MASK | COPIED | (m->version == 3 ? ZERO : 0))) ||
        at & ((1ULL << m->cluster_bits) - 1))
        return damaged(m);
    if (at == 0 || zero)
        return add(m, -1, 0, length);
    uint64_t there = at < m->file ? MIN(length, m->file - at) : 0; /* past its end are zeros */
    int r = add(m, m->fd, at, there);
    return r < 0 ? r : add(m, -1, 0, length - there);
}

/* Adds what one entry of the first table represents: `length` bytes of the disk. */
static int add_table(struct image *m, uint64_t entry, uint64_t length)
{
    uint64_t cluster = 1ULL << m->cluster_bits, at = entry & OFFSET_MASK;
    if ((entry & ~(OFFSET_MASK | COPIED)) || at & (cluster - 1))
        return damaged(m);
    if (at == 0)
        return add(m, -1, 0, length);
    int r = read_at(m, at, m->l2, cluster);
    if (r < 0)
        return r == -EINVAL ? damaged(m) : r;
    for (size_t i = 0; r == 0 && length; i++) {
        uint64_t part = MIN(length, cluster);
        r = add_cluster(m, be64toh(m->l2[i]), part);
        length -= part;
    }
    return r;
}

static int read_tables(struct image *m)
{
    uint64_t cluster = 1ULL << m->cluster_bits;
    uint64_t per_table = cluster / sizeof(uint64_t) * cluster;
    uint64_t needed = (m->size + per_table - 1) / per_table, left = m->size;
    if (needed > L1_MAX)
        return refuse(m, "its clusters are too small for its size");
    if (m->n_l1 < needed)
        return damaged(m);
    AUTO_FREE uint64_t *l1 = malloc(needed * sizeof(*l1));
    m->l2 = malloc(cluster);
    if (!l1 || !m->l2)
        return -ENOMEM;
    int r = read_at(m, m->l1_at, l1, needed * sizeof(*l1));
    if (r == -EINVAL)
        r = damaged(m);
    for (size_t i = 0; r == 0 && i < needed; i++) {
        uint64_t part = MIN(left, per_table);
        r = add_table(m, be64toh(l1[i]), part);
        left -= part;
    }
    return r;
}

int qcow2_segments(int fd, struct blk_segment **ret, size_t *n, const char **why)
{
    struct image m = {.fd = fd};
    struct stat st;
    int r = fstat(fd, &st) < 0 ? -errno : 0;
    m.file = r == 0 ? (uint64_t)st.st_size : 0;
    if (r == 0)
        r = read_header(&m);
    if (r == 0)
        r = read_tables(&m);
    free(m.l2);
    if (r < 0) {
        free(m.seg);
        *why = m.why ? m.why : strerror(-r);
        return r;
    }
    *ret = m.seg;
    *n = m.n;
    return 0;
}
