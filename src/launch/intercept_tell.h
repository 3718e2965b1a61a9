/* Telling the interceptor what it needs: the values of secrets, and where they may go (intercept/config.h).
 *
 * A child of the caller looks the values up, with the caller's rights and environment, and ends: no
 * process that lives on has them. (Where commands mint some, its child does: mint.h.) That child's end
 * of a socket pair is all it shares with the interceptor, which gets the other one by LINK_CHANGE
 * (intercept/link.h).
 */
#pragma once

#include "spec/net.h"
#include "store/store.h"
#include "util/err.h"

#include <sys/types.h>

/* That child, as its parent sees it. */
struct teller {
    pid_t pid;
    int fd; /* says what became of each step; -1: there is none */
};

/* Tells an interceptor that starts: `ca` is what guests are given to trust (NULL: there is none yet),
 * `link` the socket that becomes the monitor's. */
int teller_start(const struct store *s, const struct spec_bound *b, const char *ca, int link,
                 struct teller *ret, struct err *e);
/* Waits for its next step: the first is that it has told everything, the second that the interceptor is
 * ready. After that, or a failure, it is gone. */
int teller_wait(struct teller *t, struct err *e);
/* Waits until it ends, whatever it says. Harmless twice. */
void teller_end(struct teller *t);

/* Gives the interceptor of a running sandbox (in the directory `dirfd`) the secrets of `now` in place of
 * `old`. Values are looked up for secrets bound differently than in `old`, and for `fresh` (may be NULL);
 * the interceptor keeps the others. On failure the old ones stay in force. ENOTCONN: there is no
 * interceptor. */
int intercept_change(const struct store *s, int dirfd, const struct spec_net *old,
                     const struct spec_net *now, const char *fresh, struct err *e);
