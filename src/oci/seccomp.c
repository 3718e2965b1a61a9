#include "oci/seccomp.h"

#include "oci/process.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <asm/unistd.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "syscalls.h" /* of tools/gen-syscalls */

enum {
    NUMBERS = 1024,      /* system call numbers are below this */
    RULES_MAX = 4096,    /* names with conditions */
    ARGS = 6,            /* of a system call */
    FAIL = UINT8_MAX,    /* a jump to the next rule */
    SKIP_REST = 2,       /* a jump over the comparison of the lower half */
    X32_FIRST = 1 << 30, /* numbers of another ABI */
};

/* --- the profile ----------------------------------------------------------------------------- */

struct rule {
    uint32_t number, answer;
    const json_t *args; /* all of these must hold, */
    size_t first, end;  /* from one of them to before another */
};

struct profile {
    uint32_t otherwise;       /* the answer if no rule matches */
    uint32_t answer[NUMBERS]; /* without conditions; 0 is a valid answer, see known */
    bool known[NUMBERS];      /* there is one in answer */
    bool asks[NUMBERS];       /* there are rules with conditions */
    uint32_t last;            /* the highest number that the profile names */
    struct rule *rules;
    size_t n_rules;
};

static void profile_free(struct profile *p)
{
    free(p->rules);
}

static int compare_names(const void *name, const void *entry)
{
    return strcmp(name, entry);
}

/* -1: this architecture has none with that name, or none that was known at compile time. */
static int number_of(const char *name)
{
    const char *found = bsearch(name, system_calls, ARRAY_LEN(system_calls),
                                sizeof(system_calls[0]), compare_names);
    size_t i = found ? (size_t)(found - (const char *)system_calls) / sizeof(system_calls[0]) : 0;
    return found && system_calls[i].number < NUMBERS ? system_calls[i].number : -1;
}

static const struct {
    const char *name;
    uint32_t answer;
    bool code; /* it takes a number */
} actions[] = {
    {"SCMP_ACT_ALLOW", SECCOMP_RET_ALLOW, false},
    {"SCMP_ACT_ERRNO", SECCOMP_RET_ERRNO, true},
    {"SCMP_ACT_TRACE", SECCOMP_RET_TRACE, true},
    {"SCMP_ACT_LOG", SECCOMP_RET_LOG, false},
    {"SCMP_ACT_TRAP", SECCOMP_RET_TRAP, false},
    {"SCMP_ACT_KILL", SECCOMP_RET_KILL_THREAD, false},
    {"SCMP_ACT_KILL_THREAD", SECCOMP_RET_KILL_THREAD, false},
    {"SCMP_ACT_KILL_PROCESS", SECCOMP_RET_KILL_PROCESS, false},
};

static int read_action(const json_t *from, const char *key, const char *code_key, uint32_t *ret,
                       struct err *e)
{
    const char *name = json_string_value(json_object_get(from, key));
    const json_t *code = json_object_get(from, code_key);
    double number = json_is_number(code) ? json_number_value(code) : EPERM;
    for (size_t i = 0; name && i < ARRAY_LEN(actions); i++)
        if (strcmp(name, actions[i].name) == 0) {
            if (!(number >= 0 && number <= SECCOMP_RET_DATA))
                return err_set(e, EINVAL, "linux.seccomp: %s is not an error number", code_key);
            *ret = actions[i].answer | (actions[i].code ? (uint32_t)number : 0);
            return 0;
        }
    return err_set(e, ENOTSUP, "linux.seccomp: %s '%.64s' is not supported", key, name ? name : "");
}

static int add_rule(struct profile *p, const struct rule *rule, struct err *e)
{
    uint32_t number = rule->number;
    p->last = MAX(p->last, number);
    if (rule->first == rule->end) {
        if (!p->known[number])
            p->answer[number] = rule->answer;
        p->known[number] = true;
        return 0;
    }
    if (p->n_rules == RULES_MAX)
        return err_set(e, E2BIG, "linux.seccomp: at most %d rules with arguments", RULES_MAX);
    if (!p->rules && !(p->rules = calloc(RULES_MAX, sizeof(*p->rules))))
        return err_oom(e);
    p->asks[number] = true;
    p->rules[p->n_rules++] = *rule;
    return 0;
}

/* If two conditions are on the same argument, every condition becomes a separate rule: engines rely
 * on that. */
static bool are_apart(const json_t *args)
{
    bool seen[ARGS] = {false};
    const json_t *arg;
    size_t i;
    json_array_foreach(args, i, arg)
    {
        double index = json_number_value(json_object_get(arg, "index"));
        bool *at = index >= 0 && index < ARGS ? &seen[(size_t)index] : NULL;
        if (at && *at)
            return true;
        if (at)
            *at = true;
    }
    return false;
}

static int add_rules(struct profile *p, uint32_t number, uint32_t answer, const json_t *args,
                     struct err *e)
{
    size_t n = json_array_size(args), each = are_apart(args) ? 1 : n;
    struct rule rule = {number, answer, args, 0, each};
    int r;
    do {
        r = add_rule(p, &rule, e);
        rule.first = rule.end;
        rule.end += each;
    } while (r == 0 && rule.first < n);
    return r;
}

