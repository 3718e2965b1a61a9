/* Profiles become programs that answer as the profile says: run here by an interpreter. */
#include "oci/process.h"
#include "oci/seccomp.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

struct program {
    struct sock_filter *code;
    size_t n;
};

static void compile(struct program *p, const char *text)
{
    struct err e = {0};
    size_t size;
    void *code;
    json_t *j = oci_json_parse(text, strlen(text), "the profile", &e);
    assert_non_null(j);
    assert_int_equal(seccomp_compile(j, &code, &size, &e), 0);
    *p = (struct program){code, size / sizeof(*p->code)};
    assert_true(p->n > 0 && p->n <= BPF_MAXINSNS);
    json_decref(j);
}

static uint32_t run(const struct program *p, const struct seccomp_data *d)
{
    uint32_t a = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct sock_filter *f = &p->code[i];
        bool yes = false;
        switch (f->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            assert_true(f->k % 4 == 0 && f->k < sizeof(*d));
            memcpy(&a, (const char *)d + f->k, sizeof(a));
            continue;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= f->k;
            continue;
        case BPF_RET | BPF_K:
            return f->k;
        case BPF_JMP | BPF_JA:
            i += f->k;
            continue;
        case BPF_JMP | BPF_JEQ | BPF_K:
            yes = a == f->k;
            break;
        case BPF_JMP | BPF_JGT | BPF_K:
            yes = a > f->k;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            yes = a >= f->k;
            break;
        default:
            fail_msg("instruction %zu is %x", i, f->code);
        }
        i += yes ? f->jt : f->jf;
    }
    fail_msg("the program has no end");
    return 0;
}

static uint32_t ask(const struct program *p, int number, uint64_t first, uint64_t second)
{
    const struct seccomp_data d = {
        .nr = number, .arch = AUDIT_ARCH_X86_64, .args = {first, second}};
    return run(p, &d);
}

static void test_plain(void **state)
{
    struct program p;
    compile(&p, "{\"defaultAction\": \"SCMP_ACT_ERRNO\", \"defaultErrnoRet\": 13, \"syscalls\": ["
                "{\"names\": [\"read\", \"write\", \"open\", \"close\", \"openat2\", \"nothing\"],"
                " \"action\": \"SCMP_ACT_ALLOW\"},"
                "{\"names\": [\"mkdir\"], \"action\": \"SCMP_ACT_KILL_PROCESS\"},"
                "{\"names\": [\"rmdir\"], \"action\": \"SCMP_ACT_ERRNO\"}]}");
    assert_int_equal(ask(&p, SYS_read, 0, 0), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_close, 0, 0), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_stat, 0, 0), SECCOMP_RET_ERRNO | EACCES);
    assert_int_equal(ask(&p, SYS_mkdir, 0, 0), SECCOMP_RET_KILL_PROCESS);
    assert_int_equal(ask(&p, SYS_rmdir, 0, 0), SECCOMP_RET_ERRNO | EPERM);
    /* Newer than all it names, of another ABI, of another architecture. */
    assert_int_equal(ask(&p, SYS_openat2 + 1, 0, 0), SECCOMP_RET_ERRNO | ENOSYS);
    assert_int_equal(ask(&p, 5000, 0, 0), SECCOMP_RET_ERRNO | ENOSYS);
    assert_int_equal(ask(&p, 1 << 30, 0, 0), SECCOMP_RET_ERRNO | ENOSYS);
    const struct seccomp_data other = {.nr = SYS_read, .arch = AUDIT_ARCH_I386};
    assert_int_equal(run(&p, &other), SECCOMP_RET_KILL_PROCESS);
    free(p.code);
}

