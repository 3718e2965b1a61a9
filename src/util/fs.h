/* Files by directory descriptor: whole-file reads, atomic replacement, recursive removal.
 *
 * Everything here refuses to follow a symbolic link in the last component: some of the
 * directories we work in are writable by a less privileged process.
 */
#ifndef MSB_UTIL_FS_H
#define MSB_UTIL_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads a regular file of at most `max` bytes into a malloc'd, NUL-terminated buffer. -EFBIG when
 * it is larger, -ELOOP/-EINVAL when it is no regular file. */
int file_read_at(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len);

/* Writes a temporary file beside `name` and renames it over. sync: the content is on disk before
 * the rename, and the rename before we return. */
int file_replace_at(int dirfd, const char *name, const void *p, size_t n, mode_t mode, bool sync);

/* Removes a file or a whole directory tree; never crosses a symlink. Missing is success. */
int remove_tree_at(int dirfd, const char *name);

/* mkdir -p for an absolute path; made directories get `mode`. */
int mkdir_parents(const char *path, mode_t mode);

/* write() until everything is written. */
int write_all(int fd, const void *p, size_t n);

#endif
