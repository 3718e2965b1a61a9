"""Podman with msb as its runtime: what its users do, each thing once."""
import contextlib
import os
import pathlib
import pty
import shutil
import subprocess
import tarfile
import tempfile

import pytest

import imagekit
from conftest import MSB, need, wait_for
from ocikit import make_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman as root")


class Podman:
    """With everything of its own, the node's network included."""

    def __init__(self, directory):
        self.dir = directory
        self.node = f"msb-node-{os.getpid()}"
        subprocess.run(["ip", "netns", "add", self.node], check=True)
        self.on_node("ip", "link", "set", "lo", "up")
        self.runtime = directory / "msb-runtime"
        self.runtime.symlink_to(MSB)
        (directory / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
        with tarfile.open(directory / "root.tar", "w") as tar:
            tar.add(make_root(directory / "image"), ".")
        self("import", "-q", directory / "root.tar", "localhost/shell:1")

    def on_node(self, *argv, **kw):
        argv = ["nsenter", f"--net=/run/netns/{self.node}", *argv]
        return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=90, **kw)

    def argv(self, *args, network="none"):
        options = ["--network-config-dir", self.dir / "networks", "--root", self.dir / "root", "--runroot", self.dir / "run", "--tmpdir", self.dir / "tmp",
                   "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
                   "--runtime", self.runtime]
        if args[0] in ("run", "create"):
            limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
            args = [args[0], *(["--network", network] if network else []), *limits, *args[1:]]
        return [str(a) for a in ("nsenter", f"--net=/run/netns/{self.node}", "podman", *options, *args)]

    def __call__(self, *args, check=0, network="none", **kw):
        p = subprocess.run(self.argv(*args, network=network), capture_output=True, text=True, timeout=90, **kw)
        assert check is None or p.returncode == check, (args, p.returncode, p.stdout, p.stderr)
        return p.stdout


@pytest.fixture(scope="module")
def podman():
    need("podman", "conmon", "ip", "nsenter")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-oci-"))  # it wants a short path
    engine = Podman(directory)
    yield engine
    engine("rm", "-f", "-t", "0", "--all")
    subprocess.run(["ip", "netns", "del", engine.node], check=True)
    shutil.rmtree(directory, ignore_errors=True)


def sh(script):
    return ["localhost/shell:1", "sh", "-c", script]


def test_run(podman):
    """Output, input, exit codes, and commands that are not there."""
    assert podman("run", "--rm", "-i", *sh("cat; uname -r"), input="in\n").startswith("in\n")
    podman("run", "--rm", *sh("exit 3"), check=3)
    podman("run", "--rm", "localhost/shell:1", "nothing", check=127)
    podman("run", "--rm", "localhost/shell:1", "/etc/passwd", check=126)
    assert podman("run", "--rm", "-t", "localhost/shell:1", "tty").strip() == "/dev/pts/0"
    assert podman("run", "--rm", "--tmpfs", "/etc", *sh("head -c 4 /etc/passwd; touch /etc/new")) == "root"
    out = podman("run", "--rm", "--user", "5:6", "--group-add", "55", "-w", "/tmp", "-e", "A=b", "--hostname", "hh",
                 "--cap-drop", "ALL", "--read-only", "--tmpfs", "/scratch:size=1m,mode=700", "--memory", "64m", "--cpus", "1.5",
                 "--pids-limit", "50", "--security-opt", "no-new-privileges",
                 *sh("id; pwd; echo $A; hostname; grep -E 'CapBnd|NoNew|Seccomp:' /proc/self/status | tr -d '\\t'; "
                     "ls -ld /scratch | cut -c1-10; touch /x 2>&1; df -k /scratch | awk 'END {print $2}'; "
                     "nproc; grep MemTotal /proc/meminfo | tr -dc '0-9\\n'; "
                     "for n in 30 60; do (for i in $(seq $n); do sleep 1000 & done; echo forked) 2>&1; killall sleep; done"))
    lines = out.splitlines()
    assert lines[0].startswith("uid=5") and "55" in lines[0]
    assert lines[1:8] == ["/tmp", "b", "hh", "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2", "drwx------"]
    assert lines[8].endswith("Read-only file system")
    assert lines[9:11] == ["1024", str(min(2, os.cpu_count()))] and 32 << 10 < int(lines[11]) < 64 << 10
    assert lines[12] == "forked" and "can't fork" in lines[13]


