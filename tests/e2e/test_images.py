"""Directories and archives as images: what is in them is what the guest sees, to the last bit."""
import gzip
import hashlib
import io
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tarfile
import time

import pytest

from conftest import wait_for

BUSYBOX = "/bin/busybox"
MTIME = 1234567890
BIG = random.Random(42).randbytes(3 << 20)

pytestmark = pytest.mark.skipif(not os.path.exists(BUSYBOX), reason="busybox-static is not installed")

XATTR_C = r"""
#include <stdio.h>
#include <sys/xattr.h>
int main(int argc, char **argv)
{
    char v[65536];
    for (int i = 2; i < argc; i++) {
        ssize_t n = lgetxattr(argv[1], argv[i], v, sizeof(v));
        printf("%s=", argv[i]);
        for (ssize_t j = 0; j < n; j++)
            printf("%02x", (unsigned char)v[j]);
        printf(n < 0 ? "none\n" : "\n");
    }
    return 0;
}
"""


def stderr(p):
    return p.stderr.decode(errors="replace")


@pytest.fixture(scope="module")
def xattr_tool(tmp_path_factory):
    """A static program that prints extended attributes: no shell tool of the guest does."""
    d = tmp_path_factory.mktemp("tool")
    (d / "x.c").write_text(XATTR_C)
    p = subprocess.run(["cc", "-static", "-O1", "-o", d / "x", d / "x.c"], capture_output=True)
    return d / "x" if p.returncode == 0 else None


class Tar:
    """Writes archives with any owner, mode or device, whoever runs the test."""

    def __init__(self, path, **kw):
        self.tar = tarfile.open(path, "w", **kw)

    def add(self, name, data=b"", mode=0o644, uid=0, gid=0, kind=tarfile.REGTYPE, link="", dev=(0, 0), pax=None):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid, info.mtime = kind, mode, uid, gid, MTIME
        info.linkname, info.devmajor, info.devminor = link, *dev
        info.pax_headers = pax or {}
        info.size = len(data) if kind == tarfile.REGTYPE else 0
        self.tar.addfile(info, io.BytesIO(data))
        return self

    def shell(self):
        self.add("bin", mode=0o755, kind=tarfile.DIRTYPE)
        self.add("bin/busybox", pathlib.Path(BUSYBOX).read_bytes(), mode=0o755)
        for name in ("sh", "ls", "cat", "stat", "readlink", "md5sum", "rm", "echo", "test", "mkdir"):
            self.add(f"bin/{name}", kind=tarfile.SYMTYPE, link="busybox", mode=0o777)
        return self

    def close(self):
        self.tar.close()


def odd_tar(path, xattr_tool):
    t = Tar(path, format=tarfile.PAX_FORMAT).shell()
    t.add("data", mode=0o755, kind=tarfile.DIRTYPE)
    t.add("data/owned", b"mine", mode=0o640, uid=1000, gid=2000)
    t.add("data/big-ids", b"x", mode=0o600, uid=4000000000, gid=3999999999)
    t.add("data/setuid", b"s", mode=0o4755)
    t.add("data/setgid", b"s", mode=0o2755, gid=50)
    t.add("data/none", b"n", mode=0o000)
    t.add("data/sticky", mode=0o1777, kind=tarfile.DIRTYPE)
    t.add("data/private", mode=0o700, uid=33, gid=33, kind=tarfile.DIRTYPE)
    t.add("data/hard", b"linked", mode=0o644)
    t.add("data/hard2", kind=tarfile.LNKTYPE, link="data/hard")
    t.add("data/soft", kind=tarfile.SYMTYPE, link="hard", mode=0o777)
    t.add("data/dangling", kind=tarfile.SYMTYPE, link="/no/such/" + "x" * 200, mode=0o777)
    t.add("data/null", kind=tarfile.CHRTYPE, dev=(1, 3), mode=0o666)
    t.add("data/loop", kind=tarfile.BLKTYPE, dev=(7, 5), mode=0o660, gid=6)
    t.add("data/fifo", kind=tarfile.FIFOTYPE, mode=0o644)
    t.add("data/empty")
    t.add("data/big", BIG)
    t.add("data/" + "n" * 255, b"long")
    t.add("data/ünïcödé 文字", b"named")
    t.add("data/new\nline", b"nl")
    t.add("data/xattrs", b"x", pax={"SCHILY.xattr.user.color": "green", "SCHILY.xattr.user.empty": ""})
    if xattr_tool:
        t.add("bin/x", xattr_tool.read_bytes(), mode=0o755)
    t.close()


