#include "s3/config.h"

#include "image/oci/digest.h"
#include "store/json_file.h"
#include "util/json.h"
#include "util/text.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_FILE "s3.json"

enum { FILE_MAX = 16 << 10, HOST_MAX = 255, PATH_DEPTH_MAX = 128 };

static const char *const addressings[] = {"auto", "path", "virtual"};

void s3_config_free(struct s3_config *c)
{
    free(c->bucket);
    free(c->prefix);
    free(c->endpoint);
    free(c->region);
    free(c->credentials);
    free(c->ca_certs);
    *c = (struct s3_config){0};
}

/* --- checks ---------------------------------------------------------------------------------- */

static bool component_ok(const char *p, size_t n)
{
    return n > 0 && n <= NAME_MAX && !(n == 1 && p[0] == '.') &&
           !(n == 2 && p[0] == '.' && p[1] == '.');
}

bool s3_path_ok(const char *path)
{
    unsigned depth = 0;
    if (strlen(path) > S3_PATH_MAX || !utf8_valid(path))
        return false;
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    for (const char *p = path;; depth++) {
        size_t n = strcspn(p, "/");
        if (!component_ok(p, n) || depth == PATH_DEPTH_MAX)
            return false;
        if (p == path && n == 4 && memcmp(p, ".msb", 4) == 0)
            return false;
        if (!p[n])
            return true;
        p += n + 1;
    }
}

static bool bucket_ok(const char *name)
{
    size_t n = strlen(name);
    if (n < 3 || n > S3_BUCKET_MAX || !ascii_alnum(name[0]) || !ascii_alnum(name[n - 1]))
        return false;
    for (; *name; name++)
        if (!ascii_alnum(*name) && !strchr(".-_", *name))
            return false;
    return true;
}

static bool host_ok(const char *host)
{
    size_t n = strlen(host);
    for (const char *p = host; *p; p++)
        if (!ascii_alnum(*p) && !strchr(".-_:[]", *p))
            return false;
    return n > 0 && n <= HOST_MAX;
}

int s3_config_url(struct s3_config *c, const char *url, struct err *e)
{
    const char *at = strncmp(url, "s3://", 5) == 0 ? url + 5 : "";
    size_t n = strcspn(at, "/");
    const char *prefix = at[n] ? at + n + 1 : "";
    size_t len = strlen(prefix);
    while (len && prefix[len - 1] == '/')
        len--;
    c->bucket = strndup(at, n);
    if (!c->bucket || asprintf(&c->prefix, "%.*s%s", (int)len, prefix, len ? "/" : "") < 0) {
        c->prefix = NULL;
        return err_oom(e);
    }
    if (!bucket_ok(c->bucket))
        return err_set(e, EINVAL,
                       "invalid bucket '%.200s': expected s3://BUCKET or s3://BUCKET/PREFIX", url);
    if (len == 0)
        return 0;
    AUTO_FREE char *bare = strndup(prefix, len);
    if (!bare)
        return err_oom(e);
    if (!s3_path_ok(bare) || len > S3_PREFIX_MAX)
        return err_set(e, EINVAL,
                       "invalid prefix in '%.200s': it must be a path without '.', '..' or '//'",
                       url);
    return 0;
}

static int fill(char **field, const char *const *variables)
{
    for (; !*field && *variables; variables++) {
        const char *v = getenv(*variables);
        if (v && *v && !(*field = strdup(v)))
            return -ENOMEM;
    }
    return 0;
}

static int check_endpoint(struct s3_config *c, struct err *e)
{
    const char *host = strncmp(c->endpoint, "https://", 8) == 0  ? c->endpoint + 8
                       : strncmp(c->endpoint, "http://", 7) == 0 ? c->endpoint + 7
                                                                 : "";
    size_t n = strlen(c->endpoint);
    if (*host && c->endpoint[n - 1] == '/')
        c->endpoint[n - 1] = '\0';
    if (!host_ok(host))
        return err_set(
            e, EINVAL,
            "invalid endpoint '%.200s': expected http://HOST[:PORT] or https://HOST[:PORT]",
            c->endpoint);
    return 0;
}

