/* The client's side of SOCKS 4 and 5: asking a proxy for a connection.
 *
 * The proxy is asked for an address, never for a name: the policy allowed this address, and a proxy
 * that resolves a name itself could connect elsewhere.
 *
 * The proxy's answers are hostile. They are read exactly up to their end (the rest belongs to the
 * connection), must follow the protocol to the letter, and must fit into a fixed buffer.
 */
#pragma once

#include <stddef.h>

#include "util/addr.h"

enum { SOCKS_TEXT_MAX = 255 }; /* bytes of a user name or a password */

struct socks_config {
    int version; /* 4 or 5; 0: there is no proxy */
    struct net_end at;
    char user[SOCKS_TEXT_MAX + 1]; /* "": none */
    char password[SOCKS_TEXT_MAX + 1];
};

enum socks_step { SOCKS_METHOD, SOCKS_AUTH, SOCKS_REPLY, SOCKS_DONE, SOCKS_FAILED };

struct socks {
    const struct socks_config *cfg;
    struct net_end to;
    enum socks_step step; /* the reply that is awaited */
    size_t out_len, out_done;
    size_t need, have; /* of the answer */
    int code;          /* if it failed: an errno that connect() could have returned */
    const char *why;   /* ... and a sentence: a string literal */
    uint8_t out[3 + 2 * (SOCKS_TEXT_MAX + 1)];
    uint8_t in[4 + 1 + 255 + 2];
};

void socks_begin(struct socks *s, const struct socks_config *c, const struct net_end *to);
/* What is to be sent now, if anything. */
static inline size_t socks_pending(const struct socks *s)
{
    return s->out_len - s->out_done;
}
/* How many bytes to read, at most; 0 when there is something to send first, or it is over. */
size_t socks_need(const struct socks *s);
/* Bytes that came, 1 to socks_need() of them. */
void socks_input(struct socks *s, const uint8_t *p, size_t n);

/* Continues the handshake on a connected, non-blocking socket. 0: the socket has no more data for
 * now; 1: the proxy has connected; -errno, with s->why: it failed. */
int socks_drive(struct socks *s, int fd);
