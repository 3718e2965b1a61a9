/* This host's policy: what any sandbox may be, no matter who asks and with which program.
 *
 *     /etc/msb/policy.yaml     the operator's; owned by root, and only root can write to it
 *     $MSB_HOME/policy.yaml    the user's own
 *     --policy FILE            for one command
 *
 * Each file has settings for all sandboxes and, under `rules`, sets of settings: the first set that
 * matches a sandbox applies, and if none does, the sandbox is refused. A spec is held to what
 * applies in every file (rulebook_judge): what one file refuses, no other can allow, so a user's
 * file can only be more restrictive. docs/policy.md has the format; only the table of fields
 * (fields.c) knows it.
 *
 * Invariants
 *   1. A file that exists but cannot be read, trusted or understood refuses everything
 *      (ERR_POLICY).
 *   2. Nothing beyond the policy gets onto disk or into a monitor through src/sandbox, which
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

/* *ret is NULL if there is no policy at all. Also reads s->policy_file. */
int rulebook_load(const struct store *s, struct rulebook **ret, struct err *e);
/* Loads a single file, no matter who owns it: for `policy check` and tests. */
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

/* What the user asked for, by option. The rest is filled in from the policy's defaults, and
 * narrowed where a built-in default exceeds what is allowed. */
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
    HOLD_START,  /* an existing one, as stored */
    HOLD_CHANGE, /* an existing one, changed */
    HOLD_COPY,   /* files to or from one, or a bucket */
    HOLD_EXEC,   /* a command in an existing one, which asks for more than the sandbox has */
};

enum outcome { OUTCOME_ALLOWED, OUTCOME_DEFAULT, OUTCOME_NARROWED, OUTCOME_REFUSED, OUTCOMES };

struct finding {
    enum outcome outcome;
    const char *section, *key; /* of the field; section "" = none */
    char *asked, *allowed;     /* for DEFAULT and NARROWED: the value before and after */
    uint64_t number;           /* of a cap: what was asked for, exactly */
    bool fixed;                /* of the network: cannot be fixed by changing its rules */
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

/* Fills in and narrows *spec, and reports what it found. Also returns 0 if it refuses: see
 * ret->refused. */
int rulebook_judge(const struct rulebook *b, const struct store *s, enum hold why, unsigned said,
                   struct sandbox_spec *spec, struct verdict *ret, struct err *e);

/* The only gate: loads the policy and holds the spec to it. ERR_POLICY with the field, what was
 * asked, what is allowed, file and line. 1: it may be created, but the number of sandboxes is
 * limited: only a caller that holds the lock policy:sandboxes can rely on this. *limits, unless
 * limits is NULL, becomes the result of policy_limits(), or NULL without a policy. */
int policy_hold(const struct store *s, enum hold why, unsigned said, struct sandbox_spec *spec,
                json_t **limits, struct err *e);

/* The limits on requests to such a sandbox while it runs, for its monitor to enforce: a list of
 * {kind, rules or most, field, allowed, origin} (monitor/ceiling.h). Replaces *ret. */
int policy_limits(const struct rulebook *b, const struct sandbox_spec *spec, json_t **ret,
                  struct err *e);

/* Like policy_hold(), for a change to an existing sandbox: what is refused about it as it `was` may
 * stay, since the policy can be newer than the sandbox. */
int policy_hold_change(const struct store *s, struct sandbox_spec *was, struct sandbox_spec *now,
                       struct err *e);

/* Like policy_hold(), for a command in it that also gets these secrets. */
int policy_hold_exec(const struct store *s, const struct sandbox_spec *spec,
                     const struct strlist *secrets, struct err *e);

/* Like policy_hold(), for copying from that host path into a sandbox or, with `write`, to it out of
 * a sandbox. */
int policy_hold_copy(const struct store *s, struct sandbox_spec *spec, const char *path, bool write,
                     struct err *e);
/* For a workspace apart from any sandbox, to which the settings for all sandboxes apply: a host
 * path that is copied into it or, with `write`, out of it; and its bucket. */
int policy_hold_transfer(const struct store *s, const char *workspace, const char *path, bool write,
                         struct err *e);
/* The same for creating a disk volume. */
int policy_hold_volume(const struct store *s, const char *volume, uint64_t size, struct err *e);
struct s3_config;
int policy_hold_bucket(const struct store *s, const char *workspace, const struct s3_config *at,
                       struct err *e);
/* The same for one that exists; it may also be local, or gone. */
int policy_hold_workspace(const struct store *s, const char *name, struct err *e);

/* Configures the audit log as the policy demands: for audit_configure_with(). */
void policy_audit(const struct store *s);

/* --- showing it ------------------------------------------------------------------------------- */

/* Every setting with its file and line, and which of several is in effect. */
json_t *rulebook_json(const struct rulebook *b);
void rulebook_print(const struct rulebook *b, struct buf *out);
/* A file to start from, with every field explained. */
void rulebook_template(struct buf *out);
