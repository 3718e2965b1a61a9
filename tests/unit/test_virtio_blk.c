/* The block device: stitched disks, qcow2 images, and drivers that lie. */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_driver.h"
#include "unit.h"
#include "virtio/blk.h"
#include "virtio/qcow2.h"

enum { STATUS_NONE = 0xee };

struct fix {
    struct fake f;
    struct virtio_dev *dev;
    uint64_t header, status, data; /* data: 64 KiB */
};

static int file_of(size_t len, unsigned seed)
{
    int fd = memfd_create("disk", MFD_CLOEXEC);
    uint8_t *p = malloc(len + 1);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(i * 31 + i / 251 + seed);
    assert_int_equal(write(fd, p, len), (ssize_t)len);
    free(p);
    return fd;
}

static uint8_t byte_of(int fd, off_t at)
{
    uint8_t b;
    assert_int_equal(pread(fd, &b, 1, at), 1);
    return b;
}

static void open_disk(struct fix *x, const struct blk_segment *seg, size_t n, bool ro)
{
    fake_init(&x->f);
    assert_int_equal(virtio_blk_new(&x->dev, seg, n, ro, "serial-0123456789-toolong"), 0);
    fake_attach(&x->f, x->dev, 64, 0);
    x->header = fake_alloc(&x->f, 16, 16);
    x->status = fake_alloc(&x->f, 1, 1);
    x->data = fake_alloc(&x->f, 65536, 512);
}

static void close_disk(struct fix *x)
{
    fake_fini(&x->f);
    virtio_dev_free(x->dev);
}

static void set_header(struct fix *x, uint32_t type, uint64_t sector)
{
    struct virtio_blk_outhdr h = {.type = type, .sector = sector};
    memcpy(fake_ptr(&x->f, x->header), &h, sizeof(h));
    *(uint8_t *)fake_ptr(&x->f, x->status) = STATUS_NONE;
}

/* One request; its status, or STATUS_NONE if it did not come back. */
static uint8_t request(struct fix *x, uint32_t type, uint64_t sector, bool in, uint32_t len)
{
    set_header(x, type, sector);
    struct fake_buf b[3] = {{x->header, 16, false}};
    unsigned n = 1;
    if (len > 0)
        b[n++] = (struct fake_buf){x->data, len, in};
    b[n++] = (struct fake_buf){x->status, 1, true};
    uint16_t head = fake_add(&x->f, 0, b, n);
    fake_kick(&x->f, 0);
    uint32_t id, used;
    if (!fake_used(&x->f, 0, &id, &used))
        return STATUS_NONE;
    assert_int_equal(id, head);
    uint8_t status = *(uint8_t *)fake_ptr(&x->f, x->status);
    assert_int_equal(used, status == VIRTIO_BLK_S_OK && in ? len + 1 : 1);
    return status;
}

static void test_stitched_reads(void **state)
{
    /* Odd lengths and offsets, a hole, and a tail that is padded. */
    int a = file_of(5000, 1), b = file_of(3000, 2), c = file_of(100, 3);
    struct blk_segment seg[] = {{a, 11, 4000}, {b, 0, 1},       {-1, 0, 700},
                                {c, 50, 0},    {b, 1000, 1999}, {c, 0, 100}};
    const size_t total = 4000 + 1 + 700 + 1999 + 100;
    uint8_t want[7168] = {0};
    size_t at = 0;
    for (unsigned i = 0; i < 6; i++) {
        if (seg[i].fd >= 0)
            assert_int_equal(pread(seg[i].fd, want + at, seg[i].length, (off_t)seg[i].offset),
                             (ssize_t)seg[i].length);
        at += seg[i].length;
    }
    assert_int_equal(at, total);

    struct fix x;
    open_disk(&x, seg, 6, true);
    struct virtio_blk_config cfg;
    virtio_dev_config_read(x.dev, 0, &cfg, sizeof(cfg));
    assert_int_equal(cfg.capacity, 14);
    for (unsigned s = 0; s < 14; s++)
        for (unsigned n = 1; s + n <= 14; n++) {
            memset(fake_ptr(&x.f, x.data), 0x55, 8192);
            assert_int_equal(request(&x, VIRTIO_BLK_T_IN, s, true, n * 512), VIRTIO_BLK_S_OK);
            assert_memory_equal(fake_ptr(&x.f, x.data), want + s * 512, n * 512);
            assert_int_equal(*((uint8_t *)fake_ptr(&x.f, x.data) + n * 512), 0x55);
        }
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 14, true, 512), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 13, true, 1024), VIRTIO_BLK_S_IOERR);
    struct blk_stats st;
    virtio_blk_stats(x.dev, &st);
    assert_int_equal(st.reads, 105);
    assert_int_equal(st.errors, 2);
    close_disk(&x);
    close(a);
    close(b);
    close(c);
}

