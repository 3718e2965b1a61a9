/* Writes tar archives for tests, including ones that no sane tool would write. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct tb {
    uint8_t *p;
    size_t len, cap;
    struct tb *pax; /* records for the next entry */
};

struct tb_entry {
    const char *name;
    char type; /* '0' file, '1' hard link, '2' symlink, '3' char, '4' block, '5' directory, ... */
    const char *link;
    unsigned mode; /* 0: 0644 */
    uint64_t uid, gid;
    uint64_t size; /* when data is NULL: what the header claims */
    const void *data;
    uint64_t mtime;
    unsigned major, minor;
};

void tb_add(struct tb *b, struct tb_entry e);
/* A PAX record for the entry that follows. */
void tb_pax(struct tb *b, const char *key, const void *value, size_t len);
/* A global PAX header of one record. */
void tb_pax_global(struct tb *b, const char *key, const char *value);
void tb_raw(struct tb *b, const void *p, size_t n);
void tb_end(struct tb *b); /* two zero blocks */
void tb_free(struct tb *b);
