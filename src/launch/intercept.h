/* The interceptor: the process that intercepts TLS connections of a sandbox with bound secrets
 * (--secret) or hosts whose traffic is inspected (--tls-intercept).
 *
 * It is a helper (helper.h), but executes a separate program (intercept_main.c), installed beside
 * the kernels: only that program links OpenSSL's TLS, and it holds none of the caller's memory. A
 * child of the launcher tells it the values of secrets (intercept_tell.h); the monitor, a fork of
 * the launcher, neither sees nor inherits any.
 *
 * A start waits for it no longer than necessary: connections that come too early wait in its
 * socket.
 *
 *     start ── values looked up ──▶ told ── namespaces of both ──▶ placed ── the guest boots ──▶ ready
 */
#pragma once

#include "launch/intercept_tell.h"

#include <limits.h>

#define INTERCEPT_PROGRAM "msb-intercept"

/* An interceptor that is starting. */
struct intercept {
    pid_t stage;          /* 0: it is gone */
    struct teller teller; /* fd -1: it is gone */
    char *ca;             /* the CA that guests are given to trust: PEM */
    const char *own;      /* the spec's file with it; NULL: msb's own */
};

/* *ret_fd becomes the monitor's end. */
int intercept_start(const struct store *s, const struct spec_net *n, bool reduced, int *ret_fd,
                    struct intercept *ret, struct err *e);
/* Waits until it has been told everything, and i->ca is there. *refused: as below. */
int intercept_told(struct intercept *i, const struct store *s, bool *refused, struct err *e);
/* Waits until it has its namespaces, if there is one. *refused becomes true if the host refuses them. */
int intercept_placed(struct intercept *i, bool *refused, struct err *e);
/* Waits until it is ready, if there is one. */
int intercept_ready(struct intercept *i, struct err *e);
void intercept_free(struct intercept *i); /* may be called twice */

/* Where the program is. */
int intercept_program(char ret[PATH_MAX], struct err *e);
