/* Text for people: similar words, tables, time stamps. */
#pragma once

#include "util/buf.h"
#include "util/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Edits (insert, delete, replace, swap of neighbors) from a to b; words longer than
 * TEXT_WORD_MAX are infinitely far apart. */
enum { TEXT_WORD_MAX = 63, TEXT_FAR = 1000 };
unsigned edit_distance(const char *a, const char *b);
/* How different two words are, for "did you mean": the edit distance, or 1 if the typed word is a
 * prefix of the other; TEXT_FAR if they are not similar. */
unsigned word_unlikeness(const char *typed, const char *word);

/* An ASCII letter or digit, whatever the locale. */
static inline bool ascii_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool utf8_valid(const char *s);
/* The width of a UTF-8 string in columns, counting one for each character. */
size_t utf8_width(const char *s);

/* A table of strings, printed with aligned columns four spaces apart. */
enum { TABLE_COLUMNS_MAX = 10 };
struct table {
    size_t columns;
    size_t n; /* cells, headers included */
    char **cell;
    size_t max[TABLE_COLUMNS_MAX]; /* a longer cell is cut to that many characters and "..." */
    bool failed;                   /* out of memory: table_print says so */
};
void table_init(struct table *t, size_t columns, const char *const *headers);
void table_free(struct table *t);
#define AUTO_TABLE CLEANUP(table_free)
/* Control characters become '?': a name or an image must not control the user's terminal. */
void table_add(struct table *t, const char *cell);
void table_add_all(struct table *t, const char *const *cells, size_t n);
#define TABLE_ROW(t, ...)                                \
    table_add_all(t, (const char *const[]){__VA_ARGS__}, \
                  sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))
/* `style`, if set, returns the escape sequence for a cell ("" or NULL = none). */
typedef const char *(*table_style)(size_t row, size_t column, const char *cell);
int table_print(const struct table *t, struct buf *out, table_style style);

/* "2026-01-02T03:04:05.678901234Z" and, in local time, "2026-01-02 03:04:05". */
enum { TIME_TEXT_MAX = 48 };
void time_rfc3339(uint64_t realtime_ns, char out[TIME_TEXT_MAX]);
void time_local(uint64_t realtime_ns, char out[TIME_TEXT_MAX]);
