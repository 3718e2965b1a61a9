#include "jail/cgroup.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NOTE_FILE "cgroup"
#define CGROUP_ROOT "/sys/fs/cgroup"

enum { PERIOD_US = 100000, REAP_TRIES = 250, REAP_PAUSE_NS = 2000000 };

static int write_file(const char *dir, const char *file, const char *text)
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

/* Our own group: in the v1 hierarchy of the cpu controller if there is one, else in v2. */
static int own_group(char *dir, size_t size, bool *v2)
{
    AUTO_FCLOSE FILE *f = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    int found = -ENOENT;
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'); /* N:controllers:/path */
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *list++ = '\0';
        *path++ = '\0';
        const char *rest = strcmp(path, "/") == 0 ? "" : path;
        if (in_list(list, "cpu")) {
            *v2 = false;
            return snprintf(dir, size, CGROUP_ROOT "/cpu%s", rest) < (int)size ? 0 : -ENAMETOOLONG;
        }
        if (*list == '\0' && snprintf(dir, size, CGROUP_ROOT "%s", rest) < (int)size) {
            *v2 = true;
            found = 0;
        }
    }
    return found;
}

static int set_quota(const char *group, bool v2, double cpus)
{
    char text[64];
    long quota = (long)(cpus * PERIOD_US);
    if (quota < 1000) /* the kernel's minimum */
        quota = 1000;
    if (v2) {
        (void)snprintf(text, sizeof(text), "%ld %d", quota, PERIOD_US);
        return write_file(group, "cpu.max", text);
    }
    (void)snprintf(text, sizeof(text), "%d", PERIOD_US);
    int r = write_file(group, "cpu.cfs_period_us", text);
    (void)snprintf(text, sizeof(text), "%ld", quota);
    return r < 0 ? r : write_file(group, "cpu.cfs_quota_us", text);
}

int cgroup_limit_cpu(int dirfd, const char *name, pid_t pid, double cpus)
{
    char parent[PATH_MAX], group[PATH_MAX], text[32];
    bool v2;
    int r = own_group(parent, sizeof(parent), &v2);
    if (r < 0)
        return r;
    if (snprintf(group, sizeof(group), "%s/msb-%d-%.64s", parent, (int)getpid(), name) >=
        (int)sizeof(group))
        return -ENAMETOOLONG;
    /* It is recorded first, so that a group that exists can be found and removed. */
    r = file_replace_at(dirfd, NOTE_FILE, group, strlen(group), 0600, false);
    if (r < 0)
        return r;
    if (v2) /* if it fails: it may be enabled already */
        (void)write_file(parent, "cgroup.subtree_control", "+cpu");
    if (mkdir(group, 0755) < 0 && errno != EEXIST)
        return -errno;
    r = set_quota(group, v2, cpus);
    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    if (r == 0)
        r = write_file(group, "cgroup.procs", text);
    if (r < 0)
        cgroup_forget(dirfd);
    return r;
}

/* A process stays in its group until its parent has reaped it, and a monitor's parent is init: give
 * it a moment. */
static void remove_group(const char *group)
{
    struct timespec pause = {.tv_nsec = REAP_PAUSE_NS};
    for (int i = 0; i < REAP_TRIES && rmdir(group) < 0 && errno == EBUSY; i++)
        (void)nanosleep(&pause, NULL);
}

void cgroup_forget(int dirfd)
{
    AUTO_FREE char *group = NULL;
    if (file_read_at(dirfd, NOTE_FILE, PATH_MAX - 1, &group, NULL) < 0)
        return;
    if (strncmp(group, CGROUP_ROOT "/", strlen(CGROUP_ROOT) + 1) == 0)
        remove_group(group);
    (void)unlinkat(dirfd, NOTE_FILE, 0);
}
