#include "spec/proxy.h"

#include "spec/names.h"
#include "spec/read.h"
#include "util/cleanup.h"

#include <stdio.h>

void spec_proxy_free(struct spec_proxy *p)
{
    free(p->user);
    free(p->password_env);
    *p = (struct spec_proxy){0};
}

int spec_proxy_set(struct spec_proxy *p, const char *url, struct err *e)
{
    static const char *const scheme[] = {"socks4://", "socks5://"};
    for (size_t i = 0; i < ARRAY_LEN(scheme); i++) {
        struct net_end at;
        size_t n = strlen(scheme[i]);
        if (strncmp(url, scheme[i], n) != 0 || !end_parse(url + n, 0, &at))
            continue;
        p->version = 4 + (int)i;
        p->at = at;
        return 0;
    }
    err_set(e, EINVAL, "invalid proxy '%s'", strchr(url, '@') ? "..." : url);
    err_hint(e, "expected socks5://IP:PORT or socks4://IP:PORT, such as socks5://127.0.0.1:1080; "
                "user names and passwords have options of their own");
    return -EINVAL;
}

int spec_proxy_validate(const struct spec_proxy *p, struct err *e)
{
    if (p->version == 0 && (p->user || p->password_env))
        return err_set(e, EINVAL, "proxy: a user or a password without a proxy");
    if (p->user && (*p->user == '\0' || strlen(p->user) > SOCKS_TEXT_MAX))
        return err_set(e, EINVAL, "proxy: the user name must have 1 to %d bytes", SOCKS_TEXT_MAX);
    if (p->password_env && (p->version != 5 || !p->user))
        return err_set(e, EINVAL, "proxy: a password needs a user name and socks5");
    if (p->password_env && !variable_name(p->password_env))
        return err_set(e, EINVAL, "proxy: invalid environment variable name '%s'", p->password_env);
    return 0;
}

void spec_proxy_url(const struct spec_proxy *p, char out[SPEC_PROXY_URL_MAX])
{
    char at[END_TEXT_MAX];
    end_format(&p->at, at);
    (void)snprintf(out, SPEC_PROXY_URL_MAX, "socks%d://%s", p->version, at);
}

int spec_proxy_resolve(const struct spec_proxy *p, struct socks_config *ret, struct err *e)
{
    *ret = (struct socks_config){.version = p->version, .at = p->at};
    (void)snprintf(ret->user, sizeof(ret->user), "%s", p->user ? p->user : "");
    if (!p->password_env)
        return 0;
    const char *password = getenv(p->password_env);
    if (!password)
        return err_hinted(e, err_set(e, ENOENT, "the password of the proxy is not set"),
                          "set it in the environment variable %s", p->password_env);
    if (strlen(password) > SOCKS_TEXT_MAX)
        return err_set(e, EINVAL, "the password of the proxy in %s is longer than %d bytes",
                       p->password_env, SOCKS_TEXT_MAX);
    (void)snprintf(ret->password, sizeof(ret->password), "%s", password);
    return 0;
}

json_t *spec_proxy_to_json(const struct spec_proxy *p)
{
    char url[SPEC_PROXY_URL_MAX];
    if (p->version == 0)
        return json_null();
    spec_proxy_url(p, url);
    return json_pack("{s:s, s:s?, s:s?}", "url", url, "username", p->user, "password_env",
                     p->password_env);
}

int spec_proxy_from_json(struct spec_proxy *p, const json_t *j, struct err *e)
{
    AUTO_FREE char *url = NULL;
    int r = read_text(j, "url", &url, e);
    if (r == 0 && url)
        r = spec_proxy_set(p, url, e);
    if (r == 0)
        r = read_text(j, "username", &p->user, e);
    if (r == 0)
        r = read_text(j, "password_env", &p->password_env, e);
    return r < 0 ? r : spec_proxy_validate(p, e);
}
