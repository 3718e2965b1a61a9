#include "store/store.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
        const char *home = getenv("HOME");
        const struct passwd *pw = home && *home ? NULL : getpwuid(getuid());
        if (pw)
            home = pw->pw_dir;
        if (!home || home[0] != '/') {
            err_set(e, ENOENT, "cannot find your home directory");
            err_hint(e, "set HOME, or MSB_HOME to a directory for sandboxes");
            return -ENOENT;
        }
        if (asprintf(&p, "%s/.microsandbox", home) < 0)
            p = NULL;
    }
    *ret = p;
    return p ? 0 : err_oom(e);
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
    int r = err_sys(e, code, "cannot %s %s", verb, s->home);
    err_hint(e, "set MSB_HOME to a directory of your own (default: ~/.microsandbox)");
    return r;
}

int store_open(struct store *s, struct err *e)
{
    *s = (struct store)STORE_NONE;
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
