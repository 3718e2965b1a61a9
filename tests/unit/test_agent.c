/* The agent's pure parts: requests, environment, PATH, users, hosts. */
#include "agent/cas.h"
#include "agent/env.h"
#include "agent/files.h"
#include "agent/hosts.h"
#include "agent/netif.h"
#include "agent/oom.h"
#include "agent/request.h"
#include "agent/users.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- requests --- */

static void test_exec_request(void **state)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    struct proto_frame f;
    struct exec_req q;
    proto_begin(&w, &b, PROTO_EXEC);
    proto_str(&w, F_ENV, "A=1");
    proto_str(&w, F_ARG, "ls");
    proto_str(&w, F_ARG, "");
    proto_str(&w, F_ENV, "B=2");
    proto_str(&w, F_CWD, "/x");
    proto_str(&w, F_USER, "bob");
    proto_u32(&w, F_TTY, 1);
    proto_u32(&w, F_ROWS, 10);
    proto_u64(&w, F_TIMEOUT_MS, 1500);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(exec_req_parse(&q, &f), 0);
    buf_free(&b); /* nothing points into the frame */
    assert_int_equal(q.argc, 2);
    assert_string_equal(q.argv[0], "ls");
    assert_string_equal(q.argv[1], "");
    assert_null(q.argv[2]);
    q.argv[-1] = NULL; /* ours to use */
    assert_int_equal(q.c.nenv, 2);
    assert_string_equal(q.c.env[1], "B=2");
    assert_string_equal(q.c.cwd, "/x");
    assert_string_equal(q.c.user, "bob");
    assert_true(q.tty && !q.no_stdin && q.rows == 10 && q.cols == 0 && q.timeout_ms == 1500);
    exec_req_free(&q);
}

static int parse_script(const char *name)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    struct proto_frame f;
    struct config c;
    proto_begin(&w, &b, PROTO_CONFIG);
    size_t mark = proto_nest(&w, F_SCRIPT);
    proto_str(&w, F_NAME, name);
    proto_bytes(&w, F_BODY, "a\0b", 3);
    proto_nest_end(&w, mark);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    int r = config_parse(&c, &f);
    if (r == 0)
        assert_true(c.nscripts == 1 && c.scripts[0].len == 3 &&
                    memcmp(c.scripts[0].body, "a\0b", 3) == 0);
    config_free(&c);
    buf_free(&b);
    return r;
}

static void test_script_names(void **state)
{
    assert_int_equal(parse_script("run-it"), 0);
    assert_int_equal(parse_script("..."), 0);
    assert_int_equal(parse_script(""), -EPROTO);
    assert_int_equal(parse_script("."), -EPROTO);
    assert_int_equal(parse_script(".."), -EPROTO);
    assert_int_equal(parse_script("../x"), -EPROTO);
    assert_int_equal(parse_script("a/b"), -EPROTO);
}

/* Each parsed from a frame: "A=1", or "A" for none of that name. */
static void change_env(struct config *c, uint16_t type, const char *const *var, size_t n)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    struct proto_frame f;
    proto_begin(&w, &b, type);
    for (size_t i = 0; i < n; i++)
        proto_str(&w, F_ENV, var[i]);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(type == PROTO_CONFIG ? config_parse(c, &f) : config_change_env(c, &f), 0);
    buf_free(&b);
}

static void test_config_env_changes(void **state)
{
    static const char *const first[] = {"A=1", "AB=2", "C=3"};
    static const char *const then[] = {"A", "C", "C=4", "D=5", "X"};
    static const char *const last[] = {"AB"};
    struct config c;
    change_env(&c, PROTO_CONFIG, first, ARRAY_LEN(first));
    change_env(&c, PROTO_ENV, then, ARRAY_LEN(then));
    assert_int_equal(c.c.nenv, 3);
    assert_string_equal(c.c.env[0], "AB=2");
    assert_string_equal(c.c.env[1], "C=4");
    assert_string_equal(c.c.env[2], "D=5");
    change_env(&c, PROTO_ENV, last, ARRAY_LEN(last));
    assert_int_equal(c.c.nenv, 2);
    assert_string_equal(c.c.env[1], "D=5");
    config_free(&c);
}

