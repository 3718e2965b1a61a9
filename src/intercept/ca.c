#include "intercept/ca.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define CA_KEY "ca.key"
#define CA_CERT "ca.crt"
#define DAY 86400L

enum { PEM_MAX = 64 * 1024, RENEW_DAYS = 60, ISSUER_DAYS = 730, LEAF_DAYS = 2 };
_Static_assert(CONFIG_CA_STAYS_DAYS + RENEW_DAYS < CONFIG_CA_DAYS, "it may be renewed any time");

static void free_x509(X509 **x)
{
    X509_free(*x);
}
static void free_key(EVP_PKEY **k)
{
    EVP_PKEY_free(*k);
}
static void free_bio(BIO **b)
{
    BIO_free(*b);
}
#define AUTO_X509 CLEANUP(free_x509)
#define AUTO_KEY CLEANUP(free_key)
#define AUTO_BIO CLEANUP(free_bio)

void ca_issued_free(struct ca_issued *i)
{
    if (i->key)
        explicit_bzero(i->key, i->key_len);
    free(i->key);
    free(i->cert);
    *i = (struct ca_issued){0};
}

/* --- certificates ---------------------------------------------------------------------------- */

struct wish {
    const char *name; /* common name; NULL: none */
    long days;
    EVP_PKEY *key; /* whose certificate it is */
    X509 *issuer;  /* NULL: itself */
    EVP_PKEY *issuer_key;
    const struct extension {
        int nid;
        const char *text; /* NULL: left out */
    } * extension;
    size_t n;
};

static bool add_extensions(X509 *x, const struct wish *w)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, w->issuer ? w->issuer : x, x, NULL, NULL, 0);
    for (size_t i = 0; i < w->n; i++) {
        if (!w->extension[i].text)
            continue;
        X509_EXTENSION *one =
            X509V3_EXT_conf_nid(NULL, &ctx, w->extension[i].nid, w->extension[i].text);
        bool ok = one && X509_add_ext(x, one, -1);
        X509_EXTENSION_free(one);
        if (!ok)
            return false;
    }
    return true;
}

static bool set_serial(X509 *x)
{
    uint8_t raw[16];
    BIGNUM *n = NULL;
    if (RAND_bytes(raw, sizeof(raw)) == 1) {
        raw[0] &= 0x7f;
        raw[0] |= 0x40; /* never zero, always the same length */
        n = BN_bin2bn(raw, sizeof(raw), NULL);
    }
    bool ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));
    BN_free(n);
    return ok;
}

/* Some keys have their own. */
static const EVP_MD *digest_for(const EVP_PKEY *key)
{
    int kind = EVP_PKEY_get_base_id(key);
    return kind == EVP_PKEY_ED25519 || kind == EVP_PKEY_ED448 ? NULL : EVP_sha256();
}

static X509 *certify(const struct wish *w)
{
    AUTO_X509 X509 *x = X509_new();
    if (!x || !X509_set_version(x, X509_VERSION_3) || !set_serial(x))
        return NULL;
    X509_NAME *subject = X509_get_subject_name(x);
    const unsigned char *cn = (const unsigned char *)w->name;
    if (!X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)"msb", -1,
                                    -1, 0) ||
        (cn && !X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, cn, -1, -1, 0)))
        return NULL;
    X509_NAME *issuer = w->issuer ? X509_get_subject_name(w->issuer) : subject;
    /* A guest's clock may be behind. */
    if (!X509_set_issuer_name(x, issuer) || !X509_gmtime_adj(X509_getm_notBefore(x), -DAY) ||
        !X509_gmtime_adj(X509_getm_notAfter(x), w->days * DAY) || !X509_set_pubkey(x, w->key) ||
        !add_extensions(x, w) || !X509_sign(x, w->issuer_key, digest_for(w->issuer_key)))
        return NULL;
    return steal_ptr(&x);
}

