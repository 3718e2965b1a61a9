#include "image/layer/pack.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "image/layer/to_tar.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum {
    PACK_BUF = 128 << 10,
    PACK_LEVEL = 5, /* half the time of the default level, for a few percent more bytes */
};

struct packer {
    z_stream z;
    int fd;
    const atomic_bool *cancel;
    struct hasher hash; /* of the compressed bytes */
    uint64_t size;
    uint8_t out[PACK_BUF];
};

static int compress_some(struct packer *p, const void *in, size_t n, int flush)
{
    p->z.next_in = (Bytef *)(uintptr_t)in;
    p->z.avail_in = (uInt)n;
    do {
        p->z.next_out = p->out;
        p->z.avail_out = sizeof(p->out);
        if (deflate(&p->z, flush) == Z_STREAM_ERROR)
            return -EIO;
        size_t made = sizeof(p->out) - p->z.avail_out;
        hasher_update(&p->hash, p->out, made);
        p->size += made;
        int r = write_all(p->fd, p->out, made);
        if (r < 0)
            return r;
    } while (p->z.avail_out == 0);
    return 0;
}

static int sink(void *ctx, const void *in, size_t n)
{
    struct packer *p = ctx;
    if (p->cancel && atomic_load(p->cancel))
        return -EINTR;
    return compress_some(p, in, n, Z_NO_FLUSH); /* n is at most the size of a tar_out's buffer */
}

static int pack(struct packer *p, int layer_fd, struct layer_blob *ret, struct err *e)
{
    struct tar_out o;
    struct hasher tar;
    hasher_init(&tar);
    if (tar_out_init(&o, -1, &tar) < 0)
        return err_oom(e);
    o.sink = sink;
    o.sink_ctx = p;
    int r = layer_write_tar(layer_fd, &o, e);
    int late = r < 0 ? 0 : tar_out_flush(&o);
    if (r == 0 && late == 0)
        late = compress_some(p, NULL, 0, Z_FINISH);
    tar_out_free(&o);
    if (p->cancel && atomic_load(p->cancel))
        return err_set(e, EINTR, "interrupted");
    if (r < 0 || late < 0)
        return r < 0 ? r : err_sys(e, -late, "cannot write a temporary file");
    *ret = (struct layer_blob){
        .diff_id = hasher_finish(&tar), .digest = hasher_finish(&p->hash), .size = p->size};
    return 0;
}

int layer_pack(int layer_fd, int out_fd, const atomic_bool *cancel, struct layer_blob *ret,
               struct err *e)
{
    AUTO_FREE struct packer *p = calloc(1, sizeof(*p));
    if (!p ||
        deflateInit2(&p->z, PACK_LEVEL, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return err_oom(e);
    p->fd = out_fd;
    p->cancel = cancel;
    hasher_init(&p->hash);
    int r = pack(p, layer_fd, ret, e);
    (void)deflateEnd(&p->z);
    return r;
}
