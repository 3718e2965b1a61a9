#include "intercept/config.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { PACKET_MAX = 32 * 1024, RECORD = 5 }; /* a record: tag, length (little endian), bytes */

enum tag {
    TAG_SECRET = 1, /* name, placeholder, value; each with its zero */
    TAG_HOST,       /* struct subst_host, of the last secret */
    TAG_PLACE,      /* struct subst_place, of the last secret */
    TAG_PATTERN,    /* struct subst_host */
    TAG_ROOTS,      /* struct subst_host, PEM with its zero */
    TAG_CA_DIR,
    TAG_CA_CERT,
    TAG_BUNDLE,
    TAG_KEY,
    TAG_CERT,
    TAG_KEEP, /* as TAG_SECRET, without the value */
    TAG_MINTED,
    TAG_MINTED_KEEP,
    TAG_OWN_CERT,
    TAG_OWN_KEY,
    TAG_NO_VERIFY, /* struct subst_host */
};

/* --- locked memory --------------------------------------------------------------------------- */

/* If the limit on locked memory is too low, it is not locked: that is the host's choice. */
static int vault_open(struct config_vault *v, size_t size)
{
    uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    (void)mlock2(p, size, MLOCK_ONFAULT);
    (void)madvise(p, size, MADV_DONTDUMP);
    *v = (struct config_vault){p, size};
    return 0;
}

static void vault_close(struct config_vault *v, size_t used)
{
    if (v->p) {
        explicit_bzero(v->p, used);
        (void)munmap(v->p, v->size);
    }
    *v = (struct config_vault){0};
}

/* --- telling --------------------------------------------------------------------------------- */

int config_begin(struct config_writer *w, size_t size)
{
    struct config_vault v = {0};
    int r = vault_open(&v, size);
    *w = (struct config_writer){.p = v.p, .size = v.size};
    return r;
}

void config_end(struct config_writer *w)
{
    struct config_vault v = {w->p, w->size};
    vault_close(&v, w->n);
    *w = (struct config_writer){0};
}

struct part {
    const void *p;
    size_t n;
};

static void put_record(struct config_writer *w, enum tag tag, const struct part *part, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += part[i].n;
    if (w->error || len > CONFIG_MAX || w->size - w->n < len + RECORD) {
        w->error = w->error ? w->error : -E2BIG;
        return;
    }
    w->p[w->n++] = (uint8_t)tag;
    for (unsigned i = 0; i < 4; i++)
        w->p[w->n++] = (uint8_t)(len >> 8 * i);
    for (size_t i = 0; i < n; i++) {
        memcpy(w->p + w->n, part[i].p, part[i].n);
        w->n += part[i].n;
    }
}

void config_secret(struct config_writer *w, const char *name, const char *holder, const char *value)
{
    const struct part part[] = {
        {name, strlen(name) + 1}, {holder, strlen(holder) + 1}, {value, strlen(value) + 1}};
    put_record(w, TAG_SECRET, part, ARRAY_LEN(part));
}

static void put_valueless(struct config_writer *w, enum tag tag, const char *name,
                          const char *holder)
{
    const struct part part[] = {{name, strlen(name) + 1}, {holder, strlen(holder) + 1}};
    put_record(w, tag, part, ARRAY_LEN(part));
}

void config_keep(struct config_writer *w, const char *name, const char *holder)
{
    put_valueless(w, TAG_KEEP, name, holder);
}

void config_minted(struct config_writer *w, const char *name, const char *holder, bool keep)
{
    put_valueless(w, keep ? TAG_MINTED_KEEP : TAG_MINTED, name, holder);
}

void config_host(struct config_writer *w, const struct subst_host *h)
{
    put_record(w, TAG_HOST, &(struct part){h, sizeof(*h)}, 1);
}

void config_place(struct config_writer *w, const struct subst_place *p)
{
    put_record(w, TAG_PLACE, &(struct part){p, sizeof(*p)}, 1);
}

void config_pattern(struct config_writer *w, const struct subst_host *h)
{
    put_record(w, TAG_PATTERN, &(struct part){h, sizeof(*h)}, 1);
}

void config_no_verify(struct config_writer *w, const struct subst_host *h)
{
    put_record(w, TAG_NO_VERIFY, &(struct part){h, sizeof(*h)}, 1);
}

void config_roots(struct config_writer *w, const struct subst_host *host, const char *pem)
{
    static const struct subst_host all;
    const struct part part[] = {{host ? host : &all, sizeof(all)}, {pem, strlen(pem) + 1}};
    put_record(w, TAG_ROOTS, part, ARRAY_LEN(part));
}

