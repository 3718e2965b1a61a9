/* Paths below a directory that someone else, such as a guest, may write to at the same time: lookups stay
 * below it and on its file system, whatever is moved or replaced by a link. */
#pragma once

#include <stdbool.h>

/* -EXDEV: it leads out. links: those that stay below are followed; without it they are -ELOOP. */
int beneath_open(int dirfd, const char *path, int flags, bool links);
/* A directory. make: those that are missing are made; on their way no link is followed. */
int beneath_dir(int dirfd, const char *path, bool links, bool make);
