"""Pods: containers that share a guest, as Kubernetes and Podman ask for them."""
import contextlib
import os
import pathlib
import socket
import subprocess
import threading

import pytest

import filesproto as fp
import imagekit
import protoheader
from conftest import wait_for
from ocikit import Runtime, become_subreaper, bury, make_root, reap, sh

def has_cgroups():
    return os.access("/sys/fs/cgroup/freezer", os.W_OK) or os.path.exists("/sys/fs/cgroup/cgroup.subtree_control")


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers of a pod need mounts")


CRIO = ("io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID")


class Pod:
    """The first container, and what the others are told of it."""

    def __init__(self, runtime, name, keys=("io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"), **config):
        self.rt, self.name, self.keys = runtime, name, keys
        self.pid = runtime.create(name, sh("while :; do sleep 1000; done"), annotations=self.annotations("sandbox"),
                                  hostname="the-pod", **config)
        runtime("start", name)

    def annotations(self, kind):
        return dict(zip(self.keys, (kind, self.name)))

    def config(self, pids=None, **config):
        """pids: whose pid namespace it joins."""
        ns = [{"type": t, "path": f"/proc/{self.pid}/ns/{p}"} for t, p in (("network", "net"), ("ipc", "ipc"), ("uts", "uts"))]
        linux = {"namespaces": [{"type": "pid", **({"path": f"/proc/{pids}/ns/pid"} if pids else {})}, {"type": "mount"}, *ns], **config.pop("linux", {})}
        root = dict(config.pop("root", {}))
        if "path" not in root:
            root["path"] = str(make_root(self.rt.dir / f"rootfs{self.rt.n}"))
        return {"annotations": self.annotations("container"), "linux": linux, "root": root, **config}

    def create(self, cid, process, *options, **config):
        return self.rt.create(cid, process, *options, **self.config(**config))

    def run(self, process, check=0, **config):
        return self.rt.run(process, check, **self.config(**config))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    become_subreaper()
    rt = Runtime(tmp_path_factory.mktemp("oci"))
    yield rt
    rt.tear_down()
    bury()
    become_subreaper(False)


@pytest.fixture(scope="module")
def pod(runtime):
    return Pod(runtime, "pod")


def test_run(pod):
    """A command, its output and its exit code; several after another."""
    assert pod.run(sh("echo hello; hostname")) == "hello\nthe-pod\n"
    pod.run(sh("exit 7"), check=7)


def test_crio(runtime):
    """CRI-O's annotations say the same. It joins namespaces by paths of its own, which tell nothing."""
    pod = Pod(runtime, "crio", CRIO)
    more = pod.config()
    boot = "cat /proc/sys/kernel/random/boot_id"
    first = runtime("exec", "crio", "/bin/sh", "-c", boot).out
    for ns in more["linux"]["namespaces"]:
        if "path" in ns:
            kept = runtime.dir / f"ns-{ns['type']}"
            kept.symlink_to(ns["path"])
            ns["path"] = str(kept)
    assert runtime.run(sh(boot), **more) == first
    runtime("delete", "--force", "crio")
    # A pod without such a container (drop_infra_ctr) has none that could share its guest.
    more["linux"] = {"namespaces": [{"type": "pid"}, {"type": "network"}]}
    assert runtime.run(sh(boot), **more) != first


def test_podman_5(runtime):
    """Podman's annotation only names the pod, and with the host's network no namespace tells more."""
    pod = Pod(runtime, "podman", CRIO)
    more = pod.config(annotations={CRIO[1]: "podman"})
    more["linux"]["namespaces"] = [ns for ns in more["linux"]["namespaces"] if ns["type"] in ("pid", "mount", "ipc")]
    boot = "cat /proc/sys/kernel/random/boot_id"
    first = runtime("exec", "podman", "/bin/sh", "-c", boot).out
    assert runtime.run(sh(boot), **more) == first
    runtime("delete", "--force", "podman")


