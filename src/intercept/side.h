/* One end of an intercepted connection: TLS over a socket, or the socket alone, with a buffer for each
 * direction. */
#pragma once

#include "intercept/conn.h"

struct side {
    struct conn *c;
    SSL *ssl; /* NULL: there is no TLS, and nothing to shake hands about */
    struct loop_src src;
    struct buf in, out; /* decrypted; to be encrypted */
    bool ready;         /* the handshake is done */
    bool eof;           /* nothing more will come */
    bool clean;         /* ... and the other end said so */
    bool failed;
    bool secret; /* there is a value in `out` */
};

void side_close(struct side *s, struct loop *l);

/* True: it is over, for better or worse. */
bool side_handshake(struct side *s);
/* Each returns whether anything has changed. */
bool side_fill(struct side *s);
bool side_flush(struct side *s);
/* Whether more may wait to be sent. */
bool side_room(const struct side *s);
/* Moves the first n bytes of one side's input to the other's output. */
bool side_pass(struct side *from, struct side *to, size_t n);