def test_interactive(podman):
    """-it: what is typed reaches the command, and what it says comes back, with Podman's own terminal in between."""
    master, slave = pty.openpty()
    argv = podman.argv("run", "--rm", "-it", *sh("tty; read x; echo got $x; exit 4"))
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as p:
        os.close(slave)
        text = b""
        os.write(master, b"typed\r")
        with contextlib.suppress(OSError):  # hung up
            while True:
                text += os.read(master, 1000)
        assert p.wait(30) == 4 and b"/dev/pts/0\r\n" in text and b"got typed\r\n" in text, text
    os.close(master)


def test_life(podman, tmp_path):
    """A container in the background, from run to rm."""
    (tmp_path / "f").write_text("of the host\n")
    script = "trap 'exit 5' TERM; touch /made; chown 7:8 /made; echo up; while :; do sleep 0.1; done"
    podman("run", "-d", "--name", "c", "-v", f"{tmp_path}:/data", "--cpus", "1.5", "--health-cmd", "test -e /made",
           "--health-interval", "disable", *sh(script))
    wait_for(lambda: podman("logs", "c") == "up\n")
    assert podman("exec", "c", "cat", "/data/f") == "of the host\n"
    podman("exec", "c", "sh", "-c", "exit 7", check=7)
    podman("exec", "c", "nothing", check=127)
    assert podman("exec", "-i", "c", "cat", input="in\n") == "in\n"
    assert podman("exec", "-t", "c", "tty").strip() == "/dev/pts/0"
    # Of the container: alone, "c" could be the beginning of an image's ID.
    wait_for(lambda: "A /made" in podman("container", "diff", "c"))
    podman("cp", tmp_path / "f", "c:/tmp/copy")
    assert podman("exec", "c", "cat", "/tmp/copy") == "of the host\n"
    podman("cp", "c:/tmp/copy", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "of the host\n"
    assert podman("top", "c", "pid").split() == ["PID", "1"]
    podman("commit", "-q", "c", "localhost/made:1")
    podman("healthcheck", "run", "c")
    assert podman("inspect", "c", "--format", "{{.State.Health.Status}}") == "healthy\n"
    usage = podman("stats", "--no-stream", "--format", "{{.MemUsage}} {{.CPUNano}}", "c").split()
    assert usage[0] != "0B" and int(usage[-1]) > 0
    podman("pause", "c")
    assert "Paused" in podman("ps", "-a", "--format", "{{.Status}}")
    podman("unpause", "c")
    podman("stop", "-t", "10", "c")
    assert podman("inspect", "c", "--format", "{{.State.ExitCode}} {{.State.Status}}") == "5 exited\n"
    podman("start", "c")
    podman("kill", "c")
    assert podman("wait", "c") == "137\n"
    podman("rm", "c")
    assert podman("run", "--rm", "localhost/made:1", "ls", "-ln", "/made").split()[2:4] == ["7", "8"]


def test_network(podman):
    """The host's network is msb's own stack; none is none."""
    assert "eth0" in podman("run", "--rm", *sh("cat /proc/net/dev"), network="host")
    assert "eth0" not in podman("run", "--rm", *sh("cat /proc/net/dev"))


@pytest.mark.skipif(not all(map(os.path.exists, ("/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns",
                                                 "/usr/sbin/iptables"))), reason="podman has no network of its own")
def test_bridge(podman):
    """A bridge with names: ports that are published, and containers that find each other, over IPv4 and IPv6."""
    podman("network", "create", "--ipv6", "br")
    serve = "mkdir /www; echo page >/www/index.html; httpd -f -h /www -p 80"
    podman("run", "-d", "--name", "web", "-p", "127.0.0.1:18080:80", *sh(serve), network="br")
    assert podman("port", "web") == "80/tcp -> 127.0.0.1:18080\n"
    wait_for(lambda: podman.on_node(imagekit.BUSYBOX, "wget", "-qO-", "http://127.0.0.1:18080/").stdout == "page\n")
    one = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}"
    v4, v6 = podman("inspect", "web", "--format", one).split()
    for address in (v4, v6):
        wait_for(lambda: podman.on_node(imagekit.BUSYBOX, "ping", "-c1", "-W1", address).returncode == 0)
    ask = f"wget -qO- http://web/ 'http://[{v6}]/'; ip -o -4 addr show eth0 | grep -o 'inet [0-9.]*'"
    lines = podman("run", "--rm", *sh(ask), network="br").splitlines()
    assert lines[:2] == ["page", "page"] and lines[2].startswith(f"inet {v4.rsplit('.', 1)[0]}.")
    podman("rm", "-f", "-t", "0", "web")
    podman("network", "rm", "br")


