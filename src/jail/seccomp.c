#include "jail/seccomp.h"

#include "util/cleanup.h"
#include "util/kernel.h"
#include "util/newer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "seccomp_lists.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

/* #syscalls:monitor,fs exit exit_group rt_sigreturn restart_syscall futex
 * mmap munmap brk madvise mremap
 * rseq sched_yield set_robust_list rt_sigprocmask getrandom */

/* #syscalls:net exit exit_group rt_sigreturn restart_syscall futex
 * mmap munmap brk madvise mremap
 * rseq sched_yield set_robust_list rt_sigprocmask getrandom */

#if defined(__x86_64__)
#define HOST_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define HOST_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#error "no seccomp architecture for this machine"
#endif

#define SET_ID (S_ISUID | S_ISGID)

enum { FILTER_MAX = 512, RULE_SETS_MAX = 4 };

/* A call that is allowed if an argument, masked, has the given value, and so does a second one if
 * there is a second mask. A call with rules is denied if none of them matches, whether or not it is
 * in the generated list. */
struct arg_rule {
    int nr;
    unsigned arg; /* its lower half, or HIGH(arg) */
    uint32_t mask, value;
    unsigned arg2;
    uint32_t mask2, value2;
    bool ask; /* the supervisor decides, if there is one */
};

enum { N_ARGS = 6 };
#define HIGH(arg) ((arg) + N_ARGS)

/* Whatever its arguments. */
#define ASK(number)                 \
    {                               \
        .nr = (number), .ask = true \
    }

#define NEVER(number)                         \
    {                                         \
        .nr = (number), .mask = 0, .value = 1 \
    }

/* Descriptors are never made blocking: some are shared with other processes. */
#define SET_NONBLOCK                                                  \
    {                                                                 \
        __NR_fcntl, 1, UINT32_MAX, F_SETFL, 2, O_NONBLOCK, O_NONBLOCK \
    }

/* Memory, but no code; and none that is neither counted by RLIMIT_DATA nor backed by a file: shared
 * and anonymous, or growing. */
#define MAP_NO_CODE                                                                          \
    {__NR_mmap, 2, PROT_EXEC, 0, 3, MAP_ANONYMOUS | MAP_GROWSDOWN, 0},                       \
    {                                                                                        \
        __NR_mmap, 2, PROT_EXEC, 0, 3, MAP_SHARED | MAP_PRIVATE | MAP_GROWSDOWN, MAP_PRIVATE \
    }

static const struct arg_rule monitor_rules[] = {
    MAP_NO_CODE,
    /* No record locks (one shows that it is alive), and no copies of descriptors. */
    {__NR_fcntl, 1, UINT32_MAX, F_GETFL},
    SET_NONBLOCK,
    /* What makes a virtual CPU exit (engine/kvm/vcpu.c), where it is handled. */
    {__NR_tgkill, 2, UINT32_MAX, SIGUSR1},
};

static const struct arg_rule net_rules[] = {
    MAP_NO_CODE,
    {__NR_fcntl, 1, UINT32_MAX, F_GETFL},
    SET_NONBLOCK,
    /* The Internet, and pairs for connections that end in this process; listen() is not allowed. */
    {__NR_socket, 0, UINT32_MAX, AF_INET},
    {__NR_socket, 0, UINT32_MAX, AF_INET6},
    {__NR_socketpair, 0, UINT32_MAX, AF_UNIX},
};

static const struct arg_rule vcpu_rules[] = {
    {__NR_ioctl, 1, UINT32_MAX, KVM_RUN},
    {__NR_ioctl, 1, UINT32_MAX, KVM_GET_MP_STATE},
    /* The C library's, on the stack of a thread that ends. */
    {__NR_madvise, 2, UINT32_MAX, MADV_DONTNEED},
};

