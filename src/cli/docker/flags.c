#include "cli/docker/docker.h"

#include "image/store/upper.h"
#include "util/array.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/parse.h"
#include "util/text.h"
#include "util/words.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_SEC 1000000000ULL

/* --- values ---------------------------------------------------------------------------------- */

typedef int (*convert_fn)(struct docker_cmd *d, const char *to, const char *value, struct err *e);

static int put(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char *text;
    int r = value ? asprintf(&text, "--%s=%s", to, value) : asprintf(&text, "--%s", to);
    return r < 0 || strlist_take(&d->opts, text) < 0 ? err_oom(e) : 0;
}

static int bad(const char *to, const char *value, const char *expected, struct err *e)
{
    return err_set(e, EINVAL, "invalid argument \"%s\" for --%s: expected %s", value, to, expected);
}

/* A bare number is bytes here, and MiB for msb; "b" may follow it. */
static int parse_bytes(const char *value, uint64_t *ret)
{
    char text[64];
    size_t n = strlen(value);
    if (n > 1 && strchr("bB", value[n - 1]) && isdigit((unsigned char)value[n - 2]))
        n--;
    if (n >= sizeof(text))
        return -EINVAL;
    (void)snprintf(text, sizeof(text), "%.*s", (int)n, value);
    return parse_size(text, 1, ret);
}

static int put_bytes(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char text[32];
    uint64_t bytes;
    if (parse_bytes(value, &bytes) < 0)
        return bad(to, value, "a size such as 512m", e);
    if (bytes == 0) /* no limit */
        return 0;
    (void)snprintf(text, sizeof(text), "%lluK", (unsigned long long)((bytes + KIB - 1) / KIB));
    return put(d, to, text, e);
}

/* KEY alone copies a variable, if there is one. */
static int put_env(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    return strchr(value, '=') || getenv(value) ? put(d, to, value, e) : 0;
}

static int put_cpus(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char *end;
    double n = strtod(value, &end);
    char text[32];
    if (*end || end == value || !(n >= 0 && n < 1e6))
        return bad(to, value, "a number", e);
    (void)snprintf(text, sizeof(text), "%.3f", n);
    return n == 0 ? 0 : put(d, to, text, e);
}

/* SOURCE:DEST[:OPTIONS]. Docker creates a missing host directory, and a volume if none is named:
 * here, the latter is a directory on the sandbox's own disk. */
static int put_volume(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    const char *colon = strstr(value, ":/");
    if (!colon && value[0] == '/')
        return put(d, "mkdir", value, e);
    if (colon && value[0] == '/') {
        AUTO_FREE char *source = strndup(value, (size_t)(colon - value));
        if (!source)
            return err_oom(e);
        (void)mkdir_parents(source, 0755); /* or the mount says why not */
    }
    return put(d, to, value, e);
}

/* PATH[:OPTIONS], with sizes in bytes. */
static int put_tmpfs(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    AUTO_FREE char *copy = strdup(value);
    AUTO_BUF struct buf b = {.limit = 1 << 16};
    char *rest = copy, *word;
    if (!copy)
        return err_oom(e);
    char *path = strsep(&rest, ":");
    (void)buf_printf(&b, "%s", path);
    for (const char *sep = ":"; (word = strsep(&rest, ",")); sep = ",") {
        uint64_t bytes;
        if (strncmp(word, "size=", 5) != 0)
            (void)buf_printf(&b, "%s%s", sep, word);
        else if (parse_bytes(word + 5, &bytes) < 0 || bytes == 0)
            return bad(to, value, "a size such as size=64m", e);
        else
            (void)buf_printf(&b, "%ssize=%lluK", sep,
                             (unsigned long long)((bytes + KIB - 1) / KIB));
    }
    return buf_append(&b, "", 1) < 0 ? err_oom(e) : put(d, to, (const char *)buf_head(&b), e);
}

/* 80, 8080:80, IP::80, IP:8080:80. */
static int put_port(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    const char *host = strstr(value, "::");
    char text[256];
    if (host && value[0] != '[')
        (void)snprintf(text, sizeof(text), "%.*s:0:%s", (int)MIN(host - value, 64), value,
                       host + 2);
    else
        (void)snprintf(text, sizeof(text), "%s%s", strchr(value, ':') ? "" : "0:", value);
    return put(d, to, text, e);
}

