/* Named volumes: create, list, inspect, remove. */
#include "store/volume.h"
#include "cli/args.h"
#include "cli/select.h"
#include "cli/show.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How much it may hold; 0 = no limit. */
static uint64_t capacity_of(const struct volume *v)
{
    return v->kind == VOLUME_DISK ? v->size : v->quota;
}

static json_t *volume_json(const struct store *s, const struct volume *v)
{
    uint64_t mib = (v->quota + MIB - 1) / MIB, capacity = capacity_of(v);
    bool disk = v->kind == VOLUME_DISK;
    return json_pack("{s:o, s:o, s:s?, s:s?, s:s, s:s, s:o, s:I}", "capacity_bytes",
                     capacity ? json_integer((json_int_t)capacity) : json_null(), "created_at",
                     json_time(v->created_ns), "disk_format", disk ? "raw" : NULL, "disk_fstype",
                     disk ? "ext4" : NULL, "kind", volume_kind_name(v->kind), "name", v->name,
                     "quota_mib", mib ? json_integer((json_int_t)mib) : json_null(), "used_bytes",
                     (json_int_t)volume_used(s, v));
}

/* What it may hold is in whole MiB; what it holds may be little. */
static void capacity_text(uint64_t bytes, char *out, size_t size)
{
    format_mib((bytes + MIB - 1) / MIB, out, size);
}

/* --- create ---------------------------------------------------------------------------------- */

static int wanted_name(const struct args *a, const char **ret, struct err *e)
{
    const char *option = args_get(a, "name");
    if (a->n_pos && option)
        return err_set(e, EINVAL, "the name is given twice: '%s' and --name '%s'", a->pos[0],
                       option);
    *ret = a->n_pos ? a->pos[0] : option;
    return *ret ? 0 : err_set(e, EINVAL, "a volume needs a name: msb volume create NAME");
}

static int create(const struct args *a, const struct store *s, const char *name, struct err *e)
{
    const char *size = args_get(a, "size"), *kind = args_get(a, "kind");
    bool disk = kind && strcmp(kind, "disk") == 0;
    uint64_t bytes = 0;
    if (size && (parse_size(size, MIB, &bytes) < 0 || bytes == 0))
        return args_bad_value(a, "size", size, PARSE_SIZE_EXAMPLES, e);
    if (disk && !size) {
        (void)err_set(e, EINVAL, "a disk needs a size");
        err_hint(e, "such as: msb volume create %s --kind disk --size 1G", name);
        return -EINVAL;
    }
    return volume_create(s, name, disk ? VOLUME_DISK : VOLUME_DIR, bytes, e);
}

static int create_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    const char *name = NULL;
    ui_set_quiet(args_has(a, "quiet"));
    if (wanted_name(a, &name, &e) < 0)
        return ui_usage(&e);
    int r = store_open(&s, &e);
    if (r == 0)
        r = create(a, &s, name, &e);
    store_close(&s);
    if (r < 0)
        return ui_fail(&e);
    return ui_quiet() ? EXIT_OK : ui_print_line(name);
}

static const struct opt create_opts[] = {
    {.name = "name", .value = "NAME", .help = "Name of the volume, instead of the argument"},
    {.name = "kind", .value = "KIND", .help = "What it is (default: dir)", .choices = "dir|disk"},
    {.name = "size",
     .value = "SIZE",
     .help = "How much it may hold; a disk needs one (default: no limit)"},
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_volume_create = {
    .name = "create",
    .group = GROUP_STORAGE,
    .parent = &cmd_volume,
    .summary = "Make a volume",
    .opts = {create_opts},
    .pos = {.name = "NAME", .help = "Name of the volume"},
    .examples = "  msb volume create data\n"
                "  msb volume create cache --size 10G\n"
                "  msb volume create db --kind disk --size 1G",
    .run = create_run,
};

/* --- list ------------------------------------------------------------------------------------ */

static int list_table(const struct store *s, const struct volume *list, size_t n)
{
    static const char *const headers[] = {"NAME", "KIND", "SIZE", "CREATED"};
    struct table t;
    table_init(&t, ARRAY_LEN(headers), headers);
    for (size_t i = 0; i < n; i++) {
        char size[32], when[TIME_TEXT_MAX];
        bool disk = list[i].kind == VOLUME_DISK;
        if (disk)
            capacity_text(list[i].size, size, sizeof(size));
        else
            format_bytes(volume_used(s, &list[i]), size, sizeof(size));
        time_local(list[i].created_ns, when);
        table_add(&t, list[i].name);
        table_add(&t, volume_kind_name(list[i].kind));
        table_add(&t, size);
        table_add(&t, when);
    }
    int code = show_table(&t, TABLE_COLUMNS_MAX);
    table_free(&t);
    return code;
}

static int list_names(const struct volume *list, size_t n)
{
    int code = EXIT_OK;
    for (size_t i = 0; code == EXIT_OK && i < n; i++)
        code = ui_print_line(list[i].name);
    return code;
}

static int list_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    struct volume *list = NULL;
    size_t n = 0;
    int code, r = store_open(&s, &e);
    if (r == 0)
        r = volume_list(&s, &list, &n, &e);
    if (r < 0) {
        code = ui_fail(&e);
    } else if (wants_json(a)) {
        json_t *all = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(all, volume_json(&s, &list[i]));
        code = ui_print_json(all);
    } else if (args_has(a, "quiet")) {
        code = list_names(list, n);
    } else if (n == 0) {
        ui_note("No volumes found.");
        code = EXIT_OK;
    } else {
        code = list_table(&s, list, n);
    }
    free(list);
    store_close(&s);
    return code;
}

