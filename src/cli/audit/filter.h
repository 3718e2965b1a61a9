/* Which records of the audit log are shown or counted: by sandbox, label, user, verb and time. */
#pragma once

#include "cli/core/args.h"
#include "store/store.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct audit_filter {
    const char *name; /* one sandbox; NULL = all */
    uint64_t until_ns;
    bool has_uid;
    json_int_t uid;
    struct strlist verbs, labels;
    json_t *known; /* of each sandbox: its labels, as far as known from its spec or a record */
};

extern const struct opt_group audit_filter_group; /* and --name, --since */

int audit_filter_read(const struct args *a, struct audit_filter *f, struct err *e);
/* The labels of existing sandboxes, if labels matter. */
int audit_filter_look(struct audit_filter *f, const struct store *s, struct err *e);
void audit_filter_free(struct audit_filter *f);

/* Whether it passes. j: the record; NULL for decisions of an existing sandbox's network. Records
 * must come in the file's order, since they tell the labels of sandboxes. */
bool audit_filter_passes(struct audit_filter *f, const char *event, const char *sandbox,
                         uint64_t t_ns, const json_t *j);