/* size=N; a disk cannot be arbitrarily small. */
static int put_storage(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char text[32];
    uint64_t bytes;
    if (strncmp(value, "size=", 5) != 0 || parse_bytes(value + 5, &bytes) < 0 || bytes == 0)
        return bad("storage-opt", value, "size=SIZE", e);
    bytes = MAX(bytes, (uint64_t)UPPER_SIZE_MIN);
    (void)snprintf(text, sizeof(text), "%lluM", (unsigned long long)((bytes + MIB - 1) / MIB));
    return put(d, to, text, e);
}

static int put_pull(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    return put(d, to, strcmp(value, "missing") == 0 ? "if-missing" : value, e);
}

/* Seconds; -1 waits for as long as it takes. */
static int put_seconds(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char text[32];
    uint64_t n = 3600;
    if (strcmp(value, "-1") != 0 && parse_u64(value, &n) < 0)
        return bad(to, value, "a number of seconds", e);
    (void)snprintf(text, sizeof(text), "%llus", (unsigned long long)n);
    return put(d, to, text, e);
}

/* A bare number is seconds since 1970 here, and an age for msb. */
static int put_when(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    char text[TIME_TEXT_MAX], *end;
    if (!*value || value[strspn(value, "0123456789.")])
        return put(d, to, value, e);
    uint64_t seconds = strtoull(value, &end, 10), ns = 0;
    if (*end == '.')
        for (uint64_t unit = NS_PER_SEC / 10; isdigit((unsigned char)*++end); unit /= 10)
            ns += (uint64_t)(*end - '0') * unit;
    if (*end || seconds >= UINT64_MAX / NS_PER_SEC)
        return bad(to, value, "a time such as 2026-01-02T03:04:05Z or 1767323045.5", e);
    time_rfc3339(seconds * NS_PER_SEC + ns, text);
    return put(d, to, text, e);
}

static int put_restart(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    if (strcmp(value, "no") == 0)
        return 0;
    return err_set(e, ENOTSUP, "--restart %s is not supported: there is no daemon to restart it",
                   value);
}

static int put_private(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    if (!*value || strcmp(value, "private") == 0)
        return 0;
    return err_set(e, ENOTSUP, "--%s %s is not supported: a sandbox shares no namespace", to,
                   value);
}

/* Only TERM and KILL end a sandbox. */
static int put_signal(struct docker_cmd *d, const char *to, const char *value, struct err *e)
{
    if (word_among("KILL|SIGKILL|9", value))
        return d->verb == DOCKER_STOP ? put(d, "force", NULL, e) : 0;
    if (!word_among("TERM|SIGTERM|15|INT|SIGINT|2", value))
        return err_set(e, ENOTSUP,
                       "--%s %s is not supported: send it from inside, with docker exec ... kill",
                       to, value);
    d->verb = DOCKER_STOP;
    return 0;
}

/* --- the table ------------------------------------------------------------------------------- */

/* How an option is handled. */
enum how {
    FLAG,  /* msb's own flag */
    VALUE, /* msb's own option, with this value; or as `convert` puts it */
    KEEP,  /* a flag for docker*.c */
    WITH,  /* an option for docker*.c */
    MOOT,  /* a flag for what is always so, or for something that a sandbox does not have */
    MOOT1, /* an option of this kind */
    NO,    /* refused: a flag, */
    NO1,   /* ... an option */
};

#define NEW (DOCKER_RUN | DOCKER_CREATE)
#define ANY (DOCKER_RUN | DOCKER_EXEC)
#define LISTS (DOCKER_PS | DOCKER_IMAGES)

