/* For fuzz targets that check results: what does not hold is a crash. */
#ifndef MSB_FUZZ_REQUIRE_H
#define MSB_FUZZ_REQUIRE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond) \
    do {              \
        if (!(cond))  \
            abort();  \
    } while (0)

#endif
