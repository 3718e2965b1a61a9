"""msb as an OCI runtime, called as container engines call one, with bundles made by hand."""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import termios
import threading

import pytest

import processes
from conftest import wait_for
from ocikit import Console, bury, has_cgroups, make_root, process_file, reap, sh

ROOT = os.geteuid() == 0
SYSCALLS = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


@pytest.fixture(scope="module")
def idle(rt):
    """A running container, for tests that only look or add commands of their own."""
    pid = rt.create("idle", sh("exec sleep 1000"))
    rt("start", "idle")
    yield "idle"
    rt("kill", "idle", "KILL")
    assert reap(pid) == -signal.SIGKILL
    rt("delete", "idle")


# --- life -----------------------------------------------------------------------------------------


def test_life_of_a_container(rt):
    """Boot in create, the command with start; its process is a child of the caller that exits with its code."""
    out = rt.dir / "life.out"
    bundle, pid_file = rt.bundle(sh("echo $A; echo err >&2; cat; exit 3", env=["PATH=/bin", "A=b c"], oomScoreAdj=711),
                                 annotations={"x.y": "z"}), rt.dir / "life.pid"
    read, write = os.pipe()
    with open(out, "wb") as f:
        rt("create", "--bundle", bundle, "--pid-file", pid_file, "life", stdout=f, stderr=f, stdin=read)
    os.close(read)
    pid = int(pid_file.read_text())
    state = rt.state("life")
    assert {k: state[k] for k in ("id", "status", "pid", "bundle", "ociVersion")} == {
        "id": "life", "status": "created", "pid": pid, "bundle": str(bundle), "ociVersion": "1.0.2"}
    assert state["annotations"]["x.y"] == "z"
    assert os.waitpid(pid, os.WNOHANG) == (0, 0) and out.read_bytes() == b""
    for process in (pid, processes.lock_holder(rt.root / "sandboxes" / "life" / "lock")):
        with open(f"/proc/{process}/oom_score_adj", encoding="utf-8") as f:
            assert f.read() == "711\n"
    assert "already exists" in rt("create", "--bundle", bundle, "life", check=1).err
    rt("start", "life")
    assert rt.status("life") == "running" and rt.ids() == ["life"]
    assert "it is running" in rt("start", "life", check=1).err
    assert "it is running" in rt("delete", "life", check=1).err
    assert json.loads(rt("ps", "--format", "json", "life").out) == [pid]
    os.write(write, b"input\n")
    os.close(write)
    assert reap(pid) == 3
    assert sorted(out.read_text().splitlines()) == ["b c", "err", "input"]
    assert rt.status("life") == "stopped" and rt.state("life")["pid"] == 0
    for words in (["kill", "life", "15"], ["events", "--stats", "life"]):
        assert "container not running" in rt(*words, check=1).err  # as runc says it
        assert rt.last_error() == "container not running: 'life'"
    rt("kill", "--all", "life", "9")
    rt("delete", "life")
    assert "does not exist" in rt("delete", "life", check=1).err
    assert rt.last_error() == "container 'life' does not exist"
    rt("delete", "--force", "life")


def test_signals(rt):
    """A signal reaches the command and not its children; its end by one is 128+n."""
    script = "trap 'echo got' USR1; (trap 'echo wrong' USR1; while :; do sleep 0.1; done) & " \
             "echo ready; while :; do sleep 0.1; done"
    out = rt.dir / "sig.out"
    with open(out, "wb") as f:
        rt("create", "--bundle", rt.bundle(sh(script)), "--pid-file", rt.dir / "sig.pid", "sig", stdout=f)
    pid = int((rt.dir / "sig.pid").read_text())
    rt("start", "sig")
    wait_for(lambda: "ready" in out.read_text())
    rt("kill", "sig", "USR1")
    wait_for(lambda: "got" in out.read_text())
    rt("kill", "sig", "15")
    assert reap(pid) == 128 + signal.SIGTERM and "wrong" not in out.read_text()
    rt("delete", "sig")


def test_a_created_container_can_be_ended(rt):
    pid = rt.create("early", sh("exit 0"))
    rt("kill", "early", "TERM")
    assert reap(pid) == 128 + signal.SIGTERM
    rt("delete", "early")
    pid = rt.create("early", sh("exit 0"))
    rt("delete", "--force", "early")
    assert reap(pid) == -signal.SIGKILL and rt.ids() == []


def test_whatever_dies_the_rest_goes(rt):
    """Its process, killed by anyone, takes the guest along, which still writes what it has; and the other way."""
    pid = rt.create("dies", sh("echo kept >/tmp/kept; sleep 1000"))
    rt("start", "dies")
    wait_for(lambda: (rt.rootfs / "tmp/kept").exists())
    os.kill(pid, signal.SIGKILL)
    assert reap(pid) == -signal.SIGKILL
    rt("delete", "dies")
    assert (rt.rootfs / "tmp/kept").read_text() == "kept\n" and rt.processes() == []
    pid = rt.create("dies", sh("sleep 1000"))
    rt("start", "dies")
    exec_pid = int(rt("exec", "--process", process_file(rt, sh("sleep 1000")), "--detach", "--pid-file",
                      rt.dir / "e.pid", "dies") and (rt.dir / "e.pid").read_text())
    os.kill(processes.lock_holder(rt.root / "sandboxes/dies/lock"), signal.SIGKILL)
    assert reap(pid) == 137 and reap(exec_pid) == 137
    rt("delete", "dies")


def test_an_exec_whose_output_nobody_reads(rt):
    """It ends with the container, too, so that nothing is left in the container's cgroup."""
    name = f"unread-{os.getpid()}"
    pid = rt.create(name, sh("sleep 1000"))
    rt("start", name)
    groups = lambda: [d for d, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(d) == name]
    assert groups() or not has_cgroups()
    read, write = os.pipe()
    size = fcntl.fcntl(write, 1031, 4096)  # F_SETPIPE_SZ
    rt("exec", "--process", process_file(rt, sh("yes")), "--detach", "--pid-file", rt.dir / "e.pid", name, stdout=write)
    os.close(write)
    wait_for(lambda: struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0] == size)
    rt("delete", "--force", name)
    assert (reap(pid), reap(int((rt.dir / "e.pid").read_text()))) == (-signal.SIGKILL, 137) and not groups()
    os.close(read)


