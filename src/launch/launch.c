#include "launch/launch.h"

#include "launch/connector.h"
#include "launch/disks.h"
#include "launch/fetcher.h"
#include "launch/host_cas.h"
#include "launch/intercept.h"
#include "launch/net_host.h"
#include "launch/placement.h"
#include "launch/publish.h"
#include "launch/share.h"
#include "launch/stage.h"
#include "store/volume.h"
#include "util/assets.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/fs.h"
#include "util/later.h"
#include "util/process.h"
#include "util/sock.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 256 };

/* Adding a descriptor takes one line here. */
void cargo_each_fd(struct cargo *c, void (*fn)(int *fd, void *arg), void *arg)
{
    const struct {
        int *fd;
        size_t n;
    } all[] = {
        {&c->p.kernel_fd, 1},
        {&c->p.tools_fd, 1},
        {&c->p.upper_fd, 1},
        {&c->p.null_fd, 1},
        {&c->p.lock_fd, 1},
        {&c->p.listen_fd, 1},
        {&c->p.report_fd, 1},
        {&c->p.connector_fd, 1},
        {&c->p.intercept_fd, 1},
        {&c->p.tap.fd, 1},
        {&c->run_fd, 1},
        {&c->sync_fd, 1},
        {c->p.image.fd, c->p.image.n},
        {c->p.share_fd, c->p.n_shares},
        {c->p.disk_fd, c->p.n_disks},
        {c->p.ports.fd, c->p.ports.n},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        for (size_t k = 0; k < all[i].n; k++)
            fn(&all[i].fd[k], arg);
}

static void fd_init(int *fd, void *arg)
{
    *fd = -1;
}

static void fd_close(int *fd, void *arg)
{
    close_fd(fd);
}

static void cargo_close(struct cargo *c)
{
    cargo_each_fd(c, fd_close, NULL);
    intercept_free(&c->intercept);
    free(c->host_cas);
}

/* --- gathering ------------------------------------------------------------------------------ */

static int open_asset(const char *dir, const char *file, struct err *e)
{
    char path[4096 + 64];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int code = errno;
        err_sys(e, code, "cannot open %s", path);
        if (code == EACCES)
            err_hint(e, "its owner can let you read it, and enter the directories above it; or set "
                        "MSB_ASSETS to a directory with files of your own");
        else
            err_hint(e, "run `make kernel-%s` to build it, or see `msb doctor`",
                     strncmp(file, "linux-", 6) == 0 ? file + 6 : "uml");
        return -code;
    }
    diag_trace("opened %s", path);
    return fd;
}

/* By digest, since the name may refer to another image by now. */
static void hint_pull(const struct sandbox_spec *s, struct err *e)
{
    struct reference ref = {0};
    if (reference_parse(s->image, &ref, NULL) < 0)
        return;
    struct reference exact = {ref.registry, ref.repository, NULL, s->image_digest};
    AUTO_FREE char *name = reference_familiar(&exact);
    if (name)
        err_hint(e, "run `msb pull %s` to get it back", name);
    reference_free(&ref);
}

/* The image that it was created from, whatever its name refers to by now. */
static int open_image(struct cargo *c, struct err *e)
{
    const struct sandbox_spec *s = c->p.spec;
    AUTO_FREE char *cache = NULL;
    if (s->root_share)
        return 0;
    if (!s->image_digest)
        return err_hinted(
            e, err_set(e, EINVAL, "the spec of sandbox '%s' does not name its image", s->name),
            "run `msb create --replace -n %s %s` to recreate it", s->name, s->image);
    if (asprintf(&cache, "%s/cache", c->store->home) < 0)
        return err_oom(e);
    int r = image_disk_open(cache, s->image_digest, &c->p.image, e);
    if (r == 0)
        diag_trace("opened image %s in %s", s->image_digest, cache);
    if (r != -ENOENT)
        return r;
    (void)err_set(e, ENOENT, "image '%s' of sandbox '%s' is gone (%s)", s->image, s->name,
                  s->image_digest);
    if (s->image_kind == IMAGE_OCI)
        hint_pull(s, e);
    err_hint(e, "run `msb create --replace -n %s %s` to recreate the sandbox", s->name, s->image);
    return r;
}

