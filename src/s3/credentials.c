#include "s3/credentials.h"

#include "store/secret.h"
#include "util/command.h"
#include "util/fs.h"
#include "util/json.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    PROFILES_MAX = 1 << 20,
    ID_MAX = 128,
    SECRET_MAX = 1024,
    TOKEN_MAX = 16 << 10,
    COMMAND_TIME_S = 30
};

static void wipe(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

void s3_credentials_wipe(struct s3_credentials *c)
{
    wipe(&c->id);
    wipe(&c->secret);
    wipe(&c->token);
}

/* Both become part of headers. */
static bool field_ok(const char *v, size_t max)
{
    for (const char *p = v; *p; p++)
        if (*p < 0x21 || *p > 0x7e)
            return false;
    return *v && strlen(v) <= max;
}

static int keep(const char *id, const char *secret, const char *token, struct s3_credentials *ret)
{
    struct s3_credentials c = {0};
    token = token && *token ? token : NULL;
    if (!id || !secret || !field_ok(id, ID_MAX) || strpbrk(id, "/,=") ||
        !field_ok(secret, SECRET_MAX) || (token && !field_ok(token, TOKEN_MAX)))
        return -EINVAL;
    c.id = strdup(id);
    c.secret = strdup(secret);
    c.token = token ? strdup(token) : NULL;
    if (!c.id || !c.secret || (token && !c.token)) {
        s3_credentials_wipe(&c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

/* --- profile files --------------------------------------------------------------------------- */

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        s[--n] = '\0';
    return s;
}

/* "[name]" or "[profile name]". */
static bool is_section(char *line, const char *profile)
{
    size_t n = strlen(line);
    line[n - 1] = '\0';
    char *name = trim(line + 1);
    if (strncmp(name, "profile ", 8) == 0)
        name = trim(name + 8);
    return strcmp(name, profile) == 0;
}

static void read_setting(char *line, const char *found[3])
{
    static const char *const names[] = {"aws_access_key_id", "aws_secret_access_key",
                                        "aws_session_token"};
    char *eq = strchr(line, '=');
    if (!eq)
        return;
    *eq = '\0';
    const char *name = trim(line);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            found[i] = trim(eq + 1);
}

int s3_profile_parse(const char *text, const char *profile, struct s3_credentials *ret)
{
    char *copy = strdup(text), *rest = copy;
    const char *found[3] = {0};
    bool mine = false;
    if (!copy)
        return -ENOMEM;
    for (char *line; (line = strsep(&rest, "\n"));) {
        line = trim(line);
        size_t n = strlen(line);
        if (n > 1 && line[0] == '[' && line[n - 1] == ']')
            mine = is_section(line, profile);
        else if (mine && *line && *line != '#' && *line != ';')
            read_setting(line, found);
    }
    int r = found[0] && found[1] ? keep(found[0], found[1], found[2], ret) : -ENOENT;
    explicit_bzero(copy, strlen(text));
    free(copy);
    return r;
}

static int profile_file(const char *path, const char *profile, struct s3_credentials *ret,
                        struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    AUTO_FREE char *real = realpath(path, NULL); /* such files are often links to another place */
    int r = real ? file_read_at(AT_FDCWD, real, PROFILES_MAX, &text, &n) : -errno;
    if (r == -ENOENT)
        return r;
    if (r < 0)
        return err_sys(e, -r, "cannot read %s", path);
    r = s3_profile_parse(text, profile, ret);
    explicit_bzero(text, n);
    free(text);
    return r == -EINVAL ? err_set(e, EINVAL, "profile '%s' in %s has malformed keys", profile, path)
           : r == -ENOMEM ? err_oom(e)
                          : r;
}

static int from_profile(const char *profile, struct s3_credentials *ret, struct err *e)
{
    static const struct {
        const char *variable, *usual;
    } files[] = {{"AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"},
                 {"AWS_CONFIG_FILE", ".aws/config"}};
    const char *home = getenv("HOME"), *chosen = getenv("AWS_PROFILE");
    if (!profile)
        profile = chosen && *chosen ? chosen : "default";
    int r = -ENOENT;
    for (size_t i = 0; r == -ENOENT && i < ARRAY_LEN(files); i++) {
        char path[PATH_MAX];
        const char *given = getenv(files[i].variable);
        int n = given && *given
                    ? snprintf(path, sizeof(path), "%s", given)
                    : snprintf(path, sizeof(path), "%s/%s", home ? home : "", files[i].usual);
        if (n < 0 || (size_t)n >= sizeof(path))
            return err_set(e, ENAMETOOLONG, "the path of the profile file is too long");
        r = profile_file(path, profile, ret, e);
    }
    if (r == -ENOENT) {
        (void)err_set(e, ENOENT, "there are no S3 credentials: profile '%s' has none", profile);
        err_hint(e,
                 "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, add them to ~/.aws/credentials, "
                 "or store a secret and name it with --credentials");
    }
    return r;
}

/* --- others ---------------------------------------------------------------------------------- */

static int from_environment(struct s3_credentials *ret, struct err *e)
{
    int r = keep(getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"),
                 getenv("AWS_SESSION_TOKEN"), ret);
    if (r == -EINVAL)
        return err_set(
            e, EINVAL,
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set to valid keys");
    return r < 0 ? err_oom(e) : 0;
}

static const char *member(const json_t *j, const char *name)
{
    return json_string_value(json_object_get(j, name));
}

int s3_secret_parse(const char *text, struct s3_credentials *ret)
{
    if (text[0] == '{') {
        AUTO_JSON json_t *j = json_loads(text, 0, NULL);
        return keep(member(j, "AccessKeyId"), member(j, "SecretAccessKey"),
                    member(j, "SessionToken"), ret);
    }
    char *copy = strdup(text), *rest = copy;
    if (!copy)
        return -ENOMEM;
    const char *id = strsep(&rest, ":"), *secret = strsep(&rest, ":");
    int r = keep(id, secret, rest, ret);
    explicit_bzero(copy, strlen(text));
    free(copy);
    return r;
}

/* What a credential_process prints, or one line. */
static int from_command(const char *name, const char *command, struct s3_credentials *ret,
                        struct err *e)
{
    char *out = malloc(SECRET_VALUE_MAX + 1), why[64];
    size_t n = 0;
    if (!out)
        return err_oom(e);
    int r = command_output(command, NULL, COMMAND_TIME_S, out, SECRET_VALUE_MAX, &n);
    if (command_failure(r, COMMAND_TIME_S, why, sizeof(why))) {
        r = err_set(e, EIO, "the command of secret '%s' %s", name, why);
    } else {
        while (n && isspace((unsigned char)out[n - 1]))
            n--;
        out[n] = '\0';
        r = s3_secret_parse(out, ret);
        if (r < 0)
            r = err_set(e, -r, "the command of secret '%s' did not print S3 credentials", name);
    }
    explicit_bzero(out, SECRET_VALUE_MAX + 1);
    free(out);
    return r;
}

static int from_secret(const struct store *s, const char *name, struct s3_credentials *ret,
                       struct err *e)
{
    struct strlist names = {0}, env = {0};
    AUTO_FREE char *command = NULL;
    uint32_t ttl_s;
    int r = secret_check_name(name, e);
    if (r == 0 && secret_command(s, name, &command, &ttl_s, NULL) == 0 && command)
        return from_command(name, command, ret, e);
    if (r == 0 && strlist_add(&names, name) < 0)
        r = err_oom(e);
    if (r == 0)
        r = secret_resolve(s, &names, &env, e);
    const char *value = r == 0 ? strlist_get_env(&env, name) : NULL;
    if (value && (r = s3_secret_parse(value, ret)) < 0) {
        (void)err_set(e, -r, "secret '%s' does not hold S3 credentials", name);
        err_hint(e, "its value is ACCESS_KEY_ID:SECRET_ACCESS_KEY, or what a credential_process "
                    "prints");
    }
    strlist_wipe(&env);
    strlist_free(&names);
    return r;
}

int s3_credentials_find(const struct store *s, const char *source, struct s3_credentials *ret,
                        struct err *e)
{
    if (!source) {
        const char *id = getenv("AWS_ACCESS_KEY_ID");
        return id && *id ? from_environment(ret, e) : from_profile(NULL, ret, e);
    }
    if (strcmp(source, "none") == 0) {
        *ret = (struct s3_credentials){0};
        return 0;
    }
    if (strcmp(source, "env") == 0)
        return from_environment(ret, e);
    if (strcmp(source, "profile") == 0)
        return from_profile(NULL, ret, e);
    if (strncmp(source, "profile:", 8) == 0)
        return from_profile(source + 8, ret, e);
    return from_secret(s, source, ret, e);
}
