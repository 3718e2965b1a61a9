/* The kvm engine against a fake KVM that the test scripts: how guests end, what they can touch, and
 * what happens when any call fails. */
#include <dirent.h>
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kvm/arch.h"
#include "engine/kvm/kvm.h"
#include "fake_kernel.h"
#include "fake_kvm.h"
#include "unit.h"
#include "util/cleanup.h"
#include "virtio/rng.h"

enum { MEMORY = 64 << 20 };

struct bench {
    struct loop loop;
    struct virtio_dev *rng;
    struct engine *en;
    int kernel_fd, kvm_fd;
    struct engine_params p;
    bool ended, clean;
    char how[256];
    char console[4096];
    size_t console_len;
};

static void on_ended(void *ctx, bool clean, const char *how)
{
    struct bench *b = ctx;
    assert_false(b->ended); /* once */
    b->ended = true;
    b->clean = clean;
    (void)snprintf(b->how, sizeof(b->how), "%s", how);
}

static void on_console(void *ctx, const char *p, size_t n)
{
    struct bench *b = ctx;
    n = MIN(n, sizeof(b->console) - 1 - b->console_len);
    memcpy(b->console + b->console_len, p, n);
    b->console_len += n;
}

static void on_broken(void *ctx, const char *what)
{
}

static const struct engine_events events = {
    .ended = on_ended, .console = on_console, .device_broken = on_broken};

static void setup(struct bench *b, fake_script script, unsigned n_cpus)
{
    struct fake_kernel k = fake_kernel();
    *b = (struct bench){.kernel_fd = fake_file(&k, sizeof(k)), .kvm_fd = fake_file("", 0)};
    assert_int_equal(loop_init(&b->loop), 0);
    assert_int_equal(virtio_rng_new(&b->rng), 0);
    fake_kvm_begin(script);
    b->p = (struct engine_params){.memory_bytes = MEMORY,
                                  .n_cpus = n_cpus,
                                  .device_fd = b->kvm_fd,
                                  .kernel_fd = b->kernel_fd,
                                  .init = "/init",
                                  .devices = {{b->rng, &b->loop}},
                                  .n_devices = 1};
}

static int start(struct bench *b, struct err *e)
{
    int r = engine_kvm.start(&b->en, &b->p, &b->loop, &events, b, e);
    return r < 0 ? r : kvm_run_unfiltered(b->en, e);
}

static void run_to_the_end(struct bench *b)
{
    struct err e = {0};
    assert_int_equal(start(b, &e), 0);
    while (!b->ended)
        assert_int_equal(loop_turn(&b->loop, 5000), 0);
}

static void teardown(struct bench *b)
{
    engine_kvm.free(b->en);
    virtio_dev_free(b->rng);
    (void)close(b->kernel_fd);
    (void)close(b->kvm_fd);
    loop_fini(&b->loop);
    fake_kvm_end();
}

/* --- scripts --------------------------------------------------------------------------------- */

static int idle(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return fake_wait(run);
}

static int reason(struct kvm_run *run, uint32_t exit_reason)
{
    run->exit_reason = exit_reason;
    return 0;
}

static int write_reg(struct kvm_run *run, uint64_t at, uint32_t v)
{
    run->mmio.phys_addr = at;
    run->mmio.len = 4;
    run->mmio.is_write = 1;
    memcpy(run->mmio.data, &v, sizeof(v));
    return reason(run, KVM_EXIT_MMIO);
}

/* A driver of the rng, register by register. */
static const struct {
    uint32_t reg, value;
} bring_up[] = {
    {VIRTIO_MMIO_STATUS, 1},
    {VIRTIO_MMIO_STATUS, 3},
    {VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1},
    {VIRTIO_MMIO_DRIVER_FEATURES, 1},
    {VIRTIO_MMIO_STATUS, 11},
    {VIRTIO_MMIO_QUEUE_SEL, 0},
    {VIRTIO_MMIO_QUEUE_NUM, 16},
    {VIRTIO_MMIO_QUEUE_DESC_LOW, 0x200000},
    {VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x201000},
    {VIRTIO_MMIO_QUEUE_USED_LOW, 0x202000},
    {VIRTIO_MMIO_QUEUE_READY, 1},
    {VIRTIO_MMIO_STATUS, 15},
};

