#include "util/words.h"

#include <errno.h>
#include <string.h>

bool word_among(const char *words, const char *word)
{
    size_t n = word ? strlen(word) : 0;
    for (const char *p = words; word; p++) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p += len;
        if (!*p)
            break;
    }
    return false;
}

int word_find(const char *const *list, size_t n, const char *word)
{
    for (size_t i = 0; word && i < n; i++)
        if (list[i] && strcmp(list[i], word) == 0)
            return (int)i;
    return -EINVAL;
}
