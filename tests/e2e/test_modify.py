"""modify: what a sandbox was asked to be changes as a whole, and its disk grows."""
import json
import os
import signal
import subprocess

import pytest

from conftest import wait_for
from guest import sh


def config(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))["config"]


def mib(msb, name):
    """Size of the guest's root file system."""
    return int(sh(msb, name, "df -m / | tail -1").split()[1])


def disk(msb, name):
    return (msb.home / "sandboxes" / name / "upper.ext4").stat()


def test_root_disk_holds(msb):
    """A guest that fills it gets ENOSPC; the host's file does not exceed it."""
    msb.create("a", "--root-disk", "32M")
    p = msb.sh("a", "dd if=/dev/urandom of=/big bs=1M count=64")
    assert p.returncode != 0 and b"No space left on device" in p.stderr
    p = msb.sh("a", "i=0; while echo x >/f$i; do i=$((i+1)); done")
    assert b"No space left on device" in p.stderr
    st = disk(msb, "a")
    assert st.st_size == 32 << 20 and st.st_blocks * 512 <= 33 << 20
    assert sh(msb, "a", "rm /big; echo ok >/again; cat /again") == "ok\n"


def test_root_disk_grows(msb):
    msb.create("a", "--root-disk", "32M")
    sh(msb, "a", "echo kept >/f; dd if=/dev/zero of=/big bs=1M count=20 2>/dev/null")
    assert mib(msb, "a") < 32
    msb.ok("stop", "-q", "a")
    msb.ok("modify", "a", "--root-disk", "400M")
    assert config(msb, "a")["resources"]["root_disk"]["size_bytes"] == 400 << 20
    assert disk(msb, "a").st_size == 400 << 20
    msb.ok("start", "-q", "a")
    assert mib(msb, "a") > 350
    sh(msb, "a", "dd if=/dev/zero of=/more bs=1M count=100 2>/dev/null; cat /f")
    assert disk(msb, "a").st_blocks * 512 < 300 << 20  # still sparse
    # Further, running, by way of a restart; and by the same amount, which changes nothing.
    msb.ok("modify", "a", "--root-disk", "2G", "--restart", "-q")
    msb.ok("mod", "a", "--root-disk", "2G", "-q")
    assert mib(msb, "a") > 1900
    assert sh(msb, "a", "cat /f; stat -c %s /more") == f"kept\n{100 << 20}\n"
    assert "failed" not in msb.ok("logs", "--source", "system", "a")


def test_killed_while_growing(msb):
    """modify, and the start that grows the file system, can die at any moment."""
    msb.create("a", "--root-disk", "32M")
    sh(msb, "a", "echo kept >/f; sync")
    msb.ok("stop", "-q", "a")
    for size, delay in ((64, 0.001), (128, 0.002), (256, 0.004), (512, 0.008)):
        p = msb.popen("modify", "-q", "a", "--root-disk", f"{size}M")
        try:
            p.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        said = config(msb, "a")["resources"]["root_disk"]["size_bytes"]
        assert disk(msb, "a").st_size >= said
    msb.ok("modify", "-q", "a", "--root-disk", "6G")
    for delay in (0.02, 0.03, 0.04, 0.06):
        p = msb.popen("start", "-q", "a")
        try:
            p.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        pid = msb.monitor_pid("a")
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not msb.monitor_pid("a"))
    msb("start", "-q", "a")
    assert sh(msb, "a", "cat /f") == "kept\n"
    assert mib(msb, "a") > 5900


