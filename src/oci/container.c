#include "oci/container.h"

#include "oci/group.h"
#include "oci/hooks.h"
#include "oci/init.h"
#include "oci/netns.h"
#include "oci/pod.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/process.h"
#include "util/sock.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KILL_WAIT_MS = 5000, STOPPED_GRACE_MS = 3000 };

int pid_file_write(const char *path, pid_t pid, struct err *e)
{
    char text[16];
    int n = snprintf(text, sizeof(text), "%d", (int)pid);
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (!path)
        return 0;
    AUTO_FREE char *dir = slash ? strndup(path, (size_t)(slash + 1 - path)) : strdup(".");
    AUTO_CLOSE int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int r = fd < 0 ? -errno
                   : file_replace_at(fd, slash ? slash + 1 : path, text, (size_t)n, 0644, false);
    return r < 0 ? err_sys(e, -r, "cannot write --pid-file %s", path) : 0;
}

/* --- create ---------------------------------------------------------------------------------- */

static json_t *state_as(const struct oci_container *c, enum oci_status as)
{
    struct oci_container now = *c;
    now.status = as;
    return container_state(&now);
}

static int run_hooks(const struct oci_container *c, const char *kind, enum oci_status as,
                     struct err *e)
{
    AUTO_JSON json_t *state = state_as(c, as);
    return state ? hooks_run(json_object_get(c->j, "hooks"), kind, state, e) : err_oom(e);
}

/* It is too late to fail: the specification says to continue. */
static void run_late_hooks(const struct oci_runtime *rt, const struct oci_container *c,
                           const char *kind, enum oci_status as)
{
    AUTO_JSON json_t *state = state_as(c, as);
    if (state)
        hooks_run_all(json_object_get(c->j, "hooks"), kind, state, rt->g);
}

/* A container that never had a process ran no other hooks either. */
static void run_poststop(const struct oci_runtime *rt, const struct oci_container *c)
{
    if (c->j)
        run_late_hooks(rt, c, "poststop", OCI_STOPPED);
}

/* Stores the number by which its commands are found in the pod's guest. */
static int save_number(struct oci_container *c, int number, struct err *e)
{
    json_t *state = json_copy(c->j);
    json_put(&state, "number", json_integer(number));
    return container_save(c, state, c->pid, e);
}

static int await_guest(struct oci_container *c, bool in_pod, int sock, struct err *e)
{
    pid_t number = 0;
    int r = report_receive(sock, &number, e);
    return r == 0 && in_pod ? save_number(c, number, e) : r;
}

/* The container's process has its namespaces: whatever connects them runs now, before the guest
 * examines its network. */
static int complete(struct oci_container *c, const char *pid_file, bool in_pod, int sock,
                    struct err *e)
{
    static const char *const kinds[] = {"prestart", "createRuntime", "createContainer"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(kinds); i++)
        r = run_hooks(c, kinds[i], OCI_CREATING, e);
    if (r == 0 && send(sock, "", 1, MSG_NOSIGNAL) != 1)
        r = err_set(e, ECHILD, "the container's process ended unexpectedly");
    if (r == 0) /* while the guest boots */
        r = pid_file_write(pid_file, c->pid, e);
    if (r < 0)
        return r;
    r = await_guest(c, in_pod, sock, e);
    if (r < 0 && pid_file)
        (void)unlink(pid_file);
    return r;
}

/* Orphans of the booter become our children, and our caller's when we end. */
static int spawn_booter(const struct oci_init *in, int *ret_sock, pid_t *ret_pid, struct err *e)
{
    AUTO_CLOSE int here = -1, there = -1;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    int r = packet_pair(&here, &there, e);
    if (r < 0)
        return r;
    bool in_group;
    pid_t pid = group_fork(in->groups, &in_group);
    if (pid == 0) {
        (void)close(here);
        booter_main(in, in_group, there);
    }
    if (pid < 0)
        return err_sys(e, errno, "cannot start a process");
    *ret_sock = steal_fd(&here);
    *ret_pid = pid;
    return 0;
}

static int save_state(struct oci_container *c, const struct oci_init *in, pid_t pid, struct err *e)
{
    json_t *state = json_copy(c->j);
    AUTO_JSON json_t *more = container_config_state(in->config);
    if (json_object_update(state, more) < 0) {
        json_decref(state);
        return err_oom(e);
    }
    if (in->pod)
        json_put(&state, "pod", json_string(in->pod));
    int r = container_save(c, state, pid, e);
    return r < 0 ? r : container_save_filter(c, &in->config->process.req, e);
}

