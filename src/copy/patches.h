/* Applies the changes that a new sandbox's spec asks for to its files. */
#pragma once

#include "spec/patch.h"
#include "util/err.h"

/* In order, as root; the missing parents of a copy are made. Takes the connection. */
int patches_apply(const struct spec_patches *l, int sock, const char *name, struct err *e);
