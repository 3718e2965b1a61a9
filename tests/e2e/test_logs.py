"""`msb logs`: what commands wrote and what happened, from files, while it runs and after."""
import base64
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from conftest import wait_for

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"


def stderr(p):
    return p.stderr.decode(errors="replace")


def entries(msb, name, *args):
    return [json.loads(line) for line in msb.ok("logs", name, "--json", *args).splitlines()]


def text_of(entry):
    if entry["e"] == "b64":
        return base64.b64decode(entry["d"])
    assert entry["e"] is None
    return entry["d"].encode()


def joined(msb, name, *args):
    return b"".join(text_of(e) for e in entries(msb, name, *args))


@pytest.fixture(scope="module")
def talk(module_msb):
    """A sandbox in which three commands have written; the second one's time is known."""
    m = module_msb
    m.create("talk", "-m", "128M")
    m.sh("talk", "echo one; echo two; echo bad >&2")
    time.sleep(0.05)
    m.middle = time.time()
    time.sleep(0.05)
    m.sh("talk", "echo three; echo worse >&2; printf half; printf ' line\\n'")
    m("exec", "-q", "-t", "talk", "--", "sh", "-c", "echo on a terminal")
    return m


def test_streams_stay_apart(talk):
    p = talk("logs", "talk")
    assert p.returncode == 0
    assert p.stdout.replace(b"\r\n", b"\n") == b"one\ntwo\nthree\nhalf line\non a terminal\n"
    assert p.stderr == b"bad\nworse\n"


def test_output_is_in_the_log_when_exec_returns(msb):
    """No waiting: once the exit code is known, the output is in the log."""
    msb.create("now", "-m", "64M")
    for i in range(20):
        msb.sh("now", f"echo line {i}")
        assert msb("logs", "now", "--tail", "1").stdout == f"line {i}\n".encode()


def test_sources(talk):
    assert talk("logs", "talk", "--source", "stdout").stdout == b"one\ntwo\nthree\nhalf line\n"
    p = talk("logs", "talk", "--source", "stderr")
    assert (p.stdout, p.stderr) == (b"", b"bad\nworse\n")
    assert talk("logs", "talk", "--source", "output").stdout == b"on a terminal\r\n"
    p = talk("logs", "talk", "--source", "stdout,stderr")
    assert (p.stdout, p.stderr) == (b"one\ntwo\nthree\nhalf line\n", b"bad\nworse\n")
    p = talk("logs", "talk", "--source", "stdout", "--source", "output")
    assert b"three" in p.stdout and b"terminal" in p.stdout and p.stderr == b""
    assert "running (engine " in talk.ok("logs", "talk", "--source", "system")
    everything = talk("logs", "talk", "--source", "all")
    assert b"running (engine " in everything.stdout and b"half line" in everything.stdout
    p = talk("logs", "talk", "--source", "stdin")
    assert p.returncode == 2 and "stdout, stderr, output, system or all" in stderr(p)


def test_json(talk):
    """One object a line: d, e, id, s, t, in that order."""
    lines = talk.ok("logs", "talk", "--json", "--source", "all").splitlines()
    for line in lines:
        e = json.loads(line)
        assert list(e) == ["d", "e", "id", "s", "t"]
        assert e["s"] in ("stdout", "stderr", "output", "system")
        assert re.fullmatch(STAMP, e["t"])
        assert (e["id"] is None) == (e["s"] == "system")
    times = [json.loads(line)["t"] for line in lines]
    assert times == sorted(times)
    by_id = {}
    for e in entries(talk, "talk"):
        by_id.setdefault(e["id"], b"")
        by_id[e["id"]] += text_of(e) if e["s"] != "stderr" else b""
    assert list(by_id.values()) == [b"one\ntwo\n", b"three\nhalf line\n", b"on a terminal\r\n"]


def test_tail(talk):
    """Counts lines, not entries."""
    assert talk("logs", "talk", "--source", "stdout", "--tail", "1").stdout == b"half line\n"
    assert talk("logs", "talk", "--source", "stdout", "--tail", "3").stdout == b"two\nthree\nhalf line\n"
    assert talk("logs", "talk", "--source", "stdout", "--tail", "99").stdout == b"one\ntwo\nthree\nhalf line\n"
    assert talk("logs", "talk", "--tail", "0").stdout == b""
    assert talk("logs", "talk", "--tail", "-1").returncode == 2


def test_since_and_until(talk):
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(talk.middle)) + f".{int(talk.middle % 1 * 1e9):09d}Z"
    p = talk("logs", "talk", "--since", when, "--source", "stdout,stderr")
    assert (p.stdout, p.stderr) == (b"three\nhalf line\n", b"worse\n")
    p = talk("logs", "talk", "--until", when)
    assert (p.stdout, p.stderr) == (b"one\ntwo\n", b"bad\n")
    assert talk("logs", "talk", "--since", "1h", "--source", "stdout").stdout == b"one\ntwo\nthree\nhalf line\n"
    assert talk("logs", "talk", "--until", "1h").stdout == b""
    p = talk("logs", "talk", "--since", "yesterday-ish")
    assert p.returncode == 2 and "expected a time such as" in stderr(p)


