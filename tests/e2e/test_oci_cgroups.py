"""Containers of the OCI runtime in cgroups: limits, freezing, and what is left."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from ocikit import bury, has_cgroups, process_file, reap, sh


@pytest.mark.skipif(not has_cgroups(), reason="needs cgroups to write to")
def test_cgroup_of_its_own(rt):
    """Without a path there is one of the container's name, so that it can be paused, and limited."""
    name = f"own-{os.getpid()}"
    rt.create(name, sh("sleep 1000"), linux={"resources": {"cpu": {"shares": 300}, "memory": {"limit": 64 << 20}}})
    rt("start", name)
    rt("pause", name)
    assert rt.status(name) == "paused"
    rt("resume", name)
    assert rt.status(name) == "running"
    groups = lambda: [d for d, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(d) == name]
    assert groups()
    rt("delete", "--force", name)
    assert not groups()


@pytest.mark.skipif(not has_cgroups(), reason="needs cgroups to write to")
def test_systemd_cgroup(rt):
    """Where systemd would put a scope; with everything else that programs written for runc pass along."""
    top = f"msb{os.getpid()}"
    bundle = rt.bundle(sh("sleep 1000"), linux={"cgroupsPath": f"{top}-a.slice:p:scope"})
    rt("--systemd-cgroup", "--rootless=auto", "--debug", "create", "--no-pivot", "--no-new-keyring", "--bundle", bundle, "scope")
    scopes = [pathlib.Path(d) for d, _, _ in os.walk("/sys/fs/cgroup") if d.endswith(f"/{top}.slice/{top}-a.slice/p-scope.scope")]
    rt("delete", "--force", "scope")
    bury()
    assert scopes and not any(scope.exists() for scope in scopes)
    for scope in scopes:
        scope.parent.rmdir()
        scope.parent.parent.rmdir()
    assert "is not of the form slice:prefix:name" in rt("--systemd-cgroup", "create", "--bundle", rt.bundle(
        sh("true"), linux={"cgroupsPath": "/a/b"}), "scope", check=1).err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("path", [{}, {"cgroupsPath": f"/msb-oci-none-{os.getpid()}"}], ids=["none", "path"])
def test_limits_without_cgroups(rt, path):
    """Only the guest's own apply."""
    limits = {"cpu": {"quota": 50000, "period": 100000, "shares": 512, "cpus": "0"}, "memory": {"limit": 64 << 20, "reservation": 32 << 20}}
    with rt.without_cgroups():
        size = rt.run(sh("grep MemTotal /proc/meminfo | tr -dc 0-9"), linux={**path, "resources": limits})
    assert int(size) < 64 << 10


def update_by_options(rt, path):
    """runc's options, for people; each is a limit of the group, or refused."""
    def find(*names):
        files = [f"/sys/fs/cgroup{top}{path}/{name}" for top in ("", "/cpu", "/cpuset", "/memory") for name in names]
        return [open(f).read().split() for f in files if os.path.exists(f)][0]

    memory = int(find("memory.limit_in_bytes", "memory.max")[0])
    rt("update", "--cpu-quota", "60000", "--cpu-period", "50000", "--cpuset-cpus", "0", "--memory", "128M", "grp")
    assert find("cpu.cfs_quota_us", "cpu.max")[0] == "60000" and find("cpu.cfs_period_us", "cpu.max")[-1] == "50000"
    assert find("cpuset.cpus") == ["0"] and int(find("memory.limit_in_bytes", "memory.max")[0]) >= memory + (64 << 20)
    before = find("cpu.shares", "cpu.weight")
    rt("update", "--cpu-share", "2048", "--memory-reservation", "16777216", "grp")
    assert int(find("cpu.shares", "cpu.weight")[0]) > int(before[0])
    assert find("memory.soft_limit_in_bytes", "memory.low") == ["16777216"]
    rt("update", "--cpu-quota", "-1", "--memory", "-1", "grp")
    assert find("cpu.cfs_quota_us", "cpu.max")[0] in ("-1", "max")
    assert find("memory.limit_in_bytes", "memory.max")[0] in ("max", "9223372036854771712")
    for words, message in ((["--memory", "much"], "invalid value 'much' for '--memory <SIZE>'"), ([], "update needs --resources"),
                           (["--cpu-share", "0"], "expected a positive number"), (["--cpu-period", "1000"], "without --cpu-quota"),
                           (["--pids-limit", "5"], "only for containers in a pod")):
        assert message in rt("update", *words, "grp", check=1).err


