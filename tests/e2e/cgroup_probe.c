/* Makes the group of a sandbox, starts a process in it, and says what it finds there; then removes
 * the group. Runs in a guest, whose kernel has the common hierarchy (v2) and gives its root all of
 * it, whatever the host has.
 *
 * usage: cgroup_probe DIR
 */
#include "jail/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(const char *group, const char *file)
{
    char path[4096], line[256] = "";
    (void)snprintf(path, sizeof(path), "%s/%s", group, file);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof(line), f))
        line[strcspn(line, "\n")] = '\0';
    if (f)
        (void)fclose(f);
    printf("%s %s\n", file, line);
}

int main(int argc, char **argv)
{
    struct cgroups g;
    struct cgroup_limits l = {.cpus = 0.5};
    int dirfd = open(argc > 1 ? argv[1] : ".", O_RDONLY | O_DIRECTORY);
    cgroup_limits_for(&l, 128UL << 20);
    cgroup_make(&g, dirfd, "probe", &l);
    printf("errors %d %d %d\n", g.error[CGROUP_CPU], g.error[CGROUP_MEMORY], g.error[CGROUP_PIDS]);
    printf("born %d\n", g.fd >= 0);
    (void)fflush(stdout);
    if (!g.path)
        return 1;
    pid_t pid = cgroup_fork(&g);
    if (pid == 0) {
        pause();
        _exit(0);
    }
    cgroup_put(&g, pid);
    char members[32];
    (void)snprintf(members, sizeof(members), "%d", (int)pid);
    show(g.path, "cpu.max");
    show(g.path, "memory.max");
    show(g.path, "pids.max");
    show(g.path, "cgroup.procs");
    printf("child %s\n", members);
    (void)kill(pid, 9);
    (void)waitpid(pid, NULL, 0);
    char *path = strdup(g.path);
    cgroup_free(&g);
    cgroup_forget(dirfd);
    printf("left %d\n", access(path, F_OK) == 0);
    free(path);
    return 0;
}