def test_apart(pod, tmp_path):
    """Each container has files, processes, a root and limits of its own."""
    script = "echo one >/mark; echo >/dev/mark; sleep 1000 & echo up >/data/up; wait"
    mounts = [{"destination": "/data", "type": "bind", "source": str(tmp_path), "options": ["rbind", "rw"]}]
    pod.create("one", sh(script), mounts=mounts)
    pod.rt("start", "one")
    wait_for(lambda: (tmp_path / "up").exists())
    caps = {"bounding": ["CAP_CHOWN", "CAP_KILL"], "permitted": ["CAP_CHOWN", "CAP_KILL"]}
    two = sh("ls /mark /dev/mark 2>&1; ls /proc | grep -c '^[0-9]'; grep -E 'CapBnd|NoNew' /proc/self/status | tr -d '\\t'; "
             "touch /x 2>&1; cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory.max; cat /proc/1/comm; "
             "ls /dev; ls -d /mnt /.pod 2>&1 | wc -l", capabilities=caps, noNewPrivileges=True)
    lines = pod.run(two, root={"readonly": True},
                    linux={"resources": {"pids": {"limit": 50}, "memory": {"limit": 32 << 20}}}).splitlines()
    assert "No such file" in lines[0] and "No such file" in lines[1]
    assert int(lines[2]) < 6
    assert lines[3:5] == ["CapBnd:0000000000000021", "NoNewPrivs:1"]
    assert "Read-only" in lines[5]
    assert lines[6:8] == ["50", str(32 << 20)]
    assert lines[9:] == ["fd", "full", "fuse", "mqueue", "net", "null", "ptmx", "pts", "random", "stderr", "stdin", "stdout", "tty",
                         "urandom", "zero", "2"]
    pod.rt("kill", "one", "KILL")
    pod.rt("delete", "--force", "one")


PS = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"


def test_shared_processes(pod, tmp_path):
    """shareProcessNamespace: they see each other's processes, and each ends with its own only."""
    left = "trap 'echo asked >/v/asked' USR1; echo $$ >/v/pid; setsid sleep 1234 & while :; do sleep 0.05; done"
    volume = [{"destination": "/v", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}]
    pid = pod.create("worker", sh(left), mounts=volume, pids=pod.pid)
    pod.rt("start", "worker")
    see = lambda of=None: pod.run(sh(PS), pids=of)
    wait_for(lambda: (tmp_path / "pid").exists() and "sleep 1234" in see(pod.pid))
    assert "sleep 1000" in see(pod.pid), "the pod's first"
    assert "sleep 1000" in pod.rt("exec", "worker", "/bin/sh", "-c", PS).out
    assert not {"sleep 1000", "sleep 1234"} & {line.strip() for line in see().splitlines()}, "its own namespace"
    pod.run(sh(f"kill -USR1 {(tmp_path / 'pid').read_text()}"), pids=pod.pid)
    wait_for(lambda: (tmp_path / "asked").exists())
    pod.rt("kill", "worker", "KILL")
    assert reap(pid) == -9
    assert "sleep 1234" not in see(pod.pid) and "sleep 1000" in see(pod.pid)
    assert pod.rt.status(pod.name) == "running"
    pod.rt("delete", "worker")
    assert "container-" not in pod.rt("exec", pod.name, "/bin/ls", "/sys/fs/cgroup").out


def test_processes_of_another(pod):
    """A container that looks at one other (kubectl debug --target), and ends with it."""
    target = pod.create("target", sh("exec sleep 2345"))
    pod.rt("start", "target")
    seen = pod.run(sh(PS), pids=target)
    assert "sleep 2345" in seen and "sleep 1000" not in seen
    debug = pod.create("debug", sh("sleep 3456; :"), pids=target)
    pod.rt("start", "debug")
    wait_for(lambda: "sleep 3456" in pod.rt("exec", "target", "/bin/sh", "-c", PS).out)
    pod.rt("kill", "target", "KILL")
    assert (reap(target), reap(debug)) == (-9, 137)
    pod.rt("delete", "target")
    pod.rt("delete", "debug")
    assert "not that of a container in this pod" in pod.rt.refused(sh("true"), **pod.config(pids=os.getpid()))
    assert "a kernel of its own" in pod.rt.refused(sh("true"), linux={
        "namespaces": [{"type": "pid", "path": f"/proc/{pod.pid}/ns/pid"}]})


NOTHING = {"user": {"uid": 1000, "gid": 1000}, "noNewPrivileges": True, "capabilities": {"bounding": []}}


