/* What the process that talks to a bucket's server can reach, from the inside. */
#include "jail/landlock.h"
#include "s3/confine.h"
#include "sanitizer.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char place[] = "/tmp/msb-confine-XXXXXX";

static void in_place(char path[64], const char *name)
{
    (void)snprintf(path, 64, "%s/%s", place, name);
}

static bool opens(const char *path, int flags)
{
    AUTO_CLOSE int fd = open(path, flags | O_CLOEXEC, 0600);
    return fd >= 0;
}

/* This host's configuration of names is another in this process. */
static bool replace(const char *path, const char *text)
{
    char mine[64];
    in_place(mine, "etc");
    AUTO_CLOSE int fd = open(mine, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd >= 0 && write_all(fd, text, strlen(text)) == 0 &&
           mount(mine, path, NULL, MS_BIND, NULL) == 0 && unlink(mine) == 0;
}

static bool has_names(const char *hosts, const char *resolv)
{
    return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           replace("/etc/nsswitch.conf", hosts) && replace("/etc/resolv.conf", resolv);
}

/* In a child that is confined to place/inside: exits with the number of the first failed check. */
static void confined(int (*check)(void), const char *endpoint)
{
    char inside[64];
    in_place(inside, "inside");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct s3_reach reach = {open(inside, O_PATH | O_CLOEXEC), -1, NULL, endpoint};
        _exit(s3_confine(&reach, NULL) < 0 ? 99 : check());
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Files that are there, and readable by anyone or at least by root. */
static int try_files(void)
{
    static const char *const never[] = {
        "/",    "/etc", "/etc/passwd", "/etc/shadow", "/proc/self/environ", "/usr", "/usr/bin/env",
        "/dev", "/tmp", "/var",        "/root"};
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(never); i++)
        if (opens(never[i], O_RDONLY))
            return 1 + (int)i;
    in_place(path, "outside");
    if (opens(path, O_RDONLY) || opens(path, O_WRONLY))
        return 20;
    in_place(path, "new");
    if (opens(path, O_WRONLY | O_CREAT) || mkdir(path, 0700) == 0)
        return 21;
    in_place(path, "inside/new");
    if (!opens(path, O_WRONLY | O_CREAT) || !opens(path, O_RDONLY))
        return 22;
    if (opens("/etc/hosts", O_WRONLY) || !opens("/etc/hosts", O_RDONLY))
        return 23;
    /* The system's certificates, where this host has them. */
    static const char *const bundle[] = {"/etc/ssl/certs/ca-certificates.crt",
                                         "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem"};
    for (size_t i = 0; i < ARRAY_LEN(bundle); i++)
        if (access(bundle[i], F_OK) == 0 && !opens(bundle[i], O_RDONLY))
            return 30 + (int)i;
    return opens("/usr/lib", O_RDONLY | O_DIRECTORY) ? 0 : 24;
}

static void test_files(void **state)
{
    if (landlock_version() < 1)
        skip();
    assert_int_equal(access("/etc/passwd", R_OK), 0);
    confined(try_files, NULL);
}

static void *resolve(void *ctx)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct addrinfo *a = NULL;
    int r = getaddrinfo("localhost", "443", &hints, &a);
    if (r == 0)
        freeaddrinfo(a);
    return r == 0 ? ctx : NULL;
}

/* As libcurl does it, in a thread; and a module of the resolver can still be loaded. */
static int try_names(void)
{
    pthread_t thread;
    void *done = NULL;
    int r = pthread_create(&thread, NULL, resolve, place);
    if (r != 0 || pthread_join(thread, &done) != 0 || !done)
        return 1;
    return dlopen("libresolv.so.2", RTLD_NOW) || dlopen("libutil.so.1", RTLD_NOW) ? 0 : 2;
}

static void test_names(void **state)
{
    SKIP_UNDER_SANITIZER();
    confined(try_names, NULL);
}

