#include "agent/init.h"

#include "agent/env.h"
#include "agent/procs.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SYSTEMD_POWER_OFF = 34 + 4 /* SIGRTMIN+4 of glibc; musl's is another */, SIGNALS = 64 };

/* The two steps that can fail in the child. */
enum step { STEP_PROC, STEP_EXEC };
struct failure {
    int step, error;
};

static const char *find_init(const char *path)
{
    static const char *const known[] = {"/sbin/init", "/lib/systemd/systemd",
                                        "/usr/lib/systemd/systemd"};
    struct stat st;
    if (strcmp(path, "auto") != 0)
        return path;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (stat(known[i], &st) == 0 && S_ISREG(st.st_mode) && st.st_mode & 0111)
            return known[i];
    return NULL;
}

/* In the namespace: only the agent's console is passed on, for reports. */
static void __attribute__((noreturn))
become_init(const char *path, char **argv, char **envp, int report_fd)
{
    struct failure f = {.step = STEP_PROC};
    sigset_t none;
    (void)setsid();
    (void)umask(0022);
    for (int sig = 1; sig <= SIGNALS; sig++)
        (void)signal(sig, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in >= 0)
        (void)dup2(in, 0);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0 &&
        chdir("/") == 0) {
        f.step = STEP_EXEC;
        (void)execve(path, argv, envp);
    }
    f.error = errno;
    (void)!write(report_fd, &f, sizeof(f));
    _exit(127);
}

/* Sleeps until the child has executed or failed. */
static int await_exec(int fd, const char *path, struct err *e)
{
    struct failure f = {0};
    ssize_t n;
    do
        n = read(fd, &f, sizeof(f));
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(f))
        return 0;
    return f.step == STEP_EXEC ? err_sys(e, f.error, "cannot start the init %s", path)
                               : err_sys(e, f.error, "cannot mount /proc for the init");
}

static pid_t start(const struct config *cfg, const char *path, char **argv, char **envp,
                   struct err *e)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot open a pipe");
    AUTO_CLOSE int in = report[0], out = report[1];
    procs_pin();
    if (unshare(CLONE_NEWPID) < 0)
        return err_sys(e, errno, "cannot make a PID namespace");
    pid_t pid = fork();
    if (pid == 0)
        become_init(path, argv, envp, out);
    if (pid < 0)
        return err_sys(e, errno, "cannot start the init %s", path);
    close_fd(&out);
    int r = await_exec(in, path, e);
    return r < 0 ? r : pid;
}

pid_t init_start(const struct config *cfg, struct err *e)
{
    const char *path = find_init(cfg->init);
    struct req_common own = {.env = cfg->init_env, .nenv = cfg->ninit_env};
    struct env_in in = {.home = "/root",
                        .hostname = cfg->hostname,
                        .scripts = cfg->nscripts > 0,
                        .base = &cfg->c,
                        .extra = &own};
    struct env env;
    if (!path)
        return err_set(e, ENOENT,
                       "--init auto: the image has no init at /sbin/init or in /lib/systemd");
    char **argv = calloc(cfg->ninit_args + 2, sizeof(*argv));
    if (!argv || env_build(&env, &in) < 0) {
        free(argv);
        return err_oom(e);
    }
    argv[0] = (char *)(uintptr_t)path;
    for (size_t i = 0; i < cfg->ninit_args; i++)
        argv[i + 1] = cfg->init_args[i];
    pid_t pid = start(cfg, path, argv, env.vars, e);
    env_free(&env);
    free(argv);
    return pid;
}

/* systemd takes SIGTERM as a request to re-execute itself. */
int init_stop_signal(const struct config *cfg, pid_t init)
{
    char name[32];
    if (cfg->stop_signal)
        return (int)cfg->stop_signal;
    return procs_name(init, name, sizeof(name)) && strcmp(name, "systemd") == 0 ? SYSTEMD_POWER_OFF
                                                                                : SIGTERM;
}
