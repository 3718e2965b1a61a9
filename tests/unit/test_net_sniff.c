/* Names in the first bytes of a flow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "net/packet.h"
#include "net/sniff.h"
#include "util/cleanup.h"

/* A ClientHello with that name (NULL: none), in records of at most `record` bytes. */
static size_t hello(uint8_t *out, const char *name, size_t record, unsigned copies)
{
    uint8_t m[1024] = {1}; /* handshake type; its length follows */
    size_t n = 4;
    n += 2 + 32;     /* version, random */
    m[n++] = 0;      /* session */
    put16(m + n, 2); /* ciphers */
    n += 4;
    m[n++] = 1; /* compression */
    m[n++] = 0;
    size_t ext = n;
    n += 2;
    put16(m + n, 23); /* some other extension */
    put16(m + n + 2, 3);
    n += 7;
    for (unsigned i = 0; name && i < copies; i++) {
        size_t len = strlen(name);
        put16(m + n, 0);
        put16(m + n + 2, (uint16_t)(len + 5));
        put16(m + n + 4, (uint16_t)(len + 3));
        m[n + 6] = 0;
        put16(m + n + 7, (uint16_t)len);
        memcpy(m + n + 9, name, len);
        n += 9 + len;
    }
    put16(m + ext, (uint16_t)(n - ext - 2));
    put16(m + 2, (uint16_t)(n - 4));
    size_t o = 0;
    for (size_t at = 0; at < n; at += record) {
        size_t k = MIN(record, n - at);
        out[o] = 22;
        put16(out + o + 1, 0x0301);
        put16(out + o + 3, (uint16_t)k);
        memcpy(out + o + 5, m + at, k);
        o += 5 + k;
    }
    return o;
}

static void check(const uint8_t *p, size_t n, enum sniff_kind kind, const char *name)
{
    struct sniffer s;
    assert_int_equal(sniff(&s, p, n), kind);
    assert_string_equal(s.name, name);
}

static void test_tls(void **state)
{
    (void)state;
    uint8_t b[2048];
    size_t n = hello(b, "WWW.Example.com", 4096, 1);
    check(b, n, SNIFF_TLS, "www.example.com");
    struct sniffer s;
    for (size_t i = 0; i < n; i++) /* however it is split */
        assert_int_equal(sniff(&s, b, i), SNIFF_MORE);
    n = hello(b, "example.com", 7, 1); /* over many records */
    check(b, n, SNIFF_TLS, "example.com");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sniff(&s, b, i), SNIFF_MORE);
    check(b, hello(b, NULL, 4096, 1), SNIFF_TLS, "");
    check(b, hello(b, "a.b", 4096, 2), SNIFF_UNKNOWN, ""); /* two names */
    check(b, hello(b, "a b", 4096, 1), SNIFF_UNKNOWN, "");
    n = hello(b, "a.b", 4096, 1);
    b[n - 4]++; /* a length that lies */
    check(b, n, SNIFF_UNKNOWN, "");
    memcpy(b, "\x16\x02\x00\x00\x05", 5);
    check(b, 5, SNIFF_UNKNOWN, "");
}

static void http(const char *text, enum sniff_kind kind, const char *name)
{
    check((const uint8_t *)text, strlen(text), kind, name);
}

static void test_http(void **state)
{
    (void)state;
    http("GET / HTTP/1.1\r\nHost: Example.com\r\n\r\n", SNIFF_HTTP, "example.com");
    http("POST /x HTTP/1.0\r\nA: b\r\nhOST:example.com:8080\r\n\r\nbody", SNIFF_HTTP,
         "example.com");
    http("GET / HTTP/1.1\nHost: a.b\n\n", SNIFF_HTTP, "a.b");
    http("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", SNIFF_HTTP, "::1");
    http("GET / HTTP/1.0\r\n\r\n", SNIFF_HTTP, "");
    http("GET / HTTP/1.1\r\nHost: exam", SNIFF_MORE, "");
    http("GE", SNIFF_MORE, "");
    http("", SNIFF_MORE, "");
    http("GET / HTTP/1.1\r\nHost: a.b\r\nHost: c.d\r\n\r\n", SNIFF_UNKNOWN, "");
    http("GET / HTTP/1.1\r\nHost: a.b\r\n c.d\r\n\r\n", SNIFF_UNKNOWN, "");
    http("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", SNIFF_UNKNOWN, "");
    http("SSH-2.0-OpenSSH\r\n", SNIFF_UNKNOWN, "");
    http("GET /\r\n", SNIFF_UNKNOWN, "");
    http("\x01\x02", SNIFF_UNKNOWN, "");
    static char huge[SNIFF_BYTES_MAX + 100];
    memset(huge, 'a', sizeof(huge) - 1);
    memcpy(huge, "GET / HTTP/1.1\r\nX: ", 19);
    http(huge, SNIFF_UNKNOWN, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tls), cmocka_unit_test(test_http)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