static int read_syscalls(struct profile *p, const json_t *entry, struct err *e)
{
    const json_t *names = json_object_get(entry, "names"), *v;
    const json_t *args = json_object_get(entry, "args");
    uint32_t answer = 0;
    size_t i;
    int r = read_action(entry, "action", "errnoRet", &answer, e);
    if (r == 0 && json_array_size(names) == 0)
        r = err_set(e, EINVAL, "linux.seccomp: an entry of syscalls has no names");
    if (r == 0 && json_array_size(args) > ARGS)
        r = err_set(e, E2BIG, "linux.seccomp: at most %d conditions to a rule", ARGS);
    json_array_foreach(names, i, v)
    {
        const char *name = json_string_value(v);
        int number = name ? number_of(name) : -1;
        if (r == 0 && !name)
            r = err_set(e, EINVAL, "linux.seccomp: the name of a system call is not a string");
        if (r == 0 && number >= 0)
            r = add_rules(p, (uint32_t)number, answer, args, e);
    }
    return r;
}

/* --- instructions ---------------------------------------------------------------------------- */

struct program {
    struct sock_filter *code;
    size_t n;
    bool full;
};

static size_t emit(struct program *g, uint16_t code, uint8_t yes, uint8_t no, uint32_t k)
{
    if (g->n == BPF_MAXINSNS) {
        g->full = true;
        return g->n - 1;
    }
    g->code[g->n] = (struct sock_filter){.code = code, .jt = yes, .jf = no, .k = k};
    return g->n++;
}

static void load(struct program *g, size_t at)
{
    (void)emit(g, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)at);
}

static void answer(struct program *g, uint32_t with)
{
    (void)emit(g, BPF_RET | BPF_K, 0, 0, with);
}

static void when(struct program *g, uint16_t how, uint32_t k, uint8_t yes, uint8_t no)
{
    (void)emit(g, BPF_JMP | how | BPF_K, yes, no, k);
}

/* One that is missing is 0. */
static int value_of(const json_t *arg, const char *key, uint64_t *ret, struct err *e)
{
    const json_t *v = json_object_get(arg, key);
    *ret = 0;
    return !v || oci_number(v, ret)
               ? 0
               : err_set(e, EINVAL, "linux.seccomp: %s must be a number from 0 to 2^64 - 1", key);
}

enum { EQ, NE, MASKED, GT, GE, LT, LE };
static const char *const ops[] = {
    [EQ] = "SCMP_CMP_EQ", [NE] = "SCMP_CMP_NE", [MASKED] = "SCMP_CMP_MASKED_EQ",
    [GT] = "SCMP_CMP_GT", [GE] = "SCMP_CMP_GE", [LT] = "SCMP_CMP_LT",
    [LE] = "SCMP_CMP_LE",
};

/* One condition: falls through if it holds, and jumps to FAIL if not. Arguments have 64 bits,
 * comparisons 32: the upper half decides, or else the lower. */
static int emit_condition(struct program *g, const json_t *arg, struct err *e)
{
    const char *name = json_string_value(json_object_get(arg, "op"));
    double index = json_number_value(json_object_get(arg, "index"));
    uint64_t value, two, mask = UINT64_MAX;
    size_t op = 0;
    int r = value_of(arg, "value", &value, e);
    if (r == 0)
        r = value_of(arg, "valueTwo", &two, e);
    if (r < 0)
        return r;
    while (op < ARRAY_LEN(ops) && (!name || strcmp(name, ops[op]) != 0))
        op++;
    if (op == ARRAY_LEN(ops) || !(index >= 0 && index < ARGS))
        return err_set(e, EINVAL, "linux.seccomp: cannot read a condition (index %g, op '%.32s')",
                       index, name ? name : "");
    if (op == MASKED) {
        mask = value;
        value = two;
    }
    size_t low = offsetof(struct seccomp_data, args) + (size_t)index * sizeof(uint64_t);
    uint32_t upper = (uint32_t)(value >> 32), lower = (uint32_t)value;
    load(g, low + sizeof(uint32_t)); /* little-endian */
    if (op == MASKED)
        (void)emit(g, BPF_ALU | BPF_AND | BPF_K, 0, 0, (uint32_t)(mask >> 32));
    if (op == GT || op == GE)
        when(g, BPF_JGT, upper, SKIP_REST + 1, 0);
    else if (op == LT || op == LE)
        when(g, BPF_JGT, upper, FAIL, 0);
    when(g, BPF_JEQ, upper, 0, op == NE || op == LT || op == LE ? SKIP_REST : FAIL);
    load(g, low);
    if (op == MASKED)
        (void)emit(g, BPF_ALU | BPF_AND | BPF_K, 0, 0, (uint32_t)mask);
    bool inverted = op == NE || op == LE || op == LT;
    when(g,
         op == GT || op == LE   ? BPF_JGT
         : op == GE || op == LT ? BPF_JGE
                                : BPF_JEQ,
         lower, inverted ? FAIL : 0, inverted ? 0 : FAIL);
    return 0;
}

