"""What a sandbox takes of the host's memory and processes, whatever runs in it: --memory and a
constant. No cgroup is needed for that; where there is one, it limits what is counted nowhere else.

With the uml engine, any guest process can make system calls of the host from a page of its kernel's
that is mapped in it (stub_attacks.c): what counts is what the host lets it have.
"""
import os
import pathlib
import re
import subprocess

import pytest

import processes
from conftest import ROOT, static_program, wait_for

MEMORY = 128
# The kernel's program, variables and scratch, its stubs' first pages, the monitor
# (docs/security.md).
CONSTANT = 64


@pytest.fixture(scope="module")
def attacks(tmp_path_factory):
    return static_program("stub_attacks", tmp_path_factory.mktemp("attacks"))


def file_kib(pids):
    """The file of guest memory, mapped or not, and the few others of the kernel's jail."""
    fs = os.statvfs(f"/proc/{pids[1]}/root")
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize // 1024


def taken(monitor):
    """MiB that the processes of a sandbox hold: their own, and the file of guest memory, mapped or
    not."""
    pids = processes.tree(monitor)
    sums = dict.fromkeys(("Pss_Anon", "Pss_File", "Pss_Shmem"), 0)
    for pid in pids:
        memory = processes.rollup(pid)
        for name in sums:
            sums[name] += memory.get(name, 0)
    return (sums["Pss_Anon"] + sums["Pss_File"] + max(sums["Pss_Shmem"], file_kib(pids))) // 1024


def attack(msb, attacks, what, n):
    """Runs an attack as a user who is nobody in the guest; its words, once it holds all it got."""
    msb.create("box", "--engine", "uml", "-m", f"{MEMORY}M")
    msb.ok("cp", "-q", attacks, "box:/bin/attacks")
    p = msb.popen("exec", "-q", "-u", "65534", "box", "--", "/bin/attacks", what, str(n), stdout=subprocess.PIPE)
    return p, p.stdout.readline().decode()


@pytest.mark.parametrize("what,n", [("shared", 1), ("growing", 1), ("private", 10)])
def test_calls_from_the_stub_get_no_memory(msb, attacks, what, n):
    p, words = attack(msb, attacks, what, n)
    kib = int(re.fullmatch(rf"{what}: (\d+) KiB\n", words)[1])
    assert taken(msb.monitor_pid("box")) <= MEMORY + CONSTANT
    assert kib <= 64 * n
    msb.ok("rm", "-f", "-q", "box")
    p.communicate(timeout=10)


def test_address_space_is_limited(msb, attacks):
    """Guest memory, mapped again and again: page tables are counted nowhere else."""
    p, words = attack(msb, attacks, "views", 1)
    most = 16 * 1024 + 4 * MEMORY
    assert most - 1024 < int(re.fullmatch(r"views: (\d+) MiB\n", words)[1]) <= most
    msb.ok("rm", "-f", "-q", "box")
    p.communicate(timeout=10)


def test_processes_are_limited_by_memory(msb, attacks):
    p, words = attack(msb, attacks, "fork", 1)
    assert re.fullmatch(r"fork: \d+ processes\n", words), words
    monitor = msb.monitor_pid("box")
    assert len(processes.tree(monitor)) <= 128 + 2 * MEMORY + 8
    assert taken(monitor) <= MEMORY + CONSTANT
    msb.ok("rm", "-f", "-q", "box")
    p.communicate(timeout=10)


def test_a_boot_takes_few_huge_pages(msb):
    """Each page that it touches may cost 2 MiB of the host's memory, so they lie close together (kernel/patches/uml/60)."""
    msb.create("box", "--engine", "uml", "-m", "512M")
    assert file_kib(processes.tree(msb.monitor_pid("box"))) < 16 << 10


def test_full_guest_takes_no_more(msb):
    """All of its memory in use, by the page cache and by processes."""
    msb.create("box", "--engine", "uml", "-m", f"{MEMORY}M")
    msb.sh("box", "dd if=/dev/zero of=/root/x bs=1M count=300 2>/dev/null; rm /root/x; tail /dev/zero", timeout=100)
    monitor = msb.monitor_pid("box")
    assert wait_for(lambda: taken(monitor)) <= MEMORY + CONSTANT