static void test_scattered_buffers_and_status_in_the_last_one(void **state)
{
    int fd = file_of(8192, 9);
    struct blk_segment seg = {fd, 0, 8192};
    struct fix x;
    open_disk(&x, &seg, 1, true);
    set_header(&x, VIRTIO_BLK_T_IN, 1);
    /* Header in two parts; 1024 bytes in three; the status is the last byte of the third. */
    struct fake_buf b[] = {{x.header, 5, false},
                           {x.header + 5, 11, false},
                           {x.data, 100, true},
                           {x.data + 200, 1, true},
                           {x.data + 300, 924, true}};
    fake_add(&x.f, 0, b, 5);
    fake_kick(&x.f, 0);
    uint32_t len;
    assert_true(fake_used(&x.f, 0, NULL, &len));
    assert_int_equal(len, 1025);
    const uint8_t *p = fake_ptr(&x.f, x.data);
    assert_int_equal(p[0], byte_of(fd, 512));
    assert_int_equal(p[200], byte_of(fd, 612));
    assert_int_equal(p[300], byte_of(fd, 613));
    assert_int_equal(p[300 + 922], byte_of(fd, 1535));
    assert_int_equal(p[300 + 923], VIRTIO_BLK_S_OK);
    close_disk(&x);
    close(fd);
}

static void test_write_flush_and_id(void **state)
{
    int fd = file_of(65536, 1);
    struct blk_segment seg = {fd, 4096, 32768};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    memset(fake_ptr(&x.f, x.data), 0xab, 1024);
    assert_int_equal(request(&x, VIRTIO_BLK_T_OUT, 3, false, 1024), VIRTIO_BLK_S_OK);
    assert_int_equal(byte_of(fd, 4096 + 3 * 512), 0xab);
    assert_int_equal(byte_of(fd, 4096 + 5 * 512 - 1), 0xab);
    assert_int_equal(byte_of(fd, 4096 + 5 * 512), (uint8_t)((4096 + 2560) * 31 + 6656 / 251 + 1));
    assert_int_equal(request(&x, VIRTIO_BLK_T_OUT, 63, false, 1024), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(&x, VIRTIO_BLK_T_FLUSH, 0, false, 0), VIRTIO_BLK_S_OK);
    assert_int_equal(request(&x, VIRTIO_BLK_T_GET_ID, 0, true, 20), VIRTIO_BLK_S_OK);
    assert_memory_equal(fake_ptr(&x.f, x.data), "serial-0123456789-to", 20);
    assert_int_equal(request(&x, VIRTIO_BLK_T_GET_ID, 0, true, 19), VIRTIO_BLK_S_IOERR);
    close_disk(&x);
    close(fd);
}

static uint8_t ranges(struct fix *x, uint32_t type, const struct virtio_blk_discard_write_zeroes *z,
                      uint32_t len)
{
    memcpy(fake_ptr(&x->f, x->data), z, len);
    return request(x, type, 0, false, len);
}

