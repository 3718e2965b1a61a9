#include "store/store.h"

#include "jail/cgroup.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    SPEC_FILE_MAX = 96 * 1024 * 1024, /* 64 scripts of 1 MiB, escaped */
    STATE_FILE_MAX = 4096,
    REMOVE_TRIES = 1000, /* 1 ms apart */
};

/* --- the home directory --------------------------------------------------------------------- */

static int find_home(char **ret, struct err *e)
{
    const char *env = getenv("MSB_HOME");
    char *p = NULL;
    if (env && *env) {
        if (env[0] == '/') {
            p = strdup(env);
        } else {
            AUTO_FREE char *cwd = getcwd(NULL, 0);
            if (!cwd)
                return err_sys(e, errno, "cannot tell the current directory");
            if (asprintf(&p, "%s/%s", cwd, env) < 0)
                p = NULL;
        }
    } else {
        const char *home = getenv("HOME");
        const struct passwd *pw = home && *home ? NULL : getpwuid(getuid());
        if (pw)
            home = pw->pw_dir;
        if (!home || home[0] != '/') {
            err_set(e, ENOENT, "cannot tell where your home directory is");
            err_hint(e, "set HOME, or MSB_HOME to a directory for sandboxes");
            return -ENOENT;
        }
        if (asprintf(&p, "%s/.microsandbox", home) < 0)
            p = NULL;
    }
    *ret = p;
    return p ? 0 : err_oom(e);
}

static int open_subdir(const struct store *s, const char *name, int *ret, struct err *e)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    *ret = openat(s->home_fd, name, flags);
    if (*ret < 0 && errno == ENOENT) {
        if (mkdirat(s->home_fd, name, 0700) < 0 && errno != EEXIST)
            return err_sys(e, errno, "cannot create %s/%s", s->home, name);
        *ret = openat(s->home_fd, name, flags);
    }
    return *ret < 0 ? err_sys(e, errno, "cannot open %s/%s", s->home, name) : 0;
}

static int no_home(const struct store *s, int code, const char *what, struct err *e)
{
    int r = err_sys(e, code, "cannot %s %s", what, s->home);
    err_hint(e, "$MSB_HOME is to name a directory of your own (default: ~/.microsandbox)");
    return r;
}

