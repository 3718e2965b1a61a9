/* Reassembly of IP fragments from the guest.
 *
 * The path from the guest preserves the order, so fragments are accepted only in order: each must
 * start where the previous one ended. Overlaps, gaps and late fragments drop the whole datagram. A
 * few datagrams at a time, each of at most 64 KiB, with a time-out of seconds.
 */
#pragma once

#include "net/packet.h"

enum { FRAG_SLOTS = 8, FRAG_TIMEOUT_S = 10 };

struct frag_table;

struct frag_table *frag_new(void);
void frag_free(struct frag_table *t);
void frag_reset(struct frag_table *t);

/* Takes a fragment. True: the datagram is complete, and *out is its packet, whose bytes are valid
 * until the next call. *fault says what was wrong, or PACKET_OK. */
bool frag_add(struct frag_table *t, const struct packet *p, uint64_t now_ns, struct packet *out,
              enum packet_fault *fault);