def test_its_process_dies_while_the_guest_boots(rt):
    """`create` fails, and the guest, which has no owner then, is gone."""
    got = []
    bundle, pid_file = rt.bundle(sh("sleep 1000")), rt.dir / "doomed.pid"
    create = threading.Thread(target=lambda: got.append(
        rt("create", "--bundle", bundle, "--pid-file", pid_file, "doomed", check=None)))
    create.start()
    while not (rt.root / "containers/doomed/start.sock").exists() or not pid_file.exists():
        assert create.is_alive()
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    create.join()
    assert got[0].returncode == 1 and "the container's process" in got[0].err, got[0].err
    assert not pid_file.exists() and not (rt.root / "sandboxes/doomed").exists()
    wait_for(lambda: not rt.processes())
    assert rt.run(sh("echo on")) == "on\n"


class Orphan:
    """A `create` that is killed. Nothing of it is left after `delete --force`, and the ID can be used again."""

    def __init__(self, rt, **config):
        self.rt, self.group, self.pid_file = rt, f"msb-oci-{os.getpid()}", rt.dir / "orphan.pid"
        self.pid_file.unlink(missing_ok=True)
        linux = {"cgroupsPath": f"/{self.group}"} if has_cgroups() else {}
        argv = ["create", "--bundle", rt.bundle(sh("sleep 1000"), linux=linux, **config), "--pid-file", self.pid_file, "orphan"]
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.p = subprocess.Popen([rt.exe, "--root", rt.root, *argv], env=rt.env, **quiet)

    def kill(self):
        self.p.kill()
        self.p.wait()

    def is_gone(self):
        bury()
        assert self.rt.processes() == [] and self.rt.ids() == [] and list((self.rt.root / "sandboxes").iterdir()) == []
        assert not [d for d in pathlib.Path("/sys/fs/cgroup").glob("*") if d.name == self.group or (d / self.group).exists()]
        assert str(self.rt.rootfs) not in pathlib.Path("/proc/self/mountinfo").read_text()
        self.rt.create("orphan", sh("true"))
        self.rt("delete", "--force", "orphan")


def test_create_is_killed(rt):
    for ms in range(0, 150, 10):
        orphan = Orphan(rt)
        with contextlib.suppress(subprocess.TimeoutExpired):
            orphan.p.wait(ms / 1000)
        orphan.kill()
        rt("delete", "--force", "orphan")
        orphan.is_gone()


def test_create_is_killed_just_before_the_guest_boots(rt):
    """The process that boots it is held up, so that `delete` comes first."""
    go = rt.dir / "go"
    script = f"touch {go}-on; until test -e {go}; do sleep 0.01; done"
    hooks = {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]}]}
    orphan = Orphan(rt, hooks=hooks)
    wait_for(lambda: pathlib.Path(f"{go}-on").exists())
    booter = int(pathlib.Path(f"/proc/{orphan.p.pid}/task/{orphan.p.pid}/children").read_text().split()[0])
    os.kill(booter, signal.SIGSTOP)
    go.touch()
    wait_for(orphan.pid_file.exists)  # it has been told to boot
    orphan.kill()
    delete = subprocess.Popen([rt.exe, "--root", rt.root, "delete", "--force", "orphan"], env=rt.env)
    with contextlib.suppress(subprocess.TimeoutExpired):
        delete.wait(1)
    os.kill(booter, signal.SIGCONT)
    assert delete.wait(60) == 0
    with contextlib.suppress(ChildProcessError):
        os.waitpid(booter, 0)
    orphan.is_gone()


def test_one_that_is_being_created(rt, tmp_path):
    """What is known of it is shown: it waits here for someone to take its terminal."""
    with socket.socket(socket.AF_UNIX) as taker, socket.socket(socket.AF_UNIX) as first:
        taker.bind(str(tmp_path / "s"))
        taker.listen(0)
        first.connect(str(tmp_path / "s"))  # there is no room for another one
        bundle = rt.bundle({**sh("true"), "terminal": True})
        argv = [rt.exe, "--root", rt.root, "create", "--bundle", bundle, "--console-socket", tmp_path / "s", "begun"]
        create = subprocess.Popen(argv, env=rt.env, stderr=subprocess.DEVNULL)
        wait_for((rt.root / "containers/begun/state.json").exists)
        state = rt.state("begun")
        row = next(row.split() for row in rt("list").out.splitlines() if row.startswith("begun "))
        create.kill()
        create.wait()
    assert (state["status"], state["bundle"], state["rootfs"]) == ("creating", str(bundle), str(rt.rootfs))
    assert row[1:5] == ["0", "creating", str(bundle), state["created"]] and not row[4].startswith("1970")
    rt("delete", "--force", "begun")
    bury()


def test_pid_files_of_others(rt):
    """A `create` that fails removes its pid file, if it has written one."""
    pid_file, fails = rt.dir / "kept.pid", [{"path": "/bin/false"}]
    pid_file.write_text("1234")
    early = rt.bundle(sh("true"), hooks={"prestart": fails})
    rt("create", "--bundle", early, "--pid-file", pid_file, "early", check=1)
    assert pid_file.read_text() == "1234"
    late = rt.bundle({**sh(""), "args": ["nothing"]})
    assert "nothing" in rt("create", "--bundle", late, "--pid-file", pid_file, "late", check=1).err
    assert not pid_file.exists()


# --- the command ----------------------------------------------------------------------------------


def test_process(rt):
    """Its environment is exactly what was given; a working directory is made; ids need not be known."""
    out = rt.run(sh("env; pwd; id -u; id -g; umask; ulimit -n; ulimit -Hn; hostname; touch made; ls -ln made; uname -n",
                    cwd="/var/new", env=["PATH=/bin", "A=b"], user={"uid": 1000, "gid": 2000, "umask": 0o77},
                    rlimits=[{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200},
                             {"type": "RLIMIT_CORE", "soft": 0, "hard": 18446744073709551615}]), hostname="some.host")
    lines = out.splitlines()
    env = {line for line in lines if "=" in line}
    assert env - {"SHLVL=1", "OLDPWD=/"} == {"PATH=/bin", "A=b", "HOME=/", "PWD=/var/new"}
    assert lines[-1] == "some.host" and "/var/new" in lines and "0077" in lines
    assert lines[lines.index("0077") + 1:][:2] == ["100", "200"]
    assert "1000" in lines and "2000" in lines


