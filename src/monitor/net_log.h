/* Writes net.log: the decisions of this sandbox's network (the format: logs/net_record.h).
 *
 * A guest can cause any number of decisions, so what is written is bounded:
 *   1. Equal denials are one line at first, and then one a second with their count.
 *   2. Denials and allowed flows each have a budget, so neither can crowd out the other. What
 *      exceeds it is counted, and the count is written at most once a second.
 *   3. Files are rotated like all logs.
 * A new denial is written at once; everything else within LOG_FLUSH_MS or NET_LOG_COUNT_MS. That
 * may be many lines, so they are put together in the write buffer, as those of exec.log are.
 */
#pragma once

#include "monitor/log_writer.h"
#include "monitor/net_thread.h"
#include "util/bucket.h"
#include "util/loop.h"

enum {
    NET_LOG_SLOTS = 64, /* different denials counted at a time */
    NET_LOG_COUNT_MS = 1000,
    NET_LOG_FORGET_MS = 10000, /* a denial that recurs later counts as new */
    NET_LOG_DENY_BURST = 500,
    NET_LOG_DENY_PER_S = 25,
    NET_LOG_ALLOW_BURST = 4000,
    NET_LOG_ALLOW_PER_S = 200,
};

struct net_log_slot {
    struct net_note note; /* the last of them */
    uint64_t used_ns;     /* 0: free */
    uint64_t more;        /* how many since the last line */
};

struct net_log {
    struct log_writer w;
    struct loop *loop;
    struct loop_timer flush_timer, count_timer;
    struct bucket allow, deny;
    uint64_t missed;
    struct net_log_slot slot[NET_LOG_SLOTS];
    uint64_t (*now)(void); /* now_ns; tests replace it */
};

int net_log_open(struct net_log *l, struct loop *loop, int logs_dirfd);
void net_log_note(struct net_log *l, const struct net_note *n);
/* n decisions were lost before they got here. */
void net_log_missed(struct net_log *l, uint64_t n);
/* Writes everything that is counted or pending. */
void net_log_flush(struct net_log *l);
void net_log_close(struct net_log *l);
