"""`msb exec`: stdin, stdout and stderr. Byte-faithful, with back-pressure, in bounded memory."""
import hashlib
import os
import random
import socket
import subprocess
import threading
import time

import pytest

from conftest import wait_for
from guest import FOREVER, PATIENCE, alive, finish, read, rss_anon_kib, sh, wait_dead, wait_file

MIB = 1024 * 1024
ALL_BYTES = bytes(range(256))
# What client and monitor may each grow by while a stream of any length flows through.
GROWTH_KIB = 8 * 1024


class MemoryWatch:
    """Samples the private memory of processes while something flows through them."""

    def __init__(self, *pids):
        self.base = {pid: rss_anon_kib(pid) for pid in pids}
        self.peak = dict(self.base)
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.done.wait(0.02):
            for pid in self.peak:
                self.peak[pid] = max(self.peak[pid], rss_anon_kib(pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def growth(self):
        return {pid: self.peak[pid] - self.base[pid] for pid in self.peak}


# --- byte for byte ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0", b"\n", b"no newline", ALL_BYTES * 3],
                         ids=["empty", "nul", "newline", "text", "all"])
def test_round_trip(box, data):
    """What goes into stdin comes out of stdout; nothing is added, changed or dropped."""
    m, name = box
    p = m("exec", "-q", name, "--", "cat", input=data)
    assert (p.returncode, p.stdout, p.stderr) == (0, data, b"")


def test_random_binary_round_trip(box):
    m, name = box
    data = random.Random(1).randbytes(3 * MIB + 17)
    p = m("exec", "-q", name, "--", "cat", input=data)
    assert p.stdout == data


def test_stderr_is_a_stream_of_its_own(box):
    m, name = box
    data = random.Random(2).randbytes(MIB)
    p = m("exec", "-q", name, "--", "sh", "-c", "tee /dev/stderr", input=data)
    assert p.stdout == data
    assert p.stderr == data


def test_both_streams_into_one_pipe(box):
    """A client may give the same pipe for both; nothing is lost."""
    m, name = box
    p = m("exec", "-q", name, "--", "sh", "-c", "for i in $(seq 500); do echo o; echo e >&2; done",
          stderr=subprocess.STDOUT)
    assert sorted(p.stdout.split()) == [b"e"] * 500 + [b"o"] * 500


def test_output_streams_as_it_comes(box):
    """Output arrives while the command runs, and input reaches it while it runs."""
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", "echo ready; read x; echo got $x; read y",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"got hello\n"
    assert p.poll() is None
    assert finish(p)[0] == 1  # communicate() closes stdin: read fails


def test_stdin_eof_is_delivered(box):
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", "cat; echo after", stdin=subprocess.PIPE,
                stdout=subprocess.PIPE)
    p.stdin.write(b"x\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"x\n"
    assert p.poll() is None
    p.stdin.close()
    p.stdin = None
    assert finish(p)[:2] == (0, b"after\n")


def test_stream_option_is_accepted(box):
    m, name = box
    p = m("exec", "--stream", name, "--", "cat", input=ALL_BYTES)
    assert (p.returncode, p.stdout, p.stderr) == (0, ALL_BYTES, b"")


def test_sockets_as_stdio(box):
    """Some clients hand us sockets in place of pipes."""
    m, name = box
    ours, theirs = socket.socketpair()
    with ours, theirs:
        p = m.popen("exec", "-q", name, "--", "cat", stdin=theirs, stdout=theirs)
        theirs.close()
        ours.sendall(ALL_BYTES)
        ours.shutdown(socket.SHUT_WR)
        got = b""
        while chunk := ours.recv(65536):
            got += chunk
    assert got == ALL_BYTES
    assert finish(p)[0] == 0


def test_output_to_a_file(box, tmp_path):
    """Regular files, also opened for appending; both streams to the same one."""
    m, name = box
    out = tmp_path / "out"
    out.write_bytes(b"before\n")
    with open(out, "ab") as f:
        m("exec", "-q", name, "--", "sh", "-c", "echo one; sleep 0.05; echo two >&2",
          stdout=f, stderr=f)
    assert sorted(out.read_bytes().split()) == [b"before", b"one", b"two"]


def test_output_to_a_full_disk(box):
    """Output that cannot be written is an error, not a silent loss."""
    m, name = box
    with open("/dev/full", "wb") as full:
        p = m("exec", "-q", name, "--", "echo", "lost", stdout=full)
    assert p.returncode == 1
    assert b"No space left" in p.stderr


# --- much ---------------------------------------------------------------------------------------


def test_100_mb_into_the_guest(box):
    """A big stdin arrives whole, and is buffered nowhere."""
    m, name = box
    block = random.Random(3).randbytes(MIB)
    count = 100
    want = hashlib.md5()
    p = m.popen("exec", "-q", name, "--", "md5sum", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with MemoryWatch(p.pid, m.monitor_pid(name)) as watch:
        for _ in range(count):
            want.update(block)
            p.stdin.write(block)
        p.stdin.close()
        p.stdin = None
        code, out, _ = finish(p, timeout=120)
    assert (code, out.split()[0].decode()) == (0, want.hexdigest())
    assert max(watch.growth().values()) < GROWTH_KIB, watch.growth()


def test_1_gb_out_of_the_guest(box):
    """A big stdout arrives whole, and is buffered nowhere."""
    m, name = box
    size = 1024 * MIB
    p = m.popen("exec", "-q", name, "--", "dd", "if=/dev/zero", "bs=1M", "count=1024",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    got, nonzero = 0, 0
    with MemoryWatch(p.pid, m.monitor_pid(name)) as watch:
        while chunk := os.read(p.stdout.fileno(), MIB):
            got += len(chunk)
            nonzero += len(chunk) - chunk.count(0)
    assert (got, nonzero, finish(p)[0]) == (size, 0, 0)
    assert max(watch.growth().values()) < GROWTH_KIB, watch.growth()


def test_full_duplex(box):
    """Both directions at once, more than fits into any buffer on the way."""
    m, name = box
    data = random.Random(4).randbytes(20 * MIB)
    p = m("exec", "-q", name, "--", "cat", input=data, timeout=120)
    assert hashlib.md5(p.stdout).digest() == hashlib.md5(data).digest()


# --- back-pressure ------------------------------------------------------------------------------


def counting_writer(tag):
    """Writes 64 KiB at a time, and says in a file how often that went well."""
    return (f"echo $$ >/tmp/{tag}.pid; i=0; while head -c 65536 /dev/zero; do i=$((i+1)); "
            f"echo $i >/tmp/{tag}; done; echo ended >/tmp/{tag}")


def wait_standstill(m, name, path):
    """Waits until the number in a file has not changed for a second; returns it.

    Every look is a command of its own in the guest, so that the writer had its turns meanwhile.
    """
    last, since, looks = None, time.monotonic(), 0
    deadline = since + PATIENCE
    while time.monotonic() - since < 1 or looks < 20 or not last:
        now = read(m, name, path)
        looks += 1
        if now != last:
            last, since, looks = now, time.monotonic(), 0
        assert time.monotonic() < deadline, "the writer goes on although nobody reads"
    return int(last)


def test_a_reader_that_stops_stops_the_writer_and_nothing_else(box):
    """The guest's writer makes no progress without a reader; others do; then it continues."""
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", counting_writer("bp"),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        stuck = wait_standstill(m, name, "/tmp/bp")
        # Pipes at both ends, sockets and buffers in between: megabytes, not more.
        assert stuck * 65536 < 16 * MIB
        assert m.ok("exec", "-q", name, "--", "echo", "other") == "other\n"
        assert len(m("exec", "-q", name, "--", "head", "-c", str(5 * MIB), "/dev/zero").stdout) == \
            5 * MIB
        assert int(read(m, name, "/tmp/bp")) == stuck
        for _ in range(2 * stuck):
            assert len(p.stdout.read(65536)) == 65536
        wait_for(lambda: int(read(m, name, "/tmp/bp") or 0) > stuck, timeout=PATIENCE)
    finally:
        p.kill()
        p.stdout.close()
        p.wait()
    wait_dead(m, name, read(m, name, "/tmp/bp.pid"))


def test_many_stuck_readers(box):
    """Thirty clients that do not read: others are served, and memory stays bounded."""
    m, name = box
    monitor = m.monitor_pid(name)
    with MemoryWatch(monitor) as watch:
        stuck = [m.popen("exec", "-q", name, "--", "sh", "-c", f"echo $$ >/tmp/stuck.{i}; exec yes",
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for i in range(30)]
        pids = [wait_file(m, name, f"/tmp/stuck.{i}") for i in range(30)]
        assert m("exec", "-q", name, "--", "head", "-c", str(MIB), "/dev/zero").stdout == bytes(MIB)
    assert watch.growth()[monitor] < 30 * 1024
    for p in stuck:
        p.kill()
        p.stdout.close()
        p.wait()
    wait_dead(m, name, *pids)


def test_a_small_guest_bears_all_the_stuck_readers_it_may_have(msb):
    """One for each 2 MiB of its memory: nothing is killed for lack of it, and one more is told why not."""
    msb.create("small", "-m", "64M")
    stuck = [msb.popen("exec", "-q", "small", "--", "yes", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
             for _ in range(32)]
    try:
        for p in stuck:
            assert p.stdout.read(4) == b"y\ny\n"
        p = msb("exec", "-q", "small", "--", "echo", "one more")
        assert p.returncode == 1 and p.stderr.startswith(b'error: failed to exec "echo"\n'), p.stderr
        assert b"32 commands are running in this sandbox, the most it can run with 64M of memory: wait for one" in p.stderr
        stuck[0].kill()
        wait_for(lambda: msb("exec", "-q", "small", "--", "true").returncode == 0)
        assert all(p.poll() is None for p in stuck[1:])
        assert "killed: out of memory" not in msb.ok("logs", "small", "--source", "system")
    finally:
        for p in stuck:
            p.kill()
            p.stdout.close()
            p.wait()


def test_clients_killed_in_the_middle_of_a_flood(box):
    """Nothing of them stays: no process in the guest, no descriptor in the monitor."""
    m, name = box
    monitor = m.monitor_pid(name)
    descriptors = len(os.listdir(f"/proc/{monitor}/fd"))
    for _ in range(30):
        p = m.popen("exec", "-q", name, "--", "sh", "-c", "exec yes flood", stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE)
        assert len(p.stdout.read(100_000)) == 100_000
        p.kill()
        p.stdout.close()
        p.wait()
    wait_for(lambda: sh(m, name, "pidof yes || true") == "", timeout=PATIENCE)
    wait_for(lambda: len(os.listdir(f"/proc/{monitor}/fd")) <= descriptors, timeout=PATIENCE)


def test_a_blocked_stderr_does_not_lose_stdout(box):
    """stderr is not read for a while: all of both streams still arrives in the end."""
    m, name = box
    script = f"head -c {3 * MIB} /dev/zero >&2; echo out"
    p = m.popen("exec", "-q", name, "--", "sh", "-c", script, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.3)
    code, out, err = finish(p)
    assert (code, out, len(err)) == (0, b"out\n", 3 * MIB)


def test_a_command_that_does_not_read_holds_the_sender(box):
    """stdin is taken only as fast as the command reads it."""
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", f"echo up; exec sleep {FOREVER}",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n"
    os.set_blocking(p.stdin.fileno(), False)
    sent, quiet_since = 0, time.monotonic()
    while time.monotonic() - quiet_since < 1:
        try:
            n = os.write(p.stdin.fileno(), b"x" * 65536)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        sent += n
        quiet_since = time.monotonic()
        assert sent < 16 * MIB
    assert m.ok("exec", "-q", name, "--", "echo", "other") == "other\n"
    p.kill()
    p.stdin = None
    finish(p)


def test_signals_pass_a_full_stdin(box):
    """A SIGTERM does not get stuck behind unread input."""
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c",
                f"trap 'exit 33' TERM; echo up; sleep {FOREVER} & wait",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n"
    os.set_blocking(p.stdin.fileno(), False)
    full_since = time.monotonic()
    while time.monotonic() - full_since < 0.5:
        try:
            os.write(p.stdin.fileno(), b"x" * 65536)
            full_since = time.monotonic()
        except BlockingIOError:
            time.sleep(0.02)
    p.terminate()
    p.stdin = None
    assert finish(p)[0] == 33


# --- the end ------------------------------------------------------------------------------------


def test_everything_written_before_the_exit_arrives(box):
    """The last bytes are not lost, however many there are and whatever still holds the pipe."""
    m, name = box
    p = m.sh(name, f"sleep {FOREVER} & echo $! >/tmp/holder; head -c {3 * MIB} /dev/zero; exit 4")
    assert (p.returncode, len(p.stdout)) == (4, 3 * MIB)
    pid = read(m, name, "/tmp/holder")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


def test_a_slow_reader_gets_everything(box):
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c",
                f"head -c {2 * MIB} /dev/zero; echo end; echo gone >/tmp/slow", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE)
    got = 0
    while chunk := os.read(p.stdout.fileno(), 64 * 1024):
        got += len(chunk)
        time.sleep(0.005)
    assert got == 2 * MIB + 4
    assert finish(p)[0] == 0


def test_returns_when_the_main_process_exits(box):
    """A background child that holds stdout neither delays the return nor dies of it."""
    m, name = box
    p = m.sh(name, f"sleep {FOREVER} & echo $!", timeout=PATIENCE)
    pid = p.stdout.decode().strip()
    assert (p.returncode, p.stderr) == (0, b"")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


def test_background_child_may_write_afterwards(box):
    """No SIGPIPE: what a child left behind writes later is thrown away."""
    m, name = box
    script = ("(i=0; while :; do i=$((i+1)); echo line $i || echo failed >/tmp/late.err; "
              "echo $i >/tmp/late; sleep 0.02; done) & echo $! >/tmp/late.pid")
    m("exec", "-q", name, "--", "sh", "-c", script, check=0)
    pid = read(m, name, "/tmp/late.pid")
    seen = int(wait_file(m, name, "/tmp/late"))
    wait_for(lambda: int(read(m, name, "/tmp/late") or 0) > seen + 20, timeout=PATIENCE)
    assert alive(m, name, pid)
    assert read(m, name, "/tmp/late.err") == ""
    sh(m, name, f"kill {pid}")


def test_background_child_may_write_much_afterwards(box):
    """Nor does it block once a pipe's worth has been written."""
    m, name = box
    script = f"(sleep 0.3; head -c {5 * MIB} /dev/zero; echo $? >/tmp/much) & exit 0"
    m("exec", "-q", name, "--", "sh", "-c", script, check=0)
    assert wait_file(m, name, "/tmp/much") == "0"


def test_background_child_that_floods_does_not_delay_the_return(box):
    """A child that never stops writing: the exec still ends."""
    m, name = box
    p = m("exec", "-q", name, "--", "sh", "-c", "yes & echo $! >/tmp/flood; exit 6",
          stdout=subprocess.DEVNULL, timeout=PATIENCE)
    assert p.returncode == 6
    pid = read(m, name, "/tmp/flood")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


def test_a_nohup_job_survives(box):
    m, name = box
    sh(m, name, f"nohup sleep {FOREVER} >/dev/null 2>&1 </dev/null & echo $! >/tmp/nohup")
    pid = read(m, name, "/tmp/nohup")
    assert alive(m, name, pid)
    sh(m, name, f"kill {pid}")


# --- stdin of every kind ------------------------------------------------------------------------


def through_shell(m, line):
    return subprocess.run(["bash", "-c", line], env=dict(m.env, MSB=m.exe), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=PATIENCE)


def test_closed_stdin(box):
    m, name = box
    p = through_shell(m, f'"$MSB" exec -q {name} -- sh -c "cat; echo end" <&-')
    assert (p.returncode, p.stdout, p.stderr) == (0, b"end\n", b"")


@pytest.mark.parametrize("closed, out", [(">&-", b""), ("2>&-", b"o\n"), (">&- 2>&-", b""),
                                         ("<&- >&- 2>&-", b"")])
def test_closed_stdout_and_stderr(box, closed, out):
    """Unwanted output is discarded; the exit code still arrives."""
    m, name = box
    p = through_shell(m, f'"$MSB" exec -q {name} -- sh -c "echo o; echo e >&2; exit 8" {closed}')
    assert (p.returncode, p.stdout) == (8, out)


def test_dev_null_is_an_immediate_end(box):
    m, name = box
    p = m("exec", "-q", name, "--", "sh", "-c", "cat; echo end", stdin=subprocess.DEVNULL)
    assert p.stdout == b"end\n"


def test_regular_file(box, tmp_path):
    m, name = box
    f = tmp_path / "in"
    f.write_bytes(ALL_BYTES * 1000)
    with open(f, "rb") as stdin:
        p = m("exec", "-q", name, "--", "cat", stdin=stdin)
    assert p.stdout == ALL_BYTES * 1000


def test_directory_as_stdin(box):
    """Not readable: the command sees the end of its input, the client does not spin."""
    m, name = box
    fd = os.open("/", os.O_RDONLY)
    try:
        p = m("exec", "-q", name, "--", "sh", "-c", "cat; echo end", stdin=fd)
    finally:
        os.close(fd)
    assert p.stdout == b"end\n"


def test_a_command_that_ignores_a_huge_stdin(box):
    m, name = box
    p = m("exec", "-q", name, "--", "sh", "-c", "exit 12", input=b"x" * (50 * MIB), timeout=PATIENCE)
    assert p.returncode == 12


def test_a_command_that_reads_the_beginning_of_a_huge_stdin(box):
    m, name = box
    p = m("exec", "-q", name, "--", "head", "-c", "10", input=b"0123456789" * (5 * MIB),
          timeout=PATIENCE)
    assert (p.returncode, p.stdout) == (0, b"0123456789")


def test_endless_stdin(box):
    m, name = box
    with open("/dev/zero", "rb") as zero:
        p = m("exec", "-q", name, "--", "true", stdin=zero, timeout=PATIENCE)
    assert p.returncode == 0


def test_silent_stdin_does_not_hold_the_exit(box):
    """A pipe that is open and never written to: the command's end is the end."""
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", "exit 5", stdin=subprocess.PIPE)
    assert p.wait(timeout=PATIENCE) == 5
    p.stdin.close()


def test_stdin_keeps_its_flags(box):
    """The client's pipes are shared with others: their file flags are as before."""
    m, name = box
    r, w = os.pipe()
    out_r, out_w = os.pipe()
    os.close(w)
    m("exec", "-q", name, "--", "cat", stdin=r, stdout=out_w)
    assert os.get_blocking(r) and os.get_blocking(out_w)
    for fd in (r, out_r, out_w):
        os.close(fd)


# --- readers that go away -----------------------------------------------------------------------


def test_epipe_ends_the_command(box):
    """`msb exec ... yes | head -1` ends promptly, silently, and the guest's yes is gone."""
    m, name = box
    p = through_shell(m, f'"$MSB" exec -q {name} -- sh -c "echo \\$\\$ >/tmp/yes; exec yes" | head -1; '
                      'echo "${PIPESTATUS[0]}"')
    assert (p.stdout, p.stderr) == (b"y\n141\n", b"")
    wait_dead(m, name, read(m, name, "/tmp/yes"))


def test_a_closed_stderr_reader_ends_the_command(box):
    m, name = box
    p = m.popen("exec", "-q", name, "--", "sh", "-c", "echo $$ >/tmp/yes2; exec yes >&2",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert p.stderr.readline() == b"y\n"
    p.stderr.close()
    p.stderr = None
    assert finish(p)[0] == 141
    wait_dead(m, name, read(m, name, "/tmp/yes2"))
