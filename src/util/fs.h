/* Files by directory descriptor: whole-file reads, atomic replacement, recursive removal.
 *
 * Everything here that takes a name refuses to follow a symbolic link in its last component: some
 * of the directories we work in are writable by a less privileged process. All return -errno on
 * failure.
 */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens a directory for reading, close-on-exec. -ENOTDIR if it is something else, including a
 * link. */
static inline int dir_open_at(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* The same, for readdir(); NULL with errno set. */
DIR *dir_read_at(int dirfd, const char *name);
/* Like fdopendir(), but takes fd in any case; if fd is -1, fails with the current errno. */
DIR *dir_take(int fd);

/* Opens a lock file (`create`: O_CREAT or 0) and takes its flock (op). Its last holder removes it:
 * if the name no longer leads to the locked file, it locks again. */
int lock_file_at(int dirfd, const char *name, int create, int op);

/* Reads a regular file of at most `max` bytes into a malloc'd, NUL-terminated buffer. -EFBIG if it
 * is larger, -ELOOP/-EINVAL if it is not a regular file. */
int file_read_at(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len);

/* Writes a temporary file beside `name` and renames it to `name`. sync: the content is on disk
 * before the rename, and the rename before we return. */
int file_replace_at(int dirfd, const char *name, const void *p, size_t n, mode_t mode, bool sync);

/* Removes temporary files in a directory whose writers were killed. */
void file_replace_sweep(int dirfd);

/* Removes a file or a whole directory tree; never crosses a symlink. Missing is success. */
int remove_tree_at(int dirfd, const char *name);
/* The same if a process that is about to end may still be adding files. */
int remove_tree_patiently(int dirfd, const char *name);

/* mkdir -p for an absolute path; new directories get `mode`. */
int mkdir_parents(const char *path, mode_t mode);

/* Reads until the buffer is full or the file ends; returns how many bytes, or -errno. */
ssize_t read_up_to(int fd, void *p, size_t n);
/* Write, or read, all n bytes. pread_all: -EIO if the file ends first. */
int write_all(int fd, const void *p, size_t n);
int pwrite_all(int fd, const void *p, size_t n, uint64_t offset);
int pread_all(int fd, void *p, size_t n, uint64_t offset);
