#include "agent/netif.h"

#include "agent/files.h"
#include "util/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RESOLV_MAX = 64 * 1024 };

/* The kernel's in6_ifreq, for SIOCSIFADDR on an IPv6 socket. */
struct ifreq6 {
    struct in6_addr addr;
    uint32_t prefix_len;
    int index;
};

/* --- the steps --- */

static struct ifreq ifreq_for(const char *name)
{
    struct ifreq r = {0};
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    return r;
}

static int net_ioctl(int fd, unsigned long what, void *arg)
{
    return ioctl(fd, (int)what, arg) < 0 ? -errno : 0;
}

static int set_up(int fd, const char *name)
{
    struct ifreq r = ifreq_for(name);
    int k = net_ioctl(fd, SIOCGIFFLAGS, &r);
    r.ifr_flags |= IFF_UP;
    return k < 0 ? k : net_ioctl(fd, SIOCSIFFLAGS, &r);
}

static int set_mtu(int fd, const char *name, uint32_t mtu)
{
    struct ifreq r = ifreq_for(name);
    r.ifr_mtu = (int)mtu;
    return net_ioctl(fd, SIOCSIFMTU, &r);
}

static void put4(struct sockaddr *sa, uint32_t addr)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = addr};
    memcpy(sa, &in, sizeof(in));
}

static int configure4(int fd, const char *name, const struct req_net_address *a)
{
    struct in_addr ip, gateway;
    struct ifreq addr = ifreq_for(name), mask = ifreq_for(name);
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    if (inet_pton(AF_INET, a->ip, &ip) != 1 || inet_pton(AF_INET, a->gateway, &gateway) != 1 ||
        a->bits < 1 || a->bits > 32)
        return -EPROTO;
    put4(&addr.ifr_addr, ip.s_addr);
    put4(&mask.ifr_netmask, htonl(UINT32_MAX << (32 - a->bits)));
    put4(&route.rt_dst, 0);
    put4(&route.rt_genmask, 0);
    put4(&route.rt_gateway, gateway.s_addr);
    int r = net_ioctl(fd, SIOCSIFADDR, &addr);
    if (r == 0)
        r = net_ioctl(fd, SIOCSIFNETMASK, &mask);
    return r < 0 ? r : net_ioctl(fd, SIOCADDRT, &route);
}

static int configure6(const char *name, const struct req_net_address *a)
{
    AUTO_CLOSE int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq6 addr = {.prefix_len = a->bits, .index = (int)if_nametoindex(name)};
    struct in6_rtmsg route = {
        .rtmsg_flags = RTF_UP | RTF_GATEWAY, .rtmsg_metric = 1, .rtmsg_ifindex = addr.index};
    if (inet_pton(AF_INET6, a->ip, &addr.addr) != 1 ||
        inet_pton(AF_INET6, a->gateway, &route.rtmsg_gateway) != 1 || a->bits > 128)
        return -EPROTO;
    if (fd < 0)
        return -errno;
    int r = net_ioctl(fd, SIOCSIFADDR, &addr);
    return r < 0 ? r : net_ioctl(fd, SIOCADDRT, &route);
}

void loopback_up(void)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)set_up(fd, "lo");
}

/* An IPv6 sysctl of this interface. */
static void set6(const char *name, const char *setting, const char *value)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%.15s/%s", name, setting);
    (void)file_write(path, value, strlen(value), 0);
}

/* The kernel's nlmsghdr. */
struct message {
    uint32_t len;
    uint16_t type, flags;
    uint32_t seq, pid;
};

/* Each message is answered before the next. */
static int tell_kernel(int fd, const uint8_t *p, size_t len)
{
    struct {
        struct message h;
        int32_t error;
        uint8_t rest[512];
    } answer;
    if (send(fd, p, len, 0) < 0 || recv(fd, &answer, sizeof(answer), 0) < 0)
        return -errno;
    return answer.error == -EEXIST ? 0 : answer.error;
}

