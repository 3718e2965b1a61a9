"""Podman of an ordinary user, in that user's namespaces, with msb as its runtime."""
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import pytest

import imagekit
from conftest import MSB, need, wait_for
from ocikit import make_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become somebody else")

NAME, UID = "msb-somebody", 4243
ASSETS = pathlib.Path(os.environ.get("MSB_ASSETS", MSB.parents[2] / "assets"))

# Users, images in memory, which saves Podman's many syncs, and a TUN device that all may open, as udev
# has it; nothing of it is seen elsewhere.
WORLD = """
for f in passwd subuid subgid; do cp /etc/$f {d}/$f; done
echo '{name}:x:{uid}:{uid}::{d}/home:/bin/sh' >>{d}/passwd
echo '{name}:20000000:65536' | tee -a {d}/subuid >>{d}/subgid
for f in passwd subuid subgid; do mount --bind {d}/$f /etc/$f; done
mount -t tmpfs -o size=1g,mode=700,uid={uid},gid={uid} none {d}/home/.local
[ ! -d /dev/net ] || {{ mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200; }}
mount --make-rshared /
ip link set lo up
echo ready; exec sleep infinity
"""


class Podman:
    def __init__(self, directory):
        self.dir = directory
        (directory / "bin").mkdir()
        (directory / "lib" / "msb").mkdir(parents=True)
        copies = [(MSB, directory / "bin" / "msb-runtime")]
        copies += [(asset, directory / "lib" / "msb" / asset.name) for asset in ASSETS.iterdir() if asset.is_file()]
        for source, copy in copies:
            shutil.copyfile(source, copy)
            copy.chmod(0o755)  # whatever the umask of whoever has built it
        with tarfile.open(directory / "root.tar", "w") as tar:
            tar.add(make_root(directory / "image"), ".")
        for name in ("home", "home/.local", "run"):
            (directory / name).mkdir(0o700)
            os.chown(directory / name, UID, UID)
        script = WORLD.format(d=directory, name=NAME, uid=UID)
        self.world = subprocess.Popen(["unshare", "--mount", "--net", "--propagation", "private", "sh", "-ec", script],
                                      stdout=subprocess.PIPE, text=True)
        if self.world.stdout.readline() != "ready\n":
            pytest.skip("this machine lets nobody make these namespaces")
        if self("unshare", "true", check=None) is None:
            pytest.skip("podman cannot make a user namespace for an ordinary user here")
        self("import", "-q", directory / "root.tar", "localhost/shell:1")

    def inside(self, *argv, **kw):
        argv = ["nsenter", "-t", self.world.pid, "--mount", "--net", "setpriv", f"--reuid={UID}", f"--regid={UID}",
                "--clear-groups", *argv]
        env = {"HOME": f"{self.dir}/home", "USER": NAME, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
               "XDG_RUNTIME_DIR": f"{self.dir}/run"}
        return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=90, env=env, cwd="/", **kw)

    def __call__(self, *args, check=0, **kw):
        p = self.inside("podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
                        "--runtime", self.dir / "bin" / "msb-runtime", *args, **kw)
        assert check is None or p.returncode == check, (args, p.returncode, p.stdout, p.stderr)
        return p.stdout if p.returncode == 0 or check else None

    def close(self):
        self("rm", "-f", "-t", "0", "--all", check=None)
        self("system", "migrate", check=None)  # ends the process that holds the user's namespaces
        self.world.kill()
        self.world.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture(scope="module")
def podman():
    need("podman", "conmon", "unshare", "nsenter", "setpriv", "newuidmap")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="msb-oci-"))
    directory.chmod(0o755)
    engine = Podman(directory)
    yield engine
    engine.close()


def sh(script):
    return ["localhost/shell:1", "sh", "-c", script]


def test_run(podman):
    """Owners, exit codes, and a directory of the user's."""
    shared = podman.dir / "home" / "shared"
    shared.mkdir()
    os.chown(shared, UID, UID)
    script = "cat; id -u; touch /tmp/x && touch /x; cat /proc/net/dev >/shared/dev"
    out = podman("run", "--rm", "--network", "none", "-i", "-v", f"{shared}:/shared", "--user", "0:6", "--cap-drop", "ALL",
                 "--read-only", "--tmpfs", "/tmp", *sh(script), input="in\n")
    assert out == "in\n0\n" and (shared / "dev").stat().st_uid == UID and "eth0" not in (shared / "dev").read_text()
    assert podman("run", "--rm", "--network", "none", *sh("touch /g; chown 7:8 /g; ls -ln /g; exit 3"), check=3).split()[2:4] == ["7", "8"]
    podman("run", "--rm", "--network", "none", "localhost/shell:1", "nothing", check=127)


