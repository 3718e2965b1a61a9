/* Where records of the audit log are sent: real sockets at the real paths, in a mount namespace of our
 * own, and a real program. A sink that is not there costs a warning and nothing else. */
#include "audit_dir.h"

#include "store/audit_chain.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { WAIT_MS = 20000 };

static bool alone; /* in a mount namespace */

/* /dev with nothing but null, /run with nothing. */
static bool enter(void)
{
    if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return false;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0 || mkdir("/run/dev", 0755) < 0)
        return false;
    AUTO_CLOSE int null = open("/run/dev/null", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    return null >= 0 && mount("/dev/null", "/run/dev/null", NULL, MS_BIND, NULL) == 0 &&
           mount("/run/dev", "/dev", NULL, MS_BIND | MS_REC, NULL) == 0 &&
           mkdir("/run/systemd", 0755) == 0 && mkdir("/run/systemd/journal", 0755) == 0;
}

static int listen_on(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    (void)unlink(path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void receive(int fd, char *to, size_t size)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    ssize_t n = recv(fd, to, size - 1, 0);
    assert_true(n > 0);
    to[n] = '\0';
}

static void read_log(char *to, size_t size)
{
    AUTO_FREE char *text = NULL;
    assert_int_equal(file_read_at(store.home_fd, AUDIT_NAME, 1 << 20, &text, NULL), 0);
    (void)snprintf(to, size, "%s", text);
    to[strcspn(to, "\n")] = '\0';
}

static void test_sockets(void **state)
{
    char got[4096], line[4096];
    if (!alone)
        skip();
    AUTO_CLOSE int log = listen_on("/dev/log");
    AUTO_CLOSE int journal = listen_on("/run/systemd/journal/socket");
    audit_configure(&(struct audit_settings){.level = -1, .syslog = true, .journald = true});
    audit(&store, "start", "web", json_pack("{s:s}", "image", "two\nlines"));
    assert_int_equal(complaints, 0);
    read_log(line, sizeof(line));
    receive(log, got, sizeof(got));
    assert_memory_equal(got, "<85>msb[", 8);
    assert_string_equal(strchr(got, '{'), line);
    receive(journal, got, sizeof(got));
    assert_memory_equal(got, "MESSAGE=start web\nPRIORITY=5\nSYSLOG_IDENTIFIER=msb\n", 51);
    assert_non_null(strstr(got, "\nMSB_EVENT=start\nMSB_SANDBOX=web\nMSB_RECORD={\"seq\":1,"));
    /* Nothing listens any more: one warning, and the record is in the file. */
    close_fd(&log);
    audit(&store, "stop", "web", NULL);
    audit(&store, "stop", "web", NULL);
    assert_int_equal(complaints, 1);
    assert_non_null(strstr(complaint, "cannot send audit records to syslog"));
    receive(journal, got, sizeof(got));
    receive(journal, got, sizeof(got));
    assert_non_null(strstr(got, "\"seq\":3,"));
}

static void test_command(void **state)
{
    static char path[128], script[1024], sh[] = "/bin/sh", c[] = "-c", got[8192];
    char *const argv[] = {sh, c, script, NULL};
    (void)snprintf(path, sizeof(path), "%s/records", home);
    (void)snprintf(script, sizeof(script),
                   "head -n 2 > %s.new; env >> %s.new; mv %s.new %s; exit 3", path, path, path,
                   path);
    (void)setenv("TOKEN", "s3cr3t", 1);
    audit_configure(&(struct audit_settings){.level = -1, .command = argv});
    audit(&store, "start", "web", NULL);
    audit(&store, "stop", "web", NULL);
    for (unsigned i = 0; i < 500 && complaints == 0; i++) { /* until it is seen to have ended */
        audit(&store, "touch", "web", NULL);
        (void)usleep(10000);
    }
    assert_int_equal(complaints, 1);
    assert_non_null(strstr(complaint, "cannot send audit records to /bin/sh: Broken pipe"));
    AUTO_FREE char *text = NULL;
    assert_int_equal(file_read_at(AT_FDCWD, path, sizeof(got), &text, NULL), 0);
    assert_memory_equal(text, "{\"seq\":1,", 9);
    assert_non_null(strstr(text, "\n{\"seq\":2,"));
    assert_null(strstr(text, "s3cr3t"));
}

static void test_no_such_command(void **state)
{
    static char none[] = "/nonexistent/program";
    char *const argv[] = {none, NULL};
    char got[4096];
    audit_configure(&(struct audit_settings){.level = -1, .command = argv});
    audit(&store, "start", "web", NULL);
    read_log(got, sizeof(got));
    assert_memory_equal(got, "{\"seq\":1,", 9);
}

/* A policy can ask for more than the environment, not for less. */
static void test_levels(void **state)
{
    assert_int_equal(audit_level(), AUDIT_DENIED);
    audit_configure(&(struct audit_settings){.level = AUDIT_ALL});
    (void)setenv("MSB_AUDIT", "off", 1);
    assert_int_equal(audit_level(), AUDIT_ALL);
    audit_configure(&(struct audit_settings){.level = AUDIT_OFF});
    assert_int_equal(audit_level(), AUDIT_OFF);
    (void)setenv("MSB_AUDIT", "all", 1);
    assert_int_equal(audit_level(), AUDIT_ALL);
    (void)unsetenv("MSB_AUDIT");
}

static unsigned looked;

static void find_settings(const struct store *s)
{
    assert_ptr_equal(s, &store);
    looked++;
    audit_configure(&(struct audit_settings){.level = AUDIT_OFF});
}

/* Looked for once, before the first record, which they are about already. */
static void test_settings_are_looked_for(void **state)
{
    struct stat st;
    audit_configure_with(find_settings);
    assert_int_equal(looked, 0);
    audit(&store, "start", "web", NULL);
    audit(&store, "stop", "web", NULL);
    assert_int_equal(looked, 1);
    assert_int_equal(fstatat(store.home_fd, AUDIT_NAME, &st, 0), -1);
}

static void test_hashed_arguments(void **state)
{
    char id[AUDIT_ID_MAX], line[4096];
    struct strlist argv = {0};
    assert_int_equal(strlist_add(&argv, "echo"), 0);
    assert_int_equal(strlist_add(&argv, "private"), 0);
    audit_configure(&(struct audit_settings){.level = -1, .hash_argv = true});
    audit_exec(&store, "web", &(struct audit_exec){.argv = &argv}, id);
    read_log(line, sizeof(line));
    assert_null(strstr(line, "private"));
    struct digest d = digest_of("echo\0private", sizeof("echo\0private"));
    char text[DIGEST_TEXT_SIZE];
    digest_text(&d, text);
    assert_non_null(strstr(line, "\"argv_hash\":\"sha256:"));
    assert_non_null(strstr(line, text));
    audit_refused(&store, "create", "web",
                  &(struct audit_refusal){"memory", "9G", "at most 1G", "/etc/msb/policy.yaml:7"});
    AUTO_FREE char *all = NULL;
    assert_int_equal(file_read_at(store.home_fd, AUDIT_NAME, 1 << 20, &all, NULL), 0);
    assert_non_null(strstr(all, "\"event\":\"refused\",\"sandbox\":\"web\""));
    assert_non_null(strstr(all, "\"asked\":\"9G\",\"allowed\":\"at most 1G\","
                                "\"origin\":\"/etc/msb/policy.yaml:7\""));
    strlist_free(&argv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_levels, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_settings_are_looked_for, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_hashed_arguments, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_sockets, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_command, audit_setup, audit_teardown),
        cmocka_unit_test_setup_teardown(test_no_such_command, audit_setup, audit_teardown),
    };
    alone = enter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