/* A route may need another that comes later: those that failed are retried. */
static int tell_messages(const struct req_net *n)
{
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0);
    uint32_t index = if_nametoindex(n->name);
    int r = fd < 0 ? -errno : -EAGAIN;
    for (int pass = 0; fd >= 0 && r < 0 && pass < 3; pass++) {
        struct message m;
        r = 0;
        for (size_t at = 0; at + sizeof(m) <= n->messages_len; at += (m.len + 3) & ~3U) {
            uint8_t *p = n->messages + at;
            memcpy(&m, p, sizeof(m));
            if (m.len < sizeof(m) || m.len > n->messages_len - at || m.seq > m.len - sizeof(index))
                return -EPROTO;
            memcpy(p + m.seq, &index, sizeof(index));
            int k = tell_kernel(fd, p, m.len);
            r = k < 0 ? k : r;
        }
    }
    return r;
}

/* Every user may ping, as on most systems, even without a set-uid program. */
static void allow_ping(void)
{
    static const char all[] = "0 2147483647";
    (void)file_write("/proc/sys/net/ipv4/ping_group_range", all, sizeof(all) - 1, 0);
}

int netif_setup(const struct req_net *n)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* There is no other host on this link, or the address is known to be unique: no duplicate
     * address detection, which would delay its use by a second, and no router discovery. */
    set6(n->name, "accept_dad", "0");
    set6(n->name, "accept_ra", "0");
    int r = set_mtu(fd, n->name, n->mtu);
    int k = set_up(fd, n->name);
    r = r < 0 ? r : k;
    for (size_t i = 0; i < n->n_addresses; i++) {
        const struct req_net_address *a = &n->address[i];
        k = strchr(a->ip, ':') ? configure6(n->name, a) : configure4(fd, n->name, a);
        r = r < 0 ? r : k;
    }
    k = n->messages_len ? tell_messages(n) : 0;
    allow_ping();
    return r < 0 ? r : k;
}

/* --- names --- */

static bool is_resolver(const struct req_net *n, const char *p, size_t len)
{
    for (size_t i = 0; i < n->n_resolvers; i++)
        if (strlen(n->resolver[i]) == len && memcmp(n->resolver[i], p, len) == 0)
            return true;
    return false;
}

bool resolv_is_ours(const char *text, const struct req_net *n)
{
    static const char word[] = "nameserver";
    bool ours = false;
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        const char *p = text;
        p += strspn(p, " \t");
        if (strncmp(p, word, sizeof(word) - 1) != 0)
            continue;
        p += sizeof(word) - 1;
        p += strspn(p, " \t");
        if (!is_resolver(n, p, strcspn(p, " \t\r\n")))
            return false;
        ours = true;
    }
    return ours;
}

/* A directory, or a link to one. */
static int ensure_etc(void)
{
    struct stat st;
    if (stat("/etc", &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    return dir_ensure("/etc", 0755);
}

int resolv_write(const struct config *cfg)
{
    static const char path[] = "/etc/resolv.conf", fresh[] = "/etc/.resolv.conf.msb";
    const struct req_net *n = &cfg->net;
    struct stat st;
    if (n->n_resolvers == 0 || config_mounts(cfg, path) || config_mounts(cfg, "/etc"))
        return 0;
    int r = ensure_etc();
    if (r < 0)
        return r;
    /* A link is replaced even if its target has the right text: the target usually belongs to a
     * service that does not run here. */
    bool regular = lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    AUTO_FREE char *old = regular ? file_read_text(path, RESOLV_MAX, NULL) : NULL;
    if (old && resolv_is_ours(old, n))
        return 0;
    char text[256];
    size_t len = 0;
    for (size_t i = 0; i < n->n_resolvers; i++)
        len +=
            (size_t)snprintf(text + len, sizeof(text) - len, "nameserver %.64s\n", n->resolver[i]);
    (void)unlink(fresh);
    (void)rmdir(path); /* some tools leave an empty directory as a mount point */
    r = file_write(fresh, text, len, 0644);
    if (r == 0 && rename(fresh, path) < 0) {
        r = -errno;
        (void)unlink(fresh);
    }
    return r;
}
