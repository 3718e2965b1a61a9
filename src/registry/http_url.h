/* URLs as libcurl parses them, so that what is checked here is what it will connect to. */
#pragma once

#include "registry/curl.h"

/* A part of a URL (ports filled in), malloc'd; NULL if there is none. */
char *url_part(const char *url, CURLUPart part);
/* `to` relative to `from`, without a user or password. malloc'd; NULL if it is not a URL. */
char *url_resolve(const char *from, const char *to);