#define RULE(op)                                                                                 \
    "{\"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": [{\"names\": [\"dup\"], \"action\": " \
    "\"SCMP_ACT_ERRNO\", \"args\": [{\"index\": 0, \"value\": 4294967298, \"valueTwo\": "        \
    "4294967296, \"op\": \"SCMP_CMP_" op "\"}]}]}"

/* Every comparison, with values whose halves decide differently. */
static void test_comparisons(void **state)
{
    static const uint64_t tried[] = {0,           1,           2,           3,
                                     0xffffffff,  0x100000000, 0x100000001, 0x100000002,
                                     0x100000003, 0x200000000, 0x200000002, UINT64_MAX};
    static const char *const rules[] = {RULE("EQ"), RULE("NE"), RULE("GT"),       RULE("GE"),
                                        RULE("LT"), RULE("LE"), RULE("MASKED_EQ")};
    for (size_t r = 0; r < ARRAY_LEN(rules); r++) {
        struct program p;
        compile(&p, rules[r]);
        for (size_t i = 0; i < ARRAY_LEN(tried); i++) {
            uint64_t v = tried[i], x = 0x100000002;
            const bool met[] = {
                v == x, v != x, v > x, v >= x, v < x, v <= x, (v & x) == 1ULL << 32};
            assert_int_equal(ask(&p, SYS_dup, v, 0),
                             met[r] ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_ALLOW);
            assert_int_equal(ask(&p, SYS_dup2, v, 0), SECCOMP_RET_ALLOW);
        }
        free(p.code);
    }
}

#define VALUE(op, value, two)                                                                    \
    "{\"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": [{\"names\": [\"dup\"], \"action\": " \
    "\"SCMP_ACT_ERRNO\", \"args\": [{\"index\": 0, \"value\": " value ", \"valueTwo\": " two     \
    ", \"op\": \"SCMP_CMP_" op "\"}]}]}"

/* Values that a double cannot hold are compared in all their bits. */
static void test_large_values(void **state)
{
    static const struct {
        const char *text;
        uint64_t value;
    } t[] = {
        {"9007199254740993", (1ULL << 53) + 1}, {"9223372036854775807", INT64_MAX},
        {"9223372036854775808", 1ULL << 63},    {"18446744073709551614", UINT64_MAX - 1},
        {"18446744073709551615", UINT64_MAX},   {"9223372036854775809", (1ULL << 63) + 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct program p;
        char text[256];
        (void)snprintf(text, sizeof(text), VALUE("EQ", "%s", "0"), t[i].text);
        compile(&p, text);
        assert_int_equal(ask(&p, SYS_dup, t[i].value, 0), SECCOMP_RET_ERRNO | EPERM);
        assert_int_equal(ask(&p, SYS_dup, t[i].value - 1, 0), SECCOMP_RET_ALLOW);
        assert_int_equal(ask(&p, SYS_dup, t[i].value + 1, 0), SECCOMP_RET_ALLOW);
        free(p.code);
    }
    struct program p;
    compile(&p, VALUE("MASKED_EQ", "18446744073709551614", "18446744073709551612"));
    assert_int_equal(ask(&p, SYS_dup, UINT64_MAX - 2, 0), SECCOMP_RET_ERRNO | EPERM);
    assert_int_equal(ask(&p, SYS_dup, UINT64_MAX, 0), SECCOMP_RET_ALLOW);
    free(p.code);
}

static void test_no_values(void **state)
{
    static const char *const bad[] = {
        VALUE("EQ", "-1", "0"),
        VALUE("EQ", "18446744073709551616", "0"),
        VALUE("EQ", "1.5", "0"),
        VALUE("EQ", "0", "\"much\""),
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = {0};
        size_t size;
        void *code;
        AUTO_JSON json_t *j = oci_json_parse(bad[i], strlen(bad[i]), "the profile", &e);
        assert_non_null(j);
        assert_int_equal(seccomp_compile(j, &code, &size, &e), -EINVAL);
        assert_non_null(strstr(e.msg, "from 0 to 2^64 - 1"));
    }
}

/* Digits in a string, a fraction or an exponent do not make a large number. */
static void test_numbers_in_text(void **state)
{
    static const char text[] =
        "{\"9223372036854775808\": \"\\\"9223372036854775808\", "
        "\"a\": [9223372036854775807, 9223372036854775808], "
        "\"r\": 0.9223372036854775808, \"f\": 9223372036854775808.5, "
        "\"e\": 1e0000000000000000001, \"n\": -9223372036854775807, \"z\": null}";
    struct err e = {0};
    uint64_t n = 0;
    AUTO_JSON json_t *j = oci_json_parse(text, strlen(text), "it", &e);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "9223372036854775808")),
                        "\"9223372036854775808");
    assert_true(oci_number(json_array_get(json_object_get(j, "a"), 0), &n) && n == INT64_MAX);
    assert_true(oci_number(json_array_get(json_object_get(j, "a"), 1), &n) && n == 1ULL << 63);
    assert_true(json_is_real(json_object_get(j, "r")) && json_is_real(json_object_get(j, "f")) &&
                json_real_value(json_object_get(j, "e")) == 10);
    assert_int_equal(json_integer_value(json_object_get(j, "n")), -INT64_MAX);
    assert_null(json_object_get(j, "z"));
}

/* All conditions of a rule have to be met; of several rules the first; then the one without. */
static void test_several(void **state)
{
    struct program p;
    compile(&p, "{\"defaultAction\": \"SCMP_ACT_ERRNO\", \"syscalls\": ["
                "{\"names\": [\"dup\", \"kill\"], \"action\": \"SCMP_ACT_ALLOW\", \"args\": ["
                "{\"index\": 0, \"value\": 1, \"op\": \"SCMP_CMP_EQ\"},"
                "{\"index\": 1, \"value\": 2, \"op\": \"SCMP_CMP_GT\"}]},"
                "{\"names\": [\"kill\"], \"action\": \"SCMP_ACT_TRAP\", \"args\": ["
                "{\"index\": 1, \"value\": 7, \"op\": \"SCMP_CMP_EQ\"}]},"
                "{\"names\": [\"kill\"], \"action\": \"SCMP_ACT_LOG\"}]}");
    assert_int_equal(ask(&p, SYS_dup, 1, 3), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_dup, 1, 2), SECCOMP_RET_ERRNO | EPERM);
    assert_int_equal(ask(&p, SYS_dup, 2, 3), SECCOMP_RET_ERRNO | EPERM);
    assert_int_equal(ask(&p, SYS_kill, 1, 7), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_kill, 2, 7), SECCOMP_RET_TRAP);
    assert_int_equal(ask(&p, SYS_kill, 2, 8), SECCOMP_RET_LOG);
    free(p.code);
}