X509 *ca_leaf(X509 *issuer, EVP_PKEY *issuer_key, EVP_PKEY *key, const char *host)
{
    char san[SUBST_HOST_MAX + 8];
    (void)snprintf(san, sizeof(san), "DNS:%s", host);
    const struct extension extension[] = {
        {NID_basic_constraints, "critical,CA:FALSE"},
        {NID_key_usage, "critical,digitalSignature"},
        {NID_ext_key_usage, "serverAuth"},
        {NID_subject_alt_name, san},
        {NID_authority_key_identifier, "keyid:always"},
    };
    struct wish w = {.days = LEAF_DAYS,
                     .key = key,
                     .issuer = issuer,
                     .issuer_key = issuer_key,
                     .extension = extension,
                     .n = ARRAY_LEN(extension)};
    return certify(&w);
}

static void random_name(char *out, size_t size, const char *what)
{
    uint8_t raw[4] = {0};
    (void)RAND_bytes(raw, sizeof(raw));
    (void)snprintf(out, size, "%s %02x%02x%02x%02x", what, raw[0], raw[1], raw[2], raw[3]);
}

static X509 *make_authority(EVP_PKEY *key)
{
    char name[64];
    random_name(name, sizeof(name), "msb certificate authority");
    static const struct extension extension[] = {
        {NID_basic_constraints, "critical,CA:TRUE,pathlen:1"},
        {NID_key_usage, "critical,keyCertSign,cRLSign"},
        {NID_subject_key_identifier, "hash"},
    };
    struct wish w = {.name = name,
                     .days = CONFIG_CA_DAYS,
                     .key = key,
                     .issuer_key = key,
                     .extension = extension,
                     .n = ARRAY_LEN(extension)};
    return certify(&w);
}

