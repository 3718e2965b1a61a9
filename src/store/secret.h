/* Secrets by name: values for the environment of a sandbox's commands that no spec, state, log or
 * argument list ever contains.
 *
 *     $MSB_HOME/secrets/NAME      JSON, mode 0600: {"updated_ns": N, "value": "..."}
 *                                 or {"updated_ns": N, "from_env": "VARIABLE"}
 *                                 or {"updated_ns": N, "command": "...", "ttl_s": N}
 *
 * A spec has only names. The process that runs a command (msb exec, the SDK) looks them up at that
 * moment, as its own user, and sends the values with the command; no process on the host has them
 * in its environment. With from_env not even the store has the value: it comes from the environment
 * of the process that runs the command. The user's own command can mint values, only for secrets
 * that are bound to hosts (launch/mint.h); these are stored nowhere.
 */
#pragma once

#include "store/named.h"
#include "util/err.h"
#include "util/strlist.h"

enum {
    SECRET_VALUE_MAX = 32 * 1024, /* the guest's kernel takes 128 KiB for one variable */
    SECRET_COMMAND_MAX = 4096,
    SECRET_TTL_DEFAULT_S = 600,
    SECRET_TTL_MAX_S = 30 * 24 * 3600,
};

struct secret {
    char name[SECRET_NAME_MAX + 1];
    char from_env[SECRET_NAME_MAX + 1]; /* "" = the value is stored, or minted */
    uint32_t ttl_s;                     /* not 0: a command mints it, for this long */
    uint64_t updated_ns;
};
extern const struct named_kind named_secrets;

/* Where its value comes from: one of the texts. */
struct secret_source {
    const char *value, *from_env, *command;
    uint32_t ttl_s; /* with a command */
};
/* Replaces an existing one with that name. */
int secret_set(const struct store *s, const char *name, const struct secret_source *from,
               struct err *e);
/* The command that mints its value, malloc'd; NULL: none does. */
int secret_command(const struct store *s, const char *name, char **ret, uint32_t *ttl_s,
                   struct err *e);
int secret_remove(const struct store *s, const char *name, struct err *e);
/* ENOENT, with what to do about it, if one does not exist. Does not look at values. */
int secret_check_known(const struct store *s, const struct strlist *names, struct err *e);
/* Appends NAME=value for each. The caller wipes the list (strlist_wipe). */
int secret_resolve(const struct store *s, const struct strlist *names, struct strlist *env,
                   struct err *e);
