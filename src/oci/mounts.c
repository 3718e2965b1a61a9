/* mounts and annotations of config.json. */
#include "oci/config.h"

#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* --- options --------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    uint32_t set, clear;
} words[] = {
    {"ro", PROTO_MOUNT_RO, 0},       {"rro", PROTO_MOUNT_RO, 0},
    {"rw", 0, PROTO_MOUNT_RO},       {"noexec", PROTO_MOUNT_NOEXEC, 0},
    {"exec", 0, PROTO_MOUNT_NOEXEC}, {"nosuid", PROTO_MOUNT_NOSUID, 0},
    {"suid", 0, PROTO_MOUNT_NOSUID}, {"nodev", PROTO_MOUNT_NODEV, 0},
    {"dev", 0, PROTO_MOUNT_NODEV},   {"tmpcopyup", PROTO_MOUNT_COPY, 0},
};

json_t *container_config_mount_options(void)
{
    json_t *list = json_pack("[s, s, s, s, s, s]", "bind", "rbind", "size", "mode", "uid", "gid");
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        json_add(&list, json_string(words[i].word));
    return list;
}

struct mount_options {
    uint32_t bits; /* enum proto_mount_option */
    bool bind;
    uint64_t size; /* of a tmpfs, like the rest */
    uint32_t mode, uid, gid;
};

static int read_number(const char *s, const char *key, int base, uint32_t most, uint32_t *ret)
{
    size_t n = strlen(key);
    char *end;
    if (strncmp(s, key, n) != 0)
        return 0;
    unsigned long v = strtoul(s + n, &end, base);
    if (s[n] < '0' || s[n] > '9' || *end || v > most)
        return -EINVAL;
    *ret = (uint32_t)v;
    return 0;
}

/* Others (relatime, rprivate, ...) change nothing that a guest could see, or are what it
 * gets anyway. */
static int read_options(const json_t *m, const char *where, struct mount_options *o, struct err *e)
{
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(m, "options"), i, v)
    {
        const char *s = json_string_value(v);
        if (!s)
            return err_set(e, EINVAL, "mounts: an option of %s is not a string", where);
        o->bind |= strcmp(s, "bind") == 0 || strcmp(s, "rbind") == 0;
        if (strncmp(s, "size=", 5) == 0 &&
            (parse_size(s + 5, 1, &o->size) < 0 || o->size > INT64_MAX))
            return err_set(e, EINVAL, "mounts: %s: cannot read '%.64s'", where, s);
        if (read_number(s, "mode=", 8, 07777, &o->mode) < 0 ||
            read_number(s, "uid=", 10, UINT32_MAX - 1, &o->uid) < 0 ||
            read_number(s, "gid=", 10, UINT32_MAX - 1, &o->gid) < 0)
            return err_set(e, EINVAL, "mounts: %s: cannot read '%.64s'", where, s);
        if (strcmp(s, "idmap") == 0 || strcmp(s, "ridmap") == 0)
            return err_set(e, ENOTSUP, "mounts: %s: id-mapped mounts are not supported", where);
        for (size_t k = 0; k < ARRAY_LEN(words); k++)
            if (strcmp(s, words[k].word) == 0)
                o->bits = (o->bits | words[k].set) & ~words[k].clear;
    }
    return 0;
}

/* --- kinds ----------------------------------------------------------------------------------- */

/* Shared memory is the guest's own: two kernels cannot share pages of a file that both map. */
static bool is_shared_memory(const char *where, const char *source, uint64_t *size)
{
    struct statfs fs;
    if (strcmp(where, "/dev/shm") != 0 || statfs(source, &fs) < 0 ||
        (unsigned long)fs.f_type != TMPFS_MAGIC)
        return false;
    *size = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    return true;
}