static void test_config(void **state)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    struct proto_frame f;
    struct config c;
    proto_begin(&w, &b, PROTO_CONFIG);
    proto_str(&w, F_HOSTNAME, "box");
    proto_str(&w, F_LOWER_DEV, "/dev/vdb");
    for (int i = 0; i < 2; i++) {
        size_t mark = proto_nest(&w, F_MOUNT);
        proto_str(&w, F_PATH, i ? "/b" : "/a");
        proto_u64(&w, F_SIZE, 1 << 20);
        proto_u32(&w, F_OPTIONS, PROTO_MOUNT_RO);
        if (i) {
            proto_str(&w, F_TAG, "msb0");
            proto_str(&w, F_FILE, "notes");
        }
        proto_nest_end(&w, mark);
    }
    proto_str(&w, F_ENV, "A=1");
    proto_str(&w, F_DIRECTORY, "/data");
    proto_str(&w, F_DIRECTORY, "/more");
    proto_str(&w, F_WRITE_PATH, "/w");
    proto_u64(&w, F_CAPABILITIES, 11);
    proto_u32(&w, F_NO_NEW_PRIVS, 1);
    proto_u32(&w, F_PIDS_MAX, 256);
    proto_str(&w, F_GROUP, "audio");
    proto_str(&w, F_GROUP, "7");
    proto_str(&w, F_SYSCTL, "net.core.somaxconn=9");
    proto_u32(&w, F_STOP_SIGNAL, 3);
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(config_parse(&c, &f), 0);
    assert_string_equal(c.hostname, "box");
    assert_int_equal(c.ndirs, 2);
    assert_string_equal(c.dirs[1], "/more");
    assert_int_equal(c.nwritable, 1);
    assert_string_equal(c.writable[0], "/w");
    assert_int_equal(c.stop_signal, 3);
    assert_int_equal(c.caps, 11);
    assert_true(c.no_new_privs && !c.read_only && config_is_restricted(&c));
    assert_int_equal(c.pids_max, 256);
    assert_int_equal(c.ngroups, 2);
    assert_string_equal(c.groups[1], "7");
    assert_int_equal(c.nsysctls, 1);
    assert_string_equal(c.sysctls[0], "net.core.somaxconn=9");
    assert_string_equal(c.c.env[0], "A=1");
    assert_string_equal(c.lower, "/dev/vdb");
    assert_null(c.upper);
    assert_int_equal(c.nmounts, 2);
    assert_string_equal(c.mounts[1].path, "/b");
    assert_int_equal(c.mounts[1].options, PROTO_MOUNT_RO);
    assert_null(c.mounts[0].tag);
    assert_string_equal(c.mounts[1].tag, "msb0");
    assert_string_equal(c.mounts[1].file, "notes");
    assert_int_equal(c.c.nenv, 1);
    config_free(&c);
    buf_free(&b);
}

/* --- environment --- */

static const char *get(const struct env *e, const char *name)
{
    size_t n = strlen(name);
    for (char **v = e->vars; *v; v++)
        if (strncmp(*v, name, n) == 0 && (*v)[n] == '=')
            return *v + n + 1;
    return NULL;
}

static void check_path(char *var, bool scripts, const char *want)
{
    struct req_common extra = {.env = &var, .nenv = var ? 1 : 0};
    struct env_in in = {.home = "/", .scripts = scripts, .extra = &extra};
    struct env e;
    assert_int_equal(env_build(&e, &in), 0);
    assert_string_equal(get(&e, "PATH"), want);
    assert_string_equal(e.path, want);
    env_free(&e);
}

static void test_env_path(void **state)
{
    char p1[] = "PATH=/a", p2[] = "PATH=", p3[] = "PATH=/.msb/scripts:/a:/.msb/bin";
    char p4[] = "PATH=/.msb/binx:/a:";
    check_path(NULL, false, ENV_DEFAULT_PATH ":/.msb/bin");
    check_path(NULL, true, "/.msb/scripts:" ENV_DEFAULT_PATH ":/.msb/bin");
    check_path(p1, false, "/a:/.msb/bin");
    check_path(p1, true, "/.msb/scripts:/a:/.msb/bin");
    check_path(p2, false, "/.msb/bin");
    check_path(p2, true, "/.msb/scripts:/.msb/bin");
    check_path(p3, true, "/.msb/scripts:/a:/.msb/bin");
    check_path(p4, false, "/.msb/binx:/a::/.msb/bin");
}

