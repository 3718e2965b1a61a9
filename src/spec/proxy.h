/* A sandbox's SOCKS proxy. Of a password, only the name of the environment variable that holds it
 * is stored: its value is looked up at every start, and is in no file. */
#pragma once

#include "net/socks.h"
#include "util/err.h"

#include <jansson.h>

enum { SPEC_PROXY_URL_MAX = END_TEXT_MAX + 16 };

struct spec_proxy {
    int version; /* 4 or 5; 0: none */
    struct net_end at;
    char *user;         /* NULL: none; for version 4, the user id */
    char *password_env; /* NULL: none */
};

void spec_proxy_free(struct spec_proxy *p);
/* socks5://IP:PORT or socks4://IP:PORT */
int spec_proxy_set(struct spec_proxy *p, const char *url, struct err *e);
/* Checks that the parts fit together. */
int spec_proxy_validate(const struct spec_proxy *p, struct err *e);
void spec_proxy_url(const struct spec_proxy *p, char out[SPEC_PROXY_URL_MAX]);

/* Resolves it, with the password from this process's environment. */
int spec_proxy_resolve(const struct spec_proxy *p, struct socks_config *ret, struct err *e);

/* null if there is none. NULL: out of memory. */
json_t *spec_proxy_to_json(const struct spec_proxy *p);
/* j: the object, or NULL. */
int spec_proxy_from_json(struct spec_proxy *p, const json_t *j, struct err *e);