def check_odd(msb, image, xattr_tool):
    msb.create("odd", image)

    def stat(path, fmt):
        return msb.ok("exec", "-q", "odd", "--", "/bin/busybox", "stat", "-c", fmt, path).strip()

    assert stat("/data/owned", "%u %g %a %s %Y") == f"1000 2000 640 4 {MTIME}"
    assert stat("/data/big-ids", "%u %g") == "4000000000 3999999999"
    assert stat("/data/setuid", "%a") == "4755"
    assert stat("/data/setgid", "%a %g") == "2755 50"
    assert stat("/data/none", "%a") == "0"
    assert stat("/data/sticky", "%a %F") == "1777 directory"
    assert stat("/data/private", "%a %u") == "700 33"
    assert stat("/data/hard", "%h") == "2"
    assert stat("/data/hard", "%i") == stat("/data/hard2", "%i")
    assert stat("/data/null", "%F %t %T %a") == "character special file 1 3 666"
    assert stat("/data/loop", "%F %t %T %g") == "block special file 7 5 6"
    assert stat("/data/fifo", "%F") == "fifo"
    assert stat("/data/empty", "%s %F").startswith("0 regular")

    def guest(script):
        return msb("exec", "-q", "odd", "--", "/bin/sh", "-c", script, check=0).stdout

    assert guest("readlink /data/soft; cat /data/soft") == b"hard\nlinked"
    assert guest("readlink /data/dangling").decode().strip() == "/no/such/" + "x" * 200
    assert guest("cat /data/n*n") == b"long"
    assert guest("cat '/data/ünïcödé 文字'") == b"named"
    assert guest('cat "/data/new\nline"') == b"nl"
    assert guest("md5sum < /data/big").split()[0].decode() == hashlib.md5(BIG).hexdigest()
    assert guest("echo gone > /data/null; stat -c %F /data/null") == b"character special file\n"
    if xattr_tool:
        out = guest("/bin/x /data/xattrs user.color user.empty user.other").decode()
        assert out == f"user.color={b'green'.hex()}\nuser.empty=\nuser.other=none\n"
    msb.ok("rm", "-f", "-q", "odd")


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_archive(msb, tmp_path, xattr_tool, how):
    tar = tmp_path / "odd.tar"
    odd_tar(tar, xattr_tool)
    image = tar
    if how == "gzip":
        image = tmp_path / "odd.tar.gz"
        image.write_bytes(gzip.compress(tar.read_bytes(), 1))
    elif how == "zstd":
        image = tmp_path / "odd.tar.zst"
        if not shutil.which("zstd"):
            pytest.skip("zstd is not installed")
        subprocess.run(["zstd", "-q", "-1", tar, "-o", image], check=True)
    check_odd(msb, image, xattr_tool)


def test_archive_is_told_by_its_content(msb, tmp_path):
    odd = tmp_path / "no-extension"
    Tar(odd).shell().close()
    assert msb.ok("run", "-q", odd, "--", "/bin/echo", "hi") == "hi\n"
    # A plain name that ends like an archive needs no ./
    Tar(tmp_path / "plain.tar").shell().close()
    assert msb.ok("run", "-q", "plain.tar", "--", "/bin/echo", "hi", cwd=tmp_path) == "hi\n"


def root_tree(path):
    """A directory to boot: a shell, and files with what this user may give them."""
    (path / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, path / "bin" / "busybox")
    for name in ("sh", "cat", "stat", "ls", "echo", "readlink"):
        (path / "bin" / name).symlink_to("busybox")
    (path / "d").mkdir(mode=0o755)
    (path / "d" / "f").write_text("content")
    os.link(path / "d" / "f", path / "d" / "g")
    (path / "d" / "s").symlink_to("f")
    (path / "d" / "f").chmod(0o4711)
    os.utime(path / "d" / "f", (MTIME, MTIME))
    os.mkfifo(path / "d" / "p")
    with open(path / "d" / "holes", "wb") as f:
        f.seek(5 << 20)
        f.write(b"end")
    return path


