#include "oci/group.h"

#include "jail/cgroup.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define GROUP_ROOT "/sys/fs/cgroup"

enum {
    VALUE_MAX = 4096,
    FREEZE_TRIES = 500,
    SHARES_MAX = 262144,
    WEIGHT_MAX = 10000,
};

/* --- files ----------------------------------------------------------------------------------- */

static bool get(const char *dir, const char *file, char *to, size_t size)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);
    to[n > 0 ? n : 0] = '\0';
    to[strcspn(to, "\n")] = '\0';
    return *to != '\0';
}

static bool is_common(const char *dir)
{
    struct statfs fs;
    return statfs(dir, &fs) == 0 && (unsigned long)fs.f_type == CGROUP2_SUPER_MAGIC;
}

/* The directory in the list that has this file. */
static const char *with_file(const json_t *groups, const char *file)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < json_array_size(groups); i++) {
        const char *dir = json_string_value(json_array_get(groups, i));
        (void)snprintf(path, sizeof(path), "%s/%s", dir ? dir : "", file);
        if (dir && access(path, F_OK) == 0)
            return dir;
    }
    return NULL;
}

/* --- frozen ---------------------------------------------------------------------------------- */

static bool is_settled(const char *dir, bool old, bool freeze)
{
    char text[256];
    if (old)
        return get(dir, "freezer.state", text, sizeof(text)) &&
               strcmp(text, freeze ? "FROZEN" : "THAWED") == 0;
    char path[PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/cgroup.events", dir);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, freeze ? "frozen 1" : "frozen 0") != NULL;
}

bool group_is_frozen(const json_t *groups)
{
    char text[32];
    const char *dir = with_file(groups, "freezer.state");
    if (dir)
        return get(dir, "freezer.state", text, sizeof(text)) && strcmp(text, "THAWED") != 0;
    dir = with_file(groups, "cgroup.freeze");
    return dir && get(dir, "cgroup.freeze", text, sizeof(text)) && strcmp(text, "1") == 0;
}

/* Whether the group is frozen, itself or by a parent: a process that enters it would be frozen,
 * too. */
static bool nobody_moves(const json_t *groups)
{
    const char *dir = with_file(groups, "cgroup.freeze");
    return group_is_frozen(groups) || (dir && is_settled(dir, false, true));
}

/* --- making ---------------------------------------------------------------------------------- */

/* A CPU set in the old hierarchies starts empty, so nothing can run in it. */
static void inherit(const char *dir, const char *file)
{
    char above[PATH_MAX], value[VALUE_MAX];
    (void)snprintf(above, sizeof(above), "%s", dir);
    *strrchr(above, '/') = '\0';
    if (get(dir, file, value, sizeof(value)) || !get(above, file, value, sizeof(value)))
        return;
    (void)cgroup_write(dir, file, value);
}

/* How much of it is the hierarchy's root: a part of GROUP_ROOT, in cgroup v1. */
static size_t root_length(const char *group, bool common)
{
    size_t n = strlen(GROUP_ROOT);
    return common ? n : n + 1 + strcspn(group + n + 1, "/");
}

/* Every directory on the way, as mkdir -p. */
static int make_path(const char *group)
{
    char dir[PATH_MAX];
    bool common = is_common(GROUP_ROOT);
    size_t at = root_length(group, common);
    bool cpuset = !common && memmem(group, at, "cpuset", strlen("cpuset"));
    (void)snprintf(dir, sizeof(dir), "%s", group);
    while (dir[at]) {
        size_t end = at + 1 + strcspn(dir + at + 1, "/");
        char c = dir[end];
        dir[at] = '\0';
        if (common) /* its children get what is available; a limit notices what is missing */
            for (const char *const *k =
                     (const char *const[]){"+cpu", "+memory", "+pids", "+cpuset", "+io", NULL};
                 *k; k++)
                (void)cgroup_write(dir, "cgroup.subtree_control", *k);
        dir[at] = '/';
        dir[end] = '\0';
        if (mkdir(dir, 0755) < 0 && errno != EEXIST)
            return -errno;
        if (cpuset) {
            inherit(dir, "cpuset.cpus");
            inherit(dir, "cpuset.mems");
        }
        dir[end] = c;
        at = end;
    }
    return 0;
}

/* a-b.slice is in a.slice; appended to what is there. */
static int expand_slice(const char *slice, char *to, size_t size)
{
    size_t n = strlen(slice), at = strlen(to);
    if (strcmp(slice, "-.slice") == 0)
        return 0;
    if (n <= 6 || strcmp(slice + n - 6, ".slice") != 0 || strchr(slice, '/') || slice[0] == '-' ||
        slice[n - 7] == '-' || strstr(slice, "--"))
        return -EINVAL;
    for (size_t i = 1; i <= n - 6; i++)
        if (slice[i] == '-' || i == n - 6)
            at += (size_t)snprintf(to + MIN(at, size), size - MIN(at, size), "/%.*s.slice", (int)i,
                                   slice);
    return at < size ? 0 : -ENAMETOOLONG;
}

/* An ordinary user's systemd has its part of the tree, which is where that user's slices are. Sets an empty
 * path for others. */
static void find_own_manager(char *to, size_t size)
{
    AUTO_FCLOSE FILE *f = access(GROUP_ROOT, W_OK) < 0 ? fopen("/proc/self/cgroup", "re") : NULL;
    char line[PATH_MAX];
    to[0] = '\0';
    while (f && fgets(line, sizeof(line), f)) {
        char *path = strncmp(line, "0::/", 4) == 0 ? line + 3 : NULL;
        char *unit = path ? strstr(path, "/user@") : NULL;
        char *end = unit ? strstr(unit, ".service") : NULL;
        if (end && !memchr(unit + 1, '/', (size_t)(end - unit - 1)) && strchr("/\n", end[8]))
            (void)snprintf(to, size, "%.*s", (int)(end + 8 - path), path);
    }
}

/* Whether each part of the path is a name. */
static bool is_plain(const char *path)
{
    for (const char *name = path; *name; name += strcspn(name, "/")) {
        size_t n = strcspn(++name, "/");
        if (n == 0 || (n <= 2 && strncmp(name, "..", n) == 0))
            return false;
    }
    return *path != '\0';
}

/* "slice:prefix:name" is where systemd would put the scope. */
static int settle_scope(const char *path, char *to, size_t size)
{
    size_t slice_len = strcspn(path, ":");
    const char *prefix = path + slice_len + 1, *name = strchr(prefix, ':') + 1;
    char slice[NAME_MAX + 1];
    if (slice_len > NAME_MAX)
        return -ENAMETOOLONG;
    find_own_manager(to, size);
    (void)snprintf(slice, sizeof(slice), "%.*s", (int)slice_len, path);
    int r = expand_slice(*slice ? slice : *to ? "user.slice" : "system.slice", to, size);
    size_t at = strlen(to), len = strlen(name);
    if (r < 0)
        return r;
    bool is_slice = len > 6 && strcmp(name + len - 6, ".slice") == 0;
    int n = is_slice ? snprintf(to + at, size - at, "/%s", name)
                     : snprintf(to + at, size - at, "/%.*s-%s.scope", (int)(name - prefix - 1),
                                prefix, name);
    return (size_t)n < size - at ? 0 : -ENAMETOOLONG;
}

static int settle_path(const char *path, bool systemd, char *to, size_t size, struct err *e)
{
    const char *prefix = strchr(path, ':');
    bool scope = prefix && strchr(prefix + 1, ':');
    int r = 0;
    if (systemd && !scope)
        return err_set(e, EINVAL, "cgroupsPath '%s' is not of the form slice:prefix:name", path);
    if (scope)
        r = settle_scope(path, to, size);
    else if (snprintf(to, size, "%s%s", path[0] == '/' ? "" : "/", path) >= (int)size)
        r = -ENAMETOOLONG;
    if (r < 0 || !is_plain(to))
        return err_set(e, EINVAL, "cgroupsPath '%s' is not a usable path", path);
    return 0;
}

static void remove_groups(const json_t *groups, int tries)
{
    for (size_t i = 0; i < json_array_size(groups); i++) {
        const char *dir = json_string_value(json_array_get(groups, i));
        if (dir && strncmp(dir, GROUP_ROOT "/", strlen(GROUP_ROOT) + 1) == 0)
            cgroup_remove(dir, tries);
    }
}

void group_remove(const json_t *groups)
{
    remove_groups(groups, CGROUP_TRIES);
}

static int add_group(json_t *list, const char *top, const char *path)
{
    char dir[PATH_MAX];
    if (snprintf(dir, sizeof(dir), "%s%s", top, path) >= (int)sizeof(dir))
        return -ENAMETOOLONG;
    return json_array_append_new(list, json_string(dir)) < 0 ? -ENOMEM : 0;
}

/* One for each mounted hierarchy; links there lead to one of the others. */
static int plan_in_all(json_t *list, const char *path)
{
    AUTO_CLOSEDIR DIR *d = opendir(GROUP_ROOT);
    int r = 0;
    for (const struct dirent *entry; r == 0 && d && (entry = readdir(d));) {
        char top[PATH_MAX];
        struct statfs fs;
        if (entry->d_name[0] == '.' || entry->d_type == DT_LNK)
            continue;
        (void)snprintf(top, sizeof(top), GROUP_ROOT "/%s", entry->d_name);
        if (statfs(top, &fs) < 0 || (unsigned long)fs.f_type != CGROUP_SUPER_MAGIC)
            continue;
        r = add_group(list, top, path);
    }
    return r;
}

/* In cgroup v1 only the freezer and the hierarchies with a limit to set are used: each costs a move. */
static bool is_needed(const char *kinds, const json_t *resources)
{
    bool memory = json_object_size(json_object_get(resources, "memory"));
    bool cpu = json_object_size(json_object_get(resources, "cpu"));
    return strcmp(kinds, "freezer") == 0 || (memory && strcmp(kinds, "memory") == 0) ||
           (cpu && strncmp(kinds, "cpu", 3) == 0);
}

/* Without a path the group is below this process's own, as with other runtimes. In cgroup v2 it is beside
 * our own, which has processes and so no controllers for groups below it. */
static int plan_near_own(json_t *list, const char *id, const json_t *resources)
{
    bool common = is_common(GROUP_ROOT);
    AUTO_FCLOSE FILE *f = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX], top[PATH_MAX + sizeof(GROUP_ROOT)], path[PATH_MAX];
    int r = 0;
    while (r == 0 && f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':');
        char *place = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!place || strstr(place, "/.."))
            continue;
        *place++ = '\0';
        kinds++;
        if (common ? *kinds != '\0' : !is_needed(kinds, resources))
            continue;
        char *last = strrchr(place, '/');
        if (last && (common || !last[1]))
            *last = '\0';
        const char *own = place;
        (void)snprintf(top, sizeof(top), GROUP_ROOT "%s%s", common ? "" : "/", kinds);
        if (snprintf(path, sizeof(path), "%s%s", top, own) >= (int)sizeof(path))
            return -ENAMETOOLONG;
        if (access(path, F_OK) < 0) /* the mount's root is our own group */
            own = "";
        if (snprintf(path, sizeof(path), "%s/%s", own, id) >= (int)sizeof(path))
            return -ENAMETOOLONG;
        r = add_group(list, top, path);
    }
    return r;
}