/* Whether a guest with one CPU may use a second one's time while that is idle. Not if its CPU time
 * is limited: polling for each other would use that up. Nor if its neighbors are not trusted. */
static bool may_spread(const struct cargo *c)
{
    const struct sandbox_spec *s = c->p.spec;
    return (s->placement == PLACEMENT_SPREAD || s->placement == PLACEMENT_AUTO) &&
           !s->multi_tenant && !c->in_group && s->cpus >= 1 && s->max_cpus == 0;
}

/* Also settles how many CPUs the guest has, which depends on the kernel. */
static int open_kernel(struct cargo *c, const char *assets, struct err *e)
{
    const struct engine_ops *engine = c->p.engine;
    int most = c->p.reduced ? engine->max_cpus_reduced : engine->max_cpus;
    c->p.n_cpus = (unsigned)MIN(MAX(ceil(spec_max_cpus(c->p.spec)), 1), most);
    c->p.spread = may_spread(c);
    if (c->p.n_cpus > 1 && engine->smp_file) {
        int fd = open_asset(assets, engine->smp_file, e);
        if (fd != -ENOENT)
            return fd;
        err_clear(e);
        c->p.n_cpus = 1;
    }
    return open_asset(assets, engine->kernel_file, e);
}

static int open_disks(struct cargo *c, struct err *e)
{
    char assets[4096];
    const struct sandbox_spec *s = c->p.spec;
    int r = assets_dir(assets, sizeof(assets), e);
    if (r < 0)
        return r;
    if ((c->p.kernel_fd = open_kernel(c, assets, e)) < 0)
        return c->p.kernel_fd;
    if ((c->p.tools_fd = open_asset(assets, "tools.erofs", e)) < 0)
        return c->p.tools_fd;
    if ((r = open_image(c, e)) < 0)
        return r;
    if (s->root_disk == ROOT_DISK_MANAGED && !s->root_share) {
        c->p.upper_fd = openat(c->dirfd, "upper.ext4", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (c->p.upper_fd < 0)
            return err_sys(e, errno, "cannot open the disk of sandbox '%s'", s->name);
        diag_trace("opened %s/sandboxes/%s/upper.ext4", c->store->home, s->name);
    }
    if (s->root_disk == ROOT_DISK_FILE) {
        c->p.upper_fd = disks_open_root(c->store, s, e);
        return MIN(c->p.upper_fd, 0);
    }
    return 0;
}

/* By descriptor: a socket address has room for 107 bytes, and the full path may be longer. */
static int listen_for_clients(int run_fd, struct err *e)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/agent.sock", run_fd);
    (void)remove_tree_at(run_fd, "agent.sock"); /* an earlier monitor's */
    int fd = listen_at(path, LISTEN_BACKLOG);
    return fd < 0 ? err_sys(e, -fd, "cannot create agent.sock") : fd;
}

/* The first CPU's entry is all that a guest kernel needs. */
static void read_cpuinfo(char *to, size_t size)
{
    AUTO_CLOSE int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);
    to[n > 0 ? n : 0] = '\0';
    char *end = strstr(to, "\n\n");
    if (end)
        end[2] = '\0';
}

/* A monitor started by root runs as another user, who must own its directory. */
static int give_away(int run_fd, const struct jail_identity *id, struct err *e)
{
    if (id->dropped && (fchown(run_fd, id->uid, id->gid) < 0 ||
                        fchownat(run_fd, "logs", id->uid, id->gid, AT_SYMLINK_NOFOLLOW) < 0))
        return err_sys(e, errno, "cannot change the owner of the sandbox's directory");
    return 0;
}

