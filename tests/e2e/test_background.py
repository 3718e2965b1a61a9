"""Commands in the background: how they end is recorded, waited for, and one can come back to them."""
import json
import signal
import subprocess

from conftest import wait_for
from guest import FOREVER, PATIENCE, alive, finish, read, sh
from terminal import Terminal


def terminal(m, *args):
    return Terminal(m.command(args), m.env)


def background(m, name):
    return json.loads(m.ok("inspect", name, "--format", "json"))["background"]


def last(m, name):
    return background(m, name)[-1]


def test_exit_codes_are_shown(box):
    """ls, ps and inspect say how the latest command ended; its output is in the log."""
    m, name = box
    m.ok("exec", "-d", name, "sh", "-c", "echo from behind; exit 3")
    assert m.ok("wait", name) == "3\n"
    c = last(m, name)
    assert (c["exit_code"], c["running"], c["command"]) == (3, False, "sh -c echo from behind; exit 3")
    assert c["ended_at"] >= c["started_at"]
    assert "running (exited 3)" in m.ok("ls") and "running (exited 3)" in m.ok("ps")
    assert "sh -c echo from behind; exit 3 (exited 3 " in m.ok("inspect", name)
    assert json.loads(m.ok("ls", "--json"))[0]["exit_code"] == 3
    assert json.loads(m.ok("ps", name, "--json"))["background"][-1]["exit_code"] == 3
    assert "from behind" in m.ok("logs", name)
    m.ok("exec", "-d", name, "sh", "-c", "kill -9 $$")
    assert m.ok("wait", name, name) == "137\n137\n"
    p = m("exec", "-d", name, "no-such-program")
    assert p.returncode == 127 and last(m, name)["exit_code"] == 137  # that is not a command


def test_waits_for_one_that_runs(box):
    m, name = box
    m.ok("exec", "-d", name, "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.02; done; exit 5")
    assert last(m, name)["running"] and last(m, name)["exit_code"] is None
    assert "exited" not in m.ok("ls")
    waiter = m.popen("wait", name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sh(m, name, ": >/tmp/go")
    assert finish(waiter)[:2] == (0, b"5\n")


def test_attach(box):
    """Its output and its exit code come to whoever is attached; that client's death is not its own."""
    m, name = box
    script = "echo $$ >/tmp/at.pid; while [ ! -e /tmp/at ]; do echo tick; sleep 0.02; done; exit 6"
    m.ok("exec", "-d", name, "sh", "-c", script)
    number = str(last(m, name)["id"])
    a = m.popen("attach", name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert a.stdout.read(10) == b"tick\ntick\n"
    p = m("attach", "--id", number, name)
    assert p.returncode == 1 and b"another client is attached" in p.stderr
    a.send_signal(signal.SIGKILL)
    a.communicate()
    assert alive(m, name, read(m, name, "/tmp/at.pid"))
    assert m("attach", "--id", "9999", name).returncode == 1

    def attach():
        """None: the end of the one before has not been noticed yet."""
        b = m.popen("attach", "--id", number, name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if b.stdout.read(5) == b"tick\n":
            return b
        assert b"another client is attached" in b.communicate()[1]
        return None

    b = wait_for(attach)
    sh(m, name, ": >/tmp/at")
    assert finish(b)[0] == 6
    wait_for(lambda: last(m, name)["exit_code"] == 6)
    p = m("attach", name)
    assert p.returncode == 1 and b"msb logs" in p.stderr
    assert m("attach", "--id", "x", name).returncode == 1


def test_a_terminal_is_left_and_taken_up_again(box):
    """Ctrl-] says how to come back; the shell is the same one, and takes input."""
    m, name = box
    with terminal(m, "exec", name, "sh") as t:
        t.type(b"x=kept; echo $((40+2))\r")
        t.read_until(b"42\r\n")
        t.type(b"\x1d")
        t.read_until(f"msb attach {name}".encode())
        assert t.wait() == 0 and t.is_restored()
    with terminal(m, "attach", name) as t:
        t.type(b"echo $x-$((40+3))\r")
        t.read_until(b"kept-43\r\n")
        t.type(b"\x1d")
        assert t.wait() == 0 and t.is_restored()
    with terminal(m, "attach", name) as t:
        t.type(b"exit 9\r")
        assert t.wait() == 9
    assert last(m, name)["exit_code"] == 9


def test_many_are_kept_within_bounds(box):
    m, name = box
    for i in range(20):
        m.ok("exec", "-qd", name, "sh", "-c", f"exit {i}")
    wait_for(lambda: not any(c["running"] for c in background(m, name)), timeout=PATIENCE)
    assert [c["exit_code"] for c in background(m, name)] == list(range(4, 20))


def test_sandboxes_of_run_d(msb):
    """A named one stays and says so; an unnamed one goes, and who waits for it is told first."""
    msb.ok("run", "-d", "-n", "failed", "--", "false")
    assert msb.ok("wait", "failed") == "1\n" and msb.status("failed") == "Running"
    msb.ok("exec", "-d", "failed", "sleep", FOREVER)
    waiter = msb.popen("wait", "failed", stdout=subprocess.PIPE)
    msb.ok("kill", "failed")
    assert finish(waiter)[1] == b"137\n"
    assert not last(msb, "failed")["running"] and "exited" not in msb.ok("ls")
    msb.ok("start", "failed")
    assert background(msb, "failed") == []  # of the run before
    waiter = msb.popen("wait", "failed", stdout=subprocess.PIPE)
    msb.ok("stop", "failed")
    assert finish(waiter)[1] == b"0\n"
    name = msb.ok("run", "-d", "--", "sh", "-c", "sleep 0.3; exit 4").strip()
    assert msb.ok("wait", name) == "4\n"
    assert msb("wait", "nobody").returncode == 1


HOSTILE = ["", "[]", "{}", "[1]", '[{"id": 0, "command": "x"}]', "[" * 5000,
           '[{"id": 1, "command": "\\u001b[2J", "exit_code": 999}]']


def test_what_a_monitor_wrote_is_not_trusted(msb):
    msb.create("box")
    msb.ok("stop", "-f", "box")
    for text in HOSTILE:
        (msb.home / "sandboxes" / "box" / "run" / "commands.json").write_text(text)
        assert background(msb, "box") == [] and "stopped" in msb.ok("ls")
