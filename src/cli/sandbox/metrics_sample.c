#include "cli/sandbox/metrics.h"

#include "cli/core/noun.h"
#include "cli/sandbox/usage.h"
#include "client/request.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { INFO_MAX = 4096 };

/* --- looking --------------------------------------------------------------------------------- */

static uint64_t counter(const json_t *j, const char *group, const char *name)
{
    const json_t *in = group ? json_object_get(j, group) : j;
    json_int_t v = json_integer_value(json_object_get(in, name));
    return v > 0 ? (uint64_t)v : 0;
}

/* The monitor may be compromised: its numbers are only displayed. */
static bool ask_monitor(int dirfd, struct sample *s)
{
    char text[INFO_MAX];
    if (request_info(dirfd, false, text, sizeof(text)) < 0)
        return false;
    AUTO_JSON json_t *j = json_loads(text, 0, NULL);
    s->execs = counter(j, NULL, "execs");
    s->read = counter(j, "disk", "read_bytes");
    s->written = counter(j, "disk", "write_bytes");
    s->received = counter(j, "net", "rx_bytes");
    s->sent = counter(j, "net", "tx_bytes");
    return true;
}

static void take(const struct store *store, const struct sandbox *sb, const struct usage_table *t,
                 struct sample *s)
{
    char path[SPEC_NAME_MAX + 32];
    struct stat st;
    AUTO_SPEC struct sandbox_spec room;
    spec_init(&room);
    const struct sandbox_spec *spec = active_load(store, sb, &room) ? &room : &sb->spec;
    *s = (struct sample){.state = "exited",
                         .cpus = spec->cpus,
                         .at_ns = realtime_ns(),
                         .memory_limit = spec->memory_mib * MIB};
    (void)snprintf(s->name, sizeof(s->name), "%s", sb->spec.name);
    (void)snprintf(path, sizeof(path), "%s/upper.ext4", sb->spec.name);
    if (fstatat(store->sandboxes_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        s->disk_allocated = (uint64_t)st.st_blocks * 512;
    if (sb->state.pid == 0)
        return;
    if (sb->state.started_ns && s->at_ns > sb->state.started_ns)
        s->up_ns = s->at_ns - sb->state.started_ns;
    usage_of(t, sb->state.pid, &s->cpu_ns, &s->memory);
    AUTO_CLOSE int dirfd =
        openat(store->sandboxes_fd, sb->spec.name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    s->state = dirfd >= 0 && ask_monitor(dirfd, s) ? "running" : "stalled";
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sample *)a)->name, ((const struct sample *)b)->name);
}

static int by_cpu(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    return x->cpu_percent != y->cpu_percent ? x->cpu_percent > y->cpu_percent ? -1 : 1
                                            : by_name(a, b);
}

static int by_memory(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    return x->memory != y->memory ? x->memory > y->memory ? -1 : 1 : by_name(a, b);
}

/* The named one, or all. */
static int list(const struct args *a, const struct store *s, struct sandbox **ret, size_t *n,
                struct err *e)
{
    if (a->n_pos == 0)
        return store_list(s, ret, n, e);
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return err_oom(e);
    int r = sandbox_open(s, a->pos[0], *ret, e);
    *n = r == 0;
    return r;
}

int metrics_load(const struct args *a, struct metrics *ret, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct sandbox *all = NULL;
    struct usage_table t = {0};
    size_t n = 0;
    int r = store_open(&s, e);
    if (r == 0)
        r = list(a, &s, &all, &n, e);
    struct sample *v = r == 0 ? calloc(n ? n : 1, sizeof(*v)) : NULL;
    if (r == 0 && (!v || usage_load(&t) == -ENOMEM))
        r = err_oom(e);
    ret->v = v;
    for (size_t i = 0; r == 0 && v && i < n; i++)
        if (all[i].state.pid || a->n_pos || args_has(a, "all"))
            take(&s, &all[i], &t, &v[ret->n++]);
    usage_free(&t);
    sandbox_list_free(all, n);
    const char *sort = args_get(a, "sort");
    ret->by_cpu = sort && strcmp(sort, "cpu") == 0;
    if (v && ret->n)
        qsort(v, ret->n, sizeof(*v), sort && *sort == 'm' ? by_memory : by_name);
    return r;
}

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

static void compare(struct sample *s, const struct sample *old)
{
    double seconds = s->at_ns > old->at_ns ? (double)(s->at_ns - old->at_ns) / 1e9 : 0;
    s->cpu_percent = rate(s->cpu_ns, old->cpu_ns, seconds) / 1e7;
    s->read_rate = rate(s->read, old->read, seconds);
    s->write_rate = rate(s->written, old->written, seconds);
    s->receive_rate = rate(s->received, old->received, seconds);
    s->send_rate = rate(s->sent, old->sent, seconds);
}

void metrics_compare(struct metrics *now, const struct metrics *before)
{
    for (size_t i = 0; i < now->n; i++)
        for (size_t j = 0; j < before->n; j++)
            if (strcmp(now->v[i].name, before->v[j].name) == 0)
                compare(&now->v[i], &before->v[j]);
    if (now->by_cpu && now->n)
        qsort(now->v, now->n, sizeof(*now->v), by_cpu);
}

void metrics_free(struct metrics *m)
{
    free(m->v);
    *m = (struct metrics){0};
}

/* --- showing --------------------------------------------------------------------------------- */

