/* Where the first bytes of a TCP flow want to go: the server name in a TLS ClientHello, or the Host
 * of an HTTP/1 request. Bytes come in any pieces; a bounded number of them is looked at. */
#ifndef MSB_NET_SNIFF_H
#define MSB_NET_SNIFF_H

#include <stddef.h>
#include <stdint.h>

enum { SNIFF_NAME_MAX = 256, SNIFF_BYTES_MAX = 16 * 1024 };

enum sniff_kind {
    SNIFF_MORE,    /* undecided: give it more */
    SNIFF_TLS,     /* a ClientHello; name "" if it has no server name */
    SNIFF_HTTP,    /* a request; name "" if it has no Host */
    SNIFF_UNKNOWN, /* neither, or broken, or too long */
};

struct sniffer {
    char name[SNIFF_NAME_MAX]; /* lower case, no port, no final dot; set when decided */
};

/* Looks at all bytes from the first on, as many as there are by now. */
enum sniff_kind sniff(struct sniffer *s, const uint8_t *p, size_t n);

#endif
