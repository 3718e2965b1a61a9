#include "net/sniff.h"

#include <string.h>
#include <strings.h>

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

enum {
    TLS_RECORD_FIRST = 20, /* types of records: change of cipher, alert, handshake, ... */
    TLS_HANDSHAKE = 22,
    TLS_RECORD_LAST = 24,
    TLS_HELLO = 1,
    TLS_EXT_SNI = 0,
    TLS_EXT_ECH = 0xfe0d,
    TLS_RECORD_MAX = 16384 + 256
};

static bool server_name(struct sniffer *s, struct view ext)
{
    struct view list = take(&ext, take_int(&ext, 2));
    uint32_t type = take_int(&list, 1);
    struct view name = take(&list, take_int(&list, 2));
    return !ext.bad && !list.bad && !name.bad && ext.n == 0 && list.n == 0 && type == 0 &&
           set_name(s, name.p, name.n);
}

static enum sniff_kind client_hello(struct sniffer *s, struct view v)
{
    (void)take(&v, 2 + 32);          /* version, random */
    (void)take(&v, take_int(&v, 1)); /* session */
    (void)take(&v, take_int(&v, 2)); /* ciphers */
    (void)take(&v, take_int(&v, 1)); /* compression */
    if (v.bad)
        return SNIFF_BROKEN;
    if (v.n == 0)
        return SNIFF_TLS; /* no extensions: no name */
    struct view all = take(&v, take_int(&v, 2));
    bool seen = false, hidden = false;
    while (!v.bad && all.n > 0) {
        uint32_t type = take_int(&all, 2);
        struct view ext = take(&all, take_int(&all, 2));
        if (all.bad || ext.bad)
            return SNIFF_BROKEN;
        if (type == TLS_EXT_ECH)
            hidden = true;
        if (type != TLS_EXT_SNI)
            continue;
        if (seen || !server_name(s, ext))
            return SNIFF_BROKEN; /* two names, or a bad one */
        seen = true;
    }
    if (v.bad || v.n > 0)
        return SNIFF_BROKEN;
    return hidden ? SNIFF_ECH : SNIFF_TLS;
}

/* The handshake message may be spread over several records: they are joined first. Some servers
 * skip alerts in front of it, and some ignore the version of its record. */
static enum sniff_kind sniff_tls(struct sniffer *s, const uint8_t *p, size_t n, bool last)
{
    uint8_t hello[SNIFF_BYTES_MAX];
    size_t have = 0, need = 4;
    if (p[0] != TLS_HANDSHAKE || (n > 1 && p[1] != 3))
        return SNIFF_BROKEN;
    while (n >= 5) {
        size_t len = be16(p + 3);
        if (p[0] != TLS_HANDSHAKE || p[1] != 3 || len == 0 || len > TLS_RECORD_MAX)
            return SNIFF_BROKEN;
        size_t part = MIN(len, n - 5);
        if (part > sizeof(hello) - have)
            return SNIFF_BROKEN;
        memcpy(hello + have, p + 5, part);
        have += part;
        if (have > 0 && hello[0] != TLS_HELLO)
            return SNIFF_BROKEN;
        if (have >= 4)
            need = 4 + ((size_t)hello[1] << 16 | be16(hello + 2));
        if (need > sizeof(hello))
            return SNIFF_BROKEN;
        if (have >= need)
            return client_hello(s, (struct view){.p = hello + 4, .n = need - 4});
        if (part < len)
            break;
        p += 5 + len;
        n -= 5 + len;
    }
    return last ? SNIFF_BROKEN : SNIFF_MORE;
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

/* Takes a name that a request gives: any further one must be the same. */
static bool agree(struct sniffer *s, const uint8_t *p, size_t n)
{
    struct sniffer other = {.name = ""};
    if (!host_value(s->name[0] == '\0' ? s : &other, p, n))
        return false;
    return other.name[0] == '\0' || strcmp(other.name, s->name) == 0;
}

/* Finds the host in a request's target; false if that is ambiguous. */
static bool target_host(struct sniffer *s, const uint8_t *p, size_t n, bool is_connect)
{
    size_t at = 0;
    if (is_connect)
        return agree(s, p, n);
    if (n == 0 || p[0] == '/' || p[0] == '*')
        return true;
    while (at < n && p[at] != ':' && p[at] != '/')
        at++;
    if (at + 2 >= n || memcmp(p + at, "://", 3) != 0)
        return true; /* no scheme: no server takes it as another host */
    p += at + 3;
    n -= at + 3;
    for (at = 0; at < n && p[at] != '/' && p[at] != '?' && p[at] != '#';)
        at++;
    const uint8_t *user = at > 0 ? memrchr(p, '@', at) : NULL;
    return agree(s, user ? user + 1 : p, user ? (size_t)(p + at - user - 1) : at);
}

/* Bytes that some servers take as a space between words, or skip at the beginning: Python's, for
 * example. */
static bool is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           c == 0xa0;
}

static size_t word_len(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && !is_blank(p[i]))
        i++;
    return i;
}

static size_t blank_len(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && is_blank(p[i]))
        i++;
    return i;
}

/* Whether a lenient server would take the line as a request: a later word is HTTP/something, or
 * there are two words, a method that every server knows and an absolute target. */