def test_security(rt):
    """What programs may do to their own kernel is what the configuration leaves them."""
    process = sh("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -d '\\t'; id -G; cat /proc/version; "
                 "ls /proc/irq; cat /proc/sys/net/ipv4/ip_forward; echo 0 2>&1 >/proc/sys/net/ipv4/ip_forward; "
                 "touch /var/x 2>&1",
                 noNewPrivileges=True, user={"uid": 0, "gid": 0, "additionalGids": [0, 55]},
                 capabilities={"bounding": ["CAP_CHOWN", "CAP_KILL"], "effective": ["CAP_CHOWN", "CAP_KILL"]})
    out = rt.run(process, check=1, linux={
        "sysctl": {"net.ipv4.ip_forward": "1"}, "maskedPaths": ["/proc/version", "/proc/irq", "/proc/nothing"],
        "readonlyPaths": ["/proc/sys", "/var"], "resources": {"pids": {"limit": 100}}}).splitlines()
    assert out[:4] == ["CapEff:0000000000000021", "CapBnd:0000000000000021", "NoNewPrivs:1", "0 55"]
    assert out[4] == "1" and all(line.endswith("Read-only file system") for line in out[5:]) and len(out) == 7
    assert "unknown capability" in rt.refused(sh("", capabilities={"bounding": ["CAP_DREAMS"]}))
    assert "cannot set the sysctl net.core.nonsense" in rt.refused(sh("true"), linux={"sysctl": {"net.core.nonsense": "1"}})


def test_seccomp(rt):
    """The guest's kernel refuses what the profile does not allow, to the command and to those executed later."""
    def rule(action, *names, **more):
        return {"names": list(names), "action": f"SCMP_ACT_{action}", **more}

    def arg(op, value, two=0):
        return {"args": [{"index": 0, "value": value, "valueTwo": two, "op": f"SCMP_CMP_{op}"}]}

    profile = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
        rule("ERRNO", "mkdir", "mkdirat", "no_such_call"), rule("ERRNO", "chmod", "fchmodat", "fchmodat2", errnoRet=28),
        rule("ERRNO", "kill", **arg("EQ", 0xffffffff00000001)), rule("KILL", "sethostname"),
        rule("ERRNO", "umask", errnoRet=1, **arg("MASKED_EQ", 0o700, 0o700))]}
    script = ("mkdir /tmp/d 2>&1; chmod 0 /tmp 2>&1; grep Seccomp: /proc/self/status | tr -d '\\t'; umask 0077; umask; "
              "umask 0777; umask; hostname x; echo $?; sleep 1000")
    more = {"linux": {"seccomp": profile}}
    caps = {"bounding": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"], "permitted": ["CAP_CHOWN"]}
    for nnp in (True, False):  # without, the filter is root's to set
        process = sh(script.replace("sleep 1000", ":"), noNewPrivileges=nnp, capabilities=caps, user={"uid": 7, "gid": 7})
        out = rt.run(process, **more).splitlines()
        assert "not permitted" in out[0] and "No space left" in out[1]
        assert out[2:] == ["Seccomp:2", "0077", "0077", "159"]
    rt.create("filtered", sh("sleep 1000"), **more)
    rt("start", "filtered")
    assert "not permitted" in rt("exec", "filtered", "/bin/mkdir", "/tmp/d", check=1).err
    rt("delete", "--force", "filtered")
    others = [name for name in re.findall(r"__NR_(\w+)", pathlib.Path(SYSCALLS).read_text()) if not name.startswith("mkdir")]
    strict = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 28, "syscalls": [rule("ALLOW", *others)]}
    assert "No space left" in rt.run(sh("mkdir /tmp/d 2>&1; ls -d /bin"), linux={"seccomp": strict}).splitlines()[0]
    # Every bit of a value counts: a double would not hold these.
    exact = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        rule("ERRNO", "ftruncate", errnoRet=28, args=[{"index": 1, "value": 2**53 + 1, "op": "SCMP_CMP_EQ"}]),
        rule("ERRNO", "ftruncate", errnoRet=30, args=[{"index": 1, "value": 2**64 - 2, "valueTwo": 2**53 + 2, "op": "SCMP_CMP_MASKED_EQ"}])]}
    script = f"for n in 0 1 3; do truncate -s $(({2**53} + n)) /tmp/x 2>&1 | sed 's/.*: //'; done"
    out = rt.run(sh(script), linux={"seccomp": exact}).splitlines()
    assert "No space left on device" not in out[0] and out[1:] == ["No space left on device", "Read-only file system"]
    for bad in ({"defaultAction": "SCMP_ACT_DREAM"}, {**profile, "syscalls": [rule("NOTIFY", "mkdir")]},
                {**profile, "syscalls": [rule("ERRNO", "mkdir", **arg("LIKE", 1))]}, {**profile, "syscalls": [rule("ERRNO")]},
                {**profile, "syscalls": [rule("ERRNO", "mkdir", **arg("EQ", 2**64))]}):
        assert "linux.seccomp" in rt.refused(sh("true"), linux={"seccomp": bad})


def test_a_command_that_is_not_there(rt, idle):
    """Engines look for these words, and want them from create, not start."""
    words = rt.refused({**sh(""), "args": ["nothing"]})
    assert 'exec: "nothing": executable file not found in $PATH' in words
    (rt.rootfs / "hidden").mkdir()
    (rt.rootfs / "hidden" / "sh").symlink_to("/bin/busybox")
    assert rt.run({**sh(""), "args": ["/hidden/sh", "-c", "echo here"]}) == "here\n"
    mount = {"destination": "/hidden", "type": "tmpfs", "source": "tmpfs"}
    assert '"/hidden/sh": no such file' in rt.refused({**sh(""), "args": ["/hidden/sh"]}, mounts=[mount])
    assert "no such file or directory" in rt.refused({**sh(""), "args": ["/bin/nothing"]})
    assert "permission denied" in rt.refused({**sh(""), "args": ["/etc/passwd"]})
    p = rt("exec", idle, "nothing", check=255)
    assert "executable file not found in $PATH" in p.err and "executable file not found" in rt.last_error()


