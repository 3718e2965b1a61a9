/* --net, --net-rule, --port and the like: the network of a sandbox, as people write it. */
#ifndef MSB_CLI_NET_OPTS_H
#define MSB_CLI_NET_OPTS_H

#include "cli/args.h"
#include "spec/spec.h"

/* Those that make the policy, for option tables. */
#define NET_POLICY_OPTIONS                                                                       \
    {.name = "no-net",                                                                           \
     .help = "Give it no network; with --net-rule: nothing but what the rules allow",            \
     .alias = "no-network",                                                                      \
     .conflicts = "net"},                                                                        \
        {.name = "net",                                                                          \
         .value = "PROFILE",                                                                     \
         .help =                                                                                 \
             "What it may reach: public, private, loopback, link-local, meta, multicast, host, " \
             "joined by commas; or all, or none (default: public)"},                             \
        {.name = "net-rule",                                                                     \
         .value = "RULES",                                                                       \
         .help =                                                                                 \
             "Allow or deny a target: allow@pypi.org:tcp:443, deny@10.0.0.0/8; the first match " \
             "counts, before the profile",                                                       \
         .flags = OPT_REPEAT},                                                                   \
        {.name = "net-default",                                                                  \
         .value = "ACTION",                                                                      \
         .help = "What happens to all other traffic",                                            \
         .choices = "allow|deny"},                                                               \
        {.name = "net-default-egress",                                                           \
         .value = "ACTION",                                                                      \
         .help = "What happens to all other traffic out of it",                                  \
         .choices = "allow|deny"},                                                               \
    {                                                                                            \
        .name = "net-default-ingress", .value = "ACTION",                                        \
        .help = "What happens to all other traffic to its published ports (default: allow)",     \
        .choices = "allow|deny"                                                                  \
    }

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

/* The policy alone: NET_POLICY_OPTIONS. */
int net_policy_options(const struct args *a, struct spec_net *n, struct err *e);
/* All of them, after parsing: bad values are usage errors. */
int net_options(const struct args *a, struct spec_net *n, struct err *e);
/* Says, on stderr, what rules given alone mean. */
void net_note_allowlist(const struct spec_net *n);

#endif