def test_settings(msb):
    msb.create("a", "-e", "OLD=1", "-e", "GONE=1", "--label", "x=1", "--label", "y=2", "-w", "/tmp")
    p = msb("modify", "a", "--memory", "300M", "-e", "OLD=2")
    assert p.returncode == 1 and b"sandbox still running" in p.stderr and b"--restart" in p.stderr
    assert b"memory cannot be changed while it runs" in p.stderr and b"--next-start" in p.stderr
    # Labels do not concern anything inside the sandbox.
    msb.ok("modify", "-q", "a", "--label", "x=3", "--label-rm", "y", "--label", "z")
    assert config(msb, "a")["labels"] == {"x": "3", "z": ""}
    args = ["modify", "a", "--memory", "300M", "--cpus", "0.5", "-e", "OLD=2", "--env-rm", "GONE",
            "--env-rm", "NEVER", "-w", "/etc"]  # fmt: skip
    before = (msb.home / "sandboxes/a/spec.json").read_bytes()
    out = msb.ok(*args, "--dry-run", "--restart")
    assert [line.split()[0] for line in out.splitlines()] == [
        "FIELD", "cpus", "memory", "env", "env", "workdir"]  # fmt: skip
    plan = json.loads(msb.ok(*args, "--dry-run", "--format", "json"))
    assert plan["applied"] is False and len(plan["changes"]) == 5
    assert {c["disposition"] for c in plan["changes"]} == {"requires restart"}
    assert (msb.home / "sandboxes/a/spec.json").read_bytes() == before
    msb.ok(*args, "--restart")
    assert sh(msb, "a", "echo $OLD$GONE; pwd; grep MemTotal /proc/meminfo").split()[:2] == [
        "2", "/etc"]  # fmt: skip
    assert config(msb, "a")["resources"]["memory_mib"] == 300
    # No change is a success.
    assert b"Modified" in msb("modify", "a", check=0).stderr


@pytest.mark.parametrize("args, why", [
    (["--root-disk", "16M"], "can only grow"),
    (["--root-disk", "x"], "invalid value"),
    (["--root-disk", "0"], "invalid value"),
    (["--root-disk", "9000T"], "root disk must be"),
    (["--memory", "1M"], "memory must be"),
    (["--cpus", "999"], "invalid value"),
    (["--workdir", "relative"], "absolute"),
    (["--label", "sandbox.x=1"], "reserved prefix"),
    (["--env", "MSB_SURELY_NOT_SET"], "not set"),
    (["--max-cpus", "0.5"], "max_cpus 0.5 must be greater than or equal to cpus 1"),
    (["--max-memory", "32M"], "max_memory 32 MiB must be greater than or equal to memory"),
    (["--max-cpus", "0"], "invalid value"),
])  # fmt: skip
def test_bad_changes_change_nothing(msb, args, why):
    msb.create("a", "--root-disk", "32M")
    msb.ok("stop", "-q", "a")
    before = (msb.home / "sandboxes/a/spec.json").read_bytes()
    p = msb("modify", "a", "-e", "X=1", *args)
    assert p.returncode == 1 and why in p.stderr.decode(), p.stderr
    assert (msb.home / "sandboxes/a/spec.json").read_bytes() == before
    assert disk(msb, "a").st_size == 32 << 20


def test_what_cannot_grow(msb):
    assert b"sandbox not found: none" in msb("modify", "none", "--root-disk", "1G").stderr
    msb.create("t", "--root-disk", "tmpfs:64M")
    msb.ok("stop", "-q", "t")
    msb.ok("modify", "-q", "t", "--root-disk", "32M")  # recreated at each start
    assert 28 <= mib(msb, "t") <= 32
    assert msb("modify", "t", "--restart", "--next-start").returncode == 2


def inspect(msb, name):
    return json.loads(msb.ok("inspect", name, "--format", "json"))


