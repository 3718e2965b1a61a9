/* HTTP/2 from a hostile client and a hostile server: whatever they say, a value goes to the server only, in
 * a field where it belongs, and never into a table of HPACK. The input is a series of pieces: a byte for
 * who says it (1: the server) and how much (the other bits), and that many bytes of frames. */
#include "fuzz_require.h"

#include "intercept/h2.h"
#include "util/cleanup.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <string.h>

#define HOLDER "msb_placeholder"
#define VALUE "\x01VALUE"

enum { HIGH = 64 * 1024, RECORD = 9 };

static struct subst_secret secret = {.name = "KEY",
                                     .holder = HOLDER,
                                     .holder_len = sizeof(HOLDER) - 1,
                                     .value = VALUE,
                                     .value_len = sizeof(VALUE) - 1,
                                     .host = {{.name = "x.org"}},
                                     .n_hosts = 1,
                                     .place = {{.where = SUBST_QUERY, .name = "k"},
                                               {.where = SUBST_BODY},
                                               {.where = SUBST_RESPONSE}},
                                     .n_places = 3};
static const struct subst subst = {&secret, 1};
static bool absent; /* the value has to be minted */

static const struct subst *secrets(void *arg)
{
    secret.value = absent ? NULL : VALUE;
    return &subst;
}

static void report(void *arg, enum link_report_kind kind, const char *text)
{
    REQUIRE(kind && strlen(text) < SUBST_TEXT_MAX);
}

static int want(void *arg, const char *name, const char **why)
{
    REQUIRE(absent && strcmp(name, "KEY") == 0);
    return -EAGAIN;
}

static const struct h2_env env = {.host = "x.org",
                                  .port = 443,
                                  .trouble = "",
                                  .secrets = secrets,
                                  .report = report,
                                  .want = want};

/* What was sent to one side, frame by frame. */
struct listener {
    struct buf got;
    nghttp2_hd_inflater *fields;
    enum h2_side side;
};

static void check_field(const struct listener *l, const nghttp2_nv *nv)
{
    static const char *const places[] = {"authorization", "x-api-key", "api-key", "private-token"};
    bool place = false;
    /* Neither of them can say a control character in a field. */
    if (!memmem(nv->value, nv->valuelen, VALUE, sizeof(VALUE) - 1))
        return;
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        place |= nv->namelen == strlen(places[i]) && memcmp(nv->name, places[i], nv->namelen) == 0;
    REQUIRE(l->side == H2_SERVER && place && nv->flags & NGHTTP2_NV_FLAG_NO_INDEX);
}

static void check_fields(struct listener *l, const uint8_t *p, size_t n, bool last)
{
    for (;;) {
        nghttp2_nv nv;
        int flags = 0;
        ssize_t k = nghttp2_hd_inflate_hd2(l->fields, &nv, &flags, p, n, last);
        REQUIRE(k >= 0);
        p += k;
        n -= (size_t)k;
        if (flags & NGHTTP2_HD_INFLATE_EMIT)
            check_field(l, &nv);
        if (flags & NGHTTP2_HD_INFLATE_FINAL)
            nghttp2_hd_inflate_end_headers(l->fields);
        if (flags & NGHTTP2_HD_INFLATE_FINAL || (!(flags & NGHTTP2_HD_INFLATE_EMIT) && n == 0))
            return;
    }
}

static void listen_to(struct listener *l, struct h2 *h)
{
    bool secret_there = false;
    (void)h2_give(h, l->side, &l->got, HIGH, &secret_there);
    if (l->side == H2_SERVER && buf_len(&l->got) >= 24 && memcmp(buf_head(&l->got), "PRI ", 4) == 0)
        buf_consume(&l->got, 24);
    while (buf_len(&l->got) >= RECORD) {
        const uint8_t *p = buf_head(&l->got);
        size_t n = (size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2];
        if (buf_len(&l->got) < RECORD + n)
            return;
        REQUIRE(n <= 16384);
        if (p[3] == NGHTTP2_HEADERS || p[3] == NGHTTP2_CONTINUATION)
            check_fields(l, p + RECORD, n, p[4] & NGHTTP2_FLAG_END_HEADERS);
        buf_consume(&l->got, RECORD + n);
    }
}

static void talk(struct h2 *h, const uint8_t *data, size_t size, struct listener *l)
{
    for (size_t at = 0; at < size && !h2_over(h);) {
        enum h2_side from = data[at] & 1 ? H2_SERVER : H2_GUEST;
        size_t n = MIN((size_t)data[at] >> 1, size - at - 1);
        at++;
        if (n == 0) { /* the value is there, or it is not */
            absent = !absent;
            h2_resume(h);
        }
        if (n > 0 && h2_take(h, from, data + at, n) < 0)
            return;
        at += n;
        listen_to(&l[H2_GUEST], h);
        listen_to(&l[H2_SERVER], h);
    }
    h2_lost_server(h);
    listen_to(&l[H2_GUEST], h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    struct listener l[2] = {{.got.limit = 1 << 20, .side = H2_GUEST},
                            {.got.limit = 1 << 20, .side = H2_SERVER}};
    struct h2 *h = NULL;
    absent = false;
    REQUIRE(h2_new(&h, &env) == 0);
    REQUIRE(nghttp2_hd_inflate_new(&l[0].fields) == 0 && nghttp2_hd_inflate_new(&l[1].fields) == 0);
    REQUIRE(h2_take(h, H2_GUEST, hello, sizeof(hello) - 1) == 0);
    REQUIRE(h2_take(h, H2_SERVER, hello + 24, sizeof(hello) - 25) == 0);
    talk(h, data, size, l);
    h2_free(h);
    for (unsigned i = 0; i < 2; i++) {
        nghttp2_hd_inflate_del(l[i].fields);
        buf_free(&l[i].got);
    }
    return 0;
}
