/* What sandboxes used, summed up by label from the records of when they ended: for billing. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

struct audit_stats {
    json_t *rows; /* of each label: the sums */
    json_t *runs; /* of each sandbox: what was counted for its last run */
};

int audit_stats_init(struct audit_stats *t);
void audit_stats_free(struct audit_stats *t);
void audit_stats_add(struct audit_stats *t, const char *event, const char *sandbox,
                     const json_t *j);
int audit_stats_print(const struct audit_stats *t, bool json); /* the exit code */
