/* How old a guest kernel is, and what this machine knows of newer ones. Nothing is asked of the
 * network, and no program is run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERNEL_OLD_DAYS = 90 };

struct kernel_release {
    unsigned number[3]; /* 7.2.13; what Debian appends is not compared */
    int64_t when;       /* of its source; seconds since 1970, 0 = not known */
};

/* From the banner in a kernel's file, wherever that came from. -ENOENT: it has none. */
int kernel_release_read(const char *path, struct kernel_release *ret);
/* The newest that kernel/build has ever found in the archives; false if this user has never built
 * one. */
bool kernel_release_newest(struct kernel_release *ret);
/* < 0: a is older. */
int kernel_release_compare(const struct kernel_release *a, const struct kernel_release *b);
/* "Linux 7.2.13 of 2026-10-28", or without the date. */
void kernel_release_text(const struct kernel_release *k, char *out, size_t size);
