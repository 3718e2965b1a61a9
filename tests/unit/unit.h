/* cmocka.h, and what has to be included before it. */
#ifndef MSB_UNIT_H
#define MSB_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
