#include "registry/http.h"

#include "registry/address.h"
#include "registry/curl.h"
#include "registry/http_url.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/parse.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum {
    IDLE_MAX = 8,      /* connections kept for the next request */
    CHUNK = 128 << 10, /* curl's own buffer, and what one callback may bring */
    HELD_MAX =
        2 * CHUNK, /* bytes received while the reader had no room; beyond it the transfer pauses */
    POLL_MS = 200, /* how soon a cancellation is seen */
    BODY_STEP = 16 << 10,
};

/* A handle with its connections. */
struct conn {
    struct conn *next;
    CURLM *multi;
    CURL *easy;
};

struct http {
    const struct curl_api *curl;
    char *ca_certs;
    bool insecure;
    const atomic_bool *cancel[2];
    bool proxied; /* the environment names a proxy, which connects for us */
    uint64_t timeout_ms;
    uint64_t connect_ms;
    pthread_mutex_t lock; /* guards idle */
    struct conn *idle;
    atomic_uint seen; /* kinds of address (address.h) that the registry itself has */
};

/* What callers see comes first. */
struct answer {
    struct http_response pub;
    struct http *h;
    struct conn *conn;
    struct curl_slist *headers;
    char *url, *origin; /* of this hop; of what the request named */
    char *location;
    const struct http_request *q; /* while it is being opened */
    uint64_t sent;
    bool foreign;
    bool refused; /* an address was refused by rule 3 */
    bool headers_done, done;
    CURLcode result;
    uint8_t *dst; /* where the reader wants bytes, while it is inside http_read */
    size_t dst_len, dst_used;
    struct buf held;
    uint64_t received;
    uint64_t waited_ns, mark; /* since `mark` bytes were received */
    char error[CURL_ERROR_SIZE];
};

/* --- connections ---------------------------------------------------------------------------- */

static void conn_free(const struct curl_api *curl, struct conn *c)
{
    if (c->easy)
        curl->easy_cleanup(c->easy);
    if (c->multi)
        (void)curl->multi_cleanup(c->multi);
    free(c);
}

static struct conn *conn_get(struct http *h)
{
    (void)pthread_mutex_lock(&h->lock);
    struct conn *c = h->idle;
    if (c)
        h->idle = c->next;
    (void)pthread_mutex_unlock(&h->lock);
    if (c)
        return c;
    c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->multi = h->curl->multi_init();
    c->easy = h->curl->easy_init();
    if (c->multi && c->easy)
        return c;
    conn_free(h->curl, c);
    return NULL;
}

static void conn_put(struct http *h, struct conn *c)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&h->lock);
    for (const struct conn *i = h->idle; i; i = i->next)
        n++;
    if (n < IDLE_MAX) {
        c->next = h->idle;
        h->idle = c;
        c = NULL;
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (c)
        conn_free(h->curl, c);
}

static bool environment_has_proxy(void)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                        "ALL_PROXY"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *v = getenv(names[i]);
        if (v && *v)
            return true;
    }
    return false;
}

int http_new(struct http **ret, const struct http_options *opt, struct err *e)
{
    const struct curl_api *curl;
    int r = curl_load(&curl, e);
    if (r < 0)
        return r;
    const char *timeout = getenv("MSB_REGISTRY_TIMEOUT");
    uint64_t ms = 0;
    if (timeout && *timeout && (parse_duration_ms(timeout, &ms) < 0 || ms == 0))
        return err_set(e, EINVAL, "invalid MSB_REGISTRY_TIMEOUT '%.100s': " PARSE_DURATION_EXAMPLES,
                       timeout);
    struct http *h = calloc(1, sizeof(*h));
    if (!h)
        return err_oom(e);
    h->curl = curl;
    h->insecure = opt->insecure;
    memcpy(h->cancel, opt->cancel, sizeof(h->cancel));
    h->proxied = environment_has_proxy();
    h->timeout_ms = HTTP_TIMEOUT_MS;
    h->connect_ms = HTTP_CONNECT_MS;
    if (ms)
        h->timeout_ms = h->connect_ms = MIN(ms, 3600000);
    (void)pthread_mutex_init(&h->lock, NULL);
    if (opt->ca_certs && !(h->ca_certs = strdup(opt->ca_certs))) {
        http_free(h);
        return err_oom(e);
    }
    *ret = h;
    return 0;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    while (h->idle) {
        struct conn *c = h->idle;
        h->idle = c->next;
        conn_free(h->curl, c);
    }
    (void)pthread_mutex_destroy(&h->lock);
    free(h->ca_certs);
    free(h);
}