int s3_config_settle(struct s3_config *c, struct err *e)
{
    static const char *const endpoints[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL};
    static const char *const regions[] = {"AWS_REGION", "AWS_DEFAULT_REGION", NULL};
    if (fill(&c->endpoint, endpoints) < 0 || fill(&c->region, regions) < 0)
        return err_oom(e);
    if (!c->region && !(c->region = strdup("us-east-1")))
        return err_oom(e);
    if (!host_ok(c->region) || strchr(c->region, ':'))
        return err_set(e, EINVAL, "invalid region '%.100s'", c->region);
    if (c->ca_certs && c->ca_certs[0] != '/')
        return err_set(e, EINVAL, "the path of the CA certificates must be absolute");
    return c->endpoint ? check_endpoint(c, e) : 0;
}

char *s3_config_name(const struct s3_config *c)
{
    AUTO_FREE char *place = NULL;
    char *name = NULL, hex[DIGEST_HEX_SIZE];
    if (asprintf(&place, "%s/%s %s", c->bucket, c->prefix, c->endpoint ? c->endpoint : "") < 0)
        return NULL;
    digest_hex_of(place, strlen(place), hex);
    for (char *p = place; *p; p++)
        if (!ascii_alnum(*p) && *p != '.')
            *p = '-';
    int n = (int)MIN(strlen(c->bucket) + strlen(c->prefix), (size_t)36);
    return asprintf(&name, "s3-%.*s-%.12s", n, place, hex) < 0 ? NULL : name;
}

char *s3_config_text(const struct s3_config *c)
{
    char *text;
    size_t n = strlen(c->prefix);
    return asprintf(&text, "s3://%s%s%.*s", c->bucket, n ? "/" : "", (int)(n ? n - 1 : 0),
                    c->prefix) < 0
               ? NULL
               : text;
}

/* --- on disk --------------------------------------------------------------------------------- */

static int read_field(const json_t *j, const char *name, char **ret)
{
    const char *v = json_string_value(json_object_get(j, name));
    return v && !(*ret = strdup(v)) ? -ENOMEM : 0;
}

static int read_config(const json_t *j, struct s3_config *c, struct err *e)
{
    const char *how = json_string_value(json_object_get(j, "addressing"));
    const char *url = json_string_value(json_object_get(j, "url"));
    for (size_t i = 0; how && i < ARRAY_LEN(addressings); i++)
        if (strcmp(how, addressings[i]) == 0)
            c->addressing = (enum s3_addressing)i;
    c->max = (uint64_t)json_integer_value(json_object_get(j, "max_bytes"));
    c->bandwidth = (uint64_t)json_integer_value(json_object_get(j, "bandwidth"));
    c->conditional = json_is_true(json_object_get(j, "conditional"));
    if (read_field(j, "endpoint", &c->endpoint) < 0 || read_field(j, "region", &c->region) < 0 ||
        read_field(j, "credentials", &c->credentials) < 0 ||
        read_field(j, "ca_certs", &c->ca_certs) < 0)
        return err_oom(e);
    int r = s3_config_url(c, url ? url : "", e);
    return r < 0 ? r : s3_config_settle(c, e);
}

int s3_config_load(int dirfd, struct s3_config *ret, struct err *e)
{
    AUTO_JSON json_t *j = NULL;
    AUTO_S3_CONFIG struct s3_config c = {0};
    int r = json_file_load(dirfd, CONFIG_FILE, FILE_MAX, &j);
    if (r == -ENOENT)
        return r;
    if (r < 0)
        return err_sys(e, -r, "cannot read " CONFIG_FILE);
    r = read_config(j, &c, e);
    if (r < 0)
        return err_wrap(e, r, "in " CONFIG_FILE);
    *ret = c;
    c = (struct s3_config){0};
    return 0;
}

int s3_config_save(int dirfd, const struct s3_config *c, struct err *e)
{
    AUTO_FREE char *url = s3_config_text(c);
    json_t *j = json_pack("{s:s?, s:s?, s:s?, s:s?, s:s?, s:s, s:I, s:I, s:b}", "url", url,
                          "endpoint", c->endpoint, "region", c->region, "credentials",
                          c->credentials, "ca_certs", c->ca_certs, "addressing",
                          addressings[c->addressing], "max_bytes", (json_int_t)c->max, "bandwidth",
                          (json_int_t)c->bandwidth, "conditional", c->conditional);
    int r = url ? json_file_save(dirfd, CONFIG_FILE, j, true) : -ENOMEM;
    return r < 0 ? err_sys(e, -r, "cannot write " CONFIG_FILE) : 0;
}
