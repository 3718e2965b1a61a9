#include "image/layer/decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "util/cleanup.h"

/* ---- gzip by zlib ---- */

static void *zlib_open(void)
{
    z_stream *z = calloc(1, sizeof(*z));
    if (z && inflateInit2(z, MAX_WBITS + 16) != Z_OK) {
        free(z);
        return NULL;
    }
    return z;
}

static int zlib_run(void *state, struct codec_io *io)
{
    z_stream *z = state;
    z->next_in = (Bytef *)(uintptr_t)io->in;
    z->avail_in = (uInt)io->in_len;
    z->next_out = io->out;
    z->avail_out = (uInt)io->out_len;
    int got = inflate(z, Z_NO_FLUSH);
    io->in = z->next_in;
    io->in_len = z->avail_in;
    io->out = z->next_out;
    io->out_len = z->avail_out;
    switch (got) {
    case Z_OK:
    case Z_BUF_ERROR:
        return CODEC_MORE;
    case Z_STREAM_END:
        return CODEC_END;
    case Z_MEM_ERROR:
        return -ENOMEM;
    default:
        return -EBADMSG;
    }
}

static int zlib_again(void *state)
{
    return inflateReset(state) == Z_OK ? 0 : -EBADMSG;
}

static void zlib_close(void *state)
{
    (void)inflateEnd(state);
    free(state);
}

const struct codec codec_gzip = {"gzip", zlib_open, zlib_run, zlib_again, zlib_close};

/* ---- zstd ---- */

static void *zstd_open(void)
{
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (d && ZSTD_isError(ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, DECODE_WINDOW_LOG))) {
        (void)ZSTD_freeDCtx(d);
        return NULL;
    }
    return d;
}

static int zstd_run(void *state, struct codec_io *io)
{
    ZSTD_inBuffer in = {io->in, io->in_len, 0};
    ZSTD_outBuffer out = {io->out, io->out_len, 0};
    size_t got = ZSTD_decompressStream(state, &out, &in);
    io->in += in.pos;
    io->in_len -= in.pos;
    io->out += out.pos;
    io->out_len -= out.pos;
    if (!ZSTD_isError(got))
        return got ? CODEC_MORE : CODEC_END;
    switch (ZSTD_getErrorCode(got)) {
    case ZSTD_error_frameParameter_windowTooLarge:
        return -E2BIG;
    case ZSTD_error_memory_allocation:
        return -ENOMEM;
    default:
        return -EBADMSG;
    }
}

static int zstd_again(void *state)
{
    return ZSTD_isError(ZSTD_DCtx_reset(state, ZSTD_reset_session_only)) ? -EBADMSG : 0;
}

static void zstd_close(void *state)
{
    (void)ZSTD_freeDCtx(state);
}

const struct codec codec_zstd = {"zstd", zstd_open, zstd_run, zstd_again, zstd_close};

/* ---- the stream ---- */

void decode_prepare(void)
{
    (void)codec_gzip_fast();
}

int decoder_init(struct decoder *d, int fd)
{
    *d = (struct decoder){.fd = fd, .buf = malloc(DECODE_INPUT)};
    return d->buf ? 0 : -ENOMEM;
}

void decoder_free(struct decoder *d)
{
    if (d->state)
        d->codec->close(d->state);
    free(d->buf);
    *d = (struct decoder){.fd = -1};
}

static int in_failed(int code, struct err *e)
{
    return err_sys(e, code, "cannot read the archive");
}

static ssize_t in_read(struct decoder *d, void *p, size_t n)
{
    ssize_t k;
    do {
        k = read(d->fd, p, n);
    } while (k < 0 && errno == EINTR);
    if (k == 0)
        d->in_eof = true;
    return k < 0 ? -errno : k;
}

/* Tries to have at least `want` bytes in the buffer. */
static int fill(struct decoder *d, size_t want)
{
    if (d->at == d->len)
        d->at = d->len = 0;
    if (d->at && d->len - d->at < want) {
        memmove(d->buf, d->buf + d->at, d->len - d->at);
        d->len -= d->at;
        d->at = 0;
    }
    while (!d->in_eof && d->len - d->at < want) {
        ssize_t k = in_read(d, d->buf + d->len, DECODE_INPUT - d->len);
        if (k < 0)
            return (int)k;
        d->len += (size_t)k;
    }
    return 0;
}

static bool is_gzip(const uint8_t *p, size_t n)
{
    return n >= 2 && p[0] == 0x1f && p[1] == 0x8b;
}

static bool is_zstd(const uint8_t *p, size_t n)
{
    return n >= 4 && ((p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd) ||
                      (p[0] >= 0x50 && p[0] <= 0x5f && p[1] == 0x2a && p[2] == 0x4d &&
                       p[3] == 0x18)); /* a skippable frame */
}