static void two_rates(double a, double b, char *out, size_t size)
{
    char x[32], y[32];
    format_bytes((uint64_t)a, x, sizeof(x));
    format_bytes((uint64_t)b, y, sizeof(y));
    (void)snprintf(out, size, "%s / %s", x, y);
}

static void add_row(struct table *t, const struct sample *s)
{
    char text[96], used[32], limit[32];
    TABLE_ROW(t, s->name, s->state);
    (void)snprintf(text, sizeof(text), "%.1f%%", s->cpu_percent);
    table_add(t, text);
    format_bytes(s->memory, used, sizeof(used));
    format_bytes(s->memory_limit, limit, sizeof(limit));
    (void)snprintf(text, sizeof(text), "%s / %s", used, limit);
    table_add(t, text);
    two_rates(s->read_rate, s->write_rate, text, sizeof(text));
    table_add(t, text);
    two_rates(s->receive_rate, s->send_rate, text, sizeof(text));
    table_add(t, text);
    format_duration(s->up_ns / 1000000000 * 1000, text, sizeof(text));
    table_add(t, s->up_ns ? text : "-");
}

void metrics_table(const struct metrics *m, struct buf *out)
{
    static const char *const headers[] = {"NAME",        "STATE",        "CPU",   "MEM",
                                          "DISK R/W /s", "NET RX/TX /s", "UPTIME"};
    AUTO_TABLE struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < m->n; i++)
        add_row(&t, &m->v[i]);
    (void)table_print(&t, out, NULL);
}

static json_t *sample_json(const struct sample *s)
{
    json_t *j = json_pack("{s:s, s:s, s:o, s:o, s:f, s:I, s:I, s:n, s:I, s:I}", "name", s->name,
                          "state", s->state, "cpus", json_number(s->cpus), "timestamp",
                          json_time(s->at_ns), "cpu_percent", s->cpu_percent, "vcpu_time_ns",
                          (json_int_t)s->cpu_ns, "memory_bytes", (json_int_t)s->memory,
                          "memory_available_bytes", "memory_host_resident_bytes",
                          (json_int_t)s->memory, "memory_limit_bytes", (json_int_t)s->memory_limit);
    AUTO_JSON json_t *more = json_pack(
        "{s:I, s:I, s:I, s:I, s:n, s:n, s:I, s:I, s:I}", "disk_read_bytes", (json_int_t)s->read,
        "disk_write_bytes", (json_int_t)s->written, "net_rx_bytes", (json_int_t)s->received,
        "net_tx_bytes", (json_int_t)s->sent, "upper_used_bytes", "upper_free_bytes",
        "upper_host_allocated_bytes", (json_int_t)s->disk_allocated, "uptime_secs",
        (json_int_t)(s->up_ns / 1000000000), "execs", (json_int_t)s->execs);
    if (j && more)
        (void)json_object_update(j, more);
    return j;
}

json_t *metrics_json(const struct metrics *m, bool one)
{
    if (one && m->n == 1)
        return sample_json(&m->v[0]);
    json_t *a = json_array();
    for (size_t i = 0; i < m->n; i++)
        (void)json_array_append_new(a, sample_json(&m->v[i]));
    return a;
}

void metrics_lines(const struct metrics *m, struct buf *out)
{
    for (size_t i = 0; i < m->n; i++) {
        AUTO_JSON json_t *j = sample_json(&m->v[i]);
        AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
        (void)buf_printf(out, "%s\n", text ? text : "{}");
    }
}

/* Names of sandboxes need no quoting: they are letters, digits and ._- */
static void family(struct buf *out, const struct metrics *m, const char *name, const char *type,
                   const char *help, double (*value)(const struct sample *s))
{
    (void)buf_printf(out, "# HELP msb_%s %s\n# TYPE msb_%s %s\n", name, help, name, type);
    for (size_t i = 0; i < m->n; i++)
        (void)buf_printf(out, "msb_%s{sandbox=\"%s\"} %.15g\n", name, m->v[i].name,
                         value(&m->v[i]));
}

#define VALUE(id, expression)                \
    static double id(const struct sample *s) \
    {                                        \
        return (double)(expression);         \
    }
VALUE(value_up, strcmp(s->state, "running") == 0)
VALUE(value_cpu, (double)s->cpu_ns / 1e9)
VALUE(value_memory, s->memory)
VALUE(value_limit, s->memory_limit)
VALUE(value_read, s->read)
VALUE(value_written, s->written)
VALUE(value_received, s->received)
VALUE(value_sent, s->sent)
VALUE(value_execs, s->execs)

void metrics_prometheus(const struct metrics *m, struct buf *out)
{
    family(out, m, "up", "gauge", "Whether the sandbox runs and its monitor answers", value_up);
    family(out, m, "cpu_seconds_total", "counter", "CPU time on the host", value_cpu);
    family(out, m, "memory_bytes", "gauge", "Memory on the host", value_memory);
    family(out, m, "memory_limit_bytes", "gauge", "Memory of the guest", value_limit);
    family(out, m, "disk_read_bytes_total", "counter", "Bytes read from disks", value_read);
    family(out, m, "disk_written_bytes_total", "counter", "Bytes written to disks", value_written);
    family(out, m, "network_received_bytes_total", "counter", "Bytes to the guest", value_received);
    family(out, m, "network_sent_bytes_total", "counter", "Bytes from the guest", value_sent);
    family(out, m, "execs_total", "counter", "Commands started", value_execs);
}