static bool may_be_request(const uint8_t *p, size_t n)
{
    bool get = word_len(p, n) == 3 && strncasecmp((const char *)p, "GET", 3) == 0;
    for (size_t at = word_len(p, n);;) {
        at += blank_len(p + at, n - at);
        size_t len = word_len(p + at, n - at);
        if (len == 0)
            return false;
        if (len >= 5 && strncasecmp((const char *)p + at, "HTTP/", 5) == 0)
            return true;
        if (get && memmem(p + at, len, "://", 3))
            return true;
        at += len;
    }
}

/* METHOD SP target SP HTTP/x.y: 1 yes, 0 no, -1 something that only some servers take as a request,
 * or with an ambiguous host. */
static int request_line(struct sniffer *s, const uint8_t *p, size_t n)
{
    if (!may_be_request(p, n))
        return 0;
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && is_blank(p[i]))
            return -1;
    const uint8_t *version = n > 0 ? memrchr(p, ' ', n) : NULL;
    const uint8_t *target = n > 0 ? memchr(p, ' ', n) : NULL;
    if (!version || p + n - version <= 6 || memcmp(version, " HTTP/", 6) != 0)
        return -1;
    bool is_connect = target - p == 7 && strncasecmp((const char *)p, "CONNECT", 7) == 0;
    while (target < version && *target == ' ')
        target++;
    while (version > target && version[-1] == ' ')
        version--;
    return target_host(s, target, (size_t)(version - target), is_connect) ? 1 : -1;
}

/* False as soon as it cannot be a method and a space. How long methods are is up to servers. */
static bool may_be_method(const uint8_t *p, size_t n)
{
    static const char more[] = "0123456789!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        bool letter = (p[i] | 32) >= 'a' && (p[i] | 32) <= 'z';
        if (is_blank(p[i]))
            return i > 0;
        if (!letter && !memchr(more, p[i], sizeof(more) - 1))
            return false;
    }
    return true;
}

static bool has_control(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((p[i] < ' ' && p[i] != '\t') || p[i] == 0x7f)
            return true;
    return false;
}

/* A request in git's own protocol: it begins with a digit and has a zero byte in its first line,
 * which no HTTP method known to any server does. */
static bool is_git(const uint8_t *p, size_t n)
{
    const uint8_t *end = n > 0 ? memchr(p, '\n', n) : NULL;
    return n > 0 && p[0] >= '0' && p[0] <= '9' && memchr(p, '\0', end ? (size_t)(end - p) : n);
}

/* One line of the head, without its end; false if it is ambiguous. */
static bool header_line(struct sniffer *s, const uint8_t *p, size_t n, bool *seen)
{
    if (p[0] == ' ' || p[0] == '\t' || has_control(p, n))
        return false; /* a folded line, or one that some take as two */
    if (n < 5 || strncasecmp((const char *)p, "host", 4) != 0)
        return true;
    if (is_blank(p[4]))
        return false;
    if (p[4] != ':')
        return true;
    bool again = *seen;
    *seen = true;
    return !again && agree(s, p + 5, n - 5);
}

static enum sniff_kind sniff_http(struct sniffer *s, const uint8_t *p, size_t n, bool last)
{
    bool first = true, seen = false, odd = false;
    while (n > 0 && is_blank(*p)) { /* servers skip empty lines in front; some skip other blanks */
        odd = odd || (*p != '\r' && *p != '\n');
        p++;
        n--;
    }
    if (!may_be_method(p, n) || is_git(p, n))
        return SNIFF_UNKNOWN;
    for (;;) {
        const uint8_t *end = n > 0 ? memchr(p, '\n', n) : NULL;
        if (!end && first && last) /* what would be sent is complete, though its line is not */
            return n > 0 && request_line(s, p, n) != 0 ? SNIFF_BROKEN : SNIFF_UNKNOWN;
        if (!end)
            return last ? SNIFF_BROKEN : SNIFF_MORE;
        size_t line = (size_t)(end - p);
        size_t len = line > 0 && p[line - 1] == '\r' ? line - 1 : line;
        int r = first ? request_line(s, p, len) : 1;
        if (r == 0)
            return SNIFF_UNKNOWN;
        if (!first && len == 0)
            return SNIFF_HTTP;
        if (r < 0 || odd || (!first && !header_line(s, p, len, &seen)))
            return SNIFF_BROKEN;
        first = false;
        p += line + 1;
        n -= line + 1;
    }
}

enum sniff_kind sniff(struct sniffer *s, const uint8_t *p, size_t n, bool last)
{
    s->name[0] = '\0';
    if (n == 0)
        return last ? SNIFF_UNKNOWN : SNIFF_MORE;
    size_t k = MIN(n, (size_t)SNIFF_BYTES_MAX);
    bool tls = p[0] >= TLS_RECORD_FIRST && p[0] <= TLS_RECORD_LAST;
    enum sniff_kind kind = tls ? sniff_tls(s, p, k, last) : sniff_http(s, p, k, last);
    if (kind == SNIFF_MORE && n >= SNIFF_BYTES_MAX)
        kind = SNIFF_BROKEN;
    if (kind == SNIFF_UNKNOWN || kind == SNIFF_BROKEN || kind == SNIFF_MORE)
        s->name[0] = '\0';
    return kind;
}
