"""msb cp: docker's rules, modes and times, archives, stopped sandboxes, and guests that lie."""
import hashlib
import io
import os
import pathlib
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tarfile
import threading
import time

import pytest

import filesproto as fp
from conftest import wait_for
from filesproto import entry, frame

S_DIR, S_REG, S_LNK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK


def cp(msb, *args, code=0, **kw):
    return msb("cp", "-q", *args, check=code, **kw).stderr.decode()


def listing(root):
    """Everything below a host directory: type, permissions, content or target, mtime of files."""
    out = {}
    for p in sorted(pathlib.Path(root).rglob("*")):
        st = p.lstat()
        what = (os.readlink(p) if p.is_symlink() else None if p.is_dir() else
                hashlib.sha256(p.read_bytes()).hexdigest())
        mtime = st.st_mtime_ns if stat.S_ISREG(st.st_mode) else None
        mode = None if p.is_symlink() else stat.S_IMODE(st.st_mode)
        out[str(p.relative_to(root))] = (stat.S_IFMT(st.st_mode), mode, what, mtime)
    return out


@pytest.fixture
def tree(tmp_path):
    t = tmp_path / "tree"
    (t / "sub" / "deep").mkdir(parents=True)
    (t / "hello.txt").write_text("hello\n")
    (t / "sub" / "empty").touch()
    (t / "sub" / "deep" / "big").write_bytes(os.urandom(400_000))
    (t / "sub" / "run.sh").write_text("#!/bin/sh\n")
    os.chmod(t / "sub" / "run.sh", 0o751)
    os.chmod(t / "sub" / "deep", 0o500)
    os.symlink("../hello.txt", t / "sub" / "link")
    os.symlink("/nowhere", t / "dangling")
    (t / "näme with\nspaces").write_text("x")
    for i, p in enumerate(sorted(t.rglob("*"))):
        os.utime(p, ns=(0, 1_600_000_000_123_456_789 + i * 10**9), follow_symlinks=False)
    return t


def test_round_trip(box, tree, tmp_path):
    msb, name = box
    cp(msb, tree, f"{name}:/root/rt")
    cp(msb, f"{name}:/root/rt", tmp_path / "back")
    assert listing(tmp_path / "back") == listing(tree)
    assert os.stat(tmp_path / "back/sub").st_mtime_ns == os.stat(tree / "sub").st_mtime_ns
    out = msb.sh(name, "stat -c '%a %u %g %Y' /root/rt/sub/run.sh").stdout.split()
    assert out[:3] == [b"751", b"0", b"0"] and int(out[3]) == int(
        os.stat(tree / "sub/run.sh").st_mtime)
    # Over itself: files are replaced, nothing is added.
    cp(msb, f"{tree}/.", f"{name}:/root/rt")
    os.chmod(tmp_path / "back/sub/deep", 0o700)  # else only root may write there; it is kept as it is
    cp(msb, f"{name}:/root/rt/.", tmp_path / "back")
    os.chmod(tmp_path / "back/sub/deep", 0o500)
    assert listing(tmp_path / "back") == listing(tree)


# --- where it goes ---------------------------------------------------------------------------


@pytest.fixture
def places(box, tmp_path):
    """The same few things on the host and in the sandbox; each test gets fresh ones."""
    msb, name = box
    for d in ("src", "dst"):
        (tmp_path / d / "dir" / "in").mkdir(parents=True)
        (tmp_path / d / "dir" / "f").write_text(f"{d}\n")
        (tmp_path / d / "file").write_text(f"{d}\n")
    msb.sh(name, "rm -rf /p", check=0)
    cp(msb, tmp_path, f"{name}:/p")
    return tmp_path


