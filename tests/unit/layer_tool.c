/* Layers and disks from the command line, for tests and benchmarks that have no registry:
 *
 *     layer_tool layer IN OUT [MAX_BYTES [MAX_ENTRIES]]   a tar, plain or compressed -> EROFS
 *     layer_tool disk OUT LAYER...                        the metadata of layers, and the layers
 *     layer_tool decode IN                                decompresses and hashes, nothing else
 *
 * "layer" prints diff_id, digest, sizes and entries; "disk" writes the whole disk in one file.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "image/erofs/disk.h"
#include "image/layer/decode.h"
#include "image/layer/layer.h"
#include "util/cleanup.h"

enum { LAYERS_MAX = 128, COPY = 1 << 20 };

static int fail(const struct err *e)
{
    fprintf(stderr, "error: %s\n", e->msg);
    for (int i = 0; i < e->hints; i++)
        fprintf(stderr, "  → %s\n", e->hint[i]);
    return 1;
}

static int open_or_die(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0644);
    if (fd < 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

static int do_layer(int argc, char **argv)
{
    struct fd_stream in;
    struct layer_made made;
    struct err e = {0};
    AUTO_CLOSE int in_fd = open_or_die(argv[0], O_RDONLY);
    AUTO_CLOSE int out = open_or_die(argv[1], O_RDWR | O_CREAT | O_TRUNC);
    AUTO_CLOSE int dir = open_or_die(".", O_RDONLY | O_DIRECTORY);
    const struct layer_want want = {
        .name = "layer under test",
        .layer = true,
        .max_bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
        .max_entries = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0,
    };
    fd_stream_init(&in, in_fd, argv[0]);
    if (layer_convert(&in.s, &want, out, dir, NULL, &made, &e) < 0)
        return fail(&e);
    char diff_id[DIGEST_TEXT_SIZE], blob[DIGEST_TEXT_SIZE];
    digest_text(&made.diff_id, diff_id);
    digest_text(&made.blob, blob);
    printf("%s %s %llu %llu %llu %u\n", diff_id, blob, (unsigned long long)made.blob_size,
           (unsigned long long)made.tar_size, (unsigned long long)made.erofs_size, made.entries);
    return 0;
}

/* Holes stay holes. */
static int append(int to, int from)
{
    static const char zeros[64 << 10];
    static char buf[64 << 10];
    off_t base = lseek(to, 0, SEEK_END), at = 0;
    for (ssize_t n; (n = pread(from, buf, sizeof(buf), at)); at += n)
        if (n < 0 ||
            (memcmp(buf, zeros, (size_t)n) != 0 && pwrite(to, buf, (size_t)n, base + at) != n))
            return -1;
    return ftruncate(to, base + at);
}

static int do_disk(int argc, char **argv)
{
    int fd[LAYERS_MAX];
    struct err e = {0};
    AUTO_CLOSE int out = open_or_die(argv[0], O_RDWR | O_CREAT | O_TRUNC);
    AUTO_CLOSE int dir = open_or_die(".", O_RDONLY | O_DIRECTORY);
    int n = MIN(argc - 1, (int)LAYERS_MAX);
    for (int i = 0; i < n; i++)
        fd[i] = open_or_die(argv[i + 1], O_RDONLY);
    if (disk_write_metadata(fd, (size_t)n, out, dir, 0, &e) < 0)
        return fail(&e);
    for (int i = 0; i < n; i++) {
        if (append(out, fd[i]) < 0) {
            perror("append");
            return 1;
        }
        (void)close(fd[i]);
    }
    return 0;
}

static int do_decode(char **argv)
{
    struct decoder d;
    struct hasher blob, tar;
    struct err e = {0};
    struct digest digest;
    char text[DIGEST_TEXT_SIZE];
    AUTO_CLOSE int fd = open_or_die(argv[0], O_RDONLY), again = open_or_die(argv[0], O_RDONLY);
    AUTO_FREE uint8_t *buf = malloc(COPY);
    if (!buf || decoder_init(&d, fd) < 0)
        return 1;
    hasher_init(&blob);
    hasher_init(&tar);
    for (ssize_t n; (n = read(again, buf, DECODE_INPUT)) > 0;)
        hasher_update(&blob, buf, (size_t)n);
    ssize_t n;
    while ((n = decoder_read(&d, buf, DECODE_INPUT, &e)) > 0)
        hasher_update(&tar, buf, (size_t)n);
    decoder_free(&d);
    if (n < 0)
        return fail(&e);
    (void)hasher_finish(&blob);
    digest = hasher_finish(&tar);
    digest_text(&digest, text);
    puts(text);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "layer") == 0)
        return do_layer(argc - 2, argv + 2);
    if (argc >= 3 && strcmp(argv[1], "disk") == 0)
        return do_disk(argc - 2, argv + 2);
    if (argc == 3 && strcmp(argv[1], "decode") == 0)
        return do_decode(argv + 2);
    fputs("usage: layer_tool layer IN OUT [MAX_BYTES [MAX_ENTRIES]] | disk OUT LAYER... | decode "
          "IN\n",
          stderr);
    return 2;
}