def test_life(podman):
    podman("run", "-d", "--name", "c", "--network", "none", *sh("trap 'exit 5' TERM; echo up; while :; do sleep 0.1; done"))
    wait_for(lambda: podman("logs", "c") == "up\n")
    podman("exec", "c", "sh", "-c", "exit 7", check=7)
    assert podman("exec", "-t", "c", "tty").strip() == "/dev/pts/0"
    podman("cp", podman.dir / "root.tar", "c:/tmp/copy")
    size = (podman.dir / "root.tar").stat().st_size
    assert podman("exec", "c", "wc", "-c", "/tmp/copy").split()[0] == str(size)
    assert podman("top", "c", "pid").split() == ["PID", "1"]
    podman("stop", "-t", "10", "c")
    assert podman("inspect", "c", "--format", "{{.State.ExitCode}} {{.State.Status}}") == "5 exited\n"
    podman("rm", "c")
    left = podman.dir / "run" / "msb-runtime"
    assert not list((left / "containers").iterdir()) and not list((left / "sandboxes").iterdir())


def test_pod(podman):
    """Its containers share a guest here, too."""
    podman("pod", "create", "--name", "p", "--network", "none", "--share", "net,ipc,uts")
    serve = "mkdir /www; echo page >/www/index.html; httpd -h /www -p 127.0.0.1:8080; touch /up; exec sleep 1000"
    podman("run", "-d", "--pod", "p", "--name", "web", *sh(serve))
    wait_for(lambda: podman("exec", "web", "ls", "/up", check=None) == "/up\n")
    assert podman("run", "--rm", "--pod", "p", *sh("wget -qO- http://127.0.0.1:8080/; ls -d /www"), check=1) == "page\n"
    podman("pod", "rm", "-f", "-t", "0", "p")


# What systemd does when a user logs in, in a hierarchy that the test has to itself; then $1 runs as the user.
LOGIN = """
mount -t cgroup2 none /sys/fs/cgroup
user=/sys/fs/cgroup/user.slice/user-{uid}.slice
mkdir -p $user/user@{uid}.service/app.slice
chown -R {uid} $user/user@{uid}.service
code=0
sh -ec 'echo $$ >$0/app.slice/cgroup.procs; exec "$@"' $user/user@{uid}.service setpriv --reuid={uid} --regid={uid} --clear-groups sh -ec "$1" || code=$?
find $user -depth -type d -exec rmdir {{}} \\;
rmdir ${{user%/*}} 2>/dev/null || true
exit $code
"""


def test_systemd_cgroup(podman):
    """A user's scope is made where that user's systemd may make it, and is gone in the end."""
    bundle, run = podman.dir / "home" / "bundle", podman.dir / "run"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({
        "ociVersion": "1.0.2", "process": {"args": ["sleep", "1000"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
        "root": {"path": str(podman.dir / "image"), "readonly": True},
        "linux": {"cgroupsPath": "user.slice:libpod:c", "namespaces": [{"type": "pid"}, {"type": "network"}]}}))
    script = f"""
        r="{podman.dir}/bin/msb-runtime --root {run}/scopes --systemd-cgroup --rootless=true --debug"
        $r create --no-pivot --no-new-keyring --bundle {bundle} --pid-file {run}/c.pid c
        grep ^0:: /proc/$(cat {run}/c.pid)/cgroup
        $r delete --force c
        find /sys/fs/cgroup/user.slice -name '*.scope'"""
    argv = ["nsenter", "-t", str(podman.world.pid), "--mount", "--net", "unshare", "--mount", "sh", "-ec", LOGIN.format(uid=UID), "sh", script]
    p = subprocess.run(argv, capture_output=True, text=True, timeout=90, env={"PATH": os.environ["PATH"], "HOME": f"{podman.dir}/home"}, check=False)
    if "mount:" in p.stderr:
        pytest.skip("no cgroup v2 can be mounted here")
    assert (p.returncode, p.stdout) == (0, f"0::/user.slice/user-{UID}.slice/user@{UID}.service/user.slice/libpod-c.scope\n"), p.stderr


def served(podman, network):
    """What a web server in the container says of its network, through a published port."""
    serve = "mkdir /www; (ip -o -4 addr show eth0; ip route; cat /etc/resolv.conf) >/www/index.html; exec httpd -f -h /www -p 80"
    podman("run", "-d", "--name", "web", "--network", network, "-p", "127.0.0.1:18080:80", "--cap-add", "NET_RAW", *sh(serve))

    def page():
        return podman.inside(imagekit.BUSYBOX, "wget", "-qO-", "http://127.0.0.1:18080/").stdout

    wait_for(page, 30)
    return page()


@pytest.mark.skipif(not os.path.exists("/usr/bin/slirp4netns"), reason="slirp4netns is not installed on the host")
def test_slirp4netns(podman):
    """Podman 4 gives it to an ordinary user: its address is the guest's, and so are ports that are published."""
    out = served(podman, "slirp4netns")
    assert "10.0.2.100/24" in out and "default via 10.0.2.2 dev eth0" in out and "nameserver 10.0.2.3" in out
    podman("exec", "web", "ping", "-c1", "-W10", "10.0.2.2")
    podman("rm", "-f", "-t", "0", "web")


def test_pasta(podman):
    """Podman 5 does."""
    if not os.path.exists("/usr/bin/pasta") or int(podman("version", "--format", "{{.Client.Version}}").split(".")[0]) < 5:
        pytest.skip("podman has no pasta on the host: Podman 5 and passt would have")
    assert "default via" in served(podman, "pasta")
    podman("rm", "-f", "-t", "0", "web")