static void test_env_order(void **state)
{
    char a1[] = "A=1", a2[] = "A=2", home[] = "HOME=/x", junk[] = "junk", noname[] = "=x";
    char *base_vars[] = {a1, home, junk}, *extra_vars[] = {noname, a2};
    struct req_common base = {.env = base_vars, .nenv = 3};
    struct req_common extra = {.env = extra_vars, .nenv = 2};
    struct env_in in = {
        .home = "/root", .hostname = "box", .tty = true, .base = &base, .extra = &extra};
    struct env e;
    assert_int_equal(env_build(&e, &in), 0);
    assert_string_equal(get(&e, "A"), "2");
    assert_string_equal(get(&e, "HOME"), "/x");
    assert_string_equal(get(&e, "HOSTNAME"), "box");
    assert_string_equal(get(&e, "TERM"), "xterm");
    size_t n = 0;
    while (e.vars[n])
        n++;
    assert_int_equal(n, 5);
    env_free(&e);
}

static void test_path_walk(void **state)
{
    struct path_walk w;
    char at[32];
    path_walk_init(&w, "/a::/b/:/a-directory-name-that-does-not-fit", "prog");
    assert_true(path_walk_next(&w, at, sizeof(at)));
    assert_string_equal(at, "/a/prog");
    assert_true(path_walk_next(&w, at, sizeof(at)));
    assert_string_equal(at, "prog");
    assert_true(path_walk_next(&w, at, sizeof(at)));
    assert_string_equal(at, "/b//prog");
    assert_false(path_walk_next(&w, at, sizeof(at)));
    path_walk_init(&w, "/a:/b", "./prog");
    assert_true(path_walk_next(&w, at, sizeof(at)));
    assert_string_equal(at, "./prog");
    assert_false(path_walk_next(&w, at, sizeof(at)));
    path_walk_init(&w, "/a:/b", "");
    assert_false(path_walk_next(&w, at, sizeof(at)));
}

/* --- users --- */

static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\n"
                             "# comment:x:5:5\n"
                             "short:x\n"
                             "bob:x:1000:1001:Bob,,,:/home/bob:/bin/sh\n"
                             "nohome:x:7:8::\n"
                             "badid:x:99999999999:1::/:\n"
                             "2000:x:3000:3000::/num:/bin/sh\n"
                             "last:x:9:9::/last:/bin/sh";
static const char group[] =
    "root:x:0:\nwheel:x:10:root,bob\nbobs:x:1001:\nmore:x:11:alice,bob,carol\n"
    "again:x:10:bob\nnot:x:12:bobby,bo\nend:x:13:bob";

static void check_user(const char *spec, uid_t uid, gid_t gid, size_t ngroups, const char *home)
{
    struct identity id;
    struct err err;
    assert_int_equal(user_resolve(&id, spec, passwd, group, &err), 0);
    assert_int_equal(id.uid, uid);
    assert_int_equal(id.gid, gid);
    assert_int_equal(id.ngroups, ngroups);
    assert_string_equal(id.home, home);
}

