/* Credentials that `msb registry login` keeps: $MSB_HOME/registry/auth.json, mode 0600.
 *
 * The format is the "auths" object of Docker's config.json. The file is replaced by rename, under a
 * lock, so that concurrent logins do not lose each other's entries.
 */
#pragma once

#include "registry/credentials.h"

enum { AUTH_STORE_MAX = 1000 }; /* registries */

/* -ENOENT (e not set) if the registry is not in it. */
int auth_store_get(const char *home, const char *registry, struct credentials *ret, struct err *e);
int auth_store_put(const char *home, const char *registry, const struct credentials *c,
                   struct err *e);
/* -ENOENT (e set) if it is not there. */
int auth_store_remove(const char *home, const char *registry, struct err *e);

/* Calls fn for each, sorted by registry. */
typedef void (*auth_store_fn)(void *ctx, const char *registry, const char *username);
int auth_store_each(const char *home, auth_store_fn fn, void *ctx, struct err *e);
