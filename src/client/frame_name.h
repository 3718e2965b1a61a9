/* "EXEC": the type of a frame, for diagnostics. */
#ifndef MSB_CLIENT_FRAME_NAME_H
#define MSB_CLIENT_FRAME_NAME_H

#include <stdint.h>

const char *frame_name(uint16_t type); /* "unknown" if it is */

#endif
