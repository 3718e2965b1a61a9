/* The directories of sandboxes: made, opened, listed, swept, removed. */
#include "jail/cgroup.h"
#include "store/audit.h"
#include "store/impl.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/fs.h"
#include "util/sock.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

int sandbox_dir_make(const struct store *s, const char *name, int *ret_dirfd, struct err *e)
{
    if (mkdirat(s->sandboxes_fd, name, 0700) < 0)
        return err_sys(e, errno, "cannot create the directory of sandbox '%s'", name);
    AUTO_CLOSE int fd = dir_open_at(s->sandboxes_fd, name);
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
    AUTO_CLOSE int dirfd = dir_open_at(s->sandboxes_fd, name);
    if (dirfd >= 0) {
        cgroup_forget(dirfd); /* the only part of a sandbox outside its directory */
        /* The spec first: if we are killed after this, the rest is a leftover (invariant 4). */
        (void)unlinkat(dirfd, "spec.json", 0);
        audit_collect(s, name, dirfd);
    }
    /* A monitor whose creator was killed may still be writing its last state. */
    int r = remove_tree_patiently(s->sandboxes_fd, name);
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

bool store_is_passing(int r)
{
    return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -EINTR;
}

static bool is_over(enum status st)
{
    return st == STATUS_STOPPED || st == STATUS_CRASHED;
}

/* Reads the sandbox whose files are at `at` under `prefix` ("" or "NAME/"). *leftover: it was left
 * by an interrupted creation or removal, or by an ephemeral sandbox whose processes died. Only a
 * file that is certainly missing makes it a leftover. A glance is enough for a list, whose states
 * decide nothing. */
static int sandbox_load(int at, const char *prefix, const char *name, bool glance,
                        struct sandbox *sb, bool *leftover, struct err *e)
{
    char path[SPEC_NAME_MAX + 32], state[SPEC_NAME_MAX + 32];
    (void)snprintf(path, sizeof(path), "%slock", prefix);
    (void)snprintf(state, sizeof(state), "%srun/state.json", prefix);
    /* The lock before the state: a monitor writes its last state, then dies. Only a glance trusts a
     * state that says it has ended. */
    int r = glance ? state_load_at(at, state, &sb->state) : -EAGAIN;
    pid_t pid = r == 0 && is_over(sb->state.status) ? 0 : lock_holder_at(at, path);
    if (pid < 0) {
        sb->state.pid = pid;
        return err_sys(e, -pid, "cannot tell whether sandbox '%s' is running", name);
    }
    if (r < 0 || (pid == 0 && !is_over(sb->state.status)))
        r = state_load_at(at, state, &sb->state);
    sb->state.pid = pid;
    if (r == -ENOENT || (r == 0 && sb->state.status == STATUS_CREATING)) {
        *leftover = true;
        return not_found(name, e);
    }
    if (store_is_passing(r))
        return err_sys(e, -r, "cannot read the state of sandbox '%s'", name);
    if (r < 0) { /* its disk is still worth keeping */
        sb->state.status = pid ? STATUS_RUNNING : STATUS_CRASHED;
        (void)snprintf(sb->state.reason, sizeof(sb->state.reason), "its state.json is damaged");
    }
    (void)snprintf(path, sizeof(path), "%sspec.json", prefix);
    r = spec_load_at(at, path, &sb->spec, e);
    if (r == -ENOENT) { /* being removed, or left from an interrupted removal */
        *leftover = true;
        return not_found(name, e);
    }
    if (r < 0)
        return err_wrap(e, r, "sandbox '%s'", name);
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
    int fd = sb->dirfd = dir_open_at(s->sandboxes_fd, name);
    if (fd >= 0)
        return sandbox_load(fd, "", name, false, sb, leftover, e);
    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
        return not_found(name, e);
    return err_sys(e, -fd, "cannot open the directory of sandbox '%s'", name);
}

/* Deletes a leftover, once flock() with `op` gives us the lock of its name. With LOCK_NB a name that
 * another process is working on is left alone: it is not a leftover. */
static void sweep(const struct store *s, const char *name, int op)
{
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    bool leftover;
    int r = name_lock_try(s, name, 0, op, &lock);
    /* Without a lock file the sandbox was removed, and a lock must not bring the name back. */
    if (r == -ENOENT && faccessat(s->sandboxes_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        r = name_lock_try(s, name, O_CREAT, op, &lock);
    if (r < 0)
        return;
    r = open_checked(s, name, &sb, &leftover, NULL);
    bool dead = r < 0 && leftover && sb.state.pid == 0;
    sandbox_close(&sb);
    if (dead)
        (void)sandbox_dir_remove(s, name, NULL);
    lock.forget = dead || (r == -ENOENT && !leftover);
}

void sandbox_sweep(const struct store *s, const char *name)
{
    sweep(s, name, LOCK_EX);
}

/* Suggests the most similar name, if there is one. */
static void hint_near(const struct store *s, const char *name, struct err *e)
{
    char best[SPEC_NAME_MAX + 1] = "";
    unsigned unlike = TEXT_FAR;
    AUTO_CLOSEDIR DIR *d = e ? dir_read_at(s->sandboxes_fd, ".") : NULL;
    const struct dirent *entry;
    while (d && (entry = readdir(d))) {
        unsigned n = word_unlikeness(name, entry->d_name);
        size_t len = strlen(entry->d_name);
        if (n >= unlike || strcmp(entry->d_name, name) == 0 || len >= sizeof(best))
            continue;
        unlike = n;
        memcpy(best, entry->d_name, len + 1);
    }
    if (best[0])
        err_hint(e, "a similar name exists: '%s'", best);
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
            sweep(s, name, LOCK_EX | LOCK_NB);
    }
    if (r == -ENOENT)
        hint_near(s, name, e);
    return r;
}

/* The next entry that could be a sandbox. */
static const struct dirent *next_name(DIR *d)
{
    const struct dirent *de;
    while ((de = readdir(d)))
        if (spec_check_name(de->d_name, NULL) == 0)
            break;
    return de;
}

/* Removes lock files of processes that were killed before they had made anything else. A sandbox has
 * one lock file, so there can be some only if there are more lock files than sandboxes. */
static void sweep_locks(const struct store *s, size_t n_dirs)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(s->locks_fd, ".");
    const struct dirent *de;
    size_t n = 0;
    while (d && (de = readdir(d)))
        n += de->d_name[0] != '.';
    if (!d || n <= n_dirs)
        return;
    rewinddir(d);
    while ((de = readdir(d)))
        if (de->d_name[0] != '.' &&
            faccessat(s->sandboxes_fd, de->d_name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
            sweep(s, de->d_name, LOCK_EX | LOCK_NB);
}

/* Like sandbox_open(), but without opening the directory: a list may be longer than the number of
 * descriptors that we may have. 1: listed, 0: there is none, -1: unreadable. */
static int list_one(const struct store *s, const char *name, struct sandbox *sb)
{
    char prefix[SPEC_NAME_MAX + 2];
    bool leftover = false;
    struct err why = {0};
    *sb = (struct sandbox){.dirfd = -1};
    spec_init(&sb->spec);
    (void)snprintf(prefix, sizeof(prefix), "%s/", name);
    int r = sandbox_load(s->sandboxes_fd, prefix, name, true, sb, &leftover, &why);
    if (r == 0)
        return 1;
    sandbox_close(sb);
    if (leftover)
        sweep(s, name, LOCK_EX | LOCK_NB);
    if (leftover || r == -ENOENT || r == -ENOTDIR)
        return 0;
    diag_warn("%s", why.msg);
    return -1;
}

static int list_all(const struct store *s, struct sandbox **ret, size_t *ret_n, size_t *unreadable,
                    struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(s->sandboxes_fd, ".");
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
    (void)err_set(e, EBUSY, "cannot tell what is in use: %zu sandbox%s cannot be read", unreadable,
                  unreadable == 1 ? "" : "es");
    err_hint(e, "remove damaged sandboxes with `msb rm --force NAME`, then try again");
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
    return run < 0 ? -errno : dir_open_at(run, "logs");
}

int sandbox_connect(int dirfd)
{
    AUTO_CLOSE int run = openat(dirfd, "run", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (run < 0)
        return -errno;
    /* By descriptor: a socket address holds 107 bytes, and a home directory and a name may be
     * longer. It is the socket's own descriptor, since a symlink in its place could lead
     * anywhere. */
    AUTO_CLOSE int there = openat(run, "agent.sock", O_PATH | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (there < 0 || fstat(there, &st) < 0)
        return -errno;
    if (!S_ISSOCK(st.st_mode))
        return -ECONNREFUSED;
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", there);
    return connect_at(path);
}