/* clang-format off */
static const struct flag {
    unsigned verbs;
    const char *name;
    char letter;
    enum how how;
    const char *text;   /* msb's option, or why not */
    convert_fn convert;
} flags[] = {
    /* what runs, and how it is attached */
    {ANY, "detach", 'd', KEEP},
    {DOCKER_RUN, "rm", 0, KEEP},
    {DOCKER_CREATE, "rm", 0, NO, "docker run --rm removes a sandbox when its command ends"},
    {NEW | DOCKER_EXEC | DOCKER_START, "interactive", 'i', KEEP},
    {NEW | DOCKER_EXEC, "tty", 't', KEEP},
    {DOCKER_START, "attach", 'a', KEEP},
    {NEW, "attach", 'a', MOOT1},
    {NEW, "sig-proxy", 0, MOOT},
    {ANY | DOCKER_START, "detach-keys", 0, VALUE, "detach-keys"},
    {NEW, "name", 0, WITH},
    {NEW, "cidfile", 0, WITH},
    {NEW, "entrypoint", 0, VALUE, "entrypoint"},
    {NEW | DOCKER_EXEC, "env", 'e', VALUE, "env", put_env},
    {NEW | DOCKER_EXEC, "env-file", 0, VALUE, "env-file"},
    {NEW | DOCKER_EXEC, "workdir", 'w', VALUE, "workdir"},
    {NEW | DOCKER_EXEC, "user", 'u', VALUE, "user"},
    {NEW, "hostname", 'h', VALUE, "hostname"},
    {NEW, "label", 'l', VALUE, "label"},
    {NEW, "pull", 0, VALUE, "pull", put_pull},
    {NEW | DOCKER_PULL, "platform", 0, VALUE, "platform"},
    {NEW | DOCKER_PULL, "quiet", 'q', KEEP},
    /* files */
    {NEW, "volume", 'v', VALUE, "volume", put_volume},
    {NEW, "mount", 0, VALUE, "mount"},
    {NEW, "tmpfs", 0, VALUE, "tmpfs", put_tmpfs},
    {NEW, "read-only", 0, FLAG, "read-only"},
    {NEW, "shm-size", 0, VALUE, "shm-size", put_bytes},
    {NEW, "storage-opt", 0, VALUE, "root-disk", put_storage},
    {NEW, "volumes-from", 0, NO1, "name the volume: -v NAME:/path in both"},
    {NEW, "volume-driver", 0, NO1, "volumes are directories or disks of this host"},
    /* limits and rights */
    {NEW, "cpus", 0, VALUE, "cpus", put_cpus},
    {NEW, "memory", 'm', VALUE, "memory", put_bytes},
    {NEW, "memory-swap", 0, MOOT1},
    {NEW, "memory-swappiness", 0, MOOT1},
    {NEW, "memory-reservation", 0, MOOT1},
    {NEW, "oom-kill-disable", 0, NO, "the guest's kernel decides what to kill when it runs out of memory"},
    {NEW, "cpu-shares", 'c', MOOT1},
    {NEW, "cpuset-cpus", 0, NO1, "--cpu-placement of 'msb run' chooses CPUs"},
    {NEW, "pids-limit", 0, VALUE, "pids-limit"},
    {NEW, "ulimit", 0, VALUE, "rlimit"},
    {NEW, "cap-add", 0, VALUE, "cap-add"},
    {NEW, "cap-drop", 0, VALUE, "cap-drop"},
    {NEW, "security-opt", 0, VALUE, "security-opt"},
    {NEW, "group-add", 0, VALUE, "group-add"},
    {NEW, "sysctl", 0, VALUE, "sysctl"},
    {NEW, "init", 0, MOOT},
    {NEW | DOCKER_EXEC, "privileged", 0, MOOT}, /* its kernel is its own */
    {NEW, "device", 0, NO1, "devices of this host cannot be passed through"},
    {NEW, "gpus", 0, NO1, "a sandbox cannot use a GPU"},
    {NEW, "runtime", 0, NO1, "a sandbox has its own kernel; --engine of 'msb run' selects how it is run"},
    {NEW, "ipc", 0, VALUE, "ipc", put_private},
    {NEW, "pid", 0, VALUE, "pid", put_private},
    {NEW, "uts", 0, VALUE, "uts", put_private},
    {NEW, "userns", 0, VALUE, "userns", put_private},
    {NEW, "cgroupns", 0, VALUE, "cgroupns", put_private},
    /* network */
    {NEW, "network", 0, VALUE, "network"},
    {NEW, "net", 0, VALUE, "network"},
    {NEW, "publish", 'p', VALUE, "port", put_port},
    {NEW, "publish-all", 'P', NO, "name the ports: -p 80 publishes port 80 on a free port"},
    {NEW, "expose", 0, MOOT1},
    {NEW, "dns", 0, VALUE, "dns-nameserver"},
    {NEW, "add-host", 0, NO1, "write the name into the guest's /etc/hosts"},
    {NEW, "link", 0, NO1, "publish the other container's port (-p)"},
    /* life */
    {NEW, "restart", 0, VALUE, "restart", put_restart},
    {NEW, "stop-timeout", 0, MOOT1},
    {NEW, "log-driver", 0, MOOT1},
    {NEW, "log-opt", 0, MOOT1},
    {NEW, "no-healthcheck", 0, MOOT},
    {DOCKER_STOP | DOCKER_RESTART, "time", 't', VALUE, "timeout", put_seconds},
    {DOCKER_STOP | DOCKER_RESTART, "timeout", 0, VALUE, "timeout", put_seconds},
    {DOCKER_STOP | DOCKER_KILL, "signal", 's', VALUE, "signal", put_signal},
    {DOCKER_RM, "force", 'f', FLAG, "force"},
    {DOCKER_RM, "volumes", 'v', MOOT}, /* those without a name are on its own disk */
    {DOCKER_RM, "link", 'l', NO, "there are no links"},
    /* looking */
    {LISTS, "all", 'a', KEEP},
    {LISTS, "quiet", 'q', KEEP},
    {LISTS, "no-trunc", 0, KEEP},
    {LISTS, "filter", 'f', WITH},
    {LISTS, "format", 0, WITH},
    {DOCKER_PS, "latest", 'l', KEEP},
    {DOCKER_PS, "last", 'n', WITH},
    {DOCKER_PS | DOCKER_INSPECT, "size", 's', MOOT},
    {DOCKER_IMAGES, "digests", 0, KEEP},
    {DOCKER_INSPECT | DOCKER_SYSTEM, "format", 'f', WITH},
    {DOCKER_INSPECT, "type", 0, WITH},
    {DOCKER_LOGS, "follow", 'f', FLAG, "follow"},
    {DOCKER_LOGS, "tail", 'n', VALUE, "tail"},
    {DOCKER_LOGS, "timestamps", 't', FLAG, "timestamps"},
    {DOCKER_LOGS, "since", 0, VALUE, "since", put_when},
    {DOCKER_LOGS, "until", 0, VALUE, "until", put_when},
    {DOCKER_LOGS, "details", 0, MOOT},
    {DOCKER_CP, "archive", 'a', FLAG, "archive"},
    {DOCKER_CP, "follow-link", 'L', FLAG, "follow-link"},
    {DOCKER_CP, "quiet", 'q', MOOT},
    {DOCKER_PULL, "all-tags", 'a', NO, "name the tags"},
    {DOCKER_PULL | NEW, "disable-content-trust", 0, MOOT},
    {DOCKER_RMI, "force", 'f', FLAG, "force"},
    {DOCKER_RMI, "no-prune", 0, MOOT},
    {DOCKER_LOAD, "input", 'i', VALUE, "input"},
    {DOCKER_LOAD, "quiet", 'q', MOOT},
    {DOCKER_SAVE, "output", 'o', VALUE, "output"},
    {DOCKER_COMMIT, "author", 'a', VALUE, "author"},
    {DOCKER_COMMIT, "change", 'c', VALUE, "change"},
    {DOCKER_COMMIT, "message", 'm', VALUE, "message"},
    {DOCKER_COMMIT, "pause", 'p', MOOT}, /* writers wait */
    {DOCKER_PUSH, "quiet", 'q', KEEP},
    {DOCKER_PUSH, "disable-content-trust", 0, MOOT},
    {DOCKER_PUSH, "all-tags", 'a', NO, "name the tags"},
    {DOCKER_LOGIN, "username", 'u', VALUE, "username"},
    {DOCKER_LOGIN, "password-stdin", 0, FLAG, "password-stdin"},
    {DOCKER_LOGIN, "password", 'p', NO1, "everyone can see a command line: use --password-stdin"},
};
/* clang-format on */

