/* How registries are reached: /etc/msb/registries.json for everybody, $MSB_HOME/registries.json for
 * one user. MSB_REGISTRIES_CONFIG names one file in place of both.
 *
 *     { "registries": { "docker.io": { "mirrors": ["https://mirror.example.com"] },
 *                       "registry.lan:5000": { "insecure": true },
 *                       "registry.corp": { "ca_certs": "/etc/msb/corp.pem" } } }
 *
 * What a user's file says of a registry replaces all that the system's says of it.
 */
#ifndef MSB_REGISTRY_SETTINGS_H
#define MSB_REGISTRY_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "util/err.h"
#include "util/strlist.h"

#define SETTINGS_SYSTEM_FILE "/etc/msb/registries.json"
enum { SETTINGS_FILE_MAX = 1 << 20, SETTINGS_MIRRORS_MAX = 8 };

struct registry_settings {
    struct strlist mirrors; /* "https://host[:port][/prefix]"; without a scheme https is meant */
    bool insecure;
    char *ca_certs; /* absolute path, or NULL */
};

/* Never -ENOENT: a registry that nobody mentions has the defaults. */
int settings_find(const char *home, const char *registry, struct registry_settings *ret,
                  struct err *e);
void settings_free(struct registry_settings *s);

/* One file's text: -ENOENT (e not set) when it does not mention the registry. All of it is checked
 * all the same. */
int settings_parse(const char *text, size_t n, const char *registry, struct registry_settings *ret,
                   struct err *e);

#endif