static int up_then(unsigned cpu, unsigned step, struct kvm_run *run,
                   int (*then)(unsigned step, struct kvm_run *run))
{
    if (cpu > 0)
        return fake_wait(run);
    if (step < ARRAY_LEN(bring_up))
        return write_reg(run, arch_device_gpa(0) + bring_up[step].reg, bring_up[step].value);
    return then(step - ARRAY_LEN(bring_up), run);
}

/* --- ends ------------------------------------------------------------------------------------ */

static void test_kill(void **state)
{
    for (unsigned n = 1; n <= ARCH_CPUS_MAX; n *= 2) {
        struct bench b;
        struct err e = {0};
        setup(&b, idle, n);
        assert_int_equal(start(&b, &e), 0);
        assert_int_equal(fk.n_cpus, n);
        assert_int_equal(fk.n_slots, 2);
        assert_int_equal(fk.slot[1].flags, KVM_MEM_READONLY);
        assert_int_equal(fk.ioeventfds, 2); /* a queue, and acknowledgements */
        assert_int_equal(fk.irqfds, 1);
        assert_true(fk.regs.rip == FAKE_KERNEL_AT + 16);
        engine_kvm.kill(b.en);
        engine_kvm.kill(b.en); /* twice is once */
        while (!b.ended)
            assert_int_equal(loop_turn(&b.loop, 5000), 0);
        assert_false(b.clean);
        assert_string_equal(b.how, "the guest was killed");
        teardown(&b);
    }
}

static void test_free_of_a_running_one(void **state)
{
    struct bench b;
    struct err e = {0};
    setup(&b, idle, 4);
    assert_int_equal(start(&b, &e), 0);
    teardown(&b);
    assert_false(b.ended);
}

static int triple_fault(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return cpu == 1 ? reason(run, KVM_EXIT_SHUTDOWN) : fake_wait(run);
}

static int fail_entry(unsigned cpu, unsigned step, struct kvm_run *run)
{
    run->fail_entry.hardware_entry_failure_reason = 0x80000021;
    return reason(run, KVM_EXIT_FAIL_ENTRY);
}

static int internal_error(unsigned cpu, unsigned step, struct kvm_run *run)
{
    run->internal.suberror = KVM_INTERNAL_ERROR_EMULATION;
    return reason(run, KVM_EXIT_INTERNAL_ERROR);
}

static int unknown_reason(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return reason(run, 4711);
}

static int bad_memory(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return -EFAULT;
}

static void test_crashes(void **state)
{
    static const struct {
        fake_script script;
        const char *says;
    } cases[] = {
        {triple_fault, "triple fault (CPU 1)"},
        {fail_entry, "refuses to run the guest (reason 0x80000021)"},
        {internal_error, "cannot emulate"},
        {unknown_reason, "unknown to msb (4711)"},
        {bad_memory, "no longer run the guest: Bad address"},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct bench b;
        setup(&b, cases[i].script, 2);
        run_to_the_end(&b);
        assert_false(b.clean);
        assert_non_null(strstr(b.how, cases[i].says));
        teardown(&b);
    }
}

static int reset_then_reboot(unsigned step, struct kvm_run *run)
{
    if (step == 0)
        return write_reg(run, arch_device_gpa(0) + VIRTIO_MMIO_STATUS, 0);
    return reason(run, KVM_EXIT_SHUTDOWN);
}

static int reboot_in_use(unsigned step, struct kvm_run *run)
{
    return reason(run, KVM_EXIT_SHUTDOWN);
}

static int orderly_reboot(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return up_then(cpu, step, run, reset_then_reboot);
}

static int panic(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return up_then(cpu, step, run, reboot_in_use);
}

static void test_reboot_is_orderly_when_devices_were_given_up(void **state)
{
    struct bench b;
    setup(&b, orderly_reboot, 2);
    run_to_the_end(&b);
    assert_true(b.clean);
    teardown(&b);
    setup(&b, panic, 2);
    run_to_the_end(&b);
    assert_false(b.clean);
    teardown(&b);
}