int group_plan(const struct group_wish *w, json_t **ret, struct err *e)
{
    const char *path = w->path;
    char clean[PATH_MAX] = "";
    AUTO_JSON json_t *list = json_array();
    if (!list)
        return err_oom(e);
    int r = path && *path ? settle_path(path, w->systemd, clean, sizeof(clean), e) : 0;
    if (r < 0)
        return r;
    if (!path || !*path)
        r = plan_near_own(list, w->id, w->resources);
    else
        r = is_common(GROUP_ROOT) ? add_group(list, GROUP_ROOT, clean) : plan_in_all(list, clean);
    if (r < 0)
        return err_sys(e, -r, "cannot create the cgroup %s", *clean ? clean : w->id);
    *ret = steal_ptr(&list);
    return 0;
}

int group_make(const struct group_wish *w, json_t *groups, struct err *e)
{
    const char *name = w->path && *w->path ? w->path : w->id;
    int r = 0;
    for (size_t i = json_array_size(groups); i-- > 0;) {
        int k = make_path(json_string_value(json_array_get(groups, i)));
        if (k < 0)
            (void)json_array_remove(groups, i);
        r = k < 0 ? k : r;
    }
    /* A caller that may not make cgroups does without, and without limits. */
    bool may_not = r == -EACCES || r == -EPERM || r == -EROFS || r == -ENOENT;
    if (r < 0 && !may_not && json_array_size(groups) == 0)
        return err_sys(e, -r, "cannot create the cgroup %s", name);
    if (nobody_moves(groups)) { /* frozen by another program */
        remove_groups(groups, 1);
        (void)json_array_clear(groups);
        (void)err_set(e, EBUSY, "the cgroup %s is frozen", name);
        err_hint(e, "resume its processes first, or use another linux.cgroupsPath");
        return -EBUSY;
    }
    return 0;
}