static int create_in(const struct oci_create *o, const struct oci_init *in, struct oci_container *c,
                     json_t *groups, struct err *e)
{
    AUTO_CLOSE int sock = -1;
    pid_t booter = 0, pid = 0;
    const char *path = in->config->cgroups_path;
    int r = group_limit(groups, in->config->resources, !path || !*path, e);
    if (r == 0)
        r = spawn_booter(in, &sock, &booter, e);
    if (r < 0)
        return r;
    r = report_receive(sock, &pid, e);
    if (r == 0)
        r = save_state(c, in, pid, e);
    if (r == 0)
        r = complete(c, o->pid_file, in->pod, sock, e);
    close_fd(&sock);
    if (r < 0 && pid > 0)
        (void)kill(pid, SIGKILL);
    (void)process_wait(booter);
    if (r < 0 && pid > 0)
        (void)process_wait(pid);
    return r;
}

static int check_terminal(const struct oci_create *o, const struct container_config *c,
                          struct err *e)
{
    if (c->process.terminal && !o->console_socket)
        return err_set(e, EINVAL,
                       "process.terminal is true: --console-socket is needed to hand it over");
    if (!c->process.terminal && o->console_socket)
        return err_set(e, EINVAL, "--console-socket is for a process with a terminal");
    return 0;
}

/* Its guest may still be writing back what it has in memory: that ends by itself, or is
 * terminated. */
static int remove_sandbox(const struct oci_runtime *rt, const char *id, struct err *e)
{
    struct err none = {0};
    (void)sandbox_stop(&rt->store, id, STOPPED_GRACE_MS, false, NULL, &none);
    err_clear(&none);
    int r = sandbox_remove(&rt->store, id, true, NULL, &none);
    if (r < 0 && r != -ENOENT && e)
        *e = none;
    return r == -ENOENT ? 0 : r;
}

/* A pod's guest is as large as the pod may be, if the configuration does not say how large. */
static int settle_config(const struct oci_runtime *rt, struct container_config *c, bool in_pod,
                         struct err *e)
{
    struct group_limits l = {0};
    if (c->sandbox)
        l = group_limits_above(c->cgroups_path, rt->g->systemd_cgroup);
    if (l.memory >= MIB && !(c->said & SAID_MEMORY))
        c->spec.memory_mib = MAX(l.memory / MIB, (uint64_t)SPEC_MEMORY_MIN_MIB);
    if (l.quota > 0 && !c->said_cpus) /* except the overhead of our RuntimeClass, 50m */
        c->spec.cpus = container_config_cpus(l.quota - l.period / 20, l.period);
    return container_config_settle(c, in_pod, e);
}

/* Reads all that can be known before anything is created. */
static int read_config(const struct oci_runtime *rt, const struct oci_create *o,
                       struct container_config *c, char **pod, struct err *e)
{
    int r = container_config_read(c, o->bundle, o->id, e);
    if (r == 0)
        r = pod_find(rt, c, pod, e);
    if (r == 0)
        r = settle_config(rt, c, *pod != NULL, e);
    if (r == 0)
        r = check_terminal(o, c, e);
    return r < 0 ? r
                 : sandbox_check_policy(&rt->store, &c->spec,
                                        &(struct create_options){.said = c->said}, e);
}

/* Removes everything of the container except its process. */
static int remove_guest(const struct oci_runtime *rt, const char *id, const char *pod,
                        const json_t *netns, struct err *e)
{
    if (pod) {
        pod_forget(rt, pod, id);
        return 0;
    }
    int r = remove_sandbox(rt, id, e);
    if (r == 0)
        netns_release(netns);
    return r;
}

/* Stored first, for a `delete` that has to remove them. */
static int make_groups(const struct oci_runtime *rt, const struct container_config *config,
                       struct oci_container *c, json_t **ret, struct err *e)
{
    const struct group_wish w = {.path = config->cgroups_path,
                                 .systemd = rt->g->systemd_cgroup,
                                 .id = c->id,
                                 .resources = config->resources};
    int r = group_plan(&w, ret, e);
    if (r < 0)
        return r;
    json_t *state = container_config_about(config);
    json_put(&state, "groups", json_incref(*ret));
    r = container_save(c, state, 0, e);
    return r < 0 ? r : group_make(&w, *ret, e);
}