static int emit_rule(struct program *g, const struct rule *r, struct err *e)
{
    size_t begin = g->n;
    for (size_t i = r->first; i < r->end; i++) {
        int k = emit_condition(g, json_array_get(r->args, i), e);
        if (k < 0)
            return k;
    }
    answer(g, r->answer);
    for (size_t k = begin; k + 1 < g->n; k++) {
        uint8_t away = (uint8_t)(g->n - k - 1);
        g->code[k].jt = g->code[k].jt == FAIL ? away : g->code[k].jt;
        g->code[k].jf = g->code[k].jf == FAIL ? away : g->code[k].jf;
    }
    return 0;
}

/* --- the program ----------------------------------------------------------------------------- */

/* The answer without conditions. Numbers beyond all those in the profile belong to system calls
 * that its author did not know: programs can handle a missing system call, but not a forbidden
 * one. */
static uint32_t plain_answer(const struct profile *p, uint32_t number)
{
    if (number < NUMBERS && p->known[number])
        return p->answer[number];
    bool newer =
        number > p->last && p->otherwise != SECCOMP_RET_ALLOW && p->otherwise != SECCOMP_RET_LOG;
    return newer ? SECCOMP_RET_ERRNO | ENOSYS : p->otherwise;
}

static bool begins_segment(const struct profile *p, uint32_t n)
{
    return n == 0 || p->asks[n] || p->asks[n - 1] || plain_answer(p, n) != plain_answer(p, n - 1);
}

static int emit_leaf(struct program *g, const struct profile *p, uint32_t number, struct err *e)
{
    for (size_t i = 0; p->asks[number] && i < p->n_rules; i++) {
        int r = p->rules[i].number == number ? emit_rule(g, &p->rules[i], e) : 0;
        if (r < 0)
            return r;
    }
    answer(g, plain_answer(p, number));
    return 0;
}

/* Emits the binary search for the segment. Conditional jumps reach 255 instructions, others as far
 * as needed. */
static int emit_tree(struct program *g, const struct profile *p, const uint32_t *starts, size_t n,
                     struct err *e)
{
    if (n == 1)
        return emit_leaf(g, p, starts[0], e);
    when(g, BPF_JGE, starts[n / 2], 0, 1);
    size_t jump = emit(g, BPF_JMP | BPF_JA, 0, 0, 0);
    int r = emit_tree(g, p, starts, n / 2, e);
    g->code[jump].k = (uint32_t)(g->n - jump - 1);
    return r < 0 ? r : emit_tree(g, p, starts + n / 2, n - n / 2, e);
}

static int emit_all(struct program *g, const struct profile *p, struct err *e)
{
    uint32_t starts[NUMBERS] = {0};
    size_t n = 0;
    for (uint32_t i = 0; i < NUMBERS; i++)
        if (begins_segment(p, i))
            starts[n++] = i;
    load(g, offsetof(struct seccomp_data, arch));
    when(g, BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
    answer(g, SECCOMP_RET_KILL_PROCESS);
    load(g, offsetof(struct seccomp_data, nr));
    when(g, BPF_JGE, X32_FIRST, 0, 1);
    answer(g, SECCOMP_RET_ERRNO | ENOSYS);
    int r = emit_tree(g, p, starts, n, e);
    if (r == 0 && g->full)
        r = err_set(e, E2BIG, "linux.seccomp: the profile is too large");
    return r;
}

json_t *seccomp_features(void)
{
    json_t *names = json_array(), *operators = json_array();
    for (size_t i = 0; i < ARRAY_LEN(actions); i++)
        json_add(&names, json_string(actions[i].name));
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        json_add(&operators, json_string(ops[i]));
    return json_pack("{s:b, s:o, s:o, s:[s]}", "enabled", 1, "actions", names, "operators",
                     operators, "archs", "SCMP_ARCH_X86_64");
}

int seccomp_compile(const json_t *seccomp, void **ret, size_t *size, struct err *e)
{
    CLEANUP(profile_free) struct profile p = {0};
    const json_t *v;
    size_t i;
    *ret = NULL;
    *size = 0;
    if (!seccomp)
        return 0;
    int r = read_action(seccomp, "defaultAction", "defaultErrnoRet", &p.otherwise, e);
    json_array_foreach(json_object_get(seccomp, "syscalls"), i, v) r =
        r < 0 ? r : read_syscalls(&p, v, e);
    AUTO_FREE struct sock_filter *code = calloc(BPF_MAXINSNS, sizeof(*code));
    if (r == 0 && !code)
        r = err_oom(e);
    struct program g = {.code = code};
    if (r == 0)
        r = emit_all(&g, &p, e);
    if (r < 0)
        return r;
    *ret = steal_ptr(&code);
    *size = g.n * sizeof(*g.code);
    return 0;
}
