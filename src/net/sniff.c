#include "net/sniff.h"

#include <stdbool.h>
#include <string.h>

#include "net/packet.h"
#include "util/cleanup.h"

/* A view that only shrinks; a read past its end marks it. */
struct view {
    const uint8_t *p;
    size_t n;
    bool bad;
};

static struct view take(struct view *v, size_t n)
{
    struct view r = {.p = v->p, .n = n};
    if (v->bad || n > v->n) {
        v->bad = true;
        return (struct view){.bad = true};
    }
    v->p += n;
    v->n -= n;
    return r;
}

static uint32_t take_int(struct view *v, unsigned bytes)
{
    struct view r = take(v, bytes);
    uint32_t x = 0;
    for (unsigned i = 0; i < bytes && !r.bad; i++)
        x = x << 8 | r.p[i];
    return x;
}

/* Lower case, without a final dot; false if it cannot be the name of a host. */
static bool set_name(struct sniffer *s, const uint8_t *p, size_t n)
{
    if (n > 0 && p[n - 1] == '.')
        n--;
    if (n == 0 || n >= SNIFF_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = p[i];
        if (c >= 'A' && c <= 'Z')
            c = (uint8_t)(c + 32);
        bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                  c == '_' || c == ':' || c == '[' || c == ']';
        if (!ok)
            return false;
        s->name[i] = (char)c;
    }
    s->name[n] = '\0';
    return true;
}

/* --- TLS ------------------------------------------------------------------------------------- */

enum { TLS_HANDSHAKE = 22, TLS_HELLO = 1, TLS_EXT_SNI = 0, TLS_RECORD_MAX = 16384 + 256 };

static enum sniff_kind server_name(struct sniffer *s, struct view ext)
{
    struct view list = take(&ext, take_int(&ext, 2));
    uint32_t type = take_int(&list, 1);
    struct view name = take(&list, take_int(&list, 2));
    if (ext.bad || list.bad || name.bad || ext.n > 0 || list.n > 0 || type != 0 ||
        !set_name(s, name.p, name.n))
        return SNIFF_UNKNOWN;
    return SNIFF_TLS;
}

static enum sniff_kind client_hello(struct sniffer *s, struct view v)
{
    (void)take(&v, 2 + 32);          /* version, random */
    (void)take(&v, take_int(&v, 1)); /* session */
    (void)take(&v, take_int(&v, 2)); /* ciphers */
    (void)take(&v, take_int(&v, 1)); /* compression */
    if (v.bad)
        return SNIFF_UNKNOWN;
    if (v.n == 0)
        return SNIFF_TLS; /* no extensions: no name */
    struct view all = take(&v, take_int(&v, 2));
    enum sniff_kind found = SNIFF_TLS;
    bool seen = false;
    while (!v.bad && all.n > 0) {
        uint32_t type = take_int(&all, 2);
        struct view ext = take(&all, take_int(&all, 2));
        if (all.bad || ext.bad)
            return SNIFF_UNKNOWN;
        if (type != TLS_EXT_SNI)
            continue;
        if (seen)
            return SNIFF_UNKNOWN; /* two names: whose? */
        seen = true;
        found = server_name(s, ext);
    }
    return v.bad || v.n > 0 ? SNIFF_UNKNOWN : found;
}