def test_the_agents_take_commands_from_the_host_alone(pod, tmp_path):
    """Neither that of the guest nor that of another container runs what a container asks for."""
    mounts = [{"destination": "/c", "type": "bind", "source": str(fp.caller(tmp_path)), "options": ["rbind", "ro"]}]
    pod.create("beside", sh("sleep 1000"))
    pod.rt("start", "beside")
    script = "i=1024; while [ $i -lt 1088 ]; do /c/vsock_client $i 1 1 </c/frames 2>&1; i=$((i + 1)); done; id -u"
    out = pod.run(sh(script, **NOTHING), mounts=mounts)
    pod.rt("delete", "--force", "beside")
    assert set(out.split()) <= {"ECONNREFUSED", "ECONNRESET", "ENODEV", "1000"} and out.endswith("1000\n")


def test_a_container_that_does_not_get_ready(pod):
    """Nobody waits for it except who wants it: here its process is frozen, as another one could stop it."""
    name, limit = protoheader.named("F_", "NAME LIMIT")
    container, = protoheader.named("PROTO_", "CONTAINER")
    groups = lambda: pod.rt("exec", pod.name, "/bin/ls", "/sys/fs/cgroup").out
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(pod.rt.root / "sandboxes" / pod.name / "run/agent.sock"))
        s.sendall(fp.frame(fp.HELLO, fp.field(fp.F_VERSION, 1 << 16)) + fp.frame(
            container, fp.field(name, "never") + fp.field(limit, "cgroup.freeze=1")))
        wait_for(lambda: "container-" in groups())
        assert pod.run(sh("echo on")) == "on\n"
    wait_for(lambda: "container-" not in groups())


TAKE = """
import socket
for number in range(1, 60):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as s:
        try:
            s.bind((socket.VMADDR_CID_ANY, 1024 + number))
            print(number)
        except OSError:
            pass
"""


def test_nobody_takes_the_port_of_one_that_has_ended(runtime):
    """Commands that the host still has for a container do not reach another one."""
    pod = Pod(runtime, "ports")
    host = [{"destination": d, "type": "bind", "source": os.path.realpath(d), "options": ["rbind", "ro"]}
            for d in ("/usr", "/lib", "/lib64") if os.path.isdir(d)]
    pid = pod.create("first", sh("sleep 1000"))
    runtime("start", "first")
    runtime("kill", "first", "KILL")
    assert reap(pid) == -9
    taken = pod.run({**sh(""), "args": ["/usr/bin/python3", "-c", TAKE]}, mounts=host).split()
    assert taken == [str(n) for n in range(3, 60)]
    runtime("delete", "first")
    runtime("delete", "--force", "ports")


@contextlib.contextmanager
def late(pod, tmp_path):
    """A container whose `create` has got as far as its hooks."""
    script = f"touch {tmp_path}/waits; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    hooks = {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]}]}
    bundle = pod.rt.bundle(sh("sleep 4567"), **pod.config(hooks=hooks))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    create = threading.Thread(target=pod.rt, args=("create", "--bundle", bundle, "late"), kwargs=quiet)
    create.start()
    try:
        wait_for(lambda: (tmp_path / "waits").exists())
        yield "late"
    finally:
        (tmp_path / "go").touch()
        create.join()
        pod.rt("delete", "--force", "late")


def test_processes_of_one_that_is_not_made_yet(pod, tmp_path):
    """Its namespace on the host stands for none in the guest: not for that of the pod's first, either."""
    with late(pod, tmp_path) as name:
        said = pod.rt.refused(sh("true"), **pod.config(pids=pod.rt.state(name)["pid"]))
    assert "not that of a container in this pod" in said


def test_commands_for_one_that_is_not_made_yet(pod, tmp_path):
    """They do not run in the pod's first container instead."""
    with late(pod, tmp_path) as name:
        asked = pod.rt("exec", name, "/bin/touch", "/wrong", check=255).err
        limited = pod.rt("update", "--pids-limit", "100", name, check=1).err
    assert "is not complete" in asked and "is not complete" in limited
    pod.rt("exec", pod.name, "/bin/ls", "/wrong", check=1)


def test_signals_to_the_first_process(pod):
    """In the pod's pid namespace that is msb's agent: it takes SIGTERM from a container, as pause does, and no other."""
    assert pod.run(sh("kill -USR1 1; kill -USR2 1; kill -HUP 1; echo sent"), pids=pod.pid) == "sent\n"
    assert pod.run(sh("echo on")) == "on\n"