/* --- limits ---------------------------------------------------------------------------------- */

static int limit(const json_t *groups, const char *v1, const char *v2, const char *text,
                 struct err *e)
{
    bool common = json_array_size(groups) == 1 && with_file(groups, "cgroup.controllers");
    const char *file = common ? v2 : v1;
    const char *dir = file ? with_file(groups, file) : NULL;
    bool lifted = strncmp(text, "max", 3) == 0;
    if (!file || (!dir && lifted)) /* what does not exist limits nothing */
        return 0;
    int r = dir ? cgroup_write(dir, file, lifted && !common ? "-1" : text) : -ENOENT;
    if (r == 0)
        return 0;
    (void)err_sys(e, -r, "cannot set %s to %s for the container", file, text);
    err_hint(e, "its cgroup has no such controller, or this user may not use it");
    return r;
}

/* Some may be NO_LIMIT. */
static bool number(const json_t *o, const char *key, double *ret)
{
    const json_t *v = json_object_get(o, key);
    *ret = json_number_value(v);
    return json_is_number(v) && (*ret > 0 || *ret == NO_LIMIT) && *ret < 9e18;
}

static int limit_number(const json_t *groups, const char *v1, const char *v2, double v,
                        struct err *e)
{
    char text[32];
    if (v == NO_LIMIT)
        return limit(groups, v1, v2, "max", e);
    (void)snprintf(text, sizeof(text), "%" PRIu64, (uint64_t)v);
    return limit(groups, v1, v2, text, e);
}

