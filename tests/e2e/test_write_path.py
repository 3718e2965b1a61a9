"""--write-path: everything else in the guest is read-only, for root, too."""
import json

import pytest

from conftest import static_program
from guest import sh


@pytest.fixture(scope="session")
def attacks(tmp_path_factory):
    return static_program("write_path_attacks", tmp_path_factory.mktemp("attacks"))


def refused(msb, name, *paths):
    for path in paths:
        p = msb.sh(name, f"echo x >{path}")
        assert p.returncode != 0 and b"Read-only file system" in p.stderr, (path, p)


def test_only_listed_paths_can_be_written(msb, tmp_path):
    msb.create("w", "--write-path", "/workspace", "--write-path", "/var/lib/new//deep/",
               "--write-path", "/tmp", "--write-path", "/tmp/sub", "--write-path", "/etc/motd2",
               "-w", "/workspace")  # fmt: skip
    sh(msb, "w", "echo 1 >a; mkdir d; mv a d; echo 2 >/tmp/b; echo 3 >/var/lib/new/deep/c")
    refused(msb, "w", "/x", "/etc/x", "/root/x", "/var/lib/new/x", "/.msb/x", "/dev/x", "/run/x",
            "/sys/kernel/mm/x", "/proc/sys/kernel/hostname")  # fmt: skip
    assert msb.sh("w", "rm /bin/sh || mv /etc/hosts /tmp/ || ln /etc/hosts /tmp/h").returncode != 0
    # What keeps nothing works as ever.
    sh(msb, "w", "echo x >/dev/null; echo x >/dev/shm/x; echo 5 >/proc/self/oom_score_adj; "
                 "dd if=/dev/urandom of=/tmp/r bs=1k count=1 2>/dev/null")  # fmt: skip
    assert msb("exec", "-q", "-t", "w", "--", "tty").stdout.startswith(b"/dev/pts/")
    # As another user, and with the sandbox's next start.
    assert msb("exec", "-q", "-u", "1000", "w", "--", "touch", "/tmp/u").returncode == 0
    msb.ok("restart", "-q", "w")
    assert sh(msb, "w", "cat d/a /tmp/b") == "1\n2\n"
    refused(msb, "w", "/etc/x")
    config = json.loads(msb.ok("inspect", "w", "--format", "json"))["config"]
    assert config["write_paths"][:2] == ["/workspace", "/var/lib/new/deep"]


def test_tmp_is_writable_only_if_listed(msb):
    msb.create("w", "--write-path", "/job")
    refused(msb, "w", "/tmp/x", "/var/tmp/x")
    sh(msb, "w", "touch /job/x")


def test_mounts_are_as_mounted_where_listed(msb, tmp_path):
    dirs = {}
    for name in ("rw", "ro", "out", "above"):
        dirs[name] = tmp_path / name
        dirs[name].mkdir()
        (dirs[name] / "sub").mkdir()
    msb.create("w", "-v", f"{dirs['rw']}:/rw", "-v", f"{dirs['ro']}:/job/ro:ro",
               "-v", f"{dirs['out']}:/out", "-v", f"{dirs['above']}:/above", "--tmpfs", "/job/t:1M",
               "--write-path", "/rw", "--write-path", "/job", "--write-path", "/above/sub")  # fmt: skip
    sh(msb, "w", "echo 1 >/rw/f; echo 2 >/job/t/f; echo 3 >/job/f; echo 4 >/above/sub/f")
    refused(msb, "w", "/job/ro/f", "/out/f", "/out/sub/f", "/above/f")
    assert (dirs["rw"] / "f").read_text() == "1\n"
    assert (dirs["above"] / "sub" / "f").read_text() == "4\n"
    # A share that nothing of may be written is read-only for the host's server as well.
    mounts = json.loads(msb.ok("inspect", "w", "--format", "json"))["config"]["mounts"]
    assert {m["guest"]: m["options"]["readonly"] for m in mounts} == {
        "/rw": False, "/job/ro": True, "/out": True, "/above": False, "/job/t": False}  # fmt: skip


def test_root_cannot_undo_it(msb, tmp_path, attacks):
    share = tmp_path / "share"
    (share / "sub").mkdir(parents=True)
    (share / "attacks").write_bytes(attacks.read_bytes())
    (share / "attacks").chmod(0o755)
    (share / "secret").write_text("safe")
    flags = ["--write-path", "/tmp", "--write-path", "/s/sub", "-v", f"{share}:/s"]
    msb.create("w", *flags)
    for own, target in (("/tmp", "/etc/passwd"), ("/s/sub", "/s/secret")):
        p = msb("exec", "-q", "w", "--", "/s/attacks", own, target, check=0)
        assert p.stdout == b"done\n", (target, p)
    assert (share / "secret").read_text() == "safe"
    # The same program succeeds with what it is meant to be kept from.
    msb.create("free", "-v", f"{share}:/s")
    out = msb("exec", "-q", "free", "--", "/s/attacks", "/tmp", "/etc/passwd").stdout.decode()
    assert {"plainly", "remount", "node", "pid 1", "helper", "capability"} <= set(out.split("\n"))


def test_image_device_nodes_do_not_help(msb):
    """A disk's node that the writable layer holds from before is no device any more."""
    msb.create("w", "--write-path", "/tmp")
    assert "nodev" in sh(msb, "w", "grep ' /tmp ' /proc/mounts")
    assert "nodev" in sh(msb, "w", "grep '^overlay / ' /proc/mounts")


def test_what_is_copied_in_before_comes_before(msb, tmp_path):
    """--copy and the like are done by the sandbox's creator, whatever may be written later."""
    (tmp_path / "x").write_text("x\n")
    msb.create("w", "--write-path", "/tmp", "--copy", f"{tmp_path}/x:/etc/x", "--mkdir", "/opt/new")
    assert sh(msb, "w", "cat /etc/x; ls -d /opt/new") == "x\n/opt/new\n"
    refused(msb, "w", "/etc/x", "/opt/new/y")
    p = msb("cp", tmp_path / "x", "w:/etc/y")
    assert p.returncode == 1 and b"Read-only file system" in p.stderr
    msb.ok("cp", "-q", tmp_path / "x", "w:/tmp/y")


@pytest.mark.parametrize("path, why", [
    ("relative", "absolute"), ("/a/../b", "absolute"), ("", "absolute"), ("/", "restrict nothing"),
    ("/proc/sys", "set up by msb"), ("/dev/shm", "set up by msb"), ("/sys", "set up by msb"),
])  # fmt: skip
def test_bad_paths(msb, path, why):
    p = msb("create", "-n", "w", "--write-path", path)
    assert p.returncode == 1 and p.stderr.startswith(b"error: ") and why in p.stderr.decode()


def test_path_that_cannot_be_made(msb, tmp_path):
    d = tmp_path / "d"
    d.mkdir()
    p = msb("create", "-n", "w", "-v", f"{d}:/d:ro", "--write-path", "/d/missing")
    assert p.returncode == 1 and b"write path /d/missing" in p.stderr, p.stderr
    assert msb.ok("ls", "-q") == ""
