#include "agent/cas.h"

#include "agent/files.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BLOCK_BEGIN "# BEGIN certificates of the host, kept by msb\n"
#define BLOCK_END "# END certificates of the host\n"
#define CERT_BEGIN "-----BEGIN CERTIFICATE-----"
#define CERT_END "-----END CERTIFICATE-----"

enum {
    KNOWN_MAX = 4096,
    FUSE_MAGIC = 0x65735546, /* from <linux/magic.h>, which musl does not include */
};

/* Distributions' names for the bundle; the first one always exists afterwards. */
static const char *const bundles[] = {
    PROTO_CAS_BUNDLE,
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cert.pem",
    "/usr/lib/ssl/cert.pem",
    "/usr/local/ssl/cert.pem",
};

/* Where OpenSSL may have been built to look for cert.pem. */
static const char *const openssl_dirs[] = {"/usr/lib/ssl", "/etc/ssl", "/etc/pki/tls",
                                           "/usr/local/ssl"};

/* --- merging --------------------------------------------------------------------------------- */

/* The next certificate from `at` on, without the line ends around it; NULL: there is none. */
static const char *next_cert(const char *at, const char *end, size_t *len)
{
    const char *begin = memmem(at, (size_t)(end - at), CERT_BEGIN, sizeof(CERT_BEGIN) - 1);
    if (!begin)
        return NULL;
    const char *tail = memmem(begin, (size_t)(end - begin), CERT_END, sizeof(CERT_END) - 1);
    if (!tail)
        return NULL;
    *len = (size_t)(tail - begin) + sizeof(CERT_END) - 1;
    return begin;
}

/* Skips white space, as line ends differ. A collision would cost the guest one certificate. */
static uint64_t cert_hash(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < n; i++)
        if (p[i] != '\n' && p[i] != '\r' && p[i] != ' ')
            h = (h ^ (uint8_t)p[i]) * 0x100000001b3ULL;
    return h;
}

static bool is_known(const uint64_t *list, size_t n, uint64_t h)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == h)
            return true;
    return false;
}

/* Appends everything outside our block. */
static int put_rest(struct buf *out, const char *old, size_t len)
{
    const char *begin = memmem(old, len, BLOCK_BEGIN, sizeof(BLOCK_BEGIN) - 1);
    if (!begin)
        return buf_append(out, old, len);
    size_t head = (size_t)(begin - old);
    const char *end = memmem(begin, len - head, BLOCK_END, sizeof(BLOCK_END) - 1);
    int r = buf_append(out, old, head);
    if (r == 0 && end) {
        end += sizeof(BLOCK_END) - 1;
        r = buf_append(out, end, len - (size_t)(end - old));
    }
    return r;
}

int cas_merge(struct buf *out, const char *old, size_t old_len, const char *pem)
{
    AUTO_FREE uint64_t *seen = calloc(KNOWN_MAX, sizeof(*seen));
    size_t n = 0, len;
    int r = seen ? put_rest(out, old, old_len) : -ENOMEM;
    if (r < 0)
        return r;
    if (buf_len(out) > 0 && buf_head(out)[buf_len(out) - 1] != '\n')
        r = buf_append(out, "\n", 1);
    const char *at = (const char *)buf_head(out), *end = at ? at + buf_len(out) : NULL;
    for (; at && n < KNOWN_MAX && (at = next_cert(at, end, &len)); at += len)
        seen[n++] = cert_hash(at, len);
    if (r == 0)
        r = buf_append(out, BLOCK_BEGIN, sizeof(BLOCK_BEGIN) - 1);
    for (end = pem + strlen(pem), at = pem; r == 0 && (at = next_cert(at, end, &len)); at += len) {
        if (is_known(seen, n, cert_hash(at, len)))
            continue;
        r = buf_append(out, at, len);
        if (r == 0)
            r = buf_append(out, "\n", 1);
    }
    return r == 0 ? buf_append(out, BLOCK_END, sizeof(BLOCK_END) - 1) : r;
}

