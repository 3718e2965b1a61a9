"""Disks that outlive sandboxes: volumes of kind disk, and raw files of the host."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading

import pytest

import qcow2kit
from conftest import wait_for
from guest import sh


@pytest.fixture
def image(tmp_path):
    """A raw disk with an ext4 on it."""
    path = tmp_path / "disk.img"
    with open(path, "wb") as f:
        f.truncate(16 << 20)
    mke2fs = shutil.which("mke2fs", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    subprocess.run([mke2fs, "-q", "-F", "-t", "ext4", path], check=True)
    return path


def volumes(msb):
    return {v["name"]: v for v in json.loads(msb.ok("volume", "ls", "--format", "json"))}


def test_a_disk_volume_keeps_what_was_written(msb):
    assert msb.ok("volume", "create", "db", "--kind", "disk", "--size", "32M") == "db\n"
    v = volumes(msb)["db"]
    assert (v["kind"], v["capacity_bytes"], v["disk_format"], v["disk_fstype"]) == (
        "disk", 32 << 20, "raw", "ext4")  # fmt: skip
    assert v["used_bytes"] < 8 << 20  # sparse
    msb.create("a", "-v", "db:/db")
    sh(msb, "a", "echo 1 >/db/f; chown 5:6 /db/f; ln -s f /db/l")
    # Its size is the end of it, for the guest and for the host.
    p = msb.sh("a", "dd if=/dev/zero of=/db/big bs=1M count=64")
    assert b"No space left" in p.stderr
    raw = msb.home / "volumes/db/disk.raw"
    msb.ok("stop", "-q", "a")
    assert raw.stat().st_size == 32 << 20 and raw.stat().st_blocks * 512 <= 33 << 20
    msb.ok("rm", "-q", "a")
    msb.create("b", "-v", "db:/elsewhere:ro", "--root-disk", "tmpfs")
    assert sh(msb, "b", "cat /elsewhere/l; stat -c %u:%g /elsewhere/f") == "1\n5:6\n"
    assert b"Read-only" in msb.sh("b", "echo x >/elsewhere/f").stderr


def test_made_when_missing(msb):
    msb.create("a", "--mount-named", "n:/n:kind=disk,size=17M", "--tmpfs", "/n/t", "-w", "/n")
    assert volumes(msb)["n"]["capacity_bytes"] == 17 << 20
    sh(msb, "a", "touch t/x y")
    msb.ok("stop", "-q", "a")
    msb.ok("rm", "-q", "a")
    # A size is for making it.
    p = msb("create", "--mount-named", "n:/n:kind=disk,size=20M")
    assert p.returncode == 1 and b"already has 17 MiB" in p.stderr
    msb.create("a", "--mount-named", "n:/n:kind=disk")
    assert "y" in sh(msb, "a", "ls /n").split()


def test_one_writer_or_many_readers(msb, image):
    msb.ok("volume", "create", "-q", "db", "--kind", "disk", "--size", "16M")
    msb.create("w", "-v", "db:/db", "--mount-disk", f"{image}:/img")
    for flags in (["-v", "db:/x"], ["-v", "db:/x:ro"], ["--mount-disk", f"{image}:/x:ro"]):
        p = msb("create", "-n", "other", *flags)
        assert p.returncode == 1 and b"is in use by sandbox 'w'" in p.stderr, p
    assert msb.ok("ls", "-q") == "w\n"
    # The lock is released with the monitor, however that ends.
    os.kill(msb.monitor_pid("w"), signal.SIGKILL)
    wait_for(lambda: msb.status("w") == "Crashed")
    for name in ("r1", "r2"):
        msb.create(name, "-v", "db:/db:ro", "--mount-disk", f"{image}:/img:ro")
    for args in (["start", "w"], ["exec", "w", "--", "true"]):
        p = msb(*args)
        assert p.returncode == 1 and b"is in use by sandbox 'r" in p.stderr, (args, p)
    starts = [x for x in msb.ok("audit").splitlines() if " start " in x and " w " in x]
    assert len(starts) == 2 and all("in use" in x for x in starts), "tried once each, and both are on record"
    msb.ok("stop", "-q", "-f", "r1", "r2")
    msb.ok("start", "-q", "w")
    sh(msb, "w", "touch /db/x /img/x")


def test_a_command_that_ends_with_its_sandbox_loses_nothing(msb):
    msb.ok("volume", "create", "-q", "n", "--kind", "disk", "--size", "32M")
    for i in range(3):
        msb.ok("run", "-q", "-v", "n:/n", "--", "sh", "-c",
               f"echo {i} >>/n/f; sleep 86400 >/dev/null 2>&1 &")  # fmt: skip
    assert msb.ok("run", "-q", "-v", "n:/n:ro", "--", "cat", "/n/f") == "0\n1\n2\n"
    name = msb.ok("run", "-q", "-d", "-v", "n:/n", "--", "sh", "-c", "echo 3 >>/n/f").strip()
    wait_for(lambda: not msb("ls", "-q").stdout)
    assert name and msb.ok("run", "-q", "-v", "n:/n:ro", "--", "cat", "/n/f").endswith("3\n")


def test_synced_data_survives_the_monitor(msb):
    msb.create("a", "--mount-named", "n:/n:kind=disk,size=32M")
    sh(msb, "a", "echo kept >/n/f; sync")
    os.kill(msb.monitor_pid("a"), signal.SIGKILL)
    wait_for(lambda: msb.status("a") == "Crashed")
    assert sh(msb, "a", "cat /n/f") == "kept\n"


def test_a_lock_that_outlives_a_killed_monitor_is_waited_for(msb):
    msb.create("a", "--mount-named", "n:/n:kind=disk,size=32M")
    msb.ok("stop", "-q", "a")
    with open(msb.home / "volumes" / "n" / "disk.raw", "rb") as disk:
        fcntl.flock(disk, fcntl.LOCK_EX)
        p = msb.popen("exec", "-q", "a", "--", "echo", "mounted", stdout=subprocess.PIPE)
        held = os.path.realpath(disk.name)
        wait_for(lambda: held in map(os.path.realpath, pathlib.Path(f"/proc/{p.pid}/fd").iterdir()))
    assert p.communicate(timeout=60)[0] == b"mounted\n" and p.returncode == 0


SYNC = "cat /sys/block/vdc/queue/write_cache; grep -c '^overlay / .*volatile' /proc/mounts || true"


def test_only_a_root_disk_that_is_kept_waits_for_the_hosts_disk(msb):
    assert msb.ok("run", "-q", "--", "sh", "-c", SYNC) == "write through\n1\n"
    assert msb.ok("run", "-q", "--disk-sync", "always", "--", "sh", "-c", SYNC) == "write back\n0\n"
    msb.create("a")
    assert sh(msb, "a", SYNC) == "write back\n0\n"
    p = msb("create", "-n", "b", "--disk-sync", "sometimes")
    assert p.returncode and b"auto" in p.stderr and b"never" in p.stderr


def test_a_root_disk_that_is_never_synced_survives_the_monitor(msb):
    msb.create("a", "--disk-sync", "never", "--mount-named", "n:/n:kind=disk,size=32M")
    disk = json.loads(msb.ok("inspect", "a", "--format", "json"))["config"]["resources"]["root_disk"]
    assert disk["sync"] == "never"
    assert sh(msb, "a", SYNC + "; cat /sys/block/vdd/queue/write_cache") == "write through\n0\nwrite back\n"
    sh(msb, "a", "echo kept >/root/f; sync")
    os.kill(msb.monitor_pid("a"), signal.SIGKILL)
    wait_for(lambda: msb.status("a") == "Crashed")
    assert sh(msb, "a", "cat /root/f; " + SYNC) == "kept\nwrite through\n0\n"


def test_volumes_are_kept_while_mounted(msb):
    msb.create("a", "--mount-named", "n:/n:kind=disk,size=16M")
    msb.ok("stop", "-q", "a")
    p = msb("volume", "rm", "n")
    assert p.returncode == 1 and b"mounted by sandbox 'a'" in p.stderr
    msb.ok("rm", "-q", "a")
    msb.ok("volume", "rm", "-q", "n")
    assert volumes(msb) == {}


@pytest.mark.parametrize("kind", ["dir", "disk"])
def test_removal_and_creation_at_the_same_time(msb, kind):
    """Either the volume is there and mounted, or it is gone and so is nothing of value."""
    what = "n:/n" if kind == "dir" else "n:/n:kind=disk,size=16M"
    for i in range(4):
        removals = []
        t = threading.Thread(
            target=lambda: removals.extend(msb("volume", "rm", "n").returncode for _ in range(12)))
        t.start()
        msb.create(f"a{i}", "--mount-named", what)
        t.join()
        assert "n" in volumes(msb)
        assert sh(msb, f"a{i}", "touch /n/x; ls /n").split()[-1] == "x"
        msb.ok("rm", "-qf", f"a{i}")
        msb("volume", "rm", "-q", "n")


def test_an_image_of_the_host(msb, image, tmp_path):
    msb.create("a", "--mount-disk", f"{image}:/img:format=raw,fstype=ext4,noexec")
    sh(msb, "a", "echo 1 >/img/f; cp /bin/busybox /img/ || cp /bin/sh /img/busybox")
    assert msb.sh("a", "/img/busybox true").returncode == 126
    assert "noexec" in sh(msb, "a", "grep /img /proc/mounts")
    msb.ok("stop", "-q", "a")
    fsck = shutil.which("e2fsck", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    subprocess.run([fsck, "-fn", image], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)  # fmt: skip
    config = json.loads(msb.ok("inspect", "a", "--format", "json"))["config"]
    assert config["mounts"][0]["type"] == "DiskImage"
    # A link that is in the path now was added later.
    moved = tmp_path / "moved.img"
    image.rename(moved)
    image.symlink_to(moved)
    p = msb("start", "a")
    assert p.returncode == 1 and b"disk.img" in p.stderr


def test_a_damaged_directory_is_refused(msb, tmp_path):
    """Whatever is wrong with an entry, the guest's kernel adds no other one behind it."""
    damage = {"length of nothing": (4, 8), "shorter than the name": (4, 12), "beyond the block": (4, 4092),
              "odd": (4, 22), "no such inode": (2, 0x7FFF)}  # fmt: skip
    tree = tmp_path / "tree"
    for i in range(len(damage) + 1):
        (tree / f"d{i}").mkdir(parents=True)
        (tree / f"d{i}" / f"victim number {i}").touch()
    path = tmp_path / "disk.img"
    with open(path, "wb") as f:
        f.truncate(16 << 20)
    mke2fs = shutil.which("mke2fs", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    subprocess.run([mke2fs, "-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^metadata_csum", "-d", tree, path], check=True)
    data = path.read_bytes()
    with open(path, "r+b") as f:
        for i, (offset, value) in enumerate(damage.values()):
            f.seek(data.index(b"victim number %d" % i) - 8 + offset)
            f.write(value.to_bytes(2, "little"))
    msb.create("a", "--mount-disk", path.as_posix() + ":/img:format=raw,fstype=ext4")
    added = sh(msb, "a", f"for i in $(seq 0 {len(damage)}); do touch /img/d$i/new 2>/dev/null && echo $i; done; true")
    assert added.split() == [str(len(damage))]  # the one without damage


def test_a_root_disk_of_the_host(msb, image):
    """What is written is in the file, which outlives its sandboxes; one at a time has it."""
    msb.ok("run", "-q", "--root-disk", image, "--", "sh", "-c", "echo kept >/root/f")
    msb.create("a", "--root-disk", f"{image}:format=raw,fstype=ext4")
    assert sh(msb, "a", "cat /root/f") == "kept\n"
    disk = json.loads(msb.ok("inspect", "a", "--format", "json"))["config"]["resources"]["root_disk"]
    assert (disk["type"], disk["path"], disk["size_bytes"]) == ("file", str(image), image.stat().st_size)
    for flags in (["--root-disk", image], ["--mount-disk", f"{image}:/x"]):
        p = msb("run", *flags, "--", "true")
        assert p.returncode == 1 and b"is in use by sandbox 'a'" in p.stderr
    msb.ok("stop", "-q", "a")
    p = msb("modify", "a", "--root-disk", "8G")
    assert p.returncode == 1 and b"your own file" in p.stderr
    msb.ok("rm", "-q", "a")
    fsck = shutil.which("e2fsck", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    subprocess.run([fsck, "-fn", image], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # It is mounted again, which an overlay without syncs would refuse.
    p = msb("run", "-q", "--disk-sync", "never", "--root-disk", image, "--", "cat", "/root/f")
    assert p.stdout == b"kept\n"


def test_what_is_no_file_system_is_an_error(msb, tmp_path):
    junk = tmp_path / "junk"
    junk.write_bytes(os.urandom(1 << 20))
    p = msb("create", "-n", "a", "--mount-disk", f"{junk}:/j")
    assert p.returncode == 1 and b"cannot mount a disk (ext4) on /j" in p.stderr, p.stderr
    assert msb.ok("ls", "-q") == ""


def test_a_qcow2_image_is_read(msb, image, tmp_path):
    """As it was written, holes included; what cannot be read by its tables alone is refused, and says what to do."""
    msb.ok("run", "-q", "--mount-disk", f"{image}:/d", "--", "sh", "-c", "seq 200000 >/d/f; sync")
    disk = image.read_bytes()
    flags = []
    for name, how in (("v3", {}), ("v2", {"version": 2, "cluster_bits": 12}), ("v9", {"cluster_bits": 9, "scattered": False})):
        (tmp_path / f"{name}.qcow2").write_bytes(qcow2kit.image(disk, **how))
        flags += ["--mount-disk", f"{tmp_path}/{name}.qcow2:/{name}:ro"]
    msb.create("a", *flags)
    assert sh(msb, "a", "seq 200000 >/f; for d in v2 v3 v9; do cmp /f /$d/f && ls /$d | wc -l; done") == "2\n2\n2\n"
    assert msb.sh("a", "echo >/v3/g").returncode != 0
    mounts = json.loads(msb.ok("inspect", "a", "--format", "json"))["config"]["mounts"]
    assert {m["format"] for m in mounts} == {"qcow2"}
    msb.ok("rm", "-qf", "a")
    for why, how in (("has a backing file", {"backing": 512, "backing_size": 4}), ("does not know", {"features": 32}),
                     ("is compressed", {"entry": lambda i, at: at | qcow2kit.COMPRESSED}),
                     ("is damaged", {"l1_at": 1 << 40})):  # fmt: skip
        (tmp_path / "bad.qcow2").write_bytes(qcow2kit.image(b"x" * 4096, **how))
        p = msb("create", "-n", "b", "--mount-disk", f"{tmp_path}/bad.qcow2:/x:ro")
        assert p.returncode == 1 and why in p.stderr.decode() and b"qemu-img convert" in p.stderr, (why, p)


BAD = [
    (["--mount-disk", "{d}/q.qcow2:/x"], "mount it read-only: {d}/q.qcow2:/x:ro"),
    (["--mount-disk", "{d}/q.qcow2:/x:ro"], "its version is neither 2 nor 3"),
    (["--mount-disk", "{d}/v.vmdk:/x"], "is a vmdk image"),
    (["--mount-disk", "{d}/raw:/x:format=qcow2,ro"], "it is not a qcow2 image"),
    (["--mount-disk", "{d}/raw:/x:format=vhdx,ro"], "only raw and qcow2 images are supported"),
    (["--mount-disk", "{d}/raw:/x:fstype=zfs"], "ext4, ext3, ext2, erofs"),
    (["--mount-disk", "{d}/raw:/x:quota=1G"], "unsupported mount option"),
    (["--mount-disk", "{d}/raw:/x:ro,rw"], "repeats or contradicts"),
    (["--mount-disk", "{d}/raw:/x", "--mount-disk", "{d}/raw:/y"], "mounted twice"),
    (["--mount-disk", "{d}:/x"], "regular file"),
    (["--mount-disk", "/dev/null:/x"], "regular file"),
    (["--mount-disk", "{d}/missing:/x"], "cannot mount"),
    (["--mount-disk", "{d}/odd:/x"], "multiple of 512"),
    (["--mount-disk", "{d}/empty:/x:ro"], "multiple of 512"),
    (["--root-disk", "{d}/raw"], "mkfs.ext4"),
    (["--root-disk", "{d}/missing"], "truncate -s 8G"),
    (["--root-disk", "{d}/raw:fstype=ext3"], "ext4 file system, not ext3"),
    (["--root-disk", "{d}/raw:format=raw,ro"], "unsupported mount option 'ro'"),
    (["--root-disk", "{d}"], "regular file"),
    (["--root-disk", "{d}/q.qcow2"], "qemu-img convert"),
    (["--mount-named", "n:/x:kind=disk"], "needs a size"),
    (["--mount-named", "n:/x:size=1G"], "kind=disk"),
    (["--mount-named", "n:/x:kind=tape"], "dir or disk"),
    (["--mount-named", "n:/x:kind=disk,size=1M"], "too small"),
    (["--mount-named", "n:/x:kind=disk,size=16M,uid=1,gid=1"], "not for disks"),
    (["-v", "n:/x:kind=disk,size=16M"], "unsupported mount option"),
]


@pytest.mark.parametrize("flags, why", BAD)
def test_bad_disks(msb, tmp_path, flags, why):
    (tmp_path / "q.qcow2").write_bytes(b"QFI\xfb" + bytes(1020))
    (tmp_path / "v.vmdk").write_bytes(b"KDMV" + bytes(1020))
    (tmp_path / "raw").write_bytes(bytes(1 << 20))
    (tmp_path / "odd").write_bytes(bytes(1000))
    (tmp_path / "empty").touch()
    p = msb("create", "-n", "a", *[f.format(d=tmp_path) for f in flags])
    assert p.returncode == 1 and p.stderr.startswith(b"error: ") and why.format(d=tmp_path) in p.stderr.decode(), p
    assert msb.ok("ls", "-q") == "" and volumes(msb) == {}


def test_kinds_do_not_mix(msb):
    msb.ok("volume", "create", "-q", "d")
    p = msb("create", "--mount-named", "d:/x:kind=disk,size=16M")
    assert p.returncode == 1 and b"'d' is a directory, not a disk" in p.stderr
    msb.ok("volume", "create", "-q", "k", "--kind", "disk", "--size", "16M")
    p = msb("create", "-v", "k:/x:quota=1M")
    assert p.returncode == 1 and b"'k' is a disk" in p.stderr
    p = msb("volume", "create", "x", "--kind", "disk")
    assert p.returncode == 1 and b"requires --size" in p.stderr
    p = msb("volume", "create", "k", "--kind", "disk", "--size", "16M")
    assert p.returncode == 1 and b"already exists" in p.stderr


def test_creation_that_was_killed_leaves_no_volume(msb):
    for delay in (0, 0.002, 0.005, 0.01, 0.02):
        p = msb.popen("volume", "create", "-q", "k", "--kind", "disk", "--size", "64M")
        try:
            p.wait(timeout=delay or 0.0001)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        if "k" in volumes(msb):
            msb.create("a", "-v", "k:/k")
            sh(msb, "a", "touch /k/x")
            msb.ok("rm", "-qf", "a")
            msb.ok("volume", "rm", "-q", "k")
    msb.ok("volume", "create", "-q", "k", "--kind", "disk", "--size", "64M")
    assert os.listdir(msb.home / "volumes/k") and volumes(msb)["k"]["capacity_bytes"] == 64 << 20