static int add_bind(struct container_config *c, const json_t *m, const char *where,
                    const struct mount_options *o, struct err *e)
{
    const char *source = json_string_value(json_object_get(m, "source"));
    AUTO_FREE char *whole = NULL;
    struct stat st;
    if (!source || !*source)
        return err_set(e, EINVAL, "mounts: %s has no source", where);
    bool relative = source[0] != '/';
    if (asprintf(&whole, "%s%s%s", relative ? c->bundle : "", relative ? "/" : "", source) < 0)
        return err_oom(e);
    AUTO_FREE char *real = realpath(whole, NULL);
    if (!real || stat(real, &st) < 0)
        return err_sys(e, errno, "mounts: cannot mount %s on %s", source, where);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return err_set(e, ENOTSUP,
                       "mounts: cannot mount %s on %s: only directories and regular files can be "
                       "shared with a guest",
                       source, where);
    struct spec_mount to = {.guest = (char *)where, .options = o->bits & ~PROTO_MOUNT_COPY};
    if (is_shared_memory(where, real, &to.size)) {
        to.kind = MOUNT_TMPFS;
    } else {
        to.kind = MOUNT_BIND;
        to.source = real;
        to.file = S_ISREG(st.st_mode);
        to.real_owners = geteuid() == 0;
    }
    return spec_add_mount(&c->spec, &to, e);
}

/* File systems that the guest mounts by itself, where it mounts them. */
static bool is_given(const char *type, const char *where)
{
    static const struct {
        const char *type, *where;
    } given[] = {
        {"proc", "/proc"},
        {"sysfs", "/sys"},
        {"tmpfs", "/dev"},
        {"devtmpfs", "/dev"},
        {"devpts", "/dev/pts"},
        {"mqueue", "/dev/mqueue"},
        {"cgroup", "/sys/fs/cgroup"},
        {"cgroup2", "/sys/fs/cgroup"},
    };
    for (size_t i = 0; i < ARRAY_LEN(given); i++)
        if (strcmp(type, given[i].type) == 0 && strcmp(where, given[i].where) == 0)
            return true;
    return false;
}

static int add_mount(struct container_config *c, const json_t *m, struct err *e)
{
    const char *type = json_string_value(json_object_get(m, "type"));
    const char *to = json_string_value(json_object_get(m, "destination"));
    struct mount_options o = {0};
    AUTO_FREE char *where = to ? spec_guest_path(to) : NULL;
    if (!where || strcmp(where, "/") == 0)
        return err_set(e, EINVAL, "mounts: '%.128s' is not a valid mount point", to ? to : "");
    int r = read_options(m, where, &o, e);
    if (r < 0)
        return r;
    type = type ? type : "bind";
    if (o.bind || strcmp(type, "bind") == 0)
        return add_bind(c, m, where, &o, e);
    if (is_given(type, where))
        return 0;
    if (strcmp(type, "tmpfs") != 0)
        return err_set(e, ENOTSUP, "mounts: a %.32s cannot be mounted on %s", type, where);
    const struct spec_mount t = {.kind = MOUNT_TMPFS,
                                 .guest = where,
                                 .options = o.bits,
                                 .size = o.size,
                                 .mode = o.mode,
                                 .uid = o.uid,
                                 .gid = o.gid};
    return spec_add_mount(&c->spec, &t, e);
}

/* A later mount on the same place covers it. */
static bool is_covered(const json_t *all, size_t i)
{
    const json_t *to = json_object_get(json_array_get(all, i), "destination");
    for (size_t k = i + 1; to && k < json_array_size(all); k++)
        if (json_equal(to, json_object_get(json_array_get(all, k), "destination")))
            return true;
    return false;
}

int container_config_read_mounts(struct container_config *c, struct err *e)
{
    const json_t *all = json_object_get(c->j, "mounts"), *m;
    size_t i;
    int r = 0;
    json_array_foreach(all, i, m) if (r == 0 && !is_covered(all, i)) r = add_mount(c, m, e);
    return r;
}

/* --- annotations ----------------------------------------------------------------------------- */

