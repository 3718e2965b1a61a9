/* How old a guest kernel is, and what this machine knows about newer ones. Uses no network, and
 * runs no program. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERNEL_OLD_DAYS = 90 };

struct kernel_release {
    unsigned number[3]; /* 7.2.13; Debian's suffix is not compared */
    int64_t when;       /* of its source; seconds since 1970, 0 = not known */
};

/* Reads it from the banner in a kernel file, whatever its origin. -ENOENT: it has none. */
int kernel_release_read(const char *path, struct kernel_release *ret);
/* The newest that kernel/build has ever found in the archives; false if this user has never built
 * one. */
bool kernel_release_newest(struct kernel_release *ret);
/* < 0: a is older. */
int kernel_release_compare(const struct kernel_release *a, const struct kernel_release *b);
/* "Linux 7.2.13 of 2026-10-28", or without the date. */
void kernel_release_text(const struct kernel_release *k, char *out, size_t size);
