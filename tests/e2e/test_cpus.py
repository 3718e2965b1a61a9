"""--cpus with the uml engine: a guest has as many, they run at once, and each has its place."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import MSB, make_tools_image, need, static_program, wait_for
from guest import PATIENCE, sh

CPUS = 2
SOME_TICKS = 20
ASSETS = pathlib.Path(os.environ.get("MSB_ASSETS", MSB.parents[2] / "assets"))

EITHER_KERNEL = pytest.mark.parametrize("cpus", (1, CPUS))


def need_kernel(cpus):
    if cpus > 1 and not (ASSETS / "linux-uml-smp").exists():
        pytest.skip("the kernel for several CPUs is not built (make kernel-uml-smp)")


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return static_program("cpus_checks", tmp_path_factory.mktemp("cpus-checks")).parent


@pytest.fixture(scope="module")
def smp(module_msb, checks):
    need_kernel(CPUS)
    p = module_msb("create", "-n", "smp", "--engine", "uml", "--cpus", str(CPUS), "-v", f"{checks}:/c:ro")
    assert p.returncode == 0 and b"effect" not in p.stderr, p.stderr
    yield lambda script: sh(module_msb, "smp", script)
    log = sh(module_msb, "smp", "dmesg")
    assert not re.search(r"WARNING:|BUG:|stall|Kernel panic|Unexpectedly", log), log


def test_the_guest_counts_its_cpus(smp):
    assert smp("nproc; grep -c ^processor /proc/cpuinfo; cat /sys/devices/system/cpu/online").split() == [
        str(CPUS), str(CPUS), f"0-{CPUS - 1}"
    ]


@pytest.mark.skipif(os.cpu_count() < CPUS, reason="the host has not as many")
def test_two_processes_run_at_once(smp):
    assert smp("/c/cpus_checks together") == "40000 handovers\n"


def test_locks_across_cpus(smp):
    assert smp("/c/cpus_checks locks") == "20000 and 20000\n"


def test_what_was_taken_away_on_one_cpu_is_not_written_to_on_another(smp):
    assert smp("/c/cpus_checks stale") == "0 foreign bytes\n"


def test_processes_come_and_go_on_both(smp):
    assert smp("/c/cpus_checks forks") == "300 of 300\n"


def test_the_threads_of_a_process_share_a_cpu(smp):
    assert smp("/c/cpus_checks wakes") == "together\n"


# --- programs that divide their work among CPUs -----------------------------------------------------

# None of them goes on with the next number before all have one.
POOLS = """import concurrent.futures, multiprocessing, os
fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(os.cpu_count())
def work(n):
    return sum(i * n % 7 for i in range(200000))
def work_together(n):
    barrier.wait()
    return work(n), os.getpid()
right = [work(n) for n in range(8)]
with fork.Pool() as pool, concurrent.futures.ProcessPoolExecutor(mp_context=fork) as executor:
    for answers in (pool.map(work_together, range(8), 1), list(executor.map(work_together, range(8)))):
        print(os.cpu_count(), [a for a, _ in answers] == right, len({p for _, p in answers}))
"""
CLUSTER = """const cluster = require('cluster'), http = require('http'), os = require('os');
function work() { let n = 0; for (let i = 0; i < 5e6; i++) n += i % 7; return n; }
if (!cluster.isPrimary) {
    http.createServer((q, r) => r.end(`${work()} ${process.pid}`)).listen(8080, '127.0.0.1');
} else {
    const cpus = os.cpus().length, ask = () => new Promise((done, fail) => http.get(
        { port: 8080, host: '127.0.0.1', agent: false }, r => r.on('data', d => done(String(d).split(' ')))).on('error', fail));
    Promise.all(Array.from({ length: cpus }, () => new Promise(up => cluster.fork().on('listening', up)))).then(async () => {
        const answers = await Promise.all(Array.from({ length: 20 }, ask));
        console.log(cpus, answers.every(a => a[0] === String(work())), new Set(answers.map(a => a[1])).size);
        cluster.disconnect();
    });
}
"""
MAKEFILE = "objects = 0.o 1.o 2.o 3.o\nall: $(objects)\n$(objects): %.o: tree.c\n\t@cc -O2 -c -DN=$* $< -o $@ && echo $@\n"


@pytest.fixture(scope="module")
def tools(module_msb, tmp_path_factory):
    """A guest with as many CPUs that has the host's programs; runs one until each CPU has done a part of it."""
    need_kernel(CPUS)
    image = make_tools_image(tmp_path_factory.mktemp("cpus-tools") / "image")
    module_msb.create("tools", "--engine", "uml", "--cpus", str(CPUS), "-v", "/usr:/usr:ro", str(image))

    def used():
        lines = re.findall(r"^cpu\d+ (\d+) (\d+) (\d+)", sh(module_msb, "tools", "cat /proc/stat"), re.M)
        assert len(lines) == CPUS
        return [sum(map(int, line)) for line in lines]

    def run(expected, *command, files=None):
        for name, text in (files or {}).items():
            sh(module_msb, "tools", f"cat >/tmp/{name}", input=text.encode())
        before = used()

        def divided():
            out = module_msb.ok("exec", "-q", "-w", "/tmp", "tools", "--", *command, timeout=PATIENCE)
            assert sorted(out.splitlines()) == expected
            shares = [now - then for then, now in zip(before, used())]
            return min(shares) >= max(SOME_TICKS, max(shares) / 4)

        wait_for(divided, timeout=PATIENCE)

    return run


def test_pools_of_python(tools):
    need("python3")
    tools([f"{CPUS} True {CPUS}"] * 2, "/usr/bin/python3", "pools.py", files={"pools.py": POOLS})


