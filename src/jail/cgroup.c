#include "jail/cgroup.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOTE_FILE "cgroup"
#define CGROUP_ROOT "/sys/fs/cgroup"

enum {
    PERIOD_US = 100000,
    MEMORY_SPARE = 512 * 1024 * 1024,
    PIDS_SPARE = 256,
    PID_BYTES = 512 * 1024,
};

static const char *const controller[CGROUP_KINDS] = {"cpu", "memory", "pids"};

int cgroup_write(const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : write_all(fd, text, strlen(text));
}

static bool in_list(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* --- where we are --------------------------------------------------------------------------- */

/* Our own groups: in the old hierarchy of the cpu controller, and in the common one. "" = none. */
struct place {
    char old_cpu[PATH_MAX];
    char common[PATH_MAX];
};

/* One line of /proc/self/cgroup: N:controllers:/path */
static void note_place(struct place *p, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *list = strchr(line, ':');
    char *path = list ? strchr(list + 1, ':') : NULL;
    if (!path)
        return;
    *list++ = '\0';
    *path++ = '\0';
    const char *rest = strcmp(path, "/") == 0 ? "" : path;
    if (*list == '\0' && snprintf(p->common, PATH_MAX, CGROUP_ROOT "%s", rest) >= PATH_MAX)
        p->common[0] = '\0';
    if (in_list(list, "cpu") &&
        snprintf(p->old_cpu, PATH_MAX, CGROUP_ROOT "/cpu%s", rest) >= PATH_MAX)
        p->old_cpu[0] = '\0';
}

static void find_place(struct place *p)
{
    AUTO_FCLOSE FILE *f = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    p->old_cpu[0] = p->common[0] = '\0';
    while (f && fgets(line, sizeof(line), f))
        note_place(p, line);
}

/* --- limits ---------------------------------------------------------------------------------- */

static int limit_cpu(const char *group, bool common, double cpus)
{
    char text[64];
    long quota = (long)(cpus * PERIOD_US);
    if (quota < 1000) /* the kernel's minimum */
        quota = 1000;
    if (common) {
        (void)snprintf(text, sizeof(text), "%ld %d", quota, PERIOD_US);
        return cgroup_write(group, "cpu.max", text);
    }
    (void)snprintf(text, sizeof(text), "%d", PERIOD_US);
    int r = cgroup_write(group, "cpu.cfs_period_us", text);
    (void)snprintf(text, sizeof(text), "%ld", quota);
    return r < 0 ? r : cgroup_write(group, "cpu.cfs_quota_us", text);
}

static int limit(enum cgroup_kind k, const char *group, bool common, const struct cgroup_limits *l)
{
    char text[32];
    if (k == CGROUP_CPU)
        return limit_cpu(group, common, l->cpus);
    (void)snprintf(text, sizeof(text), "%" PRIu64, k == CGROUP_MEMORY ? l->memory : l->pids);
    if (k == CGROUP_PIDS)
        return cgroup_write(group, "pids.max", text);
    return cgroup_write(group, common ? "memory.max" : "memory.limit_in_bytes", text);
}

static bool wanted(enum cgroup_kind k, const struct cgroup_limits *l)
{
    return k == CGROUP_CPU ? l->cpus > 0 : k == CGROUP_MEMORY ? l->memory > 0 : l->pids > 0;
}

void cgroup_limits_for(struct cgroup_limits *l, uint64_t memory_bytes)
{
    l->memory = memory_bytes + memory_bytes / 4 + MEMORY_SPARE;
    l->pids = PIDS_SPARE + memory_bytes / PID_BYTES;
}

/* --- groups ---------------------------------------------------------------------------------- */

/* In the unified hierarchy, a group can have processes or controlled children, not both: ours
 * contains us, so the new one goes next to it, where a session manager keeps its groups. Only the
 * root may have both. */
static char *common_group(struct place *p, const struct cgroup_limits *l, const char *leaf)
{
    char *group = NULL;
    if (strcmp(p->common, CGROUP_ROOT) != 0 && p->common[0])
        *strrchr(p->common, '/') = '\0';
    if (!p->common[0] || asprintf(&group, "%s/%s", p->common, leaf) < 0)
        return NULL;
    for (int k = 0; k < CGROUP_KINDS; k++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "+%s", controller[k]);
        if (wanted((enum cgroup_kind)k, l)) /* if it fails: it may be enabled already */
            (void)cgroup_write(p->common, "cgroup.subtree_control", text);
    }
    return group;
}

static void set_errors(struct cgroups *g, const struct cgroup_limits *l, int error)
{
    for (int k = 0; k < CGROUP_KINDS; k++)
        if (!l || wanted((enum cgroup_kind)k, l))
            g->error[k] = error;
}

/* The path is recorded first, so that a group that exists can be found and removed. */
static int make_group(const char *path, int dirfd)
{
    int r = file_replace_at(dirfd, NOTE_FILE, path, strlen(path), 0600, false);
    if (r == 0 && mkdir(path, 0755) < 0 && errno != EEXIST)
        r = -errno;
    return r;
}