static int try_calls(void)
{
    if (if_nametoindex("lo") == 0 || !if_indextoname(if_nametoindex("lo"), (char[IF_NAMESIZE]){0}))
        return 4;
    if (fork() >= 0 || errno != ENOSYS)
        return 1;
    if (prctl(PR_SET_DUMPABLE, 1) == 0 || kill(getppid(), 0) == 0)
        return 2;
    return socket(AF_UNIX, SOCK_STREAM, 0) >= 0 ? 3 : 0;
}

static int try_service(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? 1 : socket(AF_UNIX, SOCK_DGRAM, 0) >= 0 ? 2 : 0;
}

static int with_names(const char *hosts, const char *resolv, const char *endpoint,
                      int (*check)(void))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!has_names(hosts, resolv))
            _exit(77);
        confined(check, endpoint);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Where names come from decides it, unless the server has none. */
static void test_services(void **state)
{
    static const char stub[] = "# all\nnameserver 127.0.0.53\n", other[] = "nameserver 10.0.0.1\n";
    static const struct {
        const char *hosts, *resolv, *endpoint;
        int (*check)(void);
    } tries[] = {
        {"hosts: files dns\n", other, "http://nas:9000", try_calls},
        {"passwd: sss\nhosts: files myhostname mdns4_minimal [ NOTFOUND=return ] dns # sss\n",
         other, "http://nas:9000", try_calls},
        {" hosts:files resolve [!UNAVAIL=return] dns", stub, "http://nas:9000", try_calls},
        {"hosts: files resolve [!UNAVAIL=return] dns\n", other, "http://nas:9000", try_service},
        {"hosts:\tfiles [SUCCESS=return] dns [NOTFOUND=continue] sss\n", stub, "http://nas",
         try_service},
        {"hosts: mymachines files dns\n", other, "http://10.0.0.x/", try_service},
        {"hosts: files sss dns\n", other, "http://10.0.0.1:9000", try_calls},
        {"hosts: files sss dns\n", other, "http://[fd00::1]:9000", try_calls},
        {"hosts: files sss dns\n", other, NULL, try_calls},
        {"passwd: sss\n", other, "http://nas", try_calls},
        {"hosts: [[ ]", other, "http://nas", try_calls},
    };
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        int r = with_names(tries[i].hosts, tries[i].resolv, tries[i].endpoint, tries[i].check);
        if (r == 77)
            skip();
        if (r != 0)
            fail_msg("%s: %d", tries[i].hosts, r);
    }
}

/* A socket of the host's, only to look up names that nobody else knows. */
static void test_calls(void **state)
{
    confined(try_calls, NULL);
    confined(try_calls, "http://local:9000");
    confined(try_calls, "http://x.local.example.com/");
    confined(try_service, "http://nas.Local:9000");
    confined(try_service, "https://nas.local");
    confined(try_service, "https://nas.local./");
    confined(try_service, "https://nas.local.:9000");
    static const char *const proxies[] = {"http://proxy.local:3128", "proxy.local.",
                                          "http://me:a@b:c@proxy.local/"};
    for (size_t i = 0; i < ARRAY_LEN(proxies); i++) {
        assert_int_equal(setenv("https_proxy", proxies[i], 1), 0);
        confined(try_service, "https://s3.example.com");
    }
    assert_int_equal(setenv("https_proxy", "http://me.local@proxy:3128/.local", 1), 0);
    confined(try_calls, "https://s3.example.com");
    assert_int_equal(unsetenv("https_proxy"), 0);
}

static int make_place(void **state)
{
    char path[64];
    if (!mkdtemp(place))
        return -1;
    in_place(path, "inside");
    if (mkdir(path, 0700) < 0)
        return -1;
    in_place(path, "outside");
    return opens(path, O_WRONLY | O_CREAT) ? 0 : -1;
}

static int remove_place(void **state)
{
    return remove_tree_at(AT_FDCWD, place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_services),
    };
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
