/* What the process that talks to a bucket's server can still do: it parses what that sends. */
#pragma once

#include "util/err.h"

struct s3_reach {
    int dir;              /* the workspace's */
    int cache;            /* of contents; -1: none */
    const char *ca_certs; /* a PEM file, or NULL */
    const char *endpoint; /* the server's, or NULL */
};

/* For good. Where the host has no Landlock, files are not restricted (`msb doctor` reports this). */
int s3_confine(const struct s3_reach *reach, struct err *e);
