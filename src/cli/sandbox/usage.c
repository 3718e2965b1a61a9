#include "cli/sandbox/usage.h"

#include "util/array.h"
#include "util/cleanup.h"
#include "util/process.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES_MAX = 1 << 20 };

static int by_pid(const void *a, const void *b)
{
    const struct usage_process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

int usage_load(struct usage_table *t)
{
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    const struct dirent *e;
    size_t room = 0;
    *t = (struct usage_table){0};
    if (!d)
        return -errno;
    while ((e = readdir(d)) && t->n < PROCESSES_MAX) {
        struct usage_process p = {.pid = (pid_t)strtol(e->d_name, NULL, 10)};
        if (p.pid <= 0 || process_usage(p.pid, &p.ticks, &p.parent) < 0)
            continue;
        if (t->n == room) {
            room = room ? 2 * room : 256;
            if (ARRAY_RESIZE(t->v, room) < 0)
                return -ENOMEM;
        }
        t->v[t->n++] = p;
    }
    if (t->n)
        qsort(t->v, t->n, sizeof(*t->v), by_pid);
    return 0;
}

void usage_free(struct usage_table *t)
{
    free(t->v);
    *t = (struct usage_table){0};
}

/* Its proportional share of each page, or else its resident memory. */
static uint64_t memory_of(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kib = 0, resident = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "Pss: %llu kB", &kib) == 1)
            return kib << 10;
    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    AUTO_FCLOSE FILE *s = fopen(path, "re");
    if (!s || fscanf(s, "%*u %llu", &resident) != 1)
        return 0;
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool descends(const struct usage_table *t, pid_t pid, pid_t root)
{
    for (int depth = 0; t->n && depth < 64 && pid > 1; depth++) {
        if (pid == root)
            return true;
        const struct usage_process key = {.pid = pid};
        const struct usage_process *p = bsearch(&key, t->v, t->n, sizeof(key), by_pid);
        if (!p)
            return false;
        pid = p->parent;
    }
    return false;
}

void usage_of(const struct usage_table *t, pid_t root, uint64_t *cpu_ns, uint64_t *memory)
{
    uint64_t ticks = 0, per_second = (uint64_t)sysconf(_SC_CLK_TCK);
    *memory = 0;
    for (size_t i = 0; i < t->n; i++)
        if (descends(t, t->v[i].pid, root)) {
            ticks += t->v[i].ticks;
            *memory += memory_of(t->v[i].pid);
        }
    *cpu_ns = ticks * (1000000000 / per_second);
}