static const struct opt list_opts[] = {
    FORMAT_OPTION,
    {.name = "quiet", .letter = 'q', .help = "Print names and nothing else"},
    {0},
};

const struct cmd cmd_volume_list = {
    .name = "list",
    .alias = "ls",
    .group = GROUP_STORAGE,
    .parent = &cmd_volume,
    .summary = "Show volumes",
    .opts = {list_opts},
    .examples = "  msb volume list --format json",
    .run = list_run,
};

/* --- inspect --------------------------------------------------------------------------------- */

static int print_volume(const struct store *s, const struct volume *v)
{
    struct buf b;
    char used[32], quota[32] = "none", when[TIME_TEXT_MAX];
    bool disk = v->kind == VOLUME_DISK;
    AUTO_FREE char *path = volume_path(s, v);
    format_bytes(volume_used(s, v), used, sizeof(used));
    if (capacity_of(v))
        capacity_text(capacity_of(v), quota, sizeof(quota));
    time_local(v->created_ns, when);
    buf_init(&b, SIZE_MAX / 2);
    (void)buf_printf(&b, "Name:           %s\nKind:           %s\nUsed:           %s\n", v->name,
                     volume_kind_name(v->kind), used);
    (void)buf_printf(&b, "%s          %s\nCreated:        %s\nPath:           %s\n",
                     disk ? "Size: " : "Quota:", quota, when, path ? path : "");
    int code = ui_print(&b);
    buf_free(&b);
    return code;
}

static int inspect_run(const struct args *a)
{
    struct store s;
    struct err e = {0};
    struct volume v = {0};
    int code, r = store_open(&s, &e);
    if (r == 0)
        r = volume_open(&s, a->pos[0], &v, &e);
    if (r < 0)
        code = ui_fail(&e);
    else
        code = wants_json(a) ? ui_print_json(volume_json(&s, &v)) : print_volume(&s, &v);
    store_close(&s);
    return code;
}

static const struct opt inspect_opts[] = {FORMAT_OPTION, {0}};

const struct cmd cmd_volume_inspect = {
    .name = "inspect",
    .group = GROUP_STORAGE,
    .parent = &cmd_volume,
    .summary = "Show one volume",
    .opts = {inspect_opts},
    .pos = {.name = "NAME", .help = "Volume to show", .required = true},
    .examples = "  msb volume inspect data --format json",
    .run = inspect_run,
};

/* --- remove ---------------------------------------------------------------------------------- */

static int remove_run(const struct args *a)
{
    return for_each_named(a, "Removed", volume_remove);
}

static const struct opt remove_opts[] = {
    {.name = "quiet", .letter = 'q', .help = "Say nothing unless it fails"},
    {0},
};

const struct cmd cmd_volume_remove = {
    .name = "remove",
    .alias = "rm",
    .group = GROUP_STORAGE,
    .parent = &cmd_volume,
    .summary = "Remove volumes and everything in them",
    .opts = {remove_opts},
    .pos = {.name = "NAMES", .help = "Volumes to remove", .required = true, .many = true},
    .examples = "  msb volume rm data",
    .run = remove_run,
};

static const struct cmd *const volume_subs[] = {
    &cmd_volume_create, &cmd_volume_list, &cmd_volume_inspect, &cmd_volume_remove, NULL,
};

const struct cmd cmd_volume = {
    .name = "volume",
    .alias = "vol",
    .group = GROUP_STORAGE,
    .summary = "Manage named volumes",
    .subs = volume_subs,
    .details =
        "A volume is a directory that outlives sandboxes: msb run -v data:/data. One that is\n"
        "mounted but not there is made. A volume of kind disk is a file with a file system in it,\n"
        "which one running sandbox may write at a time, or several read: faster than a directory\n"
        "of the host, and of a fixed size.",
    .examples = "  msb volume create data --size 10G\n"
                "  msb run -v data:/data -- sh -c 'date >>/data/log'",
};
