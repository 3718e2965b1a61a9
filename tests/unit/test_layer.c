/* Layers through the real converter: a child with its filter. What it makes is right, what is wrong
 * is said, and what it can do is nothing. */
#include <stdint.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "erofs_reader.h"
#include "image/layer/decode.h"
#include "image/layer/layer.h"
#include "image_fixture.h"
#include "tar_builder.h"
#include "unit.h"
#include "util/cleanup.h"

/* ---- streams ---- */

/* Bytes in memory, in pieces, with something to happen on the way. */
struct mem_stream {
    struct stream s;
    const uint8_t *p;
    size_t len, at, piece;
    size_t fail_at;          /* an error instead of the byte here; 0: never */
    void (*look)(void *arg); /* called once, at the second piece */
    void *arg;
    int reads;
};

static ssize_t mem_read(struct stream *s, void *p, size_t n, struct err *e)
{
    struct mem_stream *m = (struct mem_stream *)s;
    if (m->reads++ == 1 && m->look)
        m->look(m->arg);
    if (m->fail_at && m->at >= m->fail_at)
        return err_set(e, ECONNRESET, "the line went dead");
    n = MIN(MIN(n, m->piece ? m->piece : n), m->len - m->at);
    if (m->fail_at)
        n = MIN(n, m->fail_at - m->at);
    memcpy(p, m->p + m->at, n);
    m->at += n;
    return (ssize_t)n;
}

static void mem_close(struct stream *s)
{
}

static const struct stream_ops mem_ops = {mem_read, mem_close};

/* ---- archives ---- */

static void add_text(struct tb *b, const char *name, const char *text)
{
    tb_add(b, (struct tb_entry){.name = name, .type = '0', .size = strlen(text), .data = text});
}

static void sample(struct tb *b)
{
    static uint8_t noise[700000];
    fill_bytes(noise, sizeof(noise), 5);
    tb_add(b, (struct tb_entry){.name = "./", .type = '5', .mode = 0755});
    tb_add(b, (struct tb_entry){.name = "big", .type = '0', .size = sizeof(noise), .data = noise});
    add_text(b, "dir/small", "text");
    tb_add(b, (struct tb_entry){.name = "dir/.wh.gone", .type = '0'});
    tb_add(b, (struct tb_entry){.name = "hidden/.wh..wh..opq", .type = '0'});
    tb_end(b);
}

static void append(struct tb *b, const void *p, size_t n)
{
    uint8_t *q = realloc(b->p, b->len + n);
    assert_non_null(q);
    memcpy(q + b->len, p, n);
    b->p = q;
    b->len = b->cap = b->len + n;
}

static void squeeze_gzip(const uint8_t *p, size_t n, struct tb *to)
{
    z_stream z = {0};
    size_t cap = compressBound(n) + 64;
    AUTO_FREE uint8_t *out = malloc(cap);
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (uint8_t *)(uintptr_t)p;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    append(to, out, cap - z.avail_out);
    deflateEnd(&z);
}

static void squeeze_zstd(const uint8_t *p, size_t n, struct tb *to)
{
    size_t cap = ZSTD_compressBound(n);
    AUTO_FREE uint8_t *out = malloc(cap);
    size_t len = ZSTD_compress(out, cap, p, n, 3);
    assert_false(ZSTD_isError(len));
    append(to, out, len);
}

static struct digest sha(const void *p, size_t n)
{
    return digest_of(p, n);
}

/* ---- running ---- */

