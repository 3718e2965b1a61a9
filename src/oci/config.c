#include "oci/config.h"

#include "oci/netns.h"
#include "oci/runtime.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/words.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { MEMORY_DEFAULT_MIB = 1024, CPUS_MOST = 64 };

static int check_version(const json_t *j, struct err *e)
{
    const char *v = json_string_value(json_object_get(j, "ociVersion"));
    if (!v || strncmp(v, "1.", 2) != 0)
        return err_set(e, EINVAL,
                       "config.json: ociVersion '%.32s' is not supported (expected: 1.x)",
                       v ? v : "");
    return 0;
}

/* --- root ------------------------------------------------------------------------------------ */

static int read_root(struct container_config *c, struct err *e)
{
    const json_t *root = json_object_get(c->j, "root");
    const char *path = json_string_value(json_object_get(root, "path"));
    AUTO_FREE char *whole = NULL;
    if (!path || !*path)
        return err_set(e, EINVAL, "config.json: root.path is missing");
    if (asprintf(&whole, "%s%s%s", path[0] == '/' ? "" : c->bundle, path[0] == '/' ? "" : "/",
                 path) < 0)
        return err_oom(e);
    c->rootfs = realpath(whole, NULL);
    struct stat st;
    if (!c->rootfs || stat(c->rootfs, &st) < 0)
        return err_sys(e, errno, "cannot use root.path %s", whole);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ENOTDIR, "root.path %s is not a directory", whole);
    bool ro = json_is_true(json_object_get(root, "readonly"));
    const struct spec_mount m = {.kind = MOUNT_BIND,
                                 .guest = (char *)"/",
                                 .source = c->rootfs,
                                 .options = ro ? PROTO_MOUNT_RO : 0,
                                 .real_owners = geteuid() == 0};
    c->spec.root_share = true;
    c->spec.root_disk = ROOT_DISK_TMPFS; /* for mount points of a read-only root */
    c->spec.image_kind = IMAGE_DIRECTORY;
    c->spec.image = strdup(c->rootfs);
    return c->spec.image ? spec_add_mount(&c->spec, &m, e) : err_oom(e);
}

/* --- linux ----------------------------------------------------------------------------------- */

