/* HTTP/1.1 in an intercepted connection: takes requests and responses apart, puts secrets into the
 * former and takes them out of the latter. Used by conn.c alone, which moves bytes and decides whose
 * turn it is.
 */
#pragma once

#include "intercept/h2.h"
#include "intercept/side.h"
#include "intercept/swap.h"

enum request_state { REQUEST_HEAD, REQUEST_BODY, REQUEST_SENT };
enum response_state { RESPONSE_NONE, RESPONSE_HEAD, RESPONSE_BODY, RESPONSE_DONE };

struct conn {
    struct conn_host *h;
    struct node node;
    struct net_flow_id id;
    char host[SUBST_HOST_MAX];
    struct side guest, server;
    struct tls_pair speak;
    bool plain;    /* there is no TLS */
    struct h2 *h2; /* NULL: it is HTTP/1.1, and all of the following */
    struct loop_timer timer, again;

    enum request_state request;
    enum response_state response;
    struct http_body request_body, response_body;
    struct subst_search search;
    struct swap to_server, to_guest;    /* values in the current bodies */
    bool continued;                     /* the client was told to send its body */
    size_t request_seen, response_seen; /* of heads, for http_head_end() */
    bool is_head, websocket, answered;  /* of the current request */
    unsigned minor;                     /* ... : its version */
    bool waiting;                       /* for the value of a secret in it */
    bool tunnel;                        /* bytes pass unchanged */
    bool close;                         /* after the current response */
    bool ending;                        /* once everything for the guest is sent */
    bool lingering;                     /* everything is sent: what still arrives is dropped */
    bool cut;                           /* without a proper end: the rest is missing */
    bool offered;                       /* the server was told what the client speaks */
    bool over, lost;                    /* of HTTP/2: all of it; the server */
    char trouble[SUBST_TEXT_MAX];       /* why the server's side failed */
};

/* --- in conn.c ------------------------------------------------------------------------------- */

void conn_report(struct conn *c, enum link_report_kind kind, const char *text);
/* Ends it after sending what is still pending for the guest. */
void conn_finish(struct conn *c);

/* --- in exchange.c --------------------------------------------------------------------------- */

/* Reports it, sends our own reply to the current request, and ends. */
void conn_refuse(struct conn *c, int status, const char *error, const char *text);
void conn_bad_response(struct conn *c, const char *why);
/* A head, or a piece of a body, from what was received. False: more has to arrive first, from this
 * side or from elsewhere. */
bool conn_take_request(struct conn *c);
bool conn_take_request_body(struct conn *c);
bool conn_take_response(struct conn *c);
bool conn_take_response_body(struct conn *c);
