/* Options that many verbs take: each is described here, once. */
#ifndef MSB_CLI_COMMON_OPTS_H
#define MSB_CLI_COMMON_OPTS_H

#include "cli/args.h"

/* clang-format off */
#define QUIET_OPTION \
    {.name = "quiet", .letter = 'q', .help = "Print only errors"}
#define NAMES_ONLY_OPTION \
    {.name = "quiet", .letter = 'q', .help = "Print only names"}
#define FORMAT_OPTION \
    {.name = "format", .value = "FORMAT", .help = "Print JSON", .choices = "json"}
#define INSECURE_OPTION \
    {.name = "insecure", .help = "Allow plain HTTP and unverified certificates"}
#define CA_CERTS_OPTION \
    {.name = "ca-certs", .value = "PEM", .help = "Trust the certificates in this file, too"}
#define PLATFORM_OPTION \
    {.name = "platform", .value = "OS/ARCH", \
     .help = "Platform of a multi-platform image (default: the host's)"}
/* clang-format on */

/* Whole tables: of verbs that take only this, and of list and inspect. */
extern const struct opt quiet_opts[];
extern const struct opt list_opts[];
extern const struct opt inspect_opts[];

bool wants_json(const struct args *a);

#endif
