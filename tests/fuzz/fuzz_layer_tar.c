/* Layers from strangers, saved again: what comes out can be converted, to the same image, which
 * comes out as the same bytes. Input as in fuzz_tar: the first byte chooses whether checksums are
 * made right. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_tar.h"
#include "image/layer/convert.h"
#include "image/layer/to_tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = TAR_BLOCK, INPUT_MAX = 1 << 20, ENTRIES_MAX = 1000, BYTES_MAX = 8 << 20 };

/* A tar to an image; the limits of the second time are wider than those of the first. */
static int convert(int in, int out, unsigned scale, struct err *e)
{
    const struct convert_limits limits = {(uint64_t)BYTES_MAX * scale, ENTRIES_MAX * scale};
    struct convert c;
    struct convert_made made;
    if (lseek(in, 0, SEEK_SET) != 0 || ftruncate(out, 0) < 0 ||
        convert_init(&c, in, out, -1, true, &limits, e) < 0)
        abort();
    int r = convert_run(&c, &made, e);
    convert_free(&c);
    return r;
}

static int save(int image, int out, struct err *e)
{
    struct tar_out o;
    if (ftruncate(out, 0) < 0 || lseek(out, 0, SEEK_SET) != 0 || tar_out_init(&o, out, NULL) < 0)
        abort();
    int r = layer_write_tar(image, &o, e);
    if (r == 0 && tar_out_flush(&o) < 0)
        abort();
    struct stat st;
    if (r == 0 && (fstat(out, &st) < 0 || (uint64_t)st.st_size != o.bytes || o.bytes % BLOCK))
        abort();
    tar_out_free(&o);
    return r;
}

static bool same(int a, int b)
{
    struct stat x, y;
    if (fstat(a, &x) < 0 || fstat(b, &y) < 0)
        abort();
    if (x.st_size != y.st_size)
        return false;
    size_t n = (size_t)x.st_size;
    uint8_t *p = malloc(n + 1), *q = malloc(n + 1);
    if (!p || !q || pread(a, p, n, 0) != (ssize_t)n || pread(b, q, n, 0) != (ssize_t)n)
        abort();
    bool r = memcmp(p, q, n) == 0;
    free(p);
    free(q);
    return r;
}

static void round_trip(int in)
{
    static int image = -1, first = -1, second = -1;
    struct err e = {0};
    if (image < 0) {
        image = memfile();
        first = memfile();
        second = memfile();
    }
    if (convert(in, image, 1, &e) < 0)
        return;
    if (save(image, first, &e) < 0) {
        if (e.code != EINVAL || !strstr(e.msg, "attribute")) /* one whose name has a '=' */
            abort();
        return;
    }
    if (convert(first, image, 4, &e) < 0) {
        if (e.code != ENAMETOOLONG) /* a path that went through links was shorter */
            abort();
        return;
    }
    if (save(image, second, &e) < 0 || !same(first, second))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int in = -1;
    if (in < 0)
        in = memfile();
    if (size < 2 || size > INPUT_MAX)
        return 0;
    uint8_t *copy = calloc(1, size + 2 * BLOCK);
    if (!copy)
        abort();
    memcpy(copy, data + 1, size - 1);
    if (!(data[0] & 1))
        fix_headers(copy, size - 1);
    if (ftruncate(in, 0) < 0 || pwrite(in, copy, size + 2 * BLOCK, 0) != (ssize_t)size + 2 * BLOCK)
        abort();
    free(copy);
    round_trip(in);
    return 0;
}
