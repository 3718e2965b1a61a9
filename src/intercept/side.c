#include "intercept/side.h"

#include "intercept/wipe.h"
#include "util/cleanup.h"

#include <errno.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/socket.h>

/* #syscalls:intercept read write recvfrom sendto close */

void side_close(struct side *s, struct loop *l)
{
    SSL_free(s->ssl);
    s->ssl = NULL;
    if (s->src.fd >= 0)
        loop_close(l, &s->src);
    buf_wipe(&s->in);
    buf_wipe(&s->out);
    s->eof = true;
}

bool side_handshake(struct side *s)
{
    if (s->ready || s->failed || !s->ssl)
        return false;
    ERR_clear_error();
    int k = SSL_do_handshake(s->ssl);
    if (k == 1) {
        s->ready = true;
        return true;
    }
    int err = SSL_get_error(s->ssl, k);
    if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE ||
        err == SSL_ERROR_WANT_CLIENT_HELLO_CB)
        return false;
    s->failed = s->eof = true;
    return true;
}

/* Returns how many bytes; 0: no more will come; -EAGAIN: none now; -EIO. */
static int side_read(struct side *s, void *to, int n)
{
    if (!s->ssl) {
        ssize_t k = recv(s->src.fd, to, (size_t)n, 0);
        return k >= 0 ? (int)k : errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
    }
    ERR_clear_error();
    int k = SSL_read(s->ssl, to, n);
    int err = k > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, k);
    if (err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    return k > 0 ? k : err == SSL_ERROR_ZERO_RETURN ? 0 : -EIO;
}

/* The same, but never 0. */
static int side_write(struct side *s, const void *p, int n)
{
    if (!s->ssl) {
        ssize_t k = send(s->src.fd, p, (size_t)n, MSG_NOSIGNAL);
        return k > 0 ? (int)k : errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
    }
    ERR_clear_error();
    int k = SSL_write(s->ssl, p, n);
    int err = k > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, k);
    return k > 0 ? k : err == SSL_ERROR_WANT_READ || err == SSL_ERROR_WANT_WRITE ? -EAGAIN : -EIO;
}

bool side_fill(struct side *s)
{
    bool any = false;
    if (!s->ready || s->eof)
        return false;
    while (buf_len(&s->in) < CONN_HIGH) {
        uint8_t *to = buf_reserve(&s->in, CONN_PIECE);
        if (!to)
            break;
        int k = side_read(s, to, CONN_PIECE);
        if (k > 0) {
            buf_commit(&s->in, (size_t)k);
            any = true;
            continue;
        }
        if (k == -EAGAIN)
            break;
        s->eof = any = true;
        s->clean = k == 0;
        break;
    }
    return any;
}

bool side_flush(struct side *s)
{
    bool any = false;
    if (!s->ready || s->failed)
        return false;
    while (buf_len(&s->out) > 0) {
        int k = side_write(s, buf_head(&s->out), (int)MIN(buf_len(&s->out), (size_t)CONN_HIGH));
        if (k < 0) {
            s->failed = k != -EAGAIN;
            return any || s->failed;
        }
        buf_consume(&s->out, (size_t)k);
        any = true;
    }
    if (any && s->secret && s->out.data)
        explicit_bzero(s->out.data, s->out.cap);
    s->secret = s->secret && !any;
    return any;
}

bool side_room(const struct side *s)
{
    return buf_len(&s->out) < CONN_HIGH;
}

bool side_pass(struct side *from, struct side *to, size_t n)
{
    if ((to->secret && buf_reserve_wiping(&to->out, n) < 0) ||
        buf_append(&to->out, buf_head(&from->in), n) < 0)
        return false;
    buf_consume(&from->in, n);
    return true;
}
