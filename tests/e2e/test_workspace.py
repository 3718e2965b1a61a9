"""Workspaces: directories for tasks, shared with a sandbox or copied into it and back."""
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading

import pytest

import fusekit
from conftest import wait_for
from guest import sh

SNAP = ["--workspace-mode", "snapshot"]


def data(msb, name):
    return msb.home / "workspaces" / name / "data"


def conflicts(msb, name):
    return sorted(p for p in (msb.home / "workspaces" / name).iterdir() if ".conflict-" in p.name)


def names(msb):
    return [w["name"] for w in json.loads(msb.ok("workspace", "ls", "--format", "json"))]


def standing(msb, box):
    return json.loads((msb.home / "sandboxes" / box / "workspace.json").read_text())["stage"]


def tree(path):
    return {str(p.relative_to(path)): p.read_text() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.fixture(autouse=True)
def no_litter(msb):
    yield
    for w in (msb.home / "workspaces").glob("*/.*.msb-new"):
        raise AssertionError(f"{w} is left")


# --- shared ---------------------------------------------------------------------------------------


def test_a_named_workspace_outlives_sandboxes(msb):
    msb.ok("run", "-q", "--workspace", "task", "--", "sh", "-c", "echo 1 >/workspace/f")
    assert (data(msb, "task") / "f").read_text() == "1\n"
    msb.create("a", "--workspace", "task")
    assert sh(msb, "a", "cat /workspace/f") == "1\n"
    assert msb("exec", "-q", "-u", "1000", "a", "--", "ls", "/workspace").stdout == b"f\n"
    assert names(msb) == ["task"]
    assert "a" in msb.ok("workspace", "ls") and "a" in msb.ok("ws", "inspect", "task")
    assert "\nWorkspace:      task\n  Mode:         fuse\n" in msb.ok("inspect", "a")
    w = json.loads(msb.ok("workspace", "inspect", "task", "--format", "json"))
    assert w["sandboxes"] == [{"mode": "fuse", "name": "a"}] and w["used_bytes"] > 0
    p = msb("workspace", "rm", "task")
    assert p.returncode == 1 and b"belongs to sandbox 'a'" in p.stderr
    msb.ok("workspace", "sync", "task")  # nothing to do, and no error
    msb.ok("rm", "-qf", "a")
    msb.ok("workspace", "rm", "-q", "task")
    assert names(msb) == [] and not data(msb, "task").exists()
    assert b"workspace not found" in msb("workspace", "inspect", "task").stderr


def test_a_host_directory(msb, tmp_path):
    d = tmp_path / "src"
    d.mkdir()
    (d / "f").write_text("host\n")
    out = msb.ok("run", "-q", "--workspace", d, "--", "sh", "-c", "cat /workspace/f; echo g >/workspace/g")
    assert out == "host\n" and (d / "g").read_text() == "g\n"
    assert names(msb) == []


@pytest.fixture
def silent_mount(tmp_path):
    """A FUSE file system whose server never answers."""
    libc = ctypes.CDLL(None, use_errno=True)
    d = tmp_path / "silent"
    d.mkdir()
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as e:
        pytest.skip(f"/dev/fuse: {e}")
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"silent", str(d).encode(), b"fuse", 0, options.encode()) < 0:
        os.close(fd)
        pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    yield d
    libc.umount2(str(d).encode(), 2)
    os.close(fd)


def test_a_mount_that_does_not_answer(msb, silent_mount):
    """msb says what it waits for; a time limit ends it, and so does Ctrl-C."""
    waits = f"waiting for '{silent_mount}', which does not answer".encode()
    p = msb("run", "--timeout", "1100ms", "--workspace", silent_mount, "--", "true", check=124)
    assert waits in p.stderr and b"did not answer within 1.1s" in p.stderr
    p = msb("run", "--timeout", "10ms", "-v", f"{silent_mount}/sub:/mnt", "--", "true", check=124)
    assert b"did not answer within 10ms" in p.stderr and b"waiting" not in p.stderr
    p = msb.popen("run", "--workspace", silent_mount, "--", "true", stderr=subprocess.PIPE)
    assert waits in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == -signal.SIGINT
    p.stderr.close()


@pytest.fixture
def fuse(tmp_path):
    m = fusekit.Mount(tmp_path)
    yield m
    m.close()