int store_open(struct store *s, struct err *e)
{
    *s = (struct store){.home_fd = -1, .sandboxes_fd = -1, .locks_fd = -1};
    int r = find_home(&s->home, e);
    if (r < 0 || !s->home)
        return r;
    s->home_fd = open(s->home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->home_fd < 0 && errno == ENOENT) {
        r = mkdir_parents(s->home, 0700);
        if (r < 0)
            return no_home(s, -r, "create", e);
        s->home_fd = open(s->home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (s->home_fd < 0)
        return no_home(s, errno, "open", e);
    struct stat st;
    if (fstat(s->home_fd, &st) < 0)
        return err_sys(e, errno, "cannot look at %s", s->home);
    if (st.st_uid != geteuid() || (st.st_mode & 022)) {
        err_set(e, EPERM, "%s belongs to another user or is writable by others", s->home);
        err_hint(e, "set MSB_HOME to a directory of your own, or run: chmod go-w %s", s->home);
        return -EPERM;
    }
    r = open_subdir(s, "sandboxes", &s->sandboxes_fd, e);
    return r < 0 ? r : open_subdir(s, "locks", &s->locks_fd, e);
}

void store_close(struct store *s)
{
    close_fd(&s->home_fd);
    close_fd(&s->sandboxes_fd);
    close_fd(&s->locks_fd);
    free(s->home);
    s->home = NULL;
}

int store_cache_open(const struct store *s, struct err *e)
{
    if (mkdirat(s->home_fd, "cache", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot create %s/cache", s->home);
    int fd = openat(s->home_fd, "cache", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_sys(e, errno, "cannot open %s/cache", s->home) : fd;
}

/* --- locks ---------------------------------------------------------------------------------- */

/* Takes the flock of a lock file that is still the one its name leads to: a holder that gave the
 * name up has unlinked it, and a lock on an unlinked file guards nothing. */
static int flock_named(const struct store *s, const char *name, int create, int op)
{
    for (;;) {
        AUTO_CLOSE int fd =
            openat(s->locks_fd, name, O_RDWR | create | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -errno;
        while (flock(fd, op) < 0)
            if (errno != EINTR)
                return -errno;
        struct stat mine, there;
        if (fstat(fd, &mine) < 0)
            return -errno;
        if (fstatat(s->locks_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
            mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
            return steal_fd(&fd);
    }
}

int name_lock_take(const struct store *s, const char *name, struct name_lock *ret, struct err *e)
{
    int r = spec_check_name(name, e);
    if (r < 0)
        return r;
    int fd = flock_named(s, name, O_CREAT, LOCK_EX);
    if (fd < 0)
        return err_sys(e, -fd, "cannot lock %s/locks/%s", s->home, name);
    ret->fd = fd;
    (void)snprintf(ret->name, sizeof(ret->name), "%s", name);
    return 0;
}

void name_lock_drop(const struct store *s, struct name_lock *l, bool forget)
{
    if (l->fd < 0)
        return;
    if (forget)
        (void)unlinkat(s->locks_fd, l->name, 0);
    close_fd(&l->fd);
}

static struct flock whole_file(short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET};
}

int monitor_lock_take(int lock_fd)
{
    struct flock fl = whole_file(F_WRLCK);
    return fcntl(lock_fd, F_SETLK, &fl) < 0 ? -errno : 0;
}

static pid_t lock_holder_at(int at, const char *path)
{
    AUTO_CLOSE int fd = openat(at, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    struct flock fl = whole_file(F_WRLCK);
    if (fcntl(fd, F_GETLK, &fl) < 0)
        return -errno;
    if (fl.l_type == F_UNLCK)
        return 0;
    return fl.l_pid > 0 ? fl.l_pid : -EPROTO; /* a kind of lock that no monitor takes */
}

pid_t monitor_lock_holder(int dirfd)
{
    return lock_holder_at(dirfd, "lock");
}

/* --- state ---------------------------------------------------------------------------------- */

static const struct {
    const char *name, *lower;
} status_names[] = {
    [STATUS_CREATING] = {"Creating", "creating"}, [STATUS_STARTING] = {"Starting", "starting"},
    [STATUS_RUNNING] = {"Running", "running"},    [STATUS_DRAINING] = {"Draining", "draining"},
    [STATUS_STOPPED] = {"Stopped", "stopped"},    [STATUS_CRASHED] = {"Crashed", "crashed"},
};

const char *status_name(enum status st)
{
    return status_names[st].name;
}

const char *status_lower(enum status st)
{
    return status_names[st].lower;
}

enum status status_parse(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(status_names); i++)
        if (strcmp(name, status_names[i].name) == 0)
            return (enum status)i;
    return (enum status) - 1;
}

int state_save(int run_fd, const struct sandbox_state *st)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:I, s:I}", "status", status_name(st->status), "reason",
                          st->reason, "engine", st->engine, "started_ns",
                          (json_int_t)st->started_ns, "updated_ns", (json_int_t)st->updated_ns);
    if (!j) /* the reason is not UTF-8: it quotes a guest. Say less rather than nothing. */
        j = json_pack("{s:s, s:s}", "status", status_name(st->status), "reason", "");
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text)
        return -ENOMEM;
    return file_replace_at(run_fd, "state.json", text, strlen(text), 0600, false);
}

static int state_load_at(int at, const char *path, struct sandbox_state *st)
{
    *st = (struct sandbox_state){.status = STATUS_CREATING};
    AUTO_FREE char *text = NULL;
    int r = file_read_at(at, path, STATE_FILE_MAX, &text, NULL);
    if (r < 0)
        return r;
    json_t *j = json_loads(text, 0, NULL);
    const char *status = "", *reason = "", *engine = "";
    json_int_t started = 0, updated = 0;
    r = json_unpack(j, "{s:s, s?s, s?s, s?I, s?I}", "status", &status, "reason", &reason, "engine",
                    &engine, "started_ns", &started, "updated_ns", &updated);
    enum status parsed = r == 0 ? status_parse(status) : (enum status) - 1;
    if (parsed != (enum status) - 1) {
        st->status = parsed;
        (void)snprintf(st->reason, sizeof(st->reason), "%s", reason);
        (void)snprintf(st->engine, sizeof(st->engine), "%s", engine);
        st->started_ns = started > 0 ? (uint64_t)started : 0;
        st->updated_ns = updated > 0 ? (uint64_t)updated : 0;
    }
    json_decref(j);
    return parsed == (enum status) - 1 ? -EINVAL : 0;
}

void spec_sweep(int dirfd)
{
    AUTO_CLOSE int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSEDIR DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return;
    (void)steal_fd(&fd);
    const struct dirent *e;
    while ((e = readdir(d)))
        if (strncmp(e->d_name, ".spec.json.", strlen(".spec.json.")) == 0)
            (void)unlinkat(dirfd, e->d_name, 0);
}

int spec_save(int dirfd, const struct sandbox_spec *spec, bool sync, struct err *e)
{
    json_t *j = spec_to_json(spec);
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    if (!text)
        return err_set(e, EINVAL, "cannot store the settings of sandbox '%s': not UTF-8",
                       spec->name);
    int r = file_replace_at(dirfd, "spec.json", text, strlen(text), 0600, sync);
    return r < 0 ? err_sys(e, -r, "cannot write the spec of sandbox '%s'", spec->name) : 0;
}

int state_load(int run_fd, struct sandbox_state *st)
{
    return state_load_at(run_fd, "state.json", st);
}

static int spec_load_at(int at, const char *path, struct sandbox_spec *spec, struct err *e)
{
    AUTO_FREE char *text = NULL;
    size_t len = 0;
    int r = file_read_at(at, path, SPEC_FILE_MAX, &text, &len);
    if (r < 0)
        return err_sys(e, -r, "cannot read spec.json");
    json_t *j = json_loadb(text, len, 0, NULL);
    r = j ? spec_from_json(spec, j, e) : err_set(e, EINVAL, "spec.json is damaged");
    json_decref(j);
    return r;
}

/* --- sandboxes ------------------------------------------------------------------------------ */

int sandbox_dir_make(const struct store *s, const char *name, int *ret_dirfd, struct err *e)
{
    if (mkdirat(s->sandboxes_fd, name, 0700) < 0)
        return err_sys(e, errno, "cannot create the directory of sandbox '%s'", name);
    AUTO_CLOSE int fd =
        openat(s->sandboxes_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    AUTO_CLOSE int lock = -1;
    if (fd < 0 || mkdirat(fd, "run", 0700) < 0 || mkdirat(fd, "run/logs", 0700) < 0 ||
        (lock = openat(fd, "lock", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
        int code = errno;
        (void)remove_tree_at(s->sandboxes_fd, name);
        return err_sys(e, code, "cannot set up the directory of sandbox '%s'", name);
    }
    *ret_dirfd = steal_fd(&fd);
    return 0;
}

int sandbox_dir_remove(const struct store *s, const char *name, struct err *e)
{
    AUTO_CLOSE int dirfd =
        openat(s->sandboxes_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dirfd >= 0) {
        cgroup_forget(dirfd); /* the one thing of a sandbox that is not in its directory */
        /* First, so that whatever is left when we are killed is a leftover (invariant 4). */
        (void)unlinkat(dirfd, "spec.json", 0);
        audit_collect(s, name, dirfd);
    }
    int r = remove_tree_at(s->sandboxes_fd, name);
    /* A monitor whose creator was killed may still be writing its last state. */
    for (int i = 0; r == -ENOTEMPTY && i < REMOVE_TRIES; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        r = remove_tree_at(s->sandboxes_fd, name);
    }
    return r < 0 ? err_sys(e, -r, "cannot remove the directory of sandbox '%s'", name) : 0;
}

void sandbox_close(struct sandbox *sb)
{
    close_fd(&sb->dirfd);
    spec_free(&sb->spec);
}

static int not_found(const char *name, struct err *e)
{
    return err_set(e, ENOENT, "sandbox not found: %s", name);
}

/* Nothing that is wrong with a file, but with us: it says nothing about the sandbox. */
static bool is_passing(int r)
{
    return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -EINTR;
}

static bool is_over(enum status st)
{
    return st == STATUS_STOPPED || st == STATUS_CRASHED;
}

/* Reads the sandbox whose files are at `at` under `prefix` ("" or "NAME/") and says what it is
 * worth: *leftover when it is the rest of a creation or a removal, or of an ephemeral sandbox,
 * whose makers are gone. Only a file that is certainly not there makes it one. A glance is enough
 * for a list: nothing is decided by the state in it. */
static int load(int at, const char *prefix, const char *name, bool glance, struct sandbox *sb,
                bool *leftover, struct err *e)
{
    char path[SPEC_NAME_MAX + 32], state[SPEC_NAME_MAX + 32];
    (void)snprintf(path, sizeof(path), "%slock", prefix);
    (void)snprintf(state, sizeof(state), "%srun/state.json", prefix);
    /* The lock before the state: a monitor writes its last state, then dies. Only a glance takes
     * the word of a state that says it is over. */
    int r = glance ? state_load_at(at, state, &sb->state) : -EAGAIN;
    pid_t pid = r == 0 && is_over(sb->state.status) ? 0 : lock_holder_at(at, path);
    if (pid < 0) {
        sb->state.pid = pid;
        return err_sys(e, -pid, "cannot tell whether sandbox '%s' runs", name);
    }
    if (r < 0 || (pid == 0 && !is_over(sb->state.status)))
        r = state_load_at(at, state, &sb->state);
    sb->state.pid = pid;
    if (r == -ENOENT || (r == 0 && sb->state.status == STATUS_CREATING)) {
        *leftover = true;
        return not_found(name, e);
    }
    if (is_passing(r))
        return err_sys(e, -r, "cannot read the state of sandbox '%s'", name);
    if (r < 0) { /* no reason to lose what is on its disk */
        sb->state.status = pid ? STATUS_RUNNING : STATUS_CRASHED;
        (void)snprintf(sb->state.reason, sizeof(sb->state.reason), "its state.json is damaged");
    }
    (void)snprintf(path, sizeof(path), "%sspec.json", prefix);
    r = spec_load_at(at, path, &sb->spec, e);
    if (r == -ENOENT) { /* being removed, or the rest of a removal that died */
        *leftover = true;
        return not_found(name, e);
    }
    if (r < 0) {
        (void)err_wrap(e, r, "sandbox '%s'", name);
        return r;
    }
    if (pid == 0 && !is_over(sb->state.status)) {
        sb->state.status = STATUS_CRASHED;
        (void)snprintf(sb->state.reason, sizeof(sb->state.reason), "the monitor was killed");
    }
    if (pid == 0 && sb->spec.ephemeral) {
        *leftover = true;
        return not_found(name, e);
    }
    return 0;
}

static int open_checked(const struct store *s, const char *name, struct sandbox *sb, bool *leftover,
                        struct err *e)
{
    *leftover = false;
    *sb = (struct sandbox){0};
    spec_init(&sb->spec);
    sb->dirfd = openat(s->sandboxes_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (sb->dirfd >= 0)
        return load(sb->dirfd, "", name, false, sb, leftover, e);
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
        return not_found(name, e);
    return err_sys(e, errno, "cannot open the directory of sandbox '%s'", name);
}

/* Deletes a leftover, once the lock is ours in the way that op says. */
static void sweep_locked(const struct store *s, const char *name, int op)
{
    int fd = flock_named(s, name, 0, op);
    /* Without a lock file somebody has removed the sandbox, and must not find a new one. */
    if (fd == -ENOENT && faccessat(s->sandboxes_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        fd = flock_named(s, name, O_CREAT, op);
    if (fd < 0)
        return;
    struct name_lock l = {.fd = fd};
    (void)snprintf(l.name, sizeof(l.name), "%s", name);
    struct sandbox sb;
    bool leftover;
    int r = open_checked(s, name, &sb, &leftover, NULL);
    bool dead = r < 0 && leftover && sb.state.pid == 0;
    sandbox_close(&sb);
    if (dead)
        (void)sandbox_dir_remove(s, name, NULL);
    name_lock_drop(s, &l, dead || (r == -ENOENT && !leftover));
}

/* Unless somebody is at work on that name: then it is no leftover. */
static void sweep(const struct store *s, const char *name)
{
    sweep_locked(s, name, LOCK_EX | LOCK_NB);
}

void sandbox_sweep(const struct store *s, const char *name)
{
    sweep_locked(s, name, LOCK_EX);
}

int sandbox_open(const struct store *s, const char *name, struct sandbox *ret, struct err *e)
{
    int r = spec_check_name(name, e);
    if (r < 0)
        return r;
    bool leftover;
    r = open_checked(s, name, ret, &leftover, e);
    if (r < 0) {
        sandbox_close(ret);
        if (leftover)
            sweep(s, name);
    }
    return r;
}

static DIR *open_dir(int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        close_fd(&fd);
    return d;
}

/* The next entry that could be a sandbox's. */
static const struct dirent *next_name(DIR *d)
{
    const struct dirent *de;
    while ((de = readdir(d)))
        if (spec_check_name(de->d_name, NULL) == 0)
            break;
    return de;
}

/* Lock files of creations that were killed before they had made anything else. A sandbox has one
 * lock file, so there are some only if there are more of these. */
static void sweep_locks(const struct store *s, size_t n_dirs)
{
    AUTO_CLOSEDIR DIR *d = open_dir(s->locks_fd);
    size_t n = 0;
    while (d && next_name(d))
        n++;
    if (!d || n <= n_dirs)
        return;
    rewinddir(d);
    const struct dirent *de;
    while ((de = next_name(d)))
        if (faccessat(s->sandboxes_fd, de->d_name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            sweep(s, de->d_name);
}

/* As sandbox_open(), of a directory entry, without opening the directory: a list may be longer
 * than the number of descriptors that we may have. 1: listed, 0: there is none, -1: unreadable. */
static int list_one(const struct store *s, const char *name, struct sandbox *sb)
{
    char prefix[SPEC_NAME_MAX + 2];
    bool leftover = false;
    struct err why = {0};
    *sb = (struct sandbox){.dirfd = -1};
    spec_init(&sb->spec);
    (void)snprintf(prefix, sizeof(prefix), "%s/", name);
    int r = load(s->sandboxes_fd, prefix, name, true, sb, &leftover, &why);
    if (r == 0)
        return 1;
    sandbox_close(sb);
    if (leftover)
        sweep(s, name);
    if (leftover || r == -ENOENT || r == -ENOTDIR)
        return 0;
    (void)fprintf(stderr, "warn: %s\n", why.msg);
    return -1;
}

static int list_all(const struct store *s, struct sandbox **ret, size_t *ret_n, size_t *unreadable,
                    struct err *e)
{
    AUTO_CLOSEDIR DIR *d = open_dir(s->sandboxes_fd);
    if (!d)
        return err_sys(e, errno, "cannot list %s/sandboxes", s->home);
    struct sandbox *list = NULL;
    size_t n = 0, cap = 0, n_dirs = 0, bad = 0;
    const struct dirent *de;
    while ((de = next_name(d))) {
        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            struct sandbox *more = reallocarray(list, cap, sizeof(*list));
            if (!more) {
                sandbox_list_free(list, n);
                return err_oom(e);
            }
            list = more;
        }
        if (de->d_type != DT_DIR && de->d_type != DT_UNKNOWN)
            continue;
        n_dirs++;
        int got = list_one(s, de->d_name, &list[n]);
        n += got > 0;
        bad += got < 0;
    }
    sweep_locks(s, n_dirs);
    *ret = list;
    *ret_n = n;
    *unreadable = bad;
    return 0;
}

int store_list(const struct store *s, struct sandbox **ret, size_t *n, struct err *e)
{
    size_t unreadable;
    return list_all(s, ret, n, &unreadable, e);
}

int store_list_whole(const struct store *s, struct sandbox **ret, size_t *n, struct err *e)
{
    size_t unreadable = 0;
    int r = list_all(s, ret, n, &unreadable, e);
    if (r < 0 || unreadable == 0)
        return r;
    sandbox_list_free(*ret, *n);
    (void)err_set(e, EBUSY, "what sandboxes use is not known: %zu of them cannot be read",
                  unreadable);
    err_hint(e, "remove what is damaged (msb rm --force NAME), then try again");
    return -EBUSY;
}

void sandbox_list_free(struct sandbox *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sandbox_close(&list[i]);
    free(list);
}

int sandbox_logs_open(int dirfd)
{
    AUTO_CLOSE int run = openat(dirfd, "run", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int fd = run < 0 ? -1 : openat(run, "logs", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

int sandbox_connect(int dirfd)
{
    AUTO_CLOSE int run = openat(dirfd, "run", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (run < 0)
        return -errno;
    /* By descriptor: a socket address holds 107 bytes, a home directory and a name may be longer.
     * And by that of the socket itself: a symlink in its place could lead to anybody's. */
    AUTO_CLOSE int there = openat(run, "agent.sock", O_PATH | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (there < 0 || fstat(there, &st) < 0)
        return -errno;
    if (!S_ISSOCK(st.st_mode))
        return -ECONNREFUSED;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d", there);
    while (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        if (errno != EINTR)
            return -errno;
    return steal_fd(&fd);
}