def test_grep(talk):
    """A line that was written in pieces is one line."""
    p = talk("logs", "talk", "--grep", "^t|half line$")
    assert (p.stdout, p.stderr) == (b"two\nthree\nhalf line\n", b"")
    assert talk("logs", "talk", "--grep", "wor[s]e").stderr == b"worse\n"
    p = talk("logs", "talk", "--grep", "(")
    assert p.returncode == 1 and "invalid regular expression" in stderr(p)


def test_timestamps_and_ids(talk):
    out = talk.ok("logs", "talk", "--timestamps", "--source", "stdout").splitlines()
    assert [re.fullmatch(rf"{STAMP} (.*)", line)[1] for line in out] == ["one", "two", "three", "half line"]
    out = talk.ok("logs", "talk", "--show-id", "--source", "stdout").splitlines()
    ids = [re.fullmatch(r"\[(\d+)\] (.*)", line).groups() for line in out]
    assert [text for _, text in ids] == ["one", "two", "three", "half line"]
    assert ids[0][0] == ids[1][0] != ids[2][0] == ids[3][0]


def test_color_only_when_asked_for(talk):
    env = {k: v for k, v in talk.env.items() if k != "NO_COLOR"}
    assert b"\x1b[" not in talk("logs", "talk", "--timestamps", env=env).stdout
    assert b"\x1b[" in talk("logs", "talk", "--timestamps", "--color", "always", env=env).stdout
    assert b"\x1b[" not in talk("logs", "talk", "--timestamps", "--no-color", env=env).stdout
    assert b"\x1b[" not in talk("logs", "talk", "--color-sessions", env=env).stdout


def test_each_session_has_a_color(talk):
    out = talk.ok("logs", "talk", "--color-sessions", "--color", "always", "--show-id", "--source", "stdout").splitlines()
    lines = [re.fullmatch(r"(\x1b\[3\dm)\[(\d+)\]\x1b\[0m (\x1b\[3\dm)(.*)\x1b\[0m", line).groups() for line in out]
    assert [text for *_, text in lines] == ["one", "two", "three", "half line"]
    assert all(prefix == color for prefix, _, color, _ in lines)
    assert lines[0][0] == lines[1][0] != lines[2][0] == lines[3][0]


def test_missing_sandbox(msb):
    p = msb("logs", "ghost")
    assert (p.returncode, stderr(p)) == (1, "error: sandbox not found: ghost\n")


def test_readable_when_stopped_and_crashed(msb):
    msb.create("s", "-m", "64M")
    msb.sh("s", "echo before")
    msb.ok("stop", "s", "-q")
    assert msb.ok("logs", "s") == "before\n"
    assert "stopped: stopped on request" in msb.ok("logs", "s", "--source", "system")
    assert msb.status("s") == "Stopped", "reading starts nothing"
    msb.ok("start", "s", "-q")
    msb.sh("s", "echo after")
    os.kill(msb.monitor_pid("s"), signal.SIGKILL)
    wait_for(lambda: msb.status("s") == "Crashed")
    assert msb.ok("logs", "s") == "before\nafter\n", "one log over all starts"


def test_system_log_tells_the_story(msb):
    msb.create("s", "-m", "64M", "--idle-timeout", "500ms")
    wait_for(lambda: msb.status("s") == "Stopped", timeout=20)
    log = msb.ok("logs", "s", "--source", "system")
    assert log.index("running (engine ") < log.index("stopped: idle timeout")


def test_binary_output(msb):
    """Bytes come back as they were; JSON carries what is not text as base64."""
    msb.create("b", "-m", "64M")
    blob = bytes(range(256)) * 8
    p = msb("exec", "-q", "b", "--", "cat", input=blob)
    assert p.stdout == blob
    assert msb("logs", "b").stdout == blob
    assert joined(msb, "b") == blob
    assert any(e["e"] == "b64" for e in entries(msb, "b"))
    text = "grüße 世界 \x1b[31mred\x1b[0m \t\"quoted\\\" \x7f\n".encode()
    assert msb("exec", "-q", "b", "--", "cat", input=text).stdout == text
    last = entries(msb, "b")[-1]
    assert last["e"] is None and last["d"].encode() == text


