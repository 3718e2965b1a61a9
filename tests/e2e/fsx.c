/* Random I/O on one file, checked against a copy in memory; linked statically, for any guest.
 *
 *     fsx FILE SEED OPS SIZE    after every tenth of OPS: syncs, prints "sum OPS CRC LENGTH", and
 *                               goes on when a line comes on standard input
 *     fsx --synced DIR          records of 64 bytes, one after the other, in files of 1000 each;
 *                               prints the number of each when it is synced, for ever
 *     fsx --append FILE WHO N   N records of 64 bytes, appended to a file that others append to
 *
 * Operations: write, append, read, truncate, mmap (read and write), fallocate, punch a hole, zero a
 * range, copy within the file, sync, close and open. Exit status 1, and a line that names operation
 * and offset, when what is read is not what was written. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_MAX = 1 << 17, RECORD = 64, PER_FILE = 1000, PAGE = 4096 };

static const char *path;
static int fd;
static uint8_t *model, *buf;
static size_t model_len, size_max;
static uint64_t state;
static unsigned long op_no;

static uint64_t rnd(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : 0;
}

static uint32_t crc(const uint8_t *p, size_t n)
{
    uint32_t c = ~0U;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xedb88320U : 0);
    }
    return ~c;
}

static void die(const char *what)
{
    printf("operation %lu: %s: %s\n", op_no, what, strerror(errno));
    exit(1);
}

static void compare(const char *what, const uint8_t *got, size_t off, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != model[off + i]) {
            printf("operation %lu: %s: byte %zu is %02x, not %02x (length %zu)\n", op_no, what,
                   off + i, got[i], model[off + i], model_len);
            exit(1);
        }
}

static void open_file(int flags)
{
    fd = open(path, O_RDWR | flags, 0644);
    if (fd < 0)
        die("open");
}

static void grow_to(size_t end)
{
    if (end > model_len)
        model_len = end; /* what is beyond the end is zero in the model */
}

static void fill(size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = (uint8_t)(rnd(255) + 1);
}

static void do_write(size_t off, size_t n)
{
    fill(n);
    if (pwrite(fd, buf, n, (off_t)off) != (ssize_t)n)
        die("write");
    memcpy(model + off, buf, n);
    grow_to(off + n);
}

static void do_append(size_t n)
{
    int a = open(path, O_WRONLY | O_APPEND);
    if (model_len + n > size_max)
        n = size_max - model_len;
    fill(n);
    if (a < 0 || write(a, buf, n) != (ssize_t)n || close(a) < 0)
        die("append");
    memcpy(model + model_len, buf, n);
    model_len += n;
}

static void do_read(size_t off, size_t n)
{
    size_t want = off < model_len ? (n < model_len - off ? n : model_len - off) : 0;
    ssize_t k = pread(fd, buf, n, (off_t)off);
    if (k < 0)
        die("read");
    if ((size_t)k != want) {
        printf("operation %lu: read of %zu at %zu: %zd bytes, not %zu\n", op_no, n, off, k, want);
        exit(1);
    }
    compare("read", buf, off, want);
}

static void do_truncate(size_t n)
{
    if (ftruncate(fd, (off_t)n) < 0)
        die("truncate");
    if (n < model_len)
        memset(model + n, 0, model_len - n);
    model_len = n;
}

static void do_map(size_t off, size_t n, int writing)
{
    size_t start = off & ~(size_t)(PAGE - 1);
    if (off >= model_len)
        return;
    if (n > model_len - off)
        n = model_len - off;
    uint8_t *p = mmap(NULL, off - start + n, writing ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED, fd, (off_t)start);
    if (p == MAP_FAILED)
        die("mmap");
    compare("mapping", p + (off - start), off, n);
    if (writing) {
        fill(n);
        memcpy(p + (off - start), buf, n);
        memcpy(model + off, buf, n);
        if (rnd(2) && msync(p, off - start + n, MS_SYNC) < 0)
            die("msync");
    }
    if (munmap(p, off - start + n) < 0)
        die("munmap");
}

static void do_fallocate(int mode, size_t off, size_t n)
{
    if (fallocate(fd, mode, (off_t)off, (off_t)n) < 0) {
        if (errno == EOPNOTSUPP)
            return; /* not every file system of a host zeroes ranges */
        die("fallocate");
    }
    if (mode == 0)
        grow_to(off + n);
    else if (off < model_len)
        memset(model + off, 0, n < model_len - off ? n : model_len - off);
}

