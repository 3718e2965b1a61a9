"""The reduced jail from inside: an evil kernel in it, and what is left when its processes die.

In the worst position for it that there is: root on this host, with root's files and root's processes in
reach, that may change neither its user nor its root directory.
"""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest

import processes
from conftest import MSB, Msb, make_home, tear_down, wait_for
from test_evil_kernel import MEMORY, compile_kernel, named, starter
from test_taken_over import MAIN, TAKEN, found as verdicts

LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1)  # landlock_create_ruleset: its version
PLACE = pathlib.Path("/tmp/msb-evil")
# Of the attacks on the full jail, those that are the same without namespaces.
SAME = ["narrowed_arguments", "wild_pointers", "compat_calls", "new_processes", "signals", "filters", "shared_memory",
        "questions", "console_flood", "vhost_garbage", "vhost_headers"]


class Weak(Msb):
    """msb as a root with few capabilities."""

    def __init__(self, home, program=MSB):
        super().__init__(home, {"MSB_JAIL": "reduced"})
        self.program = str(program)

    def command(self, args):
        caps = "-setuid,-setgid,-sys_chroot,-sys_admin"
        return ["setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}", self.program, *map(str, args)]


@pytest.fixture(scope="module")
def weak(tmp_path_factory, shared_cache):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    m = Weak(make_home(tmp_path_factory.mktemp("weak"), shared_cache))
    m.create("evil", "--engine", "uml", "-m", f"{MEMORY}M")
    m.ok("stop", "-q", "-t", "0", "evil")
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return compile_kernel(tmp_path_factory.mktemp("evil"))


@pytest.fixture
def start(weak, kernel, tmp_path):
    with starter(weak, kernel, tmp_path) as starts:
        yield starts