static const struct arg_rule uml_rules[] = {
    /* Guest memory and the kernel's own heap. Memory that is neither in the guest memory file nor
     * counted by RLIMIT_DATA (shared and anonymous, or growing) would have no limit: the kernel has
     * one such mapping, which the supervisor knows. */
    {__NR_mmap, 3, ~(uint32_t)MAP_POPULATE, MAP_SHARED | MAP_FIXED},
    {__NR_mmap, 3, UINT32_MAX, MAP_PRIVATE | MAP_ANONYMOUS},
    {__NR_mmap, 3, UINT32_MAX, MAP_PRIVATE},
    {__NR_mmap, 3, UINT32_MAX, MAP_SHARED | MAP_ANONYMOUS, .ask = true},
    /* Free guest memory is returned to the host: a hole in its file. */
    {__NR_madvise, 2, UINT32_MAX, MADV_REMOVE},
    /* Stubs install their own filter. */
    {__NR_prctl, 0, UINT32_MAX, PR_SET_NO_NEW_PRIVS},
    {__NR_seccomp, 0, UINT32_MAX, SECCOMP_SET_MODE_FILTER, 1, ~(uint32_t)SECCOMP_FILTER_FLAG_TSYNC,
     0},
    /* Limits can be read. */
    {__NR_prlimit64, 2, UINT32_MAX, 0, HIGH(2), UINT32_MAX, 0},
    {__NR_fcntl, 1, UINT32_MAX, F_SETFD},
    {__NR_fcntl, 1, UINT32_MAX, F_GETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_SETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_SETSIG},
    {__NR_dup2, 1, UINT32_MAX, STDIN_FILENO},
    {__NR_fchmod, 1, UINT32_MAX, S_IRUSR | S_IXUSR},
    /* A stub: it shares the kernel's memory until it executes a program. */
    {__NR_clone, 0, ~(uint32_t)SIGCHLD, CLONE_VM | CLONE_VFORK},
    {__NR_execveat, 4, UINT32_MAX, AT_EMPTY_PATH, .ask = true},
};

/* In its own namespaces, where it sees only its own processes, sockets and files. */
static const struct arg_rule uml_own_rules[] = {
    /* The kernel connects to its devices and talks to its stubs; it needs no other family. */
    {__NR_socket, 0, UINT32_MAX, AF_UNIX},
    {__NR_socketpair, 0, UINT32_MAX, AF_UNIX},
    /* Stubs die with their kernel. */
    {__NR_prctl, 0, UINT32_MAX, PR_SET_PDEATHSIG},
    {__NR_fcntl, 1, UINT32_MAX, F_SETOWN},
    /* Without a mask, which a filter cannot see: the supervisor sets one. For the host, it is an
     * error. */
    {__NR_sched_setaffinity, 2, UINT32_MAX, 0, HIGH(2), UINT32_MAX, 0, .ask = true},
};

/* If the host randomizes its heap's address: the supervisor tells where it is. */
static const struct arg_rule uml_floating_rules[] = {
    ASK(__NR_brk),
};

/* Without its own namespaces: it would see the caller's files, processes and sockets, so it has no
 * calls that name them; its supervisor makes the ones that it needs on its behalf
 * (engine/uml/desk.h). */
static const struct arg_rule uml_reduced_rules[] = {
    ASK(__NR_openat),
    ASK(__NR_mkdir),
    ASK(__NR_memfd_create),
    ASK(__NR_connect),
    ASK(__NR_brk),
    /* Signals to its own process group; otherwise only to a process that it started. */
    {__NR_kill, 0, UINT32_MAX, 0},
    ASK(__NR_kill),
    /* Signals go where a descriptor's owner is. */
    {__NR_fcntl, 1, UINT32_MAX, F_SETOWN, .ask = true},
    /* Datagrams could be sent to any socket that has a name. */
    {__NR_socket, 0, UINT32_MAX, AF_UNIX, 1, UINT32_MAX, SOCK_STREAM},
    {__NR_socketpair, 0, UINT32_MAX, AF_UNIX, 1, UINT32_MAX, SOCK_STREAM},
    {__NR_prctl, 0, UINT32_MAX, PR_SET_PDEATHSIG, 1, UINT32_MAX, SIGKILL},
    NEVER(__NR_unlink),
    NEVER(__NR_rmdir),
    NEVER(__NR_statfs),
    NEVER(__NR_newfstatat),
};

/* A kernel with several CPUs has a thread for each, which interrupt each other. */
static const struct arg_rule uml_smp_rules[] = {
    {__NR_clone, 0, UINT32_MAX,
     CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
         CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID,
     .ask = true},
    {__NR_tgkill, 2, UINT32_MAX, SIGUSR2},
};

/* A kernel that traces its stubs also forks, to find out what tracing supports. */
static const struct arg_rule uml_ptrace_rules[] = {
    {__NR_clone, 0, UINT32_MAX, CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | SIGCHLD, .ask = true},
};

/* The supervisor of the above. */
static const struct arg_rule reaper_rules[] = {
    {__NR_ioctl, 1, UINT32_MAX, (uint32_t)SECCOMP_IOCTL_NOTIF_RECV},
    {__NR_ioctl, 1, UINT32_MAX, (uint32_t)SECCOMP_IOCTL_NOTIF_SEND},
};