static int convert(struct mem_stream *m, struct layer_want want, int *ret_fd,
                   struct layer_made *made, struct err *e)
{
    int out = mk_memfile();
    if (!want.name)
        want.name = "layer sha256:0123456789ab";
    want.layer = true;
    m->s.ops = &mem_ops;
    int r = layer_convert(&m->s, &want, out, -1, NULL, made, e);
    if (r == 0 && ret_fd)
        *ret_fd = out;
    else
        close(out);
    /* No process and no signal is left behind. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    sigset_t pending;
    assert_int_equal(sigpending(&pending), 0);
    assert_false(sigismember(&pending, SIGPIPE));
    return r;
}

static void good(struct tb *bytes, const struct tb *tar, size_t piece)
{
    struct mem_stream m = {.p = bytes->p, .len = bytes->len, .piece = piece};
    struct digest blob = sha(bytes->p, bytes->len), diff_id = sha(tar->p, tar->len);
    struct layer_made made;
    struct err e = {0};
    struct er r;
    struct er_inode i;
    char text[16] = {0};
    int fd = -1;
    if (convert(&m,
                (struct layer_want){.blob = &blob, .blob_size = bytes->len, .diff_id = &diff_id},
                &fd, &made, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(digest_equal(&made.blob, &blob) && digest_equal(&made.diff_id, &diff_id));
    assert_int_equal(made.blob_size, bytes->len);
    assert_int_equal(made.tar_size, tar->len);
    er_open(&r, fd);
    assert_int_equal(made.erofs_size, r.len);
    (void)er_check(&r);
    assert_true(er_lookup(&r, "dir/small", &i));
    assert_int_equal(er_read(&r, &i, 0, text, sizeof(text)), 4);
    assert_string_equal(text, "text");
    assert_true(er_lookup(&r, "big", &i) && i.size == 700000);
    assert_true(er_lookup(&r, "dir/gone", &i) && S_ISCHR(i.mode));
    er_close(&r);
    fsck_erofs(fd);
    close(fd);
}

static void bad(const struct tb *bytes, struct layer_want want, const char *text)
{
    struct mem_stream m = {.p = bytes->p, .len = bytes->len};
    struct layer_made made;
    struct err e = {0};
    int r = convert(&m, want, NULL, &made, &e);
    if (r >= 0 || e.code != -r || !strstr(e.msg, text) ||
        strncmp(e.msg, "layer sha256:0123456789ab: ", 27) != 0)
        fail_msg("got %d '%s', wanted '%s'", r, e.msg, text);
}

/* ---- what works ---- */

static void test_compressions(void **state)
{
    void (*squeeze[])(const uint8_t *, size_t, struct tb *) = {squeeze_gzip, squeeze_zstd};
    struct tb tar = {0};
    sample(&tar);
    for (int slow = 0; slow < 3; slow++) {
        size_t piece = slow == 2 ? 7 : slow ? 4099 : 0;
        if (piece != 7)
            good(&tar, &tar, piece);
        for (size_t k = 0; k < ARRAY_LEN(squeeze); k++) {
            struct tb one = {0}, many = {0};
            squeeze[k](tar.p, tar.len, &one);
            if (piece != 7 || k == 0)
                good(&one, &tar, piece);
            /* Several members or frames, one of them empty. */
            squeeze[k](tar.p, 1000, &many);
            squeeze[k](tar.p, 0, &many);
            squeeze[k](tar.p + 1000, tar.len - 1000, &many);
            good(&many, &tar, piece == 7 ? 4099 : piece);
            tb_free(&one);
            tb_free(&many);
        }
    }
    tb_free(&tar);
}

static void test_zstd_skippable(void **state)
{
    static const uint8_t skip[] = {0x5a, 0x2a, 0x4d, 0x18, 5, 0, 0, 0, 1, 2, 3, 4, 5};
    struct tb tar = {0}, b = {0};
    sample(&tar);
    append(&b, skip, sizeof(skip));
    squeeze_zstd(tar.p, 5000, &b);
    append(&b, skip, sizeof(skip));
    squeeze_zstd(tar.p + 5000, tar.len - 5000, &b);
    append(&b, skip, sizeof(skip));
    good(&b, &tar, 0);
    good(&b, &tar, 3);
    tb_free(&tar);
    tb_free(&b);
}

/* Zeros behind compressed data are padding; bytes behind the end of a tar belong to it. */
static void test_behind_the_end(void **state)
{
    static uint8_t zeros[100000];
    struct tb tar = {0}, b = {0};
    sample(&tar);
    squeeze_gzip(tar.p, tar.len, &b);
    append(&b, zeros, sizeof(zeros));
    good(&b, &tar, 0);
    append(&b, "x", 1);
    bad(&b, (struct layer_want){0}, "followed by other bytes");
    tb_free(&b);
    append(&tar, "whatever this is", 16);
    append(&tar, zeros, sizeof(zeros));
    squeeze_gzip(tar.p, tar.len, &b);
    good(&b, &tar, 0);
    good(&tar, &tar, 0);
    tb_free(&tar);
    tb_free(&b);
}

static void test_empty_layers(void **state)
{
    static const uint8_t zeros[1024];
    struct tb b[3] = {{0}};
    append(&b[0], zeros, sizeof(zeros));
    squeeze_gzip(zeros, sizeof(zeros), &b[1]);
    squeeze_gzip(zeros, 0, &b[2]);
    for (int i = 0; i < 3; i++) {
        struct mem_stream m = {.p = b[i].p, .len = b[i].len};
        struct layer_made made;
        struct err e = {0};
        struct er r;
        int fd = -1;
        if (convert(&m, (struct layer_want){0}, &fd, &made, &e) < 0)
            fail_msg("%d: %s", i, e.msg);
        er_open(&r, fd);
        assert_int_equal(er_check(&r), 0);
        er_close(&r);
        fsck_erofs(fd);
        close(fd);
        tb_free(&b[i]);
    }
}

/* Tails up to LAYER_INLINE_MAX are inline, longer ones are not. */
static void test_inline_limit(void **state)
{
    static uint8_t noise[8192];
    static const size_t sizes[] = {1, LAYER_INLINE_MAX, LAYER_INLINE_MAX + 1, 4096 + 7, 8191};
    struct tb b = {0};
    char name[16];
    fill_bytes(noise, sizeof(noise), 7);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        (void)snprintf(name, sizeof(name), "%zu", sizes[i]);
        tb_add(&b, (struct tb_entry){.name = name, .type = '0', .size = sizes[i], .data = noise});
    }
    tb_end(&b);
    struct mem_stream m = {.p = b.p, .len = b.len};
    struct layer_made made;
    struct err e = {0};
    struct er r;
    int fd = -1;
    assert_int_equal(convert(&m, (struct layer_want){0}, &fd, &made, &e), 0);
    er_open(&r, fd);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct er_inode ino;
        uint8_t got[8192];
        (void)snprintf(name, sizeof(name), "%zu", sizes[i]);
        assert_true(er_lookup(&r, name, &ino));
        assert_int_equal(ino.inl, sizes[i] % 4096 <= LAYER_INLINE_MAX);
        assert_int_equal(er_read(&r, &ino, 0, got, sizeof(got)), sizes[i]);
        assert_memory_equal(got, noise, sizes[i]);
    }
    er_close(&r);
    close(fd);
    tb_free(&b);
}

