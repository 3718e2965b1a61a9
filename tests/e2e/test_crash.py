"""Unexpected deaths: what they leave behind, and that the next command repairs it."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time

import pytest

from conftest import Msb, make_home, tear_down, wait_for

ROOT = os.geteuid() == 0


def stderr(p):
    return p.stderr.decode(errors="replace")


def inspect(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))


def alive(pids):
    """Those of the processes that are still there and no zombies."""
    found = []
    for pid in pids:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def kill_monitor(msb, name):
    """SIGKILLs the monitor; all of its process tree must go with it."""
    pid = msb.monitor_pid(name)
    tree = msb.tree(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(tree), timeout=20)
    return tree


def assert_crashed_and_repairable(msb, name):
    info = inspect(msb, name)
    assert (info["status"], info["reason"]) == ("Crashed", "the monitor was killed")
    assert "crashed" in msb.ok("ls")
    p = msb("ping", name)
    assert p.returncode == 1 and "is not running (status: Crashed)" in stderr(p)
    msb.ok("start", name, "-q")
    assert msb.sh(name, "echo again").stdout == b"again\n"


# --- the monitor is killed -----------------------------------------------------------------------


def test_killed_while_idle(msb):
    msb.create("k")
    msb.sh("k", "echo data > /root/data; sync")
    engine = inspect(msb, "k")["engine"]
    tree = kill_monitor(msb, "k")
    # uml: monitor, reaper, kernel, stubs; kvm: all of it is in one process.
    assert len(tree) >= (1 if engine == "kvm" else 3)
    assert_crashed_and_repairable(msb, "k")
    assert msb.sh("k", "cat /root/data").stdout == b"data\n"


def test_crashed_sandbox_can_be_stopped_removed_replaced(msb):
    for what in (["stop", "k"], ["rm", "k"], ["rm", "-f", "k"], ["create", "--replace", "-n", "k"]):
        msb.create("k", "--replace", "-m", "64M")
        kill_monitor(msb, "k")
        msb.ok(*what, "-q")
    assert msb.status("k") == "Running"


def test_exec_starts_a_crashed_sandbox_and_stops_it_again(msb):
    msb.create("k")
    kill_monitor(msb, "k")
    assert msb.sh("k", "echo up").stdout == b"up\n"
    assert msb.status("k") == "Stopped"


def test_killed_during_heavy_output(msb):
    """The client is told; it does not hang and does not claim success."""
    msb.create("k", "-m", "64M")
    rng = random.Random(3)
    for _ in range(5):
        p = msb.popen("exec", "-q", "k", "--", "sh", "-c", "cat /dev/zero",
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        p.stdout.read(1 << 20)
        drain = threading.Thread(target=p.stdout.read)
        drain.start()
        time.sleep(rng.uniform(0, 0.05))
        kill_monitor(msb, "k")
        drain.join(20)
        assert not drain.is_alive()
        assert p.wait(timeout=10) == 1
        assert p.stderr.read().startswith(b"error: ")
        assert_crashed_and_repairable(msb, "k")


def test_killed_while_it_boots(msb):
    """start is told; and at whatever moment, the next start works."""
    msb.create("k", "-m", "64M")
    msb.ok("stop", "-f", "k", "-q")
    rng = random.Random(5)
    hit = 0
    for i in range(16):
        p = msb.popen("start", "k", "-q", stderr=subprocess.PIPE)
        pid = wait_for(lambda: msb.monitor_pid("k") or p.poll() is not None, interval=0)
        tree = []
        if i % 2:  # somewhere later; otherwise as soon as it is there
            time.sleep(rng.uniform(0, 0.03))
            pid = msb.monitor_pid("k") or True
            tree = msb.tree(pid) if pid is not True else []
        if pid is not True:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive([*tree, *([pid] if pid is not True else [])]), timeout=20)
        err = p.communicate(timeout=30)[1].decode()
        hit += p.returncode == 1
        assert p.returncode == 0 or err.startswith("error: ")
        assert msb.status("k") in ("Crashed", "Stopped")
        assert msb.sh("k", "echo again").stdout == b"again\n"
        assert msb.status("k") == "Stopped"
    assert hit, "every start had succeeded before the kill"


def test_killed_while_creating(msb):
    """The creator reports it and leaves nothing."""
    rng = random.Random(11)
    hit = 0
    lock = msb.home / "sandboxes" / "k" / "lock"
    for i in range(16):
        p = msb.popen("create", "-n", "k", "-q", "-m", "64M", stderr=subprocess.PIPE)
        pid = wait_for(lambda: (lock.exists() and msb.monitor_pid("k")) or p.poll() is not None, interval=0)
        if i % 2:
            time.sleep(rng.uniform(0, 0.03))
            pid = (lock.exists() and msb.monitor_pid("k")) or True
        if pid is not True:
            os.kill(pid, signal.SIGKILL)
        err = p.communicate(timeout=30)[1].decode()
        if p.returncode:
            hit += 1
            assert err.startswith("error: ")
            assert msb.leftovers() == []
        else:
            msb.ok("rm", "-f", "-q", "k")
        wait_for(lambda: not msb.processes())
    assert hit, "every create had succeeded before the kill"


def test_killed_while_it_stops(msb):
    msb.create("k", "-m", "64M")
    for _ in range(3):
        slow = msb.popen("exec", "-q", "k", "--", "sh", "-c", "trap '' TERM; echo r; sleep 100",
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        assert slow.stdout.readline() == b"r\n"
        stop = msb.popen("stop", "k", "-q", stderr=subprocess.PIPE)
        wait_for(lambda: msb.status("k") == "Draining")
        kill_monitor(msb, "k")
        assert stop.wait(timeout=20) == 0, "it is stopped, however that came"
        slow.wait(timeout=20)
        assert msb.status("k") in ("Crashed", "Stopped")
        msb.ok("start", "k", "-q")


def test_stopped_monitor_can_be_forced(msb):
    """A monitor that hangs (SIGSTOP) does not answer; -f does not need its answer."""
    msb.create("k")
    pid = msb.monitor_pid("k")
    tree = msb.tree(pid)
    os.kill(pid, signal.SIGSTOP)
    msb.ok("stop", "-f", "k", "-q", timeout=30)
    wait_for(lambda: not alive(tree))
    assert msb.status("k") == "Stopped"
    assert msb.sh("k", "echo fine").stdout == b"fine\n"


def test_stopped_monitor_is_killed_after_the_grace_period(msb):
    msb.create("k")
    pid = msb.monitor_pid("k")
    os.kill(pid, signal.SIGSTOP)
    msb.ok("stop", "-t", "100ms", "k", "-q", timeout=60)
    assert not alive([pid]) and msb.status("k") == "Stopped"


def test_killed_guest_kernel(msb):
    """Any process of the guest's tree that dies takes the sandbox down, with a reason."""
    msb.create("k")
    monitor = msb.monitor_pid("k")
    for which in (1, 2):  # the reaper, then the kernel
        tree = msb.tree(monitor)
        os.kill(tree[which], signal.SIGKILL)
        wait_for(lambda: not alive(tree), timeout=20)
        info = inspect(msb, "k")
        assert info["status"] == "Crashed"
        assert "killed" in info["reason"] or "signal 9" in info["reason"]
        msb.ok("start", "k", "-q")
        monitor = msb.monitor_pid("k")


