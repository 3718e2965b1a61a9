/* Where an address leads, as far as it matters to who may send us there. */
#ifndef MSB_REGISTRY_ADDRESS_H
#define MSB_REGISTRY_ADDRESS_H

#include <sys/socket.h>

enum address_kind {
    ADDRESS_LOOPBACK = 1,   /* this machine: 127/8, ::1, the unspecified addresses */
    ADDRESS_LINK_LOCAL = 2, /* 169.254/16, fe80::/10, and where clouds keep their metadata */
};

/* 0 for all other addresses. IPv4 inside IPv6 (mapped, NAT64, 6to4) counts as what it is. */
unsigned address_kind(const struct sockaddr *sa);
/* Of a host in a URL: "localhost", an address with or without brackets; 0 for a name. */
unsigned address_kind_text(const char *host);

#endif
