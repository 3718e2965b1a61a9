/* --net, --net-rule, --port and the like: network policy, published ports, name servers. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"

/* The options that make up the policy, for option tables. */
/* clang-format off */
#define NET_POLICY_OPTIONS \
    {"net-rule", 0, "RULES", "Allow or deny targets, such as allow@pypi.org; rules are joined by " \
     "commas, and the first match decides", OPT_REPEAT | OPT_COMMON}, \
    {"no-net", 0, NULL, "No network; with --net-rule, only what the rules allow", OPT_COMMON, \
     .alias = "no-network", .conflicts = "net"}, \
    {"net", 0, "PROFILE", "Groups it may reach (default: public); public, private, loopback, " \
     "link-local, meta, multicast, host, joined by commas; or all, or none"}, \
    {"network", 0, "MODE", "none: --no-net; bridge: the default", OPT_HIDDEN, .conflicts = "net"}, \
    {"net-default", 0, "ACTION", "Default policy, for traffic that no rule or profile matches", \
     .choices = "allow|deny"}, \
    {"net-default-egress", 0, "ACTION", "Default policy for egress", .choices = "allow|deny"}, \
    {"net-default-ingress", 0, "ACTION", \
     "Default policy for ingress, to published ports (default: allow)", .choices = "allow|deny"}
/* clang-format on */

extern const struct opt_group net_group;

/* For the help of verbs that take these options. */
#define NET_DETAILS                                                                                \
    "By default a sandbox reaches public addresses, but neither this host nor its private "        \
    "networks. Rules given alone (--net-rule) allow their targets and nothing else; add --net "    \
    "public to keep the rest of the Internet reachable. A rule is "                                \
    "allow|deny[:egress|:ingress|:any]@TARGET[:PROTOCOL[:PORTS]]; TARGET is a host name, "         \
    "*.SUFFIX, an address or CIDR (IPv6 in brackets), dns, or a group: public, private, "          \
    "loopback, link-local, meta, multicast, host, any. The first matching rule decides, then the " \
    "profile (--net), then the default policy. The name host.microsandbox.internal is this host, " \
    "if a rule or profile allows host."

/* Only the policy: NET_POLICY_OPTIONS. */
int net_policy_options(const struct args *a, struct spec_net *n, struct err *e);
/* All options of the group; bad values are usage errors. */
int net_options(const struct args *a, struct spec_net *n, struct err *e);
/* Notes what rules without a profile mean. */
void net_note_allowlist(const struct spec_net *n);
