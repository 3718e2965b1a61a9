/* Replaces texts in bytes that arrive in pieces: placeholders become values on their way out, and
 * values become placeholders on their way back.
 *
 * What could be the beginning of such a text waits for the next piece; everything else is passed on
 * at once, so that streaming still works. Pure functions: no I/O.
 */
#pragma once

#include "intercept/subst.h"
#include "intercept/wipe.h"

enum {
    SWAP_FROM_MIN = 8, /* of a value to look for: shorter ones could turn up by chance */
    SWAP_FROM_MAX = 4096,
    SWAP_PIECE = 16 * 1024,    /* largest piece of input */
    SWAP_OUT_MAX = 256 * 1024, /* largest output for one piece */
};

/* How a text is encoded at its destination. */
enum swap_form { SWAP_PLAIN, SWAP_FORM /* %XX */, SWAP_JSON };

struct swap {
    struct {
        size_t from, from_len, to, to_len; /* in `text` */
    } pair[SUBST_SECRETS_MAX];
    size_t n;
    struct buf text; /* copies: a change of the configuration need not wait for a body's end */
    enum swap_form form;
    struct buf held; /* possibly the beginning of a text */
};

/* Sets up placeholders of secrets that may be in this request's body (in=body). -EAGAIN: the value
 * of one of them, named by `why`, is not known yet. */
int swap_for_request(struct swap *w, const struct subst *s, const char *host,
                     const struct http_head *h, char why[SUBST_TEXT_MAX]);
/* Sets up values that come back from that host and become placeholders again (scrub=response). */
int swap_for_response(struct swap *w, const struct subst *s, const char *host);
/* Whether that text is one of those it replaces. */
bool swap_replaces(const struct swap *w, const char *text, size_t n);
/* Appends p to `out`, with the texts replaced; `last`: nothing follows. -ENOSPC: `out` is too
 * small; -ENOMEM. */
int swap_run(struct swap *w, const char *p, size_t n, bool last, struct buf *out);
/* The same for a piece (http_body_step) of a body, which is passed on in chunks, or until the
 * connection ends. */
int swap_piece(struct swap *w, const struct http_body *b, enum http_piece what, const char *p,
               size_t n, struct buf *out);
void swap_end(struct swap *w); /* wipes; may be called twice, or on zeros */

/* Buffers in which texts with values are put together: they never move, and are empty between uses.
 * NULL: out of memory. */
enum swap_scratch { SWAP_HEAD, SWAP_BODY };
struct buf *swap_scratch(enum swap_scratch which);
/* Appends its content to `out` (NULL: discards it) unless something went wrong (r), and empties
 * it. */
int swap_take_scratch(struct buf *b, int r, struct buf *out);