static int reset_then_halt(unsigned step, struct kvm_run *run)
{
    if (step == 0)
        return write_reg(run, arch_device_gpa(0) + VIRTIO_MMIO_STATUS, 0);
    fk.mp_state = KVM_MP_STATE_HALTED;
    run->if_flag = 0;
    return fake_wait(run);
}

static int power_off(unsigned cpu, unsigned step, struct kvm_run *run)
{
    return up_then(cpu, step, run, reset_then_halt);
}

static void test_halt_after_devices_is_power_off(void **state)
{
    struct bench b;
    setup(&b, power_off, 1);
    run_to_the_end(&b);
    assert_true(b.clean);
    assert_string_equal(b.how, "powered off");
    teardown(&b);
}

/* --- what a guest touches -------------------------------------------------------------------- */

static int say_hello(unsigned cpu, unsigned step, struct kvm_run *run)
{
    static const char text[] = "Kernel panic\n";
    if (step == sizeof(text) - 1)
        return reason(run, KVM_EXIT_SHUTDOWN);
    run->io.direction = KVM_EXIT_IO_OUT;
    run->io.size = 1;
    run->io.count = 1;
    run->io.port = 0x3f8;
    run->io.data_offset = 4096;
    ((char *)run)[4096] = text[step];
    return reason(run, KVM_EXIT_IO);
}

static void test_console(void **state)
{
    struct bench b;
    setup(&b, say_hello, 1);
    run_to_the_end(&b);
    assert_string_equal(b.console, "Kernel panic\n");
    teardown(&b);
}

static int flood(unsigned cpu, unsigned step, struct kvm_run *run)
{
    if (step == 5000)
        return reason(run, KVM_EXIT_SHUTDOWN);
    run->io.direction = KVM_EXIT_IO_OUT;
    run->io.size = 1;
    run->io.count = 1024; /* more than one exit may carry */
    run->io.port = 0x3f8;
    run->io.data_offset = 4096;
    memset((char *)run + 4096, 'a' + (int)(step % 26), 1024);
    return reason(run, KVM_EXIT_IO);
}

/* It is not read while it is written: it is bounded, and its end is kept. */
static void test_console_flood(void **state)
{
    struct bench b;
    struct err e = {0};
    setup(&b, flood, 1);
    assert_int_equal(start(&b, &e), 0);
    while (fk.step[0] <= 5000)
        (void)usleep(1000);
    while (!b.ended)
        assert_int_equal(loop_turn(&b.loop, 5000), 0);
    assert_true(b.console_len > 0);
    teardown(&b);
}

/* Sweeps: every port, and addresses all over, of every width. */
static atomic_uint wrong;

static int sweep(unsigned cpu, unsigned step, struct kvm_run *run)
{
    static const uint64_t addresses[] = {0,          0xcffffffc, 0xd0010000,    0xfec00000,
                                         0xfffffffc, 1ULL << 40, UINT64_MAX - 3};
    uint8_t *data = (uint8_t *)run + 4096;
    if (step > 0 && step <= 0x20000 && (step - 1) / 2 != 0x3f9 && (step - 1) / 2 != 0x3fd &&
        (step - 1) % 2 == 0 && data[0] != 0xff)
        wrong++;
    if (step > 0x20000 && step - 0x20000 <= 2 * ARRAY_LEN(addresses) && !run->mmio.is_write &&
        run->exit_reason == KVM_EXIT_MMIO && run->mmio.data[0] != 0xff)
        wrong++;
    if (step < 0x20000) {
        run->io.direction = step % 2 ? KVM_EXIT_IO_OUT : KVM_EXIT_IO_IN;
        run->io.size = (uint8_t)(1 << step % 3);
        run->io.count = 3;
        run->io.port = (uint16_t)(step / 2);
        run->io.data_offset = 4096;
        memset(data, 0, 16);
        return reason(run, KVM_EXIT_IO);
    }
    step -= 0x20000;
    if (step < 2 * ARRAY_LEN(addresses)) {
        run->mmio.phys_addr = addresses[step / 2];
        run->mmio.len = 8;
        run->mmio.is_write = step % 2;
        memset(run->mmio.data, 0, sizeof(run->mmio.data));
        return reason(run, KVM_EXIT_MMIO);
    }
    return reason(run, KVM_EXIT_SHUTDOWN);
}