static bool canceled(const struct http *h)
{
    return (h->cancel[0] && atomic_load(h->cancel[0])) ||
           (h->cancel[1] && atomic_load(h->cancel[1]));
}

static int say_cancelled(struct err *e)
{
    return err_set(e, EINTR, "interrupted");
}

int http_pause(const struct http *h, uint64_t ms, struct err *e)
{
    for (uint64_t end = now_ns() + ms * 1000000;;) {
        if (canceled(h))
            return say_cancelled(e);
        uint64_t now = now_ns();
        if (now >= end)
            return 0;
        (void)poll(NULL, 0, (int)MIN((end - now) / 1000000 + 1, (uint64_t)POLL_MS));
    }
}

/* The host as messages name it. */
static void host_of(const struct answer *a, char *out, size_t size)
{
    AUTO_FREE char *host = url_part(a->url, CURLUPART_HOST);
    AUTO_FREE char *port = url_part(a->url, CURLUPART_PORT);
    bool usual = port && (strcmp(port, "443") == 0 || strcmp(port, "80") == 0);
    (void)snprintf(out, size, "%s%s%s", host ? host : "?", port && !usual ? ":" : "",
                   port && !usual ? port : "");
}

/* --- callbacks ------------------------------------------------------------------------------ */

static curl_socket_t on_socket(void *data, curlsocktype purpose, struct curl_sockaddr *addr)
{
    struct answer *a = data;
    if (a->foreign) {
        unsigned no = address_kind(&addr->addr, addr->addrlen) & ~atomic_load(&a->h->seen);
        if (a->h->proxied)
            no &= ~(unsigned)ADDRESS_LOOPBACK; /* that is the proxy */
        if (no) {
            a->refused = true;
            return CURL_SOCKET_BAD;
        }
    }
    return socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);
}

static size_t on_body(char *p, size_t size, size_t count, void *data)
{
    struct answer *a = data;
    size_t n = size * count, direct = 0;
    if (a->dst && buf_len(&a->held) == 0)
        direct = MIN(n, a->dst_len - a->dst_used);
    if (n - direct > HELD_MAX - buf_len(&a->held))
        return CURL_WRITEFUNC_PAUSE;
    if (direct) {
        memcpy(a->dst + a->dst_used, p, direct);
        a->dst_used += direct;
    }
    if (n > direct && buf_append(&a->held, p + direct, n - direct) < 0)
        return 0;
    a->received += n;
    return n;
}

const char *http_header_value(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    return line + n + 1 + strspn(line + n + 1, " \t");
}

static int add_challenge(struct http_response *r, const char *v)
{
    char *joined;
    if (asprintf(&joined, "%s%s%s", r->challenges ? r->challenges : "", r->challenges ? ", " : "",
                 v) < 0)
        return -ENOMEM;
    free(r->challenges);
    r->challenges = joined;
    return strlen(joined) > HTTP_HEADER_MAX ? -EFBIG : 0;
}

static void read_range(struct http_response *r, const char *v)
{
    unsigned long long from, to, size;
    if (sscanf(v, "bytes %llu-%llu/%llu", &from, &to, &size) == 3 && from <= to && to < size) {
        r->range_from = from;
        r->range_size = size;
    }
}

static int read_header(struct answer *a, const char *line)
{
    struct http_response *r = &a->pub;
    const char *v;
    if (a->q && a->q->on_header)
        a->q->on_header(a->q->header_ctx, line);
    if ((v = http_header_value(line, "location"))) {
        free(a->location);
        a->location = strdup(v);
        return a->location ? 0 : -ENOMEM;
    }
    if ((v = http_header_value(line, "www-authenticate")))
        return add_challenge(r, v);
    if ((v = http_header_value(line, "content-range")))
        read_range(r, v);
    else if ((v = http_header_value(line, "docker-content-digest")))
        (void)snprintf(r->docker_digest, sizeof(r->docker_digest), "%s", v);
    else if ((v = http_header_value(line, "retry-after")))
        (void)snprintf(r->retry_after, sizeof(r->retry_after), "%s", v);
    return 0;
}

static size_t on_send(char *p, size_t size, size_t count, void *data)
{
    struct answer *a = data;
    const struct http_send *s = a->q ? a->q->send : NULL;
    if (!s) /* the response came before everything was sent */
        return CURL_READFUNC_ABORT;
    size_t n = (size_t)MIN((uint64_t)size * count, s->size - a->sent);
    if (n && s->p)
        memcpy(p, (const uint8_t *)s->p + a->sent, n);
    else if (n && pread_all(s->fd, p, n, a->sent) < 0)
        return CURL_READFUNC_ABORT;
    a->sent += n;
    if (s->sent)
        s->sent(s->ctx, a->sent);
    return n;
}

