#include "oci/process.h"

#include "client/files.h"
#include "oci/view.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/oom.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_FILE_MAX = 4 * 1024 * 1024, STRINGS_MAX = 65536 };

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* It may also be a pipe. */
static char *read_text(int fd, size_t *n, int *error)
{
    AUTO_FREE char *text = malloc(JSON_FILE_MAX + 1);
    ssize_t k = text ? read_up_to(fd, text, JSON_FILE_MAX + 1) : -ENOMEM;
    *error = k < 0 ? (int)-k : k > JSON_FILE_MAX ? EFBIG : 0;
    *n = *error ? 0 : (size_t)k;
    return *error ? NULL : steal_ptr(&text);
}

/* The length of a number that is no json_int_t: one of 19 digits or more, without a sign. */
static size_t large_number(const char *p, size_t left)
{
    static const char most[] = "9223372036854775807";
    size_t n = 0, digits = sizeof(most) - 1;
    while (n < left && p[n] >= '0' && p[n] <= '9')
        n++;
    bool fraction = n < left && p[n] && strchr(".eE", p[n]);
    return n < digits || fraction || (n == digits && memcmp(p, most, digits) <= 0) ? 0 : n;
}

/* Large numbers become strings of their digits: jansson would refuse or round them. */
static char *quote_large(const char *text, size_t *n)
{
    AUTO_FREE char *quoted = malloc(2 * *n + 1);
    size_t to = 0;
    bool string = false;
    for (size_t i = 0, token; quoted && i < *n; i += token) {
        bool begins =
            !string && (i == 0 || !text[i - 1] || !strchr("+-.eE0123456789", text[i - 1]));
        size_t large = begins ? large_number(text + i, *n - i) : 0;
        token = large ? large : string && text[i] == '\\' && i + 1 < *n ? 2 : 1;
        string ^= text[i] == '"';
        if (large)
            quoted[to++] = '"';
        memcpy(quoted + to, text + i, token);
        to += token;
        if (large)
            quoted[to++] = '"';
    }
    *n = to;
    return steal_ptr(&quoted);
}

