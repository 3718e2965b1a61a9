/* The audit log: who did what to which sandbox, and what sandboxes were denied.
 *
 * $MSB_HOME/audit.log, mode 0600, one JSON object a line, appended to by every msb: t, event,
 * sandbox, uid, pid, and the event's own members. Never the value of an environment variable or of a
 * secret; the arguments of commands, cut to AUDIT_ARGV_MAX bytes.
 *
 * A monitor cannot reach this file: one that was taken over by its guest could rewrite the history
 * of all sandboxes. What the network of a sandbox decided is in its own net.log, in run/, and is
 * shown from there while the sandbox exists; removing the sandbox copies it over (audit_collect),
 * bounded, checked member by member, and marked as coming from the sandbox.
 *
 * Records are chained (audit_chain.h), so that `msb audit verify` finds changes. Each one may be sent
 * elsewhere as it is written (audit_sinks.h).
 *
 * A failure to record is a warning; it does not fail the action.
 *
 * $MSB_AUDIT is off, denied (the default) or all. Under "denied" the log has what was done to sandboxes
 * and what their networks denied; under "all" also what their networks allowed, and each file that a
 * program reads through the SDK. A policy may ask for more than the environment, never for less.
 */
#pragma once

#include "spec/spec.h"
#include "store/audit_chain.h"
#include "store/store.h"
#include "util/strlist.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    AUDIT_ARGV_MAX = 4096,   /* bytes of a command line that are kept */
    AUDIT_COLLECT_MAX = 500, /* records of a sandbox that are copied: the last ones */
    AUDIT_ID_MAX = 32,
};

enum audit_level { AUDIT_OFF, AUDIT_DENIED, AUDIT_ALL };
/* The level of this process. -EINVAL when $MSB_AUDIT is not a level. */
int audit_level(void);

/* What a policy asks for. */
struct audit_settings {
    int level;      /* at least this; -1: nothing is said, the environment decides */
    bool hash_argv; /* record the hash of a command's arguments, not the arguments */
    bool syslog, journald;
    char *const *command; /* a program that reads records on its standard input: its path and
                           * arguments, ends with NULL; NULL = none. Must stay where it is */
};
/* Before the first record; or, by a function that is called then. */
void audit_configure(const struct audit_settings *given);
void audit_configure_with(void (*find)(const struct store *s));

/* Called for the first record that could not be written; once in a process. */
void audit_on_failure(void (*fn)(const char *text));

/* Appends a record. Takes `more`, an object whose members become the record's; may be NULL. */
void audit(const struct store *s, const char *event, const char *sandbox, json_t *more);
/* The same for something that was tried: r < 0 adds the error's text. since_ns: when it began (now_ns());
 * 0 = of no interest. */
void audit_done(const struct store *s, const char *event, const char *sandbox, json_t *more,
                uint64_t since_ns, int r, const struct err *e);

/* A policy refused something: which field, what was asked for, what is allowed, and the file and line
 * that say so. Any of them may be NULL. */
struct audit_refusal {
    const char *field, *asked, *allowed, *origin;
};
void audit_refused(const struct store *s, const char *verb, const char *sandbox,
                   const struct audit_refusal *x);

/* Bytes as a member of a record: escaped if they are not text, at most AUDIT_ARGV_MAX. NULL for NULL. */
json_t *audit_text(const char *s);
/* What concerns the host in a sandbox's spec: image, mounts, network, ports, host sockets, files copied
 * into it, workspace. */
json_t *audit_spec(const struct sandbox_spec *spec);
json_t *audit_labels(const struct sandbox_spec *spec); /* a list of K=V */
json_t *audit_net(const struct spec_net *n);           /* the policy */

/* A command: before it starts, and when it has ended. id: ties the two together. */
struct audit_exec {
    const struct strlist *argv;
    const char *user, *cwd; /* NULL = the sandbox's */
    bool tty, detached;
    const struct strlist *secrets; /* names of those that it gets; NULL = none */
};
void audit_exec(const struct store *s, const char *sandbox, const struct audit_exec *x,
                char id[AUDIT_ID_MAX]);
void audit_exit(const struct store *s, const char *sandbox, const char *id, int code);

/* Before a sandbox's directory is removed: copies what its network decided. dirfd: of the sandbox. */
void audit_collect(const struct store *s, const char *sandbox, int dirfd);