static int on_seek(void *data, curl_off_t offset, int origin)
{
    struct answer *a = data;
    if (origin != SEEK_SET || offset < 0)
        return CURL_SEEKFUNC_FAIL;
    a->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static void forget_headers(struct answer *a)
{
    free(a->pub.challenges);
    free(a->pub.location);
    free(a->location);
    a->location = NULL;
    a->pub = (struct http_response){.length = -1};
}

static size_t on_header(char *p, size_t size, size_t count, void *data)
{
    struct answer *a = data;
    size_t n = size * count;
    while (n > 0 && (p[n - 1] == '\r' || p[n - 1] == '\n'))
        n--;
    if (a->headers_done)
        return size * count; /* trailers */
    if (n == 0) {
        /* 1xx responses come before the real one. */
        a->headers_done = a->pub.status >= 200;
        return size * count;
    }
    if (n > HTTP_HEADER_MAX)
        return 0;
    char line[HTTP_HEADER_MAX + 1];
    memcpy(line, p, n);
    line[n] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0) {
        forget_headers(a);
        const char *space = strchr(line, ' ');
        a->pub.status = space ? strtol(space + 1, NULL, 10) : 0;
        return size * count;
    }
    return read_header(a, line) < 0 ? 0 : size * count;
}

/* --- one hop -------------------------------------------------------------------------------- */

static int add_header(struct answer *a, const char *name, const char *value)
{
    AUTO_FREE char *line = NULL;
    if (asprintf(&line, "%s: %s", name, value) < 0) {
        line = NULL;
        return -ENOMEM;
    }
    struct curl_slist *more = a->h->curl->slist_append(a->headers, line);
    if (!more)
        return -ENOMEM;
    a->headers = more;
    return 0;
}

static void set_transport(const struct answer *a, CURL *c)
{
    __typeof__(curl_easy_setopt) *set = a->h->curl->easy_setopt;
    (void)set(c, CURLOPT_NOSIGNAL, 1L);
    (void)set(c, CURLOPT_USERAGENT, "msb/" MSB_VERSION);
    (void)set(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)set(c, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)set(c, CURLOPT_FOLLOWLOCATION, 0L);
    (void)set(c, CURLOPT_CONNECTTIMEOUT_MS, (long)a->h->connect_ms);
    (void)set(c, CURLOPT_BUFFERSIZE, (long)CHUNK);
    (void)set(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    (void)set(c, CURLOPT_SSL_VERIFYPEER, a->h->insecure ? 0L : 1L);
    (void)set(c, CURLOPT_SSL_VERIFYHOST, a->h->insecure ? 0L : 2L);
    if (a->h->ca_certs)
        (void)set(c, CURLOPT_CAINFO, a->h->ca_certs);
    /* Loopback is never reached through a proxy, whatever no_proxy says. */
    AUTO_FREE char *host = url_part(a->url, CURLUPART_HOST);
    if (host && address_kind_text(host) == ADDRESS_LOOPBACK)
        (void)set(c, CURLOPT_PROXY, "");
}

static void set_send(struct answer *a, CURL *c)
{
    __typeof__(curl_easy_setopt) *set = a->h->curl->easy_setopt;
    (void)set(c, CURLOPT_UPLOAD, 1L);
    (void)set(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)a->q->send->size);
    (void)set(c, CURLOPT_READFUNCTION, on_send);
    (void)set(c, CURLOPT_READDATA, a);
    (void)set(c, CURLOPT_SEEKFUNCTION, on_seek);
    (void)set(c, CURLOPT_SEEKDATA, a);
    a->sent = 0;
}

