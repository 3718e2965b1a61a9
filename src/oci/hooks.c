#include "oci/hooks.h"

#include "oci/process.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOOKS_MAX = 64, LONGEST_S = 1000000000 };

/* Hooks that do not read it do not block. */
static int make_stdin(const json_t *state)
{
    AUTO_FREE char *text = json_dumps(state, JSON_COMPACT);
    AUTO_CLOSE int fd = text ? memfd_create("state", MFD_CLOEXEC) : -1;
    if (fd < 0 || write_all(fd, text, strlen(text)) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        return -ENOMEM;
    return steal_fd(&fd);
}

static void __attribute__((noreturn))
hook_main(const char *path, const struct strlist *args, const struct strlist *env, int in)
{
    static char *const none[] = {NULL};
    char *const self[] = {(char *)path, NULL};
    process_default_signals();
    if (dup2(in, 0) < 0 || dup2(2, 1) < 0) /* stdout is the container's */
        _exit(126);
    execve(path, args->n ? args->v : self, env->n ? env->v : none);
    dprintf(2, "cannot run the hook %s: %s\n", path, strerror(errno));
    _exit(127);
}

static int wait_for(pid_t pid, double seconds, const char *kind, const char *path, struct err *e)
{
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t most = (uint64_t)(MIN(seconds, LONGEST_S) * 1e9);
    bool late = seconds > 0 && pidfd >= 0 && !wait_readable(pidfd, now_ns() + most);
    if (late)
        (void)kill(pid, SIGKILL);
    int status = process_wait(pid);
    if (late)
        return err_set(e, ETIMEDOUT, "%s hook %s took longer than %g seconds", kind, path, seconds);
    if (status < 0)
        return err_sys(e, -status, "cannot wait for %s hook %s", kind, path);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, ECHILD, "%s hook %s failed: %s %d", kind, path,
                       WIFEXITED(status) ? "exit code" : "signal",
                       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return 0;
}

static int run_one(const json_t *hook, const char *kind, const json_t *state, struct err *e)
{
    const char *path = json_string_value(json_object_get(hook, "path"));
    double timeout = json_number_value(json_object_get(hook, "timeout"));
    AUTO_STRLIST struct strlist args = {0}, env = {0};
    if (!path || path[0] != '/' || timeout < 0)
        return err_set(e, EINVAL, "hooks.%s: needs an absolute path, and no negative timeout",
                       kind);
    int r = oci_read_strings(json_object_get(hook, "args"), "args", &args, e);
    if (r == 0)
        r = oci_read_strings(json_object_get(hook, "env"), "env", &env, e);
    if (r < 0)
        return err_wrap(e, r, "hooks.%s", kind);
    AUTO_CLOSE int in = make_stdin(state);
    if (in < 0)
        return err_oom(e);
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, errno, "cannot run the %s hook %s", kind, path);
    if (pid == 0)
        hook_main(path, &args, &env, in);
    return wait_for(pid, timeout, kind, path, e);
}

static int list_of(const json_t *hooks, const char *kind, const json_t **ret, struct err *e)
{
    const json_t *list = json_object_get(hooks, kind);
    if (list && (!json_is_array(list) || json_array_size(list) > HOOKS_MAX))
        return err_set(e, EINVAL, "hooks.%s must be a list of at most %d", kind, HOOKS_MAX);
    *ret = list;
    return 0;
}

int hooks_run(const json_t *hooks, const char *kind, const json_t *state, struct err *e)
{
    const json_t *list = NULL, *hook;
    size_t i;
    int r = list_of(hooks, kind, &list, e);
    json_array_foreach(list, i, hook) r = r < 0 ? r : run_one(hook, kind, state, e);
    return r;
}

void hooks_run_all(const json_t *hooks, const char *kind, const json_t *state,
                   const struct oci_globals *g)
{
    const json_t *list = NULL, *hook;
    struct err why = {0};
    size_t i;
    if (list_of(hooks, kind, &list, &why) < 0)
        oci_log_error(g, &why);
    json_array_foreach(list, i, hook)
    {
        err_clear(&why);
        if (run_one(hook, kind, state, &why) < 0)
            oci_log_error(g, &why);
    }
}
