/* Kernel interfaces that the C library's headers may not have yet. */
#pragma once

#include <stdint.h>
#include <sys/syscall.h>

#ifndef SYS_getxattrat /* Linux 6.13 */
#define __NR_getxattrat 464
#define SYS_getxattrat __NR_getxattrat
#endif

/* What getxattrat() takes: struct xattr_args. */
struct xattr_value {
    uint64_t value;
    uint32_t size, flags;
};

#ifndef AT_HANDLE_FID /* Linux 6.5 */
#define AT_HANDLE_FID 0x200
#endif
