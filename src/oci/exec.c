/* Another command in a container. */
#include "oci/container.h"

#include "jail/jail.h"
#include "oci/console.h"
#include "oci/group.h"
#include "oci/init.h"
#include "oci/pod.h"
#include "oci/process.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/process.h"
#include "util/sock.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXIT_KILLED = 137 };

struct exec {
    const struct oci_exec *x;
    const struct oci_runtime *rt;
    struct oci_process process;
    json_t *groups; /* the container's, where its processes on the host are */
    int sock;       /* to the sandbox */
    int owner;      /* pidfd of the container's process, with which the command ends */
    int report;     /* to the process that waits for it to start; -1: no longer needed */
    pid_t pid;
};

static void on_started(void *ctx)
{
    struct exec *x = ctx;
    if (x->report >= 0)
        report_send(x->report, 0, NULL);
    close_fd(&x->report);
}

/* Runs it with the current stdio. Returns the exit code, or -errno if it did not start. */
static int run_session(struct exec *x, struct err *e)
{
    struct session_result res;
    x->process.req.on_started = on_started;
    x->process.req.started_ctx = x;
    x->process.req.owner = x->owner;
    int r = session_run(x->sock, &x->process.req, &res, e);
    if (r < 0)
        return x->report >= 0 ? r : EXIT_KILLED;
    if (res.failed_to_start) {
        process_explain(&x->process, res.exit_code, e);
        return -e->code;
    }
    return res.exit_code;
}

/* In a process of its own, which the caller of `exec` finds by --pid-file and waits for. */
static void __attribute__((noreturn)) exec_main(struct exec *x, bool in_group)
{
    struct err e = {0};
    const int keep[] = {x->sock, x->owner, x->report};
    (void)setsid();
    process_default_signals();
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
    process_forget_caller("exec", x->x->id);
    process_set_oom_score(&x->process);
    if (!in_group) /* a user may have no right to move it there */
        (void)group_enter(x->groups, NULL);
    int r = x->x->console_socket
                ? console_take(x->x->console_socket, x->process.rows, x->process.cols, &e)
                : 0;
    if (r == 0)
        r = jail_keep_caps(0, &e);
    (void)!chdir("/");
    int code = r < 0 ? r : run_session(x, &e);
    if (code < 0 && x->report >= 0)
        report_send(x->report, 0, &e);
    _exit(code < 0 ? EXIT_KILLED : code);
}

static int spawn_exec(struct exec *x, int *code, struct err *e)
{
    AUTO_CLOSE int here = -1;
    int r = packet_pair(&here, &x->report, e);
    if (r < 0)
        return r;
    bool in_group;
    x->pid = group_fork(x->groups, &in_group);
    if (x->pid == 0) {
        (void)close(here);
        exec_main(x, in_group);
    }
    close_fd(&x->report);
    r = x->pid < 0 ? err_sys(e, errno, "cannot start a process") : report_receive(here, NULL, e);
    if (r == 0)
        r = pid_file_write(x->x->pid_file, x->pid, e);
    if (x->pid > 0 && r < 0) {
        (void)kill(x->pid, SIGKILL);
        (void)process_wait(x->pid);
    }
    if (r == 0)
        *code = x->x->detach ? 0 : process_exit_code(process_wait(x->pid));
    return r;
}

/* A connection to it, and what every command there is held to. */
static int connect_to(struct exec *x, const char *id, char **filter, struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    struct session_request *req = &x->process.req;
    int r = container_open(x->rt, id, &c, e);
    if (r == 0)
        r = container_read_filter(&c, filter, &req->filter_size, e);
    if (r < 0)
        return r;
    req->filter = *filter;
    x->groups = json_incref(json_object_get(c.j, "groups"));
    x->owner = (int)syscall(SYS_pidfd_open, c.pid, 0);
    container_refresh(&c); /* it is the same one: the descriptor was opened before */
    if (c.status != OCI_RUNNING && c.status != OCI_CREATED)
        return err_set(e, EINVAL, "cannot exec in container '%s': it is %s", id,
                       oci_status_name(c.status));
    return pod_connect(x->rt, &c, e);
}

int oci_exec(const struct oci_runtime *rt, const struct oci_exec *o, int *code, struct err *e)
{
    struct exec x = {.x = o, .rt = rt, .sock = -1, .owner = -1, .report = -1};
    AUTO_FREE char *filter = NULL;
    int r = x.sock = connect_to(&x, o->id, &filter, e);
    if (r >= 0)
        r = process_read(&x.process, o->process, e);
    if (r == 0 && x.process.terminal && o->detach && !o->console_socket)
        r = err_set(e, EINVAL, "a terminal needs --console-socket to hand it over");
    if (r == 0)
        r = spawn_exec(&x, code, e);
    close_fd(&x.sock);
    close_fd(&x.owner);
    json_decref(x.groups);
    process_free(&x.process);
    return r;
}
