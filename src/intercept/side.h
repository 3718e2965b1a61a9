/* One end of an intercepted connection: TLS over a socket, or just the socket, with a buffer for
 * each direction. */
#pragma once

#include "intercept/conn.h"

struct side {
    struct conn *c;
    SSL *ssl; /* NULL: there is no TLS, and so no handshake */
    struct loop_src src;
    struct buf in, out; /* decrypted; to be encrypted */
    bool ready;         /* the handshake is done */
    bool eof;           /* no more will come */
    bool clean;         /* ... and the other end closed cleanly */
    bool failed;
    bool secret; /* `out` contains a secret's value */
};

void side_close(struct side *s, struct loop *l);

/* True: it is over, whether it succeeded or failed. */
bool side_handshake(struct side *s);
/* Both return whether anything has changed. */
bool side_fill(struct side *s);
bool side_flush(struct side *s);
/* Whether there is room for more output. */
bool side_room(const struct side *s);
/* Moves the first n bytes of one side's input to the other's output. */
bool side_pass(struct side *from, struct side *to, size_t n);
