/* Archives from strangers: parsed, turned into a tree, written as an image. The first byte of the
 * input chooses how: as it is, or with the checksums of all headers made right, so that mutations
 * get past them; as a layer or not. */
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_tar.h"
#include "image/erofs/disk.h"
#include "image/layer/convert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = TAR_BLOCK, INPUT_MAX = 1 << 20, ENTRIES_MAX = 1000, BYTES_MAX = 8 << 20 };

static void convert(const uint8_t *p, size_t n, bool layer)
{
    const struct convert_limits limits = {BYTES_MAX, ENTRIES_MAX};
    struct convert c;
    struct convert_made made;
    struct err e = {0};
    struct stat st;
    static int in = -1, out = -1;
    if (in < 0) {
        in = memfile();
        out = memfile();
    }
    if (pwrite(in, p, n, 0) != (ssize_t)n || lseek(in, 0, SEEK_SET) != 0 ||
        ftruncate(in, (off_t)n) < 0 || ftruncate(out, 0) < 0 ||
        convert_init(&c, in, out, -1, layer, &limits, &e) < 0)
        abort();
    int r = convert_run(&c, &made, &e);
    convert_free(&c);
    if ((r < 0) != (e.code != 0)) /* an error has a message, and nothing else has */
        abort();
    if (r == 0 && (fstat(out, &st) < 0 || st.st_size % EROFS_BLOCK_SIZE || st.st_size == 0))
        abort();
    /* What a converter writes can be read. */
    struct tree t;
    if (r == 0 && (tree_init(&t, 0, 0) < 0 || erofs_load_tree(out, 0, &t, &e) < 0))
        abort();
    if (r == 0)
        tree_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > INPUT_MAX)
        return 0;
    uint8_t mode = data[0];
    if (mode & 1) {
        convert(data + 1, size - 1, mode & 2);
        return 0;
    }
    size_t n = (size - 1 + BLOCK - 1) / BLOCK * BLOCK;
    uint8_t *copy = calloc(1, n + 2 * BLOCK);
    if (!copy)
        abort();
    memcpy(copy, data + 1, size - 1);
    fix_headers(copy, n);
    convert(copy, n + 2 * BLOCK, mode & 2);
    free(copy);
    return 0;
}
