/* Small JSON files: read whole, replaced by rename. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A file of at most `max` bytes. *ret is NULL if it is not JSON. */
int json_file_load(int dirfd, const char *name, size_t max, json_t **ret);
/* Mode 0600. Takes j; NULL is -ENOMEM. sync: it is on disk once this returns. */
int json_file_save(int dirfd, const char *name, json_t *j, bool sync);
