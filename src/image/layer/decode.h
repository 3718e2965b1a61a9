/* Decompression of a stream of bytes: gzip, zstd or none, recognized by the first bytes.
 *
 * A gzip stream may have several members, a zstd stream several frames and skippable ones between;
 * only zeros may follow the last one. A truncated stream is an error. The memory that a stream can
 * demand is bounded: gzip's window is 32 KiB, zstd's is limited to DECODE_WINDOW_LOG, which is what
 * the zstd tool itself accepts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/err.h"

enum { DECODE_WINDOW_LOG = 27, DECODE_INPUT = 256 << 10 };

/* Looks for a faster gzip on this machine; without it zlib does the work. Call it before the
 * process is confined. Safe from several threads. */
void decode_prepare(void);

/* One way of decompressing. */
struct codec_io {
    const uint8_t *in;
    size_t in_len;
    uint8_t *out;
    size_t out_len;
};
enum { CODEC_MORE, CODEC_END }; /* CODEC_END: a member or frame is complete */
struct codec {
    const char *name;
    void *(*open)(void);
    /* Consumes from `in` and writes to `out` what it can. -EBADMSG: damaged; -E2BIG: the window is
     * over the limit. */
    int (*run)(void *state, struct codec_io *io);
    int (*again)(void *state); /* prepares for another member or frame */
    void (*close)(void *state);
};
extern const struct codec codec_gzip, codec_zstd;
/* gzip by ISA-L, or NULL if the library is not installed. */
const struct codec *codec_gzip_fast(void);

struct decoder {
    int fd; /* not owned */
    const struct codec *codec;
    void *state;
    bool known;     /* the first bytes were examined */
    bool between;   /* at the end of a member */
    bool in_eof;    /* of the compressed bytes */
    bool slow;      /* never use the faster gzip: for tests */
    size_t at, len; /* what is left of buf: [at, len) */
    uint8_t *buf;
};

int decoder_init(struct decoder *d, int fd); /* -ENOMEM; reads nothing yet */
void decoder_free(struct decoder *d);        /* may be called twice */
/* Fills p; fewer than n bytes only at the end of the stream. */
ssize_t decoder_read(struct decoder *d, void *p, size_t n, struct err *e);
