/* The spec: its rules, its messages, and that JSON brings back exactly what was written. */
#include "proto/proto.h"
#include "spec/diff.h"
#include "spec/signals.h"
#include "spec/spec.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void minimal(struct sandbox_spec *s)
{
    spec_init(s);
    s->name = strdup("web");
    s->image = strdup("msb/base");
}

static int add_tmpfs(struct sandbox_spec *s, const char *path, uint64_t size, uint32_t options,
                     struct err *e)
{
    struct spec_mount m = {
        .kind = MOUNT_TMPFS, .guest = (char *)path, .size = size, .options = options};
    return spec_add_mount(s, &m, e);
}

static void names(void **state)
{
    struct err e = {0};
    assert_int_equal(spec_check_name("a", &e), 0);
    assert_int_equal(spec_check_name("Az0._-", &e), 0);
    char longest[SPEC_NAME_MAX + 2];
    memset(longest, 'x', sizeof(longest));
    longest[SPEC_NAME_MAX] = '\0';
    assert_int_equal(spec_check_name(longest, &e), 0);
    longest[SPEC_NAME_MAX] = 'x';
    longest[SPEC_NAME_MAX + 1] = '\0';
    assert_int_equal(spec_check_name(longest, &e), -EINVAL);
    assert_string_equal(e.msg,
                        "invalid config: sandbox name must be at most 128 characters: got 129");
    assert_int_equal(spec_check_name("", &e), -EINVAL);
    assert_string_equal(e.msg, "invalid config: sandbox name is required");
    static const char *const bad[] = {".", "..", "-a", "_a", ".a", "a/b", "a b", "ä", "a\n", "a:b"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_check_name(bad[i], &e), -EINVAL);
    assert_int_equal(spec_check_name("a/b", &e), -EINVAL);
    assert_string_equal(e.msg, "invalid config: sandbox name must start with an alphanumeric and "
                               "contain only alphanumeric, dots, hyphens, and underscores: a/b");
}

static void hostnames(void **state)
{
    char a[SPEC_HOSTNAME_MAX], b[SPEC_HOSTNAME_MAX];
    spec_hostname_from("web", a);
    assert_string_equal(a, "web");
    spec_hostname_from("hermes-task_1.x-", a);
    assert_string_equal(a, "hermes-task-1-x");
    spec_hostname_from("___", a);
    assert_string_equal(a, "sandbox");
    spec_hostname_from("", a);
    assert_string_equal(a, "sandbox");
    char name[SPEC_NAME_MAX + 1];
    memset(name, 'n', SPEC_NAME_MAX);
    name[SPEC_NAME_MAX] = '\0';
    spec_hostname_from(name, a);
    assert_int_equal(strlen(a), SPEC_HOSTNAME_MAX - 1);
    name[SPEC_NAME_MAX - 1] = 'm'; /* differs only where it is cut off */
    spec_hostname_from(name, b);
    assert_int_equal(strlen(b), SPEC_HOSTNAME_MAX - 1);
    assert_string_not_equal(a, b);
    name[63] = '\0';
    spec_hostname_from(name, a);
    assert_string_equal(a, name);
}

static void rlimits(void **state)
{
    struct err e = {0};
    struct spec_rlimit l;
    assert_int_equal(spec_parse_rlimit("nofile=1024", &l, &e), 0);
    assert_int_equal(l.resource, RLIMIT_NOFILE);
    assert_int_equal(l.soft, 1024);
    assert_int_equal(l.hard, 1024);
    assert_int_equal(spec_parse_rlimit("as=1:unlimited", &l, &e), 0);
    assert_true(l.hard == RLIM_INFINITY);
    assert_int_equal(spec_parse_rlimit("core=0:-1", &l, &e), 0); /* as Docker has it */
    assert_true(l.soft == 0 && l.hard == RLIM_INFINITY);
    static const char *const bad[] = {"",
                                      "nofile",
                                      "=3",
                                      "nofile=",
                                      "nofile=x",
                                      "nofile=-2",
                                      "nofile=1:",
                                      "nofile=5:3",
                                      "nofile=1:x",
                                      "nope=1",
                                      "nofile=18446744073709551615"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_parse_rlimit(bad[i], &l, &e), -EINVAL);
    for (uint32_t i = 0; i < RLIM_NLIMITS; i++)
        assert_non_null(spec_rlimit_name(i));
    struct sandbox_spec s;
    minimal(&s);
    assert_int_equal(spec_add_rlimit(&s, "nofile=1", &e), 0);
    assert_int_equal(spec_add_rlimit(&s, "nofile=2", &e), 0);
    assert_int_equal(s.n_rlimits, 1);
    assert_int_equal(s.rlimits[0].soft, 2);
    spec_free(&s);
}

