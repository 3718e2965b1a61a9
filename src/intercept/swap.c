#include "intercept/swap.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void swap_end(struct swap *w)
{
    buf_wipe(&w->held);
    buf_wipe(&w->text);
    w->n = 0;
}

struct buf *swap_scratch(enum swap_scratch which)
{
    static struct buf b[] = {
        [SWAP_HEAD] = {.limit = SUBST_HEAD_MAX}, [SWAP_BODY] = {.limit = SWAP_OUT_MAX}};
    return b[which].data || buf_reserve(&b[which], b[which].limit) ? &b[which] : NULL;
}

int swap_take_scratch(struct buf *b, int r, struct buf *out)
{
    if (!b)
        return -ENOMEM;
    if (r == 0 && out)
        r = buf_reserve_wiping(out, buf_len(b));
    if (r == 0 && out)
        r = buf_append(out, buf_head(b), buf_len(b));
    explicit_bzero(b->data, b->tail);
    buf_reset(b);
    return r;
}

/* --- which ----------------------------------------------------------------------------------- */

static enum swap_form form_of(const struct http_head *h)
{
    static const char form[] = "application/x-www-form-urlencoded";
    for (size_t i = 0; i < h->n; i++) {
        struct http_text t = h->field[i].value;
        if (!http_text_is_nocase(h->field[i].name, "content-type"))
            continue;
        const char *semi = memchr(t.p, ';', t.n);
        t.n = semi ? (size_t)(semi - t.p) : t.n;
        while (t.n > 0 && t.p[t.n - 1] == ' ')
            t.n--;
        if (http_text_is_nocase(t, form))
            return SWAP_FORM;
        return t.n >= 4 && strncasecmp(t.p + t.n - 4, "json", 4) == 0 ? SWAP_JSON : SWAP_PLAIN;
    }
    return SWAP_PLAIN;
}

static int add(struct swap *w, const char *from, size_t from_len, const char *to, size_t to_len)
{
    size_t at = buf_len(&w->text);
    if (buf_append(&w->text, from, from_len) < 0 || buf_append(&w->text, to, to_len) < 0)
        return -ENOMEM;
    w->pair[w->n].from = at;
    w->pair[w->n].from_len = from_len;
    w->pair[w->n].to = at + from_len;
    w->pair[w->n++].to_len = to_len;
    return 0;
}

/* Allocates once, so that it never moves and leaves no copies behind. */
static int make_room(struct swap *w, const struct subst *s)
{
    size_t all = 0;
    swap_end(w);
    for (size_t i = 0; i < s->n; i++)
        all += s->secret[i].holder_len + s->secret[i].value_len;
    w->text.limit = all;
    return all == 0 || buf_reserve(&w->text, all) ? 0 : -ENOMEM;
}

int swap_for_request(struct swap *w, const struct subst *s, const char *host,
                     const struct http_head *h, char why[SUBST_TEXT_MAX])
{
    int r = 0;
    swap_end(w);
    w->form = form_of(h);
    for (size_t i = 0; r == 0 && h->framing != HTTP_EMPTY && i < s->n; i++) {
        const struct subst_secret *x = &s->secret[i];
        if (!subst_in_body(x, host, h))
            continue;
        if (!x->value) {
            (void)snprintf(why, SUBST_TEXT_MAX, "%s", x->name);
            return -EAGAIN;
        }
        r = w->n == 0 ? make_room(w, s) : 0;
        if (r == 0)
            r = add(w, x->holder, x->holder_len, x->value, x->value_len);
    }
    return r;
}

int swap_for_response(struct swap *w, const struct subst *s, const char *host)
{
    int r = 0;
    swap_end(w);
    w->form = SWAP_PLAIN;
    for (size_t i = 0; r == 0 && i < s->n; i++) {
        const struct subst_secret *x = &s->secret[i];
        if (!subst_scrubs(x, host) || !x->value || x->value_len < SWAP_FROM_MIN ||
            x->value_len > SWAP_FROM_MAX)
            continue;
        r = w->n == 0 ? make_room(w, s) : 0;
        if (r == 0)
            r = add(w, x->value, x->value_len, x->holder, x->holder_len);
    }
    return r;
}

/* --- swapping -------------------------------------------------------------------------------- */

