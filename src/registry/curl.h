/* libcurl, loaded on the first request.
 *
 * Everything else is linked into msb; libcurl has no usable static library and needs twenty shared
 * libraries, which would slow down every `msb exec`. The table's types come from libcurl's own
 * prototypes, so calls are checked as if it were linked.
 */
#pragma once

#include <curl/curl.h>

#include "util/err.h"

#define CURL_FUNCTIONS(X)  \
    X(version)             \
    X(global_init)         \
    X(easy_init)           \
    X(easy_cleanup)        \
    X(easy_reset)          \
    X(easy_setopt)         \
    X(easy_getinfo)        \
    X(easy_strerror)       \
    X(easy_pause)          \
    X(easy_escape)         \
    X(free)                \
    X(multi_init)          \
    X(multi_cleanup)       \
    X(multi_add_handle)    \
    X(multi_remove_handle) \
    X(multi_perform)       \
    X(multi_poll)          \
    X(multi_info_read)     \
    X(multi_strerror)      \
    X(slist_append)        \
    X(slist_free_all)      \
    X(url)                 \
    X(url_set)             \
    X(url_get)             \
    X(url_cleanup)

struct curl_api {
#define X(fn) __typeof__(curl_##fn) *fn;
    CURL_FUNCTIONS(X)
#undef X
};

/* Safe to call from several threads, and cheap after the first time. */
int curl_load(const struct curl_api **ret, struct err *e);