/* --- the parser ------------------------------------------------------------------------------ */

static const struct flag *find(const struct docker_cmd *d, const char *name, size_t n, char letter)
{
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        const struct flag *f = &flags[i];
        if ((f->verbs & d->verb) && (name ? strlen(f->name) == n && memcmp(f->name, name, n) == 0
                                          : f->letter && f->letter == letter))
            return f;
    }
    return NULL;
}

static bool takes_value(const struct flag *f)
{
    return f->how == VALUE || f->how == WITH || f->how == MOOT1 || f->how == NO1;
}

static int keep(struct docker_cmd *d, const char *name, const char *value, struct err *e)
{
    if (ARRAY_RESIZE(d->kept, d->n_kept + 1) < 0)
        return err_oom(e);
    d->kept[d->n_kept++] = (struct docker_kept){name, value};
    return 0;
}

static int take(struct docker_cmd *d, const struct flag *f, const char *value, struct err *e)
{
    switch (f->how) {
    case FLAG:
        return put(d, f->text, NULL, e);
    case VALUE:
        return f->convert ? f->convert(d, f->text, value, e) : put(d, f->text, value, e);
    case KEEP:
    case WITH:
        return keep(d, f->name, value, e);
    case NO:
    case NO1:
        return err_set(e, ENOTSUP, "--%s is not supported: %s", f->name, f->text);
    default:
        return 0;
    }
}

