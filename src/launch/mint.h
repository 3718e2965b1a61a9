/* Runs the commands that mint values of secrets, for the interceptor of one sandbox
 * (intercept/mint.h).
 *
 * A process with the caller's rights and environment, not confined: the commands are the caller's
 * own. It outlives the caller and ends when the interceptor closes its end of the socket. It
 * accepts nothing from that socket but names of these secrets. A command's time (MINT_TIME_S) and
 * output are limited; if it exceeds either limit, its whole process group is killed.
 */
#pragma once

#include "intercept/subst.h"

enum { MINT_TIME_S = 30 };

struct mint_source {
    char name[SUBST_NAME_MAX];
    char *command;
    uint32_t ttl_s;
};

/* In a new process; does not return. */
void mint_serve(int sock, const struct mint_source *source, size_t n) __attribute__((noreturn));

/* Whether it can be a header's value: NULL if so, else what is wrong with it. */
const char *mint_check(const char *value, size_t n);
