/* How registries are reached: /etc/msb/registries.json for all users, $MSB_HOME/registries.json for
 * one. MSB_REGISTRIES_CONFIG names a single file instead of both.
 *
 *     { "registries": { "docker.io": { "mirrors": ["https://mirror.example.com"] },
 *                       "registry.lan:5000": { "insecure": true },
 *                       "registry.corp": { "ca_certs": "/etc/msb/corp.pem" } } }
 *
 * A registry's entry in the user's file replaces the whole of its entry in the system's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "util/err.h"
#include "util/strlist.h"

#define SETTINGS_SYSTEM_FILE "/etc/msb/registries.json"
enum { SETTINGS_FILE_MAX = 1 << 20, SETTINGS_MIRRORS_MAX = 8 };

struct registry_settings {
    struct strlist mirrors; /* "https://host[:port][/prefix]"; without a scheme, https is meant */
    bool insecure;
    char *ca_certs; /* absolute path, or NULL */
};

/* Never -ENOENT: a registry without an entry has the defaults. */
int settings_find(const char *home, const char *registry, struct registry_settings *ret,
                  struct err *e);
void settings_free(struct registry_settings *s);

/* One file's text, checked as a whole: -ENOENT (e not set) if it has no entry for the registry. */
int settings_parse(const char *text, size_t n, const char *registry, struct registry_settings *ret,
                   struct err *e);
