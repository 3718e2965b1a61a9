"""Programs that use all of a guest's memory, in any order: each page of the guest that does not lie next to its
neighbor is a mapping of its own on the host, which allows a process 65,530 of them."""
import pathlib
import re

import pytest

from conftest import LARGE, need, static_program, wait_for
from guest import PATIENCE

if LARGE:  # up to 16 GiB
    pytestmark = pytest.mark.timeout(PATIENCE * 100)


def available_mib():
    """Memory that this machine can spare for a guest."""
    with open("/proc/meminfo") as f:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in f}
    return kib["MemAvailable"] // 1024 - 512


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return static_program("memory_checks", tmp_path_factory.mktemp("checks"))


@pytest.fixture
def run(msb, checks):
    """Runs memory_checks in a guest with that much memory, after a script that prepares the guest."""

    def run(memory, *args, before="true", needs=None):
        if available_mib() < (needs or memory):
            pytest.skip(f"needs {needs or memory} MiB of memory")
        script = f"{before} && exec /checks/memory_checks {' '.join(map(str, args))}"
        p = msb("run", "-q", "-m", f"{memory}M", "-v", f"{checks.parent}:/checks:ro",
                "--", "sh", "-c", script, timeout=PATIENCE * (100 if LARGE else 10))  # fmt: skip
        assert (p.returncode, p.stdout) == (0, b"ok\n"), p

    return run


# Reads as zeros, page by page, without a disk's help.
FULL_CACHE = "truncate -s {0}M /sparse && cat /sparse >/dev/null"


def test_random_order(run):
    """Every page of nearly all memory, in random order: too scattered for a mapping each."""
    memory = min(available_mib(), 11 << 10) if LARGE else 1024
    run(memory, "random", memory * 7 // 8 - 64)


def test_random_order_with_a_full_page_cache(run):
    memory = min(available_mib(), 11 << 10) if LARGE else 768
    run(memory, "random", memory * 3 // 4, before=FULL_CACHE.format(memory))


@pytest.mark.parametrize("before", ("true", FULL_CACHE), ids=("alone", "full-page-cache"))
def test_random_order_in_many_processes(run, before):
    memory, each = (min(available_mib(), 11 << 10), 165) if LARGE else (1024, 15)
    run(memory, "processes", 50, min(each, memory * 3 // 4 // 50), before=before.format(memory))


@pytest.mark.parametrize("used", (100, pytest.param(14 << 10, marks=pytest.mark.skipif(not LARGE, reason="MSB_TEST_LARGE=1"))))
def test_a_guest_with_16_gib(run, used):
    """Nearly all of it can be used; the host need not have more than what is used."""
    run(16 << 10, "random", used, needs=used + 512)


def test_copies_after_fork(run):
    """Three processes with copies of the same memory, each of its own content."""
    memory = (4096, 1000) if LARGE else (512, 100)
    run(memory[0], "fork", memory[1])


def test_small_mappings(run):
    """Faults in small mappings bring all of it at once, and forks copy it in advance."""
    run(256, "small", 70)


@pytest.mark.timeout(400)
def test_holes(run):
    """What lies between holes is a mapping each, more of them than the host allows."""
    run(1024, "holes", 520)


def test_protection(run):
    run(512, "protect", 200)


def resident_kib(pids):
    """The largest share of guest memory that one of these processes has mapped."""
    sizes = [0]
    for pid in pids:
        try:
            status = pathlib.Path("/proc", str(pid), "status").read_text()
        except OSError:
            continue
        sizes += map(int, re.findall(r"RssShmem:\s+(\d+) kB", status))
    return max(sizes)


@pytest.mark.parametrize("memory, used, left", [("1G", 400, 100), ("256M", 40, 20)])
def test_the_host_gets_back_what_is_freed(msb, checks, memory, used, left):
    msb.create("box", "-m", memory, "-v", f"{checks.parent}:/checks:ro")
    tree = msb.tree(msb.monitor_pid("box"))
    before = resident_kib(tree)
    p = msb.popen("exec", "-q", "box", "--", "sh", "-c", f"/checks/memory_checks random {used}; read x",
                  stdin=-1, stdout=-1)  # fmt: skip
    wait_for(lambda: resident_kib(tree) > before + (used << 10), timeout=PATIENCE)
    p.communicate(b"\n", timeout=PATIENCE)
    wait_for(lambda: resident_kib(tree) < before + (left << 10), timeout=PATIENCE)


def test_dict_with_random_keys(msb, host_tools):
    """An interpreter's heap, used the way interpreters do."""
    need("python3")
    if available_mib() < 1024:
        pytest.skip("needs 1024 MiB of memory")
    keys = 3_000_000 if LARGE else 1_500_000
    script = ("import random; r = random.Random(1); "
              f"d = {{r.getrandbits(60): i for i in range({keys})}}; "
              "r = random.Random(1); print(sum(d[r.getrandbits(60)] == i for i in range(len(d))))")  # fmt: skip
    out = msb.ok("run", "-q", "-m", "1G", "-v", "/usr:/usr:ro", host_tools, "--", "/usr/bin/python3", "-c", script,
                 timeout=PATIENCE * 10)  # fmt: skip
    assert int(out) == keys