double group_weight(double shares)
{
    shares = MAX(2, MIN(shares, SHARES_MAX));
    return 1 + (shares - 2) * (WEIGHT_MAX - 1) / (SHARES_MAX - 2);
}

static int limit_cpu(const json_t *groups, const json_t *cpu, struct err *e)
{
    double shares, quota, period;
    char text[64];
    int r = 0;
    if (number(cpu, "shares", &shares) && shares > 0) {
        r = limit_number(groups, "cpu.shares", NULL, MAX(2, MIN(shares, SHARES_MAX)), e);
        if (r == 0)
            r = limit_number(groups, NULL, "cpu.weight", group_weight(shares), e);
    }
    if (!number(cpu, "period", &period) || period < 0)
        period = 100000;
    if (r == 0 && number(cpu, "quota", &quota)) {
        if (quota == NO_LIMIT)
            (void)snprintf(text, sizeof(text), "max %" PRIu64, (uint64_t)period);
        else
            (void)snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu64, (uint64_t)quota,
                           (uint64_t)period);
        r = limit(groups, NULL, "cpu.max", text, e);
        if (r == 0 && quota != NO_LIMIT)
            r = limit_number(groups, "cpu.cfs_period_us", NULL, period, e);
        if (r == 0)
            r = limit_number(groups, "cpu.cfs_quota_us", NULL, quota, e);
    }
    static const char *const sets[][2] = {{"cpus", "cpuset.cpus"}, {"mems", "cpuset.mems"}};
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(sets); i++) {
        const char *v = json_string_value(json_object_get(cpu, sets[i][0]));
        if (v && *v)
            r = limit(groups, sets[i][1], sets[i][1], v, e);
    }
    return r;
}

