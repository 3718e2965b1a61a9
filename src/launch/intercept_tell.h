/* Telling the interceptor what it needs: the values of secrets, and where they may go
 * (intercept/config.h).
 *
 * A child of the caller looks up the values, with the caller's rights and environment, and ends, so
 * that no lasting process has them (except where commands mint some: then a child of that child
 * does, mint.h). The first child shares nothing with the interceptor but a socket pair, whose other
 * end the interceptor gets by LINK_CHANGE (intercept/link.h).
 */
#pragma once

#include "spec/net.h"
#include "store/store.h"
#include "util/err.h"

#include <sys/types.h>

/* That child, as its parent sees it. */
struct teller {
    pid_t pid;
    int fd; /* reports the outcome of each step; -1: there is no teller */
};

/* Tells an interceptor that is starting. `ca`: the CA that guests are given to trust (NULL: there
 * is none yet); `link`: the socket that becomes the monitor's. */
int teller_start(const struct store *s, const struct spec_bound *b, const char *ca, int link,
                 struct teller *ret, struct err *e);
/* Waits for its next step: first, it has told everything; second, the interceptor is ready. After
 * that, or a failure, it is gone. */
int teller_wait(struct teller *t, struct err *e);
/* Waits until it ends, whatever it reports. May be called twice. */
void teller_end(struct teller *t);

/* Gives the interceptor of a running sandbox (in the directory `dirfd`) the secrets of `now` in place of
 * `old`. Values are looked up for secrets bound differently than in `old`, and for `fresh` (may be NULL);
 * the interceptor keeps the others. On failure the old ones stay in force. ENOTCONN: there is no
 * interceptor. */
int intercept_change(const struct store *s, int dirfd, const struct spec_net *old,
                     const struct spec_net *now, const char *fresh, struct err *e);
