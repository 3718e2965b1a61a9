/* Untrusted JSON: loaded within bounds, with checked access. */
#pragma once

#include <stddef.h>

#include "image/oci/digest.h"
#include "util/err.h"
#include "util/json.h"

enum {
    OCI_JSON_DEPTH = 64,
    /* Each value takes up to about 250 bytes in memory, but as little as three bytes in a
     * document. */
    OCI_JSON_VALUES = 100000,
};

/* One JSON object of at most `max` bytes, no more than OCI_JSON_DEPTH deep, without duplicate keys,
 * NULs in strings, or numbers that do not fit. `what` names it in the message. */
json_t *oci_json_load(const void *doc, size_t n, size_t max, const char *what, struct err *e);
/* The same for an array. */
json_t *oci_json_load_list(const void *doc, size_t n, size_t max, const char *what, struct err *e);

/* NULL if the key is missing or its value is null. */
const json_t *oci_json_member(const json_t *o, const char *key);

/* *ret stays NULL if the key is missing; a string of more than `max` bytes is an error. */
int oci_json_text(const json_t *o, const char *key, size_t max, const char **ret, struct err *e);

json_t *digest_json(const struct digest *d); /* as text */

/* "'size' has the wrong type or is out of range" */
int oci_json_bad(const char *key, struct err *e);
