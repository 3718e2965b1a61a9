/* Content digests: "sha256:" and 64 lower-case hex digits. No other algorithm is accepted. */
#pragma once

#include <openssl/sha.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/err.h"

enum {
    DIGEST_SIZE = 32,
    DIGEST_HEX_SIZE = 2 * DIGEST_SIZE + 1,
    DIGEST_TEXT_SIZE = 7 + DIGEST_HEX_SIZE
};

struct digest {
    uint8_t b[DIGEST_SIZE];
};

/* Exactly one digest and nothing else. */
int digest_parse(const char *text, struct digest *ret, struct err *e);
void digest_text(const struct digest *d, char text[DIGEST_TEXT_SIZE]);
void digest_hex(const struct digest *d, char hex[DIGEST_HEX_SIZE]);
bool digest_equal(const struct digest *a, const struct digest *b);
/* The digest of bytes in memory. */
struct digest digest_of(const void *p, size_t n);
void digest_hex_of(const void *p, size_t n, char hex[DIGEST_HEX_SIZE]);
/* The digest of a file, from its current offset on. */
int digest_of_fd(int fd, struct digest *ret);
int digest_hex_of_fd(int fd, char hex[DIGEST_HEX_SIZE]);

/* An incremental digest. Nothing in it has to be released. */
struct hasher {
    SHA256_CTX ctx;
};
void hasher_init(struct hasher *h);
void hasher_update(struct hasher *h, const void *p, size_t n);
struct digest hasher_finish(struct hasher *h);
void hasher_hex(struct hasher *h, char hex[DIGEST_HEX_SIZE]);
