#include "image/tar/format.h"

#include <errno.h>
#include <string.h>

/* Octal digits, padded by spaces or NULs; or, with the first bit set, base 256. */
int tar_number(const char *p, size_t n, uint64_t *ret)
{
    const uint8_t *b = (const uint8_t *)p;
    uint64_t v = 0;
    if (b[0] & 0x80) {
        if (b[0] != 0x80) /* negative, or over 2^88 */
            return -EBADMSG;
        for (size_t i = 1; i < n; i++) {
            if (v >> 55)
                return -EBADMSG;
            v = v << 8 | b[i];
        }
        *ret = v;
        return 0;
    }
    size_t i = 0;
    while (i < n && p[i] == ' ')
        i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(p[i] - '0'); /* 12 digits at most: 36 bits */
    if (i < n && p[i] != ' ' && p[i] != '\0')
        return -EBADMSG;
    *ret = v;
    return 0;
}

/* Some old tars summed signed characters. */
bool tar_checksum_fits(const struct tar_header *h)
{
    const uint8_t *b = (const uint8_t *)h;
    uint64_t want;
    unsigned sum = 0;
    int sum_signed = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        bool in =
            i >= offsetof(struct tar_header, checksum) && i < offsetof(struct tar_header, type);
        sum += in ? ' ' : b[i];
        sum_signed += in ? ' ' : (int8_t)b[i];
    }
    if (tar_number(h->checksum, sizeof(h->checksum), &want) < 0)
        return false;
    return want == sum || (sum_signed >= 0 && want == (uint64_t)sum_signed);
}

bool tar_is_zero(const struct tar_header *h)
{
    static const char zeros[TAR_BLOCK];
    return memcmp(h, zeros, TAR_BLOCK) == 0;
}
