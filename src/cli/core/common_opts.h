/* Options that many verbs take, each described here once. */
#pragma once

#include "cli/core/args.h"
#include "store/store.h"

/* clang-format off */
#define QUIET_OPTION {"quiet", 'q', NULL, "Print only errors"}
#define NAMES_ONLY_OPTION {"quiet", 'q', NULL, "Print only names"}
#define FORMAT_OPTION {"format", 0, "FORMAT", "Print JSON", .choices = "json"}
#define INSECURE_OPTION {"insecure", 0, NULL, "Allow plain HTTP and unverified certificates"}
#define CA_CERTS_OPTION {"ca-certs", 0, "PEM", "Also trust the certificates in this file"}
#define PLATFORM_OPTION \
    {"platform", 0, "OS/ARCH", "Platform of a multi-platform image (default: the host's)"}
#define POLICY_OPTION \
    {"policy", 0, "FILE", "Also apply a policy file (see 'msb policy')"}
/* clang-format on */

/* Whole tables: for verbs that only take this, and for list and inspect. */
extern const struct opt quiet_opts[];
extern const struct opt list_opts[];
extern const struct opt inspect_opts[];

bool wants_json(const struct args *a);
/* Opens the store, with --policy's file if that was given. */
int store_open_for(const struct args *a, struct store *s, struct err *e);
