/* A file that appears under its name only once it is complete.
 *
 * Until then, it has no name (or, where the file system does not support that, a temporary one
 * beside it), so a process that dies leaves the old file or none. Anything but a regular file (a
 * device, a pipe) is written in place. Only the owner may read the file, as with Docker: images
 * hold secrets.
 */
#pragma once

#include <stdbool.h>

#include "util/err.h"

struct output_file {
    int fd; /* write here */
    int dirfd;
    char *path;     /* as given, for messages */
    char *name;     /* in dirfd; NULL: written in place */
    char temp[64];  /* in dirfd */
    bool temp_used; /* temp exists */
};

int output_file_open(struct output_file *f, const char *path, struct err *e);
int output_file_publish(struct output_file *f, struct err *e);
void output_file_close(struct output_file *f); /* also after publishing; may be called twice */
