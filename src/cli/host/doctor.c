/* doctor: checks whether this machine can run sandboxes, and suggests remedies. */
#include "cli/host/doctor.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/host/kernel_release.h"
#include "engine/engine.h"
#include "engine/kvm/probe.h"
#include "image/image.h"
#include "image/store/upper.h"
#include "jail/cgroup.h"
#include "launch/placement.h"
#include "registry/registry.h"
#include "store/store.h"
#include "util/assets.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/parse.h"
#include "util/process.h"
#include "util/term.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { LOW_DISK_MIB = 1024, LOW_INODES = 1000, LOW_MEMORY_MIB = 256 };

struct check *doctor_add(struct doctor *d, const char *name, enum mark mark, const char *fmt, ...)
{
    struct check *c = &d->checks[d->n < DOCTOR_CHECKS_MAX ? d->n++ : DOCTOR_CHECKS_MAX - 1];
    *c = (struct check){.name = name, .mark = mark};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->detail, sizeof(c->detail), fmt, ap);
    va_end(ap);
    return c;
}

void doctor_remedy(struct check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->remedy, sizeof(c->remedy), fmt, ap);
    va_end(ap);
}

/* --- what msb ships ------------------------------------------------------------------------ */

/* Probes again, regardless of earlier results. */
static void check_kvm(struct doctor *d)
{
    struct err e = {0};
    struct kvm_probe p;
    char speed[80];
    AUTO_CLOSE int fd = -1;
    if (kvm_device_open(&fd, &e) < 0) {
        const char *hint = e.hints ? e.hint[0] : "";
        if (doctor_container() && access("/dev/kvm", F_OK) < 0)
            hint = "if its host has KVM, start the container with --device /dev/kvm";
        doctor_remedy(doctor_add(d, "KVM", MARK_WARN, "%s", e.msg), "%s", hint);
        return;
    }
    kvm_probe(fd, true, &p, &e);
    kvm_probe_speed(&p, speed, sizeof(speed));
    switch (p.verdict) {
    case KVM_NATIVE:
        d->native_kvm = true;
        doctor_add(d, "KVM", MARK_OK, "a probe VM runs kernel code natively, %s", speed);
        break;
    case KVM_SLOW:
        doctor_remedy(doctor_add(d, "KVM", MARK_WARN,
                                 "/dev/kvm opens, but a probe VM runs kernel code %s: it is "
                                 "emulated, too slow for kernels",
                                 speed),
                      "nothing to do: sandboxes run on the uml engine here");
        break;
    case KVM_NOT_RUN:
        doctor_remedy(doctor_add(d, "KVM", MARK_WARN, "%s", e.msg),
                      "nothing to do if the uml engine is fast enough for you");
        break;
    }
}

static void check_engine(struct doctor *d)
{
    struct err e = {0};
    CLEANUP(engine_choice_close) struct engine_choice en = ENGINE_CHOICE_NONE;
    if (engine_choose(ENGINE_AUTO, &en, &e) < 0) {
        struct check *c = doctor_add(d, "Engine", MARK_FAIL, "none: %s", e.msg);
        doctor_remedy(c, "%s",
                      e.hints ? e.hint[0] : "run on Linux with user namespaces and seccomp");
        return;
    }
    d->engine = en.ops;
    /* The choice looks for the kernel first; without usable KVM, that is not what is missing. */
    bool no_kernel_needed = en.ops != &engine_kvm && !d->native_kvm;
    doctor_add(d, "Engine", MARK_OK, "%s (%s)", en.ops->name,
               no_kernel_needed ? "KVM cannot be used here" : en.why);
    const char *env = getenv("MSB_ENGINE");
    if (env && *env && engine_kind_parse(env) == ENGINE_INVALID)
        doctor_remedy(doctor_add(d, "MSB_ENGINE", MARK_FAIL, "invalid engine '%s'", env),
                      "unset MSB_ENGINE, or set it to auto, kvm, uml or uml-ptrace");
}

static bool has_asset(const struct doctor *d, const char *file, char *path, size_t size)
{
    struct stat st;
    (void)snprintf(path, size, "%s/%s", d->assets, file);
    return access(path, R_OK) == 0 && stat(path, &st) == 0 && st.st_size > 0;
}

static void check_asset(struct doctor *d, const char *name, const char *file)
{
    char path[sizeof(d->assets) + 64];
    if (!d->have_assets)
        return;
    if (has_asset(d, file, path, sizeof(path)))
        doctor_add(d, name, MARK_OK, "%s", path);
    else
        doctor_remedy(
            doctor_add(d, name, MARK_FAIL, "%s is missing or unreadable", path),
            "build and install it with: make install, or set MSB_ASSETS to its directory");
}

/* A guest attacks its own kernel first. Newer kernels are only known as far as kernel/build has
 * found them in the archives; without that, and after a while, age is the criterion. */
