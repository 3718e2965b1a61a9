"""Drives the agent's session server over a unix socket, with real processes.

Usage: pytest test_sessions.py with AGENT_SERVE naming the server binary.
"""
import concurrent.futures
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from protoheader import named  # noqa: E402

# In a guest the agent is root, and the end-to-end tests show the same things there.
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the agent becomes the user of each command, which takes root")

HELLO, CONFIG, FAIL, EXEC, STARTED, STDIN, STDIN_EOF, STDIN_ACK, STDOUT, STDERR, SIGNAL, RESIZE, EXIT = named(
    "PROTO_", "HELLO CONFIG FAIL EXEC STARTED STDIN STDIN_EOF STDIN_ACK STDOUT STDERR SIGNAL RESIZE EXIT")
F_VERSION, F_TEXT, F_KIND, F_ERRNO, F_PID, F_BYTES, F_SIGNAL, F_CODE, F_TIMED_OUT, F_ROWS, F_COLS = named(
    "F_", "VERSION TEXT KIND ERRNO PID BYTES SIGNAL CODE TIMED_OUT ROWS COLS")
F_ARG, F_ENV, F_CWD, F_USER, F_RLIMIT, F_RESOURCE, F_SOFT, F_HARD, F_TTY, F_NO_STDIN, F_TIMEOUT_MS = named(
    "F_", "ARG ENV CWD USER RLIMIT RESOURCE SOFT HARD TTY NO_STDIN TIMEOUT_MS")
F_HOSTNAME, F_SCRIPT, F_NAME, F_BODY = named("F_", "HOSTNAME SCRIPT NAME BODY")
NOT_FOUND, NOT_EXECUTABLE, CWD, USER, RLIMIT, LIMIT, VERSION = named(
    "PROTO_FAIL_", "NOT_FOUND NOT_EXECUTABLE CWD USER RLIMIT LIMIT VERSION")
DATA_MAX, WINDOW = named("PROTO_", "DATA_MAX STDIN_WINDOW")


