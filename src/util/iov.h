/* Scattered buffers. All offsets are checked: a copy ends short, never past the end. */
#pragma once

#include <stddef.h>
#include <sys/uio.h>

/* memcpy from memory that may change meanwhile: the compiler may not reread the source later, so
 * what was checked in the copy remains true. */
void guest_copy(void *dst, const void *src, size_t len);

size_t iov_total(const struct iovec *iov, unsigned n);
/* Copies between a flat buffer and iov[] from byte `off` on; returns how many bytes moved. */
size_t iov_read(const struct iovec *iov, unsigned n, size_t off, void *dst, size_t len);
size_t iov_write(const struct iovec *iov, unsigned n, size_t off, const void *src, size_t len);
/* Copies up to len bytes from src (from soff) to dst (from doff); returns how many. */
size_t iov_move(const struct iovec *dst, unsigned nd, size_t doff, const struct iovec *src,
                unsigned ns, size_t soff, size_t len);
/* Zeroes up to len bytes from off on. */
size_t iov_zero(const struct iovec *iov, unsigned n, size_t off, size_t len);
/* Describes [off, off+len) of src in dst[max]; returns the number of entries used. The slice is
 * shorter than len if src or dst ends first. */
unsigned iov_slice(struct iovec *dst, unsigned max, const struct iovec *src, unsigned n, size_t off,
                   size_t len);