/* Two conditions on one argument could hardly both be met: each of the rule's is enough. */
static void test_one_argument_twice(void **state)
{
    struct program p;
    compile(&p, "{\"defaultAction\": \"SCMP_ACT_ERRNO\", \"syscalls\": ["
                "{\"names\": [\"dup\"], \"action\": \"SCMP_ACT_ALLOW\", \"args\": ["
                "{\"index\": 0, \"value\": 1, \"op\": \"SCMP_CMP_EQ\"},"
                "{\"index\": 1, \"value\": 9, \"op\": \"SCMP_CMP_EQ\"},"
                "{\"index\": 0, \"value\": 5, \"op\": \"SCMP_CMP_EQ\"}]}]}");
    assert_int_equal(ask(&p, SYS_dup, 1, 0), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_dup, 5, 0), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_dup, 7, 9), SECCOMP_RET_ALLOW);
    assert_int_equal(ask(&p, SYS_dup, 7, 8), SECCOMP_RET_ERRNO | EPERM);
    free(p.code);
}

/* More than a program can hold is an error. */
static void test_too_large(void **state)
{
    struct err e = {0};
    size_t size;
    void *code;
    AUTO_FREE char *text = malloc(1 << 20);
    char *at = text + sprintf(text, "{\"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": [");
    for (int i = 0; i < 2000; i++)
        at += sprintf(
            at,
            "%s{\"names\": [\"dup\"], \"action\": \"SCMP_ACT_ERRNO\", \"args\": [{\"index\": "
            "0, \"value\": %d, \"op\": \"SCMP_CMP_EQ\"}]}",
            i ? "," : "", i);
    (void)sprintf(at, "]}");
    json_t *j = oci_json_parse(text, strlen(text), "the profile", &e);
    assert_int_equal(seccomp_compile(j, &code, &size, &e), -E2BIG);
    assert_null(code);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),           cmocka_unit_test(test_comparisons),
        cmocka_unit_test(test_several),         cmocka_unit_test(test_one_argument_twice),
        cmocka_unit_test(test_large_values),    cmocka_unit_test(test_no_values),
        cmocka_unit_test(test_numbers_in_text), cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