def test_next_start_of_a_running_sandbox(msb):
    """It keeps running unchanged, and reports this; the next start has the change."""
    msb.create("a", "--memory", "128M", "-e", "X=old", "--label", "l=1")
    pid = msb.monitor_pid("a")
    args = ["modify", "a", "--memory", "192M", "-e", "X=new", "--label", "l=2", "--next-start"]
    plan = json.loads(msb.ok(*args, "--dry-run", "--format", "json"))
    assert plan["policy"] == "next_start" and {c["disposition"] for c in plan["changes"]} == {"next start"}
    assert inspect(msb, "a")["pending_changes"] == []
    msb.ok(*args, "-q")
    msb.ok("modify", "-q", "a", "--max-memory", "1G", "--next-start")
    now = inspect(msb, "a")
    assert [(c["field"], c["change"], c["before"], c["after"]) for c in now["pending_changes"]] == [
        ("memory", "updated", "128 MiB", "192 MiB"), ("max_memory", "updated", "128 MiB", "1 GiB"),
        ("env", "updated", "X=old", "X=new"), ("label", "updated", "l=1", "l=2")]  # fmt: skip
    assert now["active_config"]["resources"]["memory_mib"] == 128 and now["config"]["resources"]["memory_mib"] == 192
    assert "memory        128 MiB → 192 MiB" in msb.ok("inspect", "a")
    assert json.loads(msb.ok("ps", "a", "--format", "json"))["memory_mib"] == 128
    assert msb.monitor_pid("a") == pid and sh(msb, "a", "echo $X") == "old\n"
    # What it has at once does not bring along what it will have later.
    msb.ok("modify", "-q", "a", "--cpus", "0.5", "--next-start")
    msb.ok("modify", "-q", "a", "--label", "m=1")
    now = inspect(msb, "a")
    assert now["active_config"]["resources"]["cpus"] == 1 and now["config"]["resources"]["cpus"] == 0.5
    assert [c["field"] for c in now["pending_changes"]] == ["cpus", "memory", "max_memory", "env"]
    msb.ok("net", "set", "-q", "a", "--net-rule", "deny@10.0.0.0/8")
    now = inspect(msb, "a")
    assert now["active_config"]["network"]["policy"] == now["config"]["network"]["policy"]
    msb.ok("restart", "-q", "a")
    now = inspect(msb, "a")
    assert now["pending_changes"] == [] and now["active_config"]["resources"]["memory_mib"] == 192
    assert sh(msb, "a", "echo $X") == "new\n"
    assert int(sh(msb, "a", "grep MemTotal /proc/meminfo").split()[1]) > 140 << 10


def test_ceilings(msb):
    """--max-cpus and --max-memory: shown, moved by what outgrows them, and CPUs change below theirs."""
    msb.create("a", "--memory", "128M", "--max-memory", "256M", "--cpus", "0.5", "--max-cpus", "1")
    assert "0.5 / 1" in msb.ok("ps", "a") and "128 MiB / 256 MiB" in msb.ok("ps", "a")
    resources = config(msb, "a")["resources"]
    assert (resources["max_cpus"], resources["max_memory_mib"]) == (1, 256)
    p = msb("modify", "a", "--cpus", "2")
    assert p.returncode == 1 and b"started with fewer CPUs" in p.stderr
    p = msb("modify", "a", "--cpus", "0.75")
    note = msb.home / "sandboxes/a/cgroup"
    if p.returncode == 0:
        group = note.read_text()
        limit = f"{group}/cpu.max" if os.path.exists(f"{group}/cpu.max") else f"{group}/cpu.cfs_quota_us"
        assert open(limit).read().split()[0] == "75000"
        assert config(msb, "a")["resources"]["cpus"] == 0.75
    else:
        assert b"no cgroup" in p.stderr
    msb.ok("stop", "-q", "a")
    plan = json.loads(msb.ok("modify", "a", "--cpus", "2", "--memory", "300M", "--dry-run", "--format", "json"))
    assert [c["field"] for c in plan["changes"]] == ["cpus", "max_cpus", "memory", "max_memory"]
    msb.ok("modify", "-q", "a", "--cpus", "2")
    assert config(msb, "a")["resources"]["max_cpus"] == 2
    for bad in (["--cpus", "2", "--max-cpus", "1"], ["--memory", "2G", "--max-memory", "1G"]):
        p = msb("create", "-n", "b", *bad)
        assert p.returncode == 1 and b"must be greater than or equal to" in p.stderr
