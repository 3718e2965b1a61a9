"""The uml engine's kernel: programs see the CPU and the kernel that they would see on hardware."""
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from conftest import static_program, wait_for
from guest import FOREVER, PATIENCE, rss_anon_kib, sh

PROCESSES = 1000
FEW = 100  # of them, or of descriptors
CLOCK_SOURCE = pathlib.Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return static_program("kernel_checks", tmp_path_factory.mktemp("kernel-checks")).parent


@pytest.fixture(scope="module")
def uml(module_msb, checks):
    module_msb.create("kernel", "--engine", "uml", "-v", f"{checks}:/c:ro")
    return lambda script: sh(module_msb, "kernel", script)


@pytest.fixture(scope="module")
def calls(module_msb, tmp_path_factory):
    program = static_program("syscall_checks", tmp_path_factory.mktemp("syscall-checks"))
    module_msb.create("calls", "--engine", "uml", "-v", f"{program.parent}:/c:ro")
    return lambda name: sh(module_msb, "calls", f"/c/syscall_checks {name}", timeout=PATIENCE)


def test_cpuinfo_is_what_procps_reads_and_names_no_host(uml):
    text = uml("cat /proc/cpuinfo")
    assert text.endswith("\n\n") and re.search(r"^core id\t\t: 0$", text, re.M)
    assert not re.search(r"^host\b", text, re.M)
    assert os.uname().release not in text
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)[1].split()
    host = pathlib.Path("/proc/cpuinfo").read_text()
    assert flags and not set(flags) - set(re.search(r"^flags\s*: (.*)$", host, re.M)[1].split())


def test_a_seccomp_trap_shows_the_call(uml):
    assert uml("/c/kernel_checks seccomp_trap") == "number right, address right, result 4711\n"


def test_a_32_bit_call_is_a_fault_of_the_program(uml):
    assert uml("/c/kernel_checks int80") == "signal 11 at it, and on\n"


def test_breakpoint_instructions_leave_no_lines_in_the_log(uml):
    before = len(uml("dmesg").splitlines())
    assert uml("/c/kernel_checks breakpoints") == "3000 traps\n"
    assert len(uml("dmesg").splitlines()) - before < 5


def test_debug_registers_stop_the_program(uml):
    assert uml("/c/kernel_checks debug_registers").splitlines() == [
        *(f"break: signal 5 code 4 dr6 1 argument {i} value 0" for i in range(4)),
        "write: signal 5 code 4 dr6 2 argument -1 value 42",
        "end: exit 8",
    ]


def test_a_debugger_reads_and_writes_the_vector_registers(uml):
    if " avx " not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX")
    assert uml("/c/kernel_checks xstate") == (
        "features right, ymm7 right, set 0, bad EINVAL\nend: exit 9\n"
    )


def test_odd_offsets_into_the_registers_are_refused(uml):
    assert uml("/c/kernel_checks odd_registers") == "poke EIO, peek EIO, carry 0\n"


def test_a_system_call_leaves_the_registers_alone(calls):
    """Whichever way the kernel returns from it; meanwhile it switches processes, and signals come."""
    if " xsave " not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no XSAVE")
    assert calls("registers") == "0 of 3 processes fail\n"


def test_threads_and_children_keep_their_vector_registers_apart(calls):
    """The kernel leaves them with the stub that all threads of a process share, until they are needed."""
    assert calls("threads") == "lost 0 times\n"


def test_a_handler_changes_the_registers_of_a_system_call(calls):
    assert calls("changed") == (
        "0: rcx 1000 r11 1001 rbx 1002 rdx 1003 r8 1004 r15 1005 carry 1\n"
    )


def test_what_a_handler_leaves_in_its_frame_is_loaded_or_refused(calls):
    if " xsave " not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no XSAVE")
    assert calls("frames").splitlines() == [
        "mxcsr: refused",
        "features: refused",
        "no marks: returned, xmm7 4711",
    ]


def test_a_system_call_keeps_the_protection_keys(calls):
    if " ospke " not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no protection keys, or the host does not use them")
    if tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups())) < (6, 12):
        pytest.skip("the host needs Linux 6.12 to deliver a signal while key 0 is denied")
    assert calls("key") == "0 calls are wrong\n"


def test_a_debugger_steps_over_system_calls(calls):
    assert calls("steps") == "0 5 7 8 13 15 16 exit 3\n"


