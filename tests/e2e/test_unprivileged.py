"""msb needs no root: an ordinary user, fresh and in no group, does everything."""
import json
import os
import pathlib
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile

import pytest

import fusekit
import processes
from conftest import MSB, Msb, static_program, tear_down, wait_for
from fakes3 import BUCKET, FakeS3
from test_workspace_s3 import KEYS

USER = "msb-e2e-user"


def need(condition, reason):
    if not condition:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def account():
    need(os.geteuid() == 0, "not root: all tests run as an ordinary user anyway")
    for tool in ("useradd", "userdel", "setpriv"):
        need(shutil.which(tool), f"{tool} is not installed")
    subprocess.run(["userdel", USER], stderr=subprocess.DEVNULL)
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", USER], check=True)
    try:
        yield pwd.getpwnam(USER)
    finally:
        subprocess.run(["userdel", USER], check=True)


@pytest.fixture(scope="module")
def place():
    """A directory that everybody may enter: the usual temporary ones are root's alone."""
    d = pathlib.Path(tempfile.mkdtemp(prefix="msb-e2e-"))
    d.chmod(0o755)
    yield d
    shutil.rmtree(d)


class UserMsb(Msb):
    """msb as another user."""

    def __init__(self, home, account, exe, assets):
        super().__init__(home, {"HOME": str(home.parent), "MSB_ASSETS": str(assets)})
        self.real = exe
        self.account = account
        self.exe = "setpriv"

    def as_user(self, *args):
        return [f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}",
                "--clear-groups", "--inh-caps=-all", str(self.real), *args]  # fmt: skip

    def __call__(self, *args, **kw):
        return super().__call__(*self.as_user(*args), **kw)

    def popen(self, *args, **kw):
        return super().popen(*self.as_user(*args), **kw)


@pytest.fixture(scope="module")
def user(account, place):
    exe = place / "bin" / "msb"
    exe.parent.mkdir()
    shutil.copy(MSB, exe)
    exe.chmod(0o755)
    assets = place / "lib" / "msb"
    real = os.environ.get("MSB_ASSETS") or MSB.parent / "../../assets"
    shutil.copytree(real, assets)
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)
    base = place / "user"
    base.mkdir()
    os.chown(base, account.pw_uid, account.pw_gid)
    m = UserMsb(base / "home", account, exe, assets)
    m.ok("ls")
    yield m
    tear_down(m)


def test_whole_life(user, account):
    user.ok("create", "-n", "mine", "-q", "-m", "128M")
    assert user.ok("exec", "-q", "mine", "--", "id", "-u") == "0\n"  # in the guest it is root
    assert "mine" in user.ok("ls")
    assert user.sh("mine", "echo kept > /root/kept").returncode == 0
    user.ok("stop", "mine", "-q")
    user.ok("start", "mine", "-q")
    assert user.sh("mine", "cat /root/kept").stdout == b"kept\n"
    user.ok("ping", "mine", "-q")
    monitor = user.monitor_pid("mine")
    for pid in user.tree(monitor):
        assert os.stat(f"/proc/{pid}").st_uid in (account.pw_uid, 0)  # 0: not dumpable
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{account.pw_uid}\t{account.pw_uid}" in status
        assert "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
    user.ok("rm", "-f", "mine", "-q")
    assert user.leftovers() == []


def test_a_secret_that_is_bound(user, account):
    """The process that has it makes a jail of its own, with the rights that a program loses when it is executed."""
    user.ok("secret", "set", "BOUND", input=b"bound-value")
    before = set(processes.named("msb-intercept"))
    user.ok("create", "-n", "bound", "-q", "-m", "128M", "--jail", "full", "--secret", "BOUND@api.example.com")
    assert user.sh("bound", "echo $BOUND").stdout.startswith(b"msb_")
    found = [p for p in (pathlib.Path(f"/proc/{pid}") for pid in set(processes.named("msb-intercept")) - before)
             if f"Uid:\t{account.pw_uid}\t{account.pw_uid}" in (p / "status").read_text()]
    assert len(found) == 1
    status = (found[0] / "status").read_text()
    assert "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
    assert os.listdir(found[0] / "root") == []
    user.ok("rm", "-f", "bound", "-q")


def test_run(user):
    p = user("run", "-q", "--", "sh", "-c", "echo out; exit 5")
    assert (p.returncode, p.stdout) == (5, b"out\n")
    assert user.ok("ls", "-q") == ""


def by(account):
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


