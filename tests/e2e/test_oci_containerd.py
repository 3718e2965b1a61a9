"""containerd with runc's shim and msb as its runtime, by ctr."""
import os
import pathlib
import pty
import shutil
import subprocess
import tempfile

import pytest

from conftest import MSB, SLOW, need, wait_for
from ocikit import make_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containerd as root")

CONFIG = """version = 2
root = "{0}/root"
state = "{0}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{0}/c.sock"
[ttrpc]
address = "{0}/t.sock"
"""


class Containerd:
    """A daemon with separate state and directories."""

    def __init__(self, directory):
        self.dir = directory
        (directory / "msb-runtime").symlink_to(MSB)
        (directory / "config.toml").write_text(CONFIG.format(directory))
        self.rootfs = make_root(directory / "rootfs")
        with open(directory / "log", "wb") as log:
            self.daemon = subprocess.Popen(["containerd", "-c", directory / "config.toml"], stdout=log, stderr=log)
        wait_for(lambda: self("version", check=None).returncode == 0, 30)

    def argv(self, *args):
        if args[0] == "run":
            ours = ["--runc-binary", self.dir / "msb-runtime", "--runc-root", self.dir / "msb", "--rootfs"]
            args = ["run", *args[1:-1], *ours, self.rootfs, *args[-1]]
        return [str(a) for a in ["ctr", "-a", self.dir / "c.sock", *args]]

    def __call__(self, *args, check=0, **kw):
        kw.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.run(self.argv(*args), capture_output=True, text=True, timeout=60 * SLOW, **kw)
        assert check is None or p.returncode == check, (args, p.returncode, p.stdout, p.stderr)
        return p

    def on_terminal(self, *args):
        """What it prints there."""
        master, slave = pty.openpty()
        p = subprocess.Popen(self.argv(*args), stdin=slave, stdout=slave, stderr=subprocess.DEVNULL)
        os.close(slave)
        text = b""
        try:
            while chunk := os.read(master, 4096):
                text += chunk
        except OSError:  # the last holder has closed it
            pass
        os.close(master)
        assert p.wait(60 * SLOW) == 0
        return text.decode()

    def status(self, cid):
        rows = [line.split() for line in self("task", "ls").stdout.splitlines()]
        return next((row[2] for row in rows if row[0] == cid), None)

    def stop(self):
        for cid in self("task", "ls", "-q").stdout.split():
            self("task", "delete", "-f", cid, check=None)
        self.daemon.terminate()
        self.daemon.wait(30)


@pytest.fixture(scope="module")
def ctr():
    need("containerd", "ctr", "containerd-shim-runc-v2")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-ctr-"))  # it wants a short path
    daemon = Containerd(directory)
    yield daemon
    daemon.stop()
    shutil.rmtree(directory, ignore_errors=True)


def test_run(ctr):
    """Output, exit codes, a terminal; nothing is left."""
    assert "7." in ctr("run", "--rm", ["a", "uname", "-r"]).stdout
    ctr("run", "--rm", ["a", "sh", "-c", "exit 3"], check=3)
    p = ctr("run", "--rm", ["a", "nothing"], check=1)
    assert 'exec: "nothing": executable file not found in $PATH' in p.stderr
    assert "/dev/pts/0" in ctr.on_terminal("run", "--rm", "-t", ["a", "tty"])
    assert list((ctr.dir / "msb/default/containers").iterdir()) == []


def test_life(ctr):
    """A container in the background: everything that is done to one through the shim."""
    ctr("run", "-d", ["b", "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done"])
    pid = next(line.split()[1] for line in ctr("task", "ls").stdout.splitlines() if line.startswith("b "))
    assert pid in ctr("task", "ps", "b").stdout.split()
    assert ctr("task", "exec", "--exec-id", "1", "b", "echo", "hi").stdout == "hi\n"
    ctr("task", "exec", "--exec-id", "2", "b", "sh", "-c", "exit 4", check=4)
    assert "/dev/pts/0" in ctr.on_terminal("task", "exec", "-t", "--exec-id", "3", "b", "tty")
    metrics = ctr("task", "metrics", "b").stdout
    assert "memory" in metrics and "pids" in metrics
    ctr("task", "pause", "b")
    assert ctr.status("b") == "PAUSED"
    ctr("task", "resume", "b")
    assert ctr.status("b") == "RUNNING"
    ctr("task", "kill", "-s", "SIGTERM", "b")
    wait_for(lambda: ctr.status("b") == "STOPPED")
    assert "exit code 7" in ctr("task", "delete", "b").stderr
    ctr("container", "delete", "b")
    assert list((ctr.dir / "msb/default/containers").iterdir()) == []
