#include "cli/docker/docker.h"

#include "cli/core/show.h"
#include "cli/core/ui.h"
#include "cli/image/image.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Clients check this before they limit the size of a container's files, which works here. */
#define STORAGE_DRIVER "overlay2"

/* --- inspect: containers --------------------------------------------------------------------- */

static json_t *time_json(uint64_t ns)
{
    char text[TIME_TEXT_MAX];
    if (ns == 0)
        return json_string("0001-01-01T00:00:00Z");
    time_rfc3339(ns, text);
    return json_string(text);
}

static json_t *strings_or_null(const struct strlist *l)
{
    return l->n ? json_list(l->v) : json_null();
}

static json_t *state_json(const struct sandbox *sb, const struct docker_look *l)
{
    return json_pack("{s:s, s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:s, s:o, s:o}", "Status",
                     l->running ? "running" : "exited", "Running", l->running, "Paused", 0,
                     "Restarting", 0, "OOMKilled", sb->state.oom_kills > 0, "Dead", 0, "Pid",
                     (int)sb->state.pid, "ExitCode", l->running ? 0 : l->exit_code, "Error",
                     sb->state.status == STATUS_CRASHED ? sb->state.reason : "", "StartedAt",
                     time_json(sb->state.started_ns), "FinishedAt",
                     time_json(l->running ? 0 : l->ended_ns));
}

static json_t *mounts_json(const struct sandbox_spec *s)
{
    json_t *a = json_array();
    for (size_t i = 0; i < s->n_mounts; i++) {
        const struct spec_mount *m = &s->mounts[i];
        bool rw = !(m->options & PROTO_MOUNT_RO);
        const char *type = m->kind == MOUNT_TMPFS   ? "tmpfs"
                           : m->kind == MOUNT_NAMED ? "volume"
                                                    : "bind";
        json_add(&a, json_pack("{s:s, s:s, s:s, s:s, s:b, s:s}", "Type", type, "Source",
                               m->source ? m->source : "", "Destination", m->guest, "Mode",
                               rw ? "" : "ro", "RW", rw, "Propagation", ""));
    }
    return a;
}

/* {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8080"}]} */
static json_t *ports_json(const struct sandbox *sb)
{
    AUTO_FREE struct spec_port *p = NULL;
    json_t *o = json_object();
    size_t n = show_ports(sb, &p);
    for (size_t i = 0; o && i < n; i++) {
        char key[32], ip[ADDR_TEXT_MAX];
        (void)snprintf(key, sizeof(key), "%u/%s", p[i].guest, p[i].proto == 17 ? "udp" : "tcp");
        addr_format(&p[i].bind, ip);
        json_t *list = json_object_get(o, key);
        if (!list) {
            list = json_array();
            json_put(&o, key, list);
        }
        (void)json_array_append_new(
            list, json_pack("{s:s, s:o}", "HostIp", ip, "HostPort", json_sprintf("%u", p[i].host)));
    }
    return o;
}

/* The resulting capabilities: all dropped, and these added. */
static json_t *caps_json(const struct spec_security *s, bool dropped)
{
    AUTO_JSON json_t *all = spec_security_to_json(s);
    json_t *kept = json_object_get(all, "capabilities");
    if (!json_is_array(kept))
        return json_null();
    return dropped ? json_pack("[s]", "ALL") : json_incref(kept);
}

static json_t *binds_json(const struct sandbox_spec *s)
{
    json_t *a = json_array();
    for (size_t i = 0; i < s->n_mounts; i++) {
        const struct spec_mount *m = &s->mounts[i];
        if (m->source)
            json_add(&a, json_sprintf("%s:%s%s", m->source, m->guest,
                                      m->options & PROTO_MOUNT_RO ? ":ro" : ""));
    }
    return a;
}

static json_t *host_config_json(const struct sandbox_spec *s)
{
    const struct spec_security *sec = &s->security;
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:b, s:s, s:o, s:b, s:o, s:b, s:{s:s, s:i}}",
                     "Memory", (json_int_t)(s->memory_mib * MIB), "NanoCpus",
                     (json_int_t)(s->cpus * 1e9), "PidsLimit",
                     sec->pids ? json_integer(sec->pids) : json_null(), "CapAdd",
                     caps_json(sec, false), "CapDrop", caps_json(sec, true), "ReadonlyRootfs",
                     sec->read_only, "NetworkMode", s->net.off ? "none" : "bridge", "SecurityOpt",
                     sec->no_new_privs ? json_pack("[s]", "no-new-privileges") : json_null(),
                     "AutoRemove", s->ephemeral, "Binds", binds_json(s), "Privileged", 0,
                     "RestartPolicy", "Name", "no", "MaximumRetryCount", 0);
}

