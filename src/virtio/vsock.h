/* virtio-vsock: stream sockets between the guest and this process.
 *
 * There are no host sockets: both ends of a stream are in-process objects with callbacks, so the
 * owner decides what a port means. Everything runs on the loop that the transport was given.
 *
 * Nothing is queued for sending: vsock_send() takes what fits into the guest's receive buffers and
 * credit now, and writable() is called when more fits. In the other direction data() is handed the
 * bytes where they are, IN GUEST MEMORY: they can change under the reader, so copy them exactly
 * once and check the copy. What data() does not take is kept (at most the credit given to the
 * guest, VSOCK_CREDIT) and offered again after vsock_resume().
 *
 * A stream's life, seen by its owner:
 *   vsock_connect(), then connected() -- or the listener's accept, where it is connected already;
 *   then data()/writable()/peer_shutdown() in any order; then one of
 *     closed()                        the guest ended it: the last call; the stream is gone when it
 *                                     returns;
 *     vsock_close() / vsock_abort()   the owner ended it: no callback comes after that, not even
 *                                     closed(), and the pointer is dead when they return.
 * All of vsock_*() may be called from inside any callback, for any stream. After closed() or after
 * having closed the stream itself, a callback must not use that stream's pointer again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "virtio/device.h"

enum {
    VSOCK_HOST_CID = 2,
    VSOCK_GUEST_CID = 3,
    VSOCK_CREDIT = 256 * 1024,  /* bytes of a stream we hold for its owner, at most */
    VSOCK_HELD_MAX = 128 << 20, /* and of all streams together */
    VSOCK_STREAMS_MAX = 1024,   /* all streams */
    VSOCK_HOST_RESERVE = 64,    /* of these, only for vsock_connect() */
    VSOCK_LISTENERS_MAX = 32,
};

/* For vsock_shutdown(): the values of the wire. */
enum { VSOCK_SHUT_RECV = 1, VSOCK_SHUT_SEND = 2 };

struct vsock_stream;

/* Any of them may be NULL (without data(), bytes are discarded). */
struct vsock_stream_ops {
    /* The guest accepted what vsock_connect() asked for. */
    void (*connected)(struct vsock_stream *s, void *ctx);
    /* Returns how many of the n bytes it took. p is GUEST MEMORY, valid during the call only. */
    size_t (*data)(struct vsock_stream *s, void *ctx, const void *p, size_t n);
    /* After a short vsock_send(): try again. */
    void (*writable)(struct vsock_stream *s, void *ctx);
    /* The guest will send no more, and all that it sent has been taken. */
    void (*peer_shutdown)(struct vsock_stream *s, void *ctx);
    /* Last call. reset: refused or torn down, data may be lost; otherwise the guest closed cleanly,
     * and all its data was delivered (peer_shutdown was called before). */
    void (*closed)(struct vsock_stream *s, void *ctx, bool reset);
};

/* The guest connects. Return 0 after vsock_set_ops(), or -errno to refuse; refused streams get no
 * callbacks. The stream is already connected, so vsock_send() works right away. Or return
 * VSOCK_LATER, also after vsock_set_ops(): the guest waits until vsock_answer(), before which
 * nothing may be sent, or until vsock_abort(). It may give up meanwhile. */
enum { VSOCK_LATER = 1 };
typedef int (*vsock_accept_fn)(struct vsock_stream *s, void *ctx);

struct vsock_stats {
    uint64_t rx_bytes, tx_bytes; /* from, to the guest */
    uint64_t accepted, connected, refused;
    uint64_t dropped;    /* packets that make no sense */
    uint64_t violations; /* streams reset because the guest broke a rule */
    unsigned streams;    /* now */
};

int virtio_vsock_new(struct virtio_dev **ret, uint64_t guest_cid);
void vsock_stats(const struct virtio_dev *d, struct vsock_stats *ret);

/* Guest-initiated streams to a host port; others are refused. -EADDRINUSE, -ENOSPC. */
int vsock_listen(struct virtio_dev *d, uint32_t port, vsock_accept_fn accept, void *ctx);

/* NULL with errno EMFILE when there are too many streams. Works before the guest is up: the request
 * goes out once the guest has supplied receive buffers (but a guest that does not listen yet
 * refuses it, so let it connect first). */
struct vsock_stream *vsock_connect(struct virtio_dev *d, uint32_t guest_port,
                                   const struct vsock_stream_ops *ops, void *ctx);

/* After VSOCK_LATER: the guest's connect succeeds. */
void vsock_answer(struct vsock_stream *s);

void vsock_set_ops(struct vsock_stream *s, const struct vsock_stream_ops *ops, void *ctx);

/* Returns the bytes taken. Less than asked for: writable() will be called. Bytes for a guest that
 * has stopped reading are taken and dropped; after vsock_shutdown(SEND) none are taken. */
size_t vsock_send(struct vsock_stream *s, const struct iovec *iov, unsigned n);
size_t vsock_send_buf(struct vsock_stream *s, const void *p, size_t len);
/* Offers again what data() did not take. */
void vsock_resume(struct vsock_stream *s);
/* How many bytes wait for vsock_resume(). */
size_t vsock_held(const struct vsock_stream *s);
/* SEND: the guest reads end of file after what was sent. RECV: what it still sends is dropped. */
void vsock_shutdown(struct vsock_stream *s, unsigned flags);
/* Closes both directions cleanly: the guest gets all that was sent, then end of file; if it sends
 * more, the stream is reset. */
void vsock_close(struct vsock_stream *s);
/* Resets the stream at once. */
void vsock_abort(struct vsock_stream *s);

extern const struct virtio_dev_ops virtio_vsock_ops;
