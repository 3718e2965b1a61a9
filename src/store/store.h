/* Where sandboxes live: $MSB_HOME (default ~/.microsandbox).
 *
 *     sandboxes/NAME/spec.json    the spec
 *                    upper.ext4   the writable layer
 *                    lock         record lock held by the monitor for its whole life
 *                    run/         all that the monitor sees of this: its jail's only directory
 *                        state.json   what the sandbox is doing
 *                        agent.sock   where clients connect
 *                        commands.json  background commands: background.h
 *                        logs/        exec.log system.log (+ .1 .2)
 *     locks/NAME                  flock held by a process that creates, starts, stops or removes
 *                                 sandbox NAME
 *     locks/KIND:NAME             the same for a volume or a workspace
 *     cache/                      images and disk templates
 *
 * Invariants
 *   1. A name is claimed by mkdir of its directory, under its flock: of two creators, one wins.
 *   2. A sandbox is alive if and only if a process holds the record lock on its `lock` file. The
 *      kernel drops that lock however the monitor dies, and tells us the holder's pid, so no pid
 *      is ever guessed.
 *   3. spec.json and state.json are replaced by rename: a reader sees the old or the new one.
 *   4. A directory without a spec or a state, or whose state is `creating`, and whose flock is
 *      free, is left over from an interrupted creation or removal: readers delete it. One with a
 *      state that cannot be read is not: that sandbox has crashed.
 *   5. A state that says running without a live monitor means the monitor was killed: readers
 *      see `crashed` (or nothing, for an ephemeral sandbox, which they delete).
 *   6. The monitor may be compromised by its guest, and can write to run/: files in there are read
 *      as hostile input, files outside it are not. When root starts a sandbox the monitor runs as
 *      another user, who owns run/ and nothing else.
 */
#pragma once

#include "spec/spec.h"
#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct store {
    char *home;  /* absolute path of $MSB_HOME */
    int home_fd; /* O_RDONLY|O_DIRECTORY */
    int sandboxes_fd;
    int locks_fd;
    const char *policy_file; /* --policy: one more that applies (policy/rulebook.h); not owned */
};

enum status {
    STATUS_CREATING, /* never shown: no acknowledged sandbox has it */
    STATUS_STARTING,
    STATUS_RUNNING,
    STATUS_DRAINING,
    STATUS_STOPPED,
    STATUS_CRASHED,
};
const char *status_name(enum status s);  /* "Running": JSON */
const char *status_lower(enum status s); /* "running": tables */

/* What a run used, as counted by its monitor when it ended. */
struct sandbox_used {
    uint64_t cpu_ns, received, sent, read, written; /* in bytes, except for the first */
};

struct sandbox_state {
    enum status status;
    char reason[256];         /* why it stopped or crashed; "" for an ordinary stop */
    char engine[16];          /* that runs it: "uml", "uml-ptrace"; "" before the first start */
    char jail[16];            /* that it runs in: "full", "reduced"; the same */
    uint64_t started_ns;      /* CLOCK_REALTIME of the last start, 0 = never */
    uint64_t updated_ns;      /* of the last transition */
    uint64_t oom_kills;       /* processes that its guest killed for lack of memory, in this run */
    struct sandbox_used used; /* zero while it runs */
    pid_t pid;                /* the live monitor, according to the lock; 0 = none. Not stored */
};

/* One sandbox, opened: directory, spec and (repaired) state. */
struct sandbox {
    int dirfd; /* -1 in a list */
    struct sandbox_spec spec;
    struct sandbox_state state;
};

/* -ENOTSUP: the environment asks for another microsandbox backend. What was meant to run there is
 * not run here instead. */
int store_check_backend(struct err *e);
int store_open(struct store *s, struct err *e); /* creates what is missing, mode 0700 */
void store_close(struct store *s);              /* may be called twice */
#define AUTO_STORE CLEANUP(store_close)
#define STORE_NONE                                        \
    {                                                     \
        .home_fd = -1, .sandboxes_fd = -1, .locks_fd = -1 \
    }

