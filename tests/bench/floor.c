/* What no pull can do without: decompress layers, and hash what goes in and what comes out.
 *
 *     floor BLOB...
 *
 * The ordinary libraries in the ordinary way, one thread, nothing kept. Prints bytes out. */
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

enum { STEP = 128 << 10 };

static uint8_t in[STEP], out[STEP];
static EVP_MD_CTX *blob, *diff;
static uint64_t total;

static void produced(size_t n)
{
    (void)EVP_DigestUpdate(diff, out, n);
    total += n;
}

static int gzip(z_stream *z, size_t n)
{
    z->next_in = in;
    z->avail_in = (unsigned)n;
    do {
        z->next_out = out;
        z->avail_out = STEP;
        int r = inflate(z, Z_NO_FLUSH);
        produced(STEP - z->avail_out);
        if (r == Z_STREAM_END && z->avail_in)
            r = inflateReset(z);
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
            return -1;
    } while (z->avail_in || z->avail_out == 0);
    return 0;
}

static int zstd(ZSTD_DStream *z, size_t n)
{
    ZSTD_inBuffer i = {in, n, 0};
    ZSTD_outBuffer o;
    do {
        o = (ZSTD_outBuffer){out, STEP, 0};
        if (ZSTD_isError(ZSTD_decompressStream(z, &o, &i)))
            return -1;
        produced(o.pos);
    } while (i.pos < i.size || o.pos == o.size);
    return 0;
}

static int one(const char *path)
{
    FILE *f = fopen(path, "rb");
    z_stream z = {0};
    ZSTD_DStream *d = ZSTD_createDStream();
    int r = f && d && inflateInit2(&z, 15 + 16) == Z_OK ? 0 : -1;
    blob = EVP_MD_CTX_new();
    diff = EVP_MD_CTX_new();
    if (r == 0 && (EVP_DigestInit_ex(blob, EVP_sha256(), NULL) != 1 ||
                   EVP_DigestInit_ex(diff, EVP_sha256(), NULL) != 1))
        r = -1;
    for (size_t n, first = 1; r == 0 && (n = fread(in, 1, STEP, f)) > 0; first = 0) {
        static int is_gzip;
        if (first)
            is_gzip = n > 2 && in[0] == 0x1f && in[1] == 0x8b;
        (void)EVP_DigestUpdate(blob, in, n);
        r = is_gzip ? gzip(&z, n) : zstd(d, n);
    }
    uint8_t md[EVP_MAX_MD_SIZE];
    (void)EVP_DigestFinal_ex(blob, md, NULL);
    (void)EVP_DigestFinal_ex(diff, md, NULL);
    EVP_MD_CTX_free(blob);
    EVP_MD_CTX_free(diff);
    (void)inflateEnd(&z);
    (void)ZSTD_freeDStream(d);
    if (f)
        (void)fclose(f);
    return r;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (one(argv[i]) < 0) {
            (void)fprintf(stderr, "floor: cannot decompress %s\n", argv[i]);
            return 1;
        }
    (void)printf("%llu\n", (unsigned long long)total);
    return 0;
}
