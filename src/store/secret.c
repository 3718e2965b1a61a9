#include "store/secret.h"

#include "store/named.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX = 6 * SECRET_VALUE_MAX + 4096 }; /* JSON writes a control character as six */

static void wipe(char *text, size_t n)
{
    if (text)
        explicit_bzero(text, n);
    free(text);
}

/* --- one of them ----------------------------------------------------------------------------- */

static int secret_unknown(const char *name, struct err *e)
{
    return err_set(e, ENOENT, "there is no secret '%s'", name);
}

static int secret_missing(const char *name, struct err *e)
{
    return err_hinted(e, secret_unknown(name, e), "store it: msb secret set %s", name);
}

static int unusable(int code, const char *name, const char *why, struct err *e)
{
    return err_hinted(e, err_set(e, code, "secret '%s' %s", name, why),
                      "store it again: msb secret set %s", name);
}

/* A file that others can read counts as published: it is not used. */
static int check_private(int dir, const char *name, struct err *e)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? secret_missing(name, e)
                               : err_sys(e, errno, "cannot read secret '%s'", name);
    if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
        return 0;
    return unusable(EPERM, name, "can be read by others", e);
}

/* *value: malloc'd, to be wiped; NULL when it is a reference; a command, if ret->ttl_s. value itself may
 * be NULL. */
static int secret_load(int dir, const char *name, struct secret *ret, char **value, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int r = check_private(dir, name, e);
    if (r < 0)
        return r;
    r = file_read_at(dir, name, FILE_MAX, &text, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read secret '%s'", name);
    AUTO_JSON json_t *j = json_loadb(text, n, 0, NULL);
    wipe(text, n);
    const char *from = json_string_value(json_object_get(j, "from_env"));
    const char *v = json_string_value(json_object_get(j, "value"));
    const char *command = json_string_value(json_object_get(j, "command"));
    json_int_t ttl = json_integer_value(json_object_get(j, "ttl_s"));
    *ret = (struct secret){.updated_ns =
                               (uint64_t)json_integer_value(json_object_get(j, "updated_ns"))};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    if ((v != NULL) + (from != NULL) + (command != NULL) != 1 || (from && !variable_name(from)) ||
        (command && (ttl < 1 || ttl > SECRET_TTL_MAX_S)))
        return unusable(EINVAL, name, "is damaged", e);
    if (command) {
        ret->ttl_s = (uint32_t)ttl;
        v = command;
    }
    if (from)
        (void)snprintf(ret->from_env, sizeof(ret->from_env), "%s", from);
    if (v && value && !(*value = strdup(v)))
        return err_oom(e);
    return 0;
}

static int load_listed(int all, const char *name, void *ret)
{
    return secret_load(all, name, ret, NULL, NULL);
}

_Static_assert(offsetof(struct secret, name) == 0, "see named.h");
const struct named_kind named_secrets = {
    .what = "secret",
    .dir = "secrets",
    .size = sizeof(struct secret),
    .check_name = secret_check_name,
    .load = load_listed,
};

static int check_value(const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, EINVAL, "the value of a secret must not be empty");
    if (strlen(value) > SECRET_VALUE_MAX)
        return err_set(e, E2BIG, "the value is too long: at most %d KiB", SECRET_VALUE_MAX / 1024);
    return utf8_valid(value) ? 0 : err_set(e, EINVAL, "the value is not UTF-8 text");
}

static int check_source(const struct secret_source *from, struct err *e)
{
    if (from->value)
        return check_value(from->value, e);
    if (from->from_env && !variable_name(from->from_env))
        return err_set(e, EINVAL, "invalid environment variable name '%.64s'", from->from_env);
    if (from->command && (!*from->command || strlen(from->command) > SECRET_COMMAND_MAX ||
                          !utf8_valid(from->command)))
        return err_set(e, EINVAL, "a command is text of 1 to %d bytes", SECRET_COMMAND_MAX);
    return 0;
}