static void test_users(void **state)
{
    struct identity id;
    struct err err;
    check_user("root", 0, 0, 1, "/root");
    check_user("0", 0, 0, 1, "/root");
    check_user("bob", 1000, 1001, 3, "/home/bob");
    check_user("1000", 1000, 1001, 3, "/home/bob");
    check_user("bob:wheel", 1000, 10, 0, "/home/bob");
    check_user("bob:4", 1000, 4, 0, "/home/bob");
    check_user("4242", 4242, 0, 0, "/");
    check_user("4242:wheel", 4242, 10, 0, "/");
    check_user("nohome", 7, 8, 0, "/");
    check_user("2000", 3000, 3000, 0, "/num"); /* a name that looks like a number */
    check_user("last", 9, 9, 0, "/last");
    check_user(":wheel", 0, 10, 0, "/root");
    const char *bad[] = {"alice",      "short",       "badid", "-1",   "4294967295",
                         "2147483648", "bob:nogroup", "bob:",  "bo b", "#"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(user_resolve(&id, bad[i], passwd, group, &err), -ENOENT);
    assert_int_equal(user_resolve(&id, "0", "", "", &err), 0);
    assert_string_equal(id.home, "/");
}

static void test_user_cache(void **state)
{
    char dir[] = "/tmp/test_agent.XXXXXX", p[64], g[64];
    struct user_cache c;
    struct err err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(p, sizeof(p), "%s/passwd", dir);
    (void)snprintf(g, sizeof(g), "%s/group", dir);
    user_cache_init(&c, p, g);
    const struct identity *id = user_lookup(&c, "0", &err);
    assert_string_equal(id->home, "/"); /* no files at all */
    assert_int_equal(file_write(p, "root:x:0:0::/first:\n", 20, 0644), 0);
    assert_string_equal(user_lookup(&c, "0", &err)->home, "/first");
    assert_int_equal(file_write(p, "root:x:0:0::/second:\n", 21, 0644), 0);
    assert_string_equal(user_lookup(&c, "0", &err)->home, "/second");
    assert_null(user_lookup(&c, "bob", &err));
    assert_string_equal(user_lookup(&c, "0", &err)->home, "/second");
    assert_int_equal(unlink(p), 0);
    assert_int_equal(mkfifo(p, 0600), 0); /* reading it must not block */
    assert_string_equal(user_lookup(&c, "0", &err)->home, "/");
    unlink(p);
    rmdir(dir);
}

/* --- files and hosts --- */

static void test_files(void **state)
{
    char dir[] = "/tmp/test_agent.XXXXXX", q[64];
    struct stat st;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(q, sizeof(q), "%s/link", dir);
    assert_int_equal(symlink("nowhere", q), 0);
    assert_int_equal(file_write(q, "x", 1, 0600), -ELOOP);
    assert_int_equal(dir_ensure(q, 0755), 0); /* a symlink makes room */
    assert_true(lstat(q, &st) == 0 && S_ISDIR(st.st_mode));
    assert_null(file_read_text(q, 100, NULL));
    rmdir(q);
    rmdir(dir);
}

static void check_hosts(const char *text, const char *name, const struct req_net *net,
                        const char *want)
{
    static const struct req_net none;
    struct buf b = {.limit = 4096};
    assert_int_equal(hosts_complete(text, name, net ? net : &none, &b), 0);
    assert_int_equal(buf_append(&b, "", 1), 0);
    assert_string_equal((char *)buf_head(&b), want);
    buf_free(&b);
}

static void test_hosts(void **state)
{
    assert_true(hosts_has("127.0.0.1 localhost\n", "localhost"));
    assert_true(hosts_has("#x\n\n 10.0.0.1\ta b\tbox # c", "box"));
    assert_false(hosts_has("127.0.0.1 boxes # box\n#1.1.1.1 box\nbox\n", "box"));
    check_hosts("", "box", NULL,
                "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
                "127.0.0.1\tbox\n");
    check_hosts("127.0.0.1 localhost", "box", NULL, "127.0.0.1 localhost\n127.0.0.1\tbox\n");
    check_hosts("127.0.0.1 localhost box\n", "box", NULL, "");
    check_hosts("127.0.0.1 localhost\n", NULL, NULL, "");
    struct req_net net = {.address = {{.ip = (char *)"10.0.0.2", .gateway = (char *)"10.0.0.1"}},
                          .n_addresses = 1,
                          .host_name = (char *)"host.here"};
    check_hosts("127.0.0.1 localhost box\n", "box", &net,
                "127.0.0.1 localhost box\n10.0.0.1\thost.here\n");
    check_hosts("127.0.0.1 localhost box\n1.1.1.1 host.here\n", "box", &net, "");
}

static void test_resolv(void **state)
{
    struct req_net net = {.resolver = {(char *)"10.0.0.1"}, .n_resolvers = 1};
    static const char *const ours[] = {"nameserver 10.0.0.1\n", "nameserver\t10.0.0.1 \nsearch x\n",
                                       "# mine\noptions ndots:2\nnameserver 10.0.0.1"};
    static const char *const others[] = {"",
                                         "search x\n",
                                         "nameserver 10.0.0.10\n",
                                         "nameserver 10.0.0.1\nnameserver 8.8.8.8\n",
                                         "#nameserver 10.0.0.1\n",
                                         "nameserver\n10.0.0.1\n"};
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        assert_true(resolv_is_ours(ours[i], &net));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(resolv_is_ours(others[i], &net));
}

static void test_config_network(void **state)
{
    struct buf b;
    struct proto_writer w;
    struct proto_frame f;
    struct config c;
    for (unsigned n = 0; n <= REQ_ADDRESSES_MAX + 1; n++) {
        buf_init(&b, 1 << 16);
        proto_begin(&w, &b, PROTO_CONFIG);
        size_t net = proto_nest(&w, F_NET);
        proto_str(&w, F_NAME, "eth0");
        proto_u32(&w, F_NET_MTU, 1500);
        for (unsigned i = 0; i < n; i++) {
            size_t mark = proto_nest(&w, F_NET_ADDRESS);
            proto_str(&w, F_NET_IP, "10.0.0.2");
            proto_u32(&w, F_NET_BITS, 30);
            proto_str(&w, F_NET_GATEWAY, "10.0.0.1");
            proto_nest_end(&w, mark);
        }
        proto_str(&w, F_NET_RESOLVER, "10.0.0.1");
        proto_str(&w, F_NET_HOST_NAME, "host.here");
        proto_nest_end(&w, net);
        assert_int_equal(proto_end(&w), 0);
        assert_int_equal(proto_peek(&b, &f), 1);
        bool fits = n <= REQ_ADDRESSES_MAX;
        assert_int_equal(config_parse(&c, &f), fits ? 0 : -EPROTO);
        if (fits) {
            assert_string_equal(c.net.name, "eth0");
            assert_int_equal(c.net.mtu, 1500);
            assert_int_equal(c.net.n_addresses, n);
            assert_int_equal(c.net.n_resolvers, 1);
            assert_string_equal(c.net.host_name, "host.here");
        }
        if (fits && n) {
            assert_string_equal(c.net.address[n - 1].ip, "10.0.0.2");
            assert_int_equal(c.net.address[n - 1].bits, 30);
            assert_string_equal(c.net.address[n - 1].gateway, "10.0.0.1");
        }
        config_free(&c);
        buf_free(&b);
    }
}

/* --- certificates of the host --- */

#define CERT(x) "-----BEGIN CERTIFICATE-----\n" x "\n-----END CERTIFICATE-----\n"
#define BLOCK(x) \
    "# BEGIN certificates of the host, kept by msb\n" x "# END certificates of the host\n"

static void expect_merged(const char *old, const char *pem, const char *want)
{
    struct buf b = {.limit = 4096};
    assert_int_equal(cas_merge(&b, old, strlen(old), pem), 0);
    assert_int_equal(buf_len(&b), strlen(want));
    assert_memory_equal(buf_head(&b), want, strlen(want));
    buf_free(&b);
    buf_init(&b, 4096); /* and again: nothing more */
    assert_int_equal(cas_merge(&b, want, strlen(want), pem), 0);
    assert_int_equal(buf_len(&b), strlen(want));
    assert_memory_equal(buf_head(&b), want, strlen(want));
    buf_free(&b);
}

static void test_cas_merge(void **state)
{
    expect_merged("", CERT("aaa"), BLOCK(CERT("aaa")));
    expect_merged(CERT("xxx"), CERT("aaa") CERT("bbb"), CERT("xxx") BLOCK(CERT("aaa") CERT("bbb")));
    expect_merged("# no end of line", CERT("aaa"), "# no end of line\n" BLOCK(CERT("aaa")));
    /* What the image has, if with other line ends, is not doubled. */
    expect_merged("-----BEGIN CERTIFICATE-----\r\nbb\r\nb\r\n-----END CERTIFICATE-----\r\n",
                  CERT("aaa") CERT("bbb"),
                  "-----BEGIN CERTIFICATE-----\r\nbb\r\nb\r\n-----END CERTIFICATE-----\r\n" BLOCK(
                      CERT("aaa")));
    /* What the host no longer trusts goes, what the guest has added stays. */
    expect_merged(CERT("xxx") BLOCK(CERT("old")) CERT("own"), CERT("new"),
                  CERT("xxx") CERT("own") BLOCK(CERT("new")));
    /* A block without an end was cut short. */
    expect_merged(CERT("xxx") "# BEGIN certificates of the host, kept by msb\n-----BEGIN CERT",
                  CERT("new"), CERT("xxx") BLOCK(CERT("new")));
    expect_merged("", "no certificate", BLOCK(""));
}

static void make_file(const char *root, const char *path, const char *text)
{
    char p[256];
    (void)snprintf(p, sizeof(p), "%s%s", root, path);
    *strrchr(p, '/') = '\0';
    assert_int_equal(mkdir_parents(p, 0755), 0);
    (void)snprintf(p, sizeof(p), "%s%s", root, path);
    assert_int_equal(file_write(p, text, strlen(text), 0644), 0);
}

static void expect_file(const char *root, const char *path, const char *want)
{
    char p[256];
    (void)snprintf(p, sizeof(p), "%s%s", root, path);
    AUTO_FREE char *got = file_read_text(p, 4096, NULL);
    assert_non_null(got);
    assert_string_equal(got, want);
}

static void expect_link(const char *root, const char *path, const char *want)
{
    char p[256], to[256];
    (void)snprintf(p, sizeof(p), "%s%s", root, path);
    ssize_t n = readlink(p, to, sizeof(to) - 1);
    assert_true(n > 0);
    to[MAX(n, 0)] = '\0';
    assert_string_equal(to, want);
}

static void test_cas_install(void **state)
{
    char root[] = "/tmp/msb-cas-XXXXXX";
    assert_non_null(mkdtemp(root));
    for (unsigned i = 0; i < 2; i++) { /* an image with nothing at all; twice */
        assert_int_equal(cas_install(root, CERT("aaa")), 0);
        expect_file(root, PROTO_CAS_BUNDLE, BLOCK(CERT("aaa")));
        expect_link(root, "/etc/ssl/cert.pem", PROTO_CAS_BUNDLE);
    }
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);

    make_file(root, "/etc/debian_version", "12\n");
    make_file(root, PROTO_CAS_BUNDLE, CERT("xxx"));
    assert_int_equal(cas_install(root, CERT("aaa")), 0);
    expect_file(root, PROTO_CAS_BUNDLE, CERT("xxx") BLOCK(CERT("aaa")));
    expect_link(root, "/usr/lib/ssl/cert.pem", PROTO_CAS_BUNDLE);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);

    make_file(root, "/etc/pki/tls/certs/ca-bundle.crt", CERT("xxx"));
    make_file(root, "/etc/ssl/certs/other", "");
    assert_int_equal(cas_install(root, CERT("aaa")), 0);
    expect_file(root, "/etc/pki/tls/certs/ca-bundle.crt", CERT("xxx") BLOCK(CERT("aaa")));
    expect_link(root, PROTO_CAS_BUNDLE, "/etc/pki/tls/certs/ca-bundle.crt");
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);

    /* Anything but a regular file is left alone, and reported. */
    make_file(root, PROTO_CAS_BUNDLE "/x", "");
    assert_int_equal(cas_install(root, CERT("aaa")), -EINVAL);
    assert_int_equal(remove_tree_at(AT_FDCWD, root), 0);
}

