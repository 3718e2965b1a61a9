/* How much of a jail a sandbox gets.
 *
 *   full      its own namespaces, and an empty root (jail.h)
 *   reduced   what is left where the host refuses namespaces, as most containers do (reduced.h)
 *   auto      full; reduced only where that is refused
 */
#pragma once

#include "util/err.h"

enum jail_kind { JAIL_AUTO, JAIL_FULL, JAIL_REDUCED, JAIL_INVALID = -1 };

#define JAIL_KINDS "auto|full|reduced"

const char *jail_kind_name(enum jail_kind k);
enum jail_kind jail_kind_parse(const char *name); /* JAIL_INVALID */

/* Resolves `auto` by $MSB_JAIL, if that is set. */
int jail_kind_resolve(enum jail_kind *k, struct err *e);