static void test_only_what_was_written_is_synced(void **state)
{
    int fd = file_of(65536, 1);
    struct blk_segment seg = {fd, 0, 65536};
    struct virtio_blk_discard_write_zeroes z = {.sector = 8, .num_sectors = 8};
    struct blk_stats st;
    struct fix x;
    open_disk(&x, &seg, 1, false);
    for (unsigned i = 0; i < 2; i++) /* the first: who knows who wrote the file, and when */
        assert_int_equal(request(&x, VIRTIO_BLK_T_FLUSH, 0, false, 0), VIRTIO_BLK_S_OK);
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 0, true, 512), VIRTIO_BLK_S_OK);
    assert_int_equal(request(&x, VIRTIO_BLK_T_FLUSH, 0, false, 0), VIRTIO_BLK_S_OK);
    virtio_blk_stats(x.dev, &st);
    assert_int_equal(st.syncs, 1);
    assert_int_equal(request(&x, VIRTIO_BLK_T_OUT, 0, false, 512), VIRTIO_BLK_S_OK);
    assert_int_equal(request(&x, VIRTIO_BLK_T_FLUSH, 0, false, 0), VIRTIO_BLK_S_OK);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, &z, sizeof(z)), VIRTIO_BLK_S_OK);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(request(&x, VIRTIO_BLK_T_FLUSH, 0, false, 0), VIRTIO_BLK_S_OK);
    virtio_blk_stats(x.dev, &st);
    assert_int_equal(st.syncs, 3);
    assert_int_equal(st.flushes, 6);
    close_disk(&x);
    close(fd);
}

static void test_a_disk_that_is_never_synced_says_so(void **state)
{
    int fd = file_of(4096, 1);
    struct blk_segment seg = {fd, 0, 4096};
    struct virtio_dev *d = NULL;
    assert_int_equal(virtio_blk_new(&d, &seg, 1, false, NULL), 0);
    assert_true(d->features & 1ULL << VIRTIO_BLK_F_FLUSH);
    virtio_blk_never_sync(d);
    assert_false(d->features & 1ULL << VIRTIO_BLK_F_FLUSH);
    virtio_dev_free(d);
    close(fd);
}

static void test_discard_and_write_zeroes(void **state)
{
    int fd = file_of(1 << 20, 1);
    struct blk_segment seg = {fd, 0, 1 << 20};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    struct virtio_blk_discard_write_zeroes z[2] = {{.sector = 8, .num_sectors = 8},
                                                   {.sector = 100, .num_sectors = 1}};
    uint8_t before = byte_of(fd, 8 * 512 - 1), after = byte_of(fd, 16 * 512);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, z, sizeof(z)), VIRTIO_BLK_S_OK);
    assert_int_equal(byte_of(fd, 8 * 512), 0);
    assert_int_equal(byte_of(fd, 16 * 512 - 1), 0);
    assert_int_equal(byte_of(fd, 100 * 512), 0);
    assert_int_equal(byte_of(fd, 8 * 512 - 1), before);
    assert_int_equal(byte_of(fd, 16 * 512), after);
    z[0] = (struct virtio_blk_discard_write_zeroes){.sector = 32, .num_sectors = 3};
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, z, 16), VIRTIO_BLK_S_OK);
    assert_int_equal(byte_of(fd, 32 * 512), 0);
    assert_int_not_equal(byte_of(fd, 35 * 512), 0);
    z[0].flags = VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, z, 16), VIRTIO_BLK_S_OK);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, z, 16), VIRTIO_BLK_S_UNSUPP);
    z[0].flags = 0x80000000;
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, z, 16), VIRTIO_BLK_S_UNSUPP);
    close_disk(&x);
    close(fd);
}

