#include "s3/sync.h"

#include "jail/jail.h"
#include "registry/curl.h"
#include "s3/confine.h"
#include "s3/work.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/parse.h"
#include "util/process.h"
#include "util/utf8.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define TMP_DIR "s3-tmp"
#define CACHE_DIR "objects" /* in the home's cache */
#define MEMORY_MAX (2 * GIB)

enum {
    PASSES = 6,           /* over a workspace that keeps changing */
    NOTE_MAX = 4096,      /* bytes of one line between the processes */
    WARNINGS_MAX = 50,    /* of one sync; others are only counted */
    SUGGEST_FILES = 1000, /* or that many bytes: large enough to suggest leaving it out */
    SUGGEST_BYTES = 64 << 20,
    FETCH_IDLE_MS = 30 * 1000, /* then it ends: the next process has fresh keys */
};

/* --- between the processes ------------------------------------------------------------------- */

enum note { NOTE_WARN, NOTE_DIFFERS, NOTE_GOES_ON, NOTE_RESULT };

struct note_head {
    uint32_t kind, len;
};

struct result {
    int r;
    bool conditional;
    struct s3_counts counts;
    struct err e;
};

static int send_note(int fd, enum note kind, const void *p, size_t n)
{
    struct note_head h = {kind, (uint32_t)n};
    int r = write_all(fd, &h, sizeof(h));
    return r < 0 ? r : write_all(fd, p, n);
}

struct outlet {
    int fd;
    unsigned warnings;
};

static void send_warning(void *ctx, const char *text)
{
    struct outlet *o = ctx;
    if (o->warnings++ < WARNINGS_MAX)
        (void)send_note(o->fd, NOTE_WARN, text, MIN(strlen(text), (size_t)NOTE_MAX));
}

static void send_goes_on(void *ctx)
{
    const struct outlet *o = ctx;
    (void)send_note(o->fd, NOTE_GOES_ON, NULL, 0);
}

/* --- the work, in its own process ------------------------------------------------------------ */

struct job {
    const struct s3_config *config;
    const struct s3_credentials *keys;
    int dir; /* the workspace's */
    bool look, probe, emptied;
    bool may_go_on; /* the caller wants to be told of a long listing for which it need not wait */
    enum s3_here here;
    int cache; /* -1: none */
    int fetch; /* not -1: only serves requests for contents on this socket */
    struct outlet out;
};

static void forget_pass(struct s3_work *w)
{
    s3_plan_free(&w->plan);
    s3_tree_free(&w->base);
    s3_tree_free(&w->local);
    ignore_free(&w->ignore);
    s3_remote_free(&w->remote);
    atomic_store(&w->again, false);
    atomic_store(&w->latest_ns, 0);
    w->lazy = w->unlisted = w->pushed = w->unsettled = w->caught_up = false;
}

/* Whether nothing has changed here since the last sync, as far as can be told without reading
 * files. */
static bool is_as_it_was(const struct s3_work *w)
{
    bool same = !w->fresh && w->local.n == w->base.n;
    for (size_t i = 0; same && i < w->local.n; i++)
        same = strcmp(w->local.v[i].path, w->base.v[i].path) == 0 &&
               s3_entry_same(&w->local.v[i], &w->base.v[i]);
    return same;
}

/* Whether a push would remove something from the bucket. */
static bool takes_away(const struct s3_work *w)
{
    bool takes = w->plan.count[S3_DELETE_REMOTE];
    for (size_t i = 0; !takes && i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        takes = s->action == S3_UPLOAD && s->remote && s->remote->kind != s->local->kind;
    }
    return takes;
}

/* Whether something in base is missing here. Both are sorted. */
static bool misses_any(const struct s3_work *w)
{
    for (size_t i = 0; i < w->base.n; i++)
        if (!s3_tree_find(&w->local, w->base.v[i].path))
            return true;
    return false;
}

static void told_before(void *ctx, const char *text)
{
}

/* Whether something has appeared since the walk, or behind it: it may be what is missing, under a
 * new name. */
static int has_come(struct s3_work *w, const struct s3_scan *how, bool *ret, struct err *e)
{
    AUTO_S3_TREE struct s3_tree now = {0};
    struct s3_scan again = *how;
    again.warn = told_before;
    int r = misses_any(w) ? s3_tree_walk(w->data, &again, &now, e) : 0;
    for (size_t i = 0; i < now.n && !*ret; i++)
        *ret = !s3_tree_find(&w->local, now.v[i].path);
    return r;
}

