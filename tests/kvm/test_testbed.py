"""The testbed: an L1 that freezes is told from a command that hangs, and goes on where it was.

These boot L1, so they run in the kvm stage, where the testbed is made.
"""
import re
import shutil
import threading
import time

import pytest

import l1
import suite

FROZEN_S = 8  # longer than between two heartbeats
TESTS = """
import pathlib, time

def test_a():
    pass

def test_b():
    assert False

def test_c():
    if not pathlib.Path("again").exists():
        pathlib.Path("again").touch()
        pathlib.Path("here").touch()
        time.sleep(1000)
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A shared directory; L1's control directory is beside it, where it is found."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "share" / "report").mkdir(parents=True)
    return tmp_path / "share"


def control_directory(stage):
    return next(stage.parent.glob("msb-testbed.*"))


def pause(stage):
    """Stands for a freeze: no heartbeat, no CPU time, and no key that would wake it."""
    l1.ask_qemu(control_directory(stage), "stop")


def when(path, action, *args):
    """Does something as soon as L1 has made a file."""
    def wait():
        deadline = time.monotonic() + 300
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        path.unlink()
        action(*args)

    threading.Thread(target=wait, daemon=True).start()


def boot(stage, script):
    log = suite.Log(stage / "log")
    return suite.boot(stage, log, script, "--frozen", str(FROZEN_S)), (stage / "log").read_text()


def test_a_frozen_l1_goes_on_where_it_was(stage):
    """Also in the middle of pytest: what has a result is left out, even a failure."""
    (stage / "test_it.py").write_text(TESTS)
    shutil.copy(suite.HERE / "watch.py", stage)
    when(stage / "here", pause, stage)
    status, log = boot(stage, lambda: "cd /mnt/share; PYTHONPATH=. MSB_WATCH_RESULTS=report/kvm-1.txt"
                       " python3 -m pytest -v -p watch -p no:cacheprovider test_it.py\n")
    assert status == 0, log
    assert log.count("L1 froze (the emulator, not msb)") == 2 and "1 of 2" in log, "the testbed and the suite say so"
    assert suite.results(stage / "report", "kvm-1") == [
        ("passed", "test_it.py::test_a"), ("failed", "test_it.py::test_b"), ("passed", "test_it.py::test_c")]


def test_one_that_freezes_again_and_again_is_given_up(stage, monkeypatch):
    monkeypatch.setattr(suite, "REPEATS", 1)

    def script():
        when(stage / "here", pause, stage)
        return "touch /mnt/share/here; sleep 1000\n"

    status, log = boot(stage, script)
    assert status == suite.FROZEN and "1 of 1" in log and "and is given up" in log, log
    assert suite.outcome(stage / "report", status) == suite.NO_ANSWER


def test_a_command_that_hangs_is_no_freeze(stage):
    """Its L1 lives, though it does nothing at all; it is kept awake by interrupts that are not its own."""
    count = "grep i8042 /proc/interrupts | head -n 1 | awk '{ print \"keys\", $2 }'"
    status, log = boot(stage, lambda: f"{count}; sleep {3 * FROZEN_S}; {count}; exit 7\n")
    assert status == 7 and "froze" not in log, log
    before, after = (int(n) for n in re.findall(r"^keys (\d+)$", log, re.M))
    assert after > before
