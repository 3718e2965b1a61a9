#include "launch/host_cas.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define CERT_BEGIN "-----BEGIN CERTIFICATE-----"
#define CERT_END "-----END CERTIFICATE-----"

/* Debian and Alpine, Fedora, RHEL, SUSE, others. */
static const char *const bundles[] = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cert.pem",
};

char *host_cas_extract(const char *pem)
{
    char *out = malloc(2 * strlen(pem) + 1); /* newlines may have to be added */
    char *to = out;
    const char *end;
    while (out && (pem = strstr(pem, CERT_BEGIN)) && (end = strstr(pem, CERT_END))) {
        end += sizeof(CERT_END) - 1;
        to = mempcpy(to, pem, (size_t)(end - pem));
        *to++ = '\n';
        pem = end + (*end == '\n');
    }
    if (out)
        *to = '\0';
    return out;
}

int host_cas_read_file(const char *path, char **ret, struct err *e)
{
    AUTO_FREE char *pem = NULL;
    int r = file_read_at(AT_FDCWD, path, HOST_CAS_MAX, &pem, NULL);
    if (r < 0)
        return err_sys(e, -r, "cannot read the certificate authorities in %s", path);
    AUTO_FREE char *certs = host_cas_extract(pem);
    if (!certs)
        return err_oom(e);
    if (!*certs)
        return err_set(e, EINVAL, "no certificates in %s", path);
    *ret = steal_ptr(&certs);
    return 0;
}

int host_cas_read(char **ret, struct err *e)
{
    const char *own = getenv("SSL_CERT_FILE");
    size_t n = own && *own ? 1 : ARRAY_LEN(bundles);
    for (size_t i = 0; i < n; i++) {
        const char *path = own && *own ? own : bundles[i];
        AUTO_FREE char *real = realpath(path, NULL); /* a link on many hosts */
        if (real || errno != ENOENT)
            return host_cas_read_file(real ? real : path, ret, e);
    }
    int r = err_set(e, ENOENT, "this host has no bundle of certificates%s%s",
                    own && *own ? " at " : "", own && *own ? own : "");
    err_hint(e, "install ca-certificates, or set SSL_CERT_FILE to a bundle");
    return r;
}
