#include "spec/vsock.h"

#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void spec_vsock_free(struct spec_vsocks *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].path);
    free(l->v);
    *l = (struct spec_vsocks){0};
}

/* A path that the host need not have yet, and a port. */
static int check_vsock(const struct spec_vsocks *l, const char *path, uint64_t port, struct err *e)
{
    size_t n = strlen(path);
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (path[0] != '/')
        return err_set(e, EINVAL, "vsock: '%s' is not an absolute path", path);
    if (n >= SPEC_VSOCK_PATH_MAX || strlen(name) > SPEC_VSOCK_NAME_MAX)
        return err_set(e, ENAMETOOLONG, "vsock: '%s' is too long for a socket", path);
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(e, EINVAL, "vsock: '%s' does not name a socket", path);
    if (port < SPEC_VSOCK_PORT_MIN || port >= UINT32_MAX)
        return err_set(e, EINVAL, "vsock: port %" PRIu64 " is not between %d and %" PRIu32, port,
                       SPEC_VSOCK_PORT_MIN, UINT32_MAX - 1);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].port == port)
            return err_set(e, EINVAL, "vsock: port %" PRIu64 " is given twice", port);
    if (l->n == SPEC_VSOCK_MAX)
        return err_set(e, E2BIG, "vsock: more than %d ports", SPEC_VSOCK_MAX);
    return 0;
}

/* Takes `path`, which was malloc'd. */
static int append_vsock(struct spec_vsocks *l, char *path, uint32_t port, struct err *e)
{
    struct spec_vsock *v = realloc(l->v, (l->n + 1) * sizeof(*v));
    if (!v || !path) {
        l->v = v ? v : l->v;
        free(path);
        return err_oom(e);
    }
    l->v = v;
    v[l->n++] = (struct spec_vsock){.path = path, .port = port};
    return 0;
}

/* With the symbolic links of its directory resolved; malloc'd. */
static int resolve(const char *path, char **ret, struct err *e)
{
    AUTO_FREE char *dir = strdup(path);
    if (!dir)
        return err_oom(e);
    char *slash = strrchr(dir, '/');
    slash[slash == dir] = '\0';
    AUTO_FREE char *real = realpath(dir, NULL);
    if (!real)
        return err_sys(e, errno, "vsock: cannot reach %s", dir);
    if (asprintf(ret, "%s%s", strcmp(real, "/") == 0 ? "" : real, strrchr(path, '/')) < 0)
        return err_oom(e);
    return 0;
}

int spec_vsock_add(struct spec_vsocks *l, const char *text, bool *usage, struct err *e)
{
    AUTO_FREE char *s = strdup(text);
    char *path = NULL;
    uint64_t port;
    *usage = true;
    if (!s)
        return err_oom(e);
    char *colon = strrchr(s, ':');
    char *kind = colon ? strchr(colon, '/') : NULL;
    if (kind)
        *kind++ = '\0';
    if (kind && strcmp(kind, "dgram") == 0)
        return err_set(e, EOPNOTSUPP,
                       "vsock: '%s': datagrams are not supported; use /stream or nothing", text);
    if (colon)
        *colon = '\0';
    if (!colon || colon == s || (kind && strcmp(kind, "stream") != 0) ||
        parse_u64(colon + 1, &port) < 0)
        return err_set(e, EINVAL, "vsock: '%s': expected HOST_SOCK:PORT or HOST_SOCK:PORT/stream",
                       text);
    int r = check_vsock(l, s, port, e);
    if (r < 0)
        return r;
    *usage = false;
    r = resolve(s, &path, e);
    return r < 0 ? r : append_vsock(l, path, (uint32_t)port, e);
}

json_t *spec_vsock_to_json(const struct spec_vsocks *l)
{
    if (l->n == 0)
        return NULL;
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_add(&a, json_pack("{s:s, s:I, s:s}", "path", l->v[i].path, "port",
                               (json_int_t)l->v[i].port, "type", "stream"));
    return a;
}

int spec_vsock_from_json(struct spec_vsocks *l, const json_t *j, struct err *e)
{
    size_t i;
    json_t *item;
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_array(j))
        return err_set(e, EINVAL, "vsock: not a list");
    json_array_foreach(j, i, item)
    {
        const char *path = json_string_value(json_object_get(item, "path"));
        json_int_t port = json_integer_value(json_object_get(item, "port"));
        if (!path || port < 0)
            return err_set(e, EINVAL, "vsock: entry %zu has no path or no port", i + 1);
        int r = check_vsock(l, path, (uint64_t)port, e);
        if (r == 0)
            r = append_vsock(l, strdup(path), (uint32_t)port, e);
        if (r < 0)
            return r;
    }
    return 0;
}
