#include "cli/options/env.h"

#include "util/cleanup.h"
#include "util/strlist.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENV_FILE_MAX = 1 << 20 };

int env_option(struct strlist *env, const char *arg, struct err *e)
{
    if (arg[0] == '=' || arg[0] == '\0')
        return err_set(e, EINVAL, "invalid environment variable '%s': expected KEY=VALUE or KEY",
                       arg);
    if (strchr(arg, '='))
        return strlist_set_env(env, arg) < 0 ? err_oom(e) : 0;
    const char *value = getenv(arg);
    if (!value)
        return err_set(e, ENOENT, "environment variable '%s' not set", arg);
    AUTO_FREE char *kv = NULL;
    if (asprintf(&kv, "%s=%s", arg, value) < 0)
        return err_oom(e);
    return strlist_set_env(env, kv) < 0 ? err_oom(e) : 0;
}

/* A line of a file, without its newline. */
static int file_line(struct strlist *env, char *line, struct err *e)
{
    line += strspn(line, " \t");
    line[strcspn(line, "\r")] = '\0';
    if (!*line || *line == '#')
        return 0;
    size_t key = strcspn(line, "=");
    if (key == 0 || strcspn(line, " \t") < key)
        return err_set(e, EINVAL, "expected KEY=VALUE, KEY or # and a comment: got '%.60s'", line);
    if (!line[key] && !getenv(line))
        return 0;
    return env_option(env, line, e);
}

static int env_file(struct strlist *env, const char *path, struct err *e)
{
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    AUTO_FREE char *line = NULL;
    size_t room = 0, total = 0;
    ssize_t n;
    if (!f)
        return err_sys(e, errno, "cannot read --env-file '%s'", path);
    for (unsigned at = 1; (n = getline(&line, &room, f)) >= 0; at++) {
        total += (size_t)n;
        if (total > ENV_FILE_MAX)
            return err_set(e, EFBIG, "--env-file '%s' is too large: at most %d MiB", path,
                           ENV_FILE_MAX >> 20);
        if (strlen(line) != (size_t)n)
            return err_set(e, EINVAL, "--env-file '%s' is not text", path);
        line[strcspn(line, "\n")] = '\0';
        int r = file_line(env, line, e);
        if (r < 0)
            return err_wrap(e, r, "--env-file '%s', line %u", path, at);
    }
    return ferror(f) ? err_sys(e, EIO, "cannot read --env-file '%s'", path) : 0;
}

int env_options(const struct args *a, struct strlist *env, struct err *e)
{
    AUTO_STRLIST struct strlist files = {0}, given = {0};
    int r = 0;
    if (args_list(a, "env-file", &files) < 0 || args_list(a, "env", &given) < 0)
        return err_oom(e);
    for (size_t i = 0; r == 0 && i < files.n; i++)
        r = env_file(env, files.v[i], e);
    for (size_t i = 0; r == 0 && i < given.n; i++)
        r = env_option(env, given.v[i], e);
    return r;
}
