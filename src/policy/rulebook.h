/* The policy of this host: what any sandbox may be, no matter who asks and with which program.
 *
 *     /etc/msb/policy.yaml     the operator's; root owns it, and nobody else can write to it
 *     $MSB_HOME/policy.yaml    the user's own
 *     --policy FILE            for one command
 *
 * Each file has settings for all sandboxes and, under `rules`, sets of settings: the first set that
 * matches a sandbox counts, and if none does, the sandbox is refused. A spec is held to what counts
 * in every file (rulebook_judge): what one file refuses no other allows, so a user's file can only
 * narrow. docs/policy.md has the format; only the table of fields (fields.c) knows it.
 *
 * Invariants
 *   1. A file that is there and cannot be read, trusted or understood refuses everything
 *      (ERR_POLICY).
 *   2. Nothing beyond the policy gets onto disk or into a monitor by way of src/sandbox, which
 *      calls policy_hold() with what it is about to write or start.
 *   3. Without a policy file the cost is two failed opens.
 */
#pragma once

#include "spec/spec.h"
#include "store/store.h"
#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>

#define POLICY_OPERATOR_DIR "/etc/msb"
#define POLICY_FILE_NAME "policy.yaml"

struct rulebook;

/* *ret is NULL when there is no policy at all. s->policy_file is read, too. */
int rulebook_load(const struct store *s, struct rulebook **ret, struct err *e);
/* One file alone, no matter who owns it: for `policy check` and tests. */
int rulebook_load_text(const char *name, const char *text, size_t n, struct rulebook **ret,
                       struct err *e);
int rulebook_load_file(const char *path, struct rulebook **ret, struct err *e);
/* Adds what `more` has, and frees it. */
int rulebook_join(struct rulebook *to, struct rulebook *more, struct err *e);
void rulebook_free(struct rulebook *b);
#define AUTO_RULEBOOK CLEANUP(rulebook_free_p)
static inline void rulebook_free_p(struct rulebook **b)
{
    rulebook_free(*b);
}

/* --- a spec and the policy -------------------------------------------------------------------- */

/* What the user asked for, by option. What he did not is filled in from the policy's defaults, and
 * narrowed where a built-in default is beyond what is allowed. */
enum spec_said {
    SAID_CPUS = 1,
    SAID_MEMORY = 2,
    SAID_DISK = 4,
    SAID_LIFETIME = 8,
    SAID_IDLE = 16,
    SAID_NET = 32,
    SAID_ENGINE = 64,
    SAID_WRITE_PATHS = 128,
    SAID_PROCESSES = 256,
    SAID_SECURITY = 512,
    SAID_OUTPUT = 1024,
    SAID_ALL = 2047,
};

enum hold {
    HOLD_AHEAD,  /* one more sandbox, before it is prepared: HOLD_CREATE follows */
    HOLD_CREATE, /* one more sandbox */
    HOLD_START,  /* an existing one, as it is stored */
    HOLD_CHANGE, /* the same, changed */
    HOLD_COPY,   /* files to or from one, or a bucket */
    HOLD_EXEC,   /* a command in an existing one, which asks for more than that has */
};

enum outcome { OUTCOME_ALLOWED, OUTCOME_DEFAULT, OUTCOME_NARROWED, OUTCOME_REFUSED, OUTCOMES };

struct finding {
    enum outcome outcome;
    const char *section, *key; /* of the field; section "" = none */
    char *asked, *allowed;     /* for DEFAULT and NARROWED: before, and what it became */
    uint64_t number;           /* of a cap: what was asked for, to the byte */
    bool fixed;                /* of the network: what no change of its rules can mend */
    const char *file;          /* the rulebook's */
    unsigned line;
    const char *rule; /* name of the rule set; "" = the file's settings for all */
};

struct verdict {
    struct finding *v;
    size_t n;
    bool refused;
};
#define AUTO_VERDICT CLEANUP(verdict_free)
void verdict_free(struct verdict *v);
json_t *verdict_json(const struct verdict *v);
/* "caps.memory" */
void finding_field(const struct finding *f, char out[64]);
/* "/etc/msb/policy.yaml:4, rule set 'ml'" */
void finding_origin(const struct finding *f, char *out, size_t size);
/* "FIELD: asked for ASKED, allowed is ALLOWED (ORIGIN)" */
void policy_words(const char *field, const char *asked, const char *allowed, const char *origin,
                  char *out, size_t size);
const char *outcome_name(enum outcome o);

/* Fills in and narrows *spec, and says what it found. 0 also when it refuses: see ret->refused. */
int rulebook_judge(const struct rulebook *b, const struct store *s, enum hold why, unsigned said,
                   struct sandbox_spec *spec, struct verdict *ret, struct err *e);

/* The one gate: loads the policy and holds the spec to it. ERR_POLICY with field, what was asked,
 * what is allowed, file and line. 1: it may be created, and the number of sandboxes is limited:
 * only a caller that holds the lock policy:sandboxes can rely on it. *limits, unless limits is NULL,
 * becomes what policy_limits() says, or NULL without a policy. */
int policy_hold(const struct store *s, enum hold why, unsigned said, struct sandbox_spec *spec,
                json_t **limits, struct err *e);

/* What requests may at most make of such a sandbox while it runs, for its monitor to keep: a list
 * of {kind, rules or most, field, allowed, origin} (monitor/ceiling.h). Takes the place of *ret. */
int policy_limits(const struct rulebook *b, const struct sandbox_spec *spec, json_t **ret,
                  struct err *e);

/* The same for a change of a sandbox that there is: what is refused of it as it `was` may stay so,
 * for a policy can be younger than a sandbox. */
int policy_hold_change(const struct store *s, struct sandbox_spec *was, struct sandbox_spec *now,
                       struct err *e);

/* The same for a command in it that gets these secrets as well. */
int policy_hold_exec(const struct store *s, const struct sandbox_spec *spec,
                     const struct strlist *secrets, struct err *e);

/* The same for copying that path of the host into a sandbox or, with `write`, out of one to it. */
int policy_hold_copy(const struct store *s, struct sandbox_spec *spec, const char *path, bool write,
                     struct err *e);
/* For a workspace apart from any sandbox, where settings for all of them count: a path of the host
 * that is copied into it or, with `write`, out of it; and its bucket. */
int policy_hold_transfer(const struct store *s, const char *workspace, const char *path, bool write,
                         struct err *e);
/* In the same way, for a disk volume that is made. */
int policy_hold_volume(const struct store *s, const char *volume, uint64_t size, struct err *e);
struct s3_config;
int policy_hold_bucket(const struct store *s, const char *workspace, const struct s3_config *at,
                       struct err *e);

/* The log of what was done, as the policy wants it: for audit_configure_with(). */
void policy_audit(const struct store *s);

/* --- showing it ------------------------------------------------------------------------------- */

/* Every setting with its file and line, and which of several is in effect. */
json_t *rulebook_json(const struct rulebook *b);
void rulebook_print(const struct rulebook *b, struct buf *out);
/* A file to start from, with every field explained. */
void rulebook_template(struct buf *out);
