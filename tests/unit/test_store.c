/* The store: what readers make of what a crash, or a hostile monitor, left in a directory. */
#include "store/impl.h"
#include "store/volume.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

struct fix {
    char dir[32];
    struct store s;
};

static int setup(void **state)
{
    struct fix *x = calloc(1, sizeof(*x));
    struct err e = {0};
    (void)snprintf(x->dir, sizeof(x->dir), "/tmp/store-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    assert_int_equal(setenv("MSB_HOME", x->dir, 1), 0);
    assert_int_equal(store_open(&x->s, &e), 0);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fix *x = *state;
    store_close(&x->s);
    (void)remove_tree_at(AT_FDCWD, x->dir);
    free(x);
    return 0;
}

/* --- making sandboxes ------------------------------------------------------------------------ */

static void put(int dirfd, const char *name, const char *text)
{
    assert_int_equal(file_replace_at(dirfd, name, text, strlen(text), 0600, false), 0);
}

/* A whole sandbox; returns its directory. state NULL: none. */
static int make(struct fix *x, const char *name, const char *state, bool ephemeral)
{
    int dirfd = -1;
    char spec[256];
    assert_int_equal(sandbox_dir_make(&x->s, name, &dirfd, NULL), 0);
    (void)snprintf(spec, sizeof(spec),
                   "{\"name\":\"%s\",\"image\":{\"Oci\":{\"reference\":\"msb/base\"}},"
                   "\"lifecycle\":{\"ephemeral\":%s}}",
                   name, ephemeral ? "true" : "false");
    put(dirfd, "spec.json", spec);
    AUTO_CLOSE int run = openat(dirfd, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state)
        put(run, "state.json", state);
    return dirfd;
}

static bool exists(const struct fix *x, const char *name)
{
    return faccessat(x->s.sandboxes_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* What sandbox_open() says: 0 and the status, or -errno. */
static int look(struct fix *x, const char *name, enum status *status)
{
    struct sandbox sb;
    struct err e = {0};
    int r = sandbox_open(&x->s, name, &sb, &e);
    if (r < 0)
        return r;
    if (status)
        *status = sb.state.status;
    sandbox_close(&sb);
    return 0;
}

static void expect_status(struct fix *x, const char *name, enum status want)
{
    enum status st = STATUS_CREATING;
    assert_int_equal(look(x, name, &st), 0);
    assert_int_equal(st, want);
}

static size_t count(struct fix *x)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    assert_int_equal(store_list(&x->s, &list, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(list[i].spec.image, "msb/base");
    sandbox_list_free(list, n);
    return n;
}

/* A process that holds the record lock, as a monitor does. */
static pid_t hold_lock(int dirfd)
{
    int p[2];
    char c;
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = openat(dirfd, "lock", O_RDWR);
        if (monitor_lock_take(fd) < 0)
            _exit(1);
        (void)!write(p[1], "", 1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(p[0], &c, 1), 1);
    (void)close(p[0]);
    (void)close(p[1]);
    return pid;
}

static void end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* --- the home -------------------------------------------------------------------------------- */

static void test_home_is_private(void **state)
{
    struct fix *x = *state;
    struct store s;
    struct stat st;
    assert_int_equal(fstatat(x->s.home_fd, "sandboxes", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(chmod(x->dir, 0770), 0);
    assert_int_equal(store_open(&s, NULL), -EPERM);
    store_close(&s);
    assert_int_equal(chmod(x->dir, 0700), 0);
}

/* --- leftovers (invariant 4) ----------------------------------------------------------------- */

static void test_directory_without_state_is_a_leftover(void **state)
{
    struct fix *x = *state;
    (void)close(make(x, "a", NULL, false));
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_false(exists(x, "a"));
}

static void test_creating_is_a_leftover(void **state)
{
    struct fix *x = *state;
    (void)close(make(x, "a", "{\"status\":\"Creating\"}", false));
    assert_int_equal(count(x), 0);
    assert_false(exists(x, "a"));
}

static void test_directory_without_spec_is_a_leftover(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", "{\"status\":\"Stopped\"}", false);
    assert_int_equal(unlinkat(dirfd, "spec.json", 0), 0);
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_false(exists(x, "a"));
}

static void test_no_leftover_while_the_name_is_locked(void **state)
{
    struct fix *x = *state;
    struct name_lock l = NAME_LOCK_NONE;
    (void)close(make(x, "a", NULL, false));
    assert_int_equal(name_lock_take(&x->s, "a", &l, NULL), 0);
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_int_equal(count(x), 0);
    assert_true(exists(x, "a"));
    name_lock_drop(&l);
    assert_int_equal(count(x), 0);
    assert_false(exists(x, "a"));
}

static void test_no_leftover_while_a_monitor_lives(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", "{\"status\":\"Creating\"}", false);
    pid_t pid = hold_lock(dirfd);
    assert_int_equal(monitor_lock_holder(dirfd), pid);
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_true(exists(x, "a"));
    end(pid);
    assert_int_equal(monitor_lock_holder(dirfd), 0);
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_false(exists(x, "a"));
}

static void test_stale_lock_files_are_swept(void **state)
{
    struct fix *x = *state;
    struct name_lock l = NAME_LOCK_NONE;
    (void)close(make(x, "a", "{\"status\":\"Stopped\"}", false));
    static const char *const names[] = {"a", "killed"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(name_lock_take(&x->s, names[i], &l, NULL), 0);
        name_lock_drop(&l);
    }
    put(x->s.locks_fd, "volume:killed", "");
    assert_int_equal(count(x), 1);
    assert_int_equal(faccessat(x->s.locks_fd, "a", F_OK, 0), 0);
    assert_int_equal(faccessat(x->s.locks_fd, "killed", F_OK, 0), -1);
    assert_int_equal(faccessat(x->s.locks_fd, "volume:killed", F_OK, 0), -1);
}

/* --- states (invariant 5) -------------------------------------------------------------------- */

static void test_dead_monitor_means_crashed(void **state)
{
    struct fix *x = *state;
    static const char *const states[] = {"Starting", "Running", "Draining"};
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        char name[16], text[64];
        (void)snprintf(name, sizeof(name), "box%zu", i);
        (void)snprintf(text, sizeof(text), "{\"status\":\"%s\"}", states[i]);
        AUTO_CLOSE int dirfd = make(x, name, text, false);
        expect_status(x, name, STATUS_CRASHED);
        pid_t pid = hold_lock(dirfd);
        enum status st = STATUS_CREATING;
        assert_int_equal(look(x, name, &st), 0);
        assert_string_equal(status_name(st), states[i]);
        end(pid);
    }
}

static void test_dead_ephemeral_is_gone(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", "{\"status\":\"Running\"}", true);
    pid_t pid = hold_lock(dirfd);
    expect_status(x, "a", STATUS_RUNNING);
    end(pid);
    assert_int_equal(look(x, "a", NULL), -ENOENT);
    assert_false(exists(x, "a"));
}

/* Whatever a hostile monitor makes of its state, its disk is kept and nothing hangs. */
static void test_damaged_state(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", "{\"status\":\"Nonsense\"}", false);
    expect_status(x, "a", STATUS_CRASHED);
    AUTO_CLOSE int run = openat(dirfd, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    static const char *const texts[] = {"", "{", "[]", "{\"status\":7}", "{\"status\":\"Running\""};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        put(run, "state.json", texts[i]);
        expect_status(x, "a", STATUS_CRASHED);
    }
    char big[8192];
    memset(big, ' ', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    put(run, "state.json", big);
    expect_status(x, "a", STATUS_CRASHED);
    assert_int_equal(unlinkat(run, "state.json", 0), 0);
    assert_int_equal(symlinkat("/etc/passwd", run, "state.json"), 0);
    expect_status(x, "a", STATUS_CRASHED);
    assert_int_equal(unlinkat(run, "state.json", 0), 0);
    assert_int_equal(mkfifoat(run, "state.json", 0600), 0);
    expect_status(x, "a", STATUS_CRASHED);
    assert_int_equal(count(x), 1);
    assert_true(exists(x, "a"));
}

static void test_long_texts_in_a_state_are_cut(void **state)
{
    struct fix *x = *state;
    char text[2048];
    (void)snprintf(text, sizeof(text),
                   "{\"status\":\"Stopped\",\"engine\":\"%0*d\",\"reason\":\"%0*d\","
                   "\"started_ns\":-5}",
                   400, 0, 1000, 0);
    (void)close(make(x, "a", text, false));
    struct sandbox sb;
    assert_int_equal(sandbox_open(&x->s, "a", &sb, NULL), 0);
    assert_int_equal(strlen(sb.state.engine), sizeof(sb.state.engine) - 1);
    assert_int_equal(strlen(sb.state.reason), sizeof(sb.state.reason) - 1);
    assert_int_equal(sb.state.started_ns, 0);
    sandbox_close(&sb);
}

static void test_damaged_spec_is_kept(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", "{\"status\":\"Stopped\"}", false);
    put(dirfd, "spec.json", "{");
    assert_int_equal(look(x, "a", NULL), -EINVAL);
    assert_true(exists(x, "a"));
}

static void test_states_are_written_and_read(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", NULL, false);
    AUTO_CLOSE int run = openat(dirfd, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct sandbox_state st = {.status = STATUS_STOPPED, .started_ns = 5, .updated_ns = 7}, back;
    (void)snprintf(st.reason, sizeof(st.reason), "said \"no\"");
    assert_int_equal(state_save(run, &st), 0);
    assert_int_equal(state_load_at(run, "state.json", &back), 0);
    assert_int_equal(back.status, STATUS_STOPPED);
    assert_int_equal(back.updated_ns, 7);
    assert_string_equal(back.reason, st.reason);
    (void)snprintf(st.reason, sizeof(st.reason), "\xff\xfe"); /* not UTF-8 */
    assert_int_equal(state_save(run, &st), 0);
    assert_int_equal(state_load_at(run, "state.json", &back), 0);
    assert_int_equal(back.status, STATUS_STOPPED);
}

/* --- when it is our own trouble -------------------------------------------------------------- */

/* A reader that runs out of descriptors at any point learns nothing about the sandbox: it must not
 * take it for a leftover. */
static void test_no_descriptors_no_judgement(void **state)
{
    struct fix *x = *state;
    (void)close(make(x, "a", "{\"status\":\"Stopped\"}", false));
    (void)close(make(x, "b", "{\"status\":\"Running\"}", true));
    AUTO_CLOSE int b = openat(x->s.sandboxes_fd, "b", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t pid = hold_lock(b);
    struct rlimit was, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = dup(0);
    (void)close(next);
    for (int spare = 0; spare < 8; spare++) {
        few = was;
        few.rlim_cur = (rlim_t)next + (rlim_t)spare;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int a_says = look(x, "a", NULL), b_says = look(x, "b", NULL);
        struct sandbox *list = NULL;
        size_t n = 0;
        if (store_list(&x->s, &list, &n, NULL) == 0)
            sandbox_list_free(list, n);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
        assert_true(exists(x, "a"));
        assert_true(exists(x, "b"));
        assert_int_not_equal(a_says, -ENOENT);
        assert_int_not_equal(b_says, -ENOENT);
    }
    end(pid);
}

static void test_list_needs_few_descriptors(void **state)
{
    struct fix *x = *state;
    struct rlimit was, few;
    for (int i = 0; i < 100; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "box%d", i);
        (void)close(make(x, name, "{\"status\":\"Stopped\"}", false));
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    few = was;
    few.rlim_cur = 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    size_t n = count(x);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(n, 100);
}

/* --- what is not a sandbox -------------------------------------------------------------------- */

static void test_strangers_are_left_alone(void **state)
{
    struct fix *x = *state;
    put(x->s.sandboxes_fd, "file", "text");
    assert_int_equal(symlinkat("/etc", x->s.sandboxes_fd, "link"), 0);
    assert_int_equal(mkdirat(x->s.sandboxes_fd, ".hidden", 0700), 0);
    assert_int_equal(count(x), 0);
    assert_int_equal(look(x, "file", NULL), -ENOENT);
    assert_int_equal(look(x, "link", NULL), -ENOENT);
    assert_true(exists(x, "file"));
    assert_true(exists(x, "link"));
    assert_true(exists(x, ".hidden"));
}

static void test_names_are_checked(void **state)
{
    struct fix *x = *state;
    struct name_lock l = NAME_LOCK_NONE;
    static const char *const bad[] = {"", ".", "..", "a/b", "../x", "-x", ".x", "a\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_true(look(x, bad[i], NULL) < 0);
        assert_true(name_lock_take(&x->s, bad[i], &l, NULL) < 0);
    }
}

/* --- names ----------------------------------------------------------------------------------- */

static void test_name_lock_of_a_forgotten_name(void **state)
{
    struct fix *x = *state;
    struct name_lock l = NAME_LOCK_NONE;
    assert_int_equal(name_lock_take(&x->s, "a", &l, NULL), 0);
    pid_t pid = fork();
    if (pid == 0) { /* waits on the lock file that is then unlinked */
        struct name_lock mine = NAME_LOCK_NONE;
        (void)close(l.fd); /* a copy of it would hold the lock */
        if (name_lock_take(&x->s, "a", &mine, NULL) < 0)
            _exit(1);
        _exit(faccessat(x->s.locks_fd, "a", F_OK, 0) == 0 ? 0 : 2);
    }
    (void)usleep(20000);
    l.forget = true;
    name_lock_drop(&l);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A sandbox called volume.a, which is being created with volume a: two locks, not one twice. */
static void test_volume_lock_is_not_a_sandbox_lock(void **state)
{
    struct fix *x = *state;
    struct name_lock l = NAME_LOCK_NONE;
    struct volume v, *list = NULL;
    size_t n = 0;
    struct err e = {0};
    assert_int_equal(name_lock_take(&x->s, "volume.a", &l, NULL), 0);
    (void)alarm(10);
    assert_int_equal(volume_create(&x->s, "b", VOLUME_DIR, 0, &e), 0);
    assert_int_equal(volume_create(&x->s, "a", VOLUME_DIR, 5, &e), 0);
    (void)alarm(0);
    assert_int_equal(volume_create(&x->s, "a", VOLUME_DIR, 0, &e), -EEXIST);
    assert_int_equal(named_open(&x->s, &named_volumes, "a", &v, &e), 0);
    assert_int_equal(v.quota, 5);
    assert_int_equal(volume_list(&x->s, &list, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].name, "a");
    assert_string_equal(list[1].name, "b");
    free(list);
    assert_int_equal(volume_remove(&x->s, "a", &e), 0);
    assert_int_equal(named_open(&x->s, &named_volumes, "a", &v, &e), -ENOENT);
    assert_string_equal(e.msg, "volume not found: a");
    name_lock_drop(&l);
    assert_int_equal(faccessat(x->s.locks_fd, "volume:a", F_OK, 0), -1);
}

static void test_name_is_taken_once(void **state)
{
    struct fix *x = *state;
    int dirfd = make(x, "a", NULL, false), again = -1;
    assert_int_equal(sandbox_dir_make(&x->s, "a", &again, NULL), -EEXIST);
    (void)close(dirfd);
    assert_int_equal(sandbox_dir_remove(&x->s, "a", NULL), 0);
    assert_false(exists(x, "a"));
    assert_int_equal(sandbox_dir_remove(&x->s, "a", NULL), 0);
}

/* --- agent.sock ------------------------------------------------------------------------------ */

static void test_connects_to_a_socket_only(void **state)
{
    struct fix *x = *state;
    AUTO_CLOSE int dirfd = make(x, "a", NULL, false);
    AUTO_CLOSE int run = openat(dirfd, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(sandbox_connect(dirfd), -ENOENT);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/other.sock", x->dir);
    AUTO_CLOSE int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(other, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(other, 1), 0);
    assert_int_equal(symlinkat(a.sun_path, run, "agent.sock"), 0);
    assert_true(sandbox_connect(dirfd) < 0);
    assert_int_equal(unlinkat(run, "agent.sock", 0), 0);
    put(run, "agent.sock", "");
    assert_int_equal(sandbox_connect(dirfd), -ECONNREFUSED);
    assert_int_equal(renameat(AT_FDCWD, a.sun_path, run, "agent.sock"), 0);
    AUTO_CLOSE int fd = sandbox_connect(dirfd);
    assert_true(fd >= 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_home_is_private),
        TEST(test_directory_without_state_is_a_leftover),
        TEST(test_creating_is_a_leftover),
        TEST(test_directory_without_spec_is_a_leftover),
        TEST(test_no_leftover_while_the_name_is_locked),
        TEST(test_no_leftover_while_a_monitor_lives),
        TEST(test_stale_lock_files_are_swept),
        TEST(test_dead_monitor_means_crashed),
        TEST(test_dead_ephemeral_is_gone),
        TEST(test_damaged_state),
        TEST(test_long_texts_in_a_state_are_cut),
        TEST(test_damaged_spec_is_kept),
        TEST(test_states_are_written_and_read),
        TEST(test_no_descriptors_no_judgement),
        TEST(test_list_needs_few_descriptors),
        TEST(test_strangers_are_left_alone),
        TEST(test_names_are_checked),
        TEST(test_name_lock_of_a_forgotten_name),
        TEST(test_volume_lock_is_not_a_sandbox_lock),
        TEST(test_name_is_taken_once),
        TEST(test_connects_to_a_socket_only),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