def test_groups_within_a_containers_own(pod):
    """They end with it, whatever runs in them."""
    script = ("cd /sys/fs/cgroup; mkdir -p a/b c; (echo 0 >a/b/cgroup.procs; exec setsid sleep 5678) & "
              "while ! grep -q . a/b/cgroup.procs; do sleep 0.05; done; "
              "mkdir deep; cd deep; i=0; while [ $i -lt 400 ] && mkdir x 2>/dev/null && cd x; do i=$((i + 1)); done; echo made")
    groups = lambda: pod.rt("exec", pod.name, "/bin/ls", "/sys/fs/cgroup").out
    for pids in (None, pod.pid):
        assert pod.run(sh(script), pids=pids) == "made\n"
        assert "container-" not in groups()


LEAVE = """
import ctypes, os, signal, struct
own = open("/proc/self/cgroup").read()
libc = ctypes.CDLL(None, use_errno=True)
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if open(f"/proc/{pid}/cgroup").read() == own:
            continue
        group = os.open(f"/proc/{pid}/root/sys/fs/cgroup", os.O_RDONLY)
    except OSError:
        continue
    INTO_CGROUP = 1 << 33
    args = struct.pack("11Q", INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    if libc.syscall(435, args, len(args)) == 0:  # clone3
        os.setsid()
        os.execv("/bin/busybox", ["sleep", "6789"])
    print(ctypes.get_errno() and os.strerror(ctypes.get_errno()))
"""


def test_nobody_leaves_its_group(pod):
    """A container that reaches the groups of another, by a pid namespace that they share, cannot put a process there."""
    caps = {"capabilities": dict.fromkeys(("bounding", "permitted", "effective"), ["CAP_CHOWN", "CAP_KILL"])}
    host = [{"destination": d, "type": "bind", "source": os.path.realpath(d), "options": ["rbind", "ro"]}
            for d in ("/usr", "/lib", "/lib64") if os.path.isdir(d)]
    pod.create("stays", sh("sleep 1000", **caps), pids=pod.pid)
    pod.rt("start", "stays")
    said = pod.run({**sh("", **caps), "args": ["/usr/bin/python3", "-c", LEAVE]}, mounts=host, pids=pod.pid)
    assert "sleep 6789" not in pod.run(sh(PS), pids=pod.pid)
    assert set(said.splitlines()) == {"No such file or directory"}
    pod.rt("delete", "--force", "stays")


def test_limits_are_not_the_containers_own(pod):
    """Not even with all capabilities. It may divide what it has."""
    script = ("cd /sys/fs/cgroup; echo max >pids.max 2>/dev/null; echo 100 >memory.max 2>/dev/null; cat pids.max; "
              "mkdir a; echo 0 >a/cgroup.procs; grep -q $$ a/cgroup.procs && echo divided")
    assert pod.run(sh(script), linux={"resources": {"pids": {"limit": 50}}}) == "50\ndivided\n"


def test_policy(pod, tmp_path):
    """What it refuses is not begun: no place is made in the root or in a volume."""
    root, volume = make_root(tmp_path / "rootfs"), tmp_path / "volume"
    volume.mkdir()
    (root / "proc").rmdir()
    bind = lambda to, of: {"destination": to, "type": "bind", "source": str(of), "options": ["rbind"]}
    mounts = [bind("/new", volume), *(bind(f"/new/{i}", volume) for i in range(30)), bind("/new/etc", "/etc")]
    policy = pod.rt.root / "policy.yaml"
    policy.write_text(f"paths: {{volumes: ['{root}', '{volume}']}}\n")
    try:
        said = pod.rt.refused(sh("true"), **pod.config(mounts=mounts, root={"path": str(root)}))
    finally:
        policy.unlink()
    assert "paths.volumes" in said
    assert not (root / "proc").exists() and not (root / "new").exists() and list(volume.iterdir()) == []


