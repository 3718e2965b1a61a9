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
from conftest import static_program, wait_for

MEMORY = 128
# The kernel's program, variables and scratch, its stubs' first pages, the monitor
# (docs/security.md).
CONSTANT = 64


@pytest.fixture(scope="module")
def attacks(tmp_path_factory):
    return static_program("stub_attacks", tmp_path_factory.mktemp("attacks"))


def taken(monitor):
    """MiB that the processes of a sandbox hold: their own, and the file of guest memory, mapped or
    not."""
    pids = processes.tree(monitor)
    sums = dict.fromkeys(("Pss_Anon", "Pss_File", "Pss_Shmem"), 0)
    for pid in pids:
        try:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        for name, kib in re.findall(r"^(Pss_\w+):\s+(\d+) kB", text, re.MULTILINE):
            if name in sums:
                sums[name] += int(kib)
    fs = os.statvfs(f"/proc/{pids[1]}/root")
    file = (fs.f_blocks - fs.f_bfree) * fs.f_frsize // 1024
    return (sums["Pss_Anon"] + sums["Pss_File"] + max(sums["Pss_Shmem"], file)) // 1024


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


def test_processes_are_limited_by_memory(msb, attacks):
    p, words = attack(msb, attacks, "fork", 1)
    assert re.fullmatch(r"fork: \d+ processes\n", words), words
    monitor = msb.monitor_pid("box")
    assert len(processes.tree(monitor)) <= 128 + 2 * MEMORY + 8
    assert taken(monitor) <= MEMORY + CONSTANT
    msb.ok("rm", "-f", "-q", "box")
    p.communicate(timeout=10)


def test_full_guest_takes_no_more(msb):
    """All of its memory in use, by the page cache and by processes."""
    msb.create("box", "--engine", "uml", "-m", f"{MEMORY}M")
    msb.sh("box", "dd if=/dev/zero of=/root/x bs=1M count=300 2>/dev/null; rm /root/x; tail /dev/zero", timeout=100)
    monitor = msb.monitor_pid("box")
    assert wait_for(lambda: taken(monitor)) <= MEMORY + CONSTANT