void config_ca(struct config_writer *w, const char *dir, const char *cert)
{
    put_record(w, TAG_CA_DIR, &(struct part){dir, strlen(dir) + 1}, 1);
    if (cert)
        put_record(w, TAG_CA_CERT, &(struct part){cert, strlen(cert) + 1}, 1);
}

void config_own_ca(struct config_writer *w, const char *cert, const char *key)
{
    put_record(w, TAG_OWN_CERT, &(struct part){cert, strlen(cert) + 1}, 1);
    put_record(w, TAG_OWN_KEY, &(struct part){key, strlen(key) + 1}, 1);
}

void config_bundle(struct config_writer *w, const char *path)
{
    put_record(w, TAG_BUNDLE, &(struct part){path, strlen(path) + 1}, 1);
}

void config_issuer(struct config_writer *w, const void *key, size_t key_len, const void *cert,
                   size_t cert_len)
{
    put_record(w, TAG_KEY, &(struct part){key, key_len}, 1);
    put_record(w, TAG_CERT, &(struct part){cert, cert_len}, 1);
}

static int send_all(int sock, const uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(sock, p, MIN(n, (size_t)PACKET_MAX), MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -errno;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int config_send(struct config_writer *w, int sock)
{
    uint64_t total = w->n;
    if (w->error)
        return w->error;
    int r = send_all(sock, (const uint8_t *)&total, sizeof(total));
    return r < 0 ? r : send_all(sock, w->p, w->n);
}

/* --- being told ------------------------------------------------------------------------------ */

static int recv_all(int sock, uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t k = recv(sock, p, n, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EPIPE;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* The text at *p, which is terminated before `end`; NULL: it is not. */
static const char *take_text(const uint8_t **p, const uint8_t *end)
{
    const char *text = (const char *)*p;
    const uint8_t *zero = memchr(*p, 0, (size_t)(end - *p));
    if (!zero)
        return NULL;
    *p = zero + 1;
    return text;
}

static int take_secret(struct config *c, const uint8_t *p, size_t n, enum tag tag)
{
    bool given = tag == TAG_SECRET;
    const uint8_t *end = p + n;
    const char *name = take_text(&p, end);
    const char *holder = name ? take_text(&p, end) : NULL;
    const char *value = holder && given ? take_text(&p, end) : NULL;
    if (!holder || (given && !value) || c->subst.n == SUBST_SECRETS_MAX ||
        strlen(name) >= SUBST_NAME_MAX || strlen(holder) < SUBST_HOLDER_MIN ||
        strlen(holder) > SUBST_HOLDER_MAX)
        return -EPROTO;
    c->mint[c->subst.n] = (struct config_mint){
        .minted = tag == TAG_MINTED || tag == TAG_MINTED_KEEP, .keep = tag == TAG_MINTED_KEEP};
    struct subst_secret *x = &c->subst.secret[c->subst.n++];
    *x = (struct subst_secret){
        .holder_len = strlen(holder), .value = value, .value_len = value ? strlen(value) : 0};
    memcpy(x->name, name, strlen(name) + 1);
    memcpy(x->holder, holder, x->holder_len + 1);
    return 0;
}

static bool ended(const char *text, size_t size)
{
    return memchr(text, 0, size) != NULL;
}

static int take_host(struct subst_host *to, const uint8_t *p, size_t n)
{
    if (n < sizeof(*to))
        return -EPROTO;
    memcpy(to, p, sizeof(*to));
    return ended(to->name, sizeof(to->name)) && ended(to->method, sizeof(to->method)) &&
                   ended(to->path, sizeof(to->path))
               ? 0
               : -EPROTO;
}

static int take_place(struct subst_secret *x, const uint8_t *p, size_t n)
{
    struct subst_place *to = &x->place[x->n_places];
    if (n != sizeof(*to))
        return -EPROTO;
    memcpy(to, p, sizeof(*to));
    x->n_places++;
    return ended(to->name, sizeof(to->name)) ? 0 : -EPROTO;
}

static int take_roots(struct config *c, const uint8_t *p, size_t n)
{
    if (c->n_roots == CONFIG_ROOTS_MAX || n <= sizeof(struct subst_host) || p[n - 1] != 0)
        return -EPROTO;
    struct config_roots *to = &c->roots[c->n_roots++];
    to->pem = (const char *)p + sizeof(to->host);
    return take_host(&to->host, p, n);
}

/* Where such a text is stored. */
static const char **text_of(struct config *c, enum tag tag)
{
    switch (tag) {
    case TAG_CA_DIR:
        return &c->ca_dir;
    case TAG_CA_CERT:
        return &c->ca_cert;
    case TAG_OWN_CERT:
        return &c->own_cert;
    case TAG_OWN_KEY:
        return &c->own_key;
    default:
        return &c->bundle;
    }
}

static int take_other(struct config *c, enum tag tag, const uint8_t *p, size_t n)
{
    switch (tag) {
    case TAG_NO_VERIFY:
        if (c->n_no_verify == CONFIG_PATTERNS_MAX)
            return -EPROTO;
        return take_host(&c->no_verify[c->n_no_verify++], p, n);
    case TAG_PATTERN:
        if (c->n_patterns == CONFIG_PATTERNS_MAX)
            return -EPROTO;
        return take_host(&c->pattern[c->n_patterns++], p, n);
    case TAG_ROOTS:
        return take_roots(c, p, n);
    case TAG_CA_DIR:
    case TAG_CA_CERT:
    case TAG_BUNDLE:
    case TAG_OWN_CERT:
    case TAG_OWN_KEY:
        *text_of(c, tag) = (const char *)p;
        return n > 0 && p[n - 1] == 0 ? 0 : -EPROTO;
    case TAG_KEY:
        c->issuer_key = p;
        c->issuer_key_len = n;
        return 0;
    case TAG_CERT:
        c->issuer_cert = p;
        c->issuer_cert_len = n;
        return 0;
    default:
        return -EPROTO;
    }
}

static int take_record(struct config *c, enum tag tag, const uint8_t *p, size_t n)
{
    struct subst_secret *last = c->subst.n ? &c->subst.secret[c->subst.n - 1] : NULL;
    switch (tag) {
    case TAG_SECRET:
    case TAG_KEEP:
    case TAG_MINTED:
    case TAG_MINTED_KEEP:
        return take_secret(c, p, n, tag);
    case TAG_HOST:
        if (!last || last->n_hosts == SUBST_HOSTS_MAX)
            return -EPROTO;
        return take_host(&last->host[last->n_hosts++], p, n);
    case TAG_PLACE:
        return last && last->n_places < SUBST_PLACES_MAX ? take_place(last, p, n) : -EPROTO;
    default:
        return take_other(c, tag, p, n);
    }
}

static int take_records(struct config *c)
{
    const uint8_t *p = c->raw.p, *end = c->raw.p + c->raw.size;
    int r = 0;
    while (r == 0 && p < end) {
        if (end - p < RECORD)
            return -EPROTO;
        size_t n = (size_t)p[1] | (size_t)p[2] << 8 | (size_t)p[3] << 16 | (size_t)p[4] << 24;
        if (n > (size_t)(end - p) - RECORD)
            return -EPROTO;
        r = take_record(c, (enum tag)p[0], p + RECORD, n);
        p += RECORD + n;
    }
    return r;
}

int config_recv(int sock, struct config **ret)
{
    uint64_t total = 0;
    int r = recv_all(sock, (uint8_t *)&total, sizeof(total));
    if (r < 0)
        return r;
    if (total == 0 || total > CONFIG_MAX)
        return -EPROTO;
    struct config *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->own = calloc(SUBST_SECRETS_MAX, sizeof(*c->own));
    c->subst.secret = calloc(SUBST_SECRETS_MAX, sizeof(*c->subst.secret));
    c->pattern = calloc(CONFIG_PATTERNS_MAX, sizeof(*c->pattern));
    c->no_verify = calloc(CONFIG_PATTERNS_MAX, sizeof(*c->no_verify));
    c->mint = calloc(SUBST_SECRETS_MAX, sizeof(*c->mint));
    r = c->own && c->mint && c->subst.secret && c->pattern && c->no_verify
            ? vault_open(&c->raw, total)
            : -ENOMEM;
    if (r == 0)
        r = recv_all(sock, c->raw.p, c->raw.size);
    if (r == 0)
        r = take_records(c);
    if (r < 0) {
        config_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void config_free(struct config *c)
{
    if (!c)
        return;
    vault_close(&c->raw, c->raw.size);
    for (size_t i = 0; c->own && i < SUBST_SECRETS_MAX; i++)
        vault_close(&c->own[i], c->own[i].size);
    free(c->own);
    for (size_t i = 0; i < CONFIG_ROOTS_MAX; i++)
        free(c->own_pem[i]);
    free(c->mint);
    free(c->subst.secret);
    free(c->pattern);
    free(c->no_verify);
    free(c);
}

int config_set_value(struct config *c, size_t i, const char *value, size_t n, uint64_t until_ns)
{
    struct config_vault v = {0};
    int r = vault_open(&v, n + 1);
    if (r < 0)
        return r;
    memcpy(v.p, value, n);
    vault_close(&c->own[i], c->own[i].size);
    c->own[i] = v;
    c->subst.secret[i].value = (const char *)v.p;
    c->subst.secret[i].value_len = n;
    c->mint[i].until_ns = until_ns;
    return 0;
}

static bool is_among(const char *text, const char name[][SUBST_NAME_MAX], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name[i], text) == 0)
            return true;
    return false;
}

const char *config_stranger(const struct config *c, const char name[][SUBST_NAME_MAX], size_t n)
{
    for (size_t i = 0; i < c->subst.n; i++)
        if (!is_among(c->subst.secret[i].name, name, n))
            return c->subst.secret[i].name;
    return NULL;
}

void config_cut(struct config *c, const char name[][SUBST_NAME_MAX], size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->subst.n; i++) {
        if (!is_among(c->subst.secret[i].name, name, n)) {
            vault_close(&c->own[i],
                        c->own[i].size); /* one that came with all the others is freed with them */
            continue;
        }
        c->subst.secret[kept] = c->subst.secret[i];
        c->mint[kept] = c->mint[i];
        c->own[kept] = c->own[i];
        if (kept++ != i)
            c->own[i] = (struct config_vault){0};
    }
    c->subst.n = kept;
}

void config_expire(struct config *c, uint64_t now)
{
    for (size_t i = 0; i < c->subst.n; i++)
        if (c->mint[i].minted && c->subst.secret[i].value && now >= c->mint[i].until_ns) {
            c->subst.secret[i].value = NULL;
            vault_close(&c->own[i], c->own[i].size);
        }
}

static bool same_host(const struct subst_host *a, const struct subst_host *b)
{
    return strcmp(a->name, b->name) == 0 && a->suffix == b->suffix &&
           strcmp(a->method, b->method) == 0 && strcmp(a->path, b->path) == 0;
}

/* Whether `now` may only go where `was` could. (Scrubbing is set in both or in neither.) */
static bool goes_no_further(const struct subst_secret *now, const struct subst_secret *was)
{
    for (size_t i = 0; i < now->n_hosts; i++) {
        size_t k = 0;
        while (k < was->n_hosts && !same_host(&now->host[i], &was->host[k]))
            k++;
        if (k == was->n_hosts)
            return false;
    }
    bool same = now->n_places == was->n_places; /* in the same order, since the text is the same */
    for (size_t i = 0; same && i < now->n_places; i++)
        same = now->place[i].where == was->place[i].where &&
               strcmp(now->place[i].name, was->place[i].name) == 0;
    return same;
}

static int inherit_roots(struct config *c, const struct config *old)
{
    c->n_roots = 0;
    for (size_t i = 0; i < old->n_roots; i++) {
        if (!(c->own_pem[i] = strdup(old->roots[i].pem)))
            return -ENOMEM;
        c->roots[i] = (struct config_roots){.host = old->roots[i].host, .pem = c->own_pem[i]};
        c->n_roots++;
    }
    return 0;
}

int config_inherit(struct config *c, const struct config *old, const char **name)
{
    *name = "";
    if (inherit_roots(c, old) < 0)
        return -ENOMEM;
    c->n_no_verify = old->n_no_verify;
    memcpy(c->no_verify, old->no_verify, old->n_no_verify * sizeof(*c->no_verify));
    for (size_t i = 0; i < c->subst.n; i++) {
        const struct subst_secret *x = &c->subst.secret[i];
        const struct config_mint *m = &c->mint[i];
        int r = x->value || (m->minted && !m->keep) ? 0 : -ENOENT;
        *name = x->name;
        for (size_t k = 0; r == -ENOENT && k < old->subst.n; k++) {
            const struct subst_secret *had = &old->subst.secret[k];
            if (strcmp(had->name, x->name) == 0 && had->value && m->minted == old->mint[k].minted)
                r = goes_no_further(x, had)
                        ? config_set_value(c, i, had->value, had->value_len, old->mint[k].until_ns)
                        : -EPERM;
        }
        if (r < 0 && !(r == -ENOENT && m->minted))
            return r;
    }
    return 0;
}

bool config_concerns(const struct config *c, const char *host)
{
    for (size_t i = 0; i < c->n_patterns; i++)
        if (subst_host_matches(&c->pattern[i], host))
            return true;
    return subst_concerns(&c->subst, host);
}

bool config_verifies(const struct config *c, const char *host)
{
    for (size_t i = 0; i < c->n_no_verify; i++)
        if (subst_host_matches(&c->no_verify[i], host))
            return subst_concerns(&c->subst, host);
    return true;
}