static void add_kernel(struct doctor *d, const char *name, const char *path, const char *target)
{
    struct kernel_release k, newest;
    char text[64], other[64];
    if (kernel_release_read(path, &k) < 0) {
        doctor_add(d, name, MARK_OK, "%s, of unknown version", path);
        return;
    }
    kernel_release_text(&k, text, sizeof(text));
    int64_t days = k.when > 0 ? (time(NULL) - k.when) / 86400 : 0;
    struct check *c;
    if (kernel_release_newest(&newest) && kernel_release_compare(&k, &newest) < 0) {
        kernel_release_text(&newest, other, sizeof(other));
        c = doctor_add(d, name, MARK_WARN, "%s, %s: older than %s, the newest known here", path,
                       text, other);
    } else if (days > KERNEL_OLD_DAYS) {
        c = doctor_add(d, name, MARK_WARN, "%s, %s: %lld days old, so a newer one is likely", path,
                       text, (long long)days);
    } else {
        doctor_add(d, name, MARK_OK, "%s, %s", path, text);
        return;
    }
    doctor_remedy(
        c,
        "in msb's source tree: kernel/build --update %s, then make install; or install a newer "
        "package of msb",
        target);
}

/* One is enough: the one for the engine that runs here. Do not suggest building a useless one. */
static void check_kernel(struct doctor *d, const char *name, const struct engine_ops *engine)
{
    char path[sizeof(d->assets) + 64];
    if (!d->have_assets)
        return;
    if (has_asset(d, engine->kernel_file, path, sizeof(path)))
        add_kernel(d, name, path, engine->name);
    else if (d->engine == engine)
        check_asset(d, name, engine->kernel_file);
    else if (engine != &engine_kvm || d->native_kvm)
        doctor_remedy(doctor_add(d, name, MARK_WARN, "%s is missing: the %s engine is unavailable",
                                 path, engine->name),
                      "build it with: make kernel-%s", engine->name);
}

/* This kernel is useful only where there are several CPUs. */
static void check_smp_kernel(struct doctor *d)
{
    char path[sizeof(d->assets) + 64];
    if (!d->have_assets || !d->engine || !d->engine->smp_file)
        return;
    if (has_asset(d, d->engine->smp_file, path, sizeof(path)))
        add_kernel(d, "Kernel (smp)", path, "uml-smp");
    else if (placement_cpus() > 1)
        doctor_remedy(doctor_add(d, "Kernel (smp)", MARK_WARN,
                                 "%s is missing: a guest has one CPU, whatever --cpus says", path),
                      "build it with: make kernel-uml-smp");
}

static void check_assets(struct doctor *d)
{
    struct err e = {0};
    d->have_assets = assets_dir(d->assets, sizeof(d->assets), &e) == 0;
    AUTO_FREE char *real = d->have_assets ? realpath(d->assets, NULL) : NULL;
    if (real)
        (void)snprintf(d->assets, sizeof(d->assets), "%s", real);
    if (!d->have_assets)
        doctor_remedy(doctor_add(d, "Assets", MARK_FAIL, "%s", e.msg), "%s",
                      e.hints ? e.hint[0] : "");
    check_kernel(d, "Kernel (kvm)", &engine_kvm);
    check_kernel(d, "Kernel (uml)", &engine_uml);
    check_smp_kernel(d);
    check_asset(d, "Tools disk", "tools.erofs");
    check_asset(d, "Base image", IMAGE_BASE_FILE);
    struct statvfs v;
    if (d->have_assets && d->engine != &engine_kvm && statvfs(d->assets, &v) == 0 &&
        v.f_flag & ST_NOEXEC)
        doctor_remedy(doctor_add(d, "Assets", MARK_FAIL,
                                 "%s is mounted noexec, and the uml engine's kernel is a program",
                                 d->assets),
                      "install msb elsewhere, or set MSB_ASSETS to a copy of that directory");
}

/* --- where sandboxes live ------------------------------------------------------------------- */