def test_together(pod, tmp_path):
    """They share localhost, shared memory, the pod's name and volumes."""
    volume = [{"destination": "/v", "type": "bind", "source": str(tmp_path), "options": ["rbind"]},
              {"destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["rbind"]}]
    serve = "mkdir /www; echo page >/www/index.html; echo shm >/dev/shm/x; httpd -h /www -p 127.0.0.1:8080; echo up >/v/up; sleep 1000"
    pod.create("server", sh(serve), mounts=volume)
    pod.rt("start", "server")
    wait_for(lambda: (tmp_path / "up").exists())
    assert pod.run(sh("wget -qO- http://127.0.0.1:8080/; cat /dev/shm/x /v/up"), mounts=volume) == "page\nshm\nup\n"
    # A port forwarder connects to it in the namespace, and reaches the pod's.
    def inside(*argv, **kw):
        return subprocess.run(["nsenter", f"--net=/proc/{pod.pid}/ns/net", *argv], capture_output=True, timeout=60, **kw)
    inside("ip", "link", "set", "lo", "up", check=True)
    wait_for(lambda: inside(imagekit.BUSYBOX, "wget", "-qO-", "http://127.0.0.1:8080/").stdout == b"page\n")
    pod.rt("exec", "--detach", "server", "/bin/sh", "-c", "nc -l -p 9000 127.0.0.1 -e cat; :")
    big = os.urandom(300000)
    wait_for(lambda: inside(imagekit.BUSYBOX, "nc", "127.0.0.1", "9000", input=big).stdout == big)
    assert inside(imagekit.BUSYBOX, "nc", "127.0.0.1", "9001").stdout == b""
    pod.rt("exec", "server", "/bin/sh", "-c", "echo back >/v/back")
    assert (tmp_path / "back").read_text() == "back\n"
    pod.rt("delete", "--force", "server")


def test_locks_and_sockets(pod, tmp_path):
    """A volume of two containers is one directory for their kernel."""
    host = [{"destination": d, "type": "bind", "source": os.path.realpath(d), "options": ["rbind", "ro"]}
            for d in ("/usr", "/lib", "/lib64") if os.path.isdir(d)]
    mounts = [*host, {"destination": "/v", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}]
    hold = ("import fcntl, socket; f = open('/v/lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); s = socket.socket(socket.AF_UNIX); "
            "s.bind('/v/sock'); s.listen(); open('/v/up', 'w').close(); c = s.accept()[0]; c.sendall(b'for ' + c.recv(10))")
    ask = ("import fcntl, socket; f = open('/v/lock', 'w')\ntry:\n fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
           "except BlockingIOError:\n print('held')\ns = socket.socket(socket.AF_UNIX); s.connect('/v/sock'); s.sendall(b'you'); print(s.recv(10))")
    pid = pod.create("holder", {**sh(""), "args": ["/usr/bin/python3", "-c", hold]}, mounts=mounts)
    pod.rt("start", "holder")
    wait_for(lambda: (tmp_path / "up").exists(), 30)
    assert pod.run({**sh(""), "args": ["/usr/bin/python3", "-c", ask]}, mounts=mounts) == "held\nb'for you'\n"
    assert reap(pid) == 0
    pod.rt("delete", "holder")


def test_mounts(pod, tmp_path):
    """More of them than a guest has devices; files among them; read-only here and not there; changing."""
    (tmp_path / "rw").mkdir()
    (tmp_path / "rw" / "f").write_text("old\n")
    (tmp_path / "log").write_text("")
    bind = lambda to, of, *more: {"destination": to, "type": "bind", "source": str(of), "options": ["rbind", *more]}
    many = []
    for i in range(20):
        (tmp_path / f"m{i}").mkdir()
        (tmp_path / f"m{i}" / "name").write_text(f"{i}\n")
        many.append(bind(f"/many/{i}", tmp_path / f"m{i}", "ro"))
    mounts = [*many, bind("/a", tmp_path / "rw"), bind("/b", tmp_path / "rw", "ro", "noexec"),
              bind("/dev/termination-log", tmp_path / "log"), bind("/etc/one.conf", tmp_path / "rw" / "f", "ro"),
              {"destination": "/tmpfs", "type": "tmpfs", "options": ["size=1m", "mode=700"]}]
    out = pod.run(sh("cat /many/*/name | wc -l; touch /many/3/x 2>&1; cat /b/f; echo new >/a/f; cat /b/f /etc/one.conf; "
                     "touch /b/x 2>&1; echo gone >/dev/termination-log; ls -ld /tmpfs | cut -c1-10; "
                     "cp /bin/sh /a/prog; /b/prog -c true 2>&1; touch /etc/one.conf 2>&1; stat -c %u /a/f"),
                  mounts=mounts, root={"readonly": True}).splitlines()
    assert out[0] == "20" and "Read-only" in out[1] and out[2:5] == ["old", "new", "new"]
    assert "Read-only" in out[5] and out[6] == "drwx------" and "denied" in out[7] and "Read-only" in out[8]
    assert (tmp_path / "log").read_text() == "gone\n"


def test_devices(pod):
    """Those that a configuration may name are there; others are refused."""
    device = lambda path, major, minor: {"path": path, "type": "c", "major": major, "minor": minor}
    named = [device("/dev/fuse", 10, 229), device("/dev/net/tun", 10, 200), device("/dev/zero", 1, 5)]
    out = pod.run(sh("for d in fuse net/tun zero; do : <>/dev/$d && echo $d; done"), linux={"devices": named})
    assert out.split() == ["fuse", "net/tun", "zero"]
    assert "has no /dev/console" in pod.rt.refused(sh("true"), **pod.config(linux={"devices": [device("/dev/console", 5, 1)]}))


def test_exec_and_signals(pod):
    """exec is in its own container; signals and the exit code are those of the command."""
    script = "echo me >/who; trap 'exit 5' TERM; while :; do sleep 0.05; done"
    pid = pod.create("c", sh(script))
    assert pod.rt.status("c") == "created"
    pod.rt("start", "c")
    wait_for(lambda: pod.rt("exec", "c", "/bin/cat", "/who", check=None).out == "me\n")
    pod.rt("exec", "c", "/bin/sh", "-c", "exit 4", check=4)
    pod.rt("exec", "c", "/nothing", check=255)
    pod.rt("kill", "c", "TERM")
    assert reap(pid) == 5
    assert pod.rt.status("c") == "stopped"
    pod.rt("delete", "c")
    assert "executable file not found" in pod.rt("create", "--bundle", pod.rt.bundle(
        {**sh(""), "args": ["nothing"]}, **pod.config()), "none", check=1).err
    assert "none" not in pod.rt.ids()


@pytest.mark.skipif(not has_cgroups(), reason="needs cgroups to write to")
def test_update_and_pause(pod, tmp_path):
    """In the guest, where its processes are; the pod's other containers go on."""
    count = "n=0; while :; do n=$((n+1)); echo $n >/v/n; sleep 0.01; done"
    volume = [{"destination": "/v", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}]
    group = f"msb-oci-u-{os.getpid()}"
    pid = pod.create("u", sh(count), mounts=volume, linux={"cgroupsPath": f"/{group}", "resources": {"memory": {"limit": 64 << 20}}})
    pod.rt("start", "u")
    groups = [*pathlib.Path("/sys/fs/cgroup").glob(group), *pathlib.Path("/sys/fs/cgroup").glob(f"*/{group}")]
    assert {int(p) for g in groups for p in (g / "cgroup.procs").read_text().split()} == {pid}  # the guest is in the first one's
    pod.rt("update", "--resources", "-", "u", stdin=None, input=b'{"memory": {"limit": 100663296}, "pids": {"limit": 77}}')
    assert pod.rt("exec", "u", "/bin/cat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max").out == "100663296\n77\n"
    pod.rt("update", "--pids-limit", "78", "--memory", "80M", "u")
    assert pod.rt("exec", "u", "/bin/cat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max").out == "83886080\n78\n"
    pod.rt("update", "--pids-limit", "-1", "u")
    assert pod.rt("exec", "u", "/bin/cat", "/sys/fs/cgroup/pids.max").out == "max\n"
    now = lambda: (tmp_path / "n").read_text()
    wait_for(lambda: (tmp_path / "n").exists() and now())
    pod.rt("pause", "u")
    assert pod.rt.status("u") == "paused"
    before = now()
    assert pod.run(sh("sleep 0.3; echo on")) == "on\n"
    assert now() == before
    pod.rt("resume", "u")
    wait_for(lambda: now() not in ("", before))
    pod.rt("delete", "--force", "u")


def test_pause_without_cgroups(pod):
    """It is refused, and the container goes on."""
    with pod.rt.without_cgroups():
        pod.create("unpaused", sh("sleep 1000"))
        pod.rt("start", "unpaused")
    assert "no cgroup that could be frozen" in pod.rt("pause", "unpaused", check=1).err
    assert pod.rt.status("unpaused") == "running"
    assert "frozen 0" in pod.rt("exec", "unpaused", "/bin/cat", "/sys/fs/cgroup/cgroup.events").out
    pod.rt("delete", "--force", "unpaused")


def test_end(runtime):
    """With the pod's first container everything ends; a pod that is not there is an error."""
    other = Pod(runtime, "other")
    pid = other.create("last", sh("sleep 1000"))
    runtime("start", "last")
    runtime("kill", "other", "KILL")
    assert reap(pid) in (137, 143)  # it may be asked first
    runtime("delete", "--force", "other")
    assert "no guest" in runtime.refused(sh("true"), **other.config())
    runtime("delete", "last")


def test_restarts(pod):
    """Containers come and go: nothing of them is left in the guest or its share."""
    pod.run(sh("true"))
    assert "container-" not in pod.rt("exec", pod.name, "/bin/ls", "/sys/fs/cgroup").out


def test_restarts_at_once(pod, tmp_path):
    """The next one's root may have the number of the last one's file system; a volume that both had is there."""
    lower, secret = make_root(tmp_path / "lower"), tmp_path / "secret"
    (lower / "var").mkdir(exist_ok=True)
    (lower / "run").mkdir(exist_ok=True)
    (lower / "var" / "run").symlink_to("/run")
    secret.mkdir()
    (secret / "token").write_text("key\n")
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = [{"destination": place, "type": "bind", "source": str(secret), "options": ["rbind", "ro"]}]
    merged = [tmp_path / f"{i}" / "merged" for i in range(5)]
    for root in merged:
        for name in ("upper", "work", "merged"):
            (root.parent / name).mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={root.parent / 'upper'},workdir={root.parent / 'work'}"
        if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], capture_output=True).returncode:
            pytest.skip("no overlay can be mounted here")
        try:
            assert pod.run(sh(f"cat {place}/token; ls /run"), root={"path": str(root)}, mounts=mounts) == "key\nsecrets\n"
        finally:
            subprocess.run(["umount", root], check=True)


