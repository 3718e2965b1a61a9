/* Names in the first bytes of a flow. */
#include <string.h>

#include "net/packet.h"
#include "net/sniff.h"
#include "unit.h"
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
    assert_int_equal(sniff(&s, p, n, false), kind);
    assert_string_equal(s.name, name);
}

static void test_tls(void **state)
{
    uint8_t b[2048];
    size_t n = hello(b, "WWW.Example.com", 4096, 1);
    check(b, n, SNIFF_TLS, "www.example.com");
    struct sniffer s;
    for (size_t i = 0; i < n; i++) /* however it is split */
        assert_int_equal(sniff(&s, b, i, false), SNIFF_MORE);
    n = hello(b, "example.com", 7, 1); /* over many records */
    check(b, n, SNIFF_TLS, "example.com");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sniff(&s, b, i, false), SNIFF_MORE);
    check(b, hello(b, NULL, 4096, 1), SNIFF_TLS, "");
    check(b, hello(b, "a.b", 4096, 2), SNIFF_BROKEN, ""); /* two names */
    check(b, hello(b, "a b", 4096, 1), SNIFF_BROKEN, "");
    n = hello(b, "a.b", 4096, 1);
    b[n - 4]++; /* a length that lies */
    check(b, n, SNIFF_BROKEN, "");
    n = hello(b, "a.b", 4096, 1);
    b[5 + 4 + 34 + 1 + 4 + 2 + 2] = 0xfe; /* the other extension becomes an encrypted hello */
    b[5 + 4 + 34 + 1 + 4 + 2 + 3] = 0x0d;
    check(b, n, SNIFF_ECH, "a.b");
    assert_int_equal(sniff(&s, b, n - 1, true), SNIFF_BROKEN);
}

/* What some servers take for a ClientHello: records of other types before it, other versions. */
static void test_tls_tricks(void **state)
{
    uint8_t b[2048] = {21, 3, 1, 0, 2, 1, 90}; /* an alert, a warning, in front */
    size_t n = 7 + hello(b + 7, "a.b", 4096, 1);
    check(b, n, SNIFF_BROKEN, "");
    for (uint8_t type = 20; type <= 24; type++)
        if (type != 22)
            check(&type, 1, SNIFF_BROKEN, ""); /* nothing to wait for */
    n = hello(b, "a.b", 4096, 1);
    for (unsigned major = 0; major < 256; major++) {
        b[1] = (uint8_t)major;
        check(b, n, major == 3 ? SNIFF_TLS : SNIFF_BROKEN, major == 3 ? "a.b" : "");
    }
    check((const uint8_t *)"\x13\x03\x01\x00\x02", 5, SNIFF_UNKNOWN, "");
    check((const uint8_t *)"\x19\x03\x01\x00\x02", 5, SNIFF_UNKNOWN, "");
}

static void http(const char *text, enum sniff_kind kind, const char *name)
{
    check((const uint8_t *)text, strlen(text), kind, name);
}

static void test_http(void **state)
{
    http("GET / HTTP/1.1\r\nHost: Example.com\r\n\r\n", SNIFF_HTTP, "example.com");
    http("POST /x HTTP/1.0\r\nA: b\r\nhOST:example.com:8080\r\n\r\nbody", SNIFF_HTTP,
         "example.com");
    http("GET / HTTP/1.1\nHost: a.b\n\n", SNIFF_HTTP, "a.b");
    http("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", SNIFF_HTTP, "::1");
    http("GET / HTTP/1.0\r\n\r\n", SNIFF_HTTP, "");
    http("GET / HTTP/1.1\r\nHost: exam", SNIFF_MORE, "");
    http("GE", SNIFF_MORE, "");
    http("", SNIFF_MORE, "");
    http("SSH-2.0-OpenSSH\r\n", SNIFF_UNKNOWN, "");
    http("GET /\r\n", SNIFF_UNKNOWN, "");
    http("\x01\x02", SNIFF_UNKNOWN, "");
    static char huge[SNIFF_BYTES_MAX + 100];
    memset(huge, 'a', sizeof(huge) - 1);
    memcpy(huge, "GET / HTTP/1.1\r\nX: ", 19);
    http(huge, SNIFF_BROKEN, "");
}

/* What some servers take for a request to another host. */
static void test_http_tricks(void **state)
{
    static const char *const broken[] = {
        "GET / HTTP/1.1\r\nHost: a.b\r\nHost: c.d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.b\r\n c.d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.b\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\rHost: c.d\r\nHost: a.b\r\n\r\n",
        "GET http://c.d/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET http://a.b@c.d/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "CONNECT c.d:443 HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET http:///x HTTP/1.1\r\nHost: a.b\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "\r\n \r\nGET / HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "\t\vGET / HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "\xa0GET / HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET /\tHTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET\v/\vHTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET\f/\x1cHTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET\r/\rHTTP/1.1\nHost: a.b\r\n\r\n",
        "GET\x85/\xa0HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET / http/1.1\r\nHost: a.b\r\n\r\n",
        "GET / HTTP/1.1 x\r\nHost: a.b\r\n\r\n",
        "GET http://a.b/\r\n",
        "GET / HTTP/1.1\r\n\vHost: a.b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost\v: a.b\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\x0bHost: c.d\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(broken); i++)
        http(broken[i], SNIFF_BROKEN, "");
    http("\r\n\nGET / HTTP/1.1\r\nHost: a.b\r\n\r\n", SNIFF_HTTP, "a.b");
    http("X / HTTP/1.1 \r\nHost: a.b\r\n\r\n", SNIFF_HTTP, "a.b");
    http("m-search  *  HTTP/2.0\r\nHost: a.b\r\n\r\n", SNIFF_HTTP, "a.b");
    http("GET http://u:p@A.b:8080/x?y HTTP/1.1\r\n\r\n", SNIFF_HTTP, "a.b");
    http("GET http://a.b HTTP/1.1\r\nHost: a.b:80\r\n\r\n", SNIFF_HTTP, "a.b");
    http("GET /?u=http://c.d/ HTTP/1.1\r\nHost: a.b\r\n\r\n", SNIFF_HTTP, "a.b");
    http("CONNECT a.b:443 HTTP/1.1\r\nHost: a.b:443\r\n\r\n", SNIFF_HTTP, "a.b");
    static const char git[] = "0032git-upload-pack /x\0host=a.b\0"; /* must not wait for a line */
    check((const uint8_t *)git, sizeof(git) - 1, SNIFF_UNKNOWN, "");
    http("0GET / HTTP/1.1\r\nHost: a.b\r\n\r\n", SNIFF_HTTP, "a.b"); /* some serve any method */
    http("AMETHODTHATISLONGERTHANANYTHATWASEVERSEEN / HTTP/1.1\r\nHost: a.b\r\n\r\n", SNIFF_HTTP,
         "a.b");
    http("EHLO a.b\r\n", SNIFF_UNKNOWN, "");
    http(" \x01", SNIFF_UNKNOWN, "");
    http("AMQP", SNIFF_MORE, "");
    struct sniffer s;
    assert_int_equal(sniff(&s, (const uint8_t *)"GET / HTTP/1.1\r\nHost: a", 24, true),
                     SNIFF_BROKEN);
    assert_int_equal(sniff(&s, (const uint8_t *)"HELLO", 5, true), SNIFF_UNKNOWN);
    assert_int_equal(sniff(&s, (const uint8_t *)"", 0, true), SNIFF_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls), cmocka_unit_test(test_tls_tricks), cmocka_unit_test(test_http),
        cmocka_unit_test(test_http_tricks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
