#include "intercept/tls.h"

#include "intercept/ca.h"
#include "util/cleanup.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { LEAF_FRESH_S = 12 * 3600, READ_AHEAD = 64 * 1024 };

struct leaf {
    char host[SUBST_HOST_MAX];
    X509 *cert;
    time_t made;
};

struct tls {
    const struct config *c;
    const char *bundle;
    SSL_CTX *server, *client;
    EVP_PKEY *key; /* of all leaves */
    X509 *issuer;
    EVP_PKEY *issuer_key;
    struct leaf leaf[TLS_LEAVES_MAX];
    size_t next;
    X509_STORE *store[CONFIG_ROOTS_MAX + 1]; /* made on demand: for all hosts; by config_roots */
};

static const struct {
    unsigned bit, len;
    const unsigned char *wire;
} protocols[] = {{TLS_HTTP2, 3, (const unsigned char *)"\x02h2"},
                 {TLS_HTTP1, 9, (const unsigned char *)"\x08http/1.1"}};

/* --- towards the guest ----------------------------------------------------------------------- */

/* Parses an ALPN list of protocols. */
static unsigned read_protocols(const unsigned char *p, size_t n)
{
    unsigned all = 0;
    for (size_t at = 0; at < n; at += 1 + (size_t)p[at])
        for (size_t i = 0; i < ARRAY_LEN(protocols); i++)
            if (protocols[i].len <= n - at &&
                memcmp(p + at, protocols[i].wire, protocols[i].len) == 0)
                all |= protocols[i].bit;
    return all;
}

/* Once the client has announced its protocols, the server is asked. */
static int on_hello(SSL *s, int *alert, void *arg)
{
    struct tls_pair *p = SSL_get_app_data(s);
    const unsigned char *list;
    size_t n;
    if (!SSL_client_hello_get0_ext(s, TLSEXT_TYPE_application_layer_protocol_negotiation, &list,
                                   &n))
        p->offered = TLS_HTTP1;
    else
        p->offered = n > 2 ? read_protocols(list + 2, n - 2) : 0;
    p->heard = true;
    if (!(p->offered & TLS_HTTP2))
        p->chosen = TLS_HTTP1;
    return p->chosen ? SSL_CLIENT_HELLO_SUCCESS : SSL_CLIENT_HELLO_RETRY;
}

static int on_protocols(SSL *s, const unsigned char **out, unsigned char *out_len,
                        const unsigned char *in, unsigned in_len, void *arg)
{
    const struct tls_pair *p = SSL_get_app_data(s);
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++)
        if (protocols[i].bit == p->chosen && read_protocols(in, in_len) & p->chosen) {
            *out = protocols[i].wire + 1;
            *out_len = protocols[i].wire[0];
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

/* Another parser has read the name before: they have to agree. */
static int on_name(SSL *s, int *alert, void *arg)
{
    const struct tls_pair *p = SSL_get_app_data(s);
    const char *host = p ? p->host : NULL;
    const char *name = SSL_get_servername(s, TLSEXT_NAMETYPE_host_name);
    size_t n = name ? strlen(name) : 0;
    if (n > 0 && name[n - 1] == '.')
        n--;
    if (host && name && n == strlen(host) && strncasecmp(name, host, n) == 0)
        return SSL_TLSEXT_ERR_OK;
    *alert = SSL_AD_UNRECOGNIZED_NAME;
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static SSL_CTX *make_server(void)
{
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    if (!c || !SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION)) {
        SSL_CTX_free(c);
        return NULL;
    }
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE);
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_client_hello_cb(c, on_hello, NULL);
    SSL_CTX_set_alpn_select_cb(c, on_protocols, NULL);
    (void)SSL_CTX_set_tlsext_servername_callback(c, on_name);
    return c;
}

static X509 *leaf_for(struct tls *t, const char *host)
{
    time_t now = time(NULL);
    struct leaf *to = &t->leaf[t->next];
    for (size_t i = 0; i < TLS_LEAVES_MAX; i++) {
        struct leaf *l = &t->leaf[i];
        if (!l->cert || strcmp(l->host, host) != 0)
            continue;
        if (now - l->made < LEAF_FRESH_S)
            return l->cert;
        to = l;
    }
    X509 *cert = ca_leaf(t->issuer, t->issuer_key, t->key, host);
    if (!cert)
        return NULL;
    t->next = to == &t->leaf[t->next] ? (t->next + 1) % TLS_LEAVES_MAX : t->next;
    X509_free(to->cert);
    *to = (struct leaf){.cert = cert, .made = now};
    memcpy(to->host, host, strlen(host) + 1);
    return cert;
}

/* Sets what both ends have in common. */
static bool prepare(SSL *s, int fd)
{
    SSL_set_read_ahead(s, 1); /* many records by one system call, not one by two */
    SSL_set_default_read_buffer_len(s, READ_AHEAD);
    (void)SSL_set_mode(s, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    return SSL_set_fd(s, fd) == 1;
}

SSL *tls_server(struct tls *t, struct tls_pair *p, int fd)
{
    X509 *cert = leaf_for(t, p->host);
    SSL *s = cert ? SSL_new(t->server) : NULL;
    if (s && prepare(s, fd) && SSL_use_certificate(s, cert) == 1 &&
        SSL_use_PrivateKey(s, t->key) == 1 && SSL_add1_chain_cert(s, t->issuer) == 1 &&
        SSL_set_app_data(s, p) == 1) {
        SSL_set_accept_state(s);
        return s;
    }
    SSL_free(s);
    return NULL;
}

bool tls_was_rejected(void)
{
    int reason = ERR_GET_REASON(ERR_peek_error());
    return reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
           reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN ||
           reason == SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE;
}

/* --- towards the server ---------------------------------------------------------------------- */

static SSL_CTX *make_client(void)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c || !SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION)) {
        SSL_CTX_free(c);
        return NULL;
    }
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    return c;
}

