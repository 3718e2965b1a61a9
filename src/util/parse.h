/* Parses numbers as people type them: sizes, durations, counts.
 *
 * Each parser takes the whole string or refuses it: no sign, no white space, no trailing junk, no
 * overflow. Fractions are computed in integers, so 0.1G is the same on every machine. They return
 * 0, -EINVAL (malformed) or -ERANGE (too large); the caller knows the option and writes the
 * message.
 */
#pragma once

#include <stdint.h>

#define KIB (1ULL << 10)
#define MIB (1ULL << 20)
#define GIB (1ULL << 30)
#define TIB (1ULL << 40)

/* Decimal digits only. */
int parse_u64(const char *s, uint64_t *ret);

/* 512, 512M, 1.5G, 64MiB, 2GB, 100K: always powers of 1024, in bytes. A bare number counts `unit`
 * bytes. Part of a byte is dropped. */
int parse_size(const char *s, uint64_t unit, uint64_t *ret);

/* 30, 30s, 500ms, 1.5s, 1h30m, 2d: in milliseconds; bare numbers are seconds. Part of a
 * millisecond counts as a whole one, so that only 0 is 0. */
int parse_duration_ms(const char *s, uint64_t *ret);

/* 1, 0.5, 1.25: a number of CPUs, in thousandths; more than three decimals are refused. */
int parse_milli(const char *s, uint64_t *ret);

/* The end of the message about a refused value. */
#define PARSE_SIZE_EXAMPLES "expected a size such as 512M, 1G or 1.5GiB"
#define PARSE_DURATION_EXAMPLES "expected a duration such as 30s, 500ms, 5m or 1h30m"

/* "30s", "1.5s", "1h30m", "500ms": the shortest form that parse_duration_ms reads back. */
void format_duration(uint64_t ms, char *out, unsigned long size);
/* "512 B", "1.5 MiB", "12 GiB". */
void format_bytes(uint64_t bytes, char *out, unsigned long size);
/* "512 MiB", "1.5 GiB". */
void format_mib(uint64_t mib, char *out, unsigned long size);
