/* Small files of the image, read and written without trusting it.
 *
 * The image decides what /etc/passwd or /etc/hosts is: a symlink, a FIFO, a device. Opening never
 * blocks, only regular files are read, and only up to a limit.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* malloc'd text with a NUL at the end, or NULL with errno set. *len may be NULL. */
char *file_read_text(const char *path, size_t max, size_t *len);
/* Replaces the content of a regular file or creates it; does not follow a final symlink. */
int file_write(const char *path, const void *p, size_t n, mode_t mode);
/* Makes sure that `path` is a real directory: creates it, after removing a symlink or file of the
 * same name. 0 or -errno. */
int dir_ensure(const char *path, mode_t mode);
