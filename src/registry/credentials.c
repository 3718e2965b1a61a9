#include "registry/credentials.h"

#include "registry/auth_store.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

void secret_free(char **s)
{
    if (*s)
        explicit_bzero(*s, malloc_usable_size(*s)); /* a file's text may hold a NUL */
    free(*s);
    *s = NULL;
}

void secret_buf_free(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->cap);
    buf_free(b);
}

void credentials_free(struct credentials *c)
{
    secret_free(&c->username);
    secret_free(&c->password);
    secret_free(&c->identity_token);
}

char *credentials_basic(const struct credentials *c)
{
    AUTO_SECRET char *encoded = docker_auth_encode(c->username, c->password);
    char *s;
    return encoded && asprintf(&s, "Basic %s", encoded) >= 0 ? s : NULL;
}

static char *docker_config_path(void)
{
    const char *dir = getenv("DOCKER_CONFIG");
    const char *home = getenv("HOME");
    char *path = NULL;
    int n = -1;
    if (dir && *dir)
        n = asprintf(&path, "%s/config.json", dir);
    else if (home && *home)
        n = asprintf(&path, "%s/.docker/config.json", home);
    return n < 0 ? NULL : path;
}

static int find_in_docker(const char *registry, struct credentials *ret, struct err *e)
{
    AUTO_FREE char *path = docker_config_path();
    AUTO_SECRET char *text = NULL;
    size_t n = 0;
    if (!path)
        return -ENOENT;
    AUTO_FREE char *real = realpath(path, NULL); /* it may be a symbolic link */
    if (!real)
        return errno == ENOENT || errno == ENOTDIR ? -ENOENT
                                                   : err_sys(e, errno, "cannot read %s", path);
    int r = file_read_at(AT_FDCWD, real, CREDENTIALS_FILE_MAX, &text, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read %s", path);
    struct docker_auth a;
    r = docker_config_lookup(text, n, registry, &a, e);
    if (r < 0)
        return r == -ENOENT ? r : err_wrap(e, r, "%s", path);
    if (!a.helper) {
        *ret = a.found;
        return 0;
    }
    r = credential_helper_get(a.helper, registry, ret, e);
    docker_auth_free(&a);
    return r;
}

int credentials_find(const char *home, const char *registry, struct credentials *ret, struct err *e)
{
    *ret = (struct credentials){0};
    int r = home ? auth_store_get(home, registry, ret, e) : -ENOENT;
    return r == -ENOENT ? find_in_docker(registry, ret, e) : r;
}
