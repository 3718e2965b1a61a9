"""Drives msb's OCI runtime as a container engine does: a bundle, one call after another, and a process
to wait for."""
import array
import contextlib
import ctypes
import io
import json
import os
import pathlib
import socket
import subprocess
import tarfile

import imagekit
from conftest import MSB, SLOW, wait_for

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper(on=True):
    """Orphans of those we start become our children, as they become conmon's or a shim's."""
    assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def bury():
    """Orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def make_root(path):
    with tarfile.open(fileobj=io.BytesIO(imagekit.shell_tar())) as tar:
        tar.extractall(path)
    return path


def sh(script, **more):
    return {"args": ["/bin/sh", "-c", script], "cwd": "/", "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/bin"], **more}


class Console:
    """The socket that a container's terminal is sent over."""

    def __init__(self, path):
        self.path, self.sock = path, socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen()

    def master(self):
        conn, _ = self.sock.accept()
        with conn:
            _, ancillary, _, _ = conn.recvmsg(4096, socket.CMSG_SPACE(4))
        fds = array.array("i")
        fds.frombytes(ancillary[0][2][:4])
        return fds[0]


class Runtime:
    """msb-runtime with a root of its own. What it prints goes to files, since containers inherit them."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        self.root, self.log = self.dir / "root", self.dir / "log.json"
        self.exe = self.dir / "msb-runtime"
        self.exe.symlink_to(MSB)
        self.rootfs = make_root(self.dir / "rootfs")
        self.n = 0
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("MSB_")}
        for key in ("MSB_ASSETS", "MSB_ENGINE", "MSB_JAIL"):
            if key in os.environ:
                self.env[key] = os.environ[key]

    def __call__(self, *args, check=0, stdout=None, stderr=None, **kw):
        argv = [self.exe, "--root", self.root, "--log", self.log, "--log-format", "json", *args]
        with open(self.dir / "out", "wb") as out, open(self.dir / "err", "wb") as err:
            kw.setdefault("stdin", subprocess.DEVNULL)
            p = subprocess.run([str(a) for a in argv], stdout=stdout or out, stderr=stderr or err, env=self.env,
                               timeout=60 * SLOW, **kw)
        p.out, p.err = (self.dir / "out").read_text(), (self.dir / "err").read_text()
        assert check is None or p.returncode == check, (args, p.returncode, p.out, p.err)
        return p

    def bundle(self, process, root=None, **config):
        """Its directory. Keys of `linux` and the rest of the configuration as they are."""
        self.n += 1
        path = self.dir / f"bundle{self.n}"
        path.mkdir()
        whole = {"ociVersion": "1.0.2", "process": process, "root": {"path": str(self.rootfs), **(root or {})},
                 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
                 "linux": {"namespaces": [{"type": t} for t in ("pid", "mount", "network", "ipc", "uts")]}}
        linux = {**whole["linux"], **config.pop("linux", {})}
        if "MSB_ENGINE" in self.env:  # engines of containers hand on no environment
            config["annotations"] = {"msb.engine": self.env["MSB_ENGINE"], **config.get("annotations", {})}
        (path / "config.json").write_text(json.dumps({**whole, **config, "linux": linux}))
        return path

    def run(self, process, check=0, **config):
        """A container from beginning to end; its stdout."""
        p = self("run", "--bundle", self.bundle(process, **config), f"r{self.n}", check=check)
        return p.out

    def refused(self, process, **config):
        """What it says to a configuration that it does not accept."""
        p = self("create", "--bundle", self.bundle(process, **config), f"x{self.n}", check=1)
        assert self.last_error() and f"x{self.n}" not in self.ids()
        return p.err

    def create(self, cid, process, *options, **config):
        """The pid of its process."""
        pid_file = self.dir / f"{cid}.pid"
        self("create", "--bundle", self.bundle(process, **config), "--pid-file", pid_file, *options, cid)
        return int(pid_file.read_text())

    def state(self, cid):
        return json.loads(self("state", cid).out)

    def status(self, cid):
        return self.state(cid)["status"]

    def ids(self):
        return self("list", "-q").out.split()

    def last_error(self):
        return json.loads(self.log.read_text().splitlines()[-1])["msg"]

    @contextlib.contextmanager
    def without_cgroups(self):
        """Calls find none that they could use."""
        exe, self.exe = self.exe, self.dir / "without-cgroups"
        self.exe.write_text("#!/bin/sh\nexec unshare --mount sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"' "
                            f'{exe} "$@"\n')
        self.exe.chmod(0o755)
        try:
            yield
        finally:
            self.exe = exe

    def tear_down(self):
        for cid in self.ids():
            self("delete", "--force", cid)
        wait_for(lambda: not self.processes(), timeout=20)
        assert [p for d in ("containers", "sandboxes") for p in (self.root / d).iterdir()] == []

    def processes(self):
        mark = b"MSB_HOME=" + str(self.root).encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] if entry.name.isdigit() else "Z"
                if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (OSError, IndexError):
                pass
        return found


def reap(pid, timeout=30):
    """The exit code of a process that became our child."""
    status = wait_for(lambda: (r := os.waitpid(pid, os.WNOHANG)) != (0, 0) and r, timeout)[1]
    return os.waitstatus_to_exitcode(status)


def process_file(rt, process):
    """What exec runs, for --process."""
    path = rt.dir / "process.json"
    path.write_text(json.dumps(process))
    return path


def has_cgroups():
    return os.geteuid() == 0 and (os.access("/sys/fs/cgroup/freezer", os.W_OK) or os.path.exists("/sys/fs/cgroup/cgroup.subtree_control"))
