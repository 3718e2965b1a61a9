/* Writes net.log: what the network of this sandbox decided (the format: logs/net_record.h).
 *
 * A guest can ask for as many decisions as it likes, so what is written is bounded:
 *   1. Equal denials are one line, and then one a second with their count.
 *   2. Denials and what was allowed have a budget each: neither can hide the other. What is beyond
 *      it is counted, and the count is a line, one a second at most.
 *   3. Files are rotated as all logs are.
 * A new denial is written at once; everything else within LOG_FLUSH_MS, or NET_LOG_COUNT_MS.
 */
#ifndef MSB_MONITOR_NET_LOG_H
#define MSB_MONITOR_NET_LOG_H

#include "monitor/log_writer.h"
#include "monitor/net_thread.h"
#include "util/bucket.h"
#include "util/loop.h"

enum {
    NET_LOG_SLOTS = 64, /* different denials that are counted at once */
    NET_LOG_COUNT_MS = 1000,
    NET_LOG_FORGET_MS = 10000, /* a denial that comes again after that is a new one */
    NET_LOG_DENY_BURST = 500,
    NET_LOG_DENY_PER_S = 25,
    NET_LOG_ALLOW_BURST = 4000,
    NET_LOG_ALLOW_PER_S = 200,
};

struct net_log_slot {
    struct net_note note; /* the last of them */
    uint64_t used_ns;     /* 0: free */
    uint64_t more;        /* how many came since the last line */
};

struct net_log {
    struct log_writer w;
    struct loop *loop;
    struct loop_timer flush_timer, count_timer;
    struct bucket allow, deny;
    uint64_t missed;
    struct net_log_slot slot[NET_LOG_SLOTS];
    uint64_t (*now)(void); /* now_ns; tests have another */
};

int net_log_open(struct net_log *l, struct loop *loop, int logs_dirfd);
void net_log_note(struct net_log *l, const struct net_note *n);
/* So many were lost before they came here. */
void net_log_missed(struct net_log *l, uint64_t n);
/* Writes what is counted and pending. */
void net_log_flush(struct net_log *l);
void net_log_close(struct net_log *l);

#endif
