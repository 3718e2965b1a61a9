/* --net, --net-rule, --port and the like: the network of a sandbox, as people write it. */
#ifndef MSB_CLI_NET_OPTS_H
#define MSB_CLI_NET_OPTS_H

#include "cli/args.h"
#include "core/spec.h"

extern const struct opt net_opts[];

/* Paragraphs and examples for the help of verbs that take these options. */
#define NET_DETAILS                                                                               \
    "Without network options the sandbox reaches public addresses, and nothing on this host or\n" \
    "in its private networks. Rules (--net-rule) given alone allow what they say and nothing "    \
    "else;\n"                                                                                     \
    "with --net public the rest of the Internet stays open. A rule is\n"                          \
    "allow|deny[:egress|:ingress|:any]@TARGET[:PROTOCOL[:PORTS]], where TARGET is a host name,\n" \
    "*.SUFFIX, an address or CIDR (IPv6 in brackets), dns, or a group: public, private, "         \
    "loopback,\n"                                                                                 \
    "link-local, meta, multicast, host, any. The first rule that matches decides, then the "      \
    "profile.\n"                                                                                  \
    "The name host.microsandbox.internal is this host, if a rule or a profile says host."
#define NET_EXAMPLES                                                                \
    "  msb create --name ci --net-rule allow@*.debian.org,allow@pypi.org:tcp:443\n" \
    "  msb create --name web -p 8080:80 -p 0.0.0.0:5353:53/udp\n"                   \
    "  msb create --name app --net public,host --net-rule deny@any:tcp:25"

/* All of them, after parsing: bad values are usage errors. */
int net_options(const struct args *a, struct spec_net *n, struct err *e);
/* Says, on stderr, what rules given alone mean. */
void net_note_allowlist(const struct spec_net *n);

#endif