static int limit_memory(const json_t *groups, double most, struct err *e)
{
    struct cgroup_limits l = {0};
    if (most > 0)
        cgroup_limits_for(&l, (uint64_t)most);
    return limit_number(groups, "memory.limit_in_bytes", "memory.max",
                        most > 0 ? (double)l.memory : NO_LIMIT, e);
}

/* Whether limits of a kind are set: the guest has its own, and in a group that we chose they may not be
 * possible. */
static bool has_limits(const json_t *groups, bool own, const char *v1, const char *v2)
{
    return own ? with_file(groups, v1) || with_file(groups, v2) : json_array_size(groups) > 0;
}

int group_limit(const json_t *groups, const json_t *resources, bool own, struct err *e)
{
    double memory, low;
    const json_t *m = json_object_get(resources, "memory");
    int r = 0;
    if (has_limits(groups, own, "cpu.shares", "cpu.weight"))
        r = limit_cpu(groups, json_object_get(resources, "cpu"), e);
    if (!has_limits(groups, own, "memory.limit_in_bytes", "memory.max"))
        return r;
    if (r == 0 && number(m, "limit", &memory))
        r = limit_memory(groups, memory, e);
    if (r == 0 && number(m, "reservation", &low) && low > 0)
        r = limit_number(groups, "memory.soft_limit_in_bytes", "memory.low", low, e);
    return r;
}

/* A number in a file of the group, in the v1 hierarchy of that name if there are several; 0: none, as for
 * "max". */
static double read_limit(const char *group, const char *v1, const char *file, int which)
{
    char dir[PATH_MAX + sizeof(GROUP_ROOT) + 8], text[VALUE_MAX];
    (void)snprintf(dir, sizeof(dir), GROUP_ROOT "%s%s", v1, group);
    const char *at = get(dir, file, text, sizeof(text)) ? text : NULL;
    for (; at && which > 0; which--)
        at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
    return at ? MAX(0, strtod(at, NULL)) : 0;
}

struct group_limits group_limits_above(const char *path, bool systemd)
{
    char above[PATH_MAX] = "";
    struct err ignored = {0};
    struct group_limits l = {0};
    if (!path || !*path || settle_path(path, systemd, above, sizeof(above), &ignored) < 0)
        return l;
    *strrchr(above, '/') = '\0';
    if (!*above)
        return l;
    bool common = is_common(GROUP_ROOT);
    double memory = common ? read_limit(above, "", "memory.max", 0)
                           : read_limit(above, "/memory", "memory.limit_in_bytes", 0);
    l.memory = memory < (double)(1ULL << 50) ? (uint64_t)memory : 0; /* v1 has a large number */
    l.quota = common ? read_limit(above, "", "cpu.max", 0)
                     : read_limit(above, "/cpu", "cpu.cfs_quota_us", 0);
    l.period = common ? read_limit(above, "", "cpu.max", 1)
                      : read_limit(above, "/cpu", "cpu.cfs_period_us", 0);
    return l;
}

/* --- using ----------------------------------------------------------------------------------- */

pid_t group_fork(const json_t *groups, bool *inside)
{
    const char *dir = json_string_value(json_array_get(groups, 0));
    struct cgroups g = {.fd = dir && is_common(dir) ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                                    : -1};
    pid_t pid = cgroup_fork(&g);
    *inside = g.fd >= 0;
    close_fd(&g.fd);
    return pid;
}

