/* OpenSSL recommends its provider API, which takes a process a millisecond to set up: more than
 * most of our hashes take. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "image/oci/digest.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "sha256:"
enum { PREFIX_LEN = sizeof(PREFIX) - 1, CHUNK = 64 << 10 };

/* Upper-case digits would be a second spelling of the same digest, so they are refused, as
 * elsewhere. */
static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int digest_parse(const char *text, struct digest *ret, struct err *e)
{
    const char *colon = strchr(text, ':');
    if (colon && colon != text && strncmp(text, PREFIX, PREFIX_LEN) != 0)
        return err_set(e, ENOTSUP, "digest '%.80s' uses an algorithm other than sha256", text);
    struct digest d;
    bool ok = strncmp(text, PREFIX, PREFIX_LEN) == 0 && strlen(text) == DIGEST_TEXT_SIZE - 1;
    for (size_t i = 0; ok && i < DIGEST_SIZE; i++) {
        int hi = hex_value(text[PREFIX_LEN + 2 * i]), lo = hex_value(text[PREFIX_LEN + 2 * i + 1]);
        ok = hi >= 0 && lo >= 0;
        d.b[i] = (uint8_t)(ok ? hi << 4 | lo : 0);
    }
    if (!ok)
        return err_set(e, EINVAL,
                       "invalid digest '%.80s': it must be sha256: and 64 lower-case hex digits",
                       text);
    *ret = d;
    return 0;
}

void digest_hex(const struct digest *d, char hex[DIGEST_HEX_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < DIGEST_SIZE; i++) {
        hex[2 * i] = digits[d->b[i] >> 4];
        hex[2 * i + 1] = digits[d->b[i] & 15];
    }
    hex[DIGEST_HEX_SIZE - 1] = '\0';
}

void digest_text(const struct digest *d, char text[DIGEST_TEXT_SIZE])
{
    memcpy(text, PREFIX, PREFIX_LEN);
    digest_hex(d, text + PREFIX_LEN);
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->b, b->b, DIGEST_SIZE) == 0;
}

struct digest digest_of(const void *p, size_t n)
{
    struct hasher h;
    hasher_init(&h);
    hasher_update(&h, p, n);
    return hasher_finish(&h);
}

void digest_hex_of(const void *p, size_t n, char hex[DIGEST_HEX_SIZE])
{
    const struct digest d = digest_of(p, n);
    digest_hex(&d, hex);
}

int digest_of_fd(int fd, struct digest *ret)
{
    uint8_t chunk[CHUNK];
    struct hasher h;
    hasher_init(&h);
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n == 0)
            break;
        if (n > 0)
            hasher_update(&h, chunk, (size_t)n);
        else if (errno != EINTR)
            return -errno;
    }
    *ret = hasher_finish(&h);
    return 0;
}

int digest_hex_of_fd(int fd, char hex[DIGEST_HEX_SIZE])
{
    struct digest d;
    int r = digest_of_fd(fd, &d);
    if (r == 0)
        digest_hex(&d, hex);
    return r;
}

void hasher_init(struct hasher *h)
{
    (void)SHA256_Init(&h->ctx);
}

void hasher_update(struct hasher *h, const void *p, size_t n)
{
    (void)SHA256_Update(&h->ctx, p, n);
}

struct digest hasher_finish(struct hasher *h)
{
    struct digest d;
    (void)SHA256_Final(d.b, &h->ctx);
    return d;
}

void hasher_hex(struct hasher *h, char hex[DIGEST_HEX_SIZE])
{
    const struct digest d = hasher_finish(h);
    digest_hex(&d, hex);
}