static const struct arg_rule reaper_reduced_rules[] = {
    {__NR_ioctl, 1, UINT32_MAX, (uint32_t)SECCOMP_IOCTL_NOTIF_ADDFD},
};

/* Calls that a sanitizer's runtime adds to those of the code under test. */
static const int syscalls_sanitizer[] = {
#if defined(__SANITIZE_ADDRESS__)
    __NR_sigaltstack,
    __NR_gettid,
    __NR_sched_getaffinity,
#endif
    -1,
};

static const struct arg_rule fs_rules[] = {
    MAP_NO_CODE,
    {__NR_fcntl, 1, UINT32_MAX, F_GETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_SETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_DUPFD_CLOEXEC},
    /* Nothing with a set-ID bit, and no device nodes. (openat2, whose arguments a filter cannot
     * see, is not allowed.) */
    {__NR_openat, 3, SET_ID, 0},
    {__NR_mkdirat, 2, SET_ID, 0},
    {__NR_mknodat, 2, SET_ID | S_IFMT, S_IFREG},
    {__NR_mknodat, 2, SET_ID | S_IFMT, S_IFIFO},
    {__NR_mknodat, 2, SET_ID | S_IFMT, S_IFSOCK},
};

static const struct arg_rule fs_no_owners_rules[] = {
    {__NR_fchmodat, 2, SET_ID, 0},
};

static const struct arg_rule connector_rules[] = {
    {__NR_socket, 0, UINT32_MAX, AF_UNIX},
};

static const struct arg_rule intercept_rules[] = {
    MAP_NO_CODE,
    {__NR_setsockopt, 1, UINT32_MAX, SOL_SOCKET, 2, UINT32_MAX, SO_RCVTIMEO},
};

static const struct arg_rule converter_rules[] = {
    MAP_NO_CODE,
    {__NR_mprotect, 2, PROT_EXEC, 0},
};

static const struct arg_rule bucket_rules[] = {
    MAP_NO_CODE,
    /* Code comes from files: modules of the resolver. */
    {__NR_mmap, 3, MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, MAP_PRIVATE},
    {__NR_mprotect, 2, PROT_EXEC, 0},
    /* A thread. The C library uses this call where clone3, whose flags a filter cannot see, is
     * missing. */
    {__NR_clone, 0, UINT32_MAX,
     CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
         CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID},
    {__NR_socket, 0, UINT32_MAX, AF_INET},
    {__NR_socket, 0, UINT32_MAX, AF_INET6},
    /* The resolver asks which addresses the host has. */
    {__NR_socket, 0, UINT32_MAX, AF_NETLINK, 2, UINT32_MAX, NETLINK_ROUTE},
    {__NR_socketpair, 0, UINT32_MAX, AF_UNIX},
    {__NR_ioctl, 1, UINT32_MAX, FIONREAD},
    {__NR_ioctl, 1, UINT32_MAX, FIONBIO},
    /* The interface of a server with a link-local address. */
    {__NR_ioctl, 1, UINT32_MAX, SIOCGIFINDEX},
    {__NR_ioctl, 1, UINT32_MAX, SIOCGIFNAME},
    {__NR_fcntl, 1, UINT32_MAX, F_GETFD},
    {__NR_fcntl, 1, UINT32_MAX, F_SETFD},
    {__NR_fcntl, 1, UINT32_MAX, F_GETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_SETFL},
    {__NR_fcntl, 1, UINT32_MAX, F_DUPFD_CLOEXEC},
    {__NR_prlimit64, 2, UINT32_MAX, 0, HIGH(2), UINT32_MAX, 0},
    {__NR_openat, 3, SET_ID, 0},
    {__NR_mkdirat, 2, SET_ID, 0},
    {__NR_fchmod, 1, SET_ID, 0},
};

static const struct arg_rule bucket_unix_rules[] = {
    {__NR_socket, 0, UINT32_MAX, AF_UNIX, 1, ~(uint32_t)(SOCK_CLOEXEC | SOCK_NONBLOCK),
     SOCK_STREAM},
};

struct program {
    struct sock_filter insn[FILTER_MAX];
    unsigned short n;
};

static void emit(struct program *p, uint16_t code, uint8_t jt, uint8_t jf, uint32_t k)
{
    if (p->n < FILTER_MAX)
        p->insn[p->n] = (struct sock_filter){code, jt, jf, k};
    p->n++;
}