bool oci_number(const json_t *v, uint64_t *ret)
{
    const char *digits = json_string_value(v);
    char *end;
    errno = 0;
    unsigned long long large = digits ? strtoull(digits, &end, 10) : 0;
    if (digits ? !isdigit((unsigned char)*digits) || *end || errno
               : !json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = digits ? large : (uint64_t)json_integer_value(v);
    return true;
}

/* Null counts as missing, as in programs written in Go. */
static void drop_nulls(json_t *j)
{
    const char *key;
    json_t *v;
    void *next;
    size_t i;
    json_object_foreach_safe(j, next, key, v)
    {
        if (json_is_null(v))
            (void)json_object_del(j, key);
        else
            drop_nulls(v);
    }
    json_array_foreach(j, i, v)
    {
        drop_nulls(v);
    }
}

json_t *oci_json_parse(const char *text, size_t n, const char *path, struct err *e)
{
    json_error_t why = {0};
    AUTO_FREE char *quoted = quote_large(text, &n);
    AUTO_JSON json_t *j = quoted ? json_loadb(quoted, n, JSON_REJECT_DUPLICATES, &why) : NULL;
    if (!quoted)
        (void)err_oom(e);
    else if (!json_is_object(j))
        (void)err_set(e, EINVAL, "%s is not a JSON object: %s (line %d)", path, why.text, why.line);
    else
        drop_nulls(j);
    return json_is_object(j) ? steal_ptr(&j) : NULL;
}

/* Takes the descriptor; one below 0 is an error. */
static json_t *read_json(int from, const char *path, struct err *e)
{
    AUTO_CLOSE int fd = from;
    int error = fd < 0 ? -fd : 0;
    size_t n = 0;
    AUTO_FREE char *text = fd < 0 ? NULL : read_text(fd, &n, &error);
    if (!text)
        (void)err_sys(e, error, "cannot read %s", path);
    return text ? oci_json_parse(text, n, path, e) : NULL;
}

json_t *oci_json_read(const char *path, struct err *e)
{
    int fd =
        strcmp(path, "-") == 0 ? fcntl(0, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    return read_json(fd < 0 ? -errno : fd, path, e);
}

/* Opening a pipe would wait for a writer. */
json_t *oci_config_read(int bundle, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(bundle, "config.json", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return read_json(-errno, "config.json", e);
    if (S_ISREG(st.st_mode))
        return read_json(steal_fd(&fd), "config.json", e);
    (void)err_set(e, EINVAL, "config.json is not a regular file");
    return NULL;
}

int oci_read_strings(const json_t *a, const char *what, struct strlist *to, struct err *e)
{
    bool valid = !a || (json_is_array(a) && json_array_size(a) <= STRINGS_MAX);
    for (size_t i = 0; valid && i < json_array_size(a); i++) {
        const char *s = json_string_value(json_array_get(a, i));
        valid = s && strlen(s) == json_string_length(json_array_get(a, i));
        if (valid && strlist_add(to, s) < 0)
            return err_oom(e);
    }
    return valid ? 0 : err_set(e, EINVAL, "%s must be a list of strings", what);
}

static int read_id(const json_t *user, const char *key, uint32_t otherwise, uint32_t *ret,
                   struct err *e)
{
    const json_t *v = json_object_get(user, key);
    double n = v ? json_number_value(v) : otherwise;
    if ((v && !json_is_number(v)) || n < 0 || n >= UINT32_MAX)
        return err_set(e, EINVAL, "process.user.%s is not a user or group id", key);
    *ret = (uint32_t)n;
    return 0;
}

static int read_user(struct oci_process *p, const json_t *user, struct err *e)
{
    uint32_t uid = 0, gid = 0, mask = 022;
    int r = read_id(user, "uid", 0, &uid, e);
    if (r == 0)
        r = read_id(user, "gid", 0, &gid, e);
    if (r == 0)
        r = read_id(user, "umask", 022, &mask, e);
    if (r == 0 && mask > 0777)
        r = err_set(e, EINVAL, "process.user.umask is out of range");
    (void)snprintf(p->user, sizeof(p->user), "%u:%u", uid, gid);
    p->req.user = p->user;
    p->req.umask = mask + 1;
    return r;
}

static int read_groups(struct oci_process *p, const json_t *gids, struct err *e)
{
    const json_t *v;
    size_t i;
    if (json_array_size(gids) > SPEC_GROUPS_MAX)
        return err_set(e, E2BIG, "process.user.additionalGids: at most %d groups", SPEC_GROUPS_MAX);
    json_array_foreach(gids, i, v)
    {
        char text[16];
        double n = json_number_value(v);
        if (!json_is_number(v) || n < 0 || n >= UINT32_MAX)
            return err_set(e, EINVAL, "process.user.additionalGids: not a list of group ids");
        (void)snprintf(text, sizeof(text), "%u", (uint32_t)n);
        if (strlist_add(&p->req.groups, text) < 0)
            return err_oom(e);
    }
    return 0;
}

static int read_caps(const json_t *list, uint64_t *ret, struct err *e)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        const char *name = json_string_value(v);
        uint64_t bits = 0;
        int r = spec_parse_cap(name ? name : "", &bits, e);
        if (r < 0)
            return err_wrap(e, r, "process.capabilities");
        *ret |= bits;
    }
    return 0;
}

/* The bounding set is the most that root has; another user keeps the ambient ones. The other sets
 * follow from these when a program is executed. */
static int read_capabilities(struct oci_process *p, const json_t *caps, struct err *e)
{
    const json_t *bounding = json_object_get(caps, "bounding");
    uint64_t most = 0;
    if (!caps)
        return 0;
    int r = read_caps(bounding ? bounding : json_object_get(caps, "permitted"), &most, e);
    p->req.caps_dropped = ~most;
    return r < 0 ? r : read_caps(json_object_get(caps, "ambient"), &p->req.caps_ambient, e);
}

/* RLIMIT_NOFILE is nofile; 2^64 - 1 is no limit. */
static int read_rlimit(struct oci_process *p, const json_t *l, struct err *e)
{
    const char *type = json_string_value(json_object_get(l, "type"));
    const char *ends[] = {"soft", "hard"};
    char text[96], value[2][32];
    if (!type || strncmp(type, "RLIMIT_", 7) != 0 || strlen(type) > 32 ||
        p->req.n_rlimits >= SPEC_RLIMITS_MAX)
        return err_set(e, EINVAL, "process.rlimits: unknown limit '%.32s', or too many",
                       type ? type : "");
    for (int i = 0; i < 2; i++) {
        uint64_t n;
        if (!oci_number(json_object_get(l, ends[i]), &n))
            return err_set(e, EINVAL, "process.rlimits: %s has no %s limit", type, ends[i]);
        if (n > INT64_MAX)
            (void)snprintf(value[i], sizeof(value[i]), "unlimited");
        else
            (void)snprintf(value[i], sizeof(value[i]), "%" PRIu64, n);
    }
    int n = snprintf(text, sizeof(text), "%s=%s:%s", type + 7, value[0], value[1]);
    for (int i = 0; i < n && text[i] != '='; i++)
        text[i] = (char)tolower((unsigned char)text[i]);
    int r = spec_parse_rlimit(text, &p->req.rlimits[p->req.n_rlimits], e);
    p->req.n_rlimits += r == 0;
    return r < 0 ? err_wrap(e, r, "process.rlimits") : 0;
}

static int read_oom_score(struct oci_process *p, const json_t *score, struct err *e)
{
    double v = json_number_value(score);
    if (!score)
        return 0;
    if (!json_is_number(score) || v < OOM_SCORE_ADJ_MIN || v > OOM_SCORE_ADJ_MAX)
        return err_set(e, EINVAL, "process.oomScoreAdj must be a number from %d to %d",
                       OOM_SCORE_ADJ_MIN, OOM_SCORE_ADJ_MAX);
    (void)snprintf(p->oom_score, sizeof(p->oom_score), "%d", (int)v);
    return 0;
}

void process_set_oom_score(const struct oci_process *p)
{
    AUTO_CLOSE int fd = *p->oom_score ? open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        (void)write_all(fd, p->oom_score, strlen(p->oom_score));
}

int check_twice(const json_t *list, const char *what, struct err *e)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++) {
            const json_t *type = json_object_get(json_array_get(list, i), "type");
            if (type && json_equal(type, json_object_get(json_array_get(list, k), "type")))
                return err_set(e, EINVAL, "%s: %.64s is listed twice", what,
                               json_is_string(type) ? json_string_value(type) : "a type");
        }
    return 0;
}

