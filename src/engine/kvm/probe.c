#include "engine/kvm/probe.h"

#include "engine/kvm/arch.h"
#include "engine/kvm/sys.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    DEADLINE_MS = 300, /* 0.3 million instructions in an emulator; on a busy host, all of them */
    TRIES = 3,         /* before a host counts as slow: it may have been busy */
    CACHE_MAX = 512,
    PAGE = 4096,
};

/* Instructions; an emulator of kernel mode runs one million a second, the slowest CPU a thousand
 * million. */
#define NATIVE_PER_S 3000000ULL
#define CACHE_FILE "kvm-probe"

static const char *device_path = "/dev/kvm";

void kvm_device_path(const char *path)
{
    device_path = path ? path : "/dev/kvm";
}

/* --- opening -------------------------------------------------------------------------------- */

static void explain_denied(int code, struct err *e)
{
    struct stat st;
    const struct passwd *pw = getpwuid(geteuid());
    char number[16]; /* of a user without a name, as containers have them */
    (void)snprintf(number, sizeof(number), "%u", geteuid());
    const char *user = pw ? pw->pw_name : number;
    const struct group *gr = stat(device_path, &st) == 0 ? getgrgid(st.st_gid) : NULL;
    err_sys(e, code, "user '%s' may not open %s", user, device_path);
    if (!gr || st.st_gid == 0 || (st.st_mode & 0060) != 0060) {
        err_hint(e, "no group has access to it; as root: setfacl -m u:%s:rw %s", user, device_path);
        return;
    }
    err_hint(e, "the group '%s' has access to it; as root: usermod -aG %s %s, then log in again",
             gr->gr_name, gr->gr_name, user);
}

int kvm_device_open(int *ret_fd, struct err *e)
{
    int fd = open(device_path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        *ret_fd = fd;
        return 0;
    }
    int code = errno;
    if (code == EACCES || code == EPERM) {
        explain_denied(code, e);
    } else {
        err_sys(e, code, "cannot open %s", device_path);
        err_hint(e, "enable hardware virtualization in the firmware (in a VM: nested "
                    "virtualization), and load its module: modprobe kvm_intel or kvm_amd");
    }
    return -code;
}

/* --- the probe VM --------------------------------------------------------------------------- */

struct finding {
    int code; /* -errno of the step that failed */
    char step[48];
    uint64_t ns;
};

static int run_program(int vm_fd, int vcpu_fd, size_t run_size, struct finding *f)
{
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvm_run *run = mmap(NULL, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu_fd, 0);
    if (page == MAP_FAILED || run == MAP_FAILED)
        return -errno;
    struct kvm_userspace_memory_region reg = {
        .guest_phys_addr = ARCH_PROBE_GPA, .memory_size = PAGE, .userspace_addr = (uintptr_t)page};
    (void)snprintf(f->step, sizeof(f->step), "its memory");
    int r = kvm_ioctl(vm_fd, KVM_SET_USER_MEMORY_REGION, &reg);
    (void)snprintf(f->step, sizeof(f->step), "its registers");
    if (r == 0)
        r = arch_probe_load(page, vcpu_fd);
    if (r < 0)
        return r;
    (void)snprintf(f->step, sizeof(f->step), "running it");
    uint64_t start = now_ns();
    do
        r = kvm_ioctl_n(vcpu_fd, KVM_RUN, 0);
    while (r == -EINTR);
    f->ns = now_ns() - start;
    if (r == 0 && !arch_probe_done(run)) {
        (void)snprintf(f->step, sizeof(f->step), "running it (exit %u)", run->exit_reason);
        r = -EIO;
    }
    return r;
}

/* In a child process, whose end releases everything. */
static void probe_child(int kvm_fd, struct finding *f)
{
    (void)snprintf(f->step, sizeof(f->step), "querying its version");
    f->code = kvm_ioctl_n(kvm_fd, KVM_GET_API_VERSION, 0);
    if (f->code >= 0 && f->code != KVM_API_VERSION)
        f->code = -EPROTO;
    if (f->code < 0)
        return;
    int size = kvm_ioctl_n(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    (void)snprintf(f->step, sizeof(f->step), "creating a machine");
    int vm = size < 0 ? size : kvm_ioctl_n(kvm_fd, KVM_CREATE_VM, 0);
    if (vm < 0) {
        f->code = vm;
        return;
    }
    (void)snprintf(f->step, sizeof(f->step), "creating a CPU");
    int vcpu = arch_probe_vm(vm);
    if (vcpu == 0)
        vcpu = kvm_ioctl_n(vm, KVM_CREATE_VCPU, 0);
    f->code = vcpu < 0 ? vcpu : run_program(vm, vcpu, (size_t)size, f);
}

static long cpu_ms(const struct rusage *ru)
{
    return (ru->ru_utime.tv_sec + ru->ru_stime.tv_sec) * 1000 +
           (ru->ru_utime.tv_usec + ru->ru_stime.tv_usec) / 1000;
}

/* -ETIMEDOUT if it did not finish in time; -ETIME if that was for lack of speed, not because the
 * host was busy with something else. */
static int probe_once(int kvm_fd, struct finding *f)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        probe_child(kvm_fd, f);
        _exit(write(p[1], f, sizeof(*f)) == (ssize_t)sizeof(*f) ? 0 : 1);
    }
    int r = pid < 0 ? -errno : 0;
    (void)close(p[1]);
    if (pid > 0) {
        struct pollfd pf = {.fd = p[0], .events = POLLIN};
        uint64_t until = now_ns() + DEADLINE_MS * 1000000ULL;
        int k;
        do {
            uint64_t now = now_ns();
            k = poll(&pf, 1, now < until ? (int)((until - now) / 1000000) : 0);
        } while (k < 0 && errno == EINTR);
        if (k == 0)
            r = -ETIMEDOUT;
        else if (read(p[0], f, sizeof(*f)) != (ssize_t)sizeof(*f))
            r = -EIO;
        (void)kill(pid, SIGKILL);
        struct rusage ru = {0};
        while (wait4(pid, NULL, 0, &ru) < 0 && errno == EINTR)
            ;
        if (r == -ETIMEDOUT && cpu_ms(&ru) > DEADLINE_MS / 2)
            r = -ETIME;
    }
    (void)close(p[0]);
    return r;
}