static int gather(struct cargo *c, struct err *e)
{
    const struct sandbox_spec *s = c->p.spec;
    int r = open_disks(c, e);
    if (r == 0)
        r = disks_open(c->store, s, c->p.disk_fd, &c->p.n_disks, e);
    if (r < 0)
        return r;
    c->run_fd = dir_open_at(c->dirfd, "run");
    c->p.lock_fd = openat(c->dirfd, "lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    c->p.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (c->run_fd < 0 || c->p.lock_fd < 0 || c->p.null_fd < 0)
        return err_sys(e, errno, "cannot open the files of sandbox '%s'", s->name);
    if ((c->p.listen_fd = listen_for_clients(c->run_fd, e)) < 0)
        return c->p.listen_fd;
    if (s->net.trust_host_cas && (r = host_cas_read(&c->host_cas, e)) < 0)
        return r;
    c->p.host_cas = c->host_cas;
    read_cpuinfo(c->cpuinfo, sizeof(c->cpuinfo));
    c->p.cpuinfo = c->cpuinfo;
    jail_identity(s->name, &c->id);
    c->p.own_user = c->id.dropped;
    return give_away(c->run_fd, &c->id, e);
}

/* A resolver on this host's loopback address is out of a proxy's reach. */
static void warn_of_direct_queries(const struct cargo *c)
{
    const struct spec_net *n = &c->p.spec->net;
    const struct net_host *h = &c->p.host;
    bool direct = false;
    for (unsigned i = 0; i < h->n_resolvers; i++)
        direct |= addr_classify(&h->resolver[i].addr) == CLASS_LOOPBACK;
    if (n->proxy.version && n->n_nameservers == 0 && direct && c->warn)
        c->warn("names are resolved by this host's own resolver, not through the proxy; "
                "use --dns-nameserver IP to resolve them through it");
}

/* Gathers what the network needs but a jailed process cannot get. */
static int gather_network(struct cargo *c, struct err *e)
{
    const struct spec_net *n = &c->p.spec->net;
    struct net_ports *ports = &c->p.ports;
    int r = 0;
    if (n->off)
        return 0;
    net_host_look(&c->p.host);
    r = spec_proxy_resolve(&n->proxy, &c->p.host.proxy, e);
    if (r == 0)
        warn_of_direct_queries(c);
    for (size_t i = 0; r == 0 && i < n->n_ports; i++) {
        r = publish_bind(c->store, &n->ports[i], &ports->fd[ports->n], &ports->port[ports->n], e);
        ports->n += r == 0;
    }
    return r;
}

static int hand_over_tap(struct cargo *c, const struct net_tap *tap, struct err *e)
{
    if (!tap)
        return 0;
    c->p.tap = *tap;
    c->p.tap.fd = fcntl(tap->fd, F_DUPFD_CLOEXEC, 3);
    return c->p.tap.fd < 0 ? err_sys(e, errno, "cannot hand over the network device") : 0;
}

static int give_workspace(const struct cargo *c, int share, int fetch, int changes, struct err *e)
{
    bool durable = c->p.spec->workspace.sync == WORKSPACE_SYNC_FSYNC;
    int r = share_fetch_from(share, fetch, changes, durable);
    if (r == 0 && c->gate)
        r = share_gate(share, *c->gate);
    return r < 0 ? err_sys(e, -r, "cannot reach the process that serves a mount") : 0;
}

/* Contents of a workspace in a bucket may be fetched later. */
static int start_share(struct cargo *c, const struct spec_mount *m, struct err *e)
{
    size_t n = c->p.n_shares;
    AUTO_CLOSE int fetch = -1, changes = -1;
    int r = strcmp(m->guest, WORKSPACE_GUEST_PATH) == 0
                ? fetcher_start(c->store, c->dirfd, c->p.spec, &fetch, e)
                : 0;
    if (r == 0 && fetch >= 0)
        r = syncer_start(c->store, c->dirfd, c->p.spec, &changes, e);
    if (fetch >= 0)
        (void)later_know_boot(); /* for that process, which could not determine it */
    const struct share_place place = {
        .cpu = c->p.cpu, .reduced = c->p.reduced, .later = fetch >= 0};
    c->counting |= m->quota > 0;
    if (r == 0)
        r = share_start(m, n, &place, &c->p.share_fd[n], &c->share_stage[n], e);
    if (r == 0 && fetch >= 0)
        r = give_workspace(c, c->p.share_fd[n], fetch, changes, e);
    return r;
}

/* A volume is a named directory, created on first use. */
static int start_volume(struct cargo *c, const struct spec_mount *m, struct err *e)
{
    struct volume v;
    struct spec_mount real = *m;
    int r = volume_ensure(c->store, m, &v, e);
    if (r < 0)
        return r;
    AUTO_FREE char *path = volume_path(c->store, &v);
    AUTO_FREE char *resolved = path ? realpath(path, NULL) : NULL; /* MSB_HOME may be a link */
    if (!resolved)
        return err_sys(e, errno, "cannot open volume '%s'", m->source);
    real.source = resolved;
    real.quota = m->quota && v.quota ? MIN(m->quota, v.quota) : m->quota + v.quota;
    return start_share(c, &real, e);
}

static int start_helpers(struct cargo *c, struct err *e)
{
    const struct sandbox_spec *s = c->p.spec;
    if (s->vsocks.n > 0 && c->p.reduced)
        return err_set(e, ENOTSUP, "--vsock: host sockets cannot be reached from a reduced jail");
    if (s->vsocks.n > 0) {
        int r =
            connector_start(s->vsocks.v, s->vsocks.n, &c->p.connector_fd, &c->connector_stage, e);
        if (r < 0)
            return r;
    }
    if (spec_bound_any(&s->net.bound)) {
        int r =
            intercept_start(c->store, &s->net, c->p.reduced, &c->p.intercept_fd, &c->intercept, e);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < s->n_mounts; i++) {
        const struct spec_mount *m = &s->mounts[i];
        if (!mount_is_share(m))
            continue;
        int r = m->kind == MOUNT_NAMED ? start_volume(c, m, e) : start_share(c, m, e);
        if (r < 0)
            return r;
        c->p.n_shares++;
    }
    return 0;
}

/* Adds the certificate that verifies its leaves to those that the guest trusts. */
static int await_interceptor(struct cargo *c, struct err *e)
{
    char *all = NULL;
    int r = intercept_told(&c->intercept, c->store, &c->refused, e);
    if (r < 0)
        return r;
    if (asprintf(&all, "%s%s", c->host_cas ? c->host_cas : "", c->intercept.ca) < 0)
        return err_oom(e);
    free(c->host_cas);
    c->p.host_cas = c->host_cas = all;
    return 0;
}

/* Waits until they have their namespaces, or the host is known to refuse them. Waits for all of
 * them, even after a failure: each has a child to be reaped. */
static int await_helpers(struct cargo *c, int r, struct err *e)
{
    struct err *first = r < 0 ? NULL : e;
    if (c->awaited)
        return r;
    c->awaited = true;
    for (size_t i = 0; i < c->p.n_shares; i++) {
        int k = share_placed(c->p.share_fd[i], c->share_stage[i], &c->refused, first);
        if (k < 0 && r == 0) {
            r = k;
            first = NULL;
        }
    }
    if (c->p.connector_fd >= 0) {
        int k = connector_wait(c->p.connector_fd, c->connector_stage, &c->refused, first);
        r = r < 0 ? r : k;
    }
    return r;
}

/* They enter their roots, which takes a while, while the guest boots. */
static int await_shares(struct cargo *c, struct err *e)
{
    int r = 0;
    if (c->serving)
        return 0;
    for (size_t i = 0; r == 0 && i < c->p.n_shares; i++)
        r = share_ready(c->p.share_fd[i], &c->refused, e);
    c->serving = r == 0;
    c->refused |= r == -EPERM;
    return r;
}

/* --- in the launcher ------------------------------------------------------------------------ */

/* Forks the stage (or the janitor, which forks it), and sets up from outside what the stage
 * cannot. */
static int spawn(struct cargo *c, int *ret_report, struct err *e)
{
    AUTO_CLOSE int report = -1, sync_here = -1;
    int r = packet_pair(&report, &c->p.report_fd, e);
    if (r == 0)
        r = packet_pair(&sync_here, &c->sync_fd, e);
    if (r < 0)
        return r;
    pid_t child = stage_fork(c);
    if (child < 0) {
        cgroup_free(&c->group);
        return err_sys(e, -child, "cannot start a process");
    }
    close_fd(&c->sync_fd);
    close_fd(&c->p.report_fd);
    pid_t stage;
    if (packet_receive(sync_here, &stage, sizeof(stage)) != (ssize_t)sizeof(stage)) {
        stage = 0; /* it failed, and has reported it */
    } else if (stage > 0) {
        stage_limit(c, stage);
        r = await_helpers(c, 0, e); /* they got ready at the same time as the stage */
        if (r == 0 && c->counting)  /* which may take longer than a guest waits for a reply */
            r = await_shares(c, e);
        if (r == 0)
            r = intercept_placed(&c->intercept, &c->refused, e);
        if (r == 0 && !c->p.reduced)
            r = jail_map(stage, &c->id, e);
        if (r == 0)
            (void)send(sync_here, "", 1, MSG_NOSIGNAL);
    }
    c->refused |= stage < 0 || r == -EPERM;
    cgroup_free(&c->group);
    close_fd(&sync_here);      /* the stage ends, whatever it waits for */
    if (!c->p.spec->ephemeral) /* the janitor stays; init adopts it when we end */
        (void)process_wait(child);
    if (r == 0)
        *ret_report = steal_fd(&report);
    return r;
}

/* The monitor has ended when this returns, so that another one can be started at once. */
static void end_monitor(int *report_fd)
{
    struct monitor_report ignored;
    if (*report_fd < 0)
        return;
    (void)shutdown(*report_fd, SHUT_WR);
    while (packet_receive(*report_fd, &ignored, sizeof(ignored)) > 0)
        ;
    close_fd(report_fd);
}

/* Launches in the requested jail. *refused becomes true if the host refuses it; there may then also
 * be a report of that. */
static int launch_in(bool reduced, struct launch *l, const struct store *s, int dirfd,
                     const struct sandbox_spec *spec, const struct launch_options *opt,
                     bool *refused, struct err *e)
{
    struct cargo c = {.store = s,
                      .dirfd = dirfd,
                      .warn = opt->warn,
                      .in_group = opt->in_group,
                      .gate = opt->gate,
                      .intercept.teller.fd = -1,
                      .p = {.spec = spec,
                            .engine = opt->engine->ops,
                            .device_fd = opt->engine->device_fd,
                            .creating = opt->creating,
                            .seal_at_once = opt->seal_at_once,
                            .stop_when_idle = opt->stop_when_idle,
                            .reduced = reduced,
                            .limits = opt->limits,
                            .cpu = -1}};
    cargo_each_fd(&c, fd_init, NULL); /* lists are empty as yet */
    if (spec->placement != PLACEMENT_INHERIT && opt->engine->ops->one_cpu)
        c.p.cpu =
            spec->placement == PLACEMENT_COMPACT ? placement_nth(0) : placement_next(s->locks_fd);
    int r = spec->placement == PLACEMENT_CORE ? placement_own_core(e) : 0;
    if (spec->multi_tenant && spec->placement != PLACEMENT_CORE)
        (void)placement_own_core(NULL); /* if the host supports it */
    if (r == 0)
        r = start_helpers(&c, e); /* they get ready while the rest is opened */
    if (r == 0)
        r = gather(&c, e);
    if (r == 0)
        r = gather_network(&c, e);
    if (r == 0)
        r = hand_over_tap(&c, opt->tap, e);
    if (c.p.intercept_fd >= 0) { /* also after a failure: it has a child to be reaped */
        int k = await_interceptor(&c, r < 0 ? NULL : e);
        r = r < 0 ? r : k;
    }
    if (r == 0)
        r = spawn(&c, &l->report_fd, e);
    r = await_helpers(&c, r, e);
    if (r == 0 && !c.refused)
        r = await_shares(&c, e);
    if (r == 0 && !c.refused) {
        l->intercept = c.intercept;
        c.intercept = (struct intercept){.teller = {.fd = -1}};
    }
    cargo_close(&c);
    if (r < 0)
        end_monitor(&l->report_fd);
    *refused = c.refused;
    l->n_cpus = c.p.n_cpus;
    l->reduced = reduced;
    return r;
}

int launch_begin(struct launch *l, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, const struct launch_options *opt, struct err *e)
{
    enum jail_kind jail = spec->jail;
    struct err first = {0};
    bool refused = false;
    int r = jail_kind_resolve(&jail, e);
    if (r < 0)
        return r;
    *l = (struct launch){.report_fd = -1, .intercept.teller.fd = -1};
    r = launch_in(jail == JAIL_REDUCED, l, s, dirfd, spec, opt, &refused, &first);
    if (!refused || jail != JAIL_AUTO) {
        if (r < 0)
            err_copy(e, &first);
        return r;
    }
    close_fd(&l->report_fd);
    if (opt->warn)
        opt->warn(
            "this host refuses namespaces, so the sandbox runs in a reduced jail; use --jail full "
            "to fail instead (see `msb doctor`)");
    return launch_in(true, l, s, dirfd, spec, opt, &refused, e);
}

int launch_wait(struct launch *l, struct err *e)
{
    struct monitor_report rep = {0};
    struct err why = {0};
    ssize_t k = packet_receive(l->report_fd, &rep, sizeof(rep));
    int r = 0;
    if (k != (ssize_t)sizeof(rep)) {
        r = err_set(e, ECHILD, "the sandbox's monitor died during start-up");
    } else if (rep.code) {
        rep.text[sizeof(rep.text) - 1] = rep.hint[sizeof(rep.hint) - 1] = '\0';
        r = err_set(e, rep.code, "%s", rep.text);
        if (rep.hint[0])
            err_hint(e, "%s", rep.hint);
    }
    int other = intercept_ready(&l->intercept, &why);
    if (other < 0) { /* without it, the monitor also ends, but knows less */
        err_copy(e, &why);
        r = other;
    }
    intercept_free(&l->intercept);
    if (r < 0)
        launch_undo(l);
    return r;
}

void launch_undo(struct launch *l)
{
    close_fd(&l->report_fd);
    intercept_free(&l->intercept);
}

int launch_finish(struct launch *l, struct err *e)
{
    const char answer = MONITOR_RUN;
    struct monitor_report rep = {0};
    int r = 0;
    ssize_t k = send(l->report_fd, &answer, 1, MSG_NOSIGNAL) == 1
                    ? packet_receive(l->report_fd, &rep, sizeof(rep))
                    : -1;
    if (k == (ssize_t)sizeof(rep) && rep.code) { /* the last step failed */
        rep.text[sizeof(rep.text) - 1] = '\0';
        r = err_set(e, rep.code, "%s", rep.text);
    } else if (k != 1) {
        r = err_set(e, ECHILD, "the sandbox ended right after it started");
    }
    close_fd(&l->report_fd);
    return r;
}

void launch_dismiss(struct launch *l)
{
    const char answer = MONITOR_END;
    (void)send(l->report_fd, &answer, 1, MSG_NOSIGNAL);
    close_fd(&l->report_fd);
}
