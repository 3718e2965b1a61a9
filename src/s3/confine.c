/* libcurl is loaded and initialized before (registry/curl.h). What it, the resolver and TLS read
 * later is listed here by file, or by directory if files in it come and go: as root, the process
 * could read all of /etc, private keys and password hashes included.
 */
#include "s3/confine.h"

#include "jail/jail.h"
#include "jail/landlock.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The C library, with its resolver.
 * #syscalls:bucket exit exit_group rt_sigreturn restart_syscall rt_sigprocmask rt_sigaction
 * sigaltstack futex mmap munmap mprotect mremap brk madvise rseq set_robust_list sched_yield
 * sched_getaffinity gettid getpid clone getrandom uname sysinfo
 * clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
 * stat lstat access statx sendmmsg recvmsg sendmsg bind ioctl prlimit64
 *
 * libcurl and OpenSSL.
 * #syscalls:bucket socket socketpair connect getsockname getpeername getsockopt setsockopt shutdown
 * sendto recvfrom poll ppoll select pselect6 pipe2 eventfd2 readv writev fcntl
 * getuid geteuid getgid getegid
 *
 * What this folder and util/ do.
 * #syscalls:bucket openat openat2 close read write pread64 pwrite64 lseek fstat newfstatat
 * faccessat faccessat2 readlinkat getdents64 fchmod ftruncate fsync fdatasync flock utimensat
 * renameat renameat2 unlinkat mkdirat symlinkat fgetxattr fsetxattr fremovexattr dup */

/* Files of root's that others own or protected, in the workspace. */
#define CAPS (1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_FOWNER)

static const char *const readable[] = {
    /* Names. A file that is replaced meanwhile is out of reach, until the next process. */
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    /* Certificates, where distributions keep them, and what their links lead to. */
    "/etc/ssl/certs",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates/extracted",
    "/etc/crypto-policies",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/crypto-policies",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
    /* Libraries: the resolver loads modules when it needs them. */
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/run/current-system/sw/lib",
    /* The C library's. */
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/null",
    "/dev/urandom",
};

static int confine_files(const struct s3_reach *reach)
{
    struct landlock_grant grants[ARRAY_LEN(readable) + 4] = {{.fd = reach->dir, .write = true}};
    size_t n = 1;
    if (reach->cache >= 0)
        grants[n++] = (struct landlock_grant){.fd = reach->cache, .write = true};
    const size_t ours = n;
    int data = dir_open_at(reach->dir, "data");
    if (data >= 0) /* separately: a share server's directories are in a mount that begins there */
        grants[n++] = (struct landlock_grant){.fd = data, .write = true};
    for (size_t i = 0; i <= ARRAY_LEN(readable); i++) {
        const char *path = i < ARRAY_LEN(readable) ? readable[i] : reach->ca_certs;
        int fd = path ? open(path, O_PATH | O_CLOEXEC) : -1;
        if (fd >= 0)
            grants[n++] = (struct landlock_grant){.fd = fd};
    }
    int r = landlock_enter(grants, n);
    for (size_t i = ours; i < n; i++)
        (void)close(grants[i].fd);
    return r == -EOPNOTSUPP ? 0 : r;
}

static bool file_has(const char *path, bool (*is_it)(char *line))
{
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    AUTO_FREE char *line = NULL;
    size_t size = 0;
    while (f && getline(&line, &size, f) > 0)
        if (is_it(line))
            return true;
    return false;
}

static bool names_stub_resolver(char *line)
{
    char server[16];
    return sscanf(line, "nameserver %15s", server) == 1 &&
           (strcmp(server, "127.0.0.53") == 0 || strcmp(server, "127.0.0.54") == 0);
}

/* In nsswitch.conf, a source of names that is a service of the host's, which has a socket: all but
 * these. mdns_minimal knows names below .local only, and systemd-resolved is a name server, too. */
static bool names_service(char *line)
{
    static const char *const others[] = {
        "files", "dns", "db", "mdns4_minimal", "mdns_minimal", "mdns6_minimal", "myhostname"};
    static const char key[] = "hosts:";
    char *rest = NULL, *list = line + strspn(line, " \t");
    if (strncmp(list, key, strlen(key)) != 0)
        return false;
    list += strlen(key);
    list[strcspn(list, "#")] = '\0';
    for (char *at = strchr(list, '['), *end; at && (end = strchr(at, ']')); at = strchr(end, '['))
        memset(at, ' ', (size_t)(end + 1 - at)); /* what to do if one does not know */
    for (char *word = strtok_r(list, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        size_t i = 0;
        while (i < ARRAY_LEN(others) && strcmp(word, others[i]) != 0)
            i++;
        if (i == ARRAY_LEN(others) &&
            (strcmp(word, "resolve") != 0 || !file_has("/etc/resolv.conf", names_stub_resolver)))
            return true;
    }
    return false;
}

/* Names below .local may be known only to such a service (Avahi); all names if it is for all. */
static bool is_known_to_service(const char *url, bool for_all)
{
    static const char local[] = ".local";
    const char *at = url ? strstr(url, "://") : NULL, *host = at ? at + 3 : url;
    size_t n = host ? strcspn(host, "/") : 0, k = sizeof(local) - 1;
    const char *user = n ? memrchr(host, '@', n) : NULL;
    n = user ? n - (size_t)(user + 1 - host) : n;
    host = user ? user + 1 : host;
    n = n ? MIN(n, strcspn(host, ":")) : 0;
    n -= n && host[n - 1] == '.';
    if (for_all && n && *host != '[' && strspn(host, "0123456789.") < n)
        return true;
    return n > k && strncasecmp(host + n - k, local, k) == 0;
}

/* The server's name, or a proxy's: libcurl reads these. */
static bool asks_service(const char *endpoint)
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                          "ALL_PROXY"};
    const bool for_all = file_has("/etc/nsswitch.conf", names_service);
    bool yes = is_known_to_service(endpoint, for_all);
    for (size_t i = 0; i < ARRAY_LEN(proxies); i++)
        yes = yes || is_known_to_service(getenv(proxies[i]), for_all);
    return yes;
}

int s3_confine(const struct s3_reach *reach, struct err *e)
{
    int r = jail_keep_caps(CAPS, e);
    if (r < 0)
        return r;
    r = confine_files(reach);
    if (r < 0)
        return err_sys(e, -r, "cannot restrict access to files");
    r = seccomp_enter(asks_service(reach->endpoint) ? SECCOMP_BUCKET_UNIX : SECCOMP_BUCKET);
    return r < 0 ? err_sys(e, -r, "cannot restrict system calls") : 0;
}