def test_a_directory_that_is_a_fuse_mount(msb, fuse):
    """As those of rclone and sshfs are; and what happens when its server is stopped, and when it is dead."""
    d = str(fuse.path)
    out = msb.ok("run", "-q", "--workspace", d, "--", "sh", "-c", fusekit.TOUR)
    assert out == fusekit.TOLD and fusekit.left(fuse)
    p = msb("run", "--workspace", d, *SNAP, "--", "true", check=1)
    assert b"which is a mount" in p.stderr and b"--workspace-mode fuse" in p.stderr
    msb.create("box", "-v", f"{d}:/mnt")
    assert sh(msb, "box", "cat /mnt/c; rm /mnt/c; ls -A /mnt") == "3\ne\n"
    msb.ok("stop", "-q", "box")
    fuse.process.send_signal(signal.SIGSTOP)
    waits = f"waiting for '{d}', which does not answer".encode()
    p = msb.popen("start", "box", stderr=subprocess.PIPE)
    assert waits in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == -signal.SIGINT
    p.stderr.close()
    for verb in (["exec"], ["run", "-n"]):
        p = msb(verb[0], "--timeout", "10ms", *verb[1:], "box", "--", "true", check=124)
        assert f"'{d}' did not answer within 10ms".encode() in p.stderr
    # What waits does not block anything.
    p = msb.popen("exec", "box", "--", "true", stderr=subprocess.PIPE)
    assert waits in p.stderr.readline()
    msb.ok("rm", "-q", "box")
    fuse.process.send_signal(signal.SIGCONT)
    assert p.wait(60) == 1 and b"sandbox not found" in p.stderr.read()
    p.stderr.close()
    msb.create("box", "-v", f"{d}:/mnt")
    msb.ok("stop", "-q", "box")
    fuse.process.kill()
    fuse.process.wait()
    for verb in (["start", "box"], ["run", "--workspace", d, "--", "true"], ["create", "-v", f"{d}/sub:/w"]):
        p = msb(*verb, check=1)
        assert f"the file server of '{d}".encode() in p.stderr and b"umount -l" in p.stderr, p.stderr


def test_a_fuse_mount_below_a_directory(msb, fuse, tmp_path):
    tour = fusekit.TOUR.replace("/workspace", f"/mnt/{fuse.path.name}")
    assert msb.ok("run", "-q", "-v", f"{tmp_path}:/mnt", "--", "sh", "-c", tour) == fusekit.TOLD and fusekit.left(fuse)


def test_what_cannot_be_meant(msb):
    msb.create("a")
    p = msb("workspace", "sync", "a")
    assert p.returncode == 1 and b"sandbox 'a' has no workspace" in p.stderr
    for args, why in [
        (["--workspace-mode", "snapshot"], b"requires --workspace"),
        (["--workspace-sync", "close"], b"--workspace-sync requires --workspace"),
        (["--workspace", "w", *SNAP, "--workspace-sync", "idle"], b"requires --workspace-mode fuse"),
    ]:
        p = msb("create", *args)
        assert p.returncode == 2 and why in p.stderr, p.stderr
    assert names(msb) == []


def test_persist_home(msb):
    msb.ok("run", "-q", "-n", "a", "--persist-home", "--", "sh", "-c", "echo 1 >~/f")
    msb.ok("rm", "-q", "a")
    assert msb.ok("run", "-q", "-n", "a", "--persist-home", "--", "cat", "/root/f") == "1\n"
    msb.ok("run", "-q", "--workspace", "w", "--persist-home", "--", "sh", "-c", "echo 2 >/root/f")
    assert msb.ok("run", "-q", "--workspace", "w", "--persist-home", "--", "cat", "/root/f") == "2\n"
    assert msb.ok("volume", "ls", "-q").split() == ["home-a", "home-w"]
    p = msb("run", "--persist-home", "--", "true")
    assert p.returncode == 1 and b"requires a named sandbox or workspace" in p.stderr


# --- copied ---------------------------------------------------------------------------------------


def test_snapshot_goes_in_and_comes_back(msb, tmp_path):
    d = tmp_path / "src"
    (d / "sub").mkdir(parents=True)
    (d / "f").write_text("1\n")
    (d / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (d / "run.sh").chmod(0o755)
    (d / "sub" / "link").symlink_to("../f")
    msb.create("a", "--workspace", d, *SNAP)
    assert sh(msb, "a", "cd /workspace; ./run.sh; cat sub/link") == "ran\n1\n"
    sh(msb, "a", "cd /workspace; echo 2 >f; rm run.sh; mkdir new; echo n >new/n; ln -s /etc/passwd p")
    assert tree(d)["f"] == "1\n"  # not before it is synced
    msb.ok("stop", "-q", "a")
    assert (d / "f").read_text() == "2\n" and (d / "new/n").read_text() == "n\n"
    assert not (d / "run.sh").exists() and os.readlink(d / "p") == "/etc/passwd"
    assert os.readlink(d / "sub/link") == "../f"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "src"]
    assert standing(msb, "a") == "same"
    # What the host changes meanwhile is there at the next start.
    (d / "f").write_text("3\n")
    (d / "new/n").unlink()
    msb.ok("start", "-q", "a")
    assert sh(msb, "a", "cd /workspace; cat f; ls new") == "3\n"
    # A command in a stopped sandbox is a start and a stop, too.
    msb.ok("stop", "-q", "a")
    msb.ok("exec", "-q", "a", "--", "sh", "-c", "echo 4 >/workspace/f")
    assert (d / "f").read_text() == "4\n" and msb.status("a") == "Stopped"