static void check_home(struct doctor *d)
{
    struct err e = {0};
    d->have_store = store_open(&d->store, &e) == 0;
    if (!d->have_store) {
        doctor_remedy(doctor_add(d, "MSB_HOME", MARK_FAIL, "%s", e.msg), "%s",
                      e.hints ? e.hint[0] : "set MSB_HOME to a directory you can write to");
        return;
    }
    int fd = openat(d->store.home_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    bool writable =
        fd >= 0 || (errno == EOPNOTSUPP && faccessat(d->store.home_fd, ".", W_OK, 0) == 0);
    if (fd >= 0)
        (void)close(fd);
    if (writable)
        doctor_add(d, "MSB_HOME", MARK_OK, "%s", d->store.home);
    else
        doctor_remedy(doctor_add(d, "MSB_HOME", MARK_FAIL, "%s is not writable", d->store.home),
                      "set MSB_HOME to a directory you can write to");
    struct statvfs v;
    if (fstatvfs(d->store.home_fd, &v) < 0)
        return;
    char free_text[32];
    uint64_t mib = (uint64_t)v.f_bavail * v.f_frsize / MIB;
    format_mib(mib, free_text, sizeof(free_text));
    if (v.f_files && v.f_favail < LOW_INODES)
        doctor_remedy(doctor_add(d, "Disk", MARK_WARN, "only %llu more files fit",
                                 (unsigned long long)v.f_favail),
                      "remove some files, or move MSB_HOME to another file system");
    else if (mib >= LOW_DISK_MIB)
        doctor_add(d, "Disk", MARK_OK, "%s free", free_text);
    else
        doctor_remedy(doctor_add(d, "Disk", MARK_WARN, "only %s free", free_text),
                      "free some space, or move MSB_HOME to a larger file system");
}

/* Puts a child into a sandbox's group. */
static int try_cgroup(int dirfd, struct cgroups *g)
{
    struct cgroup_limits l = {.cpus = 0.5};
    cgroup_limits_for(&l, MIB);
    cgroup_make(g, dirfd, "doctor", &l);
    pid_t pid = cgroup_fork(g);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    int r = pid < 0 ? -errno : 0;
    if (r == 0) {
        cgroup_put(g, pid);
        (void)kill(pid, SIGKILL);
        (void)process_wait(pid);
    }
    cgroup_free(g);
    cgroup_forget(dirfd);
    return r;
}

/* Optional: only fractional --cpus need it; for memory and processes, it is a second line of
 * defense. */
static void check_cgroup(struct doctor *d)
{
    char dir[64];
    (void)snprintf(dir, sizeof(dir), "doctor.%d", (int)getpid());
    if (!d->have_store || mkdirat(d->store.home_fd, dir, 0700) < 0)
        return;
    AUTO_CLOSE int fd = openat(d->store.home_fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct cgroups g = {.fd = -1};
    int r = fd < 0 ? -errno : try_cgroup(fd, &g);
    (void)remove_tree_at(d->store.home_fd, dir);
    int cpu = r < 0 ? r : g.error[CGROUP_CPU];
    int memory = r < 0                        ? r
                 : g.error[CGROUP_MEMORY] < 0 ? g.error[CGROUP_MEMORY]
                                              : g.error[CGROUP_PIDS];
    if (cpu == 0 && memory == 0) {
        doctor_add(d, "cgroup", MARK_OK, "limits CPU time, memory and processes");
        return;
    }
    struct check *line =
        cpu < 0 ? doctor_add(
                      d, "cgroup", MARK_WARN, "fractional --cpus are not enforced%s: %s",
                      memory < 0
                          ? ", nor is a limit on memory that this host's kernel uses for a sandbox"
                          : "",
                      strerror(-cpu))
                : doctor_add(d, "cgroup", MARK_WARN,
                             "no limit on memory that this host's kernel uses for a sandbox (page "
                             "tables, socket buffers): %s",
                             strerror(-memory));
    doctor_remedy(line, "%s",
                  doctor_container()
                      ? "limit the container itself (--memory, --cpus, --pids-limit), or give it "
                        "its own writable cgroup"
                      : "run msb where the cpu, memory and pids controllers are delegated, for "
                        "example: systemd-run --user --scope -p Delegate=yes");
}

static void check_libcurl(struct doctor *d)
{
    char version[64];
    struct err e = {0};
    if (registry_library(version, sizeof(version), &e) == 0)
        doctor_add(d, "libcurl", MARK_OK, "%s", version);
    else
        doctor_remedy(doctor_add(d, "libcurl", MARK_WARN, "images cannot be pulled: %s", e.msg),
                      "%s", e.hints ? e.hint[0] : "install libcurl");
}

static void check_mke2fs(struct doctor *d)
{
    const char *found = upper_mke2fs();
    if (*found == '/') {
        doctor_add(d, "mke2fs", MARK_OK, "%s", found);
        return;
    }
    const char *path = getenv("PATH");
    AUTO_FREE char *copy = path ? strdup(path) : NULL;
    char *rest = copy, *dir;
    while ((dir = strsep(&rest, ":"))) {
        char file[4096];
        (void)snprintf(file, sizeof(file), "%s/mke2fs", dir);
        if (access(file, X_OK) == 0) {
            doctor_add(d, "mke2fs", MARK_OK, "%s", file);
            return;
        }
    }
    doctor_remedy(doctor_add(d, "mke2fs", MARK_FAIL, "not found: writable disks cannot be created"),
                  "install e2fsprogs, or use --root-disk tmpfs");
}

static void check_memory(struct doctor *d)
{
    struct sysinfo si;
    if (sysinfo(&si) < 0)
        return;
    uint64_t available = 0;
    AUTO_FCLOSE FILE *f = fopen("/proc/meminfo", "re");
    char line[256], text[32];
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "MemAvailable:", 13) == 0)
            available = strtoull(line + 13, NULL, 10) / 1024;
    if (!available)
        available = (uint64_t)si.freeram * si.mem_unit / MIB;
    format_mib(available, text, sizeof(text));
    if (available >= LOW_MEMORY_MIB)
        doctor_add(d, "Memory", MARK_OK, "%s available", text);
    else
        doctor_remedy(doctor_add(d, "Memory", MARK_WARN, "only %s available", text),
                      "stop other programs, or give sandboxes less with --memory");
}