static int set_method(struct answer *a, CURL *c)
{
    __typeof__(curl_easy_setopt) *set = a->h->curl->easy_setopt;
    const struct http_request *q = a->q;
    int r = 0;
    for (size_t i = 0; r == 0 && q->headers && i < q->headers->n; i++) {
        struct curl_slist *more = a->h->curl->slist_append(a->headers, q->headers->v[i]);
        r = more ? 0 : -ENOMEM;
        a->headers = more ? more : a->headers;
    }
    if (q->body || strcmp(q->method, "PUT") == 0 || strcmp(q->method, "POST") == 0) {
        if (q->send) {
            set_send(a, c);
        } else {
            (void)set(c, CURLOPT_POSTFIELDS, q->body ? q->body : "");
            (void)set(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_len);
        }
        if (r == 0)
            r = add_header(a, "Content-Type",
                           q->content_type ? q->content_type : "application/octet-stream");
        if (r == 0) /* a round trip before each body would be */
            r = add_header(a, "Expect", "");
    }
    (void)set(c, CURLOPT_CUSTOMREQUEST, q->method);
    (void)set(c, CURLOPT_NOBODY, strcmp(q->method, "HEAD") == 0 ? 1L : 0L);
    (void)set(c, CURLOPT_PATH_AS_IS, 1L);
    return r;
}

static int set_request(struct answer *a, CURL *c)
{
    __typeof__(curl_easy_setopt) *set = a->h->curl->easy_setopt;
    const struct http_request *q = a->q;
    int r = q->accept ? add_header(a, "Accept", q->accept) : 0;
    if (r == 0 && q->authorization && http_same_origin(a->url, a->origin))
        r = add_header(a, "Authorization", q->authorization);
    if (r == 0 && q->from) {
        char range[48];
        (void)snprintf(range, sizeof(range), "bytes=%llu-", (unsigned long long)q->from);
        r = add_header(a, "Range", range);
    }
    if (r == 0 && q->method)
        r = set_method(a, c);
    (void)set(c, CURLOPT_HTTPHEADER, a->headers);
    if (q->form)
        (void)set(c, CURLOPT_COPYPOSTFIELDS, q->form);
    return r;
}