def test_pod(podman, tmp_path):
    """Containers of a pod have one guest: localhost is theirs, and each has files and processes of its own."""
    podman("pod", "create", "--name", "p", "--network", "none", "--share", "net,ipc,uts", "--hostname", "pp")
    serve = "mkdir /www; echo page >/www/index.html; httpd -h /www -p 127.0.0.1:8080; trap 'exit 5' TERM; while :; do sleep 0.1; done"
    podman("run", "-d", "--pod", "p", "--name", "web", "-v", f"{tmp_path}:/v", *sh(serve), network=None)
    ask = "wget -qO- http://127.0.0.1:8080/; hostname; ls -d /www; touch /v/seen; exit 3"
    for _ in range(50):  # until the server is up
        out = podman("run", "--rm", "--pod", "p", "-v", f"{tmp_path}:/v", *sh(ask), network=None, check=3)
        if "page" in out:
            break
    assert out == "page\npp\n"
    assert podman("exec", "web", "sh", "-c", "ls /v; hostname") == "seen\npp\n"
    assert podman("top", "web", "pid").split() == ["PID", "1"]
    podman("pod", "stop", "-t", "10", "p")
    assert podman("inspect", "web", "--format", "{{.State.ExitCode}}") == "5\n"
    podman("pod", "rm", "-f", "-t", "0", "p")


KUBE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {key: "of the map"}
---
apiVersion: v1
kind: Pod
metadata: {name: k}
spec:
  hostNetwork: true
  restartPolicy: Never
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: shared, emptyDir: {}}
  containers:
  - name: one
    image: localhost/shell:1
    imagePullPolicy: Never
    command: [sh, -c, "cat /proc/sys/kernel/random/boot_id >/shared/boot; cat /conf/key >/shared/it; sleep 1000"]
    volumeMounts: [{name: conf, mountPath: /conf}, {name: shared, mountPath: /shared}]
  - name: two
    image: localhost/shell:1
    imagePullPolicy: Never
    command: [sh, -c, "until test -s /shared/it; do sleep 0.1; done; cat /shared/it;
      read a </shared/boot; read b </proc/sys/kernel/random/boot_id; test $a = $b && exit 3"]
    volumeMounts: [{name: shared, mountPath: /shared}]
"""


def test_play_kube(podman, tmp_path):
    """A pod by its description, with a ConfigMap and a volume that its containers share, in one guest."""
    (tmp_path / "k.yaml").write_text(KUBE)
    podman("play", "kube", tmp_path / "k.yaml")
    wait_for(lambda: podman("inspect", "k-two", "--format", "{{.State.Status}}") == "exited\n", 30)
    assert podman("logs", "k-two").strip() == "of the map"
    assert podman("inspect", "k-two", "--format", "{{.State.ExitCode}}") == "3\n"
    podman("play", "kube", "--down", tmp_path / "k.yaml")
    assert podman("ps", "-aq") == ""
