"""Host directories and files in a sandbox: what programs rely on, who owns what, what holds."""
import json
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import threading

import pytest

from conftest import static_program, wait_for
from guest import PATIENCE, sh

IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="session")
def checks(tmp_path_factory):
    """posix_checks, which runs in any guest."""
    return static_program("posix_checks", tmp_path_factory.mktemp("checks"))


@pytest.fixture
def share(tmp_path):
    d = tmp_path / "share"
    d.mkdir()
    return d


def servers(m, name=None):
    """The processes that serve shares: not the monitor, nor what it started."""
    mine = set(m.tree(m.monitor_pid(name))) if name else set()
    return [p for p in m.processes() if p not in mine]


# --- behavior -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["auto", "none", "always"])
def test_posix(msb, share, checks, tmp_path, cache):
    """The same program prints the same on the host's file system and through the share."""
    if share.stat().st_dev != tmp_path.stat().st_dev:
        pytest.skip("the temporary directory is not one file system")
    own, shared = tmp_path / "own", share / "shared"
    own.mkdir()
    shared.mkdir()
    shutil.copy(checks, share / "checks")
    args = ["root"] if IS_ROOT else []
    want = subprocess.run([checks, own, *args], stdout=subprocess.PIPE, check=True).stdout
    got = msb("run", "-q", "-v", f"{share}:/w:cache={cache}", "--", "/w/checks", "/w/shared", *args,
              check=0, timeout=180).stdout  # fmt: skip
    lines = [out.decode().splitlines() for out in (want, got)]
    if cache == "always":  # where data is, the guest does not tell before it has written it out
        lines = [[line for line in out if not line.startswith("seek ")] for out in lines]
    assert lines[0] == lines[1]
    assert len(lines[0]) > 150


def test_both_sides_see_changes(msb, share):
    (share / "from-host").write_text("host\n")
    msb.create("b", "-v", f"{share}:/w")
    assert sh(msb, "b", "cat /w/from-host; echo guest >/w/from-guest") == "host\n"
    assert (share / "from-guest").read_text() == "guest\n"
    (share / "from-host").write_text("changed, and longer\n")
    (share / "new").write_text("new\n")
    # Names and sizes hold for a moment in the guest.
    wait_for(lambda: sh(msb, "b", "cat /w/from-host /w/new 2>/dev/null || true")
             == "changed, and longer\nnew\n")  # fmt: skip
    (share / "new").unlink()
    wait_for(lambda: "new" not in sh(msb, "b", "ls /w").split())


def test_shares_are_trusted(msb, share, tmp_path):
    """Their writers are not throttled and readers read ahead far, of a directory and of a single file."""
    (tmp_path / "file").touch()
    msb.create("b", "-v", f"{share}:/w", "-v", f"{tmp_path / 'file'}:/file")
    show = "for bdi in /sys/class/bdi/0:*; do cat $bdi/strict_limit $bdi/max_ratio $bdi/read_ahead_kb; done"
    wait_for(lambda: sh(msb, "b", show).split() == ["0", "100", "1024"] * 2)


