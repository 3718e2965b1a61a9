#include "store/secret.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 6 * SECRET_VALUE_MAX + 4096 }; /* JSON spells a control character with six */

/* -ENOENT without a word when there are no secrets at all and `make` is not set. */
static int open_dir(const struct store *s, bool make, struct err *e)
{
    if (make && mkdirat(s->home_fd, "secrets", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make %s/secrets", s->home);
    int fd = openat(s->home_fd, "secrets", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 || errno == ENOENT)
        return fd >= 0 ? fd : -ENOENT;
    return err_sys(e, errno, "cannot open %s/secrets", s->home);
}

static void wipe(char *text, size_t n)
{
    if (text)
        explicit_bzero(text, n);
    free(text);
}

/* --- one of them ----------------------------------------------------------------------------- */

static int unknown(const char *name, struct err *e)
{
    return err_set(e, ENOENT, "there is no secret '%s'", name);
}

static int wanted(const char *name, struct err *e)
{
    (void)unknown(name, e);
    err_hint(e, "store it: msb secret set %s", name);
    return -ENOENT;
}

/* A file that others may read is as good as published: nothing is taken from it. */
static int check_private(int dir, const char *name, struct err *e)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? wanted(name, e)
                               : err_sys(e, errno, "cannot read secret '%s'", name);
    if (S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
        return 0;
    err_set(e, EPERM, "secret '%s' can be read by others", name);
    err_hint(e, "store it anew: msb secret set %s", name);
    return -EPERM;
}

/* *value: malloc'd, to be wiped; NULL when it is a reference. value itself may be NULL. */
static int load(int dir, const char *name, struct secret *ret, char **value, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int r = check_private(dir, name, e);
    if (r < 0)
        return r;
    r = file_read_at(dir, name, FILE_MAX, &text, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read secret '%s'", name);
    json_t *j = json_loadb(text, n, 0, NULL);
    wipe(text, n);
    const char *from = json_string_value(json_object_get(j, "from_env"));
    const char *v = json_string_value(json_object_get(j, "value"));
    *ret = (struct secret){.updated_ns =
                               (uint64_t)json_integer_value(json_object_get(j, "updated_ns"))};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    if (!v == !from || (from && !variable_name(from))) {
        r = err_set(e, EINVAL, "secret '%s' is damaged", name);
        err_hint(e, "store it anew: msb secret set %s", name);
    } else if (from) {
        (void)snprintf(ret->from_env, sizeof(ret->from_env), "%s", from);
    }
    if (r == 0 && v && value) {
        *value = strdup(v);
        r = *value ? 0 : err_oom(e);
    }
    json_decref(j);
    return r;
}

static int check_value(const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, EINVAL, "the value of a secret must not be empty");
    if (strlen(value) > SECRET_VALUE_MAX)
        return err_set(e, E2BIG, "the value is too long: at most %d KiB", SECRET_VALUE_MAX / 1024);
    return utf8_valid(value) ? 0 : err_set(e, EINVAL, "the value is not UTF-8 text");
}

int secret_set(const struct store *s, const char *name, const char *value, const char *from_env,
               struct err *e)
{
    int r = secret_check_name(name, e);
    if (r == 0 && value)
        r = check_value(value, e);
    if (r == 0 && from_env && !variable_name(from_env))
        r = err_set(e, EINVAL, "'%.64s' is no name of an environment variable", from_env);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = open_dir(s, true, e);
    if (dir < 0)
        return dir;
    json_t *j = json_pack("{s:I, s:s}", "updated_ns", (json_int_t)realtime_ns(),
                          value ? "value" : "from_env", value ? value : from_env);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text)
        return err_oom(e);
    r = file_replace_at(dir, name, text, strlen(text), 0600, true);
    wipe(text, strlen(text));
    return r < 0 ? err_sys(e, -r, "cannot store secret '%s'", name) : 0;
}

int secret_remove(const struct store *s, const char *name, struct err *e)
{
    int r = secret_check_name(name, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = open_dir(s, false, e);
    if (dir < 0)
        return dir == -ENOENT ? unknown(name, e) : dir;
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    return errno == ENOENT ? unknown(name, e)
                           : err_sys(e, errno, "cannot remove secret '%s'", name);
}

/* --- several --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct secret *)a)->name, ((const struct secret *)b)->name);
}

int secret_list(const struct store *s, struct secret **ret, size_t *n, struct err *e)
{
    *ret = NULL;
    *n = 0;
    int fd = open_dir(s, false, e);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    AUTO_CLOSEDIR DIR *d = fdopendir(fd);
    if (!d) {
        (void)close(fd);
        return err_oom(e);
    }
    const struct dirent *entry;
    while ((entry = readdir(d))) {
        struct secret one;
        if (!variable_name(entry->d_name) || load(dirfd(d), entry->d_name, &one, NULL, NULL) < 0)
            continue;
        struct secret *more = reallocarray(*ret, *n + 1, sizeof(*more));
        if (!more) {
            free(*ret);
            *ret = NULL;
            return err_oom(e);
        }
        more[(*n)++] = one;
        *ret = more;
    }
    if (*n)
        qsort(*ret, *n, sizeof(**ret), by_name);
    return 0;
}

static int resolve_one(int dir, const char *name, struct strlist *env, struct err *e)
{
    struct secret one;
    char *stored = NULL, *kv = NULL;
    int r = load(dir, name, &one, &stored, e);
    if (r < 0)
        return r;
    const char *value = stored ? stored : getenv(one.from_env);
    if (!value) {
        r = err_set(e, ENOENT, "secret '%s': environment variable '%s' is not set", name,
                    one.from_env);
    } else if (asprintf(&kv, "%s=%s", name, value) < 0 || strlist_take(env, kv) < 0) {
        r = err_oom(e);
    }
    wipe(stored, stored ? strlen(stored) : 0);
    return r;
}

int secret_resolve(const struct store *s, const struct strlist *names, struct strlist *env,
                   struct err *e)
{
    if (names->n == 0)
        return 0;
    AUTO_CLOSE int dir = open_dir(s, false, e);
    if (dir < 0)
        return dir == -ENOENT ? wanted(names->v[0], e) : dir;
    int r = 0;
    for (size_t i = 0; r == 0 && i < names->n; i++)
        r = resolve_one(dir, names->v[i], env, e);
    return r;
}

int secret_check_known(const struct store *s, const struct strlist *names, struct err *e)
{
    if (names->n == 0)
        return 0;
    AUTO_CLOSE int dir = open_dir(s, false, e);
    if (dir < 0)
        return dir == -ENOENT ? wanted(names->v[0], e) : dir;
    int r = 0;
    for (size_t i = 0; r == 0 && i < names->n; i++)
        r = check_private(dir, names->v[i], e);
    return r;
}