/* --- files ----------------------------------------------------------------------------------- */

/* Atomically: a truncated bundle would stay truncated. */
static int replace_bundle(const char *path, const struct buf *b, mode_t mode)
{
    char tmp[PATH_MAX + 8];
    (void)snprintf(tmp, sizeof(tmp), "%s.msb", path);
    (void)unlink(tmp);
    int r = file_write(tmp, buf_head(b), buf_len(b), mode);
    if (r == 0 && (chmod(tmp, mode) < 0 || rename(tmp, path) < 0))
        r = -errno;
    if (r < 0)
        (void)unlink(tmp);
    return r;
}

/* A host directory is mounted there: a change would reach the host. */
static bool is_shared(const char *path)
{
    struct statfs s;
    return statfs(path, &s) == 0 && (uint64_t)s.f_type == FUSE_MAGIC;
}

/* `path` is a regular file, or missing. */
static int update_bundle(const char *path, const char *pem)
{
    struct stat st = {.st_mode = 0644};
    AUTO_BUF struct buf b = {.limit = 2 * (size_t)CAS_BUNDLE_MAX};
    size_t len = 0;
    AUTO_FREE char *old = NULL;
    if (stat(path, &st) == 0 && !(old = file_read_text(path, CAS_BUNDLE_MAX, &len)))
        return -errno;
    int r = cas_merge(&b, old ? old : "", len, pem);
    bool same = r == 0 && old && buf_len(&b) == len && memcmp(buf_head(&b), old, len) == 0;
    if (r == 0 && !same)
        r = replace_bundle(path, &b, st.st_mode & 0777);
    return r;
}

/* False if nothing should be created there. */
static bool make_parent(const char *path)
{
    char dir[PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%s", path);
    *strrchr(dir, '/') = '\0';
    return mkdir_parents(dir, 0755) == 0 && !is_shared(dir);
}

/* The bundle under its first name: a link to an existing one, or a new file. */
static int ensure_first(const char *root, const char *first, const char *found, const char *pem)
{
    struct stat st;
    if (stat(first, &st) == 0)
        return 0;
    if (!make_parent(first))
        return 0;
    (void)unlink(first); /* a link that leads nowhere */
    if (*found)
        return symlink(found + strlen(root), first) < 0 ? -errno : 0;
    return update_bundle(first, pem);
}

static void link_for_openssl(const char *root)
{
    char path[PATH_MAX];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/etc/debian_version", root);
    bool debian = stat(path, &st) == 0; /* OpenSSL looks there even if the package is missing */
    for (size_t i = 0; i < ARRAY_LEN(openssl_dirs); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", root, openssl_dirs[i]);
        if (i == 0 && debian)
            (void)mkdir_parents(path, 0755);
        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode) || is_shared(path))
            continue;
        (void)snprintf(path, sizeof(path), "%s%s/cert.pem", root, openssl_dirs[i]);
        (void)!symlink(PROTO_CAS_BUNDLE, path); /* unless it has one */
    }
}

int cas_install(const char *root, const char *pem)
{
    char path[PATH_MAX], found[PATH_MAX] = "";
    int first_error = 0, r;
    for (size_t i = 0; i < ARRAY_LEN(bundles); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", root, bundles[i]);
        /* Several names may lead to one file: the second update changes nothing. */
        AUTO_FREE char *real = realpath(path, NULL);
        bool inside = real && strncmp(real, root, strlen(root)) == 0; /* absolute links lead out */
        if (!inside || is_shared(real))
            continue;
        r = update_bundle(real, pem);
        if (r < 0 && first_error == 0)
            first_error = r;
        if (!*found)
            (void)snprintf(found, sizeof(found), "%s", real);
    }
    (void)snprintf(path, sizeof(path), "%s%s", root, bundles[0]);
    r = ensure_first(root, path, found, pem);
    link_for_openssl(root);
    return first_error ? first_error : r;
}
