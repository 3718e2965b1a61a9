/* Limits on a sandbox's traffic, as users write them: 10M, 512K/100ms; 1000, 50/s. */
#pragma once

#include "net/rate.h"
#include "util/err.h"

#include <jansson.h>

enum { SPEC_RATE_TEXT_MAX = 96 };
#define SPEC_RATE_MAX (1ULL << 50) /* bytes or packets */

/* Sizes if `bytes`, else counts; both with an optional "/TIME", default a second. Leaves the burst
 * of *ret alone. -EINVAL or -ERANGE; the texts below say what was expected. */
int spec_rate_parse(const char *text, bool bytes, struct rate_limit *ret);
int spec_rate_parse_burst(const char *text, bool bytes, struct rate_limit *ret);
#define SPEC_RATE_EXPECTED_BYTES "expected SIZE or SIZE/TIME, such as 10M or 512K/100ms"
#define SPEC_RATE_EXPECTED_COUNT "expected COUNT or COUNT/TIME, such as 1000 or 50/100ms"

/* "10 MiB/s", "512 KiB/100ms, burst 1 MiB" */
void spec_rate_format(const struct rate_limit *l, bool bytes, char out[SPEC_RATE_TEXT_MAX]);

/* {"bandwidth": {...}, "ops": {...}}; null if nothing is limited. NULL: out of memory. */
json_t *spec_rate_to_json(const struct rate_limits *l);
int spec_rate_from_json(struct rate_limits *l, const json_t *j, struct err *e);