/* Only the kernel's own records count. */
static void test_oom_records(void **state)
{
    struct oom o = {.src.fd = -1, .kills = 3, .last = {7, 8, 9}};
    assert_int_equal(
        oom_parse("3,612,81,-;Out of memory: Killed process 42 (yes) total-vm:2kB, UID:0\n"), 42);
    assert_int_equal(oom_parse("3,1,1,-;Memory cgroup out of memory: Killed process 5 (a b) x"), 5);
    static const char *const not_those[] = {
        "11,1,1,-;Out of memory: Killed process 42 (yes) x", /* by root, through /dev/kmsg */
        "3,1,1,-;Killed process 42 (yes) x",
        "3,1,1,-;Out of memory: Killed process x",
        "3,1,1,-;Out of memory: Killed process 0 (x)",
        "3,1,1,-;Out of memory: Killed process 99999999999999999999 (x)",
        "3,1,1,-;Out of memory: Killed process 42",
        "Out of memory: Killed process 42 (x)",
        "3;Out of memory: Killed process 42 (x)",
        "",
    };
    for (size_t i = 0; i < ARRAY_LEN(not_those); i++)
        if (oom_parse(not_those[i]) != 0)
            fail_msg("'%s' was taken for a kill", not_those[i]);
    assert_true(oom_was_killed(&o, 8, 0) && oom_was_killed(&o, 9, 2));
    assert_false(oom_was_killed(&o, 8, 2)); /* an earlier process of that number */
    o.kills = 40;                           /* only the last ones are remembered */
    assert_true(oom_was_killed(&o, 7, 0));
    o.last[0] = 0;
    assert_false(oom_was_killed(&o, 7, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cas_merge),    cmocka_unit_test(test_cas_install),
        cmocka_unit_test(test_exec_request), cmocka_unit_test(test_script_names),
        cmocka_unit_test(test_config),       cmocka_unit_test(test_env_path),
        cmocka_unit_test(test_env_order),    cmocka_unit_test(test_path_walk),
        cmocka_unit_test(test_users),        cmocka_unit_test(test_user_cache),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_resolv),       cmocka_unit_test(test_config_network),
        cmocka_unit_test(test_oom_records),  cmocka_unit_test(test_config_env_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
