/* Kinds of addresses to which a registry may only send us if it has one of the same kind itself. */
#pragma once

#include <sys/socket.h>

#include "util/addr_class.h"

enum address_kind {
    ADDRESS_LOOPBACK = 1 << CLASS_LOOPBACK,
    ADDRESS_LINK_LOCAL = 1 << CLASS_LINK_LOCAL,
    ADDRESS_META = 1 << CLASS_META,
};

/* 0 for all other addresses. */
unsigned address_kind(const struct sockaddr *sa, socklen_t len);
/* The kind of a URL's host: an address in any spelling, "localhost", or another name (0). */
unsigned address_kind_text(const char *host);