static void add_roots(X509_STORE *store, const char *pem)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x;
    while (b && (x = PEM_read_bio_X509(b, NULL, NULL, NULL))) {
        (void)X509_STORE_add_cert(store, x);
        X509_free(x);
    }
    BIO_free(b);
    ERR_clear_error(); /* the end of the text counts as one */
}

/* The authorities for a host: those for all hosts, and the first ones that are for this one. Loaded
 * on demand, since parsing a bundle would slow down a start too much. */
static X509_STORE *store_for(struct tls *t, const char *host)
{
    const struct config *c = t->c;
    size_t own = CONFIG_ROOTS_MAX;
    for (size_t i = 0; i < c->n_roots && own == CONFIG_ROOTS_MAX; i++)
        if (c->roots[i].host.name[0] && subst_host_matches(&c->roots[i].host, host))
            own = i;
    if (t->store[own])
        return t->store[own];
    X509_STORE *s = X509_STORE_new();
    if (s)
        add_roots(s, t->bundle);
    for (size_t i = 0; s && i < c->n_roots; i++)
        if (!c->roots[i].host.name[0] || i == own)
            add_roots(s, c->roots[i].pem);
    t->store[own] = s;
    return s;
}

SSL *tls_client(struct tls *t, const char *host, int fd)
{
    X509_STORE *store = store_for(t, host);
    SSL *s = store ? SSL_new(t->client) : NULL;
    if (!s)
        return NULL;
    SSL_set_hostflags(s, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (!config_verifies(t->c, host))
        SSL_set_verify(s, SSL_VERIFY_NONE, NULL);
    if (prepare(s, fd) && SSL_set1_verify_cert_store(s, store) == 1 &&
        SSL_set1_host(s, host) == 1 && SSL_set_tlsext_host_name(s, host) == 1) {
        SSL_set_connect_state(s);
        return s;
    }
    SSL_free(s);
    return NULL;
}

bool tls_offer(SSL *s, unsigned wanted)
{
    unsigned char list[16];
    unsigned n = 0;
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++)
        if (wanted & protocols[i].bit) {
            memcpy(list + n, protocols[i].wire, protocols[i].len);
            n += protocols[i].len;
        }
    return SSL_set_alpn_protos(s, list, n) == 0; /* its success is 0 */
}

unsigned tls_chosen(const SSL *s)
{
    const unsigned char *p = NULL;
    unsigned n = 0;
    SSL_get0_alpn_selected(s, &p, &n);
    return n == 2 && memcmp(p, "h2", 2) == 0 ? TLS_HTTP2 : TLS_HTTP1;
}

void tls_client_error(SSL *s, const char *host, char *out, size_t size)
{
    long verdict = SSL_get_verify_result(s);
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    if (verdict != X509_V_OK && SSL_get_verify_mode(s) != SSL_VERIFY_NONE)
        (void)snprintf(out, size, "the certificate of %s is not trusted: %s", host,
                       X509_verify_cert_error_string(verdict));
    else
        (void)snprintf(out, size, "TLS with %s failed: %s", host,
                       reason ? reason : "the connection was closed");
}

/* --- life ------------------------------------------------------------------------------------ */

static bool read_issuer(struct tls *t)
{
    const unsigned char *p = t->c->issuer_cert;
    t->issuer = d2i_X509(NULL, &p, (long)t->c->issuer_cert_len);
    p = t->c->issuer_key;
    t->issuer_key = d2i_AutoPrivateKey(NULL, &p, (long)t->c->issuer_key_len);
    return t->issuer && t->issuer_key && X509_check_private_key(t->issuer, t->issuer_key);
}

int tls_ctx_new(struct tls **ret, const struct config *c, const char *bundle, struct err *e)
{
    struct tls *t = calloc(1, sizeof(*t));
    if (!t)
        return err_oom(e);
    t->c = c;
    t->bundle = bundle;
    t->server = make_server();
    t->client = make_client();
    t->key = EVP_EC_gen("P-256");
    if (!t->server || !t->client || !t->key || !read_issuer(t)) {
        tls_ctx_free(t);
        return err_set(e, EIO, "OpenSSL cannot set up TLS");
    }
    *ret = t;
    return 0;
}

void tls_ctx_free(struct tls *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < TLS_LEAVES_MAX; i++)
        X509_free(t->leaf[i].cert);
    for (size_t i = 0; i < ARRAY_LEN(t->store); i++)
        X509_STORE_free(t->store[i]);
    SSL_CTX_free(t->server);
    SSL_CTX_free(t->client);
    EVP_PKEY_free(t->key);
    EVP_PKEY_free(t->issuer_key);
    X509_free(t->issuer);
    free(t);
}
