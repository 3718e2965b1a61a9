#include "cli/audit/stats.h"

#include "cli/core/ui.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NO_LABEL "-"

/* As in the record's "usage". */
static const char *const fields[] = {"ms",       "cpu_ms",     "rx_bytes",
                                     "tx_bytes", "read_bytes", "write_bytes"};
/* As they are shown. */
static const char *const times[] = {"seconds", "cpu_seconds"};

int audit_stats_init(struct audit_stats *t)
{
    *t = (struct audit_stats){.rows = json_object(), .runs = json_object()};
    return t->rows && t->runs ? 0 : -ENOMEM;
}

void audit_stats_free(struct audit_stats *t)
{
    json_decref(t->rows);
    json_decref(t->runs);
    *t = (struct audit_stats){0};
}

static void add(json_t *row, const char *key, double v)
{
    (void)json_object_set_new(row, key,
                              json_real(json_number_value(json_object_get(row, key)) + v));
}

/* Adds to the row of each label of the record; sandboxes without one have a separate row. */
static void add_to_rows(struct audit_stats *t, const json_t *j, const char *key, double v)
{
    const json_t *labels = json_object_get(j, "labels");
    size_t n = json_array_size(labels);
    for (size_t i = 0; i < MAX(n, (size_t)1); i++) {
        const char *label = n ? json_string_value(json_array_get(labels, i)) : NO_LABEL;
        if (!label)
            continue;
        json_t *row = json_object_get(t->rows, label);
        if (!row) {
            row = json_object();
            (void)json_object_set_new(t->rows, label, row);
        }
        add(row, key, v);
    }
}

/* A run may be recorded twice, when it stops and when it is removed: only what is new counts. */
static void add_run(struct audit_stats *t, const char *sandbox, const json_t *j,
                    const json_t *usage)
{
    json_t *last = json_object_get(t->runs, sandbox);
    bool again = last && json_equal(json_object_get(last, "run"), json_object_get(usage, "run"));
    if (!again) {
        last = json_pack("{s:O?}", "run", json_object_get(usage, "run"));
        (void)json_object_set_new(t->runs, sandbox, last);
        add_to_rows(t, j, "runs", 1);
    }
    for (size_t i = 0; last && i < ARRAY_LEN(fields); i++) {
        double was = json_number_value(json_object_get(last, fields[i]));
        double now = json_number_value(json_object_get(usage, fields[i]));
        if (now > was) {
            add_to_rows(t, j, fields[i], now - was);
            (void)json_object_set_new(last, fields[i], json_real(now));
        }
    }
}

void audit_stats_add(struct audit_stats *t, const char *event, const char *sandbox, const json_t *j)
{
    const json_t *usage = json_object_get(j, "usage");
    if (!sandbox)
        return;
    if (event && strcmp(event, "create") == 0 && !json_object_get(j, "error"))
        add_to_rows(t, j, "sandboxes", 1);
    if (json_is_object(usage))
        add_run(t, sandbox, j, usage);
}

/* --- showing --------------------------------------------------------------------------------- */

static double value(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static int print_json(const struct audit_stats *t)
{
    json_t *list = json_array(), *row;
    const char *label;
    json_object_foreach(t->rows, label, row)
    {
        json_t *o =
            json_pack("{s:s, s:I, s:I}", "label", label, "sandboxes",
                      (json_int_t)value(row, "sandboxes"), "runs", (json_int_t)value(row, "runs"));
        for (size_t i = 0; o && i < ARRAY_LEN(fields); i++) {
            double v = value(row, fields[i]);
            if (i < ARRAY_LEN(times))
                (void)json_object_set_new(o, times[i], json_real(v / 1000));
            else
                (void)json_object_set_new(o, fields[i], json_integer((json_int_t)v));
        }
        (void)json_array_append_new(list, o);
    }
    return ui_print_json(list);
}

static void add_row(struct table *t, const char *label, const json_t *row)
{
    char text[32];
    table_add(t, label);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text, sizeof(text), "%.0f", value(row, i ? "runs" : "sandboxes"));
        table_add(t, text);
    }
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text, sizeof(text), "%.1f", value(row, fields[i]) / 1000);
        table_add(t, text);
    }
    for (size_t i = 2; i < ARRAY_LEN(fields); i++) {
        format_bytes((uint64_t)value(row, fields[i]), text, sizeof(text));
        table_add(t, text);
    }
}

int audit_stats_print(const struct audit_stats *t, bool json)
{
    static const char *const headers[] = {"LABEL",    "SANDBOXES", "RUNS", "SECONDS", "CPU",
                                          "RECEIVED", "SENT",      "READ", "WRITTEN"};
    if (json)
        return print_json(t);
    AUTO_BUF struct buf out = {.limit = SIZE_MAX / 2};
    AUTO_TABLE struct table table;
    const char *label;
    json_t *row;
    table_init(&table, ARRAY_LEN(headers), headers);
    json_object_foreach(t->rows, label, row)
    {
        add_row(&table, label, row);
    }
    (void)table_print(&table, &out, NULL);
    return ui_print(&out);
}