/* ---- what does not ---- */

static void test_wrong_digests(void **state)
{
    struct tb tar = {0}, b = {0};
    struct digest other = {{1, 2, 3}};
    sample(&tar);
    squeeze_gzip(tar.p, tar.len, &b);
    struct digest blob = sha(b.p, b.len);
    bad(&b, (struct layer_want){.blob = &other}, "the digest of its content is sha256:");
    bad(&b, (struct layer_want){.blob = &other}, "expected sha256:010203000000");
    bad(&b, (struct layer_want){.diff_id = &other}, "the digest of the tar inside is sha256:");
    bad(&b, (struct layer_want){.blob_size = b.len + 1}, "it ends after");
    bad(&b, (struct layer_want){.blob_size = b.len - 1}, "it is longer than the");
    /* A wrong byte, wherever it is, shows in the digest, whatever the parsers say of it. */
    for (size_t i = 0; i < 40; i++) {
        size_t at = i * (b.len - 1) / 39;
        b.p[at] ^= 0x40;
        bad(&b, (struct layer_want){.blob = &blob}, "the digest of its content is");
        b.p[at] ^= 0x40;
    }
    tb_free(&tar);
    tb_free(&b);
}

static void test_cut_short(void **state)
{
    void (*squeeze[])(const uint8_t *, size_t, struct tb *) = {squeeze_gzip, squeeze_zstd};
    struct tb tar = {0};
    sample(&tar);
    for (size_t k = 0; k < ARRAY_LEN(squeeze); k++) {
        struct tb b = {0};
        squeeze[k](tar.p, tar.len, &b);
        size_t len = b.len;
        for (size_t cut = 1; cut < 12; cut++) {
            b.len = len - cut;
            bad(&b, (struct layer_want){0}, "is truncated or damaged");
            b.len = len / 12 * cut;
            bad(&b, (struct layer_want){0}, "is truncated or damaged");
        }
        tb_free(&b);
    }
    tar.len = 300000;
    bad(&tar, (struct layer_want){0}, "the archive is damaged");
    tb_free(&tar);
}

