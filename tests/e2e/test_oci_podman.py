"""Podman with msb as its runtime: what its users do, each thing once."""
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import pytest

from conftest import MSB, need, wait_for
from ocikit import make_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman as root")


class Podman:
    def __init__(self, directory):
        self.dir = directory
        self.runtime = directory / "msb-runtime"
        self.runtime.symlink_to(MSB)
        (directory / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
        with tarfile.open(directory / "root.tar", "w") as tar:
            tar.add(make_root(directory / "image"), ".")
        self("import", "-q", directory / "root.tar", "localhost/shell:1")

    def __call__(self, *args, check=0, network="none", **kw):
        options = ["--root", self.dir / "root", "--runroot", self.dir / "run", "--tmpdir", self.dir / "tmp",
                   "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
                   "--runtime", self.runtime]
        if args[0] in ("run", "create"):
            limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
            args = [args[0], "--network", network, *limits, *args[1:]]
        p = subprocess.run([str(a) for a in ["podman", *options, *args]], capture_output=True, text=True, timeout=90,
                           **kw)
        assert check is None or p.returncode == check, (args, p.returncode, p.stdout, p.stderr)
        return p.stdout


@pytest.fixture(scope="module")
def podman():
    need("podman", "conmon")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-oci-"))  # it wants a short path
    engine = Podman(directory)
    yield engine
    engine("rm", "-f", "-t", "0", "--all")
    shutil.rmtree(directory, ignore_errors=True)


def sh(script):
    return ["localhost/shell:1", "sh", "-c", script]


def test_run(podman):
    """Output, input, exit codes, and commands that are not there."""
    assert podman("run", "--rm", "-i", *sh("cat; uname -r"), input="in\n").startswith("in\n")
    podman("run", "--rm", *sh("exit 3"), check=3)
    podman("run", "--rm", "localhost/shell:1", "nothing", check=127)
    podman("run", "--rm", "localhost/shell:1", "/etc/passwd", check=126)
    out = podman("run", "--rm", "--user", "5:6", "--group-add", "55", "-w", "/tmp", "-e", "A=b", "--hostname", "hh",
                 "--cap-drop", "ALL", "--read-only", "--tmpfs", "/scratch:size=1m,mode=700", "--memory", "64m",
                 "--pids-limit", "50", "--security-opt", "no-new-privileges",
                 *sh("id; pwd; echo $A; hostname; grep -E 'CapBnd|NoNew' /proc/self/status | tr -d '\\t'; "
                     "touch /x; ls -ld /scratch | cut -c1-10; tr -dc 0-9 </proc/meminfo | cut -c1-5"))
    lines = out.splitlines()
    assert lines[0].startswith("uid=5") and "55" in lines[0]
    assert lines[1:7] == ["/tmp", "b", "hh", "CapBnd:0000000000000000", "NoNewPrivs:1", "drwx------"]


def test_life(podman, tmp_path):
    """A container in the background, from run to rm."""
    (tmp_path / "f").write_text("of the host\n")
    script = "trap 'exit 5' TERM; touch /made; chown 7:8 /made; echo up; while :; do sleep 0.1; done"
    podman("run", "-d", "--name", "c", "-v", f"{tmp_path}:/data", *sh(script))
    wait_for(lambda: podman("logs", "c") == "up\n")
    assert podman("exec", "c", "cat", "/data/f") == "of the host\n"
    podman("exec", "c", "sh", "-c", "exit 7", check=7)
    podman("exec", "c", "nothing", check=127)
    assert podman("exec", "-i", "c", "cat", input="in\n") == "in\n"
    assert podman("exec", "-t", "c", "tty").strip() == "/dev/pts/0"
    wait_for(lambda: "A /made" in podman("diff", "c"))
    podman("cp", tmp_path / "f", "c:/tmp/copy")
    assert podman("exec", "c", "cat", "/tmp/copy") == "of the host\n"
    podman("cp", "c:/tmp/copy", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "of the host\n"
    assert podman("top", "c", "pid").split() == ["PID", "1"]
    podman("commit", "-q", "c", "localhost/made:1")
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
