"""Data on a share is what was written: by a random mix of operations, after a kill, from two guests."""
import os
import shutil
import signal
import subprocess
import zlib

import pytest

from conftest import LARGE, static_program, wait_for
from guest import PATIENCE, finish

RECORD = 64
PER_FILE = 1000


@pytest.fixture(scope="session")
def fsx(tmp_path_factory):
    return static_program("fsx", tmp_path_factory.mktemp("fsx"))


@pytest.fixture
def share(tmp_path, fsx):
    d = tmp_path / "share"
    d.mkdir()
    shutil.copy(fsx, d / "fsx")
    return d


@pytest.mark.parametrize("cache", ["auto", "none", "always"])
def test_random_operations(msb, share, cache):
    """What the guest reads is what it wrote, and at every sync the host has the same."""
    ops, size = (30000, 8 << 20) if LARGE else (2000, 1 << 20)
    seed = {"auto": 11, "none": 12, "always": 13}[cache]
    p = msb.popen("run", "-q", "-v", f"{share}:/w:cache={cache}", "--", "/w/fsx", "/w/f", str(seed), str(ops),
                  str(size), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    for _ in range(10):
        line = p.stdout.readline().decode().split()
        assert line[:1] == ["sum"], (line, p.stdout.read(), p.stderr.read())
        data = (share / "f").read_bytes()
        assert [f"{zlib.crc32(data):08x}", str(len(data))] == line[2:], f"the host differs after {line[1]}"
        p.stdin.write(b"on\n")
        p.stdin.flush()
    assert finish(p)[0] == 0


@pytest.mark.parametrize("cache", ["auto", "always"])
def test_nothing_synced_is_lost_with_the_monitor(msb, share, cache):
    """Record after record, each acknowledged when it is synced; then everything is killed."""
    (share / "d").mkdir()
    msb.create("b", "-v", f"{share}:/w:cache={cache}")
    p = msb.popen("exec", "-q", "b", "--", "/w/fsx", "--synced", "/w/d", stdout=subprocess.PIPE,
                  stderr=subprocess.DEVNULL)  # fmt: skip
    acknowledged = 0
    while acknowledged < (20 * PER_FILE if LARGE else PER_FILE + 500):
        acknowledged = int(p.stdout.readline())
    os.kill(msb.monitor_pid("b"), signal.SIGKILL)
    rest = p.stdout.read().split(b"\n")[:-1]
    p.wait(timeout=PATIENCE)
    acknowledged = max([acknowledged, *(int(line) for line in rest)])
    data = b"".join((share / "d" / str(i)).read_bytes() for i in range(acknowledged // PER_FILE + 1))
    for i in range(acknowledged + 1):
        assert data[i * RECORD : (i + 1) * RECORD].rstrip(b".\n").split() == [b"r", str(i).encode()]
    wait_for(lambda: not msb.processes())


def test_two_sandboxes_write_to_one_volume(msb, share):
    """Both append to one file, and each makes, moves and removes files that the other sees."""
    n = 20000 if LARGE else 500
    names = ["one", "two"]
    for name in names:
        msb.create(name, "-v", "vol:/v", "-v", f"{share}:/w:ro")
    script = ("mkdir -p /v/$0; i=0; while [ $i -lt 50 ]; do echo $i >/v/$0/.new && mv /v/$0/.new /v/$0/$i; "
              "i=$((i+1)); done; /w/fsx --append /v/log $0 $1")  # fmt: skip
    both = [msb.popen("exec", "-q", x, "--", "sh", "-c", script, x, str(n), stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE) for x in names]  # fmt: skip
    for p in both:
        code, _, err = finish(p)
        assert code == 0, err
    data = (msb.home / "volumes" / "vol" / "data" / "log").read_bytes()
    records = [data[i : i + RECORD] for i in range(0, len(data), RECORD)]
    for name in names:  # none lost, none torn, each writer's in their order
        mine = [r.rstrip(b".\n").split()[1] for r in records if r.startswith(name.encode())]
        assert mine == [str(i).encode() for i in range(n)]
    assert len(records) == 2 * n
    for here, there in (names, names[::-1]):
        assert len(msb.ok("exec", "-q", here, "--", "ls", f"/v/{there}").split()) == 50
        msb.ok("exec", "-q", here, "--", "sh", "-c", f"rm -r /v/{there}")
    assert sorted(p.name for p in (msb.home / "volumes" / "vol" / "data").iterdir()) == ["log"]