static void test_not_an_archive(void **state)
{
    static const struct {
        const char *bytes, *text;
        size_t len;
    } table[] = {
        {"hello, world, this is no tar at all", "this is not a tar archive", 35},
        {"\xfd"
         "7zXZ\0rest",
         "it is compressed with xz, which is not supported", 10},
        {"BZh91AY&SY", "it is compressed with bzip2", 10},
        {"\x1f\x8b\x08\x00zzzzzzzzzzzz", "its gzip data is truncated or damaged", 16},
        {"\x28\xb5\x2f\xfdzzzzzzzzzzzzz", "its zstd data", 17},
        {"\x1f\x8b", "its gzip data is truncated or damaged", 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct tb b = {0};
        append(&b, table[i].bytes, table[i].len);
        bad(&b, (struct layer_want){0}, table[i].text);
        tb_free(&b);
    }
}

/* A window of 2^31 bytes, as zstd --ultra --long=31 makes, is more than we give. */
static void test_zstd_window(void **state)
{
    static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, (31 - 10) << 3,
                                    0x01, 0x00, 0x00, 0x00, 0x00, 0x00};
    struct tb b = {0};
    append(&b, frame, sizeof(frame));
    bad(&b, (struct layer_want){0}, "needs a window over the limit of 128 MiB");
    tb_free(&b);
}

/* 2 GiB of zeros in 2 MiB, in several places. */
static void make_bomb(struct tb *b, bool inside_a_file)
{
    static uint8_t zeros[1 << 20];
    struct tb tar = {0}, chunk = {0};
    if (inside_a_file)
        tb_add(&tar, (struct tb_entry){.name = "bomb", .type = '0', .size = 2ULL << 30});
    else
        add_text(&tar, "f", "x");
    if (!inside_a_file)
        tb_end(&tar);
    squeeze_gzip(tar.p, tar.len, b);
    squeeze_gzip(zeros, sizeof(zeros), &chunk);
    for (int i = 0; i < 2048; i++)
        append(b, chunk.p, chunk.len);
    tb_free(&tar);
    tb_free(&chunk);
}

static void test_limits(void **state)
{
    const struct layer_want small = {.max_bytes = 64 << 20, .max_entries = 100};
    struct tb b = {0};
    make_bomb(&b, true);
    bad(&b, small, "over the limit of 64 MiB expanded");
    tb_free(&b);
    make_bomb(&b, false); /* behind the archive's end */
    bad(&b, small, "it expands to more than the limit of 64 MiB");
    tb_free(&b);
    /* Sparse: nothing in the tar, terabytes on the disk. */
    tb_pax(&b, "GNU.sparse.major", "1", 1);
    tb_pax(&b, "GNU.sparse.minor", "0", 1);
    tb_pax(&b, "GNU.sparse.name", "sparse", 6);
    tb_pax(&b, "GNU.sparse.realsize", "9000000000000", 13);
    tb_add(&b, (struct tb_entry){
                   .name = "x", .type = '0', .size = 512, .data = (const char[512]){"0\n"}});
    tb_end(&b);
    bad(&b, small, "over the limit of 64 MiB expanded");
    tb_free(&b);
    char name[16];
    for (int i = 0; i < 101; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        add_text(&b, name, "");
    }
    tb_end(&b);
    bad(&b, small, "more than 100 entries");
    tb_free(&b);
}

