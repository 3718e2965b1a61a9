/* The attacks, one function each, as attacks.def lists them. */
#ifndef EVIL_ATTACKS_H
#define EVIL_ATTACKS_H

#include "evil.h"

#define ATTACK(name, expected) void name(void);
#include "attacks.def"
#undef ATTACK

#endif
