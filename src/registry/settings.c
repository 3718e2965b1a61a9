#include "registry/settings.h"

#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void settings_free(struct registry_settings *s)
{
    strlist_free(&s->mirrors);
    free(s->ca_certs);
    *s = (struct registry_settings){0};
}

/* A host, with an optional scheme and path, and nothing else. */
static bool mirror_valid(const char *s)
{
    if (strncmp(s, "https://", 8) == 0)
        s += 8;
    else if (strncmp(s, "http://", 7) == 0)
        s += 7;
    size_t n = strlen(s);
    return n > 0 && n < 256 && s[0] != '/' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]/") ==
               n &&
           !strstr(s, "..") && !strstr(s, "://");
}

static int read_mirrors(const char *name, json_t *v, struct registry_settings *s, struct err *e)
{
    if (!json_is_array(v) || json_array_size(v) > SETTINGS_MIRRORS_MAX)
        return err_set(e, EINVAL, "invalid \"mirrors\" for %.100s: expected a list of at most %d",
                       name, SETTINGS_MIRRORS_MAX);
    size_t i;
    json_t *m;
    json_array_foreach(v, i, m)
    {
        if (!json_is_string(m) || !mirror_valid(json_string_value(m)))
            return err_set(e, EINVAL,
                           "invalid mirror for %.100s: expected an address such as "
                           "https://mirror.example.com",
                           name);
        if (strlist_add(&s->mirrors, json_string_value(m)) < 0)
            return err_oom(e);
    }
    return 0;
}

static int read_entry(const char *name, json_t *entry, struct registry_settings *s, struct err *e)
{
    if (!json_is_object(entry))
        return err_set(e, EINVAL, "invalid settings for %.100s: expected an object", name);
    const char *key;
    json_t *v;
    json_object_foreach(entry, key, v)
    {
        int r = 0;
        if (strcmp(key, "mirrors") == 0) {
            r = read_mirrors(name, v, s, e);
        } else if (strcmp(key, "insecure") == 0 && json_is_boolean(v)) {
            s->insecure = json_is_true(v);
        } else if (strcmp(key, "ca_certs") == 0 && json_is_string(v) &&
                   json_string_value(v)[0] == '/') {
            s->ca_certs = strdup(json_string_value(v));
            r = s->ca_certs ? 0 : err_oom(e);
        } else {
            r = err_set(e, EINVAL,
                        "invalid setting \"%.60s\" for %.100s: expected \"mirrors\": [...], "
                        "\"insecure\": true or \"ca_certs\": \"/path\"",
                        key, name);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_all(json_t *root, const char *registry, struct registry_settings *ret,
                    struct err *e)
{
    json_t *all = json_object_get(root, "registries");
    if (!json_is_object(all) || json_object_size(root) != 1)
        return err_set(e, EINVAL, "expected {\"registries\": {...}}");
    bool found = false;
    const char *name;
    json_t *entry;
    json_object_foreach(all, name, entry)
    {
        struct registry_settings s = {0};
        int r = read_entry(name, entry, &s, e);
        if (r == 0 && strcasecmp(name, registry) == 0 && !found) {
            *ret = s;
            found = true;
            continue;
        }
        settings_free(&s);
        if (r < 0)
            return r;
    }
    return found ? 0 : -ENOENT;
}

int settings_parse(const char *text, size_t n, const char *registry, struct registry_settings *ret,
                   struct err *e)
{
    json_error_t je;
    AUTO_JSON json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return err_set(e, EINVAL, "line %d: %s", je.line, je.text);
    struct registry_settings s = {0};
    int r = read_all(root, registry, &s, e);
    if (r < 0)
        settings_free(&s);
    else
        *ret = s;
    return r;
}

static int find_in(const char *path, bool must, const char *registry, struct registry_settings *ret,
                   struct err *e)
{
    AUTO_FREE char *real = realpath(path, NULL);
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    int r = real ? file_read_at(AT_FDCWD, real, SETTINGS_FILE_MAX, &text, &n) : -errno;
    if (r == -ENOENT && !must)
        return -ENOENT;
    if (r < 0) {
        (void)err_sys(e, -r, "cannot read %s", path);
        return r == -ENOENT ? -EINVAL : r; /* -ENOENT means that the registry is not in it */
    }
    r = settings_parse(text, n, registry, ret, e);
    return r == 0 || r == -ENOENT ? r : err_wrap(e, r, "%s", path);
}

int settings_find(const char *home, const char *registry, struct registry_settings *ret,
                  struct err *e)
{
    const char *only = getenv("MSB_REGISTRIES_CONFIG");
    AUTO_FREE char *user = NULL;
    int r = -ENOENT;
    *ret = (struct registry_settings){0};
    if (only && *only) {
        r = find_in(only, true, registry, ret, e);
        return r == -ENOENT ? 0 : r;
    }
    if (home) {
        if (asprintf(&user, "%s/registries.json", home) < 0) {
            user = NULL;
            return err_oom(e);
        }
        r = find_in(user, false, registry, ret, e);
    }
    if (r == -ENOENT)
        r = find_in(SETTINGS_SYSTEM_FILE, false, registry, ret, e);
    return r == -ENOENT ? 0 : r;
}