static void signals(void **state)
{
    static const struct {
        const char *name;
        int number;
    } cases[] = {{"SIGTERM", 15}, {"TERM", 15},     {"sigquit", 3},     {"9", 9},
                 {"64", 64},      {"SIGRTMIN", 34}, {"SIGRTMIN+3", 37}, {"RTMAX-1", 63},
                 {"", 0},         {"SIG", 0},       {"0", 0},           {"65", 0},
                 {"SIGBOGUS", 0}, {"RTMIN-1", 0},   {"RTMIN+", 0},      {"RTMIN+31", 0},
                 {"-15", 0},      {"SIGTERM x", 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (signal_number(cases[i].name) != cases[i].number)
            fail_msg("'%s' is %d", cases[i].name, signal_number(cases[i].name));
}

static void ports_and_volumes(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    static const char *const bad_ports[] = {"", "0", "65536", "x", "80/icmp", "80/", "-1", "80-90"};
    static const char *const bad_volumes[] = {"", "/", "relative", "/a/../b", "/a\nb", "//"};
    for (size_t i = 0; i < ARRAY_LEN(bad_ports); i++)
        assert_int_equal(spec_add_port(&s, bad_ports[i], &e), -EINVAL);
    for (size_t i = 0; i < ARRAY_LEN(bad_volumes); i++)
        assert_int_equal(spec_add_volume(&s, bad_volumes[i], &e), -EINVAL);
    assert_int_equal(spec_add_port(&s, "80", &e), 0);
    assert_int_equal(spec_add_port(&s, "80/tcp", &e), 0);
    assert_int_equal(s.ports.n, 1);
    assert_string_equal(s.ports.v[0], "80/tcp");
    int r = 0;
    for (int i = 0; i <= SPEC_VOLUMES_MAX && r == 0; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/v/%d", i);
        r = spec_add_volume(&s, path, &e);
    }
    assert_int_equal(r, -E2BIG);
    assert_int_equal(s.volumes.n, SPEC_VOLUMES_MAX);
    spec_free(&s);
}

static void write_paths(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    static const char *const bad[] = {"",        "/",     "//",       "a",
                                      "/a/../b", "/proc", "/dev/shm", "/.msb/x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_add_write_path(&s, bad[i], &e), -EINVAL);
    assert_int_equal(spec_add_write_path(&s, "/work//a/", &e), 0);
    assert_int_equal(spec_add_write_path(&s, "/work/a", &e), 0);
    assert_int_equal(s.write_paths.n, 1);
    assert_string_equal(s.write_paths.v[0], "/work/a");
    /* In it, above it, beside it, and beside it with the same beginning. */
    static const char *const mounts[] = {"/work/a/b", "/work", "/other", "/work/ab"};
    for (size_t i = 0; i < ARRAY_LEN(mounts); i++)
        assert_int_equal(add_tmpfs(&s, mounts[i], 0, 0, &e), 0);
    assert_int_equal(spec_validate(&s, &e), 0);
    for (size_t i = 0; i < s.n_mounts; i++) {
        const char *guest = s.mounts[i].guest;
        bool ro = strcmp(guest, "/other") == 0 || strcmp(guest, "/work/ab") == 0;
        assert_int_equal(s.mounts[i].options, ro ? PROTO_MOUNT_RO : 0);
    }
    int r = 0;
    for (int i = 0; i <= SPEC_WRITE_PATHS_MAX && r == 0; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/w/%d", i);
        r = spec_add_write_path(&s, path, &e);
    }
    assert_int_equal(r, -E2BIG);
    spec_free(&s);
}

static void labels(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    assert_int_equal(spec_add_label(&s, "team=search", &e), 0);
    assert_int_equal(spec_add_label(&s, "bare", &e), 0);
    assert_int_equal(spec_add_label(&s, "team=other", &e), 0);
    assert_int_equal(spec_add_label(&s, "a=b=c", &e), 0);
    assert_int_equal(s.labels.n, 3);
    assert_int_equal(spec_add_label(&s, "=x", &e), -EINVAL);
    assert_int_equal(spec_add_label(&s, "sandbox.x=1", &e), -EINVAL);
    assert_string_equal(e.msg,
                        "invalid config: label key 'sandbox.x' uses reserved prefix 'sandbox.'");
    char *want1[] = {(char *)"team=other", (char *)"bare", NULL};
    char *want2[] = {(char *)"team", NULL};
    char *want3[] = {(char *)"team=search", NULL};
    char *want4[] = {(char *)"tea", NULL};
    assert_true(spec_matches_labels(&s, &(struct strlist){want1, 2}));
    assert_true(spec_matches_labels(&s, &(struct strlist){want2, 1}));
    assert_false(spec_matches_labels(&s, &(struct strlist){want3, 1}));
    assert_false(spec_matches_labels(&s, &(struct strlist){want4, 1}));
    assert_true(spec_matches_labels(&s, &(struct strlist){NULL, 0}));
    for (int i = 0; i < SPEC_LABELS_MAX - 3; i++) {
        char label[32];
        (void)snprintf(label, sizeof(label), "l%d=v", i);
        assert_int_equal(spec_add_label(&s, label, &e), 0);
    }
    assert_int_equal(spec_add_label(&s, "one-more", &e), -E2BIG);
    spec_free(&s);
}

static void mounts(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    assert_int_equal(add_tmpfs(&s, "//srv/./data/", MIB, PROTO_MOUNT_RO, &e), 0);
    assert_string_equal(s.mounts[0].guest, "/srv/data");
    assert_int_equal(add_tmpfs(&s, "/srv/data", 0, 0, &e), -EINVAL);
    static const char *const bad[] = {"srv",   "",       "/",    "/a/../b",
                                      "/proc", "/sys/x", "/dev", "/.msb"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(add_tmpfs(&s, bad[i], 0, 0, &e), -EINVAL);
    assert_int_equal(add_tmpfs(&s, "/dev/shm", 0, 0, &e), 0);
    assert_int_equal(add_tmpfs(&s, "/process", 0, 0, &e), 0);
    assert_int_equal(add_tmpfs(&s, "/x", 0, 1u << 31, &e), -EINVAL);
    struct spec_mount share = {
        .kind = MOUNT_BIND, .guest = (char *)"/a", .source = (char *)"/host"};
    assert_int_equal(spec_add_mount(&s, &share, &e), 0);
    assert_string_equal(s.mounts[0].guest, "/a"); /* parents first */
    share = (struct spec_mount){.kind = MOUNT_BIND, .guest = (char *)"/b", .source = (char *)"x"};
    assert_int_equal(spec_add_mount(&s, &share, &e), -EINVAL);
    share.source = (char *)"/x";
    share.file = true;
    share.quota = 1;
    assert_int_equal(spec_add_mount(&s, &share, &e), -EINVAL);
    share.quota = 0;
    for (size_t i = 1; i < SPEC_SHARES_MAX; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/share%zu", i);
        share.guest = path;
        assert_int_equal(spec_add_mount(&s, &share, &e), 0);
    }
    share.guest = (char *)"/one-too-many";
    assert_int_equal(spec_add_mount(&s, &share, &e), -E2BIG);
    for (size_t i = s.n_mounts; i < SPEC_MOUNTS_MAX; i++) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/m%zu", i);
        assert_int_equal(add_tmpfs(&s, path, 0, 0, &e), 0);
    }
    assert_int_equal(add_tmpfs(&s, "/full", 0, 0, &e), -E2BIG);
    spec_free(&s);
}

static void scripts(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    assert_int_equal(spec_add_script(&s, "b", "#!/bin/sh\n", &e), 0);
    assert_int_equal(spec_add_script(&s, "a", "1", &e), 0);
    assert_int_equal(spec_add_script(&s, "b", "2", &e), 0);
    assert_int_equal(s.n_scripts, 2);
    assert_string_equal(s.scripts[0].name, "a");
    assert_string_equal(s.scripts[1].body, "2");
    static const char *const bad[] = {"", ".", "..", "a/b", "a b", "a\n", "\xff"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_add_script(&s, bad[i], "x", &e), -EINVAL);
    assert_int_equal(spec_add_script(&s, "c", "\xff", &e), -EINVAL);
    spec_free(&s);
}

static void validation(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    minimal(&s);
    assert_int_equal(spec_validate(&s, &e), 0);
    assert_string_equal(s.hostname, "web");
    s.cpus = 0;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    assert_string_equal(e.msg, "invalid config: cpus must be greater than 0");
    s.cpus = 255.5;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    s.cpus = 0.25;
    s.memory_mib = 0;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    assert_string_equal(e.msg, "invalid config: memory must be greater than 0");
    s.memory_mib = SPEC_MEMORY_MAX_MIB + 1;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    s.memory_mib = 5120;
    assert_int_equal(strlist_add(&s.env, "NOVALUE"), 0);
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    strlist_free(&s.env);
    s.workdir = strdup("relative");
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    free(s.workdir);
    s.workdir = NULL;
    s.log_level = strdup("loud");
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    assert_string_equal(e.msg,
                        "invalid log level: loud (expected: error, warn, info, debug, trace)");
    free(s.log_level);
    s.log_level = NULL;
    assert_int_equal(spec_validate(&s, &e), 0);
    spec_free(&s);
}

/* --- JSON ----------------------------------------------------------------------------------- */

static void full(struct sandbox_spec *s)
{
    struct err e = {0};
    spec_init(s);
    s->name = strdup("full");
    s->image = strdup("./rootfs");
    s->image_kind = IMAGE_DIRECTORY;
    s->image_digest =
        strdup("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    s->pull = IMAGE_PULL_ALWAYS;
    s->stop_signal = strdup("SIGQUIT");
    assert_int_equal(spec_add_port(s, "80", NULL), 0);
    assert_int_equal(spec_add_port(s, "53/udp", NULL), 0);
    assert_int_equal(spec_add_volume(s, "/var//lib/data/", NULL), 0);
    assert_int_equal(spec_add_write_path(s, "/", NULL), -EINVAL);
    assert_int_equal(spec_add_write_path(s, "/w", NULL), 0);
    struct spec_mount disk = {.kind = MOUNT_DISK,
                              .guest = (char *)"/d",
                              .source = (char *)"/x",
                              .fstype = (char *)"ext2"};
    assert_int_equal(spec_add_mount(s, &disk, NULL), 0);
    disk.guest = (char *)"/e";
    assert_int_equal(spec_add_mount(s, &disk, NULL), -EINVAL); /* twice */
    disk = (struct spec_mount){.kind = MOUNT_NAMED,
                               .guest = (char *)"/w/n",
                               .source = (char *)"vol",
                               .disk = true,
                               .size = 64 << 20};
    assert_int_equal(spec_add_mount(s, &disk, NULL), 0);
    s->root_disk_grown = true;
    s->cpus = 0.1;
    s->memory_mib = 1536;
    s->engine = ENGINE_UML_PTRACE;
    s->placement = PLACEMENT_INHERIT;
    s->root_disk = ROOT_DISK_TMPFS;
    s->root_disk_bytes = 123456789;
    s->disk_sync = DISK_SYNC_NEVER;
    assert_int_equal(strlist_add(&s->env, "A=b=c"), 0);
    assert_int_equal(strlist_add(&s->env, "EMPTY="), 0);
    assert_int_equal(strlist_add(&s->env, "UTF=grüße\n\"quoted\""), 0);
    assert_int_equal(strlist_add(&s->entrypoint, "/bin/tini"), 0);
    assert_int_equal(strlist_add(&s->cmd, "sh"), 0);
    assert_int_equal(strlist_add(&s->cmd, ""), 0);
    assert_int_equal(spec_add_label(s, "team=search", &e), 0);
    assert_int_equal(spec_add_label(s, "a-b=1", &e), 0);
    assert_int_equal(spec_add_label(s, "a", &e), 0);
    s->workdir = strdup("/work");
    s->user = strdup("nobody:100");
    s->shell = strdup("/bin/bash");
    s->hostname = strdup("host");
    s->log_level = strdup("debug");
    assert_int_equal(add_tmpfs(s, "/scratch", 1000001, PROTO_MOUNT_RO | PROTO_MOUNT_NODEV, &e), 0);
    assert_int_equal(add_tmpfs(s, "/t", 0, PROTO_MOUNT_NOEXEC | PROTO_MOUNT_NOSUID, &e), 0);
    struct spec_mount share = {.kind = MOUNT_BIND,
                               .guest = (char *)"/scratch/share",
                               .source = (char *)"/srv/data",
                               .options = PROTO_MOUNT_RO,
                               .cache = MOUNT_CACHE_ALWAYS,
                               .uid = 1000,
                               .gid = 100,
                               .quota = 1000001};
    assert_int_equal(spec_add_mount(s, &share, &e), 0);
    assert_int_equal(spec_add_script(s, "z", "#!/bin/sh\necho \"$1\"\n", &e), 0);
    assert_int_equal(spec_add_script(s, "a", "", &e), 0);
    assert_int_equal(spec_add_rlimit(s, "nofile=1:unlimited", &e), 0);
    assert_int_equal(spec_add_rlimit(s, "cpu=9223372036854775807", &e), 0);
    assert_true(spec_security_set_profile(&s->security, "docker"));
    s->security.read_only = true;
    assert_int_equal(spec_add_group(&s->security, "audio", &e), 0);
    assert_int_equal(spec_add_sysctl(&s->security, "net.core.somaxconn=1", &e), 0);
    assert_int_equal(spec_add_sysctl(&s->security, "net.core.somaxconn=2 3", &e), 0);
    for (size_t i = 0; i < s->n_mounts; i++)
        if (s->mounts[i].kind == MOUNT_TMPFS) {
            s->mounts[i].mode = 0700;
            s->mounts[i].uid = 5;
        }
    s->ephemeral = true;
    s->idle_timeout_ms = 1500;
    s->max_duration_ms = 3600001;
    s->output_max = 123456789;
    s->created_ns = 1767323045678901234ULL;
    assert_int_equal(spec_validate(s, &e), 0);
}

static void same_list(const struct strlist *a, const struct strlist *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        assert_string_equal(a->v[i], b->v[i]);
}

static void same_text(const char *a, const char *b)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a && b)
        assert_string_equal(a, b);
}

static void same_parts(const struct sandbox_spec *a, const struct sandbox_spec *b)
{
    assert_int_equal(a->n_mounts, b->n_mounts);
    for (size_t i = 0; i < a->n_mounts; i++) {
        assert_int_equal(a->mounts[i].kind, b->mounts[i].kind);
        assert_int_equal(a->mounts[i].disk, b->mounts[i].disk);
        same_text(a->mounts[i].fstype, b->mounts[i].fstype);
        same_text(a->mounts[i].source, b->mounts[i].source);
        assert_string_equal(a->mounts[i].guest, b->mounts[i].guest);
        assert_int_equal(a->mounts[i].size, b->mounts[i].size);
        assert_int_equal(a->mounts[i].options, b->mounts[i].options);
        assert_int_equal(a->mounts[i].mode, b->mounts[i].mode);
        assert_int_equal(a->mounts[i].kind, b->mounts[i].kind);
        if (a->mounts[i].kind == MOUNT_BIND)
            assert_string_equal(a->mounts[i].source, b->mounts[i].source);
        assert_int_equal(a->mounts[i].cache, b->mounts[i].cache);
        assert_int_equal(a->mounts[i].uid, b->mounts[i].uid);
        assert_int_equal(a->mounts[i].gid, b->mounts[i].gid);
        assert_int_equal(a->mounts[i].quota, b->mounts[i].quota);
        assert_int_equal(a->mounts[i].file, b->mounts[i].file);
    }
    assert_int_equal(a->n_scripts, b->n_scripts);
    for (size_t i = 0; i < a->n_scripts; i++) {
        assert_string_equal(a->scripts[i].name, b->scripts[i].name);
        assert_string_equal(a->scripts[i].body, b->scripts[i].body);
    }
    assert_int_equal(a->n_rlimits, b->n_rlimits);
    assert_memory_equal(a->rlimits, b->rlimits, sizeof(a->rlimits));
}

static void same_security(const struct spec_security *a, const struct spec_security *b)
{
    assert_int_equal(a->profile, b->profile);
    assert_int_equal(a->caps, b->caps);
    assert_int_equal(a->no_new_privs, b->no_new_privs);
    assert_int_equal(a->read_only, b->read_only);
    assert_int_equal(a->pids, b->pids);
    same_list(&a->groups, &b->groups);
    same_list(&a->sysctls, &b->sysctls);
}

static void same_spec(const struct sandbox_spec *a, const struct sandbox_spec *b)
{
    same_text(a->name, b->name);
    same_text(a->image, b->image);
    same_text(a->image_digest, b->image_digest);
    same_text(a->stop_signal, b->stop_signal);
    assert_int_equal(a->pull, b->pull);
    same_list(&a->ports, &b->ports);
    same_list(&a->volumes, &b->volumes);
    same_list(&a->write_paths, &b->write_paths);
    assert_int_equal(a->image_kind, b->image_kind);
    assert_memory_equal(&a->cpus, &b->cpus, sizeof(a->cpus));
    assert_int_equal(a->memory_mib, b->memory_mib);
    assert_int_equal(a->engine, b->engine);
    assert_int_equal(a->placement, b->placement);
    assert_int_equal(a->root_disk, b->root_disk);
    assert_int_equal(a->root_disk_bytes, b->root_disk_bytes);
    assert_int_equal(a->root_disk_grown, b->root_disk_grown);
    assert_int_equal(a->disk_sync, b->disk_sync);
    same_list(&a->env, &b->env);
    same_list(&a->entrypoint, &b->entrypoint);
    same_list(&a->cmd, &b->cmd);
    same_list(&a->labels, &b->labels);
    same_text(a->workdir, b->workdir);
    same_text(a->user, b->user);
    same_text(a->shell, b->shell);
    same_text(a->hostname, b->hostname);
    same_text(a->log_level, b->log_level);
    same_parts(a, b);
    same_security(&a->security, &b->security);
    assert_int_equal(a->ephemeral, b->ephemeral);
    assert_int_equal(a->idle_timeout_ms, b->idle_timeout_ms);
    assert_int_equal(a->max_duration_ms, b->max_duration_ms);
    assert_int_equal(a->output_max, b->output_max);
    assert_int_equal(a->created_ns, b->created_ns);
}

/* Through text, as the store does it. */
static void check_form(const struct sandbox_spec *s, json_t *j)
{
    struct err e = {0};
    struct sandbox_spec back;
    assert_non_null(j);
    AUTO_FREE char *text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(j);
    assert_non_null(text);
    j = json_loads(text, 0, NULL);
    spec_init(&back);
    assert_int_equal(spec_from_json(&back, j, &e), 0);
    same_spec(s, &back);
    json_decref(j);
    spec_free(&back);
}

static void check_round_trip(const struct sandbox_spec *s)
{
    check_form(s, spec_to_json(s));
    check_form(s, spec_to_config(s));
}

static void round_trip(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    full(&s);
    check_round_trip(&s);
    for (int k = IMAGE_BUILTIN; k <= IMAGE_OCI; k++) {
        s.image_kind = (enum image_kind)k;
        check_round_trip(&s);
    }
    spec_free(&s);
    minimal(&s);
    assert_int_equal(spec_validate(&s, &e), 0);
    check_round_trip(&s);
    spec_free(&s);
}

/* Whatever a profile is changed to, it comes back the same: none is not all. */
static void security_round_trip(void **state)
{
    struct err e = {0};
    struct sandbox_spec s;
    static const uint64_t caps[] = {0, 1, SPEC_CAPS_ALL & ~SPEC_CAP_SYS_ADMIN, SPEC_CAPS_ALL};
    static const char *const profiles[] = {"default", "restricted", "docker"};
    for (size_t i = 0; i < ARRAY_LEN(profiles) * ARRAY_LEN(caps) * 2; i++) {
        minimal(&s);
        assert_true(spec_security_set_profile(&s.security, profiles[i % 3]));
        s.security.caps = caps[i / 3 % 4];
        s.security.no_new_privs = i / 12;
        s.security.pids = i / 12 ? 7 : 0;
        assert_int_equal(spec_secure_mounts(&s, &e), 0);
        size_t mounts = s.n_mounts;
        assert_int_equal(mounts, i % 3 == 2 ? 3 : 0);
        assert_int_equal(spec_secure_mounts(&s, &e), 0);
        assert_int_equal(s.n_mounts, mounts);
        assert_int_equal(spec_validate(&s, &e), 0);
        check_round_trip(&s);
        spec_free(&s);
    }
}

/* What it may grow to, its init, its pools: they come back from JSON, and differ by name. */
static void room_to_grow(void **state)
{
    struct err e = {0};
    struct sandbox_spec s, old;
    AUTO_CHANGES struct spec_changes c = {0};
    minimal(&s);
    minimal(&old);
    s.max_cpus = 2.5;
    s.max_memory_mib = 1024;
    s.thp = THP_NEVER;
    s.multi_tenant = true;
    s.placement = PLACEMENT_COMPACT;
    s.placement_profile = strdup("fast");
    assert_int_equal(spec_pool_parse("10.1.2.3/9", true, &s.net.pool4, &e), 0);
    assert_int_equal(spec_init_set_path(&s.init, "/sbin/init", &e), 0);
    assert_int_equal(strlist_add(&s.init.args, "--x=1"), 0);
    assert_int_equal(strlist_add(&s.init.env, "A=b=c"), 0);
    assert_int_equal(spec_validate(&s, &e), 0);
    assert_true(spec_is_sealed(&s) && !spec_is_restricted(&s));
    check_round_trip(&s);
    assert_int_equal(spec_add_label(&s, "k=v", &e), 0);
    assert_int_equal(spec_diff(&old, &s, &c), 0);
    assert_int_equal(c.n, 3);
    assert_string_equal(c.v[0].field, "max_cpus");
    assert_string_equal(c.v[0].before, "1");
    assert_string_equal(c.v[0].after, "2.5");
    assert_string_equal(c.v[1].after, "1 GiB");
    assert_string_equal(spec_change_kind(&c.v[2]), "added");
    s.max_cpus = 0.5;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    s.max_cpus = 0;
    s.security.read_only = true;
    assert_int_equal(spec_validate(&s, &e), -EINVAL);
    assert_non_null(strstr(e.msg, "without restrictions"));
    spec_free(&s);
    spec_free(&old);
}

/* Each network of a pool is inside it, and its two ends are in the same one. */
static void pools(void **state)
{
    struct err e = {0};
    struct addr_pool p;
    struct net_addr gateway, guest;
    char text[ADDR_TEXT_MAX];
    static const struct {
        const char *pool;
        uint32_t slot;
        const char *gateway, *guest;
    } all[] = {
        {"10.9.0.0/16", 0, "10.9.0.1", "10.9.0.2"},
        {"10.9.0.0/16", UINT32_MAX, "10.9.255.253", "10.9.255.254"},
        {"10.9.7.5/30", 12345, "10.9.7.5", "10.9.7.6"},
        {"10.0.0.0/8", 0x123456, "10.72.209.89", "10.72.209.90"},
        {"fd00:1::/48", 0xabcd1234, "fd00:1:0:1234::1", "fd00:1:0:1234::2"},
        {"fd00::/64", 77, "fd00::1", "fd00::2"},
        {"fd00::/32", 0x01020304, "fd00:0:102:304::1", "fd00:0:102:304::2"},
    };
    static const char *const bad[] = {
        "",           "10.9.0.0",     "10.9.0.0/31",    "10.0.0.0/7",
        "10.9.0.0/x", "127.0.0.0/8",  "0.0.0.0/8",      "224.0.0.0/8",
        "fd00::/48",  "10.9.0.0/16/", "169.254.0.0/16", "169.254.169.254/32"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        assert_int_equal(spec_pool_parse(all[i].pool, !strchr(all[i].pool, ':'), &p, &e), 0);
        spec_pool_ends(&p, all[i].slot, &gateway, &guest);
        addr_format(&gateway, text);
        assert_string_equal(text, all[i].gateway);
        addr_format(&guest, text);
        assert_string_equal(text, all[i].guest);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(spec_pool_parse(bad[i], true, &p, &e), -EINVAL);
    assert_int_equal(spec_pool_parse("fd00::/65", false, &p, &e), -EINVAL);
    assert_int_equal(spec_pool_parse("::/8", false, &p, &e), -EINVAL);
    assert_int_equal(spec_pool_parse("fe80::/64", false, &p, &e), -EINVAL);
    assert_int_equal(spec_pool_parse("10.9.0.0/16", false, &p, &e), -EINVAL);
}

static void security_words(void **state)
{
    struct err e = {0};
    struct spec_security s;
    uint64_t bits = 0;
    char text[SPEC_CAPS_TEXT_MAX];
    spec_security_init(&s);
    assert_int_equal(spec_parse_cap("cap_Sys_Admin", &bits, &e), 0);
    assert_true(bits == SPEC_CAP_SYS_ADMIN);
    assert_int_equal(spec_parse_cap("all", &bits, &e), 0);
    assert_true(bits == SPEC_CAPS_ALL);
    assert_int_equal(spec_parse_cap("", &bits, &e), -EINVAL);
    assert_int_equal(spec_parse_cap("CAP_ALL", &bits, &e), -EINVAL);
    spec_caps_format(SPEC_CAPS_ALL - 1, text); /* the longest fits */
    assert_non_null(strstr(text, ",CHECKPOINT_RESTORE"));
    static const char *const bad[] = {"",
                                      "x",
                                      "net.core.x",
                                      "net.core.x=",
                                      "=1",
                                      "net=1",
                                      "net.=1",
                                      "net..x=1",
                                      ".net.x=1",
                                      "net.x.=1",
                                      "net/../kernel/core_pattern=1",
                                      "kernel.core_pattern=|/x",
                                      "kernel.shm=1",
                                      "kernel.modprobe=/x",
                                      "net.x=a\nb",
                                      "vm.max_map_counts=1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (spec_add_sysctl(&s, bad[i], &e) == 0)
            fail_msg("accepted: %s", bad[i]);
    assert_int_equal(s.sysctls.n, 0);
    assert_int_equal(spec_add_sysctl(&s, "kernel.shmmax=1", &e), 0);
    assert_int_equal(spec_add_group(&s, "a:b", &e), -EINVAL);
    for (int i = 0; i < SPEC_GROUPS_MAX; i++) {
        (void)snprintf(text, sizeof(text), "%d", i);
        assert_int_equal(spec_add_group(&s, text, &e), 0);
    }
    assert_int_equal(spec_add_group(&s, "more", &e), -E2BIG);
    spec_security_free(&s);
}

static void documented_keys(void **state)
{
    static const char *const keys[] = {"deployment_profile",
                                       "env",
                                       "image",
                                       "init",
                                       "labels",
                                       "lifecycle",
                                       "manifest_digest",
                                       "mounts",
                                       "name",
                                       "network",
                                       "patches",
                                       "pull_policy",
                                       "resources",
                                       "rlimits",
                                       "runtime",
                                       "security_profile"};
    static const char *const network[] = {"dns",    "enabled",       "interface", "max_connections",
                                          "policy", "ports",         "secrets",   "strict",
                                          "tls",    "trust_host_cas"};
    static const char *const runtime[] = {"cmd",     "entrypoint", "hostname", "log_level",
                                          "scripts", "shell",      "user",     "workdir"};
    struct sandbox_spec s;
    full(&s);
    json_t *j = spec_to_config(&s);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_non_null(json_object_get(j, keys[i]));
    for (size_t i = 0; i < ARRAY_LEN(network); i++)
        assert_non_null(json_object_get(json_object_get(j, "network"), network[i]));
    for (size_t i = 0; i < ARRAY_LEN(runtime); i++)
        assert_non_null(json_object_get(json_object_get(j, "runtime"), runtime[i]));
    json_decref(j);
    spec_free(&s);
}

static int read_back(const char *text)
{
    struct err e = {0};
    struct sandbox_spec s;
    json_t *j = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    spec_init(&s);
    int r = spec_from_json(&s, j, &e);
    assert_true(r == 0 || e.msg[0] != '\0');
    spec_free(&s);
    json_decref(j);
    return r;
}

#define NAMED "\"name\":\"a\",\"image\":{\"Oci\":{\"reference\":\"x\"}}"

static void reading_is_forgiving_about_what_it_does_not_know(void **state)
{
    assert_int_equal(read_back("{" NAMED "}"), 0);
    assert_int_equal(read_back("{" NAMED ",\"future\":{\"x\":[1]},\"runtime\":{\"new\":1}}"), 0);
    assert_int_equal(read_back("{" NAMED ",\"runtime\":null,\"env\":null}"), 0);
}

static void reading_is_strict_about_what_it_knows(void **state)
{
    static const char *const bad[] = {
        "null",
        "[]",
        "\"x\"",
        "{}",
        "{\"name\":\"../a\",\"image\":{\"Oci\":{\"reference\":\"x\"}}}",
        "{\"name\":7}",
        "{\"name\":\"a\\u0000b\"}",
        "{" NAMED ",\"env\":{}}",
        "{" NAMED ",\"env\":[1]}",
        "{" NAMED ",\"env\":[{\"key\":\"\",\"value\":\"\"}]}",
        "{" NAMED ",\"env\":[{\"key\":\"a=b\",\"value\":\"\"}]}",
        "{" NAMED ",\"exposed_ports\":[80]}",
        "{" NAMED ",\"exposed_ports\":[\"http\"]}",
        "{" NAMED ",\"image_volumes\":[\"data\"]}",
        "{" NAMED ",\"manifest_digest\":\"sha256:0123\"}",
        "{" NAMED ",\"manifest_digest\":\"../../etc\"}",
        "{" NAMED ",\"pull_policy\":\"Sometimes\"}",
        "{" NAMED ",\"runtime\":{\"stop_signal\":\"SIGNONE\"}}",
        "{" NAMED ",\"labels\":[]}",
        "{" NAMED ",\"labels\":{\"a\":1}}",
        "{" NAMED ",\"labels\":{\"\":\"\"}}",
        "{" NAMED ",\"resources\":{\"cpus\":\"1\"}}",
        "{" NAMED ",\"resources\":{\"cpus\":-1}}",
        "{" NAMED ",\"resources\":{\"cpus\":1e300}}",
        "{" NAMED ",\"resources\":{\"memory_mib\":-5}}",
        "{" NAMED ",\"resources\":{\"memory_mib\":1.5}}",
        "{" NAMED ",\"resources\":{\"memory_mib\":9223372036854775807}}",
        "{" NAMED ",\"resources\":{\"engine\":\"magic\"}}",
        "{" NAMED ",\"resources\":{\"root_disk\":{\"type\":\"flat\"}}}",
        "{" NAMED ",\"resources\":{\"root_disk\":{\"type\":\"file\"}}}",
        "{" NAMED ",\"resources\":{\"root_disk\":{\"type\":\"file\",\"path\":\"x\"}}}",
        "{" NAMED ",\"resources\":{\"root_disk\":{\"type\":\"tmpfs\",\"path\":\"/x\"}}}",
        "{" NAMED ",\"lifecycle\":{\"idle_timeout_secs\":9223372036854775807}}",
        "{" NAMED ",\"lifecycle\":{\"ephemeral\":1}}",
        "{" NAMED ",\"mounts\":[{\"type\":\"Bind\",\"guest\":\"/x\"}]}",
        "{" NAMED ",\"mounts\":[{\"type\":\"Tmpfs\",\"guest\":\"/x\",\"size_mib\":"
        "9223372036854775807}]}",
        "{" NAMED ",\"mounts\":[{\"type\":\"Tmpfs\",\"guest\":\"/proc\"}]}",
        "{" NAMED ",\"rlimits\":[{\"resource\":\"x\",\"soft\":1,\"hard\":1}]}",
        "{" NAMED ",\"rlimits\":[{\"resource\":\"cpu\",\"soft\":2,\"hard\":1}]}",
        "{" NAMED ",\"runtime\":{\"cmd\":[1]}}",
        "{" NAMED ",\"security_profile\":\"none\"}",
        "{" NAMED ",\"security\":{\"profile\":1}}",
        "{" NAMED ",\"security\":{\"capabilities\":[\"FLY\"]}}",
        "{" NAMED ",\"security\":{\"pids_limit\":4194305}}",
        "{" NAMED ",\"security\":{\"sysctls\":[\"kernel.modprobe=/x\"]}}",
        "{" NAMED ",\"mounts\":[{\"type\":\"Tmpfs\",\"guest\":\"/x\",\"mode\":4096}]}",
        "{" NAMED ",\"runtime\":{\"hostname\":\"\"}}",
        "{" NAMED ",\"runtime\":{\"scripts\":{\"a/b\":\"x\"}}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (read_back(bad[i]) >= 0)
            fail_msg("accepted: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(hostnames),
        cmocka_unit_test(rlimits),
        cmocka_unit_test(signals),
        cmocka_unit_test(ports_and_volumes),
        cmocka_unit_test(write_paths),
        cmocka_unit_test(labels),
        cmocka_unit_test(mounts),
        cmocka_unit_test(scripts),
        cmocka_unit_test(validation),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(security_round_trip),
        cmocka_unit_test(room_to_grow),
        cmocka_unit_test(pools),
        cmocka_unit_test(security_words),
        cmocka_unit_test(documented_keys),
        cmocka_unit_test(reading_is_forgiving_about_what_it_does_not_know),
        cmocka_unit_test(reading_is_strict_about_what_it_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