static void test_stream_error(void **state)
{
    struct tb tar = {0};
    sample(&tar);
    static const size_t places[] = {1, 5000, 600000};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct mem_stream m = {.p = tar.p, .len = tar.len, .fail_at = places[i]};
        struct layer_made made;
        struct err e = {0};
        assert_int_equal(convert(&m, (struct layer_want){0}, NULL, &made, &e), -ECONNRESET);
        assert_string_equal(e.msg, "layer sha256:0123456789ab: the line went dead");
    }
    tb_free(&tar);
}

/* ---- the child ---- */

struct seen {
    int children, fds;
    bool stdio, filtered, no_new_privs;
};

static pid_t only_child(void)
{
    char path[64], text[64] = {0};
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)gettid());
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    return n ? (pid_t)strtol(text, NULL, 10) : -1;
}

/* Threads of a process, and how many of them have a line in their status. */
static int count_threads(pid_t pid, const char *want, int *ret_with)
{
    char path[300], line[256];
    int n = 0;
    *ret_with = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *de; d && (de = readdir(d));) {
        if (de->d_name[0] == '.')
            continue;
        n++;
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", (int)pid, de->d_name);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof(line), f))
            *ret_with += strcmp(line, want) == 0;
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return n;
}

/* Both threads confine themselves before they read: waits until they have. */
static void wait_confined(pid_t pid, struct seen *s)
{
    int with;
    for (int i = 0; i < 5000 && !s->filtered; i++) {
        s->filtered = count_threads(pid, "Seccomp:\t2\n", &with) == 2 && with == 2;
        s->no_new_privs = count_threads(pid, "NoNewPrivs:\t1\n", &with) == with;
        (void)usleep(1000);
    }
}

static void look_at_child(void *arg)
{
    struct seen *s = arg;
    char path[64];
    pid_t pid = only_child();
    if (pid <= 0)
        return;
    s->children++;
    wait_confined(pid, s);
    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *de; d && (de = readdir(d));) {
        if (de->d_name[0] == '.')
            continue;
        s->fds++;
        s->stdio |= strlen(de->d_name) == 1 && de->d_name[0] <= '2';
    }
    if (d)
        closedir(d);
}

static void test_child_is_confined(void **state)
{
    struct tb tar = {0};
    struct seen seen = {0};
    sample(&tar);
    struct mem_stream m = {
        .p = tar.p, .len = tar.len, .piece = 1000, .look = look_at_child, .arg = &seen};
    struct layer_made made;
    struct err e = {0};
    int leak = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */
    assert_int_equal(convert(&m, (struct layer_want){0}, NULL, &made, &e), 0);
    close(leak);
    tb_free(&tar);
    if (!seen.children)
        skip(); /* no /proc/.../children here */
    assert_true(seen.filtered && seen.no_new_privs);
    assert_int_equal(seen.fds, 4);
    assert_false(seen.stdio);
}

static void kill_child(void *arg)
{
    struct seen s = {0};
    pid_t pid = only_child();
    if (pid > 0) {
        wait_confined(pid, &s);
        kill(pid, *(int *)arg);
    }
    *(int *)arg = pid;
}

static void test_child_dies(void **state)
{
    static const struct {
        int sig;
        const char *text;
    } table[] = {{SIGKILL, "the converter was killed"},
                 {SIGSEGV, "the converter crashed (signal 11)"},
                 {SIGSYS, "the converter made a system call that is not allowed"}};
    struct tb tar = {0};
    sample(&tar);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        int arg = table[i].sig;
        struct mem_stream m = {
            .p = tar.p, .len = tar.len, .piece = 1000, .look = kill_child, .arg = &arg};
        struct layer_made made;
        struct err e = {0};
        int r = convert(&m, (struct layer_want){0}, NULL, &made, &e);
        if (arg <= 0)
            skip();
        assert_true(r < 0);
        if (!strstr(e.msg, table[i].text))
            fail_msg("'%s'", e.msg);
    }
    tb_free(&tar);
}

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 6 };

