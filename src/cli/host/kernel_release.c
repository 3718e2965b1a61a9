#include "cli/host/kernel_release.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { KERNEL_FILE_MAX = 256 << 20, BANNER_MAX = 512, RECORD_MAX = 64 };

static bool parse_number(const char *s, struct kernel_release *ret)
{
    struct kernel_release k = {0};
    int n = sscanf(s, "%5u.%5u.%5u", &k.number[0], &k.number[1], &k.number[2]);
    if (!isdigit((unsigned char)*s) || n < 2)
        return false;
    *ret = k;
    return true;
}

/* "Linux version 7.2.13 (msb@msb) (gcc ...) #1 @1793199715": kernel/build writes the time of the
 * source there instead of that of the build. */
static bool parse_banner(const char *p, size_t n, struct kernel_release *ret)
{
    char line[BANNER_MAX];
    size_t len = strnlen(p, MIN(n, sizeof(line) - 1));
    memcpy(line, p, len);
    line[len] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (!parse_number(line, ret))
        return false;
    const char *at = strrchr(line, '@'); /* not the first byte: that is a digit */
    if (at && at[-1] == ' ' && isdigit((unsigned char)at[1])) {
        char *end;
        long long when = strtoll(at + 1, &end, 10);
        ret->when = *end == '\0' && when <= INT_MAX * 100LL ? when : 0;
    }
    return true;
}

int kernel_release_read(const char *path, struct kernel_release *ret)
{
    static const char start[] = "Linux version ";
    struct stat st;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > KERNEL_FILE_MAX)
        return -ENOENT;
    size_t size = (size_t)st.st_size, left = size;
    char *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    bool found = false;
    const char *p = map;
    while (!found && (p = memmem(p, left, start, sizeof(start) - 1))) {
        p += sizeof(start) - 1;
        left = size - (size_t)(p - map);
        found = parse_banner(p, left, ret);
    }
    (void)munmap(map, size);
    return found ? 0 : -ENOENT;
}

/* Where kernel/build keeps its findings; the two must agree. */
static int open_cache(void)
{
    char path[PATH_MAX];
    const char *own = getenv("MSB_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = own && *own   ? snprintf(path, sizeof(path), "%s/kernel", own)
            : xdg && *xdg ? snprintf(path, sizeof(path), "%s/msb/kernel", xdg)
                          : snprintf(path, sizeof(path), "%s/.cache/msb/kernel", home ? home : "");
    return n < 0 || (size_t)n >= sizeof(path) ? -ENAMETOOLONG : dir_open_at(AT_FDCWD, path);
}

bool kernel_release_newest(struct kernel_release *ret)
{
    /* The second is what kernels are built from, which may deliberately be older than the first. */
    static const char *const records[] = {"newest-version", "source-version"};
    AUTO_CLOSE int dir = open_cache();
    bool found = false;
    for (size_t i = 0; dir >= 0 && i < ARRAY_LEN(records); i++) {
        AUTO_FREE char *text = NULL;
        struct kernel_release k;
        size_t n;
        if (file_read_at(dir, records[i], RECORD_MAX, &text, &n) < 0 || !parse_number(text, &k))
            continue;
        if (!found || kernel_release_compare(&k, ret) > 0)
            *ret = k;
        found = true;
    }
    return found;
}

int kernel_release_compare(const struct kernel_release *a, const struct kernel_release *b)
{
    for (size_t i = 0; i < ARRAY_LEN(a->number); i++)
        if (a->number[i] != b->number[i])
            return a->number[i] < b->number[i] ? -1 : 1;
    return 0;
}

void kernel_release_text(const struct kernel_release *k, char *out, size_t size)
{
    char date[32] = "";
    time_t when = (time_t)k->when;
    struct tm tm;
    if (when > 0 && gmtime_r(&when, &tm))
        (void)strftime(date, sizeof(date), " of %Y-%m-%d", &tm);
    (void)snprintf(out, size, "Linux %u.%u.%u%s", k->number[0], k->number[1], k->number[2], date);
}
