/* For fuzz targets that check results: what does not hold is a crash. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond) \
    do {              \
        if (!(cond))  \
            abort();  \
    } while (0)