static void test_h14_bad_requests(void **state)
{
    int fd = file_of(65536, 1);
    struct blk_segment seg = {fd, 0, 65536};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    const struct {
        uint64_t sector;
        uint32_t len;
    } bad[] = {
        {128, 512},
        {127, 1024},
        {UINT64_MAX, 512},
        {UINT64_MAX / 512, 1024},           /* sector * 512 wraps */
        {UINT64_MAX / 512 + 1, 512},        /* and wraps to 0 */
        {(UINT64_MAX - 1024) / 512, 65536}, /* the sum wraps */
        {0, 511},
        {0, 513},
        {0, 1},
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(request(&x, VIRTIO_BLK_T_IN, bad[i].sector, true, bad[i].len),
                         VIRTIO_BLK_S_IOERR);
        assert_int_equal(request(&x, VIRTIO_BLK_T_OUT, bad[i].sector, false, bad[i].len),
                         VIRTIO_BLK_S_IOERR);
    }
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 65536); /* nothing grew */
    assert_int_equal(request(&x, 0xffffffff, 0, true, 512), VIRTIO_BLK_S_UNSUPP);
    assert_int_equal(request(&x, 2, 0, true, 512), VIRTIO_BLK_S_UNSUPP);
    assert_null(x.f.broken);
    close_disk(&x);
    close(fd);
}

static void test_h14_write_to_read_only(void **state)
{
    int fd = file_of(4096, 1);
    struct blk_segment seg = {fd, 0, 4096};
    struct fix x;
    open_disk(&x, &seg, 1, true);
    assert_true(x.dev->features >> VIRTIO_BLK_F_RO & 1);
    uint8_t before = byte_of(fd, 0);
    struct virtio_blk_discard_write_zeroes z = {.sector = 0, .num_sectors = 1};
    memset(fake_ptr(&x.f, x.data), before ^ 0xff, 512);
    assert_int_equal(request(&x, VIRTIO_BLK_T_OUT, 0, false, 512), VIRTIO_BLK_S_IOERR);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, &z, 16), VIRTIO_BLK_S_UNSUPP);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, &z, 16), VIRTIO_BLK_S_UNSUPP);
    x.dev->acked = UINT64_MAX; /* even if features were lied about */
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, &z, 16), VIRTIO_BLK_S_IOERR);
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, &z, 16), VIRTIO_BLK_S_IOERR);
    assert_int_equal(byte_of(fd, 0), before);
    close_disk(&x);
    close(fd);
}

/* No way to answer these: the device stops. */
static void breaks(const struct fake_buf *b, unsigned n)
{
    int fd = file_of(4096, 1);
    struct blk_segment seg = {fd, 0, 4096};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    set_header(&x, VIRTIO_BLK_T_OUT, 0);
    struct fake_buf copy[3];
    for (unsigned i = 0; i < n; i++) {
        copy[i] = b[i];
        copy[i].addr += x.header;
    }
    fake_add(&x.f, 0, copy, n);
    fake_kick(&x.f, 0);
    assert_non_null(x.f.broken);
    assert_int_equal(x.f.broken_calls, 1);
    assert_false(fake_used(&x.f, 0, NULL, NULL));
    /* Dead, but not us; and a reset heals it. */
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 0, true, 512), STATUS_NONE);
    assert_int_equal(x.f.broken_calls, 1);
    virtio_dev_stop_queue(x.dev, 0);
    memset(x.f.ram, 0, FAKE_RAM);
    x.f.q[0].avail_idx = x.f.q[0].last_used = 0;
    assert_int_equal(virtio_dev_start_queue(x.dev, 0, &x.f.mem, &x.f.q[0].cfg), 0);
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 0, true, 512), VIRTIO_BLK_S_OK);
    close_disk(&x);
    close(fd);
}

static void test_h14_missing_status_byte_or_header(void **state)
{
    breaks((struct fake_buf[]){{0, 16, false}}, 1);
    breaks((struct fake_buf[]){{0, 16, false}, {32, 512, false}}, 2);
    breaks((struct fake_buf[]){{0, 15, false}, {32, 1, true}}, 2);
    breaks((struct fake_buf[]){{32, 1, true}}, 1);
}