bool is_same_file(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

int refuse_namespace(const char *type, const char *path, const char *why, struct err *e)
{
    return err_set(e, ENOTSUP, "linux.namespaces: the %s namespace %s cannot be joined: %s", type,
                   path, why);
}

/* A guest has its own pid, mount, cgroup and user namespaces: it cannot share those of another
 * process, unless that is in the same guest (pod_find()). */
static int read_namespace(struct container_config *c, const json_t *n, struct err *e)
{
    static const char *const known[OCI_NS_MAX] = {"network", "ipc", "uts"};
    static const char *const own[OCI_NS_MAX] = {"/proc/self/ns/net", "/proc/self/ns/ipc",
                                                "/proc/self/ns/uts"};
    const char *type = json_string_value(json_object_get(n, "type"));
    const char *path = json_string_value(json_object_get(n, "path"));
    path = path && *path ? path : NULL;
    if (path && path[0] != '/')
        return err_set(e, EINVAL, "linux.namespaces: the path '%.128s' is not absolute", path);
    int i = WORD_FIND(known, type);
    /* The caller's own counts as none: a guest at the node's interface would cut off the node. */
    if (i >= 0 && path && is_same_file(path, own[i]))
        return 0;
    if (i >= 0) {
        c->ns.wanted[i] = true;
        c->ns.path[i] = path;
        return 0;
    }
    if (!word_among("pid|mount|cgroup|user|time", type))
        return err_set(e, EINVAL, "linux.namespaces: unknown type '%.32s'", type ? type : "");
    if (strcmp(type, "pid") == 0)
        c->ns.pids = path;
    else if (path)
        return refuse_namespace(type, path, OWN_KERNEL, e);
    return 0;
}

/* These are in every guest anyway. "u" is another word for "c". */
static int check_device(const json_t *d, struct err *e)
{
    static const struct {
        const char *path;
        int major, minor;
    } known[] = {{"/dev/null", 1, 3},    {"/dev/zero", 1, 5},       {"/dev/full", 1, 7},
                 {"/dev/random", 1, 8},  {"/dev/urandom", 1, 9},    {"/dev/tty", 5, 0},
                 {"/dev/fuse", 10, 229}, {"/dev/net/tun", 10, 200}, {"/dev/ptmx", 5, 2},
                 {"/dev/console", 5, 1}};
    const char *path = json_string_value(json_object_get(d, "path"));
    for (size_t i = 0; path && i < ARRAY_LEN(known); i++) {
        if (strcmp(path, known[i].path) != 0)
            continue;
        if (word_among("c|u", json_string_value(json_object_get(d, "type"))) &&
            json_number_value(json_object_get(d, "major")) == known[i].major &&
            json_number_value(json_object_get(d, "minor")) == known[i].minor)
            return 0;
        return err_set(e, ENOTSUP, "linux.devices: %s is not c %d:%d, which is what a guest has",
                       path, known[i].major, known[i].minor);
    }
    (void)err_set(e, ENOTSUP, "linux.devices: '%.128s' cannot be passed into a guest",
                  path ? path : "");
    err_hint(e, "leave out --device, and --privileged, which adds all devices of the host");
    return -ENOTSUP;
}

/* The console is the guest's, which a pod's containers do not have. */
static int check_pod_devices(const struct container_config *c, struct err *e)
{
    const json_t *list = json_object_get(json_object_get(c->j, "linux"), "devices"), *d;
    size_t i;
    json_array_foreach(list, i, d)
    {
        if (strcmp(json_string_value(json_object_get(d, "path")), "/dev/console") == 0)
            return err_set(e, ENOTSUP, "linux.devices: a container in a pod has no /dev/console");
    }
    return 0;
}

double container_config_cpus(double quota, double period)
{
    double cpus = quota > 0 && period > 0 ? MAX(1, ceil(quota / period)) : 1;
    return MIN(cpus, (double)MIN(CPUS_MOST, get_nprocs()));
}

static void read_resources(struct container_config *c, const json_t *r)
{
    const json_t *cpu = json_object_get(r, "cpu");
    double limit = json_number_value(json_object_get(json_object_get(r, "memory"), "limit"));
    double quota = json_number_value(json_object_get(cpu, "quota"));
    double period = json_number_value(json_object_get(cpu, "period"));
    c->resources = r;
    c->spec.memory_mib = MEMORY_DEFAULT_MIB;
    if (limit > 0 && limit < 9e18) {
        c->said |= SAID_MEMORY;
        c->spec.memory_mib = (uint64_t)ceil(limit / (1 << 20));
    }
    c->spec.memory_mib = MIN(c->spec.memory_mib, (uint64_t)SPEC_MEMORY_MAX_MIB);
    c->spec.cpus = container_config_cpus(quota, period);
}

static int read_linux(struct container_config *c, struct err *e)
{
    const json_t *l = json_object_get(c->j, "linux"), *v;
    size_t i;
    read_resources(c, json_object_get(l, "resources"));
    int r = check_twice(json_object_get(l, "namespaces"), "linux.namespaces", e);
    json_array_foreach(json_object_get(l, "namespaces"), i, v) r =
        r < 0 ? r : read_namespace(c, v, e);
    json_array_foreach(json_object_get(l, "devices"), i, v) r = r < 0 ? r : check_device(v, e);
    c->cgroups_path = json_string_value(json_object_get(l, "cgroupsPath"));
    c->spec.net.off = c->ns.wanted[OCI_NS_NET]; /* msb's own is for the host's network (netns.h) */
    return r;
}

/* --- the whole ------------------------------------------------------------------------------- */

static int read_hostname(struct container_config *c, struct err *e)
{
    const char *name = json_string_value(json_object_get(c->j, "hostname"));
    if (name && *name && !(c->spec.hostname = strdup(name)))
        return err_oom(e);
    return 0;
}

int container_config_read(struct container_config *c, const char *bundle, const char *id,
                          struct err *e)
{
    spec_init(&c->spec);
    c->bundle = realpath(bundle, NULL);
    AUTO_CLOSE int dir = c->bundle ? open(c->bundle, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (dir < 0)
        return err_sys(e, errno, "cannot open the bundle %s", bundle);
    c->j = oci_config_read(dir, e);
    if (!c->j)
        return -e->code;
    if (!(c->spec.name = strdup(id)))
        return err_oom(e);
    c->spec.in_pod = true; /* possibly */
    int r = check_version(c->j, e);
    if (r == 0)
        r = read_root(c, e);
    if (r == 0)
        r = process_read(&c->process, json_object_get(c->j, "process"), e);
    if (r == 0)
        r = read_hostname(c, e);
    if (r == 0)
        r = read_linux(c, e);
    if (r == 0)
        r = container_config_read_mounts(c, e);
    if (r == 0)
        r = container_config_read_security(c, e);
    if (r == 0)
        container_config_read_pod(c);
    return r < 0 ? r : container_config_read_annotations(c, e);
}

/* The restrictions of a pod's first container apply to its own command (process.h): the others have
 * more, or fewer. */
static int make_pod(struct container_config *c, struct err *e)
{
    struct spec_security *s = &c->spec.security;
    const struct spec_mount m = {.kind = MOUNT_BIND,
                                 .guest = (char *)"/.pod",
                                 .source = c->rootfs,
                                 .pod = true,
                                 .real_owners = geteuid() == 0};
    s->caps = SPEC_CAPS_ALL;
    s->no_new_privs = false;
    s->pids = 0;
    return spec_add_mount(&c->spec, &m, e);
}

int container_config_settle(struct container_config *c, bool in_pod, struct err *e)
{
    size_t shares = 0;
    c->spec.in_pod = in_pod;
    if (in_pod)
        return check_pod_devices(c, e) < 0 ? -e->code : spec_validate(&c->spec, e);
    if (c->spec.memory_mib < SPEC_MEMORY_MIN_MIB)
        return err_set(e, EINVAL, "linux.resources.memory.limit: a guest needs at least %d MiB",
                       SPEC_MEMORY_MIN_MIB);
    for (size_t i = 0; i < c->spec.n_mounts; i++)
        shares += mount_is_share(&c->spec.mounts[i]);
    if (shares > SPEC_SHARES_MAX)
        return err_set(e, E2BIG, "mounts: at most %d directories and files of the host",
                       SPEC_SHARES_MAX - 1);
    int r = c->sandbox ? make_pod(c, e) : 0;
    return r < 0 ? r : spec_validate(&c->spec, e);
}

void container_config_free(struct container_config *c)
{
    json_decref(c->j);
    free(c->bundle);
    free(c->rootfs);
    free(c->filter);
    spec_free(&c->spec);
    process_free(&c->process);
    *c = (struct container_config){0};
}

json_t *container_config_about(const struct container_config *c)
{
    return json_pack("{s:s, s:s, s:I, s:i, s:O*}", "bundle", c->bundle, "rootfs", c->rootfs,
                     "created_ns", (json_int_t)realtime_ns(), "owner", (int)geteuid(),
                     "annotations", json_object_get(c->j, "annotations"));
}

json_t *container_config_state(const struct container_config *c)
{
    return json_pack("{s:O*, s:o*, s:b}", "hooks", json_object_get(c->j, "hooks"), "netns",
                     netns_describe(c->ns.path[OCI_NS_NET]), "sandbox", c->sandbox);
}