/* Moving a whole process waits for an RCU grace period (some 10 ms), during which nothing on the
 * host can fork; a thread that moves itself does not wait. Only v1 can move a single thread. */
int group_enter(const json_t *groups, struct err *e)
{
    for (size_t i = 0; i < json_array_size(groups); i++) {
        const char *dir = json_string_value(json_array_get(groups, i));
        int r = cgroup_write(dir, "tasks", "0");
        if (r == -ENOENT)
            r = cgroup_write(dir, "cgroup.procs", "0");
        if (r < 0)
            return err_sys(e, -r, "cannot enter the cgroup %s", dir);
    }
    return 0;
}

int group_freeze(const json_t *groups, bool freeze, struct err *e)
{
    const struct timespec pause = {.tv_nsec = CGROUP_PAUSE_NS};
    const char *dir = with_file(groups, "freezer.state");
    bool old = dir != NULL;
    if (!dir)
        dir = with_file(groups, "cgroup.freeze");
    if (!dir) {
        (void)err_set(e, ENOTSUP, "this container has no cgroup that could be frozen");
        err_hint(e, "set linux.cgroupsPath in its configuration");
        return -ENOTSUP;
    }
    const char *value = old ? freeze ? "FROZEN" : "THAWED" : freeze ? "1" : "0";
    int r = cgroup_write(dir, old ? "freezer.state" : "cgroup.freeze", value);
    for (int i = 0; r == 0 && i < FREEZE_TRIES && !is_settled(dir, old, freeze); i++)
        (void)nanosleep(&pause, NULL);
    return r < 0 ? err_sys(e, -r, "cannot %s %s", freeze ? "freeze" : "thaw", dir) : 0;
}

/* --- usage ----------------------------------------------------------------------------------- */

/* "4096" or "usage_usec 4096"; without a limit ("max"), there is no number. */
static json_t *read_usage(const json_t *groups, const char *file, int factor)
{
    char text[VALUE_MAX];
    const char *dir = file ? with_file(groups, file) : NULL;
    if (!dir || !get(dir, file, text, sizeof(text)))
        return NULL;
    const char *space = strrchr(text, ' ');
    const char *digits = space ? space + 1 : text;
    char *end;
    unsigned long long v = strtoull(digits, &end, 10);
    return end == digits || *end || v > INT64_MAX / 1000 ? NULL
                                                         : json_integer((json_int_t)v * factor);
}

json_t *group_usage(const json_t *groups)
{
    static const struct {
        const char *in, *part, *key, *v1, *v2;
        int factor; /* of v2 */
    } all[] = {
        {"cpu", "usage", "total", "cpuacct.usage", "cpu.stat", 1000},
        {"memory", "usage", "usage", "memory.usage_in_bytes", "memory.current", 1},
        {"memory", "usage", "limit", "memory.limit_in_bytes", "memory.max", 1},
        {"memory", "usage", "max", "memory.max_usage_in_bytes", "memory.peak", 1},
        {"memory", "usage", "failcnt", "memory.failcnt", NULL, 1},
        {"pids", NULL, "current", "pids.current", "pids.current", 1},
        {"pids", NULL, "limit", "pids.max", "pids.max", 1},
    };
    json_t *j = json_pack("{s:{s:{}}, s:{s:{}}, s:{}}", "cpu", "usage", "memory", "usage", "pids");
    for (size_t i = 0; j && i < ARRAY_LEN(all); i++) {
        json_t *at = json_object_get(j, all[i].in);
        json_t *v = read_usage(groups, all[i].v1, 1);
        if (!v)
            v = read_usage(groups, all[i].v2, all[i].factor);
        if (v)
            (void)json_object_set_new(all[i].part ? json_object_get(at, all[i].part) : at,
                                      all[i].key, v);
    }
    return j;
}
