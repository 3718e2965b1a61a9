/* What list, status and inspect have in common. */
#ifndef MSB_CLI_SHOW_H
#define MSB_CLI_SHOW_H

#include "cli/args.h"
#include "store/store.h"
#include "util/text.h"

#define FORMAT_OPTION                                                                      \
    {                                                                                      \
        .name = "format", .value = "FORMAT", .help = "Print it as JSON", .choices = "json" \
    }

/* For verbs that use show_list() and show_names(). */
#define LIST_OPTIONS                                                           \
    {.name = "label",                                                          \
     .value = "KEY[=VALUE]",                                                   \
     .help = "Only those with this label; several must all match",             \
     .flags = OPT_REPEAT},                                                     \
    {                                                                          \
        .name = "quiet", .letter = 'q', .help = "Print names and nothing else" \
    }

bool wants_json(const struct args *a);

/* Opens one sandbox by name. Returns 0 or, the user having been told, an exit code. */
int show_one(const char *name, struct sandbox *ret);

/* Opens the store and lists the sandboxes that `keep` accepts and that carry all --label options,
 * sorted by `order`. Returns 0 or, the user having been told, an exit code. */
typedef bool (*keep_fn)(const struct sandbox *sb, const struct args *a);
typedef int (*order_fn)(const void *a, const void *b);
int show_list(const struct args *a, keep_fn keep, order_fn order, struct sandbox **ret, size_t *n);

/* Published ports (sandbox_ports), *ret malloc'd; none when they cannot be read. */
size_t show_ports(const struct sandbox *sb, struct spec_port **ret);

/* One name a line. */
int show_names(const struct sandbox *list, size_t n);

/* Prints the table on stdout, coloured for a terminal: header bold, the column `status` by what it
 * says. */
int show_table(const struct table *t, size_t status_column);

json_t *json_time(uint64_t realtime_ns); /* null when 0 */
json_t *json_number(double v);           /* an integer when it is one */

#endif