/* A group without any of the controllers is of no use. */
static bool limit_all(struct cgroups *g, bool common, const struct cgroup_limits *l)
{
    bool any = false;
    for (int k = 0; k < CGROUP_KINDS; k++) {
        if (!wanted((enum cgroup_kind)k, l))
            continue;
        bool there = common || k == CGROUP_CPU;
        g->error[k] = there ? limit((enum cgroup_kind)k, g->path, common, l) : -EOPNOTSUPP;
        any |= g->error[k] == 0;
    }
    return any;
}

void cgroup_make(struct cgroups *g, int dirfd, const char *name, const struct cgroup_limits *l)
{
    struct place p;
    char leaf[96];
    *g = (struct cgroups){.fd = -1};
    find_place(&p);
    bool common = !p.old_cpu[0];
    (void)snprintf(leaf, sizeof(leaf), "msb-%d-%.64s", (int)getpid(), name);
    if (!common && l->cpus <= 0) {
        set_errors(g, l, -EOPNOTSUPP);
        return;
    }
    if (common)
        g->path = common_group(&p, l, leaf);
    else if (asprintf(&g->path, "%s/%s", p.old_cpu, leaf) < 0)
        g->path = NULL;
    int r = g->path ? make_group(g->path, dirfd) : -ENOENT;
    if (r < 0) {
        set_errors(g, l, r);
        cgroup_free(g);
    } else if (!limit_all(g, common, l)) {
        cgroup_forget(dirfd);
        cgroup_free(g);
    } else if (common) {
        g->fd = open(g->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
}

pid_t cgroup_fork(struct cgroups *g)
{
    struct clone_args args = {
        .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)g->fd};
    pid_t pid = g->fd < 0 ? -1 : (pid_t)syscall(SYS_clone3, &args, sizeof(args));
    if (pid >= 0)
        return pid;
    close_fd(&g->fd); /* cgroup_put() may still succeed */
    return fork();
}

void cgroup_put(struct cgroups *g, pid_t pid)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    int r = g->path && g->fd < 0 ? cgroup_write(g->path, "cgroup.procs", text) : 0;
    if (r < 0)
        set_errors(g, NULL, r);
}

void cgroup_free(struct cgroups *g)
{
    close_fd(&g->fd);
    free(g->path);
    g->path = NULL;
}

/* A process stays in its group until its parent has reaped it, and a monitor's parent is init: give
 * it a moment. */
void cgroup_remove(const char *group, int tries)
{
    struct timespec pause = {.tv_nsec = CGROUP_PAUSE_NS};
    for (int n = 1; rmdir(group) < 0 && errno == EBUSY && n < tries; n++)
        (void)nanosleep(&pause, NULL);
}

/* NULL: none. */
static char *noted_group(int dirfd)
{
    AUTO_FREE char *group = NULL;
    if (file_read_at(dirfd, NOTE_FILE, PATH_MAX - 1, &group, NULL) < 0)
        return NULL;
    bool ours = strncmp(group, CGROUP_ROOT "/", strlen(CGROUP_ROOT) + 1) == 0;
    return ours ? steal_ptr(&group) : NULL;
}

uint64_t cgroup_cpu_ns(int dirfd)
{
    AUTO_FREE char *group = noted_group(dirfd);
    AUTO_FREE char *text = NULL;
    unsigned long long us = 0;
    AUTO_CLOSE int dir = group ? dir_open_at(AT_FDCWD, group) : -1;
    if (dir < 0 || file_read_at(dir, "cpu.stat", 4096, &text, NULL) < 0)
        return 0;
    const char *line = strstr(text, "usage_usec ");
    return line && sscanf(line, "usage_usec %llu", &us) == 1 ? us * 1000ULL : 0;
}

/* Which of the two hierarchies it is in. */
static bool is_common(const char *group)
{
    return strncmp(group, CGROUP_ROOT "/cpu/", strlen(CGROUP_ROOT "/cpu/")) != 0;
}

int cgroup_set_cpus(int dirfd, double cpus)
{
    AUTO_FREE char *group = noted_group(dirfd);
    return group ? limit_cpu(group, is_common(group), cpus) : -ENOENT;
}

bool cgroup_has_cpus(int dirfd)
{
    AUTO_FREE char *group = noted_group(dirfd);
    char path[PATH_MAX];
    if (!group)
        return false;
    int n = snprintf(path, sizeof(path), "%s/%s", group,
                     is_common(group) ? "cpu.max" : "cpu.cfs_quota_us");
    return n < (int)sizeof(path) && access(path, W_OK) == 0;
}

void cgroup_forget(int dirfd)
{
    AUTO_FREE char *group = noted_group(dirfd);
    if (group)
        cgroup_remove(group, CGROUP_TRIES);
    (void)unlinkat(dirfd, NOTE_FILE, 0);
}