def test_an_exclusive_create_asks_the_host(msb, share):
    """The guest may hold the name for a free one, or not know of it: it is the host that knows."""
    msb.create("b", "-v", f"{share}:/w", "-v", f"{share}:/r:ro")
    script = "set -C; cat /w/{0} 2>/dev/null; echo up; read x; {{ echo guest >/w/{0}; }} 2>/dev/null && echo made; cat /w/{0}"
    p = subprocess.Popen(msb.command(["exec", "-q", "b", "--", "sh", "-c", script.format("f")]),
                         env=msb.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert p.stdout.readline() == b"up\n"
    (share / "f").write_text("host\n")
    assert p.communicate(b"\n", timeout=60)[0] == b"host\n"
    assert sh(msb, "b", script.format("g"), input=b"\n") == "up\nmade\nguest\n"
    assert (share / "g").read_text() == "guest\n"
    assert "Read-only" in sh(msb, "b", "set -C; echo x 2>&1 >/r/h || true; (: >/r/h) 2>&1 || true")


def test_cache_none_sees_changes_at_once(msb, share):
    msb.create("b", "-v", f"{share}:/w:cache=none")
    for i in range(5):
        (share / "f").write_text(f"{i}" * (i + 1))
        assert sh(msb, "b", "cat /w/f") == f"{i}" * (i + 1)


def test_two_sandboxes_share_a_directory(msb, share):
    for name in ("a", "b"):
        msb.create(name, "-v", f"{share}:/w:cache=none")
    sh(msb, "a", "echo from-a >/w/f; mkdir /w/d")
    assert sh(msb, "b", "cat /w/f; rmdir /w/d; chown 5:6 /w/f") == "from-a\n"
    assert sh(msb, "a", "stat -c %u:%g /w/f; ls /w") == "5:6\nf\n"
    writers = [
        threading.Thread(target=sh, args=(
            msb, n, f"i=0; while [ $i -lt 200 ]; do echo {n}$i >>/w/log; i=$((i+1)); done"))
        for n in ("a", "b")
    ]  # fmt: skip
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    lines = (share / "log").read_text().split()
    assert sorted(lines) == sorted(f"{n}{i}" for n in "ab" for i in range(200))


def test_survives_stop_and_start(msb, share):
    msb.create("b", "-v", f"{share}:/w")
    sh(msb, "b", "echo 1 >/w/f; chown 1000 /w/f; chmod 4750 /w/f")
    msb.ok("stop", "-q", "b")
    assert (share / "f").read_text() == "1\n"
    msb.ok("start", "-q", "b")
    assert sh(msb, "b", "stat -c '%u %a' /w/f; cat /w/f") == "1000 4750\n1\n"


def test_large_tree(msb, share):
    """Thousands of files: made in the guest, there on the host, and away again."""
    msb.create("b", "-v", f"{share}:/w")
    sh(msb, "b", "cd /w; for d in 0 1 2 3 4 5 6 7 8 9; do mkdir $d; i=0; "
                 "while [ $i -lt 200 ]; do echo $d-$i >$d/$i; i=$((i+1)); done; done",
       timeout=PATIENCE * 3)  # fmt: skip
    files = [p for p in share.rglob("*") if p.is_file()]
    assert len(files) == 2000
    assert all(p.read_text() == f"{p.parent.name}-{p.name}\n" for p in files)
    assert sh(msb, "b", "find /w -type f | wc -l").strip() == "2000"
    sh(msb, "b", "cd /w; tar cf /tmp/t.tar .; rm -rf /w/*; tar xf /tmp/t.tar")
    assert len([p for p in share.rglob("*") if p.is_file()]) == 2000


def test_what_was_synced_outlives_the_monitor(msb, share):
    msb.create("b", "-v", f"{share}:/w")
    p = msb.popen("exec", "-q", "b", "--", "sh", "-c",
                  "i=0; while :; do dd if=/dev/zero bs=4096 count=4 of=/w/$i conv=fsync "
                  "2>/dev/null && echo $i; i=$((i+1)); done",
                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    synced = [int(p.stdout.readline()) for _ in range(20)]
    os.kill(msb.monitor_pid("b"), signal.SIGKILL)
    synced += [int(line) for line in p.stdout.read().split()]
    p.wait(timeout=PATIENCE)
    for i in synced:
        assert (share / str(i)).stat().st_size == 16384
    wait_for(lambda: not msb.processes())


# --- owners ---------------------------------------------------------------------------------------


def test_owners(msb, share):
    """The guest's root gives files away at will; on the host they stay with who started msb."""
    (share / "mine").write_text("")
    out = sh(msb, msb.create("b", "-v", f"{share}:/w"),
             "cd /w; stat -c %u:%g mine; touch a; chown 1000:1000 a; chmod 6755 a; mkdir d; "
             "chown 7:8 d; chmod 1777 d; stat -c '%u:%g %a' a d; ln -s a l; chown -h 9 l; "
             "stat -c %u l")  # fmt: skip
    assert out == "0:0\n1000:1000 6755\n7:8 1777\n9\n"
    for p in (share / "a", share / "d", share / "l"):
        st = p.lstat()
        assert st.st_uid == os.geteuid() and st.st_gid == os.getegid()
        assert st.st_mode & (stat.S_ISUID | stat.S_ISGID) == 0


def test_uid_gid_options(msb, share):
    (share / "f").write_text("text")
    out = msb.ok("run", "-q", "-v", f"{share}:/w:uid=1000,gid=100", "-u", "1000:100", "--", "sh",
                 "-c", "stat -c %u:%g /w /w/f; echo more >>/w/f; touch /w/new; stat -c %u:%g /w/new")
    assert out == "1000:100\n1000:100\n1000:100\n"
    assert (share / "f").read_text() == "textmore\n"
    assert os.listxattr(share / "new") == []  # nothing to remember


@pytest.mark.skipif(not IS_ROOT, reason="only root has files of others")
def test_a_directory_of_somebody_else(msb, share):
    (share / "f").write_text("theirs")
    os.chown(share / "f", 4321, 4321)
    os.chown(share, 4321, 4321)
    out = sh(msb, msb.create("b", "-v", f"{share}:/w"),
             "stat -c %u /w/f; cat /w/f; echo x >/w/new; chown 5 /w/f; stat -c %u /w/f")
    assert out == "4321\ntheirs5\n"
    assert (share / "f").stat().st_uid == 4321
    assert (share / "new").stat().st_uid == 0


# --- containment ----------------------------------------------------------------------------------


def test_read_only(msb, share):
    (share / "f").write_text("text")
    msb.create("b", "-v", f"{share}:/w:ro")
    before = (share / "f").stat()
    for attempt in ("echo x >/w/f", "rm /w/f", "touch /w/g", "mkdir /w/d", "chmod 777 /w/f",
                    "mv /w/f /w/g", "ln /w/f /w/g", "ln -s a /w/g", "mkfifo /w/p", "truncate -s 0 /w/f",
                    "mount -o remount,rw /w && echo x >/w/f", "chown 1 /w/f"):  # fmt: skip
        p = msb.sh("b", attempt)
        assert p.returncode != 0, attempt
        assert b"ead-only" in p.stderr, (attempt, p.stderr)
    assert sh(msb, "b", "cat /w/f") == "text"
    after = (share / "f").stat()
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
    assert [p.name for p in share.iterdir()] == ["f"]


def test_links_lead_nowhere_on_the_host(msb, share, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    (share / "abs").symlink_to(secret)
    (share / "rel").symlink_to("../secret")
    (share / "dir").symlink_to(tmp_path)
    msb.create("b", "-v", f"{share}:/w")
    for path in ("/w/abs", "/w/rel", "/w/dir/secret", "/w/../secret"):
        assert b"No such file" in msb.sh("b", f"cat {path}").stderr
    sh(msb, "b", "ln -s /etc/hostname /w/inside; cat /w/inside")
    assert secret.read_text() == "of the host"


@pytest.mark.skipif(not IS_ROOT, reason="only root makes device nodes")
def test_device_nodes_are_dead(msb, share):
    os.mknod(share / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    msb.create("b", "-v", f"{share}:/w")
    assert msb.sh("b", "head -c 1 /w/zero").returncode != 0
    assert msb.sh("b", "mknod /w/null c 1 3").returncode != 0
    assert sorted(p.name for p in share.iterdir()) == ["zero"]


def test_noexec(msb, share):
    (share / "prog").write_text("#!/bin/sh\necho ran\n")
    (share / "prog").chmod(0o755)
    assert msb.ok("run", "-q", "-v", f"{share}:/w", "--", "/w/prog") == "ran\n"
    assert msb("run", "-q", "-v", f"{share}:/w:noexec", "--", "/w/prog").returncode == 126


def test_quota(msb, share):
    msb.create("b", "-v", f"{share}:/w:quota=16M")
    p = msb.sh("b", "dd if=/dev/zero of=/w/big bs=1M count=64")
    assert p.returncode != 0 and b"quota" in p.stderr
    assert (share / "big").stat().st_size <= 16 << 20
    assert sh(msb, "b", "df -m /w | tail -1").split()[1] == "16"
    sh(msb, "b", "rm /w/big; dd if=/dev/zero of=/w/big bs=1M count=8 2>/dev/null")


def status(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.skipif(not IS_ROOT, reason="looking into it takes root")
def test_the_server_has_nothing_but_the_share(msb, share):
    """Seen from outside: rights, filter, namespaces, root, open files."""
    msb.create("b", "-v", f"{share}:/w:ro", "-v", f"{share}:/v")
    monitor = msb.monitor_pid("b")
    pids = servers(msb, "b")
    assert len(pids) == 2
    for pid in pids:
        st = status(pid)
        keep = 1 << 1 | 1 << 3  # CAP_DAC_OVERRIDE, CAP_FOWNER
        for caps in ("CapPrm", "CapEff", "CapBnd"):
            assert int(st[caps], 16) & ~keep == 0
        assert int(st["CapInh"], 16) == int(st["CapAmb"], 16) == 0
        assert st["NoNewPrivs"] == "1" and st["Seccomp"] == "2"
        for kind in ("mnt", "pid", "net", "ipc", "uts"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") not in (
                os.readlink(f"/proc/self/ns/{kind}"), os.readlink(f"/proc/{monitor}/ns/{kind}"))
        mounts = pathlib.Path(f"/proc/{pid}/mounts").read_text().splitlines()
        assert len(mounts) == 1 and " / tmpfs ro," in mounts[0]
        assert os.listdir(f"/proc/{pid}/root") == []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            # Its share, from the root of a mount of its own; guest memory; sockets and events.
            assert target in ("/", "/dev/null") or target.startswith(
                ("socket:", "anon_inode:", "/tmp/vm_file", "/memfd")), target  # fmt: skip
        assert not os.access(f"/proc/{pid}/environ", os.R_OK) or st["Uid"].split()[0] == "0"


def test_servers_end_with_the_monitor(msb, share):
    msb.create("b", "-v", f"{share}:/w", "-v", f"{share}:/v:ro")
    os.kill(msb.monitor_pid("b"), signal.SIGKILL)
    wait_for(lambda: not msb.processes())
    wait_for(lambda: msb.status("b").lower() == "crashed")  # an ordinary user cannot see who is still going
    msb.ok("start", "-q", "b")
    msb.ok("stop", "-q", "b")
    wait_for(lambda: not msb.processes())


@pytest.mark.skipif(not IS_ROOT, reason="finding it takes root")
def test_a_server_that_dies_takes_its_sandbox_along(msb, share):
    """A guest would wait for ever for what it asked; the sandbox has crashed, and says why."""
    msb.create("b", "-v", f"{share}:/w")
    (pid,) = servers(msb, "b")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not msb.processes())
    state = json.loads(msb.ok("inspect", "b", "--format", "json"))
    assert state["status"] == "Crashed"
    assert "serves one of its mounts died" in msb.ok("inspect", "b")
    assert sh(msb, "b", "ls -d /w") == "/w\n"  # which restarts it


def test_a_server_that_cannot_serve_ends_the_start(msb, share):
    """It reports this while the guest is booting. Nothing of that start is left afterwards."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    p = msb("create", "-n", "new", "-v", f"{share}:/mnt", preexec_fn=few)
    assert p.returncode == 1 and b"open files" in p.stderr
    assert not (msb.home / "sandboxes/new").exists()
    msb.create("box", "-v", f"{share}:/mnt")
    msb.ok("stop", "box")
    for _ in range(10):
        p = msb("start", "box", preexec_fn=few)
        assert p.returncode == 1 and b"open files" in p.stderr, p.stderr
        assert msb.monitor_pid("box") is None
    msb.ok("start", "box")
    assert sh(msb, "box", "ls -A /mnt") == ""


def test_a_host_that_refuses_network_namespaces_alone(msb, share):
    """Its server says so late: the guest boots already, and does so once more in the reduced jail."""
    (share / "f").write_text("here\n")
    script = 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$0" "$@"'
    run = ["run", "--rm", "-v", f"{share}:/mnt"]
    here = {"env": msb.env, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 60}
    p = subprocess.run(["unshare", "-r", "sh", "-ec", script, msb.exe, *run, "--", "cat", "/mnt/f"], **here)
    assert (p.returncode, p.stdout) == (0, b"here\n") and b"reduced jail" in p.stderr, p.stderr
    p = subprocess.run(["unshare", "-r", "sh", "-ec", script, msb.exe, *run, "--jail", "full", "--", "true"], **here)
    assert p.returncode == 1 and b"cannot leave the network" in p.stderr
    wait_for(lambda: not msb.processes())


# --- the command line -----------------------------------------------------------------------------


def test_single_files(msb, share, tmp_path):
    conf = tmp_path / "app.conf"
    conf.write_text("key=1\n")
    (tmp_path / "beside").write_text("hidden")
    msb.create("b", "--mount-file", f"{conf}:/etc/deep/app.conf:ro", "-v", f"{conf}:/etc/motd")
    assert sh(msb, "b", "cat /etc/deep/app.conf; ls /etc/deep") == "key=1\napp.conf\n"
    assert msb.sh("b", "echo x >/etc/deep/app.conf").returncode != 0
    sh(msb, "b", "echo key=2 >/etc/motd")
    assert conf.read_text() == "key=2\n"
    assert msb.sh("b", "rm /etc/motd").returncode != 0
    assert "app.conf" not in sh(msb, "b", "mount | grep ' /dev/' || true")


def test_nested_mounts(msb, share, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "f").write_text("inner")
    out = msb.ok("run", "-q", "-v", f"{inner}:/a/b/c:ro", "--tmpfs", "/a/b", "-v", f"{share}:/a",
                 "--", "sh", "-c", "cat /a/b/c/f; touch /a/x /a/b/y; ls /a/b")  # fmt: skip
    assert out == "innerc\ny\n"
    assert sorted(p.name for p in share.iterdir()) == ["b", "x"]


def test_many_shares(msb, share):
    """As many as there may be, and not one more."""
    dirs = []
    for i in range(11):
        d = share / str(i)
        d.mkdir()
        (d / "f").write_text(str(i))
        dirs += ["-v", f"{d}:/w/{i}"]
    assert msb.ok("run", "-q", *dirs[:-2], "--", "sh", "-c", "cat /w/*/f") == "0123456789"
    p = msb("run", "-q", *dirs, "--", "true")
    assert p.returncode == 1 and b"at most 10 host directories" in p.stderr


def test_inspect_shows_them(msb, share):
    msb.create("b", "-v", f"{share}:/w:ro,noexec,cache=none,uid=5,gid=6")
    (mount,) = json.loads(msb.ok("inspect", "b", "--format", "json"))["config"]["mounts"]
    assert mount["type"] == "Bind" and mount["host"] == str(share) and mount["guest"] == "/w"
    assert mount["options"] == {"readonly": True, "noexec": True, "nosuid": False, "nodev": False}
    assert (mount["cache"], mount["uid"], mount["gid"]) == ("none", 5, 6)
    text = msb.ok("inspect", "b")
    assert f"/w              → {share} (ro,noexec,cache=none,uid=5,gid=6)" in text


def test_relative_paths_and_home(msb, share):
    (share / "f").write_text("x")
    args = ["-v", "./share:/a", "--mount-dir", "share:/b", "-v", "~/share:/c"]
    env = {**msb.env, "HOME": str(share.parent)}
    out = msb.ok("run", "-q", *args, "--", "sh", "-c", "cat /a/f /b/f /c/f", cwd=share.parent, env=env)
    assert out == "xxx"


def test_a_source_that_became_a_link(msb, share, tmp_path):
    """Another sandbox, or anyone who may write there, must not redirect a later start."""
    msb.create("b", "-v", f"{share}:/w")
    msb.ok("stop", "-q", "b")
    share.rmdir()
    share.symlink_to("/etc")
    p = msb("start", "b")
    assert p.returncode == 1 and b"symbolic link" in p.stderr
    share.unlink()
    share.mkdir()
    msb.ok("start", "-q", "b")


BAD = [
    (["-v", "/no/such/dir:/w"], "cannot mount '/no/such/dir'"),
    (["-v", "/tmp:/w,ro"], "write it as '/tmp:/w:ro'"),
    (["-v", "/tmp"], "expected SOURCE:DEST[:OPTIONS]"),
    (["-v", "/tmp:/w:frob"], "unsupported mount option 'frob'"),
    (["-v", "/tmp:/w", "-v", "/etc:/w/"], "two mounts on the same guest path: /w"),
    (["-v", "/tmp:/proc"], "/proc is set up by msb"),
    (["-v", "/dev/null:/w"], "neither a directory nor a regular file"),
    (["-v", ".data:/w"], "cannot mount '.data'"),
    (["-v", "da ta:/w"], "volume name must start with"),
    (["--mount-named", "../x:/w"], "volume name must start with"),
]


@pytest.mark.parametrize("args,message", BAD, ids=lambda x: x[1] if isinstance(x, list) else "")
def test_bad_mounts(msb, args, message):
    p = msb("create", "-n", "x", *args)
    assert p.returncode == 1
    assert message.encode() in p.stderr and p.stderr.startswith(b"error: ")
    assert msb.leftovers() == [] and not msb.processes()
