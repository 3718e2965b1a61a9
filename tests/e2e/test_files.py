"""Files through the agent's messages, and what create and run do to files before anyone is told."""
import errno
import json
import os
import pathlib
import signal
import stat
import time

import pytest

import filesproto as fp
from conftest import wait_for
from filesproto import Files


def connect(msb, name, **kw):
    return Files(msb.home / "sandboxes" / name / "run" / "agent.sock", **kw)


def test_write_read_list(box):
    msb, name = box
    data = os.urandom(1 << 20)
    with connect(msb, name) as f:
        f.write("/srv/deep/data", data, flags=fp.PARENTS | fp.ATOMIC, mode=0o600)
        assert f.read("/srv/deep/data") == data
        assert f.read("/srv/deep/data", offset=5, length=10) == data[5:15]
        names, cut = f.list("/srv/deep")
        assert set(names) == {"data"} and not cut
        assert names["data"][fp.F_SIZE] == len(data)
        assert names["data"][fp.F_MODE] == stat.S_IFREG | 0o600
        f.op(fp.RENAME, "/srv/deep/data", to="/srv/moved")
        f.op(fp.SYMLINK, "/srv/link", to="moved")
        assert f.op(fp.STAT, "/srv/link", flags=fp.NOFOLLOW)[fp.F_TARGET] == "moved"
        f.op(fp.SET, "/srv/moved", mode=0o755, mtime=10**18)
        assert msb.sh(name, "stat -L -c '%a %Y' /srv/link").stdout == b"755 1000000000\n"
        f.op(fp.REMOVE, "/srv", flags=fp.RECURSIVE)
        with pytest.raises(fp.FileError) as e:
            f.op(fp.STAT, "/srv")
        assert e.value.errno == errno.ENOENT and "/srv" in e.value.strerror


def test_as_whom_and_where(msb):
    msb.create("box", "--user", "nobody", "--workdir", "/job")
    msb("exec", "-q", "-u", "0", "box", "--", "sh", "-c",
        "mkdir -p /job && chmod 777 /job; umask 077; echo s > /secret", check=0)
    with connect(msb, "box") as f:
        f.write("mine", b"x")
        with pytest.raises(fp.FileError) as e:
            f.read("/secret")
        assert e.value.errno == errno.EACCES
    with connect(msb, "box", user="0", cwd="/") as f:
        assert f.read("secret") == b"s\n"
    out = msb("exec", "-q", "box", "--", "sh", "-c", "stat -c %U /job/mine; id -un").stdout
    assert out == b"nobody\nnobody\n"
    with connect(msb, "box", user="nosuch") as f, pytest.raises(fp.Refused):
        f.op(fp.STAT, "/")


def test_what_blocks_stops_nobody_else(box):
    msb, name = box
    msb.sh(name, "mkfifo /fifo", check=0)
    with connect(msb, name) as f:
        with pytest.raises(fp.FileError):
            f.read("/fifo")
        with pytest.raises(fp.FileError):
            f.write("/fifo", b"x")
        with pytest.raises(fp.FileError):
            f.read("/dev/zero")
        # A reader that does not read: its stream is full, and only that.
        f.write("/zeros", b"\0" * (8 << 20))
        f.send_op(fp.READ, "/zeros")
        assert msb.sh(name, "echo alive").stdout == b"alive\n"
        with connect(msb, name) as g:
            assert g.op(fp.STAT, "/zeros")[fp.F_SIZE] == 8 << 20
        got = bytearray()
        f.answer(lambda k, p: got.extend(p) if k == fp.DATA else None)
        assert len(got) == 8 << 20


def test_children_end_with_their_streams(box):
    msb, name = box
    count = lambda: int(msb.sh(name, "ps | grep -c '[/]init$'").stdout)
    wait_for(lambda: count() == 1)
    streams = [connect(msb, name) for _ in range(20)]
    for f in streams:
        f.op(fp.STAT, "/")
    streams[0].op(fp.WATCH, "/")
    streams[1].send_op(fp.WRITE, "/half", flags=fp.ATOMIC)
    streams[1].send_data(b"x" * 100_000)
    assert count() == 21
    for f in streams:
        f.sock.close()
    wait_for(lambda: count() == 1)
    assert msb.sh(name, "ls -A / | grep -c 'half\\|^.msb-'").stdout == b"0\n"


def test_watch(box):
    msb, name = box
    msb.sh(name, "mkdir -p /w/sub", check=0)
    with connect(msb, name) as f:
        f.op(fp.WATCH, "/w", flags=fp.RECURSIVE)
        msb.sh(name, "echo x > /w/sub/f; mkdir /w/new; echo y > /w/new/g; rm /w/sub/f", check=0)
        seen = []
        while (fp.REMOVED, "sub/f") not in seen:
            kind, payload = f.next()
            e = fp.fields(payload)
            seen.append((e[fp.F_EVENT], e[fp.F_PATH]))
    assert (fp.CREATED, "sub/f") in seen and (fp.MODIFIED, "sub/f") in seen
    assert any(what & fp.CREATED and path == "new/g" for what, path in seen)
    assert (fp.CREATED | fp.IS_DIR, "new") in seen


def test_a_stream_keeps_a_sandbox_busy(msb):
    msb.create("box", "--idle-timeout", "1s")
    with connect(msb, "box") as f:
        f.op(fp.STAT, "/")
        time.sleep(1.5)
        assert f.op(fp.STAT, "/")
    wait_for(lambda: msb.status("box") == "Stopped", timeout=20)