def test_a_fork_with_an_io_uring_leaves_memory_intact(uml):
    """Rings are areas of several pages, all of which a child has to share."""
    assert uml("/c/kernel_checks io_uring") == "200 of 200 rings\n"
    assert "BUG" not in uml("dmesg")


def test_the_kernel_survives_reading_where_it_has_no_memory(module_msb, checks):
    """In a sandbox of its own, for a kernel that does not would be busy with it for ever."""
    module_msb.create("hole", "--engine", "uml", "-m", "512M", "-v", f"{checks}:/c:ro")
    assert sh(module_msb, "hole", "/c/kernel_checks kernel_hole", timeout=PATIENCE) == (
        "start 127.\nhole 0.0.\n"
    )


def test_who_waits_for_a_page_sleeps_and_takes_signals(uml):
    assert uml("/c/kernel_checks userfault").splitlines() == [
        "load: signal handled, asleep, then 42, handled",
        "read: signal pending, asleep, then 42, handled",
    ]


def test_who_waits_for_a_page_can_be_killed(uml):
    assert uml("/c/kernel_checks userfault_kill") == "signal 9\n"


def test_a_page_fault_brings_what_comes_next(uml):
    assert uml("/c/kernel_checks page_faults").splitlines() == [
        f"{what}: few" for what in ("parent", "child", "small mapping", "private file")
    ]


def test_an_idle_kernel_does_not_wake_up_to_tidy_memory(uml):
    assert uml("cat /proc/sys/vm/compaction_proactiveness") == "0\n"


def test_reading_a_clock_takes_no_system_call(uml):
    if CLOCK_SOURCE.read_text().strip() != "tsc":
        pytest.skip("the host may need a system call itself")
    assert uml("/c/kernel_checks clock_calls") == "few system calls\n"


def test_clocks_of_the_vdso_and_of_the_kernel_agree(module_msb, checks):
    """In a sandbox of its own: it sets the clock."""
    module_msb.create("clock", "--engine", "uml", "-v", f"{checks}:/c:ro")
    assert sh(module_msb, "clock", "/c/kernel_checks clocks") == (
        "0 1 5 6 7 4 coarse behind, seconds right, set seen, adjusted ordered\n"
    )
    for _ in range(2):  # the second one finds the other's namespace
        assert sh(module_msb, "clock", "/c/kernel_checks time_namespace") == (
            "monotonic shifted, ordered\n"
        )
    assert sh(module_msb, "clock", "/c/kernel_checks clocks").startswith("0 1 5 6 7 4 coarse behind")


def kernel_process(m, name):
    """The guest kernel's process on the host."""
    for pid in m.tree(m.monitor_pid(name)):
        if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"linux\0"):
            return pid
    raise AssertionError("no guest kernel")