class Bindfs:
    """A mount that the user makes, as with any program of that kind: by fusermount3, which is root's."""

    def __init__(self, directory, account):
        for tool in ("bindfs", "fusermount3"):
            need(shutil.which(tool), f"{tool} is not installed")
        self.path, self.behind = directory / "mounted", directory / "behind"
        for d in (self.path, self.behind):
            d.mkdir()
            os.chown(d, account.pw_uid, account.pw_gid)
        self.theirs = by(account)
        self.process = subprocess.Popen([*self.theirs, "bindfs", "-f", "--no-allow-other", self.behind, self.path])
        wait_for(lambda: self.is_mounted() or self.process.poll() is not None)
        need(self.process.poll() is None, "bindfs cannot mount here (has everyone access to /dev/fuse?)")

    def is_mounted(self):
        return f" {self.path} fuse" in pathlib.Path("/proc/self/mounts").read_text()

    def close(self):
        subprocess.run([*self.theirs, "fusermount3", "-uz", self.path], check=True)
        assert self.process.wait(30) == 0


@pytest.mark.parametrize("kind", ["fusekit", "bindfs"])
def test_a_fuse_mount_of_the_users(user, account, place, kind):
    """No one else may look into it, including root."""
    d, theirs = place / kind, by(account)
    d.mkdir()
    mount = Bindfs(d, account) if kind == "bindfs" else fusekit.Mount(d, account.pw_uid, account.pw_gid)
    try:
        with pytest.raises(PermissionError):
            os.listdir(mount.path)
        for how in (["--workspace", mount.path], ["-v", f"{mount.path}:/workspace"]):
            subprocess.run([*theirs, "rm", "-rf", mount.path / "c", mount.path / "e"], check=True)
            assert user.ok("run", "-q", *how, "--", "sh", "-c", fusekit.TOUR) == fusekit.TOLD
            assert fusekit.left(mount)
            if kind == "bindfs":
                assert (mount.behind / "c").stat().st_uid == account.pw_uid
    finally:
        mount.close()


def test_files_belong_to_the_user(user, account):
    user.ok("create", "-n", "own", "-q", "-m", "64M")
    for top, dirs, files in os.walk(user.home):
        for f in dirs + files:
            assert os.lstat(os.path.join(top, f)).st_uid == account.pw_uid, f
    user.ok("rm", "-f", "own", "-q")