static void probe_now(int kvm_fd, struct kvm_probe *ret, struct err *e)
{
    *ret = (struct kvm_probe){.verdict = KVM_SLOW};
    for (int i = 0; i < TRIES && ret->verdict == KVM_SLOW; i++) {
        struct finding f = {.step = "starting a process"};
        int r = probe_once(kvm_fd, &f);
        if (r == -ETIME)
            return;
        if (r == -ETIMEDOUT)
            continue;
        if (r < 0 || f.code < 0) {
            ret->verdict = KVM_NOT_RUN;
            f.step[sizeof(f.step) - 1] = '\0';
            err_sys(e, r < 0 ? -r : -f.code, "%s opens, but a probe VM does not run: %s",
                    device_path, f.step);
            return;
        }
        uint64_t speed = ARCH_PROBE_INSNS * 1000000000ULL / MAX(f.ns, 1);
        ret->insns_per_s = MAX(ret->insns_per_s, speed);
        if (speed >= NATIVE_PER_S)
            ret->verdict = KVM_NATIVE;
    }
}

/* --- the cache ---------------------------------------------------------------------------- */

/* Identifies what a verdict is valid for: this boot of the host, and this device. False:
 * unknown. */
static bool host_identity(int kvm_fd, char *to, size_t size)
{
    struct stat st;
    char boot[64] = "";
    AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, boot, sizeof(boot) - 1);
    if (n < 36 || fstat(kvm_fd, &st) < 0)
        return false;
    boot[36] = '\0';
    (void)snprintf(to, size, "1 %s %s %u:%u %" PRIu64 " %" PRIu64, MSB_VERSION, boot,
                   major(st.st_rdev), minor(st.st_rdev), (uint64_t)st.st_dev, (uint64_t)st.st_ino);
    return true;
}

/* Accepts only a file that no other user can write to, and that is about this very host. */
static bool remembered(int cache_fd, const char *id, struct kvm_probe *ret)
{
    char text[CACHE_MAX], verdict[8];
    struct stat st;
    AUTO_CLOSE int fd =
        openat(cache_fd, CACHE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 0022) != 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    size_t len = strlen(id);
    if (n <= (ssize_t)len)
        return false;
    text[n] = '\0';
    uint64_t speed;
    if (strncmp(text, id, len) != 0 || text[len] != '\n' ||
        sscanf(text + len + 1, "%7s %" SCNu64, verdict, &speed) != 2)
        return false;
    bool native = strcmp(verdict, "native") == 0;
    if (!native && strcmp(verdict, "slow") != 0)
        return false;
    *ret = (struct kvm_probe){.verdict = native ? KVM_NATIVE : KVM_SLOW, .insns_per_s = speed};
    return true;
}

static void remember(int cache_fd, const char *id, const struct kvm_probe *p)
{
    char text[CACHE_MAX];
    int n = snprintf(text, sizeof(text), "%s\n%s %" PRIu64 "\n", id,
                     p->verdict == KVM_NATIVE ? "native" : "slow", p->insns_per_s);
    if (n > 0 && (size_t)n < sizeof(text))
        (void)file_replace_at(cache_fd, CACHE_FILE, text, (size_t)n, 0600, false);
}

/* The user's cache directory; -1 if there is none to which only the user can write. */
static int open_cache(void)
{
    char path[4096];
    struct stat st;
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/')
        (void)snprintf(path, sizeof(path), "%s/msb", base);
    else if (home && home[0] == '/')
        (void)snprintf(path, sizeof(path), "%s/.cache/msb", home);
    else
        return -1;
    (void)mkdir_parents(path, 0700);
    AUTO_CLOSE int fd = dir_open_at(AT_FDCWD, path);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 0022) != 0)
        return -1;
    return steal_fd(&fd);
}

void kvm_probe(int kvm_fd, bool fresh, struct kvm_probe *ret, struct err *e)
{
    char id[CACHE_MAX / 2];
    AUTO_CLOSE int cache_fd = open_cache();
    bool known = cache_fd >= 0 && host_identity(kvm_fd, id, sizeof(id));
    if (known && !fresh && remembered(cache_fd, id, ret))
        return;
    probe_now(kvm_fd, ret, e);
    if (known && ret->verdict != KVM_NOT_RUN)
        remember(cache_fd, id, ret);
}

void kvm_probe_speed(const struct kvm_probe *p, char *to, unsigned size)
{
    if (p->insns_per_s == 0)
        (void)snprintf(to, size, "below %d million instructions a second",
                       (int)(ARCH_PROBE_INSNS / 1000 / DEADLINE_MS) + 1);
    else
        (void)snprintf(to, size, "at %" PRIu64 ".%" PRIu64 " million instructions a second",
                       p->insns_per_s / 1000000, p->insns_per_s / 100000 % 10);
}