def test_under_another_supervisor(msb, tmp_path):
    """Where a container supervises system calls, there can be no warden: sandboxes run, and doctor
    says what that means."""
    run = [static_program("supervised", tmp_path), msb.exe]
    p = subprocess.run([*run, "run", "-q", "--engine", "uml", "--", "echo", "up"], env=msb.env, capture_output=True)
    assert (p.returncode, p.stdout) == (0, b"up\n"), p.stderr
    p = subprocess.run([*run, "doctor"], env=msb.env, capture_output=True)
    assert b"cannot limit the memory of all processes of a guest" in p.stdout + p.stderr


def groups(name):
    """The cgroups of a sandbox, where this host lets us have any."""
    return list(pathlib.Path("/sys/fs/cgroup").glob(f"**/msb-*-{name}"))


def test_group_where_there_is_one(msb):
    """Memory and processes have a total by cgroup, too; a sandbox that was stopped leaves none."""
    doctor = msb("doctor")
    if b"limits CPU time, memory and processes" not in doctor.stdout + doctor.stderr:
        pytest.skip("no cgroup (v2) with memory and pids here: they belong to hierarchies of v1, or are not delegated; "
                    "tests/kvm runs this in its testbed")
    msb.create("grouped", "-m", f"{MEMORY}M")
    (group,) = groups("grouped")
    assert int((group / "memory.max").read_text()) == MEMORY * 5 // 4 + 512 << 20
    assert int((group / "pids.max").read_text()) == 256 + 2 * MEMORY
    inside = set(map(int, (group / "cgroup.procs").read_text().split()))
    assert set(processes.tree(msb.monitor_pid("grouped"))) <= inside
    msb.ok("stop", "-q", "grouped")
    assert groups("grouped") == []
    msb.ok("start", "-q", "grouped")
    assert groups("grouped")
    msb.ok("rm", "-f", "-q", "grouped")
    assert groups("grouped") == []


DELEGATED = """
cd /sys/fs/cgroup; echo "+cpu +memory +pids" > cgroup.subtree_control
mkdir user; echo "+cpu +memory +pids" > user/cgroup.subtree_control; mkdir user/session
chown nobody user user/cgroup.procs user/session user/session/cgroup.procs
echo $$ > user/session/cgroup.procs
mkdir -m 777 /tmp/note; su -s /bin/sh nobody -c "probe /tmp/note"
"""


def test_groups_of_the_common_hierarchy(msb, tmp_path):
    """What the launcher does with cgroups v2, on a kernel that has it: in the root group, in a
    session that was delegated to a user, and in one that was not."""
    sources = [ROOT / "tests/e2e/cgroup_probe.c", ROOT / "src/jail/cgroup.c", ROOT / "src/util/fs.c"]
    cc = ["cc", "-static", "-O1", "-w", "-D_GNU_SOURCE", "-I", ROOT / "src", "-o", tmp_path / "probe", *sources]
    if subprocess.run(cc, check=False).returncode:
        pytest.skip("no compiler that links statically")
    limits = "cpu.max 50000 100000\nmemory.max 704643072\npids.max 512\n"
    msb.create("box")
    msb.ok("cp", "-q", tmp_path / "probe", "box:/bin/probe")
    works = rf"errors 0 0 0\nborn 1\n{limits}cgroup.procs (\d+)\nchild \1\nleft 0\n"
    assert re.fullmatch(works, msb.ok("exec", "-q", "box", "--", "probe", "/tmp"))
    out = msb.sh("box", DELEGATED).stdout.decode()
    assert re.fullmatch(works, out), out
    out = msb("exec", "-q", "-u", "65534", "box", "--", "probe", "/tmp/note").stdout.decode()
    assert out == "errors -13 -13 -13\nborn 0\n"
