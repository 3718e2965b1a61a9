#include "registry/challenge.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static const char *skip(const char *p, const char *these)
{
    return p + strspn(p, these);
}

static size_t token_len(const char *p)
{
    size_t n = 0;
    while (is_token_char(p[n]))
        n++;
    return n;
}

/* A token or a quoted string, copied without its quotes; *p moves behind it. */
static int read_value(const char **p, char **ret)
{
    const char *s = *p;
    if (*s != '"') {
        /* Unquoted URLs occur: up to the comma. */
        size_t n = strcspn(s, ", \t");
        *ret = strndup(s, n);
        *p = s + n;
        return *ret ? 0 : -ENOMEM;
    }
    char *v = malloc(strlen(s)), *to = v;
    if (!v)
        return -ENOMEM;
    for (s++; *s && *s != '"'; s++) {
        if (*s == '\\' && s[1])
            s++;
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            break;
        *to++ = *s;
    }
    *to = '\0';
    if (*s != '"') {
        free(v);
        return -EINVAL;
    }
    *ret = v;
    *p = s + 1;
    return 0;
}

static void keep_param(struct challenge *c, const char *name, size_t n, char *value)
{
    char **slot = NULL;
    if (n == 5 && strncasecmp(name, "realm", n) == 0)
        slot = &c->realm;
    else if (n == 7 && strncasecmp(name, "service", n) == 0)
        slot = &c->service;
    else if (n == 5 && strncasecmp(name, "scope", n) == 0)
        slot = &c->scope;
    if (slot && !*slot)
        *slot = value;
    else
        free(value);
}

/* Parameters up to the next challenge, which begins with a token that no '=' follows. */
static int read_params(const char **p, struct challenge *c)
{
    for (;;) {
        const char *s = skip(*p, ", \t");
        size_t n = token_len(s);
        const char *after = skip(s + n, " \t");
        if (n == 0 || *after != '=') {
            /* The end, or the next scheme; anything else is noise up to a comma. */
            *p = n || !*s ? s : s + strcspn(s, ",");
            return 0;
        }
        *p = skip(after + 1, " \t");
        char *value;
        int r = read_value(p, &value);
        if (r < 0)
            return r;
        keep_param(c, s, n, value);
    }
}

static enum challenge_scheme scheme_of(const char *s, size_t n)
{
    if (n == 6 && strncasecmp(s, "bearer", n) == 0)
        return CHALLENGE_BEARER;
    return n == 5 && strncasecmp(s, "basic", n) == 0 ? CHALLENGE_BASIC : CHALLENGE_NONE;
}

int challenge_parse(const char *header, struct challenge *ret)
{
    *ret = (struct challenge){0};
    for (const char *p = skip(header, ", \t"); *p; p = skip(p, ", \t")) {
        struct challenge c = {0};
        size_t n = token_len(p);
        if (n == 0) { /* not a challenge: leave it out */
            p += 1 + strcspn(p + 1, ",");
            continue;
        }
        c.scheme = scheme_of(p, n);
        p += n;
        int r = read_params(&p, &c);
        if (r < 0) {
            challenge_free(&c);
            challenge_free(ret);
            return r;
        }
        if (c.scheme > ret->scheme) {
            challenge_free(ret);
            *ret = c;
        } else {
            challenge_free(&c);
        }
    }
    return 0;
}

void challenge_free(struct challenge *c)
{
    free(c->realm);
    free(c->service);
    free(c->scope);
    *c = (struct challenge){0};
}