int oci_create(struct oci_runtime *rt, const struct oci_create *o, struct err *e)
{
    AUTO_CONFIG struct container_config config = {0};
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    AUTO_JSON json_t *groups = NULL;
    AUTO_FREE char *pod = NULL;
    int r = read_config(rt, o, &config, &pod, e);
    if (r == 0)
        r = name_lock_take_kind(&rt->store, "container", o->id, &lock, e);
    if (r == 0)
        r = container_make(rt, o->id, &c, e);
    if (r < 0)
        return r;
    r = make_groups(rt, &config, &c, &groups, e);
    if (r == 0)
        r = create_in(o,
                      &(struct oci_init){.rt = rt,
                                         .config = &config,
                                         .container = &c,
                                         .groups = groups,
                                         .console_socket = o->console_socket,
                                         .pod = pod,
                                         .lock = lock.fd},
                      &c, groups, e);
    if (r < 0) {
        (void)remove_guest(rt, o->id, pod, json_object_get(c.j, "netns"), NULL);
        group_remove(groups);
        (void)container_forget(rt, o->id, NULL);
        run_poststop(rt, &c);
        lock.forget = true;
    }
    return r;
}

/* --- start, kill, pause ---------------------------------------------------------------------- */

static int not_in(const struct oci_container *c, const char *verb, struct err *e)
{
    return err_set(e, EINVAL, "cannot %s container '%s': it is %s", verb, c->id,
                   oci_status_name(c->status));
}

/* runc's words: containerd's shim looks for them, and takes any others for a failure. */
static int not_running(const char *id, struct err *e)
{
    return err_set(e, ESRCH, "container not running: '%s'", id);
}

/* By descriptor, so that no other process can be hit. */
static int signal_process(const struct oci_container *c, int signal, struct err *e)
{
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    struct oci_container again = *c;
    container_refresh(&again); /* it is the same one: the descriptor was opened before */
    if (pidfd < 0 || again.status == OCI_STOPPED)
        return -ESRCH;
    if (syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) < 0)
        return errno == ESRCH ? -ESRCH : err_sys(e, errno, "cannot signal container '%s'", c->id);
    if (signal == SIGKILL && again.status == OCI_PAUSED)
        return group_freeze(json_object_get(c->j, "groups"), false, e);
    return 0;
}

static int end_process(const struct oci_container *c, struct err *e)
{
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    if (pidfd < 0)
        return 0;
    int r = signal_process(c, SIGKILL, e);
    if (r == -ESRCH)
        return 0;
    if (r == 0 && !wait_readable(pidfd, now_ns() + KILL_WAIT_MS * 1000000ULL))
        r = err_set(e, ETIMEDOUT, "the process of container '%s' does not end", c->id);
    return r;
}

int oci_start(const struct oci_runtime *rt, const char *id, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    struct err why = {0};
    int r = name_lock_take_kind(&rt->store, "container", id, &lock, e);
    if (r == 0)
        r = container_open(rt, id, &c, e);
    if (r == 0 && c.status != OCI_CREATED)
        r = not_in(&c, "start", e);
    if (r == 0) {
        r = run_hooks(&c, "startContainer", OCI_CREATED, e);
        if (r < 0)
            (void)end_process(&c, &why);
        else
            r = init_start_command(&c, e);
    }
    if (r == 0)
        run_late_hooks(rt, &c, "poststart", OCI_RUNNING);
    return r;
}

int oci_kill(const struct oci_runtime *rt, const char *id, int signal, bool all, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    int r = container_open(rt, id, &c, e);
    if (r < 0)
        return r;
    r = c.status == OCI_STOPPED || c.status == OCI_CREATING ? -ESRCH
                                                            : signal_process(&c, signal, e);
    if (r == -ESRCH && all) /* nothing is left of it */
        return 0;
    return r == -ESRCH ? not_running(id, e) : r;
}

static int freeze_in_guest(const struct oci_runtime *rt, const struct oci_container *c, bool freeze,
                           struct err *e)
{
    char *one[] = {(char *)(freeze ? "cgroup.freeze=1" : "cgroup.freeze=0")};
    return json_object_get(c->j, "pod") ? pod_set(rt, c, &(struct strlist){.v = one, .n = 1}, e)
                                        : 0;
}

