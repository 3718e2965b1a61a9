/* Processes that the kernel killed for lack of memory, according to its log: the exit status alone
 * does not tell them from others that got SIGKILL. */
#pragma once

#include "util/loop.h"

#include <stdint.h>
#include <sys/types.h>

enum { OOM_REMEMBERED = 32 };

struct oom {
    struct loop_src src; /* /dev/kmsg; fd -1: not watched */
    uint64_t kills;      /* so far */
    pid_t last[OOM_REMEMBERED];
    void (*on_kill)(struct oom *o); /* kills has grown; may be NULL */
};

/* Watches the kernel's log from now on. Without the log, no kill is ever noticed. */
void oom_watch(struct oom *o, struct loop *l, void (*on_kill)(struct oom *o));
/* Reads what the kernel has logged since the last call. */
void oom_look(struct oom *o);
/* Whether that process was among the kills after the first `before`. */
bool oom_was_killed(const struct oom *o, pid_t pid, uint64_t before);

/* The process in a record of /dev/kmsg, or 0. Only the kernel's own records count: root may write
 * others. */
pid_t oom_parse(const char *record);
