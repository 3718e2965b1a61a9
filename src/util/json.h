/* jansson values that are released with their scope. */
#ifndef MSB_UTIL_JSON_H
#define MSB_UTIL_JSON_H

#include "util/cleanup.h"

#include <jansson.h>

static inline void cleanup_json_p(json_t **j)
{
    json_decref(*j);
}

#define AUTO_JSON CLEANUP(cleanup_json_p)

#endif