def test_escape(msb):
    """A pipe gets the bytes; with --escape it gets what a terminal would: nothing that controls one."""
    msb.create("b", "-m", "64M")
    text = b"a\x1b]0;title\x07\x1b[2Jb\x1b[31mred\x1b[0m\xff\r\xc2\x9b\n"
    for stream in ("", " >&2"):
        msb("exec", "-q", "b", "--", "sh", "-c", "cat" + stream, input=text)
    p = msb("logs", "b")
    assert p.stdout == text and p.stderr == text
    p = msb("logs", "--escape", "b")
    for out in (p.stdout, p.stderr):
        assert out.replace(b"\x1b[31m", b"").replace(b"\x1b[0m", b"").count(b"\x1b") == 0
        assert b"^[[2J" in out and b"\\xff" in out and b"\x07" not in out and b"\x9b" not in out
    p = msb("logs", "--escape", "--no-color", "b")
    assert b"\x1b" not in p.stdout + p.stderr


def test_follow(msb):
    """Shows what is there, then what comes, as it comes; ends when the sandbox does."""
    msb.create("f", "-m", "64M")
    msb.sh("f", "echo early")
    p = msb.popen("logs", "-f", "f", stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"early\n"
    msb.sh("f", "echo later")
    assert p.stdout.readline() == b"later\n"
    msb.sh("f", "echo last")
    msb.ok("stop", "f", "-q", "-t", "0")
    assert p.stdout.read() == b"last\n"
    assert p.wait(timeout=10) == 0
    assert msb("logs", "-f", "f", timeout=10).stdout == b"early\nlater\nlast\n"


def test_follow_with_options(msb):
    msb.create("f", "-m", "64M")
    msb.sh("f", "echo a1; echo b1; echo a2")
    p = msb.popen("logs", "--follow", "--tail", "1", "--grep", "a", "f", stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"a2\n"
    msb.sh("f", "echo b2; echo a3")
    assert p.stdout.readline() == b"a3\n"
    p.send_signal(signal.SIGINT)
    p.wait(timeout=10)


def test_reader_that_goes(msb):
    """`logs | head`: quiet, and not a success that it was not."""
    msb.create("f", "-m", "64M")
    msb.sh("f", "seq 1 200000")
    p = msb.popen("logs", "f", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.readline()
    p.stdout.close()
    assert p.wait(timeout=10) == 128 + signal.SIGPIPE
    assert p.stderr.read() == b""


# --- rotation ------------------------------------------------------------------------------------


def test_rotation(msb):
    """Three files of 10 MiB at most; the newest is kept whole, and reads across files in order."""
    msb.create("r", "-m", "128M")
    follower = msb.popen("logs", "-f", "r", stdout=subprocess.PIPE)
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(follower.stdout))
    reader.start()
    n = 150000  # lines of 240 bytes: some 36 MB
    script = f"awk 'BEGIN {{ for (i = 1; i <= {n}; i++) printf \"%0234d line\\n\", i }}'"
    p = msb("exec", "-q", "r", "--", "sh", "-c", script, stdout=subprocess.DEVNULL, timeout=120)
    assert p.returncode == 0
    logs = msb.home / "sandboxes" / "r" / "run" / "logs"
    files = {f.name: f.stat().st_size for f in logs.iterdir() if f.name.startswith("exec.log")}
    assert set(files) == {"exec.log", "exec.log.1", "exec.log.2"}
    assert all(size <= 10 << 20 for size in files.values()), files
    assert files["exec.log.1"] > 9 << 20 and files["exec.log.2"] > 9 << 20
    lines = msb.ok("logs", "r").splitlines()
    numbers = [int(line.split()[0]) for line in lines[1:]]  # the first may be cut
    assert numbers == list(range(numbers[0], n + 1)), "no gap, no repetition"
    assert len(numbers) > 75000
    assert msb.ok("logs", "r", "--tail", "1").split()[0].endswith(str(n))
    # A follower that keeps up misses nothing, whatever is rotated under it.
    msb.ok("stop", "-t", "0", "r", "-q")
    reader.join(30)
    assert follower.wait(timeout=10) == 0
    got = [int(line.split()[0]) for line in seen if line.endswith(b" line\n")]
    assert got[-1] == n and got == sorted(set(got))


def test_log_of_a_full_disk_does_not_stop_the_sandbox(tmp_path):
    """Logging fails, commands do not."""
    if os.geteuid() != 0:
        pytest.skip("needs a small file system of its own: mounting one takes root")
    from conftest import Msb, tear_down

    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "msbtest", home], check=True)
    try:
        m = Msb(home)
        m.create("l", "-m", "64M")
        filler = os.open(home / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
        with pytest.raises(OSError):
            while os.write(filler, bytes(1 << 16)):
                pass
        os.close(filler)
        p = m("exec", "-q", "l", "--", "sh", "-c", "seq 1 100000 | tail -1")
        assert p.stdout == b"100000\n"
        p = m("exec", "-q", "l", "--", "seq", "1", "100000")
        assert p.returncode == 0 and p.stdout.endswith(b"\n100000\n")
        m.ok("stop", "-t", "0", "-q", "l")
        assert m.status("l") in ("Stopped", "Crashed")
        (home / "filler").unlink()
        assert m.sh("l", "echo back").stdout == b"back\n"
        tear_down(m)
    finally:
        subprocess.run(["umount", "-l", home], check=True)