def field(tag, data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<HI", tag, len(data)) + data


def u32(tag, value):
    return field(tag, struct.pack("<I", value))


def u64(tag, value):
    return field(tag, struct.pack("<Q", value))


def frame(kind, payload=b""):
    return struct.pack("<IHH", len(payload), kind, 0) + payload


def fields(payload):
    out, at = {}, 0
    while at < len(payload):
        tag, n = struct.unpack_from("<HI", payload, at)
        out[tag] = payload[at + 6 : at + 6 + n]
        at += 6 + n
    return out


def number(data):
    return int.from_bytes(data, "little")


def exec_payload(argv, env=(), cwd=None, user=None, tty=None, no_stdin=False, timeout_ms=0,
                 rlimits=()):
    p = b"".join(field(F_ARG, a) for a in argv)
    p += b"".join(field(F_ENV, e) for e in env)
    p += field(F_CWD, cwd) if cwd is not None else b""
    p += field(F_USER, user) if user is not None else b""
    for resource, soft, hard in rlimits:
        p += field(F_RLIMIT, u32(F_RESOURCE, resource) + u64(F_SOFT, soft) + u64(F_HARD, hard))
    p += u32(F_TTY, 1) + u32(F_ROWS, tty[0]) + u32(F_COLS, tty[1]) if tty else b""
    p += u32(F_NO_STDIN, 1) if no_stdin else b""
    p += u64(F_TIMEOUT_MS, timeout_ms) if timeout_ms else b""
    return p


class Result:
    def __init__(self):
        self.out = bytearray()
        self.err = bytearray()
        self.code = self.signal = self.fail = self.pid = None
        self.text = ""
        self.timed_out = False
        self.acked = 0
        self.done = False


class Session:
    """One stream. Frames are collected into .r as they come."""

    def __init__(self, path, argv=None, **kw):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.buf = bytearray()
        self.r = Result()
        if argv is not None:
            self.send(frame(HELLO, u32(F_VERSION, 1 << 16)) + frame(EXEC, exec_payload(argv, **kw)))

    def send(self, data):
        self.sock.sendall(data)

    def pump(self, timeout=20):
        """Takes what is there, waiting for at least one byte; False at the end."""
        self.sock.settimeout(timeout)
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            return False
        self.buf += data
        at = 0
        while len(self.buf) - at >= 8:
            n, kind, _ = struct.unpack_from("<IHH", self.buf, at)
            if len(self.buf) - at < 8 + n:
                break
            self.take(kind, bytes(self.buf[at + 8 : at + 8 + n]))
            at += 8 + n
        del self.buf[:at]
        return True

    def take(self, kind, payload):
        r = self.r
        assert not r.done, "a frame after EXIT or FAIL"
        assert len(payload) <= DATA_MAX
        if kind == STDOUT:
            r.out += payload
            return
        if kind == STDERR:
            r.err += payload
            return
        f = fields(payload)
        if kind == STARTED:
            r.pid = number(f[F_PID])
        elif kind == STDIN_ACK:
            r.acked += number(f[F_BYTES])
        elif kind == EXIT:
            r.done = True
            r.code = number(f[F_CODE]) if F_CODE in f else None
            r.signal = number(f[F_SIGNAL]) if F_SIGNAL in f else None
            r.timed_out = F_TIMED_OUT in f
        elif kind == FAIL:
            r.done = True
            r.fail = number(f[F_KIND])
            r.text = f[F_TEXT].decode()

    def until(self, condition, timeout=20):
        end = time.monotonic() + timeout
        while not condition(self.r):
            assert self.pump(max(0.01, end - time.monotonic())), "the stream ended too early"
        return self.r

    def finish(self, timeout=20):
        while self.pump(timeout):
            pass
        self.sock.close()
        assert self.r.done
        return self.r

    def feed(self, data, eof=True):
        """Sends input within the window, as a client must."""
        sent = 0
        while sent < len(data):
            room = WINDOW - (sent - self.r.acked)
            if room <= 0 or select.select([self.sock], [], [], 0)[0]:
                assert self.pump()
                continue
            n = min(room, DATA_MAX, len(data) - sent)
            self.send(frame(STDIN, data[sent : sent + n]))
            sent += n
        if eof:
            self.send(frame(STDIN_EOF))


class Server:
    def __init__(self, directory, config=b""):
        self.path = str(directory / "s")
        (directory / "config").write_bytes(config)
        args = [os.environ["AGENT_SERVE"], self.path, str(directory / "config")]
        env = {"MARKER": "must not leak", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}
        self.p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.p.stdout.readline() == b"listening\n"

    def start(self, argv, **kw):
        return Session(self.path, argv, **kw)

    def run(self, argv, stdin=None, **kw):
        s = self.start(argv, no_stdin=stdin is None, **kw)
        if stdin is not None:
            s.feed(stdin)
        return s.finish()

    def sh(self, script, **kw):
        return self.run(["/bin/sh", "-c", script], **kw)

    def end(self):
        self.p.stdin.close()
        last = self.p.stdout.read().decode()
        assert self.p.wait(10) == 0, last
        return last

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.p.pid}/fd"))


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path, field(F_HOSTNAME, "box"))
    yield s
    s.end()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_soon(pid, timeout=5):
    end = time.monotonic() + timeout
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


# --- how it ends ---


def test_exit_codes(server):
    for code in range(256):
        assert server.sh(f"exit {code}").code == code


@pytest.mark.parametrize("sig", [1, 2, 6, 9, 11, 13, 15])
def test_death_by_signal(server, sig):
    r = server.sh(f"kill -{sig} $$")
    assert (r.signal, r.code, r.timed_out) == (sig, None, False)


def test_not_found(server):
    r = server.run(["no-such-program"])
    assert r.fail == NOT_FOUND and "no-such-program" in r.text
    assert server.run(["/no/such/program"]).fail == NOT_FOUND
    assert server.run(["/etc/passwd/x"]).fail == NOT_FOUND
    assert server.run([""]).fail == NOT_FOUND


