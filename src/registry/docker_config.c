/* Docker's config.json: credentials, or a program that has them. */
#include "registry/credentials.h"

#include "image/oci/reference.h"
#include "util/json.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

enum { HELPER_NAME_MAX = 64 };

char *docker_key_registry(const char *key)
{
    const char *scheme = strstr(key, "://");
    const char *host = scheme ? scheme + 3 : key;
    char *s = strndup(host, strcspn(host, "/"));
    if (!s)
        return NULL;
    for (char *p = s; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    static const char *const hub[] = {"index.docker.io", "registry-1.docker.io"};
    for (size_t i = 0; i < ARRAY_LEN(hub); i++)
        if (strcmp(s, hub[i]) == 0) {
            free(s);
            return strdup(REFERENCE_HUB);
        }
    return s;
}

/* The member whose key means the registry. */
static json_t *find_key(json_t *object, const char *registry)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        AUTO_FREE char *means = docker_key_registry(key);
        if (means && strcmp(means, registry) == 0)
            return value;
    }
    return NULL;
}

char *credentials_member(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    size_t n = v ? json_string_length(v) : 0;
    if (!json_is_string(v) || n == 0 || n > CREDENTIALS_TEXT_MAX ||
        strlen(json_string_value(v)) != n)
        return NULL;
    return strdup(json_string_value(v));
}

char *docker_auth_encode(const char *username, const char *password)
{
    AUTO_SECRET char *plain = NULL;
    int n = asprintf(&plain, "%s:%s", username, password);
    if (n < 0) {
        plain = NULL;
        return NULL;
    }
    unsigned char *out = n <= 2 * CREDENTIALS_TEXT_MAX ? malloc(4 * ((size_t)n + 2) / 3 + 4) : NULL;
    if (out)
        (void)EVP_EncodeBlock(out, (const unsigned char *)plain, n);
    return (char *)out;
}

/* base64 of "user:password". */
static int decode_auth(const char *auth, struct credentials *c)
{
    size_t n = strlen(auth);
    if (n == 0 || n % 4 != 0)
        return -EINVAL;
    AUTO_FREE unsigned char *plain = malloc(n + 1);
    if (!plain)
        return -ENOMEM;
    int got = EVP_DecodeBlock(plain, (const unsigned char *)auth, (int)n);
    if (got < 0)
        return -EINVAL;
    plain[got] = '\0'; /* padding decodes to NULs: the text ends at the first */
    char *colon = strchr((char *)plain, ':');
    if (colon && colon != (char *)plain) {
        c->username = strndup((char *)plain, (size_t)(colon - (char *)plain));
        c->password = strdup(colon + 1);
    }
    explicit_bzero(plain, (size_t)got);
    return c->username && c->password ? 0 : -EINVAL;
}

static int read_entry(json_t *entry, struct credentials *c)
{
    c->identity_token = credentials_member(entry, "identitytoken");
    if (c->identity_token)
        return 0;
    AUTO_SECRET char *auth = credentials_member(entry, "auth");
    if (auth)
        return decode_auth(auth, c);
    c->username = credentials_member(entry, "username");
    c->password = credentials_member(entry, "password");
    return c->username && c->password ? 0 : -ENOENT;
}

/* A helper's name becomes part of a program's. */
static bool helper_name_valid(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= HELPER_NAME_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static int use_helper(const char *name, struct docker_auth *ret, struct err *e)
{
    if (!helper_name_valid(name))
        return err_set(e, EINVAL, "invalid credential helper name '%.60s'", name);
    ret->helper = strdup(name);
    return ret->helper ? 0 : err_oom(e);
}

static int docker_lookup(json_t *root, const char *registry, struct docker_auth *ret, struct err *e)
{
    json_t *helper = find_key(json_object_get(root, "credHelpers"), registry);
    if (json_is_string(helper))
        return use_helper(json_string_value(helper), ret, e);
    json_t *entry = find_key(json_object_get(root, "auths"), registry);
    int r = json_is_object(entry) ? read_entry(entry, &ret->found) : -ENOENT;
    if (r == -EINVAL)
        return err_set(e, EINVAL, "the entry for %s has no valid \"auth\"", registry);
    if (r != -ENOENT)
        return r;
    credentials_free(&ret->found); /* incomplete */
    /* The store keeps all credentials: an empty entry only means that it has some. */
    AUTO_FREE char *store = credentials_member(root, "credsStore");
    return store ? use_helper(store, ret, e) : -ENOENT;
}

int docker_config_lookup(const char *text, size_t n, const char *registry, struct docker_auth *ret,
                         struct err *e)
{
    json_error_t je;
    AUTO_JSON json_t *root = json_loadb(text, n, 0, &je);
    *ret = (struct docker_auth){0};
    if (!json_is_object(root))
        return err_set(e, EINVAL, "not a JSON object (line %d)", je.line > 0 ? je.line : 1);
    struct docker_auth a = {0};
    int r = docker_lookup(root, registry, &a, e);
    if (r < 0)
        docker_auth_free(&a);
    else
        *ret = a;
    return r;
}

void docker_auth_free(struct docker_auth *a)
{
    free(a->helper);
    credentials_free(&a->found);
    *a = (struct docker_auth){0};
}
