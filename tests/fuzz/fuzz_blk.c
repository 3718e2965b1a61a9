/* The block device: a read-only disk is never written, a writable one never outside its segment. */
#include "fuzz_guest.h"

#include <linux/virtio_blk.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "virtio/blk.h"

enum { FILE_LEN = 16384, SEG_OFF = 4096, SEG_LEN = 8192, HEADER = G_DATA, DATA = 16 * 1024 };

static int disk_fd = -1;
static uint8_t image[FILE_LEN];

static void reset_disk(void)
{
    if (disk_fd < 0)
        disk_fd = memfd_create("disk", MFD_CLOEXEC);
    if (ftruncate(disk_fd, FILE_LEN) < 0)
        abort();
    for (unsigned i = 0; i < FILE_LEN; i++)
        image[i] = (uint8_t)(i * 7 + i / 256);
    if (pwrite(disk_fd, image, FILE_LEN, 0) != FILE_LEN)
        abort();
}

static void check_disk(bool read_only)
{
    uint8_t now[FILE_LEN];
    struct stat st;
    if (fstat(disk_fd, &st) < 0 || st.st_size != FILE_LEN ||
        pread(disk_fd, now, FILE_LEN, 0) != FILE_LEN)
        abort();
    if (memcmp(now, image, SEG_OFF) != 0 ||
        memcmp(now + SEG_OFF + SEG_LEN, image + SEG_OFF + SEG_LEN, FILE_LEN - SEG_OFF - SEG_LEN) !=
            0)
        abort();
    if (read_only && memcmp(now, image, FILE_LEN) != 0)
        abort();
}

/* A request that is nearly right. */
static void request(struct guest *g, struct input *in)
{
    static const uint32_t types[] = {VIRTIO_BLK_T_IN,      VIRTIO_BLK_T_OUT,
                                     VIRTIO_BLK_T_FLUSH,   VIRTIO_BLK_T_GET_ID,
                                     VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES};
    uint8_t how = in_u8(in);
    struct virtio_blk_outhdr h = {.type = how & 64 ? in_u32(in) : types[how % 6],
                                  .sector = how & 128 ? in_u64(in) : in_u8(in) % 20};
    memcpy(g->ram + HEADER, &h, sizeof(h));
    if (h.type == VIRTIO_BLK_T_DISCARD || h.type == VIRTIO_BLK_T_WRITE_ZEROES) {
        struct virtio_blk_discard_write_zeroes z = {.sector = h.sector,
                                                    .num_sectors =
                                                        how & 16 ? in_u32(in) : in_u8(in) % 20,
                                                    .flags = in_u8(in) & 3};
        memcpy(g->ram + DATA, &z, sizeof(z));
    }
    uint32_t len = how & 32 ? in_u16(in) + 1U : 512U * (in_u8(in) % 18) + 16 * (h.type > 4);
    bool data_in = h.type == VIRTIO_BLK_T_IN || h.type == VIRTIO_BLK_T_GET_ID;
    unsigned n = 0;
    guest_desc(g, 16UL * n++, G_GPA + HEADER, sizeof(h), 1, 1);
    if (len > 0)
        guest_desc(g, 16UL * n++, G_GPA + DATA, len, (uint16_t)(1 | (data_in ? 2 : 0)), 2);
    guest_desc(g, 16UL * n, G_GPA + HEADER + 64, 1, 2, 0);
    guest_publish(g, 0, 0);
    virtio_dev_kick(g->dev, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct guest g;
    struct virtio_dev *d;
    bool read_only = in_u8(&in) & 1;
    reset_disk();
    struct blk_segment stitched[] = {
        {disk_fd, SEG_OFF, 3000}, {-1, 0, 100}, {disk_fd, 1, 1}, {disk_fd, SEG_OFF, 5000}};
    struct blk_segment one = {disk_fd, SEG_OFF, SEG_LEN};
    guest_init(&g);
    if (virtio_blk_new(&d, read_only ? stitched : &one, read_only ? 4 : 1, read_only, "id") < 0)
        abort();
    guest_attach(&g, d, (uint64_t)(in_u8(&in) & 3) << 28);
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % (GUEST_OPS + 5);
        if (op < GUEST_OPS)
            guest_op(&g, &in, op, 1);
        else if (op == GUEST_OPS)
            guest_restart(&g, &in);
        else
            request(&g, &in);
    }
    virtio_dev_detach(d);
    virtio_dev_free(d);
    guest_fini(&g);
    check_disk(read_only);
    return 0;
}
