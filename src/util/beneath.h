/* Paths below a directory that someone else, such as a guest, may write to at the same time:
 * lookups stay below it and on its file system, even if something is moved or replaced by a
 * link. */
#pragma once

#include <stdbool.h>

/* -EXDEV: it leads out. links: follow links that stay below; otherwise, links are -ELOOP. */
int beneath_open(int dirfd, const char *path, int flags, bool links);
/* Opens a directory. make: create missing directories; no link is then followed. */
int beneath_dir(int dirfd, const char *path, bool links, bool make);
