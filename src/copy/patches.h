/* Does to a new sandbox's files what its spec asks for. */
#ifndef MSB_COPY_PATCHES_H
#define MSB_COPY_PATCHES_H

#include "spec/patch.h"
#include "util/err.h"

/* In order, as root; missing directories on the way to a copy are made. Takes the connection. */
int patches_apply(const struct spec_patches *l, int sock, const char *name, struct err *e);

#endif
