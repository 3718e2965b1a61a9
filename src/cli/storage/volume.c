/* Named volumes: create, list, inspect, remove. */
#include "store/volume.h"
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "policy/rulebook.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How much it may hold; 0 = no limit. */
static uint64_t capacity_of(const struct volume *v)
{
    return v->kind == VOLUME_DISK ? v->size : v->quota;
}

static const struct volume *volume_item(const struct items *l, size_t i)
{
    return (const struct volume *)l->v + i;
}

static json_t *volume_json(const struct items *l, size_t i)
{
    const struct volume *v = volume_item(l, i);
    uint64_t mib = (v->quota + MIB - 1) / MIB, capacity = capacity_of(v);
    bool disk = v->kind == VOLUME_DISK;
    return json_pack("{s:o, s:o, s:s?, s:s?, s:s, s:s, s:o, s:I}", "capacity_bytes",
                     capacity ? json_integer((json_int_t)capacity) : json_null(), "created_at",
                     json_time(v->created_ns), "disk_format", disk ? "raw" : NULL, "disk_fstype",
                     disk ? "ext4" : NULL, "kind", volume_kind_name(v->kind), "name", v->name,
                     "quota_mib", mib ? json_integer((json_int_t)mib) : json_null(), "used_bytes",
                     (json_int_t)volume_used(l->store, v));
}

/* Capacities are whole MiB; what is used may be less than one. */
static void capacity_text(uint64_t bytes, char *out, size_t size)
{
    format_mib((bytes + MIB - 1) / MIB, out, size);
}

/* --- create ---------------------------------------------------------------------------------- */

static int wanted_name(const struct args *a, const char **ret, struct err *e)
{
    const char *option = args_get(a, "name");
    if (a->n_pos && option)
        return err_set(e, EINVAL, "two names given: '%s' and --name '%s'", a->pos[0], option);
    *ret = a->n_pos ? a->pos[0] : option;
    return *ret ? 0 : err_set(e, EINVAL, "no name given: msb volume create NAME");
}

static int create(const struct args *a, const struct store *s, const char *name, struct err *e)
{
    const char *size = args_get(a, "size"), *kind = args_get(a, "kind");
    bool disk = kind && strcmp(kind, "disk") == 0;
    uint64_t bytes = 0;
    if (size && (parse_size(size, MIB, &bytes) < 0 || bytes == 0))
        return args_bad_value(a, "size", size, PARSE_SIZE_EXAMPLES, e);
    if (disk && !size)
        return err_hinted(e, err_set(e, EINVAL, "a disk volume requires --size"),
                          "for example: msb volume create %s --kind disk --size 1G", name);
    int r = disk ? policy_hold_volume(s, name, bytes, e) : 0;
    return r < 0 ? r : volume_create(s, name, disk ? VOLUME_DISK : VOLUME_DIR, bytes, e);
}

static int create_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    const char *name = NULL;
    if (wanted_name(a, &name, &e) < 0)
        return ui_usage(&e);
    int r = store_open(&s, &e);
    if (r == 0)
        r = create(a, &s, name, &e);
    if (r < 0)
        return ui_fail(&e);
    return ui_quiet() ? EXIT_OK : ui_print_line(name);
}

const struct cmd cmd_volume_create = {
    .name = "create",
    .summary = "Create a volume",
    .opts =
        OPTIONS({"kind", 0, "KIND", "Directory or disk (default: dir)", .choices = "dir|disk"},
                {"size", 0, "SIZE", "Capacity; required for a disk (default: no limit)"},
                {"name", 0, "NAME", "Name of the volume, instead of the argument"}, QUIET_OPTION),
    .pos = MAYBE("NAME", "Name of the volume"),
    .examples = "  msb volume create data\n"
                "  msb volume create cache --size 10G\n"
                "  msb volume create db --kind disk --size 1G",
    .run = create_run,
};

/* --- list, inspect --------------------------------------------------------------------------- */

static void volume_item_row(const struct items *l, size_t i, struct table *t)
{
    const struct volume *v = volume_item(l, i);
    char size[32], when[TIME_TEXT_MAX];
    if (v->kind == VOLUME_DISK)
        capacity_text(v->size, size, sizeof(size));
    else
        format_bytes(volume_used(l->store, v), size, sizeof(size));
    time_local(v->created_ns, when);
    TABLE_ROW(t, v->name, volume_kind_name(v->kind), size, when);
}

static void volume_text(const struct items *l, struct buf *b)
{
    const struct volume *v = l->v;
    char used[32], quota[32] = "none", when[TIME_TEXT_MAX];
    AUTO_FREE char *path = volume_path(l->store, v);
    format_bytes(volume_used(l->store, v), used, sizeof(used));
    if (capacity_of(v))
        capacity_text(capacity_of(v), quota, sizeof(quota));
    time_local(v->created_ns, when);
    text_line(b, "Name:", v->name);
    text_line(b, "Kind:", volume_kind_name(v->kind));
    text_line(b, "Used:", used);
    text_line(b, v->kind == VOLUME_DISK ? "Size:" : "Quota:", quota);
    text_line(b, "Created:", when);
    text_line(b, "Path:", path);
}

static const struct noun volumes = {
    .none = "No volumes found.",
    .headers = {"NAME", "KIND", "SIZE", "CREATED"},
    .kind = &named_volumes,
    .row = volume_item_row,
    .json = volume_json,
    .text = volume_text,
};

static const struct cmd cmd_volume_list = {
    .name = "list",
    .alias = "ls",
    .summary = "List volumes",
    .opts = list_opts,
    .examples = "  msb volume ls\n"
                "  msb volume ls --format json",
    .list = &volumes,
};

static const struct cmd cmd_volume_inspect = {
    .name = "inspect",
    .summary = "Show details of a volume",
    .opts = inspect_opts,
    .pos = ONE("NAME", "Volume to show"),
    .examples = "  msb volume inspect data\n"
                "  msb volume inspect data --format json",
    .inspect = &volumes,
};

/* --- remove ---------------------------------------------------------------------------------- */

static const struct cmd cmd_volume_remove = {
    .name = "remove",
    .alias = "rm",
    .flags = CMD_DESTROYS,
    .summary = "Remove volumes and their data",
    .opts = quiet_opts,
    .pos = SOME("NAMES", "Volumes to remove"),
    .examples = "  msb volume rm data",
    .each = &(const struct action){.done = "Removed", .plain = volume_remove},
};

const struct cmd cmd_volume = {
    .name = "volume",
    .alias = "vol",
    .group = GROUP_STORAGE,
    .summary = "Manage named volumes",
    .subs = VERBS(&cmd_volume_create, &cmd_volume_list, &cmd_volume_inspect, &cmd_volume_remove,
                  &cmd_volume_prune),
    .details = "A volume is a directory that outlives sandboxes. Mounting one that does not exist "
               "creates it. A volume of kind disk is a file system in a file of fixed size: faster "
               "than a directory of the host, and usable by one running sandbox for writing, or by "
               "several for reading.",
    .examples = "  msb volume create data --size 10G\n"
                "  msb run -v data:/data -- sh -c 'date >>/data/log'\n"
                "  msb volume ls",
};