def test_a_cluster_of_node(tools):
    need("node")
    tools([f"{CPUS} true {CPUS}"], "/usr/bin/node", "cluster.js", files={"cluster.js": CLUSTER})


def test_make_with_as_many_jobs(tools):
    need("make", "cc")
    source = "".join(f"int f{i}(int x) {{ for (int k = 0; k < N + {i}; k++) x = x * k ^ x / (k + 1); return x; }}\n"
                     for i in range(400))
    tools([f"{i}.o" for i in range(4)], "make", "-s", "-B", f"-j{CPUS}", files={"Makefile": MAKEFILE, "tree.c": source})


# --- places -----------------------------------------------------------------------------------------


def threads(m, name):
    """The CPUs that each thread of the guest's kernel, and each other process of its tree, may use."""
    tree = m.tree(m.monitor_pid(name))
    kernel = [p for p in tree if len(os.listdir(f"/proc/{p}/task")) == CPUS and "place_cpus" in
              pathlib.Path(f"/proc/{p}/cmdline").read_text()]
    assert len(kernel) == 1
    return [os.sched_getaffinity(int(t)) for t in sorted(os.listdir(f"/proc/{kernel[0]}/task"), key=int)]


def test_each_has_its_place(module_msb, smp):
    if len(os.sched_getaffinity(0)) < CPUS:
        pytest.skip("there are not as many CPUs to choose from")
    places = threads(module_msb, "smp")
    assert all(len(p) == 1 for p in places) and len(set.union(*places)) == CPUS


def test_one_cpu_of_the_host_is_shared(module_msb):
    need_kernel(CPUS)
    one = {min(os.sched_getaffinity(0))}
    p = module_msb("run", "--engine", "uml", "--cpus", str(CPUS), "--", "nproc", preexec_fn=lambda: os.sched_setaffinity(0, one))
    assert (p.returncode, p.stdout) == (0, b"%d\n" % CPUS), p.stderr
    assert b"this host has one CPU, which the guest's CPUs share" in p.stderr


def tree_places(m, name):
    """The CPUs that the kernel of a guest may use, and those of its stubs."""
    kernel, stubs = set(), set()
    for pid in m.tree(m.monitor_pid(name)):
        with contextlib.suppress(OSError):
            program = pathlib.Path(f"/proc/{pid}/comm").read_text()
            if program.startswith("uml-userspace"):
                stubs |= os.sched_getaffinity(int(pid))
            elif "seccomp=on" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                kernel |= os.sched_getaffinity(int(pid))
    return kernel, stubs


@contextlib.contextmanager
def many_calls(m, name, *options):
    """A sandbox in which a process makes one system call after the other, until it is sent a line; then it only computes."""
    m.create(name, "--engine", "uml", *options)
    with m.popen("exec", "-q", name, "--", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=1 & echo go; read x; kill $!; "
                 "echo over; while :; do :; done", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        try:
            assert p.stdout.readline() == b"go\n"
            yield p
        finally:
            p.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second CPU")
def test_a_process_with_many_calls_has_a_second_cpu(module_msb):
    """While it makes them, unless others use that CPU; only this process, and not its kernel."""
    with many_calls(module_msb, "calls") as p:
        kernel, _ = tree_places(module_msb, "calls")
        assert len(kernel) == 1
        # A CPU that others want is left alone for up to 13 s.
        wait_for(lambda: len(tree_places(module_msb, "calls")[1]) == 2, timeout=60)
        assert tree_places(module_msb, "calls")[0] == kernel
        p.stdin.write(b"\n")
        p.stdin.flush()
        assert p.stdout.readline() == b"over\n"
        wait_for(lambda: tree_places(module_msb, "calls")[1] == kernel)
    assert not re.search(r"WARNING:|BUG:|stall|Unexpectedly", sh(module_msb, "calls", "dmesg"))


@pytest.mark.parametrize("options", (["--cpu-placement", "compact"], ["--cpus", "0.5"]))
def test_not_all_may_use_a_second_cpu(module_msb, options):
    name = f"at-home-{options[-1].replace('.', '-')}"
    with many_calls(module_msb, name, *options):
        for _ in range(100):
            kernel, stubs = tree_places(module_msb, name)
            assert len(kernel) == 1 and stubs == kernel
            time.sleep(0.01)


def busiest_stub(m, name):
    """The one that has used the most time in user mode, and how many ticks that were."""
    found = []
    for pid in m.tree(m.monitor_pid(name)):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            if "(uml-userspace" in stat:
                found.append((pid, int(stat.rsplit(")", 1)[1].split()[11])))
    return max(found, key=lambda f: f[1], default=(None, 0))


@EITHER_KERNEL
def test_a_process_ends_with_its_stub(module_msb, checks, cpus):
    """With all its threads, those that wait for their turn as well; and it alone."""
    need_kernel(cpus)
    name = f"lost{cpus}"
    module_msb.create(name, "--engine", "uml", "--cpus", str(cpus), "-v", f"{checks}:/c:ro")
    p = module_msb.popen("exec", "-q", name, "--", "/c/cpus_checks", "threads", stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"spinning\n"
    wait_for(lambda: busiest_stub(module_msb, name)[1] > SOME_TICKS)
    os.kill(busiest_stub(module_msb, name)[0], signal.SIGKILL)
    assert p.wait(timeout=PATIENCE) == 128 + signal.SIGSEGV
    assert sh(module_msb, name, "echo alive; /c/cpus_checks times").split() == ["alive", "user", "system"]