/* Something that was seen has lost its name, and may be what is missing: another walk may find it.
 * If that does not help, the bucket keeps, for now, what would be removed. */
static void be_careful(struct s3_work *w)
{
    if (!w->second) {
        atomic_store(&w->again, true);
        return;
    }
    for (size_t i = 0; i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        if (s->action != S3_DELETE_REMOTE)
            continue;
        w->plan.count[S3_DELETE_REMOTE]--;
        w->plan.count[S3_KEEP]++;
        s->action = S3_KEEP; /* what both sides had before */
    }
    if (takes_away(w))
        atomic_store(&w->again, true);
}

static int compare(struct s3_work *w, struct job *j, struct err *e)
{
    bool lost = false;
    const struct s3_scan how = {.base = &w->base,
                                .remote = &w->remote.tree,
                                .all = faccessat(w->dir, S3_NEXT_FILE, F_OK, 0) == 0,
                                .ignore = &w->ignore,
                                .warn = w->warn,
                                .warn_ctx = w->warn_ctx,
                                .fill = s3_fill_moved,
                                .fill_ctx = w,
                                .lost = &lost};
    unsigned warnings = j->out.warnings;
    int r = s3_base_load(w, e);
    if (r == 0 && s3_index_base(w) < 0)
        r = err_oom(e);
    if (r == 0)
        r = ignore_load(w->data, &w->ignore, e);
    if (r == 0)
        r = s3_tree_walk(w->data, &how, &w->local, e);
    if (r < 0)
        return r;
    /* There is no need to wait for the end of a long listing that cannot lead to a conflict. */
    bool same = j->out.warnings == warnings && is_as_it_was(w);
    const struct s3_watch none = {0}, *watch = same || w->fresh ? &w->watch : &none;
    r = s3_remote_load(w->client, w->config, w->dir, &w->base, &w->theirs, watch, &w->remote, e);
    if (r == 0)
        r = s3_base_catch_up(w, false, e);
    if (r == 0 && w->remote.bytes > w->config->max) {
        r = err_set(e, EFBIG, "the bucket holds more than the workspace's limit of %llu MiB",
                    (unsigned long long)(w->config->max >> 20));
        err_hint(
            e, "raise it once with msb workspace sync --max, for good with workspace create --max");
    }
    if (r == 0)
        r = has_come(w, &how, &lost, e);
    if (r == 0)
        r = s3_tree_read(w->data, &how, &w->local, e);
    if (r == 0)
        r = s3_base_catch_up(w, true, e);
    if (r == 0)
        r = s3_plan_make(&w->base, &w->local, &w->remote.tree, &w->ignore, &w->plan, e);
    if (r == 0)
        r = s3_fill_lost(w, e);
    if (r == 0 && lost && takes_away(w))
        be_careful(w);
    w->unlisted = later_get(w->data, (char[LATER_SIZE]){0});
    for (size_t i = 0; !w->unlisted && i < w->local.n; i++)
        w->unlisted = w->local.v[i].kind == S3_KIND_DIR && w->local.v[i].later[0];
    return r;
}

static void warn_about_remote(struct s3_work *w)
{
    if (w->remote.strange)
        s3_work_warn(w, "%zu objects are left out: their names cannot be names of files",
                     w->remote.strange);
    if (w->remote.damaged)
        s3_work_warn(w, "the bucket's manifest is damaged: objects are taken as they are");
}

/* The ignore list came with this pull: it takes effect before anything is pushed. */
static bool has_new_rules(const struct s3_work *w)
{
    for (size_t i = 0; i < w->plan.n; i++) {
        enum s3_action a = w->plan.v[i].action;
        if ((a == S3_DOWNLOAD || a == S3_DELETE_LOCAL || a == S3_CONFLICT) &&
            strcmp(w->plan.v[i].path, IGNORE_FILE) == 0)
            return true;
    }
    return false;
}

/* Refuses to begin a push that would make the bucket too large for the next sync. */
static int check_room(const struct s3_work *w, struct err *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        bool up = s->action == S3_UPLOAD;
        bytes += up ? s->local->size : s->action == S3_DELETE_REMOTE ? 0 : s->result.size;
    }
    if (!w->plan.count[S3_UPLOAD] || bytes <= w->config->max)
        return 0;
    (void)err_set(e, EFBIG, "the workspace holds more than its limit of %llu MiB",
                  (unsigned long long)(w->config->max >> 20));
    err_hint(e, "leave files out with " IGNORE_FILE ", or use --max");
    return -EFBIG;
}