static void test_h11_directions_swapped(void **state)
{
    /* A read whose data is readable, and a write whose data is writable: no bytes to move, and
     * nothing of the wrong kind is touched. */
    int fd = file_of(4096, 1);
    struct blk_segment seg = {fd, 0, 4096};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    uint8_t before = byte_of(fd, 0);
    memset(fake_ptr(&x.f, x.data), 0x77, 512);
    set_header(&x, VIRTIO_BLK_T_IN, 0);
    struct fake_buf b[] = {{x.header, 16, false}, {x.data, 512, false}, {x.status, 1, true}};
    fake_add(&x.f, 0, b, 3);
    fake_kick(&x.f, 0);
    assert_true(fake_used(&x.f, 0, NULL, NULL));
    assert_int_equal(*(uint8_t *)fake_ptr(&x.f, x.data), 0x77);
    set_header(&x, VIRTIO_BLK_T_OUT, 0);
    b[1].in = true;
    fake_add(&x.f, 0, b, 3);
    fake_kick(&x.f, 0);
    assert_true(fake_used(&x.f, 0, NULL, NULL));
    assert_int_equal(byte_of(fd, 0), before);
    /* All of it writable, header too. */
    b[0].in = true;
    fake_add(&x.f, 0, b, 3);
    fake_kick(&x.f, 0);
    assert_non_null(x.f.broken);
    close_disk(&x);
    close(fd);
}

static void test_h15_huge_discards(void **state)
{
    int fd = file_of(1 << 16, 1);
    struct blk_segment seg = {fd, 0, 1 << 16};
    struct fix x;
    open_disk(&x, &seg, 1, false);
    const struct virtio_blk_discard_write_zeroes bad[] = {
        {.sector = 0, .num_sectors = 129},
        {.sector = 0, .num_sectors = UINT32_MAX},
        {.sector = UINT64_MAX, .num_sectors = 1},
        {.sector = UINT64_MAX, .num_sectors = UINT32_MAX},
        {.sector = UINT64_MAX / 512 + 1, .num_sectors = 1},
        {.sector = 127, .num_sectors = 2},
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, &bad[i], 16), VIRTIO_BLK_S_IOERR);
        assert_int_equal(ranges(&x, VIRTIO_BLK_T_WRITE_ZEROES, &bad[i], 16), VIRTIO_BLK_S_IOERR);
    }
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 1 << 16);
    assert_int_equal(byte_of(fd, 0), 1);
    /* Too many ranges, half a range, none. */
    assert_int_equal(request(&x, VIRTIO_BLK_T_DISCARD, 0, false, 17 * 16), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(&x, VIRTIO_BLK_T_DISCARD, 0, false, 15), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(&x, VIRTIO_BLK_T_DISCARD, 0, false, 0), VIRTIO_BLK_S_IOERR);
    struct virtio_blk_discard_write_zeroes all = {.sector = 0, .num_sectors = 128};
    assert_int_equal(ranges(&x, VIRTIO_BLK_T_DISCARD, &all, 16), VIRTIO_BLK_S_OK);
    assert_int_equal(byte_of(fd, 65535), 0);
    close_disk(&x);
    close(fd);
}

static void test_a_file_that_shrinks_is_an_io_error(void **state)
{
    int fd = file_of(8192, 1);
    struct blk_segment seg = {fd, 0, 8192};
    struct fix x;
    open_disk(&x, &seg, 1, true);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 0, true, 4096), VIRTIO_BLK_S_OK);
    assert_int_equal(request(&x, VIRTIO_BLK_T_IN, 0, true, 8192), VIRTIO_BLK_S_IOERR);
    close_disk(&x);
    close(fd);
}

