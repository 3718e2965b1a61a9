/* qcow2 images: whatever the file says, the segments are the disk that its header promises, none has
 * a byte that the file lacks, and a device accepts them. */
#include "virtio/qcow2.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz_require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct blk_segment *seg = NULL;
    struct virtio_dev *dev = NULL;
    const char *why = NULL;
    size_t n = 0;
    if (fd < 0)
        fd = memfd_create("image", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    int r = qcow2_segments(fd, &seg, &n, &why);
    REQUIRE(r == 0 ? n > 0 : why && *why);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        REQUIRE(seg[i].length > 0 && (seg[i].fd == fd || seg[i].fd == -1));
        REQUIRE(seg[i].fd < 0 || (seg[i].offset < size && seg[i].length <= size - seg[i].offset));
        REQUIRE(i == 0 || seg[i].fd != seg[i - 1].fd || seg[i].fd >= 0);
        total += seg[i].length;
    }
    if (r == 0) {
        uint64_t told;
        memcpy(&told, data + 24, sizeof(told));
        REQUIRE(total == __builtin_bswap64(told));
        REQUIRE(virtio_blk_new(&dev, seg, n, true, "x") == 0);
        dev->ops->free(dev);
    }
    free(seg);
    return 0;
}