CASES = [
    # what, where to, and what is then there
    ("src/file", "dst/new", {"dst/new": "src"}),
    ("src/file", "dst/file", {"dst/file": "src"}),
    ("src/file", "dst/dir", {"dst/dir/file": "src", "dst/dir/f": "dst"}),
    ("src/file", "dst/dir/", {"dst/dir/file": "src"}),
    ("src/dir", "dst/new", {"dst/new/f": "src"}),
    ("src/dir/", "dst/new", {"dst/new/f": "src"}),
    ("src/dir/.", "dst/new", {"dst/new/f": "src"}),
    ("src/dir", "dst/new/", {"dst/new/f": "src"}),
    ("src/dir", "dst/dir", {"dst/dir/dir/f": "src", "dst/dir/f": "dst"}),
    ("src/dir/", "dst/dir", {"dst/dir/dir/f": "src", "dst/dir/f": "dst"}),
    ("src/dir/.", "dst/dir", {"dst/dir/f": "src"}),
    ("src/dir", "dst/file", "cannot copy a directory over"),
    ("src/file", "dst/none/", "there is no directory"),
    ("src/file", "dst/none/x", "No such file or directory"),
    ("src/dir", "dst/none/x", "No such file or directory"),
    ("src/file", "dst/file/", "is not a directory"),
    ("src/file/", "dst/new", "ot a directory"),
    ("src/none", "dst/new", "No such file or directory"),
]


@pytest.mark.parametrize("direction", ["in", "out", "across"])
def test_places(box, places, direction):
    msb, name = box
    for i, (src, dst, want) in enumerate(CASES):
        work = places / f"w{i}"
        guest = f"/p/w{i}"
        if direction == "out":
            shutil.copytree(places / "dst", work / "dst")
            args = f"{name}:/p/{src}", f"{work}/{dst}"
        else:
            msb.sh(name, f"mkdir {guest} && cp -r /p/dst {guest}", check=0)
            args = (f"{places}/{src}" if direction == "in" else f"{name}:/p/{src}"), (
                f"{name}:{guest}/{dst}")
        p = msb("cp", *args)
        if isinstance(want, str):
            assert p.returncode == 1 and want in p.stderr.decode(), (src, dst, p)
            assert p.stderr.startswith(b"error: ") and len(p.stderr.splitlines()) <= 2
            continue
        assert p.returncode == 0, (src, dst, p.stderr)
        for path, text in want.items():
            got = ((work / path).read_text() if direction == "out" else
                   msb.sh(name, f"cat {guest}/{path}").stdout.decode())
            assert got == text + "\n", (src, dst, path)