static void test_bad_disks_are_refused(void **state)
{
    int fd = file_of(1000, 1);
    struct virtio_dev *d = NULL;
    struct blk_segment two[] = {{fd, 0, 512}, {fd, 0, 512}}, zero = {-1, 0, 512};
    struct blk_segment odd = {fd, 0, 1000}, past = {fd, 500, 501}, huge = {fd, 8, UINT64_MAX - 4};
    assert_int_equal(virtio_blk_new(&d, two, 2, false, NULL), -EINVAL);
    assert_int_equal(virtio_blk_new(&d, &zero, 1, false, NULL), -EINVAL);
    assert_int_equal(virtio_blk_new(&d, &odd, 1, false, NULL), -EINVAL);
    assert_int_equal(virtio_blk_new(&d, &past, 1, true, NULL), -EINVAL);
    assert_int_equal(virtio_blk_new(&d, &huge, 1, true, NULL), -EINVAL);
    assert_int_equal(virtio_blk_new(&d, two, 0, true, NULL), -EINVAL);
    assert_null(d);
    assert_int_equal(virtio_blk_new(&d, &odd, 1, true, NULL), 0);
    virtio_dev_free(d);
    close(fd);
}

static void test_a_full_queue_takes_several_turns(void **state)
{
    int fd = file_of(65536, 1);
    struct blk_segment seg = {fd, 0, 65536};
    struct fix x = {0};
    fake_init(&x.f);
    assert_int_equal(virtio_blk_new(&x.dev, &seg, 1, true, NULL), 0);
    fake_attach(&x.f, x.dev, 256, 0);
    x.header = fake_alloc(&x.f, 16, 16);
    x.status = fake_alloc(&x.f, 1, 1);
    set_header(&x, VIRTIO_BLK_T_FLUSH, 0);
    struct fake_buf b[] = {{x.header, 16, false}, {x.status, 1, true}};
    for (unsigned i = 0; i < 128; i++)
        fake_add(&x.f, 0, b, 2);
    fake_kick(&x.f, 0);
    assert_true(fake_used_idx(&x.f, 0) < 128); /* others get a turn */
    assert_true(x.f.later[0]);
    assert_true(fake_run(&x.f, 100) < 100);
    assert_int_equal(fake_used_idx(&x.f, 0), 128);
    assert_true(x.f.interrupts[0] > 0);
    close_disk(&x);
    close(fd);
}

/* --- qcow2 ----------------------------------------------------------------------------------- */

enum { Q_CLUSTER = 512, Q_L1 = 512, Q_L2 = 1024, Q_DATA = 1536, Q_FILE = Q_DATA + 2 * Q_CLUSTER };

static void put_be(uint8_t *p, unsigned width, uint64_t v)
{
    for (unsigned i = 0; i < width; i++)
        p[i] = (uint8_t)(v >> 8 * (width - 1 - i));
}

/* Four clusters: the first two next to each other, a hole, and one that is marked as zeros. */
static int qcow2_file(unsigned at, unsigned width, uint64_t v)
{
    uint8_t p[Q_FILE];
    memset(p, 0, Q_DATA);
    memset(p + Q_DATA, 'd', 2 * Q_CLUSTER);
    put_be(p, 4, 0x514649fb);
    put_be(p + 4, 4, 3);
    put_be(p + 20, 4, 9);
    put_be(p + 24, 8, 4 * Q_CLUSTER);
    put_be(p + 36, 4, 1);
    put_be(p + 40, 8, Q_L1);
    put_be(p + Q_L1, 8, Q_L2 | 1ULL << 63);
    put_be(p + Q_L2, 8, Q_DATA | 1ULL << 63);
    put_be(p + Q_L2 + 8, 8, Q_DATA + Q_CLUSTER);
    put_be(p + Q_L2 + 24, 8, Q_DATA | 1);
    if (width)
        put_be(p + at, width, v);
    int fd = memfd_create("qcow2", MFD_CLOEXEC);
    assert_int_equal(write(fd, p, sizeof(p)), sizeof(p));
    return fd;
}

