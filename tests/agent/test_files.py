"""Drives the agent's file service over a unix socket, on the host's own file system."""
import errno
import os
import pathlib
import stat
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import filesproto as fp  # noqa: E402
from filesproto import Files, entry, frame  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the agent becomes the user of each stream, which takes root")

S_DIR, S_REG, S_LNK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    sock = tmp_path_factory.mktemp("agent") / "sock"
    p = subprocess.Popen([os.environ["AGENT_SERVE"], sock], stdin=subprocess.PIPE)
    end = time.monotonic() + 20
    while True:
        try:
            Files(sock).sock.close()
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.005)
    yield sock
    p.stdin.close()
    assert p.wait(timeout=20) == 0


@pytest.fixture
def files(server):
    with Files(server, cwd="/") as f:
        yield f


def fails(code, fn, *args, **kw):
    with pytest.raises(fp.FileError) as e:
        fn(*args, **kw)
    assert e.value.errno == code, e.value
    assert e.value.strerror
    return e.value.strerror


def test_write_read(files, tmp_path):
    data = os.urandom(300_000)
    a = files.write(f"{tmp_path}/a", data, mode=0o640, mtime=1234567890123456789)
    assert a[fp.F_SIZE] == len(data) and a[fp.F_MODE] == S_REG | 0o640
    assert (tmp_path / "a").read_bytes() == data
    assert os.stat(tmp_path / "a").st_mtime_ns == 1234567890123456789
    assert files.read(f"{tmp_path}/a") == data
    assert files.read(f"{tmp_path}/a", offset=1000, length=70_000) == data[1000:71_000]
    assert files.read(f"{tmp_path}/a", offset=299_999) == data[-1:]
    assert files.read(f"{tmp_path}/a", offset=400_000) == b""
    files.write(f"{tmp_path}/a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o640
    files.write(f"{tmp_path}/a", b"er", flags=fp.APPEND)
    files.write(f"{tmp_path}/a", b"X", offset=1)
    assert (tmp_path / "a").read_bytes() == b"sXorter"
    fails(errno.EEXIST, files.write, f"{tmp_path}/a", b"", flags=fp.EXCL)
    fails(errno.ENOENT, files.write, f"{tmp_path}/x/y/z", b"deep")
    files.write(f"{tmp_path}/x/y/z", b"deep", flags=fp.PARENTS)
    assert files.read(f"{tmp_path}/x/y/z") == b"deep"
    files.write(f"{tmp_path}/empty", b"")
    assert files.read(f"{tmp_path}/empty") == b""


def test_atomic(files, server, tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    os.chown(tmp_path / "real", 12, 34)
    os.chmod(tmp_path / "real", 0o4711)
    os.symlink("real", tmp_path / "link")
    files.write(f"{tmp_path}/link", b"new", flags=fp.ATOMIC)
    st = os.lstat(tmp_path / "real")
    assert (tmp_path / "real").read_bytes() == b"new" and os.path.islink(tmp_path / "link")
    assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (0o4711, 12, 34)
    fails(errno.EEXIST, files.write, f"{tmp_path}/real", b"", flags=fp.ATOMIC | fp.EXCL)
    fails(errno.EINVAL, files.write, f"{tmp_path}/real", b"", flags=fp.ATOMIC | fp.APPEND)
    fails(errno.EISDIR, files.write, str(tmp_path), b"", flags=fp.ATOMIC)
    # Half of a file, then the client is gone: the old one stays, with nothing beside it.
    with Files(server) as other:
        other.send_op(fp.WRITE, f"{tmp_path}/real", flags=fp.ATOMIC)
        other.send_data(b"x" * 500_000)
        end = time.monotonic() + 20
        while len(os.listdir(tmp_path)) == 2 and time.monotonic() < end:
            time.sleep(0.002)
        assert len(os.listdir(tmp_path)) == 3
    while len(os.listdir(tmp_path)) > 2 and time.monotonic() < end:
        time.sleep(0.002)
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    assert (tmp_path / "real").read_bytes() == b"new"


def test_only_regular_files(files, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in fails(errno.EINVAL, files.read, f"{tmp_path}/fifo")
    fails(errno.EINVAL, files.read, "/dev/zero")
    fails(errno.EINVAL, files.write, f"{tmp_path}/fifo", b"x" * 200_000)
    fails(errno.EINVAL, files.write, "/dev/null", b"x")
    fails(errno.EISDIR, files.read, str(tmp_path))
    fails(errno.ENOENT, files.read, f"{tmp_path}/none")
    assert files.read("/proc/self/status").startswith(b"Name:")
    # A failed write takes its data along: the stream is good for more.
    fails(errno.EISDIR, files.write, str(tmp_path), b"x" * 300_000)
    assert files.op(fp.STAT, str(tmp_path))[fp.F_MODE] & S_DIR


def test_stat(files, tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    os.symlink("f", tmp_path / "l")
    assert files.op(fp.STAT, f"{tmp_path}/l")[fp.F_SIZE] == 5
    a = files.op(fp.STAT, f"{tmp_path}/l", flags=fp.NOFOLLOW)
    assert stat.S_ISLNK(a[fp.F_MODE]) and a[fp.F_TARGET] == "f"
    assert files.op(fp.STAT, f"{tmp_path}/l", flags=fp.REAL)[fp.F_PATH] == f"{tmp_path}/f"
    fails(errno.ENOENT, files.op, fp.STAT, f"{tmp_path}/none")
    fails(errno.ENOTDIR, files.op, fp.STAT, f"{tmp_path}/f/x")


def test_list(files, tmp_path):
    for i in range(2000):
        (tmp_path / f"n{i}").touch()
    os.symlink("/etc/passwd", tmp_path / "link")
    (tmp_path / "ünder\n").write_bytes(b"abc")
    entries, cut = files.list(str(tmp_path))
    assert not cut and set(entries) == set(os.listdir(tmp_path))
    assert entries["link"][fp.F_TARGET] == "/etc/passwd"
    assert entries["ünder\n"][fp.F_SIZE] == 3
    entries, cut = files.list(str(tmp_path), limit=10)
    assert cut and len(entries) == 10
    fails(errno.ENOTDIR, files.list, "/etc/passwd")


def test_names(files, tmp_path):
    files.op(fp.MKDIR, f"{tmp_path}/d", mode=0o2750)
    assert stat.S_IMODE(os.stat(tmp_path / "d").st_mode) == 0o2750
    fails(errno.EEXIST, files.op, fp.MKDIR, f"{tmp_path}/d")
    files.op(fp.MKDIR, f"{tmp_path}/d", flags=fp.PARENTS)
    files.op(fp.MKDIR, f"{tmp_path}/a/b/c/", flags=fp.PARENTS, uid=5, gid=6)
    st = os.stat(tmp_path / "a/b/c")
    assert (st.st_uid, st.st_gid) == (5, 6) and os.stat(tmp_path / "a/b").st_uid == 0
    files.op(fp.SYMLINK, f"{tmp_path}/l", to="a/b")
    fails(errno.EEXIST, files.op, fp.SYMLINK, f"{tmp_path}/l", to="x")
    files.op(fp.SYMLINK, f"{tmp_path}/l", to="elsewhere", flags=fp.FORCE)
    assert os.readlink(tmp_path / "l") == "elsewhere"
    files.op(fp.RENAME, f"{tmp_path}/l", to=f"{tmp_path}/m")
    fails(errno.EEXIST, files.op, fp.RENAME, f"{tmp_path}/m", to=f"{tmp_path}/d", flags=fp.EXCL)
    files.write(f"{tmp_path}/f", b"123456789")
    files.op(fp.SET, f"{tmp_path}/f", mode=0o4755, uid=7, gid=8, mtime=-1500000000, size=4)
    st = os.stat(tmp_path / "f")
    assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns) == (
        0o4755, 7, 8, 4, -1500000000)
    files.op(fp.SET, f"{tmp_path}/m", uid=9, mtime=5, flags=fp.NOFOLLOW)
    assert os.lstat(tmp_path / "m").st_uid == 9


def test_remove(files, tmp_path):
    (tmp_path / "t/a/b").mkdir(parents=True)
    (tmp_path / "t/a/f").write_text("x")
    os.symlink("/etc", tmp_path / "t/a/etc")
    fails(errno.ENOTEMPTY, files.op, fp.REMOVE, f"{tmp_path}/t")
    files.op(fp.REMOVE, f"{tmp_path}/t/a/b")
    files.op(fp.REMOVE, f"{tmp_path}/t", flags=fp.RECURSIVE)
    assert not (tmp_path / "t").exists() and os.path.exists("/etc/passwd")
    fails(errno.ENOENT, files.op, fp.REMOVE, f"{tmp_path}/t")
    files.op(fp.REMOVE, f"{tmp_path}/t", flags=fp.FORCE)
    os.symlink(tmp_path, tmp_path / "self")
    files.op(fp.REMOVE, f"{tmp_path}/self", flags=fp.RECURSIVE)
    assert tmp_path.exists()


def test_user_and_directory(server, tmp_path):
    os.chmod(tmp_path, 0o755)
    p = tmp_path
    while not os.stat(p).st_mode & 0o001:  # pytest's directories are private
        os.chmod(p, 0o711)
        p = p.parent
    (tmp_path / "secret").write_text("x")
    os.chmod(tmp_path / "secret", 0o600)
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)
    with Files(server, user="12:34", cwd=str(tmp_path)) as f:
        fails(errno.EACCES, f.read, "secret")
        fails(errno.EACCES, f.write, "new", b"")
        f.write("open/mine", b"x")
        st = os.stat(tmp_path / "open/mine")
        assert (st.st_uid, st.st_gid) == (12, 34)
        fails(errno.EPERM, f.op, fp.SET, "open/mine", uid=0)
    with Files(server, user="nobody-of-that-name") as f, pytest.raises(fp.Refused):
        f.op(fp.STAT, "/")
    with Files(server, cwd="/no/such/place") as f, pytest.raises(fp.Refused):
        f.op(fp.STAT, "/")


def test_get(files, tmp_path):
    (tmp_path / "t/sub").mkdir(parents=True)
    (tmp_path / "t/sub/big").write_bytes(b"b" * 200_000)
    (tmp_path / "t/none").touch()
    os.symlink("sub", tmp_path / "t/link")
    os.mkfifo(tmp_path / "t/fifo")
    seen, path = {}, []
    for kind, *rest in files.get(f"{tmp_path}/t/"):
        if kind == "entry":
            name = "/".join(path + [rest[0][fp.F_NAME]])
            seen[name] = rest[0]
            if stat.S_ISDIR(rest[0][fp.F_MODE]):
                path.append(rest[0][fp.F_NAME])
        elif kind == "data":
            assert rest[0] == b"b" * 200_000
        else:
            path.pop()
    assert path == [] and set(seen) == {"t", "t/sub", "t/sub/big", "t/none", "t/link", "t/fifo"}
    assert seen["t/link"][fp.F_TARGET] == "sub"
    assert stat.S_ISFIFO(seen["t/fifo"][fp.F_MODE])
    fails(errno.E2BIG, files.get, f"{tmp_path}/t", limit=3)
    assert not [x for x in files.get(f"{tmp_path}/t", flags=fp.NO_DATA) if x[0] == "data"]
    os.symlink("t", tmp_path / "alias")
    assert len(files.get(f"{tmp_path}/alias")) == 1
    assert len(files.get(f"{tmp_path}/alias", flags=fp.FOLLOW)) > 1
    [(_, e), (_, data)] = files.get("/proc/version")
    assert e[fp.F_SIZE] == len(data) > 0
    fails(errno.ENOENT, files.get, f"{tmp_path}/nothing")


def test_put(files, tmp_path):
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d/old").write_text("old")
    (tmp_path / "d/dir").mkdir()
    files.put(str(tmp_path),
              entry("d", S_DIR | 0o755, mtime=1000), entry("old", S_REG | 0o4755, b"new", mtime=7),
              entry("n", S_DIR | 0o500, mtime=2_000_000_000, uid=1, gid=1),
              entry("f", S_REG | 0o600, b"z" * 100_000, uid=1, gid=1), entry("e", S_REG, b""),
              entry("l", S_LNK | 0o777, target="../nowhere"), frame(fp.LEAVE), frame(fp.LEAVE))
    assert stat.S_IMODE(os.stat(tmp_path / "d").st_mode) == 0o700, "what was there keeps its mode"
    assert (tmp_path / "d/old").read_text() == "new"
    assert stat.S_IMODE(os.stat(tmp_path / "d/old").st_mode) == 0o4755
    st = os.stat(tmp_path / "d/n")
    assert (stat.S_IMODE(st.st_mode), st.st_mtime_ns, st.st_uid) == (0o500, 2_000_000_000, 0)
    assert (tmp_path / "d/n/f").read_bytes() == b"z" * 100_000
    assert os.readlink(tmp_path / "d/n/l") == "../nowhere"
    files.put(f"{tmp_path}/d", entry("o", S_REG | 0o644, b"", uid=3, gid=4), flags=fp.OWNER)
    assert os.stat(tmp_path / "d/o").st_uid == 3
    names = set(os.listdir(tmp_path / "d"))
    assert names == {"old", "dir", "n", "o"}


@pytest.mark.parametrize("bad,code", [
    (lambda: entry("../x", S_REG, b"x"), errno.EPROTO),
    (lambda: entry("..", S_DIR) + frame(fp.LEAVE), errno.EPROTO),
    (lambda: entry("", S_REG, b"x"), errno.EPROTO),
    (lambda: entry("a\0b", S_REG, b"x"), errno.EPROTO),
    (lambda: entry("f", S_REG, b"xx", size=1), errno.EPROTO),
    (lambda: frame(fp.LEAVE), errno.EPROTO),
    (lambda: entry("open", S_DIR), errno.EPROTO),
    (lambda: frame(fp.DATA, b"x"), errno.EPROTO),
    (lambda: entry("fifo", stat.S_IFIFO), errno.EINVAL),
    (lambda: entry("link", S_LNK), errno.EPROTO),
    (lambda: entry("out", S_DIR) + entry("f", S_REG, b"x"), errno.ENOTDIR),
    (lambda: entry("dir", S_REG, b"x"), errno.EISDIR),
    (lambda: b"".join(entry("d", S_DIR) for _ in range(300)), errno.ELOOP),
])
def test_put_refuses(files, tmp_path, bad, code):
    dest = tmp_path / "dest"
    (dest / "dir").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    os.symlink("../elsewhere", dest / "out")
    fails(code, files.put, str(dest), bad())
    assert os.listdir(tmp_path / "elsewhere") == []
    assert not [n for n in os.listdir(dest) if n.startswith(".msb")]
    assert sorted(os.listdir(tmp_path)) == ["dest", "elsewhere"]
    files.op(fp.STAT, "/")  # good for more


def test_many_at_once(files, tmp_path):
    """Requests may be sent ahead."""
    for i in range(300):
        files.send_op(fp.WRITE, f"{tmp_path}/{i}")
        files.send_data(str(i).encode())
        files.sock.sendall(frame(fp.END))
    for i in range(300):
        files.answer()
    assert (tmp_path / "299").read_text() == "299"


def events(files, until):
    got = []
    while not any(until(e) for e in got):
        kind, payload = files.next()
        assert kind == fp.EVENT
        f = fp.fields(payload)
        got.append((f[fp.F_EVENT], f[fp.F_PATH]))
    return got


def test_watch(server, tmp_path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "sub").mkdir()
    with Files(server) as f:
        f.op(fp.WATCH, str(tmp_path), flags=fp.RECURSIVE)
        (tmp_path / "a").write_text("x")
        got = events(f, lambda e: e == (fp.MODIFIED, "a"))
        assert (fp.CREATED, "a") in got
        (tmp_path / "sub/b").write_text("x")
        events(f, lambda e: e == (fp.CREATED, "sub/b"))
        (tmp_path / "new/deep").mkdir(parents=True)
        (tmp_path / "new/deep/c").write_text("x")
        events(f, lambda e: e[0] & fp.CREATED and e[1] == "new/deep/c")
        os.rename(tmp_path / "a", tmp_path / "sub/z")
        got = events(f, lambda e: e == (fp.MOVED_TO, "sub/z"))
        assert (fp.MOVED_FROM, "a") in got
        os.rename(tmp_path / "new", tmp_path / "moved")
        (tmp_path / "moved/deep/d").write_text("x")
        got = events(f, lambda e: e[0] & fp.CREATED and e[1].endswith("deep/d"))
        assert "moved/deep/d" in [e[1] for e in got]
        os.rename(tmp_path / "moved", elsewhere / "moved")
        events(f, lambda e: e == (fp.MOVED_FROM | fp.IS_DIR, "moved"))
        (elsewhere / "moved/deep/unseen").write_text("x")
        os.unlink(tmp_path / "sub/z")
        got = events(f, lambda e: e == (fp.REMOVED, "sub/z"))
        assert not [e for e in got if "unseen" in e[1]]
    with Files(server) as f:
        fails(errno.ENOENT, f.op, fp.WATCH, f"{tmp_path}/none")


def test_stream_that_makes_no_sense(server):
    with Files(server) as f:
        f.sock.sendall(frame(fp.OP, b"\x01"))
        with pytest.raises(fp.FileError):
            f.answer()
        with pytest.raises(fp.FileError):
            f.op(99, "/")
        fails(errno.ENOENT, f.op, fp.STAT, "")
        f.sock.sendall(b"\xff" * 8)
        with pytest.raises((ConnectionError, OSError)):
            f.answer()


def test_no_child_stays(server, tmp_path):
    """However a stream ends, its child does."""
    def count():
        n = 0
        for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                n += str(server) in p.read_text()
            except OSError:
                pass
        return n

    def becomes(wanted):
        end = time.monotonic() + 20
        while count() != wanted and time.monotonic() < end:
            time.sleep(0.005)
        return count() == wanted

    assert becomes(1)  # those of the tests before this one are gone
    mine = [Files(server) for _ in range(10)]
    for f in mine:
        f.op(fp.STAT, "/")
    assert count() == 11
    for f in mine:
        f.sock.close()
    assert becomes(1)