static bool is_refusal(int r)
{
    return r == -EOPNOTSUPP || r == -ENOTEMPTY;
}

/* The very first sync: creates nothing that has not been accessed. 1: ignore rules have arrived,
 * and apply from now on. On refusal, s3_plan_lazily() says why. */
static int begin_lazily(struct s3_work *w, struct err *e)
{
    for (size_t i = 0; i < w->plan.n; i++) {
        struct s3_step *s = &w->plan.v[i];
        if (s->action == S3_DOWNLOAD && strcmp(s->path, IGNORE_FILE) == 0) {
            int r = s3_pull_one(w, s, e);
            return r < 0 ? r : 1;
        }
    }
    int r = file_replace_at(w->dir, S3_LATER_FILE, "names\n", 6, 0600, true);
    if (r == 0)
        r = s3_plan_lazily(w);
    return r < 0 && !is_refusal(r) ? err_sys(e, -r, "cannot write the workspace") : r;
}

/* Makes everything that should be here available, now or on demand. */
static int bring_here(struct s3_work *w, const struct job *j, struct err *e)
{
    int r = j->here == S3_HERE_MARKS && s3_can_be_lazy(w) ? begin_lazily(w, e) : 0;
    if (r != 0 && !is_refusal(r))
        return r;
    r = w->lazy ? 0 : s3_base_foresee(w, false, e);
    if (r == 0)
        r = s3_pull(w, e);
    if (r == 0 && j->here == S3_HERE_ALL)
        r = s3_fill_all(w, e);
    if (r == 0 && j->here == S3_HERE_NAMES && w->unlisted)
        r = s3_list_all(w, e);
    if (r < 0 && !w->lazy && !w->fresh) /* what has arrived is not a change of ours */
        (void)s3_base_save(w, NULL);
    return r;
}

/* 1: something changed meanwhile. */
static int one_pass(struct s3_work *w, struct job *j, struct err *e)
{
    const size_t *n = w->plan.count;
    int r = compare(w, j, e);
    if (r == 0)
        r = s3_check_loss(w, e);
    /* Before the manifest, or what is recorded next, says nothing about it any more. */
    if (r == 0 && w->caught_up)
        r = s3_base_save(w, e);
    if (r == 0)
        r = bring_here(w, j, e);
    if (r == 1)
        return 1;
    /* What was pulled counts, whether or not the push succeeds. */
    bool pulled = n[S3_DOWNLOAD] + n[S3_DELETE_LOCAL] + n[S3_CONFLICT] > 0;
    if (r == 0 && pulled)
        r = s3_base_save(w, e);
    if (r == 0 && (atomic_load(&w->again) || has_new_rules(w)))
        return 1;
    if (r == 0 && w->remote.lost) /* that is settled now */
        s3_manifest_forget(w->dir);
    if (r == 0)
        r = check_room(w, e);
    if (r == 0)
        r = s3_push(w, e);
    bool again = r == 0 && atomic_load(&w->again);
    if (again)
        r = s3_push_end(w, e);
    if (r == -EEXIST || (r == 0 && again))
        return 1;
    bool saved = (pulled || s3_base_is_saved(w)) && !w->pushed;
    if (r == 0 && !saved)
        r = s3_base_save(w, e);
    if (r == 0)
        r = s3_push_end(w, e);
    return r == -EEXIST ? 1 : r;
}

static int all_passes(struct s3_work *w, struct job *j, struct err *e)
{
    int r = s3_recover(w, e);
    for (int i = 0; r == 0 && i < PASSES; i++) {
        forget_pass(w);
        err_clear(e);
        atomic_store(&w->cancel, false);
        w->second = i > 0;
        r = one_pass(w, j, e);
        if (r <= 0) {
            warn_about_remote(w);
            return r;
        }
        r = 0;
    }
    return r < 0
               ? r
               : err_set(e, EAGAIN, "the workspace and the bucket keep changing: try again later");
}