def test_host_sockets(user, account, tmp_path_factory):
    """A socket that only its owner may connect to, which is this user."""
    path = user.home.parent / "mine.sock"
    client = static_program("vsock_client", tmp_path_factory.mktemp("client"))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
        os.chown(path, account.pw_uid, account.pw_gid)
        path.chmod(0o600)
        s.listen()
        s.settimeout(30)
        user.ok("create", "-n", "v", "-q", "-m", "64M", "--vsock", f"{path}:5000")
        user.ok("exec", "-q", "v", "--", "sh", "-c", "cat >/c; chmod +x /c", input=client.read_bytes())
        p = user.popen("exec", "-q", "v", "--", "/c", "5000", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with s.accept()[0] as c:
            _, uid, _ = struct.unpack("3i", c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            assert uid == account.pw_uid
            c.sendall(b"to you")
        assert p.communicate(timeout=30)[0] == b"to you"
        user.ok("rm", "-f", "v", "-q")


def test_crash_is_repaired(user):
    user.ok("create", "-n", "c", "-q", "-m", "64M")
    tree = user.tree(user.monitor_pid("c"))
    os.kill(tree[0], 9)
    wait_for(lambda: not any(os.path.exists(f"/proc/{p}/fd/0") for p in tree[1:]), timeout=20)
    info = json.loads(user.ok("inspect", "c", "--format", "json"))
    assert info["status"] == "Crashed"
    assert user.sh("c", "echo again").stdout == b"again\n"
    user.ok("rm", "-f", "c", "-q")


def test_ptrace_engine(user):
    user.ok("create", "-n", "pt", "-q", "--engine", "uml-ptrace", "-m", "64M")
    assert user.sh("pt", "echo traced").stdout == b"traced\n"
    user.ok("rm", "-f", "pt", "-q")


def test_kvm_that_is_not_ours(user):
    """A user who may not open /dev/kvm is told what to do; `auto` continues without it."""
    if not os.path.exists("/dev/kvm") or os.stat("/dev/kvm").st_mode & 0o006:
        pytest.skip("no /dev/kvm here, or everybody may open it")
    if not os.path.exists(os.path.join(user.env.get("MSB_ASSETS", ""), "linux-kvm")):
        pytest.skip("no kernel for the kvm engine: make kernel-kvm")
    p = user("create", "-n", "k", "--engine", "kvm")
    assert p.returncode == 1 and b"may not open /dev/kvm" in p.stderr
    assert b"usermod -aG" in p.stderr or b"setfacl -m" in p.stderr
    p = user("doctor")
    assert p.returncode == 0 and b"may not open /dev/kvm" in p.stderr


def test_images_keep_foreign_owners(user, place):
    """Owners in a tar exist in the guest, though its user may not make such files on the host."""
    import io
    import tarfile

    with tarfile.open(place / "owners.tar", "w") as tar:
        shell = tarfile.TarInfo("bin/busybox")
        shell.size, shell.mode = os.path.getsize("/bin/busybox"), 0o4755
        with open("/bin/busybox", "rb") as f:
            tar.addfile(shell, f)
        link = tarfile.TarInfo("bin/sh")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)
        odd = tarfile.TarInfo("odd")
        odd.uid, odd.gid, odd.mode = 4711, 815, 0o640
        tar.addfile(odd, io.BytesIO())
    (place / "owners.tar").chmod(0o644)
    out = user.ok("run", "-q", str(place / "owners.tar"), "--", "/bin/busybox", "stat", "-c", "%u %g %a", "/odd", "/bin/busybox")
    assert out == "4711 815 640\n0 0 4755\n"


def test_home_of_root_is_out_of_reach(user, tmp_path):
    """Another user's home is refused with a reason, not with a trace of it."""
    p = user("ls", env={**user.env, "MSB_HOME": str(tmp_path)})
    assert p.returncode == 1 and p.stderr.startswith(b"error: ")


def test_doctor(user):
    p = user("doctor")
    assert p.returncode == 0, p.stderr


def test_a_kernel_out_of_reach(user, place):
    """One that another user has built is there, and need not be built again."""
    assets = place / "closed"
    assets.mkdir()
    for name in ("base.erofs", "tools.erofs"):
        (assets / name).symlink_to(pathlib.Path(user.env["MSB_ASSETS"]) / name)
    (assets / "linux-uml").touch(mode=0o600)
    p = user("run", "--engine", "uml", "--", "true", env={**user.env, "MSB_ASSETS": str(assets)})
    assert p.returncode == 1 and b"linux-uml: Permission denied" in p.stderr and b"MSB_ASSETS" in p.stderr
    assert b"make" not in p.stderr


def test_set_id_programs_of_the_host(user):
    """Whom they belong to is not known in the user's namespace: who runs one stays who he is."""
    need(os.stat("/usr/bin/su").st_mode & 0o4000, "the host's su has no set-ID bit")
    out = user.ok("run", "-q", "-v", "/usr:/host:ro", "--", "stat", "-c", "%U %a", "/host/bin/su", "/host/bin/env")
    owner, mode = out.split()[:2]
    assert owner != "root" and mode == "755" == out.split()[3]


def test_shares(user, account, place):
    """A host directory: the guest's root does as it likes, the host's files stay the user's."""
    share, foreign = place / "user" / "share", place / "foreign"
    for d in (share, foreign):
        d.mkdir()
    os.chown(share, account.pw_uid, account.pw_gid)
    (share / "theirs").write_text("of root")  # in the user's directory, but not the user's
    (foreign / "f").write_text("readable")
    foreign.chmod(0o755)
    user.ok("create", "-n", "s", "-q", "-m", "128M", "-v", f"{share}:/w", "-v", f"{foreign}:/f")
    script = ("cd /w; echo 1 >a; chown 1000:1000 a; chmod 0444 a; echo 2 >>a; mkdir d; chmod 0 d; "
              "echo 3 >d/b; chmod 4700 a; stat -c '%u:%g %a' a d; stat -c %u theirs; cat theirs")
    p = user.sh("s", script)
    assert p.stdout.decode() == "1000:1000 4700\n0:0 0\n65534\nof root", p.stderr
    for path in (share / "a", share / "d", share / "d" / "b"):
        assert path.stat().st_uid == account.pw_uid
    assert (share / "a").read_text() == "1\n2\n"
    assert (share / "a").stat().st_mode & 0o7777 == 0o700
    # What the user may not do on the host, the guest may not either.
    assert user.sh("s", "cat /f/f").stdout == b"readable"
    for attempt in ("echo x >/f/f", "touch /f/new", "rm /f/f", "echo x >>/w/theirs"):
        assert user.sh("s", attempt).returncode != 0, attempt
    # An owner that cannot be kept with the file is kept in memory.
    assert user.sh("s", "chown 7 /f/f; stat -c %u /f/f").stdout == b"7\n"
    assert (foreign / "f").stat().st_uid == 0
    pids = [p for p in user.processes() if p not in user.tree(user.monitor_pid("s"))]
    assert len(pids) == 2
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{account.pw_uid}\t{account.pw_uid}" in status
        assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
        assert os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")
    user.ok("rm", "-f", "s", "-q")


def test_the_network(user, internet, monkeypatch):
    """Names, pages, pings and a published port, by a user who could not open a raw socket."""
    inside = user.command
    monkeypatch.setattr(user, "command", lambda args: [*internet.enter(internet.host_pid), *inside(args)])
    user.ok("create", "-n", "netted", "-q", "-m", "128M", "-p", "18600:8080")
    out = user.sh("netted", "wget -q -O - http://four.example.com/; wget -q -O - http://10.9.9.9/; echo $?; "
                            "ping -c 1 -W 20 93.184.216.34 >/dev/null && echo pinged").stdout.decode()
    assert out.splitlines() == ["world 93.184.216.34 four.example.com", "1", "pinged"]
    p = user.popen("exec", "-q", "netted", "--", "sh", "-c", "echo hello | nc -l -p 8080")
    wait_for(lambda: user.sh("netted", "grep -q :1F90 /proc/net/tcp /proc/net/tcp6").returncode == 0)
    with internet.connect("127.0.0.1", 18600) as s:
        assert s.recv(10) == b"hello\n"
    p.wait(20)
    user.ok("rm", "-f", "-q", "netted")


def test_copies(user, account, place):
    """Files of the guest's own users and modes are the caller's on the host; -a changes no owner."""
    user.ok("create", "-n", "cp", "-q", "-m", "128M")
    user.sh("cp", "mkdir -p /d/closed; echo x > /d/f; chown -R 12:34 /d; chmod 4000 /d/f; "
                  "chmod 0 /d/closed", check=0)
    user.ok("cp", "-q", "-a", "cp:/d", user.home.parent / "d")
    for p in (user.home.parent / "d").rglob("*"):
        assert os.lstat(p).st_uid == account.pw_uid
        assert os.lstat(p).st_mode & 0o7777 == 0
    (place / "in").write_text("in")
    user.ok("cp", "-q", place / "in", "cp:/root/")
    assert user.sh("cp", "cat /root/in; stat -c %u /root/in").stdout == b"in0\n"
    p = user("cp", "cp:/d", place / "bin" / "x", check=1)
    assert b"Permission denied" in p.stderr
    user.ok("rm", "-f", "cp", "-q")
def test_disks_workspaces_and_write_paths(user, account):
    base = user.home.parent / "work"
    base.mkdir()
    (base / "f").write_text("host\n")
    for path in (base, base / "f"):
        os.chown(path, account.pw_uid, account.pw_gid)
    user.ok("volume", "create", "-q", "disk", "--kind", "disk", "--size", "16M")
    user.ok("create", "-n", "w", "-q", "-m", "64M", "--root-disk", "64M", "-v", "disk:/disk",
            "--workspace", str(base), "--workspace-mode", "snapshot", "--write-path", "/workspace",
            "--write-path", "/disk")  # fmt: skip
    p = user.sh("w", "cat /workspace/f; echo guest >/workspace/f; echo 1 >/disk/f; echo x >/etc/x")
    assert p.stdout == b"host\n" and b"Read-only file system" in p.stderr
    user.sh("w", "mkdir -p /workspace/d/e; touch /workspace/d/e/f; chmod 0 /workspace/d/e/f "
                 "/workspace/d/e /workspace/d", check=0)  # fmt: skip
    user.ok("modify", "-q", "w", "--root-disk", "128M", "--restart")
    user.sh("w", "rm -r /workspace/d", check=0)
    assert (base / "f").read_text() == "guest\n"
    assert (base / "f").stat().st_uid == account.pw_uid
    assert user.sh("w", "cat /disk/f /workspace/f").stdout == b"1\nguest\n"
    user.ok("stop", "-q", "w")
    user.ok("rm", "-q", "w")
    user.ok("volume", "rm", "-q", "disk")
    assert [p.name for p in base.parent.iterdir() if "conflict" in p.name or "msb-new" in p.name] == []


def test_read_only_files_in_a_bucket(user, account):
    """As in a git repository: their mode keeps even their owner from filling them."""
    server = FakeS3()
    try:
        user.env.update(KEYS)
        for name in ("from", "to"):
            user.ok("workspace", "create", name, "--s3", f"s3://{BUCKET}/pre", "--endpoint", server.url)
        for name in ("object", "moved"):
            path = user.home / "workspaces" / "from" / "data" / name
            path.write_bytes(name.encode() * 100)
            path.chmod(0o444)
            os.chown(path, account.pw_uid, account.pw_gid)
        user.ok("workspace", "sync", "from")
        user.ok("create", "-n", "bucket", "-q", "-m", "64M", "--workspace", "to")
        user.sh("bucket", "mv /workspace/moved /workspace/other")
        user.ok("stop", "-q", "bucket")
        assert server.objects["pre/other"].data == b"moved" * 100 and "pre/moved" not in server.objects
        (user.home / "workspaces" / "to" / "data" / "object").chmod(0o4444)
        user.ok("workspace", "sync", "to")
        for name, text in (("object", b"object"), ("other", b"moved")):
            path = user.home / "workspaces" / "to" / "data" / name
            assert path.read_bytes() == text * 100 and path.stat().st_mode & 0o777 == 0o444
        user.ok("rm", "-q", "bucket")
    finally:
        server.close()
