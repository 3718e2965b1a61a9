/* Paths below a directory that somebody else, a guest for instance, writes to meanwhile: the way stays
 * below it and on its file system, whatever is made a link or moved. */
#ifndef MSB_UTIL_BENEATH_H
#define MSB_UTIL_BENEATH_H

#include <stdbool.h>

/* -EXDEV: it leads out. links: those that stay below are followed; without it they are -ELOOP. */
int beneath_open(int dirfd, const char *path, int flags, bool links);
/* A directory. make: those that are missing are made; on their way no link is followed. */
int beneath_dir(int dirfd, const char *path, bool links, bool make);

#endif