def test_not_executable(server, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("echo no\n")
    assert server.run([str(plain)]).fail == NOT_EXECUTABLE
    r = server.run([str(tmp_path)])
    assert r.fail == NOT_EXECUTABLE and "directory" in r.text
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\0\0\0\0 nonsense")
    binary.chmod(0o755)
    assert server.run([str(binary)]).fail == NOT_EXECUTABLE


def test_path_goes_on_after_eacces(server, tmp_path):
    for d in "abc":
        (tmp_path / d).mkdir()
    (tmp_path / "a" / "prog").write_text("echo no\n")
    path = f"PATH={tmp_path}/a:{tmp_path}/b:{tmp_path}/c"
    assert server.run(["prog"], env=[path]).fail == NOT_EXECUTABLE
    prog = tmp_path / "c" / "prog"
    prog.write_text("#!/bin/sh\necho yes\n")
    prog.chmod(0o755)
    assert server.run(["prog"], env=[path]).out == b"yes\n"


def test_missing_interpreter_is_named(server, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/opt/no-such-shell -x\n")
    script.chmod(0o755)
    r = server.run([str(script)])
    assert r.fail == NOT_EXECUTABLE and "/opt/no-such-shell is not" in r.text


def test_script_without_interpreter_line(server, tmp_path):
    script = tmp_path / "script"
    script.write_text('echo "$0" "$@"\n')
    script.chmod(0o755)
    r = server.run([str(script), "a b", "c"])
    assert r.out == f"{script} a b c\n".encode()


def test_relative_program_and_cwd(server, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    assert server.run(["./script"], cwd=str(tmp_path)).out == f"{tmp_path}\n".encode()
    assert server.run(["pwd"]).out == b"/\n"
    r = server.run(["pwd"], cwd="/no/such/dir")
    assert r.fail == CWD and "/no/such/dir" in r.text


def test_no_shell_parsing(server):
    words = ["$HOME", "`id`", "a b", "'", '"', "\\", "*", "", "\n", "--", "$(id)"]
    r = server.run(["printf", "<%s>", *words])
    assert r.out == "".join(f"<{w}>" for w in words).encode()


# --- environment, user, limits ---


def test_environment_is_exact(server):
    r = server.run(["env"])
    assert sorted(r.out.decode().splitlines()) == [
        "HOME=/root",
        "HOSTNAME=box",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.msb/bin",
    ]


def test_environment_order(tmp_path):
    config = b"".join(field(F_ENV, e) for e in ["A=1", "B=1", "C=1", "HOME=/h", "bad", "=bad"])
    config += field(F_SCRIPT, field(F_NAME, "x") + field(F_BODY, "y"))
    server = Server(tmp_path, config)
    r = server.run(["env"], env=["B=2", "C=2", "C=3", "PATH=/usr/bin:/bin", "D=", "E=a=b"])
    assert sorted(r.out.decode().splitlines()) == [
        "A=1", "B=2", "C=3", "D=", "E=a=b", "HOME=/h",
        "PATH=/.msb/scripts:/usr/bin:/bin:/.msb/bin",
    ]
    server.end()


def test_config_defaults(tmp_path):
    workdir = tmp_path / "made" / "on demand"
    server = Server(tmp_path, field(F_CWD, str(workdir)) + field(F_USER, "12345:23456"))
    os.chmod(tmp_path, 0o755)
    assert server.run(["pwd"]).fail == CWD or workdir.is_dir()
    assert workdir.is_dir()
    assert server.run(["id", "-u"], cwd="/").out == b"12345\n"
    assert server.run(["id", "-g"], cwd="/").out == b"23456\n"
    assert server.run(["id", "-u"], cwd="/", user="0").out == b"0\n"
    server.end()


def test_term_on_a_terminal(server):
    assert b"TERM=xterm\r\n" in server.run(["env"], tty=(24, 80)).out
    assert b"TERM=dumb\r\n" in server.run(["env"], tty=(24, 80), env=["TERM=dumb"]).out


def test_users(server):
    r = server.run(["sh", "-c", "id -u; id -g; id -G; echo $HOME"], user="nobody")
    assert r.out == b"65534\n65534\n65534\n/nonexistent\n"
    assert server.run(["sh", "-c", "id -u; id -g; echo $HOME"], user="4242").out == b"4242\n0\n/\n"
    assert server.run(["id", "-g"], user="nobody:daemon").out == b"1\n"
    assert server.run(["id", "-G"], user="0:77").out == b"77\n"
    for bad in ["no-such-user", "0:no-such-group", "-1", "99999999999"]:
        assert server.run(["id"], user=bad).fail == USER


def test_user_can_reopen_his_streams(server, tmp_path):
    script = "echo out > /dev/stdout; echo err > /dev/stderr; cat < /dev/stdin"
    r = server.run(["sh", "-c", script], user="nobody", stdin=b"in")
    assert (r.out, r.err, r.code) == (b"out\nin", b"err\n", 0)
    r = server.run(["sh", "-c", "echo on > /dev/tty; cat < /dev/null"], user="nobody", tty=(24, 80))
    assert (r.out, r.code) == (b"on\r\n", 0)
    assert server.run(["stat", "-c", "%u", "/dev/null"]).out == b"0\n"


def test_working_directory_closed_to_the_user(server, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    r = server.run(["/bin/sh", "-c", "exit 3"], user="nobody", cwd=str(closed))
    assert r.code == 3


def test_rlimits(server):
    r = server.run(["sh", "-c", "ulimit -Sn; ulimit -Hn"], rlimits=[(7, 100, 200)])
    assert r.out == b"100\n200\n"
    assert server.run(["true"], rlimits=[(7, 300, 200)]).fail == RLIMIT
    assert server.run(["true"], rlimits=[(99, 1, 1)]).fail == RLIMIT


def test_child_has_three_descriptors_and_clean_signals(server):
    # Others run meanwhile, so that the agent has many descriptors to leak.
    others = [server.start(["sleep", "60"]) for _ in range(5)]
    r = server.run(["ls", "-l", "/proc/self/fd"])
    lines = [l for l in r.out.decode().splitlines() if "->" in l and "/proc/" not in l]
    assert len(lines) == 3, lines
    status = server.run(["cat", "/proc/self/status"]).out.decode()
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        value = int(re.search(rf"^{name}:\s*(\w+)", status, re.M).group(1), 16)
        # 32 and 33 belong to the C library, which does not let programs reset them.
        assert value & ~(0b11 << 31) == 0, status
    for s in others:
        s.sock.close()


def test_session_and_group_leader(server):
    r = server.sh("echo $$; ps -o pid=,pgid=,sid= -p $$")
    pid, rest = r.out.decode().split("\n", 1)
    assert rest.split() == [pid] * 3 and int(pid) == r.pid


# --- input ---


def test_no_stdin_is_dev_null(server):
    assert server.run(["cat"]).out == b""
    assert server.run(["readlink", "/proc/self/fd/0"]).out == b"/dev/null\n"


def test_stdin_and_eof(server):
    assert server.run(["cat"], stdin=b"hello").out == b"hello"
    assert server.run(["cat"], stdin=b"").out == b""


def test_stdin_stays_open_without_eof(server):
    s = server.start(["cat"])
    s.send(frame(STDIN, b"one"))
    s.until(lambda r: r.out == b"one")
    time.sleep(0.1)
    s.send(frame(STDIN, b"two"))
    s.until(lambda r: r.out == b"onetwo")
    s.send(frame(STDIN_EOF))
    assert s.finish().code == 0


def test_binary_both_ways(server):
    data = os.urandom(3 * 1024 * 1024 + 17)
    r = server.run(["cat"], stdin=data)
    assert r.out == data and r.code == 0
    assert r.acked <= len(data)


def test_command_that_ignores_its_input(server):
    r = server.run(["true"], stdin=b"x" * 100)
    assert r.code == 0
    s = server.start(["sh", "-c", "exec <&-; sleep 0.3; echo done"])
    s.feed(b"x" * (4 * 1024 * 1024))  # must not get stuck
    assert s.finish().out == b"done\n"


def test_signal_does_not_wait_behind_input(server):
    s = server.start(["sleep", "60"])
    s.send(b"".join(frame(STDIN, b"x" * DATA_MAX) for _ in range(4)))
    s.send(frame(SIGNAL, u32(F_SIGNAL, 15)))
    assert s.finish(5).signal == 15


def test_client_beyond_its_window(server):
    data = os.urandom(2 * 1024 * 1024)
    s = server.start(["sh", "-c", "sleep 0.5; cat"])
    s.sock.setblocking(True)
    chunks = [frame(STDIN, data[i : i + DATA_MAX]) for i in range(0, len(data), DATA_MAX)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [s.send(c) for c in chunks] + [s.send(frame(STDIN_EOF))])
        r = s.finish()
        sending.result()
    assert r.out == data


def test_client_beyond_its_window_dies(server):
    s = server.start(["sleep", "60"])
    s.until(lambda r: r.pid)
    s.sock.setblocking(False)
    try:
        for _ in range(100):
            s.sock.sendall(frame(STDIN, b"x" * DATA_MAX))
    except BlockingIOError:
        pass
    s.sock.close()
    assert gone_soon(s.r.pid)


# --- output ---


def test_streams_are_separate(server):
    r = server.sh("echo out; echo err >&2")
    assert (r.out, r.err) == (b"out\n", b"err\n")


def test_output_streams_as_it_comes(server):
    s = server.start(["sh", "-c", "echo one; sleep 60"])
    s.until(lambda r: r.out == b"one\n", 5)
    s.sock.close()


def test_large_output_slow_reader(server):
    size = 50 * 1024 * 1024
    s = server.start(["sh", "-c", f"head -c {size} /dev/zero; echo end >&2; exit 3"], no_stdin=True)
    for _ in range(20):  # slower than the command for a while
        time.sleep(0.02)
        s.pump()
    r = s.finish()
    assert (len(r.out), r.err, r.code) == (size, b"end\n", 3)
    assert r.out.count(0) == size


def test_blocked_session_does_not_block_others(server):
    s = server.start(["yes"], no_stdin=True)
    time.sleep(0.3)
    begin = time.monotonic()
    assert server.sh("exit 5").code == 5
    assert time.monotonic() - begin < 2
    s.until(lambda r: r.pid)
    s.sock.close()
    assert gone_soon(s.r.pid)


def test_all_output_before_exit(server):
    size = 700 * 1024  # more than a pipe holds, so the tail is in it at the exit
    for _ in range(10):
        r = server.sh(f"head -c {size} /dev/zero; head -c 1000 /dev/zero >&2")
        assert (len(r.out), len(r.err), r.code) == (size, 1000, 0)


def test_background_child_holds_stdout(server):
    begin = time.monotonic()
    r = server.sh("sleep 30 & echo $!; echo bye")
    assert time.monotonic() - begin < 2
    pid, bye = r.out.decode().split()
    assert bye == "bye" and r.code == 0
    assert alive(int(pid))
    os.kill(int(pid), signal.SIGKILL)


def test_late_output_of_a_filter(server):
    r = server.run(["bash", "-c", "exec > >(sleep 0.03; cat); echo late"])
    assert r.out == b"late\n"


def test_background_writer_lives_on(server, tmp_path):
    mark = tmp_path / "mark"
    # Writes more than a pipe holds after the session has ended.
    r = server.sh(f"(sleep 0.3; head -c 300000 /dev/zero && touch {mark}) & exit 0")
    assert r.code == 0
    end = time.monotonic() + 5
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert mark.exists()


def test_flood_from_the_background_is_bounded(server):
    begin = time.monotonic()
    r = server.sh("yes & echo $! >&2")
    assert r.code == 0 and time.monotonic() - begin < 5
    os.kill(int(r.err), signal.SIGKILL)


# --- signals, loss, limits ---


def test_signal_goes_to_the_group(server):
    script = "sleep 60 & echo $! >&2; trap 'echo got; exit 9' TERM; echo on; wait"
    s = server.start(["sh", "-c", script])
    s.until(lambda r: r.out == b"on\n" and r.err.endswith(b"\n"))
    time.sleep(0.2)  # a shell's child takes signals only once it has become its program
    s.send(frame(SIGNAL, u32(F_SIGNAL, 15)))
    r = s.finish(5)
    assert (r.out, r.code) == (b"on\ngot\n", 9)
    assert gone_soon(int(r.err))


def test_bad_signals_are_ignored(server):
    s = server.start(["sh", "-c", "echo on; sleep 0.2; exit 4"])
    for sig in (0, 65, 1000, 0xFFFFFFFF):
        s.send(frame(SIGNAL, u32(F_SIGNAL, sig)))
    s.send(frame(SIGNAL) + frame(999, b"unknown") + frame(RESIZE, u32(F_ROWS, 1)))
    assert s.finish().code == 4


def test_lost_stream_kills_group_and_session(server):
    # A job with its own process group, as an interactive shell makes them.
    script = "set -m; sleep 60 & echo $!; set +m; sleep 60 & echo $!; echo $$; wait"
    s = server.start(["bash", "-c", script])
    r = s.until(lambda r: r.out.count(b"\n") == 3)
    s.sock.close()
    for pid in r.out.split():
        assert gone_soon(int(pid))


def test_lost_stream_while_output_is_blocked(server):
    s = server.start(["yes"])
    s.until(lambda r: r.pid)
    time.sleep(0.2)
    s.sock.close()
    assert gone_soon(s.r.pid)


def test_timeout_keeps_partial_output(server):
    begin = time.monotonic()
    s = server.start(["sh", "-c", "echo part; sleep 60 & echo $! >&2; sleep 60"], timeout_ms=300)
    r = s.finish(5)
    assert 0.25 < time.monotonic() - begin < 3
    assert (r.out, r.signal, r.code, r.timed_out) == (b"part\n", 9, None, True)
    assert gone_soon(int(r.err))


def test_no_timeout_when_in_time(server):
    r = server.run(["sh", "-c", "exit 3"], timeout_ms=5000)
    assert (r.code, r.timed_out) == (3, False)


def test_own_sigkill_is_no_timeout(server):
    r = server.run(["sh", "-c", "kill -9 $$"], timeout_ms=5000)
    assert (r.signal, r.timed_out) == (9, False)


def test_orphans_are_reaped(server):
    for _ in range(5):
        server.sh("(sleep 0.05 >/dev/null 2>&1 &) ; exit 0")
    time.sleep(0.4)
    kids = subprocess.run(["ps", "--ppid", str(server.p.pid), "-o", "stat="],
                          stdout=subprocess.PIPE).stdout.split()
    assert kids == []


# --- terminals ---


def test_terminal(server):
    r = server.run(["sh", "-c", "tty; stty size; echo err >&2; ps -o tpgid=,pgid= -p $$"], tty=(33, 101))
    lines = r.out.decode().split("\r\n")
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:3] == ["33 101", "err"] and r.err == b""
    assert len(set(lines[3].split())) == 1  # in the foreground of its own terminal


def test_terminal_output_is_complete(server):
    for _ in range(50):
        assert server.run(["echo", "hi"], tty=(24, 80)).out == b"hi\r\n"
    r = server.run(["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x"], tty=(24, 80))
    assert r.out == b"x" * 200000


def test_terminal_input_and_interrupt(server):
    # Perl, not a shell: dash puts a signal off that comes while it starts a command, for good.
    program = '$| = 1; system "stty -echo"; print "on\\n"; print "got " . <STDIN>; sleep 60'
    s = server.start(["perl", "-e", program], tty=(24, 80))
    s.until(lambda r: r.out == b"on\r\n")
    s.send(frame(STDIN, b"word\n"))
    s.until(lambda r: b"got word" in r.out)
    s.send(frame(STDIN, b"\x03"))
    assert s.finish(5).signal == 2


@pytest.mark.parametrize("text", [b"", b"line\n", b"no newline"])
def test_terminal_end_of_input(server, text):
    s = server.start(["sh", "-c", "stty -echo; echo on; cat; echo end"], tty=(24, 80))
    s.until(lambda r: r.out == b"on\r\n")
    s.feed(text)
    r = s.finish(5)
    assert r.out == b"on\r\n" + text.replace(b"\n", b"\r\n") + b"end\r\n"


def test_terminal_resize(server):
    s = server.start(["bash", "-c", "trap 'stty size; exit 0' WINCH; echo on; while :; do sleep 0.05; done"],
                     tty=(24, 80))
    s.until(lambda r: r.out == b"on\r\n")
    s.send(frame(RESIZE, u32(F_ROWS, 40) + u32(F_COLS, 120)))
    assert b"40 120" in s.finish(5).out


def test_terminal_hangup_kills_background(server):
    s = server.start(["bash", "-i"], tty=(24, 80))
    s.send(frame(STDIN, b"sleep 77 & echo pid=$!=\nexit 6\n"))
    r = s.finish(10)
    assert r.code == 6


# --- size and number ---


def test_long_arguments(server):
    one = b"\xff\xfe" + b"y" * (128 * 1024 - 3)  # the kernel's limit for one, with its NUL
    r = server.run([b"printf", b"%s", one])
    assert r.out == one
    assert server.run([b"printf", b"%s", one + b"z"]).fail == NOT_EXECUTABLE
    many = [b"%d" % i + b"z" * 1000 for i in range(1900)]
    r = server.run([b"printf", b"%s\n", *many])
    assert r.out == b"\n".join(many) + b"\n"
    assert server.run([b"printf", b"%s", *many * 2]).fail == NOT_EXECUTABLE


def test_any_bytes_in_arguments_and_environment(server):
    odd = bytes(range(1, 256))
    assert server.run([b"printf", b"%s", odd]).out == odd
    assert server.run([b"sh", b"-c", b'printf %s "$ODD"'], env=[b"ODD=" + odd]).out == odd


def test_many_variables(server):
    env = [f"V{i}={i}" for i in range(20000)] + ["V7=seven"]
    r = server.run(["env"], env=env)
    assert len(r.out.splitlines()) == 20003 and b"\nV7=seven\n" in r.out


def test_fifty_at_once(server):
    def one(i):
        data = os.urandom(200000)
        r = server.run(["sh", "-c", f"cat; exit {i}"], stdin=data)
        return r.out == data and r.code == i

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert all(pool.map(one, range(50)))


def test_limit_of_sessions(server):
    idle = [Session(server.path) for _ in range(512)]
    time.sleep(0.3)
    extra = Session(server.path)
    extra.until(lambda r: r.done)
    assert extra.r.fail == LIMIT
    for s in idle:
        s.sock.close()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        s = server.start(["true"])
        try:
            s.until(lambda r: r.done)
        except AssertionError:
            pass
        if s.r.code == 0:
            break
    assert s.r.code == 0


def test_nothing_is_left_behind(server):
    server.sh("exit 0")
    before = server.descriptors()
    for _ in range(30):
        server.sh("echo x; echo y >&2")
        server.run(["nope"])
        server.run(["true"], tty=(24, 80))
        server.start(["sleep", "60"]).sock.close()
        server.run(["true"], user="no-such-user")
    time.sleep(0.3)
    assert server.descriptors() == before
    assert "sessions 0 drains 0" in server.end()
    server.end = lambda: None


# --- the protocol ---


def test_other_version(server):
    s = Session(server.path)
    s.send(frame(HELLO, u32(F_VERSION, 2 << 16)))
    assert s.finish().fail == VERSION
    s = Session(server.path)
    s.send(frame(EXEC, exec_payload(["true"])))
    assert s.finish().fail == VERSION


def test_newer_minor_version(server):
    s = Session(server.path)
    s.send(frame(HELLO, u32(F_VERSION, 1 << 16 | 9) + field(999, "new")))
    s.send(frame(998, b"new") + frame(EXEC, exec_payload(["true"]) + field(999, "new")))
    assert s.finish().code == 0


@pytest.mark.parametrize("payload", [b"", b"x", field(F_ARG, b"a\0b"), u32(F_TTY, 1),
                                     field(F_ARG, "x") + b"\x20\x00\xff\xff\xff\xff",
                                     field(F_ARG, "x") + field(F_RLIMIT, b"12345678")])
def test_malformed_exec(server, payload):
    s = Session(server.path)
    s.send(frame(HELLO, u32(F_VERSION, 1 << 16)) + frame(EXEC, payload))
    r = s.finish()
    assert r.fail == 0 and r.text == "malformed EXEC"


def test_oversize_frame_ends_the_stream(server):
    s = Session(server.path)
    s.send(struct.pack("<IHH", 0x7FFFFFFF, HELLO, 0) + b"x" * 100)
    assert not s.pump()
    assert server.sh("exit 0").code == 0


def test_byte_by_byte(server):
    s = Session(server.path)
    wire = frame(HELLO, u32(F_VERSION, 1 << 16)) + frame(EXEC, exec_payload(["cat"]))
    wire += frame(STDIN, b"slow") + frame(STDIN_EOF)
    for i in range(len(wire)):
        s.send(wire[i : i + 1])
    assert s.finish().out == b"slow"