def test_snapshot_of_a_command(msb):
    for i in range(2):
        msb.ok("run", "-q", "--workspace", "w", *SNAP, "--", "sh", "-c", f"echo {i} >>/workspace/f")
    assert (data(msb, "w") / "f").read_text() == "0\n1\n"
    p = msb("run", "-q", "--workspace", "w", *SNAP, "--", "sh", "-c", "echo 2 >>/workspace/f; exit 7")
    assert p.returncode == 7 and (data(msb, "w") / "f").read_text().endswith("2\n")
    assert msb.ok("ls", "-q") == "" and conflicts(msb, "w") == []


def test_sync_of_one_that_runs(msb):
    msb.create("a", "--workspace", "w", *SNAP)
    sh(msb, "a", "echo 1 >/workspace/f")
    msb.ok("workspace", "sync", "-q", "w")
    assert tree(data(msb, "w")) == {"f": "1\n"} and msb.status("a") == "Running"
    sh(msb, "a", "echo 2 >/workspace/f")
    msb.ok("workspace", "sync", "-q", "a")  # by the sandbox's name
    assert tree(data(msb, "w")) == {"f": "2\n"}
    sh(msb, "a", "echo 3 >/workspace/f")
    msb.ok("stop", "-q", "a")
    assert tree(data(msb, "w")) == {"f": "3\n"} and conflicts(msb, "w") == []


@pytest.mark.parametrize("how", ["idle", "max", "poweroff", "kill", "force"])
def test_one_that_ended_by_itself_is_synced_by_the_next_command(msb, how):
    flags = {"idle": ["--idle-timeout", "300ms"], "max": ["--max-duration", "1s"]}.get(how, [])
    msb.create("a", "--workspace", "w", *SNAP, *flags)
    sh(msb, "a", "echo 1 >/workspace/f; sync")
    if how == "poweroff":
        msb.sh("a", "poweroff -f || /.msb/bin/busybox poweroff -f")
    elif how == "kill":
        os.kill(msb.monitor_pid("a"), signal.SIGKILL)
    elif how == "force":
        msb.ok("stop", "-q", "-f", "a")
    wait_for(lambda: msb.status("a") in ("Stopped", "Crashed"))
    wait_for(lambda: not msb.monitor_pid("a"))
    assert standing(msb, "a") == "out" and tree(data(msb, "w")) == {}
    msb.ok(*{"idle": ["stop", "-q", "a"], "max": ["rm", "-q", "a"],
             "poweroff": ["workspace", "sync", "-q", "w"], "kill": ["stop", "-q", "a"],
             "force": ["create", "-q", "--replace", "-n", "a", "--workspace", "w"]}[how])  # fmt: skip
    assert tree(data(msb, "w")) == {"f": "1\n"}
    # After a crash the tree may be torn: the one before is kept.
    assert len(conflicts(msb, "w")) == (how == "kill")


def test_changes_on_both_sides_are_both_kept(msb):
    msb.ok("run", "-q", "--workspace", "w", "--", "sh", "-c", "echo 0 >/workspace/f")
    msb.create("a", "--workspace", "w", *SNAP)
    sh(msb, "a", "echo guest >/workspace/f")
    (data(msb, "w") / "f").write_text("host\n")
    p = msb("stop", "a", check=0)
    assert b"changed on the host" in p.stderr and b"data.conflict-" in p.stderr
    assert tree(data(msb, "w")) == {"f": "guest\n"}
    (kept,) = conflicts(msb, "w")
    assert tree(kept) == {"f": "host\n"} and str(kept).encode() in p.stderr
    # Two sandboxes: the second finds what the first has brought.
    for name in ("b", "c"):
        msb.create(name, "--workspace", "w", *SNAP)
        sh(msb, name, f"echo {name} >/workspace/f")
    msb.ok("stop", "-q", "b", "c")
    assert tree(data(msb, "w")) == {"f": "c\n"}
    assert [tree(p)["f"] for p in conflicts(msb, "w")][-1] == "b\n"


