/* Shared by registry.c, blob.c, push.c and explain.c. */
#pragma once

#include "registry/endpoint.h"
#include "registry/registry.h"
#include "registry/settings.h"

enum {
    TRIES_MAX = 5,            /* of one request without progress; a mirror gets one */
    BACKOFF_MS = 500,         /* doubles each time, plus up to as much again */
    RETRY_AFTER_MAX_S = 60,   /* longer waits are failures */
    ERROR_BODY_MAX = 64 << 10 /* of a response that reports an error */
};

struct registry {
    struct endpoint *ep[SETTINGS_MIRRORS_MAX + 1]; /* mirrors first */
    size_t n;
    char *name; /* "docker.io/library/alpine", for messages */
    void (*notice)(void *ctx, const char *text);
    void *ctx;
};

/* The first endpoint from `i` on that is worth trying. */
size_t registry_first(const struct registry *r, size_t i);
/* One request to one endpoint, retried while that makes sense. `tries` counts across calls. On
 * success the status is anything but a temporary failure. */
int registry_get(struct registry *r, struct endpoint *ep, const char *path, const char *accept,
                 uint64_t from, unsigned *tries, struct http_response **ret, struct err *e);
/* The same for any request; `what` names it in messages. */
int registry_call(struct registry *r, struct endpoint *ep, const struct endpoint_call *q,
                  const char *what, unsigned *tries, struct http_response **ret, struct err *e);
/* After a failure: waits and returns 0 if it should be retried, else the failure's code. */
int registry_again(struct registry *r, struct endpoint *ep, int code, unsigned *tries,
                   uint64_t wait_ms, struct err *e);
/* Reports a mirror's failure to the caller; for_good: it is not asked again. */
void registry_mirror_failed(const struct registry *r, struct endpoint *ep, bool for_good,
                            const struct err *e);
/* Whether a status is likely to change soon. */
bool registry_temporary(long status);
/* Turns a status into an error about `what`, with the registry's own message; closes nothing. */
int registry_explain(const struct registry *r, const struct endpoint *ep,
                     struct http_response *resp, const char *what, struct err *e);
/* The same for something that was sent. */
int registry_explain_push(const struct registry *r, const struct endpoint *ep,
                          struct http_response *resp, const char *what, struct err *e);