def test_links(box, tmp_path):
    msb, name = box
    msb.sh(name, "mkdir -p /ln/d; echo x > /ln/d/f; ln -s d /ln/to-d; ln -s d/f /ln/to-f", check=0)
    cp(msb, f"{name}:/ln/to-f", tmp_path / "a")
    assert os.readlink(tmp_path / "a") == "d/f"
    cp(msb, "-L", f"{name}:/ln/to-f", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x\n" and not (tmp_path / "b").is_symlink()
    cp(msb, f"{name}:/ln/to-d/", tmp_path / "c")
    assert (tmp_path / "c/f").read_text() == "x\n"
    # A destination that is a link stands for what it points to.
    (tmp_path / "real").write_text("old")
    os.symlink("real", tmp_path / "alias")
    cp(msb, f"{name}:/ln/d/f", tmp_path / "alias")
    assert (tmp_path / "real").read_text() == "x\n" and (tmp_path / "alias").is_symlink()
    cp(msb, tmp_path / "real", f"{name}:/ln/to-f")
    assert msb.sh(name, "test -L /ln/to-f && cat /ln/d/f").stdout == b"x\n"
    cp(msb, tmp_path / "real", f"{name}:/ln/to-d")
    assert msb.sh(name, "cat /ln/d/real").stdout == b"x\n"


def test_owners(box, tmp_path):
    msb, name = box
    (tmp_path / "f").write_text("x")
    msb.sh(name, "mkdir /own; echo x > /own/g; chown 12:34 /own/g; chmod 6755 /own/g", check=0)
    cp(msb, f"{name}:/own/g", tmp_path / "g")
    st = os.stat(tmp_path / "g")
    assert (st.st_uid, st.st_gid) == (os.geteuid(), os.getegid())
    assert stat.S_IMODE(st.st_mode) == 0o755, "no setuid on the host"
    if os.geteuid() == 0:
        os.chown(tmp_path / "f", 21, 43)
        cp(msb, tmp_path / "f", f"{name}:/own/plain")
        cp(msb, "-a", tmp_path / "f", f"{name}:/own/kept")
        out = msb.sh(name, "stat -c '%u:%g' /own/plain /own/kept").stdout.split()
        assert out == [b"0:0", b"21:43"]
        cp(msb, "-a", f"{name}:/own/g", tmp_path / "h")
        assert os.stat(tmp_path / "h").st_uid == 12
        assert stat.S_IMODE(os.stat(tmp_path / "h").st_mode) == 0o755


def test_special_files_are_skipped(box, tmp_path):
    msb, name = box
    msb.sh(name, "mkdir /sp; mkfifo /sp/fifo; mknod /sp/null c 1 3; echo x > /sp/f", check=0)
    p = msb("cp", f"{name}:/sp", tmp_path / "out", check=0)
    assert os.listdir(tmp_path / "out") == ["f"]
    assert p.stderr.count(b"skipped") == 2
    assert "neither a file" in cp(msb, f"{name}:/sp/fifo", tmp_path / "x", code=1)
    os.mkfifo(tmp_path / "out/fifo")
    assert b"skipped" in msb("cp", tmp_path / "out", f"{name}:/sp/in", check=0).stderr


def test_usage(msb, tmp_path):
    def refused(*args, code=2):
        lines = msb("cp", *args, check=code).stderr.decode().splitlines()
        assert lines[0].startswith("error: "), lines
        return lines[0]

    assert "requires at least one sandbox endpoint (SANDBOX:/path)" in refused("a", "b")
    assert "ambiguous copy endpoint `a:b`" in refused("a:b", "c")
    assert "ambiguous copy endpoint `:/x`" in refused(":/x", "c")
    assert "<DST>" in refused("a")
    assert "<SRC> <DST>" in refused()
    assert "unexpected" in refused("a", "b", "c")
    assert "sandbox not found: no" in refused("no:/x", tmp_path / "y", code=1)
    assert "requires at least one sandbox" in refused("./a:/b", "c")
    assert msb.leftovers() == []


# --- archives --------------------------------------------------------------------------------


def test_tar_out(box, tree, tmp_path):
    msb, name = box
    cp(msb, tree, f"{name}:/tarred")
    data = msb("cp", "-q", f"{name}:/tarred", "-", check=0).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        assert {m.name.split("/")[0] for m in t} == {"tarred"}
        t.extractall(tmp_path / "x")
    want = {k: v[:3] for k, v in listing(tree).items()}
    assert {k: v[:3] for k, v in listing(tmp_path / "x/tarred").items()} == want
    data = msb("cp", "-q", f"{name}:/tarred/.", "-", check=0).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        assert "./hello.txt" in t.getnames() or "hello.txt" in t.getnames()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_in(box, tree, tmp_path, form):
    msb, name = box
    b = io.BytesIO()
    long = "long/" + "d" * 120 + "/" + "n" * 200
    with tarfile.open(fileobj=b, mode="w", format=form) as t:
        t.add(tree, "t")
        info = tarfile.TarInfo(long)
        info.size = 5
        t.addfile(info, io.BytesIO(b"12345"))
        info = tarfile.TarInfo("t/hard")
        info.type, info.linkname = tarfile.LNKTYPE, "t/hello.txt"
        t.addfile(info)
    msb.sh(name, "rm -rf /in; mkdir /in", check=0)
    cp(msb, "-", f"{name}:/in", input=b.getvalue())
    assert msb.sh(name, f"cat /in/{long}").stdout == b"12345"
    assert msb.sh(name, "cat /in/t/hard; stat -c %h /in/t/hello.txt").stdout == b"hello\n2\n"
    msb.sh(name, "rm /in/t/hard", check=0)
    cp(msb, f"{name}:/in/t", tmp_path / "back")
    assert {k: v[:3] for k, v in listing(tmp_path / "back").items()} == {
        k: v[:3] for k, v in listing(tree).items()}


def tar_of(*members):
    b = io.BytesIO()
    with tarfile.open(fileobj=b, mode="w") as t:
        for info, data in members:
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return b.getvalue()


def member(name, type=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, link
    return info


def test_bad_archives(box):
    msb, name = box
    msb.sh(name, "rm -rf /bad /out; mkdir /bad /out; echo keep > /out/f", check=0)
    dest = f"{name}:/bad"

    def refused(data, code=1):
        text = cp(msb, "-", dest, input=data, code=code)
        assert text.startswith("error: "), text
        return text

    assert "empty" in refused(b"")
    assert "not a tar" in refused(b"\x1f\x8b" + os.urandom(2000))
    good = tar_of((member("a"), b"x" * 3000))
    assert "truncated" in refused(good[:1500])
    assert "unsafe path" in refused(tar_of((member("../out/f"), b"evil")))
    assert "unsafe path" in refused(tar_of((member("a/../../out/f"), b"evil")))
    # Through a link that the archive itself brought.
    refused(tar_of((member("l", tarfile.SYMTYPE, "/out"), b""), (member("l/f"), b"evil")))
    refused(tar_of((member("h", tarfile.LNKTYPE, "../out/f"), b"")))
    refused(tar_of((member("l2", tarfile.SYMTYPE, "/out"), b""),
                   (member("h", tarfile.LNKTYPE, "l2/f"), b"")))
    cp(msb, "-", dest, input=tar_of((member("/abs"), b"in"), (member("f", tarfile.FIFOTYPE), b"")))
    assert msb.sh(name, "cat /out/f /bad/abs; ls /out").stdout == b"keep\ninf\n"
    assert "is not a directory" in cp(msb, "-", f"{name}:/out/f", input=good, code=1)


# --- sizes, sandboxes that stop --------------------------------------------------------------


def test_300_megabytes(box, tmp_path):
    msb, name = box
    big = tmp_path / "big"
    block = os.urandom(1 << 20)
    with open(big, "wb") as f:
        for i in range(300):
            f.write(block[i:] + block[:i])
    want = hashlib.sha256(big.read_bytes()).hexdigest()
    cp(msb, big, f"{name}:/big", timeout=120)
    assert msb.sh(name, "stat -c %s /big").stdout.strip() == str(300 << 20).encode()
    # On a terminal it shows how far it is, and wipes that.
    ours, theirs = os.openpty()
    p = msb.popen("cp", f"{name}:/big", tmp_path / "back", stderr=theirs)
    os.close(theirs)
    shown = b""
    with open(ours, "rb", buffering=0) as tty:
        try:
            while data := tty.read(4096):
                shown += data
        except OSError:  # the other end is gone
            pass
    assert p.wait(timeout=120) == 0
    assert b"Copying" in shown and b"Copied" in shown.rsplit(b"\x1b[K", 1)[1], shown[-300:]
    assert hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest() == want
    msb.sh(name, "rm /big", check=0)


def test_5000_files(box, tmp_path):
    msb, name = box
    for i in range(50):
        d = tmp_path / "many" / f"d{i}"
        d.mkdir(parents=True)
        for j in range(100):
            (d / f"f{j}").write_text(f"{i} {j}\n" * (j % 7))
    cp(msb, tmp_path / "many", f"{name}:/many", timeout=120)
    assert msb.sh(name, "find /many -type f | wc -l").stdout.strip() == b"5000"
    cp(msb, f"{name}:/many", tmp_path / "back", timeout=120)
    assert listing(tmp_path / "back") == listing(tmp_path / "many")
    msb.sh(name, "rm -r /many", check=0)


def test_stopped_sandbox(msb, tmp_path):
    msb.create("box")
    msb.create("other")
    msb.ok("stop", "-q", "box")
    (tmp_path / "f").write_text("kept\n")
    cp(msb, tmp_path / "f", "box:/root/f")
    assert msb.status("box") == "Stopped"
    cp(msb, "box:/root/f", "other:/root/g")
    assert msb.status("box") == "Stopped" and msb.status("other") == "Running"
    assert msb.sh("other", "cat /root/g").stdout == b"kept\n"
    assert "No such file" in cp(msb, "box:/none", tmp_path / "x", code=1)
    assert msb.status("box") == "Stopped"


def test_one_that_is_killed_leaves_nothing_half(box, tmp_path):
    msb, name = box
    msb.sh(name, "head -c 200000000 /dev/zero > /huge; mkdir -p /half", check=0)
    out = tmp_path / "out"
    out.mkdir()
    (out / "huge").write_text("old")
    p = msb.popen("cp", "-q", f"{name}:/huge", out / "huge")
    wait_for(lambda: p.poll() is not None or _bytes(p.pid, "wchar") > 1 << 20, timeout=20)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert os.listdir(out) == ["huge"] and (out / "huge").read_text() == "old"
    # The other way: the sandbox removes what it has of it.
    with open(tmp_path / "zeros", "wb") as f:
        f.truncate(1 << 30)
    p = msb.popen("cp", "-q", tmp_path / "zeros", f"{name}:/half/zeros")
    wait_for(lambda: p.poll() is not None or _bytes(p.pid, "rchar") > 1 << 22, timeout=20)
    p.send_signal(signal.SIGKILL)
    assert p.wait() == -signal.SIGKILL
    wait_for(lambda: msb.sh(name, "ls -A /half").stdout == b"", timeout=20)
    msb.sh(name, "rm /huge", check=0)


def _bytes(pid, which):
    try:
        text = pathlib.Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    return int(text.split(f"{which}: ")[1].split()[0])


def test_disk_full(msb, tmp_path):
    msb.create("box", "--root-disk", "tmpfs:16M")
    with open(tmp_path / "big", "wb") as f:
        f.write(os.urandom(40 << 20))
    assert "No space left" in cp(msb, tmp_path / "big", "box:/big", code=1)
    assert msb.sh("box", "ls -A / | grep -c '^big\\|^.msb-'").stdout == b"0\n"
    # One that cannot be written here.
    msb.sh("box", "mkdir /d; echo x > /d/f", check=0)
    (tmp_path / "file").write_text("x")
    assert "ot a directory" in cp(msb, "box:/d", tmp_path / "file/x", code=1)


# --- guests that lie -------------------------------------------------------------------------


class Impostor(threading.Thread):
    """Sits on the sandbox's socket and answers as it was told to."""

    def __init__(self, path, stat_answer, frames, pause=0):
        super().__init__(daemon=True)
        self.stat_answer, self.frames, self.pause = stat_answer, frames, pause
        self.real = path.with_name("real.sock")
        os.rename(path, self.real)
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen(4)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.sock.close()
        os.unlink(self.path)
        os.rename(self.real, self.path)

    def run(self):
        while True:
            try:
                c, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        f = fp.Files.__new__(fp.Files)
        f.sock, f.buf = c, bytearray()
        c.settimeout(30)
        try:
            while True:
                kind, payload = f.next()
                if kind != fp.OP:
                    continue
                q = fp.fields(payload)
                if q[fp.F_OP] == fp.STAT:
                    root = q[fp.F_PATH] == "/"
                    c.sendall(frame(fp.OK, fp.field(fp.F_MODE, S_DIR | 0o755) if root
                                    else self.stat_answer))
                else:
                    for data in self.frames:
                        c.sendall(data)
                    time.sleep(self.pause)
        except (OSError, ConnectionError):
            c.close()


DIR = entry("x", S_DIR | 0o755)
LEAVE, OK = frame(fp.LEAVE), frame(fp.OK)
PROTOCOL = "broke the protocol"

LIES = {
    "dotdot": ([DIR, entry("..", S_DIR), entry("evil", S_REG, b"x")], PROTOCOL),
    "path": ([DIR, entry("../evil", S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "absolute": ([DIR, entry("/evil", S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "slash": ([DIR, entry("a/b", S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "dot": ([DIR, entry(".", S_DIR), LEAVE, LEAVE, OK], PROTOCOL),
    "no name": ([DIR, entry("", S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "nul": ([DIR, entry("a\0b", S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "long name": ([DIR, entry("n" * 256, S_REG, b"x"), LEAVE, OK], PROTOCOL),
    "through a link": ([DIR, entry("l", S_LNK, target="{outside}"), entry("l", S_DIR),
                        entry("evil", S_REG, b"x"), LEAVE, LEAVE, OK], "ot a directory"),
    "leaves twice": ([DIR, LEAVE, LEAVE, entry("evil", S_REG, b"x"), OK], PROTOCOL),
    "second tree": ([DIR, LEAVE, entry("evil", S_REG, b"x"), OK], PROTOCOL),
    "data first": ([frame(fp.DATA, b"x"), OK], PROTOCOL),
    "data in a directory": ([DIR, frame(fp.DATA, b"x"), LEAVE, OK], PROTOCOL),
    "too much data": ([DIR, entry("f", S_REG, b"xxx", size=2), LEAVE, OK], PROTOCOL),
    "never left": ([DIR, OK], PROTOCOL),
    "nothing": ([OK], "disappeared before"),
    "link without a target": ([DIR, entry("l", S_LNK), LEAVE, OK], PROTOCOL),
    "no mode": ([DIR, entry("f", None, b""), LEAVE, OK], PROTOCOL),
    "huge size": ([DIR, entry("f", S_REG, size=-1), LEAVE, OK], PROTOCOL),
    "too deep": ([DIR] + [entry("d", S_DIR | 0o755)] * 300, PROTOCOL),
    "huge frame": ([struct.pack("<IHH", 1 << 30, fp.ENTRY, 0)], PROTOCOL),
    "noise": ([frame(fp.ENTRY, b"\x01\x02\x03")], PROTOCOL),
    "error": ([frame(fp.ERR, fp.field(fp.F_ERRNO, 13) + fp.field(fp.F_TEXT, "\x1b[2Jno\n\r"))],
              "?[2Jno"),
    "error 0": ([frame(fp.ERR, fp.field(fp.F_ERRNO, 0))], "refused"),
}


@pytest.fixture
def stage(box, tmp_path):
    msb, name = box
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    (tmp_path / "dest").mkdir()
    return msb, name, msb.home / "sandboxes" / name / "run" / "agent.sock", tmp_path


def outside_is_untouched(tmp_path):
    assert os.listdir(tmp_path / "outside") == ["file"]
    assert (tmp_path / "outside/file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["dest", "outside"]


@pytest.mark.parametrize("lie", LIES)
def test_lies(stage, lie):
    msb, name, sock, tmp = stage
    frames, want = LIES[lie]
    frames = [f.replace(b"{outside}", str(tmp / "outside").encode()) for f in frames]
    if lie == "through a link":
        frames[1] = entry("l", S_LNK, target=str(tmp / "outside"))
    with Impostor(sock, fp.field(fp.F_MODE, S_DIR | 0o755), frames):
        text = cp(msb, f"{name}:/x", tmp / "dest", code=1, timeout=20)
    assert want in text and text.startswith("error: ") and "\x1b" not in text, text
    outside_is_untouched(tmp)
    found = [p.name for p in (tmp / "dest").rglob("*")]
    assert "evil" not in found and not [n for n in found if n.startswith(".msb")]


def test_names_and_modes_of_a_liar(stage):
    """What it may say, and what it does not get by it."""
    msb, name, sock, tmp = stage
    link = entry("f", S_LNK, target=str(tmp / "outside/file"))
    frames = [
        entry("somewhere else", S_DIR | 0o7777),
        link, entry("f", S_REG | 0o6777, b"its own"),  # takes the link's place
        entry("f2", S_REG | 0o6777, b"x"), entry("f2", S_LNK, target="a/../../.."),
        entry("null", stat.S_IFCHR | 0o666), entry("sock", stat.S_IFSOCK | 0o666),
        entry("d", S_DIR | 0o4777), LEAVE, entry("d", S_DIR | 0o700), LEAVE,
        entry("\x1b[31mred\n", S_REG | 0o644, b""), LEAVE, OK]
    with Impostor(sock, fp.field(fp.F_MODE, S_DIR | 0o755), frames):
        cp(msb, f"{name}:/x", tmp / "dest", timeout=20)
    outside_is_untouched(tmp)
    d = tmp / "dest/x"
    assert sorted(os.listdir(tmp / "dest")) == ["x"], "its name is ours to choose"
    assert set(os.listdir(d)) == {"f", "f2", "d", "\x1b[31mred\n"}
    assert stat.S_IMODE(d.stat().st_mode) == 0o777
    assert stat.S_IMODE((d / "d").stat().st_mode) == 0o777
    assert (d / "f").read_text() == "its own" and not (d / "f").is_symlink()
    assert stat.S_IMODE((d / "f").stat().st_mode) == 0o777
    assert os.readlink(d / "f2") == "a/../../.."


def test_a_file_that_turns_out_to_be_a_directory(stage):
    msb, name, sock, tmp = stage
    (tmp / "dest/file").write_text("mine")
    with Impostor(sock, fp.field(fp.F_MODE, S_REG | 0o644), [DIR, LEAVE, OK]):
        assert "ot a directory" in cp(msb, f"{name}:/x", tmp / "dest/file", code=1, timeout=20)
    with Impostor(sock, fp.field(fp.F_MODE, S_DIR | 0o755), [entry("x", S_REG, b"y"), OK]):
        assert "directory" in cp(msb, f"{name}:/x/.", tmp / "dest", code=1, timeout=20)
    assert (tmp / "dest/file").read_text() == "mine"
    outside_is_untouched(tmp)


def test_half_a_file_from_a_liar(stage):
    msb, name, sock, tmp = stage
    (tmp / "dest/file").write_text("old")
    frames = [entry("x", S_REG | 0o644, size=100), frame(fp.DATA, b"half"), frame(fp.ERR, b"")]
    with Impostor(sock, fp.field(fp.F_MODE, S_REG | 0o644), frames):
        cp(msb, f"{name}:/x", tmp / "dest/file", code=1, timeout=20)
    assert (tmp / "dest/file").read_text() == "old" and os.listdir(tmp / "dest") == ["file"]


def test_one_that_answers_too_early(stage):
    msb, name, sock, tmp = stage
    (tmp / "dest/big").write_bytes(b"x" * (8 << 20))
    err = frame(fp.ERR, fp.field(fp.F_ERRNO, 28) + fp.field(fp.F_TEXT, "full"))
    for frames, want in (([err], "full"), ([OK], PROTOCOL), ([b"\xff" * 64], PROTOCOL)):
        # More than fits into the socket while nobody reads: the answer has come before the end is sent.
        with Impostor(sock, fp.field(fp.F_MODE, S_DIR | 0o755), frames, pause=0.3):
            assert want in cp(msb, tmp / "dest/big", f"{name}:/x", code=1, timeout=20)


def test_a_guest_that_moves_things_meanwhile(box, tmp_path):
    msb, name = box
    (tmp_path / "outside").mkdir()
    msb.sh(name, f"mkdir -p /mv/a/b {tmp_path}/outside; echo x > /mv/a/b/f; echo evil > "
                 f"{tmp_path}/outside/f", check=0)
    loop = f"""cd /mv; while [ ! -e /mv/stop ]; do
        mv a z; ln -s {tmp_path}/outside a; rm a; mv z a
        mv a/b a/c; ln -s {tmp_path}/outside a/b; rm a/b; mv a/c a/b; done"""
    p = msb.popen("exec", "-q", name, "--", "sh", "-c", loop, stdin=subprocess.DEVNULL)
    try:
        for i in range(10):
            msb("cp", "-q", f"{name}:/mv", tmp_path / f"out{i}", timeout=20)
            msb("cp", "-q", tmp_path / f"out{i}", f"{name}:/mv/a/in", timeout=20)
    finally:
        msb.sh(name, "touch /mv/stop")
        p.wait(timeout=20)
    assert os.listdir(tmp_path / "outside") == []
    for i in range(10):
        for f in (tmp_path / f"out{i}").rglob("f"):
            assert f.read_text() == "x\n", "a file from elsewhere"