def stubs(pid):
    """The processes on the host that run the guest's, one each; a thread of the kernel for each CPU has its own."""
    lists = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [c for one in lists for c in one.read_text().split()]


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_thousand_processes(module_msb, cpus):
    """They cost the kernel no descriptors, which each fork would inherit and close, and little memory, until they end."""
    name = f"many{cpus}"
    module_msb.create(name, "--engine", "uml", "-m", "512M", "--cpus", str(cpus))
    pid = kernel_process(module_msb, name)

    def used():  # KiB of the guest's memory; MemFree lacks what each CPU keeps for later
        text = sh(module_msb, name, "cat /proc/meminfo")
        return sum(int(n) for n in re.findall(r"^(?:AnonPages|Slab|KernelStack|PageTables): +(\d+) kB", text, re.M))

    before = used()
    script = f"for i in $(seq {PROCESSES}); do sleep {FOREVER} & done; echo up; read x; kill $(jobs -p); wait; echo over"
    with module_msb.popen("exec", "-q", name, "--", "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        try:
            assert p.stdout.readline() == b"up\n"
            wait_for(lambda: int(sh(module_msb, name, "ps -o comm | grep -c ^sleep || true")) == PROCESSES, timeout=PATIENCE)
            wait_for(lambda: len(stubs(pid)) >= PROCESSES, timeout=PATIENCE)
            assert len(os.listdir(f"/proc/{pid}/fd")) < FEW
            assert rss_anon_kib(pid) < 2048 and max(map(rss_anon_kib, stubs(pid))) < 64
            assert used() - before < PROCESSES * 256
            p.stdin.write(b"\n")
            p.stdin.flush()
            assert p.stdout.readline() == b"over\n"
        finally:
            p.kill()
    wait_for(lambda: len(stubs(pid)) < FEW and used() - before < FEW * 256, timeout=PATIENCE)


def test_forks_of_a_user_take_turns_with_stubs(module_msb):
    """Each stub that is started is a process on the host; those of root take turns as well."""
    module_msb.create("users", "--engine", "uml")
    pid = kernel_process(module_msb, "users")

    def newest():
        """The number of a stub just started; numbers are handed out in order, in the jail's namespace."""
        sh(module_msb, "users", f"for i in $(seq {FEW}); do sleep {FOREVER} & done")
        status = "".join(pathlib.Path(f"/proc/{stub}/status").read_text() for stub in stubs(pid))
        sh(module_msb, "users", "killall sleep")
        return max(int(n) for n in re.findall(r"^NSpid:.*\s(\d+)$", status, re.M))

    forks = f"i=0; while [ $i -lt {PROCESSES} ]; do (:); i=$((i + 1)); done"
    for user in ("0", "1000", "1001"):
        before = newest()
        module_msb.ok("exec", "-q", "-u", user, "users", "--", "sh", "-c", forks, timeout=PATIENCE)
        assert newest() - before < 2 * FEW + PROCESSES / 2


def test_stubs_of_a_user_end_with_the_last_of_its_processes(module_msb):
    """What has taken one over would outlive them. Those of root are kept."""
    module_msb.create("leaves", "--engine", "uml")
    pid = kernel_process(module_msb, "leaves")
    crowd = f"for i in $(seq 20); do sleep {FOREVER} & done; kill $(jobs -p); wait"

    def left_by(*users):
        for user in users:
            module_msb.ok("exec", "-q", "-u", user, "leaves", "--", "sh", "-c", crowd, timeout=PATIENCE)
        time.sleep(0.5)
        return len(stubs(pid))

    least = left_by("0", "0")
    wait_for(lambda: left_by("1000", "1001", "0", "0") <= least, timeout=PATIENCE)


@pytest.mark.parametrize("cpus", [1, 2])
def test_an_idle_guest_sleeps_for_seconds(module_msb, cpus):
    """However long it takes until there is nothing left to do. A busy host only makes it wake up less."""
    name, seconds = f"asleep{cpus}", 10
    module_msb.create(name, "--engine", "uml", "--cpus", str(cpus))
    pid = kernel_process(module_msb, name)

    def sleeps():
        status = "".join(p.read_text() for p in pathlib.Path(f"/proc/{pid}/task").glob("*/status"))
        return sum(int(n) for n in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.M))

    def calm():
        before = sleeps()
        time.sleep(seconds)
        return sleeps() - before < seconds

    wait_for(calm, timeout=PATIENCE)


@pytest.mark.parametrize("cpus", [1, 2])
def test_an_idle_cpu_sleeps_over_no_interrupt(module_msb, tmp_path, cpus):
    """strace stretches the moment between "nothing to do" and sleep, in which a signal used to be noted and no more."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: run scripts/bootstrap test")
    name, log = f"idle{cpus}", tmp_path / "strace"
    asleep = re.compile(r"rt_sigprocmask\(SIG_BLOCK, .*\n((?:---.*\n)*)poll\(")
    module_msb.create(name, "--engine", "uml", "--cpus", str(cpus))
    pid = kernel_process(module_msb, name)
    p = subprocess.Popen(["strace", "-q", "-p", str(pid), "-o", log, "-e", "trace=rt_sigprocmask,poll", "-e",
                          "inject=rt_sigprocmask:delay_exit=20000"], stderr=subprocess.PIPE)
    try:
        def tracing():
            return p.poll() is not None or "TracerPid:\t0" not in pathlib.Path(f"/proc/{pid}/status").read_text()

        wait_for(tracing, timeout=PATIENCE)
        if p.poll() is not None:
            pytest.skip(f"strace cannot attach here: {p.stderr.read().decode().strip()}")
        for _ in range(20):
            sh(module_msb, name, "cat /proc/uptime")
        # On a busy host it may not have found the time to sleep yet.
        wait_for(lambda: asleep.search(log.read_text()), timeout=PATIENCE)
    finally:
        p.terminate()
        p.wait()
        p.stderr.close()
    assert not any(asleep.findall(log.read_text()))