@pytest.fixture
def outside():
    """What an attack finds on the host: files, sockets and a process of the same user."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "dir").mkdir(parents=True)
    (PLACE / "file").write_text("secret\n")
    shutil.copy("/usr/bin/true", PLACE / "program")
    for p in (PLACE, PLACE / "file", PLACE / "dir"):
        p.chmod(0o777)
    stream, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stream.bind(str(PLACE / "stream"))
    datagram.bind(str(PLACE / "datagram"))
    abstract.bind("\0msg-evil")
    stream.listen()
    abstract.listen()
    victim = subprocess.Popen(["sleep", "300"])
    yield victim, (stream, abstract), datagram
    victim.kill()
    victim.wait()
    for s in (stream, abstract, datagram):
        s.close()
    shutil.rmtree(PLACE)


def said(m):
    files = (m.home / "sandboxes" / "evil" / "run" / "logs").glob("*")
    return "".join(f.read_text(errors="replace") for f in files)


def test_there_is_one_cpu(weak):
    warning = b"the uml engine runs one CPU in a reduced jail; --cpus 2 has no further effect"
    assert warning in weak("create", "-n", "two", "--engine", "uml", "--cpus", "2", check=0).stderr
    assert weak.sh("two", "nproc").stdout == b"1\n"
    assert warning in weak("restart", "-t", "0", "two", check=0).stderr
    weak.ok("rm", "-f", "-q", "two")


@pytest.mark.parametrize("attack", [*named("ALONE"), *SAME])
def test_an_evil_kernel(weak, start, outside, attack):
    victim, listening, datagram = outside
    if attack == "programs_outside" and LANDLOCK <= 0:
        pytest.skip("this host has no Landlock")
    p = start(attack)
    _, err = p.communicate(timeout=60)
    state = json.loads((weak.home / "sandboxes" / "evil" / "run" / "state.json").read_text())
    assert (state["jail"], state["reason"]) == ("reduced", "the guest kernel ended with status 42"), (err, said(weak))
    assert victim.poll() is None
    assert (PLACE / "file").read_text() == "secret\n"
    assert sorted(f.name for f in PLACE.iterdir()) == ["datagram", "dir", "file", "program", "stream"]
    for s in (*listening, datagram):
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.recv(1) if s is datagram else s.accept()


@pytest.mark.parametrize("attack", named("FULL"))
def test_memory_has_a_limit(weak, start, attack):
    """Memory in files counts where they are: in the descriptors of the tree."""
    p = start(attack)
    wait_for(lambda: "evil: " in said(weak) or p.poll() is not None, timeout=60)
    assert "evil: holding: " in said(weak)
    files = {}
    for pid in weak.tree(weak.monitor_pid("evil")):
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            st = fd.stat()
            if os.readlink(fd).startswith("/memfd:"):
                files[st.st_ino] = st.st_blocks * 512
    assert MEMORY << 20 <= sum(files.values()) <= (MEMORY + 1) << 20


def tree_of(m, name):
    return processes.tree(m.monitor_pid(name))


def test_what_its_processes_have(weak):
    """No capabilities, no new ones, a filter each; and none can be traced but the kernel, which is nobody's copy."""
    weak.create("box")
    try:
        for pid in tree_of(weak, "box"):
            status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
            assert {status[k] for k in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    finally:
        weak.ok("rm", "-q", "-f", "box")


@pytest.mark.parametrize("which", [0, 1, 2], ids=["monitor", "warden", "kernel"])
def test_a_killed_process_takes_all_with_it(weak, which):
    """There is no pid namespace that would."""
    weak.create("box")
    tree = tree_of(weak, "box")
    assert len(tree) > 3  # monitor, warden, kernel, stubs
    os.kill(tree[which], signal.SIGKILL)
    wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}/exe").exists() and alive(pid) for pid in tree))
    wait_for(lambda: weak.status("box") == "Crashed")
    weak.ok("rm", "-q", "-f", "box")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_monitor_that_was_taken_over(weak):
    """It can do what one can that has namespaces, and no more: as root, with all of the host before it."""
    if LANDLOCK <= 0 or not TAKEN.exists():
        pytest.skip("this host has no Landlock, or tests/taken_over is not built here")
    weak.create("box", "-m", "64M", "--no-net")
    weak.ok("stop", "-q", "-t", "0", "box")
    evil = Weak(weak.home, TAKEN)
    evil.env["MSB_ASSETS"] = weak.env.get("MSB_ASSETS", str(MSB.parents[2] / "assets"))
    try:
        evil.ok("start", "-q", "box")
        assert evil.ok("exec", "-q", "box", "--", "echo", "up") == "up\n"
        assert verdicts(weak.home / "sandboxes" / "box" / "run", "taken-main") == MAIN
    finally:
        weak.ok("rm", "-f", "-q", "box")


def test_shares_are_read_only_where_they_say_so(weak, tmp_path):
    share = tmp_path / "share"
    share.mkdir()
    (share / "f").write_text("here\n")
    (share / "out").symlink_to("/etc/passwd")
    p = weak("run", "-q", "-v", f"{share}:/share:ro", "--", "sh", "-c",
             "cat /share/f; echo x >/share/f; mkdir /share/d; rm /share/f; readlink /share/out; cat /share/out | head -1")
    assert p.stdout.decode().startswith("here\n/etc/passwd\n"), p
    assert p.stderr.decode().count("Read-only file system") == 3
    assert (share / "f").read_text() == "here\n"


def test_what_it_does_not_have(weak):
    for args, word in (
        (("--engine", "uml-ptrace"), "reduced jail"),
        (("--vsock", "/run/x.sock:2000"), "reduced jail"),
    ):
        p = weak("create", "-n", "no", *args)
        assert p.returncode == 1 and word in p.stderr.decode(), p
    p = weak("run", "--", "true", env={**weak.env, "MSB_JAIL": "half"})
    assert p.returncode == 1 and "invalid MSB_JAIL 'half'" in p.stderr.decode()
