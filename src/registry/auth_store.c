#include "registry/auth_store.h"

#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define DIR_NAME "registry"
#define FILE_NAME "auth.json"

static int open_dir(const char *home, bool make, int *ret, struct err *e)
{
    AUTO_FREE char *path = NULL;
    if (asprintf(&path, "%s/" DIR_NAME, home) < 0) {
        path = NULL;
        return err_oom(e);
    }
    int r = make ? mkdir_parents(path, 0700) : 0;
    if (r < 0)
        return err_sys(e, -r, "cannot create %s", path);
    *ret = dir_open_at(AT_FDCWD, path);
    if (*ret >= 0)
        return 0;
    return !make && errno == ENOENT ? -ENOENT : err_sys(e, errno, "cannot open %s", path);
}

/* A missing file counts as empty. */
static int load_text(int dirfd, char **text, size_t *n, struct err *e)
{
    int r = file_read_at(dirfd, FILE_NAME, CREDENTIALS_FILE_MAX, text, n);
    if (r == -ENOENT) {
        *text = strdup("{}");
        *n = 2;
        return *text ? 0 : err_oom(e);
    }
    return r < 0 ? err_sys(e, -r, "cannot read " DIR_NAME "/" FILE_NAME) : 0;
}

static int load_json(int dirfd, json_t **ret, struct err *e)
{
    AUTO_SECRET char *text = NULL;
    size_t n = 0;
    int r = load_text(dirfd, &text, &n, e);
    if (r < 0)
        return r;
    AUTO_JSON json_t *root = json_loadb(text, n, 0, NULL);
    json_t *auths = json_object_get(root, "auths");
    if (!json_is_object(root) || (auths && !json_is_object(auths)))
        return err_hinted(
            e, err_set(e, EINVAL, "the file " DIR_NAME "/" FILE_NAME " in MSB_HOME is damaged"),
            "remove it and log in again");
    if (!auths)
        (void)json_object_set_new(root, "auths", json_object());
    *ret = steal_ptr(&root);
    return 0;
}

int auth_store_get(const char *home, const char *registry, struct credentials *ret, struct err *e)
{
    AUTO_CLOSE int dirfd = -1;
    AUTO_SECRET char *text = NULL;
    size_t n = 0;
    int r = open_dir(home, false, &dirfd, e);
    if (r == 0)
        r = load_text(dirfd, &text, &n, e);
    if (r < 0)
        return r;
    struct docker_auth a;
    r = docker_config_lookup(text, n, registry, &a, e);
    if (r < 0)
        return r == -ENOENT ? r : err_wrap(e, r, "%s/" DIR_NAME "/" FILE_NAME, home);
    if (a.helper) { /* never written here */
        docker_auth_free(&a);
        return -ENOENT;
    }
    *ret = a.found;
    return 0;
}

/* Reads the file, lets fn change it and writes it back, under a lock. */
static int change(const char *home, int (*fn)(json_t *auths, const void *ctx, struct err *e),
                  const void *ctx, struct err *e)
{
    AUTO_CLOSE int dirfd = -1;
    AUTO_JSON json_t *root = NULL;
    int r = open_dir(home, true, &dirfd, e);
    if (r < 0)
        return r;
    while (flock(dirfd, LOCK_EX) < 0)
        if (errno != EINTR)
            return err_sys(e, errno, "cannot lock %s/" DIR_NAME, home);
    file_replace_sweep(dirfd);
    r = load_json(dirfd, &root, e);
    if (r == 0)
        r = fn(json_object_get(root, "auths"), ctx, e);
    if (r < 0)
        return r;
    AUTO_SECRET char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    r = text ? file_replace_at(dirfd, FILE_NAME, text, strlen(text), 0600, true) : -ENOMEM;
    return r < 0 ? err_sys(e, -r, "cannot write %s/" DIR_NAME "/" FILE_NAME, home) : 0;
}

struct entry {
    const char *registry;
    const struct credentials *c;
};

static int put_entry(json_t *auths, const void *ctx, struct err *e)
{
    const struct entry *n = ctx;
    if (json_object_size(auths) >= AUTH_STORE_MAX && !json_object_get(auths, n->registry))
        return err_set(e, ENOSPC, "cannot keep credentials for more than %d registries",
                       AUTH_STORE_MAX);
    AUTO_SECRET char *auth = docker_auth_encode(n->c->username, n->c->password);
    json_t *value = auth ? json_pack("{s:s}", "auth", auth) : NULL;
    return value && json_object_set_new(auths, n->registry, value) == 0 ? 0 : err_oom(e);
}

int auth_store_put(const char *home, const char *registry, const struct credentials *c,
                   struct err *e)
{
    struct entry n = {registry, c};
    return change(home, put_entry, &n, e);
}

static int drop_entry(json_t *auths, const void *ctx, struct err *e)
{
    const char *registry = ctx;
    if (json_object_del(auths, registry) == 0)
        return 0;
    return err_hinted(e, err_set(e, ENOENT, "not logged in to %s", registry),
                      "run `msb registry list` to see where you are logged in");
}

int auth_store_remove(const char *home, const char *registry, struct err *e)
{
    return change(home, drop_entry, registry, e);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int auth_store_each(const char *home, auth_store_fn fn, void *ctx, struct err *e)
{
    AUTO_CLOSE int dirfd = -1;
    AUTO_JSON json_t *root = NULL;
    int r = open_dir(home, false, &dirfd, e);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = load_json(dirfd, &root, e);
    if (r < 0)
        return r;
    json_t *auths = json_object_get(root, "auths");
    AUTO_FREE const char **names = calloc(json_object_size(auths) + 1, sizeof(*names));
    if (!names)
        return err_oom(e);
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach(auths, key, value)
    {
        if (json_is_object(value))
            names[n++] = key;
    }
    qsort(names, n, sizeof(*names), by_name);
    for (size_t i = 0; i < n; i++) {
        struct credentials c = {0};
        (void)auth_store_get(home, names[i], &c, NULL);
        fn(ctx, names[i], c.username ? c.username : "");
        credentials_free(&c);
    }
    return 0;
}