static void do_copy(size_t from, size_t to, size_t n)
{
    off_t in = (off_t)from, out = (off_t)to;
    if (from >= model_len || (from < to + n && to < from + n))
        return;
    if (n > model_len - from)
        n = model_len - from;
    while (n > 0) {
        ssize_t k = copy_file_range(fd, &in, fd, &out, n, 0);
        if (k <= 0)
            die("copy_file_range");
        memcpy(model + to, model + from, (size_t)k);
        from += (size_t)k;
        to += (size_t)k;
        n -= (size_t)k;
        grow_to(to);
    }
}

static void one(void)
{
    size_t n = 1 + rnd(rnd(4) ? 8192 : CHUNK_MAX), off = rnd(size_max - n);
    switch (rnd(14)) {
    case 0:
    case 1:
    case 2:
        do_write(off, n);
        break;
    case 3:
    case 4:
    case 5:
        do_read(off, n);
        break;
    case 6:
        do_truncate(rnd(2) ? rnd(size_max) : model_len / 2 + rnd(model_len / 2 + 1));
        break;
    case 7:
        do_map(off, n, 0);
        break;
    case 8:
        do_map(off, n, 1);
        break;
    case 9:
        do_fallocate(0, off, n);
        break;
    case 10:
        do_fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, n);
        break;
    case 11:
        do_fallocate(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, off, n);
        break;
    case 12:
        if (rnd(2))
            do_append(n);
        else
            do_copy(rnd(size_max - n), off, n);
        break;
    default:
        if (rnd(2) && (rnd(2) ? fsync(fd) : fdatasync(fd)) < 0)
            die("sync");
        if (rnd(4) == 0) {
            if (close(fd) < 0)
                die("close");
            open_file(0);
        }
        break;
    }
}

/* All of it, by the file system's own word, and then by the other side's. */
static void checkpoint(unsigned long done)
{
    struct stat st;
    char line[16];
    if (fsync(fd) < 0 || fstat(fd, &st) < 0)
        die("sync");
    if ((size_t)st.st_size != model_len) {
        printf("operation %lu: the file has %lld bytes, not %zu\n", op_no, (long long)st.st_size,
               model_len);
        exit(1);
    }
    for (size_t off = 0; off < model_len; off += CHUNK_MAX)
        do_read(off, CHUNK_MAX);
    printf("sum %lu %08x %zu\n", done, crc(model, model_len), model_len);
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        exit(2);
}

static int run(char **argv)
{
    unsigned long ops = strtoul(argv[3], NULL, 10);
    path = argv[1];
    state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15ULL + 1;
    size_max = strtoul(argv[4], NULL, 10);
    model = calloc(1, size_max + CHUNK_MAX);
    buf = malloc(CHUNK_MAX + 1);
    if (!model || !buf || size_max <= CHUNK_MAX)
        return 2;
    open_file(O_CREAT | O_TRUNC);
    for (op_no = 1; op_no <= ops; op_no++) {
        one();
        if (op_no % (ops / 10) == 0)
            checkpoint(op_no);
    }
    return 0;
}

static void record(char out[RECORD + 1], const char *who, unsigned long n)
{
    memset(out, '.', RECORD);
    int k = snprintf(out, RECORD / 2, "%s %lu ", who, n);
    out[k] = '.';
    out[RECORD - 1] = '\n';
}

static int synced(const char *dir)
{
    char name[4096], text[RECORD + 1];
    int f = -1;
    for (unsigned long i = 0;; i++) {
        if (i % PER_FILE == 0) {
            if (f >= 0)
                close(f);
            snprintf(name, sizeof(name), "%s/%lu", dir, i / PER_FILE);
            f = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        }
        record(text, "r", i);
        if (f < 0 || write(f, text, RECORD) != RECORD || fsync(f) < 0)
            return 1;
        printf("%lu\n", i);
        fflush(stdout);
    }
}

static int append(const char *file, const char *who, unsigned long n)
{
    char text[RECORD + 1];
    int f = open(file, O_WRONLY | O_APPEND | O_CREAT, 0644);
    for (unsigned long i = 0; i < n; i++) {
        record(text, who, i);
        if (f < 0 || write(f, text, RECORD) != RECORD)
            return 1;
    }
    return close(f);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--synced") == 0)
        return synced(argv[2]);
    if (argc == 5 && strcmp(argv[1], "--append") == 0)
        return append(argv[2], argv[3], strtoul(argv[4], NULL, 10));
    return argc == 5 ? run(argv) : 2;
}