static void emit_load(struct program *p, size_t offset)
{
    emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

static void emit_arg(struct program *p, unsigned arg)
{
    emit_load(p, offsetof(struct seccomp_data, args) + sizeof(uint64_t) * (arg % N_ARGS) +
                     sizeof(uint32_t) * (arg / N_ARGS));
}

static void emit_rule(struct program *p, const struct arg_rule *r, bool supervised)
{
    bool two = r->mask2 != 0;
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, two ? 8 : 5, (uint32_t)r->nr);
    emit_arg(p, r->arg);
    emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, r->mask);
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, two ? 4 : 1, r->value);
    if (two) {
        emit_arg(p, r->arg2);
        emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, r->mask2);
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, r->value2);
    }
    emit(p, BPF_RET | BPF_K, 0, 0,
         r->ask && supervised ? SECCOMP_RET_USER_NOTIF : SECCOMP_RET_ALLOW);
    emit_load(p, offsetof(struct seccomp_data, nr)); /* for the next rule */
}

struct profile {
    const int *list, *more; /* two allow-lists; `more` may be NULL */
    size_t n, n_more;
    struct {
        const struct arg_rule *rule;
        size_t n;
    } rules[RULE_SETS_MAX];
    uint32_t deny;
    bool yields;          /* sched_yield() is allowed where it does no harm (util/kernel.h) */
    bool supervised_only; /* without a supervisor it would allow too much */
};
#define LIST(l) .list = (l), .n = ARRAY_LEN(l)
#define MORE(l) .more = (l), .n_more = ARRAY_LEN(l)
#define SET(r)            \
    {                     \
        (r), ARRAY_LEN(r) \
    }
#define RULES(...) .rules = {__VA_ARGS__}

static const struct profile profiles[] = {
    [SECCOMP_MONITOR] = {LIST(syscalls_monitor), RULES(SET(monitor_rules)),
                         .deny = SECCOMP_RET_TRAP},
    [SECCOMP_MONITOR_POD] = {LIST(syscalls_monitor), MORE(syscalls_monitor_pod),
                             RULES(SET(monitor_rules)), .deny = SECCOMP_RET_TRAP},
    [SECCOMP_NET] = {LIST(syscalls_net), RULES(SET(net_rules)), .deny = SECCOMP_RET_TRAP},
    [SECCOMP_VCPU] = {LIST(syscalls_vcpu), RULES(SET(vcpu_rules)), .deny = SECCOMP_RET_TRAP},
    [SECCOMP_REAPER] = {LIST(syscalls_reaper), RULES(SET(reaper_rules)),
                        .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_REAPER_REDUCED] = {LIST(syscalls_reaper), MORE(syscalls_reaper_reduced),
                                RULES(SET(reaper_rules), SET(reaper_reduced_rules)),
                                .deny = SECCOMP_RET_KILL_PROCESS},
    /* ERRNO: calls of guest processes pass this filter as well as their stub's own, and only a
     * weaker verdict lets that one trap them. */
    [SECCOMP_UML] = {LIST(syscalls_uml), RULES(SET(uml_rules), SET(uml_own_rules)),
                     .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true},
    [SECCOMP_UML_FLOATING] = {LIST(syscalls_uml),
                              RULES(SET(uml_rules), SET(uml_own_rules), SET(uml_floating_rules)),
                              .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true},
    [SECCOMP_UML_SMP] = {LIST(syscalls_uml),
                         RULES(SET(uml_rules), SET(uml_own_rules), SET(uml_smp_rules)),
                         .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true},
    [SECCOMP_UML_SMP_FLOATING] = {LIST(syscalls_uml),
                                  RULES(SET(uml_rules), SET(uml_own_rules), SET(uml_smp_rules),
                                        SET(uml_floating_rules)),
                                  .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true},
    [SECCOMP_UML_REDUCED] = {LIST(syscalls_uml), RULES(SET(uml_rules), SET(uml_reduced_rules)),
                             .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true,
                             .supervised_only = true},
    [SECCOMP_UML_PTRACE] = {LIST(syscalls_uml), MORE(syscalls_uml_ptrace),
                            RULES(SET(uml_rules), SET(uml_own_rules), SET(uml_ptrace_rules)),
                            .deny = SECCOMP_RET_ERRNO | ENOSYS, .yields = true},
    [SECCOMP_FS] = {LIST(syscalls_fs), RULES(SET(fs_rules), SET(fs_no_owners_rules)),
                    .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_FS_OWNERS] = {LIST(syscalls_fs), MORE(syscalls_fs_owners), RULES(SET(fs_rules)),
                           .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_FS_LATER] = {LIST(syscalls_fs), MORE(syscalls_fs_later),
                          RULES(SET(fs_rules), SET(fs_no_owners_rules)),
                          .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_CONNECTOR] = {LIST(syscalls_connector), RULES(SET(connector_rules)),
                           .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_INTERCEPT] = {LIST(syscalls_intercept), .more = syscalls_sanitizer,
                           .n_more = ARRAY_LEN(syscalls_sanitizer) - 1, RULES(SET(intercept_rules)),
                           .deny = SECCOMP_RET_KILL_PROCESS},
    [SECCOMP_CONVERTER] = {LIST(syscalls_converter), .more = syscalls_sanitizer,
                           .n_more = ARRAY_LEN(syscalls_sanitizer) - 1, RULES(SET(converter_rules)),
                           .deny = SECCOMP_RET_KILL_PROCESS},
    /* ERRNO: libcurl and what it loads make other calls on other hosts, and can do without. */
    [SECCOMP_BUCKET] = {LIST(syscalls_bucket), .more = syscalls_sanitizer,
                        .n_more = ARRAY_LEN(syscalls_sanitizer) - 1, RULES(SET(bucket_rules)),
                        .deny = SECCOMP_RET_ERRNO | ENOSYS},
    [SECCOMP_BUCKET_UNIX] = {LIST(syscalls_bucket), .more = syscalls_sanitizer,
                             .n_more = ARRAY_LEN(syscalls_sanitizer) - 1,
                             RULES(SET(bucket_rules), SET(bucket_unix_rules)),
                             .deny = SECCOMP_RET_ERRNO | ENOSYS},
};

