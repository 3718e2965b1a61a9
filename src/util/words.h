/* Looking up a word in a list. */
#pragma once

#include "util/cleanup.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether it is one of those in "a|b|c". False for NULL. */
bool word_among(const char *words, const char *word);
/* The word's index in a list, which may have gaps; -EINVAL if it is not there, or `word` is
 * NULL. */
int word_find(const char *const *list, size_t n, const char *word);
#define WORD_FIND(list, word) word_find(list, ARRAY_LEN(list), word)
