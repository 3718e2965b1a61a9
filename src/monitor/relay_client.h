/* A client of the relay, and its session once it has one: what passes between its socket and the
 * stream to the guest, and how both end. Used by relay.c alone, which reads requests.
 *
 * Where it is said that a client may be gone, it must not be used afterwards.
 */
#pragma once

#include "monitor/command_note.h"
#include "monitor/relay.h"
#include "virtio/vsock.h"

enum {
    CLIENT_IN_MAX = 128 * 1024,
    CLIENT_OUT_MAX = 256 * 1024,
};

#define RELAY_GOING_DOWN "the sandbox is shutting down"

enum client_state {
    CLIENT_HELLO,   /* has not said HELLO yet */
    CLIENT_REQUEST, /* the next frame is its request */
    CLIENT_SESSION, /* tied to a command */
    CLIENT_ANSWER,  /* waits for an answer that takes time */
    CLIENT_DONE,    /* freed once `out` is flushed */
};

struct relay_client {
    struct relay *relay;
    struct node node;    /* in relay.clients */
    struct loop_src src; /* fd -1: the client is gone, its command keeps running */
    enum client_state state;
    struct buf hello; /* what is sent to the agent first */
    struct buf in, out;
    uint32_t forward; /* bytes of the current frame that are still to be passed on */
    struct vsock_stream *stream;
    bool connected, detached, in_session;
    bool background; /* it stays when its client leaves */
    bool leash;      /* WAIT: the sandbox ends with it */
    struct command_note note;
    uint32_t container; /* the one whose agent it is for; 0 = the guest's first */
    uint32_t wait_id;   /* WAIT: for the end of that session */
    uint64_t cookie;    /* PING: what the agent answers with; else 0 */
    uint64_t since_ns;  /* when it connected */
    int sent_fd;        /* a descriptor that it sent, until a request takes it; -1 */
};

/* Hangs up, and ends its command, unless that has exited. */
void client_free(struct relay_client *c);
/* The client hung up. c may be gone afterwards. A background command keeps running, unless the
 * agent would be left with half a message. */
void client_lost(struct relay_client *c);
/* Sends the client its remaining output, then end of file; c may be gone afterwards. */
void client_finish(struct relay_client *c);
/* The same, with a FAIL. code: 0 = none. */
void client_refuse_as(struct relay_client *c, enum proto_fail kind, int code, const char *text);
void client_refuse(struct relay_client *c, enum proto_fail kind, const char *text);
/* Sends what its socket accepts of `out`. False when c is gone. */
bool client_flush(struct relay_client *c);
/* The socket accepts more: sends it, then resumes the stream. c may be gone afterwards. */
void client_writable(struct relay_client *c);
/* Passes on to the guest what is in `in`. c may be gone afterwards. */
void client_pump(struct relay_client *c);
/* The listener pauses while there is no room for another client. */
void relay_resume_listening(struct relay *r);

/* Of a session's stream; its context is the client. */
extern const struct vsock_stream_ops client_stream_ops;
