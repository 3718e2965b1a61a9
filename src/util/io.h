/* Whole reads and writes at an offset: until done, the end of the file, or an error. */
#ifndef MSB_UTIL_IO_H
#define MSB_UTIL_IO_H

#include <stddef.h>
#include <stdint.h>

int pwrite_all(int fd, const void *p, size_t n, uint64_t offset);
/* -EIO when the file ends first. */
int pread_all(int fd, void *p, size_t n, uint64_t offset);

#endif