/* Recognizes other compressions, to refuse them by name. */
static const char *stranger(const uint8_t *p, size_t n)
{
    static const struct {
        const char *magic;
        size_t len;
        const char *name;
    } table[] = {{"\xfd"
                  "7zXZ\0",
                  6, "xz"},
                 {"BZh", 3, "bzip2"},
                 {"\x04\x22\x4d\x18", 4, "lz4"},
                 {"LZIP", 4, "lzip"},
                 {"PK\x03\x04", 4, "zip"}};
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (n >= table[i].len && memcmp(p, table[i].magic, table[i].len) == 0)
            return table[i].name;
    return NULL;
}

static int find_codec(struct decoder *d, struct err *e)
{
    int r = fill(d, 8);
    if (r < 0)
        return in_failed(-r, e);
    const uint8_t *p = d->buf + d->at;
    size_t n = d->len - d->at;
    const char *other = stranger(p, n);
    if (other)
        return err_hinted(
            e, err_set(e, ENOTSUP, "it is compressed with %s, which is not supported", other),
            "a layer or image file is a tar, plain or compressed with gzip or zstd");
    if (is_gzip(p, n)) {
        const struct codec *fast = d->slow ? NULL : codec_gzip_fast();
        d->codec = fast ? fast : &codec_gzip;
    } else if (is_zstd(p, n)) {
        d->codec = &codec_zstd;
    }
    if (d->codec && !(d->state = d->codec->open()))
        return err_oom(e);
    d->known = true;
    return 0;
}

static int run_failed(const struct decoder *d, int code, struct err *e)
{
    switch (code) {
    case -ENOMEM:
        return err_oom(e);
    case -E2BIG:
        return err_set(e, E2BIG, "its zstd data needs a window over the limit of %d MiB",
                       1 << (DECODE_WINDOW_LOG - 20));
    default:
        return err_set(e, EBADMSG, "its %s data is damaged", d->codec->name);
    }
}

static bool zeros_only(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* After a member or frame: 1 if another follows, 0 at the end. */
static int next_member(struct decoder *d, struct err *e)
{
    int r = fill(d, 4);
    if (r < 0)
        return in_failed(-r, e);
    const uint8_t *p = d->buf + d->at;
    size_t n = d->len - d->at;
    if (d->codec == &codec_zstd ? is_zstd(p, n) : is_gzip(p, n)) {
        r = d->codec->again(d->state);
        d->between = false;
        return r < 0 ? run_failed(d, r, e) : 1;
    }
    /* Tapes and some tools pad with zeros. */
    while (n) {
        if (!zeros_only(p, n))
            return err_set(e, EBADMSG, "its %s data is followed by other bytes", d->codec->name);
        d->at = d->len = 0;
        if ((r = fill(d, 1)) < 0)
            return in_failed(-r, e);
        p = d->buf;
        n = d->len;
    }
    return 0;
}

static ssize_t read_codec(struct decoder *d, uint8_t *p, size_t n, struct err *e)
{
    size_t done = 0;
    while (done < n) {
        int r = d->between ? next_member(d, e) : 1;
        if (r <= 0)
            return r < 0 ? r : (ssize_t)done;
        if ((r = fill(d, 1)) < 0)
            return in_failed(-r, e);
        struct codec_io io = {d->buf + d->at, d->len - d->at, p + done, n - done};
        size_t had = io.in_len;
        r = d->codec->run(d->state, &io);
        if (r < 0)
            return run_failed(d, r, e);
        bool moved = had != io.in_len || n - done != io.out_len;
        d->at = d->len - io.in_len;
        done = n - io.out_len;
        d->between = r == CODEC_END;
        if (r == CODEC_MORE && !moved && (d->in_eof || io.in_len))
            return err_set(e, EBADMSG, "its %s data is truncated or damaged", d->codec->name);
    }
    return (ssize_t)done;
}

static ssize_t read_plain(struct decoder *d, uint8_t *p, size_t n, struct err *e)
{
    size_t done = MIN(n, d->len - d->at);
    memcpy(p, d->buf + d->at, done);
    d->at += done;
    while (done < n && !d->in_eof) {
        ssize_t k = in_read(d, p + done, n - done);
        if (k < 0)
            return in_failed((int)-k, e);
        done += (size_t)k;
    }
    return (ssize_t)done;
}

ssize_t decoder_read(struct decoder *d, void *p, size_t n, struct err *e)
{
    if (!d->known) {
        int r = find_codec(d, e);
        if (r < 0)
            return r;
    }
    return d->codec ? read_codec(d, p, n, e) : read_plain(d, p, n, e);
}
