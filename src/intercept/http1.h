/* HTTP/1.1 messages, read strictly: anything that two parsers could understand differently is
 * refused, never repaired. That prevents requests from being smuggled past the interceptor.
 *
 * Refused: two lengths, both a length and chunks, any transfer coding but "chunked", folded lines,
 * lines that end with LF alone, white space around a field's name, control characters, targets that
 * are not a path, a missing or second Host, chunk extensions. Pure functions: no I/O, no
 * allocation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    HTTP_HEAD_MAX = 64 * 1024,
    HTTP_FIELDS_MAX = 200,
    HTTP_TRAILERS_MAX = 8 * 1024,
};

/* A part of the parsed bytes. */
struct http_text {
    const char *p;
    size_t n;
};

struct http_field {
    struct http_text name, value; /* the value without white space around it */
};

enum http_framing {
    HTTP_EMPTY,  /* no body */
    HTTP_LENGTH, /* its length is given */
    HTTP_CHUNKED,
    HTTP_UNTIL_END /* of the connection: responses only */
};

struct http_head {
    struct http_text method, target; /* of a request */
    struct http_text host;           /* of a request, as written */
    unsigned status;                 /* of a response */
    unsigned minor;                  /* 0 or 1 */
    struct http_field field[HTTP_FIELDS_MAX];
    size_t n;
    enum http_framing framing;
    uint64_t length;
    bool plain;     /* it arrived without TLS; set by the code that read it */
    bool close;     /* the connection ends with this message */
    bool websocket; /* Connection: upgrade, Upgrade: websocket */
    bool expects;   /* Expect: 100-continue */
};

/* The length of the head at p, including the empty line after it; 0: it is not complete yet;
 * -EBADMSG: a line ends with only LF; -E2BIG. *seen is where the last call stopped looking; 0 for a
 * new head. */
ssize_t http_head_end(const char *p, size_t n, size_t *seen);

/* Reads a whole head of n bytes (http_head_end). 0, or -EBADMSG with *why, which completes the
 * sentence "the request ...". */
int http_request(const char *p, size_t n, struct http_head *h, const char **why);
/* The same for an HTTP/2 request, whose method, target, host (its authority; n 0: none) and fields
 * are set. HTTP/2 frames it, not the fields: `length` is what they claim. */
int http_request_fields(struct http_head *h, const char **why);
/* Whether Host is that host, with or without the port. */
bool http_host_is(struct http_text t, const char *host, unsigned port);
/* The response to a request: `bodiless` if that was a HEAD. */
int http_response(const char *p, size_t n, bool bodiless, struct http_head *h, const char **why);

/* Change a head that was read, before it is written again. False: there are too many fields. */
void http_head_drop(struct http_head *h, const char *name);
bool http_head_add(struct http_head *h, const char *name, const char *value); /* not copied */

bool http_text_is(struct http_text t, const char *want);        /* exactly */
bool http_text_is_nocase(struct http_text t, const char *want); /* ASCII */
bool http_token(const char *p, size_t n);                       /* of RFC 9110 */

/* A body that arrives in pieces. */
struct http_body {
    enum http_framing framing;
    enum { HTTP_SIZE, HTTP_BYTES, HTTP_BYTES_END, HTTP_TRAILER, HTTP_DONE } at;
    uint64_t left; /* bytes of the body, or of the chunk */
};
void http_body_begin(struct http_body *b, const struct http_head *h);
static inline bool http_body_done(const struct http_body *b)
{
    return b->at == HTTP_DONE;
}

enum http_piece { HTTP_PIECE_FRAME, HTTP_PIECE_DATA, HTTP_PIECE_TRAILER };
/* Takes the next piece from the n bytes at p: returns its length, 0 if more bytes are needed first,
 * or -EBADMSG. HTTP_UNTIL_END is never done: it ends with the connection. */
ssize_t http_body_step(struct http_body *b, const char *p, size_t n, enum http_piece *what);
