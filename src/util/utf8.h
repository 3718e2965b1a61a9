/* UTF-8, as strict as JSON and terminals need it: no overlong forms, no surrogates, nothing past
 * U+10FFFF. The bytes may come from a guest; nothing here allocates or fails. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The character at p (n >= 1 bytes to look at): its length, 1..4, with *cp set. 0: the bytes are
 * the beginning of a character that continues after p + n. -1: not UTF-8. */
int utf8_char(const uint8_t *p, size_t n, uint32_t *cp);

/* How many bytes at the very end, 0..3, are the beginning of an incomplete character. */
size_t utf8_unfinished(const uint8_t *p, size_t n);

/* Marks that change the order in which text is shown. */
static inline bool utf8_reorders(uint32_t cp)
{
    return cp == 0x200e || cp == 0x200f || (cp >= 0x202a && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069);
}

/* Makes untrusted text safe to show on one line of a terminal, in place: control characters (C0,
 * DEL, C1, and marks that reorder text) and anything that is not UTF-8 become '?'. The text never
 * grows. */
void utf8_defuse(char *s);
/* The same for text of several lines: newlines and tabs stay. */
void utf8_defuse_lines(char *s);
