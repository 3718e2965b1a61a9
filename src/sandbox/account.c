#include "sandbox/account.h"

#include "client/request.h"
#include "jail/cgroup.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    INFO_MAX = 4096,
    PROCESSES_MAX = 4096, /* that are looked at */
};

/* --- CPU time -------------------------------------------------------------------------------- */

/* Appends the children of all its threads to the list. */
static void add_children(pid_t pid, pid_t *list, size_t *n)
{
    char path[320];
    const struct dirent *e;
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    AUTO_CLOSEDIR DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        int child;
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int)pid, e->d_name);
        AUTO_FCLOSE FILE *f = fopen(path, "re");
        while (f && *n < PROCESSES_MAX && fscanf(f, "%d", &child) == 1)
            list[(*n)++] = child;
    }
}

static uint64_t tree_cpu_ns(pid_t root)
{
    AUTO_FREE pid_t *list = calloc(PROCESSES_MAX, sizeof(*list));
    size_t n = 1;
    uint64_t ticks = 0;
    if (!list)
        return 0;
    list[0] = root;
    for (size_t i = 0; i < n; i++) {
        uint64_t own;
        ticks += process_usage(list[i], &own, &(pid_t){0}) == 0 ? own : 0;
        add_children(list[i], list, &n);
    }
    return ticks * (1000000000ULL / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* --- the record ------------------------------------------------------------------------------ */

static uint64_t counter(const json_t *j, const char *group, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(json_object_get(j, group), name));
    return v > 0 ? (uint64_t)v : 0;
}

/* Asks the monitor of a running sandbox, which may not answer. */
static void ask(const struct sandbox *sb, struct sandbox_used *u)
{
    char text[INFO_MAX];
    u->cpu_ns = tree_cpu_ns(sb->state.pid);
    bool uml = strncmp(sb->state.engine, "uml", 3) == 0;
    if (uml && cgroup_cpu_ns(sb->dirfd) == 0) /* only the guest knows its ended processes */
        request_news(sb->dirfd);
    if (request_info(sb->dirfd, true, text, sizeof(text)) < 0)
        return;
    AUTO_JSON json_t *j = json_loads(text, 0, NULL);
    u->cpu_ns = MAX(u->cpu_ns, uml ? counter(j, "guest", "cpu_ns") : 0);
    u->received = counter(j, "net", "rx_bytes");
    u->sent = counter(j, "net", "tx_bytes");
    u->read = counter(j, "disk", "read_bytes");
    u->written = counter(j, "disk", "write_bytes");
}

static json_t *usage_json(struct sandbox *sb)
{
    const struct sandbox_state *st = &sb->state;
    uint64_t end = st->pid ? realtime_ns() : MIN(st->updated_ns, realtime_ns());
    /* A run cannot begin before the creation, or have more CPU time than all CPUs could give it. */
    uint64_t begin = MAX(st->started_ns, sb->spec.created_ns);
    uint64_t ran = end > begin ? end - begin : 0;
    if (st->pid)
        ask(sb, &sb->state.used);
    struct sandbox_used u = st->used;
    u.cpu_ns = MAX(u.cpu_ns, cgroup_cpu_ns(sb->dirfd)); /* which includes ended processes */
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    u.cpu_ns = MIN(u.cpu_ns, ran > UINT64_MAX / 4096 ? ran : ran * (uint64_t)(cpus > 0 ? cpus : 1));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "run", (json_int_t)st->started_ns,
                     "ms", (json_int_t)(ran / 1000000), "cpu_ms", (json_int_t)(u.cpu_ns / 1000000),
                     "rx_bytes", (json_int_t)u.received, "tx_bytes", (json_int_t)u.sent,
                     "read_bytes", (json_int_t)u.read, "write_bytes", (json_int_t)u.written, "from",
                     "sandbox");
}

json_t *account_take(struct sandbox *sb)
{
    json_t *labels = audit_labels(&sb->spec);
    if (json_array_size(labels) == 0) {
        json_decref(labels);
        labels = NULL;
    }
    return json_pack("{s:o*, s:o*}", "labels", labels, "usage",
                     sb->state.started_ns ? usage_json(sb) : NULL);
}