def test_directory(msb, tmp_path):
    root = root_tree(tmp_path / "root")
    os.setxattr(root / "d" / "f", "user.k", b"v")
    if os.geteuid() == 0:
        os.chown(root / "d" / "f", 1234, 5678)
        (root / "d" / "f").chmod(0o4711)
        os.mknod(root / "d" / "n", 0o600 | 0o020000, os.makedev(1, 5))
    msb.create("dir", root)
    out = msb.sh("dir", "stat -c '%a %h %s %Y' /d/f; cat /d/s; readlink /d/s; stat -c %F /d/p; stat -c %s /d/holes").stdout
    assert out.decode().splitlines() == [f"4711 2 7 {MTIME}", "contentf", "fifo", str((5 << 20) + 3)]
    if os.geteuid() == 0:
        out = msb.sh("dir", "stat -c '%u %g' /d/f; stat -c '%F %t %T' /d/n").stdout
        assert out == b"1234 5678\ncharacter special file 1 5\n"
    msb.ok("rm", "-f", "-q", "dir")


def test_relative_directory(msb, tmp_path):
    root_tree(tmp_path / "root")
    assert msb.ok("run", "-q", "./root", "--", "cat", "/d/f", cwd=tmp_path) == "content"
    p = msb("run", "-q", "root", "--", "cat", "/d/f", cwd=tmp_path)
    assert p.returncode == 1 and "write ./root" in stderr(p)


def test_changed_directory_is_a_new_image(msb, tmp_path):
    """A directory is read when a sandbox is created; one that exists keeps what it was made of."""
    root = root_tree(tmp_path / "root")
    msb.create("old", root)
    (root / "d" / "f").chmod(0o644)
    (root / "d" / "f").write_text("changed")
    msb.create("new", root)
    assert msb.sh("old", "cat /d/f").stdout == b"content"
    assert msb.sh("new", "cat /d/f").stdout == b"changed"
    msb.ok("restart", "-t", "0", "old", "-q")
    assert msb.sh("old", "cat /d/f").stdout == b"content"


def test_image_without_bash_gets_one(msb, tmp_path):
    """`bash -l -c` works in every image; a bash of the image's own comes first."""
    Tar(tmp_path / "bare.tar").shell().close()
    msb.create("bare", tmp_path / "bare.tar")
    p = msb("exec", "-q", "bare", "--", "bash", "-l", "-c", "echo $BASH; [[ a == a ]] && echo ${BASH_VERSION%%.*}")
    assert p.returncode == 0, p.stderr
    path, version = p.stdout.decode().split()
    assert path == "/.msb/bin/bash" and int(version) >= 5
    assert msb.ok("exec", "-q", "bare", "--", "/.msb/bin/busybox", "echo", "tool") == "tool\n"
    own = Tar(tmp_path / "own.tar").shell()
    own.add("bin/bash", b"#!/bin/sh\necho own bash\n", mode=0o755)
    own.close()
    assert msb.ok("run", "-q", tmp_path / "own.tar", "--", "bash", "-l", "-c", "true") == "own bash\n"


def test_image_without_anything(msb, tmp_path):
    """Even an image of one empty file boots; its commands come from /.msb/bin."""
    t = Tar(tmp_path / "nothing.tar")
    t.add("readme", b"empty")
    t.close()
    assert msb.ok("run", "-q", tmp_path / "nothing.tar", "--", "bash", "-c", "cat /readme") == "empty"


def test_image_is_shared_and_never_written(msb, tmp_path):
    """Writes, deletions and renames go to each sandbox's own layer."""
    Tar(tmp_path / "i.tar").shell().add("f", b"original").close()
    msb.create("one", tmp_path / "i.tar")
    msb.create("two", tmp_path / "i.tar")
    assert msb.sh("one", "echo new > /f; rm /bin/ls; mkdir /bin/x; echo $?").stdout == b"0\n"
    assert msb.sh("two", "cat /f; ls /bin/ls").stdout == b"original/bin/ls\n"
    assert msb.sh("one", "cat /f; ls / 2>&1 | head -1").stdout.startswith(b"new\n")
    msb.ok("rm", "-f", "-q", "one", "two")
    assert msb.ok("run", "-q", tmp_path / "i.tar", "--", "/bin/cat", "/f") == "original"


def test_image_file_may_go_while_sandboxes_stay(msb, tmp_path):
    """A sandbox boots from the cache, not from the file that it was made of."""
    Tar(tmp_path / "i.tar").shell().add("f", b"original").close()
    msb.create("i", tmp_path / "i.tar")
    (tmp_path / "i.tar").unlink()
    msb.ok("restart", "-t", "0", "i", "-q")
    assert msb.sh("i", "cat /f").stdout == b"original"


# --- errors --------------------------------------------------------------------------------------


