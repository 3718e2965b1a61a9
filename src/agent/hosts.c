#include "agent/hosts.h"

#include "agent/files.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ETC_FILE_MAX = 256 * 1024 };

static bool line_has(const char *p, const char *end, const char *name)
{
    size_t n = strlen(name);
    const char *hash = memchr(p, '#', (size_t)(end - p));
    if (hash)
        end = hash;
    for (int word = 0; p < end; word++) {
        while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
            p++;
        const char *start = p;
        while (p < end && *p != ' ' && *p != '\t' && *p != '\r')
            p++;
        /* The first word is the address. */
        if (word > 0 && (size_t)(p - start) == n && memcmp(start, name, n) == 0)
            return true;
    }
    return false;
}

bool hosts_has(const char *text, const char *name)
{
    while (*text) {
        const char *end = strchrnul(text, '\n');
        if (line_has(text, end, name))
            return true;
        text = *end ? end + 1 : end;
    }
    return false;
}

int hosts_complete(const char *text, const char *name, const struct req_net *net, struct buf *out)
{
    bool local = hosts_has(text, "localhost");
    bool own = !name || !*name || hosts_has(text, name);
    bool host = !net->host_name || net->n_addresses == 0 || hosts_has(text, net->host_name);
    if (local && own && host)
        return 0;
    size_t n = strlen(text);
    int r = buf_append(out, text, n);
    if (r == 0 && n && text[n - 1] != '\n')
        r = buf_append(out, "\n", 1);
    if (r == 0 && !local)
        r = buf_printf(out, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    if (r == 0 && !own)
        r = buf_printf(out, "127.0.0.1\t%s\n", name);
    if (r == 0 && !host)
        r = buf_printf(out, "%s\t%s\n", net->address[0].gateway, net->host_name);
    return r;
}

static void write_hosts(const char *name, const struct req_net *net)
{
    errno = 0;
    AUTO_FREE char *text = file_read_text("/etc/hosts", ETC_FILE_MAX, NULL);
    if (!text && errno != ENOENT)
        return; /* not a regular file: left alone */
    AUTO_BUF struct buf b = {.limit = ETC_FILE_MAX + 1024};
    if (hosts_complete(text ? text : "", name, net, &b) == 0 && buf_len(&b))
        (void)file_write("/etc/hosts", buf_head(&b), buf_len(&b), 0644);
}

static void write_hostname(const char *name)
{
    size_t n = strlen(name);
    AUTO_FREE char *old = file_read_text("/etc/hostname", ETC_FILE_MAX, NULL);
    if (old && strncmp(old, name, n) == 0 && strcmp(old + n, "\n") == 0)
        return; /* a restart: nothing to write */
    AUTO_BUF struct buf b = {.limit = 512};
    if (buf_printf(&b, "%s\n", name) == 0)
        (void)file_write("/etc/hostname", buf_head(&b), buf_len(&b), 0644);
}

void hosts_setup(const struct config *cfg)
{
    const char *name = cfg->hostname;
    if (name && *name)
        (void)!sethostname(name, strlen(name));
    if (config_shares_root(cfg)) /* its files are not ours */
        return;
    (void)mkdir("/etc", 0755);
    write_hosts(name, &cfg->net);
    if (name && *name)
        write_hostname(name);
}