static unsigned terminal_size(const json_t *n)
{
    return (unsigned)MAX(0, MIN(json_number_value(n), USHRT_MAX));
}

int process_read(struct oci_process *p, const json_t *j, struct err *e)
{
    const json_t *size = json_object_get(j, "consoleSize"), *l;
    const char *cwd = json_string_value(json_object_get(j, "cwd"));
    size_t i;
    if (!json_is_object(j))
        return err_set(e, EINVAL, "there is no process to run: 'process' is missing");
    int r = oci_read_strings(json_object_get(j, "args"), "process.args", &p->req.argv, e);
    if (r == 0)
        r = oci_read_strings(json_object_get(j, "env"), "process.env", &p->req.env, e);
    if (r == 0 && p->req.argv.n == 0)
        r = err_set(e, EINVAL, "process.args is empty: there is no command to run");
    if (r == 0 && (!cwd || cwd[0] != '/'))
        r = err_set(e, EINVAL, "process.cwd must be an absolute path");
    if (r == 0)
        r = read_user(p, json_object_get(j, "user"), e);
    if (r == 0)
        r = read_groups(p, json_object_get(json_object_get(j, "user"), "additionalGids"), e);
    if (r == 0)
        r = read_capabilities(p, json_object_get(j, "capabilities"), e);
    if (r == 0)
        r = read_oom_score(p, json_object_get(j, "oomScoreAdj"), e);
    if (r == 0)
        r = check_twice(json_object_get(j, "rlimits"), "process.rlimits", e);
    json_array_foreach(json_object_get(j, "rlimits"), i, l) r = r < 0 ? r : read_rlimit(p, l, e);
    if (r < 0)
        return r;
    p->cwd = cwd ? strdup(cwd) : NULL;
    p->req.cwd = p->cwd;
    p->req.all_signals = true;
    p->req.no_new_privs = json_is_true(json_object_get(j, "noNewPrivileges"));
    p->terminal = p->req.tty = json_is_true(json_object_get(j, "terminal"));
    p->rows = terminal_size(json_object_get(size, "height"));
    p->cols = terminal_size(json_object_get(size, "width"));
    return p->cwd ? 0 : err_oom(e);
}