static double annotated(const struct container_config *c, const char *key)
{
    const char *v = json_string_value(json_object_get(json_object_get(c->j, "annotations"), key));
    return v ? strtod(v, NULL) : 0;
}

/* What a pod's containers may use in total, if its caller knows. */
static void read_pod_size(struct container_config *c)
{
    double memory = annotated(c, "io.kubernetes.cri.sandbox-memory") / MIB;
    double quota = annotated(c, "io.kubernetes.cri.sandbox-cpu-quota");
    double period = annotated(c, "io.kubernetes.cri.sandbox-cpu-period");
    if (memory >= 1 && memory < SPEC_MEMORY_MAX_MIB) {
        c->said |= SAID_MEMORY;
        c->spec.memory_mib = MAX((uint64_t)memory, (uint64_t)SPEC_MEMORY_MIN_MIB);
    }
    c->said_cpus = quota > 0 && period > 0;
    if (c->said_cpus)
        c->spec.cpus = container_config_cpus(quota, period);
}

/* Podman's first container is recognized by its command, which only holds the namespaces for the
 * others; theirs have CRI-O's annotation of the pod, since Podman 5 without the one of the type. */
void container_config_read_pod(struct container_config *c)
{
    static const struct {
        const char *type, *id;
        bool sure;
    } callers[] = {
        {"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id", true},
        {"io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID", false},
    };
    const json_t *annotations = json_object_get(c->j, "annotations");
    const struct strlist *argv = &c->process.req.argv;
    c->sandbox =
        argv->n == 2 && strcmp(argv->v[0], "/catatonit") == 0 && strcmp(argv->v[1], "-P") == 0;
    for (size_t i = 0; i < ARRAY_LEN(callers); i++) {
        const char *type = json_string_value(json_object_get(annotations, callers[i].type));
        const char *id = json_string_value(json_object_get(annotations, callers[i].id));
        c->sandbox |= type && strcmp(type, "sandbox") == 0;
        if (id && (type ? strcmp(type, "container") == 0 : !callers[i].sure)) {
            c->pod = id;
            c->in_kubernetes = callers[i].sure;
        }
    }
    if (c->sandbox)
        read_pod_size(c);
}

static int set_engine(struct container_config *c, const char *value)
{
    c->said |= SAID_ENGINE;
    c->spec.engine = engine_kind_parse(value);
    return c->spec.engine == ENGINE_INVALID ? -EINVAL : 0;
}

static int set_memory(struct container_config *c, const char *value)
{
    uint64_t bytes;
    if (parse_size(value, MIB, &bytes) < 0 || bytes / MIB < SPEC_MEMORY_MIN_MIB ||
        bytes / MIB > SPEC_MEMORY_MAX_MIB)
        return -EINVAL;
    c->said |= SAID_MEMORY;
    c->spec.memory_mib = bytes / MIB;
    return 0;
}

/* With a slash, the prefix is a domain, which may be something like msb.example. */
static bool is_ours(const char *key)
{
    return strncmp(key, "msb.", 4) == 0 && !strchr(key, '/');
}

int container_config_read_annotations(struct container_config *c, struct err *e)
{
    static const struct {
        const char *key;
        int (*set)(struct container_config *c, const char *value);
    } known[] = {{"msb.engine", set_engine}, {"msb.memory", set_memory}};
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c->j, "annotations"), key, v)
    {
        const char *value = json_string_value(v);
        size_t i = 0;
        if (!value)
            return err_set(e, EINVAL, "annotations: %.64s is not a string", key);
        if (!is_ours(key))
            continue;
        while (i < ARRAY_LEN(known) && strcmp(key, known[i].key) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            return err_set(e, EINVAL,
                           "annotations: unknown '%.64s' (there are: msb.engine, msb.memory)", key);
        if (known[i].set(c, value) < 0)
            return err_set(e, EINVAL, "annotations: %s: invalid value '%.64s'", key, value);
    }
    return 0;
}