/* Opens a directory in it, created if missing. cache/ may be a symbolic link. */
int store_subdir_open(const struct store *s, const char *name, struct err *e);
int store_cache_open(const struct store *s, struct err *e);

/* "sandbox not found: NAME" (ENOENT) if it does not exist, or was a leftover. */
int sandbox_open(const struct store *s, const char *name, struct sandbox *ret, struct err *e);
/* A shortage in this process says nothing about the sandbox. */
bool store_is_passing(int r);
void sandbox_close(struct sandbox *sb); /* may be called twice */
#define AUTO_SANDBOX CLEANUP(sandbox_close)
#define SANDBOX_NONE \
    {                \
        .dirfd = -1  \
    }
/* Removes the sandbox if it is a leftover; waits for the name's lock. */
void sandbox_sweep(const struct store *s, const char *name);
/* All sandboxes, in no particular order; removes leftovers on the way. Unreadable ones are skipped
 * with a warning (diag.h). */
int store_list(const struct store *s, struct sandbox **ret, size_t *n, struct err *e);
/* To find out what no sandbox uses: fails (EBUSY) if one cannot be read, since it could use
 * anything. */
int store_list_whole(const struct store *s, struct sandbox **ret, size_t *n, struct err *e);
void sandbox_list_free(struct sandbox *list, size_t n);

/* The lock of a sandbox's name. Taking it waits while another process holds it (for example, during
 * a stop). */
enum { LOCK_NAME_MAX = SPEC_NAME_MAX + 32 }; /* a kind and a colon may precede the name */
struct name_lock {
    const struct store *store;
    int fd;      /* -1: not held */
    bool forget; /* the name is gone: dropping the lock removes its file */
    char name[LOCK_NAME_MAX + 1];
};
#define AUTO_NAME_LOCK CLEANUP(name_lock_drop)
#define NAME_LOCK_NONE \
    {                  \
        .fd = -1       \
    }
int name_lock_take(const struct store *s, const char *name, struct name_lock *ret, struct err *e);
/* Locks the name, which has been checked, of another kind of thing. It cannot clash with a
 * sandbox's lock: no sandbox's name has a colon. */
int name_lock_take_kind(const struct store *s, const char *kind, const char *name,
                        struct name_lock *ret, struct err *e);
void name_lock_drop(struct name_lock *l); /* may be called twice */

/* Creates directory and files; the caller holds the name's flock. */
int sandbox_dir_make(const struct store *s, const char *name, int *ret_dirfd, struct err *e);
int sandbox_dir_remove(const struct store *s, const char *name, struct err *e);

/* Removes temporary files of processes that were killed while they wrote the spec. */
void spec_sweep(int dirfd);
int spec_save(int dirfd, const struct sandbox_spec *spec, bool sync, struct err *e);
/* What a running sandbox was started with, if spec.json has since changed (active.json). Its next
 * start removes it. load: whether there is one; *ret is an initialized spec, to be freed in any
 * case. */
int active_save(int dirfd, const struct sandbox_spec *spec, struct err *e);
bool active_load(const struct store *s, const struct sandbox *sb, struct sandbox_spec *ret);
void active_forget(int dirfd);
/* run_fd: the sandbox's run/. */
int state_save(int run_fd, const struct sandbox_state *st);

/* The monitor's lock. take: in the monitor, on the descriptor of `lock`, which it never closes.
 * holder: pid of the live monitor as seen from here, 0 = none, -errno if that cannot be
 * determined. */
int monitor_lock_take(int lock_fd);
pid_t monitor_lock_holder(int dirfd);

/* A connection to a live sandbox's agent.sock; -ECONNREFUSED or -ENOENT if there is none. */
int sandbox_connect(int dirfd);
/* The directory with the log files, O_DIRECTORY|O_CLOEXEC, or -errno. */
int sandbox_logs_open(int dirfd);
