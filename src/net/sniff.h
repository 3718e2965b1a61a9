/* The destination that the first bytes of a TCP flow name: the server name in a TLS ClientHello, or
 * the Host of an HTTP request. Bytes arrive in any pieces; a bounded number of them is examined.
 *
 * Servers are more lenient than the standards, so whatever some of them would take for a request
 * that goes elsewhere (alerts, empty lines or blanks in front, other versions of TLS, other blanks
 * than spaces, an absolute target, a second Host, folded lines, stray control characters) is either
 * understood here or SNIFF_BROKEN, never SNIFF_UNKNOWN. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SNIFF_NAME_MAX = 256, SNIFF_BYTES_MAX = 16 * 1024 };

enum sniff_kind {
    SNIFF_MORE,    /* undecided: give it more */
    SNIFF_TLS,     /* a ClientHello; name "" if it has no server name */
    SNIFF_ECH,     /* the same, and it hides a second name (encrypted hello) */
    SNIFF_HTTP,    /* a request; name "" if it has no Host */
    SNIFF_UNKNOWN, /* neither */
    SNIFF_BROKEN,  /* TLS or HTTP, but malformed, too long or with an ambiguous name */
};

struct sniffer {
    char name[SNIFF_NAME_MAX]; /* lower case, no port, no final dot; set when decided */
};

/* Examines all bytes received so far, starting with the first. last: no more will come, so the
 * answer is not SNIFF_MORE. */
enum sniff_kind sniff(struct sniffer *s, const uint8_t *p, size_t n, bool last);
