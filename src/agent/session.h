/* One session: one stream, one command, or one child that serves files.
 *
 *   HELLO ── EXEC ── RUNNING ── EXITED ── CLOSING ── gone
 *     │       │         └─ stream lost: DYING ────── gone
 *     │       ├───── FILES ───────────────┤
 *     └───────┴─ refused ─────────────────┘
 *
 * Invariants
 *  1. pid > 0 exactly while the main process is not reaped (RUNNING, FILES, DYING). Its number is
 *     ours until then, so signals go to it, its group and its session in these states only.
 *  2. Event handlers note readiness and queue the session. Only session_run acts, and only its
 *     last step frees.
 *  3. Output is read only while less than TX_SMALL waits to be sent: what the client does not read
 *     stays in the pipe, and then blocks the command, not the agent.
 *  4. At most PROTO_STDIN_WINDOW bytes of input are held; a client that exceeds its window is not
 *     read from until they are passed on.
 *  5. EXIT or FAIL is the last frame. EXIT follows all output that was in the pipes when the main
 *     process exited, and what comes within LINGER_MS while other processes hold the pipes open.
 *  6. The process group is killed when the stream ends before EXIT, and at the time limit; never
 *     after the main process has exited: its background processes live on.
 */
#pragma once

#include "agent/server.h"
#include "util/buf.h"
#include "util/loop.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
    TX_SMALL = 4 * 1024, /* frames up to this are gathered into one send */
    TX_LIMIT = SERVER_SCRATCH + 2 * TX_SMALL,
    RX_CHUNK = 64 * 1024,
    ACK_BATCH = 64 * 1024,
    PIPE_BULK = 1024 * 1024,
    BULK_AFTER = 256 * 1024,
    LINGER_MS = 100,
};

enum session_state {
    SESS_HELLO,
    SESS_EXEC,
    SESS_RUNNING,
    SESS_FILES, /* the child uses the stream; we wait for either to end */
    SESS_EXITED,
    SESS_CLOSING,
    SESS_DYING,
};

/* Where output of the command comes from. */
struct outlet {
    struct loop_src src; /* fd -1: it has ended */
    struct session *s;
    uint16_t type; /* PROTO_STDOUT or PROTO_STDERR */
    bool readable; /* may have bytes */
    bool hup;      /* no process has the other end open */
    bool bulk;     /* has produced a lot: read more at once, and less often */
    bool large;    /* and its pipe was enlarged */
    bool trickles; /* bulk, but written in small pieces */
    size_t total;  /* bytes so far */
    size_t owed;   /* bytes that were in the pipe when the main process exited */
};

/* Where input of the command goes. */
struct inlet {
    struct loop_src src; /* fd -1: closed; input is dropped */
    struct session *s;
    struct buf buf;
    bool writable, armed;
    bool eof; /* close once the buffer is empty */
    bool mid_line;
    uint64_t passed_on; /* not acknowledged yet */
};

struct session {
    struct server *srv;
    struct session *next, *prev, *ready_next;
    bool queued;
    enum session_state state;
    struct loop_src sock;
    bool readable; /* the stream may have bytes for us */
    bool hup;      /* and its other end is closed */
    bool stalled;  /* but a frame has to wait for room first */
    bool lost, tty;
    struct buf rx; /* the beginning of an incomplete frame */
    struct buf tx; /* what has not been sent yet */
    struct inlet in;
    struct outlet out[2];
    pid_t pid;
    uint32_t container;     /* its number; 0: this is not a container */
    int listener;           /* the container's port, which is ours as well */
    struct loop_src report; /* whether it has started; fd -1: that is known */
    int status;             /* as from waitpid */
    uint64_t kills;         /* for lack of memory, when it started */
    enum proto_oom oom;     /* whether there has been one since then */
    bool timed_out, linger_over;
    struct loop_timer timer; /* the time limit; after the exit, the end of lingering */
};

/* Takes fd, except on failure. */
int session_new(struct server *srv, int fd);
void session_run(struct session *s);
void session_child_exited(struct session *s, int status);
/* Refuses the command: FAIL, then the stream ends. */
void session_fail(struct session *s, enum proto_fail kind, int error, const char *text);

/* Replies that the command runs. */
void session_put_started(struct session *s);
/* start.c: an EXEC frame becomes a process, or a FAIL. */
void session_start(struct session *s, const struct proto_frame *f);
/* Parses an EXEC or a FILES. False: it was refused. */
bool session_parse(struct session *s, const struct proto_frame *f, struct exec_req *q);
/* The user to run as; NULL: it was refused. */
const struct identity *session_identity(struct session *s, const struct exec_req *q);
/* The working directory: the command's own, or the image's default. */
const char *session_working_dir(const struct config *cfg, const struct exec_req *q);

/* start_files.c: a FILES frame becomes a child that takes over the stream and the n bytes received
 * after the frame; or a FAIL. */
void session_start_files(struct session *s, const struct proto_frame *f, const uint8_t *in,
                         size_t n);

/* input.c */
void session_receive(struct session *s);
void session_push_stdin(struct session *s);
void session_close_stdin(struct session *s);
void session_inlet_init(struct session *s, int fd);

/* output.c */
void session_outlet_init(struct session *s, int i, int fd, uint16_t type);
void session_pull_output(struct session *s);
void session_note_owed(struct session *s);
bool session_output_done(const struct session *s);
/* true: there is output to be read and room for it. */
bool session_output_waits(const struct session *s);
void session_flush(struct session *s);
/* Closes the outlets. `keep`: drains those that other processes still have open instead. */
void session_close_output(struct session *s, bool keep);
