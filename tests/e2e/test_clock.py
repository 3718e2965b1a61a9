"""The host's time of day jumps, by years and in both directions: records follow it, and nothing waits for it.

msb and its monitors run with a clock that a test can set (stepped_clock.c); the guest keeps the host's.
"""
import datetime
import json
import shutil
import struct
import subprocess

import pytest

from conftest import ROOT, Msb, make_home, tear_down, wait_for

TEN_YEARS = 3652 * 86400


class Clock:
    def __init__(self, directory):
        self.path, self.library = directory / "clock", directory / "stepped_clock.so"
        self.step(0)
        source = ROOT / "tests/e2e/stepped_clock.c"
        if not shutil.which("cc") or subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", self.library,
                                                     source], check=False).returncode:
            pytest.skip("no C compiler")

    def step(self, seconds):
        with open(self.path, "r+b" if self.path.exists() else "wb") as f:  # in place: it is mapped
            f.write(struct.pack("q", seconds))


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path)


@pytest.fixture
def stepped(clock, tmp_path, shared_cache):
    m = Msb(make_home(tmp_path, shared_cache), {"LD_PRELOAD": str(clock.library), "STEPPED_CLOCK": str(clock.path)})
    yield m
    clock.step(0)
    tear_down(m)


def year(text):
    return datetime.datetime.fromisoformat(text[:19]).year


def test_steps_of_the_clock(clock, stepped):
    m, now = stepped, datetime.datetime.now(datetime.timezone.utc).year
    m.create("long", "--max-duration", "1h", "--idle-timeout", "1h", "-m", "64M")
    waiting = m.popen("exec", "-q", "--timeout", "1h", "long", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    waiting.stdin.write(b"before\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline() == b"before\n"

    clock.step(TEN_YEARS)  # nothing is late
    m.create("brief", "--max-duration", "3s", "-m", "64M")
    m.create("idle", "--idle-timeout", "3s", "-m", "64M")
    assert year(json.loads(m.ok("inspect", "brief", "--format", "json"))["created_at"]) == now + 10, "the clock is the test's"
    assert m.status("long") == "Running" and m.sh("long", "echo up").stdout == b"up\n"
    assert m.status("brief") == "Running" and m.status("idle") == "Running"

    clock.step(-TEN_YEARS)  # and nothing waits for twenty years
    assert m("exec", "-q", "--timeout", "1s", "long", "--", "sleep", "100").returncode == 124
    waiting.stdin.write(b"after\n")
    waiting.stdin.close()
    assert waiting.stdout.read() == b"after\n" and waiting.wait(timeout=20) == 0
    waiting.stdout.close()
    wait_for(lambda: m.status("brief") == m.status("idle") == "Stopped", timeout=30)
    assert m.sh("long", "echo last").stdout == b"last\n"
    m.ok("stop", "-q", "long")
    assert m.sh("brief", "echo again").stdout == b"again\n", "it starts again"

    # Every record has the time that the clock showed, and all can be read.
    assert "last" in m.ok("logs", "long") and "last" in m.ok("logs", "long", "--since", "1h")
    years = {year(json.loads(x)["t"]) for x in (m.home / "audit.log").read_text().splitlines()}
    assert {now - 10, now, now + 10} <= years
    assert {x.split()[0] for x in m.ok("ls", "-a").splitlines()[1:]} == {"long", "brief", "idle"}