/* The handshake message may be spread over several records: they are joined first. */
static enum sniff_kind sniff_tls(struct sniffer *s, const uint8_t *p, size_t n)
{
    uint8_t hello[SNIFF_BYTES_MAX];
    size_t have = 0, need = 4;
    while (n >= 5) {
        size_t len = be16(p + 3);
        if (p[0] != TLS_HANDSHAKE || p[1] != 3 || len == 0 || len > TLS_RECORD_MAX)
            return SNIFF_UNKNOWN;
        size_t part = MIN(len, n - 5);
        if (part > sizeof(hello) - have)
            return SNIFF_UNKNOWN;
        memcpy(hello + have, p + 5, part);
        have += part;
        if (have > 0 && hello[0] != TLS_HELLO)
            return SNIFF_UNKNOWN;
        if (have >= 4)
            need = 4 + ((size_t)hello[1] << 16 | be16(hello + 2));
        if (need > sizeof(hello))
            return SNIFF_UNKNOWN;
        if (have >= need)
            return client_hello(s, (struct view){.p = hello + 4, .n = need - 4});
        if (part < len)
            return SNIFF_MORE;
        p += 5 + len;
        n -= 5 + len;
    }
    if (n > 0 && (p[0] != TLS_HANDSHAKE || (n > 1 && p[1] != 3)))
        return SNIFF_UNKNOWN;
    return SNIFF_MORE;
}

/* --- HTTP ------------------------------------------------------------------------------------ */

/* The value of a Host header: a name, perhaps with a port. */
static bool host_value(struct sniffer *s, const uint8_t *p, size_t n)
{
    while (n > 0 && (p[0] == ' ' || p[0] == '\t')) {
        p++;
        n--;
    }
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    if (n > 0 && p[0] == '[') { /* an IPv6 literal */
        const uint8_t *end = memchr(p, ']', n);
        return end && set_name(s, p + 1, (size_t)(end - p - 1));
    }
    const uint8_t *colon = n > 0 ? memchr(p, ':', n) : NULL;
    return set_name(s, p, colon ? (size_t)(colon - p) : n);
}

static bool is_host_line(const uint8_t *p, size_t n)
{
    static const char want[] = "host:";
    for (size_t i = 0; i < 5; i++)
        if (i >= n || (p[i] | 32) != (want[i] | 32))
            return false;
    return true;
}

/* METHOD SP target SP HTTP/1.x */
static bool is_request_line(const uint8_t *p, size_t n)
{
    static const char version[] = " HTTP/1.";
    size_t v = sizeof(version) - 1;
    return n > v + 1 && memcmp(p + n - v - 1, version, v) == 0;
}

/* A method is capital letters; false as soon as it cannot be one. */
static bool may_be_method(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n && i < 16; i++) {
        if (p[i] == ' ')
            return i >= 3;
        if (p[i] < 'A' || p[i] > 'Z')
            return false;
    }
    return n < 16;
}

static enum sniff_kind sniff_http(struct sniffer *s, const uint8_t *p, size_t n)
{
    bool first = true, seen = false;
    if (!may_be_method(p, n))
        return SNIFF_UNKNOWN;
    for (;;) {
        const uint8_t *end = n > 0 ? memchr(p, '\n', n) : NULL;
        if (!end)
            return SNIFF_MORE;
        size_t line = (size_t)(end - p);
        size_t len = line > 0 && p[line - 1] == '\r' ? line - 1 : line;
        if (first && !is_request_line(p, len))
            return SNIFF_UNKNOWN;
        if (!first && len == 0)
            return SNIFF_HTTP;
        if (!first && (p[0] == ' ' || p[0] == '\t'))
            return SNIFF_UNKNOWN; /* a folded line could hide a second name */
        if (!first && is_host_line(p, len)) {
            if (seen || !host_value(s, p + 5, len - 5))
                return SNIFF_UNKNOWN;
            seen = true;
        }
        first = false;
        p += line + 1;
        n -= line + 1;
    }
}

enum sniff_kind sniff(struct sniffer *s, const uint8_t *p, size_t n)
{
    s->name[0] = '\0';
    if (n == 0)
        return SNIFF_MORE;
    size_t k = MIN(n, (size_t)SNIFF_BYTES_MAX);
    enum sniff_kind kind = p[0] == TLS_HANDSHAKE ? sniff_tls(s, p, k) : sniff_http(s, p, k);
    if (kind == SNIFF_MORE && n >= SNIFF_BYTES_MAX)
        kind = SNIFF_UNKNOWN;
    if (kind == SNIFF_UNKNOWN)
        s->name[0] = '\0';
    return kind;
}
