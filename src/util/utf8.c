#include "util/utf8.h"

#include <stdbool.h>
#include <string.h>

static bool is_continuation(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

/* Length of a character that starts with this byte; 0 if none does. */
static int length_from(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if ((first & 0xf0) == 0xe0)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* Overlong forms, surrogates and values past U+10FFFF are detected in the second byte. */
static bool second_ok(uint8_t first, uint8_t second)
{
    if (!is_continuation(second))
        return false;
    switch (first) {
    case 0xe0:
        return second >= 0xa0;
    case 0xed:
        return second <= 0x9f;
    case 0xf0:
        return second >= 0x90;
    case 0xf4:
        return second <= 0x8f;
    default:
        return true;
    }
}

int utf8_char(const uint8_t *p, size_t n, uint32_t *cp)
{
    static const uint8_t first_bits[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    int len = length_from(p[0]);
    if (len == 0)
        return -1;
    if (len > 1 && n > 1 && !second_ok(p[0], p[1]))
        return -1;
    uint32_t v = p[0] & first_bits[len];
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (!is_continuation(p[i]))
            return -1;
        v = v << 6 | (p[i] & 0x3f);
    }
    *cp = v;
    return len;
}

size_t utf8_unfinished(const uint8_t *p, size_t n)
{
    uint32_t cp;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        if (is_continuation(p[n - back]))
            continue;
        return utf8_char(p + n - back, back, &cp) == 0 ? back : 0;
    }
    return 0;
}

static bool is_unsafe(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || utf8_reorders(cp);
}

/* `keep`: control characters that stay. */
static void defuse(char *s, const char *keep)
{
    const uint8_t *from = (const uint8_t *)s;
    size_t n = strlen(s);
    char *to = s;
    while (n) {
        uint32_t cp;
        int len = utf8_char(from, n, &cp);
        if (len <= 0 || (is_unsafe(cp) && !(cp < 0x20 && strchr(keep, (int)cp)))) {
            *to++ = '?';
            len = len > 0 ? len : 1;
        } else {
            memmove(to, from, (size_t)len);
            to += len;
        }
        from += len;
        n -= (size_t)len;
    }
    *to = '\0';
}

void utf8_defuse(char *s)
{
    defuse(s, "");
}

void utf8_defuse_lines(char *s)
{
    defuse(s, "\n\t");
}
