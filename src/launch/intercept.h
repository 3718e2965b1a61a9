/* The interceptor: the process that looks into TLS connections of a sandbox with bound secrets
 * (--secret) or hosts to look into (--tls-intercept).
 *
 * It is a helper (helper.h), but executes a program of its own (intercept_main.c), installed beside
 * the kernels: OpenSSL is in there and nowhere else, and nothing of the caller's memory is. A child of
 * the launcher tells it the values of secrets (intercept_tell.h): the monitor, a fork of the launcher,
 * sees none and inherits none.
 */
#ifndef MSB_LAUNCH_INTERCEPT_H
#define MSB_LAUNCH_INTERCEPT_H

#include "spec/net.h"
#include "store/store.h"
#include "util/err.h"

#include <limits.h>
#include <sys/types.h>

#define INTERCEPT_PROGRAM "msb-intercept"

/* *ret_fd becomes the monitor's end; *ret_stage is a child that intercept_wait() reaps. */
int intercept_start(const struct store *s, const struct spec_net *n, bool reduced, int *ret_fd,
                    pid_t *ret_stage, struct err *e);
/* When it is ready, *ret_ca is the certificate for guests to trust: PEM, malloc'd. */
int intercept_wait(const struct store *s, int fd, pid_t stage, bool *refused, char **ret_ca,
                   struct err *e);

/* Where the program is. */
int intercept_program(char ret[PATH_MAX], struct err *e);

#endif
