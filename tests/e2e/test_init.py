"""--init: an init of the image's is PID 1 of the commands, and the sandbox ends with it."""
import json

import pytest

from conftest import wait_for
from guest import sh

# What an init does: it tells where it runs, adopts orphans, and cleans up when asked to.
SCRIPT = """trap 'echo bye >/bye; exit 3' TERM
trap 'exit 0' USR2
echo $$ $FOO $1 >/init.new; mv /init.new /init.txt
while :; do sleep 1000 & wait $!; done"""
INIT = ["--init", "/bin/sh", "--init-arg", "-c", "--init-arg", SCRIPT, "--init-arg", "x", "--init-arg", "--y=1",
        "--init-env", "FOO=bar"]  # fmt: skip


@pytest.fixture(scope="module")
def box(module_msb):
    module_msb.create("box", "--memory", "128M", *INIT)
    wait_for(lambda: module_msb.sh("box", "cat /init.txt").returncode == 0)
    return module_msb


def status(msb, name):
    return json.loads(msb.ok("ps", name, "--format", "json"))["status"]


def test_it_is_pid_1_of_the_commands(box):
    assert sh(box, "box", "cat /init.txt") == "1 bar --y=1\n"
    assert sh(box, "box", "cat /proc/1/comm") == "sh\n"
    orphan = int(sh(box, "box", "sleep 500 >/dev/null 2>&1 & echo $!"))
    assert sh(box, "box", f"sed -n s/PPid:.//p /proc/{orphan}/status") == "1\n"
    assert json.loads(box.ok("inspect", "box", "--format", "json"))["config"]["init"] == {
        "cmd": "/bin/sh", "args": ["-c", SCRIPT, "x", "--y=1"], "env": [["FOO", "bar"]]}  # fmt: skip


def test_commands_are_ended_as_ever(box):
    """By the numbers that the agent knows, whatever they are in the namespace."""
    p = box("exec", "--timeout", "1s", "box", "--", "sh", "-c", "(sleep 600; true) & sleep 700")
    assert p.returncode == 124
    assert box.sh("box", "ps | grep -v grep | grep -E 'sleep (600|700)'").returncode == 1
    box.ok("exec", "box", "--", "sh", "-c", "kill -9 1; kill -0 1")  # PID 1 is safe from it


def test_files_are_copied(box, tmp_path):
    (tmp_path / "f").write_text("one\n")
    box.ok("cp", str(tmp_path / "f"), "box:/root/f")
    assert sh(box, "box", "cat /root/f") == "one\n"
    box.ok("cp", "box:/root/f", str(tmp_path / "g"))
    assert (tmp_path / "g").read_text() == "one\n"


def test_stop_asks_it_and_saves(msb):
    msb.create("s", "--memory", "128M", *INIT)
    wait_for(lambda: msb.sh("s", "cat /init.txt").returncode == 0)
    sh(msb, "s", "rm /init.txt; echo kept >/f")
    msb.ok("stop", "-q", "s")
    assert "the init ended (exit code 3)" in msb.ok("logs", "--source", "system", "s")
    assert sh(msb, "s", "cat /bye /f") == "bye\nkept\n"  # started for this, with its init
    msb.ok("start", "-q", "s")
    wait_for(lambda: msb.sh("s", "cat /init.txt").returncode == 0)
    msb("exec", "s", "--", "kill", "-USR2", "1")
    wait_for(lambda: status(msb, "s") == "Stopped")  # it ended by itself, in order


def test_what_cannot_be(module_msb):
    for args, code, why in (
        (["--init", "/no/such"], 1, "cannot start the init /no/such: No such file"),
        (["--init", "auto"], 1, "the image has no init"),
        (["--init-arg", "x"], 2, "need --init"),
        (["--init", "auto", "--init-env", "MSB_SURELY_NOT_SET"], 1, "not set"),
    ):
        p = module_msb("create", "-n", "bad", "--memory", "128M", *args)
        assert p.returncode == code and why in p.stderr.decode(), p.stderr
        assert module_msb("inspect", "bad").returncode == 1
    module_msb.ok("run", "--init", "--memory", "128M", "--", "true")  # as Docker has it
