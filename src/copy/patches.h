/* Applies the changes that a new sandbox's spec asks for to its files. */
#pragma once

#include "spec/patch.h"
#include "util/err.h"

/* Applies them in order, as root; creates the missing parents of a copy. Takes the connection. */
int patches_apply(const struct spec_patches *l, int sock, const char *name, struct err *e);
