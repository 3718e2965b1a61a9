/* Credentials for a registry.
 *
 * The first source that knows the registry is used:
 *   1. $MSB_HOME/registry/auth.json, which `msb registry login` writes (auth_store.h);
 *   2. Docker's config.json ($DOCKER_CONFIG, else ~/.docker): credHelpers, credsStore, auths.
 * Without any, access is anonymous. Secrets are wiped from memory when they are freed, and never
 * appear in messages.
 */
#pragma once

#include <stddef.h>

#include <jansson.h>

#include "util/buf.h"
#include "util/cleanup.h"
#include "util/err.h"

enum {
    CREDENTIALS_FILE_MAX = 1 << 20,
    CREDENTIALS_TEXT_MAX = 64 << 10, /* a user, a password, a token */
};

struct credentials {
    char *username, *password;
    char *identity_token; /* set: a refresh token, in place of both */
};

void credentials_free(struct credentials *c);

/* Strings and buffers that are wiped before they are freed. */
void secret_free(char **s);
void secret_buf_free(struct buf *b);
#define AUTO_SECRET CLEANUP(secret_free)
#define AUTO_SECRET_BUF CLEANUP(secret_buf_free)

/* -ENOENT (e not set) if there are none. `registry` is a reference's: "docker.io",
 * "localhost:5000". home may be NULL. */
int credentials_find(const char *home, const char *registry, struct credentials *ret,
                     struct err *e);

/* "Basic ..." for them, malloc'd. */
char *credentials_basic(const struct credentials *c);

/* --- Docker's config.json ------------------------------------------------------------------- */

/* What a config has for a registry: a program to ask, or the credentials themselves. */
struct docker_auth {
    char *helper; /* the NAME of docker-credential-NAME */
    struct credentials found;
};
/* -ENOENT if it has nothing; -EINVAL (e set) if it cannot be parsed. */
int docker_config_lookup(const char *text, size_t n, const char *registry, struct docker_auth *ret,
                         struct err *e);
void docker_auth_free(struct docker_auth *a);

/* The historical key of Docker Hub's entry. */
#define DOCKER_HUB_KEY "https://index.docker.io/v1/"
/* The registry that a key of "auths" means: without scheme, path and case. malloc'd. */
char *docker_key_registry(const char *key);

/* "user:password" in base64, as in "auth". malloc'd. */
char *docker_auth_encode(const char *username, const char *password);
/* A member that may be sent in a header or a form, malloc'd. NULL: absent, empty, too long or with
 * a NUL inside. */
char *credentials_member(json_t *object, const char *key);

/* --- docker-credential-* -------------------------------------------------------------------- */

/* Asks the program. -ENOENT (e not set) if it does not know the registry. */
int credential_helper_get(const char *name, const char *registry, struct credentials *ret,
                          struct err *e);
/* Parses its answer. */
int credential_helper_parse(const char *text, size_t n, struct credentials *ret, struct err *e);