/* The length of the path up to and including a directory that can be recreated, or 0. */
static size_t remakeable(const char *path)
{
    static const char *const names[] = {"node_modules", ".venv"};
    for (const char *at = path; at; at = strchr(at, '/'), at += at != NULL) {
        size_t n = strcspn(at, "/");
        for (size_t i = 0; at[n] && i < ARRAY_LEN(names); i++)
            if (n == strlen(names[i]) && strncmp(at, names[i], n) == 0)
                return (size_t)(at - path) + n;
    }
    return 0;
}

/* Suggests leaving out what a package manager made, if that is a lot. */
static void suggest(struct s3_work *w)
{
    const struct s3_tree *t = &w->local;
    for (size_t i = 0; i < t->n;) {
        const char *path = t->v[i].path;
        size_t n = remakeable(path), files = 0;
        uint64_t bytes = 0;
        for (; n && i < t->n && strncmp(t->v[i].path, path, n) == 0 && t->v[i].path[n] == '/';
             i++) {
            files++;
            bytes += t->v[i].size;
        }
        if (files >= SUGGEST_FILES || bytes >= SUGGEST_BYTES)
            s3_work_warn(w,
                         "'%.*s' has %zu files, %llu MiB: a line '%.*s/' in " IGNORE_FILE
                         " leaves it out",
                         (int)n, path, files, (unsigned long long)(bytes >> 20), (int)n, path);
        i += n == 0;
    }
}

static int look(struct s3_work *w, struct job *j, struct err *e)
{
    static const char *const words[] = {
        [S3_DOWNLOAD] = "download", [S3_DELETE_LOCAL] = "delete-local",
        [S3_UPLOAD] = "upload",     [S3_DELETE_REMOTE] = "delete-remote",
        [S3_CONFLICT] = "conflict", [S3_FORGET] = NULL,
    };
    int r = compare(w, j, e);
    for (int i = 1; r == 0 && i < PASSES && atomic_load(&w->again); i++) {
        forget_pass(w);
        r = compare(w, j, e);
    }
    for (size_t i = 0; r == 0 && i < w->plan.n; i++) {
        const struct s3_step *s = &w->plan.v[i];
        char line[NOTE_MAX];
        if (!words[s->action])
            continue;
        int n = snprintf(line, sizeof(line), "%s %s", words[s->action], s->path);
        if (send_note(j->out.fd, NOTE_DIFFERS, line, MIN((size_t)n, sizeof(line) - 1)) < 0)
            return -EPIPE;
    }
    if (r == 0 && s3_check_loss(w, e) < 0) {
        s3_work_warn(w, "%s", e->msg);
        err_clear(e);
    }
    warn_about_remote(w);
    suggest(w);
    return r;
}

/* Checks that a write that must be refused is refused. */
static int probe(struct s3_work *w, struct result *res, struct err *e)
{
    char key[S3_KEY_SIZE], etag[S3_ETAG_SIZE], path[64];
    (void)snprintf(path, sizeof(path), ".msb/probe-%lld", (long long)realtime_ns());
    s3_key(w->config, path, key);
    int r = s3_put(w->client, key, "", 0, &(struct s3_put){0}, etag, e);
    if (r < 0)
        return r;
    r = s3_put(w->client, key, "", 0, &(struct s3_put){.when = S3_IF_ABSENT}, etag, NULL);
    if (r == -EEXIST)
        r = s3_put(w->client, key, "", 0,
                   &(struct s3_put){.when = S3_IF_MATCH, .match = "0123456789abcdef"}, etag, NULL);
    res->conditional = r == -EEXIST;
    return s3_delete(w->client, key, NULL, e);
}