def test_exec(rt, idle):
    """A process of its own, which the caller waits for; or the call itself waits."""
    pid_file, out = rt.dir / "exec.pid", rt.dir / "exec.out"
    with open(out, "wb") as f:
        rt("exec", "--process", process_file(rt, sh("echo out; exit 7")), "--detach", "--pid-file", pid_file, idle,
           stdout=f)
    assert reap(int(pid_file.read_text())) == 7 and out.read_text() == "out\n"
    assert rt("exec", "--user", "5:6", "--cwd", "/tmp", "--env", "X=y", idle, "sh", "-c", "id -u; id -g; pwd; echo $X"
              ).out == "5\n6\n/tmp\ny\n"
    rt("exec", idle, "sh", "-c", "exit 9", check=9)
    with open(out, "wb") as f:
        rt("exec", "--process", process_file(rt, sh("trap 'exit 5' TERM; echo on; while :; do sleep 0.1; done")),
           "--detach", "--pid-file", pid_file, idle, stdout=f)
    wait_for(lambda: out.read_text() == "on\n")
    os.kill(int(pid_file.read_text()), signal.SIGTERM)
    assert reap(int(pid_file.read_text())) == 5


def test_exec_options_change_the_containers_process(rt):
    """What they do not name is as configured."""
    rt.create("base", sh("sleep 1000", user={"uid": 1, "gid": 2, "umask": 0o27, "additionalGids": [55]}))
    rt("start", "base")
    look = lambda *words: rt("exec", *words, "base", "/bin/sh", "-c", "id -u; id -G; umask").out.split("\n")[:-1]
    assert look("--user", "1001") == ["1001", "2 55", "0027"]
    assert look("--user", "1001:3", "-g", "66") == ["1001", "3 55 66", "0027"]
    for wrong in ("1000abc", "1000:x", "1000:", ":1", "-1", "1:2:3", "4294967295"):
        assert "expected UID[:GID]" in rt("exec", f"--user={wrong}", "base", "true", check=255).err
    rt("delete", "--force", "base")
    for env in ({"env": None}, {}):
        rt.create("base", {k: v for k, v in sh("sleep 1000").items() if k != "env"} | env)
        rt("start", "base")
        assert "A=1" in rt("exec", "--env", "A=1", "base", "/bin/env").out.split("\n")
        rt("delete", "--force", "base")


def test_exec_has_its_own_rights(rt, idle):
    """Capabilities, groups and new privileges of an exec are its own, and never more than the container's."""
    look = "id -G; grep -E 'Cap(Inh|Eff|Bnd|Amb)|NoNew' /proc/self/status | tr -d '\\t'"
    bound = {"bounding": ["CAP_CHOWN", "CAP_NET_BIND_SERVICE"]}

    def run(**process):
        return rt("exec", "--process", process_file(rt, sh(look, **process)), idle).out.split("\n")[:-1]

    assert run(capabilities=bound, user={"uid": 0, "gid": 0, "additionalGids": [7, 8]}, noNewPrivileges=True) == [
        "0 7 8", "CapInh:0000000000000000", "CapEff:0000000000000401", "CapBnd:0000000000000401",
        "CapAmb:0000000000000000", "NoNewPrivs:1"]
    ambient = {**bound, "ambient": ["CAP_NET_BIND_SERVICE"], "inheritable": ["CAP_NET_BIND_SERVICE"]}
    assert run(capabilities=ambient, user={"uid": 5, "gid": 6}) == [
        "6", "CapInh:0000000000000400", "CapEff:0000000000000400", "CapBnd:0000000000000401",
        "CapAmb:0000000000000400", "NoNewPrivs:0"]
    assert run()[0] == "0" and run(capabilities={"bounding": []})[2] == "CapEff:0000000000000000"


def test_terminal(rt, idle, tmp_path):
    """A pty that is sent to the caller: its size is the guest's, and its end is the command's."""
    console = Console(tmp_path / "s")

    def attach(script, size):
        got = []
        taker = threading.Thread(target=lambda: got.append(console.master()))
        taker.start()
        process = sh(script, terminal=True, consoleSize=size)
        rt("exec", "--process", process_file(rt, process), "--detach", "--tty", "--console-socket", console.path,
           "--pid-file", rt.dir / "t.pid", idle)
        taker.join(10)
        return got[0]

    def read_to_end(master):
        text = b""
        with contextlib.suppress(OSError):  # hung up
            while True:
                text += os.read(master, 1000)
        os.close(master)
        return text

    odd = attach("exit 4", {"height": -1, "width": -1})  # as good as none
    assert struct.unpack("HHHH", fcntl.ioctl(odd, termios.TIOCGWINSZ, bytes(8)))[:2] == (0, 0)
    assert read_to_end(odd) == b"" and reap(int((rt.dir / "t.pid").read_text())) == 4
    master = attach("tty; stty size; read x; stty size; echo $x; exit 4", {"height": 30, "width": 90})
    text = b""
    while b"30 90\r\n" not in text:
        text += os.read(master, 1000)
    assert b"/dev/pts/0\r\n" in text
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    os.write(master, b"typed\r")
    text += read_to_end(master)
    assert text.endswith(b"30 90\r\ntyped\r\n40 100\r\ntyped\r\n"), text
    assert reap(int((rt.dir / "t.pid").read_text())) == 4
    assert "--console-socket" in rt.refused({**sh("true"), "terminal": True})


def test_terminal_in_the_foreground(rt):
    """run has it itself: what comes in is typed, what goes out is printed, more of both than fits at once."""
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    script = sh("tty; read x; echo got $x; head -c 300000 /dev/zero | tr '\\0' x; cat; exit 6", terminal=True)
    p = rt("run", "--bundle", rt.bundle(script), "front", check=6, stdin=read)
    os.close(read)
    lines = p.out.split("\n")  # what is typed is echoed, somewhere
    assert "/dev/pts/0" in lines and "got typed" in lines and p.out.count("x") >= 300000, p.out[:200]
    assert "front" not in rt.ids()