static void *convert_many(void *arg)
{
    const struct tb *b = arg;
    struct digest blob = sha(b->p, b->len);
    for (int i = 0; i < ROUNDS; i++) {
        struct mem_stream m = {.s = {&mem_ops}, .p = b->p, .len = b->len, .piece = 10000};
        struct layer_made made;
        struct err e = {0};
        int out = mk_memfile();
        const struct layer_want want = {.blob = &blob, .layer = true};
        int r = layer_convert(&m.s, &want, out, -1, NULL, &made, &e);
        close(out);
        if (r < 0)
            return strdup(e.msg);
    }
    return NULL;
}

static void test_threads(void **state)
{
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its allocator's locks do not survive a fork beside other threads */
#endif
    pthread_t t[THREADS];
    struct tb tar = {0}, b = {0};
    sample(&tar);
    squeeze_gzip(tar.p, tar.len, &b);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, convert_many, &b), 0);
    for (int i = 0; i < THREADS; i++) {
        void *why;
        assert_int_equal(pthread_join(t[i], &why), 0);
        if (why)
            fail_msg("%s", (char *)why);
    }
    tb_free(&tar);
    tb_free(&b);
}

/* The two ways to read gzip agree, also on what is damaged. */
static ssize_t decode_all(const uint8_t *p, size_t n, bool slow, struct digest *ret)
{
    static uint8_t buf[64 << 10];
    struct decoder d;
    struct hasher h;
    int fd = mk_memfile();
    ssize_t total = 0, k;
    assert_int_equal(write(fd, p, n), n);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(decoder_init(&d, fd), 0);
    hasher_init(&h);
    d.slow = slow;
    while ((k = decoder_read(&d, buf, sizeof(buf), NULL)) > 0) {
        hasher_update(&h, buf, (size_t)k);
        total += k;
    }
    *ret = hasher_finish(&h);
    decoder_free(&d);
    close(fd);
    return k < 0 ? k : total;
}

static void test_two_gzips(void **state)
{
    if (!codec_gzip_fast())
        skip();
    static uint8_t data[60000];
    for (uint32_t round = 0; round < 200; round++) {
        struct tb b = {0};
        struct digest fast, slow;
        size_t n = (size_t)round * 299;
        fill_bytes(data, n, round);
        memset(data + n / 3, 'a', n / 3);
        squeeze_gzip(data, n, &b);
        squeeze_gzip(data, n / 2, &b);
        assert_int_equal(decode_all(b.p, b.len, false, &fast), n + n / 2);
        assert_int_equal(decode_all(b.p, b.len, true, &slow), n + n / 2);
        assert_true(digest_equal(&fast, &slow));
        b.p[((size_t)round * 7919) % b.len] ^= (uint8_t)(1 << round % 8);
        ssize_t got[2] = {decode_all(b.p, b.len, false, &fast),
                          decode_all(b.p, b.len, true, &slow)};
        assert_int_equal(got[0] < 0, got[1] < 0);
        assert_true(got[0] < 0 || (got[0] == got[1] && digest_equal(&fast, &slow)));
        tb_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressions),   cmocka_unit_test(test_zstd_skippable),
        cmocka_unit_test(test_behind_the_end), cmocka_unit_test(test_empty_layers),
        cmocka_unit_test(test_inline_limit),   cmocka_unit_test(test_wrong_digests),
        cmocka_unit_test(test_cut_short),      cmocka_unit_test(test_not_an_archive),
        cmocka_unit_test(test_zstd_window),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stream_error),   cmocka_unit_test(test_child_is_confined),
        cmocka_unit_test(test_child_dies),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_two_gzips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