static int open_places(struct s3_work *w, const struct job *j, struct err *e)
{
    if (mkdirat(j->dir, TMP_DIR, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot make " TMP_DIR);
    if (j->here != S3_HERE_ALL && faccessat(j->dir, S3_LATER_FILE, F_OK, 0) < 0 &&
        file_replace_at(j->dir, S3_LATER_FILE, "", 0, 0600, false) < 0)
        return err_sys(e, errno, "cannot write " S3_LATER_FILE);
    w->data = dir_open_at(j->dir, "data");
    w->tmp = dir_open_at(j->dir, TMP_DIR);
    return w->data < 0 || w->tmp < 0 ? err_sys(e, ENOENT, "cannot open the workspace's directories")
                                     : 0;
}

static int do_job(struct job *j, struct result *res, struct err *e)
{
    struct s3_work w = {.config = j->config,
                        .dir = j->dir,
                        .data = -1,
                        .tmp = -1,
                        .later = j->here != S3_HERE_ALL,
                        .emptied = j->emptied,
                        .base_lock = PTHREAD_RWLOCK_INITIALIZER,
                        .cache = j->cache,
                        .warn = send_warning,
                        .warn_ctx = &j->out,
                        .watch = {j->may_go_on ? send_goes_on : NULL, &j->out},
                        .rival = "here and in the bucket",
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    s3_work_stamp(&w);
    int r = s3_client_new(&w.client, j->config, j->keys, &w.cancel, e);
    if (r < 0)
        return r;
    if (j->probe)
        return probe(&w, res, e);
    if (j->fetch >= 0)
        return s3_fetch_serve(&w, j->fetch, FETCH_IDLE_MS, e);
    r = open_places(&w, j, e);
    if (r == 0)
        r = j->look ? look(&w, j, e) : all_passes(&w, j, e);
    res->counts = w.counts;
    if (j->out.warnings > WARNINGS_MAX)
        (void)send_note(j->out.fd, NOTE_WARN, "there were more warnings", 24);
    return r;
}

/* --- the process ----------------------------------------------------------------------------- */

/* Without it, everything is fetched. */
static int open_cache(const struct store *s)
{
    AUTO_CLOSE int all = store_cache_open(s, NULL);
    if (all < 0 || (mkdirat(all, CACHE_DIR, 0700) < 0 && errno != EEXIST))
        return -1;
    return MAX(dir_open_at(all, CACHE_DIR), -1);
}

static _Noreturn void child(struct job *j, pid_t parent)
{
    struct result res = {0};
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
#if !defined(__SANITIZE_ADDRESS__)
        {RLIMIT_DATA, MEMORY_MAX},
#endif
    };
    int keep[] = {j->dir, j->out.fd, j->fetch, j->cache};
    (void)umask(0); /* modes come from the bucket */
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(1);
    (void)prctl(PR_SET_DUMPABLE, 0); /* the keys are in its memory */
    res.r = jail_set_limits(limits, ARRAY_LEN(limits), &res.e);
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
    const struct s3_reach reach = {j->dir, j->cache, j->config->ca_certs, j->config->endpoint};
    if (res.r == 0)
        res.r = s3_confine(&reach, &res.e);
    if (res.r == 0)
        res.r = do_job(j, &res, &res.e);
    (void)send_note(j->out.fd, NOTE_RESULT, &res, sizeof(res));
    _exit(0);
}

static void pass_on(const struct s3_sync *how, enum note kind, char *text)
{
    utf8_defuse(text);
    if (kind == NOTE_WARN && how->warn)
        how->warn(text);
    if (kind == NOTE_GOES_ON && how->goes_on)
        how->goes_on(how->ctx);
    char *space = strchr(text, ' ');
    if (kind != NOTE_DIFFERS || !how->differs || !space)
        return;
    *space = '\0';
    how->differs(how->ctx, text, space + 1);
}

static int read_exactly(int fd, void *p, size_t n)
{
    return read_up_to(fd, p, n) == (ssize_t)n ? 0 : -EPIPE;
}

/* False: the requester of the sync is gone. */
static bool wait_for_note(int fd, int until)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = until ? until : -1}};
    while (poll(p, ARRAY_LEN(p), -1) < 0 && errno == EINTR)
        ;
    return p[0].revents || !p[1].revents;
}

/* Its messages are not trusted, since it parses untrusted data. */
static int hear(int fd, const struct s3_sync *how, struct result *ret)
{
    for (;;) {
        struct note_head h;
        char text[NOTE_MAX + 1];
        if (!wait_for_note(fd, how->until))
            return -ECANCELED;
        if (read_exactly(fd, &h, sizeof(h)) < 0)
            return -EPIPE;
        if (h.kind == NOTE_RESULT && h.len == sizeof(*ret))
            return read_exactly(fd, ret, sizeof(*ret));
        if (h.kind >= NOTE_RESULT || h.len > NOTE_MAX || read_exactly(fd, text, h.len) < 0)
            return -EPIPE;
        text[h.len] = '\0';
        pass_on(how, h.kind, text);
    }
}

static int take_error(const struct result *res, struct err *e)
{
    if (e) {
        *e = res->e;
        e->msg[sizeof(e->msg) - 1] = '\0';
        utf8_defuse(e->msg);
        e->hints = MIN(MAX(e->hints, 0), ERR_HINTS_MAX);
        for (int i = 0; i < e->hints; i++) {
            e->hint[i][sizeof(e->hint[i]) - 1] = '\0';
            utf8_defuse(e->hint[i]);
        }
    }
    return res->r < 0 && res->r > -4096 ? res->r : -EIO;
}

