/* One server of a repository: the registry itself, or a mirror of it.
 *
 * Knows its scheme (https, or http if that is allowed and https is not available) and its
 * authorization, but nothing about images. Requests may be made from several threads.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "registry/challenge.h"
#include "registry/credentials.h"
#include "registry/http.h"
#include "registry/registry.h"

struct endpoint {
    struct http *http;
    char *registry;   /* whose credentials it gets: "docker.io", "mirror.example.com" */
    char *host;       /* "registry-1.docker.io", "localhost:5000" */
    char *repository; /* with the mirror's prefix; NULL: none, for a login */
    char *home;       /* where our own credentials are; NULL: none */
    bool mirror;
    bool push;           /* write access is needed, too */
    bool http_allowed;   /* plain http may be tried if https fails */
    atomic_bool plain;   /* it is http */
    atomic_bool useless; /* a mirror that failed: not used again */
    atomic_bool alive;   /* it has answered once: failures are worth a retry */

    pthread_mutex_t lock;        /* guards what follows; held while a token is fetched */
    char *authorization;         /* header value; NULL: none yet */
    uint64_t expires_ns;         /* CLOCK_MONOTONIC; 0: never */
    unsigned generation;         /* counts changes of it */
    bool looked;                 /* credentials have been looked for */
    atomic_bool has_credentials; /* also read without the lock, for messages */
    struct credentials credentials;
};

/* The registry's own. */
int endpoint_new(struct endpoint **ret, const char *registry, const char *repository,
                 const struct registry_options *opt, struct err *e);
/* A mirror, from its setting: "https://host[:port][/prefix]". */
int endpoint_new_mirror(struct endpoint **ret, const char *mirror, const char *repository,
                        const struct registry_options *opt, struct err *e);
void endpoint_free(struct endpoint *ep);

/* One request to /v2/<repository>/<path>, or to `url`, which the server itself has provided (for an
 * upload): our authorization goes to no other server. */
struct endpoint_call {
    const char *method; /* NULL: GET */
    const char *path;   /* NULL: /v2/ */
    const char *url;    /* NULL: it is the path */
    const char *accept, *content_type;
    uint64_t from;
    const struct http_send *send;
};
/* Answers the challenges of our own server. Any status is a success, including 401 if it cannot be answered further. */
int endpoint_call(struct endpoint *ep, const struct endpoint_call *q, struct http_response **ret,
                  struct err *e);
/* The same for a GET. */
int endpoint_get(struct endpoint *ep, const char *path, const char *accept, uint64_t from,
                 struct http_response **ret, struct err *e);

/* Answers a challenge (auth.c): on success the endpoint has an authorization newer than
 * `generation`. -EACCES (e set) if it cannot get one. */
int auth_answer(struct endpoint *ep, const char *challenges, unsigned generation, struct err *e);
/* What to send now; malloc'd, NULL for nothing. */
char *auth_current(struct endpoint *ep, unsigned *generation);
