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
 * Invariants
 *   1. A record is one write() on a descriptor with O_APPEND: records of many writers never mix.
 *   2. A writer holds a shared flock on the file, and to rotate it an exclusive one, and checks that
 *      the name still leads to the file it holds: a file that was rotated never grows. Files are
 *      rotated as all logs are (logs/format.h).
 *   3. A failure to record is a warning; it does not fail the action.
 *
 * $MSB_AUDIT is off, denied (the default: only network access that was denied) or all.
 */
#ifndef MSB_STORE_AUDIT_H
#define MSB_STORE_AUDIT_H

#include "spec/spec.h"
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

#define AUDIT_NAME "audit.log"

enum audit_level { AUDIT_OFF, AUDIT_DENIED, AUDIT_ALL };
/* -EINVAL when $MSB_AUDIT says something else. */
int audit_level(void);

/* Called for the first record that could not be written; once in a process. */
void audit_on_failure(void (*fn)(const char *text));

/* Appends a record. Takes `more`, an object whose members become the record's; may be NULL. */
void audit(const struct store *s, const char *event, const char *sandbox, json_t *more);
/* The same for something that was tried: r < 0 adds the error's text. */
void audit_done(const struct store *s, const char *event, const char *sandbox, json_t *more, int r,
                const struct err *e);

/* Bytes as a member of a record: escaped if they are not text, at most AUDIT_ARGV_MAX. NULL for NULL. */
json_t *audit_text(const char *s);
/* What concerns the host in a sandbox's spec: image, mounts, network, ports, host sockets, files copied
 * into it, workspace. */
json_t *audit_spec(const struct sandbox_spec *spec);
json_t *audit_net(const struct spec_net *n); /* the policy */

/* A command: before it starts, and when it has ended. id: ties the two together. */
struct audit_exec {
    const struct strlist *argv;
    const char *user, *cwd; /* NULL = the sandbox's */
    bool tty, detached;
};
void audit_exec(const struct store *s, const char *sandbox, const struct audit_exec *x,
                char id[AUDIT_ID_MAX]);
void audit_exit(const struct store *s, const char *sandbox, const char *id, int code);

/* Before a sandbox's directory is removed: copies what its network decided. dirfd: of the sandbox. */
void audit_collect(const struct store *s, const char *sandbox, int dirfd);

#endif