def refused(msb, image, *expected):
    p = msb("create", "-n", "bad", "--pull", "never", image)
    assert p.returncode == 1
    lines = stderr(p).splitlines()
    assert lines[0].startswith("error: ") and all(line.startswith("  → ") for line in lines[1:])
    for text in expected:
        assert text in stderr(p), stderr(p)
    assert msb.leftovers() == [] and not msb.processes()


def test_missing_path(msb, tmp_path):
    refused(msb, tmp_path / "none", "image not found: ", "no directory or tar archive")


def test_unknown_reference(msb):
    refused(msb, "alpine:3.19", "image not found: alpine:3.19", "msb pull alpine:3.19")
    refused(msb, "", "image")


def test_not_a_tar(msb, tmp_path):
    (tmp_path / "text").write_text("hello\n" * 1000)
    refused(msb, tmp_path / "text", "is not a tar archive", "gzip or zstd")


def test_empty_file(msb, tmp_path):
    (tmp_path / "empty.tar").touch()
    refused(msb, tmp_path / "empty.tar", "is empty")


def test_empty_archive(msb, tmp_path):
    Tar(tmp_path / "none.tar").close()
    refused(msb, tmp_path / "none.tar", "is empty")


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_cut_archive(msb, tmp_path, how):
    """An archive that ends too early is damaged, never half an image."""
    Tar(tmp_path / "i.tar").shell().add("f", BIG).close()
    data = (tmp_path / "i.tar").read_bytes()
    if how == "gzip":
        data = gzip.compress(data, 1)
    elif how == "zstd":
        if not shutil.which("zstd"):
            pytest.skip("zstd is not installed")
        data = subprocess.run(["zstd", "-q", "-1", "-c"], input=data, capture_output=True, check=True).stdout
    (tmp_path / "cut.tar").write_bytes(data[: len(data) * 2 // 3])
    refused(msb, tmp_path / "cut.tar", "damaged")


def test_permission_denied(msb, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    root = root_tree(tmp_path / "root")
    (root / "d" / "f").chmod(0)
    refused(msb, root, "cannot read", "Permission denied", "make it readable")


def test_other_kinds_of_file(msb, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    refused(msb, tmp_path / "fifo", "neither a directory nor a file")
    refused(msb, "/dev/null", "neither a directory nor a file")


@pytest.mark.parametrize("name", ["../escape", "/abs/../../escape", "a/../../escape"])
def test_paths_cannot_escape(msb, tmp_path, name):
    """An entry's path ends up inside the image or nowhere."""
    Tar(tmp_path / "i.tar").shell().add(name, b"out").close()
    p = msb("run", "-q", tmp_path / "i.tar", "--", "/bin/ls", "/")
    assert not (tmp_path / "escape").exists() and not pathlib.Path("/escape").exists()
    assert p.returncode in (0, 1)
    if p.returncode == 1:
        assert stderr(p).startswith("error: ")


# --- the cache -----------------------------------------------------------------------------------


def test_killed_conversion_leaves_nothing(tmp_path):
    """Killed while it converts, msb leaves no part of an image in the cache."""
    from conftest import Msb, make_home, tear_down

    m = Msb(make_home(tmp_path))
    Tar(tmp_path / "big.tar").shell().add("f", BIG * 8).close()
    for delay in (0.005, 0.01, 0.02, 0.03, 0.05, 0.08):
        p = m.popen("create", "-n", "k", "-q", tmp_path / "big.tar", stderr=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.wait()
        wait_for(lambda: not m.processes() or m("ls", "-q").stdout)
        m("rm", "-f", "-q", "k")
    m.create("k", tmp_path / "big.tar")
    assert m.sh("k", "md5sum < /f").stdout.split()[0].decode() == hashlib.md5(BIG * 8).hexdigest()
    tear_down(m)
    files = [p for p in (tmp_path / "home" / "cache").rglob("*") if p.is_file()]
    assert len([p for p in files if p.stat().st_size > len(BIG)]) == 1, files


def test_concurrent_conversions(msb, tmp_path):
    """Many sandboxes of one new image at once: converted once or more, never wrongly."""
    Tar(tmp_path / "i.tar").shell().add("f", BIG).close()
    ps = [msb.popen("create", "-n", f"c{i}", "-q", "-m", "64M", tmp_path / "i.tar") for i in range(5)]
    assert [p.wait(timeout=60) for p in ps] == [0] * 5
    for i in range(5):
        out = msb.sh(f"c{i}", "md5sum < /f").stdout
        assert out.split()[0].decode() == hashlib.md5(BIG).hexdigest()
