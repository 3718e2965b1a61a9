/* state.json and spec.json. */
#include "store/impl.h"
#include "store/json_file.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    SPEC_FILE_MAX = 96 * 1024 * 1024, /* 64 scripts of 1 MiB, escaped */
    STATE_FILE_MAX = 4096,
};

static const struct {
    const char *name, *lower;
} status_names[] = {
    [STATUS_CREATING] = {"Creating", "creating"}, [STATUS_STARTING] = {"Starting", "starting"},
    [STATUS_RUNNING] = {"Running", "running"},    [STATUS_DRAINING] = {"Draining", "draining"},
    [STATUS_STOPPED] = {"Stopped", "stopped"},    [STATUS_CRASHED] = {"Crashed", "crashed"},
};

const char *status_name(enum status st)
{
    return status_names[st].name;
}

const char *status_lower(enum status st)
{
    return status_names[st].lower;
}

static enum status status_parse(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(status_names); i++)
        if (strcmp(name, status_names[i].name) == 0)
            return (enum status)i;
    return (enum status) - 1;
}

int state_save(int run_fd, const struct sandbox_state *st)
{
    const struct sandbox_used *u = &st->used;
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:[I,I,I,I,I]}", "status",
                          status_name(st->status), "reason", st->reason, "engine", st->engine,
                          "jail", st->jail, "started_ns", (json_int_t)st->started_ns, "updated_ns",
                          (json_int_t)st->updated_ns, "oom_kills", (json_int_t)st->oom_kills,
                          "used", (json_int_t)u->cpu_ns, (json_int_t)u->received,
                          (json_int_t)u->sent, (json_int_t)u->read, (json_int_t)u->written);
    if (!j) /* the reason quotes a guest and is not UTF-8: leave it out */
        j = json_pack("{s:s, s:s}", "status", status_name(st->status), "reason", "");
    return json_file_save(run_fd, "state.json", j, false);
}

/* Written by a monitor: anything that is not a number of bytes counts as none. */
static void used_load(const json_t *j, struct sandbox_used *u)
{
    uint64_t *const to[] = {&u->cpu_ns, &u->received, &u->sent, &u->read, &u->written};
    for (size_t i = 0; i < ARRAY_LEN(to); i++) {
        json_int_t v = json_integer_value(json_array_get(j, i));
        *to[i] = v > 0 ? (uint64_t)v : 0;
    }
}

int state_load_at(int at, const char *path, struct sandbox_state *st)
{
    AUTO_JSON json_t *j = NULL;
    *st = (struct sandbox_state){.status = STATUS_CREATING};
    int r = json_file_load(at, path, STATE_FILE_MAX, &j);
    if (r < 0)
        return r;
    const char *status = "", *reason = "", *engine = "", *jail = "";
    json_int_t started = 0, updated = 0, kills = 0;
    r = json_unpack(j, "{s:s, s?s, s?s, s?s, s?I, s?I, s?I}", "status", &status, "reason", &reason,
                    "engine", &engine, "jail", &jail, "started_ns", &started, "updated_ns",
                    &updated, "oom_kills", &kills);
    enum status parsed = r == 0 ? status_parse(status) : (enum status) - 1;
    if (parsed == (enum status) - 1)
        return -EINVAL;
    st->status = parsed;
    (void)snprintf(st->reason, sizeof(st->reason), "%s", reason);
    (void)snprintf(st->engine, sizeof(st->engine), "%s", engine);
    (void)snprintf(st->jail, sizeof(st->jail), "%s", jail);
    st->started_ns = started > 0 ? (uint64_t)started : 0;
    st->updated_ns = updated > 0 ? (uint64_t)updated : 0;
    st->oom_kills = kills > 0 ? (uint64_t)kills : 0;
    used_load(json_object_get(j, "used"), &st->used);
    return 0;
}

/* A damaged one counts as none: it is only for display. */
#define ACTIVE_FILE "active.json"

/* --- spec.json ------------------------------------------------------------------------------ */

void spec_sweep(int dirfd)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(dirfd, ".");
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (strncmp(e->d_name, ".spec.json.", strlen(".spec.json.")) == 0 ||
            strncmp(e->d_name, "." ACTIVE_FILE ".", strlen("." ACTIVE_FILE ".")) == 0)
            (void)unlinkat(dirfd, e->d_name, 0);
}

static int save(int dirfd, const char *file, const struct sandbox_spec *spec, bool sync,
                struct err *e)
{
    json_t *j = spec_to_json(spec);
    if (!j)
        return err_set(e, EINVAL, "cannot store the settings of sandbox '%s': not UTF-8",
                       spec->name);
    int r = json_file_save(dirfd, file, j, sync);
    return r < 0 ? err_sys(e, -r, "cannot write the spec of sandbox '%s'", spec->name) : 0;
}

int spec_save(int dirfd, const struct sandbox_spec *spec, bool sync, struct err *e)
{
    return save(dirfd, "spec.json", spec, sync, e);
}

int active_save(int dirfd, const struct sandbox_spec *spec, struct err *e)
{
    return save(dirfd, ACTIVE_FILE, spec, false, e);
}

void active_forget(int dirfd)
{
    (void)unlinkat(dirfd, ACTIVE_FILE, 0);
}

/* A running sandbox has the network in its spec, except for secrets: it is changed at once or not
 * at all. */
static bool take_network(json_t *active, const struct spec_net *now)
{
    json_t *net = spec_net_to_json(now, false);
    json_t *secrets = json_object_get(json_object_get(active, "network"), "secrets");
    (void)json_object_del(net, "secrets");
    bool ok = !secrets || json_object_set(net, "secrets", secrets) == 0;
    return json_object_set_new(active, "network", net) == 0 && ok;
}

bool active_load(const struct store *s, const struct sandbox *sb, struct sandbox_spec *ret)
{
    AUTO_JSON json_t *j = NULL;
    char path[SPEC_NAME_MAX + 32];
    if (sb->state.pid <= 0)
        return false;
    (void)snprintf(path, sizeof(path), "%s/" ACTIVE_FILE, sb->spec.name);
    int r = json_file_load(s->sandboxes_fd, path, SPEC_FILE_MAX, &j);
    return r == 0 && j && take_network(j, &sb->spec.net) && spec_from_json(ret, j, NULL) == 0;
}

int spec_load_at(int at, const char *path, struct sandbox_spec *spec, struct err *e)
{
    AUTO_JSON json_t *j = NULL;
    int r = json_file_load(at, path, SPEC_FILE_MAX, &j);
    if (r < 0)
        return err_sys(e, -r, "cannot read spec.json");
    return j ? spec_from_json(spec, j, e) : err_set(e, EINVAL, "spec.json is damaged");
}