def test_ephemeral_sandbox_of_a_killed_run(msb):
    """`run` is killed: its unnamed sandbox goes too, and so do its files."""
    for signo in (signal.SIGKILL, signal.SIGTERM):
        p = msb.popen("run", "-q", "--", "sh", "-c", "echo on; sleep 1000", stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"on\n"
        p.send_signal(signo)
        p.wait(timeout=20)
        wait_for(lambda: not msb.processes(), timeout=20)
        assert msb.ok("ls", "-q") == ""
        assert msb.leftovers() == []


@pytest.mark.parametrize("mount", [False, True])
def test_ephemeral_sandbox_of_a_killed_run_whose_kernel_hangs(msb, tmp_path, mount):
    """It needs no answer from the guest to end; one that may have something left to write is asked."""
    more = ("-v", f"{tmp_path}:/w") if mount else ()
    p = msb.popen("run", "-q", "--engine", "uml", *more, "--", "sh", "-c", "echo on; sleep 1000", stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"on\n"
    tree = msb.tree(msb.monitor_pid(msb.ok("ls", "-q").strip()))
    os.kill(tree[2], signal.SIGSTOP)
    p.kill()
    p.wait(timeout=60)
    wait_for(lambda: not alive(tree), timeout=60)
    wait_for(lambda: not msb.processes(), timeout=60)
    assert msb.ok("ls", "-q") == ""
    assert msb.leftovers() == []


def test_ephemeral_sandbox_of_a_killed_monitor(msb):
    p = msb.popen("run", "-q", "--", "sh", "-c", "echo on; sleep 1000", stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE)  # fmt: skip
    assert p.stdout.readline() == b"on\n"
    name = msb.ok("ls", "-q").strip()
    os.kill(msb.monitor_pid(name), signal.SIGKILL)
    assert p.wait(timeout=20) == 1
    wait_for(lambda: not msb.processes(), timeout=20)
    msb.ok("ls")
    assert msb.leftovers() == []


# --- nothing leaks -------------------------------------------------------------------------------


def host_snapshot():
    """What a sandbox could leave on the host outside its home."""
    mounts = pathlib.Path("/proc/mounts").read_text()
    shm = sorted(os.listdir("/dev/shm"))
    sysv = pathlib.Path("/proc/sysvipc/shm").read_text().count("\n")
    return mounts, shm, sysv


def unix_sockets(home):
    return [line for line in open("/proc/net/unix") if str(home) in line]


def test_two_hundred_cycles_leak_nothing(msb):
    """Processes, files, sockets, mounts, shared memory: all as before."""
    before = host_snapshot()
    fds = len(os.listdir("/proc/self/fd"))
    wrong = []

    def worker(k):
        for i in range(100):
            name = f"c{k}-{i}"
            try:
                msb.create(name, "-m", "64M")
                assert msb.sh(name, "echo hello").stdout == b"hello\n"
                if i % 10 == 0:
                    msb.ok("stop", name, "-q")
                msb.ok("rm", *(["-f"] if i % 10 else []), name, "-q")
            except (AssertionError, subprocess.TimeoutExpired) as e:
                wrong.append(e)
                return

    threads = [threading.Thread(target=worker, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(240)
    assert wrong == []
    assert msb.leftovers() == []
    wait_for(lambda: not msb.processes())
    assert unix_sockets(msb.home) == []
    assert host_snapshot() == before
    assert len(os.listdir("/proc/self/fd")) == fds


def test_monitor_does_not_grow(msb):
    """A long-lived monitor has as many descriptors after a thousand commands as before."""
    msb.create("m")
    pid = msb.monitor_pid("m")
    msb.sh("m", "true")

    def fds():
        return len(os.listdir(f"/proc/{pid}/fd"))

    def worker():
        for i in range(50):
            msb.sh("m", "true")
            if i % 5 == 0:
                p = msb.popen("exec", "-q", "m", "--", "sleep", "100", stderr=subprocess.DEVNULL)
                p.kill()
                p.wait()

    before = fds()
    threads = [threading.Thread(target=worker) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    wait_for(lambda: fds() <= before)
    wait_for(lambda: b"sleep" not in msb.sh("m", "ps | grep -v grep | grep 'sleep 100'").stdout)


# --- damaged files -------------------------------------------------------------------------------


def state_file(msb, name):
    return msb.home / "sandboxes" / name / "run" / "state.json"


DAMAGE = {
    "empty": b"",
    "garbage": b"\x00\xff\xfe not json",
    "cut": b'{"status":"Stop',
    "other type": b"[1,2,3]",
    "unknown status": b'{"status":"Sleeping"}',
    "wrong types": b'{"status":17,"reason":{}}',
    "huge": b'{"status":"Stopped","reason":"' + b"x" * 100000 + b'"}',
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_state_does_not_lose_the_sandbox(msb, how):
    """The disk is worth more than a line of JSON: crashed, and it starts."""
    msb.create("d", "-m", "64M")
    msb.sh("d", "echo precious > /root/x; sync")
    msb.ok("stop", "-t", "0", "d", "-q")
    state_file(msb, "d").write_bytes(DAMAGE[how])
    info = inspect(msb, "d")
    assert info["status"] == "Crashed" and info["reason"]
    assert msb.ok("ls", "-q") == "d\n"
    assert msb.sh("d", "cat /root/x").stdout == b"precious\n"
    assert msb.status("d") == "Stopped"


def test_damaged_state_of_a_running_sandbox(msb):
    """The lock says that it runs, whatever the file says."""
    msb.create("d")
    state_file(msb, "d").write_bytes(b"garbage")
    assert msb.status("d") == "Running"
    assert msb.sh("d", "echo here").stdout == b"here\n"
    msb.ok("stop", "d", "-q")
    assert msb.status("d") == "Stopped"


@pytest.mark.parametrize("what", [b"", b"garbage", b'{"name":"d"}', b"[]", b'{"name":"other"}'])
def test_damaged_spec(msb, what):
    """Said so; others are not affected; rm -f and create --replace get rid of it."""
    msb.create("good", "-m", "64M")
    for cure in (["rm", "-f", "d"], ["create", "--replace", "-n", "d", "-m", "64M"]):
        msb.create("d", "-m", "64M")
        msb.ok("stop", "-t", "0", "d", "-q")
        (msb.home / "sandboxes" / "d" / "spec.json").write_bytes(what)
        for verb in (["inspect", "d"], ["start", "d"], ["exec", "d", "--", "true"]):
            p = msb(*verb)
            assert p.returncode == 1 and stderr(p).startswith("error: sandbox 'd'"), (verb, stderr(p))
        p = msb("ls")
        assert p.returncode == 0 and b"good" in p.stdout and "warn: sandbox 'd'" in stderr(p)
        msb.ok(*cure, "-q")
        msb("rm", "-f", "-q", "d")
    assert msb.ok("ls", "-q") == "good\n"


def test_missing_disk(msb):
    msb.create("d", "-m", "64M")
    msb.ok("stop", "-t", "0", "d", "-q")
    (msb.home / "sandboxes" / "d" / "upper.ext4").unlink()
    p = msb("start", "d")
    assert p.returncode == 1 and "cannot open the disk of sandbox 'd'" in stderr(p)
    msb.ok("rm", "d", "-q")


@pytest.mark.parametrize("what", ["empty", "zeros", "noise"])
def test_damaged_disk(msb, what):
    """The guest cannot mount it: start says so and does not hang."""
    msb.create("d", "-m", "64M")
    msb.ok("stop", "-t", "0", "d", "-q")
    content = {"empty": b"", "zeros": bytes(4096), "noise": random.Random(1).randbytes(1 << 20)}
    (msb.home / "sandboxes" / "d" / "upper.ext4").write_bytes(content[what])
    p = msb("start", "d", timeout=90)
    assert p.returncode == 1 and stderr(p).startswith("error: ")
    assert msb.status("d") == "Crashed"
    wait_for(lambda: not msb.processes())


# --- a hostile monitor's files -------------------------------------------------------------------


def test_links_in_run_are_not_followed(msb, tmp_path):
    """run/ belongs to the monitor, which its guest may have taken over: it must not make the
    user's own msb read or write elsewhere."""
    secret = tmp_path / "secret"
    secret.write_text('{"status":"Running","reason":"SECRET"}')
    msb.create("h", "-m", "64M")
    msb.sh("h", "echo logged")
    msb.ok("stop", "-t", "0", "h", "-q")
    run = msb.home / "sandboxes" / "h" / "run"
    for target in ("state.json", "logs/exec.log", "logs/system.log", "agent.sock"):
        path = run / target
        if path.exists() or path.is_symlink():
            path.unlink()
        path.symlink_to(secret)
    for verb in (["inspect", "h"], ["inspect", "h", "--format", "json"], ["ls"], ["logs", "h"],
                 ["logs", "h", "--source", "all"]):  # fmt: skip
        p = msb(*verb)
        assert b"SECRET" not in p.stdout + p.stderr, verb
    assert msb.status("h") == "Crashed"
    msb("start", "h")
    msb("exec", "h", "--", "true")
    msb("stop", "h", "-f")
    assert secret.read_text() == '{"status":"Running","reason":"SECRET"}'
    msb.ok("rm", "-f", "h", "-q")
    assert secret.exists()


def test_directory_links_in_run_are_not_followed(msb, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "exec.log").write_text('{"t":"2026-01-01T00:00:00Z","s":"stdout","d":"SECRET"}\n')
    (outside / "keep").write_text("x")
    owner = outside.stat().st_uid
    msb.create("h", "-m", "64M")
    msb.ok("stop", "-t", "0", "h", "-q")
    run = msb.home / "sandboxes" / "h" / "run"
    shutil.rmtree(run / "logs")
    (run / "logs").symlink_to(outside)
    p = msb("logs", "h")
    assert b"SECRET" not in p.stdout
    msb("start", "h")
    assert outside.stat().st_uid == owner, "root gave a foreign directory away"
    assert sorted(os.listdir(outside)) == ["exec.log", "keep"]
    msb.ok("rm", "-f", "h", "-q")
    assert sorted(os.listdir(outside)) == ["exec.log", "keep"]


def test_socket_link_is_not_followed(msb, tmp_path):
    """exec must talk to this sandbox's socket or to none."""
    foreign = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(foreign))
    listener.listen()
    listener.setblocking(False)
    msb.create("h", "-m", "64M")
    sock = msb.home / "sandboxes" / "h" / "run" / "agent.sock"
    sock.unlink()
    sock.symlink_to(foreign)
    assert msb("ping", "h").returncode == 1
    assert msb("touch", "h").returncode == 1
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()
    msb.ok("rm", "-f", "h", "-q")


def test_fifos_in_run_do_not_block(msb):
    msb.create("h", "-m", "64M")
    msb.ok("stop", "-t", "0", "h", "-q")
    run = msb.home / "sandboxes" / "h" / "run"
    for target in ("state.json", "logs/exec.log", "logs/system.log"):
        (run / target).unlink()
        os.mkfifo(run / target, 0o666)
    assert msb.status("h") == "Crashed"
    msb("logs", "h", timeout=20)
    msb("start", "h", timeout=30)
    msb.ok("rm", "-f", "h", "-q", timeout=30)


# --- the home directory --------------------------------------------------------------------------


def test_full_disk(tmp_path):
    """ENOSPC is named, and nothing is left in the way."""
    if not ROOT:
        pytest.skip("needs a small file system of its own: mounting one takes root")
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "msbtest", home], check=True)
    try:
        m = Msb(home)
        filler = os.open(home / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
        with pytest.raises(OSError):
            while os.write(filler, bytes(4096)):
                pass
        os.close(filler)
        p = m("create", "-n", "full")
        assert p.returncode == 1 and "No space left on device" in stderr(p), stderr(p)
        assert m.leftovers() == [] and m.processes() == []
        (home / "filler").unlink()
        assert m("ls").returncode == 0
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def test_read_only_home(tmp_path):
    if not ROOT:
        home = tmp_path / "ro"
        home.mkdir(mode=0o500)
        undo = None
    else:
        home = tmp_path / "ro"
        home.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "msbtest", home], check=True)
        undo = ["umount", "-l", str(home)]
    try:
        p = Msb(home)("create", "-n", "x")
        assert p.returncode == 1
        assert stderr(p).startswith("error: cannot ") and str(home) in stderr(p)
    finally:
        if undo:
            subprocess.run(undo, check=True)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_home_that_others_may_write(tmp_path, mode):
    home = tmp_path / "open"
    home.mkdir()
    home.chmod(mode)
    for verb in (["ls"], ["create", "-n", "x"], ["exec", "x", "--", "true"]):
        p = Msb(home)(*verb)
        assert p.returncode == 1, verb
        assert "belongs to another user or is writable by others" in stderr(p)
        assert "  → " in stderr(p)
    assert os.listdir(home) == []


def test_home_of_another_user(tmp_path):
    if not ROOT:
        pytest.skip("needs root to make a directory of another user")
    home = tmp_path / "theirs"
    home.mkdir(mode=0o700)
    os.chown(home, 12345, 12345)
    p = Msb(home)("create", "-n", "x")
    assert p.returncode == 1 and "belongs to another user" in stderr(p)
    assert os.listdir(home) == []


def test_long_home(tmp_path, shared_cache):
    """Socket addresses hold 107 bytes; homes and names may be longer."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    m = Msb(make_home(deep, shared_cache))
    name = "n" * 128
    m.create(name)
    assert m.sh(name, "echo far").stdout == b"far\n"
    m.ok("ping", name, "-q")
    m.ok("stop", name, "-q")
    m.ok("start", name, "-q")
    tear_down(m)


def test_home_is_made_private(tmp_path):
    home = tmp_path / "new" / "home"
    m = Msb(home)
    m.ok("ls")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    m.create("x")
    tear_down(m)


def test_relative_home(tmp_path):
    m = Msb("rel")
    m.ok("create", "-n", "x", "-q", cwd=tmp_path)
    assert (tmp_path / "rel" / "sandboxes" / "x").is_dir()
    assert m.ok("exec", "-q", "x", "--", "echo", "hi", cwd=tmp_path) == "hi\n"
    m.ok("rm", "-f", "x", "-q", cwd=tmp_path)
