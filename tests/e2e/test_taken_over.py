"""A compromised monitor: an msb with an attacker in its monitor (tests/taken_over), who runs
once its filters are closed. What it can and cannot do is what docs/security.md says.
"""
import pathlib
import shutil
import socket
import subprocess

import pytest

from conftest import MSB, Msb, wait_for

TAKEN = MSB.parents[2] / "tests" / "taken_over" / "msb-taken-over"

MAIN = {
    "can": {"create files in run/", "read its disks", "write one disk, its own"},
    "cannot": {
        "run code it brought",
        "make memory executable",
        "have memory that no limit counts",
        "have memory that grows",
        "have more than 512 MiB",
        "fork",
        "start a thread",
        "execute a program",
        "make a socket",
        "make an Internet socket",
        "connect",
        "trace",
        "kill",
        "kill by thread",
        "take or give up a record lock",
        "copy a descriptor",
        "pass a descriptor on",
        "mount",
        "enter a namespace",
        "change its user",
        "raise a limit",
        "use io_uring",
        "make other calls",
        "open files of the host",
        "climb out of a directory it has",
        "create files in its root",
        "write to an image",
    },
}
NETWORK = {
    "can": {"make an Internet socket", "reach a service of the host"},
    "cannot": {
        "run code it brought",
        "have memory that no limit counts",
        "fork",
        "make a Unix socket",
        "make a netlink socket",
        "make a packet socket",
        "open a file",
        "read a disk",
        "bind",
        "listen",
        "make other calls",
    },
}


@pytest.fixture
def taken(msb):
    """The same home, served by the msb that has an attacker in it."""
    if not TAKEN.exists():
        pytest.skip("not built here: tests/taken_over")
    assets = msb.env.get("MSB_ASSETS", str(MSB.parents[2] / "assets"))
    other = Msb(msb.home, {"MSB_ASSETS": assets})
    other.exe = str(TAKEN)
    return other


def found(run, name):
    """{"can": {...}, "cannot": {...}} of a report."""
    report = {"can": set(), "cannot": set()}
    for line in wait_for(lambda: (run / name).exists() and (run / name).read_text()).splitlines():
        verdict, what = line.split(" ", 1)
        report[verdict].add(what)
    return report


def test_what_a_monitor_can_do(msb, taken):
    msb.create("box", "-m", "64M")
    msb.ok("stop", "-q", "-t", "0", "box")
    run = msb.home / "sandboxes" / "box" / "run"
    with socket.create_server(("127.0.0.1", 0)) as service:
        (run / "taken-port").write_text(str(service.getsockname()[1]))
        shutil.chown(run / "taken-port", run.stat().st_uid, run.stat().st_gid)
        taken.ok("start", "-q", "box")
        # What it tried did not even disturb the sandbox.
        assert taken.ok("exec", "-q", "box", "--", "echo", "up") == "up\n"
        assert found(run, "taken-main") == MAIN
        assert found(run, "taken-net") == NETWORK
    msb.ok("rm", "-f", "-q", "box")


def test_no_network_thread_without_a_network(msb, taken):
    msb.create("box", "-m", "64M", "--no-net")
    msb.ok("stop", "-q", "-t", "0", "box")
    taken.ok("start", "-q", "box")
    run = msb.home / "sandboxes" / "box" / "run"
    assert found(run, "taken-main") == MAIN
    assert taken.ok("exec", "-q", "box", "--", "echo", "up") == "up\n"
    assert not (run / "taken-net").exists()
    msb.ok("rm", "-f", "-q", "box")


def test_the_product_has_no_such_thing():
    if not shutil.which("nm"):
        pytest.skip("no nm")
    symbols = {exe: subprocess.run(["nm", exe], capture_output=True, text=True).stdout for exe in (MSB, TAKEN)}
    assert "__wrap_" not in symbols[MSB] and "attack_" not in symbols[MSB]
    assert "attack_from_monitor" in symbols[pathlib.Path(TAKEN)]