static bool has_rules(const struct profile *pr, int nr)
{
    for (size_t k = 0; k < RULE_SETS_MAX; k++)
        for (size_t i = 0; i < pr->rules[k].n; i++)
            if (pr->rules[k].rule[i].nr == nr)
                return true;
    return false;
}

static void emit_list(struct program *p, const struct profile *pr, const int *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (has_rules(pr, list[i]))
            continue;
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)list[i]);
        emit(p, BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    }
}

static int build(struct program *p, const struct profile *pr, bool supervised)
{
    emit_load(p, offsetof(struct seccomp_data, arch));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, HOST_AUDIT_ARCH);
    /* Where calls are refused with an error, those of another architecture are, too: a guest's
     * 32-bit call is for its kernel to handle, and must not kill the stub. */
    bool error = (pr->deny & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO;
    emit(p, BPF_RET | BPF_K, 0, 0, error ? pr->deny : SECCOMP_RET_KILL_PROCESS);
    /* x32 calls have other numbers, so they are denied like anything that is not listed. */
    emit_load(p, offsetof(struct seccomp_data, nr));
    for (size_t k = 0; k < RULE_SETS_MAX; k++)
        for (size_t i = 0; i < pr->rules[k].n; i++)
            emit_rule(p, &pr->rules[k].rule[i], supervised);
    emit_list(p, pr, pr->list, pr->n);
    emit_list(p, pr, pr->more, pr->n_more);
    if (pr->yields && kernel_yields_fairly())
        emit_list(p, pr, &(int){__NR_sched_yield}, 1);
    emit(p, BPF_RET | BPF_K, 0, 0, pr->deny);
    return p->n <= FILTER_MAX ? 0 : -E2BIG;
}

/* A descriptor if `flags` ask for one, else 0. */
static int install(enum seccomp_profile profile, bool supervised, unsigned flags)
{
    struct program p = {0};
    if (profiles[profile].supervised_only && !supervised)
        return -EINVAL;
    int r = build(&p, &profiles[profile], supervised);
    if (r < 0)
        return r;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    struct sock_fprog prog = {.len = p.n, .filter = p.insn};
    int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
    return fd < 0 ? -errno : fd;
}

int seccomp_enter(enum seccomp_profile profile)
{
    return install(profile, false, 0);
}

int seccomp_enter_supervised(enum seccomp_profile profile)
{
    /* Once the supervisor handles a call, signals no longer interrupt it, if the host's kernel
     * supports that (Linux 5.19). */
    const unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    int fd = install(profile, true, flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    return fd == -EINVAL ? install(profile, true, flags) : fd;
}