static void test_qcow2_is_segments(void **state)
{
    struct blk_segment *seg = NULL;
    const char *why = NULL;
    size_t n = 0;
    int fd = qcow2_file(0, 0, 0);
    assert_int_equal(qcow2_segments(fd, &seg, &n, &why), 0);
    assert_int_equal(n, 2);
    assert_true(seg[0].fd == fd && seg[0].offset == Q_DATA && seg[0].length == 2 * Q_CLUSTER);
    assert_true(seg[1].fd == -1 && seg[1].length == 2 * Q_CLUSTER);
    free(seg);
    /* Data that begins past the end of the file is zeros; a table there is damage. */
    close(fd);
    fd = qcow2_file(Q_L2 + 8, 8, 1 << 20);
    assert_int_equal(qcow2_segments(fd, &seg, &n, &why), 0);
    assert_true(n == 2 && seg[0].length == Q_CLUSTER && seg[1].length == 3 * Q_CLUSTER);
    free(seg);
    close(fd);
}

static void test_qcow2_that_is_refused(void **state)
{
    static const struct {
        unsigned at, width;
        uint64_t v;
        const char *why;
    } bad[] = {
        {0, 4, 1, "not a qcow2 image"},
        {4, 4, 4, "neither 2 nor 3"},
        {8, 8, 600, "backing file"},
        {16, 4, 1, "backing file"},
        {20, 4, 8, "damaged"},
        {20, 4, 22, "damaged"},
        {20, 4, UINT32_MAX, "damaged"},
        {24, 8, 0, "size is not supported"},
        {24, 8, UINT64_MAX, "size is not supported"},
        {24, 8, 8ULL << 40, "clusters are too small"},
        {24, 8, 1 << 20, "damaged"}, /* more than its table has */
        {32, 4, 2, "encrypted"},
        {36, 4, 0, "damaged"},
        {40, 8, 1 << 20, "damaged"},
        {40, 8, UINT64_MAX, "damaged"},
        {72, 8, 2, "damaged"},
        {72, 8, 4, "another file"},
        {72, 8, 8, "compressed"},
        {72, 8, 16, "does not know"},
        {72, 8, 1ULL << 40, "does not know"},
        {Q_L1, 8, 1 << 20, "damaged"},
        {Q_L1, 8, Q_L2 | 1, "damaged"},
        {Q_L1, 8, Q_L2 | 1ULL << 62, "damaged"},
        {Q_L2, 8, Q_DATA | 2, "damaged"},
        {Q_L2, 8, Q_DATA | 1ULL << 62, "compressed"},
        {Q_L2, 8, Q_DATA | 1ULL << 60, "damaged"},
        {4, 4, 2, "damaged"}, /* version 2 has no clusters of zeros */
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct blk_segment *seg = NULL;
        const char *why = "";
        size_t n = 0;
        int fd = qcow2_file(bad[i].at, bad[i].width, bad[i].v);
        if (qcow2_segments(fd, &seg, &n, &why) != -EINVAL || !strstr(why, bad[i].why))
            fail_msg("%zu: %s, not %s", i, why, bad[i].why);
        assert_null(seg);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stitched_reads),
        cmocka_unit_test(test_scattered_buffers_and_status_in_the_last_one),
        cmocka_unit_test(test_write_flush_and_id),
        cmocka_unit_test(test_only_what_was_written_is_synced),
        cmocka_unit_test(test_a_disk_that_is_never_synced_says_so),
        cmocka_unit_test(test_discard_and_write_zeroes),
        cmocka_unit_test(test_h11_directions_swapped),
        cmocka_unit_test(test_h14_bad_requests),
        cmocka_unit_test(test_h14_write_to_read_only),
        cmocka_unit_test(test_h14_missing_status_byte_or_header),
        cmocka_unit_test(test_h15_huge_discards),
        cmocka_unit_test(test_a_file_that_shrinks_is_an_io_error),
        cmocka_unit_test(test_bad_disks_are_refused),
        cmocka_unit_test(test_a_full_queue_takes_several_turns),
        cmocka_unit_test(test_qcow2_is_segments),
        cmocka_unit_test(test_qcow2_that_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
