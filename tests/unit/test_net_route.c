/* The routing table: what an answer may look like, and that asking works behind the filter of the
 * network's thread. (tests/e2e/test_net_own.py has hosts with many addresses.) */
#include "jail/seccomp.h"
#include "net/host_route.h"
#include "sanitizer.h"
#include "unit.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEQ = 77 };

struct answer {
    struct nlmsghdr h;
    union {
        struct rtmsg route;
        struct nlmsgerr error;
    };
};

static struct answer route_answer(uint8_t kind)
{
    struct answer a = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg)),
                             .nlmsg_type = RTM_NEWROUTE,
                             .nlmsg_seq = SEQ}};
    a.route.rtm_type = kind;
    return a;
}

static struct answer error_answer(int code)
{
    struct answer a = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct nlmsgerr)),
                             .nlmsg_type = NLMSG_ERROR,
                             .nlmsg_seq = SEQ}};
    a.error.error = code;
    return a;
}

static int read_answer(const struct answer *a, size_t n)
{
    return route_read((const uint8_t *)a, n, SEQ);
}

static void test_answers(void **state)
{
    struct answer a = route_answer(RTN_LOCAL);
    assert_int_equal(read_answer(&a, a.h.nlmsg_len), RTN_LOCAL);
    assert_int_equal(route_read((const uint8_t *)&a, a.h.nlmsg_len, SEQ + 1), -EAGAIN);
    for (size_t n = 0; n < a.h.nlmsg_len; n++) /* cut anywhere */
        assert_int_equal(read_answer(&a, n), -EBADMSG);
    a.h.nlmsg_len = sizeof(a.h) + 4;
    assert_int_equal(read_answer(&a, sizeof(a)), -EBADMSG);
    a.h.nlmsg_len = 3;
    assert_int_equal(read_answer(&a, sizeof(a)), -EBADMSG);
    a = route_answer(RTN_UNICAST);
    a.h.nlmsg_type = RTM_NEWLINK;
    assert_int_equal(read_answer(&a, sizeof(a)), -EBADMSG);
    a = error_answer(-ENETUNREACH);
    assert_int_equal(read_answer(&a, sizeof(a)), -ENETUNREACH);
    static const int odd[] = {0, 5, -100000, -EAGAIN};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        a = error_answer(odd[i]);
        assert_int_equal(read_answer(&a, sizeof(a)), -EBADMSG);
    }
}

/* In a child: the exit code says what it found. */
static int ask_behind_the_filter(struct route *r)
{
    struct net_addr own = addr_from4((const uint8_t[4]){127, 0, 0, 1});
    struct net_addr other = addr_from4((const uint8_t[4]){198, 51, 100, 1}); /* documentation */
    (void)signal(SIGSYS, SIG_DFL);
    if (seccomp_enter(SECCOMP_NET) < 0)
        return 99;
    for (unsigned i = 0; i < 1000; i++)
        if (!route_is_own(r, &own) || route_is_own(r, &other))
            return 1;
    return 0;
}

static void test_behind_the_filter(void **state)
{
    struct route r;
    int status = 0;
    SKIP_UNDER_SANITIZER();
    assert_int_equal(route_open(&r), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(ask_behind_the_filter(&r));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    route_close(&r);
    struct net_addr any = addr_from4((const uint8_t[4]){198, 51, 100, 1});
    assert_true(route_is_own(&r, &any)); /* nothing to ask: closed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_behind_the_filter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