static json_t *config_json(const struct sandbox_spec *s)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:s, s:o, s:o, s:b, s:s}", "Hostname",
                     s->hostname ? s->hostname : "", "User", s->user ? s->user : "", "Env",
                     json_list(s->env.v), "Cmd", strings_or_null(&s->cmd), "Image", s->image,
                     "WorkingDir", s->workdir ? s->workdir : "", "Entrypoint",
                     strings_or_null(&s->entrypoint), "Labels", json_pairs(s->labels.v), "Tty", 0,
                     "StopSignal", s->stop_signal ? s->stop_signal : "SIGTERM");
}

/* As `image inspect` prints it; a directory or archive has only a digest. */
static json_t *image_id_json(const struct sandbox_spec *s)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    AUTO_IMAGE_RECORD struct image_record r = {0};
    char id[DIGEST_TEXT_SIZE];
    if (!s->image_digest || image_cache_open(&c, NULL) < 0 ||
        image_find(&c, s->image_digest, &r, NULL) < 0)
        return json_string(s->image_digest ? s->image_digest : "");
    docker_image_id(&r, id);
    return json_string(id);
}

static json_t *container_json(const struct store *store, const struct sandbox *sb)
{
    AUTO_STRLIST struct strlist argv = {0};
    const struct sandbox_spec *s = &sb->spec;
    struct docker_look l;
    docker_look(store, sb, &l);
    if (strlist_copy(&argv, &s->entrypoint) < 0 || strlist_copy(&argv, &s->cmd) < 0)
        return NULL;
    return json_pack(
        "{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:i, s:s, s:s, s:o, s:o, s:o, "
        "s:{s:o, s:s, s:{s:{s:s}}}}",
        "Id", l.id, "Created", time_json(s->created_ns), "Path", argv.n ? argv.v[0] : "", "Args",
        json_list(argv.n ? argv.v + 1 : NULL), "State", state_json(sb, &l), "Image",
        image_id_json(s), "Name", json_sprintf("/%s", s->name), "RestartCount", 0, "Driver",
        STORAGE_DRIVER, "Platform", "linux", "HostConfig", host_config_json(s), "Mounts",
        mounts_json(s), "Config", config_json(s), "NetworkSettings", "Ports", ports_json(sb),
        "IPAddress", "", "Networks", s->net.off ? "none" : "bridge", "IPAddress", "");
}

/* --- inspect: images ------------------------------------------------------------------------- */

static json_t *image_inspect_json(const struct image_record *r)
{
    const struct image_config *c = &r->parsed.run;
    AUTO_FREE char *name = image_name(r);
    char id[DIGEST_TEXT_SIZE], digest[DIGEST_TEXT_SIZE];
    docker_image_id(r, id);
    digest_text(&r->digest, digest);
    return json_pack(
        "{s:s, s:[s], s:[o], s:o, s:o, s:o, s:I, s:{s:o, s:o, s:o, s:o, s:o, s:o}}", "Id", id,
        "RepoTags", name ? name : "", "RepoDigests",
        json_sprintf("%.*s@%s", (int)strcspn(name ? name : "", "@"), name ? name : "", digest),
        "Created", json_text(r->parsed.created), "Architecture", json_text(r->parsed.architecture),
        "Os", json_text(r->parsed.os), "Size", (json_int_t)image_size(r), "Config", "Env",
        json_list(c->env), "Cmd", json_list(c->cmd), "Entrypoint", json_list(c->entrypoint),
        "Labels", json_pairs(c->labels), "WorkingDir", json_text(c->workdir), "User",
        json_text(c->user));
}

static int find_image(const char *word, json_t **ret, struct err *e)
{
    AUTO_IMAGE_RECORD struct image_record r = {0};
    int k = docker_find_image(word, &r, e);
    if (k == 0)
        *ret = image_inspect_json(&r);
    return k;
}

