#include "util/parse.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A decimal number as integer part and fraction in units of 1e-9. */
struct decimal {
    uint64_t whole;
    uint32_t nano;
    int decimals;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads digits[.digits] at *s and skips it. Digits past the ninth decimal must be zero. */
static int read_decimal(const char **s, struct decimal *d)
{
    const char *p = *s;
    *d = (struct decimal){0};
    if (!is_digit(*p))
        return -EINVAL;
    for (; is_digit(*p); p++)
        if (__builtin_mul_overflow(d->whole, 10, &d->whole) ||
            __builtin_add_overflow(d->whole, (uint64_t)(*p - '0'), &d->whole))
            return -ERANGE;
    if (*p == '.') {
        p++;
        if (!is_digit(*p))
            return -EINVAL;
        uint32_t place = 100000000;
        for (; is_digit(*p); p++, place /= 10) {
            if (place == 0 && *p != '0')
                return -EINVAL;
            d->nano += (uint32_t)(*p - '0') * place;
            if (place)
                d->decimals++;
        }
    }
    *s = p;
    return 0;
}

/* decimal x unit, rest of the division rounded up or down. */
static int scale(const struct decimal *d, uint64_t unit, bool up, uint64_t *ret)
{
    uint64_t whole;
    if (__builtin_mul_overflow(d->whole, unit, &whole))
        return -ERANGE;
    unsigned __int128 part = (unsigned __int128)d->nano * unit;
    uint64_t add = (uint64_t)(part / 1000000000);
    if (up && part % 1000000000)
        add++;
    return __builtin_add_overflow(whole, add, ret) ? -ERANGE : 0;
}

int parse_u64(const char *s, uint64_t *ret)
{
    struct decimal d;
    int r = read_decimal(&s, &d);
    if (r < 0)
        return r;
    if (*s != '\0' || d.decimals)
        return -EINVAL;
    *ret = d.whole;
    return 0;
}

int parse_milli(const char *s, uint64_t *ret)
{
    struct decimal d;
    int r = read_decimal(&s, &d);
    if (r < 0)
        return r;
    if (*s != '\0' || d.nano % 1000000)
        return -EINVAL;
    return scale(&d, 1000, false, ret);
}

int parse_size(const char *s, uint64_t unit, uint64_t *ret)
{
    static const struct {
        const char *suffix[3];
        uint64_t unit;
    } units[] = {
        {{"K", "KB", "KiB"}, KIB},
        {{"M", "MB", "MiB"}, MIB},
        {{"G", "GB", "GiB"}, GIB},
        {{"T", "TB", "TiB"}, TIB},
    };
    struct decimal d;
    int r = read_decimal(&s, &d);
    if (r < 0)
        return r;
    if (*s == '\0')
        return scale(&d, unit, false, ret);
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        for (size_t j = 0; j < 3; j++)
            if (strcasecmp(s, units[i].suffix[j]) == 0)
                return scale(&d, units[i].unit, false, ret);
    return -EINVAL;
}

/* Milliseconds of the unit at *s, which is skipped; 0 = no such unit. */
static uint64_t read_time_unit(const char **s)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        size_t n = strlen(units[i].name);
        if (strncmp(*s, units[i].name, n) == 0) {
            *s += n;
            return units[i].ms;
        }
    }
    return 0;
}

int parse_duration_ms(const char *s, uint64_t *ret)
{
    uint64_t total = 0;
    bool first = true;
    do {
        struct decimal d;
        int r = read_decimal(&s, &d);
        if (r < 0)
            return r;
        uint64_t unit = 1000;
        if (*s != '\0' || !first) { /* only a number on its own may go without a unit */
            unit = read_time_unit(&s);
            if (unit == 0)
                return -EINVAL;
        }
        uint64_t ms;
        r = scale(&d, unit, true, &ms);
        if (r < 0 || __builtin_add_overflow(total, ms, &total))
            return -ERANGE;
        first = false;
    } while (*s != '\0');
    if (total > INT64_MAX / 1000000) /* timers count nanoseconds */
        return -ERANGE;
    *ret = total;
    return 0;
}

void format_duration(uint64_t ms, char *out, unsigned long size)
{
    uint64_t s = ms / 1000;
    unsigned frac = (unsigned)(ms % 1000);
    if (frac && s == 0) {
        (void)snprintf(out, size, "%ums", frac);
        return;
    }
    if (frac) {
        char digits[4];
        (void)snprintf(digits, sizeof(digits), "%03u", frac);
        for (size_t n = 3; n > 0 && digits[n - 1] == '0'; n--)
            digits[n - 1] = '\0';
        (void)snprintf(out, size, "%llu.%ss", (unsigned long long)s, digits);
        return;
    }
    unsigned long long h = s / 3600, m = s / 60 % 60, sec = s % 60;
    char *p = out;
    char *end = out + size;
    if (h)
        p += snprintf(p, (size_t)(end - p), "%lluh", h);
    if (m && p < end)
        p += snprintf(p, (size_t)(end - p), "%llum", m);
    if ((sec || s == 0) && p < end)
        (void)snprintf(p, (size_t)(end - p), "%llus", sec);
}

void format_bytes(uint64_t bytes, char *out, unsigned long size)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes / 1024;
    size_t i = 0;
    if (bytes < 1024) {
        (void)snprintf(out, size, "%d B", (int)bytes);
        return;
    }
    for (; v >= 999.5 && i + 1 < ARRAY_LEN(units); i++)
        v /= 1024;
    (void)snprintf(out, size, v < 9.95 ? "%.1f %s" : "%.0f %s", v, units[i]);
}

void format_mib(uint64_t mib, char *out, unsigned long size)
{
    if (mib < 1024)
        (void)snprintf(out, size, "%llu MiB", (unsigned long long)mib);
    else
        (void)snprintf(out, size, "%.4g GiB", (double)mib / 1024);
}