def test_size(runtime):
    """The guest is as large as the pod may be: by an annotation, or the limits of the pod's cgroup."""
    script = sh("grep MemTotal /proc/meminfo | tr -dc 0-9; echo; nproc")
    kind = {"io.kubernetes.cri.container-type": "sandbox"}
    key = "io.kubernetes.cri.sandbox-"

    def size(**config):
        memory, cpus = runtime.run(script, **config).split()
        return int(memory) >> 10, int(cpus)

    memory, cpus = size(annotations={**kind, f"{key}memory": str(200 << 20), f"{key}cpu-quota": "30000000", f"{key}cpu-period": "100000"})
    assert 150 < memory <= 200 and cpus == min(64, os.cpu_count())
    name, tops = f"msb-pod-{os.getpid()}", pathlib.Path("/sys/fs/cgroup")
    old = (tops / "memory").is_dir()
    limits = {"memory/{}/memory.limit_in_bytes": 400 << 20, "cpu/{}/cpu.cfs_quota_us": "105000"} if old else \
        {"{}/memory.max": 400 << 20, "{}/cpu.max": "105000 100000"}
    try:
        try:
            for file, limit in limits.items():
                file = tops / file.format(name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(str(limit))
        except OSError:
            pytest.skip("no cgroup can be limited here")
        in_pod = {"cgroupsPath": f"/{name}/first"}
        memory, cpus = size(annotations=kind, linux=in_pod)
        assert 320 < memory <= 400 and cpus == 1  # of which 50m are overhead
        file.write_text(limits.popitem()[1].replace("105", "155"))
        assert size(annotations=kind, linux=in_pod)[1] == min(2, os.cpu_count())
        assert size(annotations={**kind, f"{key}cpu-quota": "50000", f"{key}cpu-period": "100000"}, linux=in_pod)[1] == 1
    finally:
        for group in [*tops.glob(name), *tops.glob(f"*/{name}")]:
            group.rmdir()
