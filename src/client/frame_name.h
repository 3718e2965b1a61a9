/* "EXEC": the type of a frame, for diagnostics. */
#pragma once

#include <stdint.h>

const char *frame_name(uint16_t type); /* "unknown" if it is */
