/* One request of HTTP/2 and its response (h2.h): private to this folder. */
#pragma once

#include "intercept/h2.h"
#include "intercept/swap.h"
#include "util/bucket.h"
#include "util/list.h"

#include <nghttp2/nghttp2.h>

enum { H2_FIELDS_MAX = HTTP_FIELDS_MAX + 8 }; /* including pseudo-header fields */

/* A block of fields, as received. */
struct h2_head {
    struct buf text;
    struct {
        size_t name, name_len, value, value_len; /* in `text` */
        uint8_t flags;
    } field[H2_FIELDS_MAX];
    size_t n;
    bool too_long;
};

/* One direction's body. */
struct h2_pipe {
    struct buf data;          /* to be sent */
    size_t owed;              /* received bytes not yet given back to the sender's window */
    bool eof;                 /* no more will come */
    struct swap swap;         /* values and placeholders */
    struct h2_head *trailers; /* NULL: none */
};

struct h2_stream {
    struct h2 *h;
    struct node node;
    int32_t id[2];          /* by side */
    bool open[2];           /* known to nghttp2 */
    bool ended[2];          /* nothing more comes from that side */
    struct h2_pipe pipe[2]; /* by where it goes */
    struct subst_search search;
    bool requested; /* its head has been read */
    bool is_head;
    bool answered;        /* the client has the head of a response */
    bool refused;         /* ... which is ours */
    bool sent;            /* ... and all of it */
    struct h2_head *held; /* the head of a request waiting for a value */
    struct buf raw;       /* ... and what followed it */
    size_t queued;        /* bytes of the head that the server has yet to be sent */
};

struct h2 {
    struct h2_env env;
    nghttp2_session *session[2];
    struct h2_head head[2]; /* the one being read */
    struct node streams;
    unsigned n_waiting;
    size_t held, queued;      /* bytes of heads waiting for a value, for the server */
    struct bucket trifles[2]; /* frames that accomplish nothing */
    struct buf *out;          /* of h2_give() ... */
    size_t high;              /* ... and how much is enough */
    bool secrets;             /* values are on their way to the server */
    bool server_gone, broken;
};

struct h2_stream *h2_stream_new(struct h2 *h, int32_t guest_id);
void h2_stream_free(struct h2_stream *s);

/* Handles what a side has sent. */
void h2_stream_request(struct h2_stream *s, struct h2_head *head);
void h2_stream_response(struct h2_stream *s, struct h2_head *head);
void h2_stream_trailers(struct h2_stream *s, enum h2_side from, struct h2_head *head);
void h2_stream_data(struct h2_stream *s, enum h2_side from, const char *p, size_t n);
void h2_stream_end(struct h2_stream *s, enum h2_side from);
/* Retries a request that waited. */
void h2_stream_resume(struct h2_stream *s);

/* Handles an invalid response. */
void h2_stream_bad_response(struct h2_stream *s, const char *why);
/* The stream has ended on one side; `code` is the reason. May free it. */
void h2_stream_closed(struct h2_stream *s, enum h2_side side, uint32_t code);
/* The head of the request was sent, or never will be. */
void h2_stream_dequeued(struct h2_stream *s);
/* The end of the response was sent. */
void h2_stream_answered(struct h2_stream *s);
/* n bytes of the body were sent to that side. */
void h2_stream_sent(struct h2_stream *s, enum h2_side to, size_t n);

void h2_head_reset(struct h2_head *head);