def test_refused_when_it_goes_down(msb):
    msb.create("box")
    p = msb.popen("exec", "-q", "box", "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    wait_for(lambda: b"trap" in msb.sh("box", "ps").stdout)
    stop = msb.popen("stop", "-q", "-t", "2", "box")
    wait_for(lambda: msb.status("box") == "Draining")
    with connect(msb, "box") as f, pytest.raises((fp.Refused, ConnectionError)):
        f.op(fp.STAT, "/")
    assert stop.wait(timeout=30) == 0
    p.wait(timeout=30)


# --- create and run -------------------------------------------------------------------------


@pytest.fixture
def src(tmp_path):
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "src/f").write_text("f\n")
    (tmp_path / "src/sub/g").write_text("g\n")
    os.chmod(tmp_path / "src/f", 0o755)
    os.symlink("f", tmp_path / "src/l")
    return tmp_path / "src"


def test_copies_are_there_first(msb, src):
    msb.ok("create", "-q", "-n", "box", "--rm", "/etc/passwd", "--copy-file", f"{src}/f:/etc/passwd",
           "--copy", f"{src}/sub:/opt/app/lib", "--copy-dir", f"{src}:/opt/app",
           "--mkdir", "/var/new/dir", "--copy", f"{src}/l:/tmp/", "--copy", f"{src}/f:/opt/app/sub/g",
           "--rm", "/opt/app/lib/none", "--rm", "/opt/app/l")
    out = msb.sh("box", "cat /etc/passwd /opt/app/lib/g /opt/app/sub/g /tmp/l; ls -d /var/new/dir; "
                        "ls /opt/app; stat -c %a /opt/app/f").stdout.decode()
    assert out == "f\ng\nf\nf\n/var/new/dir\nf\nlib\nsub\n755\n"
    config = json.loads(msb.ok("inspect", "box", "--format", "json"))["config"]
    assert config["patches"][0] == {"type": "Remove", "path": "/etc/passwd"}
    assert config["patches"][1] == {"type": "CopyFile", "src": f"{src}/f", "dst": "/etc/passwd"}
    assert config["patches"][4] == {"type": "Mkdir", "path": "/var/new/dir"}
    assert f"  rm /etc/passwd\n  copy /etc/passwd ← {src}/f\n" in msb.ok("inspect", "box")
    # Once: what is done to them later stays.
    msb.sh("box", "echo changed > /etc/passwd", check=0)
    msb.ok("restart", "-q", "box")
    assert msb.sh("box", "cat /etc/passwd").stdout == b"changed\n"


def test_copies_of_run(msb, src):
    p = msb("run", "-q", "--copy", f"{src}/f:/bin/greet", "--mkdir", "/x", "--", "sh", "-c",
            "cat /bin/greet; ls -d /x", check=0)
    assert p.stdout == b"f\n/x\n"
    assert msb.leftovers() == []


def test_copies_come_before_what_is_read_only(msb, src):
    msb.ok("create", "-q", "-n", "box", "--write-path", "/job", "--copy", f"{src}/f:/etc/app/f")
    p = msb.sh("box", "cat /etc/app/f; touch /job/x && ! touch /etc/app/g")
    assert p.returncode == 0 and p.stdout == b"f\n" and b"Read-only" in p.stderr
    assert "Read-only" in msb("cp", src / "f", "box:/etc/g", check=1).stderr.decode()


@pytest.mark.parametrize("args,code,want", [
    (["--copy", "{src}/none:/x"], 1, "cannot copy"),
    (["--copy", "{src}/f"], 1, "expected SRC:DST"),
    (["--copy-file", "{src}/sub:/x"], 1, "is a directory (use --copy-dir)"),
    (["--copy-dir", "{src}/f:/x"], 1, "is a file (use --copy-file)"),
    (["--copy", "{src}/f:/a/../b"], 1, "without '..'"),
    (["--mkdir", "relative"], 1, "must be an absolute path"),
    (["--rm", "/"], 1, "cannot be removed"),
    (["--mkdir", "/ok", "--mkdir", "/etc/passwd/x"], 1, "--mkdir /etc/passwd/x: "),
    (["--copy", "{src}:/etc/passwd"], 1, "/etc/passwd"),
    (["--rm", "/proc/1"], 1, "--rm /proc/1: "),
])
def test_what_cannot_be_done_makes_no_sandbox(msb, src, args, code, want):
    args = [a.format(src=src) for a in args]
    p = msb("create", "-n", "box", *args, check=code)
    assert want in p.stderr.decode() and p.stderr.startswith(b"error: "), p.stderr
    assert msb.leftovers() == []
    wait_for(lambda: not msb.processes(), timeout=20)


def open_files(pid):
    """The names of the files that a process has open."""
    names = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.add(os.path.basename(os.readlink(fd)))
        except FileNotFoundError:  # closed since
            pass
    return names


def test_a_create_that_is_killed_while_it_copies(msb, tmp_path):
    with open(tmp_path / "big", "wb") as f:
        f.truncate(1 << 31)
    p = msb.popen("create", "-q", "-n", "box", "--copy", f"{tmp_path}/big:/big")
    wait_for(lambda: msb.monitor_pid("box") if (msb.home / "sandboxes/box/lock").exists() else None)
    wait_for(lambda: "big" in open_files(p.pid))
    p.send_signal(signal.SIGKILL)
    p.wait()
    wait_for(lambda: not msb.processes(), timeout=20)
    # Its monitor may hold its lock a moment longer than it can be seen.
    wait_for(lambda: msb.ok("ls", "-q") == "" and msb.leftovers() == [])
