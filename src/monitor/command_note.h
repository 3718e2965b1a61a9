/* What the relay reads from the frames that it passes on: where they begin, what a command is
 * called and how it ended. */
#pragma once

#include "monitor/exec_log.h"
#include "proto/proto.h"
#include "store/background.h"

#include <sys/types.h>

enum {
    COMMAND_EXIT_MAX = 64, /* bytes of an EXIT that are examined; the agent's are shorter */
    COMMAND_KILLED = 137,  /* exit code of a command that was killed */
};

/* Follows frame boundaries in a stream that arrives in pieces. */
struct scanner {
    uint8_t raw[PROTO_HDR_LEN];
    unsigned have; /* bytes of the header */
    struct proto_header hdr;
    uint32_t left; /* payload bytes to come */
};

/* For a client that has seen nothing of the current frame: if it is output, its rest gets a
 * separate header. Anything else is not worth the trouble: only its length is kept, under a type
 * that is ignored. */
int scanner_begin_again(const struct scanner *s, struct buf *out);

/* A command, as far as it is known from what the agent sends. */
struct command_note {
    struct scanner scan;
    struct background_command command;
    bool exited; /* EXIT or FAIL has come */
    uint8_t exit[COMMAND_EXIT_MAX];
    enum log_source stdout_as;
    struct exec_log *log; /* where its output is kept; NULL: nowhere */
    uint64_t wrote, most; /* bytes of output, and how many there may be */
};

/* Parses n bytes from the agent, up to the end of the frame with which the command exceeds its
 * limit. Returns how many it has parsed; -EPROTO: they are not valid frames. */
ssize_t command_scan(struct command_note *c, const uint8_t *p, size_t n);
bool command_is_over(const struct command_note *c); /* it has, and the frame has ended */

/* The words of an EXEC, for display: separated by spaces, truncated, and safe to print on a
 * terminal. */
void command_take_words(struct background_command *c, const struct proto_frame *f);