void process_free(struct oci_process *p)
{
    strlist_free(&p->req.argv);
    strlist_free(&p->req.groups);
    strlist_wipe(&p->req.env);
    free(p->cwd);
    p->cwd = NULL;
}

/* --- the command ----------------------------------------------------------------------------- */

static int not_there(const char *name, struct err *e)
{
    return strchr(name, '/')
               ? err_set(e, ENOENT, "exec: \"%.256s\": no such file or directory", name)
               : err_set(e, ENOENT, "exec: \"%.256s\": executable file not found in $PATH", name);
}

static int not_executable(const char *name, struct err *e)
{
    return err_set(e, EACCES, "exec: \"%.256s\": permission denied", name);
}

void process_explain(const struct oci_process *p, int exit_code, struct err *e)
{
    char why[ERR_MSG_MAX / 2] = "";
    const char *name = p->req.argv.v[0];
    if (e->hints)
        (void)snprintf(why, sizeof(why), "%s", e->hint[0]);
    if (exit_code == 127)
        (void)not_there(name, e);
    else if (exit_code == 126)
        (void)not_executable(name, e);
    else
        return;
    if (*why)
        err_hint(e, "%s", why);
}

/* 1: it is there; 0: it is not; -EACCES: there, but not executable. */
typedef int (*look_fn)(void *ctx, const char *path);

static int look_at(void *ctx, const char *path)
{
    struct file_attr a;
    struct err e = {0};
    int r = files_stat(ctx, path, 0, &a, &e);
    if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -EACCES)
        return 0;
    if (r < 0)
        return 1; /* starting it will show */
    return S_ISREG(a.mode) && (a.mode & 0111) ? 1 : -EACCES;
}

static int look_on_path(const char *name, const char *path, look_fn look, void *ctx)
{
    char at[PATH_MAX];
    int found = 0;
    while (found != 1 && path) {
        size_t n = strcspn(path, ":");
        bool fits = snprintf(at, sizeof(at), "%.*s/%s", (int)n, path, name) < (int)sizeof(at);
        int r = n > 0 && fits ? look(ctx, at) : 0;
        found = r ? r : found;
        path = path[n] ? path + n + 1 : NULL;
    }
    return found;
}

static int look_for_command(const struct oci_process *p, look_fn look, void *ctx)
{
    const char *command = p->req.argv.v[0];
    const char *path = strlist_get_env(&p->req.env, "PATH");
    char at[PATH_MAX];
    bool relative = strchr(command, '/') && command[0] != '/';
    if (!strchr(command, '/'))
        return look_on_path(command, path ? path : DEFAULT_PATH, look, ctx);
    return snprintf(at, sizeof(at), "%s%s%s", relative ? p->cwd : "", relative ? "/" : "",
                    command) < (int)sizeof(at)
               ? look(ctx, at)
               : 0;
}

int process_find_command(const struct oci_process *p, int sock, const char *name, struct err *e)
{
    struct files f;
    const char *command = p->req.argv.v[0];
    int r = files_open(&f, sock, name, "0", "/", e);
    if (r < 0)
        return r;
    r = look_for_command(p, look_at, &f);
    files_close(&f);
    return r == 1 ? 0 : r == -EACCES ? not_executable(command, e) : not_there(command, e);
}

struct place {
    const struct sandbox_spec *spec;
    int root;
};

/* Looks on the host, where what is mounted in the guest is missing. */
static int look_here(void *ctx, const char *path)
{
    static const char *const own[] = {"/proc", "/sys", "/dev"};
    const struct place *w = ctx;
    struct stat st;
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (spec_path_within(path, own[i]))
            return 0;
    for (size_t i = 1; i < w->spec->n_mounts; i++)
        if (spec_path_within(path, w->spec->mounts[i].guest))
            return 0;
    AUTO_CLOSE int fd = view_open(w->root, path);
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_mode & 0111;
}

bool process_is_here(const struct oci_process *p, const struct sandbox_spec *spec)
{
    AUTO_CLOSE int root = open(spec->mounts[0].source, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root >= 0 && look_for_command(p, look_here, &(struct place){spec, root}) == 1;
}
