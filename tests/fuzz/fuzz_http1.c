/* HTTP/1 messages and substitution: what is accepted has one meaning, whole or in pieces, and no value
 * gets out except where a placeholder stood at its place. */
#include "fuzz_require.h"

#include "intercept/swap.h"
#include "util/cleanup.h"

#include <string.h>

#define HOLDER "msb_placeholder"
#define VALUE "\x01VALUE"

static struct subst_secret secret = {.name = "KEY",
                                     .holder = HOLDER,
                                     .holder_len = sizeof(HOLDER) - 1,
                                     .value = VALUE,
                                     .value_len = sizeof(VALUE) - 1,
                                     .host = {{.name = "x.org", .path = "/p/"}},
                                     .n_hosts = 1,
                                     .place = {{.where = SUBST_QUERY, .name = "k"}},
                                     .n_places = 1};
static const struct subst subst = {&secret, 1};
static struct http_head head, again;

/* The body, by pieces of at most `step` bytes: how many bytes of data, and where it ends. */
static size_t walk(const char *p, size_t n, size_t step, size_t *ret_end, bool *ret_bad)
{
    struct http_body b;
    size_t at = 0, have = 0, data = 0;
    http_body_begin(&b, &head);
    *ret_bad = false;
    while (!http_body_done(&b)) {
        enum http_piece what;
        ssize_t k = http_body_step(&b, p + at, have - at, &what);
        REQUIRE(k <= (ssize_t)(have - at));
        *ret_bad = k < 0;
        if (k < 0 || (k == 0 && have == n))
            break;
        if (k == 0) {
            have = MIN(n, have + step);
            continue;
        }
        data += what == HTTP_PIECE_DATA ? (size_t)k : 0;
        at += (size_t)k;
    }
    *ret_end = http_body_done(&b) ? at : SIZE_MAX;
    return data;
}

static void check_request(const char *p, size_t n)
{
    char why[SUBST_TEXT_MAX];
    const char *what;
    struct buf out = {.limit = SUBST_HEAD_MAX};
    for (size_t i = 0; i < head.n; i++)
        REQUIRE(head.field[i].name.p >= p &&
                head.field[i].value.p + head.field[i].value.n <= p + n);
    if (subst_head(&subst, "x.org", &head, &out, why) == 0) {
        bool had = memmem(p, n, HOLDER, sizeof(HOLDER) - 1) || memmem(p, n, "asic ", 5);
        const void *value = memmem(buf_head(&out), buf_len(&out), VALUE, sizeof(VALUE) - 1);
        REQUIRE(had || !value);
        if (!value) /* what is sent is what was read */
            REQUIRE(http_request((char *)buf_head(&out), buf_len(&out), &again, &what) == 0 &&
                    again.n == head.n && again.framing == head.framing &&
                    again.length == head.length);
    }
    buf_free(&out);
    REQUIRE(subst_head(&subst, "other.org", &head, &out, why) < 0 ||
            !memmem(buf_head(&out), buf_len(&out), VALUE, sizeof(VALUE) - 1));
    buf_free(&out);
}

/* Placeholders become values, however the bytes are cut, and the other way round. */
static void swap_all(struct swap *w, const char *p, size_t n, size_t step, struct buf *out)
{
    for (size_t at = 0; at < n; at += MIN(step, n - at))
        REQUIRE(swap_run(w, p + at, MIN(step, n - at), false, out) == 0);
    REQUIRE(swap_run(w, "", 0, true, out) == 0);
    swap_end(w);
}

static void check_swap(const char *p, size_t n, size_t step)
{
    static const char value[] = VALUE "-LONGER";
    struct subst_secret x = subst.secret[0];
    const struct subst s = {&x, 1};
    struct swap w = {0};
    struct buf whole = {.limit = 1 << 20}, cut = {.limit = 1 << 20}, back = {.limit = 1 << 20};
    char why[SUBST_TEXT_MAX];
    head.framing = HTTP_CHUNKED;
    x.place[0].where = SUBST_BODY;
    x.place[1].where = SUBST_RESPONSE;
    x.n_places = 2;
    x.host[0].path[0] = '\0';
    x.value = value;
    x.value_len = sizeof(value) - 1;
    if (n > SWAP_PIECE)
        return;
    REQUIRE(swap_for_request(&w, &s, "x.org", &head, why) == 0 && w.n == 1);
    w.form = SWAP_PLAIN;
    struct swap other = {0};
    REQUIRE(swap_for_request(&other, &s, "x.org", &head, why) == 0);
    other.form = SWAP_PLAIN;
    swap_all(&w, p, n, n + 1, &whole);
    swap_all(&other, p, n, step, &cut);
    REQUIRE(buf_len(&whole) == buf_len(&cut) &&
            (buf_len(&cut) == 0 || memcmp(buf_head(&whole), buf_head(&cut), buf_len(&cut)) == 0));
    REQUIRE(swap_for_response(&w, &s, "x.org") == 0 && w.n == 1);
    swap_all(&w, (const char *)buf_head(&cut), buf_len(&cut), step, &back);
    REQUIRE(buf_len(&back) == 0 ||
            !memmem(buf_head(&back), buf_len(&back), value, sizeof(value) - 1));
    buf_free(&whole);
    buf_free(&cut);
    buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *why;
    size_t seen = 0, slow = 0;
    if (size < 2)
        return 0;
    size_t n = size - 2;
    char *p = malloc(n + 1);
    REQUIRE(p);
    memcpy(p, data + 2, n);
    ssize_t k = http_head_end(p, n, &seen), one = 0;
    for (size_t i = 0; i <= n && one == 0; i += 1 + data[0] % 7)
        one = http_head_end(p, i, &slow);
    REQUIRE(one == 0 || one == k || (k > 0 && one == k));
    if (k > 0 && (data[1] & 1 ? http_request(p, (size_t)k, &head, &why)
                              : http_response(p, (size_t)k, data[1] & 2, &head, &why)) == 0) {
        size_t a, b;
        bool bad_a, bad_b;
        size_t x = walk(p + k, n - (size_t)k, SIZE_MAX / 2, &a, &bad_a);
        size_t y = walk(p + k, n - (size_t)k, 1 + data[0], &b, &bad_b);
        REQUIRE(a == b && bad_a == bad_b && (bad_a || x == y));
        if (data[1] & 1) {
            check_request(p, (size_t)k);
            check_swap(p + k, n - (size_t)k, 1 + data[0] % 31);
        }
    }
    free(p);
    return 0;
}
