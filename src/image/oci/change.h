/* Changes to an image's configuration, written as the instructions of a Dockerfile:
 *
 *     CMD, ENTRYPOINT   ["a", "b"], or a line for /bin/sh
 *     ENV, LABEL        KEY=VALUE..., or KEY VALUE
 *     EXPOSE, VOLUME    several, or for VOLUME ["/a", "/b"]
 *     USER, WORKDIR, STOPSIGNAL
 */
#pragma once

#include "util/err.h"
#include "util/json.h"

/* config: the document's "config". -EINVAL (e set) if the instruction is not one of these. */
int oci_change(json_t *config, const char *instruction, struct err *e);