static X509 *make_issuer(EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key, const char *constraints)
{
    char name[64];
    random_name(name, sizeof(name), "msb sandbox");
    const struct extension extension[] = {
        {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
        {NID_key_usage, "critical,keyCertSign"},
        {NID_subject_key_identifier, "hash"},
        {NID_authority_key_identifier, X509_get0_subject_key_id(ca) ? "keyid:always" : NULL},
        {NID_name_constraints, constraints},
    };
    struct wish w = {.name = name,
                     .days = ISSUER_DAYS,
                     .key = key,
                     .issuer = ca,
                     .issuer_key = ca_key,
                     .extension = extension,
                     .n = ARRAY_LEN(extension)};
    return certify(&w);
}

/* --- the authority's files ------------------------------------------------------------------- */

static int no_crypto(struct err *e)
{
    return err_set(e, EIO, "OpenSSL cannot make a certificate");
}

/* With PEM in it. */
static int save(int dir, const char *name, BIO *b, mode_t mode, struct err *e)
{
    char *text;
    long n = BIO_get_mem_data(b, &text);
    int r = n > 0 ? file_replace_at(dir, name, text, (size_t)n, mode, true) : -ENOMEM;
    if (n > 0 && mode == 0600)
        explicit_bzero(text, (size_t)n);
    return r < 0 ? err_sys(e, -r, "cannot store the certificate authority (%s)", name) : 0;
}

static int make_files(int dir, X509 **cert, EVP_PKEY **key, struct err *e)
{
    AUTO_KEY EVP_PKEY *k = EVP_EC_gen("P-256");
    AUTO_X509 X509 *x = k ? make_authority(k) : NULL;
    AUTO_BIO BIO *key_text = BIO_new(BIO_s_mem()), *cert_text = BIO_new(BIO_s_mem());
    if (!x || !key_text || !cert_text || !PEM_write_bio_X509(cert_text, x) ||
        !PEM_write_bio_PKCS8PrivateKey(key_text, k, NULL, NULL, 0, NULL, NULL))
        return no_crypto(e);
    file_replace_sweep(dir);
    int r = save(dir, CA_KEY, key_text, 0600, e);
    if (r == 0)
        r = save(dir, CA_CERT, cert_text, 0644, e);
    if (r < 0)
        return r;
    *cert = steal_ptr(&x);
    *key = steal_ptr(&k);
    return 0;
}

/* A key that others can read proves nothing. */
static int check_private(int dir, struct err *e)
{
    struct stat st;
    if (fstatat(dir, CA_KEY, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? -ENOENT : err_sys(e, errno, "cannot read %s", CA_KEY);
    if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
        return 0;
    int r = err_set(e, EPERM, "the key of the certificate authority (ca/%s) can be read by others",
                    CA_KEY);
    err_hint(e, "remove the directory ca in MSB_HOME; a new authority is made when it is needed");
    return r;
}

/* There is no one to ask for it. */
static int no_passphrase(char *to, int size, int writing, void *arg)
{
    return -1;
}

/* 0 with a NULL: the file has no key in it that could be read. */
static int read_key(int dir, const char *name, EVP_PKEY **ret)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    int r = file_read_at(dir, name, PEM_MAX, &text, &n);
    if (r < 0)
        return r;
    AUTO_BIO BIO *b = BIO_new_mem_buf(text, (int)n);
    *ret = b ? PEM_read_bio_PrivateKey(b, NULL, no_passphrase, NULL) : NULL;
    explicit_bzero(text, n);
    return b ? 0 : -ENOMEM;
}

/* The first one; the same. */
static int read_cert(int dir, const char *name, char **text, X509 **ret)
{
    size_t n = 0;
    int r = file_read_at(dir, name, PEM_MAX, text, &n);
    if (r < 0)
        return r;
    AUTO_BIO BIO *b = BIO_new_mem_buf(*text, (int)n);
    *ret = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    return b ? 0 : -ENOMEM;
}

/* -ENOENT: there is none, or it expires soon, or it is not `told` (may be NULL). */
static int read_files(int dir, const char *told, X509 **cert, EVP_PKEY **key, struct err *e)
{
    AUTO_FREE char *cert_text = NULL;
    AUTO_KEY EVP_PKEY *k = NULL;
    AUTO_X509 X509 *x = NULL;
    time_t soon = time(NULL) + RENEW_DAYS * DAY;
    int r = check_private(dir, e);
    if (r < 0)
        return r;
    r = read_key(dir, CA_KEY, &k);
    if (r == 0)
        r = read_cert(dir, CA_CERT, &cert_text, &x);
    if (r < 0 && r != -ENOENT)
        return err_sys(e, -r, "cannot read the certificate authority");
    if (r < 0 || !k || !x || !X509_check_private_key(x, k) ||
        (told && strcmp(told, cert_text) != 0) || X509_cmp_time(X509_get0_notAfter(x), &soon) < 0)
        return -ENOENT;
    *cert = steal_ptr(&x);
    *key = steal_ptr(&k);
    return 0;
}

/* Checks what clients will require of it. */
static const char *wrong_with(X509 *x)
{
    if (X509_check_ca(x) != 1)
        return "is not that of an authority (basicConstraints CA:TRUE, keyUsage keyCertSign)";
    if (X509_get_pathlen(x) == 0)
        return "does not allow the authority that a sandbox needs below it (pathlen:0)";
    if (X509_cmp_current_time(X509_get0_notAfter(x)) <= 0)
        return "has expired";
    return X509_cmp_current_time(X509_get0_notBefore(x)) > 0 ? "is not valid yet" : NULL;
}

/* The user's own authority. Anything wrong with it is an error: no other one replaces it. */
static int read_own(const struct config *c, X509 **cert, EVP_PKEY **key, struct err *e)
{
    AUTO_FREE char *text = NULL;
    AUTO_KEY EVP_PKEY *k = NULL;
    AUTO_X509 X509 *x = NULL;
    struct stat st;
    int r = stat(c->own_key, &st) < 0 ? -errno : read_key(AT_FDCWD, c->own_key, &k);
    if (r < 0)
        return err_sys(e, -r, "cannot read the key in %.120s", c->own_key);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return err_set(e, EPERM, "the key in %.120s is not yours alone: chown and chmod 600 it",
                       c->own_key);
    r = read_cert(AT_FDCWD, c->own_cert, &text, &x);
    if (r < 0)
        return err_sys(e, -r, "cannot read the certificate in %.120s", c->own_cert);
    if (!k)
        return err_set(e, EINVAL, "no unencrypted private key found in %.120s", c->own_key);
    if (!x)
        return err_set(e, EINVAL, "no certificate found in %.120s", c->own_cert);
    if (!X509_check_private_key(x, k))
        return err_set(e, EINVAL, "the key in %.80s is not that of the certificate in %.80s",
                       c->own_key, c->own_cert);
    const char *wrong = wrong_with(x);
    if (wrong)
        return err_set(e, EINVAL, "the certificate in %.120s %s", c->own_cert, wrong);
    *cert = steal_ptr(&x);
    *key = steal_ptr(&k);
    return 0;
}

int ca_open(const struct config *c, int *ret, struct err *e)
{
    const char *path = c->ca_dir;
    *ret = -1;
    if (c->own_cert && c->own_key)
        return 0;
    if (!path)
        return err_set(e, EINVAL, "no certificate to issue with");
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot create %s", path);
    AUTO_CLOSE int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0)
        return err_sys(e, errno, "cannot open %s", path);
    int r = check_private(dir, e);
    if (r < 0 && r != -ENOENT)
        return r;
    *ret = steal_fd(&dir);
    return 0;
}

static int authority(int dir, const struct config *c, X509 **cert, EVP_PKEY **key, struct err *e)
{
    if (c->own_cert && c->own_key)
        return read_own(c, cert, key, e);
    if (flock(dir, LOCK_EX) < 0) /* only one of two makes it */
        return err_sys(e, errno, "cannot lock the certificate authority");
    int r = read_files(dir, c->ca_cert, cert, key, e);
    if (r == -ENOENT && c->ca_cert)
        return err_set(
            e, ESTALE,
            "the certificate authority in %.120s is not the one that guests were given; remove "
            "that directory, and start the sandbox again",
            c->ca_dir);
    return r == -ENOENT ? make_files(dir, cert, key, e) : r;
}

/* --- issuing --------------------------------------------------------------------------------- */

static int add_host(struct buf *b, const struct subst_host *h)
{
    return buf_printf(b, ",permitted;DNS:%s", h->name);
}

/* In OpenSSL's own syntax. Names consist of letters, digits, '-', '_' and '.'. */
static int constraints_text(struct buf *b, const struct config *c)
{
    int r = buf_printf(b, "critical");
    for (size_t i = 0; r == 0 && i < c->n_patterns; i++)
        r = add_host(b, &c->pattern[i]);
    for (size_t i = 0; i < c->subst.n; i++)
        for (size_t k = 0; r == 0 && k < c->subst.secret[i].n_hosts; k++)
            r = add_host(b, &c->subst.secret[i].host[k]);
    return r < 0 ? r : buf_append(b, "", 1);
}

/* *p: malloc'd copy of what OpenSSL allocated. */
static bool keep_der(uint8_t **p, size_t *len, unsigned char *der, int n)
{
    if (n <= 0)
        return false;
    *p = malloc((size_t)n);
    *len = (size_t)n;
    if (*p)
        memcpy(*p, der, (size_t)n);
    OPENSSL_clear_free(der, (size_t)n);
    return *p != NULL;
}

int ca_issue(int dir, const struct config *c, struct ca_issued *ret, struct err *e)
{
    AUTO_X509 X509 *ca = NULL;
    AUTO_KEY EVP_PKEY *ca_key = NULL;
    AUTO_BUF struct buf text = {.limit = 1 << 20};
    int r = authority(dir, c, &ca, &ca_key, e);
    if (r < 0)
        return r;
    if (constraints_text(&text, c) < 0)
        return err_oom(e);
    AUTO_KEY EVP_PKEY *key = EVP_EC_gen("P-256");
    AUTO_X509 X509 *x = key ? make_issuer(key, ca, ca_key, (char *)buf_head(&text)) : NULL;
    if (!x)
        return no_crypto(e);
    unsigned char *der = NULL;
    struct ca_issued got = {0};
    int n = i2d_X509(x, &der);
    bool ok = keep_der(&got.cert, &got.cert_len, der, n);
    der = NULL;
    n = i2d_PrivateKey(key, &der);
    ok = keep_der(&got.key, &got.key_len, der, n) && ok;
    if (!ok) {
        ca_issued_free(&got);
        return err_oom(e);
    }
    *ret = got;
    return 0;
}