def test_what_spec_writes(rt, tmp_path):
    """It runs as it is, in the foreground."""
    (tmp_path / "rootfs").symlink_to(rt.rootfs)
    rt("spec", "--bundle", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["process"]["noNewPrivileges"] and config["root"]["readonly"]
    assert "File exists" in rt("spec", "--bundle", tmp_path, check=1).err
    config["process"]["args"] = ["/bin/sh", "-c", "grep CapBnd /proc/self/status; ulimit -n; touch /x; exit 5"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = rt("run", "--bundle", tmp_path, "spec", check=5).out
    assert "0000000020000420" in out and "1024" in out and "Read-only" in out


def test_small_things(rt, idle):
    """What programs that were written for runc read, or ask for."""
    head, *rows = rt("list").out.splitlines()
    assert head.split() == ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"]
    mine = [row.split() for row in rows if row.startswith("idle ")][0]
    state = rt.state("idle")
    assert mine[1:5] == [str(state["pid"]), "running", state["bundle"], state["created"]]
    assert rt("ps", "--format", "json", idle).out == f"[{state['pid']}]\n"
    listed = rt("list", "--format", "json").out
    assert listed.count("\n") == 1 and list(json.loads(listed)[0])[:4] == ["ociVersion", "id", "pid", "status"]
    row = rt("ps", idle).out.splitlines()[-1].split()
    assert str(state["pid"]) in row[:2]
    rt("kill", idle, "0")
    assert "unknown signal" in rt("kill", idle, "00x", check=1).err
    assert rt("exec", "--user", "7:8", "-g", "100", "--additional-gids", "200", idle, "id", "-G").out.split() == ["8", "100", "200"]
    read, write = os.pipe()
    os.write(write, json.dumps(sh("echo from a pipe")).encode())
    os.close(write)
    assert rt("exec", "--process", f"/dev/fd/{read}", idle, pass_fds=[read]).out == "from a pipe\n"
    os.close(read)
    assert "expected a number" in rt("exec", "-g", "wheel", idle, "true", check=255).err


# --- files ----------------------------------------------------------------------------------------


def test_root(rt):
    """The bundle's own directory, live, and nothing of ours in it."""
    before = set(os.listdir(rt.rootfs))
    out = rt.run(sh("echo new >/tmp/new; chown 33:44 /tmp/new; chmod 4755 /tmp/new; ln -s new /tmp/link; "
                    "ls -ln /tmp/new; mount | grep -c ' / type virtiofs'; ls -a / | grep -c msb; true"))
    new = (rt.rootfs / "tmp/new").lstat()
    assert (rt.rootfs / "tmp/new").read_text() == "new\n" and os.readlink(rt.rootfs / "tmp/link") == "new"
    assert out.split()[0] == "-rwsr-xr-x" and out.splitlines()[1:] == ["1", "0"]
    assert set(os.listdir(rt.rootfs)) == before
    if ROOT:
        assert (new.st_uid, new.st_gid, new.st_mode & 0o7777) == (33, 44, 0o4755)


def test_read_only_root(rt):
    """Read-only for the host's server, too; mount points are still created."""
    out = rt.run(sh("touch /x 2>&1; touch /new/y && echo yes; ls -d /new /file; cat /file"), root={"readonly": True},
                 mounts=[{"destination": "/new", "type": "tmpfs", "source": "tmpfs", "options": ["size=1m"]},
                         {"destination": "/file", "type": "bind", "source": "/etc/hostname", "options": ["bind", "ro"]}])
    assert out.splitlines()[0].endswith("Read-only file system") and "yes" in out
    assert not (rt.rootfs / "new").exists() and not (rt.rootfs / "x").exists()


def test_mounts(rt, tmp_path):
    """Directories and single files, read-only or not, changing while they are mounted; tmpfs; shared memory."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "f").write_text("1\n")
    (tmp_path / "hosts").write_text("h\n")
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]},
        {"destination": "/data", "type": "bind", "source": str(data), "options": ["rbind", "rprivate"]},
        {"destination": "/ro", "type": "bind", "source": str(data), "options": ["rbind", "ro"]},
        {"destination": "/etc/hosts", "type": "bind", "source": str(tmp_path / "hosts"), "options": ["bind"]},
        {"destination": "/dev/termination-log", "type": "bind", "source": str(tmp_path / "hosts"), "options": ["rbind"]},
        {"destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["bind", "nosuid"]},
        {"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": ["size=9m"]},  # the next covers it
        {"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": ["size=1m", "noexec", "mode=711", "uid=5", "gid=6"]},
        {"destination": "/strict", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]},
    ]
    script = ("cat /etc/hosts /data/f; echo x >/data/g; touch /ro/h; echo end >>/dev/termination-log; "
              "grep -E ' (/dev/shm|/scratch) ' /proc/mounts | cut -d' ' -f1-3 | sort; stat -c %a.%u.%g /scratch; "
              "for m in /scratch /strict; do grep -o \" $m tmpfs [^ ]*\" /proc/mounts; done; "
              "until grep -q 2 /data/f; do sleep 0.05; done; cat /data/f")
    p = threading.Thread(target=lambda: wait_for(lambda: (data / "g").exists()) and (data / "f").write_text("2\n"))
    p.start()
    out = rt.run(sh(script), mounts=mounts)
    p.join()
    lines = out.splitlines()
    scratch, strict = (set(line.split()[-1].split(",")) for line in (lines.pop(5), lines.pop(5)))
    assert lines == ["h", "1", "tmpfs /dev/shm tmpfs", "tmpfs /scratch tmpfs", "711.5.6", "2"]
    assert scratch >= {"noexec", "size=1024k"} and not scratch & {"nosuid", "nodev"}
    assert strict >= {"nosuid", "nodev"} and "noexec" not in strict
    assert (data / "g").read_text() == "x\n" and not (data / "h").exists()
    assert (tmp_path / "hosts").read_text() == "h\nend\n"


def test_tmpcopyup(rt, tmp_path):
    """Podman sends it with --tmpfs and --read-only: a tmpfs begins as a copy of what it covers, which does not change."""
    root = make_root(tmp_path / "rootfs")
    data = root / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "f").write_bytes(b"x" * 3_000_000)
    os.utime(data / "sub" / "f", (1, 1_000_000_000))
    (data / "link").symlink_to("/etc/passwd")
    (data / "sub").chmod(0o700)
    os.mkfifo(data / "fifo", 0o640)
    data.chmod(0o751)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(data / "socket"))
    owners = "0"
    if ROOT:
        owners = "33"
        for path in (data, data / "sub" / "f"):
            os.chown(path, 33, 44)
    (data / "sub" / "f").chmod(0o4750)
    look = sh("cd /data; stat -c '%n %a %F' . sub link fifo sub/f; stat -c '%u %Y %s' sub/f; ls | tr '\\n' ' '; stat -c %u .; "
              "md5sum <sub/f; echo changed >sub/f; touch new; ls -a /empty /fresh; stat -c %a /fresh /only")
    mount = lambda where, *options: {"destination": where, "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", *options]}
    out = rt.run(look, root={"path": str(root), "readonly": True}, mounts=[
        mount("/data"), mount("/fresh"), mount("/only", "mode=700"), {**mount("/empty"), "options": []}]).splitlines()
    assert out[:5] == [". 751 directory", "sub 700 directory", "link 777 symbolic link", "fifo 640 fifo", "sub/f 4750 regular file"]
    assert out[5] == f"{owners} 1000000000 3000000" and out[6] == f"fifo link sub {owners}"
    assert out[7].split()[0] == hashlib.md5(b"x" * 3_000_000).hexdigest()
    assert out[-2:] == ["1777", "700"]
    assert not (data / "new").exists() and (data / "sub" / "f").stat().st_size == 3_000_000
    out = rt.run(sh("cat /etc/passwd | head -c 4; touch /etc/x 2>&1"), check=1, mounts=[mount("/etc", "ro")])
    assert out.startswith("root") and "Read-only file system" in out
    assert "cannot copy /data to a tmpfs: No space left" in rt.refused(sh("true"), root={"path": str(root)}, mounts=[mount("/data", "size=1m")])


@needs_root
def test_a_file_written_after_create(rt, tmp_path):
    """Podman 5 writes a container's hosts and resolv.conf between create and start."""
    (tmp_path / "hosts").touch()
    mount = {"destination": "/etc/hosts", "type": "bind", "source": str(tmp_path / "hosts"), "options": ["bind"]}
    bundle, out = rt.bundle(sh("cat /etc/hosts"), mounts=[mount]), rt.dir / "late.out"
    with open(out, "wb") as f:
        rt("create", "--bundle", bundle, "--pid-file", rt.dir / "late.pid", "late", stdout=f)
    (tmp_path / "hosts").write_text("10.0.0.1 web\n")
    rt("start", "late")
    assert reap(int((rt.dir / "late.pid").read_text())) == 0
    assert out.read_text() == "10.0.0.1 web\n"
    rt("delete", "late")


@needs_root
def test_engines_see_the_containers_files(rt, tmp_path):
    """The process that they find has the container's files and no process but itself."""
    (tmp_path / "f").write_text("mounted\n")
    pid = rt.create("view", sh("echo mine >/tmp/mine; sleep 1000"), mounts=[
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/mnt", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}])
    rt("start", "view")
    wait_for(lambda: (rt.rootfs / "tmp/mine").exists())
    inside = ["nsenter", "-t", str(pid), "-m", "-p", "-r", "/bin/sh", "-c"]
    script = "cat /tmp/mine /mnt/f; ls /proc | grep -c '^[0-9]'; tr '\\0' ' ' </proc/1/cmdline"
    out = subprocess.run([*inside, script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[:2] == ["mine", "mounted"] and int(out[2]) <= 6 and "container view" in out[3]
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status") if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0 and status["NoNewPrivs"].strip() == "1"
    rt("delete", "--force", "view")
    assert reap(pid) == -signal.SIGKILL


@needs_root
def test_engines_see_processes_of_an_image_without_proc(rt, tmp_path):
    """The guest makes the place for it while the container's process gets ready."""
    root = make_root(tmp_path / "rootfs")
    (root / "proc").rmdir()
    pid = rt.create("bare", sh("sleep 1000"), root={"path": str(root)})
    inside = ["nsenter", "-t", str(pid), "-m", "-p", "-r", "/bin/sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"]
    try:
        assert "container bare" in subprocess.run(inside, capture_output=True, text=True, check=False).stdout
    finally:
        rt("delete", "--force", "bare")
        assert reap(pid) == -signal.SIGKILL


# --- hooks ----------------------------------------------------------------------------------------


def test_hooks(rt, tmp_path):
    """All six, in order, with the state on their stdin; one that fails before the start undoes everything."""
    kinds = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    log = tmp_path / "log"
    script = f'echo "$0 $(tr -d " \\n" | grep -o "\\"status\\":\\"[a-z]*")" >>{log}'
    hooks = {k: [{"path": "/bin/sh", "args": ["sh", "-c", script, k], "env": ["PATH=/usr/bin:/bin"]}] for k in kinds}
    rt.run(sh("true"), hooks=hooks)
    status = ["creating", "creating", "creating", "created", "running", "stopped"]
    assert log.read_text().splitlines() == [f'{k} "status":"{s}' for k, s in zip(kinds, status)]
    fails = [{"path": "/bin/sh", "args": ["sh", "-c", "exit 6"]}]
    for kind in kinds[4:]:  # it is too late to fail, also for the next one
        log.unlink()
        rt.run(sh("true"), hooks={kind: [*fails, *hooks[kind], *fails]})
        errors = [json.loads(line)["msg"] for line in rt.log.read_text().splitlines()[-2:]]
        assert errors == [f"{kind} hook /bin/sh failed: exit code 6"] * 2 and log.read_text().startswith(kind)
    last = {"poststop": hooks["poststop"]}
    for kind in kinds[:3]:
        log.unlink()
        assert f"{kind} hook /bin/sh failed: exit code 6" in rt.refused(sh("true"), hooks={kind: fails, **last})
        assert log.read_text() == 'poststop "status":"stopped\n'
    log.unlink()
    pid = rt.create("unstarted", sh("true"), hooks={"startContainer": fails, **last})
    assert "startContainer hook /bin/sh failed: exit code 6" in rt("start", "unstarted", check=1).err
    assert reap(pid) == -signal.SIGKILL and rt.status("unstarted") == "stopped" and not log.exists()
    rt("delete", "unstarted")
    assert log.read_text() == 'poststop "status":"stopped\n'
    hooks = {"prestart": [{"path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 1}]}
    assert "took longer than 1 seconds" in rt.refused(sh("true"), hooks=hooks)
    long = [{"path": "/bin/true", "timeout": n} for n in (86400, 2**63 - 1)]
    assert rt.run(sh("echo on"), hooks={"prestart": long}) == "on\n"
    assert "no negative timeout" in rt.refused(sh("true"), hooks={"prestart": [{"path": "/bin/true", "timeout": -1}]})
    hooks = {"createRuntime": [{"path": "/bin/true", "args": "true"}]}
    assert "hooks.createRuntime: args must be a list of strings" in rt.refused(sh("true"), hooks=hooks)


# --- what is refused ------------------------------------------------------------------------------

BAD = {
    "ociVersion '2.0'": {"ociVersion": "2.0"},
    "process.args is empty": {"process": {**sh(""), "args": []}},
    "process.cwd must be an absolute path": {"process": {**sh(""), "cwd": "tmp"}},
    "unknown rlimit resource: nothing": {"process": sh("", rlimits=[{"type": "RLIMIT_NOTHING", "soft": 1, "hard": 1}])},
    "RLIMIT_CORE is listed twice": {"process": sh("", rlimits=[{"type": "RLIMIT_CORE", "soft": 1, "hard": 1}] * 2)},
    "linux.namespaces: pid is listed twice": {"linux": {"namespaces": [{"type": "pid"}, {"type": "pid"}]}},
    "the path 'proc/1/ns/net' is not absolute": {"linux": {"namespaces": [{"type": "network", "path": "proc/1/ns/net"}]}},
    "cannot join the namespace /proc/self/ns/uts": {"linux": {"namespaces": [{"type": "network", "path": "/proc/self/ns/uts"}]}},
    "there is no process to run": {"process": None},
    "cannot use root.path": {"root": {"path": "/nonexistent"}},
    "root.path /etc/passwd is not a directory": {"root": {"path": "/etc/passwd"}},
    "'/dev/kvm' cannot be passed into a guest": {"linux": {"devices": [{"path": "/dev/kvm", "type": "c"}]}},
    "unknown type 'dreams'": {"linux": {"namespaces": [{"type": "dreams"}]}},
    "a guest needs at least 32 MiB": {"linux": {"resources": {"memory": {"limit": 1 << 20}}}},
    "cannot mount /nonexistent on /x": {"mounts": [{"destination": "/x", "type": "bind", "source": "/nonexistent"}]},
    "only directories and regular files": {"mounts": [{"destination": "/x", "type": "bind", "source": "/dev/null"}]},
    "/sys is set up by msb": {"mounts": [{"destination": "/sys/x", "type": "bind", "source": "/etc"}]},
    "a nfs cannot be mounted on /x": {"mounts": [{"destination": "/x", "type": "nfs", "source": "a:b"}]},
    "id-mapped mounts": {"mounts": [{"destination": "/x", "type": "bind", "source": "/etc", "options": ["idmap"]}]},
    "unknown 'msb.dreams'": {"annotations": {"msb.dreams": "1"}},
    "msb.memory: invalid value 'lots'": {"annotations": {"msb.memory": "lots"}},
    **{f"'{path}' is not a usable path": {"linux": {"cgroupsPath": path}}
       for path in ("/a/../b", "/a/..", "/a/.", "/a/./b", "a//b", "/a/", "..", ".")},
    "process.oomScoreAdj must be a number": {"process": sh("true", oomScoreAdj=1001)},
}


def test_null(rt):
    """It is the same as nothing: programs in Go write it for lists that are empty."""
    nothing = dict.fromkeys(("maskedPaths", "readonlyPaths", "sysctl", "seccomp", "devices", "resources"))
    user = {"uid": 0, "gid": 0, "umask": None, "additionalGids": None}
    process = sh("umask", user=user, rlimits=None, capabilities=None, oomScoreAdj=None)
    hooks = {"prestart": None, "poststart": [{"path": "/bin/true", "args": None, "env": None, "timeout": None}]}
    assert rt.run(process, linux=nothing, hooks=hooks, hostname=None) == "0022\n"
    assert "process.args is empty" in rt.refused({**sh(""), "args": None})


def test_a_config_that_is_no_file(rt):
    """A pipe would be waited for."""
    bundle = rt.bundle(sh("true"))
    (bundle / "config.json").unlink()
    os.mkfifo(bundle / "config.json")
    for verb in "create", "run":
        assert "config.json is not a regular file" in rt(verb, "--bundle", bundle, "pipe", check=1).err
    (bundle / "config.json").unlink()
    (rt.dir / "elsewhere.json").write_text((rt.bundle(sh("echo linked")) / "config.json").read_text())
    (bundle / "config.json").symlink_to(rt.dir / "elsewhere.json")
    assert rt("run", "--bundle", bundle, "linked").out == "linked\n"


@pytest.mark.parametrize("message", BAD, ids=lambda m: m[:20])
def test_refused(rt, message):
    config = {"process": sh("true"), **BAD[message]}
    assert message in rt.refused(config.pop("process"), **config)


def test_log(rt, tmp_path):
    """A message that is cut within a character is logged, and one with quotes can be parsed."""
    rt.refused(sh("true"), linux={"devices": [{"path": "/" + "\u00e9" * 100, "type": "c"}]})
    assert rt.last_error().startswith("linux.devices: '/\u00e9\u00e9") and "\u00e9?'" in rt.last_error()
    words = [rt.exe, "--root", rt.root, "--log", tmp_path / "log", "create", "--bundle", rt.bundle({**sh(""), "args": ["nothing"]}), "none"]
    assert subprocess.run(words, env=rt.env, capture_output=True, check=False).returncode == 1
    assert '"exec: \\"nothing\\": executable file not found in $PATH"\n' in (tmp_path / "log").read_text()


def test_devices(rt):
    """Those that a guest has anyway, and no others under their names."""
    device = lambda kind, major, minor: {"path": "/dev/zero", "type": kind, "major": major, "minor": minor}
    fuse = {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 0}
    assert rt.run(sh("head -c 2 /dev/zero | wc -c"), linux={"devices": [device("c", 1, 5), device("u", 1, 5), fuse]}) == "2\n"
    for other in (device("c", 1, 3), device("c", 8, 5), device("b", 1, 5), device("p", 1, 5), {"path": "/dev/zero", "type": "c"}):
        assert "/dev/zero is not c 1:5" in rt.refused(sh("true"), linux={"devices": [other]})


def test_policy(rt):
    """No annotation widens what the operator's policy allows; what a configuration leaves open is within it."""
    policy = rt.root / "policy.yaml"
    policy.write_text("caps: {memory: 128M}\nengines: [uml]\n")
    try:
        assert "caps.memory" in rt.refused(sh("true"), annotations={"msb.memory": "1G"})
        assert "caps.memory" in rt.refused(sh("true"), linux={"resources": {"memory": {"limit": 1 << 30}}})
        assert "engines" in rt.refused(sh("true"), annotations={"msb.engine": "kvm"})
        total = rt.run(sh("grep MemTotal /proc/meminfo | tr -dc 0-9"), annotations={"msb.engine": "uml"})
        assert int(total) < 128 * 1024
        # It is asked before anything is made, and before anybody is told.
        hooks = {kind: [{"path": "/bin/touch", "args": ["touch", str(rt.dir / kind)]}] for kind in ("createRuntime", "poststop")}
        rt.refused(sh("true"), annotations={"msb.memory": "1G"}, hooks=hooks)
        assert not (rt.dir / "createRuntime").exists() and not (rt.dir / "poststop").exists()
    finally:
        policy.unlink()


def test_what_the_specification_demands(rt, tmp_path):
    """What is not seen elsewhere of docs/oci.md's table."""
    for verb in ("create", "start", "state", "kill", "delete"):
        assert "required arguments" in rt(verb, check=2).err  # an ID
    for verb in ("start", "state", "kill", "delete"):
        assert "does not exist" in rt(verb, "nobody", check=1).err
    assert "config.json" in rt("create", "--bundle", tmp_path, "c", check=1).err
    # What is unknown is ignored; what changes later is not looked at; what it did not make stays.
    bundle = rt.bundle({**sh("echo first; cd /dev; ls -d fd stdin stdout stderr null zero full random urandom tty ptmx pts "
                             "shm; readlink fd; readlink stdin"), "unknown": 1}, unknown={"a": 1}, annotations={"unknown.key": "v", "msb.example/size": "large"})
    out = rt.dir / "musts.out"
    with open(out, "wb") as f:
        rt("create", "--bundle", bundle, "--pid-file", rt.dir / "musts.pid", "musts", stdout=f, stderr=f)
    (bundle / "config.json").write_text("{}")
    rt("start", "musts")
    assert reap(int((rt.dir / "musts.pid").read_text())) == 0
    assert out.read_text().split() == ["first", *sorted(
        "fd stdin stdout stderr null zero full random urandom tty ptmx pts shm".split()), "/proc/self/fd", "/proc/self/fd/0"]
    rt("delete", "musts")
    assert (bundle / "config.json").exists() and (rt.rootfs / "bin/sh").exists()
    assert rt.run(sh("echo again")) == "again\n"


def test_about_itself(rt, tmp_path):
    lines = rt("--version").out.splitlines()
    assert len(lines) == 3 and lines[0].startswith("msb-runtime version ") and lines[2].startswith("spec: 1.")
    features = json.loads(rt("features").out)
    assert "createRuntime" in features["hooks"] and features["linux"]["cgroup"]["systemd"]
    assert {"rbind", "rro", "ro", "nodev", "size", "mode", "uid", "gid"} <= set(features["mountOptions"])
    seccomp = features["linux"]["seccomp"]
    assert seccomp["enabled"] and seccomp["archs"] == ["SCMP_ARCH_X86_64"]
    assert "SCMP_ACT_ERRNO" in seccomp["actions"] and "SCMP_ACT_NOTIFY" not in seccomp["actions"]
    assert "SCMP_CMP_MASKED_EQ" in seccomp["operators"] and len(seccomp["operators"]) == 7
    rt("spec", "--bundle", tmp_path)
    make_root(tmp_path / "rootfs")
    config = json.loads((tmp_path / "config.json").read_text())
    config["process"]["args"] = ["echo", "from spec"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert rt("run", "--bundle", tmp_path, "fresh").out == "from spec\n"
    assert rt("run", "--preserve-fds", "0", "--bundle", tmp_path, "none").out == "from spec\n"
    for verb, code in (("create", 1), ("run", 1), ("exec", 255)):
        words = [verb, "--preserve-fds", "1", *(["--bundle", tmp_path] if code == 1 else []), "fds"]
        err = rt(*words, *(["true"] if code == 255 else []), check=code).err
        assert "--preserve-fds 1: descriptors of the host cannot be passed" in err and "mount files" in err


def test_arguments_come_first(rt, tmp_path):
    """What is wrong with them is said before there is a --root."""
    wrong = {"unexpected argument 'extra'": ["kill", "x", "KILL", "extra"], "unknown signal 'NONE'": ["kill", "x", "NONE"],
             "invalid value 'bad'": ["events", "--interval", "bad", "x"],
             "--preserve-fds 3": ["create", "--preserve-fds", "3", "x"], "--preserve-fds 4": ["run", "--preserve-fds", "4", "x"],
             "--preserve-fds 5": ["exec", "--preserve-fds", "5", "x", "true"]}
    for message, words in wrong.items():
        p = subprocess.run([rt.exe, "--root", tmp_path / "none", *words], capture_output=True, text=True, env=rt.env, check=False)
        assert p.returncode and message in p.stderr and not (tmp_path / "none").exists(), (words, p.stderr)