/* --- report --------------------------------------------------------------------------------- */

static void print_check(const struct check *c)
{
    static const char *const marks[] = {"✓", "!", "✗"};
    static const char *const colors[] = {SGR_GREEN, SGR_YELLOW, SGR_RED};
    bool on = term_colors(STDERR_FILENO);
    (void)fprintf(stderr, "   %s%s%s %-12s %s\n", on ? colors[c->mark] : "", marks[c->mark],
                  on ? SGR_RESET : "", c->name, c->detail);
    if (c->mark != MARK_OK && c->remedy[0])
        (void)fprintf(stderr, "  → %s\n", c->remedy);
}

static int print_json(const struct doctor *d, bool usable)
{
    static const char *const words[] = {"ok", "warn", "fail"};
    json_t *checks = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const struct check *c = &d->checks[i];
        (void)json_array_append_new(checks,
                                    json_pack("{s:s, s:s, s:s, s:o}", "name", c->name, "status",
                                              words[c->mark], "detail", c->detail, "remedy",
                                              c->remedy[0] ? json_string(c->remedy) : json_null()));
    }
    return ui_print_json(
        json_pack("{s:s, s:b, s:o}", "version", MSB_VERSION, "usable", usable, "checks", checks));
}

static size_t examine(struct doctor *d)
{
    static void (*const all[])(struct doctor *) = {
        doctor_surroundings, check_home,     check_kvm,     check_engine, check_assets,
        doctor_namespaces,   doctor_seccomp, doctor_limits, check_cgroup, check_mke2fs,
        check_libcurl,       check_memory,   doctor_boot,
    };
    struct utsname un;
    *d = (struct doctor){.store = STORE_NONE};
    if (uname(&un) == 0)
        doctor_add(d, "Host", MARK_OK, "%s %s %s, msb %s", un.sysname, un.release, un.machine,
                   MSB_VERSION);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        all[i](d);
    if (d->have_store)
        store_close(&d->store);
    size_t failed = 0;
    for (size_t i = 0; i < d->n; i++)
        failed += d->checks[i].mark == MARK_FAIL;
    return failed;
}

/* Reports if a fix needs root; what cannot be fixed is left alone. */
static int fix(struct doctor *d, bool ask, struct err *e)
{
    int r = doctor_fix(d, ask);
    if (r == -EACCES || r == -EPERM || r == -EROFS)
        return err_hinted(e, err_set(e, -r, "cannot change the settings of this host"),
                          "run it as root: sudo msb doctor --fix");
    return r < 0 ? err_sys(e, -r, "cannot change the settings of this host") : r;
}

static int doctor_run(const struct args *a)
{
    struct err e = {0};
    struct doctor d;
    size_t failed = examine(&d);
    if (args_has(a, "fix")) {
        int r = fix(&d, !args_has(a, "yes"), &e);
        if (r < 0)
            return ui_fail(&e);
        if (r > 0)
            failed = examine(&d);
    }
    if (wants_json(a)) {
        int code = print_json(&d, failed == 0);
        return code ? code : failed ? EXIT_FAILED : EXIT_OK;
    }
    for (size_t i = 0; i < d.n; i++)
        print_check(&d.checks[i]);
    if (failed == 0)
        return EXIT_OK;
    err_set(&e, ENOTSUP, "this machine cannot run sandboxes: %zu check%s failed", failed,
            failed == 1 ? "" : "s");
    return ui_fail(&e);
}

const struct cmd cmd_doctor = {
    .name = "doctor",
    .group = GROUP_INSTALL,
    .summary = "Check whether this machine can run sandboxes",
    .opts = OPTIONS(FORMAT_OPTION,
                    {"fix", 0, NULL, "Change host settings that cause problems (as root)"},
                    {"yes", 'y', NULL, "Do not ask for confirmation"}),
    .details = "The report goes to standard error. Its last line reports on a test "
               "sandbox with a host directory and a network. The exit code is 1 if a required "
               "check fails.",
    .examples = "  msb doctor\n"
                "  msb doctor --format json",
    .run = doctor_run,
};