static int begin_hop(struct answer *a, struct err *e)
{
    CURL *c = a->conn->easy;
    __typeof__(curl_easy_setopt) *set = a->h->curl->easy_setopt;
    a->h->curl->easy_reset(c);
    set_transport(a, c);
    (void)set(c, CURLOPT_ERRORBUFFER, a->error);
    (void)set(c, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    (void)set(c, CURLOPT_OPENSOCKETDATA, a);
    (void)set(c, CURLOPT_HEADERFUNCTION, on_header);
    (void)set(c, CURLOPT_HEADERDATA, a);
    (void)set(c, CURLOPT_WRITEFUNCTION, on_body);
    (void)set(c, CURLOPT_WRITEDATA, a);
    if (set(c, CURLOPT_URL, a->url) != CURLE_OK || set_request(a, c) < 0 ||
        a->h->curl->multi_add_handle(a->conn->multi, c) != CURLM_OK)
        return err_oom(e);
    return 0;
}

static void end_hop(struct answer *a)
{
    if (a->conn)
        (void)a->h->curl->multi_remove_handle(a->conn->multi, a->conn->easy);
    a->h->curl->slist_free_all(a->headers);
    a->headers = NULL;
    a->done = a->headers_done = false;
    buf_reset(&a->held);
    a->error[0] = '\0';
}

static int transfer_code(CURLcode c)
{
    switch (c) {
    case CURLE_COULDNT_CONNECT:
        return ECONNREFUSED;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return EHOSTUNREACH;
    case CURLE_OPERATION_TIMEDOUT:
        return ETIMEDOUT;
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return ECONNRESET;
    case CURLE_SSL_CONNECT_ERROR:
        return EPROTO;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM:
        return EKEYREJECTED;
    default:
        return EIO;
    }
}

static int transfer_failed(const struct answer *a, struct err *e)
{
    char host[300];
    host_of(a, host, sizeof(host));
    if (a->refused)
        return err_set(
            e, EPERM,
            "refused to follow the registry to %s, an address of this machine or its network",
            host);
    const char *why = a->error[0] ? a->error : a->h->curl->easy_strerror(a->result);
    int code = transfer_code(a->result);
    if (code == EKEYREJECTED)
        return err_hinted(
            e, err_set(e, code, "the certificate of %s is not trusted: %s", host, why),
            "give its CA with --ca-certs FILE, or use --insecure if you trust the registry");
    bool reached = code != ECONNREFUSED && code != EHOSTUNREACH;
    err_set(e, code, "cannot %s %s: %s", reached ? "read from" : "reach", host, why);
    if (!reached)
        err_hint(e, "check the name and the network; set https_proxy=URL if there is a proxy");
    return -code;
}

/* Lets libcurl do what it can without waiting. */
static int transfer_some(struct answer *a, struct err *e)
{
    const struct curl_api *curl = a->h->curl;
    int running = 0, left = 0;
    if (canceled(a->h))
        return say_cancelled(e);
    CURLMcode m = curl->multi_perform(a->conn->multi, &running);
    if (m != CURLM_OK)
        return err_set(e, EIO, "HTTP: %s", curl->multi_strerror(m));
    for (const CURLMsg *msg; (msg = curl->multi_info_read(a->conn->multi, &left));)
        if (msg->msg == CURLMSG_DONE) {
            a->done = true;
            a->result = msg->data.result;
        }
    return 0;
}

/* Waits for the network; gives up if too little has arrived for too long. Only time spent here
 * counts, so a slow reader does not look like a slow server. */
static int wait_more(struct answer *a, struct err *e)
{
    uint64_t t0 = now_ns();
    (void)a->h->curl->multi_poll(a->conn->multi, NULL, 0, POLL_MS, NULL);
    a->waited_ns += now_ns() - t0;
    uint64_t timeout_ms = a->h->timeout_ms * (a->q && a->q->send ? HTTP_STORE_FACTOR : 1);
    if (a->waited_ns < timeout_ms * 1000000)
        return 0;
    curl_off_t sent = 0;
    (void)a->h->curl->easy_getinfo(a->conn->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    uint64_t moved = a->received + (uint64_t)sent;
    if (moved - a->mark >= HTTP_STALL_BYTES) {
        a->waited_ns = 0;
        a->mark = moved;
        return 0;
    }
    char host[300];
    host_of(a, host, sizeof(host));
    return err_set(e, ETIMEDOUT, "%s sent nothing for %llu s", host,
                   (unsigned long long)(timeout_ms / 1000));
}

/* Notes the registry's own address: the one that answered, not its name's other addresses. */
static void note_address(const struct answer *a)
{
    char *ip = NULL;
    if (!a->foreign && !a->h->proxied &&
        a->h->curl->easy_getinfo(a->conn->easy, CURLINFO_PRIMARY_IP, &ip) == CURLE_OK && ip)
        (void)atomic_fetch_or(&a->h->seen, address_kind_text(ip));
}

/* Until the headers are complete. */
static int one_hop(struct answer *a, struct err *e)
{
    a->waited_ns = 0;
    a->mark = a->received;
    int r = begin_hop(a, e);
    while (r == 0) {
        r = transfer_some(a, e);
        if (r < 0 || a->headers_done || a->done)
            break;
        r = wait_more(a, e);
    }
    if (r == 0 && a->done && (a->result != CURLE_OK || !a->headers_done))
        r = transfer_failed(a, e);
    if (r == 0)
        note_address(a);
    return r;
}

/* --- redirects ------------------------------------------------------------------------------ */

static bool is_redirect(const struct answer *a)
{
    long s = a->pub.status;
    return (s == 301 || s == 302 || s == 303 || s == 307 || s == 308) && a->location;
}

/* Rule 3 for hosts written as addresses, which a proxy would connect to for us. */
static bool host_refused(const struct answer *a, const char *url)
{
    AUTO_FREE char *host = url_part(url, CURLUPART_HOST);
    return !host || (address_kind_text(host) & ~atomic_load(&a->h->seen));
}

static int next_hop(struct answer *a, struct err *e)
{
    AUTO_FREE char *to = url_resolve(a->url, a->location);
    char host[300];
    host_of(a, host, sizeof(host));
    if (!to || (strncasecmp(to, "http://", 7) != 0 && strncasecmp(to, "https://", 8) != 0))
        return err_set(e, EPERM, "%s redirects to an unsupported URL: %.200s", host, a->location);
    bool secure = strncasecmp(a->url, "https://", 8) == 0;
    if (secure && strncasecmp(to, "http://", 7) == 0 && !a->h->insecure)
        return err_hinted(
            e, err_set(e, EPERM, "refused a redirect of %s from https to plain http", host),
            "use --insecure to allow it if you trust the registry");
    free(a->url);
    a->url = steal_ptr(&to);
    a->foreign = true;
    if (host_refused(a, a->url)) {
        a->refused = true;
        return transfer_failed(a, e);
    }
    return 0;
}

/* Only host and path: a query may be a signature, and a URL may contain a password. */
static void trace_hop(const struct answer *a, int r)
{
    if (!diag_tracing())
        return;
    AUTO_FREE char *host = url_part(a->url, CURLUPART_HOST);
    AUTO_FREE char *path = url_part(a->url, CURLUPART_PATH);
    diag_trace("HTTP %s%s: %d", host ? host : "?", path ? path : "",
               r < 0 ? r : (int)a->pub.status);
}

static int follow_redirects(struct answer *a, struct err *e)
{
    AUTO_FREE char *host = url_part(a->url, CURLUPART_HOST);
    if (!host)
        return err_set(e, EINVAL, "invalid URL '%.200s'", a->url);
    if (!a->foreign)
        (void)atomic_fetch_or(&a->h->seen, address_kind_text(host));
    else if (host_refused(a, a->url)) {
        a->refused = true;
        return transfer_failed(a, e);
    }
    for (int hop = 0;; hop++) {
        int r = one_hop(a, e);
        trace_hop(a, r);
        if (r < 0 || !is_redirect(a) || a->q->method)
            return r;
        if (a->q->form)
            return err_set(e, EPERM, "refused a redirect of the token server");
        if (hop == HTTP_REDIRECTS_MAX)
            return err_set(e, ELOOP, "%s redirects more than %d times", host, HTTP_REDIRECTS_MAX);
        r = next_hop(a, e);
        if (r < 0)
            return r;
        end_hop(a);
    }
}

/* --- for callers ---------------------------------------------------------------------------- */

int http_open(struct http *h, const struct http_request *q, struct http_response **ret,
              struct err *e)
{
    struct answer *a = calloc(1, sizeof(*a));
    if (!a)
        return err_oom(e);
    a->h = h;
    a->q = q;
    a->foreign = q->foreign;
    a->pub.length = -1;
    buf_init(&a->held, HELD_MAX);
    a->url = strdup(q->url);
    a->origin = strdup(q->url);
    a->conn = conn_get(h);
    int r = a->url && a->origin && a->conn ? follow_redirects(a, e) : err_oom(e);
    if (r < 0) {
        http_close(&a->pub);
        return r;
    }
    if (a->location) /* an invalid one is ignored */
        a->pub.location = url_resolve(a->url, a->location);
    a->pub.foreign = !http_same_origin(a->url, a->origin);
    a->q = NULL;
    curl_off_t length = -1;
    if (h->curl->easy_getinfo(a->conn->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length) ==
        CURLE_OK)
        a->pub.length = length;
    *ret = &a->pub;
    return 0;
}

static ssize_t take_held(struct answer *a, void *p, size_t n)
{
    n = MIN(n, buf_len(&a->held));
    memcpy(p, buf_head(&a->held), n);
    buf_consume(&a->held, n);
    return (ssize_t)n;
}

static ssize_t read_network(struct answer *a, struct err *e)
{
    /* Has no effect on a transfer that is not paused. */
    if (!a->done)
        (void)a->h->curl->easy_pause(a->conn->easy, CURLPAUSE_CONT);
    while (a->dst_used == 0) {
        if (a->done)
            return a->result == CURLE_OK ? 0 : transfer_failed(a, e);
        int r = transfer_some(a, e);
        if (r == 0 && a->dst_used == 0 && !a->done)
            r = wait_more(a, e);
        if (r < 0)
            return r;
    }
    return (ssize_t)a->dst_used;
}

ssize_t http_read(struct http_response *r, void *p, size_t n, struct err *e)
{
    struct answer *a = (struct answer *)r;
    if (n == 0)
        return 0;
    if (buf_len(&a->held))
        return take_held(a, p, n);
    a->dst = p;
    a->dst_len = n;
    a->dst_used = 0;
    ssize_t got = read_network(a, e);
    a->dst = NULL;
    return got;
}

void http_close(struct http_response *r)
{
    if (!r)
        return;
    struct answer *a = (struct answer *)r;
    if (a->conn && canceled(a->h)) /* do not wait for a name lookup */
        (void)a->h->curl->easy_setopt(a->conn->easy, CURLOPT_QUICK_EXIT, 1L);
    end_hop(a);
    if (a->conn)
        conn_put(a->h, a->conn);
    forget_headers(a);
    buf_free(&a->held);
    free(a->url);
    free(a->origin);
    free(a);
}

int http_body(struct http_response *r, struct buf *b, struct err *e)
{
    for (;;) {
        size_t room = b->limit - buf_len(b);
        size_t step = MIN(room + 1, (size_t)BODY_STEP);
        char chunk[BODY_STEP];
        ssize_t n = http_read(r, chunk, step, e);
        if (n <= 0)
            return (int)n;
        if ((size_t)n > room)
            return -EFBIG;
        if (buf_append(b, chunk, (size_t)n) < 0)
            return err_oom(e);
    }
}