@pytest.mark.skipif(not has_cgroups(), reason="needs cgroups to write to")
def test_cgroup(rt):
    """The path of the configuration: limits, all processes of the container, frozen and thawed, gone at the end."""
    path = f"/msb-oci-{os.getpid()}/leaf"
    pid = rt.create("grp", sh("sleep 1000"), linux={"cgroupsPath": path, "resources": {
        "memory": {"limit": 64 << 20}, "cpu": {"quota": 50000, "period": 100000, "shares": 512}}})
    rt("start", "grp")
    tops = [t for t in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup") if os.path.exists(t + path)]
    group = tops[0] + path
    assert str(pid) in open(group + "/cgroup.procs").read().split()
    assert len(open(group + "/cgroup.procs").read().split()) > 3  # monitor, kernel, servers
    old = os.path.exists(group + "/cpu.shares")
    assert open(group + ("/cpu.cfs_quota_us" if old else "/cpu.max")).read().split()[0] == "50000"
    assert rt("exec", "grp", "sh", "-c", "grep MemTotal /proc/meminfo | tr -dc 0-9").out < "65536"
    rt("exec", "--process", process_file(rt, sh("sleep 1000")), "--detach", "--pid-file", rt.dir / "e.pid", "grp")
    exec_pid = int((rt.dir / "e.pid").read_text())
    groups = lambda p: sorted(open(f"/proc/{p}/cgroup").read().splitlines())
    assert groups(exec_pid) == groups(pid) and str(exec_pid) in open(group + "/cgroup.procs").read().split()
    usage = json.loads(rt("events", "--stats", "grp").out)
    assert (usage["type"], usage["id"]) == ("stats", "grp") and usage["data"]["cpu"]["usage"]["total"] > 0
    assert 0 < usage["data"]["memory"]["usage"]["usage"] < usage["data"]["memory"]["usage"]["limit"]
    assert usage["data"]["pids"]["current"] > 3
    events = subprocess.Popen([rt.exe, "--root", rt.root, "events", "--interval", "10ms", "grp"], text=True,
                              env=rt.env, stdout=subprocess.PIPE)
    assert [json.loads(events.stdout.readline())["id"] for _ in range(3)] == ["grp"] * 3
    rt("pause", "grp")
    assert rt.status("grp") == "paused" and "it is paused" in rt("pause", "grp", check=1).err
    assert "it is paused" in rt("exec", "grp", "true", check=255).err
    for place in (path, f"{path}/below"):
        assert f"the cgroup {place} is frozen" in rt.refused(sh("true"), linux={"cgroupsPath": place})
    assert not os.path.exists(f"{group}/below")
    rt("resume", "grp")
    assert rt.status("grp") == "running"
    rt("update", "--resources=-", "grp", stdin=None, input=json.dumps({"cpu": {"quota": 70000}}).encode())
    assert open(group + ("/cpu.cfs_quota_us" if old else "/cpu.max")).read().split()[0] == "70000"
    update_by_options(rt, path)
    rt("pause", "grp")
    rt("delete", "--force", "grp")
    assert reap(pid) == -signal.SIGKILL and not os.path.exists(group)
    assert reap(exec_pid) in (137, 143)  # the guest may ask it first
    assert events.communicate(timeout=20)[0] and events.returncode == 0  # its end is theirs
    assert "does not exist" in rt("events", "--stats", "grp", check=1).err
    for top in {os.path.dirname(os.path.dirname(group))} | {f"/sys/fs/cgroup/{d}" for d in os.listdir("/sys/fs/cgroup")}:
        if os.path.isdir(top + os.path.dirname(path)):
            os.rmdir(top + os.path.dirname(path))
