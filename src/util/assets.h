/* Files installed beside the program: kernels and disks. */
#pragma once

#include "util/err.h"

#include <stddef.h>

/* Directory with kernel, tools disk and base image: $MSB_ASSETS, or beside the executable
 * (build tree), or <prefix>/lib/msb. */
int assets_dir(char *out, size_t size, struct err *e);