static int run_job(struct job *j, struct s3_sync *how, struct result *res, struct err *e)
{
    int ends[2];
    const struct curl_api *curl;
    int r = curl_load(&curl, e); /* here, since the child could not */
    if (r < 0)
        return r;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot make a pipe");
    j->out.fd = ends[1];
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        child(j, parent);
    (void)close(ends[1]);
    AUTO_CLOSE int in = ends[0];
    if (pid < 0)
        return err_sys(e, errno, "cannot start a process");
    r = hear(in, how, res);
    if (r < 0)
        (void)kill(pid, SIGKILL);
    (void)process_wait(pid);
    if (r == -ECANCELED)
        return err_set(e, ECANCELED, "canceled: the requester has gone");
    if (r < 0)
        return err_set(e, EIO, "the process that talks to the bucket died");
    return res->r ? take_error(res, e) : 0;
}

int s3_workspace_sync(const struct store *s, const char *name, struct s3_sync *how, bool *is_remote,
                      struct err *e)
{
    AUTO_S3_CONFIG struct s3_config config = {0};
    AUTO_S3_CREDENTIALS struct s3_credentials keys = {0};
    AUTO_NAME_LOCK struct name_lock lock = NAME_LOCK_NONE;
    struct result res = {0};
    AUTO_CLOSE int dir = workspace_dir_open(s, name, e);
    if (dir < 0)
        return dir;
    int r = s3_config_load(dir, &config, e);
    *is_remote = r != -ENOENT;
    if (r == -ENOENT)
        return 0;
    AUTO_CLOSE int cache = open_cache(s);
    if (r == 0)
        r = s3_credentials_find(s, config.credentials, &keys, e);
    if (r == 0)
        r = name_lock_take_kind(s, "workspace-s3", name, &lock, e);
    if (how->max)
        config.max = how->max;
    struct job j = {.config = &config,
                    .keys = &keys,
                    .dir = dir,
                    .look = how->look,
                    .emptied = how->emptied,
                    .may_go_on = how->goes_on,
                    .here = how->here,
                    .cache = cache,
                    .fetch = -1};
    if (r == 0)
        r = run_job(&j, how, &res, e);
    how->counts = res.counts;
    return r < 0 ? err_wrap(e, r, "cannot sync workspace '%s'", name) : 0;
}

int s3_workspace_probe(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                       struct err *e)
{
    AUTO_S3_CREDENTIALS struct s3_credentials keys = {0};
    struct result res = {0};
    AUTO_CLOSE int dir = workspace_dir_open(s, name, e);
    int r = dir < 0 ? dir : s3_credentials_find(s, c->credentials, &keys, e);
    struct job j = {
        .config = c, .keys = &keys, .dir = dir, .probe = true, .cache = -1, .fetch = -1};
    if (r == 0)
        r = run_job(&j, &(struct s3_sync){.warn = warn}, &res, e);
    c->conditional = res.conditional;
    return r;
}

int s3_workspace_fetch(const struct store *s, const char *name, int sock, warn_fn warn,
                       struct err *e)
{
    AUTO_S3_CONFIG struct s3_config config = {0};
    AUTO_S3_CREDENTIALS struct s3_credentials keys = {0};
    struct result res = {0};
    struct s3_sync how = {.warn = warn};
    AUTO_CLOSE int dir = workspace_dir_open(s, name, e), cache = open_cache(s);
    (void)later_know_boot(); /* the process has no /proc */
    int r = dir < 0 ? dir : s3_config_load(dir, &config, e);
    if (r == 0)
        r = s3_credentials_find(s, config.credentials, &keys, e);
    struct job j = {.config = &config, .keys = &keys, .dir = dir, .cache = cache, .fetch = sock};
    return r < 0 ? r : run_job(&j, &how, &res, e);
}

bool s3_workspace_lacks(int dirfd, enum s3_here here)
{
    struct stat st;
    return fstatat(dirfd, S3_LATER_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           (here == S3_HERE_ALL || (here == S3_HERE_NAMES && st.st_size > 0));
}

bool s3_workspace_is_filled(int dirfd)
{
    return faccessat(dirfd, S3_BASE_FILE, F_OK, 0) == 0;
}