int docker_print_image_id(const char *name)
{
    AUTO_JSON json_t *image = NULL;
    struct err e = {0};
    if (find_image(name, &image, &e) < 0)
        return docker_show_fail(&e);
    const char *id = json_string_value(json_object_get(image, "Id"));
    return ui_print_line(id ? id : "");
}

static int inspect_one(const struct docker_cmd *d, const struct store *s, const char *word,
                       json_t **ret, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    const char *type = docker_get(d, "type");
    bool image = d->image || (type && strcmp(type, "image") == 0);
    bool container = d->container || (type && strcmp(type, "container") == 0);
    int r = image ? -ENOENT : docker_open(s, word, &sb, e);
    if (r == 0)
        *ret = container_json(s, &sb);
    if (r == -ENOENT && !container) {
        err_clear(e);
        r = find_image(word, ret, e);
    }
    if (r == -ENOENT || r == -EINVAL)
        return err_set(e, ENOENT, "No such %s: %s",
                       image       ? "image"
                       : container ? "container"
                                   : "object",
                       word);
    return r < 0 ? r : *ret ? 0 : err_oom(e);
}

int docker_inspect(struct docker_cmd *d)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct err e = {0};
    json_t *found = json_array();
    const char *format = docker_get(d, "format");
    int code = EXIT_OK;
    int r = store_open(&s, &e);
    if (r < 0) {
        json_decref(found);
        return docker_show_fail(&e);
    }
    for (size_t i = 0; i < d->n_words; i++) {
        json_t *v = NULL;
        err_clear(&e);
        if (inspect_one(d, &s, d->words[i], &v, &e) == 0) {
            json_add(&found, v);
            continue;
        }
        (void)fprintf(stderr, "Error: %s\n", e.msg);
        code = EXIT_FAILED;
    }
    int printed = format ? docker_print(format, found) : ui_print_json(found);
    return printed ? printed : code;
}

/* --- images ---------------------------------------------------------------------------------- */

static json_t *image_row(const struct docker_cmd *d, const struct image_record *r)
{
    AUTO_FREE char *name = image_name(r);
    char id[DIGEST_TEXT_SIZE], digest[DIGEST_TEXT_SIZE], size[32], created[TIME_TEXT_MAX];
    if (name)
        name[strcspn(name, "@")] = '\0'; /* the digest has its own column */
    const char *slash = name ? strrchr(name, '/') : NULL;
    const char *colon = name ? strchr(slash ? slash : name, ':') : NULL;
    docker_image_id(r, id);
    digest_text(&r->digest, digest);
    format_bytes(image_size(r), size, sizeof(size));
    time_rfc3339(r->stored_ns, created);
    created[10] = ' ';
    created[19] = '\0';
    bool whole = docker_has(d, "no-trunc");
    size_t len = name ? colon ? (size_t)(colon - name) : strlen(name) : 0;
    return json_pack("{s:s%, s:s, s:s%, s:s, s:o, s:o, s:s, s:s}", "Repository", name ? name : "",
                     len, "Tag", colon ? colon + 1 : "<none>", "ID", whole ? id : id + 7,
                     (size_t)(whole ? DIGEST_TEXT_SIZE - 1 : DOCKER_SHORT_ID), "Digest", digest,
                     "CreatedSince", docker_ago(r->stored_ns), "CreatedAt",
                     json_sprintf("%s +0000 UTC", created), "Size", size, "Containers", "N/A");
}

/* An argument, or --filter reference=: a name with or without its tag or digest. */
static int image_wanted(const struct docker_cmd *d, const struct image_record *r, struct err *e)
{
    AUTO_FREE char *name = image_name(r);
    const char *want = d->n_words ? d->words[0] : NULL;
    for (size_t i = 0; i < d->n_kept; i++) {
        if (strcmp(d->kept[i].name, "filter") != 0)
            continue;
        if (strncmp(d->kept[i].value, "reference=", 10) != 0)
            return err_set(e, EINVAL, "invalid filter '%s'", d->kept[i].value);
        want = d->kept[i].value + 10;
    }
    size_t n = want ? strlen(want) : 0;
    return name && (!want || (strncmp(name, want, n) == 0 && strchr(":@", name[n])));
}

