/* The audit log: who did what to which sandbox, and what sandboxes were denied.
 *
 * $MSB_HOME/audit.log, mode 0600, one JSON object per line, appended to by every msb: t, event,
 * sandbox, uid, pid, and the event's own members. Values of environment variables or secrets are
 * never recorded; the arguments of commands are, truncated to AUDIT_ARGV_MAX bytes.
 *
 * A monitor cannot access this file: one compromised by its guest could rewrite the history of all
 * sandboxes. The decisions of a sandbox's network are in its own net.log, in run/, and are shown
 * from there while the sandbox exists; removing the sandbox copies them over (audit_collect),
 * bounded, checked member by member, and marked as coming from the sandbox.
 *
 * Records are chained (audit_chain.h), so that `msb audit verify` finds changes. Each one may also
 * be sent elsewhere (audit_sinks.h).
 *
 * A failure to record is a warning; it does not fail the action.
 *
 * $MSB_AUDIT is off, denied (the default) or all. "denied" logs what was done to sandboxes and what
 * their networks denied; "all" also logs what their networks allowed, and each file that a program
 * reads through the SDK. A policy may ask for more than the environment, never for less.
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
    AUDIT_ARGV_MAX = 4096,   /* how much of a command line is kept, in bytes */
    AUDIT_COLLECT_MAX = 500, /* how many of a sandbox's records are copied: the last ones */
    AUDIT_ID_MAX = 32,
};

enum audit_level { AUDIT_OFF, AUDIT_DENIED, AUDIT_ALL };
/* The level of this process. -EINVAL when $MSB_AUDIT is not a level. */
int audit_level(void);

/* What a policy demands. */
struct audit_settings {
    int level;      /* at least this; -1: not set, the environment decides */
    bool hash_argv; /* record the hash of a command's arguments, not the arguments */
    bool syslog, journald;
    char *const *command; /* a program that reads records on its standard input: its path and
                           * arguments, NULL-terminated; NULL = none. Must stay valid */
};
/* Call before the first record; or set a function to be called then. */
void audit_configure(const struct audit_settings *given);
void audit_configure_with(void (*find)(const struct store *s));

/* Called for the first record that could not be written; once per process. */
void audit_on_failure(void (*fn)(const char *text));

/* Appends a record. Takes `more`, an object whose members become the record's; may be NULL. */
void audit(const struct store *s, const char *event, const char *sandbox, json_t *more);
/* The same for an attempt: r < 0 adds the error's text. since_ns: when it began (now_ns()); 0 =
 * irrelevant. */
void audit_done(const struct store *s, const char *event, const char *sandbox, json_t *more,
                uint64_t since_ns, int r, const struct err *e);

/* A policy refused something: which field, what was requested, what is allowed, and the file and
 * line that say so. Any of them may be NULL. */
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

/* A command: before it starts, and after it has ended. id: links the two. */
struct audit_exec {
    const struct strlist *argv;
    const char *user, *cwd; /* NULL = the sandbox's */
    bool tty, detached;
    const struct strlist *secrets; /* names of those that it gets; NULL = none */
};
void audit_exec(const struct store *s, const char *sandbox, const struct audit_exec *x,
                char id[AUDIT_ID_MAX]);
void audit_exit(const struct store *s, const char *sandbox, const char *id, int code);

/* Before a sandbox's directory is removed: copies its network's decisions. dirfd: of the
 * sandbox. */
void audit_collect(const struct store *s, const char *sandbox, int dirfd);