int secret_set(const struct store *s, const char *name, const struct secret_source *from,
               struct err *e)
{
    int r = secret_check_name(name, e);
    if (r == 0)
        r = check_source(from, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = named_dir_open(s, &named_secrets, true, e);
    if (dir < 0)
        return dir;
    AUTO_JSON json_t *j =
        json_pack("{s:I, s:s*, s:s*, s:s*}", "updated_ns", (json_int_t)realtime_ns(), "value",
                  from->value, "from_env", from->from_env, "command", from->command);
    if (j && from->command)
        (void)json_object_set_new(j, "ttl_s", json_integer(from->ttl_s));
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    if (!text)
        return err_oom(e);
    file_replace_sweep(dir);
    r = file_replace_at(dir, name, text, strlen(text), 0600, true);
    wipe(text, strlen(text));
    return r < 0 ? err_sys(e, -r, "cannot store secret '%s'", name) : 0;
}

int secret_remove(const struct store *s, const char *name, struct err *e)
{
    int r = secret_check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = named_dir_open(s, &named_secrets, false, e);
    if (dir < 0)
        return dir == -ENOENT ? secret_unknown(name, e) : dir;
    file_replace_sweep(dir);
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    return errno == ENOENT ? secret_unknown(name, e)
                           : err_sys(e, errno, "cannot remove secret '%s'", name);
}

/* --- several --------------------------------------------------------------------------------- */

static int resolve_one(int dir, const char *name, struct strlist *env, struct err *e)
{
    struct secret one = {0};
    char *stored = NULL, *kv = NULL;
    int r = secret_load(dir, name, &one, &stored, e);
    if (r < 0)
        return r;
    const char *value = stored ? stored : getenv(one.from_env);
    if (one.ttl_s) {
        r = err_set(e, EINVAL, "secret '%s' is minted by a command, only for requests to hosts",
                    name);
        err_hint(e, "bind it: --secret %s@HOST in place of --secret-env", name);
    } else if (!value) {
        r = err_set(e, ENOENT, "secret '%s': environment variable '%s' is not set", name,
                    one.from_env);
    } else if (asprintf(&kv, "%s=%s", name, value) < 0 || strlist_take(env, kv) < 0) {
        r = err_oom(e);
    }
    wipe(stored, stored ? strlen(stored) : 0);
    return r;
}

/* The directory of all secrets, some of which are needed. */
static int open_needed(const struct store *s, const struct strlist *names, struct err *e)
{
    int dir = named_dir_open(s, &named_secrets, false, e);
    return dir == -ENOENT ? secret_missing(names->v[0], e) : dir;
}

int secret_resolve(const struct store *s, const struct strlist *names, struct strlist *env,
                   struct err *e)
{
    if (names->n == 0)
        return 0;
    AUTO_CLOSE int dir = open_needed(s, names, e);
    int r = MIN(dir, 0);
    for (size_t i = 0; r == 0 && i < names->n; i++)
        r = resolve_one(dir, names->v[i], env, e);
    return r;
}

int secret_check_known(const struct store *s, const struct strlist *names, struct err *e)
{
    if (names->n == 0)
        return 0;
    AUTO_CLOSE int dir = open_needed(s, names, e);
    int r = MIN(dir, 0);
    for (size_t i = 0; r == 0 && i < names->n; i++)
        r = check_private(dir, names->v[i], e);
    return r;
}

int secret_command(const struct store *s, const char *name, char **ret, uint32_t *ttl_s,
                   struct err *e)
{
    struct secret one = {0};
    char *text = NULL;
    AUTO_CLOSE int dir = named_dir_open(s, &named_secrets, false, e);
    if (dir < 0)
        return dir;
    int r = secret_load(dir, name, &one, &text, e);
    if (r < 0)
        return r;
    *ttl_s = one.ttl_s;
    *ret = one.ttl_s ? text : NULL;
    if (!one.ttl_s)
        wipe(text, text ? strlen(text) : 0);
    return 0;
}