static int put_form(enum swap_form form, const char *p, size_t n, struct buf *out)
{
    int r = 0;
    if (form == SWAP_FORM)
        return subst_put_encoded(out, p, n);
    for (size_t i = 0; r == 0 && form == SWAP_JSON && i < n; i++) {
        if (p[i] == '"' || p[i] == '\\')
            r = buf_append(out, "\\", 1);
        if (r == 0)
            r = buf_append(out, &p[i], 1);
    }
    return form == SWAP_JSON ? r : buf_append(out, p, n);
}

static const char *text_at(const struct swap *w, size_t at)
{
    return (const char *)buf_head(&w->text) + at;
}

bool swap_replaces(const struct swap *w, const char *text, size_t n)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->pair[i].from_len == n && memcmp(text_at(w, w->pair[i].from), text, n) == 0)
            return true;
    return false;
}

/* The position of the first text in p; n: there is none. */
static size_t find_first(const struct swap *w, const char *p, size_t n, size_t *which)
{
    size_t at = n;
    for (size_t i = 0; i < w->n; i++) {
        const char *found = memmem(p, n, text_at(w, w->pair[i].from), w->pair[i].from_len);
        if (found && (size_t)(found - p) < at) {
            at = (size_t)(found - p);
            *which = i;
        }
    }
    return at;
}

/* How many bytes at the end of p could be the beginning of a text. */
static size_t beginning(const struct swap *w, const char *p, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < w->n; i++) {
        size_t k = MIN(n, w->pair[i].from_len - 1);
        while (k > most && memcmp(p + n - k, text_at(w, w->pair[i].from), k) != 0)
            k--;
        most = MAX(most, k);
    }
    return most;
}

int swap_run(struct swap *w, const char *p, size_t n, bool last, struct buf *out)
{
    AUTO_WIPE struct buf joined = {.limit = SWAP_OUT_MAX};
    size_t which = 0;
    if (buf_len(&w->held) > 0) {
        if (buf_append(&joined, buf_head(&w->held), buf_len(&w->held)) < 0 ||
            buf_append(&joined, p, n) < 0)
            return -ENOMEM;
        p = (const char *)buf_head(&joined);
        n = buf_len(&joined);
        buf_reset(&w->held);
    }
    for (;;) {
        size_t at = find_first(w, p, n, &which);
        size_t keep = at == n && !last ? beginning(w, p, n) : 0;
        int r = buf_append(out, p, at - keep);
        if (r < 0)
            return r;
        if (at == n) {
            w->held.limit = SWAP_FROM_MAX;
            return buf_append(&w->held, p + n - keep, keep);
        }
        r = put_form(w->form, text_at(w, w->pair[which].to), w->pair[which].to_len, out);
        if (r < 0)
            return r;
        p += at + w->pair[which].from_len;
        n -= at + w->pair[which].from_len;
    }
}

/* Writes a chunk, or nothing. */
static int swap_chunk(struct swap *w, const char *p, size_t n, bool last, struct buf *out)
{
    AUTO_WIPE struct buf body = {.limit = SWAP_OUT_MAX};
    char size[24];
    int r = swap_run(w, p, n, last, &body);
    if (r < 0 || buf_len(&body) == 0)
        return r;
    int k = snprintf(size, sizeof(size), "%zx\r\n", buf_len(&body));
    r = buf_append(out, size, (size_t)k);
    if (r == 0)
        r = buf_append(out, buf_head(&body), buf_len(&body));
    return r < 0 ? r : buf_append(out, "\r\n", 2);
}

int swap_piece(struct swap *w, const struct http_body *b, enum http_piece what, const char *p,
               size_t n, struct buf *out)
{
    bool done = http_body_done(b);
    if (what == HTTP_PIECE_FRAME) /* there are others */
        return 0;
    if (b->framing == HTTP_UNTIL_END)
        return swap_run(w, p, n, false, out);
    if (what == HTTP_PIECE_DATA) {
        int r = swap_chunk(w, p, n, done, out);
        return r < 0 || !done ? r : buf_append(out, "0\r\n\r\n", 5);
    }
    int r = swap_chunk(w, "", 0, true, out);
    if (r == 0)
        r = buf_append(out, "0\r\n", 3);
    return r < 0 ? r : buf_append(out, p, n);
}
