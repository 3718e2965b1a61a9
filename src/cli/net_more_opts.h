/* Limits on traffic, a proxy, the host's certificates, host sockets: more of a sandbox's network.
 */
#ifndef MSB_CLI_NET_MORE_OPTS_H
#define MSB_CLI_NET_MORE_OPTS_H

#include "cli/args.h"
#include "spec/spec.h"

extern const struct opt net_more_opts[];

/* Paragraphs and examples for the help of verbs that take these options. */
#define NET_MORE_DETAILS                                                                           \
    "Limits: at most SIZE bytes, or COUNT packets, pass in each TIME (a second, if it is left\n"   \
    "out), and a -burst more, once. TCP waits; datagrams beyond the limit are lost. Connections\n" \
    "share what there is evenly. With --proxy everything that leaves is TCP through that proxy,\n" \
    "to the addresses that the policy allows; names are asked for through it, too, unless the\n"   \
    "host's resolver is on its loopback. With --vsock a program in the guest that connects to\n"   \
    "CID 2 and PORT (AF_VSOCK) reaches a Unix socket of the host, with your rights."
#define NET_MORE_EXAMPLES                                                                    \
    "  msb create --name slow --net-egress-bandwidth 1M --net-ingress-bandwidth 10M/100ms\n" \
    "  PW=... msb create --proxy socks5://10.0.0.1:1080 --socks5-username me \\\n"           \
    "      --socks5-password-env PW\n"                                                       \
    "  msb create --name db --vsock /run/postgresql/.s.PGSQL.5432:5432"

/* All of them, after parsing. *usage: what is wrong is what was written, not the host. */
int net_more_options(const struct args *a, struct sandbox_spec *s, bool *usage, struct err *e);

#endif