def test_size_limits(msb, tmp_path):
    d = tmp_path / "big"
    d.mkdir()
    (d / "f").write_bytes(bytes(3 << 20))
    p = msb("create", "-n", "a", "--workspace", d, *SNAP, "--workspace-max", "2M")
    assert p.returncode == 1 and b"larger than 2 MiB" in p.stderr and msb.ok("ls", "-q") == ""
    msb.create("a", "--workspace", "w", *SNAP, "--workspace-max", "2M")
    for script in ("dd if=/dev/zero of=/workspace/big bs=1M count=3 2>/dev/null",
                   "rm /workspace/big; t=$(printf %04000d 0); i=0; "
                   "while [ $i -lt 600 ]; do ln -s $t /workspace/$i; i=$((i+1)); done"):  # fmt: skip
        sh(msb, "a", script)
        p = msb("workspace", "sync", "w")
        assert p.returncode == 1 and b"larger than 2 MiB" in p.stderr and b"--max" in p.stderr
    p = msb("stop", "a")
    assert p.returncode == 1 and b"cannot sync the workspace" in p.stderr and msb.status("a") == "Stopped"
    assert tree(data(msb, "w")) == {} and standing(msb, "a") == "out"
    p = msb("rm", "a")
    assert p.returncode == 1 and b"rm -f" in p.stderr
    msb.ok("workspace", "sync", "-q", "w", "--max", "100M")
    assert len(list(data(msb, "w").iterdir())) == 600
    msb.ok("rm", "-q", "a")


def test_what_cannot_be_copied_is_refused(msb, tmp_path):
    d = tmp_path / "d"
    d.mkdir()
    os.mkfifo(d / "pipe")
    p = msb("create", "-n", "a", "--workspace", d, *SNAP)
    assert p.returncode == 1 and b"'pipe'" in p.stderr and msb.ok("ls", "-q") == ""
    # In the guest it is skipped, with a word.
    msb.create("a", "--workspace", "w", *SNAP)
    sh(msb, "a", "mkfifo /workspace/pipe; echo 1 >/workspace/f; mknod /workspace/n c 1 3; "
                 "echo s >/workspace/s; chmod 6755 /workspace/s")  # fmt: skip
    p = msb("stop", "a", check=0)
    assert b"pipe" in p.stderr
    assert tree(data(msb, "w")) == {"f": "1\n", "s": "s\n"}
    assert (data(msb, "w") / "s").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("stage", ["enter", "leave"])