static int unknown(const struct docker_cmd *d, const char *word, struct err *e)
{
    return err_set(e, EINVAL,
                   "unknown flag: %s (docker %s: msb supports what docs/docker.md lists)", word,
                   d->name);
}

static bool is_false(const char *value)
{
    static const char *const words[] = {"0", "f", "F", "false", "False", "FALSE"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(value, words[i]) == 0)
            return true;
    return false;
}

/* --name, --name=value, --name value, --flag=true. */
static int parse_long(struct docker_cmd *d, char **argv, size_t n, size_t *at, struct err *e)
{
    const char *word = argv[(*at)++], *name = word + 2;
    size_t len = strcspn(name, "=");
    const struct flag *f = find(d, name, len, 0);
    const char *value = name[len] ? name + len + 1 : NULL;
    if (!f)
        return unknown(d, word, e);
    if (!takes_value(f))
        return value && is_false(value) ? 0 : take(d, f, NULL, e);
    if (!value && *at == n)
        return err_set(e, EINVAL, "flag needs an argument: --%s", f->name);
    return take(d, f, value ? value : argv[(*at)++], e);
}

/* -it, -e KEY=V, -eKEY=V, -n=5. */
static int parse_short(struct docker_cmd *d, char **argv, size_t n, size_t *at, struct err *e)
{
    const char *word = argv[(*at)++];
    for (const char *c = word + 1; *c; c++) {
        const struct flag *f = find(d, NULL, 0, *c);
        if (!f)
            return unknown(d, word, e);
        if (takes_value(f)) {
            const char *value = c[1] == '=' ? c + 2 : c[1] ? c + 1 : NULL;
            if (!value && *at == n)
                return err_set(e, EINVAL, "flag needs an argument: -%c", *c);
            return take(d, f, value ? value : argv[(*at)++], e);
        }
        int r = take(d, f, NULL, e);
        if (r < 0)
            return r;
    }
    return 0;
}

int docker_parse(struct docker_cmd *d, char **argv, size_t n, bool first, struct err *e)
{
    int r = 0;
    d->words = calloc(n + 1, sizeof(char *));
    if (!d->words)
        return err_oom(e);
    for (size_t at = 0; r == 0 && at < n;) {
        bool option = argv[at][0] == '-' && argv[at][1];
        bool dashes = strcmp(argv[at], "--") == 0;
        if (dashes || (first && !option)) { /* the rest is not ours */
            for (at += dashes; at < n; at++)
                d->words[d->n_words++] = argv[at];
        } else if (!option) {
            d->words[d->n_words++] = argv[at++];
        } else {
            r = argv[at][1] == '-' ? parse_long(d, argv, n, &at, e)
                                   : parse_short(d, argv, n, &at, e);
        }
    }
    return r;
}

void docker_cmd_free(struct docker_cmd *d)
{
    strlist_free(&d->opts);
    free(d->kept);
    free(d->words);
}

const char *docker_get(const struct docker_cmd *d, const char *name)
{
    const char *value = NULL;
    for (size_t i = 0; i < d->n_kept; i++)
        if (strcmp(d->kept[i].name, name) == 0)
            value = d->kept[i].value;
    return value;
}

bool docker_has(const struct docker_cmd *d, const char *name)
{
    for (size_t i = 0; i < d->n_kept; i++)
        if (strcmp(d->kept[i].name, name) == 0)
            return true;
    return false;
}