/* A container is paused while its group on the host is frozen: that comes first, and goes last. */
int oci_freeze(const struct oci_runtime *rt, const char *id, bool freeze, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    struct err ignored = {0};
    int r = container_open(rt, id, &c, e);
    const json_t *groups = json_object_get(c.j, "groups");
    if (r == 0 && c.status != (freeze ? OCI_RUNNING : OCI_PAUSED))
        r = not_in(&c, freeze ? "pause" : "resume", e);
    if (r == 0 && freeze)
        r = group_freeze(groups, true, e);
    if (r < 0)
        return r;
    r = freeze_in_guest(rt, &c, freeze, e);
    if (r < 0 && freeze)
        (void)group_freeze(groups, false, &ignored);
    return r < 0 || freeze ? r : group_freeze(groups, false, e);
}

int oci_update(const struct oci_runtime *rt, const char *id, const json_t *resources, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    int r = container_open(rt, id, &c, e);
    if (r == 0 && c.status == OCI_STOPPED)
        r = not_in(&c, "update", e);
    if (r == 0 && json_object_get(c.j, "pod")) {
        AUTO_STRLIST struct strlist limits = {0};
        r = pod_limits(resources, &limits) ? pod_set(rt, &c, &limits, e) : err_oom(e);
    }
    return r < 0 ? r : group_limit(json_object_get(c.j, "groups"), resources, false, e);
}

/* --- delete ---------------------------------------------------------------------------------- */

static int delete_it(const struct oci_runtime *rt, struct oci_container *c, bool force,
                     struct err *e)
{
    bool dead = c->status == OCI_STOPPED || (c->status == OCI_CREATING && !c->pid);
    if (!dead && !force) {
        (void)not_in(c, "delete", e);
        err_hint(e, "kill it first, or use delete --force");
        return -EINVAL;
    }
    int r = dead ? 0 : end_process(c, e);
    if (r == 0)
        r = remove_guest(rt, c->id, json_string_value(json_object_get(c->j, "pod")),
                         json_object_get(c->j, "netns"), e);
    if (r < 0)
        return r;
    group_remove(json_object_get(c->j, "groups"));
    r = container_forget(rt, c->id, e);
    if (r == 0)
        run_poststop(rt, c);
    return r;
}

int oci_delete(const struct oci_runtime *rt, const char *id, bool force, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    int r = name_lock_take_kind(&rt->store, "container", id, &lock, e);
    if (r < 0)
        return r;
    r = container_open(rt, id, &c, e);
    if (r == -ENOENT && force) {
        lock.forget = true;
        err_clear(e);
        return 0;
    }
    if (r == 0)
        r = delete_it(rt, &c, force, e);
    lock.forget = r == 0;
    return r;
}

/* --- the rest -------------------------------------------------------------------------------- */

int oci_wait(const struct oci_runtime *rt, const char *id, int *code, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    int r = container_open(rt, id, &c, e);
    if (r < 0)
        return r;
    int status = process_wait(c.pid);
    if (status < 0)
        return err_sys(e, -status, "cannot wait for container '%s'", id);
    *code = process_exit_code(status);
    return 0;
}

json_t *oci_usage(const struct oci_runtime *rt, const char *id, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    if (container_open(rt, id, &c, e) < 0)
        return NULL;
    if (c.status == OCI_STOPPED) {
        (void)not_running(id, e);
        return NULL;
    }
    json_t *j = json_pack("{s:s, s:s, s:o}", "type", "stats", "id", id, "data",
                          group_usage(json_object_get(c.j, "groups")));
    if (!j)
        (void)err_oom(e);
    return j;
}

json_t *oci_state(const struct oci_runtime *rt, const char *id, bool listed, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    char when[TIME_TEXT_MAX];
    if (container_open(rt, id, &c, e) < 0)
        return NULL;
    json_t *j = container_state(&c);
    uint64_t ns = (uint64_t)json_integer_value(json_object_get(c.j, "created_ns"));
    uid_t uid = (uid_t)json_integer_value(json_object_get(c.j, "owner"));
    const struct passwd *pw = listed ? getpwuid(uid) : NULL;
    const char *name = pw ? pw->pw_name : "";
    time_rfc3339(ns, when);
    AUTO_JSON json_t *more =
        json_pack("{s:O*, s:s*, s:s*}", "rootfs", json_object_get(c.j, "rootfs"), "created",
                  ns ? when : NULL, "owner", listed ? name : NULL);
    if (json_object_update(j, more) == 0)
        return j;
    json_decref(j);
    (void)err_oom(e);
    return NULL;
}