def test_killed_at_any_moment(msb, stage):
    """The workspace is the old one or the new one, whole; and the next sync ends it well."""
    files = {f"f{i}": "old" for i in range(60)}
    msb.ok("run", "-q", "--workspace", "w", "--", "sh", "-c",
           "cd /workspace; i=0; while [ $i -lt 60 ]; do printf old >f$i; i=$((i+1)); done")  # fmt: skip
    assert tree(data(msb, "w")) == files
    msb.create("a", "--workspace", "w", *SNAP)
    sh(msb, "a", "cd /workspace; for f in f*; do printf new >$f; done")
    if stage == "leave":
        msb.ok("stop", "-q", "-f", "a")
        sh(msb, "a", "cd /workspace; for f in f*; do printf new >$f; done; sync")
    for delay in (0.03, 0.06, 0.09, 0.12):
        if stage == "enter":
            (data(msb, "w") / "f0").write_text("old")  # so that it goes in again
            command = ["restart", "-q", "a"]
        else:
            sh(msb, "a", "printf new >/workspace/f0; sync") if msb.monitor_pid("a") else None
            command = ["stop", "-q", "a"]
        p = msb.popen(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            p.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        got = tree(data(msb, "w"))
        got.pop("f0")
        assert set(got.values()) in ({"old"}, {"new"}) and len(got) == 59, got
        if stage == "leave":
            msb("start", "-q", "a")
    msb.ok("stop", "-q", "a")
    got = tree(data(msb, "w"))
    assert len(got) == 60 and {v for k, v in got.items() if k != "f0"} == {"new"}


def test_what_a_killed_sync_left_is_for_its_own_sandbox(msb):
    """One that died after the exchange has left the old tree, with what somebody had changed in it:
    another sandbox with the same workspace must not take it for half of a new one."""
    options = ("-m", "64M", "--workspace", "w", "--workspace-mode", "snapshot")
    msb.create("a", *options)
    msb.ok("stop", "-q", "a")
    place = msb.home / "workspaces" / "w"
    now = (place / "data").stat()
    state = msb.home / "sandboxes" / "a" / "workspace.json"
    was = json.loads(state.read_text())
    state.write_text(json.dumps({**was, "stage": "replacing", "new_dev": now.st_dev, "new_ino": now.st_ino}))
    old = place / f".data.{hashlib.sha256(b'a').hexdigest()[:12]}.msb-new"
    old.mkdir()
    (old / "precious").write_text("mine")
    msb.create("b", *options)
    msb.ok("stop", "-q", "b")
    msb.ok("start", "-q", "a")
    kept = conflicts(msb, "w")
    assert [(c / "precious").read_text() for c in kept] == ["mine"]


def test_a_killed_sync_after_a_crash_keeps_the_old_content(msb):
    """The old tree has not changed since it was copied in, but the new one may be incomplete."""
    msb.create("a", "--workspace", "w", *SNAP)
    sh(msb, "a", "echo 1 >/workspace/f")
    msb.ok("stop", "-q", "a")
    place = msb.home / "workspaces" / "w"
    old = place / f".data.{hashlib.sha256(b'a').hexdigest()[:12]}.msb-new"
    state = msb.home / "sandboxes" / "a" / "workspace.json"
    was = json.loads(state.read_text())
    for keep in (False, True):
        (place / "data").rename(old)
        shutil.copytree(old, place / "data")
        now = (place / "data").stat()
        state.write_text(json.dumps({**was, "stage": "replacing", "new_dev": now.st_dev, "new_ino": now.st_ino,
                                     "keep": keep}))
        p = msb("start", "a", check=0)
        assert (b"the sandbox crashed" in p.stderr) == keep
        assert [tree(c) for c in conflicts(msb, "w")] == ([{"f": "1\n"}] if keep else [])
        msb.ok("stop", "-q", "a")
        was = json.loads(state.read_text())


@pytest.mark.parametrize("how", [("rm", "-f", "a"), ("create", "-n", "a", "-m", "64M", "--replace")], ids=lambda h: h[0])
def test_what_a_damaged_sandbox_takes_with_it_is_mentioned(msb, how):
    for options in (["--workspace", "w", *SNAP], []):
        msb.create("a", *options)
        (msb.home / "sandboxes" / "a" / "spec.json").write_text("{")
        p = msb(*how, check=0)
        assert (b"not synced are lost" in p.stderr) == bool(options)
        msb("rm", "-f", "a")


def test_a_workspace_that_is_used_at_the_same_time(msb):
    """Copies in and out of one workspace take turns."""
    boxes = ["a", "b", "c"]
    errors = []

    def use(name):
        p = msb("run", "-q", "--workspace", "w", *SNAP, "--", "sh", "-c", f"echo {name} >/workspace/{name}")
        if p.returncode:
            errors.append(p.stderr)

    threads = [threading.Thread(target=use, args=(n,)) for n in boxes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    kept = [data(msb, "w"), *conflicts(msb, "w")]
    assert {n for d in kept for n in tree(d)} == set(boxes)


@pytest.mark.parametrize("flags, why", [
    (["--workspace", "a/b"], "workspace name must"),
    (["--workspace", ""], "workspace name must"),
    (["--workspace", "./missing-dir"], "cannot mount"),
    (["--workspace", "/etc/passwd"], "not a directory"),
    (["--workspace", "w", *SNAP, "--workspace-max", "x"], "invalid value"),
    (["--workspace", "w", *SNAP, "--workspace-max", "1K"], "at least 1 MiB"),
    (["--workspace", "w", *SNAP, "--root-disk", "tmpfs"], "cannot be in memory"),
    (["--workspace", "w", *SNAP, "--write-path", "/tmp"], "--write-path /workspace"),
    (["--workspace", "w", *SNAP, "--tmpfs", "/workspace/t"], "nothing can be mounted"),
    (["--workspace", "w", "--tmpfs", "/workspace"], "two mounts on the same guest path"),
])  # fmt: skip
def test_bad_workspaces(msb, flags, why):
    p = msb("create", "-n", "a", *flags)
    assert p.returncode == 1 and p.stderr.startswith(b"error: ") and why in p.stderr.decode(), p
    assert msb.ok("ls", "-q") == ""


def test_write_paths_go_with_snapshots(msb):
    msb.create("a", "--workspace", "w", *SNAP, "--write-path", "/workspace")
    sh(msb, "a", "echo 1 >/workspace/f")
    assert msb.sh("a", "echo 1 >/etc/f").returncode != 0
    msb.ok("stop", "-q", "a")
    assert tree(data(msb, "w")) == {"f": "1\n"}
