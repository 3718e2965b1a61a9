#include "store/store.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Containers run as users without a passwd entry, without a home or with one that is not theirs:
 * nothing could be created there. The directory below /tmp is checked like any other before it is
 * used. */
static char *usual_home(void)
{
    const char *home = getenv("HOME");
    const struct passwd *pw = home && *home ? NULL : getpwuid(getuid());
    char *p = NULL;
    if (pw)
        home = pw->pw_dir;
    if (home && home[0] == '/') {
        if (asprintf(&p, "%s/.microsandbox", home) < 0)
            return NULL;
        if (access(p, F_OK) == 0 || access(home, W_OK) == 0 || errno == ENOENT)
            return p;
        free(p);
    }
    return asprintf(&p, "/tmp/msb-%u", geteuid()) < 0 ? NULL : p;
}

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
                return err_sys(e, errno, "cannot determine the current directory");
            if (asprintf(&p, "%s/%s", cwd, env) < 0)
                p = NULL;
        }
    } else {
        p = usual_home();
    }
    *ret = p;
    return p ? 0 : err_oom(e);
}

/* --- the way to it ---------------------------------------------------------------------------- */

enum { LINKS_MAX = 40 };

struct walk {
    const char *home; /* for messages */
    int at;           /* the directory so far, O_PATH */
    unsigned links;
    char rest[PATH_MAX];
};

static int walk_restart(struct walk *w)
{
    close_fd(&w->at);
    w->at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return w->at < 0 ? -errno : 0;
}

/* A link owned by us or root is followed; the owner of any other one would decide where our files
 * go. */
static int walk_link(struct walk *w, int link, const struct stat *st, struct err *e)
{
    char target[PATH_MAX], rest[PATH_MAX];
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return err_hinted(
            e, err_set(e, EPERM, "%s leads through a symbolic link of another user", w->home),
            "set MSB_HOME to your own directory (default: ~/.microsandbox)");
    ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    if (n < 0)
        return err_sys(e, errno, "cannot open %s", w->home);
    target[n] = '\0';
    int len = snprintf(rest, sizeof(rest), "%s/%s", target, w->rest);
    if (++w->links > LINKS_MAX || len >= (int)sizeof(rest))
        return err_sys(e, ELOOP, "cannot open %s", w->home);
    memcpy(w->rest, rest, (size_t)len + 1);
    int r = target[0] == '/' ? walk_restart(w) : 0;
    return r < 0 ? err_sys(e, -r, "cannot open /") : 0;
}

/* Takes one component. 1: there was none left; -errno, with no message set: it cannot be opened. */
static int walk_step(struct walk *w, struct err *e)
{
    char *name = w->rest + strspn(w->rest, "/");
    size_t n = strcspn(name, "/");
    char one[NAME_MAX + 1];
    struct stat st;
    if (n == 0)
        return 1;
    if (n > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(one, name, n);
    one[n] = '\0';
    memmove(w->rest, name + n, strlen(name + n) + 1);
    AUTO_CLOSE int next = openat(w->at, one, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 || fstat(next, &st) < 0)
        return -errno;
    if (S_ISLNK(st.st_mode))
        return walk_link(w, next, &st, e);
    close_fd(&w->at);
    w->at = steal_fd(&next);
    return 0;
}

/* Opens the home, following no link of another user; -errno, perhaps without a message. */
static int open_home(const char *home, struct err *e)
{
    struct walk w = {.home = home, .at = -1};
    if ((size_t)snprintf(w.rest, sizeof(w.rest), "%s", home) >= sizeof(w.rest))
        return -ENAMETOOLONG;
    int r = walk_restart(&w);
    while (r == 0)
        r = walk_step(&w, e);
    int fd = r < 0 ? r : openat(w.at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r == 1 && fd < 0)
        fd = -errno;
    close_fd(&w.at);
    return fd;
}

static int open_or_make(const struct store *s, const char *name, int flags, struct err *e)
{
    flags |= O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    int fd = openat(s->home_fd, name, flags);
    if (fd < 0 && errno == ENOENT) {
        if (mkdirat(s->home_fd, name, 0700) < 0 && errno != EEXIST)
            return err_sys(e, errno, "cannot create %s/%s", s->home, name);
        fd = openat(s->home_fd, name, flags);
    }
    return fd < 0 ? err_sys(e, errno, "cannot open %s/%s", s->home, name) : fd;
}

int store_subdir_open(const struct store *s, const char *name, struct err *e)
{
    return open_or_make(s, name, O_NOFOLLOW, e);
}

int store_cache_open(const struct store *s, struct err *e)
{
    return open_or_make(s, "cache", 0, e);
}

static int no_home(const struct store *s, int code, const char *verb, struct err *e)
{
    return err_hinted(e, err_sys(e, code, "cannot %s %s", verb, s->home),
                      "set MSB_HOME to your own directory (default: ~/.microsandbox)");
}

int store_check_backend(struct err *e)
{
    const char *backend = getenv("MSB_BACKEND"), *profile = getenv("MSB_PROFILE");
    bool local = !backend || !*backend || strcmp(backend, "local") == 0;
    if (local && (!profile || !*profile))
        return 0;
    err_set(e, ENOTSUP, "there is no backend '%.64s': sandboxes run on this machine",
            profile && *profile ? profile : backend);
    err_hint(e, "unset MSB_BACKEND and MSB_PROFILE");
    return -ENOTSUP;
}

int store_open(struct store *s, struct err *e)
{
    struct err why = {0};
    *s = (struct store)STORE_NONE;
    int r = store_check_backend(e);
    if (r == 0)
        r = find_home(&s->home, e);
    if (r < 0 || !s->home)
        return r;
    int fd = open_home(s->home, &why);
    if (fd == -ENOENT) {
        r = mkdir_parents(s->home, 0700);
        if (r < 0)
            return no_home(s, -r, "create", e);
        fd = open_home(s->home, &why);
    }
    if (fd < 0 && why.code)
        err_copy(e, &why);
    if (fd < 0)
        return why.code ? fd : no_home(s, -fd, "open", e);
    s->home_fd = fd;
    struct stat st;
    if (fstat(s->home_fd, &st) < 0)
        return err_sys(e, errno, "cannot look at %s", s->home);
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return err_hinted(
            e, err_set(e, EPERM, "%s belongs to another user or is writable by others", s->home),
            "set MSB_HOME to your own directory, or run: chmod go-w %s", s->home);
    s->sandboxes_fd = store_subdir_open(s, "sandboxes", e);
    if (s->sandboxes_fd < 0)
        return s->sandboxes_fd;
    s->locks_fd = store_subdir_open(s, "locks", e);
    return MIN(s->locks_fd, 0);
}

void store_close(struct store *s)
{
    close_fd(&s->home_fd);
    close_fd(&s->sandboxes_fd);
    close_fd(&s->locks_fd);
    free(s->home);
    s->home = NULL;
}