static void test_sweep(void **state)
{
    struct bench b;
    wrong = 0;
    setup(&b, sweep, 1);
    run_to_the_end(&b);
    assert_int_equal(wrong, 0);
    char line[256];
    engine_kvm.describe(b.en, line, sizeof(line));
    assert_non_null(strstr(line, "131072 port"));
    teardown(&b);
}

/* A device whose loop does not turn: the CPU waits, and the end of the guest frees it. */
static void test_kill_while_a_cpu_waits_for_a_loop(void **state)
{
    struct bench b;
    struct loop stuck;
    struct err e = {0};
    setup(&b, orderly_reboot, 2);
    assert_int_equal(loop_init(&stuck), 0);
    b.p.devices[0].loop = &stuck;
    assert_int_equal(start(&b, &e), 0);
    while (fk.step[0] < ARRAY_LEN(bring_up))
        (void)usleep(1000);
    engine_kvm.kill(b.en);
    while (!b.ended)
        assert_int_equal(loop_turn(&b.loop, 5000), 0);
    teardown(&b);
    loop_fini(&stuck);
}

/* --- failing calls --------------------------------------------------------------------------- */

static unsigned open_files(void)
{
    unsigned n = 0;
    AUTO_CLOSEDIR DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    return n;
}

/* Each call of a start fails in turn: the error says what could not be done, and nothing is left;
 * or the engine can do without it. */
static void test_every_call_fails_once(void **state)
{
    struct bench b;
    struct err e = {0};
    setup(&b, idle, 3);
    assert_int_equal(start(&b, &e), 0);
    unsigned total = fk.calls;
    teardown(&b);
    assert_true(total > 30);
    unsigned before = open_files(), survived = 0;
    for (unsigned n = 1; n <= total; n++) {
        e = (struct err){0};
        setup(&b, idle, 3);
        fk.fail_at = n;
        fk.fail_with = -ENOSPC;
        int r = start(&b, &e);
        assert_true(fk.calls >= n);
        if (r == 0) {
            survived++;
            assert_true(fk.failed == KVM_CHECK_EXTENSION || fk.failed == KVM_ENABLE_CAP);
        } else {
            assert_true(e.code != 0 && e.msg[0] != '\0');
            assert_null(b.en);
        }
        teardown(&b);
        assert_int_equal(open_files(), before);
    }
    assert_int_equal(survived, 8); /* calls that it can do without */
}

static void test_too_many_cpus(void **state)
{
    struct bench b;
    struct err e = {0};
    setup(&b, idle, ARCH_CPUS_MAX + 1);
    assert_int_equal(start(&b, &e), -EINVAL);
    b.p.n_cpus = 0;
    assert_int_equal(start(&b, &e), -EINVAL);
    teardown(&b);
}

static void test_more_memory_than_the_cpu_addresses(void **state)
{
    struct bench b;
    struct err e = {0};
    setup(&b, idle, 1);
    b.p.memory_bytes = 1ULL << 40; /* 40 bits, and the hole */
    assert_int_equal(start(&b, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "40 bits"));
    teardown(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_free_of_a_running_one),
        cmocka_unit_test(test_crashes),
        cmocka_unit_test(test_reboot_is_orderly_when_devices_were_given_up),
        cmocka_unit_test(test_halt_after_devices_is_power_off),
        cmocka_unit_test(test_console),
        cmocka_unit_test(test_console_flood),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_kill_while_a_cpu_waits_for_a_loop),
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_too_many_cpus),
        cmocka_unit_test(test_more_memory_than_the_cpu_addresses),
    };
    return cmocka_run_group_tests_name("kvm-engine", tests, NULL, NULL);
}
