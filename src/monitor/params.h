/* What passes between the launcher (src/launch) and the monitor: everything that crosses into the
 * jail, and the report that comes back. */
#pragma once

#include "engine/engine.h"
#include "image/store/store.h"
#include "net/dns.h"
#include "net/socks.h"
#include "spec/spec.h"

#include <jansson.h>

/* The host's network, as the launcher found it (launch/net_host.h). */
struct net_host {
    struct net_end resolver[DNS_UPSTREAMS_MAX]; /* of /etc/resolv.conf */
    unsigned n_resolvers;
    bool ipv6;                 /* there is a route to global addresses */
    struct socks_config proxy; /* the spec's, with its password */
};

/* Published ports. The network stack owns the sockets once net_setup() has succeeded. */
struct net_ports {
    struct spec_port port[SPEC_PUBLISH_MAX]; /* as they were bound */
    int fd[SPEC_PUBLISH_MAX];
    size_t n;
};

/* A network that msb does not provide: the guest's card leads to a TAP device. */
struct net_tap {
    int fd; /* -1: there is none */
    uint8_t mac[6];
    uint16_t mtu;
    /* Addresses, routes and neighbors of the guest's interface, as messages for its kernel
     * (F_NET_MESSAGES). */
    const void *messages;
    size_t messages_len;
};

struct monitor_params {
    const struct sandbox_spec *spec;
    const struct engine_ops *engine;
    int device_fd;       /* of struct engine_choice; -1 = none */
    bool creating;       /* a new sandbox: it is undone if its creator goes away before it has
                            acknowledged it */
    bool seal_at_once;   /* nothing more is written into the guest before it is acknowledged */
    bool stop_when_idle; /* started for one command: it stops with the last one */
    bool reduced;        /* the jail: there are no namespaces (jail/reduced.h) */
    bool own_user;       /* no other process runs as the monitor's user */
    int cpu;             /* for the guest; -1 = any */
    unsigned n_cpus;     /* of the guest; those after the first go on the next host CPUs */
    bool spread;         /* it may also use one more host CPU, while that is idle */
    const char *cpuinfo;
    int kernel_fd, tools_fd;
    struct image_disk image; /* its files, in order */
    int upper_fd;            /* -1: the writable layer is a tmpfs in the guest */
    int null_fd;
    int lock_fd;   /* the sandbox's lock file */
    int listen_fd; /* agent.sock, listening */
    int report_fd; /* to the launcher: SOCK_SEQPACKET */
    /* Sockets to the share servers, which end when these are closed. */
    int share_fd[SPEC_SHARES_MAX];
    size_t n_shares;
    int disk_fd[SPEC_SHARES_MAX]; /* disks to mount, in the order of the spec; locked */
    size_t n_disks;
    int connector_fd;     /* to the connector; -1 = there is none */
    int intercept_fd;     /* to the interceptor; -1 = there is none */
    const char *host_cas; /* certificates for the guest to trust, PEM; NULL = none */
    struct net_host host;
    struct net_ports ports;
    struct net_tap tap;
    const json_t *limits; /* of the host's policy, for ceiling_add(); NULL = none */
};

/* What the monitor reports, once. The launcher answers a report of success with one byte; only a
 * MONITOR_RUN acknowledges the sandbox. The monitor records that it runs, and confirms with a
 * byte. */
struct monitor_report {
    int code;       /* 0 = ready */
    char text[512]; /* what went wrong */
    char hint[512]; /* possibly the kernel's last output */
};

enum {
    MONITOR_RUN = 0, /* the sandbox is acknowledged */
    MONITOR_END = 1, /* it has served its purpose */
};