int docker_images(struct docker_cmd *d)
{
    static const char usual[] = "{{.Repository}}\t{{.Tag}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}";
    static const char digests[] =
        "{{.Repository}}\t{{.Tag}}\t{{.Digest}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}";
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct image_list list = {0};
    struct err e = {0};
    json_t *rows = json_array();
    int r = image_cache_open(&c, &e);
    if (r == 0)
        r = image_store_list(&c.images, &list, &e);
    for (size_t i = 0; r >= 0 && i < list.n; i++) {
        r = image_wanted(d, &list.v[i], &e);
        if (r == 1)
            json_add(&rows, image_row(d, &list.v[i]));
    }
    image_list_free(&list);
    if (r < 0) {
        json_decref(rows);
        return docker_show_fail(&e);
    }
    json_t *headers =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "Repository", "REPOSITORY", "Tag",
                  "TAG", "ID", "IMAGE ID", "Digest", "DIGEST", "CreatedSince", "CREATED",
                  "CreatedAt", "CREATED AT", "Size", "SIZE", "Containers", "CONTAINERS");
    return docker_print_rows(d, docker_has(d, "digests") ? digests : usual, headers, rows);
}

/* --- version and info ------------------------------------------------------------------------ */

static json_t *version_json(void)
{
    struct utsname u = {0};
    (void)uname(&u);
    const char *arch = strcmp(u.machine, "x86_64") == 0    ? "amd64"
                       : strcmp(u.machine, "aarch64") == 0 ? "arm64"
                                                           : u.machine;
    return json_pack("{s:{s:s}, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "Platform", "Name",
                     "msb " MSB_VERSION, "Version", DOCKER_VERSION, "ApiVersion", "1.46",
                     "MinAPIVersion", "1.46", "GitCommit", "msb-" MSB_VERSION, "GoVersion", "none",
                     "Os", "linux", "Arch", arch, "KernelVersion", u.release);
}

int docker_version(struct docker_cmd *d)
{
    const char *format = docker_get(d, "format");
    json_t *v = json_pack("[{s:o, s:o}]", "Client", version_json(), "Server", version_json());
    return docker_print(format ? format
                               : "{{range $side, $v := .}}{{$side}}: {{$v.Platform.Name}}\n"
                                 " Version:    {{$v.Version}}\n API version:  {{$v.ApiVersion}}\n"
                                 " OS/Arch:    {{$v.Os}}/{{$v.Arch}}\n{{end}}",
                        v);
}

int docker_info(struct docker_cmd *d)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct sandbox *list = NULL;
    struct err e = {0};
    struct utsname u = {0};
    struct sysinfo si = {0};
    size_t n = 0, running = 0;
    const char *format = docker_get(d, "format");
    int r = store_open(&s, &e);
    if (r == 0)
        r = store_list(&s, &list, &n, &e);
    if (r < 0)
        return docker_show_fail(&e);
    for (size_t i = 0; i < n; i++)
        running += docker_is_running(&list[i]);
    sandbox_list_free(list, n);
    (void)uname(&u);
    (void)sysinfo(&si);
    json_t *v = json_pack("[{s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:s, s:s, "
                          "s:s, s:[]}]",
                          "Containers", (int)n, "ContainersRunning", (int)running,
                          "ContainersPaused", 0, "ContainersStopped", (int)(n - running), "Driver",
                          STORAGE_DRIVER, "ServerVersion", DOCKER_VERSION, "OperatingSystem",
                          "msb " MSB_VERSION, "OSType", "linux", "Architecture", u.machine,
                          "KernelVersion", u.release, "NCPU", (int)sysconf(_SC_NPROCESSORS_ONLN),
                          "MemTotal", (json_int_t)si.totalram * si.mem_unit, "Name", u.nodename,
                          "DockerRootDir", s.home, "DefaultRuntime", "msb", "SecurityOptions");
    return docker_print(format
                            ? format
                            : "Containers: {{.Containers}}\n Running: {{.ContainersRunning}}\n"
                              " Stopped: {{.ContainersStopped}}\nServer Version: "
                              "{{.ServerVersion}}\nStorage Driver: {{.Driver}}\nOperating System: "
                              "{{.OperatingSystem}}\nOSType: {{.OSType}}\nArchitecture: "
                              "{{.Architecture}}\nCPUs: {{.NCPU}}\nName: {{.Name}}\nDocker Root "
                              "Dir: {{.DockerRootDir}}",
                        v);
}
