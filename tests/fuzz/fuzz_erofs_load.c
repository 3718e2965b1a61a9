/* EROFS files full of lies: read as a layer, merged with itself, written as a disk. The first byte
 * of the input chooses whether superblock, length and checksum are made right, so that mutations
 * get past them; the rest is the file from its superblock on. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/erofs/disk.h"
#include "image/erofs/erofs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 256 << 10, ENTRIES_MAX = 2000 };

static int memfile(void)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0)
        abort();
    return fd;
}

static void fix_super(uint8_t *file, size_t len)
{
    struct erofs_super sb;
    uint8_t *at = file + EROFS_SUPER_OFFSET;
    memcpy(&sb, at, sizeof(sb));
    sb.magic = EROFS_MAGIC;
    sb.block_bits = EROFS_BLOCK_BITS;
    sb.feature_incompat = 0;
    sb.blocks = (uint32_t)(len / EROFS_BLOCK_SIZE);
    sb.meta_block %= sb.blocks;
    sb.checksum = 0;
    memcpy(at, &sb, sizeof(sb));
    sb.checksum = erofs_crc32c(~0U, at, EROFS_BLOCK_SIZE - EROFS_SUPER_OFFSET);
    memcpy(at, &sb, sizeof(sb));
}

/* What was read can be written, and read again. */
static void use(int fd, int out)
{
    struct tree t;
    struct err e = {0};
    const int layers[] = {fd, fd};
    if (tree_init(&t, ENTRIES_MAX, 0) < 0)
        abort();
    int r = erofs_load_tree(fd, 0, &t, &e);
    tree_free(&t);
    if ((r < 0) != (e.code != 0)) /* an error has a message, and nothing else has */
        abort();
    if (r < 0)
        return;
    if (ftruncate(out, 0) < 0)
        abort();
    r = disk_write_metadata(layers, 2, out, -1, 0, &e);
    if ((r < 0) != (e.code != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int in = -1, out = -1;
    if (size < 2 || size > INPUT_MAX)
        return 0;
    if (in < 0) {
        in = memfile();
        out = memfile();
    }
    size_t len = EROFS_SUPER_OFFSET + size - 1;
    size_t whole = (len + EROFS_BLOCK_SIZE - 1) / EROFS_BLOCK_SIZE * EROFS_BLOCK_SIZE;
    uint8_t *file = calloc(1, whole);
    if (!file)
        abort();
    memcpy(file + EROFS_SUPER_OFFSET, data + 1, size - 1);
    if (data[0] & 1)
        fix_super(file, whole);
    else
        whole = len;
    if (pwrite(in, file, whole, 0) != (ssize_t)whole || ftruncate(in, (off_t)whole) < 0)
        abort();
    free(file);
    use(in, out);
    return 0;
}
